//! Unit tests of the session room: the reference's measured arrivals.

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
    let plan = (0..4).map(|row| session(0.0, &[(row, 0.0)])).collect();
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

/// The message for a trace of these lines, without the path.
fn refused(lines: &str) -> String {
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    std::fs::write(&path, lines).unwrap();
    let options = ReadOptions { on_bad_row: OnBadRow::Fail, ..ReadOptions::default() };
    let error = Workload::from_trace(&path, &options, true).unwrap_err().to_string();
    error.replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn a_row_that_cannot_be_read_is_named_before_one_that_does_not_fit_its_session() {
    let misfit = r#"{"delay": 3, "timestamp": 0, "input_length": 5, "output_length": 1}"#;
    let bad = r#"{"timestamp": 0, "input_length": 0, "output_length": 1}"#;
    assert!(refused(&format!("{misfit}\n{bad}\n")).starts_with("trace.jsonl:2:34: `input_length` is 0, "));
    assert!(
        refused(&format!("{misfit}\n{misfit}\n")).starts_with("trace.jsonl:1: `delay` is given for the first turn")
    );
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
