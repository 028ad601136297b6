//! `replay`: fleet, router and load in virtual time.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use clap::{Args, Parser};
use clap_complete::Shell;
use indicatif::{ProgressBar, ProgressStyle};
use serde::{Deserialize, Serialize};

use crate::cli::arrival::ArrivalSettings;
use crate::cli::engine::EngineSettings;
use crate::cli::input::InputSettings;
use crate::cli::replay_journal::ReplayJournalArgs;
use crate::cli::router::RoutingSettings;
use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, Program, say, workers};
use crate::measure::{Report, RunFacts, summary_table, write_atomic, write_requests_csv};
use crate::session::workload::Workload;
use crate::sim::requests_out::write_requests_jsonl;
use crate::sim::{ReplayConfig, replay};
use crate::trace::reuse_bounds;

/// Replay a trace in virtual time: the machines of `mocker`, `router` and `loadgen` without sockets and without waiting.
///
/// The same trace, settings and seed give the same report, byte by byte.
#[derive(Debug, Parser)]
#[command(name = "replay", version, max_term_width = 110, allow_negative_numbers = true)]
pub struct ReplayArgs {
    /// Read settings from a TOML or YAML file with the keys of the flags; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
    #[command(flatten)]
    journal: ReplayJournalArgs,
    #[command(flatten)]
    input: InputSettings,
    #[command(flatten)]
    settings: ReplaySettings,
    #[command(flatten)]
    routing: RoutingSettings,
    #[command(flatten)]
    engine: EngineSettings,
}

/// What flags and file may set of a replay.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplaySettings {
    /// A Mooncake trace (JSON lines, also gzipped).
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
    /// Number of workers [default: 1].
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    num_workers: Option<u32>,
    #[command(flatten)]
    #[serde(flatten)]
    arrival: ArrivalSettings,
    /// Write the report (JSON) here.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    report: Option<PathBuf>,
    /// Write one line a request (CSV) here.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    requests_csv: Option<PathBuf>,
    /// Write one line a request (JSON) here, with every admission and routing decision.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    requests_out: Option<PathBuf>,
    /// Exit with 0 although requests failed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    allow_failures: Option<bool>,
    /// Print the report (JSON) on stdout, and nothing else.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    json: Option<bool>,
}

impl Program for ReplayArgs {
    fn run(self) -> Result<(), Failure> {
        if let Some(replayed) = self.journal.run() {
            return replayed;
        }
        let mut file = SettingsFile::read(self.config.as_deref()).map_err(Failure::usage)?;
        self.settings.arrival.exclude_from(&mut file);
        let settings = file.layer(self.settings).map_err(Failure::usage)?;
        let input = file.layer(self.input).map_err(Failure::usage)?;
        let routing = file.layer(self.routing).map_err(Failure::usage)?;
        let engine = file.layer(self.engine).map_err(Failure::usage)?;
        file.finish().map_err(Failure::usage)?;
        let Some(trace) = settings.trace.clone() else {
            return Err(Failure::usage("no trace, expected `replay TRACE` or the key `trace`"));
        };
        for path in [&settings.report, &settings.requests_csv, &settings.requests_out].into_iter().flatten() {
            check_place(path)?;
        }
        let config = settings.resolve(&routing, &engine)?;
        let timed = config.arrival.needs_timestamps();
        let workload = Workload::from_trace(&trace, &input.resolve(), timed).map_err(Failure::run)?;
        for note in &workload.notes {
            eprintln!("note: {note}");
        }
        settings.replay(&config, &workload)
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}

impl ReplaySettings {
    fn resolve(&self, routing: &RoutingSettings, engine: &EngineSettings) -> Result<ReplayConfig, Failure> {
        let num_workers = workers(self.num_workers)?;
        let engine = engine.resolve().map_err(Failure::usage)?;
        let router = routing.resolve()?;
        let arrival = self.arrival.resolve(router.seed)?;
        let seed = router.seed;
        Ok(ReplayConfig::aggregated(vec![engine; num_workers as usize], router, arrival, seed))
    }

    fn replay(&self, config: &ReplayConfig, workload: &Workload) -> Result<(), Failure> {
        let bar = match std::io::stderr().is_terminal() {
            true => ProgressBar::new(workload.items.len() as u64),
            false => ProgressBar::hidden(),
        };
        let style = ProgressStyle::with_template("{pos}/{len} requests {wide_bar} {elapsed} gone, {eta} left");
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        let result = replay(config, workload, |ended| bar.set_position(ended)).map_err(Failure::run)?;
        bar.finish_and_clear();
        let facts = RunFacts {
            workload: workload.name.clone(),
            router_mode: config.router.router_mode.name().to_owned(),
            arrival_mode: config.arrival.name().to_owned(),
            concurrency: config.arrival.concurrency().map(u64::from),
            seed: config.seed,
            speedup_ratio: 1.0,
            prefix_cache_reused_tokens: Some(result.reused_tokens_max),
            warnings: workload.notes.clone(),
        };
        let report = Report::build(&result.records, &result.itl, &facts);
        if let Some(path) = &self.report {
            write_atomic(path, report.to_json().as_bytes()).map_err(Failure::run)?;
        }
        if let Some(path) = &self.requests_csv {
            write_requests_csv(path, &result.records).map_err(Failure::run)?;
        }
        if let Some(path) = &self.requests_out {
            let mut lines = Vec::new();
            let session = |session: u32| workload.sessions.get(session as usize)?.session_id.as_deref();
            write_requests_jsonl(&result.lives, session, &mut lines).map_err(Failure::run)?;
            write_atomic(path, &lines).map_err(Failure::run)?;
        }
        if self.json.unwrap_or(false) {
            say(report.to_json())
        } else {
            say(summary_table(&report));
            say(reference_lines(config, workload));
        }
        if report.failed_requests > 0 && !self.allow_failures.unwrap_or(false) {
            let (failed, all) = (report.failed_requests, report.num_requests);
            return Err(Failure::run(format!("{failed} of {all} requests failed")));
        }
        Ok(())
    }
}

/// How much of the prompts a perfect router could reuse: with one cache that never forgets, and with one of the whole
/// fleet's size that evicts what is needed last.
fn reference_lines(config: &ReplayConfig, workload: &Workload) -> String {
    let caches = config.fleet.prefill_workers();
    let block_size = caches.first().map_or(1, |engine| engine.block_size);
    let capacity_blocks =
        caches.iter().map(|engine| u64::from(engine.num_gpu_blocks) * u64::from(engine.dp_size)).sum();
    let bounds = reuse_bounds(workload.items.iter().map(|item| &item.prompt), block_size, capacity_blocks);
    format!(
        "reuse ratio at best: {:.4} with one infinite cache, {:.4} with one of {capacity_blocks} blocks and Belady eviction\n",
        bounds.infinite_ratio(),
        bounds.belady_ratio()
    )
}

/// Fails if a file cannot be there, which is better known before the replay than after it.
fn check_place(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(Failure::run(format!("{}: is a folder, expected a file", path.display())));
    }
    if parent.is_dir() { Ok(()) } else { Err(Failure::run(format!("{}: no such folder", parent.display()))) }
}
