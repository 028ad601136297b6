//! What can be journaled: a machine with the usual verbs that can be built from a setup which is text.

use std::sync::Arc;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::engine::{ConfigError, EngineConfig, EngineInput, Fleet, FleetInput, FleetOutput, Prompt, TimingModel};
use crate::router::{Router, RouterConfig, RouterConfigError, RouterInput, RouterOutput};
use crate::session::driver::{Driver, DriverInput, Release};
use crate::session::plan::{ArrivalMode, ArrivalModeError, PlannedSession};
use crate::time::SimTime;

/// A machine whose calls can be written down and made again.
///
/// All that changes it goes through [`handle`](Self::handle) and [`advance`](Self::advance), and what it says follows from
/// the setup and from these calls alone. New inputs and outputs need no more than to be serializable.
pub trait Machine: Sized + Send + 'static {
    /// Its name in journals.
    const NAME: &'static str;
    /// What it is built from.
    type Setup: Serialize + DeserializeOwned + Send + 'static;
    /// What can arrive.
    type Input: Clone + Serialize + DeserializeOwned + Send + 'static;
    /// What it says. Only its text is ever compared.
    type Output: Clone + Serialize + Send + 'static;
    /// Why a setup is refused.
    type Error: std::error::Error;

    /// The machine at its start.
    ///
    /// # Errors
    /// The first value of the setup that is out of range.
    fn build(setup: &Self::Setup) -> Result<Self, Self::Error>;

    /// Refuses an input that no journal of this setup holds and on which the machine could fail: a file may be edited.
    ///
    /// # Errors
    /// What was seen, and what was expected.
    fn check(_setup: &Self::Setup, _input: &Self::Input) -> Result<(), String> {
        Ok(())
    }

    /// Something arrived at `now`.
    fn handle(&mut self, now: SimTime, input: Self::Input, out: &mut Vec<Self::Output>);

    /// Time has passed up to `to`, inclusive.
    fn advance(&mut self, to: SimTime, out: &mut Vec<Self::Output>);
}

/// What a fleet is built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(into = "FleetText", try_from = "FleetText")]
pub struct FleetSetup {
    /// Every worker's engine.
    pub engines: Vec<EngineConfig>,
}

impl Machine for Fleet {
    const NAME: &'static str = "fleet";
    type Setup = FleetSetup;
    type Input = FleetInput;
    type Output = FleetOutput;
    type Error = ConfigError;

    fn build(setup: &FleetSetup) -> Result<Self, ConfigError> {
        Fleet::new(&setup.engines)
    }

    fn check(setup: &FleetSetup, input: &FleetInput) -> Result<(), String> {
        let (EngineInput::Submit(request) | EngineInput::Reserve(request)) = &input.input else { return Ok(()) };
        let Prompt::Hashed { len_tokens, chain, tail } = &request.prompt else { return Ok(()) };
        let mut engines = setup.engines.iter().flat_map(|engine| std::iter::repeat_n(engine, engine.dp_size as usize));
        let Some(engine) = engines.nth(input.worker.0 as usize) else { return Ok(()) };
        let blocks = u64::from(len_tokens / engine.block_size);
        let beyond = u64::from(len_tokens % engine.block_size);
        if (chain.len() as u64, tail.len() as u64) == (blocks, beyond) {
            return Ok(());
        }
        let (seen_blocks, seen_beyond) = (chain.len(), tail.len());
        Err(format!(
            "`len_tokens` is {len_tokens} for {seen_blocks} blocks of {} tokens and {seen_beyond} more, expected their sum",
            engine.block_size
        ))
    }

    fn handle(&mut self, now: SimTime, input: FleetInput, out: &mut Vec<FleetOutput>) {
        self.handle(now, input, out);
    }

    fn advance(&mut self, to: SimTime, out: &mut Vec<FleetOutput>) {
        self.advance(to, out);
    }
}

/// What a router is built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RouterSetup {
    /// Its configuration, with the seed.
    pub config: RouterConfig,
    /// Tokens in a block of its workers.
    pub block_size: u32,
}

impl Machine for Router {
    const NAME: &'static str = "router";
    type Setup = RouterSetup;
    type Input = RouterInput;
    type Output = RouterOutput;
    type Error = RouterConfigError;

    fn build(setup: &RouterSetup) -> Result<Self, RouterConfigError> {
        Router::new(setup.config.clone(), setup.block_size)
    }

    fn handle(&mut self, now: SimTime, input: RouterInput, out: &mut Vec<RouterOutput>) {
        self.handle(now, input, out);
    }

    fn advance(&mut self, to: SimTime, out: &mut Vec<RouterOutput>) {
        self.advance(to, out);
    }
}

/// What a driver is built from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DriverSetup {
    /// By what rule requests are released, with its seed.
    pub arrival: ArrivalMode,
    /// The plan.
    pub sessions: Arc<[PlannedSession]>,
}

impl Machine for Driver {
    const NAME: &'static str = "driver";
    type Setup = DriverSetup;
    type Input = DriverInput;
    type Output = Release;
    type Error = ArrivalModeError;

    fn build(setup: &DriverSetup) -> Result<Self, ArrivalModeError> {
        setup.arrival.validate()?;
        Ok(Driver::new(setup.sessions.clone(), setup.arrival))
    }

    fn handle(&mut self, now: SimTime, input: DriverInput, _out: &mut Vec<Release>) {
        self.handle(now, input);
    }

    fn advance(&mut self, to: SimTime, out: &mut Vec<Release>) {
        self.advance(to, out);
    }
}

/// More workers than a fleet may have are a broken journal.
const MOST_WORKERS: usize = 4096;

/// A fleet's setup as it is written: workers that are alike once, and a timing profile with its tables, since a name
/// may stand for another profile tomorrow.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct FleetText {
    engines: Vec<EngineText>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct EngineText {
    count: u32,
    config: Map<String, Value>,
}

const TIMING: &str = "timing_model";

impl From<FleetSetup> for FleetText {
    fn from(setup: FleetSetup) -> Self {
        let alike = setup.engines.chunk_by(|a, b| a == b);
        FleetText {
            engines: alike
                .map(|engines| EngineText { count: engines.len() as u32, config: written(&engines[0]) })
                .collect(),
        }
    }
}

fn written(engine: &EngineConfig) -> Map<String, Value> {
    // A struct of plain values is always an object.
    let Ok(Value::Object(mut config)) = serde_json::to_value(engine) else { return Map::new() };
    if let TimingModel::Profile(table) = &engine.timing_model {
        let text = json!({"type": "profile", "profile": table.name(), "tables": table.to_json()});
        config.insert(TIMING.to_owned(), text);
    }
    config
}

impl TryFrom<FleetText> for FleetSetup {
    type Error = String;

    fn try_from(text: FleetText) -> Result<Self, String> {
        let mut engines = Vec::new();
        for EngineText { count, config } in text.engines {
            if engines.len() + count as usize > MOST_WORKERS {
                return Err(format!("`count` is {count}, expected at most {MOST_WORKERS} workers"));
            }
            engines.resize(engines.len() + count as usize, read(config)?);
        }
        Ok(FleetSetup { engines })
    }
}

fn read(mut config: Map<String, Value>) -> Result<EngineConfig, String> {
    let is_profile = |timing: &&Value| timing["type"] == "profile";
    let Some(profile) = config.get(TIMING).filter(is_profile).cloned() else {
        return serde_json::from_value(Value::Object(config)).map_err(|error| error.to_string());
    };
    config.remove(TIMING);
    let engine: EngineConfig = serde_json::from_value(Value::Object(config)).map_err(|error| error.to_string())?;
    let name = profile["profile"].as_str().unwrap_or("profile");
    let timing_model = TimingModel::from_profile_json(name, &profile["tables"].to_string());
    Ok(EngineConfig { timing_model: timing_model.map_err(|error| error.to_string())?, ..engine })
}
