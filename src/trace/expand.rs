//! From block hashes to prompts.
//!
//! The hashes of a trace say which prompts begin alike; they are not tokens. The expander gives each distinct hash a
//! small number, counted up in the order of first appearance over the whole trace, and lets it stand for one block: the
//! number as a token id, repeated `block_tokens` times. The prompt is then cut to the row's length. Equal hashes give
//! equal tokens, so an engine with any block size finds the reuse that the trace describes.
//!
//! A row without `hash_ids` shares nothing: it gets numbers of its own, in the same count, in row order.

use super::error::TraceError;
use super::numbers::BlockNumbers;
use super::prompt::{PromptPlan, Segment};
use super::read::Trace;
use super::row::TraceRow;

/// Makes prompts of rows, one after another.
#[derive(Clone, Debug)]
pub struct PromptMaker {
    block_tokens: u32,
    numbers: BlockNumbers,
    /// Of the row at hand; kept for its memory.
    segments: Vec<Segment>,
}

impl PromptMaker {
    /// For hashes that stand for `block_tokens` tokens each, numbered from `first_token`: two runs with disjoint
    /// numbers share no cached block.
    ///
    /// Fails if the block size is 0.
    pub fn new(block_tokens: u32, first_token: u32) -> Result<Self, TraceError> {
        if block_tokens == 0 {
            return Err(TraceError::ZeroBlock);
        }
        Ok(PromptMaker { block_tokens, numbers: BlockNumbers::starting_at(first_token), segments: Vec::new() })
    }

    /// The prompt of the next row; `None` if there are more distinct blocks than token ids.
    pub fn prompt(&mut self, row: &TraceRow) -> Option<PromptPlan> {
        self.segments.clear();
        let mut left_tokens = row.input_tokens;
        if row.hash_ids.is_empty() {
            let first_token = self.numbers.take(left_tokens.div_ceil(self.block_tokens))?;
            if left_tokens > 0 {
                let whole = Segment { first_token, tokens: left_tokens, run_tokens: self.block_tokens };
                self.segments.push(whole);
                left_tokens = 0;
            }
        }
        let mut end_token = None;
        for &hash in &row.hash_ids {
            // Hashes beyond the prompt's end get their numbers, too.
            let number = self.numbers.of(hash)?;
            let tokens = left_tokens.min(self.block_tokens);
            if tokens == 0 {
                continue;
            }
            left_tokens -= tokens;
            match self.segments.last_mut() {
                Some(last) if end_token == Some(number) => last.tokens += tokens,
                _ => self.segments.push(Segment { first_token: number, tokens, run_tokens: self.block_tokens }),
            }
            end_token = Some(number + 1);
        }
        Some(PromptPlan::of(&self.segments, row.input_tokens - left_tokens))
    }

    /// The smallest vocabulary that holds every token id of the prompts so far.
    pub fn vocab_tokens_needed(&self) -> u32 {
        self.numbers.end()
    }
}

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
        let mut maker = PromptMaker::new(trace.block_tokens, first_token)?;
        let prompts: Option<Vec<PromptPlan>> = trace.rows.iter().map(|row| maker.prompt(row)).collect();
        let prompts = prompts.ok_or_else(|| TraceError::TooManyBlocks { file: trace.path_display.clone() })?;
        Ok(TokenExpander { prompts, end_token: maker.vocab_tokens_needed() })
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
