//! The router as a machine: workers come and go, tell about their caches, requests get their worker.
//!
//! Candidates are always looked at in ascending order of worker, and every random choice comes from the one seeded
//! generator, so the same inputs give the same decisions. A worker here is whatever can be chosen: of an engine with
//! several data-parallel ranks each rank is one, numbered worker × ranks + rank.

use serde::{Deserialize, Serialize};

use crate::engine::KvEventData;
use crate::engine::hash::{Chain, block_chain};
use crate::ids::{RequestId, WorkerId};
use crate::rng::{Rng, Seed};
use crate::router::config::{RouterConfig, RouterConfigError, RouterMode};
use crate::router::cost::{CostTerms, RequestCost};
use crate::router::explain::Pool;
use crate::router::index::BlockIndex;
use crate::router::load::LoadBook;
use crate::router::policy::round_robin::RoundRobin;
use crate::router::policy::{kv, random};
use crate::router::queue::{RequestQueue, Waiting, score};
use crate::time::{SimSpan, SimTime};

/// What a worker that does not tell is taken to compute in one step, as in the reference.
const UNKNOWN_BATCHED_TOKENS: u32 = 10_000_000;

/// A request that wants a worker.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RouteRequest {
    /// Its name, unique among the requests that wait or are in flight.
    pub id: RequestId,
    /// Prompt length.
    pub input_tokens: u32,
    /// Identities of the prompt's full blocks; see [`Router::chain`].
    pub chain: Chain,
    /// Workers that it must not get: they failed it before.
    pub excluded: Vec<WorkerId>,
    /// What it may jump ahead in the queue: simulated seconds, or a weight (see [`crate::router::QueuePolicy`]). Below 0
    /// it counts as 0.
    pub priority_jump: f64,
    /// Its tier in the queue: higher ones go first, whatever the rest.
    pub strict_priority: u32,
}

/// What can arrive at a router.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterInput {
    /// A worker can take requests.
    WorkerUp {
        /// Which.
        worker: WorkerId,
        /// The most tokens that it computes in one step, for [`RouterConfig::router_queue_threshold`]; if it is not
        /// known or unbounded, 10 million.
        max_num_batched_tokens: Option<u32>,
    },
    /// A worker is gone: its blocks and bookings are forgotten.
    WorkerDown(WorkerId),
    /// A worker's cache changed.
    Kv(WorkerId, KvEventData),
    /// A request wants a worker.
    Request(RouteRequest),
    /// A request got its first token, and will get further ones. Who ends with its first token should only be told as
    /// [`RouterInput::Ended`], as in the reference: what leaves the queue then is placed by loads without it.
    PrefillCompleted(RequestId),
    /// A request ended, in whatever way; it may still have been waiting.
    Ended(RequestId),
}

/// A decision and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The worker.
    pub worker: WorkerId,
    /// Leading blocks of the prompt that it holds, as the index knew when the request came; `None` where it is not asked.
    pub overlap_blocks: Option<u32>,
    /// The most that any candidate holds.
    pub best_overlap_blocks: Option<u32>,
    /// The chosen candidate's terms; all zero where nobody asked for them.
    pub terms: CostTerms,
    /// Candidates looked at.
    pub candidates: u32,
    /// True if the request waited in the queue first, even if for no time at all.
    pub queued: bool,
    /// How long it waited there.
    pub wait: SimSpan,
    /// All candidates with their terms, ascending by worker; only with [`Router::explain`].
    #[serde(skip)]
    pub explained: Option<Box<[(WorkerId, CostTerms)]>>,
}

/// What a router says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterOutput {
    /// The request's worker; the request is booked on it. It may have come long before.
    Routed(RequestId, Decision),
    /// No worker can take the request, now or later.
    NoWorker(RequestId),
}

/// The router.
#[derive(Clone, Debug)]
pub struct Router {
    config: RouterConfig,
    block_size: u32,
    pool: Pool,
    /// Ascending; with so many uncached prompt tokens without a first token above which a worker is busy.
    workers: Vec<(WorkerId, f64)>,
    index: BlockIndex,
    load: LoadBook,
    queue: RequestQueue,
    round_robin: RoundRobin,
    rng: Rng,
    overlaps: Vec<(WorkerId, u32)>,
    shared: Vec<(WorkerId, u32)>,
    terms: Vec<(WorkerId, CostTerms)>,
    costs: Vec<f64>,
    /// Keep no book of what the mode does not ask for.
    lean: bool,
    explaining: bool,
}

impl Router {
    /// A router without workers, for workers that do prompt and output. `block_size` is theirs, in tokens. Caches and loads
    /// are followed in every mode, for decisions that tell of them.
    ///
    /// # Errors
    /// The first key that is out of range.
    pub fn new(config: RouterConfig, block_size: u32) -> Result<Self, RouterConfigError> {
        Ok(Router { lean: false, ..Router::for_pool(config, block_size, Pool::Agg, 1)? })
    }

    /// As [`Router::new`], but where the mode decides without caches and loads they are not followed, and decisions say
    /// nothing of them.
    ///
    /// # Errors
    /// The first key that is out of range.
    pub fn lean(config: RouterConfig, block_size: u32) -> Result<Self, RouterConfigError> {
        Router::for_pool(config, block_size, Pool::Agg, 1)
    }

    /// A lean router for one pool of a fleet; what the configuration comes to there is
    /// [`RouterConfig::for_pool`]. Each pool draws from a seed of its own. Workers of the pool have `ranks_per_worker`
    /// targets each, numbered worker × ranks + rank; see [`RoundRobin`] for their turns, which in prefill and decode
    /// pools go by the flat list.
    ///
    /// # Errors
    /// The first key that is out of range.
    pub fn for_pool(
        config: RouterConfig,
        block_size: u32,
        pool: Pool,
        ranks_per_worker: u32,
    ) -> Result<Self, RouterConfigError> {
        config.validate()?;
        let seed = Seed(config.seed).split("router");
        let (seed, ranks) = match pool {
            Pool::Agg => (seed, ranks_per_worker),
            Pool::Prefill | Pool::Decode => (seed.split(pool.name()), 1),
        };
        Ok(Router {
            rng: seed.rng(),
            lean: config.router_mode != RouterMode::Kv,
            config: config.for_pool(pool),
            block_size,
            pool,
            workers: Vec::new(),
            index: BlockIndex::new(),
            load: LoadBook::new(),
            queue: RequestQueue::default(),
            round_robin: RoundRobin::new(ranks),
            overlaps: Vec::new(),
            shared: Vec::new(),
            terms: Vec::new(),
            costs: Vec::new(),
            explaining: false,
        })
    }

    /// From now on decisions carry all their candidates, or do not. Caches and loads are then followed in every mode;
    /// what happened before is not made up for.
    pub fn explain(&mut self, on: bool) {
        self.explaining = on;
    }

    /// The configuration, as it is in this router's pool.
    pub fn config(&self) -> &RouterConfig {
        &self.config
    }

    /// The pool whose workers it chooses from.
    pub fn pool(&self) -> Pool {
        self.pool
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Identities of a prompt's full blocks, as [`RouteRequest::chain`] wants them.
    pub fn chain(prompt: &[u32], block_size: u32) -> Chain {
        block_chain(prompt, block_size as usize).into()
    }

    /// Something arrived. Decisions are pushed to `out`: that of the request itself, unless it has to wait, and those of
    /// waiting requests that can go now, in the order in which they go.
    pub fn handle(&mut self, now: SimTime, input: RouterInput, out: &mut Vec<RouterOutput>) {
        match input {
            RouterInput::WorkerUp { worker, max_num_batched_tokens } => {
                let batch_tokens = f64::from(max_num_batched_tokens.unwrap_or(UNKNOWN_BATCHED_TOKENS));
                let threshold = self.config.router_queue_threshold.unwrap_or(f64::INFINITY);
                let entry = (worker, threshold * batch_tokens);
                match self.workers.binary_search_by_key(&worker, |(known, _)| *known) {
                    Ok(at) => self.workers[at] = entry,
                    Err(at) => self.workers.insert(at, entry),
                }
                self.release(now, out);
            }
            RouterInput::WorkerDown(worker) => self.worker_down(worker, out),
            RouterInput::Request(request) => self.arrive(now, request, out),
            _ if self.blind() => {}
            // Blocks of a decode worker come with their requests; nobody chooses by them.
            RouterInput::Kv(..) if self.pool == Pool::Decode => {}
            RouterInput::Kv(worker, event) => self.index.apply(worker, &event),
            RouterInput::PrefillCompleted(id) => {
                self.load.prefill_completed(id);
                self.release(now, out);
            }
            RouterInput::Ended(id) => {
                if self.queue.remove(id).is_none() {
                    self.load.free(id);
                }
                self.release(now, out);
            }
        }
    }

    /// When this router wants to be woken although nothing arrives: never, as nothing in it expires.
    pub fn next_deadline(&self) -> Option<SimTime> {
        None
    }

    /// Time has passed; nothing depends on it yet.
    pub fn advance(&mut self, _to: SimTime, _out: &mut Vec<RouterOutput>) {}

    /// True if decisions are taken, and said, without caches and loads.
    fn blind(&self) -> bool {
        self.lean && !self.explaining
    }

    fn worker_down(&mut self, worker: WorkerId, out: &mut Vec<RouterOutput>) {
        self.workers.retain(|(known, _)| *known != worker);
        self.index.forget_worker(worker);
        self.load.forget_worker(worker);
        self.queue.forget_worker(worker);
        let stranded = |waiting: &&Waiting| self.candidates(&waiting.request).next().is_none();
        let stranded: Vec<RequestId> = self.queue.iter().filter(stranded).map(|waiting| waiting.request.id).collect();
        for id in stranded {
            self.queue.remove(id);
            out.push(RouterOutput::NoWorker(id));
        }
    }

    fn arrive(&mut self, now: SimTime, request: RouteRequest, out: &mut Vec<RouterOutput>) {
        if self.candidates(&request).next().is_none() {
            out.push(RouterOutput::NoWorker(request.id));
            return;
        }
        if self.blind() {
            let decision = self.place_blind(&request);
            out.push(RouterOutput::Routed(request.id, decision));
            return;
        }
        let mut overlaps = std::mem::take(&mut self.overlaps);
        self.index.find_matches(&request.chain, &mut overlaps);
        // Who comes later does not pass those that wait, even if a worker is free for it.
        if self.has_queue() && (!self.queue.is_empty() || self.all_busy(&request)) {
            let best = overlaps.iter().filter(|(worker, _)| is_candidate(*worker, &request)).map(|(_, blocks)| *blocks);
            let uncached_tokens = request.input_tokens - self.cached_tokens(best.max().unwrap_or(0), &request);
            let score = score(self.config.router_queue_policy, now, request.priority_jump, uncached_tokens);
            self.queue.push(Waiting { request, since: now, overlaps }, score);
            self.release(now, out);
        } else {
            let decision = self.place(&request, &overlaps);
            out.push(RouterOutput::Routed(request.id, decision));
            self.overlaps = overlaps;
        }
    }

    fn has_queue(&self) -> bool {
        self.config.router_mode == RouterMode::Kv && self.config.router_queue_threshold.is_some()
    }

    fn is_busy(&self, worker: WorkerId, above_tokens: f64) -> bool {
        self.load.load(worker).active_prefill_tokens as f64 > above_tokens
    }

    /// True if every worker that the request may get is busy.
    fn all_busy(&self, request: &RouteRequest) -> bool {
        self.candidates(request).all(|(worker, above_tokens)| self.is_busy(worker, above_tokens))
    }

    /// The workers that the request may get, ascending.
    fn candidates(&self, request: &RouteRequest) -> impl Iterator<Item = (WorkerId, f64)> {
        self.workers.iter().copied().filter(|(worker, _)| is_candidate(*worker, request))
    }

    /// Lets waiting requests go while some worker is not busy.
    fn release(&mut self, now: SimTime, out: &mut Vec<RouterOutput>) {
        while !self.queue.is_empty() {
            if self.workers.iter().all(|(worker, above_tokens)| self.is_busy(*worker, *above_tokens)) {
                return;
            }
            // The first in the order, unless none of the free workers may take it.
            let next = self.queue.iter().map(|waiting| &waiting.request).find(|request| !self.all_busy(request));
            let Some(Waiting { request, since, overlaps }) =
                next.map(|request| request.id).and_then(|id| self.queue.remove(id))
            else {
                return;
            };
            let decision = Decision { queued: true, wait: now.since(since), ..self.place(&request, &overlaps) };
            out.push(RouterOutput::Routed(request.id, decision));
        }
    }

    /// Chooses a worker in a mode that asks for nothing; there is a candidate.
    fn place_blind(&mut self, request: &RouteRequest) -> Decision {
        let candidates =
            if request.excluded.is_empty() { self.workers.len() } else { self.candidates(request).count() };
        let chosen = self.choose_blind(candidates);
        Decision {
            worker: self.candidates(request).nth(chosen).map_or(WorkerId(0), |(worker, _)| worker),
            overlap_blocks: None,
            best_overlap_blocks: None,
            terms: CostTerms::default(),
            candidates: candidates as u32,
            queued: false,
            wait: SimSpan::ZERO,
            explained: None,
        }
    }

    fn choose_blind(&mut self, candidates: usize) -> usize {
        match self.config.router_mode {
            RouterMode::Random => random::choose(candidates, &mut self.rng),
            RouterMode::RoundRobin | RouterMode::Kv => self.round_robin.choose(candidates),
        }
    }

    /// Chooses a worker by loads of now and the given overlaps, and books the request on it; there is a candidate.
    fn place(&mut self, request: &RouteRequest, overlaps: &[(WorkerId, u32)]) -> Decision {
        let mut terms = std::mem::take(&mut self.terms);
        terms.clear();
        let mut shared = std::mem::take(&mut self.shared);
        shared.clear();
        if self.config.router_track_active_blocks && self.config.router_assume_kv_reuse {
            self.load.find_shared(&request.chain, &mut shared);
        }
        let mut loads = Ascending(self.load.loads());
        let prefill_tokens = |(worker, _)| loads.of(worker).active_prefill_tokens;
        let least_prefill_tokens = self.candidates(request).map(prefill_tokens).min().unwrap_or(0);
        let cost =
            RequestCost { input_tokens: request.input_tokens, block_size: self.block_size, least_prefill_tokens };
        let mut costs = std::mem::take(&mut self.costs);
        costs.clear();
        let (mut overlap, mut in_flight, mut loads) =
            (Ascending(overlaps), Ascending(&shared), Ascending(self.load.loads()));
        let priced = self.candidates(request).map(|(worker, _)| {
            let load = loads.of(worker);
            let additional_active_blocks = if self.config.router_track_active_blocks {
                request.chain.len() as u32 - in_flight.of(worker)
            } else {
                0
            };
            let facts = CostTerms {
                overlap_blocks: overlap.of(worker),
                active_prefill_tokens: load.active_prefill_tokens,
                active_decode_blocks: load.active_blocks,
                additional_active_blocks,
                active_requests: load.active_requests,
                ..CostTerms::default()
            };
            let priced = facts.priced(cost, &self.config);
            costs.push(priced.cost);
            (worker, priced)
        });
        terms.extend(priced);
        self.shared = shared;
        let chosen = match self.config.router_mode {
            RouterMode::RoundRobin | RouterMode::Random => self.choose_blind(terms.len()),
            RouterMode::Kv => kv::choose(&costs, self.config.router_temperature, self.config.tie_break, &mut self.rng),
        };
        self.costs = costs;
        let (worker, chosen_terms) = terms[chosen];
        self.book(request, worker, chosen_terms.overlap_blocks);
        let decision = Decision {
            worker,
            overlap_blocks: Some(chosen_terms.overlap_blocks),
            best_overlap_blocks: terms.iter().map(|(_, terms)| terms.overlap_blocks).max(),
            terms: chosen_terms,
            candidates: terms.len() as u32,
            queued: false,
            wait: SimSpan::ZERO,
            explained: self.explaining.then(|| terms.as_slice().into()),
        };
        self.terms = terms;
        decision
    }

    fn book(&mut self, request: &RouteRequest, worker: WorkerId, overlap_blocks: u32) {
        let prefill_tokens = if self.config.router_track_prefill_tokens {
            request.input_tokens - self.cached_tokens(overlap_blocks, request)
        } else {
            0
        };
        if !self.config.router_track_active_blocks {
            self.load.book_unshared(request.id, worker, 0, prefill_tokens);
        } else if self.config.router_assume_kv_reuse {
            self.load.book(request.id, worker, &request.chain, prefill_tokens);
        } else {
            self.load.book_unshared(request.id, worker, request.chain.len() as u32, prefill_tokens);
        }
    }

    fn cached_tokens(&self, overlap_blocks: u32, request: &RouteRequest) -> u32 {
        overlap_blocks.saturating_mul(self.block_size).min(request.input_tokens)
    }

    /// The requests that wait for a worker, in the order in which they would leave.
    pub fn queued(&self) -> impl Iterator<Item = RequestId> {
        self.queue.iter().map(|waiting| waiting.request.id)
    }

    /// How many requests wait for a worker.
    pub fn queue_len(&self) -> usize {
        self.queue.len()
    }

    /// The index of blocks, for metrics.
    pub fn index(&self) -> &BlockIndex {
        &self.index
    }

    /// The bookings, for metrics.
    pub fn load(&self) -> &LoadBook {
        &self.load
    }
}

fn is_candidate(worker: WorkerId, request: &RouteRequest) -> bool {
    !request.excluded.contains(&worker)
}

/// Facts by worker, ascending, asked for in that order.
struct Ascending<'a, T>(&'a [(WorkerId, T)]);

impl<T: Copy + Default> Ascending<'_, T> {
    /// The worker's, or nothing.
    fn of(&mut self, worker: WorkerId) -> T {
        while let Some(((next, fact), rest)) = self.0.split_first() {
            if *next >= worker {
                return if *next == worker { *fact } else { T::default() };
            }
            self.0 = rest;
        }
        T::default()
    }
}
