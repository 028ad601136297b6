//! Writing Mooncake traces: one JSON object a line, gzip if the name ends in `.gz`.
//!
//! The file appears at its name only when it is complete: it is written beside it under a temporary name and renamed.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde::Serialize;

use super::error::TraceError;
use super::row::TraceRow;

/// The largest f64 below which every whole number is exact; larger times are written as they are.
const EXACT_BELOW: f64 = 9_007_199_254_740_992.0;

/// Writes rows as a Mooncake trace, replacing the file if there is one. The same rows give the same bytes.
pub fn write_rows(path: &Path, rows: &[TraceRow]) -> Result<(), TraceError> {
    let fails = |cause| TraceError::Write { file: path.display().to_string(), cause };
    let temporary = temporary_beside(path).map_err(fails)?;
    let written = write_file(&temporary, path, rows).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The half-written file is of no use; that it may not exist is no second error.
        let _ = fs::remove_file(&temporary);
    }
    written.map_err(fails)
}

fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut temporary = name.to_owned();
    temporary.push(format!(".{}.tmp", std::process::id()));
    Ok(path.with_file_name(temporary))
}

fn write_file(temporary: &Path, path: &Path, rows: &[TraceRow]) -> io::Result<()> {
    let file = BufWriter::new(File::create(temporary)?);
    let file = if path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gz")) {
        let mut packed = GzEncoder::new(file, Compression::default());
        write_lines(&mut packed, rows)?;
        packed.finish()?
    } else {
        let mut plain = file;
        write_lines(&mut plain, rows)?;
        plain
    };
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()
}

fn write_lines(out: &mut impl Write, rows: &[TraceRow]) -> io::Result<()> {
    for row in rows {
        serde_json::to_writer(&mut *out, &JsonRow::from(row))?;
        out.write_all(b"\n")?;
    }
    Ok(())
}

/// A row under the names of the file format, in the order of the public traces.
#[derive(Serialize)]
struct JsonRow<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    request_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    session_id: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timestamp: Option<Number>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<Number>,
    input_length: u32,
    output_length: u32,
    #[serde(skip_serializing_if = "<[u64]>::is_empty")]
    hash_ids: &'a [u64],
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    strict_priority: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    output_token_ids: Option<&'a [u32]>,
}

impl<'a> From<&'a TraceRow> for JsonRow<'a> {
    fn from(row: &'a TraceRow) -> Self {
        JsonRow {
            request_id: row.request_id.as_deref(),
            session_id: row.session_id.as_deref(),
            timestamp: row.timestamp_ms.map(Number::from),
            delay: row.delay_ms.map(Number::from),
            input_length: row.input_tokens,
            output_length: row.output_tokens,
            hash_ids: &row.hash_ids,
            priority: row.priority,
            strict_priority: row.strict_priority,
            output_token_ids: row.output_token_ids.as_deref(),
        }
    }
}

/// Milliseconds: a whole number where they are one, as readers of the public traces expect.
#[derive(Serialize)]
#[serde(untagged)]
enum Number {
    Whole(i64),
    Real(f64),
}

impl From<f64> for Number {
    fn from(ms: f64) -> Self {
        if ms.fract() == 0.0 && ms.abs() < EXACT_BELOW { Number::Whole(ms as i64) } else { Number::Real(ms) }
    }
}
