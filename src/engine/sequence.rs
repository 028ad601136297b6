//! One request inside the engine: its tokens, how far they are computed, and the blocks it holds.

use std::sync::Arc;

use crate::engine::blocks::{BlockIndex, BlockPool};
use crate::engine::config::EngineConfig;
use crate::engine::events::StoredBlock;
use crate::engine::hash::{BlockId, block_chain, extend_chain};
use crate::engine::machine::EngineRequest;
use crate::ids::{RequestId, SequenceHash};
use crate::rng::Seed;

/// A request that an engine has accepted.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    /// Prompt and output tokens known so far.
    tokens: Vec<u32>,
    pub prompt_tokens: u32,
    /// Output tokens to make, already cut to the model's length.
    pub max_output_tokens: u32,
    output_seed: Seed,
    vocab_tokens: u32,
    /// Identities of the full blocks of `tokens`.
    chain: Vec<BlockId>,
    /// Tokens whose KV is in the held blocks.
    pub computed_tokens: u32,
    /// Leading blocks of `held` that have their identity.
    published_blocks: u32,
    pub held: Vec<BlockIndex>,
    /// Prompt tokens found in the cache at the first admission.
    pub reused_tokens: Option<u32>,
    pub preemptions: u32,
}

/// What one scheduling decision added to the step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ScheduledWork {
    /// Tokens taken from the step's budget.
    pub tokens: u32,
    /// Prompt tokens among them.
    pub prompt_tokens: u32,
    /// Prompt tokens that were there before.
    pub prompt_before: u32,
}

impl Sequence {
    pub fn new(request: EngineRequest, config: &EngineConfig) -> Self {
        let block_size = config.block_size as usize;
        let prompt_tokens = request.prompt.len() as u32;
        let room = config.max_model_len.map_or(u32::MAX, |len| len.saturating_sub(prompt_tokens));
        let chain = if config.enable_prefix_caching { block_chain(&request.prompt, block_size) } else { Vec::new() };
        Sequence {
            id: request.id,
            tokens: request.prompt,
            prompt_tokens,
            max_output_tokens: request.max_output_tokens.min(room),
            output_seed: request.output_seed,
            vocab_tokens: request.vocab_tokens,
            chain,
            computed_tokens: 0,
            published_blocks: 0,
            held: Vec::new(),
            reused_tokens: None,
            preemptions: 0,
        }
    }

    /// Prompt and output tokens known so far.
    pub fn known_tokens(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Output tokens made so far.
    pub fn generated_tokens(&self) -> u32 {
        self.known_tokens() - self.prompt_tokens
    }

    /// True if all output tokens are made.
    pub fn is_complete(&self) -> bool {
        self.generated_tokens() >= self.max_output_tokens
    }

    /// True if all known tokens are computed, so that the step yields the next one.
    pub fn is_ready(&self) -> bool {
        self.computed_tokens >= self.known_tokens()
    }

    /// The leading blocks that may be taken from the cache: all full ones, but at least one token is always computed if
    /// the request wants output.
    pub fn reusable_chain(&self, block_size: u32) -> &[BlockId] {
        let known = self.known_tokens();
        let usable = if self.max_output_tokens > 0 { known.saturating_sub(1) } else { known };
        let blocks = ((usable / block_size) as usize).min(self.chain.len());
        &self.chain[..blocks]
    }

    /// Makes the next output token and returns it.
    pub fn generate(&mut self, block_size: u32, caching: bool) -> u32 {
        let token = self.output_seed.token_at(self.generated_tokens(), self.vocab_tokens);
        self.tokens.push(token);
        if caching && self.known_tokens().is_multiple_of(block_size) {
            extend_chain(&mut self.chain, &self.tokens, block_size as usize);
        }
        token
    }

    /// After an admission that took `hit_blocks` from the cache: they are computed and have their identity.
    pub fn adopt_hit(&mut self, hit_blocks: u32, block_size: u32) {
        self.computed_tokens = hit_blocks * block_size;
        self.published_blocks = hit_blocks;
    }

    /// Gives all full computed blocks their identity. Returns the newly visible ones, split where a block was known
    /// already, each run with its parent.
    pub fn publish_computed(&mut self, pool: &mut BlockPool, config: &EngineConfig) -> Vec<StoredRun> {
        let mut runs: Vec<StoredRun> = Vec::new();
        let mut open = false;
        while self.published_blocks < self.computed_tokens / config.block_size {
            let index = self.published_blocks as usize;
            let id = self.chain[index];
            let parent = index.checked_sub(1).map(|before| self.chain[before].sequence);
            if pool.publish(self.held[index], id.sequence) {
                if !open {
                    runs.push(StoredRun { parent, blocks: Vec::new() });
                }
                let token_ids =
                    if config.emit_kv_token_ids { self.block_tokens(index, config.block_size) } else { Arc::default() };
                let block = StoredBlock { sequence_hash: id.sequence, tokens_hash: id.tokens, token_ids };
                if let Some(run) = runs.last_mut() {
                    run.blocks.push(block);
                }
                open = true;
            } else {
                open = false;
            }
            self.published_blocks += 1;
        }
        runs
    }

    /// With prefix caching off: full computed blocks get identities that nobody can ask for, so that the pool treats
    /// them as it does others.
    pub fn publish_anonymous(&mut self, pool: &mut BlockPool, block_size: u32, next_identity: &mut u64) {
        while self.published_blocks < self.computed_tokens / block_size {
            *next_identity += 1;
            pool.publish(self.held[self.published_blocks as usize], SequenceHash(*next_identity));
            self.published_blocks += 1;
        }
    }

    fn block_tokens(&self, block: usize, block_size: u32) -> Arc<[u32]> {
        let size = block_size as usize;
        self.tokens[block * size..(block + 1) * size].into()
    }

    /// Gives up all blocks; everything has to be computed again.
    pub fn drop_blocks(&mut self, pool: &mut BlockPool) {
        pool.release_all(&mut self.held);
        self.computed_tokens = 0;
        self.published_blocks = 0;
    }
}

/// Newly visible blocks that follow one another.
#[derive(Debug)]
pub(crate) struct StoredRun {
    pub parent: Option<SequenceHash>,
    pub blocks: Vec<StoredBlock>,
}
