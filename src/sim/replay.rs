//! A workload replayed in virtual time: one record a request, the same as a live run's.

use thiserror::Error;

use crate::engine::{ConfigError, EngineRequest};
use crate::ids::RequestId;
use crate::measure::LatencySet;
use crate::rng::Seed;
use crate::router::RouterConfigError;
use crate::session::driver::Driver;
use crate::session::ledger::{FailureKind, Outcome, RequestRecord};
use crate::session::workload::Workload;
use crate::sim::config::ReplayConfig;
use crate::sim::life::{RequestLife, RouteStage};
use crate::sim::world::{HandoffStage, World, WorldEvent};
use crate::time::{SimSpan, SimTime};
use crate::trace::PromptHasher;

/// Engines keep so many waits between tokens before they hand them over.
const GAPS_AT_A_TIME: usize = 4096;

/// Why there is no result.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// An engine's configuration is out of range.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// The router's configuration is out of range.
    #[error(transparent)]
    Router(#[from] RouterConfigError),
    /// A pool without a worker.
    #[error("`{0}` is 0, expected a whole number of at least 1")]
    NoWorker(&'static str),
    /// Nothing is due, but requests are under way.
    #[error("the replay is stuck at {at}: {in_flight} requests are under way and nothing will ever happen; {state}")]
    Stuck {
        /// When.
        at: SimTime,
        /// How many.
        in_flight: usize,
        /// Who waits for what.
        state: String,
    },
    /// A machine's invariant does not hold: a fault of the simulator.
    #[error("at {at} an invariant is broken: {broken}")]
    Broken {
        /// When.
        at: SimTime,
        /// Which.
        broken: String,
    },
}

/// What a replay yields.
#[derive(Debug)]
pub struct ReplayResult {
    /// One record a request, by row.
    pub records: Vec<RequestRecord>,
    /// The same requests with every admission and routing decision, by row.
    pub lives: Vec<RequestLife>,
    /// All gaps between tokens of completed requests, milliseconds.
    pub itl: LatencySet,
    /// Requests that had not come or not ended when the time was up.
    pub unfinished: u64,
    /// Steps whose batch lay outside the tables of the timing model and was priced at their edge, and steps in all.
    pub clamped_steps: (u64, u64),
    /// Over completed requests: the most prompt tokens reused at any admission.
    pub reused_tokens_max: u64,
}

/// Replays `workload`; `progress` hears how many requests have ended.
pub fn replay(
    config: &ReplayConfig,
    workload: &Workload,
    mut progress: impl FnMut(u64),
) -> Result<ReplayResult, ReplayError> {
    let block_size = config.fleet.block_size()?;
    let driver = Driver::new(workload.sessions.clone(), config.arrival);
    let mut world = World::new(config, driver, false)?;
    let seed = Seed(config.seed).split("output");
    let mut lives: Vec<Option<RequestLife>> = vec![None; workload.items.len()];
    let mut itl = LatencySet::exact();
    let (mut ended, mut told) = (0, 0);
    let mut hasher = PromptHasher::default();
    let mut request = |id: RequestId| {
        let item = &workload.items[id.0 as usize];
        EngineRequest {
            id,
            prompt: hasher.hash(&item.prompt, block_size),
            max_output_tokens: item.output_tokens,
            output_seed: seed.nth(id.0),
            vocab_tokens: u32::MAX,
            priority: 0,
        }
    };
    let mut now = SimTime::ZERO;
    while let Some(deadline) = world.next_deadline() {
        if config.max_sim_time.is_some_and(|most| deadline > most) {
            break;
        }
        now = deadline;
        world.tick(now, &mut request, &mut |at, event| {
            ended += u64::from(note(&mut lives, workload, at, event));
        });
        if config.check {
            world.check().map_err(|broken| ReplayError::Broken { at: now, broken })?;
        }
        world.drain_gaps(GAPS_AT_A_TIME, |gap| itl.record_n(gap.gap.as_ms(), u64::from(gap.tokens)));
        if ended > told {
            told = ended;
            progress(ended);
        }
    }
    world.drain_gaps(1, |gap| itl.record_n(gap.gap.as_ms(), u64::from(gap.tokens)));
    itl.compact();
    if world.in_flight() > 0 && world.next_deadline().is_none() {
        return Err(ReplayError::Stuck { at: now, in_flight: world.in_flight(), state: world.state() });
    }
    let lives: Vec<RequestLife> = lives.into_iter().flatten().collect();
    let reused_tokens_max =
        lives.iter().filter(|life| life.completed()).map(|life| u64::from(life.max_reused_tokens())).sum();
    let unfinished = workload.items.len() as u64 - ended;
    let records = lives.iter().filter(|life| life.outcome.is_some()).map(|life| record(life, workload)).collect();
    let clamped_steps = world.clamped_steps();
    Ok(ReplayResult { records, lives, itl, unfinished, clamped_steps, reused_tokens_max })
}

/// Takes in an event; true if the request ended with it.
fn note(lives: &mut [Option<RequestLife>], workload: &Workload, at: SimTime, event: WorldEvent) -> bool {
    let slot = |id: RequestId| id.0 as usize;
    match event {
        WorldEvent::Released(release) => {
            let row = slot(release.id);
            let item = &workload.items[row];
            let (session, turn) = (release.session.0, release.turn);
            let life =
                RequestLife::new(row as u64, session, turn, release.intended, item.input_tokens, item.output_tokens);
            lives[row] = Some(life);
            false
        }
        WorldEvent::Routed { id, pool, worker, rank, decision } => {
            if let Some(life) = &mut lives[slot(id)] {
                life.routed(RouteStage {
                    pool,
                    worker,
                    rank: rank as u16,
                    queued: false,
                    wait: SimSpan::ZERO,
                    selected_overlap_blocks: decision.overlap_blocks,
                    best_overlap_blocks: decision.best_overlap_blocks,
                });
            }
            false
        }
        WorldEvent::Handoff(id, stage) => {
            if let Some(life) = &mut lives[slot(id)] {
                let times = life.handoff_mut();
                match stage {
                    HandoffStage::SourceHeld => times.source_held = at.into(),
                    HandoffStage::DestinationReserved => times.destination_reserved = at.into(),
                    HandoffStage::DestinationActivated => times.destination_activated = at.into(),
                    HandoffStage::SourceReleased => times.source_released = at.into(),
                }
            }
            false
        }
        WorldEvent::Step { .. } | WorldEvent::Gauges { .. } => false,
        WorldEvent::Admitted { id, pool, reused_tokens } => {
            if let Some(life) = &mut lives[slot(id)] {
                life.admitted(at, reused_tokens, pool);
            }
            false
        }
        WorldEvent::Preempted(id) => {
            if let Some(life) = &mut lives[slot(id)] {
                life.preempted(at);
            }
            false
        }
        WorldEvent::Token { id, position, finished, max_gap } => {
            if let Some(life) = &mut lives[slot(id)] {
                match position {
                    0 => life.first_token = at.into(),
                    1 => life.second_token = at.into(),
                    _ => {}
                }
                life.last_token = at.into();
                life.longest_gap = max_gap;
                life.output_tokens = position + 1;
                if finished {
                    life.ended(at, Outcome::Completed);
                }
            }
            finished
        }
        WorldEvent::Finished(id) => end(lives, slot(id), at, Outcome::Completed),
        WorldEvent::Rejected(id, reason) => {
            let outcome = Outcome::Failed { kind: FailureKind::Rejected, message: reason.to_string() };
            end(lives, slot(id), at, outcome)
        }
    }
}

fn end(lives: &mut [Option<RequestLife>], row: usize, at: SimTime, outcome: Outcome) -> bool {
    if let Some(life) = &mut lives[row] {
        life.ended(at, outcome);
    }
    true
}

/// The record that reports are made of.
fn record(life: &RequestLife, workload: &Workload) -> RequestRecord {
    let intended_ms = life.arrival.as_ms();
    let mut record = RequestRecord {
        row: life.row,
        session_id: workload.sessions[life.session as usize].session_id.clone(),
        turn: life.turn,
        input_tokens: life.input_tokens,
        requested_output_tokens: life.requested_output_tokens,
        output_tokens: life.output_tokens,
        reused_tokens: life.first_reused_tokens(),
        worker: life.worker.map(|worker| format!("worker-{worker}")),
        overlap_blocks: life.route.first().and_then(|stage| stage.selected_overlap_blocks),
        intended_ms,
        sent_ms: intended_ms,
        first_token_ms: life.first_token.as_ms(),
        second_token_ms: life.second_token.as_ms(),
        last_token_ms: life.last_token.as_ms(),
        end_ms: life.end.as_ms(),
        max_stall_ms: life.max_gap().map(SimSpan::as_ms),
        engine_ttft_ms: None,
        engine_tpot_ms: None,
        outcome: life.outcome.clone().unwrap_or(Outcome::Completed),
    };
    // There is nothing between router and engine here: both clocks are one.
    record.engine_ttft_ms = record.ttft_ms();
    record.engine_tpot_ms = record.tpot_ms();
    record
}
