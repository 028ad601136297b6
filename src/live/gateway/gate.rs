//! The pure router behind a lock, and the workers it knows.
//!
//! A lock rather than a thread of its own: a decision takes microseconds, and a request would wait longer for the hand-over
//! than for the decision. The lock puts all inputs into one order and stamps each with the time.
//!
//! A decision may come long after its request, if the router has a queue: who asked waits for it on a channel.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::{oneshot, watch};
use tonic::transport::Channel;

use crate::engine::KvEventData;
use crate::engine::hash::Chain;
use crate::ids::{RequestId, WorkerId};
use crate::journal::RouterSetup;
use crate::live::backend::ModelFacts;
use crate::live::clock::LiveClock;
use crate::live::gateway::metrics::GatewayMetrics;
use crate::live::grpc::engine::vllm_engine_client::VllmEngineClient;
use crate::live::journal::{Recorded, Tape};
use crate::router::{Decision, RouteRequest, Router, RouterConfig, RouterInput, RouterOutput};
use crate::time::SimTime;

/// The stub to talk to a worker.
pub type WorkerClient = VllmEngineClient<Channel>;

/// A worker that takes requests.
#[derive(Clone, Debug)]
pub struct WorkerEntry {
    /// Its number here; a worker that comes back keeps it.
    pub id: WorkerId,
    /// Its address.
    pub url: String,
    /// The stub to talk to it.
    pub client: WorkerClient,
    /// Tells its link that a request could not reach it.
    pub suspect: Arc<tokio::sync::Notify>,
}

struct State {
    /// Set when the first worker has told its block size.
    router: Option<Recorded<Router>>,
    tape: Option<Tape<Router>>,
    facts: Option<ModelFacts>,
    clock: LiveClock,
    workers: BTreeMap<WorkerId, WorkerEntry>,
    ids: BTreeMap<String, WorkerId>,
    out: Vec<RouterOutput>,
    /// Who waits for a decision; told `None` if nobody can take the request.
    waiting: BTreeMap<RequestId, oneshot::Sender<Option<(Decision, WorkerEntry)>>>,
}

/// The shared router.
pub struct Gate {
    config: RouterConfig,
    expected_block_size: Option<u32>,
    state: Mutex<State>,
    next_request: AtomicU64,
    worker_count: watch::Sender<usize>,
    /// Counters and histograms.
    pub metrics: GatewayMetrics,
}

/// What a router knows, in figures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouterFigures {
    /// Distinct KV blocks in the index.
    pub cached_blocks: u64,
    /// Cache events taken in.
    pub applied_events: u64,
    /// Stored events whose parent block was not known.
    pub orphan_events: u64,
    /// Requests in flight.
    pub active_requests: u64,
    /// Requests that wait for a worker.
    pub queued_requests: u64,
}

/// Where a request goes, and the booking that lasts until it is dropped.
pub struct Routed {
    /// The worker.
    pub worker: WorkerEntry,
    /// Why.
    pub decision: Decision,
    /// The booking.
    pub booking: Booking,
}

impl Gate {
    /// A gate without workers, whose router will tell its journal of every call.
    pub fn new(config: RouterConfig, expected_block_size: Option<u32>, tape: Option<Tape<Router>>) -> Arc<Self> {
        let state = State {
            router: None,
            tape,
            facts: None,
            clock: LiveClock::start(1.0),
            workers: BTreeMap::new(),
            ids: BTreeMap::new(),
            out: Vec::new(),
            waiting: BTreeMap::new(),
        };
        Arc::new(Gate {
            config,
            expected_block_size,
            state: Mutex::new(state),
            next_request: AtomicU64::new(0),
            worker_count: watch::channel(0).0,
            metrics: GatewayMetrics::default(),
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The configuration of the router.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// The model, once a worker has told.
    pub fn facts(&self) -> Option<ModelFacts> {
        self.lock().facts.clone()
    }

    /// A watch on the number of workers.
    pub fn worker_count(&self) -> watch::Receiver<usize> {
        self.worker_count.subscribe()
    }

    /// The workers that take requests, in order.
    pub fn workers(&self) -> Vec<WorkerEntry> {
        self.lock().workers.values().cloned().collect()
    }

    /// Checks a worker's facts against those of the workers that are up. The error names both values.
    pub fn agree(&self, url: &str, facts: &ModelFacts) -> Result<(), String> {
        if let Some(expected) = self.expected_block_size.filter(|expected| *expected != facts.block_size) {
            return Err(format!(
                "worker {url} has block size {} tokens, the router was started with --block-size {expected}",
                facts.block_size
            ));
        }
        let state = self.lock();
        let Some(known) = &state.facts else { return Ok(()) };
        for (what, theirs, ours) in [
            ("block size", f64::from(facts.block_size), f64::from(known.block_size)),
            ("speedup ratio", facts.speedup_ratio, known.speedup_ratio),
        ] {
            if theirs != ours {
                return Err(format!("worker {url} has {what} {theirs}, the other workers have {ours}"));
            }
        }
        if known.model != facts.model {
            return Err(format!("worker {url} serves model {}, the other workers {}", facts.model, known.model));
        }
        Ok(())
    }

    /// Gives a worker its number, which it keeps: workers are numbered in the order in which they were named or found,
    /// not in the order in which connections happened to stand.
    pub fn number(&self, url: &str) -> WorkerId {
        let mut state = self.lock();
        let next = WorkerId(state.ids.len() as u32);
        *state.ids.entry(url.to_owned()).or_insert(next)
    }

    /// A worker takes requests from now on. The first one sets the fleet's facts; of the limits the smallest holds.
    /// `max_num_batched_tokens` is the most that it computes in one step, if it tells.
    pub fn worker_up(
        &self,
        url: &str,
        facts: &ModelFacts,
        max_num_batched_tokens: Option<u32>,
        client: WorkerClient,
        suspect: Arc<tokio::sync::Notify>,
    ) -> Result<WorkerId, String> {
        self.agree(url, facts)?;
        let id = self.number(url);
        let mut state = self.lock();
        match &mut state.facts {
            Some(known) => {
                known.max_model_len = known.max_model_len.min(facts.max_model_len);
                known.vocab_tokens = known.vocab_tokens.min(facts.vocab_tokens);
            }
            None => {
                let setup = RouterSetup { config: self.config.clone(), block_size: facts.block_size };
                let router = Recorded::build(setup, state.tape.clone()).map_err(|error| error.to_string())?;
                state.router = Some(router);
                state.clock = LiveClock::start(facts.speedup_ratio);
                state.facts = Some(facts.clone());
            }
        }
        state.workers.insert(id, WorkerEntry { id, url: url.to_owned(), client, suspect });
        state.tell(RouterInput::WorkerUp { worker: id, max_num_batched_tokens });
        self.worker_count.send_replace(state.workers.len());
        Ok(id)
    }

    /// A worker is gone or cannot be reached. With the last one the fleet's facts go too: the next may be another fleet.
    pub fn worker_down(&self, id: WorkerId) {
        let mut state = self.lock();
        if state.workers.remove(&id).is_some() {
            state.tell(RouterInput::WorkerDown(id));
            if state.workers.is_empty() {
                state.router = None;
                state.facts = None;
            }
            self.worker_count.send_replace(state.workers.len());
        }
    }

    /// A worker's cache changed; ignored if the worker is not up.
    pub fn kv_events(&self, id: WorkerId, events: Vec<KvEventData>) {
        let mut state = self.lock();
        if state.workers.contains_key(&id) {
            for event in events {
                state.tell(RouterInput::Kv(id, event));
            }
        }
    }

    /// Chooses a worker and books the request on it, once a worker is free for it; `None` if nobody can take it. Who
    /// stops waiting leaves the queue.
    pub async fn route(self: &Arc<Self>, input_tokens: u32, chain: &Chain, excluded: &[WorkerId]) -> Option<Routed> {
        let id = RequestId(self.next_request.fetch_add(1, Ordering::Relaxed));
        let request = RouteRequest {
            id,
            input_tokens,
            chain: chain.clone(),
            excluded: excluded.to_vec(),
            ..RouteRequest::default()
        };
        let booking = Booking { gate: self.clone(), id };
        let (sender, decision) = oneshot::channel();
        {
            let mut state = self.lock();
            state.waiting.insert(id, sender);
            state.tell(RouterInput::Request(request));
        }
        let (decision, worker) = decision.await.ok().flatten()?;
        Some(Routed { worker, decision, booking })
    }

    /// What the router knows; all zero while no worker is up.
    pub fn figures(&self) -> RouterFigures {
        let state = self.lock();
        state.router.as_ref().map_or_else(RouterFigures::default, |router| RouterFigures {
            cached_blocks: router.index().len() as u64,
            applied_events: router.index().applied_events(),
            orphan_events: router.index().orphan_events(),
            active_requests: router.load().len() as u64,
            queued_requests: router.queue_len() as u64,
        })
    }
}

impl State {
    /// Tells the router and passes on what it decides. Without a router nobody can take anything.
    fn tell(&mut self, input: RouterInput) {
        let now: SimTime = self.clock.now();
        let Some(router) = self.router.as_mut() else {
            self.waiting.clear();
            return;
        };
        router.handle(now, input, &mut self.out);
        for output in self.out.drain(..) {
            let (id, decided) = match output {
                RouterOutput::Routed(id, decision) => {
                    let worker = self.workers.get(&decision.worker).cloned();
                    (id, worker.map(|worker| (decision, worker)))
                }
                RouterOutput::NoWorker(id) => (id, None),
            };
            // Who has stopped waiting drops its booking, which tells the router.
            if let Some(sender) = self.waiting.remove(&id) {
                let _ = sender.send(decided);
            }
        }
    }
}

/// A request's booking: what the worker carries until the request ends, in whatever way.
pub struct Booking {
    gate: Arc<Gate>,
    id: RequestId,
}

impl Booking {
    /// The request has its first token.
    pub fn prefill_completed(&self) {
        self.gate.lock().tell(RouterInput::PrefillCompleted(self.id));
    }
}

impl Drop for Booking {
    fn drop(&mut self) {
        let mut state = self.gate.lock();
        state.waiting.remove(&self.id);
        state.tell(RouterInput::Ended(self.id));
    }
}
