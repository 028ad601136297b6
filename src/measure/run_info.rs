//! What surrounded a run and may differ next time: `run.json`, the counterpart of the reproducible `report.json`.

use std::path::Path;

use serde::{Deserialize, Serialize};

use super::error::MeasureError;
use super::files::{read_text, write_atomic};
use super::latency::LatencySet;

/// Wall times, processor time, version and command line of a run. Keys with `wall_` are wall clock.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RunInfo {
    /// Version of this program.
    pub version: String,
    /// The command line, word by word.
    pub command_line: Vec<String>,
    /// Start, in ms of wall time since 1970-01-01 UTC.
    pub wall_start_unix_ms: Option<u64>,
    /// From start to end, in ms of wall time.
    pub wall_duration_ms: f64,
    /// Processor time of this process in user mode, in s.
    pub cpu_user_s: Option<f64>,
    /// Processor time of this process in the kernel, in s.
    pub cpu_system_s: Option<f64>,
    /// How often the pacer woke for a deadline.
    pub num_pacer_lateness_samples: u64,
    /// Median of the pacer's lateness, woken − deadline, in ms of wall time.
    pub wall_median_pacer_lateness_ms: Option<f64>,
    /// 90th percentile of the pacer's lateness, in ms of wall time.
    pub wall_p90_pacer_lateness_ms: Option<f64>,
    /// 99th percentile of the pacer's lateness, in ms of wall time.
    pub wall_p99_pacer_lateness_ms: Option<f64>,
    /// Largest lateness of the pacer, in ms of wall time.
    pub wall_max_pacer_lateness_ms: Option<f64>,
    /// What may have moved the results, on this host, this time.
    pub warnings: Vec<String>,
}

impl RunInfo {
    /// Fills in the pacer's lateness from its samples in ms of wall time.
    #[must_use]
    pub fn with_pacer_lateness(mut self, lateness: &LatencySet) -> Self {
        let summary = lateness.summary();
        self.num_pacer_lateness_samples = lateness.len();
        self.wall_median_pacer_lateness_ms = summary.map(|summary| summary.median);
        self.wall_p90_pacer_lateness_ms = summary.map(|summary| summary.p90);
        self.wall_p99_pacer_lateness_ms = summary.map(|summary| summary.p99);
        self.wall_max_pacer_lateness_ms = summary.map(|summary| summary.max);
        self
    }

    /// The text of `run.json`: indented, ending in a line break.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain fields always serialise");
        text.push('\n');
        text
    }

    /// Writes `run.json` in one step.
    ///
    /// # Errors
    /// [`MeasureError::File`] if the folder is missing or not writable.
    pub fn write(&self, path: &Path) -> Result<(), MeasureError> {
        write_atomic(path, self.to_json().as_bytes())
    }

    /// Reads a `run.json`; missing keys take their defaults.
    ///
    /// # Errors
    /// [`MeasureError::File`] if it cannot be read, [`MeasureError::Json`] if it is not JSON of this form.
    pub fn read(path: &Path) -> Result<RunInfo, MeasureError> {
        serde_json::from_str(&read_text(path)?).map_err(|error| MeasureError::Json {
            file: path.display().to_string(),
            line: error.line(),
            column: error.column(),
            expected: "run.json",
        })
    }
}
