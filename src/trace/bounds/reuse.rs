//! How much of its prompts a fleet could take from its caches, whatever the router does.
//!
//! The rules of reuse are an engine's: blocks are counted from the start of the prompt; a block is reused whole or not
//! at all, and only together with all blocks before it; the last token of a prompt is always computed, so that of n
//! tokens at most `floor((n - 1) / block_size)` blocks are reused, while `floor(n / block_size)` are left in the cache.
//!
//! Requests are taken one after the other, in the order given. A request's blocks can be reused by the very next one:
//! those in flight count as ready. There is one cache for all workers. In between two requests it holds no more than
//! its capacity; during a request it may hold more, and blocks that still fill up, generated tokens and copies of one
//! block on several workers take no room. So no fleet whose workers have as many blocks together, and no router before
//! it, reuses more at first admission, as long as requests are admitted in this order. In another order the limited
//! cache can come out better or worse; the unlimited one by at most one block for each prompt whose length is
//! a multiple of the block size. What a preempted request takes from the cache when it comes back does not belong here,
//! and neither does a prompt that repeats what was generated.
//!
//! Both numbers are exact in engine blocks, for any trace block size. [`reuse_bounds`] never looks at single blocks:
//! they come in groups with the same last and the same next user, and a prompt has few of them.

use std::borrow::Borrow;

use super::keep::KeepIntervals;
use super::last_use::PrefixTree;
use super::ratio;
use crate::trace::prompt::PromptPlan;

/// Most prompt tokens that a fleet can reuse; see [`reuse_bounds`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReuseBounds {
    /// Length of all prompts together.
    pub input_tokens: u64,
    /// Tokens that one cache for all workers reuses if it never evicts.
    pub infinite_tokens: u64,
    /// Tokens that one cache for all workers reuses if it has the fleet's number of blocks and evicts, knowing what
    /// comes, the block that is needed last (Belady).
    pub belady_tokens: u64,
}

impl ReuseBounds {
    /// [`ReuseBounds::infinite_tokens`] as part of all prompt tokens, from 0 to 1; 0 without prompts.
    pub fn infinite_ratio(&self) -> f64 {
        ratio(self.infinite_tokens, self.input_tokens)
    }

    /// [`ReuseBounds::belady_tokens`] as part of all prompt tokens, from 0 to 1; 0 without prompts.
    pub fn belady_ratio(&self) -> f64 {
        ratio(self.belady_tokens, self.input_tokens)
    }
}

/// The most that a fleet can reuse of these prompts, which arrive in the order given.
///
/// `block_size` is the engines', in tokens (0 counts as 1); `capacity_blocks` is the number of blocks of all workers
/// together. All requests count, from the first on. Prompts are looked at one by one and not kept.
///
/// These are bounds for any router, under the assumptions that the module states: admission in this order, one cache
/// for the fleet, blocks shared from the moment their request arrives.
pub fn reuse_bounds<P: Borrow<PromptPlan>>(
    prompts: impl IntoIterator<Item = P>,
    block_size: u32,
    capacity_blocks: u64,
) -> ReuseBounds {
    let block_size = block_size.max(1);
    let mut tree = PrefixTree::new();
    let mut intervals = KeepIntervals::default();
    let mut parts = Vec::new();
    let (mut input_tokens, mut infinite_blocks) = (0, 0);
    for prompt in prompts {
        let prompt: &PromptPlan = prompt.borrow();
        input_tokens += u64::from(prompt.len_tokens());
        let reusable_blocks = prompt.len_tokens().saturating_sub(1) / block_size;
        let request = intervals.begin_request();
        tree.insert(request, prompt.segments(), &mut parts);
        // A block belongs to the part that holds its last token: only who went that far used the whole block.
        let mut blocks = 0;
        for part in &parts {
            let end_blocks = (part.end_tokens / block_size).min(reusable_blocks);
            if end_blocks > blocks {
                intervals.reuse_since(part.request, end_blocks - blocks);
                blocks = end_blocks;
            }
        }
        infinite_blocks += u64::from(blocks);
    }
    drop(tree);
    let mut belady_blocks = 0;
    intervals.belady(capacity_blocks, |_, blocks| belady_blocks += u64::from(blocks));
    let tokens = |blocks: u64| blocks * u64::from(block_size);
    ReuseBounds { input_tokens, infinite_tokens: tokens(infinite_blocks), belady_tokens: tokens(belady_blocks) }
}
