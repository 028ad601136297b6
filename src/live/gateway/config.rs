//! What a live router needs to know.

use std::net::SocketAddr;
use std::time::Duration;

use crate::router::RouterConfig;

/// A router, resolved and checked.
#[derive(Clone, Debug, PartialEq)]
pub struct GatewayConfig {
    /// How workers are chosen.
    pub router: RouterConfig,
    /// Where to listen.
    pub address: SocketAddr,
    /// The namespace in which workers are looked for.
    pub namespace: String,
    /// Workers by address; if there are any, nobody is looked for.
    pub workers: Vec<String>,
    /// Block size that the workers must have, in tokens; `None` takes theirs.
    pub block_size: Option<u32>,
    /// How long to wait for the first worker (wall time).
    pub worker_timeout: Duration,
    /// How long requests in flight may go on after the signal to stop (wall time).
    pub grace: Duration,
}
