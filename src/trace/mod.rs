//! Traces: what a workload asks for, before anything is sent.
//!
//! A *trace row* ([`TraceRow`]) is one request as a Mooncake JSONL file describes it: when it comes, how long its
//! prompt and its answer are, and a list of block hashes that says which prompts begin alike. [`TraceReader`],
//! [`read_rows`] and [`read_all`] read such files and say where a row is wrong, [`write_rows`] writes them,
//! [`TraceStats`] describes them.
//!
//! From rows to requests it is two steps: [`SessionPlanner`] turns rows into sessions of turns with a start and
//! delays, and [`PromptMaker`] turns hashes into prompts. Both take one row after another, so a long trace need not
//! be in memory; [`plan_sessions`] and [`TokenExpander`] do the same for one that is. A prompt is kept as a
//! [`PromptPlan`], a few numbers, and becomes tokens when it is sent; the prefix-ratio workload ([`prefix_ratio()`])
//! uses the same type.
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
mod numbers;
mod prefix_ratio;
mod prompt;
mod prompt_chain;
mod read;
mod row;
mod scan;
mod sessions;
mod stats;
mod write;

#[cfg(test)]
mod tests;

pub use bounds::{HitCurves, HitPoint, ReuseBounds, reuse_bounds};
pub use error::{Place, RowProblem, SessionProblem, TraceError, WorkloadError};
pub use expand::{PromptMaker, TokenExpander};
pub use generate::{ConversationOptions, conversation_like};
pub use prefix_ratio::{DEFAULT_VOCAB_TOKENS, PrefixRatioOptions, PrefixRequest, PrefixWorkload, prefix_ratio};
pub use prompt::{PromptPlan, Segment};
pub use prompt_chain::PromptHasher;
pub use read::{DEFAULT_BLOCK_TOKENS, OnBadRow, ReadOptions, ReadSummary, Trace, TraceReader, read_all, read_rows};
pub use row::TraceRow;
pub use sessions::{SessionPlan, SessionPlanner, TurnPlan, plan_sessions};
pub use stats::{LengthStats, TraceStats};
pub use write::write_rows;
