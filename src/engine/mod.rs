//! One mock engine, and a fleet of them: vLLM's iteration-level scheduler over a paged KV cache, in simulated time.
//!
//! An engine owns no clock. Requests enter by [`Engine::handle`], [`Engine::next_deadline`] says when it wants to be
//! woken, [`Engine::advance`] lets time pass; what happens is pushed to the caller's buffer with the moment at which it
//! happens. A step's work is decided when the step starts and becomes visible when it ends.
//!
//! Map: [`config`] the knobs, [`blocks`] the cache, [`sequence`] one request inside the engine, `schedule` who gets into
//! a step, [`timing`] how long it takes, [`machine`] the three verbs, [`fleet`] several engines as one machine.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod blocks;
mod coast;
pub mod config;
mod deadlines;
mod emit;
pub mod events;
pub mod fleet;
mod handoff;
pub mod hash;
pub mod machine;
pub mod messages;
mod pool_check;
pub mod prompt;
mod schedule;
pub mod sequence;
mod speculation;
pub mod stats;
pub mod timing;

pub use config::{ConfigError, EngineConfig, KvTransferTimingMode, PreemptionMode, SchedulingPolicy, WorkerType};
pub use events::{KvEvent, KvEventData, RemovedBlocks, RemovedPart, StoredBlock, StoredBlocks};
pub use fleet::{Fleet, FleetInput, FleetOutput, targets};
pub use machine::{Engine, EngineDetail, TokenGap};
pub use messages::{EngineInput, EngineOutput, EngineRequest, RejectReason};
pub use prompt::Prompt;
pub use speculation::AcceptRates;
pub use stats::EngineStats;
pub use timing::TimingModel;

#[cfg(test)]
mod tests;
