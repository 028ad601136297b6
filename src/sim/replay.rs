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
use crate::sim::world::{World, WorldEvent};
use crate::time::SimTime;
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
    /// All gaps between tokens of completed requests, milliseconds.
    pub itl: LatencySet,
    /// Over completed requests: the most prompt tokens reused at any admission.
    pub reused_tokens_max: u64,
}

/// One request's life while it runs.
#[derive(Clone, Debug, Default)]
struct Life {
    routed: bool,
    intended: SimTime,
    turn: u32,
    session: usize,
    worker: u32,
    overlap_blocks: Option<u32>,
    first_reused: Option<u32>,
    max_reused: u32,
    first: Option<SimTime>,
    second: Option<SimTime>,
    last: Option<SimTime>,
    max_gap_ms: Option<f64>,
    output_tokens: u32,
    end: SimTime,
    outcome: Option<Outcome>,
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
    let mut lives = vec![Life::default(); workload.items.len()];
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
            ended += u64::from(note(&mut lives, at, event));
        });
        world.drain_gaps(GAPS_AT_A_TIME, |gap| itl.record_n(gap.gap.as_ms(), u64::from(gap.tokens)));
        if ended > told {
            told = ended;
            progress(ended);
        }
    }
    world.drain_gaps(1, |gap| itl.record_n(gap.gap.as_ms(), u64::from(gap.tokens)));
    if world.in_flight() > 0 {
        let state = world.check().err().unwrap_or_else(|| "all invariants hold".to_owned());
        return Err(ReplayError::Stuck { at: now, in_flight: world.in_flight(), state });
    }
    let completed = |life: &&Life| life.outcome == Some(Outcome::Completed);
    let reused_tokens_max = lives.iter().filter(completed).map(|life| u64::from(life.max_reused)).sum();
    let records = lives.into_iter().enumerate().filter(|(_, life)| life.routed);
    let records = records.map(|(row, life)| life.record(row, workload)).collect();
    Ok(ReplayResult { records, itl, reused_tokens_max })
}

/// Takes in an event; true if the request ended with it.
fn note(lives: &mut [Life], at: SimTime, event: WorldEvent) -> bool {
    match event {
        WorldEvent::Routed(release, decision) => {
            let life = &mut lives[release.id.0 as usize];
            life.routed = true;
            life.intended = release.intended;
            life.turn = release.turn;
            life.session = release.session.0 as usize;
            life.worker = decision.worker.0;
            life.overlap_blocks = decision.overlap_blocks;
            false
        }
        WorldEvent::Admitted { id, reused_tokens } => {
            let life = &mut lives[id.0 as usize];
            life.first_reused.get_or_insert(reused_tokens);
            life.max_reused = life.max_reused.max(reused_tokens);
            false
        }
        WorldEvent::Token { id, position, finished, max_gap } => {
            let life = &mut lives[id.0 as usize];
            match position {
                0 => life.first = Some(at),
                1 => life.second = Some(at),
                _ => {}
            }
            if position > 0 {
                life.max_gap_ms = Some(max_gap.as_ms());
            }
            life.last = Some(at);
            life.output_tokens = position + 1;
            if finished {
                life.end(at, Outcome::Completed);
            }
            finished
        }
        WorldEvent::Finished(id) => {
            lives[id.0 as usize].end(at, Outcome::Completed);
            true
        }
        WorldEvent::Rejected(id, reason) => {
            let outcome = Outcome::Failed { kind: FailureKind::Rejected, message: reason.to_string() };
            lives[id.0 as usize].end(at, outcome);
            true
        }
    }
}

impl Life {
    fn end(&mut self, at: SimTime, outcome: Outcome) {
        self.end = at;
        self.outcome = Some(outcome);
    }

    fn record(self, row: usize, workload: &Workload) -> RequestRecord {
        let item = &workload.items[row];
        let ms = |time: Option<SimTime>| time.map(SimTime::as_ms);
        let intended_ms = self.intended.as_ms();
        let mut record = RequestRecord {
            row: row as u64,
            session_id: workload.sessions[self.session].session_id.clone(),
            turn: self.turn,
            input_tokens: item.input_tokens,
            requested_output_tokens: item.output_tokens,
            output_tokens: self.output_tokens,
            reused_tokens: self.first_reused,
            worker: Some(format!("worker-{}", self.worker)),
            overlap_blocks: self.overlap_blocks,
            intended_ms,
            sent_ms: intended_ms,
            first_token_ms: ms(self.first),
            second_token_ms: ms(self.second),
            last_token_ms: ms(self.last),
            end_ms: self.end.as_ms(),
            max_stall_ms: self.max_gap_ms,
            engine_ttft_ms: None,
            engine_tpot_ms: None,
            outcome: self.outcome.unwrap_or(Outcome::Completed),
        };
        // There is nothing between router and engine here: both clocks are one.
        record.engine_ttft_ms = record.ttft_ms();
        record.engine_tpot_ms = record.tpot_ms();
        record
    }
}
