//! Golden cases of the router: who goes where and when, as measured on the reference.
//!
//! As in the other golden tests only the clock is a loop in here, now with the router between driver and fleet. The
//! order at one moment: late cache events reach the router; steps end, lowest worker first, and the router hears of each
//! change, first token and end in turn; what leaves its queue with one of these goes to its worker at once; then
//! requests that are due are routed; then steps start. Where the reference breaks a tie at random, the cases are such
//! that the lowest number reproduces it (see tests/golden/README.md).

use std::collections::VecDeque;
use std::io::Read as _;

use flate2::read::GzDecoder;
use mockfleet::engine::{EngineDetail, EngineInput, EngineOutput, Fleet, FleetInput, FleetOutput, KvEventData};
use mockfleet::ids::{RequestId, WorkerId};
use mockfleet::router::explain::Explained;
use mockfleet::router::{
    Decision, Pool, RouteRequest, Router, RouterConfig, RouterInput, RouterMode, RouterOutput, TieBreak,
};
use mockfleet::session::driver::Driver;
use mockfleet::time::{SimSpan, SimTime};
use serde_json::Value;

use crate::golden::{
    Life, MAX_MOMENTS, Run, Scenario, check_state, golden_root, read_json, read_text, same_count, same_life, same_ms,
};

/// A case with a router.
struct RouterCase {
    scenario: Scenario,
    router: RouterConfig,
    /// By row: priority and strict priority.
    priorities: Vec<(f64, u32)>,
    kv_event_lag: SimSpan,
}

impl RouterCase {
    fn new(name: &str, case: &Value, rows: &[Value], trace: &std::path::Path) -> RouterCase {
        let scenario = Scenario::new(name, case, trace);
        let router: RouterConfig = serde_json::from_value(case["router"].clone())
            .unwrap_or_else(|error| panic!("case {name}: router: {error}"));
        RouterCase {
            scenario,
            router: RouterConfig { router_mode: RouterMode::Kv, tie_break: TieBreak::Lowest, ..router },
            priorities: rows.iter().map(urgency).collect(),
            kv_event_lag: SimSpan::from_ms(case["kv_event_lag_ms"].as_f64().unwrap_or(0.0)),
        }
    }
}

/// The machines of one run, and what became of the requests.
struct World<'a> {
    case: &'a RouterCase,
    fleet: Fleet,
    router: Router,
    driver: Driver,
    late_events: VecDeque<(SimTime, WorkerId, KvEventData)>,
    run: Run,
    decisions: Vec<Option<Decision>>,
    /// Workers that got a request and have not published their state since.
    submitted: Vec<WorkerId>,
}

impl World<'_> {
    fn tell(&mut self, now: SimTime, input: RouterInput) {
        let mut routed = Vec::new();
        self.router.handle(now, input, &mut routed);
        for output in routed {
            let RouterOutput::Routed(id, decision) = output else { panic!("no worker for {output:?}") };
            let worker = decision.worker;
            let explained = Explained::of(&decision, now, id.0, Pool::Agg).expect("an explanation");
            assert_eq!(explained.chosen(), Some(&decision.terms));
            self.run.lives[id.0 as usize].worker = worker.0;
            self.decisions[id.0 as usize] = Some(decision);
            let input = EngineInput::Submit(self.case.scenario.request(id));
            let mut none = Vec::new();
            self.fleet.handle(now, FleetInput { worker, input }, &mut none);
            assert!(none.is_empty(), "a submission alone says nothing: {none:?}");
            self.submitted.push(worker);
        }
    }

    /// The reference publishes a worker's state at submissions, too, and after what else happens at that moment.
    fn publish(&mut self, now: SimTime) {
        for worker in self.submitted.drain(..) {
            self.run.published.push((now, worker, self.fleet.stats(worker).expect("a known worker")));
        }
    }

    fn hear(&mut self, out: Vec<FleetOutput>) {
        for output in out {
            let now = output.at;
            let (mut first, mut ended) = (None, None);
            match &output.output {
                EngineOutput::Kv(event) if self.case.kv_event_lag == SimSpan::ZERO => {
                    self.tell(now, RouterInput::Kv(output.worker, event.data.clone()));
                }
                EngineOutput::Kv(event) => {
                    self.late_events.push_back((now + self.case.kv_event_lag, output.worker, event.data.clone()));
                }
                // Who ends with the first token is not told of twice: the reference's queue is released once then.
                EngineOutput::Token { id, finished: true, .. } => ended = Some(*id),
                EngineOutput::Token { id, position: 0, .. } => first = Some(*id),
                EngineOutput::Finished { id, .. } | EngineOutput::Rejected { id, .. } => ended = Some(*id),
                _ => {}
            }
            self.run.note_one(output, &mut self.driver);
            for input in [first.map(RouterInput::PrefillCompleted), ended.map(RouterInput::Ended)].into_iter().flatten()
            {
                self.tell(now, input);
            }
        }
    }

    fn late_events(&mut self, now: SimTime) {
        while self.late_events.front().is_some_and(|(due, ..)| *due <= now) {
            if let Some((_, worker, event)) = self.late_events.pop_front() {
                self.tell(now, RouterInput::Kv(worker, event));
            }
        }
    }

    fn moment(&mut self, now: SimTime) {
        self.late_events(now);
        let mut out = Vec::new();
        self.fleet.complete_steps(now, &mut out);
        self.hear(std::mem::take(&mut out));
        let mut releases = Vec::new();
        self.driver.advance(now, &mut releases);
        for release in releases {
            let request = self.case.scenario.request(release.id);
            let row = release.id.0 as usize;
            self.run.lives[row] = Life {
                arrival_ms: Some(release.intended.as_ms()),
                input_tokens: request.prompt.len_tokens(),
                ..Life::default()
            };
            let (priority_jump, strict_priority) = self.case.priorities[row];
            let route = RouteRequest {
                id: release.id,
                input_tokens: request.prompt.len_tokens(),
                chain: request.prompt.chain(self.router.block_size()),
                priority_jump,
                strict_priority,
                ..RouteRequest::default()
            };
            self.tell(now, RouterInput::Request(route));
        }
        self.publish(now);
        self.fleet.start_steps(now, &mut out);
        self.hear(out);
    }
}

impl RouterCase {
    fn drive(&self, every_token: bool) -> (Run, Vec<Option<Decision>>) {
        let scenario = &self.scenario;
        let detail = EngineDetail { every_token, ..EngineDetail::default() };
        let block_size = scenario.engines[0].block_size;
        let mut world = World {
            case: self,
            fleet: Fleet::with_detail(&scenario.engines, detail).expect("a valid configuration"),
            router: Router::lean(self.router.clone(), block_size).expect("a valid configuration"),
            driver: Driver::new(scenario.workload.sessions.clone(), scenario.mode),
            late_events: VecDeque::new(),
            run: Run { lives: vec![Life::default(); scenario.workload.items.len()], published: Vec::new() },
            decisions: vec![None; scenario.workload.items.len()],
            submitted: Vec::new(),
        };
        world.router.explain(true);
        for (worker, engine) in (0..).map(WorkerId).zip(&scenario.engines) {
            let max_num_batched_tokens = engine.max_num_batched_tokens;
            world.tell(SimTime::ZERO, RouterInput::WorkerUp { worker, max_num_batched_tokens });
        }
        for _ in 0..MAX_MOMENTS {
            let late = world.late_events.front().map(|(due, ..)| *due);
            let next = [world.driver.next_deadline(), world.fleet.next_deadline(), late].into_iter().flatten().min();
            let Some(now) = next else {
                let queued: Vec<RequestId> = world.router.queued().collect();
                assert!(world.driver.is_finished(), "case {}: {queued:?} wait for ever", scenario.name);
                assert!(world.router.load().is_empty(), "case {}: bookings are left", scenario.name);
                return (world.run, world.decisions);
            };
            world.moment(now);
            world.fleet.check().unwrap_or_else(|broken| panic!("case {} at {now}: {broken}", scenario.name));
        }
        panic!("case {}: more than {MAX_MOMENTS} moments", scenario.name)
    }
}

/// A folder with the rows as trace.jsonl.
pub(crate) fn trace_folder(rows: &[Value]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    std::fs::write(folder.path().join("trace.jsonl"), lines).expect("a temporary file");
    folder
}

/// Compares a decision with a stage of the reference's route.
pub(crate) fn same_route(place: &str, decision: &Decision, route: &Value) {
    let outcome = if decision.queued { "queued" } else { "immediate" };
    let why = format!("{place} ({:?})", decision.explained);
    same_count(&why, "route.worker", decision.worker.0.into(), &route["worker"]);
    assert_eq!(route["outcome"], outcome, "{place}: `route.outcome`");
    same_ms(place, "route.wait", Some(decision.wait.as_ms()), &route["wait"]);
    let overlap_blocks = decision.overlap_blocks.expect("known");
    same_count(place, "route.sel_overlap", overlap_blocks.into(), &route["sel_overlap"]);
    let best_overlap_blocks = decision.best_overlap_blocks.expect("known");
    same_count(place, "route.best_overlap", best_overlap_blocks.into(), &route["best_overlap"]);
}

/// The request's urgency: priority and strict priority.
pub(crate) fn urgency(row: &Value) -> (f64, u32) {
    (row["priority"].as_f64().unwrap_or(0.0), row["strict_priority"].as_u64().unwrap_or(0) as u32)
}

fn check_router_case(name: &str, case: &Value, rows: &[Value], expected: &Value) {
    let folder = trace_folder(rows);
    let router_case = RouterCase::new(name, case, rows, &folder.path().join("trace.jsonl"));
    let (run, decisions) = router_case.drive(true);
    let (quiet, same_decisions) = router_case.drive(false);
    assert!(run.lives == quiet.lives && decisions == same_decisions, "case {name}: steps taken together differ");
    let wanted = expected["requests"].as_array().expect("requests");
    assert_eq!(run.lives.len(), wanted.len(), "case {name}: number of requests");
    for want in wanted {
        let row = want["row"].as_u64().expect("row");
        let place = format!("case {name}, row {row}");
        let decision = decisions[row as usize].as_ref().unwrap_or_else(|| panic!("{place}: never routed"));
        same_route(&place, decision, &want["route"][0]);
        same_life(name, &run, want);
    }
    check_state(name, &run, expected);
}

fn check_router_folder(name: &str) {
    let folder = golden_root().join(name);
    let trace = read_text(&folder.join("trace.jsonl"));
    let rows: Vec<Value> = trace.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    check_router_case(name, &read_json(&folder.join("case.json")), &rows, &read_json(&folder.join("expected.json")));
}

#[test]
fn kv_router_2_workers() {
    check_router_folder("kv-router-2-workers");
}

#[test]
fn router_queue_priority() {
    check_router_folder("router-queue-priority");
}

/// The further cases of the reference with a kv router.
pub(crate) fn further_cases(wanted: impl Fn(&Value) -> bool) -> Vec<Value> {
    let file = std::fs::File::open(golden_root().join("extra-cases.jsonl.gz")).expect("the golden cases");
    let mut text = String::new();
    GzDecoder::new(file).read_to_string(&mut text).expect("gzipped text");
    let cases = text.lines().map(|line| serde_json::from_str::<Value>(line).expect("a case"));
    cases.filter(|entry| entry["case"]["router_mode"] == "kv_router" && wanted(&entry["case"])).collect()
}

/// Every aggregated case with one rank a worker: all keys of the cost, late events, the queue.
#[test]
fn further_router_cases() {
    let one_rank = |case: &Value| case["dp_size"].as_u64().unwrap_or(1) == 1;
    let cases = further_cases(|case| case["engine"].is_object() && one_rank(case));
    for entry in &cases {
        let name = entry["name"].as_str().expect("name");
        let rows = entry["trace"].as_array().expect("trace");
        check_router_case(name, &entry["case"], rows, &entry["expected"]);
    }
    assert_eq!(cases.len(), 76, "cases");
}
