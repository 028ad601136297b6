//! `router`: which worker gets a request.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, Program, runtime, say, seconds};
use crate::live::discovery::{DiscoveryError, parse_worker_list};
use crate::live::gateway::{GatewayConfig, GatewayError, start};
use crate::live::shutdown::StopSignal;
use crate::router::{RouterConfig, RouterMode};

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
    /// Weight of prefill blocks against decode blocks [default: 1].
    #[arg(long, value_parser = crate::cli::finite, alias = "router-prefill-load-scale", value_name = "SCALE", help_heading = "Routing")]
    pub prefill_load_scale: Option<f64>,
    /// Spread of the choice: 0 takes the least cost, 1 draws by costs normalised to their range [default: 0].
    #[arg(long, value_parser = crate::cli::finite, value_name = "TEMPERATURE", help_heading = "Routing")]
    pub router_temperature: Option<f64>,
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
            prefill_load_scale: self.prefill_load_scale.unwrap_or(default.prefill_load_scale),
            router_temperature: self.router_temperature.unwrap_or(default.router_temperature),
            seed: self.seed.unwrap_or(default.seed),
        };
        config.validate().map_err(Failure::usage)?;
        Ok(config)
    }
}

impl RouterArgs {
    /// The router that is meant, checked.
    pub fn resolve(self) -> Result<GatewayConfig, Failure> {
        let mut file = SettingsFile::read(self.config.as_deref()).map_err(Failure::usage)?;
        let settings = file.layer(self.settings).map_err(Failure::usage)?;
        let routing = file.layer(self.routing).map_err(Failure::usage)?;
        file.finish().map_err(Failure::usage)?;
        let host = settings.host.unwrap_or(Ipv4Addr::LOCALHOST.into());
        Ok(GatewayConfig {
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
        })
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
        let config = self.resolve()?;
        runtime()?.block_on(async {
            let stop = StopSignal::install().map_err(Failure::run)?;
            let gateway = start(&config).await.map_err(failure)?;
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
            Ok(())
        })
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}
