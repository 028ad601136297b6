//! A workload replayed in virtual time: one record a request, the same as a live run's.

use thiserror::Error;

use crate::engine::{ConfigError, EngineRequest};
use crate::ids::RequestId;
use crate::measure::LatencySet;
use crate::rng::Seed;
use crate::router::{RouterConfigError, RouterMode};
use crate::session::driver::Driver;
use crate::session::ledger::{Outcome, RequestRecord};
use crate::session::workload::Workload;
use crate::sim::config::ReplayConfig;
use crate::sim::diagnosis::who_waits;
use crate::sim::life::RequestLife;
use crate::sim::lives::Lives;
use crate::sim::world::{Asking, World, WorldEvent};
use crate::time::{SimSpan, SimTime};
use crate::trace::PromptHasher;

/// Engines keep so many waits between tokens before they hand them over.
const GAPS_AT_A_TIME: usize = 64;
/// Engines are asked for them so often: a look at hundreds of engines costs more than a tick.
const TICKS_AT_A_TIME: u64 = 256;

/// So many ticks at one moment without a token, a hand-off or an end are no way to get on.
const TICKS_STANDING_STILL: u32 = 100_000;

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
    #[error("the replay is stuck at {at}, requests under way: {in_flight}, and nothing will ever happen; {state}")]
    Stuck {
        /// When.
        at: SimTime,
        /// How many.
        in_flight: usize,
        /// Who waits for what.
        state: String,
    },
    /// Something is always due at this moment, but nothing comes of it.
    #[error("the replay stands still at {at}, requests under way: {in_flight}, and they get no further; {state}")]
    StandsStill {
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
///
/// # Errors
/// See [`ReplayError`].
pub fn replay(
    config: &ReplayConfig,
    workload: &Workload,
    progress: impl FnMut(u64),
) -> Result<ReplayResult, ReplayError> {
    replay_observed(config, workload, progress, |_, _| {})
}

/// As [`replay`]; `observe` hears all that happens, steps that are alike as one.
///
/// # Errors
/// See [`ReplayError`].
pub fn replay_observed(
    config: &ReplayConfig,
    workload: &Workload,
    mut progress: impl FnMut(u64),
    mut observe: impl FnMut(SimTime, &WorldEvent),
) -> Result<ReplayResult, ReplayError> {
    let block_size = config.fleet.block_size()?;
    let driver = Driver::new(workload.sessions.clone(), config.arrival);
    let mut world = World::new(config, driver, config.every_step)?;
    let seed = Seed(config.seed).split("output");
    let mut lives = Lives::new(workload.items.len());
    let mut itl = LatencySet::exact();
    let (mut ended, mut told) = (0, 0);
    let mut hasher = PromptHasher::default();
    let mut request = |id: RequestId| {
        let item = &workload.items[id.0 as usize];
        let request = EngineRequest {
            id,
            prompt: hasher.hash(&item.prompt, block_size),
            max_output_tokens: item.output_tokens,
            output_seed: seed.nth(id.0),
            vocab_tokens: u32::MAX,
            priority: item.priority,
        };
        Asking { request, priority_jump: f64::from(item.priority), strict_priority: item.strict_priority }
    };
    // A router that explains itself knows overlaps that do not matter to its mode; results are the same without.
    let asked_for_overlaps = config.explain && config.router.router_mode != RouterMode::Kv;
    let mut now = SimTime::ZERO;
    let mut ticks = 0u64;
    let mut still = 0;
    while let Some(deadline) = world.next_deadline() {
        if config.max_sim_time.is_some_and(|most| deadline > most) {
            break;
        }
        still = if deadline > now { 0 } else { still + 1 };
        if still > TICKS_STANDING_STILL {
            let (in_flight, state) = (world.in_flight(), state(&world, &lives));
            return Err(ReplayError::StandsStill { at: now, in_flight, state });
        }
        now = deadline;
        world.tick(now, &mut request, &mut |at, mut event| {
            observe(at, &event);
            if gets_on(&event) {
                still = 0;
            }
            if let WorldEvent::Routed { decision, .. } = &mut event
                && asked_for_overlaps
            {
                (decision.overlap_blocks, decision.best_overlap_blocks) = (None, None);
            }
            ended += u64::from(lives.note(workload, at, event));
        });
        if config.check {
            world.check().map_err(|broken| ReplayError::Broken { at: now, broken })?;
        }
        ticks += 1;
        if ticks.is_multiple_of(TICKS_AT_A_TIME) {
            world.drain_gaps(GAPS_AT_A_TIME, |gaps| itl.record_spans(gaps.iter().map(|gap| (gap.gap, gap.tokens))));
        }
        if ended > told {
            told = ended;
            progress(ended);
        }
    }
    world.drain_gaps(1, |gaps| itl.record_spans(gaps.iter().map(|gap| (gap.gap, gap.tokens))));
    if world.in_flight() > 0 && world.next_deadline().is_none() {
        return Err(ReplayError::Stuck { at: now, in_flight: world.in_flight(), state: state(&world, &lives) });
    }
    let lives = lives.into_vec();
    let reused_tokens_max =
        lives.iter().filter(|life| life.completed()).map(|life| u64::from(life.max_reused_tokens())).sum();
    let unfinished = workload.items.len() as u64 - ended;
    let records = lives.iter().filter(|life| life.outcome.is_some()).map(|life| record(life, workload)).collect();
    let clamped_steps = world.clamped_steps();
    Ok(ReplayResult { records, lives, itl, unfinished, clamped_steps, reused_tokens_max })
}

/// Who waits for what: the requests, then the machines.
fn state(world: &World, lives: &Lives) -> String {
    format!("{}; {}", who_waits(lives.iter()), world.state())
}

/// True if a request came, or came nearer to its end.
fn gets_on(event: &WorldEvent) -> bool {
    match event {
        WorldEvent::Released(_)
        | WorldEvent::Handoff(..)
        | WorldEvent::Token { .. }
        | WorldEvent::Finished(_)
        | WorldEvent::Rejected(..) => true,
        // A sequence may be thrown out and admitted again for ever.
        WorldEvent::Routed { .. }
        | WorldEvent::Admitted { .. }
        | WorldEvent::Preempted(_)
        | WorldEvent::Step { .. }
        | WorldEvent::Gauges { .. } => false,
    }
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
