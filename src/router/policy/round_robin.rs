//! One worker after the other, whatever they do.

/// A counter that survives changes of the worker list.
#[derive(Clone, Copy, Debug, Default)]
pub struct RoundRobin {
    next: u64,
}

impl RoundRobin {
    /// Index of the next of `candidates` workers; the caller has at least one.
    pub fn choose(&mut self, candidates: usize) -> usize {
        let index = (self.next % candidates.max(1) as u64) as usize;
        self.next += 1;
        index
    }
}
