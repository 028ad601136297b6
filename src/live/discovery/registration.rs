//! What a worker says about itself to the routers of its machine.

use serde::{Deserialize, Serialize};

use super::error::DiscoveryError;
use super::static_list::{parse_worker_url, port_of};
use crate::engine::WorkerType;

/// One worker, as its file holds it (JSON). Keys that a later version adds are ignored by an earlier one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Registration {
    /// Where it answers, as others reach it: `http://127.0.0.1:50051`.
    pub url: String,
    /// The process that serves it; one process may serve several workers.
    pub pid: u32,
    /// When that process started, from [`process_started`](super::process_started): tells it from a later process with
    /// the same number. `None` where the system does not say.
    pub process_started: Option<u64>,
    /// Its place in its fleet, from 0.
    pub worker_index: u32,
    /// The model it serves.
    pub model: String,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// KV blocks in its cache.
    pub num_gpu_blocks: u32,
    /// How many times faster than real time it runs.
    pub speedup_ratio: f64,
    /// What part of requests it serves.
    #[serde(default)]
    pub worker_type: WorkerType,
    /// Version of mockfleet that wrote this.
    pub version: String,
}

impl Registration {
    /// The same with its URL normalised, or what is wrong with it.
    pub(super) fn checked(mut self) -> Result<Self, DiscoveryError> {
        self.url = parse_worker_url(&self.url)?;
        if self.pid == 0 {
            return Err(DiscoveryError::value("pid", self.pid, "the number of a process"));
        }
        // JSON has no word for infinity: it would be written as null, and nobody could read the file.
        if !self.speedup_ratio.is_finite() {
            return Err(DiscoveryError::value("speedup_ratio", self.speedup_ratio, "a finite number"));
        }
        Ok(self)
    }

    /// The name of its file. Unique: a process serves a port once.
    pub(super) fn file_name(&self) -> String {
        format!("{}-{}.json", port_of(&self.url), self.pid)
    }

    /// Port first, so that a list reads in the order in which a fleet was laid out.
    pub(super) fn sort_key(&self) -> (u16, u32, &str) {
        (port_of(&self.url), self.worker_index, &self.url)
    }
}
