//! Tests of the trace room: stats.

use super::super::*;
use super::row;

#[test]
fn only_prefixes_are_reused_and_only_as_far_as_the_prompt() {
    let mut rows = vec![row(8, &[1, 2]), row(7, &[1, 2]), row(12, &[1, 3, 2]), row(5, &[]), row(4, &[9])];
    for (row, timestamp_ms) in rows.iter_mut().zip([10.0, 5.0, 10.0, 25.0]) {
        row.timestamp_ms = Some(timestamp_ms);
    }
    let stats = TraceStats::of(&rows, 4);
    assert_eq!((stats.rows, stats.total_blocks, stats.distinct_blocks), (5, 8, 4));
    assert_eq!((stats.reused_blocks, stats.reused_tokens), (3, 11));
    assert_eq!((stats.input.sum_tokens, stats.input.min_tokens, stats.input.max_tokens), (36, 4, 12));
    assert_eq!(stats.input.mean_tokens, 7.2);
    assert_eq!((stats.duration_ms, stats.distinct_timestamps, stats.rows_without_timestamp), (20.0, 3, 1));
    assert_eq!(stats.infinite_cache_reused_block_ratio(), 0.375);
}

#[test]
fn no_rows_give_zeroes() {
    let stats = TraceStats::of(&[], 512);
    assert_eq!(stats, TraceStats::default());
    assert_eq!(stats.infinite_cache_reused_token_ratio(), 0.0);
}

/// File, rows, mean lengths, longest prompt, blocks, distinct blocks, reuse in % of blocks and of tokens, last
/// timestamp, distinct timestamps: the figures published for the trace.
type Published = (&'static str, u64, f64, f64, u32, u64, u64, f64, f64, f64, u64);

const PUBLISHED: [Published; 3] = [
    (
        "conversation_trace.jsonl.gz",
        12_031,
        12_035.06,
        342.62,
        126_195,
        288_500,
        182_790,
        36.64,
        37.36,
        3_536_999.0,
        1_180,
    ),
    (
        "toolagent_reconstructed.jsonl.gz",
        23_608,
        8_596.24,
        182.13,
        126_195,
        409_616,
        183_300,
        55.25,
        57.03,
        3_536_999.0,
        1_180,
    ),
    ("toolagent_head1000.jsonl", 1_000, 9_798.42, 199.08, 121_298, 19_702, 12_223, 37.96, 39.05, 174_000.0, 59),
];

#[test]
fn real_traces_have_their_published_figures() {
    for (name, rows, isl, osl, max_isl, blocks, distinct, block_hit, token_hit, last_ms, timestamps) in PUBLISHED {
        let Some(path) = super::real_trace(name) else { continue };
        let trace = read_all(&path, &ReadOptions::default()).unwrap();
        let stats = TraceStats::of(&trace.rows, trace.block_tokens);
        let round = |value: f64| (value * 100.0).round() / 100.0;
        assert_eq!((stats.rows, stats.total_blocks, stats.distinct_blocks), (rows, blocks, distinct), "{name}");
        assert_eq!((round(stats.input.mean_tokens), round(stats.output.mean_tokens)), (isl, osl), "{name}");
        assert_eq!((stats.input.max_tokens, stats.distinct_timestamps), (max_isl, timestamps), "{name}");
        assert_eq!(round(stats.infinite_cache_reused_block_ratio() * 100.0), block_hit, "{name}");
        assert_eq!(round(stats.infinite_cache_reused_token_ratio() * 100.0), token_hit, "{name}");
        assert!((stats.duration_ms - last_ms).abs() < 1000.0, "{name}: {}", stats.duration_ms);
    }
}
