//! Which worker holds which blocks, from the workers' events.
//!
//! A block is known by the hash of itself and its whole prefix, so holding is a plain relation between hashes and
//! workers, and a prompt's overlap with a worker is the number of leading blocks in the relation: removal in the middle
//! of a chain, duplicates and any order of events need no special care. A worker may name blocks as it likes (its own
//! hash is opaque); the router computes its own from the block's tokens and the parent's.

use rustc_hash::FxHashMap;

use crate::engine::KvEventData;
use crate::engine::hash::{BlockId, sequence_hash};
use crate::ids::{SequenceHash, WorkerId};

/// Workers that hold one block, in ascending order.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Holders {
    One(WorkerId),
    Many(Vec<WorkerId>),
}

impl Holders {
    fn as_slice(&self) -> &[WorkerId] {
        match self {
            Holders::One(worker) => std::slice::from_ref(worker),
            Holders::Many(workers) => workers,
        }
    }

    fn add(&mut self, worker: WorkerId) -> bool {
        match self {
            Holders::One(only) if *only == worker => false,
            Holders::One(only) => {
                let mut both = vec![*only, worker];
                both.sort_unstable();
                *self = Holders::Many(both);
                true
            }
            Holders::Many(workers) => match workers.binary_search(&worker) {
                Ok(_) => false,
                Err(at) => {
                    workers.insert(at, worker);
                    true
                }
            },
        }
    }

    /// Returns true if nobody is left.
    fn take(&mut self, worker: WorkerId) -> bool {
        match self {
            Holders::One(only) => *only == worker,
            Holders::Many(workers) => {
                workers.retain(|holder| *holder != worker);
                if let [only] = workers.as_slice() {
                    *self = Holders::One(*only);
                }
                false
            }
        }
    }
}

/// One worker's blocks: its own name for a block, and the router's.
type Names = FxHashMap<SequenceHash, SequenceHash>;

/// The relation between blocks and workers.
#[derive(Clone, Debug, Default)]
pub struct BlockIndex {
    holders: FxHashMap<SequenceHash, Holders>,
    names: FxHashMap<WorkerId, Names>,
    applied_events: u64,
    orphan_events: u64,
}

impl BlockIndex {
    /// An index that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one change of a worker's cache.
    pub fn apply(&mut self, worker: WorkerId, event: &KvEventData) {
        match event {
            KvEventData::Stored { parent, blocks } => self.store(worker, *parent, blocks.ids()),
            KvEventData::Removed { blocks } => {
                for block in blocks {
                    self.remove(worker, *block);
                }
            }
            KvEventData::Cleared => self.forget_worker(worker),
        }
        self.applied_events += 1;
    }

    fn store(&mut self, worker: WorkerId, parent: Option<SequenceHash>, blocks: &[BlockId]) {
        let names = self.names.entry(worker).or_default();
        let mut before = match parent {
            None => None,
            Some(parent) => match names.get(&parent) {
                Some(own) => Some(*own),
                None => {
                    // The parent was never announced or is gone: its children cannot be placed.
                    self.orphan_events += 1;
                    return;
                }
            },
        };
        for block in blocks {
            let own = sequence_hash(before, block.tokens);
            names.insert(block.sequence, own);
            match self.holders.get_mut(&own) {
                Some(holders) => {
                    holders.add(worker);
                }
                None => {
                    self.holders.insert(own, Holders::One(worker));
                }
            }
            before = Some(own);
        }
    }

    fn remove(&mut self, worker: WorkerId, block: SequenceHash) {
        let own = self.names.get_mut(&worker).and_then(|names| names.remove(&block));
        if let Some(own) = own {
            self.release(worker, own);
        }
    }

    fn release(&mut self, worker: WorkerId, own: SequenceHash) {
        if self.holders.get_mut(&own).is_some_and(|holders| holders.take(worker)) {
            self.holders.remove(&own);
        }
    }

    /// Forgets all blocks of a worker: it is gone, or its cache was cleared.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        for own in self.names.remove(&worker).unwrap_or_default().into_values() {
            self.release(worker, own);
        }
    }

    /// For every worker that holds at least the first block: how many leading blocks of `chain` it holds, ascending by
    /// worker. `overlaps` is cleared first.
    pub fn find_matches(&self, chain: &[BlockId], overlaps: &mut Vec<(WorkerId, u32)>) {
        overlaps.clear();
        let mut alive = 0;
        for (depth, id) in chain.iter().enumerate() {
            let Some(holders) = self.holders.get(&id.sequence) else { break };
            let holders = holders.as_slice();
            if depth == 0 {
                overlaps.extend(holders.iter().map(|worker| (*worker, 1)));
                alive = overlaps.len();
                continue;
            }
            // Those that are still on the path are kept in front, so that a step costs only what is left of them.
            let mut kept = 0;
            for at in 0..alive {
                if holders.binary_search(&overlaps[at].0).is_ok() {
                    overlaps[at].1 += 1;
                    overlaps.swap(at, kept);
                    kept += 1;
                }
            }
            alive = kept;
            if alive == 0 {
                break;
            }
        }
        overlaps.sort_unstable();
    }

    /// Distinct blocks known.
    pub fn len(&self) -> usize {
        self.holders.len()
    }

    /// True if no block is known.
    pub fn is_empty(&self) -> bool {
        self.holders.is_empty()
    }

    /// Blocks known of one worker.
    pub fn worker_blocks(&self, worker: WorkerId) -> usize {
        self.names.get(&worker).map_or(0, FxHashMap::len)
    }

    /// Events taken in so far.
    pub fn applied_events(&self) -> u64 {
        self.applied_events
    }

    /// Stored events whose parent was not known; their blocks are not in the index.
    pub fn orphan_events(&self) -> u64 {
        self.orphan_events
    }
}
