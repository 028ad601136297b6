//! Whole cases: every field of every request, and the engines' gauges over time.

use std::collections::BTreeMap;

use mockfleet::ids::WorkerId;
use mockfleet::session::ledger::Outcome;
use mockfleet::sim::life::{HandoffTimes, Pool, RequestLife};
use mockfleet::time::{SimSpan, SimTime};
use serde_json::Value;

use super::{Published, Run, Scenario, TOLERANCE_MS, golden_lines, golden_root, same_count, same_ms};

fn check_case(name: &str) {
    let folder = golden_root().join(name);
    let read = |file: &str| -> Value {
        let path = folder.join(file);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let scenario = Scenario::new(name, &read("case.json"), &folder.join("trace.jsonl"));
    compare(&scenario, &read("expected.json"));
}

fn compare(scenario: &Scenario, expected: &Value) {
    let name = &scenario.name;
    let run = scenario.drive();
    let wanted = expected["requests"].as_array().expect("requests");
    assert_eq!(run.lives.len(), wanted.len(), "case {name}: number of requests");
    for want in wanted {
        let row = want["row"].as_u64().expect("row");
        compare_request(&format!("case {name}, row {row}"), &run.lives[row as usize], want);
    }
    compare_state(scenario, &run, expected);
}

fn compare_request(place: &str, life: &RequestLife, want: &Value) {
    same_ms(place, "arrival_ms", Some(life.arrival.as_ms()), &want["arrival_ms"]);
    same_count(place, "input_length", u64::from(life.input_tokens), &want["input_length"]);
    same_count(place, "worker", life.worker.map(u64::from), &want["worker"]);
    same_count(place, "prefill_worker", life.prefill_worker.map(u64::from), &want["prefill_worker"]);
    let admissions = want["admissions"].as_array().expect("admissions");
    for (nth, (ours, want)) in life.admissions.iter().zip(admissions).enumerate() {
        same_ms(place, &format!("admissions[{nth}].at_ms"), Some(ours.at.as_ms()), &want["at_ms"]);
        same_count(place, &format!("admissions[{nth}].reused"), u64::from(ours.reused_tokens), &want["reused"]);
        assert_eq!(Some(ours.pool.name()), want["pool"].as_str(), "{place}: `admissions[{nth}].pool`");
    }
    same_count(place, "admissions, their number", life.admissions.len() as u64, &admissions.len().into());
    same_ms(place, "first_token_ms", life.first_token.as_ms(), &want["first_token_ms"]);
    same_ms(place, "last_token_ms", life.last_token.as_ms(), &want["last_token_ms"]);
    same_ms(place, "time_to_second_token_ms", life.ttst().map(|span| span.as_ms()), &want["time_to_second_token_ms"]);
    same_ms(place, "mean_inter_token_latency_ms", life.tpot_ms(), &want["mean_inter_token_latency_ms"]);
    let status = want.get("status").map_or("completed", |status| status.as_str().expect("status"));
    assert_eq!(life.outcome == Some(Outcome::Completed), status == "completed", "{place}: `status` is {status}");
    same_count(place, "output_length", u64::from(life.output_tokens), &want["output_length"]);
    if let Some(requested) = want.get("requested_output_length") {
        same_count(place, "requested_output_length", u64::from(life.requested_output_tokens), requested);
        same_ms(place, "terminal_ms", Some(life.end.as_ms()), &want["terminal_ms"]);
    }
    let route = want["route"].as_array().expect("route");
    assert_eq!(life.route.len(), route.len(), "{place}: number of routing stages");
    for (nth, (ours, want)) in life.route.iter().zip(route).enumerate() {
        let key = |key: &str| format!("route[{nth}].{key}");
        assert_eq!(Some(ours.pool.name()), want["pool"].as_str(), "{place}: `route[{nth}].pool`");
        same_count(place, &key("worker"), u64::from(ours.worker), &want["worker"]);
        if let Some(rank) = want.get("dp_rank") {
            same_count(place, &key("dp_rank"), u64::from(ours.rank), rank);
        }
        assert_eq!(ours.queued, want["outcome"] == "queued", "{place}: `{}`", key("outcome"));
        same_ms(place, &key("wait"), Some(ours.wait.as_ms()), &want["wait"]);
        same_count(place, &key("sel_overlap"), ours.selected_overlap_blocks.map(u64::from), &want["sel_overlap"]);
        same_count(place, &key("best_overlap"), ours.best_overlap_blocks.map(u64::from), &want["best_overlap"]);
    }
    let HandoffTimes { source_held, destination_reserved, destination_activated, source_released } =
        life.handoff().copied().unwrap_or_default();
    for (key, ours) in [
        ("source_held_ms", source_held),
        ("destination_reserved_ms", destination_reserved),
        ("destination_activated_ms", destination_activated),
        ("source_released_ms", source_released),
    ] {
        same_ms(place, key, ours.as_ms(), want.get(key).unwrap_or(&Value::Null));
    }
}

/// The engines' gauges over time: the reference's published state, sampled every millisecond.
fn compare_state(scenario: &Scenario, run: &Run, expected: &Value) {
    let name = &scenario.name;
    let samples = expected["state"].as_array().expect("state");
    assert!(!samples.is_empty(), "case {name} has no state to compare");
    let dp_size = scenario.config.fleet.prefill_workers()[0].dp_size;
    let engines = run.published.iter().map(|shown| shown.engine.0 + 1).max().unwrap_or(0);
    let mut last_preemptions = BTreeMap::new();
    for sample in samples {
        let mut at = SimTime::from_ms(sample[0].as_f64().expect("t_ms"));
        if at.as_ms().fract() > 0.0 {
            // The last sample, at the run's end, is rounded to a microsecond.
            at += SimSpan::from_ms(TOLERANCE_MS);
        }
        let pool = match sample[1].as_str() {
            Some("prefill") => Pool::Prefill,
            Some("decode") => Pool::Decode,
            _ => Pool::Agg,
        };
        let rank = sample[8].as_u64().unwrap_or(0) as u32;
        let engine = WorkerId(sample[2].as_u64().expect("worker") as u32 * dp_size + rank);
        // With hand-offs a sample shows what happens at its moment, but for the requests that arrive then.
        let early = pool != Pool::Agg && at > SimTime::ZERO;
        let visible = |shown: &&Published| shown.at < at || shown.at == at && !(shown.arrival && early);
        let of_engine = |who: WorkerId| {
            let of_engine = move |shown: &&Published| shown.pool == pool && shown.engine == who;
            run.published.iter().rev().filter(of_engine).find(visible).map(|shown| shown.stats).unwrap_or_default()
        };
        let stats = of_engine(engine);
        // The reference counts them for the whole pool.
        let preemptions = (0..engines).map(|engine| of_engine(WorkerId(engine)).preemptions_total).sum::<u64>();
        let before = match last_preemptions.get(&pool) {
            Some((when, _, before)) if *when == at => *before,
            Some((_, now, _)) => *now,
            None => 0,
        };
        last_preemptions.insert(pool, (at, preemptions, before));
        let place = format!("case {name} at {at}, {} engine {engine}", pool.name());
        same_count(&place, "running", u64::from(stats.running), &sample[3]);
        same_count(&place, "waiting", u64::from(stats.waiting), &sample[4]);
        same_count(&place, "active_blocks", u64::from(stats.active_blocks), &sample[5]);
        same_count(&place, "inactive_blocks", u64::from(stats.inactive_blocks), &sample[6]);
        same_count(&place, "preemptions since the sample before", preemptions - before, &sample[7]);
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
    disaggregated: "disaggregated",
    eviction: "eviction",
    kv_router_2_workers: "kv-router-2-workers",
    max_num_seqs: "max-num-seqs",
    polynomial_timing: "polynomial-timing",
    preemption_lifo: "preemption-lifo",
    round_robin_2_workers: "round-robin-2-workers",
    router_queue_priority: "router-queue-priority",
    sessions_concurrency: "sessions-concurrency",
    unchunked_prefill: "unchunked-prefill",
}

/// Compares the extra cases of a kind and says of all that differ how.
fn compare_extra(wanted: impl Fn(&str, &Value) -> bool) -> usize {
    let (mut compared, mut differ) = (0, Vec::new());
    for entry in golden_lines("extra-cases.jsonl.gz") {
        let name = entry["name"].as_str().expect("name");
        if !wanted(name, &entry["case"]) {
            continue;
        }
        compared += 1;
        let one = || compare(&Scenario::of_rows(name, &entry["case"], &entry["trace"]), &entry["expected"]);
        if let Err(panic) = std::panic::catch_unwind(one) {
            let text = panic.downcast_ref::<String>().cloned().unwrap_or_else(|| "a panic".to_owned());
            differ.push(format!("{name}: {text}"));
        }
    }
    assert!(differ.is_empty(), "{} of {compared} differ:\n{}", differ.len(), differ.join("\n"));
    compared
}

#[test]
fn extra_disaggregated_cases() {
    let compared = compare_extra(|_, case| case["engine"].is_null() && case["router_mode"] == "round_robin");
    assert_eq!(compared, 71, "cases");
}

/// All but the one with a speedup of 0, which is 1 there and refused here.
#[test]
fn extra_aggregated_cases() {
    let compared = compare_extra(|name, case| {
        name != "speedup-0" && case["engine"].is_object() && case["router_mode"] == "round_robin"
    });
    assert_eq!(compared, 127, "cases");
}

/// All keys of the cost, late cache events, the queue and its priorities, ranks.
#[test]
fn extra_router_cases() {
    let compared = compare_extra(|_, case| case["router_mode"] == "kv_router");
    assert_eq!(compared, 90, "cases");
}
