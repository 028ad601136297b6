//! Timing profiles as text: JSON with either the tables of [`ProfileTable`] or the coefficients of [`StepModel`].
//!
//! Beside them a file holds what it says about itself (model, gpu, engine, source, …), which nobody reads but people.
//! Every complaint names the profile, the place in it, the value seen and what was expected.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use thiserror::Error;

use super::grid::{Axis, Grid};
use super::{ProfileTable, StepModel, TimingModel, fixed};

/// A profile that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{name}: {problem}")]
pub struct ProfileError {
    /// The profile, or the file it is in.
    pub name: String,
    /// What is wrong with it.
    pub problem: ProfileProblem,
}

/// What is wrong with a profile.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ProfileProblem {
    /// It is not JSON.
    #[error("{0}")]
    Syntax(String),
    /// A value is missing or not what it has to be.
    #[error("`{place}` is {value}, expected {expected}")]
    Value {
        /// Table, axis and index, as in `prefill.batch[2]`.
        place: String,
        /// The value seen.
        value: String,
        /// What would have been fine.
        expected: String,
    },
}

/// An axis of a table, and what its points may be.
struct AxisRule {
    key: &'static str,
    /// Its name in the list `axes`, which is there for readers.
    title: &'static str,
    least: f64,
}

const BATCH: AxisRule = AxisRule { key: "batch", title: "batch", least: 1.0 };
const NEW_TOKENS: AxisRule = AxisRule { key: "total_new_tokens", title: "total_new_tokens", least: 0.0 };
const PREFIX_TOKENS: AxisRule = AxisRule { key: "prefix_tokens", title: "prefix_tokens_per_request", least: 0.0 };
const CONTEXT_TOKENS: AxisRule = AxisRule { key: "context_tokens", title: "context_tokens_per_request", least: 0.0 };

impl ProfileTable {
    /// Reads the tables of a profile; `name` is what it is called from now on.
    pub fn from_json_str(name: &str, text: &str) -> Result<ProfileTable, ProfileError> {
        let source = Source::parse(name, text)?;
        let prefill = source.grid("prefill", [BATCH, NEW_TOKENS, PREFIX_TOKENS])?;
        let decode = source.grid("decode", [BATCH, CONTEXT_TOKENS])?;
        Ok(ProfileTable { name: name.to_owned(), prefill, decode })
    }

    /// The tables as [`ProfileTable::from_json_str`] reads them, to the last bit.
    pub fn to_json(&self) -> Value {
        json!({
            "prefill": written(&self.prefill, [BATCH, NEW_TOKENS, PREFIX_TOKENS]),
            "decode": written(&self.decode, [BATCH, CONTEXT_TOKENS]),
        })
    }
}

impl TimingModel {
    /// Reads a profile: `prefill` and `decode` hold the tables of a [`ProfileTable`], `step` the coefficients of a
    /// [`StepModel`].
    pub fn from_profile_json(name: &str, text: &str) -> Result<TimingModel, ProfileError> {
        let source = Source::parse(name, text)?;
        if source.root.contains_key("step") {
            return source.step().map(TimingModel::Step);
        }
        ProfileTable::from_json_str(name, text).map(|table| TimingModel::Profile(Arc::new(table)))
    }
}

/// A profile's text, parsed.
struct Source<'a> {
    name: &'a str,
    root: Map<String, Value>,
}

impl<'a> Source<'a> {
    fn parse(name: &'a str, text: &str) -> Result<Self, ProfileError> {
        let syntax = |problem: String| ProfileError { name: name.to_owned(), problem: ProfileProblem::Syntax(problem) };
        match serde_json::from_str(text) {
            Ok(Value::Object(root)) => Ok(Source { name, root }),
            Ok(other) => Err(syntax(format!("it holds {}, expected an object", shown(&other)))),
            Err(error) => Err(syntax(format!("{error}, expected JSON"))),
        }
    }

    fn error(&self, place: impl Into<String>, value: impl Into<String>, expected: impl Into<String>) -> ProfileError {
        let problem = ProfileProblem::Value { place: place.into(), value: value.into(), expected: expected.into() };
        ProfileError { name: self.name.to_owned(), problem }
    }

    /// An object of the file, which may have no other keys than these.
    fn object(&self, key: &str, allowed: &[&str]) -> Result<&Map<String, Value>, ProfileError> {
        let object = match self.root.get(key) {
            Some(Value::Object(object)) => object,
            other => return Err(self.error(key, seen(other), "an object")),
        };
        match object.keys().find(|name| !allowed.contains(&name.as_str())) {
            Some(name) => {
                let expected = format!("one of the keys {}", allowed.join(", "));
                Err(self.error(format!("{key}.{name}"), "an unknown key", expected))
            }
            None => Ok(object),
        }
    }

    fn step(&self) -> Result<StepModel, ProfileError> {
        if let Some(table) = ["prefill", "decode"].into_iter().find(|table| self.root.contains_key(*table)) {
            return Err(self.error(table, "there beside `step`", "either tables or coefficients"));
        }
        let keys = StepModel::default().coefficients().map(|(key, _)| key);
        let object = self.object("step", &keys)?;
        let needed = |key: &str| match object.get(key) {
            Some(Value::Number(number)) => Ok(number.as_f64().unwrap_or(f64::INFINITY)),
            other => Err(self.error(format!("step.{key}"), seen(other), "a number")),
        };
        let optional = |key: &str| if object.contains_key(key) { needed(key) } else { Ok(0.0) };
        let model = StepModel {
            base_ms: needed("base_ms")?,
            prefill_token_us: needed("prefill_token_us")?,
            decode_sequence_us: needed("decode_sequence_us")?,
            kv_token_read_ns: needed("kv_token_read_ns")?,
            chunk_context_ns: needed("chunk_context_ns")?,
            saturating_ms: optional("saturating_ms")?,
            saturating_tokens: optional("saturating_tokens")?,
        };
        let named = |key: &str| format!("step.{key}");
        model.check().map_err(|error| self.error(named(error.key), error.value, error.expected))?;
        Ok(model)
    }

    fn grid<const N: usize>(&self, table: &str, rules: [AxisRule; N]) -> Result<Grid<N>, ProfileError> {
        let mut allowed = vec!["axes", "milliseconds"];
        allowed.extend(rules.iter().map(|rule| rule.key));
        let object = self.object(table, &allowed)?;
        let titles = Value::from(rules.iter().map(|rule| rule.title).collect::<Vec<_>>());
        if let Some(other) = object.get("axes").filter(|axes| **axes != titles) {
            return Err(self.error(format!("{table}.axes"), other.to_string(), titles.to_string()));
        }
        let mut sizes = Vec::with_capacity(N);
        let mut axes = Vec::with_capacity(N);
        for rule in &rules {
            let axis = self.axis(table, rule, object.get(rule.key))?;
            sizes.push((rule.key, axis.len()));
            axes.push(axis);
        }
        let mut values = Vec::with_capacity(sizes.iter().map(|(_, size)| size).product());
        self.fill(table, object.get("milliseconds"), &sizes, &mut Vec::new(), &mut values)?;
        // Both hold by now, as every axis and every row was looked at.
        let grid = <[Axis; N]>::try_from(axes).ok().and_then(|axes| Grid::new(axes, values));
        grid.ok_or_else(|| self.error(format!("{table}.milliseconds"), "incomplete", "a value for every point"))
    }

    fn axis(&self, table: &str, rule: &AxisRule, value: Option<&Value>) -> Result<Axis, ProfileError> {
        let AxisRule { key, least, .. } = rule;
        let list = match value {
            Some(Value::Array(list)) if !list.is_empty() => list,
            other => return Err(self.error(format!("{table}.{key}"), seen(other), "a list of numbers")),
        };
        let mut points: Vec<f64> = Vec::with_capacity(list.len());
        for (index, value) in list.iter().enumerate() {
            let error = |expected: String| self.error(format!("{table}.{key}[{index}]"), shown(value), expected);
            let point = value.as_f64().filter(|point| point.is_finite() && point >= least);
            let point = point.ok_or_else(|| error(format!("a number of at least {least}")))?;
            if let Some(before) = points.last().filter(|before| **before >= point) {
                return Err(error(format!("more than {before}, the point before it")));
            }
            points.push(point);
        }
        let size = points.len();
        let error = || self.error(format!("{table}.{key}"), format!("a list of {size}"), "at most 65535 points");
        Axis::new(points).ok_or_else(error)
    }

    /// Appends the numbers of nested lists, whose lengths are those of the axes that are left.
    fn fill(
        &self,
        table: &str,
        value: Option<&Value>,
        axes: &[(&'static str, usize)],
        index: &mut Vec<usize>,
        values: &mut Vec<f64>,
    ) -> Result<(), ProfileError> {
        let error = |index: &[usize], expected: String| {
            let indices: String = index.iter().map(|index| format!("[{index}]")).collect();
            self.error(format!("{table}.milliseconds{indices}"), seen(value), expected)
        };
        let Some(((axis, size), inner)) = axes.split_first() else {
            let ms = value.and_then(Value::as_f64).ok_or_else(|| error(index, "milliseconds".to_owned()))?;
            fixed::check_ms(ms).map_err(|expected| error(index, expected.to_owned()))?;
            values.push(ms);
            return Ok(());
        };
        match value {
            Some(Value::Array(list)) if list.len() == *size => {
                for (at, value) in list.iter().enumerate() {
                    index.push(at);
                    self.fill(table, Some(value), inner, index, values)?;
                    index.pop();
                }
                Ok(())
            }
            _ => Err(error(index, format!("a list of {size}, one for each of {table}.{axis}"))),
        }
    }
}

/// A table with its axes.
fn written<const N: usize>(grid: &Grid<N>, rules: [AxisRule; N]) -> Map<String, Value> {
    let (axes, values) = grid.parts();
    let mut table: Map<String, Value> =
        rules.iter().zip(axes).map(|(rule, points)| (rule.key.to_owned(), points.into())).collect();
    table.insert("milliseconds".to_owned(), nested(values, &grid.dimensions()));
    table
}

/// Numbers as lists in lists, whose lengths are those of the axes.
fn nested(values: &[f64], sizes: &[usize]) -> Value {
    match sizes.split_first() {
        Some((size, inner)) if !inner.is_empty() => {
            values.chunks(values.len() / size).map(|row| nested(row, inner)).collect()
        }
        _ => values.into(),
    }
}

/// A value in a message.
fn shown(value: &Value) -> String {
    match value {
        Value::Array(list) => format!("a list of {}", list.len()),
        Value::Object(_) => "an object".to_owned(),
        plain => plain.to_string(),
    }
}

fn seen(value: Option<&Value>) -> String {
    value.map_or_else(|| "missing".to_owned(), shown)
}
