//! Unit tests of `--requests-out`: the reference's rows come out again, numbers survive, faults are told.

use proptest::prelude::*;
use serde_json::Value;

use super::*;
use crate::session::ledger::FailureKind;
use crate::sim::life::reference;
use crate::time::{SimSpan, SimTime};

fn written(lives: &[RequestLife], names: &[Option<String>]) -> String {
    let mut out = Vec::new();
    let name = |session: u32| names.get(session as usize)?.as_deref();
    write_requests_jsonl(lives, name, &mut out).expect("memory");
    String::from_utf8(out).expect("UTF-8")
}

/// Their name of a key of ours; none if their row has no such key.
fn theirs(key: &str) -> Option<&str> {
    match key {
        "input_tokens" => Some("input_length"),
        "output_tokens" => Some("output_length"),
        "ttst_ms" => Some("time_to_second_token_ms"),
        "tpot_ms" => Some("mean_inter_token_latency_ms"),
        "reused_tokens" => Some("reused"),
        "wait_ms" => Some("wait"),
        "selected_overlap_blocks" => Some("sel_overlap"),
        "best_overlap_blocks" => Some("best_overlap"),
        "status" => None,
        same => Some(same),
    }
}

fn renamed(value: &Value) -> Value {
    match value {
        Value::Object(fields) => Value::Object(
            fields.iter().filter_map(|(key, value)| Some((theirs(key)?.to_owned(), renamed(value)))).collect(),
        ),
        Value::Array(entries) => entries.iter().map(renamed).collect(),
        other => other.clone(),
    }
}

#[test]
fn the_references_rows_come_out_again() {
    for (case, expected) in reference::CASES {
        let rows = reference::rows(expected);
        let lives: Vec<RequestLife> = rows.iter().map(reference::life).collect();
        let names: Vec<Option<String>> = rows.iter().map(|row| row["session_id"].as_str().map(str::to_owned)).collect();
        let text = written(&lives, &names);
        assert_eq!(text.lines().count(), rows.len(), "{case}");
        for (line, row) in text.lines().zip(&rows) {
            let ours: Value = serde_json::from_str(line).expect("JSON");
            assert_eq!(ours["status"], "completed", "{case}");
            assert_eq!(renamed(&ours), *row, "{case}");
        }
    }
}

#[test]
fn a_line_reads_as_the_docs_say() {
    let (_, expected) = reference::CASES[1];
    let life = reference::life(&reference::rows(expected)[0]);
    let line = concat!(
        r#"{"row":0,"session_id":null,"turn":0,"arrival_ms":0.0,"input_tokens":16,"output_tokens":5,"#,
        r#""admissions":[{"at_ms":0.0,"reused_tokens":0,"pool":"prefill"},"#,
        r#"{"at_ms":10.0,"reused_tokens":0,"pool":"decode"}],"#,
        r#""first_token_ms":11.0,"last_token_ms":15.0,"ttst_ms":1.0,"tpot_ms":1.0,"worker":0,"prefill_worker":0,"#,
        r#""route":[{"pool":"prefill","worker":0,"outcome":"immediate","wait_ms":0.0,"#,
        r#""selected_overlap_blocks":null,"best_overlap_blocks":null},"#,
        r#"{"pool":"decode","worker":0,"outcome":"immediate","wait_ms":0.0,"#,
        r#""selected_overlap_blocks":null,"best_overlap_blocks":null}],"#,
        r#""source_held_ms":10.0,"destination_reserved_ms":10.0,"destination_activated_ms":10.0,"#,
        r#""source_released_ms":10.0,"status":"completed"}"#,
        "\n",
    );
    assert_eq!(written(&[life], &[]), line);
}

/// The first example of a page, without the line breaks added for reading.
fn example(page: &str) -> Value {
    let (_, rest) = page.split_once("```json\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("an end");
    serde_json::from_str(example).expect("JSON")
}

#[test]
fn the_example_of_the_docs_is_real() {
    let (_, expected) = reference::CASES[3];
    let life = reference::life(&reference::rows(expected)[2]);
    let line: Value = serde_json::from_str(&written(&[life], &[None, None, Some("r2".to_owned())])).expect("JSON");
    let page = include_str!("../../../docs/requests-out.md");
    assert_eq!(line, example(page));
    // Every field has a row in the table, inner ones with a dash before them.
    let inner = |key: &str| line[key][0].as_object().expect("an entry").clone();
    for key in line.as_object().expect("fields").keys() {
        assert!(page.contains(&format!("\n| `{key}` |")), "{key}");
    }
    for key in inner("admissions").keys().chain(inner("route").keys()) {
        assert!(page.contains(&format!("\n| – `{key}` |")), "{key}");
    }
}

#[test]
fn requests_without_tokens_say_why() {
    let mut rejected = RequestLife::new(3, 0, 0, SimTime(5_000_000), 9000, 4);
    let message = "12 blocks needed, \"pool\" has 8".to_owned();
    rejected.ended(SimTime(6_000_000), Outcome::Failed { kind: FailureKind::Rejected, message: message.clone() });
    let running = RequestLife::new(4, 0, 0, SimTime(7_000_000), 10, 4);
    let text = written(&[rejected, running], &[Some("a\"b".to_owned())]);
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((lines[0]["status"].as_str(), lines[0]["error"].as_str()), (Some("rejected"), Some(message.as_str())));
    assert_eq!(lines[0]["session_id"], "a\"b");
    for key in ["first_token_ms", "last_token_ms", "ttst_ms", "tpot_ms", "worker"] {
        assert!(lines[0].get(key).is_some_and(Value::is_null), "{key}");
    }
    assert_eq!((lines[1]["status"].as_str(), lines[1].get("error")), (Some("unfinished"), None));
    assert!(lines.iter().all(|line| line.get("source_held_ms").is_none()));
}

#[test]
fn a_request_that_dies_before_its_handoff_still_has_the_four_keys() {
    let mut life = RequestLife::new(0, 0, 0, SimTime::ZERO, 9000, 4);
    life.routed(RouteStage {
        pool: Pool::Prefill,
        worker: 1,
        rank: 0,
        queued: true,
        wait: SimSpan(250_000),
        selected_overlap_blocks: Some(2),
        best_overlap_blocks: Some(3),
    });
    let line: Value = serde_json::from_str(&written(&[life], &[])).expect("JSON");
    for key in ["source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms"] {
        assert!(line.get(key).is_some_and(Value::is_null), "{key}");
    }
    assert_eq!(
        (&line["route"][0]["wait_ms"], &line["route"][0]["outcome"]),
        (&Value::from(0.25), &Value::from("queued"))
    );
}

#[test]
fn lines_are_sorted_by_row() {
    let lives = [5, 1, 9, 0].map(|row| RequestLife::new(row, 0, 0, SimTime(row), 1, 1));
    let rows: Vec<Option<u64>> = written(&lives, &[])
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON")["row"].as_u64())
        .collect();
    assert_eq!(rows, [0, 1, 5, 9].map(Some));
}

#[test]
fn a_full_disk_is_told() {
    let mut room = [0_u8; 100];
    let fault = write_requests_jsonl(&[RequestLife::default()], |_| None, &mut &mut room[..]).expect_err("no room");
    assert_eq!(fault.kind(), io::ErrorKind::WriteZero);
}

/// The decimal that a number of nanoseconds is in milliseconds, by whole numbers alone.
fn exact_ms(nanos: u64) -> String {
    let text = format!("{}.{:06}", nanos / 1_000_000, nanos % 1_000_000);
    let cut = text.trim_end_matches('0');
    if cut.ends_with('.') { format!("{cut}0") } else { cut.to_owned() }
}

proptest! {
    /// Up to 2^51 ns, 26 days, the text is the exact decimal and reading it gives the nanosecond; beyond, reading may be one
    /// nanosecond off.
    #[test]
    fn times_are_exact_decimals(nanos in 0..(1_u64 << 51), shift in 0..51_u32) {
        let nanos = nanos >> shift;
        // Below 10^-5 ms the writer uses an exponent, which is as exact.
        let life = RequestLife::new(0, 0, 0, SimTime(nanos), 1, 1);
        let text = written(&[life], &[]);
        let (_, rest) = text.split_once(r#""arrival_ms":"#).expect("the key");
        let (number, _) = rest.split_once(',').expect("a number");
        let read: f64 = number.parse().expect("a number");
        prop_assert_eq!(SimTime::from_ms(read), SimTime(nanos));
        if nanos == 0 || nanos >= 10_000 {
            prop_assert_eq!(number, exact_ms(nanos));
        }
    }
}
