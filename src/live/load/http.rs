//! Sending over HTTP: OpenAI's completions with a prompt of token ids and server-sent events.

use bytes::Bytes;
use http::{Request, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::live::clock::wall_now;
use crate::live::load::observe::{Failure, Observation};
use crate::live::load::sse::SseLines;
use crate::live::load::target::{Target, root_cause};
use crate::live::load::transport::Shot;
use crate::session::ledger::FailureKind;

/// A pool of connections.
#[derive(Clone)]
pub struct HttpTransport {
    client: Client<HttpConnector, Full<Bytes>>,
    url: String,
    model: String,
}

/// One chunk of a completion stream, as far as it is measured.
#[derive(Debug, Default, Deserialize)]
struct Chunk {
    #[serde(default)]
    choices: Vec<Choice>,
    usage: Option<Usage>,
    mockfleet: Option<Times>,
    error: Option<Value>,
}

#[derive(Debug, Default, Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    token_ids: Option<Vec<u32>>,
    finish_reason: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
struct Usage {
    completion_tokens: Option<u32>,
    prompt_tokens_details: Option<PromptDetails>,
}

#[derive(Debug, Default, Deserialize)]
struct PromptDetails {
    cached_tokens: Option<u32>,
}

#[derive(Debug, Default, Deserialize)]
struct Times {
    #[serde(default)]
    arrived_ns: u64,
    #[serde(default)]
    times_ns: Vec<u64>,
}

/// What the stream has said so far.
#[derive(Default)]
struct Progress {
    done: bool,
    finish_reason: Option<String>,
    failure: Option<Failure>,
}

impl HttpTransport {
    /// A pool that connects when needed.
    pub fn open(target: &Target, model: &str) -> Result<Self, String> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client = Client::builder(TokioExecutor::new()).build(connector);
        Ok(HttpTransport { client, url: format!("{}/v1/completions", target.http_url()), model: model.to_owned() })
    }

    /// Sends a request and notes its tokens.
    pub async fn send(&self, shot: Shot, observation: &mut Observation) -> Result<(), Failure> {
        let body = json!({
            "model": self.model,
            "prompt": shot.prompt,
            "max_tokens": shot.output_tokens,
            "stream": true,
            "stream_options": {"include_usage": true, "continuous_usage_stats": true},
            "ignore_eos": true,
            "seed": shot.seed,
            "return_token_ids": true,
            "mockfleet_times": true,
        });
        let request = Request::post(&self.url)
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::ACCEPT, "text/event-stream")
            .header("x-request-id", shot.request_id)
            .body(Full::new(Bytes::from(body.to_string())))
            .map_err(|error| Failure::new(FailureKind::Connect, error.to_string()))?;
        observation.sent(wall_now());
        let response = self.client.request(request).await.map_err(|error| {
            let kind = if error.is_connect() { FailureKind::Connect } else { FailureKind::Stream };
            Failure::new(kind, root_cause(&error))
        })?;
        let text = |key: &str| response.headers().get(key).and_then(|value| value.to_str().ok()).map(str::to_owned);
        observation.worker = text("x-mockfleet-worker");
        observation.overlap_blocks = text("x-mockfleet-overlap-blocks").and_then(|blocks| blocks.parse().ok());
        let status = response.status();
        let mut body = response.into_body();
        if !status.is_success() {
            let answer = body.collect().await.map(|body| body.to_bytes()).unwrap_or_default();
            return Err(refusal(status, &answer));
        }
        let mut lines = SseLines::default();
        let mut progress = Progress::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| Failure::new(FailureKind::Stream, root_cause(&error)))?;
            if let Ok(bytes) = frame.into_data() {
                lines.feed(&bytes, |data| progress.note(data, observation));
            }
        }
        progress.verdict()
    }
}

impl Progress {
    fn note(&mut self, data: &[u8], observation: &mut Observation) {
        let now = wall_now();
        if data == b"[DONE]" {
            self.done = true;
            return;
        }
        let chunk: Chunk = match serde_json::from_slice(data) {
            Ok(chunk) => chunk,
            Err(error) => {
                let message = format!("a chunk is not what OpenAI's streams hold: {error}");
                self.failure.get_or_insert(Failure::new(FailureKind::Mismatch, message));
                return;
            }
        };
        if let Some(error) = chunk.error {
            let message = error["message"].as_str().unwrap_or("an error without a message").to_owned();
            // A stream's headers are sent before the engine has looked at the request.
            let refused = error["code"] == "request_rejected";
            let kind = if refused { FailureKind::Rejected } else { FailureKind::Stream };
            self.failure.get_or_insert(Failure::new(kind, message));
            return;
        }
        let told = chunk.usage.as_ref().and_then(|usage| usage.completion_tokens);
        let choice = chunk.choices.into_iter().next();
        // The server's count is best; without one, its token ids; a foreign server's chunk with text is one token.
        let arrived = match (told, &choice) {
            (Some(total), Some(_)) => total.saturating_sub(observation.output_tokens()),
            (_, Some(Choice { token_ids: Some(ids), .. })) => ids.len() as u32,
            (_, Some(choice)) => u32::from(!choice.text.is_empty()),
            (_, None) => 0,
        };
        observation.tokens(now, arrived);
        if let Some(times) = chunk.mockfleet {
            observation.engine_times(times.arrived_ns, &times.times_ns);
        }
        if let Some(cached) = chunk.usage.and_then(|usage| usage.prompt_tokens_details?.cached_tokens) {
            observation.reused_tokens = Some(cached);
        }
        if let Some(reason) = choice.and_then(|choice| choice.finish_reason) {
            self.finish_reason = Some(reason);
        }
    }

    fn verdict(self) -> Result<(), Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        match self.finish_reason.as_deref() {
            Some("length" | "stop") if self.done => Ok(()),
            Some(reason) if self.done => {
                Err(Failure::new(FailureKind::Stream, format!("the server ended it with `{reason}`")))
            }
            _ => Err(Failure::new(FailureKind::Stream, "the stream ended without [DONE]")),
        }
    }
}

fn refusal(status: StatusCode, answer: &[u8]) -> Failure {
    let page: Value = serde_json::from_slice(answer).unwrap_or_default();
    let message = page["error"]["message"].as_str().unwrap_or("no message");
    let kind = if status.is_client_error() && status != StatusCode::TOO_MANY_REQUESTS {
        FailureKind::Rejected
    } else {
        FailureKind::Unavailable
    };
    Failure::new(kind, format!("{status}: {message}"))
}
