//! What an engine tells the world about its cache: blocks stored, removed, all cleared.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::engine::hash::{BlockId, Chain};
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
        blocks: Vec<SequenceHash>,
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
    /// Tokens of each block; empty if they are not told.
    token_ids: Vec<Arc<[u32]>>,
}

impl StoredBlocks {
    /// Blocks `from` to `to` of `chain`, with the tokens of each or with none.
    pub fn of_chain(chain: Chain, from: u32, to: u32, token_ids: Vec<Arc<[u32]>>) -> Self {
        StoredBlocks { chain, from, to, token_ids }
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
        StoredBlocks { to: ids.len() as u32, chain: ids.into(), from: 0, token_ids }
    }
}

impl PartialEq for StoredBlocks {
    fn eq(&self, other: &Self) -> bool {
        self.ids() == other.ids() && self.token_ids == other.token_ids
    }
}

impl Eq for StoredBlocks {}
