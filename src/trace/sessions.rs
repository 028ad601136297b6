//! From rows to sessions: who waits for whom, and how long.
//!
//! Rows with the same `session_id` are turns of one conversation, in file order: each is sent after the one before has
//! been answered, plus a delay. A row without `session_id` is a session of its own. A later turn's delay is its
//! `delay`; without one, the difference of the two timestamps; without either, nothing.
//!
//! Sessions start at the timestamp of their first turn, counted from the earliest of the trace (which becomes 0), and
//! are sorted by it; equal starts keep the order of the file. If a session has no start, all stay in the order of the
//! file.

use rustc_hash::FxHashMap;

use super::error::{SessionProblem, TraceError};
use super::read::Trace;
use super::row::TraceRow;

/// One turn of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TurnPlan {
    /// Index of the turn's row in [`Trace::rows`].
    pub row_index: usize,
    /// Milliseconds between the end of the turn before and this turn; 0 on the first turn.
    pub delay_ms: f64,
}

/// One session: turns that follow one another.
#[derive(Clone, Debug, PartialEq)]
pub struct SessionPlan {
    /// The session's name in the trace; `None` for a row that names none.
    pub session_id: Option<String>,
    /// When the first turn is sent, in milliseconds after the first session of the trace; `None` without a timestamp.
    pub start_ms: Option<f64>,
    /// The turns in their order; never empty.
    pub turns: Vec<TurnPlan>,
}

/// Groups rows into sessions and checks them, one row after another.
#[derive(Clone, Debug, Default)]
pub struct SessionPlanner {
    need_timestamps: bool,
    rows: usize,
    sessions: Vec<SessionPlan>,
    /// The sessions that have a name, with their latest turn.
    named: FxHashMap<String, LatestTurn>,
    misfit: Option<Misfit>,
}

#[derive(Clone, Copy, Debug)]
struct LatestTurn {
    session: usize,
    line: u64,
    timestamp_ms: Option<f64>,
}

/// The first row that does not fit.
#[derive(Clone, Debug)]
struct Misfit {
    line: u64,
    session_id: Option<String>,
    problem: SessionProblem,
}

impl SessionPlanner {
    /// With `need_timestamps`, a session without a start is an error (for a run that follows the trace's clock).
    pub fn new(need_timestamps: bool) -> Self {
        SessionPlanner { need_timestamps, ..Self::default() }
    }

    /// Takes in the next row. After a row that does not fit the others change nothing.
    pub fn push(&mut self, row: &TraceRow) {
        if self.misfit.is_none()
            && let Err(problem) = self.add(row)
        {
            self.misfit = Some(Misfit { line: row.line, session_id: row.session_id.clone(), problem });
        }
    }

    fn add(&mut self, row: &TraceRow) -> Result<(), SessionProblem> {
        let row_index = self.rows;
        self.rows += 1;
        let latest = LatestTurn { session: self.sessions.len(), line: row.line, timestamp_ms: row.timestamp_ms };
        if let Some(id) = &row.session_id {
            if let Some(previous) = self.named.get_mut(id) {
                let delay_ms = delay_ms(row, previous)?;
                self.sessions[previous.session].turns.push(TurnPlan { row_index, delay_ms });
                *previous = LatestTurn { session: previous.session, ..latest };
                return Ok(());
            }
            check_first_turn(row, self.need_timestamps)?;
            self.named.insert(id.clone(), latest);
        } else {
            check_first_turn(row, self.need_timestamps)?;
        }
        self.sessions.push(SessionPlan {
            session_id: row.session_id.clone(),
            start_ms: row.timestamp_ms,
            turns: vec![TurnPlan { row_index, delay_ms: 0.0 }],
        });
        Ok(())
    }

    /// The sessions. Fails at the first row that did not fit; `file` and the number of rows that were left out when
    /// it was read are for the message.
    pub fn finish(self, file: &str, skipped_rows: u64) -> Result<Vec<SessionPlan>, TraceError> {
        if let Some(Misfit { line, session_id, problem }) = self.misfit {
            return Err(TraceError::Session { file: file.to_owned(), line, session_id, problem, skipped_rows });
        }
        let mut sessions = self.sessions;
        count_from_first_start(&mut sessions);
        Ok(sessions)
    }
}

/// Groups the rows of a trace in memory; see [`SessionPlanner`].
pub fn plan_sessions(trace: &Trace, need_timestamps: bool) -> Result<Vec<SessionPlan>, TraceError> {
    let mut planner = SessionPlanner::new(need_timestamps);
    trace.rows.iter().for_each(|row| planner.push(row));
    planner.finish(&trace.path_display, trace.skipped_rows)
}

fn check_first_turn(row: &TraceRow, need_timestamps: bool) -> Result<(), SessionProblem> {
    if row.delay_ms.is_some() {
        return Err(SessionProblem::DelayOnFirstTurn);
    }
    if need_timestamps && row.timestamp_ms.is_none() {
        return Err(SessionProblem::NoStart);
    }
    Ok(())
}

fn delay_ms(row: &TraceRow, previous: &LatestTurn) -> Result<f64, SessionProblem> {
    if let Some(delay_ms) = row.delay_ms {
        if !delay_ms.is_finite() || delay_ms < 0.0 {
            return Err(SessionProblem::BadDelay { delay_ms: delay_ms.to_string() });
        }
        return Ok(delay_ms);
    }
    let Some(timestamp_ms) = row.timestamp_ms else { return Ok(0.0) };
    let Some(previous_ms) = previous.timestamp_ms else {
        return Err(SessionProblem::NoPreviousTimestamp { previous_line: previous.line });
    };
    if timestamp_ms < previous_ms {
        return Err(SessionProblem::TimeGoesBack {
            timestamp_ms: timestamp_ms.to_string(),
            previous_ms: previous_ms.to_string(),
            previous_line: previous.line,
        });
    }
    Ok(timestamp_ms - previous_ms)
}

fn count_from_first_start(sessions: &mut [SessionPlan]) {
    let Some(first_ms) = sessions.iter().filter_map(|session| session.start_ms).min_by(f64::total_cmp) else {
        return;
    };
    for start_ms in sessions.iter_mut().filter_map(|session| session.start_ms.as_mut()) {
        *start_ms -= first_ms;
    }
    if sessions.iter().all(|session| session.start_ms.is_some()) {
        sessions.sort_by(|a, b| a.start_ms.unwrap_or(0.0).total_cmp(&b.start_ms.unwrap_or(0.0)));
    }
}
