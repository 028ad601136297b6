//! Who wants to be woken when: a tournament of deadlines, in which a change costs a few comparisons.

use crate::time::SimTime;

const NEVER: SimTime = SimTime(u64::MAX);

/// One deadline, or none, for each of n workers.
#[derive(Clone, Debug)]
pub(super) struct Deadlines {
    /// Leaves from `leaves` on, one a worker; before them the lesser of two children, the winner of all at 1.
    tree: Vec<SimTime>,
    leaves: usize,
}

impl Deadlines {
    /// No worker wants to be woken.
    pub fn new(workers: usize) -> Self {
        let leaves = workers.next_power_of_two();
        Deadlines { tree: vec![NEVER; 2 * leaves], leaves }
    }

    /// Changes a worker's deadline.
    pub fn set(&mut self, worker: u32, deadline: Option<SimTime>) {
        let mut node = self.leaves + worker as usize;
        let mut least = deadline.unwrap_or(NEVER);
        while self.tree[node] != least {
            self.tree[node] = least;
            if node == 1 {
                return;
            }
            least = least.min(self.tree[node ^ 1]);
            node /= 2;
        }
    }

    /// The first deadline.
    pub fn first(&self) -> Option<SimTime> {
        Some(self.tree[1]).filter(|at| *at != NEVER)
    }

    /// The first deadline and whose it is; of equal ones the lowest worker's.
    pub fn first_worker(&self) -> Option<(SimTime, u32)> {
        let first = self.first()?;
        let mut node = 1;
        while node < self.leaves {
            node = if self.tree[2 * node] == first { 2 * node } else { 2 * node + 1 };
        }
        Some((first, (node - self.leaves) as u32))
    }

    /// The lowest worker from `from` on whose deadline is not after `now`.
    pub fn next_due(&self, now: SimTime, from: u32) -> Option<u32> {
        let mut node = self.leaves + from as usize;
        if node >= self.tree.len() {
            return None;
        }
        // Up while nobody here is due, to the next subtree on the right; then down to its first leaf that is.
        while self.tree[node] > now {
            while node % 2 == 1 {
                node /= 2;
            }
            // Above the root: there was no subtree on the right.
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < self.leaves {
            node = if self.tree[2 * node] <= now { 2 * node } else { 2 * node + 1 };
        }
        Some((node - self.leaves) as u32)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn finds_what_a_list_finds(
            workers in 1..20u32,
            changes in prop::collection::vec((0..20u32, prop::option::of(0..30u64)), 1..60),
            now in 0..30u64,
        ) {
            let mut deadlines = Deadlines::new(workers as usize);
            let mut list: Vec<Option<SimTime>> = vec![None; workers as usize];
            for (worker, at) in changes {
                let (worker, at) = (worker % workers, at.map(SimTime));
                deadlines.set(worker, at);
                list[worker as usize] = at;
                let first = list.iter().zip(0u32..).filter_map(|(at, worker)| Some(((*at)?, worker))).min();
                prop_assert_eq!(deadlines.first_worker(), first);
                prop_assert_eq!(deadlines.first(), first.map(|(at, _)| at));
                for from in 0..=workers {
                    let due = (from..workers).find(|worker| list[*worker as usize].is_some_and(|at| at <= SimTime(now)));
                    prop_assert_eq!(deadlines.next_due(SimTime(now), from), due);
                }
            }
        }
    }
}
