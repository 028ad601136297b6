//! Tests of the trace room: expand.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::*;
use super::row;

fn expander(block_tokens: u32, rows: Vec<TraceRow>) -> TokenExpander {
    TokenExpander::new(&Trace::from_rows("t.jsonl", block_tokens, rows)).unwrap()
}

#[test]
fn each_hash_becomes_a_block_of_its_number_cut_to_the_prompt() {
    let made = expander(4, vec![row(6, &[900, u64::MAX]), row(9, &[900, 7, 8]), row(3, &[8])]);
    assert_eq!(made.prompt_tokens(0), [0, 0, 0, 0, 1, 1]);
    assert_eq!(made.prompt_tokens(1), [0, 0, 0, 0, 2, 2, 2, 2, 3]);
    assert_eq!(made.prompt_tokens(2), [3, 3, 3]);
    assert!(made.prompt_tokens(3).is_empty());
    assert_eq!(made.vocab_tokens_needed(), 4);
}

#[test]
fn rows_without_hashes_share_nothing() {
    let made = expander(4, vec![row(5, &[]), row(5, &[]), row(4, &[0])]);
    assert_eq!(made.prompt_tokens(0), [0, 0, 0, 0, 1]);
    assert_eq!(made.prompt_tokens(1), [2, 2, 2, 2, 3]);
    assert_eq!(made.prompt_tokens(2), [4, 4, 4, 4]);
}

#[test]
fn consecutive_blocks_are_one_segment() {
    let made = expander(512, vec![row(5000, &(0..10).collect::<Vec<_>>()), row(1500, &[0, 10, 11])]);
    assert_eq!(made.prompt(0).unwrap().segments().len(), 1);
    assert_eq!(made.prompt(1).unwrap().segments().len(), 2);
}

#[test]
fn numbers_can_start_elsewhere_and_must_fit() {
    let trace = Trace::from_rows("t.jsonl", 4, vec![row(8, &[5, 6])]);
    let made = TokenExpander::starting_at(&trace, 100).unwrap();
    assert_eq!(made.prompt_tokens(0), [100, 100, 100, 100, 101, 101, 101, 101]);
    assert_eq!(made.vocab_tokens_needed(), 102);
    assert!(matches!(TokenExpander::starting_at(&trace, u32::MAX - 1), Err(TraceError::TooManyBlocks { .. })));
    let unshared = Trace::from_rows("t.jsonl", 1, vec![row(u32::MAX, &[]), row(1, &[])]);
    assert!(matches!(TokenExpander::new(&unshared), Err(TraceError::TooManyBlocks { .. })));
    let zero = Trace::from_rows("t.jsonl", 0, vec![]);
    assert!(matches!(TokenExpander::new(&zero), Err(TraceError::ZeroBlock)));
}

/// Counts the tokens of whole engine blocks that each prompt shares with an earlier one.
fn reused_tokens(made: &TokenExpander, rows: usize, engine_block: usize) -> Vec<usize> {
    let mut seen: Vec<Vec<u32>> = Vec::new();
    (0..rows)
        .map(|index| {
            let tokens = made.prompt_tokens(index);
            let shared = |old: &Vec<u32>| old.iter().zip(&tokens).take_while(|(a, b)| a == b).count() / engine_block;
            let best = seen.iter().map(shared).max().unwrap_or(0) * engine_block;
            seen.push(tokens);
            best
        })
        .collect()
}

#[test]
fn reuse_follows_the_hashes_at_other_block_sizes() {
    let pair = |tokens: u32, block: u32, a: &[u64], b: &[u64]| expander(block, vec![row(tokens, a), row(tokens, b)]);
    assert_eq!(reused_tokens(&pair(16, 8, &[1, 2], &[1, 3]), 2, 4), [0, 8]);
    assert_eq!(reused_tokens(&pair(16, 4, &[1, 2, 3, 4], &[1, 2, 3, 5]), 2, 8), [0, 8]);
    assert_eq!(reused_tokens(&pair(1000, 512, &[1, 2], &[1, 3]), 2, 64), [0, 512]);
}

proptest! {
    /// The naive way: number hashes as they come, push each `block_tokens` times, cut.
    #[test]
    fn segments_give_the_tokens_of_the_naive_way(
        block_tokens in 1u32..9,
        lists in prop::collection::vec((prop::collection::vec(0u64..12, 1..9), 0u32..8), 1..12),
    ) {
        let rows: Vec<TraceRow> = lists
            .iter()
            .map(|(ids, short)| row((ids.len() as u32 * block_tokens).saturating_sub(*short).max(1), ids))
            .collect();
        let made = expander(block_tokens, rows.clone());
        let mut numbers = BTreeMap::new();
        for (index, row) in rows.iter().enumerate() {
            let mut naive = Vec::new();
            for id in &row.hash_ids {
                let next = numbers.len() as u32;
                let number = *numbers.entry(*id).or_insert(next);
                naive.extend(std::iter::repeat_n(number, block_tokens as usize));
            }
            naive.truncate(row.input_tokens as usize);
            let plan = made.prompt(index).unwrap();
            prop_assert_eq!(plan.len_tokens() as usize, naive.len());
            prop_assert_eq!(plan.tokens(), naive.clone());
            let by_position: Vec<u32> = plan
                .segments()
                .iter()
                .flat_map(|segment| (0..segment.tokens).map(|at| segment.token_at(at)))
                .collect();
            prop_assert_eq!(by_position, naive);
            prop_assert!(plan.vocab_tokens_needed() <= made.vocab_tokens_needed());
        }
        prop_assert_eq!(made.vocab_tokens_needed() as usize, numbers.len());
    }
}

#[test]
fn the_conversation_trace_needs_as_many_tokens_as_it_has_blocks() {
    let Some(path) = super::real_trace("conversation_trace.jsonl.gz") else {
        return;
    };
    let trace = read_all(&path, &ReadOptions::default()).unwrap();
    let made = TokenExpander::new(&trace).unwrap();
    assert_eq!(made.vocab_tokens_needed(), 182_790);
    assert_eq!(plan_sessions(&trace, true).unwrap().len(), 12_031);
}
