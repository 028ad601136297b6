//! The router's knobs, with the reference's names and defaults.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::router::explain::Pool;

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
    /// Of two workers that are drawn the one with fewer requests in flight.
    #[serde(alias = "power-of-two")]
    PowerOfTwo,
    /// The worker with the fewest requests in flight.
    #[serde(alias = "least-loaded")]
    LeastLoaded,
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
            RouterMode::PowerOfTwo => "power-of-two",
            RouterMode::LeastLoaded => "least-loaded",
            RouterMode::Kv => "kv",
        }
    }
}

impl FromStr for RouterMode {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.replace('_', "-").as_str() {
            "round-robin" => Ok(RouterMode::RoundRobin),
            "random" => Ok(RouterMode::Random),
            "power-of-two" => Ok(RouterMode::PowerOfTwo),
            "least-loaded" => Ok(RouterMode::LeastLoaded),
            "kv" | "kv-router" => Ok(RouterMode::Kv),
            _ => Err("expected round-robin, random, power-of-two, least-loaded or kv".to_owned()),
        }
    }
}

/// Who leaves the router's queue first, within a strict tier.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QueuePolicy {
    /// First come, first served; a priority of j counts as j seconds of earlier arrival.
    #[default]
    Fcfs,
    /// Weighted shortest processing time: few uncached prompt tokens, weighted by 1 + priority.
    Wspt,
    /// Last come, first served; a priority of j counts as j seconds of later arrival.
    Lcfs,
}

impl FromStr for QueuePolicy {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "fcfs" => Ok(QueuePolicy::Fcfs),
            "wspt" => Ok(QueuePolicy::Wspt),
            "lcfs" => Ok(QueuePolicy::Lcfs),
            _ => Err("expected fcfs, wspt or lcfs".to_owned()),
        }
    }
}

/// Which of several workers with the same least cost is taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TieBreak {
    /// Any, each as likely as the others, by seed.
    #[default]
    Seeded,
    /// The one with the lowest number.
    Lowest,
}

impl FromStr for TieBreak {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "seeded" => Ok(TieBreak::Seeded),
            "lowest" => Ok(TieBreak::Lowest),
            _ => Err("expected seeded or lowest".to_owned()),
        }
    }
}

/// The configuration of a router. All keys but the mode, the ties and the seed are those of the reference's
/// `KvRouterConfig` and matter in mode `kv` only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RouterConfig {
    /// How a worker is chosen.
    pub router_mode: RouterMode,
    /// Blocks of prefill work that one cached block saves, at least 0.
    pub overlap_score_credit: f64,
    /// How fast the credit fades with the worker's prefill backlog, at least 0: with a backlog of so many prompts like this
    /// one (beyond the least of all workers) that decay × prompts is 1, half of it is left.
    pub overlap_score_credit_decay: f64,
    /// Weight of prefill blocks against decode blocks, at least 0.
    pub prefill_load_scale: f64,
    /// Blocks that each request in flight on a worker costs, at least 0.
    pub decode_active_request_weight: f64,
    /// Spread of the choice, at least 0: 0 takes the least cost, 1 draws by costs normalised to their range.
    pub router_temperature: f64,
    /// Whether the blocks of prompts in flight count as load.
    pub router_track_active_blocks: bool,
    /// Whether prompt tokens without a first token yet count as load; without it no worker is ever busy.
    pub router_track_prefill_tokens: bool,
    /// Whether a prefix that is in flight on a worker costs nothing there a second time.
    pub router_assume_kv_reuse: bool,
    /// A worker is busy while its uncached prompt tokens without a first token are more than this fraction of its
    /// `max_num_batched_tokens`; requests wait in the router while all workers are. At least 0; `None`: no queue.
    pub router_queue_threshold: Option<f64>,
    /// Who leaves the queue first.
    pub router_queue_policy: QueuePolicy,
    /// Whether caches are known from the workers' events. Without effect in a replay, as in the reference's.
    pub use_kv_events: bool,
    /// Whether output blocks count as load, too. Without effect in a replay, as in the reference's.
    pub router_track_output_blocks: bool,
    /// How long the router believes in blocks that no event has told of yet, seconds above 0. Without effect in a replay,
    /// as in the reference's.
    pub router_predicted_ttl_secs: Option<f64>,
    /// Which of several workers with the same least cost is taken.
    pub tie_break: TieBreak,
    /// Ties and random choices follow from it.
    pub seed: u64,
}

impl Default for RouterConfig {
    fn default() -> Self {
        RouterConfig {
            router_mode: RouterMode::RoundRobin,
            overlap_score_credit: 1.0,
            overlap_score_credit_decay: 0.0,
            prefill_load_scale: 1.0,
            decode_active_request_weight: 0.0,
            router_temperature: 0.0,
            router_track_active_blocks: true,
            router_track_prefill_tokens: true,
            router_assume_kv_reuse: true,
            router_queue_threshold: None,
            router_queue_policy: QueuePolicy::Fcfs,
            use_kv_events: true,
            router_track_output_blocks: false,
            router_predicted_ttl_secs: None,
            tie_break: TieBreak::Seeded,
            seed: 0,
        }
    }
}

/// A key with a value that a router cannot run with.
#[derive(Clone, Debug, PartialEq, Error)]
#[error("`{key}` is {value}, expected {expected}")]
pub struct RouterConfigError {
    /// The key, as in the configuration file.
    pub key: &'static str,
    /// The value seen.
    pub value: String,
    /// What is accepted.
    pub expected: &'static str,
}

impl RouterConfig {
    /// Checks every range and names the first key that is out of it.
    pub fn validate(&self) -> Result<(), RouterConfigError> {
        for (key, value) in [
            ("overlap_score_credit", self.overlap_score_credit),
            ("overlap_score_credit_decay", self.overlap_score_credit_decay),
            ("prefill_load_scale", self.prefill_load_scale),
            ("decode_active_request_weight", self.decode_active_request_weight),
            ("router_temperature", self.router_temperature),
            ("router_queue_threshold", self.router_queue_threshold.unwrap_or(0.0)),
        ] {
            if !(value.is_finite() && value >= 0.0) {
                return refuse(key, value, "a finite number of at least 0");
            }
        }
        if self.router_track_output_blocks && !self.router_track_active_blocks {
            return refuse("router_track_output_blocks", true, "false while router_track_active_blocks is false");
        }
        match self.router_predicted_ttl_secs {
            Some(ttl) if !(ttl.is_finite() && ttl > 0.0) => {
                refuse("router_predicted_ttl_secs", ttl, "a finite number above 0")
            }
            Some(ttl) if !self.use_kv_events => {
                refuse("router_predicted_ttl_secs", ttl, "none while use_kv_events is false")
            }
            _ => Ok(()),
        }
    }

    /// As [`RouterConfig::validate`], and refuses what only has its meaning in a replay.
    pub fn validate_live(&self) -> Result<(), RouterConfigError> {
        self.validate()?;
        if !self.use_kv_events {
            return refuse("use_kv_events", false, "true: a live router learns caches from events only");
        }
        if self.router_track_output_blocks {
            return refuse("router_track_output_blocks", true, "false: a live router does not count output blocks");
        }
        match self.router_predicted_ttl_secs {
            Some(ttl) => refuse("router_predicted_ttl_secs", ttl, "none: a live router learns caches from events only"),
            None => Ok(()),
        }
    }

    /// What this configuration comes to in one pool of a fleet.
    ///
    /// A prefill pool has no decode load: its requests are gone when their prompts are done. In a decode pool prompts
    /// are there already, in blocks of their own: nothing to prefill, nothing to share. So the reference does it.
    pub fn for_pool(&self, pool: Pool) -> RouterConfig {
        let mut config = self.clone();
        match pool {
            Pool::Agg => {}
            Pool::Prefill => config.router_track_active_blocks = false,
            Pool::Decode => {
                config.overlap_score_credit = 0.0;
                config.router_track_prefill_tokens = false;
                config.router_assume_kv_reuse = false;
            }
        }
        config
    }
}

fn refuse(key: &'static str, value: impl ToString, expected: &'static str) -> Result<(), RouterConfigError> {
    Err(RouterConfigError { key, value: value.to_string(), expected })
}
