//! The engine's flags, shared by all programs that run engines.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::cli::timing::{TimingError, TimingSettings};
use crate::engine::{EngineConfig, PreemptionMode};

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

impl EngineSettings {
    /// The engine that is meant, checked.
    pub fn resolve(&self) -> Result<EngineConfig, TimingError> {
        let default = EngineConfig::default();
        let config = EngineConfig {
            num_gpu_blocks: self.num_gpu_blocks.unwrap_or(default.num_gpu_blocks),
            block_size: self.block_size.unwrap_or(default.block_size),
            max_model_len: self.max_model_len.or(default.max_model_len),
            max_num_seqs: self.max_num_seqs.or(default.max_num_seqs),
            max_num_batched_tokens: self.max_num_batched_tokens.or(default.max_num_batched_tokens),
            enable_prefix_caching: self.enable_prefix_caching.unwrap_or(default.enable_prefix_caching),
            enable_chunked_prefill: self.enable_chunked_prefill.unwrap_or(default.enable_chunked_prefill),
            preemption_mode: match self.preemption_mode {
                Some(Preemption::Fifo) => PreemptionMode::Fifo,
                Some(Preemption::Lifo) | None => PreemptionMode::Lifo,
            },
            decode_speedup_ratio: self.timing.decode_speedup_ratio.unwrap_or(default.decode_speedup_ratio),
            timing_model: self.timing.resolve()?,
            ..default
        };
        config.validate()?;
        Ok(config)
    }
}
