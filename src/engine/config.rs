//! The knobs of one engine, with the reference's names and defaults.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::engine::timing::TimingModel;

/// Whom a full cache throws out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PreemptionMode {
    /// The sequence that was admitted last.
    #[default]
    Lifo,
    /// The sequence that was admitted first.
    Fifo,
}

/// In which order waiting requests are admitted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchedulingPolicy {
    /// First come, first served.
    #[default]
    Fcfs,
    /// The highest priority first, among equals first come, first served. Preempted sequences stay ahead of all.
    Priority,
}

/// What part of a request's life an engine serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WorkerType {
    /// All of it.
    #[default]
    Aggregated,
    /// The prompt only; its blocks are then handed to a decode worker.
    Prefill,
    /// The output only; the prompt's blocks come from a prefill worker.
    Decode,
}

/// The configuration of one engine. Keys are those of the flags, with underscores.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct EngineConfig {
    /// KV blocks in the pool, at least 1.
    pub num_gpu_blocks: u32,
    /// Tokens a block holds, at least 2.
    pub block_size: u32,
    /// Longest sequence in tokens; longer prompts are rejected, longer outputs are cut. `None`: unbounded.
    pub max_model_len: Option<u32>,
    /// Most sequences in the running batch. `None`: unbounded.
    pub max_num_seqs: Option<u32>,
    /// Most tokens computed in one step. `None`: unbounded.
    pub max_num_batched_tokens: Option<u32>,
    /// Reuse cached blocks of earlier sequences. Off: every prompt is computed anew and no events are sent.
    pub enable_prefix_caching: bool,
    /// Split a prompt over several steps. Off: a prompt that is longer than a step's token budget is rejected.
    pub enable_chunked_prefill: bool,
    /// Whom a full cache throws out.
    pub preemption_mode: PreemptionMode,
    /// In which order waiting requests are admitted.
    pub scheduling_policy: SchedulingPolicy,
    /// What part of a request's life the engine serves.
    pub worker_type: WorkerType,
    /// Divides all step times, above 0. The live fleet speeds up its clock instead and leaves this at 1.
    pub speedup_ratio: f64,
    /// Divides the decode part of step times once more, above 0.
    pub decode_speedup_ratio: f64,
    /// How long steps take.
    pub timing_model: TimingModel,
    /// Put the token ids into stored events, which foreign routers need.
    pub emit_kv_token_ids: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        EngineConfig {
            num_gpu_blocks: 16_384,
            block_size: 64,
            max_model_len: None,
            max_num_seqs: Some(256),
            max_num_batched_tokens: Some(8192),
            enable_prefix_caching: true,
            enable_chunked_prefill: true,
            preemption_mode: PreemptionMode::Lifo,
            scheduling_policy: SchedulingPolicy::Fcfs,
            worker_type: WorkerType::Aggregated,
            speedup_ratio: 1.0,
            decode_speedup_ratio: 1.0,
            timing_model: TimingModel::Polynomial,
            emit_kv_token_ids: false,
        }
    }
}

/// A key with a value that an engine cannot run with.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("`{key}` is {value}, expected {expected}")]
pub struct ConfigError {
    /// The key, as in the configuration file.
    pub key: &'static str,
    /// The value seen.
    pub value: String,
    /// What would have been fine.
    pub expected: &'static str,
}

impl EngineConfig {
    /// Checks every range and names the first key that is out of it.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let at_least_one = "a whole number of at least 1";
        require(self.num_gpu_blocks >= 1, "num_gpu_blocks", self.num_gpu_blocks, at_least_one)?;
        require(self.block_size >= 2, "block_size", self.block_size, "a whole number of at least 2 tokens")?;
        for (key, value) in [
            ("max_model_len", self.max_model_len),
            ("max_num_seqs", self.max_num_seqs),
            ("max_num_batched_tokens", self.max_num_batched_tokens),
        ] {
            require(value != Some(0), key, 0, at_least_one)?;
        }
        for (key, ratio) in [("speedup_ratio", self.speedup_ratio), ("decode_speedup_ratio", self.decode_speedup_ratio)]
        {
            require(ratio.is_finite() && ratio > 0.0, key, ratio, "a finite number above 0")?;
        }
        self.timing_model.check()
    }
}

fn require(holds: bool, key: &'static str, value: impl ToString, expected: &'static str) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { key, value: value.to_string(), expected }) }
}
