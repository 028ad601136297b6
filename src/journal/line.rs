//! The lines of a journal, as both writer and reader know them.

use serde::{Deserialize, Serialize};

use crate::journal::write::JournalCounts;
use crate::time::SimTime;

/// The version of the format.
pub(super) const FORMAT: u32 = 1;
/// The version of the machines.
pub(super) const VERSION: &str = env!("CARGO_PKG_VERSION");
/// So many lines have a check sum behind them.
pub(super) const LINES_A_SUM: u64 = 1024;

/// How an output's line begins; the output and a brace follow.
pub(super) const OUTPUT_START: &[u8] = b"{\"o\":";

/// The first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Header {
    /// The version of the format.
    pub journal: u32,
    pub version: String,
    pub machine: String,
}

/// A machine is built.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct StartLine<S> {
    pub start: S,
}

/// Something arrived.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct InputLine<I> {
    pub t: SimTime,
    #[serde(rename = "in")]
    pub input: I,
}

/// Time passed.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdvanceLine {
    pub to: SimTime,
}

/// The digest of all bytes before.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SumLine {
    pub sum: String,
}

/// The last line of a whole journal.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct EndLine {
    pub end: JournalCounts,
}

/// What a line is, by its first key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Start,
    Input,
    Advance,
    Output,
    Sum,
    End,
}

impl Kind {
    pub fn of(line: &[u8]) -> Option<Kind> {
        let kinds: [(&[u8], Kind); 6] = [
            (OUTPUT_START, Kind::Output),
            (b"{\"t\":", Kind::Input),
            (b"{\"to\":", Kind::Advance),
            (b"{\"start\":", Kind::Start),
            (b"{\"sum\":", Kind::Sum),
            (b"{\"end\":", Kind::End),
        ];
        kinds.into_iter().find(|(start, _)| line.starts_with(start)).map(|(_, kind)| kind)
    }
}

/// A digest as it is written.
pub(super) fn digest_text(digest: u64) -> String {
    format!("{digest:016x}")
}
