//! What a run of the load generator needs to know.

use std::time::Duration;

use crate::live::load::target::Target;
use crate::session::plan::ArrivalMode;

/// A run, resolved and checked.
#[derive(Clone, Debug)]
pub struct LoadConfig {
    /// Where requests go.
    pub target: Target,
    /// By what rule they are released.
    pub arrival: ArrivalMode,
    /// Seed of everything random; output tokens follow from it too.
    pub seed: u64,
    /// How long a request may take (wall time).
    pub request_timeout: Duration,
    /// Empty the workers' caches first.
    pub flush_cache: bool,
    /// Show a progress bar if stderr is a terminal.
    pub progress: bool,
}
