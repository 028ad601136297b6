//! The figures of a replay under the reference's names, to be compared with its report one to one.
//!
//! Most are figures of the report itself. Its duration runs from time 0, when the replay starts, instead of from the
//! first send, and with it its rates. Distributions have the reference's statistics, which are nine of ours.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::latency::{LatencySummary, STATISTICS};
use super::metric::Metric;
use super::report::Report;

/// Metrics that the reference reports.
const METRICS: [Metric; 6] =
    [Metric::Ttft, Metric::Ttst, Metric::Tpot, Metric::Itl, Metric::E2eLatency, Metric::OutputTokenThroughputPerUser];
/// Metrics whose number of samples it reports.
const COUNTED: [Metric; 3] = [Metric::Ttft, Metric::Tpot, Metric::E2eLatency];
/// A statistic of ours that it does not have.
const NOT_THERE: &str = "p25";

/// The reference's keys with the figures of `report`, whose last request ended at `end_ms`. The reference counts
/// unfinished requests among all.
pub(super) fn reference_figures(report: &Report, unfinished: u64, end_ms: f64) -> BTreeMap<String, Value> {
    let per_second = |count: u64| (end_ms > 0.0).then(|| count as f64 / (end_ms / 1000.0));
    let (input, output) = (report.total_input_tokens, report.total_output_tokens);
    let mut figures = BTreeMap::from([
        ("num_requests", json!(report.num_requests + unfinished)),
        ("completed_requests", json!(report.completed_requests)),
        ("total_input_tokens", json!(input)),
        ("total_output_tokens", json!(output)),
        ("duration_ms", json!(end_ms)),
        ("request_throughput_rps", json!(per_second(report.completed_requests))),
        ("input_throughput_tok_s", json!(per_second(input))),
        ("output_throughput_tok_s", json!(per_second(output))),
        ("total_throughput_tok_s", json!(per_second(input + output))),
        ("prefix_cache_reused_ratio", json!(report.prefix_cache_reused_ratio)),
        ("first_admission_prefix_cache_reused_ratio", json!(report.first_admission_prefix_cache_reused_ratio)),
    ])
    .into_iter()
    .map(|(key, value)| (key.to_owned(), value))
    .collect::<BTreeMap<_, _>>();
    for metric in COUNTED {
        figures.insert(metric.samples_key(), json!(report.metric(metric).map_or(0, |summary| summary.samples)));
    }
    for metric in METRICS {
        let values = report.metric(metric).map(LatencySummary::figures);
        for (index, statistic) in STATISTICS.iter().enumerate().filter(|(_, statistic)| **statistic != NOT_THERE) {
            let key = format!("{statistic}_{}", metric.name());
            figures.insert(key, json!(values.map(|values| values[index])));
        }
    }
    figures
}
