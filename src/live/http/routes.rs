//! Which path is answered by what, and the pages that need no request's body.

use axum::extract::{DefaultBodyLimit, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode, Uri};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Map, Value, json};

use super::{ApiError, generate, tokenize};
use crate::live::backend::Backend;

/// Largest request body: room for prompts of several million token ids.
pub const MAX_BODY_BYTES: usize = 64 << 20;

/// The content type of the metrics page.
pub const METRICS_CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The whole surface in front of a backend, with JSON errors for unknown paths and methods.
pub fn routes<B: Backend>(backend: B) -> Router {
    Router::new()
        .route("/health", get(health::<B>))
        .route("/ping", get(health::<B>).post(health::<B>))
        .route("/version", get(version))
        .route("/metrics", get(metrics::<B>))
        .route("/v1/models", get(models::<B>))
        .route("/v1/completions", post(generate::completions::<B>))
        .route("/v1/chat/completions", post(generate::chat::<B>))
        .route("/tokenize", post(tokenize::tokenize::<B>))
        .route("/detokenize", post(tokenize::detokenize::<B>))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(DefaultBodyLimit::max(MAX_BODY_BYTES))
        .with_state(backend)
}

/// 200 without a body, or 503 and why.
async fn health<B: Backend>(State(backend): State<B>) -> Result<(), ApiError> {
    backend.health().map_err(|error| ApiError::from(error).with_status(StatusCode::SERVICE_UNAVAILABLE))
}

async fn version() -> Json<Value> {
    Json(json!({"version": env!("CARGO_PKG_VERSION")}))
}

async fn metrics<B: Backend>(State(backend): State<B>) -> impl IntoResponse {
    ([(CONTENT_TYPE, METRICS_CONTENT_TYPE)], backend.metrics())
}

/// The one model. The backend's extras come first, so they cannot change what clients rely on.
async fn models<B: Backend>(State(backend): State<B>) -> Result<Json<Value>, ApiError> {
    let facts = backend.model()?;
    let mut entry: Map<String, Value> = backend.model_extras();
    let fields = [
        ("id", json!(facts.model)),
        ("object", json!("model")),
        ("created", json!(0)),
        ("owned_by", json!("mockfleet")),
        ("root", json!(facts.model)),
        ("max_model_len", json!(facts.max_model_len)),
        ("block_size", json!(facts.block_size)),
        ("speedup_ratio", json!(facts.speedup_ratio)),
        ("vocab_tokens", json!(facts.vocab_tokens)),
    ];
    entry.extend(fields.map(|(key, value)| (key.to_owned(), value)));
    Ok(Json(json!({"object": "list", "data": [entry]})))
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::new(StatusCode::NOT_FOUND, "not_found", format!("nothing is served at `{}`", uri.path()))
}

async fn method_not_allowed(method: Method, uri: Uri) -> ApiError {
    let message = format!("`{}` does not take {method}", uri.path());
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, "method_not_allowed", message)
}
