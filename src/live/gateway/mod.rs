//! The router as a server: clients on one side, workers on the other.
//!
//! [`gate`] holds the pure router behind a lock, [`link`] keeps the connection to one worker and feeds its cache events
//! in, [`watch`] finds workers that come and go, [`backend`] carries a request to its worker and the tokens back,
//! [`service`] is the gRPC surface, [`metrics`] the metrics page, [`run`] starts and stops it all.

pub mod backend;
pub mod config;
pub mod gate;
pub mod link;
pub mod metrics;
pub mod run;
pub mod service;
pub mod watch;

pub use config::GatewayConfig;
pub use run::{Gateway, GatewayError, start, start_recorded};
