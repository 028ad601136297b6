//! What a request would cost on a worker, in blocks; the least cost wins.
//!
//! ```text
//! credit   = overlap_score_credit × overlap blocks
//!            / (1 + decay × (active prefill tokens − the least of all candidates) / block size / the prompt's blocks)
//! adjusted = max(0, (active prefill tokens + prompt tokens) / block size − credit)
//! cost     = prefill_load_scale × adjusted
//!            + active decode blocks + the prompt's full blocks that are not active there yet
//!            + decode_active_request_weight × active requests
//! ```
//!
//! The credit may eat into the worker's backlog; the clamp comes before the scale. Where prefill tokens are not tracked,
//! `adjusted` is 0. Source: NVIDIA Dynamo 1.6.1, scheduling/selector (formula only).

use serde::Serialize;

use crate::router::config::RouterConfig;

/// What does not depend on the worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestCost {
    /// Prompt length.
    pub input_tokens: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// The least [`CostTerms::active_prefill_tokens`] of all candidates.
    pub least_prefill_tokens: u64,
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
    /// Requests in flight on the worker.
    pub active_requests: u32,
    /// Prefill blocks that the cache saves: overlap times credit, after its decay.
    pub credit_blocks: f64,
    /// Prefill blocks after the credit, not below 0, before the scale.
    pub adjusted_prefill_blocks: f64,
    /// The cost, in blocks.
    pub cost: f64,
}

impl CostTerms {
    /// Fills in the three results from the five facts.
    pub fn priced(mut self, request: RequestCost, config: &RouterConfig) -> Self {
        let block_size = f64::from(request.block_size);
        let track_prefill = config.router_track_prefill_tokens;
        let decay = if track_prefill && config.overlap_score_credit_decay > 0.0 {
            let prompt_blocks = request.input_tokens.div_ceil(request.block_size).max(1);
            let backlog_tokens = self.active_prefill_tokens.saturating_sub(request.least_prefill_tokens);
            let backlog_prompts = backlog_tokens as f64 / block_size / f64::from(prompt_blocks);
            1.0 / (1.0 + config.overlap_score_credit_decay * backlog_prompts)
        } else {
            1.0
        };
        self.credit_blocks = config.overlap_score_credit * decay * f64::from(self.overlap_blocks);
        let raw_blocks = if track_prefill {
            // An overlap beyond the prompt lengthens it, as in the reference; the index never tells of one.
            let cached_tokens = u64::from(self.overlap_blocks) * u64::from(request.block_size);
            let own_tokens = u64::from(request.input_tokens).max(cached_tokens);
            (self.active_prefill_tokens + own_tokens) as f64 / block_size
        } else {
            0.0
        };
        self.adjusted_prefill_blocks = (raw_blocks - self.credit_blocks).max(0.0);
        let decode_blocks = f64::from(self.active_decode_blocks) + f64::from(self.additional_active_blocks);
        let requests_blocks = config.decode_active_request_weight * f64::from(self.active_requests);
        self.cost = config.prefill_load_scale * self.adjusted_prefill_blocks + decode_blocks + requests_blocks;
        self
    }
}
