//! The machine that follows a plan: it says when a request is due and learns when one has ended.
//!
//! Requests are named by their row. A turn is ready when the turn before has ended and its delay has passed. In a
//! closed loop a session keeps its slot through its delays; the next one enters when a session ends. Turns that are
//! ready at the same moment are sent in the order of session, then turn.
//!
//! Of an open loop's first turns only the next one is held, so that a long plan costs no more memory than its sessions.

use std::collections::BTreeSet;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};

use crate::ids::{RequestId, SessionId};
use crate::session::arrivals::ArrivalTimes;
use crate::session::plan::{ArrivalMode, PlannedSession};
use crate::time::{SimSpan, SimTime};

/// What can arrive at the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
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

/// A turn with the moment at which it is due; they are sent in this order.
type Due = (SimTime, SessionId, u32);

/// The driver.
#[derive(Clone, Debug)]
pub struct Driver {
    sessions: Arc<[PlannedSession]>,
    mode: ArrivalMode,
    entrance: Entrance,
    /// Turns whose moment is known, but for the one that the entrance holds.
    ready: BTreeSet<Due>,
    in_flight: FxHashMap<RequestId, (SessionId, u32)>,
    stopped: bool,
    counts: DriverCounts,
}

/// Where sessions come in that have not begun.
#[derive(Clone, Debug)]
struct Entrance {
    /// Indices of the sessions in the order in which they come; `None`: as they are.
    order: Option<Vec<u32>>,
    /// How many of them have come in, or are held.
    taken: usize,
    /// Of an open loop: the moments of a rate; without one, sessions come at their starts.
    times: Option<ArrivalTimes>,
    /// Of an open loop: the next first turn.
    held: Option<Due>,
}

impl Entrance {
    fn new(sessions: &[PlannedSession], mode: &ArrivalMode) -> Self {
        let order = match mode {
            ArrivalMode::Concurrency { .. } => None,
            ArrivalMode::Timestamps { arrival_speedup_ratio } => {
                order_by(sessions, |session| start(session, *arrival_speedup_ratio))
            }
            // The file's order, which is not that of the sessions if the trace is not sorted by time.
            ArrivalMode::Constant { .. } | ArrivalMode::Poisson { .. } | ArrivalMode::Gamma { .. } => {
                order_by(sessions, |session| session.turns.first().map(|turn| turn.row))
            }
        };
        Entrance { order, taken: 0, times: ArrivalTimes::of(mode), held: None }
    }

    /// The next session that has turns.
    fn next_session<'a>(&mut self, sessions: &'a [PlannedSession]) -> Option<(SessionId, &'a PlannedSession)> {
        loop {
            let index = match &self.order {
                Some(order) => *order.get(self.taken)? as usize,
                None => self.taken,
            };
            let session = sessions.get(index)?;
            self.taken += 1;
            if !session.turns.is_empty() {
                return Some((SessionId(index as u32), session));
            }
        }
    }

    /// Takes hold of an open loop's next first turn, if there is one.
    fn hold_next(&mut self, sessions: &[PlannedSession], mode: &ArrivalMode) {
        let next = self.next_session(sessions);
        self.held = next.map(|(id, session)| {
            let at = match (&mut self.times, mode) {
                (Some(times), _) => times.draw(),
                (None, ArrivalMode::Timestamps { arrival_speedup_ratio }) => start(session, *arrival_speedup_ratio),
                (None, _) => SimTime::ZERO,
            };
            (at, id, 0)
        });
    }
}

/// When a session comes in that follows its timestamp.
fn start(session: &PlannedSession, arrival_speedup_ratio: f64) -> SimTime {
    SimTime::from_ms(session.start_ms.unwrap_or(0.0) / arrival_speedup_ratio)
}

/// The sessions' indices sorted by a key, equal ones as they are; `None` if they are sorted already.
fn order_by<K: Ord>(sessions: &[PlannedSession], key: impl Fn(&PlannedSession) -> K) -> Option<Vec<u32>> {
    if sessions.is_sorted_by_key(&key) {
        return None;
    }
    let mut order: Vec<u32> = (0..sessions.len() as u32).collect();
    order.sort_by_key(|index| key(&sessions[*index as usize]));
    Some(order)
}

impl Driver {
    /// A driver at time 0. The mode is one that [`ArrivalMode::validate`] lets pass.
    pub fn new(sessions: impl Into<Arc<[PlannedSession]>>, mode: ArrivalMode) -> Self {
        let sessions = sessions.into();
        let planned = sessions.iter().map(|session| session.turns.len() as u64).sum();
        let mut driver = Driver {
            entrance: Entrance::new(&sessions, &mode),
            sessions,
            mode,
            ready: BTreeSet::new(),
            in_flight: FxHashMap::default(),
            stopped: false,
            counts: DriverCounts { planned, ..DriverCounts::default() },
        };
        match mode.concurrency() {
            Some(concurrency) => {
                for _ in 0..(concurrency as usize).min(driver.sessions.len()) {
                    driver.enter_next(SimTime::ZERO);
                }
            }
            None => driver.entrance.hold_next(&driver.sessions, &mode),
        }
        driver
    }

    /// Lets the next session of a closed loop in.
    fn enter_next(&mut self, now: SimTime) {
        if let Some((id, _)) = self.entrance.next_session(&self.sessions) {
            self.ready.insert((now, id, 0));
        }
    }

    /// Something happened at `now`.
    pub fn handle(&mut self, now: SimTime, input: DriverInput) {
        match input {
            DriverInput::Ended { id, session_continues } => self.ended(now, id, session_continues),
            DriverInput::Stop => {
                self.ready.clear();
                self.entrance.held = None;
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
                _ => next.delay_ms,
            };
            self.ready.insert((now + SimSpan::from_ms(delay_ms), session, turn + 1));
        } else if self.mode.concurrency().is_some() {
            self.enter_next(now);
        }
    }

    /// When the next request is due; `None` while everything waits for something to end.
    pub fn next_deadline(&self) -> Option<SimTime> {
        let (ready, held) = (self.ready.first(), self.entrance.held.as_ref());
        ready.into_iter().chain(held).min().map(|(at, _, _)| *at)
    }

    /// Takes the first turn that is due at `to` or before.
    fn pop_due(&mut self, to: SimTime) -> Option<Due> {
        let is_due = |due: &Due| due.0 <= to;
        let ready = self.ready.first().copied().filter(is_due);
        let held = self.entrance.held.filter(is_due);
        match (ready, held) {
            (Some(ready), Some(held)) if held < ready => self.pop_held(),
            (Some(_), _) => self.ready.pop_first(),
            (None, Some(_)) => self.pop_held(),
            (None, None) => None,
        }
    }

    fn pop_held(&mut self) -> Option<Due> {
        let held = self.entrance.held;
        self.entrance.hold_next(&self.sessions, &self.mode);
        held
    }

    /// Releases everything that is due at `to` or before.
    pub fn advance(&mut self, to: SimTime, out: &mut Vec<Release>) {
        while let Some((intended, session, turn)) = self.pop_due(to) {
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
        self.ready.is_empty() && self.entrance.held.is_none() && self.in_flight.is_empty()
    }

    /// How far the plan is.
    pub fn counts(&self) -> DriverCounts {
        let dropped = if self.is_finished() { self.counts.planned - self.counts.released } else { 0 };
        DriverCounts { dropped, ..self.counts }
    }
}
