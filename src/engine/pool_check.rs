//! The block pool's invariants, checked from scratch: what its counters and lists say against its runs.

use rustc_hash::FxHashSet;

use super::blocks::{BlockPool, Kind, NONE};
use crate::ids::SequenceHash;

/// Names the first invariant that is broken. Costs O(blocks).
pub(super) fn check(pool: &BlockPool) -> Result<(), String> {
    let mut listed = FxHashSet::default();
    let (mut at, mut before, mut inactive) = (pool.oldest, NONE, 0);
    while at != NONE {
        let run = &pool.runs[at as usize];
        if run.refs != 0 || run.blocks == 0 || run.kind == Kind::Vacant || run.older != before {
            return Err(format!("run {at} is in the inactive list as {run:?}"));
        }
        if !listed.insert(at) {
            return Err(format!("run {at} is in the inactive list twice"));
        }
        inactive += run.blocks;
        (before, at) = (at, run.newer);
    }
    if before != pool.newest || inactive != pool.inactive {
        return Err(format!("{inactive} blocks in the inactive list, {} counted", pool.inactive));
    }
    let mut in_runs = 0;
    let mut cached: FxHashSet<SequenceHash> = FxHashSet::default();
    let mut primaries = 0;
    for (index, run) in pool.runs.iter().enumerate().filter(|(_, run)| run.kind != Kind::Vacant) {
        let index = index as u32;
        in_runs += run.blocks;
        if (run.refs == 0) != listed.contains(&index) {
            return Err(format!("run {index} with {} references is misplaced", run.refs));
        }
        if run.kind == Kind::Primary {
            primaries += 1;
            let blocks = &run.chain[run.start as usize..(run.start + run.blocks) as usize];
            if pool.by_first.get(&blocks[0].sequence) != Some(&index) {
                return Err(format!("run {index} is not found by its first block"));
            }
            if !blocks.iter().all(|block| cached.insert(block.sequence)) {
                return Err(format!("run {index} holds a content that another primary run holds"));
            }
        }
    }
    if in_runs != pool.in_runs || primaries != pool.by_first.len() {
        return Err(format!("{in_runs} blocks in runs, {} counted; {primaries} primary runs", pool.in_runs));
    }
    if pool.in_runs + pool.private > pool.capacity {
        return Err(format!("{} blocks in runs and {} private exceed the capacity", pool.in_runs, pool.private));
    }
    for (content, copies) in &pool.copies {
        if !cached.contains(content) || copies.is_empty() {
            return Err(format!("copies of {content} without a primary block"));
        }
        if copies.iter().any(|copy| pool.runs[*copy as usize].kind != Kind::Copy) {
            return Err(format!("a copy of {content} is no copy"));
        }
    }
    check_closed(pool, &cached)
}

/// If a block is cached, so are all before it in its chain.
fn check_closed(pool: &BlockPool, cached: &FxHashSet<SequenceHash>) -> Result<(), String> {
    for run in pool.runs.iter().filter(|run| run.kind == Kind::Primary && run.start > 0) {
        let parent = run.chain[run.start as usize - 1].sequence;
        if !cached.contains(&parent) {
            return Err(format!("a block is cached, the one before it ({parent}) is not"));
        }
    }
    Ok(())
}
