//! The report of a run: counts, rates and distributions, computed from the records and nothing else.
//!
//! Only completed requests enter token totals, rates and latencies; the others are counted by kind next to them. All
//! times are simulated milliseconds. The same records, gaps and facts give the same report on every machine.

use std::collections::BTreeMap;

use serde_json::Value;

use super::latency::{LatencySet, LatencySummary, QUANTILE_RULE};
use super::metric::Metric;
use super::reference::reference_figures;
use super::schema::failure_name;
use crate::session::ledger::{FailureKind, Outcome, RequestRecord};

/// A send lag above this (p99, simulated ms) is worth a warning, unless it is small beside the TTFT.
const NOTABLE_SEND_LAG_MS: f64 = 1.0;
/// The share of the median TTFT that a send lag may reach without a warning.
const NOTABLE_SEND_LAG_SHARE: f64 = 0.1;

/// Every failure kind, in the order of reports.
pub const FAILURE_KINDS: [FailureKind; 7] = [
    FailureKind::Connect,
    FailureKind::Rejected,
    FailureKind::Unavailable,
    FailureKind::Stream,
    FailureKind::Timeout,
    FailureKind::Mismatch,
    FailureKind::Cancelled,
];

/// What the caller knows about a run and the records do not tell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunFacts {
    /// Name of the trace or workload, without a path.
    pub workload: String,
    /// Router policy, as in the configuration (`kv`, `round_robin`).
    pub router_mode: String,
    /// How requests were released (`timestamps`, `concurrency`, `rate`, …).
    pub arrival_mode: String,
    /// Limit of requests (or sessions) in flight; `None` in an open loop.
    pub concurrency: Option<u64>,
    /// Seed of every random choice.
    pub seed: u64,
    /// Simulated seconds per wall second.
    pub speedup_ratio: f64,
    /// Σ over completed requests of the most prompt tokens reused at any of their admissions. `None` where only the
    /// first admission is seen, as in live runs.
    pub prefix_cache_reused_tokens: Option<u64>,
    /// Requests that were left when the run was stopped: not come, or not ended. `None` where the run ends with them.
    pub unfinished_requests: Option<u64>,
    /// The shares of all prompt tokens that one cache for the whole fleet could reuse: one that never evicts, and one of
    /// the fleet's size with Belady eviction. `None` where nobody has worked it out.
    pub reuse_bounds: Option<(f64, f64)>,
    /// The run is a replay in virtual time, which starts at 0: its figures are also given under the reference's names.
    pub virtual_time: bool,
    /// What readers should know before they trust the figures. Nothing that depends on clock, host or path.
    pub warnings: Vec<String>,
}

/// What `report.json` holds. Times are simulated ms; absent figures are `None` and written as null.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    /// All requests of the run.
    pub num_requests: u64,
    /// Requests whose every token arrived.
    pub completed_requests: u64,
    /// `num_requests` − `completed_requests`.
    pub failed_requests: u64,
    /// Failed requests by kind, every kind present.
    pub failures: BTreeMap<FailureKind, u64>,
    /// Σ prompt tokens of completed requests.
    pub total_input_tokens: u64,
    /// Σ output tokens of completed requests.
    pub total_output_tokens: u64,
    /// Latest end − earliest send, over all requests, in ms.
    pub duration_ms: f64,
    /// `completed_requests` / duration, in requests per second.
    pub request_throughput_rps: Option<f64>,
    /// `total_input_tokens` / duration, in tokens per second.
    pub input_throughput_tok_s: Option<f64>,
    /// `total_output_tokens` / duration, in tokens per second.
    pub output_throughput_tok_s: Option<f64>,
    /// (`total_input_tokens` + `total_output_tokens`) / duration, in tokens per second.
    pub total_throughput_tok_s: Option<f64>,
    /// Σ most reused tokens over all admissions / `total_input_tokens`. Counts what a preempted
    /// request finds of itself.
    pub prefix_cache_reused_ratio: Option<f64>,
    /// Σ tokens reused at first admission / Σ prompt tokens, over completed requests that tell. Judge routing by this.
    pub first_admission_prefix_cache_reused_ratio: Option<f64>,
    /// Share of all prompt tokens that one cache for all workers could reuse if it never evicted.
    pub infinite_cache_reused_ratio: Option<f64>,
    /// The same if it had the fleet's size and evicted what is needed last.
    pub belady_reused_ratio: Option<f64>,
    /// Requests that were left when the run was stopped.
    pub unfinished_requests: Option<u64>,
    /// Distributions of completed requests; a metric without samples has no entry.
    pub metrics: BTreeMap<Metric, LatencySummary>,
    /// Requests, completed or not, by the worker they name.
    pub requests_per_worker: BTreeMap<String, u64>,
    /// Simulated seconds per wall second.
    pub speedup_ratio: Option<f64>,
    /// Name of the trace or workload.
    pub workload: Option<String>,
    /// Router policy.
    pub router_mode: Option<String>,
    /// Seed of every random choice.
    pub seed: Option<u64>,
    /// How requests were released.
    pub arrival_mode: Option<String>,
    /// Limit of requests in flight; `None` in an open loop.
    pub concurrency: Option<u64>,
    /// Largest relative error of the percentiles pooled over gaps; 0 if exact. All other percentiles are exact.
    pub histogram_relative_error: f64,
    /// The rank rule of percentiles.
    pub quantile_rule: String,
    /// Figures of a replay under the reference's names; `None` in live runs.
    pub reference: Option<BTreeMap<String, Value>>,
    /// What readers should know before they trust the figures.
    pub warnings: Vec<String>,
}

impl Report {
    /// Computes the report of a run from the records of all its requests and the pooled gaps between tokens of the
    /// completed ones (`itl`, in simulated ms).
    pub fn build(records: &[RequestRecord], itl: &LatencySet, run: &RunFacts) -> Report {
        let completed: Vec<&RequestRecord> = records.iter().filter(|record| record.completed()).collect();
        let total_input_tokens = completed.iter().map(|record| u64::from(record.input_tokens)).sum();
        let total_output_tokens = completed.iter().map(|record| u64::from(record.output_tokens)).sum();
        let duration_ms = duration_ms(records);
        let per_second = |count: u64| (duration_ms > 0.0).then(|| count as f64 / (duration_ms / 1000.0));
        let (metrics, mut notes) = distributions(&completed, itl);

        let mut report = Report {
            num_requests: records.len() as u64,
            completed_requests: completed.len() as u64,
            failed_requests: (records.len() - completed.len()) as u64,
            failures: failures_by_kind(records),
            total_input_tokens,
            total_output_tokens,
            duration_ms,
            request_throughput_rps: per_second(completed.len() as u64),
            input_throughput_tok_s: per_second(total_input_tokens),
            output_throughput_tok_s: per_second(total_output_tokens),
            total_throughput_tok_s: per_second(total_input_tokens + total_output_tokens),
            prefix_cache_reused_ratio: run
                .prefix_cache_reused_tokens
                .and_then(|reused| share(reused, total_input_tokens)),
            first_admission_prefix_cache_reused_ratio: first_admission_reuse(&completed, &mut notes),
            infinite_cache_reused_ratio: run.reuse_bounds.map(|(infinite, _)| infinite),
            belady_reused_ratio: run.reuse_bounds.map(|(_, belady)| belady),
            unfinished_requests: run.unfinished_requests,
            metrics,
            requests_per_worker: requests_per_worker(records),
            speedup_ratio: Some(run.speedup_ratio),
            workload: Some(run.workload.clone()),
            router_mode: Some(run.router_mode.clone()),
            seed: Some(run.seed),
            arrival_mode: Some(run.arrival_mode.clone()),
            concurrency: run.concurrency,
            histogram_relative_error: itl.relative_error(),
            quantile_rule: QUANTILE_RULE.to_owned(),
            reference: None,
            warnings: run.warnings.clone(),
        };
        if run.virtual_time {
            let end_ms = records.iter().map(|record| record.end_ms).fold(0.0, f64::max);
            report.reference = Some(reference_figures(&report, run.unfinished_requests.unwrap_or(0), end_ms));
        }
        report.warnings.extend(report.failure_note());
        report.warnings.extend(report.send_lag_note());
        report.warnings.append(&mut notes);
        report
    }

    /// The distribution of one metric; `None` without samples.
    pub fn metric(&self, metric: Metric) -> Option<&LatencySummary> {
        self.metrics.get(&metric)
    }

    /// One line about failed requests, or `None` if all completed:
    /// `3 of 1000 requests failed (1 connect, 2 timeout): latencies and rates cover the completed ones only`.
    pub fn failure_note(&self) -> Option<String> {
        if self.failed_requests == 0 {
            return None;
        }
        let kinds: Vec<String> = self
            .failures
            .iter()
            .filter(|(_, count)| **count > 0)
            .map(|(kind, count)| format!("{count} {}", failure_name(*kind)))
            .collect();
        let kinds = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        Some(format!(
            "{} of {} requests failed{kinds}: latencies and rates cover the completed ones only",
            self.failed_requests, self.num_requests
        ))
    }

    /// Warns if requests left so late that latencies from the actual send flatter the server.
    fn send_lag_note(&self) -> Option<String> {
        let lag_ms = self.metric(Metric::SendLag)?.p99;
        let ttft_ms = self.metric(Metric::Ttft)?.median;
        let notable = lag_ms > NOTABLE_SEND_LAG_MS.max(NOTABLE_SEND_LAG_SHARE * ttft_ms);
        notable.then(|| {
            format!(
                "requests left late: p99_send_lag_ms is {lag_ms:.3} beside a median_ttft_ms of {ttft_ms:.3}; \
                 the effective_ latencies include that wait"
            )
        })
    }
}

/// Latest end − earliest send in ms; 0 without records.
fn duration_ms(records: &[RequestRecord]) -> f64 {
    let first_send_ms = records.iter().map(|record| record.sent_ms).fold(f64::INFINITY, f64::min);
    let last_end_ms = records.iter().map(|record| record.end_ms).fold(f64::NEG_INFINITY, f64::max);
    (last_end_ms - first_send_ms).max(0.0)
}

fn failures_by_kind(records: &[RequestRecord]) -> BTreeMap<FailureKind, u64> {
    let mut failures: BTreeMap<FailureKind, u64> = FAILURE_KINDS.iter().map(|kind| (*kind, 0)).collect();
    for record in records {
        if let Outcome::Failed { kind, .. } = &record.outcome {
            *failures.entry(*kind).or_insert(0) += 1;
        }
    }
    failures
}

fn requests_per_worker(records: &[RequestRecord]) -> BTreeMap<String, u64> {
    let mut requests = BTreeMap::new();
    for worker in records.iter().filter_map(|record| record.worker.as_ref()) {
        *requests.entry(worker.clone()).or_insert(0) += 1;
    }
    requests
}

fn share(part: u64, whole: u64) -> Option<f64> {
    (whole > 0).then(|| part as f64 / whole as f64)
}

/// Σ reused / Σ prompt over the completed requests that tell their reuse; `None` if none does.
fn first_admission_reuse(completed: &[&RequestRecord], notes: &mut Vec<String>) -> Option<f64> {
    let (mut telling, mut reused_tokens, mut input_tokens) = (0, 0, 0);
    for record in completed {
        if let Some(reused) = record.reused_tokens {
            telling += 1;
            reused_tokens += u64::from(reused);
            input_tokens += u64::from(record.input_tokens);
        }
    }
    if telling > 0 && telling < completed.len() {
        notes.push(format!(
            "{} of {} completed requests do not tell their prefix reuse: the ratio covers the others",
            completed.len() - telling,
            completed.len()
        ));
    }
    share(reused_tokens, input_tokens)
}

/// The summary of each metric that has samples, and a note for each that had impossible ones.
fn distributions(completed: &[&RequestRecord], itl: &LatencySet) -> (BTreeMap<Metric, LatencySummary>, Vec<String>) {
    let mut metrics = BTreeMap::new();
    let mut notes = Vec::new();
    // Seen over a network, two tokens may arrive microseconds apart, and the rate of such a gap says nothing: a histogram
    // has none.
    let (gaps, rates) = itl.summary_with_rates();
    for metric in Metric::ALL {
        let (summary, negative_samples) = match metric {
            Metric::Itl => (gaps, itl.negative_samples()),
            Metric::OutputTokenThroughputPerUser => (rates, 0),
            _ => {
                let samples = LatencySet::from_samples(completed.iter().filter_map(|record| metric.sample(record)));
                (samples.summary(), samples.negative_samples())
            }
        };
        metrics.extend(summary.map(|summary| (metric, summary)));
        if negative_samples > 0 {
            notes.push(format!("{}: {negative_samples} negative samples count as 0", metric.name()));
        }
    }
    (metrics, notes)
}
