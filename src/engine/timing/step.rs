//! One line for a whole step: a base, so much a token, so much a sequence, so much for the cache that is read.
//!
//! The form follows from what a step does: weights are read once (base), each token costs its share of matrix products,
//! attention reads the cache of all contexts, and in a mixture of experts the first tokens of a batch wake more and more
//! experts until all are awake (the saturating part). Unlike the other models it does not add a prefill part to a decode
//! part, since a real mixed step pays its base once.

use serde::{Deserialize, Serialize};

use super::{DecodeBatch, PrefillBatch, fixed};
use crate::engine::config::ConfigError;

/// The most microseconds or nanoseconds that one token may cost.
const MAX_COEFFICIENT: f64 = 1e9;

/// The coefficients, all finite and at least 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StepModel {
    /// Every step, milliseconds.
    pub base_ms: f64,
    /// Each prompt token computed, microseconds.
    pub prefill_token_us: f64,
    /// Each sequence that gets its next token, microseconds.
    pub decode_sequence_us: f64,
    /// Each cached token read: the contexts of decoding sequences and the prefixes of prompts, nanoseconds.
    pub kv_token_read_ns: f64,
    /// Each pair of a prompt token computed and a token that it attends to ([`PrefillBatch::chunk_context`]),
    /// nanoseconds.
    pub chunk_context_ns: f64,
    /// What a large batch costs over an empty one for all experts being awake, milliseconds.
    #[serde(default)]
    pub saturating_ms: f64,
    /// Tokens of a step after which 63 % of `saturating_ms` are reached; above 0 if that is.
    #[serde(default)]
    pub saturating_tokens: f64,
}

impl StepModel {
    /// base_ms + prefill_token_us·p/10³ + decode_sequence_us·d/10³ + kv_token_read_ns·r/10⁶ + chunk_context_ns·c/10⁶ +
    /// saturating_ms·(1 − e^(−(p + d)/saturating_tokens)), in milliseconds, for p prompt tokens computed, d decoding
    /// sequences, r cached tokens read and c pairs of token and context; 0 for a step that computes nothing.
    pub fn line_ms(&self, prefill: PrefillBatch, decode: DecodeBatch) -> f64 {
        if prefill.requests == 0 && prefill.new_tokens == 0 && decode.sequences == 0 {
            return 0.0;
        }
        let prefill_tokens = prefill.new_tokens as f64;
        let sequences = f64::from(decode.sequences);
        let tokens_read = (decode.context_tokens + prefill.prefix_tokens) as f64;
        let saturating_ms = match self.saturating_ms {
            0.0 => 0.0,
            most => -most * (-(prefill_tokens + sequences) / self.saturating_tokens).exp_m1(),
        };
        self.base_ms
            + (self.prefill_token_us * prefill_tokens + self.decode_sequence_us * sequences) / 1e3
            + (self.kv_token_read_ns * tokens_read + self.chunk_context_ns * prefill.chunk_context as f64) / 1e6
            + saturating_ms
    }

    /// The same if decoding is so many times as fast. Its share of a step is what it adds to the prefill that is in it,
    /// which is the whole line if there is none.
    pub fn step_ms(&self, prefill: PrefillBatch, decode: DecodeBatch, decode_speedup_ratio: f64) -> f64 {
        let whole_ms = self.line_ms(prefill, decode);
        if decode_speedup_ratio == 1.0 {
            return whole_ms;
        }
        let prefill_ms = self.line_ms(prefill, DecodeBatch::default());
        prefill_ms + (whole_ms - prefill_ms) / decode_speedup_ratio
    }

    /// The coefficients by their keys.
    pub fn coefficients(&self) -> [(&'static str, f64); 7] {
        [
            ("base_ms", self.base_ms),
            ("prefill_token_us", self.prefill_token_us),
            ("decode_sequence_us", self.decode_sequence_us),
            ("kv_token_read_ns", self.kv_token_read_ns),
            ("chunk_context_ns", self.chunk_context_ns),
            ("saturating_ms", self.saturating_ms),
            ("saturating_tokens", self.saturating_tokens),
        ]
    }

    /// Checks every range and names the first coefficient that is out of it.
    pub fn check(&self) -> Result<(), ConfigError> {
        for (key, value) in self.coefficients() {
            let error = |expected| ConfigError { key, value: value.to_string(), expected };
            if key.ends_with("_ms") {
                fixed::check_ms(value).map_err(error)?;
            } else if !(0.0..=MAX_COEFFICIENT).contains(&value) {
                return Err(error("a number from 0 to 1000000000"));
            }
        }
        if self.saturating_ms > 0.0 && self.saturating_tokens == 0.0 {
            let expected = "a number above 0, as saturating_ms is above 0";
            return Err(ConfigError { key: "saturating_tokens", value: "0".to_owned(), expected });
        }
        Ok(())
    }
}
