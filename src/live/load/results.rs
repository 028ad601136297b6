//! The result folder of a run: report, records, table and pictures, written as a whole or not at all.
//!
//! Everything is written into a folder with a temporary name beside the final one, then renamed.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use thiserror::Error;

use crate::measure::{
    Comparison, MeasureError, Metric, Report, ResultFolder, RunInfo, comparison_table, requests_csv, summary_table,
    write_atomic,
};
use crate::plot::{
    FigureText, PlotError, RunCurves, Timeline, latency_bars, latency_cdf, throughput_reuse_bars, ttft_over_time,
    write_png,
};
use crate::session::ledger::RequestRecord;

/// Why there is no result folder.
#[derive(Debug, Error)]
pub enum ResultsError {
    /// There is one already.
    #[error("{} exists already\n  hint: `--force` replaces it, `--name NAME` writes another folder", path.display())]
    Exists {
        /// The folder.
        path: PathBuf,
    },
    /// The name would lead elsewhere.
    #[error("`name` is `{name}`, expected at most 100 letters, digits, `.`, `_` and `-`, not starting with a dot")]
    Name {
        /// The name.
        name: String,
    },
    /// It is not a result folder.
    #[error("{} holds no report.json, so it is not replaced", path.display())]
    Foreign {
        /// The folder.
        path: PathBuf,
    },
    /// A folder could not be made, renamed or removed.
    #[error("{}: {cause}", path.display())]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A file could not be written or read.
    #[error(transparent)]
    Measure(#[from] MeasureError),
    /// A picture could not be drawn.
    #[error(transparent)]
    Plot(#[from] PlotError),
}

/// Fails unless the name is one plain word, which cannot lead out of the folder that holds the results.
pub fn check_name(name: &str) -> Result<(), ResultsError> {
    let plain = (1..=100).contains(&name.len()) && !name.starts_with('.') && name.chars().all(is_plain);
    if plain { Ok(()) } else { Err(ResultsError::Name { name: name.to_owned() }) }
}

/// A folder's name from a workload, whose name may hold anything, and a mode.
pub fn plain_name(workload: &str, mode: &str) -> String {
    let name: String = workload.chars().map(|letter| if is_plain(letter) { letter } else { '-' }).collect();
    format!("{}-{mode}", name.trim_start_matches('.'))
}

fn is_plain(letter: char) -> bool {
    letter.is_ascii_alphanumeric() || "._-".contains(letter)
}

/// The folder that holds the results, made before the run so that a place that cannot be written is known in time. If the
/// run made it and leaves nothing there, it goes again.
#[derive(Debug)]
pub struct ResultsHome {
    folder: PathBuf,
    made: bool,
}

impl ResultsHome {
    /// Makes the folder if it is not there.
    pub fn open(folder: &Path) -> Result<Self, ResultsError> {
        let made = !folder.exists();
        std::fs::create_dir_all(folder).map_err(|cause| ResultsError::Folder { path: folder.to_owned(), cause })?;
        Ok(ResultsHome { folder: folder.to_owned(), made })
    }
}

impl Drop for ResultsHome {
    fn drop(&mut self) {
        if self.made {
            // Fails if there are results in it, as it should.
            let _ = std::fs::remove_dir(&self.folder);
        }
    }
}

/// Fails if the folder exists and may not be replaced, or is no result folder.
pub fn check_free(folder: &Path, force: bool) -> Result<(), ResultsError> {
    if !folder.exists() {
        return Ok(());
    }
    if !force {
        return Err(ResultsError::Exists { path: folder.to_owned() });
    }
    if folder.join("report.json").is_file() { Ok(()) } else { Err(ResultsError::Foreign { path: folder.to_owned() }) }
}

/// Writes report.json, run.json, requests.csv, table.txt and the pictures of one run.
pub fn write_run(
    folder: &Path,
    force: bool,
    report: &Report,
    records: &[RequestRecord],
    info: &RunInfo,
) -> Result<(), ResultsError> {
    check_free(folder, force)?;
    write_folder(folder, |staging| {
        report.write(&staging.join("report.json"))?;
        info.write(&staging.join("run.json"))?;
        write_atomic(&staging.join("requests.csv"), requests_csv(records).as_bytes())?;
        write_atomic(&staging.join("table.txt"), summary_table(report).as_bytes())?;
        let label = report.router_mode.clone().unwrap_or_else(|| "run".to_owned());
        draw(staging, &[(label, report, records)])
    })
}

/// Writes comparison.json, table.txt and the pictures of several runs into an existing or new folder.
pub fn write_comparison(folder: &Path, runs: &[ResultFolder], comparison: &Comparison) -> Result<String, ResultsError> {
    std::fs::create_dir_all(folder).map_err(|cause| ResultsError::Folder { path: folder.to_owned(), cause })?;
    let reports: Vec<(String, Report)> = runs.iter().map(|run| (run.label.clone(), run.report.clone())).collect();
    let table = format!("{}{}", comparison_table(&reports), intervals(comparison));
    let parts: Vec<(String, &Report, &[RequestRecord])> =
        runs.iter().map(|run| (run.label.clone(), &run.report, run.records.as_slice())).collect();
    draw(folder, &parts)?;
    write_atomic(&folder.join("comparison.json"), comparison.to_json().as_bytes())?;
    write_atomic(&folder.join("table.txt"), table.as_bytes())?;
    Ok(table)
}

/// The paired differences with their intervals: what of the table is more than chance.
fn intervals(comparison: &Comparison) -> String {
    let mut lines = String::new();
    for run in &comparison.runs {
        for difference in &run.differences {
            let name = difference.metric.trim_end_matches("_ms").to_uppercase();
            let mean = difference.mean_difference_ms;
            let (Some(low), Some(high)) = (difference.ci95_low_ms, difference.ci95_high_ms) else { continue };
            let _ = writeln!(
                lines,
                "{name} of {} - {}, request by request: {mean:+.2} ms, 95 % interval {low:+.2} to {high:+.2} ms ({})",
                run.label, comparison.baseline, difference.verdict
            );
        }
    }
    lines
}

fn write_folder(folder: &Path, fill: impl FnOnce(&Path) -> Result<(), ResultsError>) -> Result<(), ResultsError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |cause| ResultsError::Folder { path, cause }
    };
    let name = folder.file_name().map_or_else(|| "run".to_owned(), |name| name.to_string_lossy().into_owned());
    let staging = folder.with_file_name(format!(".{name}.{}.tmp", std::process::id()));
    std::fs::create_dir_all(&staging).map_err(failed(&staging))?;
    // The old folder is put aside until the new one is in its place.
    let aside = folder.with_file_name(format!(".{name}.{}.old", std::process::id()));
    let written = fill(&staging).and_then(|()| {
        let replaces = folder.exists();
        if replaces {
            std::fs::rename(folder, &aside).map_err(failed(folder))?;
        }
        if let Err(cause) = std::fs::rename(&staging, folder) {
            if replaces {
                let _ = std::fs::rename(&aside, folder);
            }
            return Err(failed(folder)(cause));
        }
        if replaces {
            std::fs::remove_dir_all(&aside).map_err(failed(&aside))?;
        }
        Ok(())
    });
    if written.is_err() {
        // The first error is the one to tell.
        let _ = std::fs::remove_dir_all(&staging);
    }
    written
}

fn draw(folder: &Path, runs: &[(String, &Report, &[RequestRecord])]) -> Result<(), ResultsError> {
    let curves: Vec<RunCurves> = runs.iter().map(|(label, report, records)| curves(label, report, records)).collect();
    let timelines: Vec<Timeline> = runs.iter().map(|(label, _, records)| timeline(label, records)).collect();
    let parameters = runs.first().map(|(_, report, _)| parameters(report)).unwrap_or_default();
    let text = |title: &str| FigureText { title: title.to_owned(), parameters: parameters.clone() };
    for (file, png) in [
        ("latency.png", latency_bars(&curves, &text("Time to first token and time per output token"))?),
        ("latency-cdf.png", latency_cdf(&curves, &text("Distribution of TTFT and TPOT over requests"))?),
        ("throughput.png", throughput_reuse_bars(&curves, &text("Throughput and prefix reuse"))?),
        ("timeline.png", ttft_over_time(&timelines, &text("TTFT and requests in flight over the run"))?),
    ] {
        write_png(&folder.join(file), &png)?;
    }
    Ok(())
}

fn curves(label: &str, report: &Report, records: &[RequestRecord]) -> RunCurves {
    let samples = |metric: Metric| {
        records.iter().filter(|record| record.completed()).filter_map(move |record| metric.sample(record)).collect()
    };
    RunCurves {
        label: label.to_owned(),
        ttft_ms: samples(Metric::Ttft),
        tpot_ms: samples(Metric::Tpot),
        e2e_latency_ms: samples(Metric::E2eLatency),
        output_throughput_tok_s: report.output_throughput_tok_s.unwrap_or(f64::NAN),
        request_throughput_rps: report.request_throughput_rps.unwrap_or(f64::NAN),
        prefix_reused_ratio: report.first_admission_prefix_cache_reused_ratio.unwrap_or(f64::NAN),
        completed_requests: report.completed_requests,
        failed_requests: report.failed_requests,
    }
}

fn timeline(label: &str, records: &[RequestRecord]) -> Timeline {
    Timeline {
        label: label.to_owned(),
        sent_ms: records.iter().map(|record| record.sent_ms).collect(),
        ttft_ms: records
            .iter()
            .map(|record| record.ttft_ms().filter(|_| record.completed()).unwrap_or(f64::NAN))
            .collect(),
        end_ms: records.iter().map(|record| record.end_ms).collect(),
    }
}

/// The run's parameters, for the small print below a figure.
fn parameters(report: &Report) -> String {
    let mut parts = vec![
        format!("workload {}", report.workload.as_deref().unwrap_or("unknown")),
        format!("{} requests", report.num_requests),
    ];
    match (report.arrival_mode.as_deref(), report.concurrency) {
        (_, Some(concurrency)) => parts.push(format!("closed loop, {concurrency} sessions at a time")),
        (Some(mode), None) => parts.push(format!("arrivals by {mode}")),
        (None, None) => {}
    }
    parts.push(format!("{} workers", report.requests_per_worker.len()));
    if let Some(ratio) = report.speedup_ratio {
        parts.push(format!("speedup ratio {ratio}"));
    }
    if let Some(seed) = report.seed {
        parts.push(format!("seed {seed}"));
    }
    format!("{}\nAll times are simulated time.", parts.join(" · "))
}
