//! What shall be sent, when, and what became of it.
//!
//! [`workload`] is what shall be sent, [`plan`] the sessions and the arrival mode, [`arrivals`] the moments of a
//! rate, [`driver`] the machine that follows the plan, [`ledger`] the record of each request. The same driver runs in
//! the live load generator and in the replay.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod arrivals;
pub mod driver;
pub mod ledger;
pub mod plan;
pub mod workload;

#[cfg(test)]
mod tests;
