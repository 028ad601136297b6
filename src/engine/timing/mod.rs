//! How long a step takes, from a model: prefill time plus decode time, or one line for both.
//!
//! A step's prefill part sees the batch as the reference does: number of requests, their mean length and mean cached
//! prefix, both by integer division. Its decode part sees the number of decoding requests and the tokens they hold. The
//! models: [`polynomial`] the reference's default, [`fixed`] constants, [`profile`] tables of a measured or estimated
//! engine, [`step`] one line whose coefficients are fitted to a real run. [`profile_file`] reads the last two from JSON.

pub mod fixed;
mod grid;
pub mod polynomial;
pub mod profile;
pub mod profile_file;
pub mod step;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub use profile::ProfileTable;
pub use profile_file::{ProfileError, ProfileProblem};
pub use step::StepModel;

use crate::engine::config::ConfigError;
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
    /// Prompt tokens computed in the step, exactly, and tokens computed anew ([`Self::add_recomputed`]). The models that
    /// work with integer means do not look at it.
    pub new_tokens: u64,
    /// Sum over the chunks that these tokens come in of tokens × the tokens that each of them attends to on average:
    /// those that were there before the chunk plus half of the chunk (whole, rounded down). Tokens squared.
    pub chunk_context: u64,
}

impl PrefillBatch {
    /// Adds a request of whose prompt `before_tokens` were there and `new_tokens` are computed.
    pub fn add_chunk(&mut self, before_tokens: u32, new_tokens: u32) {
        let (before, new) = (u64::from(before_tokens), u64::from(new_tokens));
        self.requests += 1;
        self.prompt_tokens += before + new;
        self.prefix_tokens += before;
        self.add_work(before, new);
    }

    /// Adds output tokens that a preempted sequence computes anew behind the `before_tokens` that it has: work like a
    /// prompt's to [`StepModel`], none to the reference's models.
    pub fn add_recomputed(&mut self, before_tokens: u32, new_tokens: u32) {
        self.add_work(u64::from(before_tokens), u64::from(new_tokens));
    }

    fn add_work(&mut self, before: u64, new: u64) {
        self.new_tokens += new;
        self.chunk_context += new * (before + new / 2);
    }

    /// Mean over the requests of the tokens that were there before, cut to a whole number; 0 for no requests.
    pub fn mean_prefix_tokens(&self) -> u64 {
        self.prefix_tokens.checked_div(u64::from(self.requests)).unwrap_or(0)
    }

    /// Requests × (mean prompt − mean prefix), both means cut to whole numbers: what the reference takes for the step's
    /// new tokens. 64 + 129 new tokens count as 2 × 96.
    pub fn new_tokens_of_means(&self) -> u64 {
        let requests = u64::from(self.requests);
        let mean_prompt = self.prompt_tokens.checked_div(requests).unwrap_or(0);
        requests * mean_prompt.saturating_sub(self.mean_prefix_tokens())
    }
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
///
/// A profile's table cannot be read back from a serialized model, which holds its name only: names are looked up outside
/// of this room.
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
    /// One line for the whole step.
    Step(StepModel),
    /// Tables, shared by all engines that are timed by them.
    #[serde(skip_deserializing)]
    Profile(#[serde(serialize_with = "profile::serialize_name")] Arc<ProfileTable>),
}

/// How long a step takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StepTime {
    /// The duration.
    pub span: SimSpan,
    /// True if the step lies outside of the model's tables and was priced at their edge: worth counting.
    pub clamped: bool,
}

/// Milliseconds of a part of a step, and whether they were read at the edge of a table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Price {
    ms: f64,
    clamped: bool,
}

impl Price {
    fn inside(ms: f64) -> Self {
        Price { ms, clamped: false }
    }
}

impl TimingModel {
    /// Time of a step's prefill part, in milliseconds; zero for an empty batch. With [`TimingModel::Step`] that of a step
    /// that only prefills: such parts do not add up.
    pub fn prefill_ms(&self, batch: PrefillBatch) -> f64 {
        self.prefill_price(batch).ms
    }

    /// Time of a step's decode part, in milliseconds; zero for an empty batch. With [`TimingModel::Step`] that of a step
    /// that only decodes: such parts do not add up.
    pub fn decode_ms(&self, batch: DecodeBatch) -> f64 {
        self.decode_price(batch).ms
    }

    /// Time of a whole step on an engine `speedup_ratio` times as fast as the model, and in decoding
    /// `decode_speedup_ratio` times as fast again. Both ratios are above 0.
    #[inline]
    pub fn step_time(
        &self,
        prefill: PrefillBatch,
        decode: DecodeBatch,
        speedup_ratio: f64,
        decode_speedup_ratio: f64,
    ) -> StepTime {
        if let TimingModel::Step(model) = self {
            let ms = model.step_ms(prefill, decode, decode_speedup_ratio);
            return StepTime { span: sped_up(ms, speedup_ratio), clamped: false };
        }
        // Each part is a duration of its own, rounded to nanoseconds, then divided and cut: as in the reference.
        let decode_part = self.decode_price(decode);
        let decode_span = sped_up(decode_part.ms, speedup_ratio * decode_speedup_ratio);
        if prefill.requests == 0 {
            return StepTime { span: decode_span, clamped: decode_part.clamped };
        }
        let prefill_part = self.prefill_price(prefill);
        StepTime {
            span: sped_up(prefill_part.ms, speedup_ratio) + decode_span,
            clamped: prefill_part.clamped || decode_part.clamped,
        }
    }

    /// Times of `steps` steps that only decode: the first with the given batch, each further one with a token more a
    /// sequence.
    pub fn decode_row(
        &self,
        first: DecodeBatch,
        steps: u32,
        speedup_ratio: f64,
        decode_speedup_ratio: f64,
        mut each: impl FnMut(StepTime),
    ) {
        let mut decode = first;
        // The reference's polynomial is what long replays spend their time with: its row is a loop without a branch.
        if matches!(self, TimingModel::Polynomial) && speedup_ratio * decode_speedup_ratio == 1.0 && first.sequences > 0
        {
            for _ in 0..steps {
                each(StepTime { span: SimSpan::from_ms(polynomial::decode_ms(decode)), clamped: false });
                decode.context_tokens += u64::from(decode.sequences);
            }
            return;
        }
        for _ in 0..steps {
            each(self.step_time(PrefillBatch::default(), decode, speedup_ratio, decode_speedup_ratio));
            decode.context_tokens += u64::from(decode.sequences);
        }
    }

    /// Checks the ranges of the model's own values and names the first that is out of it. Tables are checked when they
    /// are read.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self {
            TimingModel::Polynomial | TimingModel::Profile(_) => Ok(()),
            TimingModel::Fixed { prefill_ms, decode_ms } => {
                for (key, value) in [("prefill_ms", *prefill_ms), ("decode_ms", *decode_ms)] {
                    let error = |expected| ConfigError { key, value: value.to_string(), expected };
                    fixed::check_ms(value).map_err(error)?;
                }
                Ok(())
            }
            TimingModel::Step(model) => model.check(),
        }
    }

    fn prefill_price(&self, batch: PrefillBatch) -> Price {
        if batch.requests == 0 {
            return Price::default();
        }
        match self {
            TimingModel::Polynomial => Price::inside(polynomial::prefill_ms(batch)),
            TimingModel::Fixed { prefill_ms, .. } => Price::inside(*prefill_ms),
            TimingModel::Step(model) => Price::inside(model.line_ms(batch, DecodeBatch::default())),
            TimingModel::Profile(table) => table.prefill(batch),
        }
    }

    #[inline]
    fn decode_price(&self, batch: DecodeBatch) -> Price {
        if batch.sequences == 0 {
            return Price::default();
        }
        match self {
            TimingModel::Polynomial => Price::inside(polynomial::decode_ms(batch)),
            TimingModel::Fixed { decode_ms, .. } => Price::inside(*decode_ms),
            TimingModel::Step(model) => Price::inside(model.line_ms(PrefillBatch::default(), batch)),
            TimingModel::Profile(table) => table.decode(batch),
        }
    }
}

/// A duration of the model's on an engine that is `ratio` times as fast.
#[inline]
fn sped_up(ms: f64, ratio: f64) -> SimSpan {
    match SimSpan::from_ms(ms) {
        span if ratio == 1.0 => span,
        SimSpan(ns) => SimSpan((ns as f64 / ratio) as u64),
    }
}

#[cfg(test)]
mod tests;
