//! A request's life as phases, one after another without a gap.
//!
//! A request is either in a running batch or it waits. In a batch it is in prefill up to its first token and in decode
//! after it; on a worker of a separate pool it is in that pool's phase. It waits because it is queued: for a worker,
//! for admission or for room at the destination of its hand-off; because its blocks are in transfer; or because it was
//! preempted. What a preempted sequence computes again counts as decode if it had its first token before.

use crate::sim::life::{Admission, Pool, RequestLife};
use crate::time::SimTime;

/// Kinds of phases.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PhaseKind {
    Queued,
    Prefill,
    Transfer,
    Decode,
    Preempted,
}

impl PhaseKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            PhaseKind::Queued => "queued",
            PhaseKind::Prefill => "prefill",
            PhaseKind::Transfer => "transfer",
            PhaseKind::Decode => "decode",
            PhaseKind::Preempted => "preempted",
        }
    }
}

/// A stay in a running batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    pub(super) pool: Pool,
    /// Tokens from the cache at this admission.
    pub(super) reused_tokens: u32,
}

impl Run {
    /// The worker, by its number in the pool.
    pub(super) fn worker(self, life: &RequestLife) -> Option<u32> {
        match self.pool {
            Pool::Prefill => life.prefill_worker,
            Pool::Agg | Pool::Decode => life.worker,
        }
    }
}

/// A phase; it lasts some time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Phase {
    pub(super) kind: PhaseKind,
    pub(super) from: SimTime,
    pub(super) to: SimTime,
    /// The stay in a batch that it is part of.
    pub(super) run: Option<Run>,
}

/// What changes a request's phase.
#[derive(Clone, Copy, Debug)]
enum Turn {
    FirstToken,
    Held,
    Reserved,
    Activated,
    Admitted(Run),
    Preempted,
}

#[derive(Clone, Copy, Debug, Default)]
struct State {
    run: Option<Run>,
    first_token: bool,
    held: bool,
    reserved: bool,
    preempted: bool,
}

impl State {
    fn take(&mut self, turn: Turn) {
        match turn {
            Turn::FirstToken => self.first_token = true,
            Turn::Held => (self.run, self.held, self.preempted) = (None, true, false),
            Turn::Reserved => self.reserved = true,
            Turn::Activated => self.held = false,
            Turn::Admitted(run) => (self.run, self.preempted) = (Some(run), false),
            Turn::Preempted => (self.run, self.preempted) = (None, true),
        }
    }

    fn kind(&self) -> PhaseKind {
        match self.run.map(|run| run.pool) {
            Some(Pool::Prefill) => PhaseKind::Prefill,
            Some(Pool::Decode) => PhaseKind::Decode,
            Some(Pool::Agg) if self.first_token => PhaseKind::Decode,
            Some(Pool::Agg) => PhaseKind::Prefill,
            None if self.held && self.reserved => PhaseKind::Transfer,
            None if self.preempted => PhaseKind::Preempted,
            None => PhaseKind::Queued,
        }
    }
}

/// The phases of a life from its arrival to its end, or to its last token while it runs; without those of no length.
pub(super) fn phases(life: &RequestLife) -> Vec<Phase> {
    let mut phases = Vec::new();
    let mut state = State::default();
    let mut open = Phase { kind: state.kind(), from: life.arrival, to: life.arrival, run: None };
    let mut close = |open: &Phase, at: SimTime| {
        if at > open.from {
            phases.push(Phase { to: at, ..*open });
        }
    };
    for (at, turn) in turns(life) {
        state.take(turn);
        // A time before the arrival would be a fault of the replay; the phases stay one after another all the same.
        let at = at.max(open.from);
        if (state.kind(), state.run) != (open.kind, open.run) {
            close(&open, at);
            open = Phase { kind: state.kind(), from: at, to: at, run: state.run };
        }
    }
    close(&open, life.end.max(life.last_token.get().unwrap_or_default()));
    phases
}

/// In the order of time; at one moment a step's results come before what the next step begins with.
fn turns(life: &RequestLife) -> Vec<(SimTime, Turn)> {
    let handoff = life.handoff().copied().unwrap_or_default();
    let results = [
        (life.first_token, Turn::FirstToken),
        (handoff.source_held, Turn::Held),
        (handoff.destination_reserved, Turn::Reserved),
        (handoff.destination_activated, Turn::Activated),
    ];
    let results = results.into_iter().filter_map(|(moment, turn)| Some((moment.get()?, turn)));
    let admitted = |to_prefill: bool| {
        let admissions =
            life.admissions.iter().filter(move |admission| (admission.pool == Pool::Prefill) == to_prefill);
        admissions.map(|&Admission { at, reused_tokens, pool }| (at, Turn::Admitted(Run { pool, reused_tokens })))
    };
    let preempted = life.preempted_at().iter().map(|at| (*at, Turn::Preempted));
    // A prefill that takes no time is over when it begins, and a decode may begin when it is over.
    let mut turns: Vec<_> = admitted(true).chain(results).chain(admitted(false)).chain(preempted).collect();
    // Stable: what comes at one moment stays as it stands here.
    turns.sort_by_key(|(at, _)| *at);
    turns
}

#[cfg(test)]
mod tests;
