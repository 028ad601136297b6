//! The block pool against a naive model that keeps every block apart, and the cases that its comments promise.

use proptest::prelude::*;

use crate::engine::blocks::{BlockPool, HeldBlocks, PrefixMatch};
use crate::engine::events::RemovedBlocks;
use crate::engine::hash::{BlockId, Chain, SequenceBlocks};
use crate::ids::{SequenceHash, TokensHash};

fn id(hash: u64) -> BlockId {
    BlockId { tokens: TokensHash(hash), sequence: SequenceHash(hash) }
}

fn chain(hashes: &[u64]) -> Chain {
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

const HOLDERS: usize = 5;
const DEPTH: usize = 9;

/// All chains of the tests: they branch after 3, 5 and 6 blocks, so that hits end inside runs.
fn chains() -> Vec<Chain> {
    [[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [0, 2, 0]]
        .map(|[a, b, c]| {
            let content = |depth: u64| match depth {
                0..3 => depth,
                3..5 => depth + 100 * (a + 1),
                5..6 => depth + 100 * (a + 1) + 1000 * (b + 1),
                _ => depth + 100 * (a + 1) + 1000 * (b + 1) + 10_000 * (c + 1),
            };
            (0..DEPTH as u64).map(|depth| id(content(depth) + 1)).collect()
        })
        .into()
}

#[derive(Clone, Debug)]
enum Operation {
    /// A holder without blocks takes what is cached of a chain, at most `hits`, and `fresh` private blocks.
    Admit {
        holder: usize,
        chain: usize,
        hits: usize,
        fresh: usize,
    },
    /// A holder takes more private blocks.
    Grow {
        holder: usize,
        fresh: usize,
    },
    /// Up to `blocks` of a holder's private blocks get their identity, in the order of its chain.
    Publish {
        holder: usize,
        blocks: usize,
    },
    Release {
        holder: usize,
    },
    Clear,
}

fn operation() -> impl Strategy<Value = Operation> {
    prop_oneof![
        4 => (0..HOLDERS, 0..5usize, 0..DEPTH, 0..6usize)
            .prop_map(|(holder, chain, hits, fresh)| Operation::Admit { holder, chain, hits, fresh }),
        2 => (0..HOLDERS, 1..4usize).prop_map(|(holder, fresh)| Operation::Grow { holder, fresh }),
        6 => (0..HOLDERS, 1..6usize).prop_map(|(holder, blocks)| Operation::Publish { holder, blocks }),
        3 => (0..HOLDERS).prop_map(|holder| Operation::Release { holder }),
        1 => Just(Operation::Clear),
    ]
}

#[derive(Default)]
struct Holder {
    chain: usize,
    published: usize,
    held: HeldBlocks,
    names: Vec<usize>,
}

/// Pool and model, and what each holder has in both.
struct Pair {
    pool: BlockPool,
    model: Model,
    chains: Vec<Chain>,
    holders: Vec<Holder>,
}

impl Pair {
    fn new(capacity: u32) -> Pair {
        Pair {
            pool: BlockPool::new(capacity),
            model: Model { capacity: capacity as usize, ..Model::default() },
            chains: chains(),
            holders: (0..HOLDERS).map(|_| Holder::default()).collect(),
        }
    }

    fn reserve(&mut self, holder: usize, hits: usize, fresh: usize) -> Result<bool, TestCaseError> {
        let holder = &mut self.holders[holder];
        let chain = &self.chains[holder.chain];
        let (mut removed, mut model_removed) = (RemovedBlocks::default(), Vec::new());
        let done = self.pool.reserve(chain[..].into(), hits as u32, fresh as u32, &mut holder.held, &mut removed);
        let expected = self.model.reserve(&chain[..hits], fresh, &mut holder.names, &mut model_removed);
        prop_assert_eq!(done, expected, "reserve");
        let removed: Vec<u64> = removed.iter().map(|hash| hash.0).collect();
        prop_assert_eq!(removed, model_removed, "evicted contents");
        Ok(done)
    }

    fn apply(&mut self, operation: &Operation) -> Result<(), TestCaseError> {
        match *operation {
            Operation::Admit { holder, chain, hits, fresh } => {
                if !self.holders[holder].names.is_empty() {
                    return Ok(());
                }
                let hits = hits.min(self.pool.match_prefix(self.chains[chain][..].into()).blocks as usize);
                self.holders[holder].chain = chain;
                if self.reserve(holder, hits, fresh.min(DEPTH - hits))? {
                    self.holders[holder].published = hits;
                }
            }
            Operation::Grow { holder, fresh } => {
                let room = DEPTH - self.holders[holder].names.len();
                self.reserve(holder, 0, fresh.min(room))?;
            }
            Operation::Publish { holder, blocks } => {
                let Holder { chain, published, held, names } = &mut self.holders[holder];
                let (from, to) = (*published, (*published + blocks).min(names.len()));
                if from == to {
                    return Ok(());
                }
                let chain = &self.chains[*chain];
                let known = self.pool.publish(held, chain[..].into(), (from as u32, to as u32), chain, from as u32);
                for at in from..to {
                    let new = self.model.publish(names[at], chain[at].sequence.0);
                    prop_assert_eq!(new, at >= from + known as usize, "block {} of {:?} is new", at, chain);
                }
                *published = to;
            }
            Operation::Release { holder } => {
                let holder = &mut self.holders[holder];
                self.pool.release_all(&mut holder.held);
                self.model.release_all(&mut holder.names);
                holder.published = 0;
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
        for chain in &self.chains {
            prop_assert_eq!(pool.match_prefix(chain[..].into()), self.model.match_prefix(chain), "chain {:?}", chain);
        }
        for holder in &self.holders {
            prop_assert_eq!(holder.held.blocks() as usize, holder.names.len(), "held blocks");
        }
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(1500) })]
    #[test]
    fn behaves_as_the_list(capacity in 1..30u32, operations in prop::collection::vec(operation(), 1..120)) {
        let mut pair = Pair::new(capacity);
        for operation in &operations {
            // Clearing while blocks are held would break the promise that parents are cached; engines never do.
            let idle = pair.holders.iter().all(|holder| holder.names.is_empty());
            if idle || !matches!(operation, Operation::Clear) {
                pair.apply(operation)?;
                pair.compare()?;
            }
        }
        for holder in 0..HOLDERS {
            pair.apply(&Operation::Release { holder })?;
        }
        prop_assert_eq!(pair.pool.active(), 0);
        pair.compare()?;
    }
}

/// Takes the first `hits` blocks of a chain from the cache, the others fresh, and gives these their identity.
fn fill(pool: &mut BlockPool, hashes: &[u64], hits: u32) -> HeldBlocks {
    let mut held = HeldBlocks::default();
    let (chain, blocks) = (chain(hashes), hashes.len() as u32);
    assert!(
        pool.reserve(chain[..].into(), hits, blocks - hits, &mut held, &mut RemovedBlocks::default()),
        "room for {hashes:?}"
    );
    pool.publish(&mut held, chain[..].into(), (hits, blocks), &chain, hits);
    held
}

fn fill_and_release(pool: &mut BlockPool, hashes: &[u64], hits: u32) {
    let mut held = fill(pool, hashes, hits);
    pool.release_all(&mut held);
}

/// Contents in the order in which a stranger that takes one block at a time evicts them.
fn eviction_order(pool: &mut BlockPool) -> Vec<u64> {
    let mut removed = RemovedBlocks::default();
    let mut held = HeldBlocks::default();
    while pool.reserve(SequenceBlocks::default(), 0, 1, &mut held, &mut removed) {}
    removed.iter().map(|hash| hash.0).collect()
}

#[test]
fn a_refused_reservation_changes_nothing() {
    let mut pool = BlockPool::new(4);
    let _kept = fill(&mut pool, &[1], 0);
    fill_and_release(&mut pool, &[2, 3], 0);
    let (mut held, mut removed) = (HeldBlocks::default(), RemovedBlocks::default());
    // Two inactive and one free: with one of the two pinned as a hit, three fresh blocks are one too many.
    assert!(!pool.reserve(chain(&[2])[..].into(), 1, 3, &mut held, &mut removed));
    assert_eq!((held.blocks(), removed.iter().count()), (0, 0));
    assert_eq!((pool.active(), pool.inactive(), pool.free()), (1, 2, 1));
    assert!(pool.reserve(chain(&[2])[..].into(), 1, 2, &mut held, &mut removed));
    assert_eq!(removed.iter().collect::<Vec<_>>(), [SequenceHash(3)]);
}

#[test]
fn the_last_block_of_a_sequence_is_evicted_first_and_older_releases_before_newer() {
    let mut pool = BlockPool::new(10);
    let mut first = fill(&mut pool, &[11, 12, 13], 0);
    let mut second = fill(&mut pool, &[11, 22], 1);
    pool.release_all(&mut first);
    assert_eq!((pool.active(), pool.inactive()), (2, 2), "the shared block is still in use");
    pool.release_all(&mut second);
    assert_eq!(eviction_order(&mut pool), [13, 12, 22, 11]);
}

#[test]
fn a_hit_makes_a_block_young_again() {
    let mut pool = BlockPool::new(4);
    for hash in [1, 2, 3] {
        fill_and_release(&mut pool, &[hash], 0);
    }
    fill_and_release(&mut pool, &[2], 1);
    assert_eq!(eviction_order(&mut pool), [1, 3, 2]);
}

#[test]
fn what_was_cut_off_a_run_comes_back_to_it() {
    let mut pool = BlockPool::new(8);
    let mut whole = fill(&mut pool, &[1, 2, 3, 4], 0);
    let mut part = HeldBlocks::default();
    assert!(pool.reserve(chain(&[1, 2])[..].into(), 2, 0, &mut part, &mut RemovedBlocks::default()));
    pool.release_all(&mut part);
    pool.release_all(&mut whole);
    assert_eq!(pool.check(), Ok(()));
    assert_eq!(pool.match_prefix(chain(&[1, 2, 3, 9])[..].into()), PrefixMatch { blocks: 3, active_blocks: 0 });
    assert_eq!(eviction_order(&mut pool), [4, 3, 2, 1]);
}

#[test]
fn copies_take_room_and_are_used_oldest_first() {
    let mut pool = BlockPool::new(3);
    let mut copies: Vec<HeldBlocks> = (0..3).map(|_| fill(&mut pool, &[5], 0)).collect();
    assert_eq!((pool.active(), pool.free()), (3, 0));
    pool.release_all(&mut copies[0]);
    // The oldest copy is the one that a look-up finds, although younger ones are active.
    assert_eq!(pool.match_prefix(chain(&[5])[..].into()), PrefixMatch { blocks: 1, active_blocks: 0 });
    let (mut held, mut removed) = (HeldBlocks::default(), RemovedBlocks::default());
    assert!(pool.reserve(SequenceBlocks::default(), 0, 1, &mut held, &mut removed));
    assert!(removed.is_empty(), "two copies are left");
    assert_eq!(
        pool.match_prefix(chain(&[5])[..].into()),
        PrefixMatch { blocks: 1, active_blocks: 1 },
        "the next one takes over"
    );
    pool.release_all(&mut copies[2]);
    pool.release_all(&mut copies[1]);
    assert_eq!(eviction_order(&mut pool), [5], "said once, with the last copy");
}

#[test]
fn clearing_spares_what_is_in_use() {
    let mut pool = BlockPool::new(6);
    let mut kept = fill(&mut pool, &[1], 0);
    fill_and_release(&mut pool, &[1, 2, 3], 1);
    pool.clear_inactive();
    assert_eq!((pool.active(), pool.inactive(), pool.free()), (1, 0, 5));
    assert_eq!(pool.match_prefix(chain(&[1, 2])[..].into()), PrefixMatch { blocks: 1, active_blocks: 1 });
    pool.release_all(&mut kept);
    assert_eq!(pool.check(), Ok(()));
}

#[test]
fn blocks_without_identity_leave_nothing_behind() {
    let mut pool = BlockPool::new(4);
    let mut held = HeldBlocks::default();
    assert!(pool.reserve(SequenceBlocks::default(), 0, 3, &mut held, &mut RemovedBlocks::default()));
    pool.release_all(&mut held);
    assert_eq!((pool.active(), pool.inactive(), pool.free()), (0, 0, 4));
    assert_eq!(pool.match_prefix(SequenceBlocks::default()), PrefixMatch::default());
    assert!(eviction_order(&mut pool).is_empty());
}
