//! From a prompt's recipe to the identities of its blocks, without its tokens in between.
//!
//! A trace's block of 512 equal tokens fills eight engine blocks of 64, all with the same tokens: they are hashed once.

use std::sync::Arc;

use super::prompt::{PromptPlan, Segment};
use crate::engine::Prompt;
use crate::engine::hash::{BlockId, sequence_hash, tokens_hash};
use crate::ids::TokensHash;

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
        let mut parent = None;
        for segment in plan.segments() {
            let mut at = 0;
            let mut equal: Option<(u32, TokensHash)> = None;
            while at < segment.tokens {
                let own = match whole_block_token(segment, at, block_size).filter(|_| self.block.is_empty()) {
                    Some(token) => {
                        at += block_size;
                        match equal {
                            Some((same, own)) if same == token => own,
                            _ => {
                                self.block.resize(block_size as usize, token);
                                let own = tokens_hash(&self.block);
                                self.block.clear();
                                equal = Some((token, own));
                                own
                            }
                        }
                    }
                    None => {
                        let wanted = block_size - self.block.len() as u32;
                        let taken = wanted.min(segment.tokens - at);
                        self.block.extend((at..at + taken).map(|position| segment.token_at(position)));
                        at += taken;
                        if taken < wanted {
                            continue;
                        }
                        let own = tokens_hash(&self.block);
                        self.block.clear();
                        own
                    }
                };
                let sequence = sequence_hash(parent, own);
                self.chain.push(BlockId { tokens: own, sequence });
                parent = Some(sequence);
            }
        }
        Prompt::Hashed {
            len_tokens: plan.len_tokens(),
            chain: Arc::from(self.chain.as_slice()),
            tail: Arc::from(self.block.as_slice()),
        }
    }
}

/// The token of the block that starts at `at`, if it lies in the segment and has only one.
fn whole_block_token(segment: &Segment, at: u32, block_size: u32) -> Option<u32> {
    let run_tokens = segment.run_tokens.max(1);
    let fits = segment.tokens - at >= block_size && run_tokens - at % run_tokens >= block_size;
    fits.then(|| segment.token_at(at))
}
