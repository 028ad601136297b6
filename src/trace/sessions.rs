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

/// Groups the rows of a trace into sessions and checks them.
///
/// With `need_timestamps`, a session without a start is an error (for a run that follows the trace's clock).
pub fn plan_sessions(trace: &Trace, need_timestamps: bool) -> Result<Vec<SessionPlan>, TraceError> {
    let mut sessions: Vec<SessionPlan> = Vec::new();
    let mut session_of: FxHashMap<&str, usize> = FxHashMap::default();
    for (row_index, row) in trace.rows.iter().enumerate() {
        let known = row.session_id.as_deref().and_then(|id| session_of.get(id).copied());
        match known {
            Some(index) => {
                let turns = &mut sessions[index].turns;
                let previous = turns.last().map(|turn| &trace.rows[turn.row_index]);
                let delay_ms = delay_ms(row, previous).map_err(|problem| fails(trace, row, problem))?;
                turns.push(TurnPlan { row_index, delay_ms });
            }
            None => {
                check_first_turn(row, need_timestamps).map_err(|problem| fails(trace, row, problem))?;
                if let Some(id) = row.session_id.as_deref() {
                    session_of.insert(id, sessions.len());
                }
                sessions.push(SessionPlan {
                    session_id: row.session_id.clone(),
                    start_ms: row.timestamp_ms,
                    turns: vec![TurnPlan { row_index, delay_ms: 0.0 }],
                });
            }
        }
    }
    count_from_first_start(&mut sessions);
    Ok(sessions)
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

fn delay_ms(row: &TraceRow, previous: Option<&TraceRow>) -> Result<f64, SessionProblem> {
    if let Some(delay_ms) = row.delay_ms {
        if !delay_ms.is_finite() || delay_ms < 0.0 {
            return Err(SessionProblem::BadDelay { delay_ms: delay_ms.to_string() });
        }
        return Ok(delay_ms);
    }
    let (Some(timestamp_ms), Some(previous)) = (row.timestamp_ms, previous) else {
        return Ok(0.0);
    };
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

fn fails(trace: &Trace, row: &TraceRow, problem: SessionProblem) -> TraceError {
    TraceError::Session {
        file: trace.path_display.clone(),
        line: row.line,
        session_id: row.session_id.clone(),
        problem,
        skipped_rows: trace.skipped_rows,
    }
}
