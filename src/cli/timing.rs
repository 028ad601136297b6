//! The timing of steps, as the user names it: a model with its constants, or a profile by name or path.
//!
//! A name is looked for as `NAME.json` in the folder `profiles` of the working directory, then in the folder that
//! `MOCKFLEET_PROFILES` names, then among the profiles that are compiled in. What ends in `.json` is a path.

use std::fmt;
use std::path::{Path, PathBuf};

use clap::Args;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::engine::timing::{ProfileError, StepModel};
use crate::engine::{ConfigError, TimingModel};

/// Profiles that are there wherever the program runs.
const COMPILED_IN: [(&str, &str); 3] = [
    ("llama-3.1-8b_rtx-4090_vllm-0.19.0", include_str!("../../profiles/llama-3.1-8b_rtx-4090_vllm-0.19.0.json")),
    (
        "llama-3.1-8b_rtx-pro-6000_vllm-0.19.0",
        include_str!("../../profiles/llama-3.1-8b_rtx-pro-6000_vllm-0.19.0.json"),
    ),
    (
        "minimax-m2.5_b200-sxm_tp4_vllm-0.19.0",
        include_str!("../../profiles/minimax-m2.5_b200-sxm_tp4_vllm-0.19.0.json"),
    ),
];

/// Models that need no file. A profile of such a name is reached by its path.
const MODELS: [&str; 3] = ["polynomial", "fixed", "step"];

/// A timing model that cannot be used.
#[derive(Debug, Error)]
pub enum TimingError {
    /// A value is missing or out of its range.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A profile is not one.
    #[error(transparent)]
    Profile(#[from] ProfileError),
    /// A profile cannot be read.
    #[error("{}: {cause}, expected a timing profile", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Nothing has this name.
    #[error("`timing_model` is {name}, expected a path that ends in .json, or one of {known}")]
    Unknown {
        /// The name.
        name: String,
        /// All names that would have been fine.
        known: String,
    },
}

/// A timing model as it is written: a word or a path, or an object with a `type`.
///
/// ```yaml
/// timing_model: minimax-m2.5_b200-sxm_tp4_vllm-0.19.0
/// timing_model: {type: fixed, prefill_ms: 10, decode_ms: 1}
/// timing_model: {type: profile, profile: measured/mine.json}
/// ```
///
/// An object may also have a key `note`, which is for readers.
#[derive(Clone, Debug, PartialEq)]
pub enum TimingSpec {
    /// `polynomial`, `fixed`, `step`, or a profile's name or path.
    Named(String),
    /// A profile's name or path.
    Profile(String),
    /// A model with its values.
    Model(TimingModel),
}

impl From<&str> for TimingSpec {
    fn from(name: &str) -> Self {
        TimingSpec::Named(name.to_owned())
    }
}

impl fmt::Display for TimingSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TimingSpec::Named(name) | TimingSpec::Profile(name) => f.write_str(name),
            TimingSpec::Model(TimingModel::Polynomial) => f.write_str("polynomial"),
            TimingSpec::Model(TimingModel::Fixed { .. }) => f.write_str("fixed"),
            TimingSpec::Model(TimingModel::Step(_)) => f.write_str("step"),
            TimingSpec::Model(TimingModel::Profile(table)) => f.write_str(table.name()),
        }
    }
}

impl Serialize for TimingSpec {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            TimingSpec::Named(name) => name.serialize(serializer),
            TimingSpec::Profile(name) => json!({"type": "profile", "profile": name}).serialize(serializer),
            TimingSpec::Model(model) => model.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for TimingSpec {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut fields = match Value::deserialize(deserializer)? {
            Value::String(name) => return Ok(TimingSpec::Named(name)),
            Value::Object(fields) => fields,
            _ => return Err(D::Error::custom("expected a name, a path, or an object with a `type`")),
        };
        fields.remove("note");
        let kind = match fields.get("type") {
            Some(Value::String(kind)) => kind.clone(),
            _ => return Err(D::Error::custom("expected a `type`: polynomial, fixed, step or profile")),
        };
        match kind.as_str() {
            "profile" => profile_name(&fields).map(TimingSpec::Profile).map_err(D::Error::custom),
            known if MODELS.contains(&known) => {
                serde_json::from_value(Value::Object(fields)).map(TimingSpec::Model).map_err(D::Error::custom)
            }
            other => {
                let expected = "expected polynomial, fixed, step or profile";
                Err(D::Error::custom(format!("`type` is {other}, {expected}")))
            }
        }
    }
}

/// The profile that an object of type `profile` names.
fn profile_name(fields: &Map<String, Value>) -> Result<String, String> {
    if let Some(key) = fields.keys().find(|key| !["type", "profile"].contains(&key.as_str())) {
        return Err(format!("unknown key `{key}`, expected `profile`"));
    }
    match fields.get("profile") {
        Some(Value::String(name)) => Ok(name.clone()),
        Some(other) => Err(format!("`profile` is {other}, expected a name or a path")),
        None => Err("`profile` is missing, expected a name or a path".to_owned()),
    }
}

impl TimingSpec {
    /// The model that is meant, checked. Relative paths start at `base_dir`.
    pub fn resolve(&self, base_dir: &Path) -> Result<TimingModel, TimingError> {
        self.resolve_among(base_dir, &profile_folders())
    }

    fn resolve_among(&self, base_dir: &Path, folders: &[PathBuf]) -> Result<TimingModel, TimingError> {
        match self {
            TimingSpec::Named(name) => match name.as_str() {
                "polynomial" => Ok(TimingModel::Polynomial),
                "fixed" => Err(missing("prefill_ms", FIXED).into()),
                "step" => Err(missing("base_ms", STEP).into()),
                _ => profile(name, base_dir, folders),
            },
            TimingSpec::Profile(name) => profile(name, base_dir, folders),
            TimingSpec::Model(model) => {
                model.check()?;
                Ok(model.clone())
            }
        }
    }
}

/// The folders in which profiles are looked for, in this order.
fn profile_folders() -> Vec<PathBuf> {
    let mut folders = vec![PathBuf::from("profiles")];
    folders.extend(std::env::var_os("MOCKFLEET_PROFILES").filter(|folder| !folder.is_empty()).map(PathBuf::from));
    folders
}

fn profile(name: &str, base_dir: &Path, folders: &[PathBuf]) -> Result<TimingModel, TimingError> {
    if name.ends_with(".json") {
        return read_profile(&base_dir.join(name));
    }
    // A separator would lead out of the folders.
    if !name.contains(['/', '\\']) {
        let file = format!("{name}.json");
        if let Some(path) = folders.iter().map(|folder| folder.join(&file)).find(|path| path.is_file()) {
            return read_profile(&path);
        }
        if let Some((_, text)) = COMPILED_IN.iter().find(|(known, _)| *known == name) {
            return Ok(TimingModel::from_profile_json(name, text)?);
        }
    }
    Err(TimingError::Unknown { name: name.to_owned(), known: known_names(folders).join(", ") })
}

/// Reads a file. The profile is called by the file's name, its errors by the whole path.
fn read_profile(path: &Path) -> Result<TimingModel, TimingError> {
    let text =
        std::fs::read_to_string(path).map_err(|cause| TimingError::Unreadable { path: path.to_owned(), cause })?;
    let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy();
    TimingModel::from_profile_json(&name, &text)
        .map_err(|error| ProfileError { name: path.display().to_string(), ..error }.into())
}

/// All names that a timing model may have, the models first.
fn known_names(folders: &[PathBuf]) -> Vec<String> {
    let mut profiles: Vec<String> = COMPILED_IN.iter().map(|(name, _)| (*name).to_owned()).collect();
    for entry in folders.iter().filter_map(|folder| std::fs::read_dir(folder).ok()).flatten().flatten() {
        profiles.extend(entry.file_name().to_string_lossy().strip_suffix(".json").map(str::to_owned));
    }
    profiles.sort();
    profiles.dedup();
    MODELS.iter().map(|model| (*model).to_owned()).chain(profiles).collect()
}

/// What flags and file may set of the timing of steps.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct TimingSettings {
    /// How long a step takes: polynomial, fixed, step, or a profile by name or path [default: polynomial].
    #[arg(long = "timing", visible_alias = "timing-model", value_name = "NAME_OR_PATH", help_heading = "Timing")]
    pub timing_model: Option<TimingSpec>,
    /// With `--timing fixed`: milliseconds of a step's prefill part.
    #[arg(long, value_parser = crate::cli::finite, value_name = "MS", help_heading = "Timing")]
    pub prefill_ms: Option<f64>,
    /// With `--timing fixed`: milliseconds of a step's decode part.
    #[arg(long, value_parser = crate::cli::finite, value_name = "MS", help_heading = "Timing")]
    pub decode_ms: Option<f64>,
    /// With `--timing step`: milliseconds that every step takes.
    #[arg(long, value_parser = crate::cli::finite, value_name = "MS", help_heading = "Timing")]
    pub base_ms: Option<f64>,
    /// With `--timing step`: microseconds for each prompt token computed.
    #[arg(long, value_parser = crate::cli::finite, value_name = "US", help_heading = "Timing")]
    pub prefill_token_us: Option<f64>,
    /// With `--timing step`: microseconds for each decoding sequence.
    #[arg(long, value_parser = crate::cli::finite, value_name = "US", help_heading = "Timing")]
    pub decode_sequence_us: Option<f64>,
    /// With `--timing step`: nanoseconds for each cached token that is read.
    #[arg(long, value_parser = crate::cli::finite, value_name = "NS", help_heading = "Timing")]
    pub kv_token_read_ns: Option<f64>,
    /// With `--timing step`: nanoseconds for each prompt token computed and token it attends to.
    #[arg(long, value_parser = crate::cli::finite, value_name = "NS", help_heading = "Timing")]
    pub chunk_context_ns: Option<f64>,
    /// With `--timing step`: milliseconds that large batches take longer, approached exponentially [default: 0].
    #[arg(long, value_parser = crate::cli::finite, value_name = "MS", help_heading = "Timing")]
    pub saturating_ms: Option<f64>,
    /// With `--saturating-ms`: tokens of a step after which 63 % of it are reached.
    #[arg(long, value_parser = crate::cli::finite, value_name = "TOKENS", help_heading = "Timing")]
    pub saturating_tokens: Option<f64>,
    /// Divides the decode part of step times, above 0 [default: 1].
    #[arg(long, value_parser = crate::cli::finite, value_name = "RATIO", help_heading = "Timing")]
    pub decode_speedup_ratio: Option<f64>,
}

const FIXED: &str = "milliseconds, as timing_model is fixed";
const STEP: &str = "a number, as timing_model is step";

fn missing(key: &'static str, expected: &'static str) -> ConfigError {
    ConfigError { key, value: "missing".to_owned(), expected }
}

impl TimingSettings {
    /// True if a model, or a value of one, is set.
    pub fn names_a_model(&self) -> bool {
        let values = [
            self.prefill_ms,
            self.decode_ms,
            self.base_ms,
            self.prefill_token_us,
            self.decode_sequence_us,
            self.kv_token_read_ns,
            self.chunk_context_ns,
            self.saturating_ms,
            self.saturating_tokens,
        ];
        self.timing_model.is_some() || values.iter().any(Option::is_some)
    }

    /// The model that is meant, checked. A relative path to a profile starts at `folder`.
    pub fn resolve(&self, folder: &Path) -> Result<TimingModel, TimingError> {
        let fixed = [("prefill_ms", self.prefill_ms), ("decode_ms", self.decode_ms)];
        let step = [
            ("base_ms", self.base_ms),
            ("prefill_token_us", self.prefill_token_us),
            ("decode_sequence_us", self.decode_sequence_us),
            ("kv_token_read_ns", self.kv_token_read_ns),
            ("chunk_context_ns", self.chunk_context_ns),
            ("saturating_ms", self.saturating_ms),
            ("saturating_tokens", self.saturating_tokens),
        ];
        let name = match &self.timing_model {
            Some(TimingSpec::Named(name)) => name.as_str(),
            Some(TimingSpec::Profile(_) | TimingSpec::Model(_)) => {
                let expected = "no value, as timing_model is an object that has its own";
                no_value(fixed, expected)?;
                no_value(step, expected)?;
                "an object"
            }
            None => "polynomial",
        };
        if name != "fixed" {
            no_value(fixed, "no value unless timing_model is fixed")?;
        }
        if name != "step" {
            no_value(step, "no value unless timing_model is step")?;
        }
        let needed = |(key, value): (&'static str, Option<f64>), expected| value.ok_or_else(|| missing(key, expected));
        let model = match name {
            "fixed" => TimingModel::Fixed { prefill_ms: needed(fixed[0], FIXED)?, decode_ms: needed(fixed[1], FIXED)? },
            "step" => TimingModel::Step(StepModel {
                base_ms: needed(step[0], STEP)?,
                prefill_token_us: needed(step[1], STEP)?,
                decode_sequence_us: needed(step[2], STEP)?,
                kv_token_read_ns: needed(step[3], STEP)?,
                chunk_context_ns: needed(step[4], STEP)?,
                saturating_ms: self.saturating_ms.unwrap_or(0.0),
                saturating_tokens: self.saturating_tokens.unwrap_or(0.0),
            }),
            _ => match &self.timing_model {
                Some(spec) => return spec.resolve(folder),
                None => TimingModel::Polynomial,
            },
        };
        model.check()?;
        Ok(model)
    }
}

/// Fails if one of the keys is there.
fn no_value<const N: usize>(
    given: [(&'static str, Option<f64>); N],
    expected: &'static str,
) -> Result<(), ConfigError> {
    match given.into_iter().find_map(|(key, value)| value.map(|value| (key, value))) {
        Some((key, value)) => Err(ConfigError { key, value: value.to_string(), expected }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
