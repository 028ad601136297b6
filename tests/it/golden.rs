//! Golden cases: results measured on the reference, matched within one microsecond and exactly in counts.
//!
//! Each folder of tests/golden holds a case, its trace and what the reference did. The rows take the way that they take
//! in the product: read, planned into sessions, released by the driver, computed by the fleet; only the clock is a loop
//! in here. The order at one moment is: steps end, the driver hears of it, requests that are due go to the workers in
//! turn, steps start.

use std::path::{Path, PathBuf};

use mockfleet::engine::{
    EngineConfig, EngineDetail, EngineInput, EngineOutput, EngineRequest, EngineStats, Fleet, FleetInput, FleetOutput,
};
use mockfleet::ids::{RequestId, WorkerId};
use mockfleet::rng::Seed;
use mockfleet::session::driver::{Driver, DriverInput};
use mockfleet::session::plan::ArrivalMode;
use mockfleet::session::workload::Workload;
use mockfleet::time::SimTime;
use mockfleet::trace::ReadOptions;
use serde_json::Value;

/// Largest difference of a time, milliseconds.
const TOLERANCE_MS: f64 = 0.001;
/// More moments than any case has; a loop that stands still is an error, not a hang.
pub(crate) const MAX_MOMENTS: usize = 100_000;

/// What is to be run, from a case and its trace.
pub(crate) struct Scenario {
    pub name: String,
    pub engines: Vec<EngineConfig>,
    pub workload: Workload,
    pub mode: ArrivalMode,
}

/// What became of one row.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Life {
    pub arrival_ms: Option<f64>,
    pub input_tokens: u32,
    pub worker: u32,
    /// Time and reused tokens.
    pub admissions: Vec<(f64, u32)>,
    pub first_token_ms: Option<f64>,
    pub last_token_ms: Option<f64>,
    pub output_tokens: u32,
    pub completed: bool,
}

pub(crate) struct Run {
    /// By row of the trace.
    pub lives: Vec<Life>,
    /// (time, worker, stats) at each step's end and each submission, as the reference publishes them.
    pub published: Vec<(SimTime, WorkerId, EngineStats)>,
}

impl Scenario {
    pub(crate) fn new(name: &str, case: &Value, trace: &Path) -> Scenario {
        let fails = |what: &str, error: &dyn std::fmt::Display| -> ! { panic!("case {name}: {what}: {error}") };
        let engine: EngineConfig =
            serde_json::from_value(case["engine"].clone()).unwrap_or_else(|error| fails("engine", &error));
        let mode: ArrivalMode =
            serde_json::from_value(case["arrival"].clone()).unwrap_or_else(|error| fails("arrival", &error));
        let block_tokens = case["trace_block_size"].as_u64().expect("trace_block_size") as u32;
        let options = ReadOptions { block_tokens, ..ReadOptions::default() };
        let need_timestamps = matches!(mode, ArrivalMode::Timestamps { .. });
        let workload =
            Workload::from_trace(trace, &options, need_timestamps).unwrap_or_else(|error| fails("trace", &error));
        let workers = case["num_workers"].as_u64().unwrap_or(1) as usize;
        Scenario { name: name.to_owned(), engines: vec![engine; workers], workload, mode }
    }

    /// Runs everything in simulated time, once with engines that tell every token and once with engines that take steps
    /// together; both must say the same.
    pub(crate) fn drive(&self) -> Run {
        let run = self.drive_with(EngineDetail::default());
        let quiet = EngineDetail { every_token: false, kv_events: false, ..EngineDetail::default() };
        assert!(run.lives == self.drive_with(quiet).lives, "case {}: steps taken together differ", self.name);
        run
    }

    fn drive_with(&self, detail: EngineDetail) -> Run {
        let mut fleet = Fleet::with_detail(&self.engines, detail).expect("a valid configuration");
        let mut driver = Driver::new(self.workload.sessions.clone(), self.mode);
        let mut run = Run { lives: vec![Life::default(); self.workload.items.len()], published: Vec::new() };
        let mut out = Vec::new();
        let mut releases = Vec::new();
        let mut in_turn = (0..self.engines.len() as u32).cycle().map(WorkerId);
        for _ in 0..MAX_MOMENTS {
            let Some(now) = [driver.next_deadline(), fleet.next_deadline()].into_iter().flatten().min() else {
                assert!(driver.is_finished(), "case {}: requests without an end: {:?}", self.name, driver.counts());
                return run;
            };
            fleet.complete_steps(now, &mut out);
            run.note(&mut out, &mut driver);
            driver.advance(now, &mut releases);
            for release in releases.drain(..) {
                let worker = in_turn.next().expect("a worker");
                let request = self.request(release.id);
                run.lives[release.id.0 as usize] = Life {
                    arrival_ms: Some(release.intended.as_ms()),
                    input_tokens: request.prompt.len_tokens(),
                    worker: worker.0,
                    ..Life::default()
                };
                fleet.handle(now, FleetInput { worker, input: EngineInput::Submit(request) }, &mut out);
                run.published.push((now, worker, fleet.stats(worker).expect("a known worker")));
            }
            fleet.start_steps(now, &mut out);
            run.note(&mut out, &mut driver);
            fleet.check().unwrap_or_else(|broken| panic!("case {} at {now}: {broken}", self.name));
        }
        panic!("case {}: more than {MAX_MOMENTS} moments", self.name)
    }

    pub(crate) fn request(&self, id: RequestId) -> EngineRequest {
        let item = &self.workload.items[id.0 as usize];
        EngineRequest {
            id,
            prompt: item.prompt.tokens().into(),
            max_output_tokens: item.output_tokens,
            output_seed: Seed(7).nth(id.0),
            vocab_tokens: 1 << 20,
            priority: 0,
        }
    }
}

impl Run {
    fn note(&mut self, out: &mut Vec<FleetOutput>, driver: &mut Driver) {
        for output in out.drain(..) {
            self.note_one(output, driver);
        }
    }

    /// Takes in what an engine says, and tells the driver if a request ended.
    pub(crate) fn note_one(&mut self, output: FleetOutput, driver: &mut Driver) {
        let FleetOutput { at, worker, output } = output;
        let ended = match output {
            EngineOutput::Admitted { id, reused_tokens, .. } => {
                self.lives[id.0 as usize].admissions.push((at.as_ms(), reused_tokens));
                None
            }
            EngineOutput::Token { id, position, finished, .. } => {
                let life = &mut self.lives[id.0 as usize];
                life.first_token_ms.get_or_insert(at.as_ms());
                life.last_token_ms = Some(at.as_ms());
                life.output_tokens = position + 1;
                life.completed = finished;
                finished.then_some(id)
            }
            EngineOutput::Finished { id, .. } => {
                self.lives[id.0 as usize].completed = true;
                Some(id)
            }
            EngineOutput::Rejected { id, .. } => Some(id),
            EngineOutput::StepEnded { stats, .. } => {
                self.published.push((at, worker, stats));
                None
            }
            _ => None,
        };
        if let Some(id) = ended {
            driver.handle(at, DriverInput::Ended { id, session_continues: true });
        }
    }
}

pub(crate) fn golden_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden")
}

pub(crate) fn read_text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn parse(text: &str, path: &Path) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

pub(crate) fn read_json(path: &Path) -> Value {
    parse(&read_text(path), path)
}

/// Panics with the place, the key and both values if they differ.
pub(crate) fn same_ms(place: &str, key: &str, ours: Option<f64>, theirs: &Value) {
    let same = match (ours, theirs.as_f64()) {
        (Some(ours), Some(theirs)) => (ours - theirs).abs() <= TOLERANCE_MS,
        (ours, theirs) => ours.is_none() && theirs.is_none(),
    };
    assert!(same, "{place}: `{key}` is {ours:?}, the reference has {theirs}");
}

/// Panics with the place, the key and both values if they differ.
pub(crate) fn same_count(place: &str, key: &str, ours: u64, theirs: &Value) {
    assert!(theirs.as_u64() == Some(ours), "{place}: `{key}` is {ours}, the reference has {theirs}");
}

fn check_case(name: &str) {
    let folder = golden_root().join(name);
    let scenario = Scenario::new(name, &read_json(&folder.join("case.json")), &folder.join("trace.jsonl"));
    let expected = read_json(&folder.join("expected.json"));
    let run = scenario.drive();
    let wanted = expected["requests"].as_array().expect("requests");
    assert_eq!(run.lives.len(), wanted.len(), "case {name}: number of requests");
    for want in wanted {
        same_life(name, &run, want);
    }
    check_state(name, &run, &expected);
}

/// Compares one request with a row of the reference's.
pub(crate) fn same_life(name: &str, run: &Run, want: &Value) {
    let row = want["row"].as_u64().expect("row");
    let place = format!("case {name}, row {row}");
    let life = &run.lives[row as usize];
    same_ms(&place, "arrival_ms", life.arrival_ms, &want["arrival_ms"]);
    same_count(&place, "input_length", life.input_tokens.into(), &want["input_length"]);
    same_count(&place, "worker", life.worker.into(), &want["worker"]);
    let admissions = want["admissions"].as_array().expect("admissions");
    for (nth, ((at_ms, reused), want)) in life.admissions.iter().zip(admissions).enumerate() {
        same_ms(&place, &format!("admissions[{nth}].at_ms"), Some(*at_ms), &want["at_ms"]);
        same_count(&place, &format!("admissions[{nth}].reused"), (*reused).into(), &want["reused"]);
    }
    same_count(&place, "admissions, their number", life.admissions.len() as u64, &admissions.len().into());
    same_ms(&place, "first_token_ms", life.first_token_ms, &want["first_token_ms"]);
    same_ms(&place, "last_token_ms", life.last_token_ms, &want["last_token_ms"]);
    same_count(&place, "output_length", life.output_tokens.into(), &want["output_length"]);
}

/// The workers' gauges over time: the reference's published state, sampled every millisecond.
pub(crate) fn check_state(name: &str, run: &Run, expected: &Value) {
    let samples = expected["state"].as_array().expect("state");
    assert!(!samples.is_empty(), "case {name} has no state to compare");
    let mut last_preemptions = std::collections::BTreeMap::new();
    for sample in samples {
        let at = SimTime::from_ms(sample[0].as_f64().expect("t_ms"));
        let worker = WorkerId(sample[2].as_u64().expect("worker") as u32);
        let shown = run.published.iter().rev().find(|(when, who, _)| *when <= at && *who == worker);
        let stats = shown.map(|(_, _, stats)| *stats).unwrap_or_default();
        // Preemptions are counted for the whole fleet, also in the row of one worker.
        let latest = |who| run.published.iter().rev().find(|(when, worker, _)| *when <= at && *worker == who);
        let workers: std::collections::BTreeSet<WorkerId> =
            run.published.iter().map(|(_, worker, _)| *worker).collect();
        let preemptions_total =
            workers.into_iter().filter_map(latest).map(|(_, _, stats)| stats.preemptions_total).sum::<u64>();
        let before = last_preemptions.insert(worker, preemptions_total).unwrap_or(0);
        let place = format!("case {name} at {at}, worker {worker}");
        same_count(&place, "running", stats.running.into(), &sample[3]);
        same_count(&place, "waiting", stats.waiting.into(), &sample[4]);
        same_count(&place, "active_blocks", stats.active_blocks.into(), &sample[5]);
        same_count(&place, "inactive_blocks", stats.inactive_blocks.into(), &sample[6]);
        same_count(&place, "preemptions since the sample before", preemptions_total - before, &sample[7]);
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
    sessions_concurrency: "sessions-concurrency",
    unchunked_prefill: "unchunked-prefill",
}

/// The reference's small random runs: open and closed loop, with and without sessions, one worker and two. They name no
/// rows, so both sides are sorted.
#[test]
fn random_aggregated_cases() {
    let compared = compare_random_cases("random-cases.jsonl", |_| true);
    assert!(compared >= 132, "only {compared} random cases");
}

/// Further random runs of the reference, aimed at copies of blocks, shared prefixes, and prompts that are not split or not
/// cached. The file also holds runs with hand-offs, data-parallel ranks and speculative tokens, which no engine here does yet.
#[test]
fn further_random_aggregated_cases() {
    let kinds = ["duplicates-", "prefixes-", "nochunk-", "nocache-"];
    let aggregated =
        |name: &str| !name.starts_with("duplicates-decode-") && kinds.iter().any(|kind| name.starts_with(kind));
    let compared = compare_random_cases("random-extra.jsonl", aggregated);
    assert_eq!(compared, 115, "aggregated cases");
}

fn compare_random_cases(file: &str, wanted: impl Fn(&str) -> bool) -> usize {
    let path = golden_root().join(file);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let trace = folder.path().join("trace.jsonl");
    let text = read_text(&path);
    let mut compared = 0;
    for line in text.lines() {
        let entry = parse(line, &path);
        let name = entry["name"].as_str().expect("name");
        if !wanted(name) {
            continue;
        }
        let rows = entry["trace"].as_array().expect("trace");
        let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&trace, lines).expect("a temporary file");
        let run = Scenario::new(name, &entry["case"], &trace).drive();
        let mut ours: Vec<(Vec<Cell>, Option<usize>)> =
            run.lives.iter().enumerate().map(|(row, life)| (flat(life), Some(row))).collect();
        let mut theirs: Vec<(Vec<Cell>, Option<usize>)> =
            entry["expected"].as_array().expect("expected").iter().map(|row| (flat_expected(row), None)).collect();
        ours.sort();
        theirs.sort();
        assert_eq!(ours.len(), theirs.len(), "random case {name}: number of requests");
        for ((our, row), (want, _)) in ours.iter().zip(&theirs) {
            let place = format!("random case {name}, row {}", row.unwrap_or_default());
            for (column, (a, b)) in our.iter().zip(want).enumerate() {
                let key = key_of(column);
                assert!(
                    a.same(*b),
                    "{place}: `{key}` is {a}, the reference has {b}\n ours   {our:?}\n theirs {want:?}"
                );
            }
            assert_eq!(our.len(), want.len(), "{place}: number of columns\n ours   {our:?}\n theirs {want:?}");
        }
        compared += 1;
    }
    compared
}

/// A number of a random case's row, in millionths so that it has an order; a time that does not exist is −1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Cell(i64);

impl Cell {
    fn of(number: f64) -> Cell {
        Cell((number * 1e6).round() as i64)
    }

    fn same(self, other: Cell) -> bool {
        (self.0 - other.0).abs() as f64 <= TOLERANCE_MS * 1e6
    }
}

impl std::fmt::Display for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        (self.0 as f64 / 1e6).fmt(f)
    }
}

impl std::fmt::Debug for Cell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        std::fmt::Display::fmt(self, f)
    }
}

const KEYS: [&str; 7] =
    ["arrival_ms", "input_length", "output_length", "worker", "first_token_ms", "last_token_ms", "completed"];

fn key_of(column: usize) -> String {
    match column.checked_sub(KEYS.len()) {
        None => KEYS[column].to_owned(),
        Some(rest) => format!("admissions[{}].{}", rest / 2, ["at_ms", "reused"][rest % 2]),
    }
}

/// One request as numbers, in the order of [`key_of`].
fn flat(life: &Life) -> Vec<Cell> {
    let mut row = vec![
        life.arrival_ms.unwrap_or(-1.0),
        f64::from(life.input_tokens),
        f64::from(life.output_tokens),
        f64::from(life.worker),
        life.first_token_ms.unwrap_or(-1.0),
        life.last_token_ms.unwrap_or(-1.0),
        f64::from(u8::from(life.completed)),
    ];
    row.extend(life.admissions.iter().flat_map(|(at_ms, reused)| [*at_ms, f64::from(*reused)]));
    row.into_iter().map(Cell::of).collect()
}

fn flat_expected(row: &Value) -> Vec<Cell> {
    let number = |value: &Value| value.as_f64().unwrap_or(-1.0);
    let mut flat: Vec<f64> = [0, 1, 2, 3, 5, 6].map(|column| number(&row[column])).to_vec();
    flat.push(f64::from(u8::from(row[7] == "completed")));
    let admissions = row[4].as_array().expect("admissions");
    flat.extend(admissions.iter().flat_map(|admission| [number(&admission[0]), number(&admission[1])]));
    flat.into_iter().map(Cell::of).collect()
}
