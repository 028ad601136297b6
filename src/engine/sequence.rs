//! One request inside the engine: its tokens, how far they are computed, and the blocks it holds.
//!
//! Output tokens follow from a seed and their position, so they are only counted; they are made when somebody wants to see
//! one, or when a block of them is full and needs its identity.

use std::sync::Arc;

use crate::engine::blocks::{BlockPool, HeldBlocks, PrefixMatch};
use crate::engine::config::{EngineConfig, WorkerType};
use crate::engine::events::{KvEventData, StoredBlocks};
use crate::engine::hash::{BlockId, Chain, SequenceBlocks, block_chain, sequence_hash, tokens_hash};
use crate::engine::messages::EngineRequest;
use crate::engine::prompt::Prompt;
use crate::ids::{RequestId, SequenceHash, TokensHash};
use crate::rng::Seed;
use crate::time::{SimSpan, SimTime};

/// A request that an engine has accepted.
#[derive(Clone, Debug)]
pub(crate) struct Sequence {
    pub id: RequestId,
    pub prompt_tokens: u32,
    /// Output tokens to make, already cut to the model's length.
    pub max_output_tokens: u32,
    pub priority: i32,
    /// Place in the order in which the engine heard of its requests.
    pub arrival_number: u64,
    output_seed: Seed,
    /// Blocks of output get their identity from its tokens, not from seed and position alone.
    makes_tokens: bool,
    vocab_tokens: u32,
    /// Identities of the prompt's full blocks.
    chain: Chain,
    /// Prompt tokens behind the last full block.
    tail: Arc<[u32]>,
    /// The whole prompt, if stored blocks tell their tokens.
    token_ids: Vec<u32>,
    /// Identities of the full blocks behind the prompt's.
    grown: Vec<BlockId>,
    pub generated_tokens: u32,
    /// Tokens whose KV is in the held blocks.
    pub computed_tokens: u32,
    /// Leading blocks of `held` that have their identity.
    published_blocks: u32,
    pub held: HeldBlocks,
    /// Prompt tokens found in the cache at the first admission.
    pub reused_tokens: Option<u32>,
    pub preemptions: u32,
    /// Number of the engine's step that made the last token; 0: none did.
    pub last_token_step: u64,
    /// When the last token came, if the step before the next token's was not the one that made it.
    pub last_token_at: SimTime,
    /// Longest wait between two tokens.
    pub max_gap: SimSpan,
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
    /// `makes_tokens`: see [`EngineDetail::every_token`](crate::engine::EngineDetail::every_token).
    pub fn new(request: EngineRequest, arrival_number: u64, config: &EngineConfig, makes_tokens: bool) -> Self {
        let prompt_tokens = request.prompt.len_tokens();
        let room = config.max_model_len.map_or(u32::MAX, |len| len.saturating_sub(prompt_tokens));
        let mut token_ids = Vec::new();
        let (chain, tail): (Chain, Arc<[u32]>) = match request.prompt {
            _ if !config.enable_prefix_caching => Default::default(),
            Prompt::Hashed { chain, tail, .. } => (chain, tail),
            Prompt::Tokens(tokens) => {
                let chain = block_chain(&tokens, config.block_size as usize);
                let tail = tokens[chain.len() * config.block_size as usize..].into();
                if config.emit_kv_token_ids {
                    token_ids = tokens;
                }
                (chain.into(), tail)
            }
        };
        let mut max_output_tokens = request.max_output_tokens.min(room);
        if config.worker_type == WorkerType::Prefill {
            // Its one token says that the prompt is computed; the decode worker makes all that the client sees.
            max_output_tokens = max_output_tokens.min(1);
        }
        Sequence {
            id: request.id,
            prompt_tokens,
            max_output_tokens,
            priority: request.priority,
            arrival_number,
            output_seed: request.output_seed,
            makes_tokens,
            vocab_tokens: request.vocab_tokens,
            chain,
            tail,
            token_ids,
            grown: Vec::new(),
            generated_tokens: 0,
            computed_tokens: 0,
            published_blocks: 0,
            held: HeldBlocks::default(),
            reused_tokens: None,
            preemptions: 0,
            last_token_step: 0,
            last_token_at: SimTime::ZERO,
            max_gap: SimSpan::ZERO,
        }
    }

    /// Identities of the prompt's full blocks.
    pub fn prompt_chain(&self) -> &Chain {
        &self.chain
    }

    /// Prompt and output tokens known so far.
    pub fn known_tokens(&self) -> u32 {
        self.prompt_tokens + self.generated_tokens
    }

    /// True if all output tokens are made.
    pub fn is_complete(&self) -> bool {
        self.generated_tokens >= self.max_output_tokens
    }

    /// True if all known tokens are computed, so that the step yields the next one.
    pub fn is_ready(&self) -> bool {
        self.computed_tokens >= self.known_tokens()
    }

    /// The output token at `position`, from 0.
    pub fn output_token(&self, position: u32) -> u32 {
        self.output_seed.token_at(position, self.vocab_tokens)
    }

    /// True if the whole prompt is computed, here or elsewhere.
    pub fn is_prefilled(&self) -> bool {
        self.prompt_tokens > 0 && self.computed_tokens >= self.prompt_tokens
    }

    /// Output tokens that are still to be made.
    pub fn missing_output_tokens(&self) -> u32 {
        self.max_output_tokens - self.generated_tokens
    }

    /// The seed that its output follows from.
    pub fn output_seed(&self) -> Seed {
        self.output_seed
    }

    /// How many leading blocks can be taken from the cache, and how many of them are active there.
    ///
    /// All full blocks can; but as long as output is wanted at least one token is computed, and with guessed tokens a
    /// block more, as in the reference. Also as there, active blocks behind that limit count for those in front of it.
    pub fn cached_prefix(&mut self, pool: &BlockPool, config: &EngineConfig) -> PrefixMatch {
        if !config.enable_prefix_caching {
            return PrefixMatch::default();
        }
        let known_blocks = self.known_tokens() / config.block_size;
        self.grow_chain(known_blocks as usize, config.block_size);
        let found = pool.match_prefix(self.blocks().first(known_blocks as usize));
        let mut blocks = found.blocks;
        if !self.is_complete() {
            blocks = blocks.min((self.known_tokens() - 1) / config.block_size);
            blocks = blocks.saturating_sub(u32::from(config.aic_nextn.is_some()));
        }
        PrefixMatch { blocks, active_blocks: found.active_blocks.min(blocks) }
    }

    /// The first `blocks` blocks, which are known.
    pub fn leading_blocks(&self, blocks: u32) -> SequenceBlocks<'_> {
        if blocks == 0 { SequenceBlocks::default() } else { self.blocks().first(blocks as usize) }
    }

    fn blocks(&self) -> SequenceBlocks<'_> {
        SequenceBlocks { prompt: &self.chain, grown: &self.grown }
    }

    /// Makes the identities of the first `blocks` blocks; their tokens are known.
    fn grow_chain(&mut self, blocks: usize, block_size: u32) {
        while self.chain.len() + self.grown.len() < blocks {
            let first = (self.chain.len() + self.grown.len()) as u32 * block_size;
            let parent = self.grown.last().or(self.chain.last()).map(|block| block.sequence);
            let own = match first.checked_sub(self.prompt_tokens) {
                Some(position) if !self.makes_tokens => TokensHash(self.output_seed.nth(u64::from(position)).0),
                _ => tokens_hash(&self.tokens(first, first + block_size)),
            };
            self.grown.push(BlockId { tokens: own, sequence: sequence_hash(parent, own) });
        }
    }

    /// Tokens from position `from`, which is behind the prompt's full blocks, to `to`.
    fn tokens(&self, from: u32, to: u32) -> Vec<u32> {
        let tail_start = self.prompt_tokens - self.tail.len() as u32;
        let token = |position: u32| match position.checked_sub(self.prompt_tokens) {
            None => self.tail[(position - tail_start) as usize],
            Some(output) => self.output_token(output),
        };
        (from..to).map(token).collect()
    }

    fn block(&self, index: u32) -> BlockId {
        match (index as usize).checked_sub(self.chain.len()) {
            None => self.chain[index as usize],
            Some(grown) => self.grown[grown],
        }
    }

    fn parent_of(&self, index: u32) -> Option<SequenceHash> {
        index.checked_sub(1).map(|before| self.block(before).sequence)
    }

    /// After an admission that took `hit_blocks` from the cache: they are computed and have their identity.
    pub fn adopt_hit(&mut self, hit_blocks: u32, block_size: u32) {
        self.computed_tokens = hit_blocks * block_size;
        self.published_blocks = hit_blocks;
    }

    /// Gives all full computed blocks their identity; pushes an event for each stretch that is visible now and was not
    /// before, if `events` are wanted.
    pub fn publish_computed(
        &mut self,
        pool: &mut BlockPool,
        config: &EngineConfig,
        events: Option<&mut Vec<KvEventData>>,
    ) {
        let end = self.computed_tokens / config.block_size;
        // Without caching blocks stay private, and are free as soon as the sequence gives them up.
        if self.published_blocks >= end || !config.enable_prefix_caching {
            return;
        }
        let mut events = events;
        let prompt_blocks = self.chain.len() as u32;
        if self.published_blocks < prompt_blocks {
            let chain = self.chain.clone();
            self.publish(pool, config, chain, 0, end.min(prompt_blocks), events.as_deref_mut());
        }
        if self.published_blocks < end {
            self.grow_chain(end as usize, config.block_size);
            let first = self.published_blocks;
            let behind = (first - prompt_blocks) as usize..(end - prompt_blocks) as usize;
            let chain: Chain = self.grown[behind].into();
            self.publish(pool, config, chain, first, end, events);
        }
    }

    /// Publishes the blocks up to `end`; `chain` holds their identities from block `first` on.
    fn publish(
        &mut self,
        pool: &mut BlockPool,
        config: &EngineConfig,
        chain: Chain,
        first: u32,
        end: u32,
        events: Option<&mut Vec<KvEventData>>,
    ) {
        let from = self.published_blocks;
        let blocks = SequenceBlocks { prompt: &self.chain, grown: &self.grown };
        let known = pool.publish(&mut self.held, blocks, (from, end), &chain, from - first);
        self.published_blocks = end;
        let Some(events) = events else { return };
        let new = from + known;
        if new < end {
            let follows_prompt = first as usize == self.chain.len();
            let before = if follows_prompt { self.chain.clone() } else { Chain::default() };
            let token_ids = if config.emit_kv_token_ids { self.block_tokens(new, end, config) } else { Vec::new() };
            let blocks = StoredBlocks::of_chain(chain, new - first, end - first, before, token_ids);
            events.push(KvEventData::Stored { parent: self.parent_of(new), blocks });
        }
    }

    fn block_tokens(&self, from: u32, to: u32, config: &EngineConfig) -> Vec<Arc<[u32]>> {
        let size = config.block_size;
        let tokens = |block: u32| -> Arc<[u32]> {
            match self.token_ids.get((block * size) as usize..((block + 1) * size) as usize) {
                Some(tokens) => tokens.into(),
                None if (block as usize) < self.chain.len() => Arc::default(),
                None => self.tokens(block * size, (block + 1) * size).into(),
            }
        };
        (from..to).map(tokens).collect()
    }

    /// Gives up all blocks; everything has to be computed again.
    pub fn drop_blocks(&mut self, pool: &mut BlockPool) {
        pool.release_all(&mut self.held);
        self.computed_tokens = 0;
        self.published_blocks = 0;
    }
}
