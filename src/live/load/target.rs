//! Whom the load generator talks to: its address, and what it tells about itself.

use std::str::FromStr;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use thiserror::Error;
use tonic::transport::Endpoint;

use crate::live::grpc::common::FlushCacheRequest;
use crate::live::grpc::engine::vllm_engine_client::VllmEngineClient;
use crate::live::grpc::engine::{GetModelInfoRequest, GetServerInfoRequest};

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// How requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Protocol A: token ids, every token with its emission time.
    Grpc,
    /// OpenAI's completions with server-sent events.
    Http,
}

/// Where requests go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// How.
    pub transport: Transport,
    /// `host:port`.
    pub authority: String,
}

impl Target {
    /// The address with its scheme, as the user would type it.
    pub fn url(&self) -> String {
        let scheme = match self.transport {
            Transport::Grpc => "grpc",
            Transport::Http => "http",
        };
        format!("{scheme}://{}", self.authority)
    }

    /// The address for clients that know `http` only.
    pub fn http_url(&self) -> String {
        format!("http://{}", self.authority)
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let expected = "expected http://HOST:PORT or grpc://HOST:PORT";
        let (transport, rest) = if let Some(rest) = text.strip_prefix("grpc://") {
            (Transport::Grpc, rest)
        } else if let Some(rest) = text.strip_prefix("http://") {
            (Transport::Http, rest)
        } else {
            return Err(expected.to_owned());
        };
        let authority = rest.trim_end_matches('/');
        let port = authority.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>()));
        match port {
            Some(Ok(port)) if port > 0 && !authority.contains('/') => {
                Ok(Target { transport, authority: authority.to_owned() })
            }
            _ => Err(expected.to_owned()),
        }
    }
}

/// What the server tells.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetFacts {
    /// The model to ask for.
    pub model: String,
    /// How many times faster than real time the server's clock runs; 1 for foreign servers.
    pub speedup_ratio: f64,
    /// Token ids must be below this, if the server says.
    pub vocab_tokens: Option<u32>,
    /// The router's mode; `direct` for a worker or a foreign server.
    pub router_mode: String,
    /// Workers that the router sees: its number for each, and the address.
    pub workers: Vec<(u64, String)>,
    /// Distinct KV blocks that the router knows to be cached already.
    pub cached_blocks: u64,
}

/// Why the server cannot be used.
#[derive(Debug, Error)]
pub enum TargetError {
    /// Nobody answers.
    #[error("{url}: {problem}\n  hint: start `router`, or name a server with `--url`")]
    NoAnswer {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
    },
    /// It answers, but not as a server of models.
    #[error("{url}: {problem}")]
    Foreign {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
    },
}

/// Asks the server about itself.
pub async fn ask(target: &Target) -> Result<TargetFacts, TargetError> {
    let no_answer = |problem: String| TargetError::NoAnswer { url: target.url(), problem };
    let page = tokio::time::timeout(ANSWER_TIMEOUT, models(target))
        .await
        .map_err(|_| no_answer("no answer within 5 s".to_owned()))?;
    match (page, target.transport) {
        (Ok(model), _) => Ok(facts(&model)),
        // A gRPC server need not speak HTTP/1.
        (Err(_), Transport::Grpc) => tokio::time::timeout(ANSWER_TIMEOUT, ask_grpc(target))
            .await
            .map_err(|_| no_answer("no answer within 5 s".to_owned()))?,
        (Err(problem), Transport::Http) => Err(no_answer(problem)),
    }
}

fn facts(model: &Value) -> TargetFacts {
    let workers = model["workers"].as_array().into_iter().flatten();
    TargetFacts {
        model: model["id"].as_str().unwrap_or_default().to_owned(),
        speedup_ratio: model["speedup_ratio"].as_f64().filter(|ratio| *ratio > 0.0).unwrap_or(1.0),
        vocab_tokens: model["vocab_tokens"].as_u64().and_then(|tokens| u32::try_from(tokens).ok()),
        router_mode: model["router_mode"].as_str().unwrap_or("direct").to_owned(),
        workers: workers
            .filter_map(|worker| Some((worker["worker"].as_u64()?, worker["url"].as_str()?.to_owned())))
            .collect(),
        cached_blocks: model["cached_blocks"].as_u64().unwrap_or(0),
    }
}

/// The first entry of /v1/models.
async fn models(target: &Target) -> Result<Value, String> {
    let client: Client<HttpConnector, Empty<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let url = format!("{}/v1/models", target.http_url());
    let uri = url.parse().map_err(|error| format!("not an address: {error}"))?;
    let response = client.get(uri).await.map_err(|error| root_cause(&error))?;
    let status = response.status();
    let body = response.into_body().collect().await.map_err(|error| root_cause(&error))?.to_bytes();
    let page: Value = serde_json::from_slice(&body).map_err(|error| format!("/v1/models is not JSON: {error}"))?;
    if !status.is_success() {
        let message = page["error"]["message"].as_str().unwrap_or("no message");
        return Err(format!("/v1/models answers {status}: {message}"));
    }
    match page["data"].get(0) {
        Some(model) => Ok(model.clone()),
        None => Err("/v1/models lists no model".to_owned()),
    }
}

/// Empties the caches behind the target; the error says who refused.
pub async fn flush(target: &Target) -> Result<(), String> {
    let endpoint = Endpoint::from_shared(target.http_url()).map_err(|error| error.to_string())?;
    let channel = endpoint.connect().await.map_err(|error| root_cause(&error))?;
    let answer = VllmEngineClient::new(channel).flush_cache(FlushCacheRequest::default()).await;
    let answer = answer.map_err(|status| format!("FlushCache: {}", status.message()))?.into_inner();
    if answer.success { Ok(()) } else { Err(answer.message) }
}

async fn ask_grpc(target: &Target) -> Result<TargetFacts, TargetError> {
    let no_answer = |problem: String| TargetError::NoAnswer { url: target.url(), problem };
    let foreign = |problem: String| TargetError::Foreign { url: target.url(), problem };
    let endpoint = Endpoint::from_shared(target.http_url()).map_err(|error| no_answer(error.to_string()))?;
    let channel = endpoint.connect().await.map_err(|error| no_answer(root_cause(&error)))?;
    let mut client = VllmEngineClient::new(channel);
    let model = client.get_model_info(GetModelInfoRequest {}).await;
    let model = model.map_err(|status| foreign(format!("GetModelInfo: {}", status.message())))?.into_inner();
    let server = client.get_server_info(GetServerInfoRequest {}).await;
    let server = server.map_err(|status| foreign(format!("GetServerInfo: {}", status.message())))?.into_inner();
    Ok(TargetFacts {
        model: if model.served_model_name.is_empty() { model.model_path } else { model.served_model_name },
        speedup_ratio: if server.speedup_ratio > 0.0 { server.speedup_ratio } else { 1.0 },
        vocab_tokens: Some(model.vocab_size).filter(|tokens| *tokens > 0),
        router_mode: "direct".to_owned(),
        workers: Vec::new(),
        cached_blocks: 0,
    })
}

/// The innermost error, which says what happened ("connection refused").
pub fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

impl serde::Serialize for Target {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.url())
    }
}

impl<'de> serde::Deserialize<'de> for Target {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}
