//! What a request would cost on a worker, in blocks; the least cost wins.
//!
//! cost = prefill_load_scale × max(0, (active prefill tokens + input tokens) / block size − credit × overlap blocks)
//!        + active decode blocks + the request's own full blocks that are not active there yet.
//!
//! The credit may eat into the worker's backlog; the clamp comes before the scale. Source: NVIDIA Dynamo 1.6.1,
//! scheduling/selector (formula only).

use serde::Serialize;

use crate::router::config::RouterConfig;

/// What does not depend on the worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestCost {
    /// Prompt length.
    pub input_tokens: u32,
    /// Tokens in a block.
    pub block_size: u32,
}

/// What the router knows of a candidate, and what follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct CostTerms {
    /// Leading blocks of the prompt that the worker's cache holds.
    pub overlap_blocks: u32,
    /// Prompt tokens that were sent to the worker and have not yielded a first token yet, less what was cached.
    pub active_prefill_tokens: u64,
    /// Distinct blocks of the prompts in flight on the worker.
    pub active_decode_blocks: u32,
    /// Full blocks of this prompt that no request in flight on the worker shares.
    pub additional_active_blocks: u32,
    /// Prefill blocks after the credit, not below 0, before the scale.
    pub adjusted_prefill_blocks: f64,
    /// The cost, in blocks.
    pub cost: f64,
}

impl CostTerms {
    /// Fills in the two results from the four facts.
    pub fn priced(mut self, request: RequestCost, config: &RouterConfig) -> Self {
        let raw_tokens = self.active_prefill_tokens + u64::from(request.input_tokens);
        let raw_blocks = raw_tokens as f64 / f64::from(request.block_size);
        let credit = config.overlap_score_credit * f64::from(self.overlap_blocks);
        self.adjusted_prefill_blocks = (raw_blocks - credit).max(0.0);
        let decode_blocks = f64::from(self.active_decode_blocks) + f64::from(self.additional_active_blocks);
        self.cost = config.prefill_load_scale * self.adjusted_prefill_blocks + decode_blocks;
        self
    }
}
