//! The fleet of a replay: how many workers of which kind, and what engine each of them is.
//!
//! Flags and the file's plain keys set the engine of all workers. A file may also have *blocks*: an object of engine keys
//! under `engine`, `prefill_engine` or `decode_engine` for all workers of a kind, or a list with one block a worker. A
//! block's keys come before the file's plain ones, flags before both.

use std::path::Path;

use clap::Args;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::cli::engine::{EngineSettings, TransferSettings};
use crate::cli::settings::SettingsFile;
use crate::cli::timing::TimingSpec;
use crate::cli::{Failure, workers};
use crate::engine::{EngineConfig, WorkerType};
use crate::sim::FleetConfig;

/// What flags and file may set of the fleet.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct FleetSettings {
    /// Number of workers that compute prompts and make output [default: 1].
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    #[arg(conflicts_with_all = ["num_prefill_workers", "num_decode_workers"])]
    num_workers: Option<u32>,
    /// Number of workers that compute prompts and hand them over; with --num-decode-workers.
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    num_prefill_workers: Option<u32>,
    /// Number of workers that get prompts handed over and make output; with --num-prefill-workers.
    #[arg(long, value_name = "N", help_heading = "Fleet")]
    num_decode_workers: Option<u32>,
    /// Simulated milliseconds after which the router learns of a cache's changes, counted from the end of the step
    /// [default: 0].
    #[arg(long, value_parser = crate::cli::finite, value_name = "MS", help_heading = "Fleet")]
    pub kv_event_lag_ms: Option<f64>,
    /// Stop at this simulated time, whatever is under way [default: when all requests have ended].
    #[arg(long, alias = "max-sim-time", value_parser = crate::cli::finite, value_name = "MS", help_heading = "Fleet")]
    pub max_sim_time_ms: Option<f64>,
    /// Check the invariants of all engines at every moment: slow, for those who doubt the simulator [default: false].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Fleet")]
    pub check: Option<bool>,
}

/// What flags and file may set of an engine in a replay only.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct ReplayEngineSettings {
    /// Divides all step times, above 0 [default: 1].
    #[arg(long, value_parser = crate::cli::finite, value_name = "RATIO", help_heading = "Timing")]
    speedup_ratio: Option<f64>,
    /// Attention data-parallel ranks of a worker, each with its own queue and pool [default: 1].
    #[arg(long, value_name = "N", help_heading = "Engine")]
    dp_size: Option<u32>,
    /// With several ranks: one that decodes begins prompts only in every so-many-th step [default: 1].
    #[arg(long, value_name = "STEPS", help_heading = "Engine")]
    prefill_schedule_interval: Option<u32>,
    /// A decode worker computes a preempted sequence's prompt again at no prefill time, as the reference [default: true].
    #[arg(long, value_name = "BOOL", num_args = 0..=1, default_missing_value = "true", help_heading = "Engine")]
    free_decode_recompute: Option<bool>,
    #[command(flatten)]
    #[serde(flatten)]
    transfer: TransferSettings,
}

impl ReplayEngineSettings {
    fn apply(&self, config: &mut EngineConfig) {
        let set = |to: &mut f64, from: Option<f64>| *to = from.unwrap_or(*to);
        set(&mut config.speedup_ratio, self.speedup_ratio);
        config.dp_size = self.dp_size.unwrap_or(config.dp_size);
        config.prefill_schedule_interval = self.prefill_schedule_interval.unwrap_or(config.prefill_schedule_interval);
        self.transfer.apply(config);
        config.free_decode_recompute = self.free_decode_recompute.unwrap_or(config.free_decode_recompute);
    }
}

/// Settings of engines: a block stands between the two.
pub struct EngineLayers {
    /// The file's plain keys, and the flags above them.
    pub plain: (EngineSettings, ReplayEngineSettings),
    /// The flags alone.
    pub flags: (EngineSettings, ReplayEngineSettings),
}

/// A worker's keys, and what they stand under.
type Block = (String, Map<String, Value>);

/// The blocks of a file, by the key that they stand under.
pub struct EngineBlocks {
    path: std::path::PathBuf,
    aggregated: Option<Value>,
    prefill: Option<Value>,
    decode: Option<Value>,
}

impl EngineBlocks {
    /// Takes the blocks out of a file.
    pub fn take(file: &mut SettingsFile) -> Self {
        EngineBlocks {
            path: file.path().to_owned(),
            aggregated: file.take("engine"),
            prefill: file.take("prefill_engine"),
            decode: file.take("decode_engine"),
        }
    }

    fn folder(&self) -> &Path {
        self.path.parent().unwrap_or(Path::new(""))
    }

    fn error(&self, key: &str, problem: impl std::fmt::Display) -> Failure {
        Failure::usage(format!("{}: `{key}`: {problem}", self.path.display()))
    }

    /// The block of each worker of a kind: `key` is what they stand under, `count` what was said of their number.
    fn of(
        &self,
        key: &str,
        blocks: Option<&Value>,
        (count_key, count): (&str, Option<u32>),
    ) -> Result<Vec<Block>, Failure> {
        let block = |value: &Value, name: String| match value {
            Value::Object(block) => Ok((name, block.clone())),
            other => Err(self.error(&name, format_args!("it is {other}, expected engine keys with values"))),
        };
        match blocks {
            Some(Value::Array(list)) => {
                if let Some(count) = count.filter(|count| *count as usize != list.len()) {
                    let problem =
                        format!("it is a list of {} workers, and their number is given as {count}", list.len());
                    return Err(self.error(key, problem));
                }
                list.iter().enumerate().map(|(at, value)| block(value, format!("{key}[{at}]"))).collect()
            }
            Some(value) => Ok(vec![block(value, key.to_owned())?; workers(count_key, count)? as usize]),
            None => Ok(vec![(key.to_owned(), Map::new()); workers(count_key, count)? as usize]),
        }
    }
}

impl FleetSettings {
    /// Leaves out of a file what these flags, being of another kind of fleet, take the place of.
    pub fn exclude_from(&self, file: &mut SettingsFile) {
        let aggregated = self.num_workers.is_some();
        for (key, given) in
            [("num_prefill_workers", self.num_prefill_workers), ("num_decode_workers", self.num_decode_workers)]
        {
            file.exclude([("num_workers", aggregated), (key, given.is_some())]);
        }
    }

    /// The fleet that is meant, checked.
    pub fn resolve(&self, blocks: &EngineBlocks, layers: &EngineLayers) -> Result<FleetConfig, Failure> {
        let separate = self.num_prefill_workers.is_some() || self.num_decode_workers.is_some();
        let separate =
            separate || (self.num_workers.is_none() && (blocks.prefill.is_some() || blocks.decode.is_some()));
        let pool = |key, blocks_of, count, worker_type: WorkerType| -> Result<Vec<EngineConfig>, Failure> {
            let engines = blocks.of(key, blocks_of, (worker_type.count_key(), count))?;
            engines.iter().map(|(name, block)| engine(blocks, name, block, layers, worker_type)).collect()
        };
        if !separate {
            let engines = pool("engine", blocks.aggregated.as_ref(), self.num_workers, WorkerType::Aggregated)?;
            return Ok(FleetConfig::Aggregated(engines));
        }
        if self.num_workers.is_some() {
            let problem = "`num_workers` and `num_prefill_workers` or `num_decode_workers` are set, expected the one or the others";
            return Err(Failure::usage(problem));
        }
        for (key, count, listed) in [
            ("num_prefill_workers", self.num_prefill_workers, &blocks.prefill),
            ("num_decode_workers", self.num_decode_workers, &blocks.decode),
        ] {
            if count.is_none() && listed.is_none() {
                return Err(Failure::usage(format!(
                    "`{key}` is missing, expected a number of workers as the other kind has"
                )));
            }
        }
        // A block for all workers is also one for those of both kinds.
        let prefill = blocks.prefill.as_ref().or(blocks.aggregated.as_ref());
        let decode = blocks.decode.as_ref().or(blocks.aggregated.as_ref());
        Ok(FleetConfig::Disaggregated {
            prefill: pool("prefill_engine", prefill, self.num_prefill_workers, WorkerType::Prefill)?,
            decode: pool("decode_engine", decode, self.num_decode_workers, WorkerType::Decode)?,
        })
    }
}

/// One worker's engine, checked.
fn engine(
    blocks: &EngineBlocks,
    name: &str,
    block: &Map<String, Value>,
    layers: &EngineLayers,
    worker_type: WorkerType,
) -> Result<EngineConfig, Failure> {
    let mut config = EngineConfig { worker_type, ..EngineConfig::default() };
    let ((plain, replay), (flags, replay_flags)) = (&layers.plain, &layers.flags);
    // A path is the file's unless it was typed.
    let folder = if flags.timing.timing_model.is_some() { Path::new("") } else { blocks.folder() };
    plain.apply(&mut config);
    replay.apply(&mut config);
    let own_timing = overlay(&mut config, blocks, name, block)?;
    flags.apply(&mut config);
    replay_flags.apply(&mut config);
    if !own_timing {
        config.timing_model = plain.timing.resolve(folder).map_err(Failure::usage)?;
    } else if flags.timing.names_a_model() {
        config.timing_model = flags.timing.resolve(folder).map_err(Failure::usage)?;
    }
    if config.worker_type != worker_type {
        let worker_type = format!("{:?}", config.worker_type).to_lowercase();
        return Err(
            blocks.error(name, format_args!("`worker_type` is {worker_type}, expected that of the block's kind"))
        );
    }
    match config.validate() {
        Ok(()) => Ok(config),
        // Only a block needs to be named: a key that stands alone is found by its name.
        Err(error) if block.contains_key(error.key) => Err(blocks.error(name, error)),
        Err(error) => Err(Failure::usage(error)),
    }
}

/// Sets what a block says; true if it says how steps are timed.
fn overlay(
    config: &mut EngineConfig,
    blocks: &EngineBlocks,
    name: &str,
    block: &Map<String, Value>,
) -> Result<bool, Failure> {
    let mut block: Map<String, Value> =
        block.iter().map(|(key, value)| (SettingsFile::own_key(key), value.clone())).collect();
    let timing = block.remove("timing_model");
    for (key, value) in block {
        // Key by key, so that a wrong one is named.
        let Value::Object(mut keys) = serde_json::to_value(&*config).unwrap_or_default() else { continue };
        keys.remove("timing_model");
        if !keys.contains_key(&key) {
            let known = keys.keys().cloned().chain(["timing_model".to_owned()]).collect::<Vec<_>>().join(", ");
            return Err(blocks.error(name, format_args!("unknown key `{key}`, expected one of {known}")));
        }
        keys.insert(key.clone(), value.clone());
        let changed: EngineConfig = serde_json::from_value(Value::Object(keys)).map_err(|error| {
            let problem = SettingsFile::in_words(&error.to_string());
            blocks.error(name, format_args!("`{key}` is {value}: {problem}"))
        })?;
        *config = EngineConfig { timing_model: config.timing_model.clone(), ..changed };
    }
    if let Some(value) = &timing {
        let spec: TimingSpec = serde_json::from_value(value.clone())
            .map_err(|error| blocks.error(name, format_args!("`timing_model` is {value}: {error}")))?;
        config.timing_model = spec.resolve(blocks.folder()).map_err(|error| blocks.error(name, error))?;
    }
    Ok(timing.is_some())
}

#[cfg(test)]
mod tests;
