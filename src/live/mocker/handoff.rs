//! Hand-offs between live workers: what goes over the wire, on both sides.
//!
//! A prefill worker answers a request with its one token and with `kv_transfer_params`, the JSON object of vLLM's NIXL
//! connector: where the blocks are, and under what name. It holds them until they are released, by the decode worker when
//! they have been copied, or after a time-out. The decode worker asks the source by HTTP what it holds
//! (`GET /kv_transfer/NAME`), lets the modelled transfer pass on its own clock, and releases the source
//! (`DELETE /kv_transfer/NAME`). docs/disaggregation.md has the whole course.

use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::routing::get;
use axum::{Json, Router};
use bytes::Bytes;
use http::{Method, Request};
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::engine::{EngineConfig, KvTransferTimingMode, WorkerType};
use crate::live::backend::ServeError;
use crate::live::mocker::worker::WorkerBackend;

/// How long a source may take to answer (wall time).
const ANSWER_TIME: Duration = Duration::from_secs(5);

/// What `kv_transfer_params` say to a decode worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferParams {
    do_remote_prefill: bool,
    do_remote_decode: bool,
    remote_engine_id: String,
    remote_request_id: String,
    remote_host: String,
    remote_port: u16,
    remote_block_ids: Vec<u32>,
}

impl TransferParams {
    /// Those of a prompt of `blocks` blocks that the worker at `url` holds under `name`. The blocks of a mock have no
    /// numbers: they are counted from 0.
    pub fn new(url: &str, name: &str, blocks: u32) -> Self {
        let address = url.strip_prefix("http://").unwrap_or(url);
        let (host, port) = address.rsplit_once(':').unwrap_or((address, ""));
        TransferParams {
            do_remote_prefill: true,
            do_remote_decode: false,
            remote_engine_id: url.to_owned(),
            remote_request_id: name.to_owned(),
            remote_host: host.to_owned(),
            remote_port: port.parse().unwrap_or(0),
            remote_block_ids: (0..blocks).collect(),
        }
    }
}

/// What a request brings, as its worker's part asks for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Part {
    /// All of it.
    Whole,
    /// The prompt; its blocks are handed over.
    Prompt,
    /// The output, from blocks that another worker holds.
    Output(Source),
}

/// A prompt's blocks at another worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    url: String,
}

impl Part {
    /// Checks `kv_transfer_params` against what the worker is there for.
    ///
    /// # Errors
    /// [`ServeError::Invalid`] if they do not fit, or are missing.
    pub fn of(worker_type: WorkerType, params: Option<&Value>) -> Result<Part, ServeError> {
        let invalid = |problem: String| Err(ServeError::Invalid(format!("`kv_transfer_params` {problem}")));
        let flag = |key: &str| params.and_then(|params| params.get(key)).and_then(Value::as_bool).unwrap_or(false);
        match worker_type {
            WorkerType::Aggregated if flag("do_remote_prefill") || flag("do_remote_decode") => {
                invalid("ask for a hand-off, and this worker has no part in any (disaggregation_mode)".to_owned())
            }
            WorkerType::Aggregated => Ok(Part::Whole),
            WorkerType::Prefill if flag("do_remote_decode") => Ok(Part::Prompt),
            WorkerType::Prefill => invalid("lack `do_remote_decode`: true, expected it at a prefill worker".to_owned()),
            WorkerType::Decode => {
                let Some(params) = params.filter(|_| flag("do_remote_prefill")) else {
                    return invalid(
                        "lack `do_remote_prefill`: true, expected those that a prefill worker has answered".to_owned(),
                    );
                };
                match TransferParams::deserialize(params) {
                    Ok(params) => {
                        let TransferParams { remote_host, remote_port, remote_request_id, .. } = params;
                        let legal = |letter: char| letter.is_ascii_alphanumeric() || letter == '-';
                        if remote_request_id.is_empty() || !remote_request_id.chars().all(legal) {
                            return invalid(format!(
                                "name the request `{remote_request_id}`, expected letters and digits"
                            ));
                        }
                        let url = format!("http://{remote_host}:{remote_port}/kv_transfer/{remote_request_id}");
                        match url.parse::<http::Uri>() {
                            Ok(_) => Ok(Part::Output(Source { url })),
                            Err(error) => invalid(format!("name the source {url}: {error}")),
                        }
                    }
                    Err(error) => invalid(format!("are {params}: {error}")),
                }
            }
        }
    }
}

/// What a source holds, and how long it takes to copy it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Held {
    /// Length of the prompt, in tokens.
    pub prompt_tokens: u32,
    block_size: u32,
    speedup_ratio: f64,
    kv_transfer_bytes_per_token: Option<u64>,
    kv_transfer_bandwidth: Option<f64>,
    kv_transfer_timing_mode: KvTransferTimingMode,
}

impl Held {
    /// A prompt held by an engine of a fleet.
    pub fn new(prompt_tokens: u32, engine: &EngineConfig, speedup_ratio: f64) -> Self {
        Held {
            prompt_tokens,
            block_size: engine.block_size,
            speedup_ratio,
            kv_transfer_bytes_per_token: engine.kv_transfer_bytes_per_token,
            kv_transfer_bandwidth: engine.kv_transfer_bandwidth,
            kv_transfer_timing_mode: engine.kv_transfer_timing_mode,
        }
    }

    /// Refuses what a request of another prompt, or a worker of another kind, cannot use.
    ///
    /// # Errors
    /// [`ServeError::Invalid`] with both values.
    pub fn check(&self, prompt_tokens: u32, block_size: u32, speedup_ratio: f64) -> Result<(), ServeError> {
        let theirs = self.prompt_tokens;
        if prompt_tokens != theirs {
            return Err(ServeError::Invalid(format!(
                "the prompt has {prompt_tokens} tokens, expected the {theirs} that `kv_transfer_params` are about"
            )));
        }
        for (key, ours, theirs) in [
            ("block_size", f64::from(block_size), f64::from(self.block_size)),
            ("speedup_ratio", speedup_ratio, self.speedup_ratio),
        ] {
            if ours != theirs {
                let message = format!("the source has {key} {theirs}, this worker {ours}, expected the same on both");
                return Err(ServeError::Invalid(message));
            }
        }
        Ok(())
    }

    /// The sender's part of an engine's configuration: [`EngineConfig::kv_transfer_time`] goes by it.
    pub fn sender(&self, block_size: u32) -> EngineConfig {
        EngineConfig {
            block_size,
            kv_transfer_bytes_per_token: self.kv_transfer_bytes_per_token,
            kv_transfer_bandwidth: self.kv_transfer_bandwidth,
            kv_transfer_timing_mode: self.kv_transfer_timing_mode,
            ..EngineConfig::default()
        }
    }
}

impl Source {
    /// What it holds.
    ///
    /// # Errors
    /// [`ServeError::WorkerFailed`] if it does not answer, or does not hold it any more.
    pub async fn ask(&self) -> Result<Held, ServeError> {
        let (status, body) = self.send(Method::GET).await?;
        match status {
            StatusCode::OK => serde_json::from_slice(&body).map_err(|error| self.failed(error)),
            StatusCode::NOT_FOUND => Err(self.failed("it does not hold these blocks: released, or held for too long")),
            other => Err(self.failed(format_args!("status {other}"))),
        }
    }

    /// Lets it release the blocks.
    ///
    /// # Errors
    /// It does not answer, or does not hold them any more: what was copied is worth nothing.
    pub async fn release(&self) -> Result<(), ServeError> {
        match self.send(Method::DELETE).await? {
            (StatusCode::OK, _) => Ok(()),
            (StatusCode::NOT_FOUND, _) => Err(self.failed("it let go of these blocks before they were copied")),
            (other, _) => Err(self.failed(format_args!("status {other}"))),
        }
    }

    async fn send(&self, method: Method) -> Result<(StatusCode, Bytes), ServeError> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build(connector);
        let request = Request::builder().method(method).uri(&self.url).body(Empty::new());
        let request = request.map_err(|error| self.failed(error))?;
        let answer = async {
            let reply = client.request(request).await.map_err(|error| self.failed(error))?;
            let status = reply.status();
            let body = reply.into_body().collect().await.map_err(|error| self.failed(error))?;
            Ok((status, body.to_bytes()))
        };
        tokio::time::timeout(ANSWER_TIME, answer).await.unwrap_or_else(|_| Err(self.failed("no answer in 5 s")))
    }

    fn failed(&self, problem: impl std::fmt::Display) -> ServeError {
        ServeError::WorkerFailed {
            worker: self.url.clone(),
            message: format!("the source of the KV blocks: {problem}"),
        }
    }
}

/// The paths under which others ask for what a worker holds and release it.
pub fn routes(backend: WorkerBackend) -> Router {
    Router::new().route("/kv_transfer/{name}", get(held).delete(release)).with_state(backend)
}

async fn held(
    State(backend): State<WorkerBackend>,
    Path(name): Path<String>,
) -> Result<Json<Held>, (StatusCode, Json<Value>)> {
    backend.held(&name).map(Json).ok_or_else(|| not_held(&name))
}

async fn release(
    State(backend): State<WorkerBackend>,
    Path(name): Path<String>,
) -> Result<(), (StatusCode, Json<Value>)> {
    if backend.release(&name) { Ok(()) } else { Err(not_held(&name)) }
}

fn not_held(name: &str) -> (StatusCode, Json<Value>) {
    let message = format!("no blocks are held for `{name}`");
    (StatusCode::NOT_FOUND, Json(json!({"error": {"message": message, "type": "not_found"}})))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn params() -> Value {
        serde_json::to_value(TransferParams::new("http://127.0.0.1:50051", "handoff-7", 3)).expect("JSON")
    }

    #[test]
    fn params_lead_to_their_source() {
        let source = Part::of(WorkerType::Decode, Some(&params()));
        let url = "http://127.0.0.1:50051/kv_transfer/handoff-7".to_owned();
        assert_eq!(source, Ok(Part::Output(Source { url })));
        assert_eq!(params()["remote_block_ids"], json!([0, 1, 2]));
    }

    #[test]
    fn params_that_do_not_fit_are_refused() {
        let ask = json!({"do_remote_decode": true, "do_remote_prefill": false, "remote_engine_id": null});
        assert_eq!(Part::of(WorkerType::Prefill, Some(&ask)), Ok(Part::Prompt));
        assert_eq!(Part::of(WorkerType::Aggregated, None), Ok(Part::Whole));
        let mut elsewhere = params();
        elsewhere["remote_request_id"] = json!("../flush");
        let mut short = params();
        short["remote_port"] = json!("x");
        for (worker_type, params, words) in [
            (WorkerType::Aggregated, Some(&ask), "ask for a hand-off"),
            (WorkerType::Prefill, None, "lack `do_remote_decode`"),
            (WorkerType::Decode, None, "lack `do_remote_prefill`"),
            (WorkerType::Decode, Some(&ask), "lack `do_remote_prefill`"),
            (WorkerType::Decode, Some(&elsewhere), "name the request `../flush`"),
            (WorkerType::Decode, Some(&short), "invalid type"),
        ] {
            let error = Part::of(worker_type, params).expect_err("refused").to_string();
            assert!(error.starts_with("`kv_transfer_params` ") && error.contains(words), "{error}");
        }
    }
}
