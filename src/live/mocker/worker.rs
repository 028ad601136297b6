//! One worker as a backend: a request goes to the fleet's pacer, its tokens come back on a channel of its own.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};
use xxhash_rust::xxh3::xxh3_64;

use crate::engine::{EngineConfig, EngineRequest, EngineStats, WorkerType};
use crate::ids::{RequestId, WorkerId};
use crate::live::backend::{
    Backend, FinishReason, GenerateCall, GenerateEvent, Generation, ModelFacts, ServeError, fold_seed,
};
use crate::live::clock::unix_seconds;
use crate::live::fleet_actor::{FleetCommand, Reply, WorkerShared};
use crate::live::mocker::config::MockerConfig;
use crate::live::mocker::handoff::{Held, Part, Source, TransferParams};
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
    engine: EngineConfig,
    /// How long blocks are held for others (wall time).
    handoff_timeout: Duration,
    /// Tells this start of the worker from others in the names that it gives.
    start: u32,
    held: Mutex<BTreeMap<String, (RequestId, Held)>>,
}

impl WorkerBackend {
    /// Worker number `worker`, reachable at `url`.
    pub fn new(
        worker: WorkerId,
        url: String,
        facts: ModelFacts,
        config: &MockerConfig,
        pacer: PacerHandle<FleetCommand>,
        shared: Arc<WorkerShared>,
        fleet: Arc<FleetState>,
    ) -> Self {
        let inner = Inner {
            worker,
            url,
            facts,
            seed: Seed(config.seed),
            pacer,
            shared,
            fleet,
            names: Mutex::default(),
            engine: config.engine.clone(),
            handoff_timeout: config.handoff_timeout,
            start: xxh3_64(format!("{:?}", (std::process::id(), unix_seconds())).as_bytes()) as u32,
            held: Mutex::default(),
        };
        WorkerBackend { inner: Arc::new(inner) }
    }

    /// What part of requests it serves.
    pub fn worker_type(&self) -> WorkerType {
        self.inner.engine.worker_type
    }

    /// What it holds under a name that it gave to a decode worker.
    pub fn held(&self, name: &str) -> Option<Held> {
        self.inner.held.lock().unwrap_or_else(PoisonError::into_inner).get(name).map(|(_, held)| *held)
    }

    /// Releases what it holds under a name; false if it does not.
    pub fn release(&self, name: &str) -> bool {
        self.inner.release(name)
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

impl Inner {
    fn release(&self, name: &str) -> bool {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
        if let Some((id, _)) = held {
            self.pacer.send(FleetCommand::Release { worker: self.worker, id });
        }
        held.is_some()
    }

    /// Keeps a computed prompt's blocks for whoever comes with the params that are returned, but not for ever.
    fn hold(self: &Arc<Self>, id: RequestId, prompt_tokens: u32) -> Value {
        let name = format!("handoff-{:08x}-{}-{id}", self.start, self.worker);
        let held = (id, Held::new(prompt_tokens, &self.engine, self.facts.speedup_ratio));
        self.held.lock().unwrap_or_else(PoisonError::into_inner).insert(name.clone(), held);
        let params = TransferParams::new(&self.url, &name, prompt_tokens.div_ceil(self.engine.block_size));
        let inner = self.clone();
        tokio::spawn(async move {
            tokio::time::sleep(inner.handoff_timeout).await;
            if inner.release(&name) {
                tracing::warn!("nobody came for the blocks of {name}: they are released");
            }
        });
        serde_json::to_value(params).unwrap_or_default()
    }
}

impl Backend for WorkerBackend {
    async fn generate(&self, call: GenerateCall) -> Result<Generation, ServeError> {
        let inner = &self.inner;
        if inner.fleet.is_draining() {
            return Err(ServeError::ShuttingDown);
        }
        // Before the source is asked, which takes time that no engine knows of.
        let arrived = inner.pacer.clock().now();
        let part = Part::of(inner.engine.worker_type, call.kv_transfer_params.as_ref())?;
        let prompt_tokens = call.prompt.len() as u32;
        let held = match &part {
            Part::Output(source) => Some(source.ask().await?),
            Part::Whole | Part::Prompt => None,
        };
        if let Some(held) = &held {
            held.check(prompt_tokens, inner.engine.block_size, inner.facts.speedup_ratio)?;
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
        inner.names.lock().unwrap_or_else(PoisonError::into_inner).insert(call.request_id.clone(), id);
        inner.fleet.live_requests.fetch_add(1, Ordering::SeqCst);
        let events = Events {
            replies,
            arrived_ns: arrived.0,
            cached_tokens: 0,
            held: None,
            pending: None,
            ended: false,
            prompt: (prompt_tokens, request.output_seed.token_at(0, request.vocab_tokens)),
            live: LiveRequest {
                inner: inner.clone(),
                id,
                name: call.request_id,
                running: true,
                source: match part {
                    Part::Output(source) => Some(source),
                    Part::Whole | Part::Prompt => None,
                },
            },
        };
        let worker = inner.worker;
        let command = match held {
            None => FleetCommand::Submit { worker, request, reply },
            Some(held) => {
                let sender = Box::new(held.sender(inner.engine.block_size));
                FleetCommand::Receive { worker, request, sender, reply }
            }
        };
        if !inner.pacer.send_at(arrived, command) {
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
        self.inner.shared.metrics.page(&self.stats(), self.inner.shared.handoffs(), &self.inner.facts)
    }
}

/// A request as long as its client listens: dropped before its end, it is cancelled and its blocks are free.
#[derive(Debug)]
struct LiveRequest {
    inner: Arc<Inner>,
    id: RequestId,
    name: String,
    running: bool,
    /// Holds the prompt's blocks until they are here, or the request is gone.
    source: Option<Source>,
}

impl LiveRequest {
    /// Lets the source go. If the request goes on it has to have held the blocks until now.
    fn release_source(&mut self, goes_on: bool) {
        let (Some(source), Ok(runtime)) = (self.source.take(), tokio::runtime::Handle::try_current()) else { return };
        let (pacer, worker, id) = (self.inner.pacer.clone(), self.inner.worker, self.id);
        runtime.spawn(async move {
            match source.release().await {
                Ok(()) => {}
                Err(error) if goes_on => {
                    pacer.send(FleetCommand::Lost { worker, id, error });
                }
                Err(error) => tracing::debug!("{error}"),
            }
        });
    }
}

impl Drop for LiveRequest {
    fn drop(&mut self) {
        self.release_source(false);
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
    /// What comes before the end.
    held: Option<Value>,
    pending: Option<Result<GenerateEvent, ServeError>>,
    ended: bool,
    /// Length of the prompt, and the token that a prefill worker answers.
    prompt: (u32, u32),
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
                Poll::Ready(Some(Reply::Held { at, reused_tokens })) => {
                    let (prompt_tokens, first_token) = this.prompt;
                    token_ids.push(first_token);
                    times_ns.push(at.0);
                    this.cached_tokens = reused_tokens;
                    this.held = Some(this.live.inner.hold(this.live.id, prompt_tokens));
                    this.finished(FinishReason::Length);
                }
                Poll::Ready(Some(Reply::Received)) => this.live.release_source(true),
                Poll::Ready(Some(Reply::Lost(error))) => this.end(Err(error)),
                Poll::Ready(Some(Reply::Rejected(reason))) => this.end(Err(ServeError::Rejected(reason.to_string()))),
                Poll::Ready(Some(Reply::Aborted)) => this.finished(FinishReason::Abort),
                Poll::Ready(Some(Reply::Stopped) | None) => this.end(Err(ServeError::Stopped)),
            }
        }
        if !token_ids.is_empty() {
            let (arrived_ns, cached_tokens) = (this.arrived_ns, this.cached_tokens);
            return Poll::Ready(Some(Ok(GenerateEvent::Tokens { token_ids, times_ns, arrived_ns, cached_tokens })));
        }
        if let Some(params) = this.held.take() {
            return Poll::Ready(Some(Ok(GenerateEvent::Held(params))));
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
