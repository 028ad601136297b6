//! Hit ratio by cache size, in the trace's own blocks: the curves that are published for traces.
//!
//! A request hits the leading blocks of its prompt that are in the cache, up to the first that is not. A hit counts the
//! block's tokens; the last block of a prompt may be partial, is cached like any other, and counts the tokens that the
//! prompt has in it. Rows follow each other in file order, each is finished before the next, and the first ones only
//! warm the cache. Blocks are told apart by their hash and by all hashes before them; a row without hashes fills the
//! cache with blocks of its own.
//!
//! - **infinite**: nothing is evicted.
//! - **LRU**: after its request the prompt's last block is touched first and its first block last, so that a block is
//!   evicted before those it depends on; then the surplus is evicted.
//! - **Belady**: after each request the cache keeps the blocks that are needed soonest, and none that is not needed
//!   again. The optimum: no rule hits more.
//! - **FIFO**: the blocks behind the hit enter in the order of the prompt, each pushing out the oldest. Those that were
//!   still there enter anew: nobody could use them, so they were computed again.
//!
//! The LRU cache is never run. Its content is the most recent part of a stack, however small the cache (Mattson), and a
//! block is hit where the capacity reaches its place in the stack, so one pass gives the whole curve.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::keep::KeepIntervals;
use super::ratio;
use crate::trace::read::Trace;

/// No row has used a block yet, or the block is not in the cache.
const NONE: u32 = u32::MAX;

/// Prompt tokens that a cache hits, by its size; [`HitCurves::of`] says what a hit is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HitCurves {
    /// Prompt tokens of the measured rows.
    pub measured_tokens: u64,
    /// Tokens that a cache without limit hits.
    pub infinite_tokens: u64,
    /// One point for each capacity that was asked for, in the same order.
    pub points: Vec<HitPoint>,
}

/// Prompt tokens of the measured rows that caches of one size hit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HitPoint {
    /// Size of the cache, in blocks of the trace.
    pub capacity_blocks: u64,
    /// Tokens hit if the block that entered first is evicted. Blocks behind a hit enter in the order of the prompt,
    /// those that are still there anew.
    pub fifo_tokens: u64,
    /// Tokens hit if the block that was used least recently is evicted. A prompt's last block counts as used before its
    /// first, and there is room for the whole prompt until its request is over.
    pub lru_tokens: u64,
    /// Tokens hit if the block that is needed last is evicted: the most that any cache of this size can hit.
    pub belady_tokens: u64,
}

impl HitCurves {
    /// The curves of a trace at these capacities, in blocks. The first `warmup_rows` rows fill the cache but are not
    /// measured; published curves leave out half of the rows.
    ///
    /// One cache serves all rows, in file order. A row hits its leading blocks up to the first that is not in the
    /// cache. A block counts its tokens, the last one those that the prompt has in it.
    pub fn of(trace: &Trace, warmup_rows: usize, capacities_blocks: &[u64]) -> Self {
        let rows = BlockRows::of(trace);
        let is_measured = |row: usize| row >= warmup_rows;
        let (lru, intervals) = rows.lru_and_intervals(is_measured);
        let points = capacities_blocks.iter().map(|&capacity_blocks| {
            let mut belady_tokens = 0;
            intervals.belady(capacity_blocks, |row, blocks| {
                belady_tokens += if is_measured(row) { rows.tokens(row, blocks) } else { 0 };
            });
            HitPoint {
                capacity_blocks,
                fifo_tokens: rows.fifo_tokens(capacity_blocks, is_measured),
                lru_tokens: lru[usize::try_from(capacity_blocks).map_or(lru.len() - 1, |at| at.min(lru.len() - 1))],
                belady_tokens,
            }
        });
        HitCurves {
            measured_tokens: rows.input_tokens.iter().skip(warmup_rows).map(|&tokens| u64::from(tokens)).sum(),
            infinite_tokens: lru[lru.len() - 1],
            points: points.collect(),
        }
    }

    /// Hit tokens as part of the measured prompt tokens, from 0 to 1; 0 if no row is measured.
    pub fn ratio(&self, hit_tokens: u64) -> f64 {
        ratio(hit_tokens, self.measured_tokens)
    }
}

/// Rows as lists of block numbers; numbers count up from 0, and equal numbers have equal blocks before them.
struct BlockRows {
    blocks: Vec<u32>,
    /// Where each row ends in `blocks`.
    row_ends: Vec<usize>,
    input_tokens: Vec<u32>,
    block_tokens: u32,
    distinct_blocks: u32,
}

impl BlockRows {
    fn of(trace: &Trace) -> Self {
        let block_tokens = trace.block_tokens.max(1);
        let mut number_of: FxHashMap<(u32, u64), u32> = FxHashMap::default();
        let mut rows = BlockRows {
            blocks: Vec::new(),
            row_ends: Vec::with_capacity(trace.rows.len()),
            input_tokens: trace.rows.iter().map(|row| row.input_tokens).collect(),
            block_tokens,
            distinct_blocks: 0,
        };
        for row in &trace.rows {
            let row_blocks = row.input_tokens.div_ceil(block_tokens);
            let mut parent = NONE;
            for &hash in row.hash_ids.iter().take(row_blocks as usize) {
                parent = *number_of.entry((parent, hash)).or_insert_with(|| {
                    rows.distinct_blocks += 1;
                    rows.distinct_blocks - 1
                });
                rows.blocks.push(parent);
            }
            if row.hash_ids.is_empty() {
                rows.blocks.extend(rows.distinct_blocks..rows.distinct_blocks + row_blocks);
                rows.distinct_blocks += row_blocks;
            }
            rows.row_ends.push(rows.blocks.len());
        }
        rows
    }

    /// The block numbers of each row, in order.
    fn rows(&self) -> impl Iterator<Item = &[u32]> {
        let mut start = 0;
        self.row_ends.iter().map(move |&end| &self.blocks[std::mem::replace(&mut start, end)..end])
    }

    /// Tokens in the first `blocks` blocks of a row.
    fn tokens(&self, row: usize, blocks: u32) -> u64 {
        (u64::from(blocks) * u64::from(self.block_tokens)).min(self.input_tokens[row].into())
    }

    /// Tokens that an LRU cache hits, by capacity from 0 to the number of distinct blocks; and the intervals over which
    /// a cache must keep blocks to hit them.
    fn lru_and_intervals(&self, is_measured: impl Fn(usize) -> bool) -> (Vec<u64>, KeepIntervals) {
        let mut intervals = KeepIntervals::default();
        let mut last_use = vec![NONE; self.distinct_blocks as usize];
        let mut stack = RecencyStack::new(self.row_ends.len());
        // What a row gains as the capacity passes each size; 1 longer than the curve, for what ends at its end.
        let mut gains_from = vec![0i64; self.distinct_blocks as usize + 2];
        let mut groups: Vec<(u32, u32)> = Vec::new();
        for (row, blocks) in self.rows().enumerate() {
            let request = intervals.begin_request();
            groups.clear();
            for &block in blocks {
                match std::mem::replace(&mut last_use[block as usize], request) {
                    NONE => {}
                    user => match groups.last_mut() {
                        Some((same, count)) if *same == user => *count += 1,
                        _ => groups.push((user, 1)),
                    },
                }
            }
            let mut hit_blocks = 0;
            for &(user, count) in &groups {
                intervals.reuse_since(user, count);
                // Blocks of one user lie in the stack in the order of the prompt, and these are its first.
                let above = stack.blocks_used_after(user) as usize;
                hit_blocks += count;
                if is_measured(row) {
                    let last_tokens = self.tokens(row, hit_blocks) - self.tokens(row, hit_blocks - 1);
                    let end = above + count as usize;
                    gains_from[above + 1] += i64::from(self.block_tokens);
                    gains_from[end] += last_tokens as i64 - i64::from(self.block_tokens);
                    gains_from[end + 1] -= last_tokens as i64;
                }
            }
            for &(user, count) in &groups {
                stack.add(user, -i64::from(count));
            }
            stack.add(request, blocks.len() as i64);
        }
        let (mut gain, mut tokens) = (0i64, 0u64);
        let capacities = &gains_from[..=self.distinct_blocks as usize];
        let curve = capacities.iter().map(|change| {
            gain += change;
            tokens += gain as u64;
            tokens
        });
        (curve.collect(), intervals)
    }

    fn fifo_tokens(&self, capacity_blocks: u64, is_measured: impl Fn(usize) -> bool) -> u64 {
        // A block that enters anew leaves a dead entry in the queue: one whose number is not the block's any more.
        let mut queue: VecDeque<(u32, u32)> = VecDeque::new();
        let mut entered = vec![NONE; self.distinct_blocks as usize];
        let (mut entries, mut cached_blocks, mut hit_tokens) = (0u32, 0u64, 0u64);
        for (row, blocks) in self.rows().enumerate() {
            let hits = blocks.iter().take_while(|&&block| entered[block as usize] != NONE).count();
            for &block in &blocks[hits..] {
                cached_blocks += u64::from(entered[block as usize] == NONE);
                entered[block as usize] = entries;
                queue.push_back((block, entries));
                entries += 1;
                while cached_blocks > capacity_blocks
                    && let Some((oldest, entry)) = queue.pop_front()
                {
                    if entered[oldest as usize] == entry {
                        entered[oldest as usize] = NONE;
                        cached_blocks -= 1;
                    }
                }
            }
            if is_measured(row) {
                hit_tokens += self.tokens(row, hits as u32);
            }
        }
        hit_tokens
    }
}

/// The blocks in the order of their last use: how many each request used last (a Fenwick tree over requests).
struct RecencyStack {
    sums: Vec<i64>,
    blocks: i64,
}

impl RecencyStack {
    fn new(requests: usize) -> Self {
        RecencyStack { sums: vec![0; requests + 1], blocks: 0 }
    }

    /// Adds to the number of blocks that `request` used last.
    fn add(&mut self, request: u32, blocks: i64) {
        self.blocks += blocks;
        let mut at = request as usize + 1;
        while let Some(sum) = self.sums.get_mut(at) {
            *sum += blocks;
            at += at & at.wrapping_neg();
        }
    }

    /// Number of blocks whose last use is later than `request`.
    fn blocks_used_after(&self, request: u32) -> i64 {
        let mut up_to = 0;
        let mut at = request as usize + 1;
        while at > 0 {
            up_to += self.sums[at];
            at &= at - 1;
        }
        self.blocks - up_to
    }
}
