//! The offline replay: the very machines that run live, joined by a clock that jumps.
//!
//! [`config`] says what to simulate, [`world`] wires driver, routers and workers and orders what happens at one moment; [`mod@replay`] turns a workload into records.
//! What became of a request is a [`life`]; three writers show what happened: [`requests_out`] request by request,
//! [`timeline`] as a picture of workers and requests, [`mod@explain`] routing decision by routing decision.
//! Of a replay that gets no further, a [`diagnosis`] says who waits for what.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod config;
pub mod diagnosis;
pub mod explain;
pub mod life;
pub mod lives;
pub mod replay;
pub mod requests_out;
pub mod timeline;
pub mod world;

pub use config::{FleetConfig, ReplayConfig};
pub use replay::{ReplayError, ReplayResult, replay, replay_observed};
