//! What an engine tells the world about its cache: blocks stored, removed, all cleared.

use std::sync::Arc;

use crate::ids::{SequenceHash, TokensHash};

/// One change of an engine's cache. Numbers count from 0 for each engine, without gaps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEvent {
    /// Position in the engine's stream of events.
    pub event_id: u64,
    /// What changed.
    pub data: KvEventData,
}

/// The change itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvEventData {
    /// Blocks became reusable; they follow one another, the first continues `parent`.
    Stored {
        /// The block before the first one; `None` at the start of a sequence.
        parent: Option<SequenceHash>,
        /// The blocks, in order.
        blocks: Vec<StoredBlock>,
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
