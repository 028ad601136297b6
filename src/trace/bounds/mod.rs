//! What a cache could reuse of a workload, at best: lines to hold the results of routers and engines against.
//!
//! [`reuse_bounds`] counts in an engine's blocks and rules, over all requests, for one cache of the whole fleet:
//! without limit, and of a given size. [`HitCurves`] counts in the trace's own blocks, after a warm-up, for several
//! sizes and three rules of eviction; published curves are made that way.
//!
//! Both rest on two facts about prefixes. Whoever uses a block uses all blocks before it, so from the start of a prompt
//! to its end the blocks were last used ever longer ago, in a few long groups; `last_use` finds these groups. And a
//! reuse asks of a cache only that it keeps the block from its last use on, so the best choice of what to keep is a
//! choice among intervals; `keep` makes it.

mod hit_curves;
mod keep;
mod last_use;
mod reuse;

pub use hit_curves::{HitCurves, HitPoint};
pub use reuse::{ReuseBounds, reuse_bounds};

/// A part of a whole, 0 if the whole is.
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}
