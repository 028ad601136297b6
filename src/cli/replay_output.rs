//! What a replay writes: the report, the requests, the decisions, the picture.
//!
//! Decisions and picture are large: they are written while the replay runs, under a temporary name, and get their own
//! when all is done, so that what lies there is whole.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, say};
use crate::measure::{PendingFile, Report, RunFacts, summary_table, write_atomic, write_requests_csv};
use crate::router::{Explained, Pool, RouterConfig};
use crate::session::workload::Workload;
use crate::sim::explain::ExplainWriter;
use crate::sim::requests_out::write_requests_jsonl;
use crate::sim::timeline::{StepSpan, TimelineWriter};
use crate::sim::world::WorldEvent;
use crate::sim::{FleetConfig, ReplayConfig, ReplayResult};
use crate::time::SimTime;

/// What flags and file may set of the results.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct OutputSettings {
    /// Write the report (JSON) here.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    report: Option<PathBuf>,
    /// Write one line a request (CSV) here.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    requests_csv: Option<PathBuf>,
    /// Write one line a request (JSON) here, with every admission and routing decision.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    requests_out: Option<PathBuf>,
    /// Write what workers and requests did, and when, here: a trace for ui.perfetto.dev.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    timeline: Option<PathBuf>,
    /// Write one line a routing decision (JSON) here, with every term of every candidate.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    explain: Option<PathBuf>,
    /// Write each engine's gauges (JSON lines) here, at each step's end and whenever it gets a request or a command.
    #[arg(long, value_name = "FILE", help_heading = "Results")]
    state_out: Option<PathBuf>,
    /// Exit with 0 although requests failed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    allow_failures: Option<bool>,
    /// Print the report (JSON) on stdout, and nothing else.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    json: Option<bool>,
}

impl OutputSettings {
    fn files(&mut self) -> [(&'static str, &mut Option<PathBuf>); 6] {
        [
            ("report", &mut self.report),
            ("requests_csv", &mut self.requests_csv),
            ("requests_out", &mut self.requests_out),
            ("timeline", &mut self.timeline),
            ("explain", &mut self.explain),
            ("state_out", &mut self.state_out),
        ]
    }

    /// Lets the paths that `flags` do not give start at the folder of the file that gave them.
    pub fn beside(&mut self, file: &SettingsFile, mut flags: OutputSettings) {
        for ((_, path), (_, flag)) in self.files().into_iter().zip(flags.files()) {
            if flag.is_none() {
                *path = path.take().map(|path| file.beside(&path));
            }
        }
    }

    /// Fails if a file cannot be there, or if two are the same: better known before the replay than after it.
    pub fn check(&mut self) -> Result<(), Failure> {
        let mut seen: Vec<(&str, PathBuf)> = Vec::new();
        for (key, path) in self.files() {
            let Some(path) = path else { continue };
            check_place(path)?;
            if let Some((first, _)) = seen.iter().find(|(_, known)| known == path) {
                let path = path.display();
                return Err(Failure::usage(format!("`{first}` and `{key}` are both {path}, expected two files")));
            }
            seen.push((key, path.clone()));
        }
        Ok(())
    }

    /// True if routing decisions are to be told with all their candidates.
    pub fn explains(&self) -> bool {
        self.explain.is_some()
    }

    /// True if steps are to be told.
    pub fn wants_steps(&self) -> bool {
        self.timeline.is_some()
    }

    /// True if no steps may be taken together.
    pub fn wants_every_step(&self) -> bool {
        self.state_out.is_some()
    }

    /// Opens the files that are written while the replay runs.
    pub fn open(&self, config: &ReplayConfig) -> Result<Streams, Failure> {
        let open = |path: &PathBuf| PendingFile::create(path).map_err(Failure::run);
        let names = Names::of(&config.fleet);
        let timeline = match &self.timeline {
            Some(path) => {
                let writer = TimelineWriter::new(open(path)?, &names.all).map_err(|cause| failed(path, cause))?;
                Some((path.clone(), writer, vec![0; names.all.len()]))
            }
            None => None,
        };
        let explain = match &self.explain {
            Some(path) => Some((path.clone(), ExplainWriter::new(open(path)?))),
            None => None,
        };
        let state = match &self.state_out {
            Some(path) => Some((path.clone(), open(path)?)),
            None => None,
        };
        let ranks = match &config.fleet {
            FleetConfig::Aggregated(workers) => [workers, workers],
            FleetConfig::Disaggregated { prefill, decode } => [prefill, decode],
        };
        let ranks = ranks.map(|workers| workers.first().map_or(1, |worker| worker.dp_size));
        Ok(Streams { timeline, explain, state, names, ranks, router: config.router.clone(), failure: None })
    }

    /// Writes and prints the results.
    pub fn write(&self, facts: &RunFacts, workload: &Workload, result: &ReplayResult) -> Result<(), Failure> {
        let report = Report::build(&result.records, &result.itl, facts);
        if let Some(path) = &self.report {
            write_atomic(path, report.to_json().as_bytes()).map_err(Failure::run)?;
        }
        if let Some(path) = &self.requests_csv {
            write_requests_csv(path, &result.records).map_err(Failure::run)?;
        }
        if let Some(path) = &self.requests_out {
            let mut file = PendingFile::create(path).map_err(Failure::run)?;
            let session = |session: u32| workload.sessions.get(session as usize)?.session_id.as_deref();
            write_requests_jsonl(&result.lives, session, &mut file).map_err(|cause| failed(path, cause))?;
            file.finish().map_err(Failure::run)?;
        }
        if self.json.unwrap_or(false) {
            // The table has them, too.
            for warning in report.warnings.iter().filter(|warning| !workload.notes.contains(warning)) {
                eprintln!("warning: {warning}");
            }
            say(report.to_json());
        } else {
            say(summary_table(&report));
        }
        if report.failed_requests > 0 && !self.allow_failures.unwrap_or(false) {
            let (failed, all) = (report.failed_requests, report.num_requests);
            return Err(Failure::run(format!("{failed} of {all} requests failed")));
        }
        Ok(())
    }
}

/// The files that are written while the replay runs.
pub struct Streams {
    /// With the steps that each engine has taken.
    timeline: Option<(PathBuf, TimelineWriter<PendingFile>, Vec<u64>)>,
    explain: Option<(PathBuf, ExplainWriter<PendingFile>)>,
    state: Option<(PathBuf, PendingFile)>,
    names: Names,
    /// Ranks of a worker in the pool that computes prompts, and in the one that only decodes.
    ranks: [u32; 2],
    router: RouterConfig,
    failure: Option<Failure>,
}

impl Streams {
    /// True if there is none, and no event needs to be looked at.
    pub fn is_empty(&self) -> bool {
        self.timeline.is_none() && self.explain.is_none() && self.state.is_none()
    }

    /// Takes in what happens.
    pub fn hear(&mut self, at: SimTime, event: &WorldEvent) {
        if let Err(failure) = self.note(at, event) {
            self.failure.get_or_insert(failure);
        }
    }

    fn note(&mut self, at: SimTime, event: &WorldEvent) -> Result<(), Failure> {
        if let Some((path, state)) = &mut self.state
            && let Some(line) = StateLine::of(at, event, &self.names)
        {
            let written = serde_json::to_writer(&mut *state, &line).map_err(io::Error::from);
            written.and_then(|()| state.write_all(b"\n")).map_err(|cause| failed(path, cause))?;
        }
        match event {
            WorldEvent::Step { pool, worker, started, stats, prefill_tokens, decode_sequences } => {
                let Some((path, timeline, taken)) = &mut self.timeline else { return Ok(()) };
                let place = self.names.place(*pool, worker.0);
                let before = std::mem::replace(&mut taken[place as usize], stats.steps_total);
                let step = StepSpan {
                    worker: place,
                    started: *started,
                    ends: at,
                    decode_sequences: *decode_sequences,
                    prefill_tokens: *prefill_tokens,
                    running: stats.running,
                    waiting: stats.waiting,
                    active_blocks: stats.active_blocks,
                    steps: (stats.steps_total - before) as u32,
                };
                timeline.step(&step).map_err(|cause| failed(path, cause))
            }
            WorldEvent::Routed { id, pool, decision, .. } => {
                let Some((path, explain)) = &mut self.explain else { return Ok(()) };
                let Some(explained) = Explained::of(decision, at, id.0, *pool) else { return Ok(()) };
                let ranks = self.ranks[usize::from(*pool == Pool::Decode)];
                let router = self.router.for_pool(*pool);
                explain.decision(&explained, &router, ranks).map_err(|cause| failed(path, cause))
            }
            _ => Ok(()),
        }
    }

    /// Completes the files; nothing is left of them if anything has failed.
    pub fn finish(self, result: &ReplayResult) -> Result<(), Failure> {
        if let Some(failure) = self.failure {
            return Err(failure);
        }
        if let Some((path, mut timeline, _)) = self.timeline {
            for life in &result.lives {
                timeline.request(life, &format!("request {}", life.row)).map_err(|cause| failed(&path, cause))?;
            }
            let file = timeline.finish().map_err(|cause| failed(&path, cause))?;
            file.finish().map_err(Failure::run)?;
        }
        if let Some((path, explain)) = self.explain {
            let file = explain.finish().map_err(|cause| failed(&path, cause))?;
            file.finish().map_err(Failure::run)?;
        }
        if let Some((_, file)) = self.state {
            file.finish().map_err(Failure::run)?;
        }
        Ok(())
    }
}

/// An engine's gauges at a moment; the fields are the keys.
#[derive(Serialize)]
struct StateLine {
    at_ms: f64,
    pool: Pool,
    worker: u32,
    #[serde(skip_serializing_if = "is_first")]
    dp_rank: u32,
    running: u32,
    waiting: u32,
    active_blocks: u32,
    inactive_blocks: u32,
    preemptions_total: u64,
    /// What made them change: `step` or `arrival` or `command`.
    cause: &'static str,
}

fn is_first(rank: &u32) -> bool {
    *rank == 0
}

impl StateLine {
    fn of(at: SimTime, event: &WorldEvent, names: &Names) -> Option<Self> {
        let (pool, engine, stats, cause) = match event {
            WorldEvent::Step { pool, worker, stats, .. } => (*pool, *worker, stats, "step"),
            WorldEvent::Gauges { pool, worker, stats, arrival: true } => (*pool, *worker, stats, "arrival"),
            WorldEvent::Gauges { pool, worker, stats, arrival: false } => (*pool, *worker, stats, "command"),
            _ => return None,
        };
        let (worker, dp_rank) = names.target(pool, engine.0);
        Some(StateLine {
            at_ms: at.as_ms(),
            pool,
            worker,
            dp_rank,
            running: stats.running,
            waiting: stats.waiting,
            active_blocks: stats.active_blocks,
            inactive_blocks: stats.inactive_blocks,
            preemptions_total: stats.preemptions_total,
            cause,
        })
    }
}

/// The engines' names in pictures: pool, worker and, of several, rank.
struct Names {
    all: Vec<String>,
    /// Worker and rank of each.
    targets: Vec<(u32, u32)>,
    /// Engines before those of the decode pool.
    prefill: u32,
}

impl Names {
    fn of(fleet: &FleetConfig) -> Self {
        let (mut all, mut targets, mut prefill) = (Vec::new(), Vec::new(), 0);
        let mut add = |pool: &str, engines: &[crate::engine::EngineConfig]| {
            for (worker, engine) in engines.iter().enumerate() {
                for rank in 0..engine.dp_size {
                    targets.push((worker as u32, rank));
                    let rank = if engine.dp_size > 1 { format!(" rank {rank}") } else { String::new() };
                    all.push(format!("{pool}worker {worker}{rank}"));
                }
            }
            all.len() as u32
        };
        match fleet {
            FleetConfig::Aggregated(engines) => {
                add("", engines);
            }
            FleetConfig::Disaggregated { prefill: senders, decode } => {
                prefill = add("prefill ", senders);
                add("decode ", decode);
            }
        }
        Names { all, targets, prefill }
    }

    fn target(&self, pool: Pool, engine: u32) -> (u32, u32) {
        self.targets.get(self.place(pool, engine) as usize).copied().unwrap_or((engine, 0))
    }

    fn place(&self, pool: Pool, engine: u32) -> u32 {
        match pool {
            Pool::Agg | Pool::Prefill => engine,
            Pool::Decode => self.prefill + engine,
        }
    }
}

fn failed(path: &Path, cause: io::Error) -> Failure {
    Failure::run(format!("{}: {cause}", path.display()))
}

/// Fails if a file cannot be there.
fn check_place(path: &Path) -> Result<(), Failure> {
    let parent = path.parent().filter(|parent| *parent != Path::new("")).unwrap_or(Path::new("."));
    if path.is_dir() {
        return Err(Failure::run(format!("{}: is a folder, expected a file", path.display())));
    }
    if parent.is_dir() { Ok(()) } else { Err(Failure::run(format!("{}: no such folder", parent.display()))) }
}
