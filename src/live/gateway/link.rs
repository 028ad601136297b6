//! The link to one worker: connect, agree on the fleet's facts, follow its cache events, and do so again when it is lost.
//!
//! The worker takes requests while its event stream flows. When the stream breaks, or a request could not reach the
//! worker, it is down until a new link stands; its cache is then learnt from the start.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

use crate::ids::WorkerId;
use crate::live::backend::ModelFacts;
use crate::live::gateway::gate::{Gate, WorkerClient};
use crate::live::grpc::common::SubscribeKvEventsRequest;
use crate::live::grpc::convert::from_wire;
use crate::live::grpc::engine::{GetModelInfoRequest, GetServerInfoRequest};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(2);
const WINDOW_BYTES: u32 = 8 << 20;

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
        Ok(()) => LinkError::Lost("the event stream ended".to_owned()),
        Err(error) => error,
    }
}

async fn follow(gate: &Arc<Gate>, url: &str, retry: &mut Duration) -> Result<(), LinkError> {
    let lost = |what: &str, error: &dyn std::fmt::Display| LinkError::Lost(format!("{what}: {error}"));
    let endpoint = Endpoint::from_shared(url.to_owned())
        .map_err(|error| LinkError::Mismatch(format!("worker {url}: not an address: {error}")))?
        .connect_timeout(CONNECT_TIMEOUT)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .http2_keep_alive_interval(Duration::from_secs(2))
        .keep_alive_timeout(Duration::from_secs(5))
        .keep_alive_while_idle(true);
    let channel = endpoint.connect().await.map_err(|error| lost("cannot connect", &error))?;
    let mut client = WorkerClient::new(channel).max_decoding_message_size(usize::MAX);
    let facts = tokio::time::timeout(CONNECT_TIMEOUT, facts(&mut client))
        .await
        .map_err(|_| LinkError::Lost("no answer to GetServerInfo within 2 s".to_owned()))?
        .map_err(|status| lost("GetServerInfo", &status.message()))?;
    gate.agree(url, &facts).map_err(LinkError::Mismatch)?;
    let subscribe = SubscribeKvEventsRequest { start_sequence_number: 0, load_records_before_first_batch: true };
    let mut batches = client
        .subscribe_kv_events(subscribe)
        .await
        .map_err(|status| lost("SubscribeKvEvents", &status.message()))?
        .into_inner();
    let suspect = Arc::new(Notify::new());
    let id = gate.worker_up(url, client, suspect.clone());
    let _up = Up(gate, id);
    *retry = FIRST_RETRY;
    tracing::info!("worker {id} at {url} is up");
    loop {
        let batch = tokio::select! {
            batch = batches.message() => batch.map_err(|status| lost("the event stream broke", &status.message()))?,
            () = suspect.notified() => return Err(LinkError::Lost("a request could not reach it".to_owned())),
        };
        let Some(batch) = batch else { return Ok(()) };
        gate.kv_events(id, batch.events.into_iter().filter_map(from_wire));
    }
}

async fn facts(client: &mut WorkerClient) -> Result<ModelFacts, tonic::Status> {
    let server = client.get_server_info(GetServerInfoRequest {}).await?.into_inner();
    let model = client.get_model_info(GetModelInfoRequest {}).await?.into_inner();
    let block_size = u32::try_from(server.block_size).unwrap_or(0);
    if block_size == 0 {
        return Err(tonic::Status::failed_precondition(format!("the block size is {}", server.block_size)));
    }
    // Workers that are not ours do not know the field: they run in real time.
    let speedup_ratio = if server.speedup_ratio > 0.0 { server.speedup_ratio } else { 1.0 };
    let name = if model.served_model_name.is_empty() { model.model_path } else { model.served_model_name };
    Ok(ModelFacts {
        model: name,
        max_model_len: model.max_context_length,
        vocab_tokens: model.vocab_size,
        block_size,
        speedup_ratio,
    })
}
