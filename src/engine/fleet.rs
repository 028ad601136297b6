//! Several engines as one machine, so that one thread paces them all.
//!
//! A worker with several data-parallel ranks is as many engines behind one barrier: when one of them begins a step all
//! that have work do, and the step ends for all when the slowest is done. Engines are numbered through, worker by worker
//! and rank by rank ([`targets`]); with one rank a worker that number is the worker's.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::engine::config::{ConfigError, EngineConfig};
use crate::engine::deadlines::Deadlines;
use crate::engine::machine::{Engine, EngineDetail, TokenGap};
use crate::engine::messages::{EngineInput, EngineOutput, Timed};
use crate::engine::stats::EngineStats;
use crate::ids::WorkerId;
use crate::time::SimTime;

/// Worker and rank of every engine, in the order in which a fleet numbers them.
pub fn targets(configs: &[EngineConfig]) -> impl Iterator<Item = (u32, u32)> {
    configs.iter().zip(0..).flat_map(|(config, worker)| (0..config.dp_size).map(move |rank| (worker, rank)))
}

/// Something that arrives at one worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct FleetInput {
    /// Which worker.
    pub worker: WorkerId,
    /// What.
    pub input: EngineInput,
}

/// Something that one worker says.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FleetOutput {
    /// When.
    pub at: SimTime,
    /// Which worker.
    pub worker: WorkerId,
    /// What.
    pub output: EngineOutput,
}

/// The engines of one worker.
#[derive(Clone, Debug)]
struct Ranks {
    engines: Range<usize>,
    /// Steps begun since all ranks were last without a request.
    steps: u64,
    prefill_schedule_interval: u64,
}

/// Engines 0 to n − 1.
#[derive(Clone, Debug)]
pub struct Fleet {
    engines: Vec<Engine>,
    /// By worker.
    ranks: Vec<Ranks>,
    /// By engine.
    worker_of: Vec<u32>,
    deadlines: Deadlines,
    scratch: Vec<Timed<EngineOutput>>,
}

impl Fleet {
    /// One worker for each configuration.
    pub fn new(configs: &[EngineConfig]) -> Result<Self, ConfigError> {
        Self::with_detail(configs, EngineDetail::default())
    }

    /// One worker for each configuration; all tell as much as `detail` says.
    pub fn with_detail(configs: &[EngineConfig], detail: EngineDetail) -> Result<Self, ConfigError> {
        let (mut engines, mut ranks) = (Vec::new(), Vec::new());
        for config in configs {
            config.validate()?;
            let first = engines.len();
            for _ in 0..config.dp_size {
                engines.push(Engine::with_detail(config.clone(), detail)?);
            }
            let prefill_schedule_interval = u64::from(config.prefill_schedule_interval);
            ranks.push(Ranks { engines: first..engines.len(), steps: 0, prefill_schedule_interval });
        }
        Ok(Fleet {
            worker_of: targets(configs).map(|(worker, _)| worker).collect(),
            deadlines: Deadlines::new(ranks.len()),
            engines,
            ranks,
            scratch: Vec::new(),
        })
    }

    /// Number of engines.
    pub fn len(&self) -> usize {
        self.engines.len()
    }

    /// True if there is no engine.
    pub fn is_empty(&self) -> bool {
        self.engines.is_empty()
    }

    /// One engine's gauges and counters.
    pub fn stats(&self, worker: WorkerId) -> Option<EngineStats> {
        self.engines.get(worker.0 as usize).map(Engine::stats)
    }

    /// All engines' gauges and counters.
    pub fn all_stats(&self) -> impl Iterator<Item = EngineStats> {
        self.engines.iter().map(Engine::stats)
    }

    /// Something arrived; the caller has advanced the fleet up to `now` before. Unknown workers are ignored.
    pub fn handle(&mut self, now: SimTime, input: FleetInput, out: &mut Vec<FleetOutput>) {
        let Some(engine) = self.engines.get_mut(input.worker.0 as usize) else { return };
        engine.handle(now, input.input, &mut self.scratch);
        self.tell(input.worker, out);
        self.list(self.worker_of[input.worker.0 as usize]);
    }

    /// True if the engine is between the start and the end of a step, its own or that of another rank of its worker.
    fn is_stepping(&self, worker: WorkerId) -> bool {
        self.engines.get(worker.0 as usize).is_some_and(|engine| engine.step.is_some())
    }

    /// Hands over the waits between tokens of all engines that have at least `at_least` of them to tell.
    pub fn drain_gaps(&mut self, at_least: usize, mut hear: impl FnMut(&[TokenGap])) {
        for engine in self.engines.iter_mut().filter(|engine| engine.gaps() >= at_least) {
            hear(engine.drain_gaps().as_slice());
        }
    }

    /// When the first engine wants to be woken.
    pub fn next_deadline(&self) -> Option<SimTime> {
        self.deadlines.first()
    }

    /// Lets time pass up to `to`, inclusive, worker by worker in the order of their deadlines.
    pub fn advance(&mut self, to: SimTime, out: &mut Vec<FleetOutput>) {
        while let Some((at, worker)) = self.deadlines.first_worker().filter(|(at, _)| *at <= to) {
            self.complete(worker, at, out);
            self.start(worker, at, out);
            self.list(worker);
        }
    }

    /// Ends all steps that are due at `now`, lowest worker first, without starting new ones.
    pub fn complete_steps(&mut self, now: SimTime, out: &mut Vec<FleetOutput>) {
        self.each_due(now, |fleet, worker| fleet.complete(worker, now, out));
    }

    /// Workers whose steps are due to end at `now`, lowest first; see [`complete_step`](Self::complete_step).
    pub fn due_steps(&self, now: SimTime) -> Vec<u32> {
        let due = |from| self.deadlines.next_due(now, from);
        let due = std::iter::successors(due(0), |before| due(before + 1));
        due.filter(|worker| self.engines[self.ranks[*worker as usize].engines.start].step.is_some()).collect()
    }

    /// Ends the step of one worker if it is due at `now`.
    pub fn complete_step(&mut self, worker: u32, now: SimTime, out: &mut Vec<FleetOutput>) {
        self.complete(worker, now, out);
        self.list(worker);
    }

    /// Tells if an engine is between the start and the end of a step at `now`, for those who let it wait for the end.
    ///
    /// An engine that takes steps together learns by this that somebody looks. If one of these steps ends at `now` and
    /// the next one has not `started`, the engine is between steps, and what ended is pushed to `out`.
    pub fn look_in(&mut self, worker: WorkerId, now: SimTime, started: bool, out: &mut Vec<FleetOutput>) -> bool {
        let Some(engine) = self.engines.get_mut(worker.0 as usize) else { return false };
        engine.interrupt_coast(now, started);
        if !started {
            engine.complete_step(now, &mut self.scratch);
            self.tell(worker, out);
        }
        self.list(self.worker_of[worker.0 as usize]);
        self.is_stepping(worker)
    }

    /// The engines of a worker, by rank.
    pub fn engines_of(&self, worker: u32) -> impl Iterator<Item = WorkerId> + use<> {
        let engines = self.ranks.get(worker as usize).map(|ranks| ranks.engines.clone()).unwrap_or_default();
        engines.map(|engine| WorkerId(engine as u32))
    }

    /// Starts steps on all idle workers that have something to do at `now`, lowest first.
    pub fn start_steps(&mut self, now: SimTime, out: &mut Vec<FleetOutput>) {
        self.each_due(now, |fleet, worker| fleet.start(worker, now, out));
    }

    /// Checks every engine's invariants and names the first that is broken. For tests and `--check`.
    pub fn check(&self) -> Result<(), String> {
        for (index, engine) in self.engines.iter().enumerate() {
            engine.check().map_err(|broken| format!("worker {index}: {broken}"))?;
        }
        Ok(())
    }

    fn each_due(&mut self, now: SimTime, mut act: impl FnMut(&mut Fleet, u32)) {
        // What a worker does changes no other's deadline.
        let mut next = 0;
        while let Some(worker) = self.deadlines.next_due(now, next) {
            act(self, worker);
            self.list(worker);
            next = worker + 1;
        }
    }

    fn complete(&mut self, worker: u32, now: SimTime, out: &mut Vec<FleetOutput>) {
        let engines = self.ranks[worker as usize].engines.clone();
        for index in engines.clone() {
            self.engines[index].complete_step(now, &mut self.scratch);
            self.tell(WorkerId(index as u32), out);
        }
        if engines.len() > 1 && self.engines[engines].iter().all(Engine::is_drained) {
            self.ranks[worker as usize].steps = 0;
        }
    }

    fn start(&mut self, worker: u32, now: SimTime, out: &mut Vec<FleetOutput>) {
        let engines = self.ranks[worker as usize].engines.clone();
        if engines.len() == 1 {
            self.engines[engines.start].start_step(now, &mut self.scratch);
            self.tell(WorkerId(engines.start as u32), out);
        } else {
            self.start_ranks(worker, now, out);
        }
    }

    /// Starts a step behind the barrier of a worker's ranks.
    fn start_ranks(&mut self, worker: u32, now: SimTime, out: &mut Vec<FleetOutput>) {
        let Ranks { engines, steps, prefill_schedule_interval } = self.ranks[worker as usize].clone();
        if !self.engines[engines.clone()].iter().any(|engine| engine.wants_step(now)) {
            return;
        }
        let may_defer = steps % prefill_schedule_interval != 0;
        let (mut working, mut ends) = (Vec::new(), now);
        for index in engines.clone().filter(|index| self.engines[*index].wants_step(now)).collect::<Vec<_>>() {
            if let Some(span) = self.engines[index].prepare_step(now, may_defer, &mut self.scratch) {
                working.push(index);
                ends = ends.max(now + span);
            }
            self.tell(WorkerId(index as u32), out);
        }
        self.ranks[worker as usize].steps += 1;
        let mut reserving = Vec::new();
        if working.is_empty() {
            for index in engines.clone() {
                if self.engines[index].start_reserving_step(now) {
                    reserving.push(index);
                }
            }
            if reserving.is_empty() {
                return;
            }
        }
        for index in engines {
            if working.contains(&index) {
                self.engines[index].commit_step(now, ends, false);
            } else if !reserving.contains(&index) {
                self.engines[index].idle_until(now, ends);
            }
        }
    }

    /// Notes when a worker wants to be woken next.
    fn list(&mut self, worker: u32) {
        let index = worker as usize;
        let deadlines = self.engines[self.ranks[index].engines.clone()].iter().filter_map(Engine::next_deadline);
        self.deadlines.set(worker, deadlines.min());
    }

    /// Passes on what one engine said.
    fn tell(&mut self, worker: WorkerId, out: &mut Vec<FleetOutput>) {
        out.extend(self.scratch.drain(..).map(|(at, output)| FleetOutput { at, worker, output }));
    }
}
