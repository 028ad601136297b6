//! The router as a backend: choose a worker, carry the request there and the tokens back.
//!
//! A worker that cannot be reached, or dies before its first token, costs the client nothing but time: the request goes to
//! another one. After the first token the client is told that the worker failed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::stream::{self, StreamExt};
use serde_json::{Map, Value, json};
use tonic::{Code, Status, Streaming};

use crate::ids::WorkerId;
use crate::live::backend::{
    Backend, FinishReason, GenerateCall, GenerateEvent, Generation, ModelFacts, ServeError, fold_seed,
};
use crate::live::clock::wall_now;
use crate::live::gateway::gate::{Booking, Gate, Routed, WorkerEntry};
use crate::live::grpc::REJECTED_KEY;
use crate::live::grpc::engine::generate_request::Input;
use crate::live::grpc::engine::generate_response::Response as Body;
use crate::live::grpc::engine::{AbortRequest, GenerateRequest, GenerateResponse, SamplingParams, TokenizedInput};
use crate::router::Router;

/// How the message of [`ServeError::Rejected`] begins.
const REJECTION: &str = "the request can never run: ";
/// Workers tried for one request.
const MAX_ATTEMPTS: usize = 3;

/// The router; cheap to clone.
#[derive(Clone)]
pub struct GatewayBackend {
    gate: Arc<Gate>,
    /// Which worker serves which of the clients' requests, for Abort.
    serving: Arc<Mutex<BTreeMap<String, (u64, WorkerEntry)>>>,
    next_name: Arc<AtomicU64>,
}

impl GatewayBackend {
    /// A backend on a gate.
    pub fn new(gate: Arc<Gate>) -> Self {
        GatewayBackend { gate, serving: Arc::default(), next_name: Arc::default() }
    }

    /// The gate.
    pub fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// Aborts a request by its client's name; unknown names are ignored.
    pub async fn abort(&self, request_id: &str) {
        let worker = self.serving.lock().unwrap_or_else(PoisonError::into_inner).get(request_id).cloned();
        if let Some((_, mut worker)) = worker {
            let request = AbortRequest { request_ids: vec![request_id.to_owned()] };
            if let Err(status) = worker.client.abort(request).await {
                tracing::warn!("worker {}: abort: {}", worker.url, status.message());
            }
        }
    }

    async fn attempt(&self, call: &GenerateCall, routed: &mut Routed) -> Result<Streaming<GenerateResponse>, Status> {
        let request = GenerateRequest {
            request_id: call.request_id.clone(),
            input: Some(Input::Tokenized(TokenizedInput {
                input_ids: call.prompt.clone(),
                ..TokenizedInput::default()
            })),
            sampling_params: Some(SamplingParams {
                max_tokens: Some(call.max_output_tokens),
                ignore_eos: true,
                n: 1,
                seed: call.seed.map(|seed| fold_seed(seed) as i32),
                ..SamplingParams::default()
            }),
            stream: true,
            ..GenerateRequest::default()
        };
        Ok(routed.worker.client.generate(request).await?.into_inner())
    }
}

/// True if the worker, and not the request, is at fault.
fn is_worker_fault(status: &Status) -> bool {
    match status.code() {
        Code::InvalidArgument => false,
        Code::ResourceExhausted => !status.metadata().contains_key(REJECTED_KEY),
        _ => true,
    }
}

/// The error for the client.
fn serve_error(worker: &str, status: &Status) -> ServeError {
    let message = status.message().to_owned();
    match status.code() {
        Code::InvalidArgument => ServeError::Invalid(message),
        Code::ResourceExhausted if status.metadata().contains_key(REJECTED_KEY) => {
            // The worker has said so in the words of the same error.
            let reason = message.strip_prefix(REJECTION).unwrap_or(&message);
            ServeError::Rejected(reason.to_owned())
        }
        _ => ServeError::WorkerFailed { worker: worker.to_owned(), message },
    }
}

impl Backend for GatewayBackend {
    async fn generate(&self, call: GenerateCall) -> Result<Generation, ServeError> {
        let arrived = wall_now();
        let block_size = self.model()?.block_size;
        let chain = Router::chain(&call.prompt, block_size);
        let metrics = &self.gate.metrics;
        let mut excluded: Vec<WorkerId> = Vec::new();
        let mut last_error = None;
        while excluded.len() < MAX_ATTEMPTS {
            let input_tokens = call.prompt.len() as u32;
            let asked = wall_now();
            let Some(mut routed) = self.gate.route(input_tokens, &chain, &excluded).await else { break };
            if routed.decision.queued {
                metrics.queue_wait.observe(wall_now().duration_since(asked).as_secs_f64());
            }
            if excluded.is_empty() && !routed.decision.queued {
                metrics.decision.observe(wall_now().duration_since(arrived).as_secs_f64());
            }
            if !excluded.is_empty() {
                metrics.rerouted.inc();
            }
            metrics.routed.get_or_create(&[("worker", routed.worker.url.clone())]).inc();
            metrics.overlap_blocks.inc_by(u64::from(routed.decision.overlap_blocks.unwrap_or(0)));
            metrics.best_overlap_blocks.inc_by(u64::from(routed.decision.best_overlap_blocks.unwrap_or(0)));
            let name = Name::new(self, &call.request_id, &routed.worker);
            // The first message decides whether another worker has to be tried.
            let first = match self.attempt(&call, &mut routed).await {
                Ok(mut messages) => messages.message().await.map(|first| (first, messages)),
                Err(status) => Err(status),
            };
            match first {
                Ok((Some(first), messages)) => {
                    let url = routed.worker.url.clone();
                    // The first message is here now, whenever the client may read it.
                    routed.booking.prefill_completed();
                    metrics.time_to_first_token.observe(wall_now().duration_since(arrived).as_secs_f64());
                    let overlap_blocks = routed.decision.overlap_blocks;
                    let relay = Relay {
                        first: Some(first),
                        messages,
                        worker: routed.worker,
                        _booking: routed.booking,
                        gate: self.gate.clone(),
                        ended: false,
                        _name: name,
                    };
                    return Ok(Generation { worker: url, overlap_blocks, events: relay.events() });
                }
                Ok((None, _)) => last_error = Some(Status::internal("it ended the request without an answer")),
                Err(status) if is_worker_fault(&status) => last_error = Some(status),
                Err(status) => return Err(serve_error(&routed.worker.url, &status)),
            }
            routed.worker.suspect.notify_one();
            excluded.push(routed.worker.id);
        }
        metrics.refused.inc();
        let reason = match last_error {
            Some(status) => format!("no other worker can take the request; the last one failed: {}", status.message()),
            None => "no worker can take requests now".to_owned(),
        };
        Err(ServeError::Unavailable(reason))
    }

    fn model(&self) -> Result<ModelFacts, ServeError> {
        self.gate.facts().ok_or_else(|| ServeError::Unavailable("no worker has registered yet".to_owned()))
    }

    fn health(&self) -> Result<(), ServeError> {
        if self.gate.workers().is_empty() {
            return Err(ServeError::Unavailable("no worker can take requests now".to_owned()));
        }
        Ok(())
    }

    fn metrics(&self) -> String {
        self.gate.metrics.page(&self.gate)
    }

    fn model_extras(&self) -> Map<String, Value> {
        let mut extras = Map::new();
        extras.insert("router_mode".to_owned(), json!(self.gate.config().router_mode.name()));
        extras.insert("router".to_owned(), json!(self.gate.config()));
        let workers: Vec<Value> =
            self.gate.workers().into_iter().map(|worker| json!({"worker": worker.id, "url": worker.url})).collect();
        extras.insert("workers".to_owned(), json!(workers));
        extras.insert("cached_blocks".to_owned(), json!(self.gate.figures().cached_blocks));
        extras
    }
}

/// Keeps a request's name in the list of those being served. Of two requests with the same name the later one is listed.
struct Name {
    serving: Arc<Mutex<BTreeMap<String, (u64, WorkerEntry)>>>,
    request_id: String,
    number: u64,
}

impl Name {
    fn new(backend: &GatewayBackend, request_id: &str, worker: &WorkerEntry) -> Self {
        let serving = backend.serving.clone();
        let number = backend.next_name.fetch_add(1, Ordering::Relaxed);
        let entry = (number, worker.clone());
        serving.lock().unwrap_or_else(PoisonError::into_inner).insert(request_id.to_owned(), entry);
        Name { serving, request_id: request_id.to_owned(), number }
    }
}

impl Drop for Name {
    fn drop(&mut self) {
        let mut serving = self.serving.lock().unwrap_or_else(PoisonError::into_inner);
        if serving.get(&self.request_id).is_some_and(|(number, _)| *number == self.number) {
            serving.remove(&self.request_id);
        }
    }
}

/// A worker's messages on their way to the client. Dropping it cancels the request at the worker and frees the booking.
struct Relay {
    first: Option<GenerateResponse>,
    messages: Streaming<GenerateResponse>,
    worker: WorkerEntry,
    _booking: Booking,
    gate: Arc<Gate>,
    ended: bool,
    _name: Name,
}

impl Relay {
    fn events(self) -> stream::BoxStream<'static, Result<GenerateEvent, ServeError>> {
        stream::unfold(self, |mut relay| async move {
            let event = relay.next().await?;
            Some((event, relay))
        })
        .boxed()
    }

    async fn next(&mut self) -> Option<Result<GenerateEvent, ServeError>> {
        if self.ended {
            return None;
        }
        let message = match self.first.take() {
            Some(first) => Ok(Some(first)),
            None => self.messages.message().await,
        };
        Some(match message.map(|message| message.and_then(|message| message.response)) {
            Ok(Some(Body::Chunk(chunk))) => Ok(GenerateEvent::Tokens {
                token_ids: chunk.token_ids,
                times_ns: chunk.token_times_ns,
                arrived_ns: chunk.arrived_ns,
                cached_tokens: chunk.cached_tokens,
            }),
            Ok(Some(Body::Complete(complete))) => {
                self.ended = true;
                let aborted = complete.finish_reason == FinishReason::Abort.name();
                let reason = if aborted { FinishReason::Abort } else { FinishReason::Length };
                Ok(GenerateEvent::Finished { reason, cached_tokens: complete.cached_tokens })
            }
            Ok(None) => Err(self.fail(&Status::internal("it ended the request without its last message"))),
            Err(status) => Err(self.fail(&status)),
        })
    }

    fn fail(&mut self, status: &Status) -> ServeError {
        self.ended = true;
        self.gate.metrics.failed.inc();
        if is_worker_fault(status) {
            self.worker.suspect.notify_one();
        }
        serve_error(&self.worker.url, status)
    }
}
