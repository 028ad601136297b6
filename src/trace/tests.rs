//! Tests of the room, one file an idea.

mod expand;
mod generate;
mod hit_curves;
mod numbers;
mod prefix_ratio;
mod read;
mod reuse_bounds;
mod rows;
mod scan;
mod sessions;
mod stats;
mod write;

use std::io::Write;
use std::path::PathBuf;

use super::row::{RowFault, TraceRow, parse_row};

/// A row of lengths and hashes, the rest empty.
fn row(input_tokens: u32, hash_ids: &[u64]) -> TraceRow {
    TraceRow { input_tokens, output_tokens: 1, hash_ids: hash_ids.to_vec(), ..TraceRow::default() }
}

/// Parses one line with blocks of 4 tokens.
fn parse(text: &str) -> Result<TraceRow, RowFault> {
    parse_row(text, 0, 1, 4)
}

/// A real trace, if it is here; says so if it is not.
fn real_trace(name: &str) -> Option<PathBuf> {
    let folder = match std::env::var_os("MOCKFLEET_TRACES") {
        Some(folder) => PathBuf::from(folder),
        None => PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../shared/traces"),
    };
    let path = folder.join(name);
    if path.is_file() {
        return Some(path);
    }
    // Past the test harness, which keeps what passing tests print to itself.
    let _ = writeln!(std::io::stderr(), "skipped: there is no {name} in {} (set MOCKFLEET_TRACES)", folder.display());
    None
}
