//! Cache events between the wire and the engine's own types.
//!
//! The wire's block hash is a signed integer: the bits are kept, the sign means nothing.

use std::sync::Arc;

use crate::engine::hash::tokens_hash;
use crate::engine::{KvEventData, StoredBlock};
use crate::ids::SequenceHash;
use crate::live::grpc::common::{
    KvBlock, KvBlocksRemoved, KvBlocksStored, KvCacheCleared, KvCacheEvent, KvCacheTier, kv_cache_event::Data,
};

/// An engine's event as it goes over the wire.
pub fn to_wire(event_id: u64, data: &KvEventData, block_size: u32) -> KvCacheEvent {
    let data = match data {
        KvEventData::Stored { parent, blocks } => Data::Stored(KvBlocksStored {
            parent_block_hash: parent.map(|hash| hash.0 as i64),
            blocks: blocks
                .iter()
                .map(|block| KvBlock {
                    block_hash: block.sequence_hash.0 as i64,
                    token_ids: block.token_ids.to_vec(),
                    block_size: i32::try_from(block_size).unwrap_or(i32::MAX),
                    ..KvBlock::default()
                })
                .collect(),
            ..KvBlocksStored::default()
        }),
        KvEventData::Removed { blocks } => Data::Removed(KvBlocksRemoved {
            block_hashes: blocks.iter().map(|hash| hash.0 as i64).collect(),
            ..KvBlocksRemoved::default()
        }),
        KvEventData::Cleared => Data::Cleared(KvCacheCleared::default()),
    };
    KvCacheEvent { event_id, data: Some(data) }
}

/// A wire event as the router's index takes it. Stored blocks are identified by their tokens; `None` for an event that
/// says nothing about the device cache, or that stores blocks without saying which tokens they hold.
pub fn from_wire(event: KvCacheEvent) -> Option<KvEventData> {
    match event.data? {
        Data::Stored(stored) => {
            if !on_device(stored.tier) || stored.blocks.iter().any(|block| block.token_ids.is_empty()) {
                return None;
            }
            let blocks = stored
                .blocks
                .into_iter()
                .map(|block| StoredBlock {
                    sequence_hash: SequenceHash(block.block_hash as u64),
                    tokens_hash: tokens_hash(&block.token_ids),
                    token_ids: Arc::default(),
                })
                .collect();
            Some(KvEventData::Stored { parent: stored.parent_block_hash.map(|hash| SequenceHash(hash as u64)), blocks })
        }
        Data::Removed(removed) if !on_device(removed.tier) => None,
        Data::Removed(removed) => Some(KvEventData::Removed {
            blocks: removed.block_hashes.into_iter().map(|hash| SequenceHash(hash as u64)).collect(),
        }),
        Data::Cleared(_) => Some(KvEventData::Cleared),
    }
}

/// An event that names no tier is about the device.
fn on_device(tier: Option<i32>) -> bool {
    tier.is_none_or(|tier| tier == KvCacheTier::Device as i32 || tier == KvCacheTier::Unspecified as i32)
}
