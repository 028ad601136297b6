//! How a router finds the workers of this machine without being told about them.
//!
//! Every worker leaves a small file, its [`Registration`], in a folder that only its user can write. A router reads
//! that folder as often as it likes: a file whose process is gone is cleared away by whoever sees it first, so a worker
//! that was killed needs no farewell. Fleets that should not see each other use different namespaces, which are
//! subfolders.
//!
//! [`registration`] is what a file says, [`runtime_dir`](mod@runtime_dir) where the files lie and who may write there,
//! [`mod@file`] adds, lists and clears them, [`process`] tells whether a worker still lives, [`static_list`] is the
//! other way to name workers (`--workers URL…`), and [`error`] says what was wrong and where.
//!
//! Limits: one machine, one user, one process-id namespace (containers that share the folder but not their process ids
//! would take each other's workers for dead). Unix only.

pub mod error;
pub mod file;
pub mod process;
pub mod registration;
pub mod runtime_dir;
pub mod static_list;

pub use error::DiscoveryError;
pub use file::{Namespace, RegistrationGuard};
pub use process::{is_alive, process_started};
pub use registration::Registration;
pub use runtime_dir::runtime_dir;
pub use static_list::{parse_worker_list, parse_worker_url};

#[cfg(test)]
mod tests;
