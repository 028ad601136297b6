//! Traces: what a workload asks for, before anything is sent.
//!
//! A *trace row* ([`TraceRow`]) is one request as a Mooncake JSONL file describes it: when it comes, how long its
//! prompt and its answer are, and a list of block hashes that says which prompts begin alike. [`TraceReader`] and
//! [`read_all`] read such files and say where a row is wrong, [`write_rows`] writes them, [`TraceStats`] describes
//! them.
//!
//! From rows to requests it is two steps: [`plan_sessions`] turns rows into sessions of turns with a start and delays,
//! and [`TokenExpander`] turns hashes into prompts. A prompt is kept as a [`PromptPlan`], a few numbers, and becomes
//! tokens when it is sent; the prefix-ratio workload ([`prefix_ratio()`]) uses the same type.
//!
//! [`conversation_like`] generates a trace that reuses prefixes the way the public Mooncake conversation trace does.
//!
//! [`reuse_bounds`] and [`HitCurves`] tell what caches could reuse of it at best.
//!
//! The room is pure: it reads and writes the files it is told to, knows no clock, and draws only from the seeds it is
//! given.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod bounds;
mod error;
mod expand;
mod generate;
mod locate;
mod prefix_ratio;
mod prompt;
mod read;
mod row;
mod sessions;
mod stats;
mod write;

#[cfg(test)]
mod tests;

pub use bounds::{HitCurves, HitPoint, ReuseBounds, reuse_bounds};
pub use error::{Place, RowProblem, SessionProblem, TraceError, WorkloadError};
pub use expand::TokenExpander;
pub use generate::{ConversationOptions, conversation_like};
pub use prefix_ratio::{DEFAULT_VOCAB_TOKENS, PrefixRatioOptions, PrefixRequest, PrefixWorkload, prefix_ratio};
pub use prompt::{PromptPlan, Segment};
pub use read::{DEFAULT_BLOCK_TOKENS, OnBadRow, ReadOptions, Trace, TraceReader, read_all};
pub use row::TraceRow;
pub use sessions::{SessionPlan, TurnPlan, plan_sessions};
pub use stats::{LengthStats, TraceStats};
pub use write::write_rows;
