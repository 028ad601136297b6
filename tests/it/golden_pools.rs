//! Golden cases of the routers before separate pools: each pool's router alone, between recorded moments.
//!
//! What the other pool does comes from the reference's records: the decode router hears of hand-offs and ends, the prefill
//! router of completed hand-offs. The prefill workers themselves run here, so that their caches' events are real.

use mockfleet::engine::{
    EngineConfig, EngineDetail, EngineInput, EngineOutput, EngineRequest, Fleet, FleetInput, FleetOutput, KvEventData,
};
use mockfleet::ids::{RequestId, WorkerId};
use mockfleet::rng::Seed;
use mockfleet::router::{
    Decision, Pool, RouteRequest, Router, RouterConfig, RouterInput, RouterMode, RouterOutput, TieBreak,
};
use mockfleet::session::workload::Workload;
use mockfleet::time::{SimSpan, SimTime};
use mockfleet::trace::ReadOptions;
use serde_json::Value;

use crate::golden::{MAX_MOMENTS, same_count, same_ms};
use crate::golden_router::{further_cases, same_route, trace_folder, urgency};

/// A case's workload and the router of one of its pools.
fn pool_of(case: &Value, trace: &Value, pool: Pool) -> (Workload, Router) {
    let folder = trace_folder(trace.as_array().expect("trace"));
    let block_tokens = case["trace_block_size"].as_u64().expect("trace_block_size") as u32;
    let options = ReadOptions { block_tokens, ..ReadOptions::default() };
    let workload = Workload::from_trace(&folder.path().join("trace.jsonl"), &options, true).expect("a trace");
    let config: RouterConfig = serde_json::from_value(case["router"].clone()).expect("router");
    let config = RouterConfig { router_mode: RouterMode::Kv, tie_break: TieBreak::Lowest, ..config };
    let engine = &case[format!("{}_engine", pool.name())];
    let block_size = engine["block_size"].as_u64().expect("block_size") as u32;
    let max_num_batched_tokens = engine["max_num_batched_tokens"].as_u64().map(|tokens| tokens as u32);
    let mut router = Router::for_pool(config, block_size, pool, 1).expect("a valid configuration");
    router.explain(true);
    for worker in 0..case[format!("num_{}_workers", pool.name())].as_u64().expect("workers") as u32 {
        let up = RouterInput::WorkerUp { worker: WorkerId(worker), max_num_batched_tokens };
        router.handle(SimTime::ZERO, up, &mut Vec::new());
    }
    (workload, router)
}

fn time(value: &Value) -> SimTime {
    SimTime::from_ms(value.as_f64().expect("a time"))
}

fn disaggregated_cases() -> Vec<Value> {
    let cases = further_cases(|case| case["decode_engine"].is_object());
    assert_eq!(cases.len(), 10, "cases");
    cases
}

/// The routers of decode pools go by nothing but hand-offs and ends.
#[test]
fn decode_pools_choose_by_load() {
    for entry in disaggregated_cases() {
        check_decode_pool(entry["name"].as_str().expect("name"), &entry["case"], &entry["trace"], &entry["expected"]);
    }
}

fn check_decode_pool(name: &str, case: &Value, trace: &Value, expected: &Value) {
    let (workload, mut router) = pool_of(case, trace, Pool::Decode);
    // At one moment ends come first; then hand-offs, by prefill worker, then in the order of its batch.
    let mut moments = Vec::new();
    for want in expected["requests"].as_array().expect("requests") {
        let row = want["row"].as_u64().expect("row");
        let prefill_worker = want["prefill_worker"].as_u64().expect("prefill_worker");
        moments.push((time(&want["last_token_ms"]), 0, 0, SimTime::ZERO, row, want));
        let admitted = time(&want["admissions"][0]["at_ms"]);
        moments.push((time(&want["source_held_ms"]), 1, prefill_worker, admitted, row, want));
    }
    moments.sort_by_key(|(at, kind, worker, admitted, row, _)| (*at, *kind, *worker, *admitted, *row));
    for (now, kind, _, _, row, want) in moments {
        let id = RequestId(row);
        let mut out = Vec::new();
        if kind == 0 {
            router.handle(now, RouterInput::Ended(id), &mut out);
            assert!(out.is_empty(), "{out:?}");
            continue;
        }
        let item = &workload.items[row as usize];
        let chain = Router::chain(&item.prompt.tokens(), router.block_size());
        let request = RouteRequest { id, input_tokens: item.input_tokens, chain, ..RouteRequest::default() };
        router.handle(now, RouterInput::Request(request), &mut out);
        let [RouterOutput::Routed(_, decision)] = &out[..] else { panic!("case {name}, row {row}: {out:?}") };
        same_route(&format!("case {name}, row {row}, decode"), decision, &want["route"][1]);
    }
    assert!(router.load().is_empty(), "case {name}: bookings are left");
}

/// The routers of prefill pools: prompts, caches, the queue. A request of this pool ends when its hand-off is complete.
#[test]
fn prefill_pools_choose_by_cache_and_prompts() {
    for entry in disaggregated_cases() {
        check_prefill_pool(entry["name"].as_str().expect("name"), &entry["case"], &entry["trace"], &entry["expected"]);
    }
}

/// A prefill worker, as an engine of one token a request that takes no decode time.
fn prefill_engine(engine: &Value) -> EngineConfig {
    let mut engine = engine.as_object().expect("an engine").clone();
    engine.retain(|key, _| key != "worker_type" && !key.starts_with("kv_transfer_"));
    engine["timing_model"]["decode_ms"] = 0.0.into();
    serde_json::from_value(engine.into()).expect("an engine")
}

/// A prefill pool between the trace's arrivals and the recorded ends of hand-offs.
struct PrefillPool {
    router: Router,
    fleet: Fleet,
    workload: Workload,
    lag: SimSpan,
    late_events: Vec<(SimTime, WorkerId, KvEventData)>,
    decisions: Vec<Option<Decision>>,
    reused_tokens: Vec<Option<u32>>,
    held: Vec<Option<SimTime>>,
}

impl PrefillPool {
    fn tell(&mut self, now: SimTime, input: RouterInput) {
        let mut routed = Vec::new();
        self.router.handle(now, input, &mut routed);
        for output in routed {
            let RouterOutput::Routed(id, decision) = output else { panic!("no worker for {output:?}") };
            let item = &self.workload.items[id.0 as usize];
            let request = EngineRequest {
                id,
                prompt: item.prompt.tokens().into(),
                max_output_tokens: item.output_tokens.min(1),
                output_seed: Seed(7),
                vocab_tokens: 1 << 20,
                priority: 0,
            };
            let input = FleetInput { worker: decision.worker, input: EngineInput::Submit(request) };
            self.decisions[id.0 as usize] = Some(decision);
            self.fleet.handle(now, input, &mut Vec::new());
        }
    }

    fn hear(&mut self, out: &mut Vec<FleetOutput>) {
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                EngineOutput::Kv(event) => self.late_events.push((at + self.lag, worker, event.data)),
                EngineOutput::Admitted { id, reused_tokens, .. } => {
                    self.reused_tokens[id.0 as usize] = Some(reused_tokens);
                }
                EngineOutput::Token { id, .. } => {
                    self.held[id.0 as usize] = Some(at);
                    self.late_events(at);
                    self.tell(at, RouterInput::PrefillCompleted(id));
                }
                _ => {}
            }
        }
    }

    fn late_events(&mut self, now: SimTime) {
        let (due, later) = std::mem::take(&mut self.late_events).into_iter().partition(|(due, ..)| *due <= now);
        self.late_events = later;
        for (_, worker, event) in due {
            self.tell(now, RouterInput::Kv(worker, event));
        }
    }
}

fn check_prefill_pool(name: &str, case: &Value, trace: &Value, expected: &Value) {
    let (workload, router) = pool_of(case, trace, Pool::Prefill);
    let workers = case["num_prefill_workers"].as_u64().expect("workers") as usize;
    let engines = vec![prefill_engine(&case["prefill_engine"]); workers];
    // An arrival joins the step after the one that could start at its moment.
    let detail = EngineDetail { starts_before_arrivals: true, ..EngineDetail::default() };
    let rows = workload.items.len();
    let mut pool = PrefillPool {
        router,
        fleet: Fleet::with_detail(&engines, detail).expect("a valid configuration"),
        workload,
        lag: SimSpan::from_ms(case["kv_event_lag_ms"].as_f64().unwrap_or(0.0)),
        late_events: Vec::new(),
        decisions: vec![None; rows],
        reused_tokens: vec![None; rows],
        held: vec![None; rows],
    };
    let wanted = expected["requests"].as_array().expect("requests");
    let row_of = |want: &Value| want["row"].as_u64().expect("row");
    let mut released: Vec<(SimTime, u64)> =
        wanted.iter().map(|want| (time(&want["source_released_ms"]), row_of(want))).collect();
    let mut arrivals: Vec<(SimTime, u64)> =
        wanted.iter().map(|want| (time(&want["arrival_ms"]), row_of(want))).collect();
    for moments in [&mut released, &mut arrivals] {
        moments.sort_unstable();
        moments.reverse();
    }
    for moment in 0.. {
        let recorded = [released.last(), arrivals.last()].map(|next| next.map(|(at, _)| *at));
        let Some(now) = recorded.into_iter().chain([pool.fleet.next_deadline()]).flatten().min() else { break };
        assert!(moment < MAX_MOMENTS, "case {name}: no end");
        let mut out = Vec::new();
        pool.fleet.complete_steps(now, &mut out);
        pool.hear(&mut out);
        while let Some((_, row)) = released.pop_if(|(at, _)| *at <= now) {
            pool.tell(now, RouterInput::Ended(RequestId(row)));
        }
        pool.fleet.start_steps(now, &mut out);
        pool.hear(&mut out);
        while let Some((_, row)) = arrivals.pop_if(|(at, _)| *at <= now) {
            pool.late_events(now);
            let item = &pool.workload.items[row as usize];
            let (priority_jump, strict_priority) = urgency(&trace[row as usize]);
            let request = RouteRequest {
                id: RequestId(row),
                input_tokens: item.input_tokens,
                chain: Router::chain(&item.prompt.tokens(), pool.router.block_size()),
                priority_jump,
                strict_priority,
                ..RouteRequest::default()
            };
            pool.tell(now, RouterInput::Request(request));
        }
        pool.fleet.start_steps(now, &mut out);
        pool.hear(&mut out);
    }
    for want in wanted {
        let row = row_of(want) as usize;
        let place = format!("case {name}, row {row}, prefill");
        same_route(&place, pool.decisions[row].as_ref().expect("routed"), &want["route"][0]);
        same_ms(&place, "source_held_ms", pool.held[row].map(SimTime::as_ms), &want["source_held_ms"]);
        let reused_tokens = pool.reused_tokens[row].expect("admitted");
        same_count(&place, "admissions[0].reused", reused_tokens.into(), &want["admissions"][0]["reused"]);
    }
    assert!(pool.router.load().is_empty(), "case {name}: bookings are left");
}
