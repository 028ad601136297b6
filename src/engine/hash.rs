//! Block identity: the hash that engine and router must agree on.
//!
//! A block's tokens are hashed alone (XXH3-64 over little-endian u32, seed 1337), then chained with the hash of the prefix
//! before it, so that equal sequence hashes mean equal prefixes. The constants are the reference's, so that both index
//! structures and test vectors carry over. A trailing partial block has no hash.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::ids::{SequenceHash, TokensHash};

const SEED: u64 = 1337;

/// Hash of one block's tokens, whatever stands before them.
pub fn tokens_hash(tokens: &[u32]) -> TokensHash {
    // A stack buffer covers all usual block sizes without an allocation.
    let mut stack = [0u8; 512];
    let len = tokens.len() * 4;
    if len <= stack.len() {
        write_le(tokens, &mut stack[..len]);
        TokensHash(xxh3_64_with_seed(&stack[..len], SEED))
    } else {
        let mut heap = vec![0u8; len];
        write_le(tokens, &mut heap);
        TokensHash(xxh3_64_with_seed(&heap, SEED))
    }
}

fn write_le(tokens: &[u32], bytes: &mut [u8]) {
    for (slot, token) in bytes.chunks_exact_mut(4).zip(tokens) {
        slot.copy_from_slice(&token.to_le_bytes());
    }
}

/// Hash of a block and its whole prefix: the block's own hash for the first block, else both hashed together.
pub fn sequence_hash(parent: Option<SequenceHash>, block: TokensHash) -> SequenceHash {
    match parent {
        None => SequenceHash(block.0),
        Some(parent) => {
            let mut bytes = [0u8; 16];
            bytes[..8].copy_from_slice(&parent.0.to_le_bytes());
            bytes[8..].copy_from_slice(&block.0.to_le_bytes());
            SequenceHash(xxh3_64_with_seed(&bytes, SEED))
        }
    }
}

/// Identity of one full block of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId {
    /// Hash of the block's own tokens.
    pub tokens: TokensHash,
    /// Hash of the block and all before it.
    pub sequence: SequenceHash,
}

/// Identities of the full blocks of a prompt, from the first on; shared by all who ask about it.
pub type Chain = Arc<[BlockId]>;

/// A sequence's blocks: those of the prompt, and those that its output has filled since.
#[derive(Clone, Copy, Debug, Default)]
pub struct SequenceBlocks<'a> {
    /// Of the prompt.
    pub prompt: &'a [BlockId],
    /// Behind the prompt's full blocks.
    pub grown: &'a [BlockId],
}

impl SequenceBlocks<'_> {
    /// How many they are.
    pub fn len(&self) -> usize {
        self.prompt.len() + self.grown.len()
    }

    /// True if there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Identity of the block at `index`, which is below `len`; it covers all before it.
    pub fn sequence_hash(&self, index: usize) -> SequenceHash {
        match index.checked_sub(self.prompt.len()) {
            None => self.prompt[index].sequence,
            Some(grown) => self.grown[grown].sequence,
        }
    }

    /// True if the first of them is the first block of a sequence, which has no prefix.
    pub fn starts_sequence(&self) -> bool {
        let first = self.prompt.first().or(self.grown.first());
        first.is_some_and(|id| id.sequence == sequence_hash(None, id.tokens))
    }

    /// The first `blocks` of them.
    pub fn first(self, blocks: usize) -> Self {
        let of_prompt = blocks.min(self.prompt.len());
        SequenceBlocks { prompt: &self.prompt[..of_prompt], grown: &self.grown[..blocks - of_prompt] }
    }
}

impl<'a> From<&'a [BlockId]> for SequenceBlocks<'a> {
    fn from(prompt: &'a [BlockId]) -> Self {
        SequenceBlocks { prompt, grown: &[] }
    }
}

/// Appends the identities of all full blocks of `tokens` from block `chain.len()` on.
pub fn extend_chain(chain: &mut Vec<BlockId>, tokens: &[u32], block_size: usize) {
    let mut parent = chain.last().map(|id| id.sequence);
    for block in tokens.chunks_exact(block_size).skip(chain.len()) {
        let own = tokens_hash(block);
        let sequence = sequence_hash(parent, own);
        chain.push(BlockId { tokens: own, sequence });
        parent = Some(sequence);
    }
}

/// Identities of all full blocks of a prompt.
pub fn block_chain(tokens: &[u32], block_size: usize) -> Vec<BlockId> {
    let mut chain = Vec::with_capacity(tokens.len() / block_size.max(1));
    extend_chain(&mut chain, tokens, block_size);
    chain
}
