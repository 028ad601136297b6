//! One pool of workers that do everything.
//!
//! At one moment: late cache events reach the router; steps end, lowest worker first, cache events before tokens, and each
//! signal to the router may set free a request from its queue, which goes to its worker at once; requests that are due
//! are released and routed; steps start, lowest worker first. A request that arrives when a step ends takes part in the
//! next one.

use crate::engine::{EngineInput, EngineOutput, FleetInput, FleetOutput};
use crate::ids::{RequestId, WorkerId};
use crate::session::driver::{Driver, DriverInput, Release};
use crate::sim::world::pool::WorkerPool;
use crate::sim::world::{Asking, WorldEvent};
use crate::time::SimTime;

pub(super) struct Aggregated {
    pub workers: WorkerPool,
    out: Vec<FleetOutput>,
    releases: Vec<Release>,
    /// Workers that got a request at this moment; their gauges are told before steps start.
    submitted: Vec<WorkerId>,
}

impl Aggregated {
    pub fn new(workers: WorkerPool) -> Self {
        Aggregated { workers, out: Vec::new(), releases: Vec::new(), submitted: Vec::new() }
    }

    pub fn tick(
        &mut self,
        now: SimTime,
        driver: &mut Driver,
        request: &mut impl FnMut(RequestId) -> Asking,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        self.workers.deliver_late_events(now);
        self.workers.fleet.complete_steps(now, &mut self.out);
        self.hear(now, driver, tell);
        driver.advance(now, &mut self.releases);
        for release in std::mem::take(&mut self.releases) {
            tell(now, WorldEvent::Released(release));
            self.workers.ask(now, request(release.id));
            self.place(now, tell);
        }
        for worker in self.submitted.drain(..) {
            tell(now, self.workers.gauges(worker, true));
        }
        self.workers.fleet.start_steps(now, &mut self.out);
        self.hear(now, driver, tell);
    }

    /// Sends requests that have got their worker.
    fn place(&mut self, now: SimTime, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        while let Some((request, decision)) = self.workers.next_placement() {
            let worker = decision.worker;
            tell(now, self.workers.routed(request.id, decision));
            // Nothing is said to a submission but what a later step says.
            self.workers.fleet.handle(now, FleetInput { worker, input: EngineInput::Submit(request) }, &mut Vec::new());
            self.submitted.push(worker);
        }
    }

    fn hear(&mut self, now: SimTime, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        let mut out = std::mem::take(&mut self.out);
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                EngineOutput::Kv(event) => self.workers.kv_event(at, worker, event.data),
                EngineOutput::Token { id, position, finished, max_gap, .. } => {
                    if position == 0 && !finished {
                        self.workers.prefill_completed(at, id);
                        self.place(now, tell);
                    }
                    tell(at, WorldEvent::Token { id, position, finished, max_gap });
                    if finished {
                        self.end(at, id, driver, tell);
                    }
                }
                EngineOutput::Finished { id, .. } => {
                    tell(at, WorldEvent::Finished(id));
                    self.end(at, id, driver, tell);
                }
                EngineOutput::Rejected { id, reason } => {
                    tell(at, WorldEvent::Rejected(id, reason));
                    self.end(at, id, driver, tell);
                }
                output => self.workers.pass_on(at, worker, output, tell),
            }
        }
        self.out = out;
    }

    fn end(&mut self, at: SimTime, id: RequestId, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        self.workers.ended(at, id);
        self.place(at, tell);
        driver.handle(at, DriverInput::Ended { id, session_continues: true });
    }
}
