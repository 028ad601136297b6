//! The prefix-ratio workload: prompts that share a given part of their length with the others of their group.
//!
//! Each request draws one of the groups uniformly, so groups differ in size. Its prompt is the group's prefix,
//! `isl_tokens × prefix_ratio` tokens, followed by a suffix of its own; prefix and suffix meet at a token, not at a
//! block. Suffix and output lengths are normal with a deviation of a quarter of the mean, redrawn while negative,
//! rounded up, and at least 1.
//!
//! With a single cache that never evicts, about `r · (1 − G·(1 − (1 − 1/G)^N) / N)` of the prompt tokens are reused (r the
//! ratio, G groups, N requests): 0.9·r for the defaults.
//!
//! Token ids start at a point that the seed chooses, so that workloads of different seeds find nothing of each other in
//! a cache that was left warm.

use rand::RngExt;
use rand_distr::{Distribution, Normal};

use super::error::WorkloadError;
use super::prompt::{PromptPlan, Segment};
use crate::rng::{Rng, Seed};

/// Vocabulary that generated token ids stay below as long as the workload's sizes allow it.
pub const DEFAULT_VOCAB_TOKENS: u32 = 1 << 20;

/// Draws before a normal length is given up as always negative.
const MAX_REDRAWS: u32 = 10_000;

/// Sizes of a prefix-ratio workload.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PrefixRatioOptions {
    /// Mean prompt length, in tokens.
    pub isl_tokens: u32,
    /// Mean output length, in tokens.
    pub osl_tokens: u32,
    /// Number of requests.
    pub requests: u64,
    /// Number of groups that share a prefix each.
    pub num_prefix_groups: u32,
    /// Part of the mean prompt length that is shared, from 0 to 1.
    pub prefix_ratio: f64,
    /// Tokens that carry the same id in a row; smaller values need a larger vocabulary. No effect on what is shared.
    pub block_tokens: u32,
    /// Token id to start from; `None`: a point that the seed chooses.
    pub first_token: Option<u32>,
}

impl Default for PrefixRatioOptions {
    fn default() -> Self {
        PrefixRatioOptions {
            isl_tokens: 14_000,
            osl_tokens: 200,
            requests: 200,
            num_prefix_groups: 20,
            prefix_ratio: 0.5,
            block_tokens: 64,
            first_token: None,
        }
    }
}

/// One request of a prefix-ratio workload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixRequest {
    /// The group whose prefix the prompt starts with, from 0.
    pub group: u32,
    /// Length of the shared prefix, in tokens.
    pub prefix_tokens: u32,
    /// Length of the request's own suffix, in tokens; at least 1.
    pub suffix_tokens: u32,
    /// Output length, in tokens; at least 1.
    pub output_tokens: u32,
    /// The prompt: prefix, then suffix.
    pub prompt: PromptPlan,
}

/// A prefix-ratio workload.
#[derive(Clone, Debug, PartialEq)]
pub struct PrefixWorkload {
    /// The requests, in the order in which they are sent.
    pub requests: Vec<PrefixRequest>,
    /// The smallest token id that a prompt uses.
    pub first_token: u32,
    /// The smallest vocabulary that holds every token id of the prompts; another workload may start here.
    pub vocab_tokens_needed: u32,
}

/// Generates a prefix-ratio workload. The same seed and options give the same workload; a request's lengths and group
/// do not depend on how many requests follow.
pub fn prefix_ratio(seed: Seed, options: &PrefixRatioOptions) -> Result<PrefixWorkload, WorkloadError> {
    check(options)?;
    let isl_tokens = f64::from(options.isl_tokens);
    // The conversions cut towards zero, as the source benchmark's `int()` does: 14000 × (1 − 0.9) gives 1399.
    let prefix_tokens = (isl_tokens * options.prefix_ratio) as u32;
    let suffix_mean_tokens = (isl_tokens * (1.0 - options.prefix_ratio)) as u32;
    let seed = seed.split("prefix ratio");

    let draws: Vec<Draw> = (0..options.requests)
        .map(|index| {
            let mut rng = seed.nth(index).rng();
            Draw {
                group: rng.random_range(0..options.num_prefix_groups),
                suffix_tokens: length_tokens(&mut rng, suffix_mean_tokens),
                output_tokens: length_tokens(&mut rng, options.osl_tokens),
            }
        })
        .collect();

    let run_tokens = options.block_tokens;
    let prefix_ids = u64::from(prefix_tokens.div_ceil(run_tokens));
    let suffix_ids: u64 = draws.iter().map(|draw| u64::from(draw.suffix_tokens.div_ceil(run_tokens))).sum();
    let needed = u64::from(options.num_prefix_groups) * prefix_ids + suffix_ids;
    let first_token = first_token(seed, options, needed)?;

    // No overflow from here on: `first_token` saw to it that all ids fit.
    let group_token = |group: u32| first_token + group * prefix_ids as u32;
    let mut next = group_token(options.num_prefix_groups);
    let requests = draws
        .into_iter()
        .map(|draw| {
            let prefix = Segment { first_token: group_token(draw.group), tokens: prefix_tokens, run_tokens };
            let suffix = Segment { first_token: next, tokens: draw.suffix_tokens, run_tokens };
            next = suffix.end_token();
            PrefixRequest {
                group: draw.group,
                prefix_tokens,
                suffix_tokens: draw.suffix_tokens,
                output_tokens: draw.output_tokens,
                prompt: PromptPlan::new([prefix, suffix]),
            }
        })
        .collect();
    Ok(PrefixWorkload { requests, first_token, vocab_tokens_needed: next })
}

struct Draw {
    group: u32,
    suffix_tokens: u32,
    output_tokens: u32,
}

fn check(options: &PrefixRatioOptions) -> Result<(), WorkloadError> {
    let at_least_1 = [
        ("isl", u64::from(options.isl_tokens)),
        ("osl", u64::from(options.osl_tokens)),
        ("num_requests", options.requests),
        ("num_prefix_groups", u64::from(options.num_prefix_groups)),
        ("block_tokens", u64::from(options.block_tokens)),
    ];
    for (option, value) in at_least_1 {
        if value == 0 {
            return Err(WorkloadError::Option { option, found: "0".to_owned(), expected: "at least 1" });
        }
    }
    if !(0.0..=1.0).contains(&options.prefix_ratio) {
        let found = options.prefix_ratio.to_string();
        return Err(WorkloadError::Option { option: "prefix_ratio", found, expected: "a number from 0 to 1" });
    }
    if options.requests > u64::from(u32::MAX) {
        // Each request needs an id for its suffix.
        return Err(WorkloadError::TooManyTokens);
    }
    Ok(())
}

/// Where the ids of the workload start, such that all `needed` of them fit.
fn first_token(seed: Seed, options: &PrefixRatioOptions, needed: u64) -> Result<u32, WorkloadError> {
    let free = u64::from(DEFAULT_VOCAB_TOKENS).saturating_sub(needed);
    let first = options.first_token.map_or_else(|| seed.split("first token").0 % (free + 1), u64::from);
    if first + needed > u64::from(u32::MAX) {
        return Err(WorkloadError::TooManyTokens);
    }
    Ok(first as u32)
}

/// A length around `mean_tokens` with a deviation of a quarter of it (halves rounded to even), at least 1.
fn length_tokens(rng: &mut Rng, mean_tokens: u32) -> u32 {
    let mean = f64::from(mean_tokens);
    let deviation = (mean / 4.0).round_ties_even();
    let Ok(normal) = Normal::new(mean, deviation) else {
        return mean_tokens.max(1);
    };
    let drawn = (0..MAX_REDRAWS).map(|_| normal.sample(rng)).find(|length| *length >= 0.0).unwrap_or(mean);
    (drawn.ceil() as u32).max(1)
}
