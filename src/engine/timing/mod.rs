//! How long a step takes: prefill time plus decode time, from a model.
//!
//! A step's prefill part sees the batch as the reference does: number of requests, their mean length and mean cached
//! prefix, both by integer division. Its decode part sees the number of decoding requests and the tokens they hold.

pub mod fixed;
pub mod polynomial;

use serde::{Deserialize, Serialize};

use crate::time::SimSpan;

/// The prompts that a step works on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefillBatch {
    /// Requests of which prompt tokens are computed.
    pub requests: u32,
    /// Sum over them of the prompt tokens known after the step (cached, computed before, and computed now).
    pub prompt_tokens: u64,
    /// Sum over them of the prompt tokens that were there before the step.
    pub prefix_tokens: u64,
}

/// The sequences that a step decodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DecodeBatch {
    /// Sequences that get their next token.
    pub sequences: u32,
    /// Tokens they hold, prompt and output, before the step.
    pub context_tokens: u64,
    /// Tokens that the whole KV pool can hold.
    pub pool_tokens: u64,
}

/// A timing model, as the key `timing_model` of the engine's configuration names it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum TimingModel {
    /// The reference's default: polynomials in prefill tokens and in KV usage.
    #[default]
    Polynomial,
    /// Constants.
    Fixed {
        /// Time of a step's prefill part, milliseconds.
        prefill_ms: f64,
        /// Time of a step's decode part, milliseconds.
        decode_ms: f64,
    },
}

impl TimingModel {
    /// Time of a step's prefill part, in milliseconds; zero for an empty batch.
    pub fn prefill_ms(&self, batch: PrefillBatch) -> f64 {
        if batch.requests == 0 {
            return 0.0;
        }
        match self {
            TimingModel::Polynomial => polynomial::prefill_ms(batch),
            TimingModel::Fixed { prefill_ms, .. } => *prefill_ms,
        }
    }

    /// Time of a step's decode part, in milliseconds; zero for an empty batch.
    pub fn decode_ms(&self, batch: DecodeBatch) -> f64 {
        if batch.sequences == 0 {
            return 0.0;
        }
        match self {
            TimingModel::Polynomial => polynomial::decode_ms(batch),
            TimingModel::Fixed { decode_ms, .. } => *decode_ms,
        }
    }

    /// Time of a whole step on an engine `speedup_ratio` times as fast as the model.
    pub fn step_span(&self, prefill: PrefillBatch, decode: DecodeBatch, speedup_ratio: f64) -> SimSpan {
        // Each part is a duration of its own, rounded to nanoseconds, then divided and cut: as in the reference.
        let sped_up = |ms: f64| match SimSpan::from_ms(ms) {
            span if speedup_ratio == 1.0 => span,
            SimSpan(ns) => SimSpan((ns as f64 / speedup_ratio) as u64),
        };
        sped_up(self.prefill_ms(prefill)) + sped_up(self.decode_ms(decode))
    }
}
