//! One worker after the other, whatever they do.

/// A counter that survives changes of the worker list.
///
/// Workers may have several ranks, each a target of its own, in the order of worker, then rank. Then all workers have
/// their turn before the next rank has: 0.0, 1.0, 0.1, 1.1.
#[derive(Clone, Copy, Debug)]
pub struct RoundRobin {
    next: u64,
    ranks: u64,
}

impl RoundRobin {
    /// A counter for workers of `ranks_per_worker` targets each; 1 cycles the flat list.
    pub fn new(ranks_per_worker: u32) -> Self {
        RoundRobin { next: 0, ranks: u64::from(ranks_per_worker.max(1)) }
    }

    /// Index of the next of `candidates` targets; the caller has at least one. Where some ranks of a worker are no
    /// candidates, the list is cycled flat.
    pub fn choose(&mut self, candidates: usize) -> usize {
        let targets = candidates.max(1) as u64;
        let turn = self.next % targets;
        self.next += 1;
        if self.ranks == 1 || !targets.is_multiple_of(self.ranks) {
            return turn as usize;
        }
        let workers = targets / self.ranks;
        (turn % workers * self.ranks + turn / workers) as usize
    }
}
