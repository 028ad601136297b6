//! Paged KV cache of one engine.
//!
//! A block is *private* while it fills, *active* while a sequence refers to it, *inactive* when nobody does but its content
//! may still serve a prefix hit. Eviction takes the least recently released inactive block; sequences release their last
//! block first, so a leaf goes before its parent. Two sequences that compute the same content hold two physical copies;
//! look-ups use the oldest, and the content is gone when the last copy is.
//!
//! Blocks that follow one another in a prompt live and die together, so the pool keeps *runs* of them: a stretch of a chain
//! of block identities with one reference count and one place in the list of inactive blocks. A prompt of two hundred
//! blocks costs a few operations, not a few hundred. A run is cut where a hit ends inside it; whoever held the whole run
//! finds the rest as its `next_piece`. Private blocks have no identity and are only counted.
//!
//! That works since the cache is *closed*: if a block is cached, so are all before it. Every holder of a block holds a
//! copy of its parent and releases it later.
//!
//! Invariant ([`BlockPool::check`]): active + inactive + free == capacity, private blocks count as active.

use std::collections::VecDeque;
use std::sync::Arc;

use rustc_hash::FxHashMap;

use crate::engine::events::RemovedBlocks;
use crate::engine::hash::{Chain, SequenceBlocks};
use crate::ids::SequenceHash;

pub(super) const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// What look-ups find.
    Primary,
    /// A single block whose content is cached by an older copy.
    Copy,
    /// An unused place.
    Vacant,
}

/// Blocks `start` to `start + blocks` of a chain.
#[derive(Clone, Debug)]
pub(super) struct Run {
    pub(super) chain: Chain,
    pub(super) start: u32,
    pub(super) blocks: u32,
    pub(super) refs: u32,
    /// Neighbours in the inactive list, oldest release first.
    pub(super) older: u32,
    pub(super) newer: u32,
    /// What was cut off behind this run; only valid for those who hold both.
    pub(super) next_piece: u32,
    pub(super) kind: Kind,
    /// Younger copies may exist of some of the blocks.
    pub(super) has_copies: bool,
}

/// A stretch of blocks that a sequence refers to: a run and the pieces that were cut off behind it since.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct HeldRun {
    run: u32,
    blocks: u32,
}

/// The blocks of one sequence, in order; private ones last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HeldBlocks {
    runs: Vec<HeldRun>,
    private_blocks: u32,
    blocks: u32,
}

impl HeldBlocks {
    /// Blocks held, private or not.
    pub fn blocks(&self) -> u32 {
        self.blocks
    }

    /// Blocks held that have no identity yet.
    pub fn private_blocks(&self) -> u32 {
        self.private_blocks
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

/// The blocks of one engine.
#[derive(Clone, Debug)]
pub struct BlockPool {
    pub(super) capacity: u32,
    /// Tell which contents an eviction removed; an engine whose events nobody hears leaves it out.
    report_removed: bool,
    pub(super) runs: Vec<Run>,
    vacant: Vec<u32>,
    /// Primary runs by the identity of their first block.
    pub(super) by_first: FxHashMap<SequenceHash, u32>,
    /// Copies of cached contents, oldest first.
    pub(super) copies: FxHashMap<SequenceHash, VecDeque<u32>>,
    pub(super) oldest: u32,
    pub(super) newest: u32,
    pub(super) inactive: u32,
    pub(super) private: u32,
    /// Blocks in runs, active or not.
    pub(super) in_runs: u32,
    no_chain: Chain,
    scratch: Vec<HeldRun>,
}

impl BlockPool {
    /// An empty pool of `capacity` blocks. Memory grows with use, not with capacity.
    pub fn new(capacity: u32) -> Self {
        BlockPool {
            capacity,
            report_removed: true,
            runs: Vec::new(),
            vacant: Vec::new(),
            by_first: FxHashMap::default(),
            copies: FxHashMap::default(),
            oldest: NONE,
            newest: NONE,
            inactive: 0,
            private: 0,
            in_runs: 0,
            no_chain: Arc::from([]),
            scratch: Vec::new(),
        }
    }

    /// Whether evictions tell which contents they removed; they do unless told otherwise.
    pub fn report_removed(&mut self, report: bool) {
        self.report_removed = report;
    }

    /// Blocks in all.
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Blocks that a sequence refers to or fills.
    pub fn active(&self) -> u32 {
        self.in_runs + self.private - self.inactive
    }

    /// Blocks that nobody refers to, but whose content may still be reused.
    pub fn inactive(&self) -> u32 {
        self.inactive
    }

    /// Blocks that hold nothing.
    pub fn free(&self) -> u32 {
        self.capacity - self.in_runs - self.private
    }

    /// How many of the leading `blocks` are cached, and how many of those are active.
    pub fn match_prefix(&self, blocks: SequenceBlocks) -> PrefixMatch {
        let mut found = PrefixMatch::default();
        self.walk(blocks, 0, |run, blocks| {
            found.blocks += blocks;
            if self.runs[run as usize].refs > 0 {
                found.active_blocks += blocks;
            }
        });
        found
    }

    /// Visits the primary runs that hold the `blocks` from `at` on, as far as they are cached, each with how many of its
    /// blocks are wanted. No run holds both the block at `at` and the one before it.
    fn walk(&self, blocks: SequenceBlocks, mut at: usize, mut visit: impl FnMut(u32, u32)) {
        while at < blocks.len() {
            let Some(&index) = self.by_first.get(&blocks.sequence_hash(at)) else { return };
            let run = &self.runs[index as usize];
            let most = (run.blocks as usize).min(blocks.len() - at);
            let equal = |nth: usize| run.chain[run.start as usize + nth].sequence == blocks.sequence_hash(at + nth);
            // Equal identities mean equal prefixes, so the common part can be searched by bisection.
            let matched = if equal(most - 1) {
                most
            } else {
                let (mut same, mut differs) = (1, most - 1);
                while same < differs {
                    let middle = usize::midpoint(same, differs);
                    if equal(middle) { same = middle + 1 } else { differs = middle }
                }
                same
            };
            visit(index, matched as u32);
            at += matched;
        }
    }

    /// Takes the first `hits` of the `blocks`, which are cached, and `fresh` private ones, all or nothing; appends them
    /// to `held`.
    ///
    /// Free capacity is used first, then inactive blocks are evicted; contents of which no copy is left are appended to
    /// `removed`. Returns false, and changes nothing, if there are not enough blocks.
    pub fn reserve(
        &mut self,
        blocks: SequenceBlocks,
        hits: u32,
        fresh: u32,
        held: &mut HeldBlocks,
        removed: &mut RemovedBlocks,
    ) -> bool {
        let mut found = std::mem::take(&mut self.scratch);
        found.clear();
        let mut reactivated = 0;
        self.walk(blocks.first(hits as usize), 0, |run, blocks| {
            found.push(HeldRun { run, blocks });
            if self.runs[run as usize].refs == 0 {
                reactivated += blocks;
            }
        });
        let room = self.free() + self.inactive - reactivated;
        let fits = fresh <= room;
        if fits {
            for hit in &found {
                self.take_hit(*hit, held);
            }
            let shortage = fresh.saturating_sub(self.free());
            self.evict(shortage, removed);
            self.private += fresh;
            held.private_blocks += fresh;
            held.blocks += fresh;
        }
        self.scratch = found;
        fits
    }

    fn take_hit(&mut self, hit: HeldRun, held: &mut HeldBlocks) {
        if hit.blocks < self.runs[hit.run as usize].blocks {
            self.cut(hit.run, hit.blocks);
        }
        if self.runs[hit.run as usize].refs == 0 {
            self.unlink_inactive(hit.run);
        }
        self.runs[hit.run as usize].refs += 1;
        held.runs.push(hit);
        held.blocks += hit.blocks;
    }

    /// Gives the oldest private blocks of `held` their identities: those of `blocks` from `from` to `to`, which `chain`
    /// holds from its block `chain_from` on. From now on they can be reused. Returns how many of them, the leading ones,
    /// were cached already.
    pub fn publish(
        &mut self,
        held: &mut HeldBlocks,
        blocks: SequenceBlocks,
        (from, to): (u32, u32),
        chain: &Chain,
        chain_from: u32,
    ) -> u32 {
        let count = to - from;
        held.private_blocks -= count;
        self.private -= count;
        self.in_runs += count;
        // If the holder's last block is the end of a primary run, what follows is the start of another one or unknown.
        // Else it may be in the middle of a run, which only a walk from the start finds.
        let last = held.runs.last().map(|last| (last, &self.runs[last.run as usize]));
        let apart = last.is_none_or(|(last, run)| run.kind == Kind::Primary && run.blocks == last.blocks);
        let mut at = if apart { from } else { 0 };
        let mut twins = std::mem::take(&mut self.scratch);
        twins.clear();
        self.walk(blocks.first(to as usize), at as usize, |run, blocks| {
            at += blocks;
            if at > from {
                twins.push(HeldRun { run, blocks });
            }
        });
        let known = at.saturating_sub(from);
        for twin in &twins {
            self.runs[twin.run as usize].has_copies = true;
        }
        self.scratch = twins;
        for start in chain_from..chain_from + known {
            let run = self.place(Run { start, kind: Kind::Copy, ..self.new_run(chain.clone(), 1) });
            self.copies.entry(chain[start as usize].sequence).or_default().push_back(run);
            held.runs.push(HeldRun { run, blocks: 1 });
        }
        if known < count && !(known == 0 && self.extend_last(held, chain, chain_from, count)) {
            let start = chain_from + known;
            let run = self.place(Run { start, kind: Kind::Primary, ..self.new_run(chain.clone(), count - known) });
            self.by_first.insert(chain[start as usize].sequence, run);
            held.runs.push(HeldRun { run, blocks: count - known });
        }
        known
    }

    /// Lengthens the holder's last run by blocks that follow it, if nobody else refers to it. False if that is not so.
    fn extend_last(&mut self, held: &mut HeldBlocks, chain: &Chain, from: u32, blocks: u32) -> bool {
        let Some(last) = held.runs.last_mut() else { return false };
        let run = &mut self.runs[last.run as usize];
        let whole = run.refs == 1 && run.blocks == last.blocks && run.kind == Kind::Primary;
        if !whole || run.start + run.blocks != from || !Arc::ptr_eq(&run.chain, chain) {
            return false;
        }
        run.blocks += blocks;
        last.blocks += blocks;
        true
    }

    /// Gives back `blocks` private blocks, which were taken and not needed.
    pub fn return_private(&mut self, held: &mut HeldBlocks, blocks: u32) {
        held.private_blocks -= blocks;
        held.blocks -= blocks;
        self.private -= blocks;
    }

    /// Gives up all of a sequence's blocks, last block first.
    pub fn release_all(&mut self, held: &mut HeldBlocks) {
        self.private -= held.private_blocks;
        while let Some(HeldRun { run, blocks }) = held.runs.pop() {
            self.release(run, blocks);
        }
        *held = HeldBlocks { runs: std::mem::take(&mut held.runs), ..HeldBlocks::default() };
    }

    fn release(&mut self, run: u32, blocks: u32) {
        let own = self.runs[run as usize].blocks;
        if own < blocks {
            // Cut since it was taken; as few cuts lie in one run, the depth of the recursion is small.
            self.release(self.runs[run as usize].next_piece, blocks - own);
        }
        let slot = &mut self.runs[run as usize];
        slot.refs -= 1;
        if slot.refs == 0 {
            self.link_newest(run);
        }
    }

    /// Forgets all inactive blocks.
    pub fn clear_inactive(&mut self) {
        let report = std::mem::replace(&mut self.report_removed, false);
        self.evict(self.inactive, &mut RemovedBlocks::default());
        self.report_removed = report;
    }

    /// Takes `blocks` inactive blocks out of list and map, oldest first; the caller made sure that there are so many.
    fn evict(&mut self, mut blocks: u32, removed: &mut RemovedBlocks) {
        while blocks > 0 {
            let index = self.oldest;
            let run = &self.runs[index as usize];
            let taken = blocks.min(run.blocks);
            let (first, end) = (run.start as usize, run.start + run.blocks);
            match run.kind {
                Kind::Primary => {
                    if run.blocks == taken {
                        self.by_first.remove(&run.chain[first].sequence);
                    }
                    if run.has_copies {
                        let chain = run.chain.clone();
                        for at in (end - taken..end).rev() {
                            if !self.promote_copy(chain[at as usize].sequence) && self.report_removed {
                                removed.push(&chain, at, at + 1);
                            }
                        }
                    } else if self.report_removed {
                        removed.push(&run.chain, end - taken, end);
                    }
                }
                Kind::Copy => {
                    let content = run.chain[first].sequence;
                    if let Some(copies) = self.copies.get_mut(&content) {
                        copies.retain(|copy| *copy != index);
                        if copies.is_empty() {
                            self.copies.remove(&content);
                        }
                    }
                }
                Kind::Vacant => {}
            }
            self.runs[index as usize].blocks -= taken;
            self.inactive -= taken;
            self.in_runs -= taken;
            blocks -= taken;
            if self.runs[index as usize].blocks == 0 {
                self.unlink_inactive(index);
                self.vacate(index);
            }
        }
    }

    /// Lets the oldest copy of a content take the place of the primary block. False if there is no copy.
    fn promote_copy(&mut self, content: SequenceHash) -> bool {
        let Some(copies) = self.copies.get_mut(&content) else { return false };
        let Some(heir) = copies.pop_front() else { return false };
        let more = !copies.is_empty();
        if !more {
            self.copies.remove(&content);
        }
        self.by_first.insert(content, heir);
        let run = &mut self.runs[heir as usize];
        run.kind = Kind::Primary;
        run.has_copies = more;
        true
    }

    fn new_run(&self, chain: Chain, blocks: u32) -> Run {
        Run {
            chain,
            start: 0,
            blocks,
            refs: 1,
            older: NONE,
            newer: NONE,
            next_piece: NONE,
            kind: Kind::Vacant,
            has_copies: false,
        }
    }

    fn place(&mut self, run: Run) -> u32 {
        match self.vacant.pop() {
            Some(index) => {
                self.runs[index as usize] = run;
                index
            }
            None => {
                self.runs.push(run);
                self.runs.len() as u32 - 1
            }
        }
    }

    fn vacate(&mut self, index: u32) {
        let run = &mut self.runs[index as usize];
        run.kind = Kind::Vacant;
        run.chain = self.no_chain.clone();
        self.vacant.push(index);
    }

    /// Cuts a run after its first `blocks` blocks.
    fn cut(&mut self, index: u32, blocks: u32) {
        let whole = &self.runs[index as usize];
        let start = whole.start + blocks;
        let rest = Run { start, blocks: whole.blocks - blocks, newer: index, ..whole.clone() };
        let (first, inactive, older) = (rest.chain[start as usize].sequence, rest.refs == 0, rest.older);
        let rest = self.place(rest);
        self.by_first.insert(first, rest);
        let whole = &mut self.runs[index as usize];
        whole.blocks = blocks;
        whole.next_piece = rest;
        if inactive {
            // The rest is evicted before the part in front of it.
            whole.older = rest;
            if older == NONE {
                self.oldest = rest;
            } else {
                self.runs[older as usize].newer = rest;
            }
        }
    }

    fn link_newest(&mut self, index: u32) {
        self.inactive += self.runs[index as usize].blocks;
        self.absorb_rest(index);
        let newest = self.newest;
        let run = &mut self.runs[index as usize];
        run.older = newest;
        run.newer = NONE;
        if newest == NONE {
            self.oldest = index;
        } else {
            self.runs[newest as usize].newer = index;
        }
        self.newest = index;
    }

    /// If what was cut off a run is the youngest in the list, the run about to follow it there takes it back.
    fn absorb_rest(&mut self, index: u32) {
        let rest = self.newest;
        let run = &self.runs[index as usize];
        if rest == NONE || run.next_piece != rest || run.kind != Kind::Primary {
            return;
        }
        let piece = &self.runs[rest as usize];
        let follows = piece.start == run.start + run.blocks && Arc::ptr_eq(&piece.chain, &run.chain);
        if !follows || piece.kind != Kind::Primary {
            return;
        }
        let (first, blocks) = (piece.chain[piece.start as usize].sequence, piece.blocks);
        let (next_piece, has_copies) = (piece.next_piece, piece.has_copies);
        self.by_first.remove(&first);
        self.unlink_inactive(rest);
        // `unlink_inactive` has taken the blocks out of the count; they stay inactive.
        self.inactive += blocks;
        self.vacate(rest);
        let run = &mut self.runs[index as usize];
        run.blocks += blocks;
        run.next_piece = next_piece;
        run.has_copies |= has_copies;
    }

    fn unlink_inactive(&mut self, index: u32) {
        let Run { older, newer, blocks, .. } = self.runs[index as usize];
        if older == NONE {
            self.oldest = newer;
        } else {
            self.runs[older as usize].newer = newer;
        }
        if newer == NONE {
            self.newest = older;
        } else {
            self.runs[newer as usize].older = older;
        }
        self.inactive -= blocks;
    }

    /// Checks the pool's invariants and names the first that is broken. For tests and `--check`; costs O(blocks).
    pub fn check(&self) -> Result<(), String> {
        super::pool_check::check(self)
    }
}
