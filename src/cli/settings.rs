//! A configuration file below the flags: the same keys, and flags win.
//!
//! Files are TOML, YAML or JSON (by their ending), keys may be written with `_` or `-`. A program's settings are structs of
//! optional fields; each takes its own keys from the file ([`SettingsFile::layer`]), and what nobody took is an error
//! ([`SettingsFile::finish`]).

use std::path::{Path, PathBuf};

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use thiserror::Error;

/// A configuration file that cannot be used.
#[derive(Debug, Error)]
pub enum SettingsError {
    /// It cannot be read.
    #[error("{}: {cause}", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// Its name says nothing about its format.
    #[error("{}: unknown kind of configuration file, expected a name that ends in .toml, .yaml, .yml or .json", path.display())]
    Kind {
        /// The file.
        path: PathBuf,
    },
    /// It is not what its name says.
    #[error("{}: {problem}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line.
        problem: String,
    },
    /// It is not what its name says, and the parser tells where.
    #[error("{}:{line}:{column}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1.
        column: usize,
        /// What the parser says.
        problem: String,
    },
    /// A value is not what was expected.
    #[error("{}:{line}: `{key}` is {value}: {problem}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What was expected.
        problem: String,
    },
    /// Two spellings of one key.
    #[error("{}:{line}: `{key}` is the same key as `{first}`, expected it once", path.display())]
    Twice {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key, as written the second time.
        key: String,
        /// As written the first time.
        first: String,
    },
    /// A key is unknown.
    #[error("{}:{line}: unknown key `{key}`, expected one of {known}", path.display())]
    Unknown {
        /// The file.
        path: PathBuf,
        /// The line.
        line: usize,
        /// The key.
        key: String,
        /// All keys that the program knows.
        known: String,
    },
}

/// A configuration file while its keys are being taken.
#[derive(Debug, Default)]
pub struct SettingsFile {
    path: PathBuf,
    text: String,
    /// The key with `_`, as it was written, and its value.
    left: Vec<(String, String, Value)>,
    known: Vec<String>,
}

impl SettingsFile {
    /// Reads a file; without a path there are no keys.
    pub fn read(path: Option<&Path>) -> Result<Self, SettingsError> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .map_err(|cause| SettingsError::Unreadable { path: path.to_owned(), cause })?;
        let mut file = SettingsFile { path: path.to_owned(), text, ..Self::default() };
        for (written, value) in parse(path, &file.text)? {
            let key = Self::own_key(&written);
            if let Some((_, first, _)) = file.left.iter().find(|(known, ..)| *known == key) {
                // The parser's order need not be the file's.
                let mut both = [(file.line_of(first), first.clone()), (file.line_of(&written), written)];
                both.sort();
                let [(_, first), (line, key)] = both;
                return Err(SettingsError::Twice { path: file.path, line, key, first });
            }
            file.left.push((key, written, value));
        }
        Ok(file)
    }

    /// The flags, completed by the file's keys where a flag was not given.
    pub fn layer<T: Serialize + DeserializeOwned + Default>(&mut self, flags: T) -> Result<T, SettingsError> {
        let fields = |value: &T| match serde_json::to_value(value) {
            Ok(Value::Object(fields)) => fields,
            _ => Map::new(),
        };
        let keys: Vec<String> = fields(&T::default()).keys().cloned().collect();
        let (mine, left) = std::mem::take(&mut self.left).into_iter().partition(|(key, ..)| keys.contains(key));
        self.left = left;
        self.known.extend(keys);
        let mut merged = Map::new();
        for (key, written, value) in mine {
            let alone = Value::Object(Map::from_iter([(key.clone(), value.clone())]));
            if let Err(error) = serde_json::from_value::<T>(alone) {
                let line = self.line_of(&written);
                let (path, problem) = (self.path.clone(), Self::in_words(&error.to_string()));
                return Err(SettingsError::Value { path, line, key: written, value: value.to_string(), problem });
            }
            merged.insert(key, value);
        }
        merged.extend(fields(&flags).into_iter().filter(|(_, value)| !value.is_null()));
        // Every key was read on its own before.
        serde_json::from_value(Value::Object(merged))
            .map_err(|error| SettingsError::Syntax { path: self.path.clone(), problem: error.to_string() })
    }

    /// The file, or an empty path without one.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Takes a key that has values of its own below it.
    pub fn take(&mut self, key: &str) -> Option<Value> {
        self.known.push(key.to_owned());
        let at = self.left.iter().position(|(known, ..)| known == key)?;
        Some(self.left.remove(at).2)
    }

    /// Lets what stands below a key stand beside it: `{"router": {"a": 1}}` is `{"a": 1}`.
    pub fn spread(&mut self, key: &str) -> Result<(), SettingsError> {
        match self.take(key) {
            None => Ok(()),
            Some(Value::Object(below)) => {
                for (written, value) in below {
                    let own = Self::own_key(&written);
                    if let Some((_, first, _)) = self.left.iter().find(|(known, ..)| *known == own) {
                        let (path, line, first) = (self.path.clone(), self.line_of(key), first.clone());
                        return Err(SettingsError::Twice { path, line, key: format!("{key}.{written}"), first });
                    }
                    self.left.push((own, written, value));
                }
                Ok(())
            }
            Some(other) => {
                let (path, line, key) = (self.path.clone(), self.line_of(key), key.to_owned());
                let problem = "expected keys with values".to_owned();
                Err(SettingsError::Value { path, line, key, value: other.to_string(), problem })
            }
        }
    }

    /// An error about the value of a key.
    pub fn value_error(&self, key: &str, value: &Value, problem: impl ToString) -> SettingsError {
        SettingsError::Value {
            path: self.path.clone(),
            line: self.line_of(key),
            key: key.to_owned(),
            value: value.to_string(),
            problem: Self::in_words(&problem.to_string()),
        }
    }

    /// A path as the file means it: a relative one starts at the file's folder.
    pub fn beside(&self, path: &Path) -> PathBuf {
        self.path.parent().unwrap_or(Path::new("")).join(path)
    }

    /// Our name of a key, however it is written.
    pub fn own_key(written: &str) -> String {
        let key = written.replace('-', "_");
        ALIASES.iter().find(|(alias, _)| *alias == key).map_or(key.clone(), |(_, own)| (*own).to_owned())
    }

    /// The parser's message without the names of our types.
    pub fn in_words(problem: &str) -> String {
        let words =
            [("u16", "a whole number"), ("u32", "a whole number"), ("u64", "a whole number"), ("f64", "a number")];
        words.iter().fold(problem.to_owned(), |text, (name, word)| {
            text.replace(&format!("expected {name}"), &format!("expected {word}"))
        })
    }

    /// Of two keys that exclude each other, leaves the one out whose counterpart was given as a flag.
    pub fn exclude(&mut self, pair: [(&str, bool); 2]) {
        let [(one, one_given), (other, other_given)] = pair;
        self.left.retain(|(key, ..)| !(one_given && key == other || other_given && key == one));
    }

    /// Fails if the file has a key that nobody took.
    pub fn finish(mut self) -> Result<(), SettingsError> {
        let Some((_, key, _)) = self.left.first().cloned() else { return Ok(()) };
        self.known.sort();
        Err(SettingsError::Unknown { line: self.line_of(&key), path: self.path, key, known: self.known.join(", ") })
    }

    fn line_of(&self, written: &str) -> usize {
        let holds = |line: &str| {
            let key = line.split(['=', ':']).next().unwrap_or_default();
            key.trim().trim_matches(['"', '\'']) == written
        };
        // In JSON, and below another key, it may stand within a line.
        let mentions = |line: &str| {
            line.match_indices(written).any(|(at, _)| {
                let word = |letter: char| letter.is_alphanumeric() || letter == '_' || letter == '-';
                let (before, after) = (&line[..at], &line[at + written.len()..]);
                !before.ends_with(word) && after.trim_start_matches(['"', '\'']).trim_start().starts_with([':', '='])
            })
        };
        let line = self.text.lines().position(holds).or_else(|| self.text.lines().position(mentions));
        1 + line.unwrap_or(0)
    }
}

/// Names of the peers' for keys of ours.
const ALIASES: [(&str, &str); 13] = [
    ("timing", "timing_model"),
    ("num_gpu_blocks_override", "num_gpu_blocks"),
    ("kv_cache_block_size", "block_size"),
    ("http_host", "host"),
    ("http_port", "port"),
    ("router_kv_overlap_score_credit", "overlap_score_credit"),
    ("router_kv_overlap_score_credit_decay", "overlap_score_credit_decay"),
    ("router_prefill_load_scale", "prefill_load_scale"),
    ("router_decode_active_request_weight", "decode_active_request_weight"),
    ("router_kv_events", "use_kv_events"),
    ("input_dataset", "trace"),
    ("requests", "num_requests"),
    ("num_prefix_prompts", "num_prefix_groups"),
];

fn parse(path: &Path, text: &str) -> Result<Map<String, Value>, SettingsError> {
    let syntax =
        |problem: String| SettingsError::Syntax { path: path.to_owned(), problem: problem.trim_end().to_owned() };
    let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
    let not_finite = |key: &str| syntax(format!("`{key}` is not a finite number"));
    let value: Value = match ending.as_deref() {
        Some("toml") => toml::from_str(text).map_err(|error| {
            let before = error.span().and_then(|span| text.get(..span.start)).unwrap_or_default();
            let column = before.chars().rev().take_while(|letter| *letter != '\n').count() + 1;
            SettingsError::Malformed {
                path: path.to_owned(),
                line: before.matches('\n').count() + 1,
                column,
                problem: error.message().to_owned(),
            }
        })?,
        // By way of its own value, which unlike JSON's refuses a key that is there twice.
        Some("yaml" | "yml") => {
            let value: yaml_serde::Value = yaml_serde::from_str(text).map_err(|error| syntax(error.to_string()))?;
            // JSON has no word for such numbers and would take them for "not given".
            let odd = |value: &yaml_serde::Value| value.as_f64().is_some_and(|number| !number.is_finite());
            if let Some((key, _)) = value.as_mapping().into_iter().flatten().find(|(_, value)| odd(value)) {
                return Err(not_finite(key.as_str().unwrap_or("a key")));
            }
            yaml_serde::from_value(value).map_err(|error| syntax(error.to_string()))?
        }
        Some("json") => {
            let value: yaml_serde::Value = serde_json::from_str(text).map_err(|error| SettingsError::Malformed {
                path: path.to_owned(),
                line: error.line(),
                column: error.column(),
                problem: error.to_string(),
            })?;
            serde_json::to_value(value).map_err(|error| syntax(error.to_string()))?
        }
        _ => return Err(SettingsError::Kind { path: path.to_owned() }),
    };
    match value {
        // TOML has no null, so a null was a number that JSON has no word for.
        Value::Object(keys) if ending.as_deref() == Some("toml") => {
            match keys.iter().find(|(_, value)| value.is_null()) {
                Some((key, _)) => Err(not_finite(key)),
                None => Ok(keys),
            }
        }
        Value::Object(keys) => Ok(keys),
        Value::Null => Ok(Map::new()),
        other => Err(syntax(format!("it holds {other}, expected keys with values"))),
    }
}
