//! A run: the driver behind a pacer releases requests, tasks send them, records come together.

use std::sync::Arc;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::journal::DriverSetup;
use crate::live::clock::{LiveClock, wall_now};
use crate::live::journal::{Recorded, Tape};
use crate::live::load::config::LoadConfig;
use crate::live::load::observe::{Failure, Observation};
use crate::live::load::target::{TargetFacts, flush};
use crate::live::load::transport::{Connections, Shot};
use crate::live::pacer::{Paced, Pacer, PacerHandle};
use crate::measure::LatencySet;
use crate::rng::Seed;
use crate::session::driver::{Driver, DriverInput, Release};
use crate::session::ledger::{FailureKind, Outcome, RequestRecord};
use crate::session::plan::ArrivalModeError;
use crate::session::workload::Workload;
use crate::time::SimTime;
use crate::ui::LoadProgress;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum LoadError {
    /// No connection.
    #[error("{url}: {problem}")]
    Connect {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The caches could not be emptied.
    #[error("{url}: the caches were not emptied: {problem}")]
    Flush {
        /// The address.
        url: String,
        /// What happened.
        problem: String,
    },
    /// The workload's token ids do not fit the model.
    #[error(
        "the workload needs token ids up to {needed}, the model at {url} has {vocab_tokens}\n  hint: start `mocker --vocab-tokens {needed}`"
    )]
    Vocabulary {
        /// The address.
        url: String,
        /// Ids that the workload needs.
        needed: u32,
        /// Ids that the model has.
        vocab_tokens: u32,
    },
    /// The arrivals are out of range.
    #[error(transparent)]
    Arrival(#[from] ArrivalModeError),
    /// The pacer's thread could not be started.
    #[error("cannot start the pacer: {0}")]
    Pacer(#[from] std::io::Error),
    /// The user stopped it.
    #[error("interrupted after {ended} of {planned} requests; nothing was written")]
    Interrupted {
        /// Requests that had ended.
        ended: u64,
        /// Requests of the plan.
        planned: u64,
    },
}

/// What a run yields.
#[derive(Debug)]
pub struct LoadResult {
    /// What the server told about itself.
    pub facts: TargetFacts,
    /// One record a request, by row.
    pub records: Vec<RequestRecord>,
    /// All gaps between tokens of completed requests, simulated milliseconds.
    pub itl: LatencySet,
    /// How late the pacer was, wall milliseconds.
    pub pacer_lateness: LatencySet,
    /// Requests that were never sent, since their session had failed before.
    pub dropped: u64,
    /// True if the caches were emptied before the run.
    pub flushed: bool,
    /// Tokens that arrived in one message with the token before.
    pub merged_tokens: u64,
    /// Wall time of the run, milliseconds.
    pub wall_duration_ms: f64,
}

/// The driver behind a pacer: releases go to a channel.
struct DriverActor {
    driver: Recorded<Driver>,
    releases: mpsc::UnboundedSender<Release>,
    out: Vec<Release>,
    finished: CancellationToken,
}

impl DriverActor {
    fn deliver(&mut self) {
        for release in self.out.drain(..) {
            // The receiver lives as long as the run.
            let _ = self.releases.send(release);
        }
        if self.driver.is_finished() {
            self.finished.cancel();
        }
    }
}

impl Paced for DriverActor {
    type Input = DriverInput;

    fn handle(&mut self, now: SimTime, input: DriverInput) {
        self.driver.handle(now, input, &mut self.out);
        self.deliver();
    }

    fn next_deadline(&self) -> Option<SimTime> {
        self.driver.next_deadline()
    }

    fn advance(&mut self, to: SimTime) {
        self.driver.advance(to, &mut self.out);
        self.deliver();
    }
}

/// What all sending tasks share.
struct Shared {
    workload: Workload,
    connections: Connections,
    workers: Vec<(u64, String)>,
    clock: LiveClock,
    seed: Seed,
    run_id: String,
    timeout: std::time::Duration,
    stop: CancellationToken,
}

impl Shared {
    /// A worker's name in reports: its number at the router, which unlike its port is the same in every run.
    fn worker_name(&self, url: String) -> String {
        let known = self.workers.iter().find(|(_, known)| *known == url);
        known.map_or(url, |(number, _)| format!("worker-{number}"))
    }
}

/// One request's result.
type Ended = (RequestRecord, Vec<(f64, u32)>);

/// Runs a workload until every request has ended, or `interrupt` completes; with a journal of all that the driver is told.
pub async fn run(
    config: &LoadConfig,
    facts: TargetFacts,
    workload: Workload,
    tape: Option<Tape<Driver>>,
    interrupt: impl Future<Output = ()>,
) -> Result<LoadResult, LoadError> {
    let url = config.target.url();
    if let Some(vocab_tokens) = facts.vocab_tokens.filter(|tokens| *tokens < workload.vocab_tokens_needed) {
        return Err(LoadError::Vocabulary { url, needed: workload.vocab_tokens_needed, vocab_tokens });
    }
    if config.flush_cache {
        let flushed = flush(&config.target).await;
        flushed.map_err(|problem| LoadError::Flush { url: url.clone(), problem })?;
    }
    let connections =
        Connections::open(&config.target, &facts).await.map_err(|problem| LoadError::Connect { url, problem })?;
    let setup = DriverSetup { arrival: config.arrival, sessions: workload.sessions.clone() };
    let driver = Recorded::<Driver>::build(setup, tape)?;
    let planned = driver.counts().planned;
    let (release_sender, mut releases) = mpsc::unbounded_channel();
    let finished = CancellationToken::new();
    let actor = DriverActor { driver, releases: release_sender, out: Vec::new(), finished: finished.clone() };
    let seed = Seed(config.seed);
    let shared = Arc::new(Shared {
        workload,
        connections,
        workers: facts.workers.clone(),
        clock: LiveClock::start(facts.speedup_ratio),
        seed: seed.split("output"),
        run_id: format!("{:x}-{}", config.seed, std::process::id()),
        timeout: config.request_timeout,
        stop: CancellationToken::new(),
    });
    let pacer = Pacer::spawn("release", actor, shared.clock)?;
    let tasks = TaskTracker::new();
    let (ended_sender, mut ended) = mpsc::unbounded_channel::<Ended>();
    let mut progress = LoadProgress::new(planned, config.progress);
    let mut records = Vec::with_capacity(planned as usize);
    let mut itl = LatencySet::histogram();
    let mut merged_tokens = 0;
    tokio::pin!(interrupt);
    let mut interrupted = false;
    loop {
        tokio::select! {
            Some(release) = releases.recv() => {
                progress.released();
                let (shared, ended, pacer) = (shared.clone(), ended_sender.clone(), pacer.handle());
                tasks.spawn(one_request(shared, release, ended, pacer));
            }
            Some((record, gaps)) = ended.recv() => {
                progress.ended(&record);
                if record.completed() {
                    for (gap_ms, tokens) in gaps {
                        itl.record_n(gap_ms, u64::from(tokens));
                        merged_tokens += u64::from(tokens) - 1;
                    }
                }
                records.push(record);
            }
            () = finished.cancelled(), if records.len() as u64 == progress.released_requests() => break,
            () = &mut interrupt, if !interrupted => {
                interrupted = true;
                pacer.handle().send(DriverInput::Stop);
                shared.stop.cancel();
            }
        }
    }
    progress.finish();
    tasks.close();
    tasks.wait().await;
    let ended = records.iter().filter(|record| !is_cancelled(record)).count() as u64;
    if interrupted {
        return Err(LoadError::Interrupted { ended, planned });
    }
    records.sort_by_key(|record| record.row);
    Ok(LoadResult {
        dropped: planned - records.len() as u64,
        wall_duration_ms: shared.clock.wall_elapsed().as_secs_f64() * 1e3,
        pacer_lateness: pacer.handle().lateness().snapshot(),
        facts,
        records,
        itl,
        merged_tokens,
        flushed: config.flush_cache,
    })
}

fn is_cancelled(record: &RequestRecord) -> bool {
    matches!(record.outcome, Outcome::Failed { kind: FailureKind::Cancelled, .. })
}

async fn one_request(
    shared: Arc<Shared>,
    release: Release,
    ended: mpsc::UnboundedSender<Ended>,
    pacer: PacerHandle<DriverInput>,
) {
    let row = release.id.0;
    let item = &shared.workload.items[row as usize];
    let session_id = shared.workload.sessions[release.session.0 as usize].session_id.clone();
    let shot = Shot {
        request_id: format!("{}-{row}", shared.run_id),
        prompt: item.prompt.tokens(),
        output_tokens: item.output_tokens,
        seed: shared.seed.nth(row).0 as u32,
    };
    let mut observation = Observation::default();
    let sending = shared.connections.send(shot, &mut observation);
    let result = tokio::select! {
        sent = tokio::time::timeout(shared.timeout, sending) => sent.unwrap_or_else(|_| {
            Err(Failure::new(FailureKind::Timeout, format!("no end within {} s", shared.timeout.as_secs_f64())))
        }),
        () = shared.stop.cancelled() => Err(Failure::new(FailureKind::Cancelled, "the run was interrupted")),
    };
    let now = wall_now();
    let failed = result.as_ref().err().map(|failure| failure.kind);
    let speedup_ratio = shared.clock.speedup_ratio();
    let gaps: Vec<(f64, u32)> = observation.gaps_ms(speedup_ratio).collect();
    let planned = RequestRecord {
        row,
        session_id,
        turn: release.turn,
        input_tokens: item.input_tokens,
        requested_output_tokens: item.output_tokens,
        output_tokens: 0,
        reused_tokens: None,
        worker: None,
        overlap_blocks: None,
        intended_ms: release.intended.as_ms(),
        sent_ms: release.intended.as_ms(),
        first_token_ms: None,
        second_token_ms: None,
        last_token_ms: None,
        end_ms: 0.0,
        max_stall_ms: None,
        engine_ttft_ms: None,
        engine_tpot_ms: None,
        outcome: Outcome::Completed,
    };
    observation.worker = observation.worker.map(|url| shared.worker_name(url));
    let record = observation.into_record(planned, now, result, |moment| shared.clock.at(moment).as_ms());
    let session_continues = matches!(failed, None | Some(FailureKind::Rejected));
    pacer.send(DriverInput::Ended { id: release.id, session_continues });
    // The run outlives its requests.
    let _ = ended.send((record, gaps));
}
