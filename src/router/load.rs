//! What the router has sent to each worker and not got back: its own bookings, from dispatch to first token to end.
//!
//! A booking counts the prompt's full blocks (a prefix that several bookings share counts once) until the request ends,
//! and its uncached prompt tokens until the first token. Partial blocks and output blocks are not counted, as in the
//! reference.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::engine::hash::{BlockId, Chain};
use crate::ids::{RequestId, WorkerId};
use crate::router::runs::{Entry, Run, Runs, Segment};

#[derive(Clone, Debug)]
struct Booking {
    worker: WorkerId,
    chain: Chain,
    unshared_blocks: u32,
    prefill_tokens: u32,
}

/// Bookings of a worker that refer to the same number of leading blocks of a run.
#[derive(Clone, Copy, Debug)]
struct Share {
    worker: WorkerId,
    blocks: u32,
    bookings: u32,
}

impl Entry for Share {
    fn worker(&self) -> WorkerId {
        self.worker
    }

    fn blocks(&self) -> u32 {
        self.blocks
    }
}

/// All bookings.
#[derive(Clone, Debug, Default)]
pub struct LoadBook {
    /// Ascending.
    workers: Vec<(WorkerId, WorkerLoad)>,
    bookings: FxHashMap<RequestId, Booking>,
    /// The blocks of the bookings' prompts.
    runs: Runs<Share>,
    segments: Vec<Segment>,
}

/// What a worker carries by its bookings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerLoad {
    /// Uncached prompt tokens without a first token yet.
    pub active_prefill_tokens: u64,
    /// Distinct blocks in flight.
    pub active_blocks: u32,
    /// Requests in flight.
    pub active_requests: u32,
}

impl LoadBook {
    /// An empty book.
    pub fn new() -> Self {
        Self::default()
    }

    /// Books a request on a worker. A second booking under the same id is refused.
    pub fn book(&mut self, id: RequestId, worker: WorkerId, chain: &Chain, prefill_tokens: u32) -> bool {
        let booking = Booking { worker, chain: chain.clone(), unshared_blocks: 0, prefill_tokens };
        if !self.enter(id, booking) {
            return false;
        }
        let known = self.walk(chain);
        let mut added = 0;
        let segments = std::mem::take(&mut self.segments);
        for segment in &segments {
            added += self.share(*segment, worker, 1);
        }
        self.segments = segments;
        let unknown = (chain.len() - known) as u32;
        if unknown > 0 {
            let entries = SmallVec::from_iter([Share { worker, blocks: unknown, bookings: 1 }]);
            let start = known as u32;
            self.runs.insert(Run { chain: chain.clone(), start, blocks: unknown, listed: false, entries });
        }
        self.load_mut(worker).active_blocks += added + unknown;
        true
    }

    /// As [`LoadBook::book`], but with so many blocks that are this request's own, whatever others have in flight.
    pub fn book_unshared(&mut self, id: RequestId, worker: WorkerId, blocks: u32, prefill_tokens: u32) -> bool {
        let booking = Booking { worker, chain: Chain::default(), unshared_blocks: blocks, prefill_tokens };
        self.enter(id, booking)
    }

    fn enter(&mut self, id: RequestId, booking: Booking) -> bool {
        if self.bookings.contains_key(&id) {
            return false;
        }
        let load = self.load_mut(booking.worker);
        load.active_prefill_tokens += u64::from(booking.prefill_tokens);
        load.active_blocks += booking.unshared_blocks;
        load.active_requests += 1;
        self.bookings.insert(id, booking);
        true
    }

    /// Collects where a prompt's blocks are; returns how many of them are known.
    fn walk(&mut self, chain: &[BlockId]) -> usize {
        self.segments.clear();
        let segments = &mut self.segments;
        self.runs.walk(chain.into(), 0, |segment| {
            segments.push(segment);
            true
        })
    }

    /// So many more bookings of the worker refer to the leading blocks of a run, or fewer; returns by how many the worker's
    /// blocks there have changed.
    fn share(&mut self, segment: Segment, worker: WorkerId, change: i32) -> u32 {
        let before = self.runs.get(segment.run).most_blocks(worker);
        let entries = self.runs.entries_mut(segment.run);
        match entries.binary_search_by_key(&(worker, segment.blocks), |share| (share.worker, share.blocks)) {
            Ok(at) => {
                entries[at].bookings = entries[at].bookings.saturating_add_signed(change);
                if entries[at].bookings == 0 {
                    entries.remove(at);
                }
            }
            Err(at) => entries.insert(at, Share { worker, blocks: segment.blocks, bookings: 1 }),
        }
        self.runs.get(segment.run).most_blocks(worker).abs_diff(before)
    }

    /// The request has its first token: its prompt is no prefill work any more. Can be said again.
    pub fn prefill_completed(&mut self, id: RequestId) {
        let Some(booking) = self.bookings.get_mut(&id) else { return };
        let tokens = std::mem::take(&mut booking.prefill_tokens);
        let worker = booking.worker;
        self.load_mut(worker).active_prefill_tokens -= u64::from(tokens);
    }

    /// The request ended, in whatever way. Unknown ids are ignored. Returns the worker it was booked on.
    pub fn free(&mut self, id: RequestId) -> Option<WorkerId> {
        let booking = self.bookings.remove(&id)?;
        let worker = booking.worker;
        let unshared = self.unshare(&booking);
        let load = self.load_mut(worker);
        load.active_blocks -= booking.unshared_blocks + unshared;
        load.active_prefill_tokens -= u64::from(booking.prefill_tokens);
        load.active_requests -= 1;
        Some(worker)
    }

    /// Takes a booking's blocks out of the runs; returns how many of them the worker has from it alone.
    fn unshare(&mut self, booking: &Booking) -> u32 {
        self.walk(&booking.chain);
        let segments = std::mem::take(&mut self.segments);
        let mut unshared = 0;
        for segment in &segments {
            unshared += self.share(*segment, booking.worker, -1);
            self.runs.fit(segment.run);
        }
        self.segments = segments;
        unshared
    }

    /// Drops a worker and all its bookings.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        let gone: Vec<RequestId> =
            self.bookings.iter().filter(|(_, booking)| booking.worker == worker).map(|(id, _)| *id).collect();
        for id in gone {
            self.free(id);
        }
        self.workers.retain(|(known, _)| *known != worker);
    }

    /// For every worker with bookings of the prompt's first block: how many of its leading blocks they have, ascending by
    /// worker; `shared` is cleared first.
    pub fn find_shared(&self, chain: &[BlockId], shared: &mut Vec<(WorkerId, u32)>) {
        self.runs.find(chain.into(), shared);
    }

    /// What the worker carries now.
    pub fn load(&self, worker: WorkerId) -> WorkerLoad {
        self.place_of(worker).map(|at| self.workers[at].1).unwrap_or_default()
    }

    /// What the workers carry that have, or had, bookings; ascending by worker.
    pub fn loads(&self) -> &[(WorkerId, WorkerLoad)] {
        &self.workers
    }

    fn place_of(&self, worker: WorkerId) -> Result<usize, usize> {
        self.workers.binary_search_by_key(&worker, |(known, _)| *known)
    }

    fn load_mut(&mut self, worker: WorkerId) -> &mut WorkerLoad {
        let at = self.place_of(worker).unwrap_or_else(|at| {
            self.workers.insert(at, (worker, WorkerLoad::default()));
            at
        });
        &mut self.workers[at].1
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

#[cfg(test)]
mod tests;
