//! From a request's body to its reply: read, check against the model, ask the backend, answer.

use axum::body::Body;
use axum::extract::State;
use axum::extract::rejection::BytesRejection;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;

use super::ApiError;
use super::chat::CHAT;
use super::completions::COMPLETIONS;
use super::headers::{OVERLAP_BLOCKS_HEADER, REQUEST_ID_HEADER, RequestId, SPEEDUP_RATIO_HEADER, WORKER_HEADER};
use super::reply::{ReplyHead, collect};
use super::request::{ReplyOptions, RequestBody, read_json};
use super::stream::ReplyStream;
use super::surface::Surface;
use super::tokenizer::Tokenizer;
use crate::live::backend::{Backend, GenerateCall, Generation, ModelFacts};
use crate::live::clock::unix_seconds;

/// Handles `POST /v1/completions`.
pub(super) async fn completions<B: Backend>(
    State(backend): State<B>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    respond(backend, headers, body, &COMPLETIONS).await
}

/// Handles `POST /v1/chat/completions`.
pub(super) async fn chat<B: Backend>(
    State(backend): State<B>,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    respond(backend, headers, body, &CHAT).await
}

/// Answers a request; its id goes on the reply whatever becomes of it.
async fn respond<B: Backend>(
    backend: B,
    headers: HeaderMap,
    body: Result<Bytes, BytesRejection>,
    surface: &'static Surface,
) -> Response {
    let id = RequestId::of(&headers, surface.id_prefix);
    let mut response = generate(&backend, id.text, body, surface).await.unwrap_or_else(IntoResponse::into_response);
    if let Some(id) = id.header {
        response.headers_mut().insert(REQUEST_ID_HEADER, id);
    }
    response
}

async fn generate<B: Backend>(
    backend: &B,
    request_id: String,
    body: Result<Bytes, BytesRejection>,
    surface: &'static Surface,
) -> Result<Response, ApiError> {
    let mut body: RequestBody = read_json(body)?;
    let facts = backend.model()?;
    let options = body.reply_options();
    let call = check(&mut body, request_id, &facts, surface)?;
    let head = ReplyHead {
        surface,
        id: call.request_id.clone(),
        model: facts.model,
        created: unix_seconds() as u64,
        prompt_tokens: call.prompt.len(),
    };
    let generation = backend.generate(call).await?;
    let headers = placement_headers(&generation, facts.speedup_ratio);
    let mut response = answer(generation, head, options).await.unwrap_or_else(IntoResponse::into_response);
    response.headers_mut().extend(headers);
    Ok(response)
}

/// The call that a body asks for, if the model can serve it.
fn check(
    body: &mut RequestBody,
    request_id: String,
    facts: &ModelFacts,
    surface: &Surface,
) -> Result<GenerateCall, ApiError> {
    body.check_model(facts)?;
    body.check_choices()?;
    let seed = body.seed()?;
    let max_output_tokens = (surface.max_output_tokens)(body)?;
    let prompt = (surface.prompt)(body, Tokenizer::new(facts.vocab_tokens), facts.vocab_tokens)?;
    let (input, limit) = (prompt.len(), facts.max_model_len);
    if input as u64 + u64::from(max_output_tokens) > u64::from(limit) {
        let message = format!(
            "the prompt has {input} tokens and {max_output_tokens} more may be made, expected at most {limit} together"
        );
        let error = ApiError::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message);
        return Err(error.about("max_tokens"));
    }
    let kv_transfer_params = body.kv_transfer_params.take();
    Ok(GenerateCall { request_id, prompt, max_output_tokens, seed, kv_transfer_params })
}

/// What headers say about an accepted request.
fn placement_headers(generation: &Generation, speedup_ratio: f64) -> HeaderMap {
    let mut headers = HeaderMap::new();
    if let Ok(worker) = HeaderValue::from_str(&generation.worker) {
        headers.insert(WORKER_HEADER, worker);
    }
    if let Some(blocks) = generation.overlap_blocks {
        headers.insert(OVERLAP_BLOCKS_HEADER, HeaderValue::from(blocks));
    }
    if let Ok(ratio) = HeaderValue::from_str(&speedup_ratio.to_string()) {
        headers.insert(SPEEDUP_RATIO_HEADER, ratio);
    }
    headers
}

/// A stream at once, or one object when everything is there.
async fn answer(generation: Generation, head: ReplyHead, options: ReplyOptions) -> Result<Response, ApiError> {
    if options.stream {
        let headers = [(CONTENT_TYPE, "text/event-stream"), (CACHE_CONTROL, "no-cache")];
        let body = Body::from_stream(ReplyStream::new(generation, head, options));
        return Ok((headers, body).into_response());
    }
    let json = collect(generation, &head, options).await?;
    Ok(([(CONTENT_TYPE, "application/json")], json).into_response())
}
