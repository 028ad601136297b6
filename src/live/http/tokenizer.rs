//! The built-in tokenizer: a word is a token.
//!
//! Text splits at white space. The word `<token:ID>` is the token ID if that is below the vocabulary's size; any other
//! word is a stable hash of itself, so the same text has the same ids in every process. Output tokens are written as
//! `<token:ID>` with a space in front, so texts can be joined without growing or losing a token, and a reply sent back as
//! a prompt is the very ids that were generated. Text to ids to text keeps the count of words, ids to text to ids keeps
//! the ids.
//!
//! The marker `<|role|>` in front of a chat message is one word like any other, but the usual roles own the last
//! [`RESERVED_TOKENS`] ids, which no other word hashes to. A vocabulary too small to reserve them has only hashed
//! words.

#[cfg(test)]
mod tests;

use xxhash_rust::xxh3::xxh3_64;

/// Roles with a token of their own: the first has the last id of the vocabulary.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// Ids at the vocabulary's end that belong to the role markers.
pub const RESERVED_TOKENS: u32 = ROLES.len() as u32;

/// Turns text into token ids and back. Cheap to make.
#[derive(Clone, Copy, Debug)]
pub struct Tokenizer {
    vocab_tokens: u32,
}

impl Tokenizer {
    /// A tokenizer whose ids are below `vocab_tokens`.
    pub fn new(vocab_tokens: u32) -> Tokenizer {
        Tokenizer { vocab_tokens }
    }

    /// The ids of a text's words, added to `ids`.
    pub fn encode(self, text: &str, ids: &mut Vec<u32>) {
        ids.extend(text.split_whitespace().map(|word| self.word(word)));
    }

    /// The id of the marker in front of a chat message.
    pub fn role_marker(self, role: &str) -> u32 {
        self.reserved(role).unwrap_or_else(|| self.hashed(&format!("<|{role}|>")))
    }

    /// The text of tokens, a space in front of each.
    pub fn decode(self, ids: &[u32]) -> String {
        let mut text = String::with_capacity(ids.len() * " <token:12345>".len());
        // A string takes whatever is written to it.
        let _ = write_tokens(&mut text, ids);
        text
    }

    fn word(self, word: &str) -> u32 {
        if let Some(id) = word.strip_prefix("<token:").and_then(|rest| rest.strip_suffix('>'))
            && id.bytes().all(|byte| byte.is_ascii_digit())
            && let Ok(id) = id.parse::<u32>()
            && id < self.vocab_tokens
        {
            return id;
        }
        word.strip_prefix("<|")
            .and_then(|rest| rest.strip_suffix("|>"))
            .and_then(|role| self.reserved(role))
            .unwrap_or_else(|| self.hashed(word))
    }

    fn hashed(self, word: &str) -> u32 {
        let words = self.hashed_words().unwrap_or(self.vocab_tokens).max(1);
        // Below `words`, which is a u32.
        (xxh3_64(word.as_bytes()) % u64::from(words)) as u32
    }

    fn reserved(self, role: &str) -> Option<u32> {
        self.hashed_words()?;
        ROLES.iter().zip(1..).find(|(known, _)| **known == role).map(|(_, from_end)| self.vocab_tokens - from_end)
    }

    /// How many ids hashed words share, or `None` if the vocabulary has no room for reserved ones.
    fn hashed_words(self) -> Option<u32> {
        self.vocab_tokens.checked_sub(RESERVED_TOKENS).filter(|words| *words > 0)
    }
}

/// Writes the text of tokens, a space in front of each. Nothing in it needs escaping in JSON.
pub(super) fn write_tokens(out: &mut impl std::fmt::Write, ids: &[u32]) -> std::fmt::Result {
    ids.iter().try_for_each(|id| write!(out, " <token:{id}>"))
}
