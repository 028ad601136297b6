//! Prompts and token ids as they stand in a request's JSON.
//!
//! Prompts are the bulk of a request, so ids go straight into their vector; a wrong element is named by its place
//! before serde adds the line and the column. That an id is below the vocabulary's size can only be checked afterwards.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, SeqAccess, Visitor};

use super::ApiError;
use super::tokenizer::Tokenizer;

/// The field `prompt`: a text, token ids, or a list of exactly one of these.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prompt {
    /// Text, still to be tokenized.
    Text(String),
    /// Token ids.
    Ids(Vec<u32>),
}

impl Prompt {
    /// The prompt's token ids.
    pub fn into_ids(self, tokenizer: Tokenizer, vocab_tokens: u32) -> Result<Vec<u32>, ApiError> {
        match self {
            Prompt::Text(text) => {
                let mut ids = Vec::new();
                tokenizer.encode(&text, &mut ids);
                Ok(ids)
            }
            Prompt::Ids(ids) => {
                check_vocabulary("prompt", &ids, vocab_tokens)?;
                Ok(ids)
            }
        }
    }
}

/// The field `tokens`: a list of token ids.
#[derive(Debug)]
pub(super) struct TokenIds(pub Vec<u32>);

/// Refuses ids that the model does not have.
pub(super) fn check_vocabulary(field: &'static str, ids: &[u32], vocab_tokens: u32) -> Result<(), ApiError> {
    match ids.iter().enumerate().find(|(_, id)| **id >= vocab_tokens) {
        None => Ok(()),
        Some((position, id)) => Err(ApiError::invalid(format!(
            "token {position} of `{field}` is {id}, expected less than the vocabulary size {vocab_tokens}"
        ))
        .about(field)),
    }
}

impl<'de> Deserialize<'de> for Prompt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Prompt, D::Error> {
        deserializer.deserialize_any(PromptVisitor)
    }
}

impl<'de> Deserialize<'de> for TokenIds {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<TokenIds, D::Error> {
        deserializer.deserialize_seq(TokenIdsVisitor { field: "tokens" }).map(TokenIds)
    }
}

struct PromptVisitor;

impl<'de> Visitor<'de> for PromptVisitor {
    type Value = Prompt;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`prompt` to be a text or a list of token ids")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Prompt, E> {
        Ok(Prompt::Text(text.to_owned()))
    }

    fn visit_string<E: Error>(self, text: String) -> Result<Prompt, E> {
        Ok(Prompt::Text(text))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Prompt, A::Error> {
        let first = ElementSeed { field: "prompt", position: 0, may_be_whole: true };
        let id = match list.next_element_seed(first)? {
            None => return Ok(Prompt::Ids(Vec::new())),
            Some(Element::Id(id)) => id,
            Some(Element::Whole(prompt)) => {
                return match list.next_element::<serde::de::IgnoredAny>()? {
                    None => Ok(prompt),
                    Some(_) => Err(A::Error::custom("`prompt` holds more than one prompt, expected one a request")),
                };
            }
        };
        Ok(Prompt::Ids(collect_ids("prompt", vec![id], list)?))
    }
}

struct TokenIdsVisitor {
    field: &'static str,
}

impl<'de> Visitor<'de> for TokenIdsVisitor {
    type Value = Vec<u32>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` to be a list of token ids", self.field)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Vec<u32>, A::Error> {
        collect_ids(self.field, Vec::new(), list)
    }
}

/// Reads the rest of a list of ids.
fn collect_ids<'de, A: SeqAccess<'de>>(
    field: &'static str,
    mut ids: Vec<u32>,
    mut list: A,
) -> Result<Vec<u32>, A::Error> {
    while let Some(element) = list.next_element_seed(ElementSeed { field, position: ids.len(), may_be_whole: false })? {
        match element {
            Element::Id(id) => ids.push(id),
            Element::Whole(_) => return Err(A::Error::custom("a whole prompt among token ids")),
        }
    }
    Ok(ids)
}

/// What a list may hold.
enum Element {
    Id(u32),
    /// A prompt of its own, as the list's only element.
    Whole(Prompt),
}

/// Reads an element, knowing where it stands.
#[derive(Clone, Copy)]
struct ElementSeed {
    field: &'static str,
    position: usize,
    may_be_whole: bool,
}

impl ElementSeed {
    fn wrong<E: Error>(self, seen: impl fmt::Display) -> E {
        let ElementSeed { field, position, .. } = self;
        E::custom(format_args!("token {position} of `{field}` is {seen}, expected a whole number of at least 0"))
    }
}

impl<'de> DeserializeSeed<'de> for ElementSeed {
    type Value = Element;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Element, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ElementSeed {
    type Value = Element;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "token {} of `{}` to be a whole number of at least 0", self.position, self.field)
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Element, E> {
        let too_large = |_| {
            let ElementSeed { field, position, .. } = self;
            E::custom(format_args!("token {position} of `{field}` is {value}, expected at most {}", u32::MAX))
        };
        u32::try_from(value).map(Element::Id).map_err(too_large)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Element, E> {
        u64::try_from(value).map_err(|_| self.wrong(value)).and_then(|value| self.visit_u64(value))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Element, E> {
        Err(self.wrong(format_args!("{value:?}")))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Element, E> {
        if self.may_be_whole {
            Ok(Element::Whole(Prompt::Text(text.to_owned())))
        } else {
            Err(self.wrong(format_args!("{text:?}")))
        }
    }

    fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<Element, A::Error> {
        if self.may_be_whole {
            let ids = collect_ids(self.field, Vec::new(), list)?;
            Ok(Element::Whole(Prompt::Ids(ids)))
        } else {
            Err(self.wrong("a list"))
        }
    }
}
