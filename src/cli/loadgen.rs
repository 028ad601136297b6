//! `loadgen`: send a workload, measure, report; `loadgen compare`: two or more runs side by side.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use crate::cli::arrival::ArrivalSettings;
use crate::cli::input::InputSettings;
use crate::cli::journal::JournalSettings;
use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, Program, runtime, say, seconds};
use crate::live::clock::unix_seconds;
use crate::live::load::results::{ResultsHome, check_free, check_name, plain_name, write_comparison, write_run};
use crate::live::load::target::{Target, ask};
use crate::live::load::{LoadConfig, LoadResult, run};
use crate::live::shutdown::StopSignal;
use crate::measure::{Report, ResultFolder, RunFacts, RunInfo, compare, summary_table};
use crate::rng::Seed;
use crate::session::ledger::Outcome;
use crate::session::plan::ArrivalMode;
use crate::session::workload::Workload;
use crate::trace::PrefixRatioOptions;

/// Here the defaults depend on whether there is a trace.
const CONCURRENCY_HELP: &str =
    "Closed loop: so many sessions at a time; trace timestamps are ignored [default without a trace: 32]";
const ARRIVAL_SPEEDUP_RATIO_HELP: &str =
    "Replay by the trace's timestamps, so many times faster [default with a trace: 1]";

/// Send a workload to a router and measure TTFT, TPOT and prefix reuse.
///
/// Without a file it sends the standard prefix workload: groups of prompts that share their first half. `--trace` replays a
/// Mooncake trace. Results go to results/WORKLOAD-MODE/. All times are simulated time: wall clock × the fleet's speedup.
#[derive(Debug, Parser)]
#[command(
    name = "loadgen",
    version,
    max_term_width = 110,
    allow_negative_numbers = true,
    args_conflicts_with_subcommands = true,
    mut_arg("concurrency", |flag| flag.help(CONCURRENCY_HELP)),
    mut_arg("arrival_speedup_ratio", |flag| flag.help(ARRIVAL_SPEEDUP_RATIO_HELP))
)]
pub struct LoadgenArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Read settings from a TOML or YAML file with the keys of the flags; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
    #[command(flatten)]
    settings: LoadSettings,
    #[command(flatten)]
    input: InputSettings,
    #[command(flatten)]
    journal: JournalSettings,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Draw two or more runs together and print their table.
    Compare(CompareArgs),
}

/// What flags and file may set of a run.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadSettings {
    /// Server: http://HOST:PORT or grpc://HOST:PORT [default: grpc://127.0.0.1:8000, the local router].
    #[arg(long, value_name = "URL", help_heading = "Server")]
    url: Option<Target>,
    /// Seconds of wall clock that a request may take [default: 600].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SECONDS", help_heading = "Server")]
    request_timeout_s: Option<f64>,

    /// Empty the workers' caches before the run.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Server")]
    flush_cache: Option<bool>,

    #[command(flatten)]
    #[serde(flatten)]
    arrival: ArrivalSettings,

    /// Replay a Mooncake trace (JSON lines, also gzipped).
    #[arg(long, alias = "input-dataset", value_name = "FILE", help_heading = "Trace")]
    trace: Option<PathBuf>,

    /// Mean prompt length [default: 14000].
    #[arg(long, value_name = "TOKENS", help_heading = "Prefix workload (without a trace)")]
    isl: Option<u32>,
    /// Mean output length [default: 200].
    #[arg(long, value_name = "TOKENS", help_heading = "Prefix workload (without a trace)")]
    osl: Option<u32>,
    /// Number of requests [default: 200].
    #[arg(long, alias = "requests", value_name = "N", help_heading = "Prefix workload (without a trace)")]
    num_requests: Option<u64>,
    /// Groups of requests that share a prefix [default: 20].
    #[arg(long, alias = "num-prefix-prompts", value_name = "N", help_heading = "Prefix workload (without a trace)")]
    num_prefix_groups: Option<u32>,
    /// Share of the prompt that is the group's prefix, 0 to 1 [default: 0.5].
    #[arg(long, value_parser = crate::cli::finite, value_name = "RATIO", help_heading = "Prefix workload (without a trace)")]
    prefix_ratio: Option<f64>,

    /// Name of the result folder [default: WORKLOAD-MODE].
    #[arg(long, value_name = "NAME", help_heading = "Results")]
    name: Option<String>,
    /// Folder that holds the result folders [default: results].
    #[arg(long, value_name = "DIR", help_heading = "Results")]
    results_dir: Option<PathBuf>,
    /// Replace an existing result folder.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    force: Option<bool>,
    /// Print report.json on stdout, and nothing else.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    json: Option<bool>,
    /// Exit with 0 although requests failed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    allow_failures: Option<bool>,
    /// No progress bar.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    no_progress: Option<bool>,
    /// Seed of the workload, the output tokens and the arrivals [default: 0].
    #[arg(long, value_name = "N", help_heading = "Results")]
    seed: Option<u64>,
}

/// Arguments of `loadgen compare`.
#[derive(Debug, Args)]
pub struct CompareArgs {
    /// Result folders, the first is the baseline.
    #[arg(required = true, num_args = 2.., value_name = "DIR")]
    folders: Vec<PathBuf>,
    /// Names of the runs, in order [default: the folders' names].
    #[arg(long = "label", value_name = "LABEL")]
    labels: Vec<String>,
    /// Where to write pictures, table and comparison.json [default: the folders' common parent].
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
    /// Print comparison.json on stdout, and nothing else.
    #[arg(long)]
    json: bool,
    /// Seed of the resampling behind the confidence intervals.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

impl Program for LoadgenArgs {
    fn run(self) -> Result<(), Failure> {
        if let Some(Command::Compare(arguments)) = self.command {
            return compare_runs(&arguments);
        }
        let mut file = SettingsFile::read(self.config.as_deref()).map_err(Failure::usage)?;
        self.settings.arrival.exclude_from(&mut file);
        let settings = file.layer(self.settings).map_err(Failure::usage)?;
        let input = file.layer(self.input).map_err(Failure::usage)?;
        let journal = file.layer(self.journal).map_err(Failure::usage)?;
        file.finish().map_err(Failure::usage)?;
        send_workload(&settings, &input, &journal)
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}

impl LoadSettings {
    fn arrival(&self) -> Result<ArrivalMode, Failure> {
        match self.arrival.resolve(self.seed.unwrap_or(0))? {
            ArrivalMode::Timestamps { .. } if self.trace.is_none() => match self.arrival.arrival_speedup_ratio {
                Some(_) => {
                    Err(Failure::usage("`arrival_speedup_ratio` is set without `trace`: there are no timestamps"))
                }
                None => Ok(ArrivalMode::Concurrency { concurrency: 32 }),
            },
            mode => Ok(mode),
        }
    }

    fn workload(&self, arrival: ArrivalMode, input: &InputSettings) -> Result<Workload, Failure> {
        let prefix_only = [
            ("isl", self.isl.is_some()),
            ("osl", self.osl.is_some()),
            ("num_requests", self.num_requests.is_some()),
            ("num_prefix_groups", self.num_prefix_groups.is_some()),
            ("prefix_ratio", self.prefix_ratio.is_some()),
        ];
        let trace_only = [
            ("trace_block_size", input.trace_block_size.is_some()),
            ("head", input.head.is_some()),
            ("on_bad_row", input.on_bad_row.is_some()),
        ];
        if let Some(path) = &self.trace {
            if let Some((key, _)) = prefix_only.iter().find(|(_, given)| *given) {
                let hint = if *key == "num_requests" { "\n  hint: `--head N` takes the first N rows" } else { "" };
                return Err(Failure::usage(format!(
                    "`{key}` belongs to the prefix workload, but `trace` is set{hint}"
                )));
            }
            let timed = arrival.needs_timestamps();
            return Workload::from_trace(path, &input.resolve(), timed).map_err(Failure::run);
        }
        if let Some((key, _)) = trace_only.iter().find(|(_, given)| *given) {
            return Err(Failure::usage(format!("`{key}` is set without `trace`")));
        }
        let default = PrefixRatioOptions::default();
        let options = PrefixRatioOptions {
            isl_tokens: self.isl.unwrap_or(default.isl_tokens),
            osl_tokens: self.osl.unwrap_or(default.osl_tokens),
            requests: self.num_requests.unwrap_or(default.requests),
            num_prefix_groups: self.num_prefix_groups.unwrap_or(default.num_prefix_groups),
            prefix_ratio: self.prefix_ratio.unwrap_or(default.prefix_ratio),
            ..default
        };
        Workload::prefix(Seed(self.seed.unwrap_or(0)), &options).map_err(Failure::usage)
    }
}

fn send_workload(settings: &LoadSettings, input: &InputSettings, journal: &JournalSettings) -> Result<(), Failure> {
    let arrival = settings.arrival()?;
    let json = settings.json.unwrap_or(false);
    let config = LoadConfig {
        target: match &settings.url {
            Some(target) => target.clone(),
            None => "grpc://127.0.0.1:8000".parse().map_err(Failure::usage)?,
        },
        arrival,
        seed: settings.seed.unwrap_or(0),
        request_timeout: Duration::from_secs_f64(seconds(
            "request_timeout_s",
            settings.request_timeout_s.unwrap_or(600.0),
        )?),
        flush_cache: settings.flush_cache.unwrap_or(false),
        progress: !settings.no_progress.unwrap_or(false) && std::io::stderr().is_terminal(),
    };
    let workload = settings.workload(arrival, input)?;
    let results = settings.results_dir.clone().unwrap_or_else(|| PathBuf::from("results"));
    let force = settings.force.unwrap_or(false);
    if let Some(name) = &settings.name {
        check_name(name).map_err(Failure::usage)?;
        // Better known before the run than after it.
        check_free(&results.join(name), force).map_err(Failure::run)?;
    }
    for note in &workload.notes {
        eprintln!("note: {note}");
    }
    let workload_name = workload.name.clone();
    let notes = workload.notes.clone();
    let started_unix_s = unix_seconds();
    let result = runtime()?.block_on(async {
        let stop = StopSignal::install().map_err(Failure::run)?;
        let facts = ask(&config.target).await.map_err(Failure::run)?;
        let folder =
            results.join(settings.name.clone().unwrap_or_else(|| plain_name(&workload_name, &facts.router_mode)));
        check_free(&folder, force).map_err(Failure::run)?;
        let home = ResultsHome::open(&results).map_err(Failure::run)?;
        let journal = journal.create()?;
        let result = run(&config, facts, workload, journal.tape(), stop.wait()).await;
        // A run that failed has a journal, too; its own error comes first.
        let journaled = journal.finish();
        result.map(|result| (home, folder, result, journaled)).map_err(Failure::run)
    });
    let (_home, folder, result, journaled) = result?;
    let facts = RunFacts {
        virtual_time: false,
        unfinished_requests: None,
        reuse_bounds: None,
        workload: workload_name,
        router_mode: result.facts.router_mode.clone(),
        arrival_mode: arrival.name().to_owned(),
        concurrency: arrival.concurrency().map(u64::from),
        seed: config.seed,
        speedup_ratio: result.facts.speedup_ratio,
        prefix_cache_reused_tokens: None,
        warnings: warnings(&result, notes),
    };
    let report = Report::build(&result.records, &result.itl, &facts);
    let info = run_info(&result, started_unix_s);
    write_run(&folder, force, &report, &result.records, &info).map_err(Failure::run)?;
    if json {
        say(report.to_json());
    } else {
        say(summary_table(&report));
        eprintln!("results in {}", folder.display());
    }
    for warning in &info.warnings {
        eprintln!("warning: {warning}");
    }
    journaled?;
    if report.failed_requests + result.dropped > 0 && !settings.allow_failures.unwrap_or(false) {
        let first = result.records.iter().find_map(|record| match &record.outcome {
            Outcome::Failed { message, .. } => Some(message.as_str()),
            Outcome::Completed => None,
        });
        return Err(Failure::run(format!(
            "{} of {} requests failed and {} were never sent; the first failure: {}",
            report.failed_requests,
            report.num_requests,
            result.dropped,
            first.unwrap_or("none")
        )));
    }
    Ok(())
}

fn warnings(result: &LoadResult, mut notes: Vec<String>) -> Vec<String> {
    if result.facts.cached_blocks > 0 && !result.flushed {
        notes.push(format!(
            "the workers' caches held {} blocks when the run began: prefix reuse may come from an earlier run \
             (--flush-cache empties them)",
            result.facts.cached_blocks
        ));
    }
    if result.dropped > 0 {
        notes.push(format!("{} requests were never sent, since a turn before them failed", result.dropped));
    }
    notes
}

/// A pacer that is later than this share of the median TTFT could have moved it.
const LATENESS_SHARE: f64 = 0.05;

fn run_info(result: &LoadResult, started_unix_s: f64) -> RunInfo {
    let (cpu_user_s, cpu_system_s) = cpu_seconds();
    let mut info = RunInfo {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        command_line: std::env::args().collect(),
        wall_start_unix_ms: Some((started_unix_s * 1e3) as u64),
        wall_duration_ms: result.wall_duration_ms,
        cpu_user_s,
        cpu_system_s,
        ..RunInfo::default()
    }
    .with_pacer_lateness(&result.pacer_lateness);
    let mut ttft_ms: Vec<f64> = result.records.iter().filter_map(|record| record.ttft_ms()).collect();
    ttft_ms.sort_by(f64::total_cmp);
    let median_ttft_ms = ttft_ms.get(ttft_ms.len() / 2).copied().unwrap_or(f64::INFINITY);
    if let Some(late_ms) = info.wall_p99_pacer_lateness_ms {
        let simulated_ms = late_ms * result.facts.speedup_ratio;
        if median_ttft_ms.is_finite() && simulated_ms > LATENESS_SHARE * median_ttft_ms {
            info.warnings.push(format!(
                "requests were released up to {simulated_ms:.1} ms (simulated, p99) late, more than {:.0} % of the median \
                 TTFT of {median_ttft_ms:.1} ms: a lower speedup ratio or a quieter machine gives truer figures",
                LATENESS_SHARE * 100.0
            ));
        }
    }
    if result.merged_tokens > 0 {
        info.warnings.push(format!(
            "{} tokens came together with the one before, since this program or a server lagged: their gap is shared evenly",
            result.merged_tokens
        ));
    }
    info
}

#[cfg(unix)]
fn cpu_seconds() -> (Option<f64>, Option<f64>) {
    let mut usage = std::mem::MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: getrusage fills the struct it is given, and says so by returning 0.
    let usage = unsafe {
        if libc::getrusage(libc::RUSAGE_SELF, usage.as_mut_ptr()) != 0 {
            return (None, None);
        }
        usage.assume_init()
    };
    let s = |time: libc::timeval| Some(time.tv_sec as f64 + time.tv_usec as f64 / 1e6);
    (s(usage.ru_utime), s(usage.ru_stime))
}

#[cfg(not(unix))]
fn cpu_seconds() -> (Option<f64>, Option<f64>) {
    (None, None)
}

fn compare_runs(arguments: &CompareArgs) -> Result<(), Failure> {
    if !arguments.labels.is_empty() && arguments.labels.len() != arguments.folders.len() {
        return Err(Failure::usage(format!(
            "{} labels for {} folders, expected one for each or none",
            arguments.labels.len(),
            arguments.folders.len()
        )));
    }
    let mut runs = Vec::new();
    for (index, folder) in arguments.folders.iter().enumerate() {
        let name =
            folder.file_name().map_or_else(|| folder.display().to_string(), |name| name.to_string_lossy().into_owned());
        let label = arguments.labels.get(index).cloned().unwrap_or(name);
        runs.push(ResultFolder::read(&label, folder).map_err(Failure::run)?);
    }
    let comparison = compare(&runs, Seed(arguments.seed));
    let output = arguments.output.clone().unwrap_or_else(|| common_parent(&arguments.folders));
    let table = write_comparison(&output, &runs, &comparison).map_err(Failure::run)?;
    if arguments.json {
        say(comparison.to_json());
    } else {
        say(table);
        eprintln!("pictures in {}", output.display());
    }
    for warning in &comparison.warnings {
        eprintln!("warning: {warning}");
    }
    Ok(())
}

/// The parent that all folders share, else the working folder.
fn common_parent(folders: &[PathBuf]) -> PathBuf {
    let parent = |folder: &PathBuf| folder.parent().map(Path::to_owned).unwrap_or_default();
    let first = folders.first().map(parent).unwrap_or_default();
    let shared = folders.iter().all(|folder| parent(folder) == first);
    if shared && first != Path::new("") { first } else { PathBuf::from(".") }
}
