//! From a prompt's recipe to the identities of its blocks, without its tokens in between.
//!
//! A trace's block of 512 equal tokens fills eight engine blocks of 64, all with the same tokens: they are hashed once.

use std::sync::Arc;

use super::prompt::PromptPlan;
use crate::engine::Prompt;
use crate::engine::hash::{BlockId, sequence_hash, tokens_hash};

/// Makes prompts with known blocks; keeps its buffers from one to the next.
#[derive(Clone, Debug, Default)]
pub struct PromptHasher {
    chain: Vec<BlockId>,
    block: Vec<u32>,
}

impl PromptHasher {
    /// The prompt of a recipe, its blocks of `block_size` tokens (at least 1) hashed: the same as hashing its tokens.
    pub fn hash(&mut self, plan: &PromptPlan, block_size: u32) -> Prompt {
        self.chain.clear();
        self.block.clear();
        for segment in plan.segments() {
            let (mut token, mut left) = (segment.first_token, segment.tokens);
            while left > 0 {
                let tokens = left.min(segment.run_tokens.max(1));
                self.add(token, tokens, block_size);
                token = token.saturating_add(1);
                left -= tokens;
            }
        }
        Prompt::Hashed {
            len_tokens: plan.len_tokens(),
            chain: Arc::from(self.chain.as_slice()),
            tail: Arc::from(self.block.as_slice()),
        }
    }

    /// Appends `tokens` equal tokens.
    fn add(&mut self, token: u32, mut tokens: u32, block_size: u32) {
        if !self.block.is_empty() {
            let taken = (block_size - self.block.len() as u32).min(tokens);
            self.block.extend(std::iter::repeat_n(token, taken as usize));
            tokens -= taken;
            if self.block.len() as u32 == block_size {
                self.end_blocks(1);
            }
        }
        let whole = tokens / block_size;
        if whole > 0 {
            self.block.resize(block_size as usize, token);
            self.end_blocks(whole);
        }
        self.block.extend(std::iter::repeat_n(token, (tokens - whole * block_size) as usize));
    }

    /// The block is full, and so many follow one another that are like it.
    fn end_blocks(&mut self, blocks: u32) {
        let tokens = tokens_hash(&self.block);
        self.block.clear();
        let mut parent = self.chain.last().map(|before| before.sequence);
        self.chain.extend((0..blocks).map(|_| {
            let sequence = sequence_hash(parent, tokens);
            parent = Some(sequence);
            BlockId { tokens, sequence }
        }));
    }
}
