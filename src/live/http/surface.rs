//! What distinguishes completions from chat: names, where the prompt is, and pieces of JSON around the text.
//!
//! The text of tokens never needs escaping (see [`tokenizer`](super::tokenizer)), so a choice is written as
//! `text_open`, the text, `text_close`.

use super::ApiError;
use super::request::RequestBody;
use super::tokenizer::Tokenizer;

/// The facts about one endpoint.
pub(super) struct Surface {
    /// Starts the ids of unnamed requests.
    pub id_prefix: &'static str,
    /// `object` of a whole reply.
    pub object: &'static str,
    /// `object` of a chunk.
    pub chunk_object: &'static str,
    /// Before the text of a whole reply.
    pub text_open: &'static str,
    /// After the text of a whole reply.
    pub text_close: &'static str,
    /// Before the text of a chunk.
    pub delta_open: &'static str,
    /// After the text of a chunk.
    pub delta_close: &'static str,
    /// What the first chunk holds in place of text, if a chunk without tokens comes first.
    pub opening_delta: Option<&'static str>,
    /// What the last chunk holds in place of text.
    pub closing_delta: &'static str,
    /// The prompt's token ids, given the vocabulary's size.
    pub prompt: fn(&mut RequestBody, Tokenizer, u32) -> Result<Vec<u32>, ApiError>,
    /// The output length asked for.
    pub max_output_tokens: fn(&RequestBody) -> Result<u32, ApiError>,
}
