//! Tests of the trace room: what a fleet could reuse at best.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::*;

/// Prompts as an engine sees them: numbers of their whole blocks, and how many of these it would take from a cache.
struct Blocks {
    prompts: Vec<(Vec<usize>, usize)>,
    distinct: usize,
}

impl Blocks {
    /// Names each block by all tokens up to its end.
    fn of(prompts: &[PromptPlan], block_size: usize) -> Self {
        let mut number_of: BTreeMap<Vec<u32>, usize> = BTreeMap::new();
        let prompts = prompts.iter().map(|prompt| {
            let tokens = prompt.tokens();
            let ends = (1..=tokens.len() / block_size).map(|block| block * block_size);
            let numbers = ends.map(|end| {
                let next = number_of.len();
                *number_of.entry(tokens[..end].to_vec()).or_insert(next)
            });
            (numbers.collect(), tokens.len().saturating_sub(1) / block_size)
        });
        let prompts = prompts.collect();
        Blocks { prompts, distinct: number_of.len() }
    }

    fn infinite(&self) -> u64 {
        let mut seen: BTreeSet<usize> = BTreeSet::new();
        let mut reused = 0;
        for (blocks, reusable) in &self.prompts {
            reused += blocks[..*reusable].iter().take_while(|block| seen.contains(*block)).count() as u64;
            seen.extend(blocks);
        }
        reused
    }

    /// Block by block: after each request, the blocks that are reused soonest stay. A block that is computed anew
    /// before it is reused need not stay.
    fn belady(&self, capacity: usize) -> u64 {
        let mut cached: BTreeSet<usize> = BTreeSet::new();
        let mut reused = 0;
        for (at, (blocks, reusable)) in self.prompts.iter().enumerate() {
            reused += blocks[..*reusable].iter().take_while(|block| cached.contains(*block)).count() as u64;
            cached.extend(blocks);
            let mut wanted: Vec<(usize, usize, usize)> = Vec::new();
            for &block in &cached {
                let next = self.prompts.iter().enumerate().skip(at + 1).find(|(_, later)| later.0.contains(&block));
                if let Some((next, later)) = next
                    && let Some(depth) = later.0[..later.1].iter().position(|&other| other == block)
                {
                    wanted.push((next, depth, block));
                }
            }
            wanted.sort_unstable();
            cached = wanted.into_iter().take(capacity).map(|(_, _, block)| block).collect();
        }
        reused
    }

    /// All that a cache could do: the best over every choice of what to keep after each request.
    fn best(&self, capacity: u32) -> u64 {
        let mut best_of: BTreeMap<u32, u64> = BTreeMap::from([(0, 0)]);
        for (blocks, reusable) in &self.prompts {
            let mut next_of: BTreeMap<u32, u64> = BTreeMap::new();
            for (&cached, &before) in &best_of {
                let hits = blocks[..*reusable].iter().take_while(|&&block| cached >> block & 1 == 1).count() as u64;
                let within_reach = blocks.iter().fold(cached, |set, block| set | 1 << block);
                let kept = within_reach.count_ones().min(capacity);
                for choice in (0..1u32 << self.distinct).filter(|choice| choice & !within_reach == 0) {
                    if choice.count_ones() == kept {
                        let best = next_of.entry(choice).or_insert(0);
                        *best = (*best).max(before + hits);
                    }
                }
            }
            best_of = next_of;
        }
        best_of.into_values().max().unwrap_or(0)
    }
}

/// Both bounds, in blocks.
fn bounds(prompts: &[PromptPlan], block_size: u32, capacity: u64) -> (u64, u64) {
    let bounds = reuse_bounds(prompts, block_size, capacity);
    assert_eq!(bounds.input_tokens, prompts.iter().map(|prompt| u64::from(prompt.len_tokens())).sum::<u64>());
    assert_eq!((bounds.infinite_tokens + bounds.belady_tokens) % u64::from(block_size), 0);
    (bounds.infinite_tokens / u64::from(block_size), bounds.belady_tokens / u64::from(block_size))
}

/// Prompts that often begin alike, also where runs and blocks do not fit together.
fn some_prompts(requests: usize, segments: usize) -> impl Strategy<Value = Vec<PromptPlan>> {
    let segment = (0u32..3, 1u32..9, 1u32..5).prop_map(|(first_token, tokens, run_tokens)| Segment {
        first_token,
        tokens,
        run_tokens,
    });
    let prompt = prop::collection::vec(segment, 0..segments).prop_map(PromptPlan::new);
    prop::collection::vec(prompt, 1..requests)
}

/// Prompts of a trace, with a few tokens of another trace block size.
fn trace_prompts() -> impl Strategy<Value = Vec<PromptPlan>> {
    let row = (prop::collection::vec(0u64..3, 1..6), 0u32..7);
    (prop::collection::vec(row, 1..24), 1u32..8).prop_map(|(rows, block)| {
        let row_of = |(hashes, cut): (Vec<u64>, u32)| {
            let tokens = (hashes.len() as u32 * block).saturating_sub(cut).max(1);
            super::row(tokens, &hashes)
        };
        let trace = Trace::from_rows("t.jsonl", block, rows.into_iter().map(row_of).collect());
        let made = TokenExpander::new(&trace).unwrap();
        (0..trace.rows.len()).filter_map(|row| made.prompt(row).cloned()).collect()
    })
}

proptest! {
    #[test]
    fn both_bounds_are_those_of_the_cache_run_block_by_block(
        prompts in some_prompts(24, 6), block_size in 1u32..7, capacity in 0u64..24,
    ) {
        let blocks = Blocks::of(&prompts, block_size as usize);
        let naive = (blocks.infinite(), blocks.belady(capacity as usize));
        prop_assert_eq!(bounds(&prompts, block_size, capacity), naive);
    }

    #[test]
    fn both_bounds_of_traces_are_those_of_the_cache_run_block_by_block(
        prompts in trace_prompts(), block_size in 1u32..9, capacity in 0u64..24,
    ) {
        let blocks = Blocks::of(&prompts, block_size as usize);
        let naive = (blocks.infinite(), blocks.belady(capacity as usize));
        prop_assert_eq!(bounds(&prompts, block_size, capacity), naive);
    }

    #[test]
    fn no_choice_of_what_to_keep_reuses_more_than_belady(
        mut prompts in some_prompts(12, 4), block_size in 1u32..5, capacity in 0u32..6,
    ) {
        while Blocks::of(&prompts, block_size as usize).distinct > 9 {
            prompts.pop();
        }
        let best = Blocks::of(&prompts, block_size as usize).best(capacity);
        prop_assert_eq!(bounds(&prompts, block_size, capacity.into()).1, best);
    }
}

fn prompt(segments: &[(u32, u32)]) -> PromptPlan {
    PromptPlan::new(segments.iter().map(|&(first_token, tokens)| Segment { first_token, tokens, run_tokens: 4 }))
}

#[test]
fn the_last_token_is_always_computed() {
    assert_eq!(bounds(&[prompt(&[(0, 8)]), prompt(&[(0, 8)])], 4, 9), (1, 1));
    assert_eq!(bounds(&[prompt(&[(0, 8)]), prompt(&[(0, 9)])], 4, 9), (2, 2));
    assert_eq!(bounds(&[prompt(&[(0, 7)]), prompt(&[(0, 9)])], 4, 9), (1, 1));
}

#[test]
fn a_small_cache_keeps_what_is_needed_sooner() {
    let (a, b) = (prompt(&[(0, 13)]), prompt(&[(100, 13)]));
    let prompts = [a.clone(), b.clone(), b, a];
    assert_eq!(bounds(&prompts, 4, 6), (6, 6));
    assert_eq!(bounds(&prompts, 4, 4), (6, 4));
    assert_eq!(bounds(&prompts, 4, 3), (6, 3));
    assert_eq!(bounds(&prompts, 4, 0), (6, 0));
}

#[test]
fn no_prompts_give_zeroes() {
    let none = reuse_bounds(Vec::<PromptPlan>::new(), 64, 100);
    assert_eq!(none, ReuseBounds::default());
    assert_eq!((none.infinite_ratio(), none.belady_ratio()), (0.0, 0.0));
    let empty = reuse_bounds([PromptPlan::new([])], 0, 100);
    assert_eq!(empty, ReuseBounds::default());
}

/// Counted once by a cache run block by block, outside of this project's code.
#[test]
fn bounds_of_the_conversation_trace_are_those_counted_block_by_block() {
    let Some(path) = super::real_trace("conversation_trace.jsonl.gz") else { return };
    let trace = read_all(&path, &ReadOptions::default()).unwrap();
    let made = TokenExpander::new(&trace).unwrap();
    for (block_size, capacity, infinite, belady) in COUNTED {
        let prompts = (0..trace.rows.len()).filter_map(|row| made.prompt(row));
        let found = reuse_bounds(prompts, block_size, capacity);
        assert_eq!((found.infinite_tokens, found.belady_tokens), (infinite, belady), "{block_size}, {capacity}");
    }
}

/// Block size, capacity in blocks, tokens reused without and with that limit.
const COUNTED: [(u32, u64, u64, u64); 7] = [
    (64, 131_072, 54_093_952, 54_093_952),
    (64, 20_000, 54_093_952, 40_915_648),
    (64, 1_000, 54_093_952, 11_181_376),
    (16, 131_072, 54_097_440, 47_888_528),
    (512, 4_096, 54_063_104, 47_865_344),
    (48, 30_000, 53_791_104, 42_257_040),
    (1_000, 2_000, 48_500_000, 41_486_000),
];
