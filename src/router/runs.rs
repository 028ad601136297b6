//! Blocks of many chains, kept in runs: stretches of blocks that follow one another.
//!
//! A block is known by the hash of itself and its whole prefix, so it has one parent, and a prompt of two hundred blocks
//! that nobody else has sent is one run, whatever its length. Who has something to do with a run is an *entry* of it, and
//! refers to a number of its leading blocks; who refers to blocks behind those has an entry in another run. Where chains
//! part, they do so behind any block of a run: the branch is a run of its own, found by its first block.
//!
//! Invariant: every block is in one run only; some entry refers to the last block of each run.

use rustc_hash::FxHashMap;
use slab::Slab;
use smallvec::SmallVec;

use crate::engine::hash::{BlockId, Chain, SequenceBlocks};
use crate::ids::{SequenceHash, WorkerId};

/// What refers to the leading blocks of a run.
pub(super) trait Entry: Clone {
    /// Whose it is; entries of a run are in this order.
    fn worker(&self) -> WorkerId;
    /// How many blocks it refers to; at least 1.
    fn blocks(&self) -> u32;
}

/// The blocks `start` to `start + blocks` of a chain.
#[derive(Clone, Debug)]
pub(super) struct Run<E> {
    pub chain: Chain,
    pub start: u32,
    pub blocks: u32,
    /// Its blocks can be found without those before them.
    pub listed: bool,
    /// Ascending by worker, then by blocks.
    pub entries: SmallVec<[E; 2]>,
}

impl<E: Entry> Run<E> {
    /// Its blocks.
    pub fn ids(&self) -> &[BlockId] {
        &self.chain[self.start as usize..(self.start + self.blocks) as usize]
    }

    /// Its block at `offset`, which is below `blocks`.
    pub fn block(&self, offset: u32) -> SequenceHash {
        self.chain[(self.start + offset) as usize].sequence
    }

    /// The most blocks that the worker's entries refer to; 0 if it has none.
    pub fn most_blocks(&self, worker: WorkerId) -> u32 {
        let end = self.entries.partition_point(|entry| entry.worker() <= worker);
        match end.checked_sub(1).map(|last| &self.entries[last]) {
            Some(entry) if entry.worker() == worker => entry.blocks(),
            _ => 0,
        }
    }
}

/// A stretch of a path that lies in one run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Segment {
    pub run: usize,
    /// Where in the run it starts.
    pub offset: u32,
    pub blocks: u32,
}

/// The runs.
#[derive(Clone, Debug)]
pub(super) struct Runs<E> {
    runs: Slab<Run<E>>,
    by_first: FxHashMap<SequenceHash, u32>,
    /// The other blocks of listed runs: run and place.
    inner: FxHashMap<SequenceHash, (u32, u32)>,
    blocks: usize,
    /// Every run is listed from now on.
    list_all: bool,
}

impl<E> Default for Runs<E> {
    fn default() -> Self {
        Runs {
            runs: Slab::new(),
            by_first: FxHashMap::default(),
            inner: FxHashMap::default(),
            blocks: 0,
            list_all: false,
        }
    }
}

impl<E: Entry> Runs<E> {
    /// Blocks in all.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// Runs in all.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.runs.len()
    }

    pub fn get(&self, run: usize) -> &Run<E> {
        &self.runs[run]
    }

    /// A run's entries, to change them; [`Runs::fit`] has to follow if blocks were given up.
    pub fn entries_mut(&mut self, run: usize) -> &mut SmallVec<[E; 2]> {
        &mut self.runs[run].entries
    }

    /// The names of all runs.
    pub fn names(&self) -> Vec<usize> {
        self.runs.iter().map(|(name, _)| name).collect()
    }

    /// Visits the runs that hold the `path` from its block `at` on, as long as blocks are known. The block at `at` must not
    /// be inside a run; that of a path's start never is. Returns how many blocks of the path are known.
    pub fn walk(&self, path: SequenceBlocks, mut at: usize, mut visit: impl FnMut(Segment) -> bool) -> usize {
        while at < path.len() {
            let Some(&name) = self.by_first.get(&path.sequence_hash(at)) else { break };
            let run = &self.runs[name as usize];
            let blocks = common(run, 0, path, at);
            at += blocks as usize;
            if !visit(Segment { run: name as usize, offset: 0, blocks }) {
                break;
            }
        }
        at
    }

    /// The run and place of the block `at` of a path. Found by the block alone if it is the first of a run or in one that
    /// is listed, else along the path if that starts where prompts start.
    pub fn locate(&self, path: SequenceBlocks, at: usize) -> Option<(usize, u32)> {
        let block = path.sequence_hash(at);
        if let found @ Some(_) = self.locate_alone(block) {
            return found;
        }
        let mut next = 0;
        while next < at {
            let Some(&name) = self.by_first.get(&path.sequence_hash(next)) else {
                next += 1;
                continue;
            };
            let run = &self.runs[name as usize];
            let offset = at - next;
            if offset < run.blocks as usize && run.block(offset as u32) == block {
                return Some((name as usize, offset as u32));
            }
            next += common(run, 0, path.first(at), next) as usize;
        }
        None
    }

    /// As [`Runs::locate`], without a path.
    pub fn locate_alone(&self, block: SequenceHash) -> Option<(usize, u32)> {
        if let Some(&name) = self.by_first.get(&block) {
            return Some((name as usize, 0));
        }
        self.inner.get(&block).map(|(name, offset)| (*name as usize, *offset))
    }

    /// How many blocks of a run from `offset` on are those of the path from `at` on.
    pub fn common(&self, run: usize, offset: u32, path: SequenceBlocks, at: usize) -> u32 {
        common(&self.runs[run], offset, path, at)
    }

    /// From now on every block is found without a path.
    pub fn list_all(&mut self) {
        if self.list_all {
            return;
        }
        self.list_all = true;
        for name in self.names() {
            if !std::mem::replace(&mut self.runs[name].listed, true) {
                self.list(name, 1);
            }
        }
    }

    /// True if every block is found without a path.
    pub fn lists_all(&self) -> bool {
        self.list_all
    }

    fn list(&mut self, name: usize, from: u32) {
        let run = &self.runs[name];
        let blocks = (from..).zip(&run.ids()[from as usize..]);
        self.inner.extend(blocks.map(|(offset, id)| (id.sequence, (name as u32, offset))));
    }

    /// A new run of blocks that are in none.
    pub fn insert(&mut self, run: Run<E>) {
        let first = run.block(0);
        self.blocks += run.blocks as usize;
        let listed = run.listed || self.list_all;
        let name = self.runs.insert(Run { listed, ..run });
        self.by_first.insert(first, name as u32);
        if listed {
            self.list(name, 1);
        }
    }

    /// Lengthens a run by the next `blocks` blocks of its own chain, which are in no run; some entry gets them.
    pub fn lengthen(&mut self, name: usize, blocks: u32) {
        let run = &mut self.runs[name];
        let before = run.blocks;
        run.blocks += blocks;
        self.blocks += blocks as usize;
        if run.listed {
            self.list(name, before);
        }
    }

    /// Cuts off what no entry refers to any more.
    pub fn fit(&mut self, name: usize) {
        let run = &self.runs[name];
        let needed = run.entries.iter().map(Entry::blocks).max().unwrap_or(0);
        if needed == run.blocks {
            return;
        }
        self.blocks -= (run.blocks - needed) as usize;
        if run.listed {
            for id in &run.ids()[needed.max(1) as usize..] {
                self.inner.remove(&id.sequence);
            }
        }
        if needed == 0 {
            self.by_first.remove(&run.block(0));
            self.runs.remove(name);
        } else {
            self.runs[name].blocks = needed;
        }
    }

    /// Cuts a run before its block `at`, which is neither the first nor behind the last; `part` makes of an entry that
    /// reaches over the cut those of both sides. Returns the name of the second part.
    pub fn cut(&mut self, name: usize, at: u32, part: impl Fn(&E, u32) -> E) -> usize {
        let run = &mut self.runs[name];
        let rest = Run {
            chain: run.chain.clone(),
            start: run.start + at,
            blocks: run.blocks - at,
            listed: run.listed,
            entries: run.entries.iter().filter(|e| e.blocks() > at).map(|e| part(e, e.blocks() - at)).collect(),
        };
        run.entries = run.entries.iter().map(|e| part(e, e.blocks().min(at))).collect();
        run.blocks = at;
        let (first, listed) = (rest.block(0), rest.listed);
        let second = self.runs.insert(rest);
        self.by_first.insert(first, second as u32);
        if listed {
            self.inner.remove(&first);
            self.list(second, 1);
        }
        second
    }

    /// For every worker that refers to the first block of `path`: how many leading blocks, ascending by worker; `found`
    /// is cleared first.
    pub fn find(&self, path: SequenceBlocks, found: &mut Vec<(WorkerId, u32)>) {
        found.clear();
        let mut covered = 0;
        self.walk(path, 0, |Segment { run, blocks, .. }| {
            let entries = &self.runs[run].entries;
            // Of a worker's entries the last one reaches farthest.
            let farthest = entries
                .iter()
                .enumerate()
                .filter(|(at, entry)| entries.get(at + 1).is_none_or(|next| next.worker() != entry.worker()));
            let mut alive = false;
            for (_, entry) in farthest {
                let (worker, depth) = (entry.worker(), entry.blocks().min(blocks));
                if covered == 0 {
                    found.push((worker, depth));
                } else if let Ok(at) = found.binary_search_by_key(&worker, |(known, _)| *known)
                    && found[at].1 == covered
                {
                    found[at].1 += depth;
                } else {
                    continue;
                }
                alive |= depth == blocks;
            }
            covered += blocks;
            alive
        });
    }
}

/// How many blocks of the run from `offset` on are those of the path from `at` on.
fn common<E: Entry>(run: &Run<E>, offset: u32, path: SequenceBlocks, at: usize) -> u32 {
    let most = ((run.blocks - offset) as usize).min(path.len() - at) as u32;
    let equal = |nth: u32| run.block(offset + nth) == path.sequence_hash(at + nth as usize);
    if most == 0 || !equal(0) {
        return 0;
    }
    // Equal identities mean equal prefixes, so the common part can be searched by bisection.
    if equal(most - 1) {
        return most;
    }
    let (mut same, mut differs) = (1, most - 1);
    while same < differs {
        let middle = u32::midpoint(same, differs);
        if equal(middle) { same = middle + 1 } else { differs = middle }
    }
    same
}
