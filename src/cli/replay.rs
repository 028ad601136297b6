//! `replay`: fleet, router and load in virtual time.

use std::io::IsTerminal;
use std::path::PathBuf;

use clap::{Args, Parser};
use clap_complete::Shell;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::cli::arrival::ArrivalSettings;
use crate::cli::engine::EngineSettings;
use crate::cli::fleet::{EngineBlocks, EngineLayers, FleetSettings, ReplayEngineSettings};
use crate::cli::input::InputSettings;
use crate::cli::replay_journal::ReplayJournalArgs;
use crate::cli::replay_output::OutputSettings;
use crate::cli::router::RoutingSettings;
use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, Program};
use crate::measure::RunFacts;
use crate::session::plan::ArrivalMode;
use crate::session::workload::Workload;
use crate::sim::{ReplayConfig, ReplayResult, replay_observed};
use crate::time::{SimSpan, SimTime};
use crate::trace::{ReuseBounds, reuse_bounds};

/// Replay a trace in virtual time: the machines of `mocker`, `router` and `loadgen` without sockets and without waiting.
///
/// The same trace, settings and seed give the same report, byte by byte.
#[derive(Debug, Parser)]
#[command(name = "replay", version, max_term_width = 110, allow_negative_numbers = true)]
pub struct ReplayArgs {
    /// Read settings from a TOML, YAML or JSON file with the keys of the flags; flags win.
    ///
    /// Its relative paths start at its folder. The keys engine, prefill_engine and decode_engine hold engine keys for all
    /// workers of a kind, or a list with those of each worker.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
    #[command(flatten)]
    journal: ReplayJournalArgs,
    #[command(flatten)]
    settings: ReplaySettings,
    #[command(flatten)]
    input: InputSettings,
    #[command(flatten)]
    fleet: FleetSettings,
    #[command(flatten)]
    arrival: ArrivalSettings,
    #[command(flatten)]
    output: OutputSettings,
    #[command(flatten)]
    routing: RoutingSettings,
    #[command(flatten)]
    engine: EngineSettings,
    #[command(flatten)]
    replay_engine: ReplayEngineSettings,
}

/// What is replayed.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplaySettings {
    /// A Mooncake trace (JSON lines, also gzipped).
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
}

impl Program for ReplayArgs {
    fn run(self) -> Result<(), Failure> {
        if let Some(replayed) = self.journal.run() {
            return replayed;
        }
        let mut file = SettingsFile::read(self.config.as_deref()).map_err(Failure::usage)?;
        file.spread("router").map_err(Failure::usage)?;
        let blocks = EngineBlocks::take(&mut file);
        let written_arrival = written_arrival(&mut file, &self.arrival)?;
        self.arrival.exclude_from(&mut file);
        self.fleet.exclude_from(&mut file);
        let typed_trace = self.settings.trace.is_some();
        let settings = file.layer(self.settings).map_err(Failure::usage)?;
        let input = file.layer(self.input).map_err(Failure::usage)?;
        let arrival = file.layer(self.arrival).map_err(Failure::usage)?;
        let routing = file.layer(self.routing).map_err(Failure::usage)?;
        let fleet = file.layer(self.fleet).map_err(Failure::usage)?;
        let mut output = file.layer(self.output.clone()).map_err(Failure::usage)?;
        output.beside(&file, self.output);
        let flags = (self.engine, self.replay_engine);
        let plain = (
            file.layer(flags.0.clone()).map_err(Failure::usage)?,
            file.layer(flags.1.clone()).map_err(Failure::usage)?,
        );
        let trace = settings.trace.map(|trace| if typed_trace { trace } else { file.beside(&trace) });
        file.finish().map_err(Failure::usage)?;
        let Some(trace) = trace else {
            return Err(Failure::usage("no trace, expected `replay TRACE` or the key `trace`"));
        };
        output.check()?;
        let router = routing.resolve()?;
        let arrival = match written_arrival {
            Some(mode) => mode,
            None => arrival.resolve(router.seed)?,
        };
        let config = ReplayConfig {
            fleet: fleet.resolve(&blocks, &EngineLayers { plain, flags })?,
            kv_event_lag: SimSpan::from_ms(at_least_zero("kv_event_lag_ms", fleet.kv_event_lag_ms)?.unwrap_or(0.0)),
            max_sim_time: at_least_zero("max_sim_time_ms", fleet.max_sim_time_ms)?.map(SimTime::from_ms),
            check: fleet.check.unwrap_or(false),
            explain: output.explains(),
            tell_steps: output.wants_steps(),
            every_step: output.wants_every_step(),
            seed: router.seed,
            router,
            arrival,
        };
        config.fleet.block_size().map_err(Failure::usage)?;
        let timed = config.arrival.needs_timestamps();
        let workload = Workload::from_trace(&trace, &input.resolve(), timed).map_err(Failure::run)?;
        for note in &workload.notes {
            eprintln!("note: {note}");
        }
        run(&config, &workload, &output)
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}

/// The arrivals of a file that has them as an object, `{"mode": "concurrency", "concurrency": 32}`; flags take their place.
fn written_arrival(file: &mut SettingsFile, flags: &ArrivalSettings) -> Result<Option<ArrivalMode>, Failure> {
    let Some(value) = file.take("arrival") else { return Ok(None) };
    if *flags != ArrivalSettings::default() {
        return Ok(None);
    }
    let mut fields = value.clone();
    // The reference's cases say it in every mode; it divides timestamps, and there are none in the others.
    if let Value::Object(fields) = &mut fields
        && fields.get("mode").is_some_and(|mode| mode != "timestamps")
    {
        fields.retain(|key, value| !(key == "speedup_ratio" && value.as_f64() == Some(1.0)));
    }
    let mode: ArrivalMode =
        serde_json::from_value(fields).map_err(|error| Failure::usage(file.value_error("arrival", &value, error)))?;
    mode.validate().map_err(|error| Failure::usage(file.value_error("arrival", &value, error)))?;
    Ok(Some(mode))
}

/// A time that may not be negative.
fn at_least_zero(key: &str, value: Option<f64>) -> Result<Option<f64>, Failure> {
    match value.filter(|value| !(0.0..=1e13).contains(value)) {
        Some(value) => {
            Err(Failure::usage(format!("`{key}` is {value}, expected milliseconds from 0 to 10000000000000")))
        }
        None => Ok(value),
    }
}

fn run(config: &ReplayConfig, workload: &Workload, output: &OutputSettings) -> Result<(), Failure> {
    let bar = match std::io::stderr().is_terminal() {
        true => ProgressBar::new(workload.items.len() as u64),
        false => ProgressBar::hidden(),
    };
    let style = ProgressStyle::with_template("{pos}/{len} requests {wide_bar} {elapsed} gone, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let mut streams = output.open(config)?;
    let progress = |ended| bar.set_position(ended);
    let result = if streams.is_empty() {
        replay_observed(config, workload, progress, |_, _| {})
    } else {
        replay_observed(config, workload, progress, |at, event| streams.hear(at, event))
    };
    let result = result.map_err(Failure::run)?;
    bar.finish_and_clear();
    streams.finish(&result)?;
    let mut warnings = workload.notes.clone();
    warnings.extend(run_warnings(config, &result));
    let bounds = fleet_bounds(config, workload);
    let facts = RunFacts {
        workload: workload.name.clone(),
        router_mode: config.router.router_mode.name().to_owned(),
        arrival_mode: config.arrival.name().to_owned(),
        concurrency: config.arrival.concurrency().map(u64::from),
        seed: config.seed,
        speedup_ratio: 1.0,
        prefix_cache_reused_tokens: Some(result.reused_tokens_max),
        unfinished_requests: Some(result.unfinished),
        virtual_time: true,
        reuse_bounds: Some((bounds.infinite_ratio(), bounds.belady_ratio())),
        warnings,
    };
    output.write(&facts, workload, &result)
}

/// What readers of this run's figures should know.
fn run_warnings(config: &ReplayConfig, result: &ReplayResult) -> Vec<String> {
    let mut warnings = Vec::new();
    let (clamped, steps) = result.clamped_steps;
    if clamped > 0 {
        warnings.push(format!(
            "{clamped} of {steps} steps ({:.2} %) lie outside the timing profile's tables and are timed as at their edge",
            100.0 * clamped as f64 / steps as f64
        ));
    }
    if let Some(at) = config.max_sim_time.filter(|_| result.unfinished > 0) {
        warnings.push(format!(
            "stopped at {at} of simulated time (max_sim_time_ms): {} requests had not come or not ended, and are in no figure",
            result.unfinished
        ));
    }
    warnings
}

/// How much of the prompts a perfect router could reuse: with one cache that never forgets, and with one of the whole
/// fleet's size that evicts what is needed last.
fn fleet_bounds(config: &ReplayConfig, workload: &Workload) -> ReuseBounds {
    let caches = config.fleet.prefill_workers();
    let block_size = caches.first().map_or(1, |engine| engine.block_size);
    let capacity_blocks =
        caches.iter().map(|engine| u64::from(engine.num_gpu_blocks) * u64::from(engine.dp_size)).sum();
    reuse_bounds(workload.items.iter().map(|item| &item.prompt), block_size, capacity_blocks)
}
