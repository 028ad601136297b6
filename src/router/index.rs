//! Which worker holds which blocks, from the workers' events.
//!
//! A block is known by the hash of itself and its whole prefix, so holding is a plain relation between hashes and
//! workers, and a prompt's overlap with a worker is the number of leading blocks in the relation: removal in the middle
//! of a chain, duplicates and any order of events need no special care. A worker may name blocks as it likes (its own
//! hash is opaque); the router computes its own from the block's tokens and the parent's.
//!
//! The relation is kept in runs (`runs.rs`). A worker holds leading blocks of a run; where it comes to hold others, the
//! run is cut. Blocks of an engine of this process come and go in stretches of a prompt and are found along that prompt;
//! as its cache is closed (who holds a block holds those before it), what follows an unknown block needs no look.
//! Blocks from the wire come with their names only and in whatever order: from the first of them on, every block has its
//! entry in a table.

use rustc_hash::FxHashMap;

use crate::engine::hash::{BlockId, Chain, SequenceBlocks, sequence_hash};
use crate::engine::{KvEventData, RemovedPart, StoredBlocks};
use crate::ids::{SequenceHash, WorkerId};
use crate::router::runs::{Entry, Run, Runs};

/// Leading blocks of a run that a worker holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Holding {
    worker: WorkerId,
    blocks: u32,
}

impl Entry for Holding {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }
}

/// The worker's own name for a block, and the router's.
type Names = FxHashMap<SequenceHash, SequenceHash>;

/// The relation between blocks and workers.
#[derive(Clone, Debug, Default)]
pub struct BlockIndex {
    runs: Runs<Holding>,
    /// Blocks of each worker.
    worker_blocks: FxHashMap<WorkerId, usize>,
    /// Of workers whose names are not the router's.
    names: FxHashMap<WorkerId, Names>,
    applied_events: u64,
    orphan_events: u64,
}

/// Blocks to store: those of `path` from `at` on, which are those of `chain` from `from` on.
struct Store<'a> {
    path: SequenceBlocks<'a>,
    at: usize,
    parent: Option<SequenceHash>,
    chain: &'a Chain,
    from: u32,
    /// They will be named without their path.
    listed: bool,
}

impl BlockIndex {
    /// An index that knows nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one change of a worker's cache.
    pub fn apply(&mut self, worker: WorkerId, event: &KvEventData) {
        match event {
            KvEventData::Stored { parent, blocks } => self.store(worker, *parent, blocks),
            KvEventData::Removed { blocks } => {
                for part in blocks.parts() {
                    match part {
                        RemovedPart::Stretch { chain, from, to } if !self.names.contains_key(&worker) => {
                            self.remove_stretch(worker, chain, *from as usize, *to as usize);
                        }
                        RemovedPart::Stretch { chain, from, to } => {
                            for id in chain[*from as usize..*to as usize].iter().rev() {
                                self.remove(worker, id.sequence);
                            }
                        }
                        RemovedPart::Block(block) => self.remove(worker, *block),
                    }
                }
            }
            KvEventData::Cleared => self.forget_worker(worker),
        }
        self.applied_events += 1;
    }

    fn store(&mut self, worker: WorkerId, parent: Option<SequenceHash>, blocks: &StoredBlocks) {
        let (chain, from) = blocks.chain();
        if blocks.hashed_here() && !self.names.contains_key(&worker) {
            let path = blocks.path();
            let listed = !path.starts_sequence();
            let at = path.len() - blocks.len();
            self.place(worker, Store { path, at, parent, chain, from, listed });
            return;
        }
        self.runs.list_all();
        let ids = blocks.ids();
        let known_parent = parent.is_none_or(|parent| self.holds(worker, parent));
        if !known_parent {
            self.orphan_events += 1;
        }
        let own_names = !self.names.contains_key(&worker) && {
            let mut before = parent;
            ids.iter().all(|id| {
                let own = sequence_hash(before, id.tokens);
                before = Some(own);
                own == id.sequence
            })
        };
        if own_names {
            // If the parent is not here, they count as soon as it is.
            self.place(worker, Store { path: ids.into(), at: 0, parent, chain, from, listed: true });
        } else if known_parent {
            self.store_foreign(worker, parent, ids);
        }
    }

    /// Stores blocks by names of the worker's own; it holds the parent.
    fn store_foreign(&mut self, worker: WorkerId, parent: Option<SequenceHash>, ids: &[BlockId]) {
        if !self.names.contains_key(&worker) {
            let held = self.held_by(worker).map(|block| (block, block)).collect();
            self.names.insert(worker, held);
        }
        let names = self.names.entry(worker).or_default();
        let parent = parent.and_then(|parent| names.get(&parent).copied());
        let mut before = parent;
        let mut own = Vec::with_capacity(ids.len());
        for id in ids {
            let sequence = sequence_hash(before, id.tokens);
            names.insert(id.sequence, sequence);
            own.push(BlockId { tokens: id.tokens, sequence });
            before = Some(sequence);
        }
        let chain: Chain = own.into();
        self.place(worker, Store { path: chain[..].into(), at: 0, parent, chain: &chain, from: 0, listed: true });
    }

    fn held_by(&self, worker: WorkerId) -> impl Iterator<Item = SequenceHash> {
        let held = move |run: &'_ Run<Holding>| -> Vec<SequenceHash> {
            let blocks = run.most_blocks(worker) as usize;
            run.ids()[..blocks].iter().map(|id| id.sequence).collect()
        };
        self.runs.names().into_iter().flat_map(move |name| held(self.runs.get(name)))
    }

    /// True if the worker holds the block that it calls so.
    fn holds(&mut self, worker: WorkerId, name: SequenceHash) -> bool {
        if let Some(names) = self.names.get(&worker) {
            return names.contains_key(&name);
        }
        let found = self.find_alone(name);
        found.is_some_and(|(run, offset)| self.runs.get(run).most_blocks(worker) > offset)
    }

    /// Where a block is of which only the name is known.
    fn find_alone(&mut self, block: SequenceHash) -> Option<(usize, u32)> {
        let found = self.runs.locate_alone(block);
        if found.is_some() || self.runs.lists_all() {
            return found;
        }
        self.runs.list_all();
        self.runs.locate_alone(block)
    }

    /// The same, along the path where there is one.
    fn find(&mut self, path: SequenceBlocks, at: usize) -> Option<(usize, u32)> {
        self.runs.locate(path, at).or_else(|| self.find_alone(path.sequence_hash(at)))
    }

    fn place(&mut self, worker: WorkerId, store: Store<'_>) {
        let Store { path, mut at, parent, chain, mut from, listed } = store;
        if at == path.len() {
            return;
        }
        let mut next = self.runs.locate_alone(path.sequence_hash(at));
        // The run that ends with the parent: what follows may lengthen it.
        let mut ends_before = None;
        if next.is_none() {
            let before = match (at.checked_sub(1), parent) {
                (Some(before), _) => self.find(path, before),
                (None, Some(parent)) => self.find_alone(parent),
                (None, None) => None,
            };
            if let Some((run, offset)) = before {
                if offset + 1 == self.runs.get(run).blocks {
                    ends_before = Some(run);
                } else if self.runs.common(run, offset + 1, path, at) > 0 {
                    next = Some((run, offset + 1));
                }
            }
        }
        while at < path.len() {
            let blocks = match next {
                Some((run, offset)) => {
                    let blocks = self.runs.common(run, offset, path, at);
                    let whole = offset + blocks == self.runs.get(run).blocks;
                    let held_in = self.hold(worker, run, offset, blocks);
                    ends_before = whole.then_some(held_in);
                    blocks
                }
                None => {
                    let blocks = self.unknown_blocks(path, at);
                    self.add(worker, blocks, ends_before, chain, from, listed);
                    ends_before = None;
                    blocks
                }
            };
            at += blocks as usize;
            from += blocks;
            next = if at < path.len() { self.runs.locate_alone(path.sequence_hash(at)) } else { None };
        }
    }

    /// How many blocks from `at` on, which is unknown, are unknown.
    fn unknown_blocks(&self, path: SequenceBlocks, at: usize) -> u32 {
        let all = at + 1..path.len();
        // An engine's cache is closed: what follows an unknown block is unknown.
        let known = |at: &usize| self.runs.locate_alone(path.sequence_hash(*at)).is_some();
        let end = if self.runs.lists_all() { all.clone().find(known).unwrap_or(all.end) } else { all.end };
        (end - at) as u32
    }

    /// The worker holds blocks that are in no run. `ends_before`: the run that ends with the block before them.
    fn add(
        &mut self,
        worker: WorkerId,
        blocks: u32,
        ends_before: Option<usize>,
        chain: &Chain,
        from: u32,
        listed: bool,
    ) {
        *self.worker_blocks.entry(worker).or_default() += blocks as usize;
        if let Some(name) = ends_before {
            let run = self.runs.get(name);
            let follows = run.start + run.blocks == from && std::sync::Arc::ptr_eq(&run.chain, chain);
            if follows && run.most_blocks(worker) == run.blocks {
                self.runs.lengthen(name, blocks);
                set(self.runs.entries_mut(name), worker, |held| held + blocks);
                return;
            }
        }
        let entries = [Holding { worker, blocks }].into_iter().collect();
        self.runs.insert(Run { chain: chain.clone(), start: from, blocks, listed, entries });
    }

    /// The worker holds these blocks of a run, maybe again. Returns the run that holds the last of them.
    fn hold(&mut self, worker: WorkerId, run: usize, offset: u32, blocks: u32) -> usize {
        let held = self.runs.get(run).most_blocks(worker);
        let (run, held, end) =
            if offset <= held { (run, held, offset + blocks) } else { (self.runs.cut(run, offset, part), 0, blocks) };
        if end > held {
            *self.worker_blocks.entry(worker).or_default() += (end - held) as usize;
            set(self.runs.entries_mut(run), worker, |_| end);
        }
        run
    }

    fn remove(&mut self, worker: WorkerId, name: SequenceHash) {
        self.runs.list_all();
        let own = match self.names.get_mut(&worker) {
            None => Some(name),
            Some(names) => names.remove(&name),
        };
        if let Some((run, offset)) = own.and_then(|own| self.find_alone(own)) {
            self.release(worker, run, offset, 1);
        }
    }

    /// Blocks `at` to `to` of a chain are gone.
    fn remove_stretch(&mut self, worker: WorkerId, chain: &Chain, mut at: usize, to: usize) {
        let path = SequenceBlocks::from(&chain[..to]);
        while at < to {
            let Some((run, offset)) = self.find(path, at) else {
                at += 1;
                continue;
            };
            let blocks = self.runs.common(run, offset, path, at);
            self.release(worker, run, offset, blocks);
            at += blocks as usize;
        }
    }

    /// The worker does not hold these blocks of a run any more, if it did.
    fn release(&mut self, worker: WorkerId, run: usize, offset: u32, blocks: u32) {
        let held = self.runs.get(run).most_blocks(worker);
        if held <= offset {
            return;
        }
        let end = held.min(offset + blocks);
        if end < held {
            self.runs.cut(run, end, part);
        }
        if let Some(count) = self.worker_blocks.get_mut(&worker) {
            *count -= (end - offset) as usize;
        }
        set(self.runs.entries_mut(run), worker, |_| offset);
        self.runs.fit(run);
    }

    /// Forgets all blocks of a worker: it is gone, or its cache was cleared.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        self.names.remove(&worker);
        if self.worker_blocks.remove(&worker).is_none() {
            return;
        }
        for run in self.runs.names() {
            if self.runs.get(run).most_blocks(worker) > 0 {
                set(self.runs.entries_mut(run), worker, |_| 0);
                self.runs.fit(run);
            }
        }
    }

    /// For every worker that holds at least the first block: how many leading blocks of `chain` it holds, ascending by
    /// worker. `overlaps` is cleared first.
    pub fn find_matches(&self, chain: &[BlockId], overlaps: &mut Vec<(WorkerId, u32)>) {
        self.runs.find(chain.into(), overlaps);
    }

    /// Distinct blocks known.
    pub fn len(&self) -> usize {
        self.runs.blocks()
    }

    /// True if no block is known.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Blocks known of one worker.
    pub fn worker_blocks(&self, worker: WorkerId) -> usize {
        self.worker_blocks.get(&worker).copied().unwrap_or(0)
    }

    /// Events taken in so far.
    pub fn applied_events(&self) -> u64 {
        self.applied_events
    }

    /// Stored events from the wire whose parent the worker does not hold, as far as is known. If the worker names blocks as
    /// the router does, they are in the index nevertheless, out of reach until the parent comes; else they are not.
    pub fn orphan_events(&self) -> u64 {
        self.orphan_events
    }

    #[cfg(test)]
    pub(super) fn run_count(&self) -> usize {
        self.runs.len()
    }
}

fn part(holding: &Holding, blocks: u32) -> Holding {
    Holding { blocks, ..*holding }
}

/// Changes how many blocks a worker holds; who holds none has no entry.
fn set(entries: &mut smallvec::SmallVec<[Holding; 2]>, worker: WorkerId, blocks: impl Fn(u32) -> u32) {
    match entries.binary_search_by_key(&worker, |holding| holding.worker) {
        Ok(at) => {
            entries[at].blocks = blocks(entries[at].blocks);
            if entries[at].blocks == 0 {
                entries.remove(at);
            }
        }
        Err(at) => {
            let blocks = blocks(0);
            if blocks > 0 {
                entries.insert(at, Holding { worker, blocks });
            }
        }
    }
}

#[cfg(test)]
mod tests;
