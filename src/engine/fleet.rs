//! Several engines as one machine, so that one thread paces them all.

use std::collections::BTreeSet;

use crate::engine::config::{ConfigError, EngineConfig};
use crate::engine::machine::{Engine, EngineDetail, TokenGap};
use crate::engine::messages::{EngineInput, EngineOutput, Timed};
use crate::engine::stats::EngineStats;
use crate::ids::WorkerId;
use crate::time::SimTime;

/// Something that arrives at one worker.
#[derive(Clone, Debug)]
pub struct FleetInput {
    /// Which worker.
    pub worker: WorkerId,
    /// What.
    pub input: EngineInput,
}

/// Something that one worker says.
#[derive(Clone, Debug, PartialEq)]
pub struct FleetOutput {
    /// When.
    pub at: SimTime,
    /// Which worker.
    pub worker: WorkerId,
    /// What.
    pub output: EngineOutput,
}

/// Engines 0 to n − 1.
#[derive(Clone, Debug)]
pub struct Fleet {
    engines: Vec<Engine>,
    /// Who wants to be woken when; one entry an engine at most.
    deadlines: BTreeSet<(SimTime, WorkerId)>,
    listed: Vec<Option<SimTime>>,
    scratch: Vec<Timed<EngineOutput>>,
}

impl Fleet {
    /// One engine for each configuration.
    pub fn new(configs: &[EngineConfig]) -> Result<Self, ConfigError> {
        Self::with_detail(configs, EngineDetail::default())
    }

    /// One engine for each configuration; all tell as much as `detail` says.
    pub fn with_detail(configs: &[EngineConfig], detail: EngineDetail) -> Result<Self, ConfigError> {
        let engines = configs.iter().cloned().map(|config| Engine::with_detail(config, detail));
        let engines: Vec<Engine> = engines.collect::<Result<_, _>>()?;
        Ok(Fleet { listed: vec![None; engines.len()], engines, deadlines: BTreeSet::new(), scratch: Vec::new() })
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

    /// Something arrived; the caller has advanced the fleet up to `now` before. Unknown workers are ignored.
    pub fn handle(&mut self, now: SimTime, input: FleetInput, out: &mut Vec<FleetOutput>) {
        let Some(engine) = self.engines.get_mut(input.worker.0 as usize) else { return };
        engine.handle(now, input.input, &mut self.scratch);
        self.settle(input.worker, out);
    }

    /// Hands over the waits between tokens of all engines that have at least `at_least` of them to tell.
    pub fn drain_gaps(&mut self, at_least: usize, mut hear: impl FnMut(TokenGap)) {
        for engine in self.engines.iter_mut().filter(|engine| engine.gaps() >= at_least) {
            engine.drain_gaps().for_each(&mut hear);
        }
    }

    /// When the first engine wants to be woken.
    pub fn next_deadline(&self) -> Option<SimTime> {
        self.deadlines.first().map(|(at, _)| *at)
    }

    /// Lets time pass up to `to`, inclusive, engine by engine in the order of their deadlines.
    pub fn advance(&mut self, to: SimTime, out: &mut Vec<FleetOutput>) {
        while let Some((at, worker)) = self.deadlines.first().copied().filter(|(at, _)| *at <= to) {
            self.engines[worker.0 as usize].advance(at, &mut self.scratch);
            self.settle(worker, out);
        }
    }

    /// Ends all steps that are due at `now`, lowest worker first, without starting new ones.
    pub fn complete_steps(&mut self, now: SimTime, out: &mut Vec<FleetOutput>) {
        self.each_due(now, out, |engine, scratch| engine.complete_step(now, scratch));
    }

    /// Starts steps on all idle engines that have something to do at `now`, lowest worker first.
    pub fn start_steps(&mut self, now: SimTime, out: &mut Vec<FleetOutput>) {
        self.each_due(now, out, |engine, scratch| engine.start_step(now, scratch));
    }

    /// Checks every engine's invariants and names the first that is broken. For tests.
    pub fn check(&self) -> Result<(), String> {
        for (index, engine) in self.engines.iter().enumerate() {
            engine.check().map_err(|broken| format!("worker {index}: {broken}"))?;
        }
        Ok(())
    }

    fn each_due(
        &mut self,
        now: SimTime,
        out: &mut Vec<FleetOutput>,
        mut act: impl FnMut(&mut Engine, &mut Vec<Timed<EngineOutput>>),
    ) {
        let due: Vec<WorkerId> =
            self.deadlines.iter().take_while(|(at, _)| *at <= now).map(|(_, worker)| *worker).collect();
        for worker in due {
            act(&mut self.engines[worker.0 as usize], &mut self.scratch);
            self.settle(worker, out);
        }
    }

    fn settle(&mut self, worker: WorkerId, out: &mut Vec<FleetOutput>) {
        let index = worker.0 as usize;
        let deadline = self.engines[index].next_deadline();
        if deadline != self.listed[index] {
            if let Some(old) = self.listed[index] {
                self.deadlines.remove(&(old, worker));
            }
            if let Some(new) = deadline {
                self.deadlines.insert((new, worker));
            }
            self.listed[index] = deadline;
        }
        out.extend(self.scratch.drain(..).map(|(at, output)| FleetOutput { at, worker, output }));
    }
}
