//! The workers of one kind and the router in front of them.
//!
//! A request that the router keeps in its queue waits here; every signal that the router gets may set some free.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::engine::{EngineConfig, EngineDetail, EngineOutput, EngineRequest, Fleet, KvEventData, targets};
use crate::ids::{RequestId, WorkerId};
use crate::router::{Decision, RouteRequest, Router, RouterConfig, RouterInput, RouterOutput};
use crate::sim::life::Pool;
use crate::sim::replay::ReplayError;
use crate::sim::world::{Asking, WorldEvent};
use crate::time::{SimSpan, SimTime};

/// A request that has got its worker.
pub(super) type Placement = (EngineRequest, Decision);

pub(super) struct WorkerPool {
    pub pool: Pool,
    pub fleet: Fleet,
    router: Router,
    targets: Vec<(u32, u32)>,
    asking: FxHashMap<RequestId, EngineRequest>,
    kv_event_lag: SimSpan,
    late_events: VecDeque<(SimTime, WorkerId, KvEventData)>,
    said: Vec<RouterOutput>,
    placed: VecDeque<Placement>,
}

impl WorkerPool {
    pub fn new(
        pool: Pool,
        engines: &[EngineConfig],
        router: &RouterConfig,
        detail: EngineDetail,
        kv_event_lag: SimSpan,
        explain: bool,
    ) -> Result<Self, ReplayError> {
        let block_size = engines.first().map_or(1, |engine| engine.block_size);
        let fleet = Fleet::with_detail(engines, detail)?;
        let ranks = engines.first().map_or(1, |engine| engine.dp_size);
        let mut router = Router::for_pool(router.clone(), block_size, pool, ranks)?;
        router.explain(explain);
        let mut said = Vec::new();
        let batch_tokens = engines
            .iter()
            .flat_map(|engine| std::iter::repeat_n(engine.max_num_batched_tokens, engine.dp_size as usize));
        for (worker, max_num_batched_tokens) in (0..).map(WorkerId).zip(batch_tokens) {
            router.handle(SimTime::ZERO, RouterInput::WorkerUp { worker, max_num_batched_tokens }, &mut said);
        }
        Ok(WorkerPool {
            pool,
            fleet,
            router,
            targets: targets(engines).collect(),
            asking: FxHashMap::default(),
            kv_event_lag,
            late_events: VecDeque::new(),
            said,
            placed: VecDeque::new(),
        })
    }

    /// Worker and rank of an engine.
    pub fn target(&self, engine: WorkerId) -> (u32, u32) {
        self.targets.get(engine.0 as usize).copied().unwrap_or((engine.0, 0))
    }

    pub fn next_deadline(&self) -> Option<SimTime> {
        let late = self.late_events.front().map(|(at, ..)| *at);
        [self.fleet.next_deadline(), late].into_iter().flatten().min()
    }

    /// A request wants a worker.
    pub fn ask(&mut self, now: SimTime, asking: Asking) {
        let Asking { request, priority_jump, strict_priority } = asking;
        let route = RouteRequest {
            id: request.id,
            input_tokens: request.prompt.len_tokens(),
            chain: request.prompt.chain(self.router.block_size()),
            priority_jump,
            strict_priority,
            excluded: Vec::new(),
        };
        self.asking.insert(request.id, request);
        self.tell_router(now, RouterInput::Request(route));
    }

    /// A worker's cache changed.
    pub fn kv_event(&mut self, now: SimTime, worker: WorkerId, event: KvEventData) {
        if self.kv_event_lag == SimSpan::ZERO {
            self.tell_router(now, RouterInput::Kv(worker, event));
        } else {
            self.late_events.push_back((now + self.kv_event_lag, worker, event));
        }
    }

    /// Lets the router hear of changes that have been under way long enough.
    pub fn deliver_late_events(&mut self, now: SimTime) {
        while let Some((_, worker, event)) = self.late_events.pop_front_if(|(at, ..)| *at <= now) {
            self.tell_router(now, RouterInput::Kv(worker, event));
        }
    }

    pub fn prefill_completed(&mut self, now: SimTime, id: RequestId) {
        self.tell_router(now, RouterInput::PrefillCompleted(id));
    }

    pub fn ended(&mut self, now: SimTime, id: RequestId) {
        self.tell_router(now, RouterInput::Ended(id));
    }

    fn tell_router(&mut self, now: SimTime, input: RouterInput) {
        self.router.handle(now, input, &mut self.said);
        for said in self.said.drain(..) {
            // A pool has at least one worker and none goes, so there is always one for a request.
            if let RouterOutput::Routed(id, decision) = said
                && let Some(request) = self.asking.remove(&id)
            {
                self.placed.push_back((request, decision));
            }
        }
    }

    /// The next request that has got its worker and was not sent yet.
    pub fn next_placement(&mut self) -> Option<Placement> {
        self.placed.pop_front()
    }

    /// Tells what an engine said and needs no answer.
    pub fn pass_on(
        &self,
        at: SimTime,
        worker: WorkerId,
        output: EngineOutput,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        let pool = self.pool;
        match output {
            EngineOutput::Admitted { id, reused_tokens, .. } => {
                tell(at, WorldEvent::Admitted { id, pool, reused_tokens });
            }
            EngineOutput::Preempted { id } => tell(at, WorldEvent::Preempted(id)),
            EngineOutput::StepEnded { stats, prefill_tokens, decode_sequences, started } => {
                tell(at, WorldEvent::Step { pool, worker, started, stats, prefill_tokens, decode_sequences });
            }
            _ => {}
        }
    }

    /// What to tell of a routing decision.
    pub fn routed(&self, id: RequestId, decision: Decision) -> WorldEvent {
        let (worker, rank) = self.target(decision.worker);
        WorldEvent::Routed { id, pool: self.pool, worker, rank, decision }
    }

    /// What to tell after an engine got a request or a command.
    pub fn gauges(&self, worker: WorkerId, arrival: bool) -> WorldEvent {
        let stats = self.fleet.stats(worker).unwrap_or_default();
        WorldEvent::Gauges { pool: self.pool, worker, stats, arrival }
    }

    /// Requests that wait in the router's queue.
    pub fn queued(&self) -> usize {
        self.asking.len()
    }
}
