//! A pool of workers for prompts, one for output, and the hand-offs between them.
//!
//! What happens at one moment is done in rounds until nothing is left to do; a tick is one round:
//! 1. late cache events reach the router; steps that are due end, prefill workers before decode workers, each kind lowest first: commands that waited for this
//!    end go to the list of actions, cache events reach the router, tokens are told, and prompts that are computed now ask
//!    for a destination;
//! 2. transfers that are due end, in the order in which their requests arrived;
//! 3. the list of actions is followed, first in, first out, with what it adds to itself: send to a prefill worker, choose
//!    a decode worker and ask it for room, start the transfer, activate, release;
//! 4. requests that are due are released: they are added to the list, which the next round follows;
//! 5. idle prefill workers start steps, then idle decode workers.
//!
//! So a step that can start at a moment starts before the requests of that moment arrive. The reference's order: rule 1 of
//! docs/reference-rules.md.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use crate::engine::{EngineConfig, EngineInput, EngineOutput, FleetInput, FleetOutput, RejectReason};
use crate::ids::{RequestId, WorkerId};
use crate::session::driver::{Driver, DriverInput, Release};
use crate::sim::world::pool::WorkerPool;
use crate::sim::world::{Asking, HandoffStage, WorldEvent};
use crate::time::{SimSpan, SimTime};

#[derive(Clone, Copy, Debug)]
enum Action {
    /// Send to a prefill worker.
    Submit(RequestId),
    /// Choose a decode worker and ask it for room.
    Reserve(RequestId),
    /// Copy the blocks of which the destination had to set `fresh_blocks` aside.
    Transfer { id: RequestId, fresh_blocks: u32 },
    /// Let the decode worker go on with the request.
    Activate(RequestId),
    /// Free the prefill worker's blocks.
    Release(RequestId),
}

/// A request on its way.
struct Journey {
    /// Place in the order of arrivals.
    arrival_number: u64,
    asking: Asking,
    prefill: Option<WorkerId>,
    decode: Option<WorkerId>,
}

pub(super) struct Disaggregated {
    pub prefill: WorkerPool,
    pub decode: WorkerPool,
    /// Of each prefill engine; its configuration says how long transfers take.
    senders: Vec<EngineConfig>,
    journeys: FxHashMap<RequestId, Journey>,
    arrivals: u64,
    actions: VecDeque<Action>,
    /// Commands that wait for the end of a prefill or decode worker's step.
    after_step: FxHashMap<(bool, WorkerId), Vec<Action>>,
    transfers: BinaryHeap<Reverse<(SimTime, u64, RequestId)>>,
    /// The moment of the last tick: what is left in the list belongs to it.
    now: SimTime,
    /// True after the first round of a moment: steps that could start have started.
    started: bool,
    out: Vec<FleetOutput>,
    releases: Vec<Release>,
    /// Prefill engines that got a request and whose gauges are to be told.
    submitted: Vec<WorkerId>,
}

impl Disaggregated {
    pub fn new(prefill: WorkerPool, decode: WorkerPool, senders: &[EngineConfig]) -> Self {
        let of_engine = |config: &EngineConfig| std::iter::repeat_n(config.clone(), config.dp_size as usize);
        Disaggregated {
            prefill,
            decode,
            senders: senders.iter().flat_map(of_engine).collect(),
            journeys: FxHashMap::default(),
            arrivals: 0,
            actions: VecDeque::new(),
            after_step: FxHashMap::default(),
            transfers: BinaryHeap::new(),
            now: SimTime::ZERO,
            started: false,
            out: Vec::new(),
            releases: Vec::new(),
            submitted: Vec::new(),
        }
    }

    /// Requests that have come and whose blocks are not yet free at their prefill workers.
    pub fn handoffs(&self) -> usize {
        self.journeys.len()
    }

    pub fn next_deadline(&self) -> Option<SimTime> {
        if !self.actions.is_empty() {
            return Some(self.now);
        }
        let transfer = self.transfers.peek().map(|Reverse((at, ..))| *at);
        [self.prefill.next_deadline(), self.decode.next_deadline(), transfer].into_iter().flatten().min()
    }

    pub fn tick(
        &mut self,
        now: SimTime,
        driver: &mut Driver,
        request: &mut impl FnMut(RequestId) -> Asking,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        self.started &= now == self.now;
        self.now = now;
        self.prefill.deliver_late_events(now);
        self.end_steps(now, driver, tell);
        for worker in self.submitted.drain(..) {
            tell(now, self.prefill.gauges(worker, false));
        }
        while let Some(Reverse((_, _, id))) = self.transfers.peek().copied().filter(|Reverse((at, ..))| *at <= now) {
            self.transfers.pop();
            self.actions.push_back(Action::Activate(id));
        }
        while let Some(action) = self.actions.pop_front() {
            self.follow(now, action, driver, tell);
        }
        driver.advance(now, &mut self.releases);
        for release in std::mem::take(&mut self.releases) {
            tell(now, WorldEvent::Released(release));
            self.arrivals += 1;
            let (arrival_number, asking) = (self.arrivals, request(release.id));
            self.journeys.insert(release.id, Journey { arrival_number, asking, prefill: None, decode: None });
            self.actions.push_back(Action::Submit(release.id));
        }
        self.prefill.fleet.start_steps(now, &mut self.out);
        self.hear_prefill(driver, tell);
        self.decode.fleet.start_steps(now, &mut self.out);
        self.hear_decode(driver, tell);
        self.started = true;
    }

    fn end_steps(&mut self, now: SimTime, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        for worker in self.prefill.fleet.due_steps(now) {
            for engine in self.prefill.fleet.engines_of(worker) {
                self.actions.extend(self.after_step.remove(&(true, engine)).into_iter().flatten());
            }
            self.prefill.fleet.complete_step(worker, now, &mut self.out);
            self.hear_prefill(driver, tell);
        }
        for worker in self.decode.fleet.due_steps(now) {
            for engine in self.decode.fleet.engines_of(worker) {
                self.actions.extend(self.after_step.remove(&(false, engine)).into_iter().flatten());
            }
            self.decode.fleet.complete_step(worker, now, &mut self.out);
            self.hear_decode(driver, tell);
        }
    }

    fn follow(
        &mut self,
        now: SimTime,
        action: Action,
        driver: &mut Driver,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        match action {
            Action::Submit(id) => {
                let Some(journey) = self.journeys.get(&id) else { return };
                self.prefill.ask(now, journey.asking.clone());
                self.place_prefills(now, driver, tell);
                for worker in self.submitted.drain(..) {
                    tell(now, self.prefill.gauges(worker, true));
                }
            }
            Action::Reserve(id) => {
                let Some(journey) = self.journeys.get(&id) else { return };
                self.decode.ask(now, journey.asking.clone());
                self.place_decodes(now, driver, tell);
            }
            Action::Transfer { id, fresh_blocks } => {
                let Some(journey) = self.journeys.get(&id) else { return };
                let sender = journey.prefill.and_then(|engine| self.senders.get(engine.0 as usize));
                let prompt_tokens = journey.asking.request.prompt.len_tokens();
                let span = sender.map_or(SimSpan::ZERO, |sender| sender.kv_transfer_time(prompt_tokens, fresh_blocks));
                if span == SimSpan::ZERO {
                    self.actions.push_back(Action::Activate(id));
                } else {
                    self.transfers.push(Reverse((now + span, journey.arrival_number, id)));
                }
            }
            Action::Activate(id) => {
                let Some(worker) = self.journeys.get(&id).and_then(|journey| journey.decode) else { return };
                let stepping = self.decode.fleet.look_in(worker, now, self.started, &mut self.out);
                self.hear_decode(driver, tell);
                if stepping {
                    self.after_step.entry((false, worker)).or_default().push(action);
                    return;
                }
                let input = EngineInput::Activate(id);
                self.decode.fleet.handle(now, FleetInput { worker, input }, &mut self.out);
                self.hear_decode(driver, tell);
                tell(now, self.decode.gauges(worker, false));
            }
            Action::Release(id) => {
                let Some(worker) = self.journeys.get(&id).and_then(|journey| journey.prefill) else { return };
                let stepping = self.prefill.fleet.look_in(worker, now, self.started, &mut self.out);
                self.hear_prefill(driver, tell);
                if stepping {
                    self.after_step.entry((true, worker)).or_default().push(action);
                    return;
                }
                let input = EngineInput::ReleaseSource(id);
                self.prefill.fleet.handle(now, FleetInput { worker, input }, &mut self.out);
                self.hear_prefill(driver, tell);
                tell(now, self.prefill.gauges(worker, false));
            }
        }
    }

    /// Sends requests to the prefill workers that they have got.
    fn place_prefills(&mut self, now: SimTime, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        while let Some((request, decision)) = self.prefill.next_placement() {
            let (id, worker) = (request.id, decision.worker);
            if let Some(journey) = self.journeys.get_mut(&id) {
                journey.prefill = Some(worker);
            }
            tell(now, self.prefill.routed(id, decision));
            let input = EngineInput::Submit(request);
            self.prefill.fleet.handle(now, FleetInput { worker, input }, &mut self.out);
            self.hear_prefill(driver, tell);
            self.submitted.push(worker);
        }
    }

    /// Asks the decode workers that requests have got for room.
    fn place_decodes(&mut self, now: SimTime, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        while let Some((request, decision)) = self.decode.next_placement() {
            let (id, worker) = (request.id, decision.worker);
            if let Some(journey) = self.journeys.get_mut(&id) {
                journey.decode = Some(worker);
            }
            tell(now, self.decode.routed(id, decision));
            self.decode.fleet.look_in(worker, now, self.started, &mut self.out);
            self.hear_decode(driver, tell);
            let input = EngineInput::Reserve(request);
            self.decode.fleet.handle(now, FleetInput { worker, input }, &mut self.out);
            self.hear_decode(driver, tell);
            tell(now, self.decode.gauges(worker, false));
        }
    }

    fn hear_prefill(&mut self, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        let mut out = std::mem::take(&mut self.out);
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                EngineOutput::Kv(event) => self.prefill.kv_event(at, worker, event.data),
                EngineOutput::SourceHeld { id, .. } => {
                    tell(at, WorldEvent::Handoff(id, HandoffStage::SourceHeld));
                    self.actions.push_back(Action::Reserve(id));
                    self.prefill.prefill_completed(at, id);
                    self.place_prefills(at, driver, tell);
                }
                EngineOutput::SourceReleased { id } => {
                    tell(at, WorldEvent::Handoff(id, HandoffStage::SourceReleased));
                    // The decode worker has all it needs.
                    self.journeys.remove(&id);
                    self.prefill.ended(at, id);
                    self.place_prefills(at, driver, tell);
                }
                EngineOutput::Rejected { id, reason } => {
                    self.prefill.ended(at, id);
                    self.place_prefills(at, driver, tell);
                    self.reject(at, id, reason, driver, tell);
                    self.journeys.remove(&id);
                }
                output => self.prefill.pass_on(at, worker, output, tell),
            }
        }
        self.out = out;
    }

    fn hear_decode(&mut self, driver: &mut Driver, tell: &mut impl FnMut(SimTime, WorldEvent)) {
        let mut out = std::mem::take(&mut self.out);
        for FleetOutput { at, worker, output } in out.drain(..) {
            match output {
                // Blocks come here with their requests; nobody chooses a decode worker by them.
                EngineOutput::Kv(_) => {}
                EngineOutput::DestinationReserved { id, fresh_blocks } => {
                    tell(at, WorldEvent::Handoff(id, HandoffStage::DestinationReserved));
                    tell(at, self.decode.gauges(worker, false));
                    self.actions.push_back(Action::Transfer { id, fresh_blocks });
                }
                EngineOutput::DestinationActivated { id } => {
                    tell(at, WorldEvent::Handoff(id, HandoffStage::DestinationActivated));
                    self.actions.push_back(Action::Release(id));
                }
                EngineOutput::Token { id, position, finished, max_gap, .. } => {
                    if position == 0 && !finished {
                        self.decode.prefill_completed(at, id);
                    }
                    tell(at, WorldEvent::Token { id, position, finished, max_gap });
                    if finished {
                        self.end_decode(at, id, driver, tell);
                    }
                }
                EngineOutput::Finished { id, .. } => {
                    tell(at, WorldEvent::Finished(id));
                    self.end_decode(at, id, driver, tell);
                }
                EngineOutput::Rejected { id, reason } => {
                    self.decode.ended(at, id);
                    self.place_decodes(at, driver, tell);
                    self.reject(at, id, reason, driver, tell);
                    self.actions.push_back(Action::Release(id));
                }
                output => self.decode.pass_on(at, worker, output, tell),
            }
        }
        self.out = out;
    }

    fn end_decode(
        &mut self,
        at: SimTime,
        id: RequestId,
        driver: &mut Driver,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        self.decode.ended(at, id);
        self.place_decodes(at, driver, tell);
        driver.handle(at, DriverInput::Ended { id, session_continues: true });
    }

    fn reject(
        &mut self,
        at: SimTime,
        id: RequestId,
        reason: RejectReason,
        driver: &mut Driver,
        tell: &mut impl FnMut(SimTime, WorldEvent),
    ) {
        tell(at, WorldEvent::Rejected(id, reason));
        driver.handle(at, DriverInput::Ended { id, session_continues: true });
    }
}
