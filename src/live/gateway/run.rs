//! Starting a router, serving it, and stopping it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::mpsc;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::live::discovery::{DiscoveryError, Namespace};
use crate::live::gateway::backend::GatewayBackend;
use crate::live::gateway::config::GatewayConfig;
use crate::live::gateway::gate::Gate;
use crate::live::gateway::service::GatewayService;
use crate::live::gateway::watch;
use crate::live::grpc::engine::vllm_engine_server::VllmEngineServer;
use crate::live::journal::Tape;
use crate::live::serve;
use crate::router::{Router, RouterConfigError};

/// Why a router could not start.
#[derive(Debug, Error)]
pub enum GatewayError {
    /// The router's configuration is out of range.
    #[error(transparent)]
    Config(#[from] RouterConfigError),
    /// The port is taken.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The namespace cannot be read.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// Nobody to send requests to.
    #[error(
        "no worker in namespace `{namespace}` within {waited_s} s\n  hint: start `mocker --namespace {namespace}`, or name \
         workers with `--workers URL`"
    )]
    NoWorker {
        /// Where they were looked for.
        namespace: String,
        /// For how long.
        waited_s: f64,
    },
    /// None of the named workers answers.
    #[error("none of the workers {workers} can be reached within {waited_s} s")]
    Unreachable {
        /// Their addresses.
        workers: String,
        /// For how long.
        waited_s: f64,
    },
    /// A worker does not fit the others, or the router's own settings.
    #[error("{0}")]
    Mismatch(String),
}

/// A running router.
pub struct Gateway {
    backend: GatewayBackend,
    address: SocketAddr,
    links: CancellationToken,
    stop: CancellationToken,
    closed: CancellationToken,
    tasks: TaskTracker,
    servers: TaskTracker,
    grace: Duration,
    /// A router that is dropped leaves nothing running.
    _close: [DropGuard; 3],
}

/// Binds the port, finds the first worker and serves.
pub async fn start(config: &GatewayConfig) -> Result<Gateway, GatewayError> {
    start_recorded(config, None).await
}

/// As [`start`], with a journal of all that the router is told.
pub async fn start_recorded(config: &GatewayConfig, tape: Option<Tape<Router>>) -> Result<Gateway, GatewayError> {
    config.router.validate_live()?;
    let listener = serve::bind(config.address).await?;
    let gate = Gate::new(config.router.clone(), config.block_size, tape);
    let links = CancellationToken::new();
    let tasks = TaskTracker::new();
    let (mismatches, mut mismatched) = mpsc::unbounded_channel();
    if config.workers.is_empty() {
        let namespace = Namespace::open(&config.namespace)?;
        tasks.spawn(watch::links_in(gate.clone(), namespace, tasks.clone(), links.clone(), mismatches));
    } else {
        watch::links_to(&gate, &config.workers, &tasks, &links, &mismatches);
    }
    if let Err(error) = first_workers(config, &gate, &mut mismatched).await {
        links.cancel();
        tasks.close();
        tasks.wait().await;
        return Err(error);
    }
    // Later on a worker that does not fit is left out, and said so.
    tasks.spawn(async move {
        while let Some(problem) = mismatched.recv().await {
            tracing::error!("{problem}; it gets no requests");
        }
    });
    let backend = GatewayBackend::new(gate);
    let service = VllmEngineServer::new(GatewayService::new(backend.clone())).max_decoding_message_size(usize::MAX);
    let (stop, closed) = (CancellationToken::new(), CancellationToken::new());
    let gateway = Gateway {
        _close: [links.clone(), stop.clone(), closed.clone()].map(CancellationToken::drop_guard),
        address: listener.local_addr()?,
        links,
        stop,
        closed,
        tasks,
        servers: TaskTracker::new(),
        grace: config.grace,
        backend: backend.clone(),
    };
    let routes = serve::with_grpc(crate::live::http::routes(backend), service);
    gateway.servers.spawn(serve::serve(listener, routes, gateway.stop.clone(), gateway.closed.clone()));
    Ok(gateway)
}

/// Waits for the first worker, and a moment more for those that were started with it.
async fn first_workers(
    config: &GatewayConfig,
    gate: &Arc<Gate>,
    mismatched: &mut mpsc::UnboundedReceiver<String>,
) -> Result<(), GatewayError> {
    let mut count = gate.worker_count();
    let waited_s = config.worker_timeout.as_secs_f64();
    let first = tokio::select! {
        first = tokio::time::timeout(config.worker_timeout, count.wait_for(|workers| *workers > 0)) => first.is_ok(),
        Some(problem) = mismatched.recv() => return Err(GatewayError::Mismatch(problem)),
    };
    if !first && !config.workers.is_empty() {
        return Err(GatewayError::Unreachable { workers: config.workers.join(", "), waited_s });
    }
    if !first {
        return Err(GatewayError::NoWorker { namespace: config.namespace.clone(), waited_s });
    }
    let wanted = match config.workers.len() {
        0 => Namespace::open(&config.namespace)?.list()?.len(),
        named => named,
    };
    tokio::select! {
        _ = tokio::time::timeout(Duration::from_millis(500), count.wait_for(|workers| *workers >= wanted)) => Ok(()),
        Some(problem) = mismatched.recv() => Err(GatewayError::Mismatch(problem)),
    }
}

impl Gateway {
    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The router as a backend.
    pub fn backend(&self) -> &GatewayBackend {
        &self.backend
    }

    /// Stops: no new connection, requests in flight get the grace period, then everything is closed.
    pub async fn stop(self) {
        self.stop.cancel();
        self.servers.close();
        if tokio::time::timeout(self.grace, self.servers.wait()).await.is_err() {
            tracing::warn!("requests in flight are cut off");
        }
        self.closed.cancel();
        self.servers.wait().await;
        self.links.cancel();
        self.tasks.close();
        self.tasks.wait().await;
    }
}
