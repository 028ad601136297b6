//! How a trace file is read: the flags of all programs that read one.

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use crate::trace::{DEFAULT_BLOCK_TOKENS, OnBadRow, ReadOptions};

/// What flags and file may set of the reading of a trace.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct InputSettings {
    /// Tokens that one hash id stands for [default: 512].
    #[arg(long, value_name = "TOKENS", help_heading = "Trace")]
    pub trace_block_size: Option<u32>,
    /// Only the first N rows.
    #[arg(long, value_name = "N", help_heading = "Trace")]
    pub head: Option<u64>,
    /// What to do with a row that cannot be used: fail, or skip and count [default: fail].
    #[arg(long, value_name = "WHAT", help_heading = "Trace")]
    pub on_bad_row: Option<BadRow>,
}

/// Names of the ways to treat bad rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BadRow {
    /// Stop at the first one.
    Fail,
    /// Leave them out and count them.
    Skip,
}

impl InputSettings {
    /// The options that are meant.
    pub fn resolve(&self) -> ReadOptions {
        ReadOptions {
            block_tokens: self.trace_block_size.unwrap_or(DEFAULT_BLOCK_TOKENS),
            limit_rows: self.head,
            on_bad_row: match self.on_bad_row {
                Some(BadRow::Skip) => OnBadRow::Skip,
                Some(BadRow::Fail) | None => OnBadRow::Fail,
            },
        }
    }
}
