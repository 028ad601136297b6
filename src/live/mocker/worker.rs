//! One worker as a backend: a request goes to the fleet's pacer, its tokens come back on a channel of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use futures_util::{Stream, StreamExt};
use tokio::sync::{mpsc, oneshot};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{EngineRequest, EngineStats};
use crate::ids::{RequestId, WorkerId};
use crate::live::backend::{
    Backend, FinishReason, GenerateCall, GenerateEvent, Generation, ModelFacts, ServeError, fold_seed,
};
use crate::live::fleet_actor::{FleetCommand, Reply, WorkerShared};
use crate::live::pacer::PacerHandle;
use crate::rng::Seed;

/// What all workers of a process share.
#[derive(Debug, Default)]
pub struct FleetState {
    draining: AtomicBool,
    next_request: AtomicU64,
    live_requests: AtomicU64,
}

impl FleetState {
    /// From now on no request is taken.
    pub fn drain(&self) {
        self.draining.store(true, Ordering::SeqCst);
    }

    /// True after [`drain`](Self::drain).
    pub fn is_draining(&self) -> bool {
        self.draining.load(Ordering::SeqCst)
    }

    /// Requests whose clients still listen.
    pub fn live_requests(&self) -> u64 {
        self.live_requests.load(Ordering::SeqCst)
    }
}

/// One worker; cheap to clone.
#[derive(Clone, Debug)]
pub struct WorkerBackend {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    worker: WorkerId,
    url: String,
    facts: ModelFacts,
    seed: Seed,
    pacer: PacerHandle<FleetCommand>,
    shared: Arc<WorkerShared>,
    fleet: Arc<FleetState>,
    /// The clients' names of live requests, for Abort.
    names: Mutex<BTreeMap<String, RequestId>>,
}

impl WorkerBackend {
    /// Worker number `worker`, reachable at `url`.
    pub fn new(
        worker: WorkerId,
        url: String,
        facts: ModelFacts,
        seed: Seed,
        pacer: PacerHandle<FleetCommand>,
        shared: Arc<WorkerShared>,
        fleet: Arc<FleetState>,
    ) -> Self {
        WorkerBackend {
            inner: Arc::new(Inner { worker, url, facts, seed, pacer, shared, fleet, names: Mutex::default() }),
        }
    }

    /// Its address.
    pub fn url(&self) -> &str {
        &self.inner.url
    }

    /// What the engine shows of itself.
    pub fn stats(&self) -> EngineStats {
        self.inner.shared.stats()
    }

    /// What servers may read of it.
    pub fn shared(&self) -> &Arc<WorkerShared> {
        &self.inner.shared
    }

    /// The model.
    pub fn facts(&self) -> &ModelFacts {
        &self.inner.facts
    }

    /// The fleet's clock and state.
    pub fn pacer(&self) -> &PacerHandle<FleetCommand> {
        &self.inner.pacer
    }

    /// True if the fleet is being stopped.
    pub fn is_draining(&self) -> bool {
        self.inner.fleet.is_draining()
    }

    /// Aborts a live request by its client's name; unknown names are ignored.
    pub fn abort(&self, request_id: &str) {
        let id = self.inner.names.lock().unwrap_or_else(PoisonError::into_inner).get(request_id).copied();
        if let Some(id) = id {
            self.inner.pacer.send(FleetCommand::Cancel { worker: self.inner.worker, id });
        }
    }

    /// Empties the cache; false if a request holds a block.
    pub async fn flush_cache(&self) -> bool {
        let (reply, answer) = oneshot::channel();
        self.inner.pacer.send(FleetCommand::Flush { worker: self.inner.worker, reply });
        answer.await.unwrap_or(false)
    }
}

impl Backend for WorkerBackend {
    async fn generate(&self, call: GenerateCall) -> Result<Generation, ServeError> {
        let inner = &self.inner;
        if inner.fleet.is_draining() {
            return Err(ServeError::ShuttingDown);
        }
        let id = RequestId(inner.fleet.next_request.fetch_add(1, Ordering::Relaxed));
        let output_seed = match call.seed {
            Some(seed) => inner.seed.nth(u64::from(fold_seed(seed))),
            None => inner.seed.nth(xxh3_64(call.request_id.as_bytes())),
        };
        let request = EngineRequest {
            id,
            prompt: call.prompt.into(),
            max_output_tokens: call.max_output_tokens,
            output_seed,
            vocab_tokens: inner.facts.vocab_tokens,
            priority: 0,
        };
        let (reply, replies) = mpsc::unbounded_channel();
        let arrived = inner.pacer.clock().now();
        inner.names.lock().unwrap_or_else(PoisonError::into_inner).insert(call.request_id.clone(), id);
        inner.fleet.live_requests.fetch_add(1, Ordering::SeqCst);
        let events = Events {
            replies,
            arrived_ns: arrived.0,
            cached_tokens: 0,
            pending: None,
            ended: false,
            live: LiveRequest { inner: inner.clone(), id, name: call.request_id, running: true },
        };
        if !inner.pacer.send_at(arrived, FleetCommand::Submit { worker: inner.worker, request, reply }) {
            return Err(ServeError::ShuttingDown);
        }
        Ok(Generation { worker: inner.url.clone(), overlap_blocks: None, events: events.boxed() })
    }

    fn model(&self) -> Result<ModelFacts, ServeError> {
        Ok(self.inner.facts.clone())
    }

    fn health(&self) -> Result<(), ServeError> {
        if self.inner.fleet.is_draining() { Err(ServeError::ShuttingDown) } else { Ok(()) }
    }

    fn metrics(&self) -> String {
        self.inner.shared.metrics.page(&self.stats(), &self.inner.facts)
    }
}

/// A request as long as its client listens: dropped before its end, it is cancelled and its blocks are free.
#[derive(Debug)]
struct LiveRequest {
    inner: Arc<Inner>,
    id: RequestId,
    name: String,
    running: bool,
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        if self.running {
            self.inner.pacer.send(FleetCommand::Cancel { worker: self.inner.worker, id: self.id });
        }
        let mut names = self.inner.names.lock().unwrap_or_else(PoisonError::into_inner);
        if names.get(&self.name) == Some(&self.id) {
            names.remove(&self.name);
        }
        self.inner.fleet.live_requests.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Turns replies into events; tokens that are ready together become one event.
struct Events {
    replies: mpsc::UnboundedReceiver<Reply>,
    arrived_ns: u64,
    cached_tokens: u32,
    pending: Option<Result<GenerateEvent, ServeError>>,
    ended: bool,
    live: LiveRequest,
}

impl Events {
    fn end(&mut self, last: Result<GenerateEvent, ServeError>) {
        self.live.running = false;
        self.pending = Some(last);
    }

    fn finished(&mut self, reason: FinishReason) {
        self.end(Ok(GenerateEvent::Finished { reason, cached_tokens: self.cached_tokens }));
    }
}

impl Stream for Events {
    type Item = Result<GenerateEvent, ServeError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let mut token_ids = Vec::new();
        let mut times_ns = Vec::new();
        while this.pending.is_none() && !this.ended {
            match this.replies.poll_recv(context) {
                Poll::Pending => break,
                Poll::Ready(Some(Reply::Token { token_id, at, reused_tokens, finished })) => {
                    token_ids.push(token_id);
                    times_ns.push(at.0);
                    this.cached_tokens = reused_tokens;
                    if finished {
                        this.finished(FinishReason::Length);
                    }
                }
                Poll::Ready(Some(Reply::Finished { reused_tokens })) => {
                    this.cached_tokens = reused_tokens;
                    this.finished(FinishReason::Length);
                }
                Poll::Ready(Some(Reply::Rejected(reason))) => this.end(Err(ServeError::Rejected(reason.to_string()))),
                Poll::Ready(Some(Reply::Aborted)) => this.finished(FinishReason::Abort),
                Poll::Ready(Some(Reply::Stopped) | None) => this.end(Err(ServeError::Stopped)),
            }
        }
        if !token_ids.is_empty() {
            let (arrived_ns, cached_tokens) = (this.arrived_ns, this.cached_tokens);
            return Poll::Ready(Some(Ok(GenerateEvent::Tokens { token_ids, times_ns, arrived_ns, cached_tokens })));
        }
        match this.pending.take() {
            Some(last) => {
                this.ended = true;
                Poll::Ready(Some(last))
            }
            None if this.ended => Poll::Ready(None),
            None => Poll::Pending,
        }
    }
}
