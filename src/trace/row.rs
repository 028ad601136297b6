//! One request of a trace, and what makes a line of JSON such a request.
//!
//! Main names and aliases: `input_length` (`input_tokens`), `output_length` (`output_tokens`), `timestamp`
//! (`created_time`), `delay` (`delay_ms`), `hash_ids`, `session_id`, `request_id`, `priority`, `strict_priority`,
//! `output_token_ids`. A field may be given once; `null` counts as not given; other fields are ignored.

use std::fmt;
use std::ops::Range;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

use super::error::RowProblem;
use super::locate;

/// The largest time, in milliseconds either side of 0, that f64 counts exactly.
pub(super) const MAX_TIME_MS: f64 = 9_007_199_254_740_992.0;
/// Values in messages are cut to this many characters.
const SHOWN_CHARS: usize = 40;

/// One request as the trace describes it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct TraceRow {
    /// Position among the rows of the file, from 0; blank lines do not count, rows left out as bad do.
    pub row: u64,
    /// Line in the file, from 1.
    pub line: u64,
    /// The request's name, if the trace gives one.
    pub request_id: Option<String>,
    /// The session that the request is a turn of; `None`: a session of its own.
    pub session_id: Option<String>,
    /// Arrival in milliseconds, from any origin; negative is allowed.
    pub timestamp_ms: Option<f64>,
    /// Milliseconds between the end of the session's turn before and this one; never negative.
    pub delay_ms: Option<f64>,
    /// Prompt length, in tokens; at least 1.
    pub input_tokens: u32,
    /// Output length, in tokens; may be 0.
    pub output_tokens: u32,
    /// Hashes of the prompt's blocks: rows whose lists begin alike have prompts that begin alike. They cover the whole
    /// prompt or more. Empty if the trace gives none; the prompt then shares nothing with any other.
    pub hash_ids: Vec<u64>,
    /// Priority: higher comes sooner.
    pub priority: Option<i32>,
    /// Priority class that is served strictly before lower ones.
    pub strict_priority: Option<u32>,
    /// The output's token ids, as many as `output_tokens`.
    pub output_token_ids: Option<Vec<u32>>,
}

/// A problem of a row, with the byte of the line (from 1) that it is found at.
#[derive(Debug)]
pub(super) struct RowFault {
    pub(super) column: u64,
    pub(super) problem: RowProblem,
}

/// Reads one line of a trace. `row` and `line` are copied into the result.
pub(super) fn parse_row(text: &str, row: u64, line: u64, block_tokens: u32) -> Result<TraceRow, RowFault> {
    let fields = Fields::parse(text)?;
    let hash_ids = fields.list("hash_ids", u64::MAX)?;
    let input_tokens = input_tokens(&fields, hash_ids.as_deref(), block_tokens)?;
    let output_tokens = match fields.whole("output_length", 0, u32::MAX.into())? {
        Some(tokens) => tokens as u32,
        None => return Err(fields.fault_at_start(RowProblem::Missing { field: "output_length" })),
    };
    let output_token_ids = fields.list("output_token_ids", u32::MAX.into())?;
    if let Some(ids) = output_token_ids.as_ref().filter(|ids| ids.len() as u64 != u64::from(output_tokens)) {
        let problem = RowProblem::OutputIds { found: ids.len() as u64, expected: output_tokens };
        return Err(fields.fault("output_token_ids", problem));
    }
    Ok(TraceRow {
        row,
        line,
        request_id: fields.name("request_id")?,
        session_id: fields.name("session_id")?,
        timestamp_ms: fields.time("timestamp", -MAX_TIME_MS)?,
        delay_ms: fields.time("delay", 0.0)?,
        input_tokens,
        output_tokens,
        hash_ids: hash_ids.unwrap_or_default(),
        priority: fields.signed("priority")?,
        strict_priority: fields.whole("strict_priority", 0, u32::MAX.into())?.map(|value| value as u32),
        output_token_ids: output_token_ids.map(|ids| ids.into_iter().map(|id| id as u32).collect()),
    })
}

fn input_tokens(fields: &Fields<'_>, hash_ids: Option<&[u64]>, block_tokens: u32) -> Result<u32, RowFault> {
    let given = fields.whole("input_length", 1, u32::MAX.into())?.map(|tokens| tokens as u32);
    let Some(hashes) = hash_ids.map(|ids| ids.len() as u64) else {
        return given.ok_or_else(|| fields.fault_at_start(RowProblem::NoPromptLength));
    };
    let capacity_tokens = hashes.saturating_mul(block_tokens.into());
    match given {
        Some(input_tokens) if u64::from(input_tokens) > capacity_tokens => {
            let problem = RowProblem::Capacity { input_tokens, hashes, block_tokens, capacity_tokens };
            Err(fields.fault("input_length", problem))
        }
        Some(input_tokens) => Ok(input_tokens),
        None if hashes == 0 => Err(fields.fault("hash_ids", RowProblem::NoPromptLength)),
        None => u32::try_from(capacity_tokens)
            .map_err(|_| fields.fault("hash_ids", RowProblem::PromptTooLong { hashes, block_tokens })),
    }
}

/// The names that a row may use, each with the main name of its field.
const NAMES: [(&str, &str); 14] = [
    ("input_length", "input_length"),
    ("input_tokens", "input_length"),
    ("output_length", "output_length"),
    ("output_tokens", "output_length"),
    ("timestamp", "timestamp"),
    ("created_time", "timestamp"),
    ("delay", "delay"),
    ("delay_ms", "delay"),
    ("hash_ids", "hash_ids"),
    ("session_id", "session_id"),
    ("request_id", "request_id"),
    ("priority", "priority"),
    ("strict_priority", "strict_priority"),
    ("output_token_ids", "output_token_ids"),
];

/// A field of the row: its main name, the name it was given by, its value.
struct Given {
    field: &'static str,
    name: &'static str,
    value: Value,
}

/// The known fields of one line.
struct Fields<'a> {
    text: &'a str,
    given: Vec<Given>,
}

impl<'a> Fields<'a> {
    fn parse(text: &'a str) -> Result<Self, RowFault> {
        let known: Known = serde_json::from_str(text).map_err(|error| json_fault(&error))?;
        let fields = Fields { text, given: known.0 };
        for (index, second) in fields.given.iter().enumerate() {
            let Some(first) = fields.given[..index].iter().find(|first| first.field == second.field) else {
                continue;
            };
            let nth = usize::from(first.name == second.name);
            let column = column_of(locate::value_of(text, second.name, nth));
            return Err(RowFault { column, problem: RowProblem::Twice { first: first.name, second: second.name } });
        }
        Ok(fields)
    }

    fn get(&self, field: &str) -> Option<&Given> {
        self.given.iter().find(|given| given.field == field).filter(|given| !given.value.is_null())
    }

    fn whole(&self, field: &'static str, min: u64, max: u64) -> Result<Option<u64>, RowFault> {
        let Some(given) = self.get(field) else { return Ok(None) };
        match given.value.as_u64() {
            Some(number) if number >= min && number <= max => Ok(Some(number)),
            Some(number) if number > max => Err(self.wrong(given, format!("a whole number of at most {max}"))),
            _ => Err(self.wrong(given, format!("a whole number of at least {min}"))),
        }
    }

    fn signed(&self, field: &'static str) -> Result<Option<i32>, RowFault> {
        let Some(given) = self.get(field) else { return Ok(None) };
        match given.value.as_i64().and_then(|number| i32::try_from(number).ok()) {
            Some(number) => Ok(Some(number)),
            None => Err(self.wrong(given, format!("a whole number from {} to {}", i32::MIN, i32::MAX))),
        }
    }

    fn time(&self, field: &'static str, min: f64) -> Result<Option<f64>, RowFault> {
        let Some(given) = self.get(field) else { return Ok(None) };
        match given.value.as_f64() {
            Some(ms) if ms >= min && ms <= MAX_TIME_MS => Ok(Some(ms)),
            Some(ms) if ms > MAX_TIME_MS => Err(self.wrong(given, format!("milliseconds of at most {MAX_TIME_MS}"))),
            _ => Err(self.wrong(given, format!("milliseconds, a number of at least {min}"))),
        }
    }

    fn name(&self, field: &'static str) -> Result<Option<String>, RowFault> {
        let Some(given) = self.get(field) else { return Ok(None) };
        match &given.value {
            Value::String(text) => Ok(Some(text.clone())),
            Value::Number(number) => Ok(Some(number.to_string())),
            _ => Err(self.wrong(given, "a string or a number".to_owned())),
        }
    }

    fn list(&self, field: &'static str, max: u64) -> Result<Option<Vec<u64>>, RowFault> {
        let Some(given) = self.get(field) else { return Ok(None) };
        let Value::Array(items) = &given.value else {
            return Err(self.wrong(given, "a list of whole numbers".to_owned()));
        };
        let mut numbers = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            match item.as_u64() {
                Some(number) if number <= max => numbers.push(number),
                _ => {
                    let list = locate::value_of(self.text, given.name, 0);
                    let place = list.and_then(|list| locate::element_of(self.text, list, index));
                    let expected = format!("only whole numbers from 0 to {max} in the list");
                    return Err(self.wrong_at(given, place, expected));
                }
            }
        }
        Ok(Some(numbers))
    }

    fn wrong(&self, given: &Given, expected: String) -> RowFault {
        self.wrong_at(given, locate::value_of(self.text, given.name, 0), expected)
    }

    fn wrong_at(&self, given: &Given, place: Option<Range<usize>>, expected: String) -> RowFault {
        let found = match place.clone().and_then(|range| self.text.get(range)) {
            Some(text) => shortened(text),
            None => shortened(&given.value.to_string()),
        };
        RowFault { column: column_of(place), problem: RowProblem::Value { field: given.name, found, expected } }
    }

    fn fault(&self, field: &'static str, problem: RowProblem) -> RowFault {
        let name = self.get(field).map_or(field, |given| given.name);
        RowFault { column: column_of(locate::value_of(self.text, name, 0)), problem }
    }

    /// A fault of the row as a whole: it stands at the row's opening brace.
    fn fault_at_start(&self, problem: RowProblem) -> RowFault {
        RowFault { column: self.text.find('{').map_or(1, |at| at as u64 + 1), problem }
    }
}

fn column_of(place: Option<Range<usize>>) -> u64 {
    place.map_or(1, |range| range.start as u64 + 1)
}

fn shortened(text: &str) -> String {
    match text.char_indices().nth(SHOWN_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn json_fault(error: &serde_json::Error) -> RowFault {
    let message = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let reason = message.strip_suffix(&place).unwrap_or(&message).to_owned();
    RowFault { column: error.column().max(1) as u64, problem: RowProblem::Json { reason } }
}

/// The known fields of an object in their order, repetitions included.
struct Known(Vec<Given>);

impl<'de> Deserialize<'de> for Known {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(KnownVisitor)
    }
}

struct KnownVisitor;

impl<'de> Visitor<'de> for KnownVisitor {
    type Value = Known;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Known, A::Error> {
        let mut given = Vec::with_capacity(NAMES.len());
        while let Some(Key(key)) = map.next_key()? {
            match key {
                Some((name, field)) => given.push(Given { field, name, value: map.next_value()? }),
                None => {
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        Ok(Known(given))
    }
}

/// A key of the object, if it is one of [`NAMES`].
struct Key(Option<(&'static str, &'static str)>);

impl<'de> Deserialize<'de> for Key {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_str(KeyVisitor)
    }
}

struct KeyVisitor;

impl Visitor<'_> for KeyVisitor {
    type Value = Key;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a key")
    }

    fn visit_str<E>(self, key: &str) -> Result<Key, E> {
        Ok(Key(NAMES.iter().find(|(name, _)| *name == key).copied()))
    }
}
