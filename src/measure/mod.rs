//! From per-request records to figures that can be compared: the measuring room.
//!
//! A run hands over its [`RequestRecord`](crate::session::ledger::RequestRecord)s. [`metric`] says what is derived from
//! one record, [`latency`] summarises many, [`report`] counts and divides, [`schema`] fixes the keys of `report.json`
//! and the formula beside each, `reference` names a replay's figures as the reference does, [`mod@requests_csv`] keeps the records themselves, [`run_info`] holds what depends on
//! clock and host, [`table`] prints, [`mod@compare`] pairs two runs request by request, [`files`] writes so that no
//! reader ever sees half a file, and [`error`] says what was wrong and where. Nothing here reads a clock.

#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

pub mod compare;
pub mod error;
pub mod files;
pub mod latency;
pub mod metric;
mod reference;
pub mod report;
pub mod requests_csv;
pub mod run_info;
pub mod schema;
pub mod table;
mod weighted;

pub use compare::{Comparison, PairedDifference, PairedRun, ResultFolder, compare};
pub use error::MeasureError;
pub use files::{PendingFile, write_atomic};
pub use latency::{LatencySet, LatencySummary};
pub use metric::Metric;
pub use report::{Report, RunFacts};
pub use requests_csv::{parse_requests_csv, read_requests_csv, requests_csv, write_requests_csv};
pub use run_info::RunInfo;
pub use table::{comparison_table, summary_table};

#[cfg(test)]
mod tests;
