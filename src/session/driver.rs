//! The machine that follows a plan: it says when a request is due and learns when one has ended.
//!
//! Requests are named by their row. A turn is ready when the turn before has ended and its delay has passed. In a closed
//! loop a session keeps its slot through its delays; the next one enters when a session ends. Turns that are ready at the
//! same moment are sent in the order of session, then turn.

use std::collections::BTreeSet;

use rustc_hash::FxHashMap;

use crate::ids::{RequestId, SessionId};
use crate::session::plan::{ArrivalMode, PlannedSession};
use crate::time::{SimSpan, SimTime};

/// What can arrive at the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverInput {
    /// The request ended.
    Ended {
        /// Which.
        id: RequestId,
        /// False if the session cannot go on without it (failed or cancelled); a rejected turn lets it go on.
        session_continues: bool,
    },
    /// Nothing more shall be sent.
    Stop,
}

/// A request that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release {
    /// The request; its number is its row.
    pub id: RequestId,
    /// Its session.
    pub session: SessionId,
    /// Its turn in the session, from 0.
    pub turn: u32,
    /// The moment at which the plan wanted it to be sent.
    pub intended: SimTime,
}

/// Progress of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DriverCounts {
    /// Requests released so far.
    pub released: u64,
    /// Requests that ended.
    pub ended: u64,
    /// Requests that will never be sent, since their session ended early or the run was stopped; known at the end.
    pub dropped: u64,
    /// All requests of the plan.
    pub planned: u64,
}

/// The driver.
#[derive(Clone, Debug)]
pub struct Driver {
    sessions: Vec<PlannedSession>,
    mode: ArrivalMode,
    /// Turns whose moment is known: (ready, session, turn).
    ready: BTreeSet<(SimTime, SessionId, u32)>,
    in_flight: FxHashMap<RequestId, (SessionId, u32)>,
    /// The next session of a closed loop that has no slot yet.
    next_session: usize,
    stopped: bool,
    counts: DriverCounts,
}

impl Driver {
    /// A driver at time 0.
    pub fn new(sessions: Vec<PlannedSession>, mode: ArrivalMode) -> Self {
        let planned = sessions.iter().map(|session| session.turns.len() as u64).sum();
        let mut driver = Driver {
            sessions,
            mode,
            ready: BTreeSet::new(),
            in_flight: FxHashMap::default(),
            next_session: 0,
            stopped: false,
            counts: DriverCounts { planned, ..DriverCounts::default() },
        };
        match mode {
            ArrivalMode::Timestamps { arrival_speedup_ratio } => {
                for (index, session) in
                    driver.sessions.iter().enumerate().filter(|(_, session)| !session.turns.is_empty())
                {
                    let start = SimTime::from_ms(session.start_ms.unwrap_or(0.0) / arrival_speedup_ratio);
                    driver.ready.insert((start, SessionId(index as u32), 0));
                }
            }
            ArrivalMode::Concurrency { concurrency } => {
                for _ in 0..(concurrency as usize).min(driver.sessions.len()) {
                    driver.enter_next(SimTime::ZERO);
                }
            }
        }
        driver
    }

    fn enter_next(&mut self, now: SimTime) {
        while let Some(session) = self.sessions.get(self.next_session) {
            let id = SessionId(self.next_session as u32);
            self.next_session += 1;
            if !session.turns.is_empty() {
                self.ready.insert((now, id, 0));
                return;
            }
        }
    }

    /// Something happened at `now`.
    pub fn handle(&mut self, now: SimTime, input: DriverInput) {
        match input {
            DriverInput::Ended { id, session_continues } => self.ended(now, id, session_continues),
            DriverInput::Stop => {
                self.ready.clear();
                self.stopped = true;
            }
        }
    }

    fn ended(&mut self, now: SimTime, id: RequestId, session_continues: bool) {
        let Some((session, turn)) = self.in_flight.remove(&id) else { return };
        self.counts.ended += 1;
        if self.stopped {
            return;
        }
        let next = self.sessions[session.0 as usize].turns.get(turn as usize + 1);
        if let Some(next) = next.filter(|_| session_continues) {
            let delay_ms = match self.mode {
                ArrivalMode::Timestamps { arrival_speedup_ratio } => next.delay_ms / arrival_speedup_ratio,
                ArrivalMode::Concurrency { .. } => next.delay_ms,
            };
            self.ready.insert((now + SimSpan::from_ms(delay_ms), session, turn + 1));
        } else if matches!(self.mode, ArrivalMode::Concurrency { .. }) {
            self.enter_next(now);
        }
    }

    /// When the next request is due; `None` while everything waits for something to end.
    pub fn next_deadline(&self) -> Option<SimTime> {
        self.ready.first().map(|(at, _, _)| *at)
    }

    /// Releases everything that is due at `to` or before.
    pub fn advance(&mut self, to: SimTime, out: &mut Vec<Release>) {
        while let Some((intended, session, turn)) = self.ready.first().copied().filter(|(at, _, _)| *at <= to) {
            self.ready.pop_first();
            let id = RequestId(self.sessions[session.0 as usize].turns[turn as usize].row);
            self.in_flight.insert(id, (session, turn));
            self.counts.released += 1;
            out.push(Release { id, session, turn, intended });
        }
    }

    /// Requests under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// True if nothing is under way and nothing will be.
    pub fn is_finished(&self) -> bool {
        self.ready.is_empty() && self.in_flight.is_empty()
    }

    /// How far the plan is.
    pub fn counts(&self) -> DriverCounts {
        let dropped = if self.is_finished() { self.counts.planned - self.counts.released } else { 0 };
        DriverCounts { dropped, ..self.counts }
    }
}
