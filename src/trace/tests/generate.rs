//! Generated against real, both measured by [`TraceStats`]. Real: the public conversation trace. Generated: the mean
//! over the seeds 0 to 9 and, in brackets, the lowest and the highest.
//!
//! | figure | real | generated |
//! |---|---|---|
//! | reuse of blocks, 12,031 rows (%) | 36.64 | 36.60 (34.99–37.43) |
//! | reuse of tokens, 12,031 rows (%) | 37.36 | 37.35 (35.73–38.18) |
//! | reuse of blocks, first 4,000 rows (%) | 32.56 | 32.70 (30.99–33.98) |
//! | reuse of blocks, first 2,000 rows (%) | 28.91 | 28.30 (27.11–29.63) |
//! | reuse of blocks, first 1,000 rows (%) | 21.21 | 22.03 (18.64–25.86) |
//! | reuse of blocks, first 500 rows (%) | 16.12 | 14.41 (11.36–17.79) |
//! | reuse of blocks, first 250 rows (%) | 6.32 | 8.11 (5.98–12.05) |
//! | prompt tokens, mean | 12,035 | 11,993 (11,498–12,339) |
//! | prompt tokens, 25/50/75/90/99 % | 2,306/6,909/15,366/27,367/85,399 | 2,137/6,313/14,606/28,418/88,450 |
//! | prompt tokens, smallest and largest | 891 and 126,195 | 891 and 126,195 |
//! | output tokens, mean | 342.6 | 341.0 (337.4–345.3) |
//! | output tokens, 50/90/99 % | 350/597/1,115 | 349/596/1,108 |
//! | blocks, all and distinct | 288,500 and 182,790 | 287,603 and 182,325 |
//! | seconds, ticks | 3,537 and 1,180 | 3,538 and 1,180 |
//! | rows that open a conversation (%) | 61.3 | 64.8 |
//!
//! The length tables are fitted to these quantiles, and chances, gap and rate were tuned by hand on these same ten seeds.
//! Seeds that took no part, 100 to 139, give: reuse of blocks 36.84 (35.86–38.17) % in all rows and 22.09 (16.55–25.09) %
//! in the first 1,000; prompt tokens 12,047 (11,528–12,543); output tokens 341.9 (338.6–345.5).
//!
//! Not modelled: the public trace's prompts get shorter over its hour (13,733 tokens in the first 1,000 rows, against
//! 11,850 generated) while their rate rises from 3.0 to 3.7 a second.

use rustc_hash::FxHashSet;

use super::super::*;
use crate::rng::Seed;

const SEEDS: u64 = 10;
const ROWS: u64 = 12_031;

fn generated(seed: u64, requests: u64) -> Vec<TraceRow> {
    conversation_like(Seed(seed), requests, &ConversationOptions::default())
}

/// Rows that share no more than the first block with any row before, in percent.
fn opening_percent(rows: &[TraceRow]) -> f64 {
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    let mut opening = 0u32;
    for row in rows {
        let matched = row.hash_ids.iter().take_while(|hash| seen.contains(*hash)).count();
        opening += u32::from(matched <= 1);
        seen.extend(row.hash_ids.iter());
    }
    f64::from(opening) * 100.0 / rows.len() as f64
}

/// Fails unless `found` is within `room` of `real`.
fn close(what: &str, found: f64, real: f64, room: f64) {
    assert!((found - real).abs() <= room, "{what}: generated {found:.3}, real {real:.3}, may differ by {room:.3}");
}

#[test]
fn each_seed_is_close_to_the_public_trace() {
    for seed in 0..SEEDS {
        let rows = generated(seed, ROWS);
        let stats = TraceStats::of(&rows, 512);
        close("prompt tokens", stats.input.mean_tokens, 12_035.06, 1_200.0);
        close("output tokens", stats.output.mean_tokens, 342.62, 34.0);
        close("reuse of blocks in %", stats.infinite_cache_reused_block_ratio() * 100.0, 36.64, 3.0);
        close("reuse of tokens in %", stats.infinite_cache_reused_token_ratio() * 100.0, 37.36, 3.0);
        close("seconds", stats.duration_ms / 1e3, 3_537.0, 180.0);
        close("ticks", stats.distinct_timestamps as f64, 1_180.0, 60.0);
        close("blocks", stats.total_blocks as f64, 288_500.0, 28_850.0);
        close("distinct blocks", stats.distinct_blocks as f64, 182_790.0, 18_279.0);
        close("openings in %", opening_percent(&rows), 61.3, 5.0);
        assert_eq!((stats.input.min_tokens, stats.input.max_tokens), (891, 126_195), "seed {seed}");
        let head = TraceStats::of(&rows[..1000], 512);
        close(
            "reuse of blocks in the first 1,000 rows in %",
            head.infinite_cache_reused_block_ratio() * 100.0,
            21.21,
            6.0,
        );
    }
}

#[test]
fn the_mean_over_seeds_warms_up_as_the_public_trace_does() {
    let traces: Vec<Vec<TraceRow>> = (0..SEEDS).map(|seed| generated(seed, ROWS)).collect();
    for (first, real) in
        [(250, 6.32), (500, 16.12), (1000, 21.21), (2000, 28.91), (4000, 32.56), (8000, 35.08), (12_031, 36.64)]
    {
        let reuse = |rows: &Vec<TraceRow>| TraceStats::of(&rows[..first], 512).infinite_cache_reused_block_ratio();
        let mean = traces.iter().map(reuse).sum::<f64>() / SEEDS as f64;
        close(&format!("reuse of blocks in the first {first} rows in %"), mean * 100.0, real, 2.0);
    }
}

#[test]
fn rows_have_the_form_of_the_public_trace() {
    let rows = generated(5, 4000);
    let mut next_hash = 0;
    let mut last_ms = 0.0;
    let mut seen: FxHashSet<u64> = FxHashSet::default();
    for (index, row) in rows.iter().enumerate() {
        assert_eq!((row.row, row.line), (index as u64, index as u64 + 1));
        assert_eq!(row.hash_ids.len(), row.input_tokens.div_ceil(512) as usize);
        assert_eq!(row.hash_ids[0], 0, "the system prompt comes first");
        assert!(row.hash_ids.is_sorted_by(|a, b| a < b));
        let known = row.hash_ids.iter().take_while(|hash| seen.contains(*hash)).count();
        for hash in &row.hash_ids[known..] {
            assert_eq!(*hash, next_hash, "hashes are counted up, and nothing is reused after a gap");
            next_hash += 1;
        }
        seen.extend(row.hash_ids.iter());
        let timestamp_ms = row.timestamp_ms.unwrap();
        assert!(timestamp_ms >= last_ms && timestamp_ms.fract() == 0.0);
        last_ms = timestamp_ms;
        assert!((1..=2000).contains(&row.output_tokens));
        assert_eq!(row.session_id, None);
    }
    assert_eq!(rows[0].timestamp_ms, Some(0.0));
}

#[test]
fn few_rows_are_the_beginning_of_many() {
    let many = generated(7, 500);
    assert_eq!(generated(7, 200), many[..200]);
    assert_ne!(generated(8, 200), many[..200]);
    assert!(generated(7, 0).is_empty());
}

#[test]
fn named_sessions_can_be_planned() {
    let options = ConversationOptions { name_sessions: true, ..ConversationOptions::default() };
    let rows = conversation_like(Seed(0), 2000, &options);
    let sessions = plan_sessions(&Trace::from_rows("generated", 512, rows), true).unwrap();
    assert_eq!(sessions.iter().map(|session| session.turns.len()).sum::<usize>(), 2000);
    assert!(sessions.len() < 1600, "{} sessions", sessions.len());
    assert_eq!(sessions[0].start_ms, Some(0.0));
}

#[test]
fn odd_options_give_rows_all_the_same() {
    let base = ConversationOptions::default();
    for options in [
        ConversationOptions { block_tokens: 0, ..base },
        ConversationOptions { block_tokens: u32::MAX, ..base },
        ConversationOptions { block_tokens: 64, tick_ms: 1, ..base },
        ConversationOptions { requests_per_second: 0.0, ..base },
        ConversationOptions { requests_per_second: f64::NAN, ..base },
        ConversationOptions { requests_per_second: -3.0, tick_ms: 0, ..base },
        ConversationOptions { tick_ms: u32::MAX, ..base },
    ] {
        let rows = conversation_like(Seed(1), 50, &options);
        assert_eq!(rows.len(), 50, "{options:?}");
        assert!(rows.is_sorted_by(|a, b| a.timestamp_ms <= b.timestamp_ms), "{options:?}");
    }
}

#[test]
fn the_rate_is_the_one_asked_for() {
    for rate in [0.5, 20.0] {
        let options = ConversationOptions { requests_per_second: rate, tick_ms: 0, ..ConversationOptions::default() };
        let rows = conversation_like(Seed(2), 6000, &options);
        let seconds = TraceStats::of(&rows, 512).duration_ms / 1e3;
        close("requests per second", 6000.0 / seconds, rate, rate * 0.07);
    }
}
