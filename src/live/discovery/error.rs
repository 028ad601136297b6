//! What can go wrong while workers are found: the place first, the value seen, what was expected.

use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why a worker could not be registered, listed or named. The text stands alone; nothing is repeated by a source chain.
#[derive(Debug, Error)]
pub enum DiscoveryError {
    /// A namespace is a folder's name and must be a harmless one.
    #[error(
        "namespace `{}` {fault}, expected 1 to 64 characters of A-Z a-z 0-9 . _ -, the first not a dot",
        name.escape_debug()
    )]
    Namespace {
        /// The name asked for.
        name: String,
        /// What is wrong with it.
        fault: String,
    },
    /// The folder exists, but somebody else could write there.
    #[error("{}: {fault}, expected {expected}\n  hint: {hint}", path.display())]
    UnsafeFolder {
        /// The folder.
        path: PathBuf,
        /// What is wrong with it.
        fault: String,
        /// What was expected.
        expected: String,
        /// What the user can do.
        hint: String,
    },
    /// The file system refused.
    #[error("{}: cannot {action}: {cause}", path.display())]
    File {
        /// The file or folder asked for.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// The system's answer.
        cause: io::Error,
    },
    /// A field of a registration cannot be true.
    #[error("registration: `{key}` is {value}, expected {expected}")]
    Value {
        /// The field.
        key: &'static str,
        /// The value seen.
        value: String,
        /// What was expected.
        expected: &'static str,
    },
    /// A living process has registered this URL.
    #[error(
        "namespace `{namespace}`: {url} is registered by the running process {pid}, expected a URL of its own for \
         every worker\n  hint: stop process {pid}, or use another port or another namespace"
    )]
    Taken {
        /// The namespace.
        namespace: String,
        /// The URL.
        url: String,
        /// Who has it.
        pid: u32,
    },
    /// One process has registered the same port under another host.
    #[error("{url}: process {pid} has registered this port as {other}, expected a port of its own for every worker")]
    PortTaken {
        /// The URL to be registered.
        url: String,
        /// The URL that is registered.
        other: String,
        /// The process of both.
        pid: u32,
    },
    /// Something else than the address of a worker.
    #[error("worker `{}`: {fault}, expected http://host:port, grpc://host:port or host:port", value.escape_debug())]
    WorkerUrl {
        /// The value seen.
        value: String,
        /// What is wrong with it.
        fault: String,
    },
    /// Two entries of a list mean the same worker.
    #[error("worker `{second}` is the same as `{first}` ({url}), expected every worker once")]
    Duplicate {
        /// The earlier entry, as typed.
        first: String,
        /// The later entry, as typed.
        second: String,
        /// What both mean.
        url: String,
    },
}

impl DiscoveryError {
    pub(super) fn file(path: &Path, action: &'static str, cause: io::Error) -> Self {
        DiscoveryError::File { path: path.to_path_buf(), action, cause }
    }

    pub(super) fn value(key: &'static str, value: impl Display, expected: &'static str) -> Self {
        DiscoveryError::Value { key, value: value.to_string(), expected }
    }

    pub(super) fn worker_url(value: &str, fault: impl Into<String>) -> Self {
        DiscoveryError::WorkerUrl { value: value.to_string(), fault: fault.into() }
    }
}
