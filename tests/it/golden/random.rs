//! The reference's small random runs: one line a run, without gauges. They name no rows, so both sides are sorted.

use mockfleet::session::ledger::Outcome;
use mockfleet::sim::life::{Pool, RequestLife};
use serde_json::Value;

use super::{Scenario, TOLERANCE_MS, golden_lines};

/// Open and closed loop, with and without sessions, one worker and two.
#[test]
fn random_aggregated_cases() {
    assert_eq!(compare("random-cases.jsonl", |_| true), 132);
}

/// Copies of blocks, shared prefixes, prompts that are not split or not cached.
#[test]
fn further_random_aggregated_cases() {
    let kinds = ["duplicates-", "prefixes-", "nochunk-", "nocache-"];
    let wanted =
        |name: &str| !name.starts_with("duplicates-decode-") && kinds.iter().any(|kind| name.starts_with(kind));
    assert_eq!(compare("random-extra.jsonl", wanted), 115);
}

/// Hand-offs with and without transfer times, and copies of blocks on decode workers.
#[test]
fn random_disaggregated_cases() {
    let wanted = |name: &str| name.starts_with("disagg-") || name.starts_with("duplicates-decode-");
    assert_eq!(compare("random-extra.jsonl", wanted), 145);
}

/// Data-parallel ranks.
#[test]
fn random_data_parallel_cases() {
    assert_eq!(compare("random-extra.jsonl", |name| name.starts_with("dp-")), 40);
}

/// Guessed tokens, with rates of 0 and 1.
#[test]
fn random_speculative_cases() {
    assert_eq!(compare("random-extra.jsonl", |name| name.starts_with("mtp-")), 30);
}

/// Compares the runs whose name is wanted and says of all that differ how.
fn compare(file: &str, wanted: impl Fn(&str) -> bool) -> usize {
    let (mut compared, mut differ) = (0, Vec::new());
    for entry in golden_lines(file) {
        let name = entry["name"].as_str().expect("name");
        if !wanted(name) {
            continue;
        }
        compared += 1;
        let one = || compare_run(name, &entry);
        match std::panic::catch_unwind(one) {
            Ok(None) => {}
            Ok(Some(difference)) => differ.push(format!("{name}: {difference}")),
            Err(panic) => {
                let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned());
                differ.push(format!("{name}: {text}"));
            }
        }
    }
    assert!(differ.is_empty(), "{} of {compared} runs differ:\n{}", differ.len(), differ.join("\n"));
    compared
}

fn compare_run(name: &str, entry: &Value) -> Option<String> {
    let case = &entry["case"];
    let ranks = case["dp_size"].is_u64();
    let handoffs = case["engine"].is_null();
    let run = Scenario::of_rows(name, case, &entry["trace"]).drive();
    let sorted = |mut rows: Vec<Row>| {
        rows.sort_by_key(Row::order);
        rows
    };
    let ours = sorted(run.lives.iter().map(|life| Row::of_life(life, ranks, handoffs)).collect());
    let theirs = entry["expected"].as_array().expect("expected");
    let theirs = sorted(theirs.iter().map(|row| Row::of_expected(row, ranks, handoffs)).collect());
    let pairs = ours.iter().zip(&theirs);
    let first = pairs.clone().find(|(our, want)| !our.same(want));
    if ours.len() != theirs.len() {
        return Some(format!("{} requests, the reference has {}", ours.len(), theirs.len()));
    }
    first.map(|(our, want)| format!("\n ours   {our:?}\n theirs {want:?}"))
}

/// One request as a list of named numbers; what does not exist is −1.
struct Row(Vec<(String, f64)>);

impl Row {
    fn new(keys: &[&str], numbers: Vec<f64>) -> Row {
        Row(keys.iter().map(|key| (*key).to_owned()).zip(numbers).collect())
    }

    fn of_life(life: &RequestLife, ranks: bool, handoffs: bool) -> Row {
        let ms = |moment: Option<f64>| moment.unwrap_or(-1.0);
        let completed = life.outcome == Some(Outcome::Completed);
        let mut row = Row::new(
            &KEYS,
            vec![
                life.arrival.as_ms(),
                f64::from(life.input_tokens),
                f64::from(life.requested_output_tokens),
                // A rejected request has no worker in these files, or the one that rejected it: not compared.
                life.worker.filter(|_| completed).map_or(-1.0, f64::from),
                ms(life.first_token.as_ms()),
                ms(life.last_token.as_ms()),
                f64::from(u8::from(completed)),
            ],
        );
        if ranks {
            row.push("dp_rank", life.route.last().map_or(-1.0, |stage| f64::from(stage.rank)));
        }
        if handoffs {
            let times = life.handoff().copied().unwrap_or_default();
            row.push("prefill_worker", life.prefill_worker.map_or(-1.0, f64::from));
            row.push("source_held_ms", ms(times.source_held.as_ms()));
            row.push("destination_reserved_ms", ms(times.destination_reserved.as_ms()));
            row.push("destination_activated_ms", ms(times.destination_activated.as_ms()));
            row.push("source_released_ms", ms(times.source_released.as_ms()));
        }
        for admission in life.admissions.iter() {
            row.push("admitted_ms", admission.at.as_ms());
            row.push("reused", f64::from(admission.reused_tokens));
            row.push("on decode", f64::from(u8::from(admission.pool == Pool::Decode)));
        }
        row
    }

    fn of_expected(cells: &Value, ranks: bool, handoffs: bool) -> Row {
        let number = |value: &Value| value.as_f64().unwrap_or(-1.0);
        let completed = cells[7] == "completed";
        let mut numbers = [0, 1, 2, 3, 5, 6].map(|column| number(&cells[column])).to_vec();
        numbers.push(f64::from(u8::from(completed)));
        if !completed {
            numbers[3] = -1.0;
        }
        let mut row = Row::new(&KEYS, numbers);
        let mut column = 8;
        if ranks {
            row.push("dp_rank", number(&cells[column]));
            column += 1;
        }
        if handoffs {
            for key in HANDOFF_KEYS {
                row.push(key, number(&cells[column]));
                column += 1;
            }
        }
        for admission in cells[4].as_array().expect("admissions") {
            row.push("admitted_ms", number(&admission[0]));
            row.push("reused", number(&admission[1]));
            row.push("on decode", f64::from(u8::from(admission[2] == "decode")));
        }
        row
    }

    fn push(&mut self, key: &str, number: f64) {
        self.0.push((key.to_owned(), number));
    }

    /// Times in hundredths, so that the tolerance does not change the order.
    fn order(&self) -> Vec<i64> {
        self.0.iter().map(|(_, number)| (number * 100.0).round() as i64).collect()
    }

    fn same(&self, other: &Row) -> bool {
        let near = |(a, b): (&(String, f64), &(String, f64))| (a.1 - b.1).abs() <= TOLERANCE_MS;
        self.0.len() == other.0.len() && self.0.iter().zip(&other.0).all(near)
    }
}

impl std::fmt::Debug for Row {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.iter().try_for_each(|(key, number)| write!(f, "{key} {number}, "))
    }
}

const KEYS: [&str; 7] =
    ["arrival_ms", "input_length", "output_length", "worker", "first_token_ms", "last_token_ms", "completed"];

const HANDOFF_KEYS: [&str; 5] =
    ["prefill_worker", "source_held_ms", "destination_reserved_ms", "destination_activated_ms", "source_released_ms"];
