//! Tests of the trace room: sessions.

use super::super::*;
use super::row;

/// A turn: session, timestamp and delay in milliseconds.
type Turn<'a> = (Option<&'a str>, Option<f64>, Option<f64>);

fn trace(turns: &[Turn<'_>]) -> Trace {
    let rows = turns.iter().enumerate().map(|(index, (session, timestamp_ms, delay_ms))| TraceRow {
        row: index as u64,
        line: index as u64 + 1,
        session_id: session.map(str::to_owned),
        timestamp_ms: *timestamp_ms,
        delay_ms: *delay_ms,
        ..row(8, &[])
    });
    Trace::from_rows("t.jsonl", 512, rows.collect())
}

/// A session: its start, and row and delay of each turn.
type Planned = (Option<f64>, Vec<(usize, f64)>);

fn plan(turns: &[Turn<'_>]) -> Vec<Planned> {
    let sessions = plan_sessions(&trace(turns), false).unwrap();
    let turns = |session: &SessionPlan| session.turns.iter().map(|turn| (turn.row_index, turn.delay_ms)).collect();
    sessions.iter().map(|session| (session.start_ms, turns(session))).collect()
}

fn fails(turns: &[Turn<'_>], need_timestamps: bool) -> String {
    plan_sessions(&trace(turns), need_timestamps).unwrap_err().to_string()
}

#[test]
fn rows_without_a_session_stand_alone_sorted_and_counted_from_the_first() {
    let planned = plan(&[(None, Some(50.0), None), (None, Some(-10.0), None), (None, Some(50.0), None)]);
    assert_eq!(planned, [(Some(0.0), vec![(1, 0.0)]), (Some(60.0), vec![(0, 0.0)]), (Some(60.0), vec![(2, 0.0)])]);
}

#[test]
fn later_turns_wait_for_their_delay_or_the_difference_in_time() {
    let planned = plan(&[
        (Some("a"), Some(100.0), None),
        (Some("b"), Some(100.0), None),
        (Some("a"), Some(130.0), None),
        (Some("a"), Some(100.0), Some(7.0)),
        (Some("a"), None, None),
        (Some("b"), Some(100.0), None),
    ]);
    assert_eq!(
        planned,
        [(Some(0.0), vec![(0, 0.0), (2, 30.0), (3, 7.0), (4, 0.0)]), (Some(0.0), vec![(1, 0.0), (5, 0.0)])]
    );
}

#[test]
fn without_timestamps_the_order_is_that_of_the_file() {
    let planned = plan(&[(None, Some(9.0), None), (None, None, None), (None, Some(5.0), None)]);
    assert_eq!(planned, [(Some(4.0), vec![(0, 0.0)]), (None, vec![(1, 0.0)]), (Some(0.0), vec![(2, 0.0)])]);
}

#[test]
fn turns_that_contradict_each_other_are_named() {
    assert_eq!(
        fails(&[(Some("a"), Some(0.0), Some(0.0))], false),
        "t.jsonl:1: session `a`: `delay` is given for the first turn, expected it only on later turns of a session"
    );
    assert_eq!(
        fails(&[(None, Some(0.0), Some(3.0))], false),
        "t.jsonl:1: `delay` is given for the first turn, expected it only on later turns of a session"
    );
    assert_eq!(
        fails(&[(None, Some(0.0), None), (Some("a"), None, None)], true),
        "t.jsonl:2: session `a`: `timestamp` is missing, expected one on the first turn of every session"
    );
    assert_eq!(
        fails(&[(Some("a"), None, None), (Some("a"), Some(3.0), None)], false),
        "t.jsonl:2: session `a`: the delay cannot be inferred: `timestamp` is given, but the turn before (line 1) has none"
    );
    assert_eq!(
        fails(&[(Some("a"), Some(5.0), None), (Some("a"), Some(3.5), None)], false),
        "t.jsonl:2: session `a`: `timestamp` is 3.5 ms, expected at least 5 ms, that of the turn before (line 1)"
    );
    for delay_ms in [-1.0, f64::NAN, f64::INFINITY] {
        let error = fails(&[(Some("a"), Some(5.0), None), (Some("a"), None, Some(delay_ms))], false);
        assert!(error.contains("expected a finite number of at least 0"), "{error}");
    }
}

#[test]
fn a_first_turn_that_was_skipped_is_hinted_at() {
    let mut trace = trace(&[(Some("a"), Some(5.0), Some(2.0))]);
    trace.skipped_rows = 2;
    let error = plan_sessions(&trace, true).unwrap_err().to_string();
    assert!(error.ends_with("\n  hint: 2 bad rows were left out; a turn of this session may be among them"), "{error}");
}
