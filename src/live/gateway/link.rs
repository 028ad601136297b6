//! The link to one worker: connect, agree on the fleet's facts, follow its cache events, and do so again when it is lost.
//!
//! The worker takes requests while its event stream flows. When the stream breaks, or a request could not reach the
//! worker, it is down until a new link stands; its cache is then learnt from the start.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Code, Status, Streaming};

use crate::engine::KvEventData;
use crate::ids::WorkerId;
use crate::live::backend::ModelFacts;
use crate::live::gateway::gate::{Gate, WorkerClient};
use crate::live::grpc::common::{KvEventBatch, SubscribeKvEventsRequest};
use crate::live::grpc::convert::from_wire;
use crate::live::grpc::engine::{GetModelInfoRequest, GetServerInfoRequest, HealthCheckRequest};
use crate::live::grpc::{CONNECTION_WINDOW_BYTES, TOKEN_WINDOW_BYTES};
use crate::live::load::target::root_cause;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);
/// Events come in large messages; they have a connection of their own, so that tokens do not wait behind them.
const EVENT_WINDOW_BYTES: u32 = 8 << 20;
/// How often a worker without events is asked whether it is well.
const HEALTH_INTERVAL: Duration = Duration::from_secs(1);

/// Why a link does not stand.
#[derive(Debug)]
enum LinkError {
    /// The worker does not fit the fleet; it would not at the next try either.
    Mismatch(String),
    /// It cannot be reached, or the stream broke.
    Lost(String),
}

/// Keeps the link to the worker at `url` until `stop`. Mismatches are told to `mismatches`, once each.
pub async fn keep(gate: Arc<Gate>, url: String, stop: CancellationToken, mismatches: mpsc::UnboundedSender<String>) {
    let mut retry = FIRST_RETRY;
    let mut last_problem = String::new();
    loop {
        let held = tokio::select! {
            held = hold(&gate, &url, &mut retry) => held,
            () = stop.cancelled() => return,
        };
        let problem = match held {
            LinkError::Mismatch(problem) => {
                if problem != last_problem {
                    let _ = mismatches.send(problem.clone());
                }
                problem
            }
            LinkError::Lost(problem) => {
                if problem != last_problem {
                    tracing::warn!("worker {url}: {problem}");
                }
                problem
            }
        };
        last_problem = problem;
        tokio::select! {
            () = tokio::time::sleep(retry) => {}
            () = stop.cancelled() => return,
        }
        retry = (retry * 2).min(LAST_RETRY);
    }
}

/// The worker is down when this is dropped.
struct Up<'a>(&'a Gate, WorkerId);

impl Drop for Up<'_> {
    fn drop(&mut self) {
        self.0.worker_down(self.1);
    }
}

/// Connects and follows the events; returns when the link is lost.
async fn hold(gate: &Arc<Gate>, url: &str, retry: &mut Duration) -> LinkError {
    match follow(gate, url, retry).await {
        Ok(never) => match never {},
        Err(error) => error,
    }
}

fn lost(what: &str, error: &dyn std::fmt::Display) -> LinkError {
    LinkError::Lost(format!("{what}: {error}"))
}

async fn connect(url: &str, stream_window_bytes: u32) -> Result<WorkerClient, LinkError> {
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| LinkError::Mismatch(format!("worker {url}: not an address: {error}")))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(stream_window_bytes)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(|error| lost("cannot connect", &root_cause(&error)))?;
    Ok(WorkerClient::new(channel).max_decoding_message_size(usize::MAX))
}

/// Waits for a call, but not for ever.
async fn in_time<T>(what: &str, call: impl Future<Output = Result<T, Status>>) -> Result<T, LinkError> {
    match tokio::time::timeout(CONNECT_TIMEOUT, call).await {
        Ok(answer) => answer.map_err(|status| lost(what, &status.message())),
        Err(_) => Err(LinkError::Lost(format!("{what}: no answer within {} s", CONNECT_TIMEOUT.as_secs()))),
    }
}

async fn follow(gate: &Arc<Gate>, url: &str, retry: &mut Duration) -> Result<std::convert::Infallible, LinkError> {
    let mut client = connect(url, TOKEN_WINDOW_BYTES).await?;
    let (facts, max_num_batched_tokens) = in_time("GetServerInfo", facts(&mut client)).await?;
    gate.agree(url, &facts).map_err(LinkError::Mismatch)?;
    let mut events = subscribe(url).await?;
    if events.is_none() {
        tracing::warn!("worker {url} sends no cache events: its overlap is taken for 0");
    }
    let suspect = Arc::new(Notify::new());
    let id = gate
        .worker_up(url, &facts, max_num_batched_tokens, client.clone(), suspect.clone())
        .map_err(LinkError::Mismatch)?;
    let _up = Up(gate, id);
    *retry = FIRST_RETRY;
    tracing::info!("worker {id} at {url} is up");
    loop {
        let batch = tokio::select! {
            batch = next_batch(&mut events) => batch?,
            // One request's failure is not the worker's death: it is asked before all others are taken from it.
            () = suspect.notified() => {
                healthy(&mut client).await?;
                continue;
            }
            () = tokio::time::sleep(HEALTH_INTERVAL), if events.is_none() => {
                healthy(&mut client).await?;
                continue;
            }
        };
        // Hashing the tokens is done before the router is locked.
        let changes: Vec<KvEventData> = batch.events.into_iter().filter_map(from_wire).collect();
        gate.kv_events(id, changes);
    }
}

/// The worker's events from the first on; `None` if it has none to send.
async fn subscribe(url: &str) -> Result<Option<Streaming<KvEventBatch>>, LinkError> {
    let mut client = connect(url, EVENT_WINDOW_BYTES).await?;
    let request = SubscribeKvEventsRequest { start_sequence_number: 0, load_records_before_first_batch: true };
    let call = async {
        match client.subscribe_kv_events(request).await {
            Ok(events) => Ok(Some(events.into_inner())),
            Err(status) if status.code() == Code::Unimplemented => Ok(None),
            Err(status) => Err(status),
        }
    };
    in_time("SubscribeKvEvents", call).await
}

async fn next_batch(events: &mut Option<Streaming<KvEventBatch>>) -> Result<KvEventBatch, LinkError> {
    let Some(events) = events else { return std::future::pending().await };
    match events.message().await {
        Ok(Some(batch)) => Ok(batch),
        Ok(None) => Err(LinkError::Lost("the event stream ended".to_owned())),
        Err(status) => Err(lost("the event stream broke", &status.message())),
    }
}

async fn healthy(client: &mut WorkerClient) -> Result<(), LinkError> {
    let answer = in_time("HealthCheck", client.health_check(HealthCheckRequest {})).await?.into_inner();
    if answer.healthy { Ok(()) } else { Err(lost("HealthCheck", &answer.message)) }
}

/// What the worker tells of itself, and the most tokens of one step if it tells that.
async fn facts(client: &mut WorkerClient) -> Result<(ModelFacts, Option<u32>), Status> {
    let server = client.get_server_info(GetServerInfoRequest {}).await?.into_inner();
    let model = client.get_model_info(GetModelInfoRequest {}).await?.into_inner();
    let block_size = u32::try_from(server.block_size).unwrap_or(0);
    if block_size == 0 {
        return Err(Status::failed_precondition(format!("the block size is {}", server.block_size)));
    }
    if ["kv_producer", "kv_consumer"].contains(&server.kv_role.as_str()) {
        let part = &server.kv_role;
        return Err(Status::failed_precondition(format!("it is a {part}, expected a worker for whole requests")));
    }
    // Workers that are not ours do not know the field: they run in real time.
    let speedup_ratio = if server.speedup_ratio > 0.0 { server.speedup_ratio } else { 1.0 };
    let name = if model.served_model_name.is_empty() { model.model_path } else { model.served_model_name };
    let max_num_batched_tokens = Some(server.max_num_batched_tokens).filter(|tokens| *tokens > 0);
    let facts = ModelFacts {
        model: name,
        max_model_len: model.max_context_length,
        vocab_tokens: model.vocab_size,
        block_size,
        speedup_ratio,
    };
    Ok((facts, max_num_batched_tokens))
}
