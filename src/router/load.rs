//! What the router has sent to each worker and not got back: its own bookings, from dispatch to first token to end.
//!
//! A booking counts the prompt's full blocks (a prefix that several bookings share counts once) until the request ends,
//! and its uncached prompt tokens until the first token. Partial blocks and output blocks are not counted, as in the
//! reference.

use rustc_hash::FxHashMap;

use crate::engine::hash::BlockId;
use crate::ids::{RequestId, SequenceHash, WorkerId};

#[derive(Clone, Debug)]
struct Booking {
    worker: WorkerId,
    blocks: Vec<SequenceHash>,
    unshared_blocks: u32,
    prefill_tokens: u32,
}

#[derive(Clone, Debug, Default)]
struct WorkerLoad {
    /// How many bookings share a block.
    blocks: FxHashMap<SequenceHash, u32>,
    /// Blocks that no other booking may share.
    unshared_blocks: u32,
    prefill_tokens: u64,
    requests: u32,
}

/// All bookings.
#[derive(Clone, Debug, Default)]
pub struct LoadBook {
    workers: FxHashMap<WorkerId, WorkerLoad>,
    bookings: FxHashMap<RequestId, Booking>,
}

/// A worker's load as a candidate for one prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ProjectedLoad {
    /// Uncached prompt tokens without a first token yet.
    pub active_prefill_tokens: u64,
    /// Distinct blocks in flight.
    pub active_blocks: u32,
    /// Full blocks of the prompt that would come on top.
    pub additional_blocks: u32,
    /// Requests in flight.
    pub active_requests: u32,
}

impl LoadBook {
    /// An empty book.
    pub fn new() -> Self {
        Self::default()
    }

    /// Books a request on a worker. A second booking under the same id is refused.
    pub fn book(&mut self, id: RequestId, worker: WorkerId, chain: &[BlockId], prefill_tokens: u32) -> bool {
        if self.bookings.contains_key(&id) {
            return false;
        }
        let load = self.workers.entry(worker).or_default();
        let blocks: Vec<SequenceHash> = chain.iter().map(|block| block.sequence).collect();
        for block in &blocks {
            *load.blocks.entry(*block).or_insert(0) += 1;
        }
        load.prefill_tokens += u64::from(prefill_tokens);
        load.requests += 1;
        self.bookings.insert(id, Booking { worker, blocks, unshared_blocks: 0, prefill_tokens });
        true
    }

    /// As [`LoadBook::book`], but with so many blocks that are this request's own, whatever others have in flight.
    pub fn book_unshared(&mut self, id: RequestId, worker: WorkerId, blocks: u32, prefill_tokens: u32) -> bool {
        if !self.book(id, worker, &[], prefill_tokens) {
            return false;
        }
        if let (Some(booking), Some(load)) = (self.bookings.get_mut(&id), self.workers.get_mut(&worker)) {
            booking.unshared_blocks = blocks;
            load.unshared_blocks += blocks;
        }
        true
    }

    /// The request has its first token: its prompt is no prefill work any more. Can be said again.
    pub fn prefill_completed(&mut self, id: RequestId) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let tokens = std::mem::take(&mut booking.prefill_tokens);
        if let Some(load) = self.workers.get_mut(&booking.worker) {
            load.prefill_tokens -= u64::from(tokens);
        }
    }

    /// The request ended, in whatever way. Unknown ids are ignored. Returns the worker it was booked on.
    pub fn free(&mut self, id: RequestId) -> Option<WorkerId> {
        self.prefill_completed(id);
        let booking = self.bookings.remove(&id)?;
        let load = self.workers.get_mut(&booking.worker)?;
        load.requests -= 1;
        load.unshared_blocks -= booking.unshared_blocks;
        for block in booking.blocks {
            if let Some(shared) = load.blocks.get_mut(&block) {
                *shared -= 1;
                if *shared == 0 {
                    load.blocks.remove(&block);
                }
            }
        }
        Some(booking.worker)
    }

    /// Drops a worker and all its bookings.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        self.workers.remove(&worker);
        self.bookings.retain(|_, booking| booking.worker != worker);
    }

    /// What the worker carries now; no prompt, no additional blocks.
    pub fn load(&self, worker: WorkerId) -> ProjectedLoad {
        self.project(worker, &[])
    }

    /// What the worker carries now, and what this prompt would add.
    pub fn project(&self, worker: WorkerId, chain: &[BlockId]) -> ProjectedLoad {
        let Some(load) = self.workers.get(&worker) else {
            return ProjectedLoad { additional_blocks: chain.len() as u32, ..ProjectedLoad::default() };
        };
        let shared = chain.iter().take_while(|block| load.blocks.contains_key(&block.sequence)).count();
        ProjectedLoad {
            active_prefill_tokens: load.prefill_tokens,
            active_blocks: load.blocks.len() as u32 + load.unshared_blocks,
            additional_blocks: (chain.len() - shared) as u32,
            active_requests: load.requests,
        }
    }

    /// Requests in flight on all workers.
    pub fn len(&self) -> usize {
        self.bookings.len()
    }

    /// True if nothing is in flight.
    pub fn is_empty(&self) -> bool {
        self.bookings.is_empty()
    }
}
