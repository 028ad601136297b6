//! The plan: sessions of turns, and by what rule they are released.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// One request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedTurn {
    /// The workload's row, by which prompt and lengths are found.
    pub row: u64,
    /// Wait between the end of the turn before and this one, in simulated milliseconds; 0 for the first turn.
    pub delay_ms: f64,
}

/// One session: its turns are sent one after another.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlannedSession {
    /// The session's name in the trace, if it has one.
    pub session_id: Option<String>,
    /// When its first turn arrives, in simulated milliseconds since the first arrival; needed for timestamps.
    pub start_ms: Option<f64>,
    /// Its turns.
    pub turns: Vec<PlannedTurn>,
}

/// The rule by which sessions are released.
///
/// The modes with a `request_rate` are open loops, too: they release the sessions' first turns, in the order of the
/// file and whatever their timestamps say, and the first of them at 0. Later turns follow after their delays, which
/// no rate scales. Rates count simulated seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "snake_case", deny_unknown_fields)]
pub enum ArrivalMode {
    /// At their timestamps, which (with the delays between turns) are divided by the ratio.
    Timestamps {
        /// From 0.000001 to 1000000; 1 keeps the trace's own pace.
        #[serde(default = "one", alias = "speedup_ratio")]
        arrival_speedup_ratio: f64,
    },
    /// A closed loop: so many sessions are alive at any time; timestamps are ignored, delays are kept.
    Concurrency {
        /// At least 1.
        concurrency: u32,
    },
    /// At equal distances.
    Constant {
        /// First turns per simulated second, from 0.001 to 1000000.
        request_rate: f64,
    },
    /// At random moments that know nothing of one another: exponential gaps.
    Poisson {
        /// First turns per simulated second on average, from 0.001 to 1000000.
        request_rate: f64,
        /// Seed of the gaps.
        #[serde(default)]
        seed: u64,
    },
    /// At random moments, as smooth or as bursty as wanted: gamma distributed gaps.
    Gamma {
        /// First turns per simulated second on average, from 0.001 to 1000000.
        request_rate: f64,
        /// Shape of the distribution, from 0.001 to 1000000: bursts below 1, the gaps of `poisson` at 1, ever more
        /// equal ones above. The gaps' standard deviation is their mean divided by its square root.
        #[serde(alias = "arrival_smoothness")]
        smoothness: f64,
        /// Seed of the gaps.
        #[serde(default)]
        seed: u64,
    },
}

/// A value of an [`ArrivalMode`] that is out of range.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("`{key}` is {value}, expected {expected}")]
pub struct ArrivalModeError {
    /// The key, as flags and files name it.
    pub key: &'static str,
    /// The value.
    pub value: f64,
    /// What is accepted.
    pub expected: &'static str,
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
            ArrivalMode::Constant { .. } => "constant",
            ArrivalMode::Poisson { .. } => "poisson",
            ArrivalMode::Gamma { .. } => "gamma",
        }
    }

    /// Sessions at a time, in a closed loop.
    pub fn concurrency(&self) -> Option<u32> {
        match self {
            ArrivalMode::Concurrency { concurrency } => Some(*concurrency),
            _ => None,
        }
    }

    /// Whether every session needs a timestamp.
    pub fn needs_timestamps(&self) -> bool {
        matches!(self, ArrivalMode::Timestamps { .. })
    }

    /// Fails at the first value that is out of range.
    pub fn validate(&self) -> Result<(), ArrivalModeError> {
        let within = |key, value: f64, min: f64, expected| {
            if (min..=1e6).contains(&value) { Ok(()) } else { Err(ArrivalModeError { key, value, expected }) }
        };
        let rate = |value| {
            within(
                "request_rate",
                value,
                1e-3,
                "requests per simulated second, a number above 0, from 0.001 to 1000000",
            )
        };
        match *self {
            // Beyond a million, either way, clocks lose their nanoseconds.
            ArrivalMode::Timestamps { arrival_speedup_ratio: ratio } => {
                within("arrival_speedup_ratio", ratio, 1e-6, "a number above 0, from 0.000001 to 1000000")
            }
            ArrivalMode::Concurrency { concurrency: 0 } => {
                let expected = "a whole number of at least 1";
                Err(ArrivalModeError { key: "concurrency", value: 0.0, expected })
            }
            ArrivalMode::Concurrency { .. } => Ok(()),
            ArrivalMode::Constant { request_rate } | ArrivalMode::Poisson { request_rate, .. } => rate(request_rate),
            ArrivalMode::Gamma { request_rate, smoothness, .. } => {
                rate(request_rate)?;
                within("arrival_smoothness", smoothness, 1e-3, "a number above 0, from 0.001 to 1000000")
            }
        }
    }
}
