//! `mocker`: a fleet of mock engines.

use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, ValueEnum};
use clap_complete::Shell;
use serde::{Deserialize, Serialize};

use crate::cli::engine::{EngineSettings, TransferSettings};
use crate::cli::journal::JournalSettings;
use crate::cli::settings::SettingsFile;
use crate::cli::{Failure, Program, ratio, runtime, say, seconds, workers};
use crate::engine::{EngineConfig, WorkerType};
use crate::live::discovery::DiscoveryError;
use crate::live::mocker::{MockerConfig, MockerError, start_recorded};
use crate::live::shutdown::StopSignal;
use crate::trace::DEFAULT_VOCAB_TOKENS;

/// Start a fleet of mock engines that behave like vLLM: one port a worker, gRPC and HTTP on it.
///
/// Every worker schedules, caches and times requests as a real engine would, without a GPU. A router on the same machine
/// finds the workers by itself.
#[derive(Debug, Parser)]
#[command(name = "mocker", version, max_term_width = 110, allow_negative_numbers = true)]
pub struct MockerArgs {
    /// Read settings from a TOML or YAML file with the keys of the flags; flags win.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
    #[command(flatten)]
    fleet: FleetSettings,
    #[command(flatten)]
    engine: EngineSettings,
    #[command(flatten)]
    transfer: TransferSettings,
    #[command(flatten)]
    journal: JournalSettings,
}

/// What flags and file may set of a fleet.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetSettings {
    /// Number of workers [default: 1].
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    num_workers: Option<u32>,
    /// How many times faster than real time the fleet's clock runs [default: 1].
    #[arg(long, value_parser = crate::cli::finite, value_name = "RATIO", help_heading = "Fleet")]
    speedup_ratio: Option<f64>,
    /// Address to listen on [default: 127.0.0.1].
    #[arg(long, value_name = "ADDRESS", help_heading = "Fleet")]
    host: Option<IpAddr>,
    /// Port of the first worker, the others follow; 0 takes any free ports [default: 50051].
    #[arg(long, value_name = "PORT", help_heading = "Fleet")]
    port: Option<u16>,
    /// Keeps fleets apart: a router sees the workers of its own namespace [default: default].
    #[arg(long, value_name = "NAME", help_heading = "Fleet")]
    namespace: Option<String>,
    /// What part of requests the workers serve: aggregated (all of it), prefill or decode [default: aggregated].
    #[arg(long, value_name = "MODE", help_heading = "Fleet")]
    disaggregation_mode: Option<DisaggregationMode>,
    /// Seconds of wall clock that a prefill worker holds a prompt's blocks for a decode worker [default: 60].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SECONDS", help_heading = "Fleet")]
    handoff_timeout_s: Option<f64>,
    /// Seconds of wall clock that running requests may go on after SIGINT or SIGTERM [default: 5].
    #[arg(long, value_parser = crate::cli::finite, value_name = "SECONDS", help_heading = "Fleet")]
    grace_s: Option<f64>,
    /// Name of the model [default: mock-model].
    #[arg(long, value_name = "NAME", help_heading = "Model")]
    model: Option<String>,
    /// Token ids are below this [default: 1048576].
    #[arg(long, value_name = "TOKENS", help_heading = "Model")]
    vocab_tokens: Option<u32>,
    /// Seed of the output tokens [default: 0].
    #[arg(long, value_name = "N", help_heading = "Model")]
    seed: Option<u64>,
}

/// Names of the parts that workers serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DisaggregationMode {
    Aggregated,
    Prefill,
    Decode,
}

/// Sequence length that is announced if the engine has no limit.
const ANNOUNCED_MODEL_LEN: u32 = 1 << 20;

impl MockerArgs {
    /// The fleet that is meant, checked, and its journal.
    pub fn resolve(self) -> Result<(MockerConfig, JournalSettings), Failure> {
        let mut file = SettingsFile::read(self.config.as_deref()).map_err(Failure::usage)?;
        let fleet = file.layer(self.fleet).map_err(Failure::usage)?;
        let engine = file.layer(self.engine).map_err(Failure::usage)?;
        let transfer = file.layer(self.transfer).map_err(Failure::usage)?;
        let journal = file.layer(self.journal).map_err(Failure::usage)?;
        file.finish().map_err(Failure::usage)?;
        let timeout = fleet.handoff_timeout_s.map(|_| "handoff_timeout_s");
        if let (None | Some(DisaggregationMode::Aggregated), Some(key)) =
            (fleet.disaggregation_mode, timeout.or(transfer.first_set()))
        {
            let message =
                format!("`{key}` is about hand-offs, expected `disaggregation_mode` prefill or decode with it");
            return Err(Failure::usage(message));
        }
        let mut engine_config = engine.resolve().map_err(Failure::usage)?;
        transfer.apply(&mut engine_config);
        engine_config.validate().map_err(Failure::usage)?;
        let num_workers = workers("num_workers", fleet.num_workers)?;
        let vocab_tokens = fleet.vocab_tokens.unwrap_or(DEFAULT_VOCAB_TOKENS);
        if vocab_tokens < 2 {
            let message = format!("`vocab_tokens` is {vocab_tokens}, expected a whole number of at least 2");
            return Err(Failure::usage(message));
        }
        let config = MockerConfig {
            num_workers,
            host: fleet.host.unwrap_or(Ipv4Addr::LOCALHOST.into()),
            port: fleet.port.unwrap_or(50_051),
            namespace: fleet.namespace.unwrap_or_else(|| "default".to_owned()),
            speedup_ratio: ratio("speedup_ratio", fleet.speedup_ratio.unwrap_or(1.0))?,
            model: fleet.model.unwrap_or_else(|| "mock-model".to_owned()),
            vocab_tokens,
            announced_model_len: ANNOUNCED_MODEL_LEN,
            seed: fleet.seed.unwrap_or(0),
            grace: Duration::from_secs_f64(seconds("grace_s", fleet.grace_s.unwrap_or(5.0))?),
            handoff_timeout: Duration::from_secs_f64(seconds(
                "handoff_timeout_s",
                fleet.handoff_timeout_s.unwrap_or(60.0),
            )?),
            engine: EngineConfig {
                worker_type: match fleet.disaggregation_mode {
                    None | Some(DisaggregationMode::Aggregated) => WorkerType::Aggregated,
                    Some(DisaggregationMode::Prefill) => WorkerType::Prefill,
                    Some(DisaggregationMode::Decode) => WorkerType::Decode,
                },
                ..engine_config
            },
        };
        Ok((config, journal))
    }
}

fn failure(error: MockerError) -> Failure {
    match error {
        MockerError::Config(_)
        | MockerError::Ports { .. }
        | MockerError::Discovery(DiscoveryError::Namespace { .. }) => Failure::usage(error),
        _ => Failure::run(error),
    }
}

impl Program for MockerArgs {
    fn run(self) -> Result<(), Failure> {
        let (config, journal) = self.resolve()?;
        runtime()?.block_on(async {
            let stop = StopSignal::install().map_err(Failure::run)?;
            let journal = journal.create()?;
            let fleet = start_recorded(&config, journal.tape()).await.map_err(failure)?;
            for (index, url) in fleet.urls().iter().enumerate() {
                say(format_args!(
                    "worker {index} at {url}: {}model {}, {} blocks of {} tokens, speedup {}\n",
                    match config.engine.worker_type {
                        WorkerType::Aggregated => "",
                        WorkerType::Prefill => "prefill, ",
                        WorkerType::Decode => "decode, ",
                    },
                    config.model,
                    config.engine.num_gpu_blocks,
                    config.engine.block_size,
                    config.speedup_ratio
                ));
            }
            stop.wait().await;
            eprintln!("stopping: running requests have {} s", config.grace.as_secs_f64());
            let lateness = fleet.lateness();
            let summary = fleet.stop().await;
            let late = lateness.snapshot().summary();
            let late = late.map_or_else(String::new, |late| {
                format!("; the pacer woke {:.3} ms late at p50, {:.3} ms at p99 (wall clock)", late.median, late.p99)
            });
            eprintln!("stopped: {} requests finished, {} aborted{late}", summary.finished, summary.aborted);
            journal.finish()
        })
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}
