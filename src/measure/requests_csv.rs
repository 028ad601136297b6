//! `requests.csv`: every request of a run, one line each, for spreadsheets, plots and paired comparisons.
//!
//! The first line names the columns, with units; times are simulated ms since the start of the run. The columns
//! [`DERIVED`] repeat what follows from others and are not read back. An empty cell is an absent value; an empty text
//! is written as `""`. Cells with commas, quotes or line breaks are quoted, quotes within are doubled. Numbers are
//! written so that reading gives the same number.

use std::collections::BTreeMap;
use std::fmt::{Display, Write};
use std::path::Path;
use std::str::FromStr;

use super::error::MeasureError;
use super::files::{read_text, write_atomic};
use super::report::FAILURE_KINDS;
use super::schema::failure_name;
use crate::session::ledger::{Outcome, RequestRecord};

/// The columns, in the order in which they are written.
pub const COLUMNS: [&str; 23] = [
    "row",
    "session_id",
    "turn",
    "input_tokens",
    "requested_output_tokens",
    "output_tokens",
    "reused_tokens",
    "worker",
    "overlap_blocks",
    "intended_ms",
    "sent_ms",
    "first_token_ms",
    "second_token_ms",
    "last_token_ms",
    "end_ms",
    "max_stall_ms",
    "engine_ttft_ms",
    "engine_tpot_ms",
    "ttft_ms",
    "tpot_ms",
    "e2e_latency_ms",
    "outcome",
    "message",
];

/// The columns that follow from others.
pub const DERIVED: [&str; 3] = ["ttft_ms", "tpot_ms", "e2e_latency_ms"];

const COMPLETED: &str = "completed";

/// The text of a `requests.csv` with one line a record, in the order given.
pub fn requests_csv(records: &[RequestRecord]) -> String {
    let mut text = COLUMNS.join(",");
    text.push('\n');
    for record in records {
        push_record(&mut text, record);
    }
    text
}

/// Writes a `requests.csv` in one step.
///
/// # Errors
/// [`MeasureError::File`] if the folder is missing or not writable.
pub fn write_requests_csv(path: &Path, records: &[RequestRecord]) -> Result<(), MeasureError> {
    write_atomic(path, requests_csv(records).as_bytes())
}

/// Reads a `requests.csv`; see [`parse_requests_csv`].
///
/// # Errors
/// As for [`parse_requests_csv`], and [`MeasureError::File`] if the file cannot be read.
pub fn read_requests_csv(path: &Path) -> Result<Vec<RequestRecord>, MeasureError> {
    parse_requests_csv(&read_text(path)?, &path.display().to_string())
}

/// Reads the text of a `requests.csv`; `file` names it in messages. Columns may stand in any order; unknown ones are
/// passed over, as are the derived ones. A column that can be absent in a record may be missing altogether.
///
/// # Errors
/// [`MeasureError::Column`] if a required column is missing, [`MeasureError::Cell`] at the first cell that is not what
/// its column holds.
pub fn parse_requests_csv(text: &str, file: &str) -> Result<Vec<RequestRecord>, MeasureError> {
    let mut lines = CsvLines { rest: text, line: 1 };
    let header = lines.next().map(|(_, cells)| cells).unwrap_or_default();
    let columns: BTreeMap<&str, usize> =
        header.iter().enumerate().filter_map(|(index, cell)| Some((cell.as_deref()?, index))).collect();
    lines.map(|(line, cells)| Row { file, line, columns: &columns, cells: &cells }.record()).collect()
}

fn push_record(text: &mut String, record: &RequestRecord) {
    let (outcome, message) = match &record.outcome {
        Outcome::Completed => (COMPLETED, None),
        Outcome::Failed { kind, message } => (failure_name(*kind), Some(message.as_str())),
    };
    let mut cells = Cells { text, first: true };
    cells.push(Some(record.row));
    cells.push_text(record.session_id.as_deref());
    cells.push(Some(record.turn));
    cells.push(Some(record.input_tokens));
    cells.push(Some(record.requested_output_tokens));
    cells.push(Some(record.output_tokens));
    cells.push(record.reused_tokens);
    cells.push_text(record.worker.as_deref());
    cells.push(record.overlap_blocks);
    cells.push(Some(record.intended_ms));
    cells.push(Some(record.sent_ms));
    cells.push(record.first_token_ms);
    cells.push(record.second_token_ms);
    cells.push(record.last_token_ms);
    cells.push(Some(record.end_ms));
    cells.push(record.max_stall_ms);
    cells.push(record.engine_ttft_ms);
    cells.push(record.engine_tpot_ms);
    cells.push(record.ttft_ms());
    cells.push(record.tpot_ms());
    cells.push(record.e2e_latency_ms());
    cells.push_text(Some(outcome));
    cells.push_text(message);
    text.push('\n');
}

/// Appends cells to a line.
struct Cells<'a> {
    text: &'a mut String,
    first: bool,
}

impl Cells<'_> {
    fn push(&mut self, number: Option<impl Display>) {
        self.separate();
        if let Some(number) = number {
            // Writing to a string cannot fail.
            let _ = write!(self.text, "{number}");
        }
    }

    fn push_text(&mut self, cell: Option<&str>) {
        self.separate();
        match cell {
            Some(cell) if cell.is_empty() || cell.contains([',', '"', '\n', '\r']) => {
                self.text.push('"');
                self.text.push_str(&cell.replace('"', "\"\""));
                self.text.push('"');
            }
            Some(cell) => self.text.push_str(cell),
            None => {}
        }
    }

    fn separate(&mut self) {
        if !self.first {
            self.text.push(',');
        }
        self.first = false;
    }
}

/// Splits a CSV into its lines' cells, each with the number of the line it starts on. An empty cell without quotes is
/// `None`. Blank lines are passed over.
struct CsvLines<'a> {
    rest: &'a str,
    line: usize,
}

impl Iterator for CsvLines<'_> {
    type Item = (usize, Vec<Option<String>>);

    fn next(&mut self) -> Option<Self::Item> {
        let blank = self.rest.len() - self.rest.trim_start_matches(['\n', '\r']).len();
        self.pass(blank);
        if self.rest.is_empty() {
            return None;
        }
        let start = self.line;
        let mut cells = Vec::with_capacity(COLUMNS.len());
        loop {
            cells.push(self.cell());
            let more = self.rest.starts_with(',');
            if more {
                self.pass(1);
            } else {
                return Some((start, cells));
            }
        }
    }
}

impl CsvLines<'_> {
    fn cell(&mut self) -> Option<String> {
        let quoted = self.rest.starts_with('"');
        let mut cell = String::new();
        while self.rest.starts_with('"') {
            // From an opening quote to the next; a doubled quote closes one stretch and opens another.
            let inside = &self.rest[1..];
            let length = inside.find('"').unwrap_or(inside.len());
            cell.push_str(&inside[..length]);
            self.pass((length + 2).min(self.rest.len()));
            if self.rest.starts_with('"') {
                cell.push('"');
            }
        }
        let length = self.rest.find([',', '\n', '\r']).unwrap_or(self.rest.len());
        cell.push_str(&self.rest[..length]);
        self.pass(length);
        (quoted || !cell.is_empty()).then_some(cell)
    }

    fn pass(&mut self, bytes: usize) {
        let (passed, rest) = self.rest.split_at(bytes);
        self.line += passed.matches('\n').count();
        self.rest = rest;
    }
}

/// One line while it is read.
struct Row<'a> {
    file: &'a str,
    line: usize,
    columns: &'a BTreeMap<&'a str, usize>,
    cells: &'a [Option<String>],
}

impl Row<'_> {
    fn record(&self) -> Result<RequestRecord, MeasureError> {
        const COUNT: &str = "a whole number of at least 0";
        const TIME: &str = "milliseconds";
        Ok(RequestRecord {
            row: self.required("row", COUNT)?,
            session_id: self.text("session_id"),
            turn: self.required("turn", COUNT)?,
            input_tokens: self.required("input_tokens", COUNT)?,
            requested_output_tokens: self.required("requested_output_tokens", COUNT)?,
            output_tokens: self.required("output_tokens", COUNT)?,
            reused_tokens: self.optional("reused_tokens", COUNT)?,
            worker: self.text("worker"),
            overlap_blocks: self.optional("overlap_blocks", COUNT)?,
            intended_ms: self.required("intended_ms", TIME)?,
            sent_ms: self.required("sent_ms", TIME)?,
            first_token_ms: self.optional("first_token_ms", TIME)?,
            second_token_ms: self.optional("second_token_ms", TIME)?,
            last_token_ms: self.optional("last_token_ms", TIME)?,
            end_ms: self.required("end_ms", TIME)?,
            max_stall_ms: self.optional("max_stall_ms", TIME)?,
            engine_ttft_ms: self.optional("engine_ttft_ms", TIME)?,
            engine_tpot_ms: self.optional("engine_tpot_ms", TIME)?,
            outcome: self.outcome()?,
        })
    }

    fn outcome(&self) -> Result<Outcome, MeasureError> {
        let name: String = self.required("outcome", "text")?;
        if name == COMPLETED {
            return Ok(Outcome::Completed);
        }
        match FAILURE_KINDS.into_iter().find(|kind| failure_name(*kind) == name) {
            Some(kind) => Ok(Outcome::Failed { kind, message: self.text("message").unwrap_or_default() }),
            None => Err(self.wrong("outcome", &name, "`completed` or a kind of failure, such as `timeout`")),
        }
    }

    fn text(&self, column: &str) -> Option<String> {
        let index = *self.columns.get(column)?;
        self.cells.get(index)?.clone()
    }

    fn optional<T: FromStr>(&self, column: &str, expected: &'static str) -> Result<Option<T>, MeasureError> {
        let Some(cell) = self.text(column) else { return Ok(None) };
        cell.parse().map(Some).map_err(|_| self.wrong(column, &cell, expected))
    }

    fn required<T: FromStr>(&self, column: &'static str, expected: &'static str) -> Result<T, MeasureError> {
        if !self.columns.contains_key(column) {
            return Err(MeasureError::Column { file: self.file.to_owned(), column });
        }
        self.optional(column, expected)?.ok_or_else(|| self.wrong(column, "", expected))
    }

    fn wrong(&self, column: &str, value: &str, expected: &'static str) -> MeasureError {
        MeasureError::Cell {
            file: self.file.to_owned(),
            line: self.line,
            column: column.to_owned(),
            value: value.to_owned(),
            expected,
        }
    }
}
