//! Handing a request from a prefill worker to a decode worker, as both sides see it.
//!
//! A prefill worker computes the prompt and then *holds the source*: the request has left the batch, its blocks stay until
//! they are released. A decode worker *reserves the destination*: it takes what its cache has of the prompt's full blocks
//! and sets the rest aside. Once the blocks have been copied the destination is *activated*: its prompt becomes visible,
//! and the request waits for admission in the order in which the destinations were asked for.
//!
//! Destinations that wait for room are served first come, first served, and by single attempts, as in the reference: one
//! at each end of a step, one with each request to reserve and one with each activation that reaches an engine between
//! steps. An attempt that failed is made again only after the engine's capacity has changed. While a destination waits no
//! request is admitted whose blocks are not here yet. Commands that come during a step are followed when it ends.

use std::collections::VecDeque;

use crate::engine::events::{KvEventData, RemovedBlocks};
use crate::engine::machine::Engine;
use crate::engine::messages::{EngineInput, EngineOutput, EngineRequest, Timed};
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
    /// Commands that the end of the running step lets the engine follow.
    commands: Vec<EngineInput>,
    /// Counts the moments at which room may have come up.
    capacity_changes: u64,
    /// The count at which the first pending destination was tried in vain.
    failed_at: Option<u64>,
}

impl Handoffs {
    /// True if a destination waits for room.
    pub fn waits_for_room(&self) -> bool {
        !self.pending.is_empty()
    }

    /// True if the next attempt to make room for a destination is not known to fail.
    pub fn would_try(&self) -> bool {
        !self.pending.is_empty() && self.failed_at != Some(self.capacity_changes)
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
        self.reserved.retain(|reserved| *reserved != slot);
        if self.pending.front() == Some(&slot) {
            self.failed_at = None;
        }
        self.pending.retain(|pending| *pending != slot);
    }

    /// A prompt is computed; its blocks are kept.
    pub fn hold(&mut self, slot: usize) {
        self.held.push(slot);
    }

    /// A sequence left the batch or gave up blocks: what did not fit may fit now.
    pub fn capacity_changed(&mut self) {
        self.capacity_changes += 1;
    }
}

impl Engine {
    /// Follows a command, or keeps it until the running step ends.
    pub(crate) fn command(&mut self, now: SimTime, command: EngineInput, out: &mut Vec<Timed<EngineOutput>>) {
        match command {
            // The request takes its place in the queue now; only the attempt to make room waits.
            EngineInput::Reserve(request) => self.ask_destination(now, request, out),
            command if self.step.is_some() => self.handoffs.commands.push(command),
            EngineInput::ReleaseSource(id) => self.release_source(now, id, out),
            EngineInput::Activate(id) => self.activate_destination(now, id, out),
            EngineInput::Submit(_) | EngineInput::Cancel(_) | EngineInput::FlushCache => {}
        }
    }

    /// Follows the commands that came during the step which ended at `at`.
    pub(crate) fn follow_commands(&mut self, at: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        for command in std::mem::take(&mut self.handoffs.commands) {
            self.command(at, command, out);
        }
    }

    fn release_source(&mut self, now: SimTime, id: RequestId, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(slot) = self.slot(id).filter(|slot| self.handoffs.held.contains(slot)) else { return };
        self.handoffs.forget(slot);
        self.sequences[slot].drop_blocks(&mut self.pool);
        self.forget(slot);
        self.handoffs.capacity_changed();
        out.push((now, EngineOutput::SourceReleased { id }));
        if !self.waiting.is_empty() {
            self.wake_at(now);
        }
    }

    fn ask_destination(&mut self, now: SimTime, request: EngineRequest, out: &mut Vec<Timed<EngineOutput>>) {
        let id = request.id;
        let Some(slot) = self.insert(request) else { return };
        if let Some(reason) = self.reject_reason(slot) {
            self.forget(slot);
            self.totals.rejected_total += 1;
            out.push((now, EngineOutput::Rejected { id, reason }));
            return;
        }
        self.handoffs.pending.push_back(slot);
        if self.step.is_none() {
            self.try_reserve(now, out);
            if !self.waiting.is_empty() {
                self.wake_at(now);
            }
        }
    }

    /// Makes one attempt to set blocks aside for the destination that has waited longest.
    pub(crate) fn try_reserve(&mut self, now: SimTime, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(slot) = self.handoffs.pending.front().copied().filter(|_| self.handoffs.would_try()) else { return };
        self.handoffs.failed_at = Some(self.handoffs.capacity_changes);
        if self.running.len() >= self.config.max_num_seqs.unwrap_or(u32::MAX) as usize {
            return;
        }
        let block_size = self.config.block_size;
        let sequence = &mut self.sequences[slot];
        let chain = sequence.prompt_chain().clone();
        let hit = self.pool.match_prefix(chain[..].into());
        let fresh_blocks = sequence.prompt_tokens.div_ceil(block_size) - hit.blocks;
        let mut removed = RemovedBlocks::default();
        if !self.pool.reserve(chain[..].into(), hit.blocks, fresh_blocks, &mut sequence.held, &mut removed) {
            return;
        }
        sequence.adopt_hit(hit.blocks, block_size);
        let id = sequence.id;
        self.handoffs.failed_at = None;
        self.handoffs.pending.pop_front();
        self.handoffs.reserved.push(slot);
        if !removed.is_empty() && self.events_wanted() {
            let event = self.number(KvEventData::Removed { blocks: removed });
            out.push((now, EngineOutput::Kv(event)));
        }
        out.push((now, EngineOutput::DestinationReserved { id, fresh_blocks }));
    }

    fn activate_destination(&mut self, now: SimTime, id: RequestId, out: &mut Vec<Timed<EngineOutput>>) {
        let Some(slot) = self.slot(id).filter(|slot| self.handoffs.reserved.contains(slot)) else { return };
        self.handoffs.forget(slot);
        let mut events = Vec::new();
        let events_wanted = self.events_wanted();
        let sequence = &mut self.sequences[slot];
        sequence.computed_tokens = sequence.prompt_tokens;
        sequence.publish_computed(&mut self.pool, &self.config, events_wanted.then_some(&mut events));
        for data in events {
            let event = self.number(data);
            out.push((now, EngineOutput::Kv(event)));
        }
        let asked = self.sequences[slot].arrival_number;
        let asked_later = |other: &usize| self.sequences[*other].arrival_number > asked;
        let place = self.waiting.iter().position(asked_later).unwrap_or(self.waiting.len());
        self.waiting.insert(place, slot);
        out.push((now, EngineOutput::DestinationActivated { id }));
        self.wake_at(now);
        self.try_reserve(now, out);
    }
}
