//! The router's knobs, with the reference's names and defaults.

use serde::{Deserialize, Serialize};
use thiserror::Error;

/// How a worker is chosen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RouterMode {
    /// One worker after the other.
    #[default]
    #[serde(alias = "round-robin")]
    RoundRobin,
    /// Any worker, by seed.
    Random,
    /// The worker with the least cost: prefill work after cache overlap, plus decode load.
    #[serde(alias = "kv_router", alias = "kv-router")]
    Kv,
}

impl RouterMode {
    /// The mode's name as it is written in flags, files and folder names.
    pub fn name(self) -> &'static str {
        match self {
            RouterMode::RoundRobin => "round-robin",
            RouterMode::Random => "random",
            RouterMode::Kv => "kv",
        }
    }
}

impl std::str::FromStr for RouterMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.replace('_', "-").as_str() {
            "round-robin" => Ok(RouterMode::RoundRobin),
            "random" => Ok(RouterMode::Random),
            "kv" | "kv-router" => Ok(RouterMode::Kv),
            _ => Err("expected round-robin, random or kv".to_owned()),
        }
    }
}

/// The configuration of a router.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterConfig {
    /// How a worker is chosen.
    pub router_mode: RouterMode,
    /// Blocks of prefill work that one cached block saves, at least 0.
    pub overlap_score_credit: f64,
    /// Weight of prefill blocks against decode blocks, at least 0.
    pub prefill_load_scale: f64,
    /// Spread of the choice, at least 0: 0 takes the least cost, 1 draws by costs normalised to their range.
    pub router_temperature: f64,
    /// Ties and random choices follow from it.
    pub seed: u64,
}

impl Default for RouterConfig {
    fn default() -> Self {
        RouterConfig {
            router_mode: RouterMode::RoundRobin,
            overlap_score_credit: 1.0,
            prefill_load_scale: 1.0,
            router_temperature: 0.0,
            seed: 0,
        }
    }
}

/// A key with a value that a router cannot run with.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("`{key}` is {value}, expected a finite number of at least 0")]
pub struct RouterConfigError {
    /// The key, as in the configuration file.
    pub key: &'static str,
    /// The value seen.
    pub value: f64,
}

impl RouterConfig {
    /// Checks every range and names the first key that is out of it.
    pub fn validate(&self) -> Result<(), RouterConfigError> {
        for (key, value) in [
            ("overlap_score_credit", self.overlap_score_credit),
            ("prefill_load_scale", self.prefill_load_scale),
            ("router_temperature", self.router_temperature),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return Err(RouterConfigError { key, value });
            }
        }
        Ok(())
    }
}
