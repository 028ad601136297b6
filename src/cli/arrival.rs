//! When requests are sent: the flags of all programs that send a workload.
//!
//! There are three ways, and they exclude one another: a closed loop (`concurrency`), the trace's timestamps
//! (`arrival_speedup_ratio`), and a rate (`request_rate`, with `arrival_pattern` and `arrival_smoothness`). A flag of
//! one way takes the place of a file's keys of the others.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cli::Failure;
use crate::cli::settings::SettingsFile;
use crate::session::plan::ArrivalMode;

#[cfg(test)]
mod tests;

/// What flags and file may set of arrivals.
#[derive(Clone, Debug, Default, PartialEq, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct ArrivalSettings {
    /// Closed loop: so many sessions at a time; trace timestamps are ignored.
    #[arg(long, value_name = "N", help_heading = "Arrivals")]
    #[arg(conflicts_with_all = ["arrival_speedup_ratio", "request_rate", "arrival_pattern", "arrival_smoothness"])]
    pub concurrency: Option<u32>,
    /// Replay by the trace's timestamps, so many times faster [default: 1].
    #[arg(long, value_parser = crate::cli::finite, value_name = "RATIO", help_heading = "Arrivals")]
    #[arg(conflicts_with_all = ["request_rate", "arrival_pattern", "arrival_smoothness"])]
    pub arrival_speedup_ratio: Option<f64>,
    /// Open loop: so many requests per simulated second on average, of sessions their first turns; trace timestamps are
    /// ignored.
    #[arg(long, value_parser = crate::cli::finite, value_name = "RATE", help_heading = "Arrivals")]
    pub request_rate: Option<f64>,
    /// How the arrivals of --request-rate are spaced [default: poisson].
    #[arg(long, value_name = "PATTERN", help_heading = "Arrivals")]
    pub arrival_pattern: Option<ArrivalPattern>,
    /// Shape of the gaps of gamma: bursts below 1, as poisson at 1, more even above [default: 1].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SHAPE", help_heading = "Arrivals")]
    pub arrival_smoothness: Option<f64>,
}

/// Names of the ways to space arrivals of a given rate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrivalPattern {
    /// Equal gaps.
    Constant,
    /// Exponential gaps: arrivals that know nothing of one another.
    #[default]
    Poisson,
    /// Gamma distributed gaps, of the given smoothness.
    Gamma,
}

impl ArrivalSettings {
    /// The keys with the way that each belongs to, and whether it is set.
    fn keys(&self) -> [(&'static str, u8, bool); 5] {
        [
            ("concurrency", 0, self.concurrency.is_some()),
            ("arrival_speedup_ratio", 1, self.arrival_speedup_ratio.is_some()),
            ("request_rate", 2, self.request_rate.is_some()),
            ("arrival_pattern", 2, self.arrival_pattern.is_some()),
            ("arrival_smoothness", 2, self.arrival_smoothness.is_some()),
        ]
    }

    /// Leaves out of a file what these flags, being of another way, take the place of. Comes before the file is
    /// layered.
    pub fn exclude_from(&self, file: &mut SettingsFile) {
        let keys = self.keys();
        for (index, (one, one_way, one_given)) in keys.into_iter().enumerate() {
            for (other, _, other_given) in keys.into_iter().skip(index + 1).filter(|(_, way, _)| *way != one_way) {
                file.exclude([(one, one_given), (other, other_given)]);
            }
        }
    }

    /// The mode that is meant, checked; `seed` is that of the gaps. Without settings it is the trace's own pace.
    pub fn resolve(&self, seed: u64) -> Result<ArrivalMode, Failure> {
        let keys = self.keys();
        let mut given = keys.iter().filter(|(_, _, given)| *given);
        if let Some((first, way, _)) = given.next()
            && let Some((second, ..)) = given.find(|(_, other, _)| other != way)
        {
            return Err(Failure::usage(format!("`{first}` and `{second}` are both set, expected one of them")));
        }
        let mode = match (self.concurrency, self.request_rate) {
            (Some(concurrency), _) => ArrivalMode::Concurrency { concurrency },
            (None, Some(request_rate)) => self.rate(request_rate, seed)?,
            (None, None) => {
                if let Some((key, ..)) = keys.iter().find(|(_, way, given)| *way == 2 && *given) {
                    return Err(Failure::usage(format!("`{key}` is set without `request_rate`")));
                }
                ArrivalMode::Timestamps { arrival_speedup_ratio: self.arrival_speedup_ratio.unwrap_or(1.0) }
            }
        };
        mode.validate().map_err(Failure::usage)?;
        Ok(mode)
    }

    fn rate(&self, request_rate: f64, seed: u64) -> Result<ArrivalMode, Failure> {
        let pattern = self.arrival_pattern.unwrap_or_default();
        if pattern != ArrivalPattern::Gamma && self.arrival_smoothness.is_some() {
            return Err(Failure::usage(
                "`arrival_smoothness` belongs to the pattern gamma\n  hint: `--arrival-pattern gamma` chooses it",
            ));
        }
        Ok(match pattern {
            ArrivalPattern::Constant => ArrivalMode::Constant { request_rate },
            ArrivalPattern::Poisson => ArrivalMode::Poisson { request_rate, seed },
            ArrivalPattern::Gamma => {
                ArrivalMode::Gamma { request_rate, smoothness: self.arrival_smoothness.unwrap_or(1.0), seed }
            }
        })
    }
}
