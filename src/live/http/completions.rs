//! `POST /v1/completions`: text or token ids in, text out.

use super::ApiError;
use super::request::{RequestBody, output_tokens};
use super::surface::Surface;
use super::tokenizer::Tokenizer;

/// The endpoint's facts.
pub(super) static COMPLETIONS: Surface = Surface {
    id_prefix: "cmpl",
    object: "text_completion",
    chunk_object: "text_completion",
    text_open: r#""text":""#,
    text_close: r#"""#,
    delta_open: r#""text":""#,
    delta_close: r#"""#,
    opening_delta: None,
    closing_delta: r#""text":"""#,
    prompt,
    max_output_tokens: |body| output_tokens("max_tokens", body.max_tokens),
};

/// The prompt's token ids.
pub(super) fn prompt(body: &mut RequestBody, tokenizer: Tokenizer, vocab_tokens: u32) -> Result<Vec<u32>, ApiError> {
    let Some(prompt) = body.prompt.take() else {
        return Err(ApiError::invalid("`prompt` is missing, expected a text or a list of token ids").about("prompt"));
    };
    let ids = prompt.into_ids(tokenizer, vocab_tokens)?;
    if ids.is_empty() {
        return Err(ApiError::invalid("`prompt` is empty, expected at least one token").about("prompt"));
    }
    Ok(ids)
}
