//! The router as a machine: workers come and go, tell about their caches, requests get their worker.
//!
//! Candidates are always looked at in ascending order of worker, and every random choice comes from the one seeded
//! generator, so the same inputs give the same decisions.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::engine::KvEventData;
use crate::engine::hash::{Chain, block_chain};
use crate::ids::{RequestId, WorkerId};
use crate::rng::{Rng, Seed};
use crate::router::config::{RouterConfig, RouterConfigError, RouterMode};
use crate::router::cost::{CostTerms, RequestCost};
use crate::router::index::BlockIndex;
use crate::router::load::LoadBook;
use crate::router::policy::round_robin::RoundRobin;
use crate::router::policy::{kv, random};
use crate::time::SimTime;

/// A request that wants a worker.
#[derive(Clone, Debug)]
pub struct RouteRequest {
    /// Its name, unique among the requests in flight.
    pub id: RequestId,
    /// Prompt length.
    pub input_tokens: u32,
    /// Identities of the prompt's full blocks; see [`Router::chain`].
    pub chain: Chain,
    /// Workers that it must not get: they failed it before.
    pub excluded: Vec<WorkerId>,
}

/// What can arrive at a router.
#[derive(Clone, Debug)]
pub enum RouterInput {
    /// A worker can take requests.
    WorkerUp(WorkerId),
    /// A worker is gone: its blocks and bookings are forgotten.
    WorkerDown(WorkerId),
    /// A worker's cache changed.
    Kv(WorkerId, KvEventData),
    /// A request wants a worker.
    Request(RouteRequest),
    /// A request got its first token.
    PrefillCompleted(RequestId),
    /// A request ended, in whatever way.
    Ended(RequestId),
}

/// A decision and its reasons.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Decision {
    /// The worker.
    pub worker: WorkerId,
    /// Leading blocks of the prompt that it holds, as the index knows; `None` where it is not asked.
    pub overlap_blocks: Option<u32>,
    /// The most that any candidate holds.
    pub best_overlap_blocks: Option<u32>,
    /// The chosen candidate's terms; in modes without cost only the overlap is filled in.
    pub terms: CostTerms,
    /// Candidates looked at.
    pub candidates: u32,
}

/// What a router says.
#[derive(Clone, Debug, PartialEq)]
pub enum RouterOutput {
    /// The request's worker; the request is booked on it.
    Routed(RequestId, Decision),
    /// No worker can take the request now.
    NoWorker(RequestId),
}

/// The router.
#[derive(Clone, Debug)]
pub struct Router {
    config: RouterConfig,
    block_size: u32,
    workers: BTreeSet<WorkerId>,
    index: BlockIndex,
    load: LoadBook,
    round_robin: RoundRobin,
    rng: Rng,
    overlaps: Vec<(WorkerId, u32)>,
    /// Keep no book of what the mode does not ask for.
    lean: bool,
}

impl Router {
    /// A router without workers. `block_size` is that of the workers, in tokens.
    pub fn new(config: RouterConfig, block_size: u32) -> Result<Self, RouterConfigError> {
        config.validate()?;
        Ok(Router {
            rng: Seed(config.seed).split("router").rng(),
            config,
            block_size,
            workers: BTreeSet::new(),
            index: BlockIndex::new(),
            load: LoadBook::new(),
            round_robin: RoundRobin::default(),
            overlaps: Vec::new(),
            lean: false,
        })
    }

    /// As [`Router::new`], but where the mode decides without caches and loads they are not followed, and decisions say
    /// nothing of them.
    pub fn lean(config: RouterConfig, block_size: u32) -> Result<Self, RouterConfigError> {
        let lean = config.router_mode != RouterMode::Kv;
        Ok(Router { lean, ..Router::new(config, block_size)? })
    }

    /// Tokens in a block.
    pub fn block_size(&self) -> u32 {
        self.block_size
    }

    /// Identities of a prompt's full blocks, as [`RouteRequest::chain`] wants them.
    pub fn chain(prompt: &[u32], block_size: u32) -> Chain {
        block_chain(prompt, block_size as usize).into()
    }

    /// Something arrived. Decisions are pushed to `out`; time is taken for the policies that need it.
    pub fn handle(&mut self, _now: SimTime, input: RouterInput, out: &mut Vec<RouterOutput>) {
        match input {
            RouterInput::WorkerUp(worker) => {
                self.workers.insert(worker);
            }
            RouterInput::WorkerDown(worker) => {
                self.workers.remove(&worker);
                self.index.forget_worker(worker);
                self.load.forget_worker(worker);
            }
            RouterInput::Kv(..) | RouterInput::PrefillCompleted(_) | RouterInput::Ended(_) if self.lean => {}
            RouterInput::Kv(worker, event) => self.index.apply(worker, &event),
            RouterInput::Request(request) => out.push(self.route(request)),
            RouterInput::PrefillCompleted(id) => self.load.prefill_completed(id),
            RouterInput::Ended(id) => {
                self.load.free(id);
            }
        }
    }

    /// When this router wants to be woken although nothing arrives: never, as nothing in it expires.
    pub fn next_deadline(&self) -> Option<SimTime> {
        None
    }

    /// Time has passed; nothing depends on it yet.
    pub fn advance(&mut self, _to: SimTime, _out: &mut Vec<RouterOutput>) {}

    fn route(&mut self, request: RouteRequest) -> RouterOutput {
        let candidates: Vec<WorkerId> =
            self.workers.iter().copied().filter(|worker| !request.excluded.contains(worker)).collect();
        if candidates.is_empty() {
            return RouterOutput::NoWorker(request.id);
        }
        if self.lean {
            return self.route_blind(&request, &candidates);
        }
        self.index.find_matches(&request.chain, &mut self.overlaps);
        let terms: Vec<CostTerms> = candidates.iter().map(|worker| self.price(*worker, &request)).collect();
        let chosen = match self.config.router_mode {
            RouterMode::RoundRobin => self.round_robin.choose(candidates.len()),
            RouterMode::Random => random::choose(candidates.len(), &mut self.rng),
            RouterMode::Kv => {
                let costs: Vec<f64> = terms.iter().map(|terms| terms.cost).collect();
                kv::choose(&costs, self.config.router_temperature, &mut self.rng)
            }
        };
        let best_overlap_blocks = terms.iter().map(|terms| terms.overlap_blocks).max().unwrap_or(0);
        let terms = terms[chosen];
        let worker = candidates[chosen];
        let cached_tokens = terms.overlap_blocks.saturating_mul(self.block_size).min(request.input_tokens);
        self.load.book(request.id, worker, &request.chain, request.input_tokens - cached_tokens);
        let decision = Decision {
            worker,
            overlap_blocks: Some(terms.overlap_blocks),
            best_overlap_blocks: Some(best_overlap_blocks),
            terms,
            candidates: candidates.len() as u32,
        };
        RouterOutput::Routed(request.id, decision)
    }

    fn route_blind(&mut self, request: &RouteRequest, candidates: &[WorkerId]) -> RouterOutput {
        let chosen = match self.config.router_mode {
            RouterMode::Random => random::choose(candidates.len(), &mut self.rng),
            RouterMode::RoundRobin | RouterMode::Kv => self.round_robin.choose(candidates.len()),
        };
        let decision = Decision {
            worker: candidates[chosen],
            overlap_blocks: None,
            best_overlap_blocks: None,
            terms: CostTerms::default(),
            candidates: candidates.len() as u32,
        };
        RouterOutput::Routed(request.id, decision)
    }

    fn price(&self, worker: WorkerId, request: &RouteRequest) -> CostTerms {
        let overlap = self.overlaps.binary_search_by_key(&worker, |(holder, _)| *holder);
        let load = self.load.project(worker, &request.chain);
        let facts = CostTerms {
            overlap_blocks: overlap.map_or(0, |at| self.overlaps[at].1),
            active_prefill_tokens: load.active_prefill_tokens,
            active_decode_blocks: load.active_blocks,
            additional_active_blocks: load.additional_blocks,
            ..CostTerms::default()
        };
        facts.priced(RequestCost { input_tokens: request.input_tokens, block_size: self.block_size }, &self.config)
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
