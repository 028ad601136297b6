//! The router: which worker gets a request, and why.
//!
//! A pure machine, the same live and in the replay. It knows the workers' caches from their events ([`index`]), their load
//! from its own bookings ([`load`]), turns both into a cost per candidate ([`cost`]) and lets a policy choose
//! ([`policy`]); while all workers are busy requests may have to wait ([`queue`]). [`route`] is the machine that holds
//! them together, [`explain`] a decision with all its reasons.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod config;
pub mod cost;
pub mod explain;
pub mod index;
pub mod load;
pub mod policy;
pub mod queue;
pub mod route;
mod runs;

pub use config::{QueuePolicy, RouterConfig, RouterConfigError, RouterMode, TieBreak};
pub use cost::{CostTerms, RequestCost};
pub use explain::{Explained, Pool};
pub use index::BlockIndex;
pub use route::{Decision, RouteRequest, Router, RouterInput, RouterOutput};

#[cfg(test)]
mod tests;
