//! From a case's JSON to what a replay needs.

use std::path::Path;

use mockfleet::engine::EngineConfig;
use mockfleet::router::RouterConfig;
use mockfleet::session::plan::ArrivalMode;
use mockfleet::session::workload::Workload;
use mockfleet::sim::{FleetConfig, ReplayConfig};
use mockfleet::time::SimSpan;
use mockfleet::trace::ReadOptions;
use serde_json::Value;

use super::Scenario;

impl Scenario {
    /// `trace` is a file.
    pub(super) fn new(name: &str, case: &Value, trace: &Path) -> Scenario {
        let config = config(name, case);
        let block_tokens = case["trace_block_size"].as_u64().expect("trace_block_size") as u32;
        let options = ReadOptions { block_tokens, ..ReadOptions::default() };
        let workload = Workload::from_trace(trace, &options, config.arrival.needs_timestamps())
            .unwrap_or_else(|error| panic!("case {name}: {error}"));
        Scenario { name: name.to_owned(), config, workload }
    }

    /// `rows` are the trace's.
    pub(super) fn of_rows(name: &str, case: &Value, rows: &Value) -> Scenario {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let trace = folder.path().join("trace.jsonl");
        let lines: String = rows.as_array().expect("trace").iter().map(|row| format!("{row}\n")).collect();
        std::fs::write(&trace, lines).expect("a temporary file");
        Scenario::new(name, case, &trace)
    }
}

/// What a case asks for. Equal costs go to the lowest number, invariants are checked.
pub(crate) fn config(name: &str, case: &Value) -> ReplayConfig {
    let fails = |what: &str, error: &dyn std::fmt::Display| -> ! { panic!("case {name}: {what}: {error}") };
    let dp_size = case["dp_size"].as_u64().unwrap_or(1) as u32;
    let engines = |key: &str, workers: &str| {
        let engine: EngineConfig = serde_json::from_value(case[key].clone()).unwrap_or_else(|error| fails(key, &error));
        // The reference computes a preempted sequence's prompt again for nothing on a decode worker; we charge it
        // unless told not to.
        let engine = EngineConfig { dp_size, free_decode_recompute: true, ..engine };
        vec![engine; case[workers].as_u64().unwrap_or(1) as usize]
    };
    let fleet = match case["engine"].is_object() {
        true => FleetConfig::Aggregated(engines("engine", "num_workers")),
        false => FleetConfig::Disaggregated {
            prefill: engines("prefill_engine", "num_prefill_workers"),
            decode: engines("decode_engine", "num_decode_workers"),
        },
    };
    let mut router = case["router"].clone();
    router["router_mode"] = case["router_mode"].clone();
    // Equal costs are drawn by chance there; the cases are such that the lowest number reproduces what came of it.
    router["tie_break"] = "lowest".into();
    let router: RouterConfig = serde_json::from_value(router).unwrap_or_else(|error| fails("router", &error));
    let mut arrival = case["arrival"].clone();
    if let Some(keys) = arrival.as_object_mut()
        && let Some(ratio) = keys.remove("speedup_ratio")
        && keys["mode"] == "timestamps"
    {
        keys.insert("arrival_speedup_ratio".to_owned(), ratio);
    }
    let arrival: ArrivalMode = serde_json::from_value(arrival).unwrap_or_else(|error| fails("arrival", &error));
    ReplayConfig {
        fleet,
        router,
        arrival,
        kv_event_lag: SimSpan::from_ms(case["kv_event_lag_ms"].as_f64().unwrap_or(0.0)),
        max_sim_time: None,
        check: true,
        explain: false,
        tell_steps: true,
        every_step: false,
        seed: 0,
    }
}
