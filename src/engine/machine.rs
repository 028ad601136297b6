//! The engine as a machine: what arrives, when it wants to be woken, what comes out.
//!
//! A step's work is done when the step starts (see `schedule.rs`) and its results wait until the step ends: cache
//! events first, then tokens in the order of the running batch. Requests that arrive at the very moment at which a step
//! ends take part in the next one, which is why ending a step ([`Engine::complete_step`]) and starting one
//! ([`Engine::start_step`]) are two verbs; [`Engine::advance`] does both.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;
use slab::Slab;

use crate::engine::blocks::BlockPool;
use crate::engine::coast::Coast;
use crate::engine::config::{ConfigError, EngineConfig, SchedulingPolicy, WorkerType};
use crate::engine::events::{KvEvent, KvEventData};
use crate::engine::handoff::Handoffs;
use crate::engine::messages::{EngineInput, EngineOutput, EngineRequest, Timed};
use crate::engine::schedule::{Emitted, StepPlan};
use crate::engine::sequence::Sequence;
use crate::engine::stats::EngineStats;
use crate::engine::timing::{DecodeBatch, StepTime};
use crate::ids::RequestId;
use crate::time::{SimSpan, SimTime};

/// How much an engine tells. What happens and when does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EngineDetail {
    /// Tell every token, as a server must. Else only the first, the second and the last of a request are told, and steps
    /// that are alike are taken together; the waits between tokens are in [`Engine::drain_gaps`]. Nobody makes the tokens
    /// then: a block of output is known by the request's output seed and its position. Blocks are equal where their tokens
    /// are, except that a prompt that repeats another request's output does not find it.
    pub every_token: bool,
    /// Tell the cache's changes.
    pub kv_events: bool,
    /// Tell the end of each step, or of several that are taken together, with the engine's gauges.
    pub steps: bool,
}

impl Default for EngineDetail {
    fn default() -> Self {
        EngineDetail { every_token: true, kv_events: true, steps: true }
    }
}

/// So many tokens came this long after the token before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenGap {
    /// The wait.
    pub gap: SimSpan,
    /// How many tokens.
    pub tokens: u32,
}

/// A step under way.
#[derive(Clone, Debug)]
pub(crate) struct RunningStep {
    pub started: SimTime,
    pub ends: SimTime,
    pub outputs: Vec<EngineOutput>,
    pub prefill_tokens: u32,
    pub decode_sequences: u32,
    pub kind: StepKind,
}

/// What a step is to the engine that takes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StepKind {
    /// Work, or at least an effect.
    Working,
    /// The engine waits for others behind the same barrier.
    Idle,
    /// Nothing could be done but to make room for a destination.
    Reserving,
}

impl RunningStep {
    fn without_work(started: SimTime, ends: SimTime, outputs: Vec<EngineOutput>, kind: StepKind) -> Self {
        RunningStep { started, ends, outputs, prefill_tokens: 0, decode_sequences: 0, kind }
    }
}

/// One engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) detail: EngineDetail,
    pub(crate) pool: BlockPool,
    pub(crate) sequences: Slab<Sequence>,
    by_id: FxHashMap<RequestId, usize>,
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) running: Vec<usize>,
    pub(crate) handoffs: Handoffs,
    pub(crate) step: Option<RunningStep>,
    /// What the next step will do, between planning and pricing.
    pub(crate) plan: StepPlan,
    /// The steps that follow the running one and are like it.
    pub(crate) coast: Coast,
    /// Number of steps started, as the sequences count them.
    pub(crate) step_number: u64,
    pub(crate) gaps: Vec<TokenGap>,
    /// The moment at which an idle engine got something to do.
    pub(crate) wake: Option<SimTime>,
    /// The last step that could begin prompts left requests waiting.
    pub(crate) left_waiting: bool,
    next_event_id: u64,
    arrivals: u64,
    pub(crate) totals: EngineStats,
}

impl Engine {
    /// An idle engine with an empty cache that tells everything.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        Self::with_detail(config, EngineDetail::default())
    }

    /// An idle engine with an empty cache.
    pub fn with_detail(config: EngineConfig, detail: EngineDetail) -> Result<Self, ConfigError> {
        config.validate()?;
        let mut pool = BlockPool::new(config.num_gpu_blocks);
        pool.report_removed(config.enable_prefix_caching && detail.kv_events);
        Ok(Engine {
            pool,
            config,
            detail,
            sequences: Slab::new(),
            by_id: FxHashMap::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            handoffs: Handoffs::default(),
            step: None,
            plan: StepPlan::default(),
            coast: Coast::default(),
            step_number: 0,
            gaps: Vec::new(),
            wake: None,
            left_waiting: false,
            next_event_id: 0,
            arrivals: 0,
            totals: EngineStats::default(),
        })
    }

    /// The configuration it runs with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Something arrived. The caller has advanced the engine up to `now` before.
    pub fn handle(&mut self, now: SimTime, input: EngineInput, out: &mut Vec<Timed<EngineOutput>>) {
        self.interrupt_coast(now, false);
        match input {
            EngineInput::Submit(request) => self.submit(now, request),
            EngineInput::Cancel(id) => self.cancel(now, id, out),
            EngineInput::FlushCache => {
                // A running step has events to tell that belong before the flush.
                let done = self.pool.active() == 0 && self.step.is_none();
                if done {
                    self.pool.clear_inactive();
                    if self.events_wanted() {
                        let event = self.number(KvEventData::Cleared);
                        out.push((now, EngineOutput::Kv(event)));
                    }
                }
                out.push((now, EngineOutput::Flushed { done }));
            }
            EngineInput::ReleaseSource(_) | EngineInput::Reserve(_) | EngineInput::Activate(_) => {
                self.command(now, input, out);
            }
        }
    }

    /// Takes in a new sequence; `None` if its id is in use.
    pub(crate) fn insert(&mut self, request: EngineRequest) -> Option<usize> {
        if self.by_id.contains_key(&request.id) {
            return None;
        }
        let id = request.id;
        self.arrivals += 1;
        let slot = self.sequences.insert(Sequence::new(request, self.arrivals, &self.config, self.detail.every_token));
        self.by_id.insert(id, slot);
        Some(slot)
    }

    /// The sequence of a request.
    pub(crate) fn slot(&self, id: RequestId) -> Option<usize> {
        self.by_id.get(&id).copied()
    }

    fn submit(&mut self, now: SimTime, request: EngineRequest) {
        let Some(slot) = self.insert(request) else { return };
        match self.config.scheduling_policy {
            SchedulingPolicy::Fcfs => self.waiting.push_back(slot),
            SchedulingPolicy::Priority => {
                // Behind all that have run already or are at least as urgent.
                let priority = self.sequences[slot].priority;
                let goes_before = |other: &usize| {
                    let other = &self.sequences[*other];
                    other.preemptions == 0 && other.priority < priority
                };
                let place = self.waiting.iter().position(goes_before).unwrap_or(self.waiting.len());
                self.waiting.insert(place, slot);
            }
        }
        self.wake_at(now);
    }

    /// Lets an idle engine look for work at `now`.
    pub(crate) fn wake_at(&mut self, now: SimTime) {
        if self.step.is_none() {
            self.wake = Some(now);
        }
    }

    fn cancel(&mut self, now: SimTime, id: RequestId, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(slot) = self.slot(id) else {
            // It may have ended in the running step: then its last output is not to be seen any more.
            self.silence(id);
            return;
        };
        self.waiting.retain(|waiting| *waiting != slot);
        self.running.retain(|running| *running != slot);
        self.handoffs.forget(slot);
        self.sequences[slot].drop_blocks(&mut self.pool);
        self.forget(slot);
        self.totals.cancelled_total += 1;
        self.silence(id);
        self.handoffs.capacity_changed();
        if self.step.is_none() {
            self.try_reserve(now, out);
            if !self.waiting.is_empty() {
                self.wake_at(now);
            }
        }
    }

    fn silence(&mut self, cancelled: RequestId) {
        let Some(step) = &mut self.step else { return };
        step.outputs.retain(|output| match output {
            EngineOutput::Token { id, .. }
            | EngineOutput::Finished { id, .. }
            | EngineOutput::SourceHeld { id, .. }
            | EngineOutput::Rejected { id, .. } => *id != cancelled,
            _ => true,
        });
    }

    /// When the engine wants to be woken: the end of the running step (or of the last of several that are alike), or at
    /// once if there is something to start.
    pub fn next_deadline(&self) -> Option<SimTime> {
        self.step.as_ref().map(|step| step.ends).or(self.wake)
    }

    /// Lets time pass up to `to`, inclusive: ends steps and starts the next ones.
    pub fn advance(&mut self, to: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        while let Some(deadline) = self.next_deadline().filter(|deadline| *deadline <= to) {
            self.complete_step(deadline, out);
            self.start_step(deadline, out);
        }
    }

    /// Ends the running step if it is due at `now`, and shows its results.
    pub fn complete_step(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(step) = self.step.take_if(|step| step.ends <= now) else { return };
        self.finish_coast();
        let at = step.ends;
        out.extend(step.outputs.into_iter().map(|output| (at, output)));
        if step.kind != StepKind::Reserving {
            self.try_reserve(at, out);
        }
        self.follow_commands(at, out);
        if self.detail.steps && step.kind == StepKind::Working {
            let ended = EngineOutput::StepEnded {
                stats: self.stats(),
                prefill_tokens: step.prefill_tokens,
                decode_sequences: step.decode_sequences,
                started: step.started,
            };
            out.push((at, ended));
        }
        if !(self.running.is_empty() && self.waiting.is_empty()) {
            self.wake = Some(at);
        }
    }

    /// Starts a step at `now`, unless one is running or nothing waits.
    pub fn start_step(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        if !self.wants_step(now) {
            return;
        }
        match self.prepare_step(now, false, out) {
            Some(span) => self.commit_step(now, now + span, true),
            None => {
                self.start_reserving_step(now);
            }
        }
    }

    /// True if the engine is idle and has something to look at.
    pub(crate) fn wants_step(&self, now: SimTime) -> bool {
        self.step.is_none() && self.wake.is_some_and(|wake| wake <= now)
    }

    /// Decides and prices the step that an engine [wants](Self::wants_step); `None` if there is nothing to do.
    ///
    /// [`commit_step`](Self::commit_step) has to follow: engines that share a barrier do so with the end of the slowest.
    /// `may_defer`: see [`plan_step`](Self::plan_step).
    pub(crate) fn prepare_step(
        &mut self,
        now: SimTime,
        may_defer: bool,
        out: &mut Vec<Timed<EngineOutput>>,
    ) -> Option<SimSpan> {
        self.wake = None;
        self.plan_step(now, may_defer, out);
        if self.plan.is_empty() {
            return None;
        }
        let time = self.time(self.plan.decode);
        self.totals.clamped_steps_total += u64::from(time.clamped);
        Some(time.span)
    }

    /// Nothing can be computed, but the look at it is a chance for a destination that waits for room: if there is room, a
    /// step begins that ends at once. False if there is none.
    pub(crate) fn start_reserving_step(&mut self, now: SimTime) -> bool {
        let mut told = Vec::new();
        self.try_reserve(now, &mut told);
        let reserved = !told.is_empty();
        if reserved {
            let outputs = told.into_iter().map(|(_, output)| output).collect();
            self.step = Some(RunningStep::without_work(now, now, outputs, StepKind::Reserving));
        }
        reserved
    }

    /// Waits for engines behind the same barrier until `ends`.
    pub(crate) fn idle_until(&mut self, now: SimTime, ends: SimTime) {
        self.wake = None;
        self.step = Some(RunningStep::without_work(now, ends, Vec::new(), StepKind::Idle));
    }

    /// True if nothing is left of any request.
    pub(crate) fn is_drained(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Tokens that the whole pool can hold.
    pub(crate) fn pool_tokens(&self) -> u64 {
        u64::from(self.config.num_gpu_blocks) * u64::from(self.config.block_size)
    }

    /// How long a step takes with the plan's prefill work and this decode work.
    fn time(&self, decode: DecodeBatch) -> StepTime {
        let decode = DecodeBatch { pool_tokens: self.pool_tokens(), ..decode };
        let EngineConfig { speedup_ratio, decode_speedup_ratio, .. } = self.config;
        self.config.timing_model.step_time(self.plan.prefill, decode, speedup_ratio, decode_speedup_ratio)
    }

    /// Starts the prepared step; it will end at `ends`. Steps that are like it may follow if `may_coast`.
    pub(crate) fn commit_step(&mut self, now: SimTime, ends: SimTime, may_coast: bool) {
        self.totals.steps_total += 1;
        self.step_number += 1;
        self.note_gaps(now, ends);
        let mut outputs: Vec<EngineOutput> = Vec::with_capacity(self.plan.events.len() + self.plan.outputs.len());
        for data in std::mem::take(&mut self.plan.events) {
            outputs.push(EngineOutput::Kv(self.number(data)));
        }
        outputs.append(&mut self.plan.outputs);
        let (prefill_tokens, decode_sequences) = (self.plan.prefill_tokens, self.plan.decode.sequences);
        let ends = if may_coast { self.plan_coast(ends) } else { ends };
        let kind = StepKind::Working;
        self.step = Some(RunningStep { started: now, ends, outputs, prefill_tokens, decode_sequences, kind });
    }

    /// Writes down how long each token of the step had to be waited for, and drops the sequences that ended.
    fn note_gaps(&mut self, now: SimTime, ends: SimTime) {
        let span = ends.since(now);
        let (mut usual, mut at_once) = (0, 0);
        for at in 0..self.plan.emitted.len() {
            let Emitted { slot, step_before, tokens } = self.plan.emitted[at];
            at_once += tokens - 1;
            let sequence = &mut self.sequences[slot];
            if step_before == 0 {
                continue;
            }
            let gap = if step_before + 1 == self.step_number { span } else { ends.since(sequence.last_token_at) };
            sequence.max_gap = sequence.max_gap.max(gap);
            if gap == span {
                usual += 1;
            } else {
                self.gaps.push(TokenGap { gap, tokens: 1 });
            }
        }
        for (gap, tokens) in [(span, usual), (SimSpan::ZERO, at_once)] {
            if tokens > 0 {
                self.gaps.push(TokenGap { gap, tokens });
            }
        }
        for output in &mut self.plan.outputs {
            if let EngineOutput::Token { id, max_gap, .. } = output
                && let Some(slot) = self.by_id.get(id)
            {
                *max_gap = self.sequences[*slot].max_gap;
            }
        }
        for slot in std::mem::take(&mut self.plan.ended) {
            self.forget(slot);
        }
    }

    /// Hands over the waits between tokens since the last call, in the order of steps.
    pub fn drain_gaps(&mut self) -> std::vec::Drain<'_, TokenGap> {
        self.gaps.drain(..)
    }

    /// Waits that [`drain_gaps`](Self::drain_gaps) would hand over.
    pub fn gaps(&self) -> usize {
        self.gaps.len()
    }

    pub(crate) fn events_wanted(&self) -> bool {
        self.config.enable_prefix_caching && self.detail.kv_events
    }

    pub(crate) fn number(&mut self, data: KvEventData) -> KvEvent {
        let event = KvEvent { event_id: self.next_event_id, data };
        self.next_event_id += 1;
        event
    }

    /// Drops a sequence that is in no queue and holds no block.
    pub(crate) fn forget(&mut self, slot: usize) {
        let sequence = self.sequences.remove(slot);
        self.by_id.remove(&sequence.id);
    }

    /// Gauges and counters, with what the running step has already decided.
    pub fn stats(&self) -> EngineStats {
        EngineStats {
            running: self.running.len() as u32,
            waiting: (self.waiting.len() + self.handoffs.waiting()) as u32,
            active_blocks: self.pool.active(),
            inactive_blocks: self.pool.inactive(),
            total_blocks: self.pool.capacity(),
            ..self.totals
        }
    }

    /// Checks the engine's invariants and names the first that is broken. For tests and `--check`.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        let queued = self.running.len() + self.waiting.len();
        let known = queued + self.handoffs.len();
        if known != self.sequences.len() {
            return Err(format!("{known} sequences in the queues, {} known", self.sequences.len()));
        }
        // Where blocks are handed over, a sequence may have to wait for what happens elsewhere.
        let alone = self.config.worker_type == WorkerType::Aggregated;
        if alone && queued > 0 && self.next_deadline().is_none() {
            return Err(format!("{queued} sequences and no wake-up"));
        }
        Ok(())
    }
}
