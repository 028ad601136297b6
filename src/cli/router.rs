//! `router`: which worker gets a request.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use crate::cli::journal::JournalSettings;
use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, Program, runtime, say, seconds};
use crate::live::discovery::{DiscoveryError, parse_worker_list};
use crate::live::gateway::{GatewayConfig, GatewayError, start_recorded};
use crate::live::shutdown::StopSignal;
use crate::router::{QueuePolicy, RouterConfig, RouterMode, TieBreak};

/// Route requests to the workers of a fleet: OpenAI's HTTP API and gRPC on one port.
///
/// Workers on this machine are found by themselves; `--workers` names others. With `--router-mode kv` a request goes where
/// its prefix is cached, unless that worker has too much to do.
#[derive(Debug, Parser)]
#[command(name = "router", version, max_term_width = 110, allow_negative_numbers = true)]
pub struct RouterArgs {
    /// Read settings from a TOML or YAML file with the keys of the flags; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
    /// Accepted and needless: a router learns the workers' caches anew at every start.
    #[arg(long, hide = true)]
    router_reset_states: bool,
    #[command(flatten)]
    settings: GatewaySettings,
    #[command(flatten)]
    routing: RoutingSettings,
    #[command(flatten)]
    journal: JournalSettings,
}

/// What flags and file may set of the server.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct GatewaySettings {
    /// Address to listen on [default: 127.0.0.1].
    #[arg(long, alias = "http-host", value_name = "ADDRESS", help_heading = "Server")]
    host: Option<IpAddr>,
    /// Port for HTTP and gRPC [default: 8000].
    #[arg(long, alias = "http-port", value_name = "PORT", help_heading = "Server")]
    port: Option<u16>,
    /// Seconds of wall clock that requests in flight may go on after SIGINT or SIGTERM [default: 5].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SECONDS", help_heading = "Server")]
    grace_s: Option<f64>,
    /// Look for workers in this namespace [default: default].
    #[arg(long, value_name = "NAME", help_heading = "Workers")]
    namespace: Option<String>,
    /// Use these workers and look for no others, e.g. http://127.0.0.1:50051.
    #[arg(long, value_name = "URL", num_args = 1.., value_delimiter = ',', help_heading = "Workers")]
    workers: Option<Vec<String>>,
    /// Fail unless the workers have this block size [default: theirs].
    #[arg(long, alias = "kv-cache-block-size", value_name = "TOKENS", help_heading = "Workers")]
    block_size: Option<u32>,
    /// Seconds of wall clock to wait for the first worker [default: 5].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SECONDS", help_heading = "Workers")]
    worker_timeout_s: Option<f64>,
}

/// What flags and file may set of the choice of workers.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct RoutingSettings {
    /// How a worker is chosen: round-robin, random or kv [default: round-robin].
    #[arg(long, value_name = "MODE", help_heading = "Routing")]
    pub router_mode: Option<RouterMode>,
    /// Blocks of prefill work that one cached block saves [default: 1].
    #[arg(long, value_parser = crate::cli::finite, alias = "router-kv-overlap-score-credit", value_name = "CREDIT", help_heading = "Routing")]
    pub overlap_score_credit: Option<f64>,
    /// How fast the credit fades with a worker's prefill backlog [default: 0].
    #[arg(long, value_parser = crate::cli::finite, alias = "router-kv-overlap-score-credit-decay", value_name = "DECAY", help_heading = "Routing")]
    pub overlap_score_credit_decay: Option<f64>,
    /// Weight of prefill blocks against decode blocks [default: 1].
    #[arg(long, value_parser = crate::cli::finite, alias = "router-prefill-load-scale", value_name = "SCALE", help_heading = "Routing")]
    pub prefill_load_scale: Option<f64>,
    /// Blocks that each request in flight on a worker costs [default: 0].
    #[arg(long, value_parser = crate::cli::finite, alias = "router-decode-active-request-weight", value_name = "BLOCKS", help_heading = "Routing")]
    pub decode_active_request_weight: Option<f64>,
    /// Spread of the choice: 0 takes the least cost, 1 draws by costs normalised to their range [default: 0].
    #[arg(long, value_parser = crate::cli::finite, value_name = "TEMPERATURE", help_heading = "Routing")]
    pub router_temperature: Option<f64>,
    /// Count the blocks of prompts in flight as load [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Routing")]
    pub router_track_active_blocks: Option<bool>,
    /// Count prompt tokens without a first token yet as load [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Routing")]
    pub router_track_prefill_tokens: Option<bool>,
    /// A prefix that is in flight on a worker costs nothing there a second time [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Routing")]
    pub router_assume_kv_reuse: Option<bool>,
    /// Let requests wait while every worker's uncached prompt tokens without a first token are more than this fraction
    /// of its max-num-batched-tokens [default: no queue].
    #[arg(long, value_parser = crate::cli::finite, value_name = "FRACTION", help_heading = "Routing")]
    pub router_queue_threshold: Option<f64>,
    /// Who leaves the queue first: fcfs, wspt or lcfs [default: fcfs].
    #[arg(long, value_name = "POLICY", help_heading = "Routing")]
    pub router_queue_policy: Option<QueuePolicy>,
    /// Know caches from the workers' events; false: only in a replay, without effect there [default: true].
    #[arg(long, alias = "router-kv-events", value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Routing")]
    pub use_kv_events: Option<bool>,
    /// Count output blocks, too: only in a replay, without effect there [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Routing")]
    pub router_track_output_blocks: Option<bool>,
    /// Seconds to believe in blocks that no event has told of: only in a replay, without effect there [default: none].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SECONDS", help_heading = "Routing")]
    pub router_predicted_ttl_secs: Option<f64>,
    /// Of workers with the same least cost take any, by seed, or the first: seeded or lowest [default: seeded].
    #[arg(long, value_name = "CHOICE", help_heading = "Routing")]
    pub tie_break: Option<TieBreak>,
    /// Seed of ties and of random choices [default: 0].
    #[arg(long, value_name = "N", help_heading = "Routing")]
    pub seed: Option<u64>,
}

impl RoutingSettings {
    /// The router that is meant, checked.
    pub fn resolve(&self) -> Result<RouterConfig, Failure> {
        let default = RouterConfig::default();
        let config = RouterConfig {
            router_mode: self.router_mode.unwrap_or(default.router_mode),
            overlap_score_credit: self.overlap_score_credit.unwrap_or(default.overlap_score_credit),
            overlap_score_credit_decay: self.overlap_score_credit_decay.unwrap_or(default.overlap_score_credit_decay),
            prefill_load_scale: self.prefill_load_scale.unwrap_or(default.prefill_load_scale),
            decode_active_request_weight: self
                .decode_active_request_weight
                .unwrap_or(default.decode_active_request_weight),
            router_temperature: self.router_temperature.unwrap_or(default.router_temperature),
            router_track_active_blocks: self.router_track_active_blocks.unwrap_or(default.router_track_active_blocks),
            router_track_prefill_tokens: self
                .router_track_prefill_tokens
                .unwrap_or(default.router_track_prefill_tokens),
            router_assume_kv_reuse: self.router_assume_kv_reuse.unwrap_or(default.router_assume_kv_reuse),
            router_queue_threshold: self.router_queue_threshold.or(default.router_queue_threshold),
            router_queue_policy: self.router_queue_policy.unwrap_or(default.router_queue_policy),
            use_kv_events: self.use_kv_events.unwrap_or(default.use_kv_events),
            router_track_output_blocks: self.router_track_output_blocks.unwrap_or(default.router_track_output_blocks),
            router_predicted_ttl_secs: self.router_predicted_ttl_secs.or(default.router_predicted_ttl_secs),
            tie_break: self.tie_break.unwrap_or(default.tie_break),
            seed: self.seed.unwrap_or(default.seed),
        };
        config.validate().map_err(Failure::usage)?;
        Ok(config)
    }
}

impl RouterArgs {
    /// The router that is meant, checked, and its journal.
    pub fn resolve(self) -> Result<(GatewayConfig, JournalSettings), Failure> {
        let mut file = SettingsFile::read(self.config.as_deref()).map_err(Failure::usage)?;
        let settings = file.layer(self.settings).map_err(Failure::usage)?;
        let routing = file.layer(self.routing).map_err(Failure::usage)?;
        let journal = file.layer(self.journal).map_err(Failure::usage)?;
        file.finish().map_err(Failure::usage)?;
        let host = settings.host.unwrap_or(Ipv4Addr::LOCALHOST.into());
        let config = GatewayConfig {
            router: routing.resolve()?,
            address: SocketAddr::new(host, settings.port.unwrap_or(8000)),
            namespace: settings.namespace.unwrap_or_else(|| "default".to_owned()),
            workers: parse_worker_list(&settings.workers.unwrap_or_default()).map_err(Failure::usage)?,
            block_size: settings.block_size,
            worker_timeout: Duration::from_secs_f64(seconds(
                "worker_timeout_s",
                settings.worker_timeout_s.unwrap_or(5.0),
            )?),
            grace: Duration::from_secs_f64(seconds("grace_s", settings.grace_s.unwrap_or(5.0))?),
        };
        Ok((config, journal))
    }
}

fn failure(error: GatewayError) -> Failure {
    match error {
        GatewayError::Config(_) | GatewayError::Discovery(DiscoveryError::Namespace { .. }) => Failure::usage(error),
        _ => Failure::run(error),
    }
}

impl Program for RouterArgs {
    fn run(self) -> Result<(), Failure> {
        let (config, journal) = self.resolve()?;
        runtime()?.block_on(async {
            let stop = StopSignal::install().map_err(Failure::run)?;
            let journal = journal.create()?;
            let gateway = start_recorded(&config, journal.tape()).await.map_err(failure)?;
            let workers = gateway.backend().gate().workers();
            say(format_args!(
                "router at http://{}: mode {}, {} workers\n",
                gateway.address(),
                config.router.router_mode.name(),
                workers.len()
            ));
            for worker in workers {
                say(format_args!("worker {} at {}\n", worker.id, worker.url));
            }
            stop.wait().await;
            eprintln!("stopping: requests in flight have {} s", config.grace.as_secs_f64());
            gateway.stop().await;
            journal.finish()
        })
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}
