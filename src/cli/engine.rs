//! The engine's flags, shared by all programs that run engines.

use std::path::Path;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cli::timing::{TimingError, TimingSettings};
use crate::engine::{AcceptRates, EngineConfig, KvTransferTimingMode, PreemptionMode, SchedulingPolicy};

/// What flags and file may set of an engine.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineSettings {
    /// KV blocks of a worker [default: 16384].
    #[arg(long, alias = "num-gpu-blocks-override", value_name = "BLOCKS", help_heading = "Engine")]
    pub num_gpu_blocks: Option<u32>,
    /// Tokens in a KV block [default: 64].
    #[arg(long, alias = "kv-cache-block-size", value_name = "TOKENS", help_heading = "Engine")]
    pub block_size: Option<u32>,
    /// Longest sequence; longer prompts are rejected, longer outputs cut [default: unbounded].
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    pub max_model_len: Option<u32>,
    /// Most sequences in the running batch [default: 256].
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub max_num_seqs: Option<u32>,
    /// Most tokens computed in one step [default: 8192].
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    pub max_num_batched_tokens: Option<u32>,
    /// Reuse cached blocks of earlier requests [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Engine")]
    pub enable_prefix_caching: Option<bool>,
    /// Split long prompts over several steps [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Engine")]
    pub enable_chunked_prefill: Option<bool>,
    /// Whom a full cache throws out: the newest (lifo) or the oldest (fifo) [default: lifo].
    #[arg(long, value_name = "MODE", help_heading = "Engine")]
    pub preemption_mode: Option<Preemption>,
    /// Who is admitted first: who came first (fcfs), or who has the highest priority [default: fcfs].
    #[arg(long, value_name = "POLICY", help_heading = "Engine")]
    pub scheduling_policy: Option<Scheduling>,
    /// Tokens that a step guesses beyond the next one (MTP), 1 to 5 [default: none].
    #[arg(long, value_name = "TOKENS", help_heading = "Engine")]
    pub aic_nextn: Option<u32>,
    /// Probability that the first, the second, ... guess is right if those before it are [default: 0.85,0.3].
    #[arg(long, value_name = "RATES", help_heading = "Engine")]
    pub aic_nextn_accept_rates: Option<AcceptRates>,
    /// Seed of which guesses are right [default: 42].
    #[arg(long, value_name = "N", help_heading = "Engine")]
    pub aic_mtp_seed: Option<u64>,
    /// How long steps take.
    #[command(flatten)]
    #[serde(flatten)]
    pub timing: TimingSettings,
}

/// Names of the preemption modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Preemption {
    /// The newest.
    Lifo,
    /// The oldest.
    Fifo,
}

/// Names of the scheduling policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheduling {
    /// First come, first served.
    Fcfs,
    /// The highest priority first.
    Priority,
}

impl EngineSettings {
    /// The engine that is meant, checked.
    pub fn resolve(&self) -> Result<EngineConfig, TimingError> {
        let mut config = EngineConfig::default();
        self.apply(&mut config);
        config.timing_model = self.timing.resolve(Path::new(""))?;
        config.validate()?;
        Ok(config)
    }

    /// Changes what is set, but for the timing model.
    pub fn apply(&self, config: &mut EngineConfig) {
        fn set<T: Copy>(to: &mut T, from: Option<T>) {
            *to = from.unwrap_or(*to);
        }
        set(&mut config.num_gpu_blocks, self.num_gpu_blocks);
        set(&mut config.block_size, self.block_size);
        config.max_model_len = self.max_model_len.or(config.max_model_len);
        config.max_num_seqs = self.max_num_seqs.or(config.max_num_seqs);
        config.max_num_batched_tokens = self.max_num_batched_tokens.or(config.max_num_batched_tokens);
        set(&mut config.enable_prefix_caching, self.enable_prefix_caching);
        set(&mut config.enable_chunked_prefill, self.enable_chunked_prefill);
        match self.preemption_mode {
            Some(Preemption::Fifo) => config.preemption_mode = PreemptionMode::Fifo,
            Some(Preemption::Lifo) => config.preemption_mode = PreemptionMode::Lifo,
            None => {}
        }
        match self.scheduling_policy {
            Some(Scheduling::Fcfs) => config.scheduling_policy = SchedulingPolicy::Fcfs,
            Some(Scheduling::Priority) => config.scheduling_policy = SchedulingPolicy::Priority,
            None => {}
        }
        config.aic_nextn = self.aic_nextn.or(config.aic_nextn);
        if let Some(rates) = &self.aic_nextn_accept_rates {
            config.aic_nextn_accept_rates = rates.clone();
        }
        set(&mut config.aic_mtp_seed, self.aic_mtp_seed);
        set(&mut config.decode_speedup_ratio, self.timing.decode_speedup_ratio);
    }
}

/// What flags and file may set of hand-offs.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct TransferSettings {
    /// KV of one token in bytes, for the time of hand-offs [default: none, they take no time].
    #[arg(long, value_name = "BYTES", help_heading = "Engine")]
    kv_transfer_bytes_per_token: Option<u64>,
    /// Speed of hand-offs, gigabytes (10^9) a second [default: none, they take no time].
    #[arg(long, value_parser = crate::cli::finite, value_name = "GB_PER_S", help_heading = "Engine")]
    kv_transfer_bandwidth: Option<f64>,
    /// Which of a prompt's blocks a hand-off copies: all, or those that the destination lacks [default: full-prompt].
    #[arg(long, value_name = "MODE", help_heading = "Engine")]
    kv_transfer_timing_mode: Option<TransferMode>,
}

/// Names of the transfer timing modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum TransferMode {
    FullPrompt,
    DestinationMissing,
}

impl TransferSettings {
    /// The first key that is set.
    pub fn first_set(&self) -> Option<&'static str> {
        let set = [
            ("kv_transfer_bytes_per_token", self.kv_transfer_bytes_per_token.is_some()),
            ("kv_transfer_bandwidth", self.kv_transfer_bandwidth.is_some()),
            ("kv_transfer_timing_mode", self.kv_transfer_timing_mode.is_some()),
        ];
        set.into_iter().find(|(_, set)| *set).map(|(key, _)| key)
    }

    /// Changes what is set.
    pub fn apply(&self, config: &mut EngineConfig) {
        config.kv_transfer_bytes_per_token = self.kv_transfer_bytes_per_token.or(config.kv_transfer_bytes_per_token);
        config.kv_transfer_bandwidth = self.kv_transfer_bandwidth.or(config.kv_transfer_bandwidth);
        config.kv_transfer_timing_mode = match self.kv_transfer_timing_mode {
            None => config.kv_transfer_timing_mode,
            Some(TransferMode::FullPrompt) => KvTransferTimingMode::FullPrompt,
            Some(TransferMode::DestinationMissing) => KvTransferTimingMode::DestinationMissing,
        };
    }
}
