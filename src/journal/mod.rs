//! The journal of a machine: all that it was told in a run and all that it said, to let it do the same again.
//!
//! A live run is not repeatable, since real time decides who arrives first. But the machines are pure: told the same
//! things in the same order with the same simulated times, they say the same. So what a machine is told live is written
//! down, one JSON line a call, with what it answered; the machine can then be built anew and told it again, without
//! sockets and without waiting, and every answer must be the written one, byte by byte. A live oddity becomes a test.
//!
//! Map: [`machine`] what can be journaled, [`mod@write`] and [`mod@replay`] the two ways of the format, `text` how inputs
//! look in it. docs/journal.md has every key. The thread that writes a live machine's journal is in `live::journal`.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod error;
mod line;
pub mod machine;
pub mod replay;
mod text;
pub mod write;

pub use error::{Difference, JournalError};
pub use machine::{DriverSetup, FleetSetup, Machine, RouterSetup};
pub use replay::{Cut, Replayed, replay};
pub use write::{JournalCounts, JournalWriter};

#[cfg(test)]
mod tests;
