//! Driver, router and fleet under one virtual clock.
//!
//! The clock jumps to the next moment at which any of them wants to be woken. What happens at one moment has a fixed order:
//! steps end, lowest worker first (cache events before tokens), the driver and the router hear of it; requests that are due
//! are released and routed; steps start, lowest worker first. A request that arrives when a step ends takes part in the
//! next one.

use crate::engine::{EngineInput, EngineOutput, EngineRequest, Fleet, FleetInput, FleetOutput, RejectReason, TokenGap};
use crate::ids::{RequestId, WorkerId};
use crate::router::{Decision, RouteRequest, Router, RouterInput, RouterOutput};
use crate::session::driver::{Driver, DriverInput, Release};
use crate::time::{SimSpan, SimTime};

/// What the world tells the one who keeps the records.
#[derive(Clone, Debug, PartialEq)]
pub enum WorldEvent {
    /// A request was sent to a worker.
    Routed(Release, Decision),
    /// It joined the running batch.
    Admitted {
        /// Which.
        id: RequestId,
        /// Tokens from the cache.
        reused_tokens: u32,
    },
    /// It was thrown out of the batch and waits for another admission.
    Preempted(RequestId),
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
}

/// The three machines.
pub struct World {
    driver: Driver,
    router: Router,
    fleet: Fleet,
    fleet_out: Vec<FleetOutput>,
    releases: Vec<Release>,
    routed: Vec<RouterOutput>,
}

impl World {
    /// A world at time 0; every engine of the fleet is known to the router.
    pub fn new(driver: Driver, mut router: Router, fleet: Fleet) -> Self {
        let mut routed = Vec::new();
        for worker in 0..fleet.len() as u32 {
            let up = RouterInput::WorkerUp { worker: WorkerId(worker), max_num_batched_tokens: None };
            router.handle(SimTime::ZERO, up, &mut routed);
        }
        World { driver, router, fleet, fleet_out: Vec::new(), releases: Vec::new(), routed }
    }

    /// The next moment at which something happens; `None`: never again.
    pub fn next_deadline(&self) -> Option<SimTime> {
        [self.driver.next_deadline(), self.fleet.next_deadline()].into_iter().flatten().min()
    }

    /// Requests that have been released and not ended.
    pub fn in_flight(&self) -> usize {
        self.driver.in_flight()
    }

    /// Lets everything happen that is due at `now`. `request` makes the engine's request for a row, `tell` hears of it.
    pub fn tick(
        &mut self,
        now: SimTime,
        request: &mut impl FnMut(RequestId) -> EngineRequest,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        let mut out = std::mem::take(&mut self.fleet_out);
        self.fleet.complete_steps(now, &mut out);
        self.hear(&mut out, tell);
        self.driver.advance(now, &mut self.releases);
        for release in std::mem::take(&mut self.releases) {
            self.place(now, release, request(release.id), &mut out, tell);
        }
        self.fleet.start_steps(now, &mut out);
        self.hear(&mut out, tell);
        self.fleet_out = out;
    }

    fn place(
        &mut self,
        now: SimTime,
        release: Release,
        request: EngineRequest,
        out: &mut Vec<FleetOutput>,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        let route = RouteRequest {
            id: release.id,
            input_tokens: request.prompt.len_tokens(),
            chain: request.prompt.chain(self.router.block_size()),
            ..RouteRequest::default()
        };
        self.router.handle(now, RouterInput::Request(route), &mut self.routed);
        // A fleet has at least one worker and none goes, so there is always a decision.
        if let Some(RouterOutput::Routed(_, decision)) = self.routed.pop() {
            let worker = decision.worker;
            tell(now, WorldEvent::Routed(release, decision));
            self.fleet.handle(now, FleetInput { worker, input: EngineInput::Submit(request) }, out);
        }
    }

    fn hear(&mut self, out: &mut Vec<FleetOutput>, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                EngineOutput::Kv(event) => {
                    self.router.handle(at, RouterInput::Kv(worker, event.data), &mut self.routed);
                }
                EngineOutput::Admitted { id, reused_tokens, .. } => {
                    tell(at, WorldEvent::Admitted { id, reused_tokens });
                }
                EngineOutput::Token { id, position, finished, max_gap, .. } => {
                    if position == 0 {
                        self.router.handle(at, RouterInput::PrefillCompleted(id), &mut self.routed);
                    }
                    tell(at, WorldEvent::Token { id, position, finished, max_gap });
                    if finished {
                        self.end(at, id);
                    }
                }
                EngineOutput::Preempted { id } => tell(at, WorldEvent::Preempted(id)),
                EngineOutput::Finished { id, .. } => {
                    tell(at, WorldEvent::Finished(id));
                    self.end(at, id);
                }
                EngineOutput::Rejected { id, reason } => {
                    tell(at, WorldEvent::Rejected(id, reason));
                    self.end(at, id);
                }
                EngineOutput::StepEnded { .. }
                | EngineOutput::Flushed { .. }
                | EngineOutput::SourceHeld { .. }
                | EngineOutput::SourceReleased { .. }
                | EngineOutput::DestinationReserved { .. }
                | EngineOutput::DestinationActivated { .. } => {}
            }
        }
    }

    fn end(&mut self, at: SimTime, id: RequestId) {
        self.router.handle(at, RouterInput::Ended(id), &mut self.routed);
        self.driver.handle(at, DriverInput::Ended { id, session_continues: true });
    }

    /// Hands over the waits between tokens of engines that have at least `at_least` of them to tell.
    pub fn drain_gaps(&mut self, at_least: usize, hear: impl FnMut(TokenGap)) {
        self.fleet.drain_gaps(at_least, hear);
    }

    /// Checks the engines' invariants and names the first that is broken. For tests; costs O(blocks).
    pub fn check(&self) -> Result<(), String> {
        self.fleet.check()
    }
}
