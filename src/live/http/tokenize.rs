//! `POST /tokenize` and `POST /detokenize`.

use axum::Json;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::prompt::{TokenIds, check_vocabulary};
use super::request::{RequestBody, check_model, read_json};
use super::tokenizer::Tokenizer;
use super::{ApiError, chat, completions};
use crate::live::backend::Backend;

/// The reply of `/tokenize`.
#[derive(Serialize)]
pub(super) struct Tokenized {
    count: usize,
    max_model_len: u32,
    tokens: Vec<u32>,
}

#[derive(Deserialize)]
struct DetokenizeBody {
    model: Option<String>,
    tokens: TokenIds,
}

/// The reply of `/detokenize`.
#[derive(Serialize)]
pub(super) struct Detokenized {
    prompt: String,
}

/// The ids that a completion (`prompt`) or a chat (`messages`) would have.
pub(super) async fn tokenize<B: Backend>(
    State(backend): State<B>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Tokenized>, ApiError> {
    let mut body: RequestBody = read_json(body)?;
    let facts = backend.model()?;
    body.check_model(&facts)?;
    let prompt = if body.messages.is_some() { chat::prompt } else { completions::prompt };
    let tokens = prompt(&mut body, Tokenizer::new(facts.vocab_tokens), facts.vocab_tokens)?;
    Ok(Json(Tokenized { count: tokens.len(), max_model_len: facts.max_model_len, tokens }))
}

/// The text of token ids, as a reply would have it.
pub(super) async fn detokenize<B: Backend>(
    State(backend): State<B>,
    body: Result<Bytes, BytesRejection>,
) -> Result<Json<Detokenized>, ApiError> {
    let DetokenizeBody { model, tokens: TokenIds(tokens) } = read_json(body)?;
    let facts = backend.model()?;
    check_model(model.as_deref(), &facts)?;
    check_vocabulary("tokens", &tokens, facts.vocab_tokens)?;
    Ok(Json(Detokenized { prompt: Tokenizer::new(facts.vocab_tokens).decode(&tokens) }))
}
