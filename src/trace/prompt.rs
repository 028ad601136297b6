//! Prompts before they are sent: a few numbers instead of thousands of tokens.
//!
//! A prompt is a row of segments. A segment counts token ids upwards and repeats each one `run_tokens` times, so a
//! stretch of consecutive block hashes of a trace is one segment, and so is the shared prefix or the unique end of a
//! generated prompt. Two prompts share a prefix exactly as far as their tokens agree, and segments with disjoint ids
//! never share a block, whatever the block size of the engine.

use std::sync::Arc;

/// Consecutive tokens of a prompt: `first_token` repeated `run_tokens` times, then the next id, and so on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Segment {
    /// Token id that the segment starts with.
    pub first_token: u32,
    /// Length of the segment, in tokens.
    pub tokens: u32,
    /// How many tokens in a row carry the same id; at least 1. The last run may be cut short.
    pub run_tokens: u32,
}

impl Segment {
    /// Number of distinct token ids in the segment.
    pub fn distinct_tokens(&self) -> u32 {
        self.tokens.div_ceil(self.run_tokens.max(1))
    }

    /// The first token id after those of the segment.
    pub fn end_token(&self) -> u32 {
        self.first_token.saturating_add(self.distinct_tokens())
    }

    /// The token at `position` within the segment (0 is its first token).
    pub fn token_at(&self, position: u32) -> u32 {
        self.first_token.saturating_add(position / self.run_tokens.max(1))
    }
}

/// A prompt as segments; cheap to keep and to clone, turned into tokens when it is sent.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PromptPlan {
    segments: Arc<[Segment]>,
    tokens: u32,
}

impl PromptPlan {
    /// A prompt of these segments, one after the other. Empty segments are left out.
    ///
    /// A prompt holds at most `u32::MAX` tokens: segments beyond that are cut.
    pub fn new(segments: impl IntoIterator<Item = Segment>) -> Self {
        let mut tokens = 0u32;
        let mut kept = Vec::new();
        for mut segment in segments {
            segment.tokens = segment.tokens.min(u32::MAX - tokens);
            if segment.tokens > 0 {
                tokens += segment.tokens;
                kept.push(segment);
            }
        }
        PromptPlan { segments: kept.into(), tokens }
    }

    /// The same of segments that need no change: none is empty, and `tokens`, their sum, is not beyond `u32::MAX`.
    pub(super) fn of(segments: &[Segment], tokens: u32) -> Self {
        PromptPlan { segments: segments.into(), tokens }
    }

    /// The segments, in the order of the prompt.
    pub fn segments(&self) -> &[Segment] {
        &self.segments
    }

    /// Length of the prompt, in tokens.
    pub fn len_tokens(&self) -> u32 {
        self.tokens
    }

    /// The first token id above all ids of the prompt: the smallest vocabulary that holds it.
    pub fn vocab_tokens_needed(&self) -> u32 {
        self.segments.iter().map(Segment::end_token).max().unwrap_or(0)
    }

    /// The prompt's tokens.
    pub fn tokens(&self) -> Vec<u32> {
        let mut out = Vec::with_capacity(self.tokens as usize);
        self.extend_into(&mut out);
        out
    }

    /// Appends the prompt's tokens to `out`, for callers that reuse a buffer.
    pub fn extend_into(&self, out: &mut Vec<u32>) {
        out.reserve(self.tokens as usize);
        for segment in self.segments.iter() {
            let run = segment.run_tokens.max(1);
            let mut left = segment.tokens;
            let mut token = segment.first_token;
            while left > 0 {
                let count = left.min(run);
                out.extend(std::iter::repeat_n(token, count as usize));
                left -= count;
                token = token.saturating_add(1);
            }
        }
    }
}
