//! The tokens that a step makes, and who leaves the batch with them.
//!
//! Every running sequence whose known tokens are all computed is *ready*: it gets its next token. With guessed tokens
//! (`speculation.rs`) it gets a burst, and the blocks that the longest burst would fill are set aside before: room for
//! all that are ready together, preempting others until there is. On a prefill worker the only token says that the
//! prompt is computed; the sequence leaves the batch and holds its blocks for the hand-off.

use crate::engine::config::WorkerType;
use crate::engine::events::{KvEventData, RemovedBlocks};
use crate::engine::machine::Engine;
use crate::engine::messages::{EngineOutput, Timed};
use crate::engine::schedule::Emitted;
use crate::time::SimTime;

impl Engine {
    /// One token for every sequence that is ready.
    pub(crate) fn emit_tokens(&mut self, now: SimTime) {
        for index in 0..self.running.len() {
            let slot = self.running[index];
            if !self.sequences[slot].is_ready() {
                self.remember_last_token(slot, now);
            } else if !self.ends_without_token(slot) {
                self.count_decode(slot);
                self.emit(slot, 1);
            }
        }
        self.drop_left();
    }

    /// A burst of tokens for every sequence that is ready.
    pub(crate) fn emit_bursts(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        for index in 0..self.running.len() {
            let slot = self.running[index];
            if self.sequences[slot].is_ready() {
                self.ends_without_token(slot);
            } else {
                self.remember_last_token(slot, now);
            }
        }
        self.drop_left();
        let block_size = self.config.block_size;
        let ready = loop {
            let ready: Vec<usize> =
                self.running.iter().copied().filter(|slot| self.sequences[*slot].is_ready()).collect();
            let needed: u32 = ready.iter().map(|slot| self.lookahead_blocks(*slot)).sum();
            if needed <= self.pool.free() + self.pool.inactive() {
                break ready;
            }
            let Some(victim) = self.victim() else { return };
            self.preempt(victim, now, out);
        };
        let mut removed = RemovedBlocks::default();
        for slot in &ready {
            let blocks = self.lookahead_blocks(*slot);
            // The sum fits, so each of them does.
            self.pool.reserve(Default::default(), 0, blocks, &mut self.sequences[*slot].held, &mut removed);
        }
        if !removed.is_empty() {
            self.plan.events.push(KvEventData::Removed { blocks: removed });
        }
        for slot in ready {
            let burst = self.burst(slot);
            let events_wanted = self.events_wanted();
            let sequence = &mut self.sequences[slot];
            // Of the burst's tokens only the last is not computed yet.
            sequence.computed_tokens += burst - 1;
            sequence.publish_computed(&mut self.pool, &self.config, events_wanted.then_some(&mut self.plan.events));
            let unused = sequence.held.blocks() - (sequence.known_tokens() + burst).div_ceil(block_size);
            self.pool.return_private(&mut sequence.held, unused);
            self.count_decode(slot);
            self.emit(slot, burst);
        }
        self.drop_left();
    }

    /// Blocks that the longest burst of a ready sequence would fill beyond those it has.
    fn lookahead_blocks(&self, slot: usize) -> u32 {
        let sequence = &self.sequences[slot];
        let most = match self.config.worker_type {
            WorkerType::Prefill => 1,
            WorkerType::Aggregated | WorkerType::Decode => self.config.burst_tokens(),
        };
        let burst = most.min(sequence.missing_output_tokens());
        let known = sequence.known_tokens();
        (known + burst).div_ceil(self.config.block_size) - known.div_ceil(self.config.block_size)
    }

    /// Tokens that a ready sequence gets.
    fn burst(&self, slot: usize) -> u32 {
        let sequence = &self.sequences[slot];
        match self.config.worker_type {
            WorkerType::Prefill => 1,
            WorkerType::Aggregated | WorkerType::Decode => {
                let burst = self.config.accepted_burst(sequence.output_seed(), sequence.generated_tokens);
                burst.min(sequence.missing_output_tokens())
            }
        }
    }

    /// A ready sequence that wants no (more) token ends; true if it does.
    fn ends_without_token(&mut self, slot: usize) -> bool {
        let sequence = &self.sequences[slot];
        if !sequence.is_complete() {
            return false;
        }
        let (id, reused_tokens) = (sequence.id, sequence.reused_tokens.unwrap_or(0));
        if self.config.worker_type == WorkerType::Prefill {
            self.hold_source(slot);
        } else {
            self.plan.outputs.push(EngineOutput::Finished { id, reused_tokens });
            self.end(slot);
        }
        true
    }

    /// A ready sequence takes part in the step's decode work, unless its prompt was completed in this very step: without
    /// guessing, the prefill yields the first token.
    fn count_decode(&mut self, slot: usize) {
        let sequence = &self.sequences[slot];
        let decodes = match self.config.worker_type {
            WorkerType::Prefill => false,
            WorkerType::Decode => true,
            WorkerType::Aggregated => self.config.aic_nextn.is_some() || sequence.generated_tokens > 0,
        };
        if decodes {
            self.plan.decode.sequences += 1;
            self.plan.decode.context_tokens += u64::from(sequence.known_tokens());
        }
    }

    /// Gives a ready sequence its next `tokens` tokens, at least 1.
    fn emit(&mut self, slot: usize, tokens: u32) {
        let sequence = &mut self.sequences[slot];
        if self.config.worker_type == WorkerType::Prefill {
            sequence.generated_tokens += tokens;
            self.hold_source(slot);
            return;
        }
        let first = sequence.generated_tokens;
        sequence.generated_tokens += tokens;
        self.plan.emitted.push(Emitted { slot, step_before: sequence.last_token_step, tokens });
        sequence.last_token_step = self.step_number + 1;
        self.totals.generated_tokens_total += u64::from(tokens);
        let all_tokens = self.detail.every_token;
        for position in first..first + tokens {
            let finished = position + 1 == sequence.max_output_tokens;
            if all_tokens || position < 2 || finished {
                self.plan.outputs.push(EngineOutput::Token {
                    id: sequence.id,
                    token_id: if all_tokens { sequence.output_token(position) } else { 0 },
                    position,
                    reused_tokens: sequence.reused_tokens.unwrap_or(0),
                    finished,
                    max_gap: sequence.max_gap,
                });
            }
        }
        if sequence.is_complete() {
            self.end(slot);
        }
    }

    /// A prompt is computed on a prefill worker: the sequence leaves the batch and keeps its blocks.
    fn hold_source(&mut self, slot: usize) {
        let sequence = &self.sequences[slot];
        let (id, reused_tokens) = (sequence.id, sequence.reused_tokens.unwrap_or(0));
        self.plan.outputs.push(EngineOutput::SourceHeld { id, reused_tokens });
        self.plan.left.push(slot);
        self.handoffs.hold(slot);
        self.handoffs.capacity_changed();
    }

    /// A sequence has all that it wants.
    fn end(&mut self, slot: usize) {
        self.sequences[slot].drop_blocks(&mut self.pool);
        self.handoffs.capacity_changed();
        self.totals.finished_total += 1;
        self.plan.ended.push(slot);
        self.plan.left.push(slot);
    }

    /// Takes those that left out of the batch.
    fn drop_left(&mut self) {
        if !self.plan.left.is_empty() {
            // Both lists are in the order of the batch.
            let mut next_left = self.plan.left.iter().peekable();
            self.running.retain(|slot| next_left.next_if_eq(&slot).is_none());
            self.plan.left.clear();
        }
    }
}
