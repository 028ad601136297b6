//! What an engine shows of itself: the gauges and counters that dashboards and routers read.

use serde::Serialize;

/// A snapshot of one engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct EngineStats {
    /// Sequences in the running batch.
    pub running: u32,
    /// Sequences in the waiting queue.
    pub waiting: u32,
    /// KV blocks that running sequences hold.
    pub active_blocks: u32,
    /// KV blocks that nobody holds but that still serve prefix hits.
    pub inactive_blocks: u32,
    /// KV blocks in all.
    pub total_blocks: u32,
    /// Preemptions since the start.
    pub preemptions_total: u64,
    /// Steps since the start.
    pub steps_total: u64,
    /// Steps whose batch lies outside the tables of the timing model and was priced at their edge.
    pub clamped_steps_total: u64,
    /// Prompt tokens of all admitted requests (first admissions).
    pub prompt_tokens_total: u64,
    /// Prompt tokens of these that came from the prefix cache.
    pub reused_tokens_total: u64,
    /// Output tokens made.
    pub generated_tokens_total: u64,
    /// Requests that ended with all their tokens.
    pub finished_total: u64,
    /// Requests that could never run.
    pub rejected_total: u64,
    /// Requests cancelled by their client.
    pub cancelled_total: u64,
}

impl EngineStats {
    /// Share of the KV blocks that running sequences hold, 0 to 1.
    pub fn kv_cache_usage(&self) -> f64 {
        f64::from(self.active_blocks) / f64::from(self.total_blocks.max(1))
    }
}
