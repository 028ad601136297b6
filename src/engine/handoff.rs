//! Handing a request from a prefill worker to a decode worker, as both sides see it.
//!
//! A prefill worker computes the prompt and then *holds the source*: the request has left the batch, its blocks stay until
//! they are released. A decode worker *reserves the destination*: blocks for the prompt, first come first served, taking
//! what is cached already; what does not fit waits, and while something waits no fresh request is admitted. Once the blocks
//! have been copied the destination is *activated*: its prompt becomes visible, and the request waits for admission in
//! the order in which the requests came.
//!
//! A release or an activation is a command: a worker follows it when its running step ends.

use std::collections::VecDeque;

use crate::engine::events::KvEventData;
use crate::engine::machine::Engine;
use crate::engine::messages::{EngineOutput, EngineRequest, Timed};
use crate::ids::RequestId;
use crate::time::SimTime;

/// Requests between two workers.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handoffs {
    /// Computed prompts whose blocks wait to be released.
    held: Vec<usize>,
    /// Destinations that wait for room, first come first served.
    pending: VecDeque<usize>,
    /// Destinations with room that wait for their blocks.
    reserved: Vec<usize>,
    /// Commands that the end of the running step carries out.
    releases: Vec<RequestId>,
    activations: Vec<RequestId>,
}

impl Handoffs {
    /// Destinations that wait for room.
    pub fn pending(&self) -> usize {
        self.pending.len()
    }

    /// Destinations that do not decode yet.
    pub fn waiting(&self) -> usize {
        self.pending.len() + self.reserved.len()
    }

    /// Sequences in neither of the engine's queues.
    pub fn len(&self) -> usize {
        self.waiting() + self.held.len()
    }

    /// A request is gone.
    pub fn forget(&mut self, slot: usize) {
        self.held.retain(|held| *held != slot);
        self.pending.retain(|pending| *pending != slot);
        self.reserved.retain(|reserved| *reserved != slot);
    }

    /// A prompt is computed; its blocks are kept.
    pub fn hold(&mut self, slot: usize) {
        self.held.push(slot);
    }
}

impl Engine {
    /// Carries out the commands that came during the step which ended at `at`.
    pub(crate) fn apply_commands(&mut self, at: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        for id in std::mem::take(&mut self.handoffs.releases) {
            self.release_source(at, id, out);
        }
        for id in std::mem::take(&mut self.handoffs.activations) {
            self.activate_destination(at, id, out);
        }
        self.retry_destinations(at, out);
    }

    pub(crate) fn release_source(&mut self, now: SimTime, id: RequestId, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(slot) = self.slot(id).filter(|slot| self.handoffs.held.contains(slot)) else { return };
        if self.step.is_some() {
            self.handoffs.releases.push(id);
            return;
        }
        self.handoffs.forget(slot);
        self.sequences[slot].drop_blocks(&mut self.pool);
        self.forget(slot);
        out.push((now, EngineOutput::SourceReleased { id }));
        if !self.waiting.is_empty() {
            self.wake_at(now);
        }
    }

    pub(crate) fn reserve_destination(
        &mut self,
        now: SimTime,
        request: EngineRequest,
        out: &mut Vec<Timed<EngineOutput>>,
    ) {
        let id = request.id;
        let Some(slot) = self.insert(request) else { return };
        if let Some(reason) = self.reject_reason(slot) {
            self.forget(slot);
            self.totals.rejected_total += 1;
            out.push((now, EngineOutput::Rejected { id, reason }));
            return;
        }
        self.handoffs.pending.push_back(slot);
        self.retry_destinations(now, out);
    }

    /// Makes room for the destinations that wait, as far as there is some.
    pub(crate) fn retry_destinations(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        let max_num_seqs = self.config.max_num_seqs.unwrap_or(u32::MAX) as usize;
        while let Some(slot) = self.handoffs.pending.front().copied() {
            if self.running.len() >= max_num_seqs {
                return;
            }
            let block_size = self.config.block_size;
            let sequence = &mut self.sequences[slot];
            let chain = sequence.prompt_chain().clone();
            let hit = self.pool.match_prefix(chain[..].into());
            let fresh_blocks = sequence.prompt_tokens.div_ceil(block_size) - hit.blocks;
            let mut removed = Vec::new();
            if !self.pool.reserve(chain[..].into(), hit.blocks, fresh_blocks, &mut sequence.held, &mut removed) {
                return;
            }
            sequence.adopt_hit(hit.blocks, block_size);
            let id = sequence.id;
            self.handoffs.pending.pop_front();
            self.handoffs.reserved.push(slot);
            if !removed.is_empty() {
                let event = self.number(KvEventData::Removed { blocks: removed });
                out.push((now, EngineOutput::Kv(event)));
            }
            out.push((now, EngineOutput::DestinationReserved { id, fresh_blocks }));
        }
    }

    pub(crate) fn activate_destination(&mut self, now: SimTime, id: RequestId, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(slot) = self.slot(id).filter(|slot| self.handoffs.reserved.contains(slot)) else { return };
        if self.step.is_some() {
            self.handoffs.activations.push(id);
            return;
        }
        self.handoffs.forget(slot);
        let mut events = Vec::new();
        let events_wanted = self.events_wanted();
        let sequence = &mut self.sequences[slot];
        sequence.computed_tokens = sequence.prompt_tokens;
        sequence.prefilled = true;
        sequence.publish_computed(&mut self.pool, &self.config, events_wanted.then_some(&mut events));
        for data in events {
            let event = self.number(data);
            out.push((now, EngineOutput::Kv(event)));
        }
        let arrived = self.sequences[slot].arrival_number;
        let comes_later = |other: &usize| {
            let other = &self.sequences[*other];
            other.preemptions == 0 && other.arrival_number > arrived
        };
        let place = self.waiting.iter().position(comes_later).unwrap_or(self.waiting.len());
        self.waiting.insert(place, slot);
        out.push((now, EngineOutput::DestinationActivated { id }));
        self.wake_at(now);
    }
}
