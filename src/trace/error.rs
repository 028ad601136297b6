//! What can be wrong with a trace or a workload, and where.
//!
//! Messages follow one form: the place, the value seen, what was expected, and on a second line one hint if there is
//! one. Reasons of the operating system are part of the message, not a separate source, so that each error is one
//! sentence.

use std::fmt;
use std::io;

use thiserror::Error;

const SKIP_HINT: &str = "`--on-bad-row skip` leaves such rows out and counts them";

/// A place in a trace file, shown as `file:line:column`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The file, as the user named it.
    pub file: String,
    /// Line, from 1.
    pub line: u64,
    /// Byte within the line, from 1: the start of the value that is wrong.
    pub column: u64,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}:{}", self.file, self.line, self.column)
    }
}

/// What is wrong with one row of a trace.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum RowProblem {
    /// The line is not JSON, or not an object.
    #[error("the line is not a JSON object: {reason}")]
    Json {
        /// The parser's reason.
        reason: String,
    },
    /// The line is not UTF-8.
    #[error("the line is not UTF-8 text")]
    NotUtf8,
    /// The line is longer than the reader takes.
    #[error("the line is longer than {limit_bytes} bytes")]
    TooLong {
        /// The limit, in bytes.
        limit_bytes: u64,
    },
    /// A field's value is of the wrong kind or out of range.
    #[error("`{field}` is {found}, expected {expected}")]
    Value {
        /// The field, as the row names it.
        field: &'static str,
        /// The value, as the row writes it (shortened).
        found: String,
        /// What is accepted.
        expected: String,
    },
    /// A field that every row needs is not there.
    #[error("`{field}` is missing")]
    Missing {
        /// The field's main name.
        field: &'static str,
    },
    /// A row has neither a prompt length nor hashes to derive it from.
    #[error("`input_length` is missing and there are no `hash_ids` to derive it from")]
    NoPromptLength,
    /// A field is there more than once, by the same name or by an alias.
    #[error("`{first}` and `{second}` are both given, expected one of them")]
    Twice {
        /// The name met first.
        first: &'static str,
        /// The name met second; may be the same.
        second: &'static str,
    },
    /// The hashes cover fewer tokens than the prompt has.
    #[error(
        "`input_length` is {input_tokens}, expected at most {capacity_tokens}: {hashes} `hash_ids` of {block_tokens} tokens hold no more"
    )]
    Capacity {
        /// Prompt length of the row, in tokens.
        input_tokens: u32,
        /// Number of hashes of the row.
        hashes: u64,
        /// Tokens that one hash stands for.
        block_tokens: u32,
        /// Tokens that the row's hashes stand for.
        capacity_tokens: u64,
    },
    /// The length of the hashes does not fit a prompt length.
    #[error("{hashes} `hash_ids` of {block_tokens} tokens make a prompt longer than {} tokens", u32::MAX)]
    PromptTooLong {
        /// Number of hashes of the row.
        hashes: u64,
        /// Tokens that one hash stands for.
        block_tokens: u32,
    },
    /// The given output tokens are not as many as the output length says.
    #[error("`output_token_ids` holds {found} ids, expected `output_length` of them, {expected}")]
    OutputIds {
        /// Ids in the list.
        found: u64,
        /// Output length of the row, in tokens.
        expected: u32,
    },
}

/// What is wrong with a row as a turn of its session.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SessionProblem {
    /// The first turn has a delay, although nothing comes before it.
    #[error("`delay` is given for the first turn, expected it only on later turns of a session")]
    DelayOnFirstTurn,
    /// The first turn has no timestamp, and the run is driven by timestamps.
    #[error("`timestamp` is missing, expected one on the first turn of every session")]
    NoStart,
    /// The turn has a timestamp, the one before has none, and there is no delay.
    #[error("the delay cannot be inferred: `timestamp` is given, but the turn before (line {previous_line}) has none")]
    NoPreviousTimestamp {
        /// Line of the turn before, from 1.
        previous_line: u64,
    },
    /// The turn comes before the one that precedes it.
    #[error(
        "`timestamp` is {timestamp_ms} ms, expected at least {previous_ms} ms, that of the turn before (line {previous_line})"
    )]
    TimeGoesBack {
        /// This turn's timestamp in milliseconds, as text.
        timestamp_ms: String,
        /// The turn before's timestamp in milliseconds, as text.
        previous_ms: String,
        /// Line of the turn before, from 1.
        previous_line: u64,
    },
    /// A delay is negative or not a number.
    #[error("`delay` is {delay_ms} ms, expected a finite number of at least 0")]
    BadDelay {
        /// The delay in milliseconds, as text.
        delay_ms: String,
    },
}

/// A trace that cannot be used.
#[derive(Debug, Error)]
pub enum TraceError {
    /// The file cannot be opened.
    #[error("{file}: cannot be opened: {cause}")]
    Open {
        /// The file, as the user named it.
        file: String,
        /// The system's reason.
        cause: io::Error,
    },
    /// The path names a directory.
    #[error("{file}: is a directory, expected a trace file (JSONL, plain or gzip)")]
    Directory {
        /// The path, as the user named it.
        file: String,
    },
    /// Reading failed midway.
    #[error("{file}: cannot be read after line {line}: {cause}")]
    Read {
        /// The file, as the user named it.
        file: String,
        /// Lines read before.
        line: u64,
        /// The system's reason.
        cause: io::Error,
    },
    /// A gzip file ends early.
    #[error(
        "{file}: the gzip data ends early, after line {line}\n  hint: the file was cut off; fetch or pack it again"
    )]
    TruncatedGzip {
        /// The file, as the user named it.
        file: String,
        /// Lines read before.
        line: u64,
    },
    /// A gzip file is damaged.
    #[error("{file}: the gzip data is damaged after line {line}: {cause}")]
    DamagedGzip {
        /// The file, as the user named it.
        file: String,
        /// Lines read before.
        line: u64,
        /// The unpacker's reason.
        cause: io::Error,
    },
    /// There is nothing to send.
    #[error("{file}: no requests: {reason}")]
    NoRequests {
        /// The file, as the user named it.
        file: String,
        /// Why there are none.
        reason: String,
    },
    /// The block size is 0.
    #[error("the trace's block size is 0 tokens, expected at least 1")]
    ZeroBlock,
    /// A row is wrong.
    #[error("{place}: {problem}\n  hint: {SKIP_HINT}")]
    Row {
        /// Where.
        place: Place,
        /// What.
        problem: RowProblem,
    },
    /// A row does not fit its session.
    #[error("{file}:{line}: {}{problem}{}", in_session(session_id.as_deref()), skipped_hint(*skipped_rows))]
    Session {
        /// The file, as the user named it.
        file: String,
        /// Line of the turn, from 1.
        line: u64,
        /// The session, if the row names one.
        session_id: Option<String>,
        /// What.
        problem: SessionProblem,
        /// Rows that were left out when the trace was read; one of them may be what is missing.
        skipped_rows: u64,
    },
    /// The trace has more distinct blocks than there are token ids.
    #[error("{file}: more distinct blocks than token ids, at most {} are possible", u32::MAX)]
    TooManyBlocks {
        /// The file, as the user named it.
        file: String,
    },
    /// A file cannot be written.
    #[error("{file}: cannot be written: {cause}")]
    Write {
        /// The file, as the user named it.
        file: String,
        /// The system's reason.
        cause: io::Error,
    },
}

fn in_session(session_id: Option<&str>) -> String {
    session_id.map(|id| format!("session `{id}`: ")).unwrap_or_default()
}

fn skipped_hint(skipped_rows: u64) -> String {
    if skipped_rows == 0 {
        return String::new();
    }
    format!("\n  hint: {skipped_rows} bad rows were left out; a turn of this session may be among them")
}

/// Options of a generated workload that contradict each other or ask for nothing.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum WorkloadError {
    /// An option is out of range.
    #[error("`{option}` is {found}, expected {expected}")]
    Option {
        /// The option's name.
        option: &'static str,
        /// The value given.
        found: String,
        /// What is accepted.
        expected: &'static str,
    },
    /// The workload needs more token ids than there are.
    #[error("the workload needs more than {} token ids", u32::MAX)]
    TooManyTokens,
}
