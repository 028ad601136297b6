//! How prompts, blocks and tokens look in a journal: exact, and shorter than their numbers one by one.
//!
//! Prompts have thousands of tokens, but those of traces and generated workloads repeat or count upwards. A list of
//! tokens is a text of parts with commas between them: `7` one token, `7x16` sixteen times 7, `7+16` the sixteen tokens
//! from 7 to 22. A block is a pair: hash of its tokens, hash of it and its prefix.

use std::fmt::{self, Write};
use std::str::FromStr;
use std::sync::Arc;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::engine::hash::{BlockId, Chain};
use crate::engine::{Prompt, StoredBlock, StoredBlocks};
use crate::ids::{SequenceHash, TokensHash};

/// A list of tokens may become this long; a longer one is a broken journal.
const MOST_TOKENS: usize = 1 << 28;

/// Tokens that are written as text.
#[derive(Clone, Debug, PartialEq, Eq)]
struct TokenText<T>(T);

impl<T: AsRef<[u32]>> fmt::Display for TokenText<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut rest = self.0.as_ref();
        let mut first = true;
        while let Some(token) = rest.first().copied() {
            if !std::mem::replace(&mut first, false) {
                f.write_char(',')?;
            }
            let equal = rest.iter().take_while(|other| **other == token).count();
            let rising = rest.windows(2).take_while(|pair| pair[0].checked_add(1) == Some(pair[1])).count() + 1;
            // Two tokens are as short one by one.
            let taken = match (equal, rising) {
                (3.., _) => {
                    write!(f, "{token}x{equal}")?;
                    equal
                }
                (_, 3..) => {
                    write!(f, "{token}+{rising}")?;
                    rising
                }
                _ => {
                    write!(f, "{token}")?;
                    1
                }
            };
            rest = &rest[taken..];
        }
        Ok(())
    }
}

impl FromStr for TokenText<Vec<u32>> {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut tokens: Vec<u32> = Vec::new();
        for part in text.split(',').filter(|_| !text.is_empty()) {
            let bad = || format!("tokens `{part}`, expected TOKEN, TOKENxTIMES or TOKEN+COUNT");
            let number = |text: &str| text.parse::<u32>().map_err(|_| bad());
            let counted = |(token, count): (&str, &str)| {
                let (token, count) = (number(token)?, number(count)?);
                let fits = count as usize <= MOST_TOKENS - tokens.len();
                if fits && count > 0 { Ok((token, count)) } else { Err(bad()) }
            };
            if let Some(pair) = part.split_once('x') {
                let (token, times) = counted(pair)?;
                tokens.extend(std::iter::repeat_n(token, times as usize));
            } else if let Some(pair) = part.split_once('+') {
                let (token, count) = counted(pair)?;
                let last = token.checked_add(count - 1).ok_or_else(bad)?;
                tokens.extend(token..=last);
            } else {
                tokens.push(number(part)?);
            }
        }
        Ok(TokenText(tokens))
    }
}

impl<T: AsRef<[u32]>> Serialize for TokenText<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TokenText<Vec<u32>> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(D::Error::custom)
    }
}

impl Serialize for BlockId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.tokens, self.sequence).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for BlockId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (tokens, sequence) = <(TokensHash, SequenceHash)>::deserialize(deserializer)?;
        Ok(BlockId { tokens, sequence })
    }
}

/// A prompt: its tokens, or what is known of a hashed one.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case", bound(deserialize = "TokenText<T>: Deserialize<'de>"))]
enum PromptText<T: AsRef<[u32]>> {
    Tokens(TokenText<T>),
    Hashed { len_tokens: u32, chain: Chain, tail: TokenText<T> },
}

impl Serialize for Prompt {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let text: PromptText<&[u32]> = match self {
            Prompt::Tokens(tokens) => PromptText::Tokens(TokenText(tokens)),
            Prompt::Hashed { len_tokens, chain, tail } => {
                PromptText::Hashed { len_tokens: *len_tokens, chain: chain.clone(), tail: TokenText(tail) }
            }
        };
        text.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Ok(match PromptText::<Vec<u32>>::deserialize(deserializer)? {
            PromptText::Tokens(TokenText(tokens)) => Prompt::Tokens(tokens),
            PromptText::Hashed { len_tokens, chain, tail: TokenText(tail) } => {
                Prompt::Hashed { len_tokens, chain, tail: tail.into() }
            }
        })
    }
}

/// Stored blocks: their identities, and the tokens of each if they are told.
#[derive(Serialize, Deserialize)]
#[serde(bound(deserialize = "TokenText<T>: Deserialize<'de>"))]
struct StoredText<T: AsRef<[u32]>> {
    ids: Vec<BlockId>,
    #[serde(default = "Vec::new", skip_serializing_if = "Vec::is_empty")]
    token_ids: Vec<TokenText<T>>,
}

impl Serialize for StoredBlocks {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut token_ids: Vec<TokenText<Arc<[u32]>>> = self.iter().map(|block| TokenText(block.token_ids)).collect();
        if token_ids.iter().all(|tokens| tokens.0.is_empty()) {
            token_ids.clear();
        }
        StoredText { ids: self.ids().to_vec(), token_ids }.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for StoredBlocks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let StoredText { ids, token_ids } = StoredText::<Vec<u32>>::deserialize(deserializer)?;
        if !token_ids.is_empty() && token_ids.len() != ids.len() {
            let problem = format!("{} `token_ids` for {} `ids`, expected as many or none", token_ids.len(), ids.len());
            return Err(D::Error::custom(problem));
        }
        let mut token_ids = token_ids.into_iter();
        let blocks = ids.into_iter().map(|id| StoredBlock {
            sequence_hash: id.sequence,
            tokens_hash: id.tokens,
            token_ids: token_ids.next().map(|TokenText(tokens)| tokens.into()).unwrap_or_default(),
        });
        Ok(blocks.collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn text(tokens: &[u32]) -> String {
        TokenText(tokens).to_string()
    }

    #[test]
    fn runs_of_tokens_are_short() {
        assert_eq!(text(&[]), "");
        assert_eq!(text(&[5]), "5");
        assert_eq!(text(&[5, 5, 5, 6, 7, 8, 2, 2, 9]), "5x3,6+3,2,2,9");
        assert_eq!(text(&[u32::MAX, 0, 1, 2]), "4294967295,0+3");
    }

    #[test]
    fn broken_tokens_are_named() {
        for broken in ["x", "5x", "5x0", "-1", "5+0", "4294967295+2", "5,,6", "1x4294967295", "5x2x2"] {
            let error = broken.parse::<TokenText<Vec<u32>>>().expect_err(broken);
            assert!(error.contains("expected TOKEN"), "{error}");
        }
    }

    #[test]
    fn blocks_come_back_with_and_without_tokens() {
        for token_ids in [Vec::new(), vec![7, 7, 7]] {
            let block = |number| StoredBlock {
                sequence_hash: SequenceHash(u64::MAX - number),
                tokens_hash: TokensHash(number),
                token_ids: token_ids.clone().into(),
            };
            let blocks: StoredBlocks = (0..3).map(block).collect();
            let text = serde_json::to_string(&blocks).expect("text");
            assert_eq!(text.contains("7x3"), !token_ids.is_empty(), "{text}");
            assert_eq!(serde_json::from_str::<StoredBlocks>(&text).expect("blocks"), blocks);
        }
    }

    proptest! {
        #[test]
        fn tokens_come_back(parts in prop::collection::vec((any::<u32>(), 1u32..6, 0u32..2), 0..20)) {
            let parts = parts.into_iter();
            let tokens: Vec<u32> =
                parts.flat_map(|(first, count, step)| (0..count).map(move |at| first.wrapping_add(at * step))).collect();
            prop_assert_eq!(text(&tokens).parse::<TokenText<Vec<u32>>>(), Ok(TokenText(tokens)));
        }
    }
}
