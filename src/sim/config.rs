//! What a replay needs to know.

use crate::engine::{ConfigError, EngineConfig, EngineDetail, WorkerType};
use crate::router::{RouterConfig, RouterMode};
use crate::session::plan::ArrivalMode;
use crate::sim::replay::ReplayError;
use crate::time::{SimSpan, SimTime};

/// The workers.
#[derive(Clone, Debug, PartialEq)]
pub enum FleetConfig {
    /// Each worker computes prompts and makes output.
    Aggregated(Vec<EngineConfig>),
    /// Prompts are computed by some workers and handed to others that make the output.
    Disaggregated {
        /// The workers for prompts; their hand-off keys count.
        prefill: Vec<EngineConfig>,
        /// The workers for output.
        decode: Vec<EngineConfig>,
    },
}

/// A replay.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplayConfig {
    /// The workers.
    pub fleet: FleetConfig,
    /// How workers are chosen.
    pub router: RouterConfig,
    /// By what rule requests are released.
    pub arrival: ArrivalMode,
    /// How long the router learns of a cache's changes after they are visible on the worker.
    pub kv_event_lag: SimSpan,
    /// Stop at this moment, whatever is under way. `None`: run until all requests have ended.
    pub max_sim_time: Option<SimTime>,
    /// Check every machine's invariants at each moment; costs time.
    pub check: bool,
    /// Let routing decisions tell all their candidates; costs time.
    pub explain: bool,
    /// Tell steps, those that are alike as one.
    pub tell_steps: bool,
    /// Take and tell every step by itself, those that are alike, too; results are the same. Costs time.
    pub every_step: bool,
    /// Seed of the output tokens.
    pub seed: u64,
}

impl ReplayConfig {
    /// A replay of an aggregated fleet without lag, limit and checks.
    pub fn aggregated(engines: Vec<EngineConfig>, router: RouterConfig, arrival: ArrivalMode, seed: u64) -> Self {
        ReplayConfig {
            fleet: FleetConfig::Aggregated(engines),
            router,
            arrival,
            kv_event_lag: SimSpan::ZERO,
            max_sim_time: None,
            check: false,
            explain: false,
            tell_steps: false,
            every_step: false,
            seed,
        }
    }

    /// What engines need to tell for this replay. `every_token`: for those who look at engines, not at results.
    pub fn engine_detail(&self, every_token: bool) -> EngineDetail {
        EngineDetail {
            every_token,
            kv_events: self.router.router_mode == RouterMode::Kv || self.explain,
            steps: every_token || self.tell_steps,
        }
    }
}

impl FleetConfig {
    /// All workers, prefill before decode.
    pub fn workers(&self) -> impl Iterator<Item = &EngineConfig> {
        let (first, second): (&[EngineConfig], &[EngineConfig]) = match self {
            FleetConfig::Aggregated(workers) => (workers, &[]),
            FleetConfig::Disaggregated { prefill, decode } => (prefill, decode),
        };
        first.iter().chain(second)
    }

    /// The workers that compute prompts, whose caches can serve them.
    pub fn prefill_workers(&self) -> &[EngineConfig] {
        match self {
            FleetConfig::Aggregated(workers) | FleetConfig::Disaggregated { prefill: workers, .. } => workers,
        }
    }

    /// Tokens in a block, of all workers.
    ///
    /// # Errors
    /// Pools without a worker, workers with different blocks, and workers of the wrong type.
    pub fn block_size(&self) -> Result<u32, ReplayError> {
        let pools: &[(&[EngineConfig], WorkerType)] = match self {
            FleetConfig::Aggregated(workers) => &[(workers, WorkerType::Aggregated)],
            FleetConfig::Disaggregated { prefill, decode } => {
                &[(prefill, WorkerType::Prefill), (decode, WorkerType::Decode)]
            }
        };
        let mut block_size = None;
        for (workers, worker_type) in pools {
            if workers.is_empty() {
                return Err(ReplayError::NoWorker(worker_type.count_key()));
            }
            for worker in *workers {
                let first = *block_size.get_or_insert(worker.block_size);
                if first != worker.block_size {
                    return Err(ReplayError::Engine(ConfigError {
                        key: "block_size",
                        value: worker.block_size.to_string(),
                        expected: "the same for all workers, as prompts are cut into blocks once",
                    }));
                }
                if worker.worker_type != *worker_type {
                    return Err(ReplayError::Engine(ConfigError {
                        key: "worker_type",
                        value: format!("{:?}", worker.worker_type).to_lowercase(),
                        expected: "aggregated in `engine`, prefill in `prefill_engine`, decode in `decode_engine`",
                    }));
                }
            }
        }
        Ok(block_size.unwrap_or(1))
    }
}
