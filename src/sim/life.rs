//! What became of each request of a replay, in whole nanoseconds: the one result that all writers read.
//!
//! A replay keeps a [`RequestLife`] for every request, and there may be a million of them. So a plain aggregated
//! request takes 184 bytes and no memory of its own: its only admission and its only routing stage lie in place
//! ([`FewOf`]), a time that may not have come is one number ([`Moment`]), and what only some requests go through,
//! preemption and hand-off, lies in one box.

use serde::Serialize;

use crate::session::ledger::Outcome;
use crate::time::{SimSpan, SimTime};

mod few_of;
mod moment;

pub use crate::router::explain::Pool;
pub use few_of::FewOf;
pub use moment::Moment;

/// A request joined a worker's running batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Admission {
    /// When.
    pub at: SimTime,
    /// Tokens that came from the worker's cache.
    pub reused_tokens: u32,
    /// The worker's pool.
    pub pool: Pool,
}

/// A router sent a request to a worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct RouteStage {
    /// The pool whose router decided.
    pub pool: Pool,
    /// The worker, by its number in the pool.
    pub worker: u32,
    /// Its data-parallel rank.
    pub rank: u16,
    /// True if the request was held in the router's queue first.
    pub queued: bool,
    /// How long it was held there.
    pub wait: SimSpan,
    /// Leading blocks of the prompt that the worker's cache held; `None` where the router does not look at caches.
    pub selected_overlap_blocks: Option<u32>,
    /// The most that any candidate's cache held; `None` where the router does not look at caches.
    pub best_overlap_blocks: Option<u32>,
}

/// The four moments of a hand-off of KV blocks from a prefill worker, the source, to a decode worker, the destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct HandoffTimes {
    /// The prompt is computed and its blocks are held for the hand-off.
    pub source_held: Moment,
    /// The destination has set blocks aside.
    pub destination_reserved: Moment,
    /// The blocks have arrived and the request may run at the destination.
    pub destination_activated: Moment,
    /// The source's blocks are free again.
    pub source_released: Moment,
}

/// What only some requests go through.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
struct Detours {
    handoff: Option<HandoffTimes>,
    preempted_at: Vec<SimTime>,
}

/// One request's life.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct RequestLife {
    /// Position of the request in the trace or workload, from 0.
    pub row: u64,
    /// Its session, by number.
    pub session: u32,
    /// Turn within the session, from 0.
    pub turn: u32,
    /// When it came to the router.
    pub arrival: SimTime,
    /// Prompt length.
    pub input_tokens: u32,
    /// Output length asked for.
    pub requested_output_tokens: u32,
    /// Output tokens made.
    pub output_tokens: u32,
    /// Every time it joined a running batch, in order: once, and again after each preemption and in each pool.
    pub admissions: FewOf<Admission>,
    /// When the first output token was ready.
    pub first_token: Moment,
    /// When the second output token was ready.
    pub second_token: Moment,
    /// When the last output token so far was ready.
    pub last_token: Moment,
    /// Longest wait between two consecutive output tokens, zero as long as there are less than two; see
    /// [`RequestLife::max_gap`].
    pub longest_gap: SimSpan,
    /// The worker that makes the output, by its number in its pool.
    pub worker: Option<u32>,
    /// The worker that computed the prompt for another one, by its number in its pool.
    pub prefill_worker: Option<u32>,
    /// The routing decisions, in order: one, or one a pool.
    pub route: FewOf<RouteStage>,
    /// When the request ended, in whatever way; nothing before [`RequestLife::outcome`] is there.
    pub end: SimTime,
    /// How it ended; `None` while it runs.
    pub outcome: Option<Outcome>,
    #[serde(flatten)]
    detours: Option<Box<Detours>>,
}

impl RequestLife {
    /// A request that has just arrived.
    pub fn new(row: u64, session: u32, turn: u32, arrival: SimTime, input_tokens: u32, output_tokens: u32) -> Self {
        RequestLife {
            row,
            session,
            turn,
            arrival,
            input_tokens,
            requested_output_tokens: output_tokens,
            ..RequestLife::default()
        }
    }

    /// A router sent it to a worker. Sets the worker of that pool, too.
    pub fn routed(&mut self, stage: RouteStage) {
        match stage.pool {
            Pool::Prefill => self.prefill_worker = Some(stage.worker),
            Pool::Agg | Pool::Decode => self.worker = Some(stage.worker),
        }
        self.route.push(stage);
    }

    /// It joined the running batch of a worker of `pool`.
    pub fn admitted(&mut self, at: SimTime, reused_tokens: u32, pool: Pool) {
        self.admissions.push(Admission { at, reused_tokens, pool });
    }

    /// Its next output token is ready. Returns the wait since the one before, if there is one.
    pub fn token(&mut self, at: SimTime) -> Option<SimSpan> {
        let gap = self.last_token.get().map(|last| at.since(last));
        if let Some(gap) = gap {
            self.longest_gap = self.longest_gap.max(gap);
            self.second_token.get_or_insert(at);
        }
        self.first_token.get_or_insert(at);
        self.last_token = at.into();
        self.output_tokens += 1;
        gap
    }

    /// It was thrown out of the running batch and waits to be admitted again.
    pub fn preempted(&mut self, at: SimTime) {
        self.detours.get_or_insert_default().preempted_at.push(at);
    }

    /// Its hand-off's moments, to be filled in.
    pub fn handoff_mut(&mut self) -> &mut HandoffTimes {
        self.detours.get_or_insert_default().handoff.get_or_insert_default()
    }

    /// It ended.
    pub fn ended(&mut self, at: SimTime, outcome: Outcome) {
        self.end = at;
        self.outcome = Some(outcome);
    }

    /// Its hand-off; `None` as long as there is none.
    pub fn handoff(&self) -> Option<&HandoffTimes> {
        self.detours.as_ref()?.handoff.as_ref()
    }

    /// When it was preempted, in order.
    pub fn preempted_at(&self) -> &[SimTime] {
        self.detours.as_ref().map_or(&[], |detours| &detours.preempted_at)
    }

    /// True if it went, or was to go, through separate pools for prompt and output.
    pub fn disaggregated(&self) -> bool {
        let to_prefill = |stage: &RouteStage| stage.pool == Pool::Prefill;
        self.prefill_worker.is_some() || self.handoff().is_some() || self.route.iter().any(to_prefill)
    }

    /// True if every token was made.
    pub fn completed(&self) -> bool {
        self.outcome == Some(Outcome::Completed)
    }

    /// Tokens from the cache at the first admission.
    pub fn first_reused_tokens(&self) -> Option<u32> {
        self.admissions.first().map(|admission| admission.reused_tokens)
    }

    /// The most tokens from the cache at any admission; 0 without one.
    pub fn max_reused_tokens(&self) -> u32 {
        self.admissions.iter().map(|admission| admission.reused_tokens).max().unwrap_or(0)
    }

    /// Longest wait between two consecutive output tokens; `None` below two.
    pub fn max_gap(&self) -> Option<SimSpan> {
        (self.output_tokens >= 2).then_some(self.longest_gap)
    }

    /// Time to first token, first token − arrival.
    pub fn ttft(&self) -> Option<SimSpan> {
        Some(self.first_token.get()?.since(self.arrival))
    }

    /// Time to second token, second − first.
    pub fn ttst(&self) -> Option<SimSpan> {
        Some(self.second_token.get()?.since(self.first_token.get()?))
    }

    /// Time per output token after the first, (last − first)/(n − 1), in milliseconds; `None` below two tokens.
    pub fn tpot_ms(&self) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some(self.last_token.get()?.since(self.first_token.get()?).as_ms() / f64::from(gaps))
    }
}

#[cfg(test)]
pub(super) mod reference;

#[cfg(test)]
mod tests;
