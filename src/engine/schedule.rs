//! Who gets into a step, with how many tokens, and who is thrown out.
//!
//! The rules are vLLM's, in the reference's reading of them: running sequences first, in order of admission, each with
//! what is left of the token budget; when blocks run out a victim is preempted until the sequence fits. Only a step that
//! preempted nobody admits from the waiting queue, strictly first come first served: the head waits until its whole known
//! length fits into the pool, and nobody overtakes it. One token a sequence a step.

use crate::engine::config::{PreemptionMode, WorkerType};
use crate::engine::events::{KvEventData, RemovedBlocks};
use crate::engine::machine::Engine;
use crate::engine::messages::{EngineOutput, RejectReason, Timed};
use crate::engine::sequence::ScheduledWork;
use crate::engine::timing::{DecodeBatch, PrefillBatch};
use crate::time::SimTime;

/// What a step will do, decided at its start. The buffers are used again for the next step.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepPlan {
    pub prefill: PrefillBatch,
    pub decode: DecodeBatch,
    pub prefill_tokens: u32,
    /// Tokens computed, prompt or not.
    pub computed_tokens: u32,
    pub events: Vec<KvEventData>,
    pub outputs: Vec<EngineOutput>,
    /// Sequences that get tokens.
    pub emitted: Vec<Emitted>,
    /// Sequences that ended; they are dropped when the step is priced.
    pub ended: Vec<usize>,
    /// Sequences that leave the batch.
    pub left: Vec<usize>,
    /// The batch only decodes, every sequence got its token, nothing else happened: the next step may be the same.
    pub steady: bool,
    /// The step begins no prompt and goes on with none ([`EngineConfig::prefill_schedule_interval`]).
    ///
    /// [`EngineConfig::prefill_schedule_interval`]: crate::engine::EngineConfig::prefill_schedule_interval
    defers_prefill: bool,
    budget: u32,
    /// What each sequence got, by slot, to undo it if the sequence is preempted later in the same step.
    granted: Vec<(usize, ScheduledWork)>,
    preempted_any: bool,
    admitted_any: bool,
}

/// What a sequence gets in a step.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Emitted {
    pub slot: usize,
    /// Number of the step that made the token before; 0: none did.
    pub step_before: u64,
    pub tokens: u32,
}

impl StepPlan {
    fn begin(&mut self, budget: u32) {
        self.prefill = PrefillBatch::default();
        self.decode = DecodeBatch::default();
        (self.prefill_tokens, self.computed_tokens) = (0, 0);
        self.events.clear();
        self.outputs.clear();
        self.emitted.clear();
        self.ended.clear();
        self.left.clear();
        self.granted.clear();
        (self.steady, self.preempted_any, self.admitted_any, self.defers_prefill) = (false, false, false, false);
        self.budget = budget;
    }

    /// True if the step has no effect whatever.
    pub fn is_empty(&self) -> bool {
        let moved = self.preempted_any || self.admitted_any || self.computed_tokens > 0;
        !moved && self.outputs.is_empty() && self.events.is_empty() && self.emitted.is_empty()
    }
}

enum Grant {
    Scheduled,
    /// No budget or no room: the loop stops here.
    Blocked,
    /// The sequence itself was the victim.
    Preempted,
}

impl Engine {
    /// Decides a step that starts at `now`; admissions are said at once, everything else when the step ends.
    /// `may_defer`: the step is one of those in which ranks that decode begin no prompt.
    pub(crate) fn plan_step(&mut self, now: SimTime, may_defer: bool, out: &mut Vec<Timed<EngineOutput>>) {
        self.plan.begin(self.config.max_num_batched_tokens.unwrap_or(u32::MAX));
        let decodes = |slot: &usize| self.sequences[*slot].is_prefilled();
        self.plan.defers_prefill = may_defer && !self.left_waiting && self.running.iter().any(decodes);
        self.schedule_running(now, out);
        if !self.plan.preempted_any {
            self.admit_waiting(now, out);
            if !self.plan.defers_prefill {
                self.left_waiting = !self.waiting.is_empty();
            }
        }
        let prefill_is_free = self.config.free_decode_recompute && self.config.worker_type == WorkerType::Decode;
        let plan = &mut self.plan;
        for (_, work) in &plan.granted {
            plan.computed_tokens += work.tokens;
            plan.prefill_tokens += work.prompt_tokens;
            if work.prompt_tokens > 0 && !prefill_is_free {
                plan.prefill.add_chunk(work.prompt_before, work.prompt_tokens);
            }
            // Of output tokens the last is the decode step's own; those before it are computed again after a preemption.
            let recomputed = (work.tokens - work.prompt_tokens).saturating_sub(1);
            if recomputed > 0 && !prefill_is_free {
                plan.prefill.add_recomputed(work.prompt_before + work.prompt_tokens, recomputed);
            }
        }
        match self.config.aic_nextn {
            None => self.emit_tokens(now),
            Some(_) => self.emit_bursts(now, out),
        }
        let plan = &mut self.plan;
        let quiet = !plan.preempted_any && !plan.admitted_any && plan.events.is_empty() && plan.outputs.is_empty();
        plan.steady = quiet
            && self.config.aic_nextn.is_none()
            && plan.prefill_tokens == 0
            && plan.decode.sequences as usize == self.running.len()
            && plan.computed_tokens == plan.decode.sequences;
    }

    fn schedule_running(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        let mut index = 0;
        while index < self.running.len() && self.plan.budget > 0 {
            let slot = self.running[index];
            if self.plan.defers_prefill && !self.sequences[slot].is_prefilled() {
                index += 1;
                continue;
            }
            match self.grant(slot, 0, now, out) {
                Grant::Scheduled => {
                    // As in the reference: a victim before it in the batch (FIFO only) has moved the batch forward, so
                    // the sequence behind is passed over in this step.
                    index += 1;
                }
                Grant::Blocked => break,
                Grant::Preempted => {}
            }
        }
    }

    fn admit_waiting(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        let max_num_seqs = self.config.max_num_seqs.unwrap_or(u32::MAX) as usize;
        // While a destination waits for room only those may overtake it whose blocks are here already.
        let destination_waits = self.handoffs.waits_for_room();
        while self.running.len() < max_num_seqs {
            let Some(mut slot) = self.waiting.front().copied() else { return };
            if destination_waits {
                let arrived = self.waiting.iter().copied().find(|slot| self.sequences[*slot].is_prefilled());
                slot = arrived.unwrap_or(slot);
            }
            if self.sequences[slot].is_prefilled() {
                // Its prompt came from another worker: nothing to compute, nothing to take from the budget.
                self.plan.granted.push((slot, ScheduledWork::default()));
                self.admit(slot, 0, now, out);
                if self.plan.budget == 0 {
                    return;
                }
                continue;
            }
            if destination_waits {
                return;
            }
            if let Some(reason) = self.reject_reason(slot) {
                self.waiting.pop_front();
                self.plan.outputs.push(EngineOutput::Rejected { id: self.sequences[slot].id, reason });
                self.forget(slot);
                self.totals.rejected_total += 1;
                continue;
            }
            let hit = self.sequences[slot].cached_prefix(&self.pool, &self.config);
            let known_tokens = self.sequences[slot].known_tokens();
            let needed = known_tokens.div_ceil(self.config.block_size) - hit.active_blocks;
            if needed > self.pool.capacity() - self.pool.active() {
                return;
            }
            let reused_tokens = hit.blocks * self.config.block_size;
            if self.plan.defers_prefill && known_tokens - reused_tokens > 1 {
                return;
            }
            if !matches!(self.grant(slot, hit.blocks, now, out), Grant::Scheduled) {
                return;
            }
            self.admit(slot, reused_tokens, now, out);
            // One that has nothing to compute may come last in a full step.
            if self.plan.budget == 0 && known_tokens == reused_tokens {
                return;
            }
        }
    }

    /// Moves a sequence from the waiting queue into the running batch.
    fn admit(&mut self, slot: usize, reused_tokens: u32, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        if self.waiting.front() == Some(&slot) {
            self.waiting.pop_front();
        } else {
            self.waiting.retain(|waiting| *waiting != slot);
        }
        self.running.push(slot);
        self.plan.admitted_any = true;
        let sequence = &mut self.sequences[slot];
        let readmission = sequence.reused_tokens.is_some();
        if !readmission {
            sequence.reused_tokens = Some(reused_tokens);
            self.totals.prompt_tokens_total += u64::from(sequence.prompt_tokens);
            self.totals.reused_tokens_total += u64::from(reused_tokens);
        }
        out.push((now, EngineOutput::Admitted { id: sequence.id, reused_tokens, readmission }));
    }

    pub(crate) fn reject_reason(&self, slot: usize) -> Option<RejectReason> {
        let sequence = &self.sequences[slot];
        let prompt_tokens = sequence.prompt_tokens;
        if prompt_tokens == 0 {
            return Some(RejectReason::EmptyPrompt);
        }
        if let Some(max_model_len) = self.config.max_model_len.filter(|len| prompt_tokens >= *len) {
            return Some(RejectReason::PromptTooLong { prompt_tokens, max_model_len });
        }
        // The last output token is never computed, so it needs no room, unless it might come in a burst of guesses.
        let not_computed = u32::from(self.config.aic_nextn.is_none());
        let longest = prompt_tokens.saturating_add(sequence.max_output_tokens.saturating_sub(not_computed));
        let needed_blocks = longest.div_ceil(self.config.block_size);
        if needed_blocks > self.config.num_gpu_blocks {
            return Some(RejectReason::PoolTooSmall { needed_blocks, num_gpu_blocks: self.config.num_gpu_blocks });
        }
        let budget = self.config.max_num_batched_tokens.unwrap_or(u32::MAX);
        if !self.config.enable_chunked_prefill && prompt_tokens > budget {
            return Some(RejectReason::Unchunkable { prompt_tokens, max_num_batched_tokens: budget });
        }
        None
    }

    /// Gives a sequence its share of the step: computes `hit_blocks` from the cache and as many tokens as the budget
    /// allows, preempting others until the blocks suffice.
    fn grant(&mut self, slot: usize, hit_blocks: u32, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) -> Grant {
        let block_size = self.config.block_size;
        let sequence = &self.sequences[slot];
        let before = if hit_blocks > 0 { hit_blocks * block_size } else { sequence.computed_tokens };
        let remaining = sequence.known_tokens() - before;
        // Without chunking a prompt is computed in one step; output that a preempted sequence has to make up for may still
        // be split, or a sequence longer than a step could never come back.
        let prompt_left = sequence.prompt_tokens.saturating_sub(before);
        if (self.plan.budget == 0 && remaining > 0)
            || (!self.config.enable_chunked_prefill && prompt_left > self.plan.budget)
        {
            return Grant::Blocked;
        }
        let tokens = remaining.min(self.plan.budget);
        let target = before + tokens;
        loop {
            let sequence = &self.sequences[slot];
            let fresh = target.div_ceil(block_size) - sequence.held.blocks() - hit_blocks;
            if (fresh > 0 || hit_blocks > 0) && !self.take_blocks(slot, hit_blocks, fresh) {
                let Some(victim) = self.victim() else { return Grant::Blocked };
                self.preempt(victim, now, out);
                if victim == slot {
                    return Grant::Preempted;
                }
                continue;
            }
            break;
        }
        let events_wanted = self.events_wanted();
        let sequence = &mut self.sequences[slot];
        if hit_blocks > 0 {
            sequence.adopt_hit(hit_blocks, block_size);
        }
        sequence.computed_tokens = target;
        sequence.publish_computed(&mut self.pool, &self.config, events_wanted.then_some(&mut self.plan.events));
        let prompt_before = before.min(sequence.prompt_tokens);
        let prompt_tokens = target.min(sequence.prompt_tokens) - prompt_before;
        self.plan.budget -= tokens;
        self.plan.granted.push((slot, ScheduledWork { tokens, prompt_tokens, prompt_before }));
        Grant::Scheduled
    }

    /// Reserves blocks for a sequence; evictions are told with the step. False if there are not enough.
    fn take_blocks(&mut self, slot: usize, hit_blocks: u32, fresh: u32) -> bool {
        let mut removed = RemovedBlocks::default();
        let sequence = &mut self.sequences[slot];
        let mut held = std::mem::take(&mut sequence.held);
        let hits = sequence.leading_blocks(hit_blocks);
        let reserved = self.pool.reserve(hits, hit_blocks, fresh, &mut held, &mut removed);
        self.sequences[slot].held = held;
        if !removed.is_empty() {
            self.plan.events.push(KvEventData::Removed { blocks: removed });
        }
        reserved
    }

    /// Whom the next preemption throws out.
    pub(crate) fn victim(&self) -> Option<usize> {
        match self.config.preemption_mode {
            PreemptionMode::Lifo => self.running.last().copied(),
            PreemptionMode::Fifo => self.running.first().copied(),
        }
    }

    /// Throws a running sequence out: its blocks are released, its tokens kept, and it is first in the queue again.
    pub(crate) fn preempt(&mut self, slot: usize, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        self.plan.preempted_any = true;
        self.handoffs.capacity_changed();
        if let Some(at) = self.plan.granted.iter().position(|(granted, _)| *granted == slot) {
            let (_, work) = self.plan.granted.remove(at);
            self.plan.budget += work.tokens;
        }
        self.running.retain(|running| *running != slot);
        self.remember_last_token(slot, now);
        let sequence = &mut self.sequences[slot];
        sequence.drop_blocks(&mut self.pool);
        sequence.preemptions += 1;
        out.push((now, EngineOutput::Preempted { id: sequence.id }));
        self.waiting.push_front(slot);
        self.totals.preemptions_total += 1;
    }

    /// A sequence that had a token in the step before and gets none in this one: its last token came at `now`.
    pub(crate) fn remember_last_token(&mut self, slot: usize, now: SimTime) {
        let sequence = &mut self.sequences[slot];
        if sequence.last_token_step > 0 && sequence.last_token_step == self.step_number {
            sequence.last_token_at = now;
        }
    }
}
