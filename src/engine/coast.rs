//! Steps that are alike, taken together.
//!
//! While a batch only decodes, one step is like the one before: each sequence gets a token and no block changes hands,
//! until a sequence fills a block, ends, or something arrives. An engine that need not tell every token computes when each
//! of these steps ends and wants to be woken at the end of the last. What arrives before cuts the row short: the step
//! that is under way at that moment becomes the last, and the state is what it would be had each step been taken alone.

use crate::engine::config::EngineConfig;
use crate::engine::machine::{Engine, TokenGap};
use crate::engine::timing::DecodeBatch;
use crate::time::{SimSpan, SimTime};

/// The most steps that are planned ahead: what is planned and then cut off is work for nothing.
const MOST_STEPS: u32 = 64;

/// Ends of the running step and of those that will follow it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Coast {
    /// Empty, or the end of the running step and of at least one more.
    ends: Vec<SimTime>,
    /// For each of these steps but the first, which is counted when it starts: whether it lies outside the tables of the
    /// timing model.
    clamped: Vec<bool>,
}

impl Engine {
    /// Plans the steps that follow the one that ends at `first_end`; returns the end of the last.
    pub(crate) fn plan_coast(&mut self, first_end: SimTime) -> SimTime {
        self.coast.ends.clear();
        self.coast.clamped.clear();
        // The end of a step is an attempt to make room for a destination, which may change things.
        let alike = self.plan.steady && !self.detail.every_token && !self.handoffs.would_try();
        let steps = if alike { self.alike_steps() } else { 0 };
        if steps == 0 {
            return first_end;
        }
        let decode = self.plan.decode;
        let next = DecodeBatch {
            context_tokens: decode.context_tokens + u64::from(decode.sequences),
            pool_tokens: self.pool_tokens(),
            ..decode
        };
        let mut end = first_end;
        let EngineConfig { speedup_ratio, decode_speedup_ratio, .. } = self.config;
        let Coast { ends, clamped } = &mut self.coast;
        ends.push(end);
        clamped.push(false);
        self.config.timing_model.decode_row(next, steps, speedup_ratio, decode_speedup_ratio, |time| {
            end += time.span;
            ends.push(end);
            clamped.push(time.clamped);
        });
        end
    }

    /// How many steps will be like the planned one: until a block is full or needed, or before a last token.
    fn alike_steps(&self) -> u32 {
        let block_size = self.config.block_size;
        let mut steps = MOST_STEPS;
        for slot in &self.running {
            let sequence = &self.sequences[*slot];
            let before_last_token = sequence.max_output_tokens - sequence.generated_tokens - 1;
            let filled = sequence.computed_tokens % block_size;
            let before_full_block = if filled == 0 { 0 } else { block_size - 1 - filled };
            steps = steps.min(before_last_token).min(before_full_block);
        }
        steps
    }

    /// Something arrives at `now`: the step that is under way becomes the last of the row.
    ///
    /// What arrives at the very moment at which a step of the row ends takes part in the next one, unless that one
    /// `has_started` before: then in the one after.
    pub(crate) fn interrupt_coast(&mut self, now: SimTime, has_started: bool) {
        if self.coast.ends.is_empty() {
            return;
        }
        let under_way = self.coast.ends.partition_point(|end| if has_started { *end <= now } else { *end < now });
        self.coast.ends.truncate(under_way + 1);
        if let (Some(step), Some(end)) = (&mut self.step, self.coast.ends.last()) {
            step.ends = *end;
        }
        self.finish_coast();
    }

    /// Does to the batch what the row's further steps do.
    pub(crate) fn finish_coast(&mut self) {
        let Some((first, rest)) = self.coast.ends.split_first() else { return };
        let sequences = self.running.len() as u32;
        let (mut before, mut longest) = (*first, SimSpan::ZERO);
        for end in rest {
            let gap = end.since(before);
            longest = longest.max(gap);
            before = *end;
            self.gaps.push(TokenGap { gap, tokens: sequences });
        }
        let steps = rest.len() as u32;
        let clamped = self.coast.clamped[..=rest.len()].iter().filter(|clamped| **clamped).count();
        self.totals.clamped_steps_total += clamped as u64;
        self.coast.ends.clear();
        for slot in &self.running {
            let sequence = &mut self.sequences[*slot];
            sequence.computed_tokens += steps;
            sequence.generated_tokens += steps;
            sequence.last_token_step += u64::from(steps);
            sequence.max_gap = sequence.max_gap.max(longest);
        }
        self.step_number += u64::from(steps);
        self.totals.steps_total += u64::from(steps);
        self.totals.generated_tokens_total += u64::from(steps) * u64::from(sequences);
    }
}
