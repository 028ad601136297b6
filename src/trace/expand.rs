//! From block hashes to prompts.
//!
//! The hashes of a trace say which prompts begin alike; they are not tokens. The expander gives each distinct hash a
//! small number, counted up in the order of first appearance over the whole trace, and lets it stand for one block: the
//! number as a token id, repeated `block_tokens` times. The prompt is then cut to the row's length. Equal hashes give
//! equal tokens, so an engine with any block size finds the reuse that the trace describes.
//!
//! A row without `hash_ids` shares nothing: it gets numbers of its own, in the same count, in row order.

use rustc_hash::FxHashMap;

use super::error::TraceError;
use super::prompt::{PromptPlan, Segment};
use super::read::Trace;

/// Makes the prompts of a trace. Numbers are given when it is built, so the order of later calls does not matter.
#[derive(Clone, Debug)]
pub struct TokenExpander {
    prompts: Vec<PromptPlan>,
    end_token: u32,
}

impl TokenExpander {
    /// Numbers the blocks of the whole trace from 0.
    ///
    /// Fails if the block size is 0 or there are more distinct blocks than token ids.
    pub fn new(trace: &Trace) -> Result<Self, TraceError> {
        Self::starting_at(trace, 0)
    }

    /// As [`TokenExpander::new`], but numbers from `first_token`: two runs with disjoint numbers share no cached block.
    pub fn starting_at(trace: &Trace, first_token: u32) -> Result<Self, TraceError> {
        if trace.block_tokens == 0 {
            return Err(TraceError::ZeroBlock);
        }
        let too_many = || TraceError::TooManyBlocks { file: trace.path_display.clone() };
        let mut token_of: FxHashMap<u64, u32> = FxHashMap::default();
        let mut next = first_token;
        let mut prompts = Vec::with_capacity(trace.rows.len());
        for row in &trace.rows {
            let mut plan = PromptBuilder::new(row.input_tokens, trace.block_tokens);
            if row.hash_ids.is_empty() {
                let blocks = row.input_tokens.div_ceil(trace.block_tokens);
                plan.push_blocks(next, blocks);
                next = next.checked_add(blocks).ok_or_else(too_many)?;
            }
            for &hash in &row.hash_ids {
                let token = match token_of.get(&hash) {
                    Some(&token) => token,
                    None => {
                        let token = next;
                        next = next.checked_add(1).ok_or_else(too_many)?;
                        token_of.insert(hash, token);
                        token
                    }
                };
                plan.push_blocks(token, 1);
            }
            prompts.push(PromptPlan::new(plan.segments));
        }
        Ok(TokenExpander { prompts, end_token: next })
    }

    /// The prompt of the row at `row_index` in [`Trace::rows`]; `None` if there is no such row.
    pub fn prompt(&self, row_index: usize) -> Option<&PromptPlan> {
        self.prompts.get(row_index)
    }

    /// The prompt's tokens of the row at `row_index` in [`Trace::rows`]; empty if there is no such row.
    pub fn prompt_tokens(&self, row_index: usize) -> Vec<u32> {
        self.prompts.get(row_index).map(PromptPlan::tokens).unwrap_or_default()
    }

    /// The smallest vocabulary that holds every token id of the trace's prompts.
    pub fn vocab_tokens_needed(&self) -> u32 {
        self.end_token
    }
}

/// Collects blocks into segments: neighbours with consecutive numbers become one.
struct PromptBuilder {
    segments: Vec<Segment>,
    left_tokens: u32,
    block_tokens: u32,
}

impl PromptBuilder {
    fn new(input_tokens: u32, block_tokens: u32) -> Self {
        PromptBuilder { segments: Vec::new(), left_tokens: input_tokens, block_tokens }
    }

    /// Appends `blocks` blocks numbered from `first_token`, as far as the prompt reaches.
    fn push_blocks(&mut self, first_token: u32, blocks: u32) {
        let tokens = self.left_tokens.min(blocks.saturating_mul(self.block_tokens));
        if tokens == 0 {
            return;
        }
        self.left_tokens -= tokens;
        match self.segments.last_mut() {
            Some(last) if last.end_token() == first_token => last.tokens += tokens,
            _ => self.segments.push(Segment { first_token, tokens, run_tokens: self.block_tokens }),
        }
    }
}
