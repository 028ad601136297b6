//! The knobs of one engine, with the reference's names and defaults.

use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::engine::speculation::AcceptRates;
use crate::engine::timing::TimingModel;
use crate::time::SimSpan;

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

impl WorkerType {
    /// The key that says how many workers of this type there are.
    pub fn count_key(self) -> &'static str {
        match self {
            WorkerType::Aggregated => "num_workers",
            WorkerType::Prefill => "num_prefill_workers",
            WorkerType::Decode => "num_decode_workers",
        }
    }
}

/// Which of a prompt's blocks a hand-off copies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvTransferTimingMode {
    /// The whole prompt's, whatever the destination has.
    #[default]
    FullPrompt,
    /// Those that the destination had to set aside, as its cache did not hold them.
    DestinationMissing,
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
    /// Attention data-parallel ranks of the worker, at least 1: each has its own queue and pool of this size, and all end
    /// their steps together.
    pub dp_size: u32,
    /// With several ranks: a rank that decodes begins prompts only in every so-many-th step, at least 1.
    pub prefill_schedule_interval: u32,
    /// Tokens that a step guesses beyond the next one (MTP), 1 to 5. `None`: none.
    pub aic_nextn: Option<u32>,
    /// Probability, 0 to 1, that the first, the second, … guessed token is right if those before it are; what is missing is
    /// 0. As a list, or as a text with commas.
    pub aic_nextn_accept_rates: AcceptRates,
    /// Which guesses are right follows from it, from the request and from the token's position.
    pub aic_mtp_seed: u64,
    /// KV of one token in bytes, for the time of hand-offs.
    pub kv_transfer_bytes_per_token: Option<u64>,
    /// Speed of hand-offs, gigabytes (10⁹) a second; without it, and at 0, they take no time.
    pub kv_transfer_bandwidth: Option<f64>,
    /// Which of a prompt's blocks a hand-off copies.
    pub kv_transfer_timing_mode: KvTransferTimingMode,
    /// A decode worker computes a preempted sequence's prompt again at no prefill time, as the reference does.
    pub free_decode_recompute: bool,
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
            dp_size: 1,
            prefill_schedule_interval: 1,
            aic_nextn: None,
            aic_nextn_accept_rates: AcceptRates::default(),
            aic_mtp_seed: 42,
            kv_transfer_bytes_per_token: None,
            kv_transfer_bandwidth: None,
            kv_transfer_timing_mode: KvTransferTimingMode::FullPrompt,
            free_decode_recompute: true,
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
        require(self.dp_size >= 1, "dp_size", self.dp_size, at_least_one)?;
        let interval = self.prefill_schedule_interval;
        require(interval >= 1, "prefill_schedule_interval", interval, at_least_one)?;
        let nextn = self.aic_nextn.unwrap_or(1);
        require((1..=5).contains(&nextn), "aic_nextn", nextn, "a whole number from 1 to 5")?;
        self.aic_nextn_accept_rates.check()?;
        require(self.kv_transfer_bytes_per_token != Some(0), "kv_transfer_bytes_per_token", 0, at_least_one)?;
        let bandwidth = self.kv_transfer_bandwidth.unwrap_or(0.0);
        let at_least_zero = "a finite number of at least 0";
        require(bandwidth.is_finite() && bandwidth >= 0.0, "kv_transfer_bandwidth", bandwidth, at_least_zero)?;
        for (key, ratio) in [("speedup_ratio", self.speedup_ratio), ("decode_speedup_ratio", self.decode_speedup_ratio)]
        {
            require(ratio.is_finite() && ratio > 0.0, key, ratio, "a finite number above 0")?;
        }
        self.timing_model.check()
    }

    /// How long it takes to hand over a prompt of which `fresh_blocks` blocks were not at the destination: tokens × bytes
    /// a token / bandwidth. The sending worker's configuration counts. No speedup divides it, as in the reference.
    pub fn kv_transfer_time(&self, prompt_tokens: u32, fresh_blocks: u32) -> SimSpan {
        let (Some(bytes), Some(gigabytes)) = (self.kv_transfer_bytes_per_token, self.kv_transfer_bandwidth) else {
            return SimSpan::ZERO;
        };
        if gigabytes <= 0.0 {
            return SimSpan::ZERO;
        }
        let tokens = match self.kv_transfer_timing_mode {
            KvTransferTimingMode::FullPrompt => u64::from(prompt_tokens),
            KvTransferTimingMode::DestinationMissing => u64::from(fresh_blocks) * u64::from(self.block_size),
        };
        SimSpan::from_ms(tokens as f64 * bytes as f64 / (gigabytes * 1e9) * 1000.0)
    }
}

pub(crate) fn require(
    holds: bool,
    key: &'static str,
    value: impl ToString,
    expected: &'static str,
) -> Result<(), ConfigError> {
    if holds { Ok(()) } else { Err(ConfigError { key, value: value.to_string(), expected }) }
}
