//! Unit tests of the session room: the reference's measured arrivals, arrivals at a rate, workloads from files.

use super::arrivals::ArrivalTimes;
use super::driver::{Driver, DriverInput};
use super::plan::{ArrivalMode, PlannedSession, PlannedTurn};
use super::workload::Workload;
use crate::ids::RequestId;
use crate::rng::Seed;
use crate::time::{SimSpan, SimTime};
use crate::trace::{ConversationOptions, OnBadRow, ReadOptions, TokenExpander, Trace, conversation_like, write_rows};

fn session(start_ms: f64, turns: &[(u64, f64)]) -> PlannedSession {
    PlannedSession {
        session_id: None,
        start_ms: Some(start_ms),
        turns: turns.iter().map(|(row, delay_ms)| PlannedTurn { row: *row, delay_ms: *delay_ms }).collect(),
    }
}

/// Runs a plan in which every request takes `service_ms`, and returns (row, intended ms) in the order of release.
fn run(mut driver: Driver, service_ms: f64) -> Vec<(u64, f64)> {
    let mut running: Vec<(SimTime, RequestId)> = Vec::new();
    let mut released = Vec::new();
    let mut out = Vec::new();
    loop {
        running.sort();
        let Some(now) = driver.next_deadline().into_iter().chain(running.first().map(|(at, _)| *at)).min() else {
            break;
        };
        while running.first().is_some_and(|(at, _)| *at <= now) {
            let (_, id) = running.remove(0);
            driver.handle(now, DriverInput::Ended { id, session_continues: true });
        }
        driver.advance(now, &mut out);
        for release in out.drain(..) {
            released.push((release.id.0, release.intended.as_ms()));
            running.push((now + SimSpan::from_ms(service_ms), release.id));
        }
    }
    assert!(driver.is_finished());
    released
}

#[test]
fn a_closed_loop_over_requests() {
    let plan: Vec<_> = (0..4).map(|row| session(0.0, &[(row, 0.0)])).collect();
    let driver = Driver::new(plan, ArrivalMode::Concurrency { concurrency: 2 });
    assert_eq!(run(driver, 12.0), [(0, 0.0), (1, 0.0), (2, 12.0), (3, 12.0)]);
}

#[test]
fn a_session_keeps_its_slot_through_its_delays() {
    let plan = vec![session(0.0, &[(0, 0.0), (1, 50.0)]), session(0.0, &[(2, 0.0), (3, 10.0)])];
    let driver = Driver::new(plan, ArrivalMode::Concurrency { concurrency: 1 });
    assert_eq!(run(driver, 12.0), [(0, 0.0), (1, 62.0), (2, 74.0), (3, 96.0)]);
}

#[test]
fn timestamps_and_delays_share_the_speedup() {
    let plan = vec![session(0.0, &[(0, 0.0), (1, 50.0)]), session(30.0, &[(2, 0.0)])];
    let driver = Driver::new(plan, ArrivalMode::Timestamps { arrival_speedup_ratio: 2.0 });
    assert_eq!(run(driver, 12.0), [(0, 0.0), (2, 15.0), (1, 37.0)]);
}

#[test]
fn a_failed_turn_ends_its_session_and_stop_ends_all() {
    let plan = vec![session(0.0, &[(0, 0.0), (1, 0.0)]), session(0.0, &[(2, 0.0)]), session(0.0, &[(3, 0.0)])];
    let mut driver = Driver::new(plan, ArrivalMode::Concurrency { concurrency: 1 });
    let mut out = Vec::new();
    driver.advance(SimTime::ZERO, &mut out);
    driver.handle(SimTime(5), DriverInput::Ended { id: RequestId(0), session_continues: false });
    driver.advance(SimTime(5), &mut out);
    assert_eq!(out.iter().map(|release| release.id.0).collect::<Vec<_>>(), [0, 2]);
    driver.handle(SimTime(6), DriverInput::Stop);
    driver.handle(SimTime(7), DriverInput::Ended { id: RequestId(2), session_continues: true });
    assert!(driver.is_finished());
    let counts = driver.counts();
    assert_eq!((counts.released, counts.ended, counts.dropped, counts.planned), (2, 2, 2, 4));
}

#[test]
fn a_constant_rate_ignores_timestamps_and_scales_no_delay() {
    let plan = vec![session(500.0, &[(0, 0.0), (1, 70.0)]), session(900.0, &[(2, 0.0)]), session(900.0, &[(3, 0.0)])];
    let driver = Driver::new(plan, ArrivalMode::Constant { request_rate: 20.0 });
    assert_eq!(run(driver, 12.0), [(0, 0.0), (2, 50.0), (1, 82.0), (3, 100.0)]);
}

#[test]
fn a_rate_follows_the_order_of_the_file_and_timestamps_their_own() {
    let plan =
        || vec![session(0.0, &[(2, 0.0)]), session(5.0, &[(0, 0.0)]), session(5.0, &[]), session(9.0, &[(1, 0.0)])];
    let rows = |mode| run(Driver::new(plan(), mode), 1.0).iter().map(|(row, _)| *row).collect::<Vec<_>>();
    assert_eq!(rows(ArrivalMode::Constant { request_rate: 1.0 }), [0, 1, 2]);
    assert_eq!(rows(ArrivalMode::Poisson { request_rate: 1.0, seed: 0 }), [0, 1, 2]);
    assert_eq!(rows(ArrivalMode::Timestamps { arrival_speedup_ratio: 1.0 }), [2, 0, 1]);
    let unsorted = [session(30.0, &[(0, 0.0)]), session(0.0, &[(1, 0.0)]), session(30.0, &[(2, 0.0)])];
    let driver = Driver::new(unsorted.to_vec(), ArrivalMode::Timestamps { arrival_speedup_ratio: 2.0 });
    assert_eq!(run(driver, 1.0), [(1, 0.0), (0, 15.0), (2, 15.0)]);
}

#[test]
fn of_turns_that_are_due_together_the_earlier_session_is_sent_first() {
    let plan =
        vec![session(0.0, &[(0, 0.0), (1, 8.0)]), session(0.0, &[(2, 0.0), (3, 7.0)]), session(20.0, &[(4, 0.0)])];
    let driver = Driver::new(plan, ArrivalMode::Timestamps { arrival_speedup_ratio: 1.0 });
    assert_eq!(run(driver, 12.0), [(0, 0.0), (2, 0.0), (3, 19.0), (1, 20.0), (4, 20.0)]);
}

#[test]
fn stop_leaves_out_what_a_rate_would_send() {
    let plan: Vec<_> = (0..5).map(|row| session(0.0, &[(row, 0.0)])).collect();
    let mut driver = Driver::new(plan, ArrivalMode::Constant { request_rate: 1000.0 });
    let mut out = Vec::new();
    driver.advance(SimTime::from_ms(1.5), &mut out);
    assert_eq!((out.len(), driver.next_deadline()), (2, Some(SimTime::from_ms(2.0))));
    driver.handle(SimTime::from_ms(1.5), DriverInput::Stop);
    assert_eq!(driver.next_deadline(), None);
    for id in [RequestId(0), RequestId(1)] {
        assert!(!driver.is_finished());
        driver.handle(SimTime::from_ms(3.0), DriverInput::Ended { id, session_continues: true });
    }
    assert!(driver.is_finished());
    assert_eq!(driver.counts().dropped, 3);
}

fn gaps_ms(mode: ArrivalMode, count: usize) -> Vec<f64> {
    let mut times = ArrivalTimes::of(&mode).unwrap();
    let mut last = times.draw();
    assert_eq!(last, SimTime::ZERO, "the first arrival");
    let mut gap_ms = || {
        let next = times.draw();
        let gap_ms = (next - last).as_ms();
        last = next;
        gap_ms
    };
    (0..count).map(|_| gap_ms()).collect()
}

/// Mean and variance of the gaps, the mean being 1 and exponential gaps having the variance 1.
fn moments(mode: ArrivalMode, mean_ms: f64) -> (f64, f64) {
    let gaps = gaps_ms(mode, 100_000);
    let mean = gaps.iter().sum::<f64>() / gaps.len() as f64 / mean_ms;
    let variance = gaps.iter().map(|gap| (gap / mean_ms - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
    (mean, variance)
}

#[test]
fn gaps_have_the_mean_of_the_rate_and_the_variance_of_the_pattern() {
    let close = |(mean, variance): (f64, f64), expected: f64| {
        // Five standard errors of the mean; the variance of a gamma's variance is 2 + 6/shape times its square.
        let mean_error = 5.0 * (expected / 1e5).sqrt();
        let variance_error = 5.0 * expected * ((2.0 + 6.0 * expected) / 1e5).sqrt();
        assert!((mean - 1.0).abs() < mean_error + 1e-9, "mean {mean}, expected 1 ± {mean_error}");
        assert!((variance - expected).abs() < variance_error + 1e-9, "variance {variance}, expected {expected}");
    };
    close(moments(ArrivalMode::Constant { request_rate: 8.0 }, 125.0), 0.0);
    close(moments(ArrivalMode::Poisson { request_rate: 8.0, seed: 1 }, 125.0), 1.0);
    for smoothness in [0.25, 0.9, 1.0, 4.0, 100.0] {
        let mode = ArrivalMode::Gamma { request_rate: 0.5, smoothness, seed: 1 };
        close(moments(mode, 2000.0), 1.0 / smoothness);
    }
}

#[test]
fn a_seed_gives_the_same_arrivals_and_another_gives_others() {
    let poisson = |seed| gaps_ms(ArrivalMode::Poisson { request_rate: 8.0, seed }, 20);
    let gamma = |seed| gaps_ms(ArrivalMode::Gamma { request_rate: 8.0, smoothness: 2.0, seed }, 20);
    assert_eq!(poisson(5), poisson(5));
    assert_eq!(gamma(5), gamma(5));
    assert_ne!(poisson(5), poisson(6));
    assert_ne!(gamma(5), gamma(6));
    // A hundredth of a rate stretches the same arrivals.
    let slow = gaps_ms(ArrivalMode::Poisson { request_rate: 0.08, seed: 5 }, 20);
    assert!(slow.iter().zip(poisson(5)).all(|(slow, fast)| (slow / fast / 100.0 - 1.0).abs() < 1e-3));
}

#[test]
fn constant_arrivals_do_not_drift() {
    let mut times = ArrivalTimes::of(&ArrivalMode::Constant { request_rate: 3.0 }).unwrap();
    let last = (0..=3_000_000).map(|_| times.draw()).last();
    assert_eq!(last, Some(SimTime::from_ms(1e9)));
}

#[test]
fn values_out_of_range_are_named() {
    let said = |mode: ArrivalMode| mode.validate().map_err(|error| error.to_string());
    assert_eq!(said(ArrivalMode::Constant { request_rate: 0.001 }), Ok(()));
    assert_eq!(said(ArrivalMode::Gamma { request_rate: 1e6, smoothness: 1e6, seed: 0 }), Ok(()));
    assert_eq!(said(ArrivalMode::Concurrency { concurrency: 1 }), Ok(()));
    for (mode, start) in [
        (ArrivalMode::Timestamps { arrival_speedup_ratio: 2e6 }, "`arrival_speedup_ratio` is 2000000, expected"),
        (ArrivalMode::Concurrency { concurrency: 0 }, "`concurrency` is 0, expected a whole number of at least 1"),
        (
            ArrivalMode::Constant { request_rate: f64::NAN },
            "`request_rate` is NaN, expected requests per simulated second",
        ),
        (ArrivalMode::Poisson { request_rate: -2.0, seed: 0 }, "`request_rate` is -2, expected"),
        (ArrivalMode::Gamma { request_rate: 0.0, smoothness: 1.0, seed: 0 }, "`request_rate` is 0, expected"),
        (
            ArrivalMode::Gamma { request_rate: 1.0, smoothness: 0.0, seed: 0 },
            "`arrival_smoothness` is 0, expected a number above 0, from 0.001 to 1000000",
        ),
    ] {
        let error = said(mode).expect_err(start);
        assert!(error.starts_with(start), "{error}");
    }
}

#[test]
fn modes_are_read_by_their_names() {
    let read = |text: &str| serde_json::from_str::<ArrivalMode>(text).map_err(|error| error.to_string());
    let timed = Ok(ArrivalMode::Timestamps { arrival_speedup_ratio: 2.0 });
    assert_eq!(read(r#"{"mode": "timestamps", "speedup_ratio": 2}"#), timed);
    assert_eq!(read(r#"{"mode": "concurrency", "concurrency": 2}"#), Ok(ArrivalMode::Concurrency { concurrency: 2 }));
    let poisson = Ok(ArrivalMode::Poisson { request_rate: 2.0, seed: 0 });
    assert_eq!(read(r#"{"mode": "poisson", "request_rate": 2}"#), poisson);
    let gamma = ArrivalMode::Gamma { request_rate: 2.0, smoothness: 0.5, seed: 3 };
    assert_eq!(read(r#"{"mode": "gamma", "request_rate": 2, "smoothness": 0.5, "seed": 3}"#), Ok(gamma));
    assert_eq!(read(&serde_json::to_string(&gamma).unwrap()), Ok(gamma));
    assert!(read(r#"{"mode": "constant", "request_rate": 2, "seed": 3}"#).is_err(), "constant has no seed");
}

/// The message for a trace of these lines, without the path.
fn refused(lines: &str, on_bad_row: OnBadRow) -> String {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, lines).unwrap();
    let options = ReadOptions { on_bad_row, ..ReadOptions::default() };
    let error = Workload::from_trace(&path, &options, true).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn a_row_that_cannot_be_read_is_named_before_one_that_does_not_fit_its_session() {
    let misfit = r#"{"delay": 3, "timestamp": 0, "input_length": 5, "output_length": 1}"#;
    let bad = r#"{"timestamp": 0, "input_length": 0, "output_length": 1}"#;
    let said = |lines: [&str; 2], on_bad_row| refused(&lines.join("\n"), on_bad_row);
    assert!(said([misfit, bad], OnBadRow::Fail).starts_with("trace.jsonl:2:34: `input_length` is 0, "));
    let alone = said([misfit, misfit], OnBadRow::Fail);
    assert!(alone.starts_with("trace.jsonl:1: `delay` is given for the first turn") && !alone.contains("hint"));
    let skipped = said([misfit, bad], OnBadRow::Skip);
    assert!(skipped.starts_with("trace.jsonl:1: ") && skipped.contains("hint: 1 bad rows were left out"), "{skipped}");
}

#[test]
fn a_workload_is_the_same_from_a_file_and_from_rows() {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    let options = ConversationOptions { name_sessions: true, ..ConversationOptions::default() };
    let rows = conversation_like(Seed(4), 300, &options);
    write_rows(&path, &rows).unwrap();
    let trace = Trace::from_rows("rows", 512, rows);
    let from_rows = Workload::from_rows("trace".to_owned(), &trace, true).unwrap();
    let from_file = Workload::from_trace(&path, &ReadOptions::default(), true).unwrap();
    assert_eq!(format!("{from_file:?}"), format!("{from_rows:?}"));
    let expander = TokenExpander::new(&trace).unwrap();
    for (index, item) in from_file.items.iter().enumerate() {
        assert_eq!(Some(&item.prompt), expander.prompt(index));
        assert_eq!(item.input_tokens, item.prompt.len_tokens());
    }
}
