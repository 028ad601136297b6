//! The router's metrics page. Times are wall-clock seconds.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::live::gateway::gate::Gate;

/// Counters and histograms of the router.
#[derive(Debug)]
pub struct GatewayMetrics {
    /// Requests sent to each worker.
    pub routed: Family<[(&'static str, String); 1], Counter>,
    /// Requests sent to another worker after the first had failed them.
    pub rerouted: Counter,
    /// Requests that nobody could take.
    pub refused: Counter,
    /// Requests that a worker failed after its first token.
    pub failed: Counter,
    /// Leading prompt blocks that the chosen workers had.
    pub overlap_blocks: Counter,
    /// The most that any worker had.
    pub best_overlap_blocks: Counter,
    /// Wall seconds to decide: hashing the prompt and choosing; without requests that waited in the queue.
    pub decision: Histogram,
    /// Wall seconds in the queue, of those that waited there.
    pub queue_wait: Histogram,
    /// Wall seconds from the request's arrival here to its first token.
    pub time_to_first_token: Histogram,
}

impl Default for GatewayMetrics {
    fn default() -> Self {
        GatewayMetrics {
            routed: Family::default(),
            rerouted: Counter::default(),
            refused: Counter::default(),
            failed: Counter::default(),
            overlap_blocks: Counter::default(),
            best_overlap_blocks: Counter::default(),
            decision: Histogram::new(exponential_buckets(1e-6, 2.0, 16)),
            queue_wait: Histogram::new(exponential_buckets(1e-3, 2.0, 18)),
            time_to_first_token: Histogram::new(exponential_buckets(1e-3, 2.0, 18)),
        }
    }
}

impl GatewayMetrics {
    /// The page, in the OpenMetrics text format.
    pub fn page(&self, gate: &Gate) -> String {
        let mut registry = Registry::with_prefix("mockfleet_router");
        let figures = gate.figures();
        let workers = gate.workers().len() as u64;
        for (name, help, value) in [
            ("workers", "Workers that take requests", workers),
            ("active_requests", "Requests in flight", figures.active_requests),
            ("queued_requests", "Requests that wait in the router for a worker", figures.queued_requests),
            ("index_blocks", "Distinct KV blocks in the index", figures.cached_blocks),
        ] {
            registry.register(name, help, ConstGauge::new(value as f64));
        }
        for (name, help, value) in [
            ("kv_events_applied", "Cache events taken into the index", figures.applied_events),
            ("kv_events_orphaned", "Stored events whose parent block was not known", figures.orphan_events),
        ] {
            registry.register(name, help, ConstCounter::new(value));
        }
        registry.register("requests", "Requests sent to a worker", self.routed.clone());
        for (name, help, counter) in [
            ("rerouted_requests", "Requests sent to another worker after one had failed them", &self.rerouted),
            ("refused_requests", "Requests that no worker could take", &self.refused),
            ("failed_requests", "Requests that a worker failed after its first token", &self.failed),
            ("overlap_blocks", "Leading prompt blocks in the chosen workers' caches", &self.overlap_blocks),
            ("best_overlap_blocks", "The same for the worker that had the most", &self.best_overlap_blocks),
        ] {
            registry.register(name, help, counter.clone());
        }
        registry.register("decision_seconds", "Hashing a prompt and choosing its worker", self.decision.clone());
        let wait = self.queue_wait.clone();
        registry.register("queue_wait_seconds", "In the queue, of requests that waited there", wait);
        let ttft = self.time_to_first_token.clone();
        registry.register("time_to_first_token_seconds", "From a request's arrival to its first token", ttft);
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut page, &registry);
        page
    }
}
