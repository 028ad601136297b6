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
use crate::engine::config::{ConfigError, EngineConfig};
use crate::engine::events::{KvEvent, KvEventData};
use crate::engine::sequence::Sequence;
use crate::engine::stats::EngineStats;
use crate::engine::timing::{DecodeBatch, PrefillBatch};
use crate::ids::RequestId;
use crate::rng::Seed;
use crate::time::SimTime;

/// A request for an engine.
#[derive(Clone, Debug)]
pub struct EngineRequest {
    /// Its name, unique among the live requests of this engine.
    pub id: RequestId,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Output tokens to make; 0 computes the prompt only.
    pub max_output_tokens: u32,
    /// Output tokens follow from this seed and their position.
    pub output_seed: Seed,
    /// Output token ids are below this.
    pub vocab_tokens: u32,
}

/// What can arrive at an engine.
#[derive(Clone, Debug)]
pub enum EngineInput {
    /// A request joins the waiting queue. A duplicate of a live id is ignored.
    Submit(EngineRequest),
    /// The client is gone: the request's blocks are free at once and nothing more is said about it.
    Cancel(RequestId),
    /// Empty the cache, if no request holds a block.
    FlushCache,
}

/// Why a request can never run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RejectReason {
    /// Prompt and output need more blocks than the pool has.
    PoolTooSmall {
        /// Blocks needed at the end of the request.
        needed_blocks: u32,
        /// Blocks in the pool.
        num_gpu_blocks: u32,
    },
    /// The prompt leaves no room for output.
    PromptTooLong {
        /// Prompt length.
        prompt_tokens: u32,
        /// The model's limit.
        max_model_len: u32,
    },
    /// Chunked prefill is off and the prompt is longer than a step.
    Unchunkable {
        /// Prompt length.
        prompt_tokens: u32,
        /// A step's token budget.
        max_num_batched_tokens: u32,
    },
    /// The prompt is empty.
    EmptyPrompt,
}

impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RejectReason::PoolTooSmall { needed_blocks, num_gpu_blocks } => write!(
                f,
                "prompt and output need {needed_blocks} KV blocks, the pool has {num_gpu_blocks} (num_gpu_blocks)"
            ),
            RejectReason::PromptTooLong { prompt_tokens, max_model_len } => {
                write!(f, "a prompt of {prompt_tokens} tokens leaves no room below max_model_len {max_model_len}")
            }
            RejectReason::Unchunkable { prompt_tokens, max_num_batched_tokens } => write!(
                f,
                "a prompt of {prompt_tokens} tokens does not fit in a step of {max_num_batched_tokens} tokens \
                 (max_num_batched_tokens), and chunked prefill is off"
            ),
            RejectReason::EmptyPrompt => write!(f, "the prompt is empty, expected at least 1 token"),
        }
    }
}

/// What an engine says.
#[derive(Clone, Debug, PartialEq)]
pub enum EngineOutput {
    /// The request is in the running batch from this moment on.
    Admitted {
        /// Which request.
        id: RequestId,
        /// Tokens taken from the cache.
        reused_tokens: u32,
        /// True if it had been admitted before and was preempted since.
        readmission: bool,
    },
    /// The cache changed.
    Kv(KvEvent),
    /// The next output token.
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        token_id: u32,
        /// Its place in the output, from 0.
        position: u32,
        /// Prompt tokens that came from the cache at the first admission.
        reused_tokens: u32,
        /// True for the last one.
        finished: bool,
    },
    /// A request without output is done.
    Finished {
        /// Which request.
        id: RequestId,
        /// Prompt tokens that came from the cache at the first admission.
        reused_tokens: u32,
    },
    /// The request can never run.
    Rejected {
        /// Which request.
        id: RequestId,
        /// Why.
        reason: RejectReason,
    },
    /// A step ended.
    StepEnded {
        /// The engine's state after it.
        stats: EngineStats,
        /// Prompt tokens computed in the step.
        prefill_tokens: u32,
        /// Sequences that decoded in the step.
        decode_sequences: u32,
        /// When the step started.
        started: SimTime,
    },
    /// Answer to [`EngineInput::FlushCache`].
    Flushed {
        /// False if a request holds blocks or a step is running.
        done: bool,
    },
}

/// A moment and what happened then.
pub type Timed<T> = (SimTime, T);

/// A step under way.
#[derive(Clone, Debug)]
pub(crate) struct RunningStep {
    pub started: SimTime,
    pub ends: SimTime,
    pub outputs: Vec<EngineOutput>,
    pub prefill_tokens: u32,
    pub decode_sequences: u32,
}

/// One engine.
#[derive(Clone, Debug)]
pub struct Engine {
    pub(crate) config: EngineConfig,
    pub(crate) pool: BlockPool,
    pub(crate) sequences: Slab<Sequence>,
    by_id: FxHashMap<RequestId, usize>,
    pub(crate) waiting: VecDeque<usize>,
    pub(crate) running: Vec<usize>,
    step: Option<RunningStep>,
    /// The moment at which an idle engine got something to do.
    wake: Option<SimTime>,
    next_event_id: u64,
    pub(crate) next_identity: u64,
    pub(crate) totals: EngineStats,
}

impl Engine {
    /// An idle engine with an empty cache.
    pub fn new(config: EngineConfig) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Engine {
            pool: BlockPool::new(config.num_gpu_blocks),
            config,
            sequences: Slab::new(),
            by_id: FxHashMap::default(),
            waiting: VecDeque::new(),
            running: Vec::new(),
            step: None,
            wake: None,
            next_event_id: 0,
            next_identity: 0,
            totals: EngineStats::default(),
        })
    }

    /// The configuration it runs with.
    pub fn config(&self) -> &EngineConfig {
        &self.config
    }

    /// Something arrived. The caller has advanced the engine up to `now` before.
    pub fn handle(&mut self, now: SimTime, input: EngineInput, out: &mut Vec<Timed<EngineOutput>>) {
        match input {
            EngineInput::Submit(request) => self.submit(now, request),
            EngineInput::Cancel(id) => self.cancel(id),
            EngineInput::FlushCache => {
                // A running step has events to tell that belong before the flush.
                let done = self.pool.active() == 0 && self.step.is_none();
                if done {
                    self.pool.clear_inactive();
                    if self.config.enable_prefix_caching {
                        let event = self.number(KvEventData::Cleared);
                        out.push((now, EngineOutput::Kv(event)));
                    }
                }
                out.push((now, EngineOutput::Flushed { done }));
            }
        }
    }

    fn submit(&mut self, now: SimTime, request: EngineRequest) {
        if self.by_id.contains_key(&request.id) {
            return;
        }
        let id = request.id;
        let slot = self.sequences.insert(Sequence::new(request, &self.config));
        self.by_id.insert(id, slot);
        self.waiting.push_back(slot);
        if self.step.is_none() {
            self.wake = Some(now);
        }
    }

    fn cancel(&mut self, id: RequestId) {
        let Some(slot) = self.by_id.get(&id).copied() else {
            // It may have ended in the running step: then its last output is not to be seen any more.
            self.silence(id);
            return;
        };
        self.waiting.retain(|waiting| *waiting != slot);
        self.running.retain(|running| *running != slot);
        self.sequences[slot].drop_blocks(&mut self.pool);
        self.forget(slot);
        self.totals.cancelled_total += 1;
        self.silence(id);
    }

    fn silence(&mut self, cancelled: RequestId) {
        if let Some(step) = &mut self.step {
            step.outputs.retain(|output| {
                !matches!(output, EngineOutput::Token { id, .. } | EngineOutput::Finished { id, .. } | EngineOutput::Rejected { id, .. } if *id == cancelled)
            });
        }
    }

    /// When the engine wants to be woken: the end of the running step, or at once if there is something to start.
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
        let at = step.ends;
        out.extend(step.outputs.into_iter().map(|output| (at, output)));
        let ended = EngineOutput::StepEnded {
            stats: self.stats(),
            prefill_tokens: step.prefill_tokens,
            decode_sequences: step.decode_sequences,
            started: step.started,
        };
        out.push((at, ended));
        if !(self.running.is_empty() && self.waiting.is_empty()) {
            self.wake = Some(at);
        }
    }

    /// Starts a step at `now`, unless one is running or nothing waits.
    pub fn start_step(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        if self.step.is_some() || self.wake.is_none_or(|wake| wake > now) {
            return;
        }
        self.wake = None;
        let plan = self.plan_step(now, out);
        if plan.is_empty() {
            return;
        }
        let decode = DecodeBatch {
            pool_tokens: u64::from(self.config.num_gpu_blocks) * u64::from(self.config.block_size),
            ..plan.decode
        };
        let EngineConfig { speedup_ratio, decode_speedup_ratio, .. } = self.config;
        let time = self.config.timing_model.step_time(plan.prefill, decode, speedup_ratio, decode_speedup_ratio);
        self.totals.steps_total += 1;
        let mut outputs: Vec<EngineOutput> = Vec::with_capacity(plan.events.len() + plan.outputs.len());
        for data in plan.events {
            outputs.push(EngineOutput::Kv(self.number(data)));
        }
        outputs.extend(plan.outputs);
        self.step = Some(RunningStep {
            started: now,
            ends: now + time.span,
            outputs,
            prefill_tokens: plan.prefill_tokens,
            decode_sequences: plan.decode.sequences,
        });
    }

    fn number(&mut self, data: KvEventData) -> KvEvent {
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
            waiting: self.waiting.len() as u32,
            active_blocks: self.pool.active(),
            inactive_blocks: self.pool.inactive(),
            total_blocks: self.pool.capacity(),
            ..self.totals
        }
    }

    /// Checks the engine's invariants and names the first that is broken. For tests.
    pub fn check(&self) -> Result<(), String> {
        self.pool.check()?;
        let queued = self.running.len() + self.waiting.len();
        if queued != self.sequences.len() {
            return Err(format!("{queued} sequences in the queues, {} known", self.sequences.len()));
        }
        if queued > 0 && self.next_deadline().is_none() {
            return Err(format!("{queued} sequences and no wake-up"));
        }
        Ok(())
    }
}

/// What a step will do, decided at its start.
#[derive(Debug, Default)]
pub(crate) struct StepPlan {
    pub prefill: PrefillBatch,
    pub decode: DecodeBatch,
    pub prefill_tokens: u32,
    pub events: Vec<KvEventData>,
    pub outputs: Vec<EngineOutput>,
    /// Tokens computed, prompt or not.
    pub computed_tokens: u32,
}

impl StepPlan {
    /// True if the step neither computes nor says anything.
    pub fn is_empty(&self) -> bool {
        self.computed_tokens == 0 && self.outputs.is_empty() && self.events.is_empty()
    }
}
