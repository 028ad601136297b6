//! Starting a fleet, serving it, and stopping it without leaving anything behind.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::engine::{self, ConfigError, EngineConfig};
use crate::ids::WorkerId;
use crate::live::backend::ModelFacts;
use crate::live::clock::LiveClock;
use crate::live::discovery::{DiscoveryError, Namespace, Registration, RegistrationGuard, process_started};
use crate::live::fleet_actor::{FleetActor, FleetCommand, WorkerShared};
use crate::live::grpc::engine::vllm_engine_server::VllmEngineServer;
use crate::live::http;
use crate::live::journal::Tape;
use crate::live::mocker::config::MockerConfig;
use crate::live::mocker::handoff;
use crate::live::mocker::service::WorkerService;
use crate::live::mocker::worker::{FleetState, WorkerBackend};
use crate::live::pacer::{Lateness, Pacer};
use crate::live::serve;

/// Time for the last messages of aborted requests to reach their clients.
const FLUSH_TIME: Duration = Duration::from_millis(300);

/// Why a fleet could not start.
#[derive(Debug, Error)]
pub enum MockerError {
    /// The engines' configuration is out of range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A port is taken, or the thread could not be started.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// The workers could not be registered.
    #[error(transparent)]
    Discovery(#[from] DiscoveryError),
    /// More workers than ports.
    #[error("`port` is {port}, expected room for {num_workers} consecutive ports below 65536")]
    Ports {
        /// The first port asked for.
        port: u16,
        /// Workers.
        num_workers: u32,
    },
}

/// A running fleet.
pub struct Fleet {
    pacer: Pacer<FleetCommand>,
    state: Arc<FleetState>,
    urls: Vec<String>,
    shared: Vec<Arc<WorkerShared>>,
    registrations: Vec<RegistrationGuard>,
    stop: CancellationToken,
    closed: CancellationToken,
    servers: TaskTracker,
    grace: Duration,
    /// A fleet that is dropped, or fails to start as a whole, leaves no server behind.
    _close: [DropGuard; 2],
}

/// What a fleet did, told when it has stopped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FleetSummary {
    /// Requests that ended with all their tokens.
    pub finished: u64,
    /// Requests that were aborted because the fleet stopped.
    pub aborted: u64,
}

/// Binds all ports, starts the engines and registers the workers. On an error nothing is left behind.
pub async fn start(config: &MockerConfig) -> Result<Fleet, MockerError> {
    start_recorded(config, None).await
}

/// As [`start`], with a journal of all that the engines are told.
pub async fn start_recorded(config: &MockerConfig, tape: Option<Tape<engine::Fleet>>) -> Result<Fleet, MockerError> {
    let listeners = bind_all(config).await?;
    let engine = EngineConfig { emit_kv_token_ids: true, speedup_ratio: 1.0, ..config.engine.clone() };
    let configs = vec![engine; config.num_workers as usize];
    let actor = FleetActor::new(&configs, config.speedup_ratio, tape)?;
    let shared = actor.shared();
    let clock = LiveClock::start(config.speedup_ratio);
    let pacer = Pacer::spawn("pacer", actor, clock)?;
    let (stop, closed) = (CancellationToken::new(), CancellationToken::new());
    let mut fleet = Fleet {
        _close: [stop.clone().drop_guard(), closed.clone().drop_guard()],
        pacer,
        state: Arc::default(),
        urls: Vec::new(),
        shared,
        registrations: Vec::new(),
        stop,
        closed,
        servers: TaskTracker::new(),
        grace: config.grace,
    };
    let facts = ModelFacts {
        model: config.model.clone(),
        max_model_len: config.engine.max_model_len.unwrap_or(config.announced_model_len),
        vocab_tokens: config.vocab_tokens,
        block_size: config.engine.block_size,
        speedup_ratio: config.speedup_ratio,
    };
    let namespace = Namespace::open(&config.namespace)?;
    for (index, listener) in listeners.into_iter().enumerate() {
        fleet.add_worker(index as u32, listener, config, &facts, &namespace)?;
    }
    Ok(fleet)
}

async fn bind_all(config: &MockerConfig) -> Result<Vec<TcpListener>, MockerError> {
    let mut listeners = Vec::new();
    for index in 0..config.num_workers {
        let port = match config.port {
            0 => 0,
            first => u32::from(first)
                .checked_add(index)
                .and_then(|port| u16::try_from(port).ok())
                .ok_or(MockerError::Ports { port: first, num_workers: config.num_workers })?,
        };
        listeners.push(serve::bind(SocketAddr::new(config.host, port)).await?);
    }
    Ok(listeners)
}

impl Fleet {
    fn add_worker(
        &mut self,
        index: u32,
        listener: TcpListener,
        config: &MockerConfig,
        facts: &ModelFacts,
        namespace: &Namespace,
    ) -> Result<(), MockerError> {
        let mut address = listener.local_addr()?;
        if address.ip().is_unspecified() {
            // Others on this machine cannot connect to "any address".
            address.set_ip(std::net::Ipv4Addr::LOCALHOST.into());
        }
        let url = format!("http://{address}");
        let backend = WorkerBackend::new(
            WorkerId(index),
            url.clone(),
            facts.clone(),
            config,
            self.pacer.handle(),
            self.shared[index as usize].clone(),
            self.state.clone(),
        );
        let engine = &config.engine;
        let service = WorkerService::new(backend.clone(), engine.max_num_seqs, engine.max_num_batched_tokens);
        let grpc = VllmEngineServer::new(service).max_decoding_message_size(usize::MAX);
        let routes = http::routes(backend.clone()).merge(handoff::routes(backend));
        let routes = serve::with_grpc(routes, grpc);
        self.servers.spawn(serve::serve(listener, routes, self.stop.clone(), self.closed.clone()));
        let registration = Registration {
            url: url.clone(),
            worker_index: index,
            model: facts.model.clone(),
            block_size: facts.block_size,
            num_gpu_blocks: engine.num_gpu_blocks,
            speedup_ratio: facts.speedup_ratio,
            pid: std::process::id(),
            process_started: process_started(std::process::id()),
            worker_type: engine.worker_type,
            version: env!("CARGO_PKG_VERSION").to_owned(),
        };
        self.registrations.push(namespace.register(&registration)?);
        self.urls.push(url);
        Ok(())
    }

    /// The workers' addresses, in order.
    pub fn urls(&self) -> &[String] {
        &self.urls
    }

    /// How late the pacer has been.
    pub fn lateness(&self) -> Lateness {
        self.pacer.handle().lateness()
    }

    /// What servers may read, by worker.
    pub fn shared(&self) -> &[Arc<WorkerShared>] {
        &self.shared
    }

    /// Stops: the registrations go first, then no request is taken, running ones get the grace period, the rest is
    /// aborted, and the ports are closed.
    pub async fn stop(mut self) -> FleetSummary {
        self.registrations.clear();
        self.state.drain();
        self.stop.cancel();
        self.servers.close();
        let mut aborted = 0;
        if tokio::time::timeout(self.grace, self.drained()).await.is_err() {
            aborted = self.state.live_requests();
            self.pacer.handle().send(FleetCommand::AbortAll);
            let _ = tokio::time::timeout(FLUSH_TIME, self.drained()).await;
        }
        let _ = tokio::time::timeout(FLUSH_TIME, self.servers.wait()).await;
        self.closed.cancel();
        self.servers.wait().await;
        let finished = self.shared.iter().map(|shared| shared.stats().finished_total).sum();
        FleetSummary { finished, aborted }
    }

    async fn drained(&self) {
        while self.state.live_requests() > 0 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}
