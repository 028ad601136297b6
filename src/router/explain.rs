//! A routing decision with all its reasons: what the router knew of every candidate when it chose.
//!
//! A [`Decision`] holds what those need who send the request; an [`Explained`] holds what
//! those need who ask why. It is made only where somebody asks, as it is as long as the list of candidates.
//! [`Explained::line`] is its written form, one JSON object; `docs/explain.md` has the meaning of every key.

use serde::Serialize;

use crate::ids::WorkerId;
use crate::router::config::{RouterConfig, RouterMode};
use crate::router::cost::CostTerms;
use crate::router::policy::kv;
use crate::router::route::Decision;
use crate::time::{SimSpan, SimTime};

/// What a worker is there for; each pool has its own router, and numbers its workers from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// Aggregated: prompt and output on one worker.
    Agg,
    /// Prompts only; the KV blocks are handed to a decode worker.
    Prefill,
    /// Output only, from handed-over KV blocks.
    Decode,
}

impl Pool {
    /// The pool's name as it is written in files.
    pub fn name(self) -> &'static str {
        match self {
            Pool::Agg => "agg",
            Pool::Prefill => "prefill",
            Pool::Decode => "decode",
        }
    }
}

/// One decision and what every candidate would have cost.
#[derive(Clone, Debug, PartialEq)]
pub struct Explained {
    /// When it was taken; the request had come [`Explained::wait`] before.
    pub at: SimTime,
    /// The request's position in the trace or workload, from 0.
    pub row: u64,
    /// The pool whose router decided.
    pub pool: Pool,
    /// The chosen worker.
    pub worker: WorkerId,
    /// True if the request was held in the router's queue first, even if for no time at all.
    pub queued: bool,
    /// How long it was held there.
    pub wait: SimSpan,
    /// Candidates with the least cost, which a router at temperature 0 draws from: see [`least_cost_ties`].
    pub ties: u32,
    /// Every worker that could have been chosen, in ascending order, with its terms.
    pub candidates: Vec<(WorkerId, CostTerms)>,
}

/// How many candidates share the least cost; 0 only if there is none.
pub fn least_cost_ties(candidates: &[(WorkerId, CostTerms)]) -> u32 {
    let least = candidates.iter().map(|(_, terms)| terms.cost).fold(f64::INFINITY, f64::min);
    candidates.iter().filter(|(_, terms)| terms.cost == least).count() as u32
}

impl Explained {
    /// What a decision of a router with [`Router::explain`](crate::router::Router::explain) tells; `None` if it has not been
    /// asked to.
    pub fn of(decision: &Decision, at: SimTime, row: u64, pool: Pool) -> Option<Explained> {
        let candidates = decision.explained.as_deref()?.to_vec();
        Some(Explained {
            at,
            row,
            pool,
            worker: decision.worker,
            queued: decision.queued,
            wait: decision.wait,
            ties: least_cost_ties(&candidates),
            candidates,
        })
    }

    /// The most leading blocks of the prompt that any candidate's cache holds.
    pub fn best_overlap_blocks(&self) -> u32 {
        self.candidates.iter().map(|(_, terms)| terms.overlap_blocks).max().unwrap_or(0)
    }

    /// The chosen worker's terms; `None` if it is not among the candidates, which a router does not do.
    pub fn chosen(&self) -> Option<&CostTerms> {
        self.candidates.iter().find(|(worker, _)| *worker == self.worker).map(|(_, terms)| terms)
    }

    /// Each candidate's probability, in the order of the candidates; `None` where nothing is drawn by cost: in other
    /// modes than `kv`, and at temperature 0.
    pub fn probabilities(&self, config: &RouterConfig) -> Option<Vec<f64>> {
        let drawn = config.router_mode == RouterMode::Kv && config.router_temperature > 0.0;
        drawn.then(|| {
            let costs: Vec<f64> = self.candidates.iter().map(|(_, terms)| terms.cost).collect();
            kv::weights(&costs, config.router_temperature)
        })
    }

    /// The written form. `config` is that of the router that decided, whose workers have `ranks` ranks each.
    pub fn line(&self, config: &RouterConfig, ranks: u32) -> ExplainedLine<'_> {
        let target = |engine: WorkerId| (engine.0 / ranks.max(1), engine.0 % ranks.max(1));
        let (worker, dp_rank) = target(self.worker);
        let probabilities = self.probabilities(config);
        let probability = |index: usize| probabilities.as_ref().map(|all| all[index]);
        let candidates = self.candidates.iter().enumerate();
        ExplainedLine {
            at_ms: self.at.as_ms(),
            row: self.row,
            pool: self.pool,
            mode: config.router_mode.name(),
            queued: self.queued,
            wait_ms: self.wait.as_ms(),
            worker,
            dp_rank,
            ties: self.ties,
            best_overlap_blocks: self.best_overlap_blocks(),
            candidates: candidates
                .map(|(index, (engine, terms))| {
                    let (worker, dp_rank) = target(*engine);
                    CandidateLine { worker, dp_rank, terms, probability: probability(index) }
                })
                .collect(),
        }
    }
}

/// The written form of an [`Explained`]: serialize it. The fields are the keys, in this order.
#[derive(Clone, Debug, Serialize)]
pub struct ExplainedLine<'a> {
    at_ms: f64,
    row: u64,
    pool: Pool,
    mode: &'static str,
    queued: bool,
    wait_ms: f64,
    worker: u32,
    #[serde(skip_serializing_if = "is_first")]
    dp_rank: u32,
    ties: u32,
    best_overlap_blocks: u32,
    candidates: Vec<CandidateLine<'a>>,
}

#[derive(Clone, Debug, Serialize)]
struct CandidateLine<'a> {
    worker: u32,
    #[serde(skip_serializing_if = "is_first")]
    dp_rank: u32,
    #[serde(flatten)]
    terms: &'a CostTerms,
    #[serde(skip_serializing_if = "Option::is_none")]
    probability: Option<f64>,
}

fn is_first(rank: &u32) -> bool {
    *rank == 0
}

#[cfg(test)]
mod tests;
