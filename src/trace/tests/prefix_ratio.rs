//! Tests of the trace room: prefix_ratio.

use std::collections::BTreeSet;

use super::super::*;
use crate::rng::Seed;

fn workload(seed: u64, prefix_ratio: f64) -> PrefixWorkload {
    super::super::prefix_ratio(Seed(seed), &PrefixRatioOptions { prefix_ratio, ..PrefixRatioOptions::default() })
        .unwrap()
}

/// Part of all prompt tokens that one cache of blocks without eviction reuses.
fn reused_ratio(made: &PrefixWorkload, engine_block: usize) -> f64 {
    let mut seen: BTreeSet<Vec<u32>> = BTreeSet::new();
    let (mut reused, mut total) = (0usize, 0usize);
    for request in &made.requests {
        let tokens = request.prompt.tokens();
        let blocks = tokens.chunks_exact(engine_block);
        let mut matching = true;
        for block in blocks {
            matching &= !seen.insert(block.to_vec());
            reused += if matching { engine_block } else { 0 };
        }
        total += tokens.len();
    }
    reused as f64 / total as f64
}

#[test]
fn lengths_follow_the_options() {
    for (ratio, prefix_tokens, suffix_mean) in
        [(0.1, 1400, 12600.0), (0.5, 7000, 7000.0), (0.7, 9800, 4200.0), (0.9, 12600, 1399.0)]
    {
        let made = workload(0, ratio);
        assert_eq!(made.requests.len(), 200);
        assert!(made.requests.iter().all(|request| request.prefix_tokens == prefix_tokens));
        let mean =
            |value: fn(&PrefixRequest) -> u32| made.requests.iter().map(|r| f64::from(value(r))).sum::<f64>() / 200.0;
        // The mean of 200 draws strays by a quarter of the mean over √200; four times that is far.
        assert!((mean(|r| r.suffix_tokens) / suffix_mean - 1.0).abs() < 0.07, "ratio {ratio}");
        assert!((mean(|r| r.output_tokens) / 200.0 - 1.0).abs() < 0.07, "ratio {ratio}");
        for request in &made.requests {
            assert_eq!(request.prompt.len_tokens(), request.prefix_tokens + request.suffix_tokens);
            assert!(request.suffix_tokens >= 1 && request.output_tokens >= 1 && request.group < 20);
        }
    }
}

#[test]
fn reuse_is_what_the_groups_share() {
    for ratio in [0.1, 0.5, 0.9] {
        let made = workload(3, ratio);
        let groups: BTreeSet<u32> = made.requests.iter().map(|request| request.group).collect();
        let tokens: f64 = made.requests.iter().map(|request| f64::from(request.prompt.len_tokens())).sum();
        let whole_blocks = f64::from(made.requests[0].prefix_tokens / 64 * 64);
        let expected = whole_blocks * (200.0 - groups.len() as f64) / tokens;
        assert!((reused_ratio(&made, 64) - expected).abs() < 1e-9, "ratio {ratio}");
        assert!((expected - 0.9 * ratio).abs() < 0.03, "ratio {ratio}: {expected}");
    }
}

#[test]
fn no_block_of_a_suffix_is_met_in_another_request() {
    let made = workload(1, 0.5);
    for engine_block in [1, 16, 64, 100] {
        let mut seen: BTreeSet<Vec<u32>> = BTreeSet::new();
        for request in &made.requests {
            let tokens = request.prompt.tokens();
            let suffix = &tokens[request.prefix_tokens as usize..];
            let own: BTreeSet<Vec<u32>> = suffix.chunks_exact(engine_block).map(<[u32]>::to_vec).collect();
            assert!(own.is_disjoint(&seen), "a block of {engine_block} tokens is met twice");
            seen.extend(own);
        }
    }
}

#[test]
fn token_ids_stay_in_the_vocabulary_and_differ_between_seeds() {
    let mut starts = BTreeSet::new();
    for (seed, ratio) in [(0, 0.1), (1, 0.3), (2, 0.5), (3, 0.7), (4, 0.9), (5, 0.0), (6, 1.0)] {
        let made = workload(seed, ratio);
        let highest = made.requests.iter().map(|request| request.prompt.vocab_tokens_needed()).max();
        assert_eq!(highest, Some(made.vocab_tokens_needed));
        assert!(made.vocab_tokens_needed <= DEFAULT_VOCAB_TOKENS);
        assert!(starts.insert(made.first_token));
    }
}

#[test]
fn the_same_seed_gives_the_same_requests_however_many_follow() {
    let options = PrefixRatioOptions { first_token: Some(0), ..PrefixRatioOptions::default() };
    let few = super::super::prefix_ratio(Seed(9), &PrefixRatioOptions { requests: 50, ..options }).unwrap();
    let many = super::super::prefix_ratio(Seed(9), &options).unwrap();
    assert_eq!(few.requests, many.requests[..50]);
    assert_eq!(few.first_token, 0);
    assert_ne!(many.requests, super::super::prefix_ratio(Seed(8), &options).unwrap().requests);
}

#[test]
fn a_ratio_of_one_leaves_a_suffix_of_one_token() {
    let made = workload(0, 1.0);
    assert!(made.requests.iter().all(|request| request.suffix_tokens == 1 && request.prefix_tokens == 14_000));
    let made = workload(0, 0.0);
    assert!(made.requests.iter().all(|request| request.prompt.segments().len() == 1));
}

#[test]
fn impossible_options_are_refused() {
    let base = PrefixRatioOptions::default();
    let refused = |options: PrefixRatioOptions| super::super::prefix_ratio(Seed(0), &options).unwrap_err().to_string();
    assert_eq!(refused(PrefixRatioOptions { requests: 0, ..base }), "`num_requests` is 0, expected at least 1");
    assert_eq!(
        refused(PrefixRatioOptions { num_prefix_groups: 0, ..base }),
        "`num_prefix_groups` is 0, expected at least 1"
    );
    assert_eq!(refused(PrefixRatioOptions { block_tokens: 0, ..base }), "`block_tokens` is 0, expected at least 1");
    assert_eq!(
        refused(PrefixRatioOptions { prefix_ratio: 1.5, ..base }),
        "`prefix_ratio` is 1.5, expected a number from 0 to 1"
    );
    assert_eq!(
        refused(PrefixRatioOptions { prefix_ratio: f64::NAN, ..base }),
        "`prefix_ratio` is NaN, expected a number from 0 to 1"
    );
    let needs_too_many = PrefixRatioOptions { first_token: Some(u32::MAX - 10), ..base };
    assert_eq!(refused(needs_too_many), "the workload needs more than 4294967295 token ids");
    let huge =
        PrefixRatioOptions { isl_tokens: u32::MAX, num_prefix_groups: u32::MAX, block_tokens: 1, requests: 2, ..base };
    assert_eq!(refused(huge), "the workload needs more than 4294967295 token ids");
}
