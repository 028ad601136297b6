//! The offline replay: the very machines that run live, joined by a clock that jumps.
//!
//! [`world`] wires driver, router and fleet and orders what happens at one moment; [`mod@replay`] turns a workload into records.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod explain;
pub mod life;
pub mod replay;
pub mod requests_out;
pub mod world;

pub use replay::{ReplayConfig, ReplayError, ReplayResult, replay};
