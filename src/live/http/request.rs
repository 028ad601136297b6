//! The body of a request: one shape for both endpoints and `/tokenize`, unknown fields ignored.
//!
//! Fields that clients send and a mock has no use for (`temperature`, `ignore_eos`, `stop` …) are among the unknown
//! ones.

use axum::extract::rejection::BytesRejection;
use axum::http::StatusCode;
use bytes::Bytes;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::ApiError;
use super::chat::Message;
use super::prompt::Prompt;
use crate::live::backend::ModelFacts;

/// Output tokens of a request that does not say.
const DEFAULT_MAX_TOKENS: i64 = 16;

/// A request as the client wrote it. `null` is the same as absent everywhere.
#[derive(Debug, Deserialize)]
pub(super) struct RequestBody {
    pub model: Option<String>,
    pub prompt: Option<Prompt>,
    pub messages: Option<Vec<Message>>,
    pub max_tokens: Option<i64>,
    pub max_completion_tokens: Option<i64>,
    n: Option<i64>,
    seed: Option<serde_json::Number>,
    stream: Option<bool>,
    stream_options: Option<StreamOptions>,
    return_token_ids: Option<bool>,
    pub kv_transfer_params: Option<serde_json::Value>,
    mockfleet_times: Option<bool>,
}

#[derive(Debug, Default, Deserialize)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// What the client wants of the reply beside the tokens.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplyOptions {
    /// A chunk per event instead of one object.
    pub stream: bool,
    /// Choices carry token ids.
    pub token_ids: bool,
    /// The stream ends with the usage.
    pub final_usage: bool,
    /// Every token chunk has the usage so far.
    pub continuous_usage: bool,
    /// Every token chunk has the simulated times of its tokens.
    pub times: bool,
}

/// Reads a JSON body. The content type is not looked at.
pub(super) fn read_json<T: DeserializeOwned>(body: Result<Bytes, BytesRejection>) -> Result<T, ApiError> {
    Ok(serde_json::from_slice(&body?)?)
}

impl RequestBody {
    /// Refuses a request for another model.
    pub fn check_model(&self, facts: &ModelFacts) -> Result<(), ApiError> {
        check_model(self.model.as_deref(), facts)
    }

    /// Refuses to make several choices.
    pub fn check_choices(&self) -> Result<(), ApiError> {
        match self.n {
            None | Some(1) => Ok(()),
            Some(n) => Err(ApiError::invalid(format!("`n` is {n}, expected 1: a request has one choice")).about("n")),
        }
    }

    /// The seed; a negative one is taken by its bits.
    pub fn seed(&self) -> Result<Option<u64>, ApiError> {
        let Some(seed) = &self.seed else { return Ok(None) };
        match seed.as_u64().or_else(|| seed.as_i64().map(i64::cast_unsigned)) {
            Some(bits) => Ok(Some(bits)),
            None => {
                Err(ApiError::invalid(format!("`seed` is {seed}, expected a whole number of 64 bits")).about("seed"))
            }
        }
    }

    /// What the reply shall look like.
    pub fn reply_options(&self) -> ReplyOptions {
        let on = |flag: Option<bool>| flag.unwrap_or(false);
        let usage = self.stream_options.as_ref();
        ReplyOptions {
            stream: on(self.stream),
            token_ids: on(self.return_token_ids),
            final_usage: on(usage.and_then(|usage| usage.include_usage)),
            continuous_usage: on(usage.and_then(|usage| usage.continuous_usage_stats)),
            times: on(self.mockfleet_times),
        }
    }
}

/// Refuses a request that names another model; one that names none is for this one.
pub(super) fn check_model(asked: Option<&str>, facts: &ModelFacts) -> Result<(), ApiError> {
    match asked {
        Some(asked) if !asked.is_empty() && asked != facts.model => {
            let message = format!("model `{asked}` is not served here, expected `{}`", facts.model);
            Err(ApiError::new(StatusCode::NOT_FOUND, "model_not_found", message).about("model"))
        }
        _ => Ok(()),
    }
}

/// The output length that a field asks for.
pub(super) fn output_tokens(field: &'static str, asked: Option<i64>) -> Result<u32, ApiError> {
    let asked = asked.unwrap_or(DEFAULT_MAX_TOKENS);
    u32::try_from(asked).map_err(|_| {
        ApiError::invalid(format!("`{field}` is {asked}, expected a whole number from 0 to {}", u32::MAX)).about(field)
    })
}
