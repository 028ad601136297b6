//! The plan: sessions of turns, and by what rule they are released.

use serde::{Deserialize, Serialize};

/// One request of a session.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannedTurn {
    /// The workload's row, by which prompt and lengths are found.
    pub row: u64,
    /// Wait between the end of the turn before and this one, in simulated milliseconds; 0 for the first turn.
    pub delay_ms: f64,
}

/// One session: its turns are sent one after another.
#[derive(Clone, Debug, PartialEq)]
pub struct PlannedSession {
    /// The session's name in the trace, if it has one.
    pub session_id: Option<String>,
    /// When its first turn arrives, in simulated milliseconds since the first arrival; needed for timestamps.
    pub start_ms: Option<f64>,
    /// Its turns.
    pub turns: Vec<PlannedTurn>,
}

/// The rule by which sessions are released.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalMode {
    /// At their timestamps, which (with the delays between turns) are divided by the ratio.
    Timestamps {
        /// Above 0; 1 keeps the trace's own pace.
        #[serde(default = "one", alias = "speedup_ratio")]
        arrival_speedup_ratio: f64,
    },
    /// A closed loop: so many sessions are alive at any time; timestamps are ignored, delays are kept.
    Concurrency {
        /// At least 1.
        concurrency: u32,
    },
}

fn one() -> f64 {
    1.0
}

impl ArrivalMode {
    /// Its name in reports.
    pub fn name(&self) -> &'static str {
        match self {
            ArrivalMode::Timestamps { .. } => "timestamps",
            ArrivalMode::Concurrency { .. } => "concurrency",
        }
    }
}
