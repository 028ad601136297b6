//! Golden cases: results measured on the reference, matched within one microsecond and exactly in counts.
//!
//! Each folder of tests/golden holds a case, its trace and what the reference did. A small virtual-time loop drives the
//! engines; the order at one moment is: steps end, requests arrive, steps start.

use std::path::{Path, PathBuf};

use mockfleet::engine::{
    EngineConfig, EngineInput, EngineOutput, EngineRequest, EngineStats, Fleet, FleetInput, FleetOutput,
};
use mockfleet::ids::{RequestId, WorkerId};
use mockfleet::rng::Seed;
use mockfleet::time::SimTime;
use serde_json::Value;

/// Largest difference of a time, milliseconds.
const TOLERANCE_MS: f64 = 0.001;

struct Arrival {
    at: SimTime,
    worker: WorkerId,
    prompt: Vec<u32>,
    output_tokens: u32,
}

#[derive(Debug, Default, Clone, PartialEq)]
struct Life {
    worker: u32,
    admissions: Vec<(f64, u32)>,
    first_token_ms: Option<f64>,
    last_token_ms: Option<f64>,
    tokens: u32,
    rejected: bool,
}

struct Run {
    lives: Vec<Life>,
    /// (time, worker, stats) at each step's end and each submission, as the reference publishes them.
    published: Vec<(SimTime, WorkerId, EngineStats)>,
}

fn drive(configs: &[EngineConfig], arrivals: &[Arrival]) -> Run {
    let mut fleet = Fleet::new(configs).expect("a valid configuration");
    let mut run = Run { lives: vec![Life::default(); arrivals.len()], published: Vec::new() };
    let mut out = Vec::new();
    let mut next = 0;
    loop {
        let arrival = arrivals.get(next).map(|a| a.at);
        let Some(now) = [arrival, fleet.next_deadline()].into_iter().flatten().min() else { break };
        fleet.complete_steps(now, &mut out);
        run.note(&mut out);
        while let Some(arrival) = arrivals.get(next).filter(|a| a.at <= now) {
            let request = EngineRequest {
                id: RequestId(next as u64),
                prompt: arrival.prompt.clone(),
                max_output_tokens: arrival.output_tokens,
                output_seed: Seed(7).nth(next as u64),
                vocab_tokens: 1 << 20,
            };
            run.lives[next].worker = arrival.worker.0;
            fleet.handle(now, FleetInput { worker: arrival.worker, input: EngineInput::Submit(request) }, &mut out);
            let stats = fleet.stats(arrival.worker).expect("a known worker");
            run.published.push((now, arrival.worker, stats));
            next += 1;
        }
        fleet.start_steps(now, &mut out);
        run.note(&mut out);
        fleet.check().unwrap_or_else(|broken| panic!("at {now}: {broken}"));
    }
    run
}

impl Run {
    fn note(&mut self, out: &mut Vec<FleetOutput>) {
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                EngineOutput::Admitted { id, reused_tokens, .. } => {
                    self.lives[id.0 as usize].admissions.push((at.as_ms(), reused_tokens));
                }
                EngineOutput::Token { id, .. } => {
                    let life = &mut self.lives[id.0 as usize];
                    life.first_token_ms.get_or_insert(at.as_ms());
                    life.last_token_ms = Some(at.as_ms());
                    life.tokens += 1;
                }
                EngineOutput::Rejected { id, .. } => self.lives[id.0 as usize].rejected = true,
                EngineOutput::StepEnded { stats, .. } => self.published.push((at, worker, stats)),
                EngineOutput::Kv(_) | EngineOutput::Finished { .. } | EngineOutput::Flushed { .. } => {}
            }
        }
    }
}

/// The replay's expansion: ids numbered in first-seen order, repeated block-size times, cut to the input length.
fn expand(rows: &[Value], block_tokens: usize) -> Vec<Vec<u32>> {
    let mut dense = std::collections::BTreeMap::new();
    let mut expand_row = |row: &Value| {
        let mut tokens = Vec::new();
        for id in row["hash_ids"].as_array().expect("hash_ids") {
            let next = dense.len() as u32;
            let token = *dense.entry(id.as_u64().expect("an id")).or_insert(next);
            tokens.extend(std::iter::repeat_n(token, block_tokens));
        }
        tokens.truncate(row["input_length"].as_u64().expect("input_length") as usize);
        tokens
    };
    rows.iter().map(&mut expand_row).collect()
}

fn arrivals(rows: &[Value], case: &Value) -> Vec<Arrival> {
    let block_tokens = case["trace_block_size"].as_u64().expect("trace_block_size") as usize;
    let workers = case["num_workers"].as_u64().unwrap_or(1) as u32;
    let prompts = expand(rows, block_tokens);
    let time = |row: &Value| row["timestamp"].as_f64().expect("timestamp");
    let first = rows.iter().map(time).fold(f64::INFINITY, f64::min);
    let speedup = case["arrival"]["speedup_ratio"].as_f64().unwrap_or(1.0);
    let mut arrivals: Vec<Arrival> = rows
        .iter()
        .zip(prompts)
        .map(|(row, prompt)| Arrival {
            at: SimTime::from_ms((time(row) - first) / speedup),
            worker: WorkerId(0),
            prompt,
            output_tokens: row["output_length"].as_u64().expect("output_length") as u32,
        })
        .collect();
    arrivals.sort_by_key(|a| a.at);
    for (index, arrival) in arrivals.iter_mut().enumerate() {
        arrival.worker = WorkerId(index as u32 % workers);
    }
    arrivals
}

fn engines(case: &Value) -> Vec<EngineConfig> {
    let config: EngineConfig = serde_json::from_value(case["engine"].clone()).expect("an engine configuration");
    vec![config; case["num_workers"].as_u64().unwrap_or(1) as usize]
}

fn golden_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

fn read_json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn read_rows(path: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a JSON row")).collect()
}

/// Panics with the row, the key and both values at the first difference.
fn same_ms(place: &str, key: &str, ours: Option<f64>, theirs: &Value) {
    let same = match (ours, theirs.as_f64()) {
        (Some(ours), Some(theirs)) => (ours - theirs).abs() <= TOLERANCE_MS,
        (ours, theirs) => ours.is_none() && theirs.is_none(),
    };
    assert!(same, "{place}: `{key}` is {ours:?}, the reference has {theirs}");
}

fn check_case(name: &str) {
    let folder = golden_root().join(name);
    let case = read_json(&folder.join("case.json"));
    let rows = read_rows(&folder.join("trace.jsonl"));
    let expected = read_json(&folder.join("expected.json"));
    let arrivals = arrivals(&rows, &case);
    let run = drive(&engines(&case), &arrivals);
    let expected_requests = expected["requests"].as_array().expect("requests");
    assert_eq!(run.lives.len(), expected_requests.len());
    for (index, (life, want)) in run.lives.iter().zip(expected_requests).enumerate() {
        let place = format!("case {name}, row {index}");
        same_ms(&place, "arrival_ms", Some(arrivals[index].at.as_ms()), &want["arrival_ms"]);
        assert_eq!(Some(u64::from(life.worker)), want["worker"].as_u64(), "{place}: `worker`");
        let admissions = want["admissions"].as_array().expect("admissions");
        assert_eq!(life.admissions.len(), admissions.len(), "{place}: number of admissions");
        for ((at_ms, reused), want) in life.admissions.iter().zip(admissions) {
            same_ms(&place, "admissions.at_ms", Some(*at_ms), &want["at_ms"]);
            assert_eq!(Some(u64::from(*reused)), want["reused"].as_u64(), "{place}: `reused` at {at_ms} ms");
        }
        same_ms(&place, "first_token_ms", life.first_token_ms, &want["first_token_ms"]);
        same_ms(&place, "last_token_ms", life.last_token_ms, &want["last_token_ms"]);
        assert_eq!(Some(u64::from(life.tokens)), want["output_length"].as_u64(), "{place}: `output_length`");
    }
    check_state(name, &run, &expected);
}

/// The workers' gauges over time: the reference's published state, sampled every millisecond.
fn check_state(name: &str, run: &Run, expected: &Value) {
    let samples = expected["state"].as_array().expect("state");
    assert!(!samples.is_empty(), "case {name} has no state to compare");
    let mut last_preemptions = std::collections::BTreeMap::new();
    for sample in samples {
        let at = SimTime::from_ms(sample[0].as_f64().expect("t_ms"));
        let worker = WorkerId(sample[2].as_u64().expect("worker") as u32);
        let shown = run.published.iter().rev().find(|(when, who, _)| *when <= at && *who == worker);
        let stats = shown.map(|(_, _, stats)| *stats).unwrap_or_default();
        let before = last_preemptions.insert(worker, stats.preemptions_total).unwrap_or(0);
        let ours = [
            u64::from(stats.running),
            u64::from(stats.waiting),
            u64::from(stats.active_blocks),
            u64::from(stats.inactive_blocks),
            stats.preemptions_total - before,
        ];
        let theirs: Vec<u64> = (3..8).map(|column| sample[column].as_u64().expect("a count")).collect();
        assert_eq!(
            ours.as_slice(),
            theirs.as_slice(),
            "case {name} at {at}, worker {worker}: running, waiting, active_blocks, inactive_blocks, preemptions"
        );
    }
}

macro_rules! golden_cases {
    ($($test:ident: $folder:literal),* $(,)?) => {
        $(#[test] fn $test() { check_case($folder); })*
    };
}

golden_cases! {
    prefix_reuse: "prefix-reuse",
    chunked_prefill: "chunked-prefill",
    eviction: "eviction",
    max_num_seqs: "max-num-seqs",
    polynomial_timing: "polynomial-timing",
    preemption_lifo: "preemption-lifo",
    round_robin_2_workers: "round-robin-2-workers",
    unchunked_prefill: "unchunked-prefill",
}

/// The reference's small random runs, where present; those that need machines of their own (router, hand-off, closed
/// loop) are left to their own tests and counted here.
#[test]
fn random_aggregated_cases() {
    let path = golden_root().join("random-cases.jsonl");
    let mut compared = 0;
    let mut other = 0;
    for entry in read_rows(&path) {
        let case = &entry["case"];
        let name = entry["name"].as_str().expect("name");
        let plain = case["router_mode"] == "round_robin"
            && case["arrival"]["mode"] == "timestamps"
            && case.get("num_prefill_workers").is_none()
            && serde_json::from_value::<EngineConfig>(case["engine"].clone()).is_ok();
        let rows = entry["trace"].as_array().expect("trace");
        let sessions = rows.iter().any(|row| row.get("session_id").is_some() || row.get("timestamp").is_none());
        if !plain || sessions {
            other += 1;
            continue;
        }
        let arrivals = arrivals(rows, case);
        let run = drive(&engines(case), &arrivals);
        let mut ours: Vec<Vec<f64>> =
            arrivals.iter().zip(&run.lives).map(|(arrival, life)| flat(arrival, life)).collect();
        let mut theirs: Vec<Vec<f64>> =
            entry["expected"].as_array().expect("expected").iter().map(flat_expected).collect();
        // Two rows that arrive together may be equal but for what became of them, so all columns take part in the order.
        ours.sort_by(|a, b| a.partial_cmp(b).expect("finite numbers"));
        theirs.sort_by(|a, b| a.partial_cmp(b).expect("finite numbers"));
        assert_eq!(ours.len(), theirs.len(), "case {name}");
        for (index, (our, want)) in ours.iter().zip(&theirs).enumerate() {
            let same = our.len() == want.len() && our.iter().zip(want).all(|(a, b)| (a - b).abs() <= TOLERANCE_MS);
            assert!(
                same,
                "random case {name}, row {index} of the sorted rows: arrival, input, output, worker, first and last token, \
                 admissions (time, reused)\n ours   {our:?}\n theirs {want:?}"
            );
        }
        compared += 1;
    }
    eprintln!("{compared} random cases compared, {other} need other machines");
    assert!(compared > 0);
}

/// One request as numbers; a time that does not exist is −1.
fn flat(arrival: &Arrival, life: &Life) -> Vec<f64> {
    let mut row = vec![
        arrival.at.as_ms(),
        arrival.prompt.len() as f64,
        f64::from(arrival.output_tokens),
        f64::from(life.worker),
        life.first_token_ms.unwrap_or(-1.0),
        life.last_token_ms.unwrap_or(-1.0),
    ];
    row.extend(life.admissions.iter().flat_map(|(at_ms, reused)| [*at_ms, f64::from(*reused)]));
    row
}

fn flat_expected(row: &Value) -> Vec<f64> {
    let number = |value: &Value| value.as_f64().unwrap_or(-1.0);
    let mut flat: Vec<f64> = [0, 1, 2, 3, 5, 6].map(|column| number(&row[column])).to_vec();
    let admissions = row[4].as_array().expect("admissions");
    flat.extend(admissions.iter().flat_map(|admission| [number(&admission[0]), number(&admission[1])]));
    flat
}
