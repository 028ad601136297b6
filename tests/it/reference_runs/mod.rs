//! Whole traces against what the reference measured on them.
//!
//! `tests/golden/trace-summaries.jsonl` holds the summaries of 15 runs of the reference: 12,031 or 23,608 requests each.
//! Every one has a test in here. Round robin leaves nothing to chance, so all figures must be equal, and of three runs
//! every request's times too ([`per_request`]). With KV routing the reference breaks ties at random without a seed: here
//! one seed of ours is held against its one run, for time; `benches/peer/summaries.py` takes 20. How far figures may be
//! apart is said in [`limits`].
//!
//! The traces are not part of the project: without `../shared/traces` these tests say that they are skipped.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use mockfleet::engine::{EngineConfig, TimingModel};
use mockfleet::measure::{Report, RunFacts};
use mockfleet::router::TieBreak;
use mockfleet::session::workload::Workload;
use mockfleet::sim::{FleetConfig, ReplayConfig, ReplayResult, replay};
use mockfleet::trace::ReadOptions;
use serde_json::Value;

use crate::golden;

mod limits;
mod per_request;

/// The folder beside the project that holds traces and oracles; `None` where it is absent, and then says so.
fn shared(test: &str) -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared");
    if folder.join("traces").is_dir() && folder.join("oracle/per-request").is_dir() {
        return Some(folder);
    }
    // Past the test harness, which keeps what passing tests print to itself.
    let _ = writeln!(std::io::stderr(), "skipped: {test} needs ../shared/traces and ../shared/oracle");
    None
}

/// A run of the reference.
struct Reference {
    name: String,
    /// Without what differs from seed to seed.
    config: ReplayConfig,
    workload: &'static Workload,
    /// The summary, by key.
    expected: Value,
}

impl Reference {
    fn load(name: &str, shared: &Path) -> Reference {
        let mut line = summaries().into_iter().find(|line| line["name"] == name).expect("a summary of this name");
        let profile = line["engine"].as_object_mut().and_then(|engine| engine.remove("timing_model"));
        let mut config = golden::config(name, &line);
        config.check = false;
        config.router.tie_break = TieBreak::Seeded;
        if let (Some(profile), FleetConfig::Aggregated(engines)) = (profile, &mut config.fleet) {
            *engines = with_profile(profile["profile"].as_str().expect("a profile's name"), engines);
        }
        let workload = workload(line["trace"].as_str().expect("a trace"), shared);
        Reference { name: name.to_owned(), config, workload, expected: line["expected"].take() }
    }

    fn run(&self, seed: u64) -> ReplayResult {
        let mut config = self.config.clone();
        (config.seed, config.router.seed) = (seed, seed);
        replay(&config, self.workload, |_| {}).unwrap_or_else(|error| panic!("{}: {error}", self.name))
    }

    fn timed_by_profile(&self) -> bool {
        matches!(&self.config.fleet.prefill_workers()[0].timing_model, TimingModel::Profile(_))
    }
}

fn summaries() -> Vec<Value> {
    golden::golden_lines("trace-summaries.jsonl")
}

fn with_profile(name: &str, engines: &[EngineConfig]) -> Vec<EngineConfig> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("profiles/{name}.json"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let timing_model = TimingModel::from_profile_json(name, &text).unwrap_or_else(|error| panic!("{name}: {error}"));
    engines.iter().map(|engine| EngineConfig { timing_model: timing_model.clone(), ..engine.clone() }).collect()
}

/// The trace's requests, read once for all tests.
fn workload(trace: &str, shared: &Path) -> &'static Workload {
    static CONVERSATION: OnceLock<Workload> = OnceLock::new();
    static TOOLAGENT: OnceLock<Workload> = OnceLock::new();
    let kept = match trace {
        "conversation_trace.jsonl" => &CONVERSATION,
        "toolagent_reconstructed.jsonl" => &TOOLAGENT,
        other => panic!("no test knows the trace {other}"),
    };
    let path = shared.join(format!("traces/{trace}.gz"));
    kept.get_or_init(|| Workload::from_trace(&path, &ReadOptions::default(), true).expect("a trace"))
}

/// The figures of a run under the reference's names, as `replay --report` writes them.
fn report(result: &ReplayResult) -> Value {
    let reused = Some(result.reused_tokens_max);
    let facts = RunFacts { prefix_cache_reused_tokens: reused, virtual_time: true, ..RunFacts::default() };
    let report = Report::build(&result.records, &result.itl, &facts).to_json();
    serde_json::from_str::<Value>(&report).expect("JSON")["reference"].take()
}

fn check_round_robin(name: &str) {
    let Some(shared) = shared(name) else { return };
    let reference = Reference::load(name, &shared);
    let result = reference.run(0);
    limits::equal(&reference, &report(&result));
    per_request::equal(name, &shared, &result.lives);
}

fn check_kv(name: &str) {
    let Some(shared) = shared(name) else { return };
    let reference = Reference::load(name, &shared);
    limits::near(&reference, &report(&reference.run(0)));
}

macro_rules! reference_runs {
    ($($name:ident: $check:ident),* $(,)?) => {
        $(#[test] fn $name() { $check(stringify!($name)); })*

        #[test]
        fn every_summary_has_a_test() {
            let names: Vec<String> =
                summaries().iter().map(|line| line["name"].as_str().expect("a name").to_owned()).collect();
            assert_eq!(names, [$(stringify!($name)),*]);
        }
    };
}

reference_runs! {
    conv_c32_w8_rr: check_round_robin,
    conv_c32_w8_kvdef: check_kv,
    conv_c32_w8_kvtuned: check_kv,
    conv_ts_w8_rr: check_round_robin,
    conv_ts_w8_kvdef: check_kv,
    conv_c32_w8_b2048_rr: check_round_robin,
    conv_c32_w8_b2048_kvdef: check_kv,
    conv_c32_w8_rr_aic: check_round_robin,
    conv_c32_w8_kvdef_aic: check_kv,
    conv_c32_w8_kvtuned_aic: check_kv,
    conv_c32_disagg4p4d_rr: check_round_robin,
    tool_c32_w8_rr_poly: check_round_robin,
    tool_c32_w8_b49152_rr_aic: check_round_robin,
    tool_c32_w8_b49152_kvdef_aic: check_kv,
    tool_c32_w8_b49152_kvtuned_aic: check_kv,
}
