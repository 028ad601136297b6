//! What can go wrong with a file of results: the place first, the value seen, what was expected.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a result could not be read or written. The text stands alone; nothing is repeated by a source chain.
#[derive(Debug, Error)]
pub enum MeasureError {
    /// The file system refused.
    #[error("{}: cannot {action}: {cause}", path.display())]
    File {
        /// The file asked for.
        path: PathBuf,
        /// What was tried: `read` or `write`.
        action: &'static str,
        /// The system's answer.
        cause: io::Error,
    },
    /// The text is not JSON.
    #[error("{file}:{line}:{column}: not valid JSON, expected a {expected}")]
    Json {
        /// The file, as its reader named it.
        file: String,
        /// Line, from 1.
        line: usize,
        /// Column, from 1.
        column: usize,
        /// What the file should hold.
        expected: &'static str,
    },
    /// A key of a JSON object is missing or holds something else.
    #[error("{file}: `{key}` is {value}, expected {expected}")]
    Value {
        /// The file, as its reader named it.
        file: String,
        /// The key.
        key: String,
        /// The value seen, as JSON, or `missing`.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// The first line of a CSV lacks a column.
    #[error("{file}:1: column `{column}` is missing, expected the header of a requests.csv")]
    Column {
        /// The file, as its reader named it.
        file: String,
        /// The column.
        column: &'static str,
    },
    /// A cell of a CSV holds something else.
    #[error("{file}:{line}: `{column}` is `{value}`, expected {expected}")]
    Cell {
        /// The file, as its reader named it.
        file: String,
        /// Line on which the row starts, from 1.
        line: usize,
        /// The column.
        column: String,
        /// The value seen.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
}

impl MeasureError {
    pub(super) fn reading(path: &Path, cause: io::Error) -> Self {
        MeasureError::File { path: path.to_path_buf(), action: "read", cause }
    }

    pub(super) fn writing(path: &Path, cause: io::Error) -> Self {
        MeasureError::File { path: path.to_path_buf(), action: "write", cause }
    }
}
