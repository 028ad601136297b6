//! What a live fleet needs to know.

use std::net::IpAddr;
use std::time::Duration;

use crate::engine::EngineConfig;

/// A fleet, resolved and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct MockerConfig {
    /// Number of workers, at least 1.
    pub num_workers: u32,
    /// Address to listen on.
    pub host: IpAddr,
    /// Port of the first worker; the others follow. 0 takes any free port for each.
    pub port: u16,
    /// Fleets in different namespaces do not see each other.
    pub namespace: String,
    /// How many times faster than real time the fleet's clock runs, above 0.
    pub speedup_ratio: f64,
    /// The model's name.
    pub model: String,
    /// Token ids are below this.
    pub vocab_tokens: u32,
    /// Longest sequence that is announced if the engine has no limit of its own, in tokens.
    pub announced_model_len: u32,
    /// Seed of output tokens of requests that bring none.
    pub seed: u64,
    /// How long running requests may go on after the signal to stop (wall time).
    pub grace: Duration,
    /// How long a prefill worker holds blocks for a decode worker that does not come (wall time).
    pub handoff_timeout: Duration,
    /// Every worker's engine.
    pub engine: EngineConfig,
}
