//! What a replay writes: the report, the requests, the decisions, the picture.
//!
//! Decisions and picture are large: they are written while the replay runs, under a temporary name, and get their own
//! when all is done, so that what lies there is whole.

use std::io;
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
    /// Exit with 0 although requests failed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    allow_failures: Option<bool>,
    /// Print the report (JSON) on stdout, and nothing else.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", value_name = "BOOL", help_heading = "Results")]
    json: Option<bool>,
}

impl OutputSettings {
    fn files(&mut self) -> [(&'static str, &mut Option<PathBuf>); 5] {
        [
            ("report", &mut self.report),
            ("requests_csv", &mut self.requests_csv),
            ("requests_out", &mut self.requests_out),
            ("timeline", &mut self.timeline),
            ("explain", &mut self.explain),
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
        let ranks = match &config.fleet {
            FleetConfig::Aggregated(workers) => [workers, workers],
            FleetConfig::Disaggregated { prefill, decode } => [prefill, decode],
        };
        let ranks = ranks.map(|workers| workers.first().map_or(1, |worker| worker.dp_size));
        Ok(Streams { timeline, explain, names, ranks, router: config.router.clone(), failure: None })
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
            let mut lines = Vec::new();
            let session = |session: u32| workload.sessions.get(session as usize)?.session_id.as_deref();
            write_requests_jsonl(&result.lives, session, &mut lines).map_err(Failure::run)?;
            write_atomic(path, &lines).map_err(Failure::run)?;
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
    names: Names,
    /// Ranks of a worker in the pool that computes prompts, and in the one that only decodes.
    ranks: [u32; 2],
    router: RouterConfig,
    failure: Option<Failure>,
}

impl Streams {
    /// True if there is none, and no event needs to be looked at.
    pub fn is_empty(&self) -> bool {
        self.timeline.is_none() && self.explain.is_none()
    }

    /// Takes in what happens.
    pub fn hear(&mut self, at: SimTime, event: &WorldEvent) {
        if let Err(failure) = self.note(at, event) {
            self.failure.get_or_insert(failure);
        }
    }

    fn note(&mut self, at: SimTime, event: &WorldEvent) -> Result<(), Failure> {
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
        Ok(())
    }
}

/// The engines' names in pictures: pool, worker and, of several, rank.
struct Names {
    all: Vec<String>,
    /// Engines before those of the decode pool.
    prefill: u32,
}

impl Names {
    fn of(fleet: &FleetConfig) -> Self {
        let (mut all, mut prefill) = (Vec::new(), 0);
        let mut add = |pool: &str, engines: &[crate::engine::EngineConfig]| {
            for (worker, engine) in engines.iter().enumerate() {
                for rank in 0..engine.dp_size {
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
        Names { all, prefill }
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
