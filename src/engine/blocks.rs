//! Paged KV cache of one engine.
//!
//! Blocks live in an arena and are named by index. A block is *private* while it fills, *active* while a sequence refers
//! to it, *inactive* when nobody does but its content may still serve a prefix hit. Eviction takes the least recently
//! released inactive block; sequences release their last block first, so a leaf goes before its parent. Two sequences that
//! compute the same content hold two physical copies; look-ups use the oldest, and the content is gone when the last
//! copy is.
//!
//! Invariant ([`BlockPool::check`]): active + inactive + free == capacity, private blocks count as active.

use rustc_hash::FxHashMap;

use crate::engine::hash::BlockId;
use crate::ids::SequenceHash;

/// Index of a block in the arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct BlockIndex(u32);

const NONE: u32 = u32::MAX;

#[derive(Clone, Debug)]
struct Slot {
    /// `None`: private.
    hash: Option<SequenceHash>,
    refs: u32,
    /// Neighbours in the inactive list, oldest release first.
    older: u32,
    newer: u32,
    /// Next younger copy of the same content.
    next_copy: u32,
}

/// Oldest and youngest copy of one content.
#[derive(Clone, Copy, Debug)]
struct Copies {
    first: u32,
    last: u32,
}

/// The blocks of one engine.
#[derive(Clone, Debug)]
pub struct BlockPool {
    slots: Vec<Slot>,
    vacant: Vec<u32>,
    capacity: u32,
    by_hash: FxHashMap<SequenceHash, Copies>,
    oldest: u32,
    newest: u32,
    inactive: u32,
}

impl BlockPool {
    /// An empty pool of `capacity` blocks. Memory grows with use, not with capacity.
    pub fn new(capacity: u32) -> Self {
        BlockPool {
            slots: Vec::new(),
            vacant: Vec::new(),
            capacity,
            by_hash: FxHashMap::default(),
            oldest: NONE,
            newest: NONE,
            inactive: 0,
        }
    }

    /// Blocks in all.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that a sequence refers to or fills.
    pub fn active(&self) -> u32 {
        self.slots.len() as u32 - self.vacant.len() as u32 - self.inactive
    }

    /// Blocks that nobody refers to, but whose content may still be reused.
    pub fn inactive(&self) -> u32 {
        self.inactive
    }

    /// Blocks that hold nothing.
    pub fn free(&self) -> u32 {
        self.capacity - self.active() - self.inactive
    }

    /// How many of the leading blocks of `chain` are cached, and how many of those are active.
    pub fn match_prefix(&self, chain: &[BlockId]) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        for id in chain {
            let Some(copies) = self.by_hash.get(&id.sequence) else { break };
            found.blocks += 1;
            if self.slots[copies.first as usize].refs > 0 {
                found.active_blocks += 1;
            }
        }
        found
    }

    /// Takes the cached blocks of `hits` and `fresh` private ones, all or nothing; appends them to `held`.
    ///
    /// Free capacity is used first, then inactive blocks are evicted; contents of which no copy is left are appended to
    /// `removed`. Returns false, and changes nothing, if there are not enough blocks.
    pub fn reserve(
        &mut self,
        hits: &[BlockId],
        fresh: u32,
        held: &mut Vec<BlockIndex>,
        removed: &mut Vec<SequenceHash>,
    ) -> bool {
        let reactivated =
            hits.iter().filter(|id| self.primary(id.sequence).is_some_and(|b| self.slots[b as usize].refs == 0));
        let reactivated = reactivated.count() as u32;
        if fresh > self.free() + self.inactive - reactivated {
            return false;
        }
        for id in hits {
            // `match_prefix` found every hit in this very pass, and nothing was evicted since.
            let Some(block) = self.primary(id.sequence) else { return false };
            if self.slots[block as usize].refs == 0 {
                self.unlink_inactive(block);
            }
            self.slots[block as usize].refs += 1;
            held.push(BlockIndex(block));
        }
        for _ in 0..fresh {
            let block = self.take_vacant(removed);
            held.push(BlockIndex(block));
        }
        true
    }

    /// Gives a private block its identity, from now on it can be reused. Returns true if the content was not cached yet.
    pub fn publish(&mut self, block: BlockIndex, hash: SequenceHash) -> bool {
        let index = block.0;
        self.slots[index as usize].hash = Some(hash);
        match self.by_hash.get_mut(&hash) {
            None => {
                self.by_hash.insert(hash, Copies { first: index, last: index });
                true
            }
            Some(copies) => {
                let last = copies.last;
                copies.last = index;
                self.slots[last as usize].next_copy = index;
                false
            }
        }
    }

    /// Gives up all of a sequence's blocks, last block first.
    pub fn release_all(&mut self, held: &mut Vec<BlockIndex>) {
        while let Some(block) = held.pop() {
            self.release(block);
        }
    }

    fn release(&mut self, block: BlockIndex) {
        let index = block.0;
        let slot = &mut self.slots[index as usize];
        slot.refs -= 1;
        if slot.refs > 0 {
            return;
        }
        if slot.hash.is_some() {
            self.link_newest(index);
        } else {
            self.vacant.push(index);
        }
    }

    /// Forgets all inactive blocks.
    pub fn clear_inactive(&mut self) {
        let mut removed = Vec::new();
        while self.oldest != NONE {
            let block = self.evict_oldest(&mut removed);
            self.vacant.push(block);
        }
    }

    fn primary(&self, hash: SequenceHash) -> Option<u32> {
        self.by_hash.get(&hash).map(|copies| copies.first)
    }

    /// A private block with one reference: vacant, never used, or evicted. The caller made sure that there is one.
    fn take_vacant(&mut self, removed: &mut Vec<SequenceHash>) -> u32 {
        let index = if let Some(index) = self.vacant.pop() {
            index
        } else if (self.slots.len() as u32) < self.capacity {
            self.slots.push(Slot { hash: None, refs: 0, older: NONE, newer: NONE, next_copy: NONE });
            self.slots.len() as u32 - 1
        } else {
            self.evict_oldest(removed)
        };
        let slot = &mut self.slots[index as usize];
        slot.hash = None;
        slot.refs = 1;
        slot.next_copy = NONE;
        index
    }

    /// Takes the oldest inactive block out of list and map; it belongs to nobody afterwards.
    fn evict_oldest(&mut self, removed: &mut Vec<SequenceHash>) -> u32 {
        let index = self.oldest;
        self.unlink_inactive(index);
        if let Some(hash) = self.slots[index as usize].hash {
            self.forget_copy(hash, index);
            if !self.by_hash.contains_key(&hash) {
                removed.push(hash);
            }
        }
        index
    }

    fn forget_copy(&mut self, hash: SequenceHash, gone: u32) {
        let Some(copies) = self.by_hash.get_mut(&hash) else { return };
        let after = self.slots[gone as usize].next_copy;
        if copies.first == gone {
            if after == NONE {
                self.by_hash.remove(&hash);
            } else {
                copies.first = after;
            }
            return;
        }
        let mut before = copies.first;
        while self.slots[before as usize].next_copy != gone {
            before = self.slots[before as usize].next_copy;
        }
        self.slots[before as usize].next_copy = after;
        if after == NONE {
            copies.last = before;
        }
    }

    fn link_newest(&mut self, index: u32) {
        let newest = self.newest;
        let slot = &mut self.slots[index as usize];
        slot.older = newest;
        slot.newer = NONE;
        if newest == NONE {
            self.oldest = index;
        } else {
            self.slots[newest as usize].newer = index;
        }
        self.newest = index;
        self.inactive += 1;
    }

    fn unlink_inactive(&mut self, index: u32) {
        let Slot { older, newer, .. } = self.slots[index as usize];
        if older == NONE {
            self.oldest = newer;
        } else {
            self.slots[older as usize].newer = newer;
        }
        if newer == NONE {
            self.newest = older;
        } else {
            self.slots[newer as usize].older = older;
        }
        self.inactive -= 1;
    }

    /// Checks the pool's invariants and names the first that is broken. For tests; costs O(blocks).
    pub fn check(&self) -> Result<(), String> {
        let mut listed = 0;
        let mut at = self.oldest;
        while at != NONE {
            let slot = &self.slots[at as usize];
            if slot.refs != 0 || slot.hash.is_none() {
                return Err(format!("block {at} is in the inactive list with {} references", slot.refs));
            }
            listed += 1;
            at = slot.newer;
        }
        if listed != self.inactive {
            return Err(format!("{listed} blocks in the inactive list, {} counted", self.inactive));
        }
        let referenced = self.slots.iter().filter(|slot| slot.refs > 0).count() as u32;
        if referenced != self.active() {
            return Err(format!("{referenced} blocks referenced, {} counted as active", self.active()));
        }
        if self.active() + self.inactive + self.free() != self.capacity {
            return Err("active + inactive + free differs from the capacity".to_owned());
        }
        Ok(())
    }
}

/// What a prefix look-up found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PrefixMatch {
    /// Leading blocks that are cached.
    pub blocks: u32,
    /// Those of them that a live sequence refers to.
    pub active_blocks: u32,
}
