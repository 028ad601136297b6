//! Driver, routers and workers under one virtual clock.
//!
//! The clock jumps to the next moment at which any of them wants to be woken. What happens at one moment has a fixed order,
//! which differs with the kind of fleet: `aggregated.rs` and `disaggregated.rs` say it, and docs/event-order.md for readers
//! of results. A moment may take several ticks.

use crate::engine::{EngineRequest, EngineStats, RejectReason, TokenGap};
use crate::ids::{RequestId, WorkerId};
use crate::router::Decision;
use crate::session::driver::{Driver, Release};
use crate::sim::config::{FleetConfig, ReplayConfig};
use crate::sim::life::Pool;
use crate::sim::replay::ReplayError;
use crate::sim::world::aggregated::Aggregated;
use crate::sim::world::disaggregated::Disaggregated;
use crate::sim::world::pool::WorkerPool;
use crate::time::{SimSpan, SimTime};

mod aggregated;
mod disaggregated;
mod pool;

/// What the world tells the one who keeps the records.
#[derive(Clone, Debug, PartialEq)]
pub enum WorldEvent {
    /// A request came.
    Released(Release),
    /// A router decided.
    Routed {
        /// For which request.
        id: RequestId,
        /// The router's pool.
        pool: Pool,
        /// The worker, by its number in the pool.
        worker: u32,
        /// Its data-parallel rank.
        rank: u32,
        /// The decision; its worker is the engine: workers and ranks numbered through.
        decision: Decision,
    },
    /// A request joined a running batch.
    Admitted {
        /// Which.
        id: RequestId,
        /// Where.
        pool: Pool,
        /// Tokens from the cache.
        reused_tokens: u32,
    },
    /// It was thrown out of the batch and waits for another admission.
    Preempted(RequestId),
    /// Its hand-off has come to this.
    Handoff(RequestId, HandoffStage),
    /// It got a token.
    Token {
        /// Which.
        id: RequestId,
        /// Its place in the output, from 0.
        position: u32,
        /// True for the last one.
        finished: bool,
        /// Longest wait between two tokens of the request so far.
        max_gap: SimSpan,
    },
    /// It ended without a token, as it wanted none.
    Finished(RequestId),
    /// It can never run.
    Rejected(RequestId, RejectReason),
    /// An engine's step ended.
    Step {
        /// The engine's pool.
        pool: Pool,
        /// The engine: workers and ranks numbered through.
        worker: WorkerId,
        /// When the step started.
        started: SimTime,
        /// The engine after it.
        stats: EngineStats,
        /// Prompt tokens computed.
        prefill_tokens: u32,
        /// Sequences that decoded.
        decode_sequences: u32,
    },
    /// An engine got a request or a command.
    Gauges {
        /// The engine's pool.
        pool: Pool,
        /// The engine: workers and ranks numbered through.
        worker: WorkerId,
        /// The engine after it, with what its running step has already decided.
        stats: EngineStats,
        /// It got a request.
        arrival: bool,
    },
}

/// A request as it comes to the first router.
#[derive(Clone, Debug)]
pub struct Asking {
    /// For the engines.
    pub request: EngineRequest,
    /// See [`RouteRequest::priority_jump`](crate::router::RouteRequest::priority_jump).
    pub priority_jump: f64,
    /// See [`RouteRequest::strict_priority`](crate::router::RouteRequest::strict_priority).
    pub strict_priority: u32,
}

/// The stages of a hand-off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HandoffStage {
    /// The prompt is computed and its blocks wait.
    SourceHeld,
    /// The destination has room.
    DestinationReserved,
    /// The blocks are there.
    DestinationActivated,
    /// The source's blocks are free.
    SourceReleased,
}

enum Fleets {
    Aggregated(Box<Aggregated>),
    Disaggregated(Box<Disaggregated>),
}

/// The machines.
pub struct World {
    driver: Driver,
    fleets: Fleets,
}

impl World {
    /// A world at time 0. `every_token`: tell every token.
    ///
    /// # Errors
    /// Configurations out of range, see [`ReplayError`].
    pub fn new(config: &ReplayConfig, driver: Driver, every_token: bool) -> Result<Self, ReplayError> {
        config.fleet.block_size()?;
        let detail = config.engine_detail(every_token);
        let workers =
            |pool, engines| WorkerPool::new(pool, engines, &config.router, detail, config.kv_event_lag, config.explain);
        let fleets = match &config.fleet {
            FleetConfig::Aggregated(engines) => {
                Fleets::Aggregated(Box::new(Aggregated::new(workers(Pool::Agg, engines)?)))
            }
            FleetConfig::Disaggregated { prefill, decode } => {
                let senders = prefill;
                let (prefill, decode) = (workers(Pool::Prefill, prefill)?, workers(Pool::Decode, decode)?);
                Fleets::Disaggregated(Box::new(Disaggregated::new(prefill, decode, senders)))
            }
        };
        Ok(World { driver, fleets })
    }

    /// The next moment at which something happens; `None`: never again.
    pub fn next_deadline(&self) -> Option<SimTime> {
        let fleets = match &self.fleets {
            Fleets::Aggregated(fleet) => fleet.workers.next_deadline(),
            Fleets::Disaggregated(fleets) => fleets.next_deadline(),
        };
        [self.driver.next_deadline(), fleets].into_iter().flatten().min()
    }

    /// Requests that have been released and not ended.
    pub fn in_flight(&self) -> usize {
        self.driver.in_flight()
    }

    /// Lets happen what is due at `now`. `request` makes the request of a row, `tell` hears of it.
    pub fn tick(
        &mut self,
        now: SimTime,
        request: &mut impl FnMut(RequestId) -> Asking,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        match &mut self.fleets {
            Fleets::Aggregated(fleet) => fleet.tick(now, &mut self.driver, request, tell),
            Fleets::Disaggregated(fleets) => fleets.tick(now, &mut self.driver, request, tell),
        }
    }

    fn pools(&self) -> impl Iterator<Item = &WorkerPool> {
        let (first, second) = match &self.fleets {
            Fleets::Aggregated(fleet) => (&fleet.workers, None),
            Fleets::Disaggregated(fleets) => (&fleets.prefill, Some(&fleets.decode)),
        };
        std::iter::once(first).chain(second)
    }

    /// Hands over the waits between tokens of engines that have at least `at_least` of them to tell.
    pub fn drain_gaps(&mut self, at_least: usize, hear: impl FnMut(&[TokenGap])) {
        match &mut self.fleets {
            Fleets::Aggregated(fleet) => fleet.workers.fleet.drain_gaps(at_least, hear),
            Fleets::Disaggregated(fleets) => fleets.decode.fleet.drain_gaps(at_least, hear),
        }
    }

    /// Steps so far whose batch lay outside the tables of the timing model, and steps in all.
    pub fn clamped_steps(&self) -> (u64, u64) {
        let stats = self.pools().flat_map(|pool| pool.fleet.all_stats());
        stats.fold((0, 0), |(clamped, all), stats| (clamped + stats.clamped_steps_total, all + stats.steps_total))
    }

    /// Checks the engines' invariants and names the first that is broken. For tests and `--check`; costs O(blocks).
    pub fn check(&self) -> Result<(), String> {
        self.pools().try_for_each(|pool| pool.fleet.check().map_err(|broken| format!("{} {broken}", pool.pool.name())))
    }

    /// Who waits for what, in one line. A worker that only holds blocks holds them for hand-offs.
    pub fn state(&self) -> String {
        let pool = |pool: &WorkerPool| {
            let engines = pool
                .fleet
                .all_stats()
                .enumerate()
                .filter(|(_, stats)| stats.running + stats.waiting + stats.active_blocks > 0);
            let engines = engines.map(|(engine, stats)| {
                let (worker, rank) = pool.target(WorkerId(engine as u32));
                format!(
                    "{} worker {worker} rank {rank}: {} running, {} waiting, {} of {} KV blocks in use",
                    pool.pool.name(),
                    stats.running,
                    stats.waiting,
                    stats.active_blocks,
                    stats.total_blocks
                )
            });
            let queued = format!("{} router: {} in its queue", pool.pool.name(), pool.queued());
            engines.chain((pool.queued() > 0).then_some(queued)).collect::<Vec<_>>()
        };
        let handoffs = match &self.fleets {
            Fleets::Disaggregated(fleets) if fleets.handoffs() > 0 => {
                Some(format!("{} requests whose hand-off is not done", fleets.handoffs()))
            }
            _ => None,
        };
        self.pools().flat_map(pool).chain(handoffs).collect::<Vec<_>>().join("; ")
    }
}
