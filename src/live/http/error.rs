//! Errors in OpenAI's shape: `{"error": {"message", "type", "code", "param"}}` and an HTTP status.
//!
//! `code` is a word for programs: `malformed_json`, `invalid_value`, `context_length_exceeded`, `model_not_found`,
//! `request_rejected`, `body_too_large`, `body_unreadable`, `not_found`, `method_not_allowed`, `unavailable`,
//! `worker_failed`, `shutting_down`.

use axum::Json;
use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::live::backend::ServeError;

/// Why a request got no reply, as the client hears it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    status: StatusCode,
    code: &'static str,
    param: Option<&'static str>,
    message: String,
}

impl ApiError {
    /// An error with this status, code and message.
    pub fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> ApiError {
        ApiError { status, code, param: None, message: message.into() }
    }

    /// The request is wrong: status 400.
    pub fn invalid(message: impl Into<String>) -> ApiError {
        ApiError::new(StatusCode::BAD_REQUEST, "invalid_value", message)
    }

    /// Names the request's field that is to blame.
    #[must_use]
    pub fn about(mut self, param: &'static str) -> ApiError {
        self.param = Some(param);
        self
    }

    /// The same error with another status.
    #[must_use]
    pub fn with_status(mut self, status: StatusCode) -> ApiError {
        self.status = status;
        self
    }

    /// The body of the reply.
    pub fn to_json(&self) -> Value {
        let kind = if self.status.is_client_error() { "invalid_request_error" } else { "server_error" };
        json!({"error": {"message": self.message, "type": kind, "code": self.code, "param": self.param}})
    }
}

impl From<ServeError> for ApiError {
    fn from(error: ServeError) -> ApiError {
        let (status, code) = match &error {
            ServeError::Invalid(_) => (StatusCode::BAD_REQUEST, "invalid_value"),
            ServeError::Rejected(_) => (StatusCode::BAD_REQUEST, "request_rejected"),
            ServeError::Unavailable(_) => (StatusCode::SERVICE_UNAVAILABLE, "unavailable"),
            ServeError::WorkerFailed { .. } => (StatusCode::BAD_GATEWAY, "worker_failed"),
            ServeError::ShuttingDown | ServeError::Stopped => (StatusCode::SERVICE_UNAVAILABLE, "shutting_down"),
        };
        ApiError::new(status, code, error.to_string())
    }
}

impl From<serde_json::Error> for ApiError {
    /// The error of a request's body; its text ends with the line and the column.
    fn from(error: serde_json::Error) -> ApiError {
        if error.is_data() {
            ApiError::invalid(format!("request body: {error}"))
        } else {
            ApiError::new(StatusCode::BAD_REQUEST, "malformed_json", format!("request body is not valid JSON: {error}"))
        }
    }
}

impl From<BytesRejection> for ApiError {
    fn from(rejection: BytesRejection) -> ApiError {
        let status = rejection.status();
        let code = if status == StatusCode::PAYLOAD_TOO_LARGE { "body_too_large" } else { "body_unreadable" };
        ApiError::new(status, code, format!("request body: {}", rejection.body_text()))
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status, Json(self.to_json())).into_response()
    }
}
