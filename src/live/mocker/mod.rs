//! A fleet of workers in one process, each with a port of its own.
//!
//! [`run`] starts the fleet and serves until told to stop; [`worker`] is one worker as a backend, [`service`] its gRPC
//! calls, [`metrics`] its metrics page, [`handoff`] what prefill and decode workers say to one another.

pub mod config;
pub mod handoff;
pub mod metrics;
pub mod run;
pub mod service;
pub mod worker;

pub use config::MockerConfig;
pub use run::{Fleet, MockerError, start, start_recorded};
