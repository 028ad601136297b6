//! What an engine tells the world about its cache: blocks stored, removed, all cleared.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::hash::{BlockId, Chain, SequenceBlocks};
use crate::ids::{SequenceHash, TokensHash};

/// One change of an engine's cache. Numbers count from 0 for each engine, without gaps.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KvEvent {
    /// Position in the engine's stream of events.
    pub event_id: u64,
    /// What changed.
    pub data: KvEventData,
}

/// The change itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KvEventData {
    /// Blocks became reusable; they follow one another, the first continues `parent`.
    Stored {
        /// The block before the first one; `None` at the start of a sequence.
        parent: Option<SequenceHash>,
        /// The blocks, in order.
        blocks: StoredBlocks,
    },
    /// The last copy of each of these blocks was evicted.
    Removed {
        /// The evicted blocks.
        blocks: RemovedBlocks,
    },
    /// The cache was emptied.
    Cleared,
}

/// One stored block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBlock {
    /// Hash of the block and its prefix.
    pub sequence_hash: SequenceHash,
    /// Hash of the block's tokens alone.
    pub tokens_hash: TokensHash,
    /// The block's tokens; empty unless `emit_kv_token_ids` is set.
    pub token_ids: Arc<[u32]>,
}

/// Stored blocks that follow one another: a stretch of a chain that is shared with the sequence that stored it.
#[derive(Clone, Debug)]
pub struct StoredBlocks {
    chain: Chain,
    from: u32,
    to: u32,
    /// Blocks of the sequence before those of `chain`; empty if the chain is the sequence's start, or they are not told.
    before: Chain,
    /// Identities were made by this library, so they are what [`crate::engine::hash`] makes of the tokens.
    hashed_here: bool,
    /// Tokens of each block; empty if they are not told.
    token_ids: Vec<Arc<[u32]>>,
}

impl StoredBlocks {
    /// Blocks `from` to `to` of `chain`, with the tokens of each or with none. `before`: the blocks of the sequence before
    /// those of the chain, or none.
    pub fn of_chain(chain: Chain, from: u32, to: u32, before: Chain, token_ids: Vec<Arc<[u32]>>) -> Self {
        StoredBlocks { chain, from, to, before, hashed_here: true, token_ids }
    }

    /// True if the names of the blocks are known to be the identities that [`crate::engine::hash`] gives them.
    pub fn hashed_here(&self) -> bool {
        self.hashed_here
    }

    /// The chain that they are in, and where in it they start.
    pub fn chain(&self) -> (&Chain, u32) {
        (&self.chain, self.from)
    }

    /// What is known of their sequence, up to their last one.
    pub fn path(&self) -> SequenceBlocks<'_> {
        SequenceBlocks { prompt: &self.before, grown: &self.chain[..self.to as usize] }
    }

    /// Their identities.
    pub fn ids(&self) -> &[BlockId] {
        &self.chain[self.from as usize..self.to as usize]
    }

    /// How many they are.
    pub fn len(&self) -> usize {
        (self.to - self.from) as usize
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.from == self.to
    }

    /// The blocks one by one.
    pub fn iter(&self) -> impl Iterator<Item = StoredBlock> {
        self.ids().iter().enumerate().map(|(at, id)| StoredBlock {
            sequence_hash: id.sequence,
            tokens_hash: id.tokens,
            token_ids: self.token_ids.get(at).cloned().unwrap_or_default(),
        })
    }
}

impl FromIterator<StoredBlock> for StoredBlocks {
    fn from_iter<T: IntoIterator<Item = StoredBlock>>(blocks: T) -> Self {
        let (mut ids, mut token_ids) = (Vec::new(), Vec::new());
        for block in blocks {
            ids.push(BlockId { tokens: block.tokens_hash, sequence: block.sequence_hash });
            token_ids.push(block.token_ids);
        }
        if token_ids.iter().all(|tokens| tokens.is_empty()) {
            token_ids.clear();
        }
        StoredBlocks {
            to: ids.len() as u32,
            chain: ids.into(),
            from: 0,
            before: Chain::default(),
            hashed_here: false,
            token_ids,
        }
    }
}

impl PartialEq for StoredBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.ids() == other.ids() && self.token_ids == other.token_ids
    }
}

impl Eq for StoredBlocks {}

/// Evicted blocks, in the order of their eviction.
#[derive(Clone, Debug, Default)]
pub struct RemovedBlocks(Vec<RemovedPart>);

/// Some of the evicted blocks.
#[derive(Clone, Debug)]
pub enum RemovedPart {
    /// Blocks `from` to `to` of a chain, the last one first.
    Stretch {
        /// The chain.
        chain: Chain,
        /// The block evicted last.
        from: u32,
        /// Behind the block evicted first.
        to: u32,
    },
    /// One block.
    Block(SequenceHash),
}

impl RemovedBlocks {
    /// Blocks `from` to `to` of `chain` were evicted, the last one first.
    pub fn push(&mut self, chain: &Chain, from: u32, to: u32) {
        match self.0.last_mut() {
            Some(RemovedPart::Stretch { chain: last, from: end, .. }) if *end == to && Arc::ptr_eq(last, chain) => {
                *end = from;
            }
            _ => self.0.push(RemovedPart::Stretch { chain: chain.clone(), from, to }),
        }
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The blocks in stretches.
    pub fn parts(&self) -> &[RemovedPart] {
        &self.0
    }

    /// The blocks one by one.
    pub fn iter(&self) -> impl Iterator<Item = SequenceHash> {
        self.0.iter().flat_map(|part| {
            let (stretch, block): (&[BlockId], _) = match part {
                RemovedPart::Stretch { chain, from, to } => (&chain[*from as usize..*to as usize], None),
                RemovedPart::Block(block) => (&[], Some(*block)),
            };
            stretch.iter().rev().map(|id| id.sequence).chain(block)
        })
    }
}

impl FromIterator<SequenceHash> for RemovedBlocks {
    fn from_iter<T: IntoIterator<Item = SequenceHash>>(blocks: T) -> Self {
        RemovedBlocks(blocks.into_iter().map(RemovedPart::Block).collect())
    }
}

impl Serialize for RemovedBlocks {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

impl<'de> Deserialize<'de> for RemovedBlocks {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Vec::<SequenceHash>::deserialize(deserializer).map(Self::from_iter)
    }
}

impl PartialEq for RemovedBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for RemovedBlocks {}
