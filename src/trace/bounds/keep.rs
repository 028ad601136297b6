//! The best that a cache of a given size can do, found among the intervals over which it would have to keep blocks.
//!
//! A block that a request reuses was kept since the request that used it last. So every reuse is an interval between
//! two requests, and a cache of n blocks serves any choice of intervals of which at most n are open between two
//! requests. The largest such choice is made by Belady's rule: of too many open intervals, give up those that end last.
//! A block that nobody reuses has no interval and takes no room.
//!
//! Intervals that end at the same request belong to one prompt, and those that are opened later lie nearer to its
//! start. The deepest are given up first; what is left is then always the beginning of what the prompt could reuse,
//! which is all that a prefix cache can serve, and a count for each request is enough to tell which blocks are kept.

use std::collections::BinaryHeap;

/// No interval: ends a list.
const NONE: u32 = u32::MAX;

/// Blocks that are last used by the same request, and reused next by the same request.
struct Interval {
    end: u32,
    blocks: u32,
    /// Another interval with the same start.
    next: u32,
}

/// All intervals of a workload, listed by the request at which they start.
#[derive(Default)]
pub(super) struct KeepIntervals {
    starting_at: Vec<u32>,
    intervals: Vec<Interval>,
}

impl KeepIntervals {
    /// Begins the next request, and returns its number; the first is 0.
    pub(super) fn begin_request(&mut self) -> u32 {
        self.starting_at.push(NONE);
        (self.starting_at.len() - 1) as u32
    }

    /// The current request can reuse `blocks` blocks that the earlier request `start` used last.
    pub(super) fn reuse_since(&mut self, start: u32, blocks: u32) {
        let end = (self.starting_at.len() - 1) as u32;
        let index = self.intervals.len() as u32;
        let next = std::mem::replace(&mut self.starting_at[start as usize], index);
        self.intervals.push(Interval { end, blocks, next });
    }

    /// Tells for each request in order how many of its leading blocks a cache of `capacity_blocks` under Belady's rule
    /// has kept for it. No other choice of what to keep gives a larger sum.
    pub(super) fn belady(&self, capacity_blocks: u64, mut reused: impl FnMut(usize, u32)) {
        let mut kept_for = vec![0u32; self.starting_at.len()];
        let mut kept_blocks = 0u64;
        // Each request to come for which blocks are kept, the last on top. Past ones stay in, below all others.
        let mut ends = BinaryHeap::new();
        for (request, &first) in self.starting_at.iter().enumerate() {
            kept_blocks -= u64::from(kept_for[request]);
            reused(request, kept_for[request]);

            let mut at = first;
            while let Some(interval) = self.intervals.get(at as usize) {
                let kept = &mut kept_for[interval.end as usize];
                if *kept == 0 {
                    ends.push(interval.end);
                }
                *kept += interval.blocks;
                kept_blocks += u64::from(interval.blocks);
                at = interval.next;
            }

            while kept_blocks > capacity_blocks
                && let Some(&last) = ends.peek()
            {
                let kept = &mut kept_for[last as usize];
                let surplus = u64::from(*kept).min(kept_blocks - capacity_blocks) as u32;
                *kept -= surplus;
                kept_blocks -= u64::from(surplus);
                if *kept == 0 {
                    ends.pop();
                }
            }
        }
    }
}
