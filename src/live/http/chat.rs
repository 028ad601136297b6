//! `POST /v1/chat/completions`: messages in, an assistant's message out.
//!
//! The prompt is each message's words behind its role's marker, then the marker of the reply to come. So a longer chat
//! that starts with these messages and the reply has this prompt and the reply's ids as its prefix.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, SeqAccess, Visitor};

use super::ApiError;
use super::request::{RequestBody, output_tokens};
use super::surface::Surface;
use super::tokenizer::Tokenizer;

/// One message of a chat.
#[derive(Debug, Deserialize)]
pub(super) struct Message {
    role: String,
    #[serde(default)]
    content: Content,
}

/// A message's texts.
#[derive(Debug, Default)]
struct Content(Vec<Part>);

#[derive(Debug, Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    text: Option<String>,
}

/// The endpoint's facts.
pub(super) static CHAT: Surface = Surface {
    id_prefix: "chatcmpl",
    object: "chat.completion",
    chunk_object: "chat.completion.chunk",
    text_open: r#""message":{"role":"assistant","content":""#,
    text_close: r#""}"#,
    delta_open: r#""delta":{"content":""#,
    delta_close: r#""}"#,
    opening_delta: Some(r#""delta":{"role":"assistant","content":""}"#),
    closing_delta: r#""delta":{}"#,
    prompt,
    max_output_tokens: |body| match body.max_completion_tokens {
        Some(asked) => output_tokens("max_completion_tokens", Some(asked)),
        None => output_tokens("max_tokens", body.max_tokens),
    },
};

/// The chat's token ids. Words and markers are below any vocabulary's size.
pub(super) fn prompt(body: &mut RequestBody, tokenizer: Tokenizer, _: u32) -> Result<Vec<u32>, ApiError> {
    match &body.messages {
        Some(messages) => chat_ids(messages, tokenizer),
        None => Err(ApiError::invalid("`messages` is missing, expected a list of messages").about("messages")),
    }
}

/// The token ids of a chat.
fn chat_ids(messages: &[Message], tokenizer: Tokenizer) -> Result<Vec<u32>, ApiError> {
    if messages.is_empty() {
        return Err(ApiError::invalid("`messages` is empty, expected at least one message").about("messages"));
    }
    let mut ids = Vec::new();
    for (number, message) in messages.iter().enumerate() {
        ids.push(tokenizer.role_marker(&message.role));
        for (place, part) in message.content.0.iter().enumerate() {
            match (part.kind.as_str(), &part.text) {
                ("text", Some(text)) => tokenizer.encode(text, &mut ids),
                ("text", None) => {
                    let message = format!("part {place} of message {number} has no `text`");
                    return Err(ApiError::invalid(message).about("messages"));
                }
                (kind, _) => {
                    let message = format!("part {place} of message {number} has type `{kind}`, expected `text`");
                    return Err(ApiError::invalid(message).about("messages"));
                }
            }
        }
    }
    ids.push(tokenizer.role_marker("assistant"));
    Ok(ids)
}

impl<'de> Deserialize<'de> for Content {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Content, D::Error> {
        deserializer.deserialize_any(ContentVisitor)
    }
}

struct ContentVisitor;

impl<'de> Visitor<'de> for ContentVisitor {
    type Value = Content;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("`content` to be a text or a list of parts")
    }

    /// `null`: a message that only calls tools.
    fn visit_unit<E: Error>(self) -> Result<Content, E> {
        Ok(Content::default())
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Content, E> {
        Ok(Content(vec![Part { kind: "text".to_owned(), text: Some(text.to_owned()) }]))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Content, A::Error> {
        let mut parts = Vec::new();
        while let Some(part) = list.next_element()? {
            parts.push(part);
        }
        Ok(Content(parts))
    }
}
