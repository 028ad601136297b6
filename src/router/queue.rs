//! Requests that wait in the router because every worker has enough prompts to compute.
//!
//! The queue keeps them in the order in which they leave: strict tiers first, then the policy's score, then as they
//! came. A request's place is fixed when it comes, and so is what was known of the caches then; loads are read when it
//! leaves. Source: NVIDIA Dynamo 1.6.1, scheduling/policy (formulas only).

use std::cmp::Ordering;
use std::collections::BTreeMap;

use rustc_hash::FxHashMap;

use crate::ids::{RequestId, WorkerId};
use crate::router::config::QueuePolicy;
use crate::router::route::RouteRequest;
use crate::time::SimTime;

/// A request that waits.
#[derive(Clone, Debug)]
pub struct Waiting {
    /// The request.
    pub request: RouteRequest,
    /// When it came.
    pub since: SimTime,
    /// The caches' overlaps as they were then, ascending by worker.
    pub overlaps: Vec<(WorkerId, u32)>,
}

/// A place in the queue; the least one leaves first.
#[derive(Clone, Copy, Debug)]
struct Place {
    strict_priority: u32,
    score: f64,
    sequence: u64,
}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        let tier = other.strict_priority.cmp(&self.strict_priority);
        tier.then(other.score.total_cmp(&self.score)).then(self.sequence.cmp(&other.sequence))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Place {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Place {}

/// How soon a request that came at `since` shall leave: the larger, the sooner.
///
/// `jump` is its priority, which only helps: below 0 it counts as 0. `uncached_tokens` is what the best worker's cache
/// leaves of the prompt.
pub fn score(policy: QueuePolicy, since: SimTime, jump: f64, uncached_tokens: u32) -> f64 {
    let jump = jump.max(0.0);
    let since_s = since.as_ms() / 1000.0;
    match policy {
        QueuePolicy::Fcfs => jump - since_s,
        QueuePolicy::Lcfs => jump + since_s,
        QueuePolicy::Wspt => (1.0 + jump) / f64::from(uncached_tokens.max(1)),
    }
}

/// The queue.
#[derive(Clone, Debug, Default)]
pub struct RequestQueue {
    entries: BTreeMap<Place, Waiting>,
    places: FxHashMap<RequestId, Place>,
    pushed: u64,
}

impl RequestQueue {
    /// Takes a request in at the place that tier and score give it; an earlier one of the same name is dropped.
    pub fn push(&mut self, waiting: Waiting, score: f64) {
        self.pushed += 1;
        let place = Place { strict_priority: waiting.request.strict_priority, score, sequence: self.pushed };
        if let Some(old) = self.places.insert(waiting.request.id, place) {
            self.entries.remove(&old);
        }
        self.entries.insert(place, waiting);
    }

    /// Takes a request out; `None` if it does not wait.
    pub fn remove(&mut self, id: RequestId) -> Option<Waiting> {
        let place = self.places.remove(&id)?;
        self.entries.remove(&place)
    }

    /// The requests in the order in which they leave.
    pub fn iter(&self) -> impl Iterator<Item = &Waiting> {
        self.entries.values()
    }

    /// Forgets what a worker's cache held.
    pub fn forget_worker(&mut self, worker: WorkerId) {
        for waiting in self.entries.values_mut() {
            waiting.overlaps.retain(|(holder, _)| *holder != worker);
        }
    }

    /// Requests that wait.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// True if nobody waits.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests;
