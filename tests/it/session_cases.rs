//! Sessions and closed loops over a real engine: the reference's measured runs, from trace rows to tokens.
//!
//! One engine, blocks of 4 tokens, 10 ms for a step's prefill part and 2 ms for its decode part, so that a request of two
//! tokens that is alone takes 12 ms.

use std::io::Write;

use mockfleet::engine::{EngineConfig, TimingModel};
use mockfleet::router::RouterConfig;
use mockfleet::session::plan::ArrivalMode;
use mockfleet::session::workload::Workload;
use mockfleet::sim::ReplayConfig;
use mockfleet::sim::life::RequestLife;
use mockfleet::trace::ReadOptions;

use crate::golden::Scenario;

const ONE_BY_ONE: ArrivalMode = ArrivalMode::Concurrency { concurrency: 1 };
const TWO_AT_A_TIME: ArrivalMode = ArrivalMode::Concurrency { concurrency: 2 };
const TIMESTAMPS: ArrivalMode = ArrivalMode::Timestamps { arrival_speedup_ratio: 1.0 };
const TWICE_AS_FAST: ArrivalMode = ArrivalMode::Timestamps { arrival_speedup_ratio: 2.0 };

/// What becomes of each row of a trace.
fn lives(rows: &str, mode: ArrivalMode) -> Vec<RequestLife> {
    let mut trace = tempfile::NamedTempFile::new().expect("a temporary file");
    trace.write_all(rows.as_bytes()).expect("a temporary file");
    let options = ReadOptions { block_tokens: 4, ..ReadOptions::default() };
    let need_timestamps = matches!(mode, ArrivalMode::Timestamps { .. });
    let workload = Workload::from_trace(trace.path(), &options, need_timestamps).expect("a trace");
    let engine = EngineConfig {
        num_gpu_blocks: 1000,
        block_size: 4,
        timing_model: TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 },
        ..EngineConfig::default()
    };
    let config = ReplayConfig::aggregated(vec![engine], RouterConfig::default(), mode, 0);
    let run = Scenario { name: "sessions".to_owned(), config, workload }.drive();
    assert!(run.lives.iter().all(RequestLife::completed), "{:?}", run.lives);
    run.lives
}

fn arrivals(rows: &str, mode: ArrivalMode) -> Vec<f64> {
    lives(rows, mode).iter().map(|life| life.arrival.as_ms()).collect()
}

/// Two sessions: a thinks for 50 ms, b for 10 ms.
const TWO_SESSIONS: &str = r#"
{"session_id": "a", "timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}
{"session_id": "a", "delay": 50, "input_length": 12, "output_length": 2, "hash_ids": [1, 2, 3]}
{"session_id": "b", "timestamp": 5, "input_length": 8, "output_length": 2, "hash_ids": [11, 12]}
{"session_id": "b", "delay": 10, "input_length": 12, "output_length": 2, "hash_ids": [11, 12, 13]}
"#;

#[test]
fn a_turn_follows_the_answer_before_it() {
    let lives = lives(TWO_SESSIONS, TIMESTAMPS);
    let told: Vec<(f64, f64, f64)> = lives
        .iter()
        .map(|life| {
            let arrival_ms = life.arrival.as_ms();
            let ttft_ms = life.first_token.as_ms().expect("a first token") - arrival_ms;
            (arrival_ms, ttft_ms, life.last_token.as_ms().expect("a last token") - arrival_ms)
        })
        .collect();
    // Arrival, time to first token, time to last token; the second token of a's first turn waits for b's prefill.
    assert_eq!(told, [(0.0, 10.0, 22.0), (72.0, 10.0, 12.0), (5.0, 17.0, 19.0), (34.0, 10.0, 12.0)]);
    let reused: u32 = lives.iter().map(|life| life.admissions[0].reused_tokens).sum();
    let input: u32 = lives.iter().map(|life| life.input_tokens).sum();
    assert_eq!((reused, input), (16, 40), "0.4 of the input");
}

#[test]
fn a_speedup_of_arrivals_divides_starts_and_delays() {
    // a: 22 and 22 + 25; b's prefill from 10 ms on ends with a's second token.
    assert_eq!(arrivals(TWO_SESSIONS, TWICE_AS_FAST), [0.0, 47.0, 2.5, 29.0]);
}

#[test]
fn a_session_keeps_its_place_while_it_thinks() {
    assert_eq!(arrivals(TWO_SESSIONS, ONE_BY_ONE), [0.0, 62.0, 74.0, 96.0]);
}

#[test]
fn the_next_session_enters_when_one_has_ended() {
    let third = r#"{"session_id": "c", "timestamp": 9, "input_length": 8, "output_length": 2, "hash_ids": [21, 22]}"#;
    let rows = format!("{TWO_SESSIONS}{third}\n");
    assert_eq!(arrivals(&rows, TWO_AT_A_TIME), [0.0, 62.0, 0.0, 22.0, 34.0]);
}

#[test]
fn a_closed_loop_over_single_requests_ignores_timestamps() {
    let row = |timestamp: u32, hash: u32| {
        format!(r#"{{"timestamp": {timestamp}, "input_length": 4, "output_length": 2, "hash_ids": [{hash}]}}"#)
    };
    let rows = [row(0, 1), row(7, 2), row(1000, 3), row(5000, 4)].join("\n");
    assert_eq!(arrivals(&rows, TWO_AT_A_TIME), [0.0, 0.0, 12.0, 12.0]);
}

#[test]
fn a_delay_is_the_difference_of_two_timestamps_where_none_is_given() {
    let rows = r#"
{"session_id": "a", "timestamp": 0, "input_length": 8, "output_length": 2, "hash_ids": [1, 2]}
{"session_id": "a", "timestamp": 30, "input_length": 12, "output_length": 2, "hash_ids": [1, 2, 3]}
"#;
    assert_eq!(arrivals(rows, TIMESTAMPS), [0.0, 42.0]);
}

#[test]
fn the_first_arrival_is_the_start_of_the_run() {
    let rows = r#"
{"timestamp": 1030, "input_length": 4, "output_length": 1, "hash_ids": [1]}
{"timestamp": 1000, "input_length": 4, "output_length": 1, "hash_ids": [2]}
"#;
    assert_eq!(arrivals(rows, TIMESTAMPS), [30.0, 0.0]);
}
