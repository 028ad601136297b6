//! The block pool against a naive model, and the cases that its comments promise.

use proptest::prelude::*;

use crate::engine::blocks::{BlockIndex, BlockPool, PrefixMatch};
use crate::engine::hash::BlockId;
use crate::ids::{SequenceHash, TokensHash};

fn id(hash: u64) -> BlockId {
    BlockId { tokens: TokensHash(hash), sequence: SequenceHash(hash) }
}

fn ids(hashes: &[u64]) -> Vec<BlockId> {
    hashes.iter().copied().map(id).collect()
}

/// A block of the model that somebody refers to or that has content.
#[derive(Clone, Debug)]
struct ModelBlock {
    name: usize,
    hash: Option<u64>,
    refs: u32,
    /// When it got its content and when it was last released, by the model's count of such moments.
    published: usize,
    released: usize,
}

/// The pool as a list: look-ups scan it, evictions search the oldest release.
#[derive(Clone, Debug, Default)]
struct Model {
    capacity: usize,
    blocks: Vec<ModelBlock>,
    moments: usize,
}

impl Model {
    fn moment(&mut self) -> usize {
        self.moments += 1;
        self.moments
    }

    fn at(&mut self, name: usize) -> &mut ModelBlock {
        self.blocks.iter_mut().find(|block| block.name == name).expect("a block of the model")
    }

    /// Name and references of the oldest copy.
    fn primary(&self, hash: u64) -> Option<&ModelBlock> {
        self.blocks.iter().filter(|block| block.hash == Some(hash)).min_by_key(|block| block.published)
    }

    fn inactive(&self) -> usize {
        self.blocks.iter().filter(|block| block.refs == 0).count()
    }

    fn match_prefix(&self, chain: &[BlockId]) -> PrefixMatch {
        let hits: Vec<&ModelBlock> = chain.iter().map_while(|id| self.primary(id.sequence.0)).collect();
        let active = hits.iter().filter(|block| block.refs > 0).count();
        PrefixMatch { blocks: hits.len() as u32, active_blocks: active as u32 }
    }

    fn reserve(&mut self, hits: &[BlockId], fresh: usize, held: &mut Vec<usize>, removed: &mut Vec<u64>) -> bool {
        let names: Vec<usize> = hits.iter().filter_map(|id| self.primary(id.sequence.0)).map(|b| b.name).collect();
        let mut after = self.clone();
        for name in &names {
            after.at(*name).refs += 1;
        }
        if fresh > after.capacity - after.blocks.len() + after.inactive() {
            return false;
        }
        held.extend(names);
        for _ in 0..fresh {
            if after.blocks.len() == after.capacity {
                let oldest = after.blocks.iter().filter(|b| b.refs == 0).min_by_key(|b| b.released);
                let gone = oldest.expect("an inactive block").clone();
                after.blocks.retain(|block| block.name != gone.name);
                removed.extend(gone.hash.filter(|hash| after.primary(*hash).is_none()));
            }
            let name = after.moment();
            after.blocks.push(ModelBlock { name, hash: None, refs: 1, published: 0, released: 0 });
            held.push(name);
        }
        *self = after;
        true
    }

    fn publish(&mut self, name: usize, hash: u64) -> bool {
        let new = self.primary(hash).is_none();
        let published = self.moment();
        let block = self.at(name);
        (block.hash, block.published) = (Some(hash), published);
        new
    }

    fn release_all(&mut self, held: &mut Vec<usize>) {
        while let Some(name) = held.pop() {
            let released = self.moment();
            let block = self.at(name);
            (block.refs, block.released) = (block.refs - 1, released);
        }
        self.blocks.retain(|block| block.refs > 0 || block.hash.is_some());
    }

    fn clear_inactive(&mut self) {
        self.blocks.retain(|block| block.refs > 0);
    }
}

const HOLDERS: usize = 4;
const HASHES: u64 = 7;

#[derive(Clone, Debug)]
enum Operation {
    /// A holder takes up to `hits` cached blocks of the chain that starts at `first`, and `fresh` private ones.
    Reserve {
        holder: usize,
        first: u64,
        hits: usize,
        fresh: usize,
    },
    /// A holder's `nth` private block, if it has one, gets a content.
    Publish {
        holder: usize,
        nth: usize,
        hash: u64,
    },
    Release {
        holder: usize,
    },
    Clear,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..HOLDERS, 0..HASHES, 0..5usize, 0..5usize)
            .prop_map(|(holder, first, hits, fresh)| Operation::Reserve { holder, first, hits, fresh }),
        6 => (0..HOLDERS, 0..4usize, 0..HASHES).prop_map(|(holder, nth, hash)| Operation::Publish { holder, nth, hash }),
        3 => (0..HOLDERS).prop_map(|holder| Operation::Release { holder }),
        1 => Just(Operation::Clear),
    ]
}

/// All contents once, from `first` on.
fn chain_from(first: u64) -> Vec<BlockId> {
    (0..HASHES).map(|step| id((first + step) % HASHES)).collect()
}

/// Pool and model, and what each holder has in both.
struct Pair {
    pool: BlockPool,
    model: Model,
    held: Vec<Vec<BlockIndex>>,
    model_held: Vec<Vec<usize>>,
}

impl Pair {
    fn new(capacity: u32) -> Pair {
        Pair {
            pool: BlockPool::new(capacity),
            model: Model { capacity: capacity as usize, ..Model::default() },
            held: vec![Vec::new(); HOLDERS],
            model_held: vec![Vec::new(); HOLDERS],
        }
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Reserve { holder, first, hits, fresh } => {
                let chain = chain_from(first);
                let hits = &chain[..hits.min(self.pool.match_prefix(&chain).blocks as usize)];
                let (mut removed, mut model_removed) = (Vec::new(), Vec::new());
                let done = self.pool.reserve(hits, fresh as u32, &mut self.held[holder], &mut removed);
                let expected = self.model.reserve(hits, fresh, &mut self.model_held[holder], &mut model_removed);
                prop_assert_eq!(done, expected, "reserve");
                let removed: Vec<u64> = removed.into_iter().map(|hash| hash.0).collect();
                prop_assert_eq!(removed, model_removed, "evicted contents");
            }
            Operation::Publish { holder, nth, hash } => {
                let model = &mut self.model;
                let places = 0..self.model_held[holder].len();
                let mut private = places.filter(|at| model.at(self.model_held[holder][*at]).hash.is_none());
                let Some(at) = private.nth(nth) else { return Ok(()) };
                let new = self.pool.publish(self.held[holder][at], SequenceHash(hash));
                prop_assert_eq!(new, self.model.publish(self.model_held[holder][at], hash), "publish");
            }
            Operation::Release { holder } => {
                self.pool.release_all(&mut self.held[holder]);
                self.model.release_all(&mut self.model_held[holder]);
            }
            Operation::Clear => {
                self.pool.clear_inactive();
                self.model.clear_inactive();
            }
        }
        Ok(())
    }

    fn compare(&self) -> Result<(), TestCaseError> {
        self.pool.check().map_err(TestCaseError::fail)?;
        let inactive = self.model.inactive();
        let expected = (self.model.blocks.len() - inactive, inactive, self.model.capacity - self.model.blocks.len());
        let pool = &self.pool;
        let ours = (pool.active() as usize, pool.inactive() as usize, pool.free() as usize);
        prop_assert_eq!(ours, expected, "active, inactive, free");
        for first in 0..HASHES {
            let chain = chain_from(first);
            prop_assert_eq!(pool.match_prefix(&chain), self.model.match_prefix(&chain), "chain from {}", first);
        }
        for (ours, model) in self.held.iter().zip(&self.model_held) {
            prop_assert_eq!(ours.len(), model.len(), "held blocks");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(400) })]
    #[test]
    fn behaves_as_the_list(capacity in 1..12u32, operations in prop::collection::vec(operation(), 1..80)) {
        let mut pair = Pair::new(capacity);
        for operation in &operations {
            pair.apply(operation)?;
            pair.compare()?;
        }
        for holder in 0..HOLDERS {
            pair.apply(&Operation::Release { holder })?;
        }
        prop_assert_eq!(pair.pool.active(), 0);
        pair.compare()?;
    }
}

/// Reserves fresh blocks and gives them contents.
fn fill(pool: &mut BlockPool, hits: &[u64], fresh: &[u64]) -> Vec<BlockIndex> {
    let mut held = Vec::new();
    assert!(pool.reserve(&ids(hits), fresh.len() as u32, &mut held, &mut Vec::new()), "room for {fresh:?}");
    for (block, hash) in held[hits.len()..].iter().copied().zip(fresh) {
        pool.publish(block, SequenceHash(*hash));
    }
    held
}

fn fill_and_release(pool: &mut BlockPool, hits: &[u64], fresh: &[u64]) {
    let mut held = fill(pool, hits, fresh);
    pool.release_all(&mut held);
}

/// Contents in the order in which a stranger that takes one block at a time evicts them.
fn eviction_order(pool: &mut BlockPool) -> Vec<u64> {
    let mut removed = Vec::new();
    let mut held = Vec::new();
    while pool.reserve(&[], 1, &mut held, &mut removed) {}
    removed.into_iter().map(|hash| hash.0).collect()
}

#[test]
fn a_refused_reservation_changes_nothing() {
    let mut pool = BlockPool::new(4);
    fill(&mut pool, &[], &[1]);
    fill_and_release(&mut pool, &[], &[2, 3]);
    let before = format!("{pool:?}");
    let (mut held, mut removed) = (Vec::new(), Vec::new());
    // Two inactive and one free: with one of the two pinned as a hit, three fresh blocks are one too many.
    assert!(!pool.reserve(&ids(&[2]), 3, &mut held, &mut removed));
    assert_eq!((held.len(), removed.len()), (0, 0));
    assert_eq!(format!("{pool:?}"), before);
    assert!(pool.reserve(&ids(&[2]), 2, &mut held, &mut removed));
    assert_eq!(removed, [SequenceHash(3)]);
}

#[test]
fn the_last_block_of_a_sequence_is_evicted_first_and_older_releases_before_newer() {
    let mut pool = BlockPool::new(10);
    let mut first = fill(&mut pool, &[], &[11, 12, 13]);
    let mut second = fill(&mut pool, &[11], &[22]);
    pool.release_all(&mut first);
    assert_eq!((pool.active(), pool.inactive()), (2, 2), "the shared block is still in use");
    pool.release_all(&mut second);
    assert_eq!(eviction_order(&mut pool), [13, 12, 22, 11]);
}

#[test]
fn a_hit_makes_a_block_young_again() {
    let mut pool = BlockPool::new(4);
    for hash in [1, 2, 3] {
        fill_and_release(&mut pool, &[], &[hash]);
    }
    fill_and_release(&mut pool, &[2], &[]);
    assert_eq!(eviction_order(&mut pool), [1, 3, 2]);
}

#[test]
fn copies_take_room_and_are_used_oldest_first() {
    let mut pool = BlockPool::new(3);
    let mut copies: Vec<Vec<BlockIndex>> = (0..3).map(|_| fill(&mut pool, &[], &[5])).collect();
    assert_eq!((pool.active(), pool.free()), (3, 0));
    pool.release_all(&mut copies[0]);
    // The oldest copy is the one that a look-up finds, although younger ones are active.
    assert_eq!(pool.match_prefix(&ids(&[5])), PrefixMatch { blocks: 1, active_blocks: 0 });
    let (mut held, mut removed) = (Vec::new(), Vec::new());
    assert!(pool.reserve(&[], 1, &mut held, &mut removed));
    assert_eq!(removed, [], "two copies are left");
    assert_eq!(pool.match_prefix(&ids(&[5])), PrefixMatch { blocks: 1, active_blocks: 1 }, "the next one takes over");
    pool.release_all(&mut copies[2]);
    pool.release_all(&mut copies[1]);
    assert_eq!(eviction_order(&mut pool), [5], "said once, with the last copy");
}

#[test]
fn clearing_spares_what_is_in_use() {
    let mut pool = BlockPool::new(6);
    let mut kept = fill(&mut pool, &[], &[1]);
    fill_and_release(&mut pool, &[1], &[2, 3]);
    pool.clear_inactive();
    assert_eq!((pool.active(), pool.inactive(), pool.free()), (1, 0, 5));
    assert_eq!(pool.match_prefix(&ids(&[1, 2])), PrefixMatch { blocks: 1, active_blocks: 1 });
    pool.release_all(&mut kept);
    assert_eq!(pool.check(), Ok(()));
}
