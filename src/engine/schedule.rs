//! Who gets into a step, with how many tokens, and who is thrown out.
//!
//! The rules are vLLM's, in the reference's reading of them: running sequences first, in order of admission, each with
//! what is left of the token budget; when blocks run out a victim is preempted until the sequence fits. Only a step that
//! preempted nobody admits from the waiting queue, strictly first come first served: the head waits until its whole known
//! length fits into the pool, and nobody overtakes it. One token a sequence a step.

use crate::engine::config::PreemptionMode;
use crate::engine::events::KvEventData;
use crate::engine::machine::{Engine, EngineOutput, RejectReason, StepPlan, Timed};
use crate::engine::sequence::ScheduledWork;
use crate::time::SimTime;

/// The step while it is being planned.
struct Draft {
    plan: StepPlan,
    budget: u32,
    /// What each sequence got, by slot, to undo it if the sequence is preempted later in the same step.
    granted: Vec<(usize, ScheduledWork)>,
    preempted_any: bool,
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
    pub(crate) fn plan_step(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) -> StepPlan {
        let mut draft = Draft {
            plan: StepPlan::default(),
            budget: self.config.max_num_batched_tokens.unwrap_or(u32::MAX),
            granted: Vec::new(),
            preempted_any: false,
        };
        self.schedule_running(&mut draft);
        if !draft.preempted_any {
            self.admit_waiting(now, &mut draft, out);
        }
        for (_, work) in &draft.granted {
            draft.plan.computed_tokens += work.tokens;
            if work.prompt_tokens > 0 {
                draft.plan.prefill_tokens += work.prompt_tokens;
                draft.plan.prefill.requests += 1;
                draft.plan.prefill.prompt_tokens += u64::from(work.prompt_before + work.prompt_tokens);
                draft.plan.prefill.prefix_tokens += u64::from(work.prompt_before);
            }
        }
        self.emit_tokens(&mut draft.plan);
        draft.plan
    }

    fn schedule_running(&mut self, draft: &mut Draft) {
        let mut index = 0;
        while index < self.running.len() && draft.budget > 0 {
            let slot = self.running[index];
            match self.grant(slot, 0, draft) {
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

    fn admit_waiting(&mut self, now: SimTime, draft: &mut Draft, out: &mut Vec<Timed<EngineOutput>>) {
        let max_num_seqs = self.config.max_num_seqs.unwrap_or(u32::MAX) as usize;
        while self.running.len() < max_num_seqs {
            let Some(slot) = self.waiting.front().copied() else { return };
            if let Some(reason) = self.reject_reason(slot) {
                self.waiting.pop_front();
                draft.plan.outputs.push(EngineOutput::Rejected { id: self.sequences[slot].id, reason });
                self.forget(slot);
                self.totals.rejected_total += 1;
                continue;
            }
            let block_size = self.config.block_size;
            let sequence = &self.sequences[slot];
            let hit = self.pool.match_prefix(sequence.reusable_chain(block_size));
            let needed = sequence.known_tokens().div_ceil(block_size) - hit.active_blocks;
            if needed > self.pool.capacity() - self.pool.active() {
                return;
            }
            if !matches!(self.grant(slot, hit.blocks, draft), Grant::Scheduled) {
                return;
            }
            self.waiting.pop_front();
            self.running.push(slot);
            let reused_tokens = hit.blocks * block_size;
            let sequence = &mut self.sequences[slot];
            let readmission = sequence.reused_tokens.is_some();
            if !readmission {
                sequence.reused_tokens = Some(reused_tokens);
                self.totals.prompt_tokens_total += u64::from(sequence.prompt_tokens);
                self.totals.reused_tokens_total += u64::from(reused_tokens);
            }
            out.push((now, EngineOutput::Admitted { id: sequence.id, reused_tokens, readmission }));
        }
    }

    fn reject_reason(&self, slot: usize) -> Option<RejectReason> {
        let sequence = &self.sequences[slot];
        let prompt_tokens = sequence.prompt_tokens;
        if prompt_tokens == 0 {
            return Some(RejectReason::EmptyPrompt);
        }
        if let Some(max_model_len) = self.config.max_model_len.filter(|len| prompt_tokens >= *len) {
            return Some(RejectReason::PromptTooLong { prompt_tokens, max_model_len });
        }
        // The last output token is never computed, so it needs no room.
        let longest = prompt_tokens.saturating_add(sequence.max_output_tokens.saturating_sub(1));
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
    fn grant(&mut self, slot: usize, hit_blocks: u32, draft: &mut Draft) -> Grant {
        let block_size = self.config.block_size;
        let sequence = &self.sequences[slot];
        let before = if hit_blocks > 0 { hit_blocks * block_size } else { sequence.computed_tokens };
        let remaining = sequence.known_tokens() - before;
        // Without chunking a prompt is computed in one step; output that a preempted sequence has to make up for may still
        // be split, or a sequence longer than a step could never come back.
        let prompt_left = sequence.prompt_tokens.saturating_sub(before);
        if draft.budget == 0 || (!self.config.enable_chunked_prefill && prompt_left > draft.budget) {
            return Grant::Blocked;
        }
        let tokens = remaining.min(draft.budget);
        let target = before + tokens;
        loop {
            let sequence = &mut self.sequences[slot];
            let fresh = target.div_ceil(block_size) - sequence.held.len() as u32 - hit_blocks;
            let mut removed = Vec::new();
            let mut held = std::mem::take(&mut sequence.held);
            let hits = &sequence.reusable_chain(block_size)[..hit_blocks as usize];
            let reserved = self.pool.reserve(hits, fresh, &mut held, &mut removed);
            self.sequences[slot].held = held;
            if !removed.is_empty() && self.config.enable_prefix_caching {
                draft.plan.events.push(KvEventData::Removed { blocks: removed });
            }
            if reserved {
                break;
            }
            let victim = match self.config.preemption_mode {
                PreemptionMode::Lifo => self.running.last(),
                PreemptionMode::Fifo => self.running.first(),
            };
            let Some(victim) = victim.copied() else { return Grant::Blocked };
            self.preempt(victim, draft);
            if victim == slot {
                return Grant::Preempted;
            }
        }
        let sequence = &mut self.sequences[slot];
        if hit_blocks > 0 {
            sequence.adopt_hit(hit_blocks, block_size);
        }
        sequence.computed_tokens = target;
        if self.config.enable_prefix_caching {
            for run in sequence.publish_computed(&mut self.pool, &self.config) {
                draft.plan.events.push(KvEventData::Stored { parent: run.parent, blocks: run.blocks });
            }
        } else {
            sequence.publish_anonymous(&mut self.pool, block_size, &mut self.next_identity);
        }
        let prompt_before = before.min(sequence.prompt_tokens);
        let prompt_tokens = target.min(sequence.prompt_tokens) - prompt_before;
        draft.budget -= tokens;
        draft.granted.push((slot, ScheduledWork { tokens, prompt_tokens, prompt_before }));
        Grant::Scheduled
    }

    /// Throws a running sequence out: its blocks are released, its tokens kept, and it is first in the queue again.
    fn preempt(&mut self, slot: usize, draft: &mut Draft) {
        draft.preempted_any = true;
        if let Some(at) = draft.granted.iter().position(|(granted, _)| *granted == slot) {
            let (_, work) = draft.granted.remove(at);
            draft.budget += work.tokens;
        }
        self.running.retain(|running| *running != slot);
        let sequence = &mut self.sequences[slot];
        sequence.drop_blocks(&mut self.pool);
        sequence.preemptions += 1;
        self.waiting.push_front(slot);
        self.totals.preemptions_total += 1;
    }

    /// Makes the step's tokens: one for every sequence whose known tokens are all computed.
    fn emit_tokens(&mut self, plan: &mut StepPlan) {
        let mut ended: Vec<usize> = Vec::new();
        for index in 0..self.running.len() {
            let slot = self.running[index];
            let sequence = &mut self.sequences[slot];
            if !sequence.is_ready() {
                continue;
            }
            let reused_tokens = sequence.reused_tokens.unwrap_or(0);
            let id = sequence.id;
            if sequence.is_complete() {
                plan.outputs.push(EngineOutput::Finished { id, reused_tokens });
            } else {
                if sequence.generated_tokens() > 0 {
                    plan.decode.sequences += 1;
                    plan.decode.context_tokens += u64::from(sequence.known_tokens());
                }
                let position = sequence.generated_tokens();
                let token_id = sequence.generate(self.config.block_size, self.config.enable_prefix_caching);
                self.totals.generated_tokens_total += 1;
                let finished = sequence.is_complete();
                plan.outputs.push(EngineOutput::Token { id, token_id, position, reused_tokens, finished });
            }
            if sequence.is_complete() {
                sequence.drop_blocks(&mut self.pool);
                self.totals.finished_total += 1;
                ended.push(slot);
            }
        }
        if !ended.is_empty() {
            // Both lists are in the order of the batch.
            let mut next_ended = ended.iter().peekable();
            self.running.retain(|slot| next_ended.next_if_eq(&slot).is_none());
            for slot in ended {
                self.forget(slot);
            }
        }
    }
}
