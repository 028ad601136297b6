//! A workload replayed in virtual time: one record a request, the same as a live run's.

use thiserror::Error;

use crate::engine::{ConfigError, EngineConfig, EngineDetail, EngineRequest, Fleet};
use crate::ids::RequestId;
use crate::measure::LatencySet;
use crate::rng::Seed;
use crate::router::{Router, RouterConfig, RouterConfigError, RouterMode};
use crate::session::driver::Driver;
use crate::session::ledger::{FailureKind, Outcome, RequestRecord};
use crate::session::plan::ArrivalMode;
use crate::session::workload::Workload;
use crate::sim::life::{Pool, RequestLife, RouteStage};
use crate::sim::world::{World, WorldEvent};
use crate::time::{SimSpan, SimTime};
use crate::trace::PromptHasher;

/// Engines keep so many waits between tokens before they hand them over.
const GAPS_AT_A_TIME: usize = 4096;

/// What a replay needs to know.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayConfig {
    /// Every worker's engine.
    pub engines: Vec<EngineConfig>,
    /// How workers are chosen.
    pub router: RouterConfig,
    /// By what rule requests are released.
    pub arrival: ArrivalMode,
    /// Seed of the output tokens.
    pub seed: u64,
}

/// Why there is no result.
#[derive(Debug, Error)]
pub enum ReplayError {
    /// An engine's configuration is out of range.
    #[error(transparent)]
    Engine(#[from] ConfigError),
    /// The router's configuration is out of range.
    #[error(transparent)]
    Router(#[from] RouterConfigError),
    /// No worker.
    #[error("`num_workers` is 0, expected a whole number of at least 1")]
    NoWorker,
    /// Nothing is due, but requests are under way: a fault of the simulator.
    #[error("the replay is stuck at {at}: {in_flight} requests wait and nothing is due; {state}")]
    Stuck {
        /// When.
        at: SimTime,
        /// How many.
        in_flight: usize,
        /// What the engines' invariants say.
        state: String,
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
    /// Over completed requests: the most prompt tokens reused at any admission.
    pub reused_tokens_max: u64,
}

/// Replays `workload`; `progress` hears how many requests have ended.
pub fn replay(
    config: &ReplayConfig,
    workload: &Workload,
    mut progress: impl FnMut(u64),
) -> Result<ReplayResult, ReplayError> {
    let block_size = config.engines.first().ok_or(ReplayError::NoWorker)?.block_size;
    let kv_events = config.router.router_mode == RouterMode::Kv;
    let detail = EngineDetail { every_token: false, kv_events, starts_before_arrivals: false };
    let fleet = Fleet::with_detail(&config.engines, detail)?;
    let router = Router::lean(config.router.clone(), block_size)?;
    let mut world = World::new(Driver::new(workload.sessions.clone(), config.arrival), router, fleet);
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
        now = deadline;
        world.tick(now, &mut request, &mut |at, event| {
            ended += u64::from(note(&mut lives, workload, at, event));
        });
        world.drain_gaps(GAPS_AT_A_TIME, |gap| itl.record_n(gap.gap.as_ms(), u64::from(gap.tokens)));
        if ended > told {
            told = ended;
            progress(ended);
        }
    }
    world.drain_gaps(1, |gap| itl.record_n(gap.gap.as_ms(), u64::from(gap.tokens)));
    itl.compact();
    if world.in_flight() > 0 {
        let state = world.check().err().unwrap_or_else(|| "all invariants hold".to_owned());
        return Err(ReplayError::Stuck { at: now, in_flight: world.in_flight(), state });
    }
    let lives: Vec<RequestLife> = lives.into_iter().flatten().collect();
    let reused_tokens_max =
        lives.iter().filter(|life| life.completed()).map(|life| u64::from(life.max_reused_tokens())).sum();
    let records = lives.iter().map(|life| record(life, workload)).collect();
    Ok(ReplayResult { records, lives, itl, reused_tokens_max })
}

/// Takes in an event; true if the request ended with it.
fn note(lives: &mut [Option<RequestLife>], workload: &Workload, at: SimTime, event: WorldEvent) -> bool {
    let slot = |id: RequestId| id.0 as usize;
    match event {
        WorldEvent::Routed(release, decision) => {
            let row = slot(release.id);
            let item = &workload.items[row];
            let (session, turn) = (release.session.0, release.turn);
            let mut life =
                RequestLife::new(row as u64, session, turn, release.intended, item.input_tokens, item.output_tokens);
            life.routed(RouteStage {
                pool: Pool::Agg,
                worker: decision.worker.0,
                queued: false,
                wait: SimSpan::ZERO,
                selected_overlap_blocks: decision.overlap_blocks,
                best_overlap_blocks: decision.best_overlap_blocks,
            });
            lives[row] = Some(life);
            false
        }
        WorldEvent::Admitted { id, reused_tokens } => {
            if let Some(life) = &mut lives[slot(id)] {
                life.admitted(at, reused_tokens, Pool::Agg);
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
