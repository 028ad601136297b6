//! The form of `report.json`: one flat object, units in its keys, the formula of each key beside it.
//!
//! Key order is fixed: counts, rates, reuse, samples, distributions, what the run was, warnings, and last the
//! `definitions`. Two keys hold objects: `requests_per_worker` and `definitions`. Absent figures are null, so that
//! every report has the same keys. The reader takes reports that lack keys, such as those of other programs or
//! earlier versions, as long as they count their requests.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize, Serializer};
use serde_json::{Map, Value, json};

use super::error::MeasureError;
use super::files::{read_text, write_atomic};
use super::latency::{LatencySummary, STATISTICS};
use super::metric::Metric;
use super::report::{FAILURE_KINDS, Report};
use crate::session::ledger::FailureKind;

/// Formulas of the keys that are not distributions, in their order.
const KEY_DEFINITIONS: [(&str, &str); 30] = [
    ("num_requests", "all requests of the run"),
    ("completed_requests", "requests whose every token arrived"),
    ("failed_requests", "num_requests - completed_requests"),
    ("failed_*_requests", "failed requests of one kind; cancelled: the run was stopped before they ended"),
    ("total_input_tokens", "sum of prompt tokens of completed requests"),
    ("total_output_tokens", "sum of output tokens of completed requests"),
    ("duration_ms", "latest end - earliest send, over all requests, simulated time"),
    ("request_throughput_rps", "completed_requests / duration"),
    ("input_throughput_tok_s", "total_input_tokens / duration"),
    ("output_throughput_tok_s", "total_output_tokens / duration"),
    ("total_throughput_tok_s", "(total_input_tokens + total_output_tokens) / duration"),
    (
        "prefix_cache_reused_ratio",
        "sum over completed requests of the most prompt tokens reused at any admission / total_input_tokens; counts \
         what a preempted request finds of itself; null where only first admissions are seen",
    ),
    (
        "first_admission_prefix_cache_reused_ratio",
        "sum of prompt tokens reused at first admission / sum of prompt tokens, over completed requests that tell",
    ),
    (
        "infinite_cache_reused_ratio",
        "share of all prompt tokens that one cache for the whole fleet could reuse if it never evicted; a bound for any \
         router, known in a replay",
    ),
    ("belady_reused_ratio", "the same with a cache of the fleet's size that evicts the block that is needed last"),
    ("unfinished_requests", "requests that had not come or not ended when the run was stopped; in no other figure"),
    ("num_*_samples", "samples behind the distribution of that metric"),
    ("requests_per_worker", "requests, completed or not, by the worker they name; an object"),
    ("speedup_ratio", "simulated seconds per wall second"),
    ("workload", "name of the trace or workload"),
    ("router_mode", "router policy"),
    ("seed", "seed of every random choice"),
    ("arrival_mode", "how requests were released"),
    ("concurrency", "limit of requests in flight; null in an open loop"),
    (
        "histogram_relative_error",
        "largest relative error of the percentiles of itl_ms and of all figures of output_token_throughput_per_user; \
         0: exact; every other figure is exact",
    ),
    ("quantile_rule", "how a percentile is taken from n sorted samples"),
    (
        "reference",
        "figures of a replay under the reference's names; as above, but duration_ms is counted from time 0, the rates \
         divide by that, and num_requests has unfinished ones; null in live runs",
    ),
    ("warnings", "what to know before trusting the figures"),
    ("*_ms", "milliseconds of simulated time: wall time x speedup_ratio"),
    ("definitions", "these formulas"),
];

/// Formulas of the statistics in front of a metric's name.
const STATISTIC_DEFINITIONS: [(&str, &str); 6] = [
    ("mean_*", "sum of samples / number of samples"),
    ("min_*", "smallest sample"),
    ("max_*", "largest sample"),
    ("median_*", "the 50th percentile by quantile_rule"),
    ("p25_* p75_* p90_* p95_* p99_*", "that percentile by quantile_rule"),
    ("std_*", "population standard deviation, sqrt(sum of (sample - mean)^2 / number of samples)"),
];

/// The name of a failure kind in keys and tables: `timeout` in `failed_timeout_requests`.
pub fn failure_name(kind: FailureKind) -> &'static str {
    match kind {
        FailureKind::Connect => "connect",
        FailureKind::Rejected => "rejected",
        FailureKind::Unavailable => "unavailable",
        FailureKind::Stream => "stream",
        FailureKind::Timeout => "timeout",
        FailureKind::Mismatch => "mismatch",
        FailureKind::Cancelled => "cancelled",
    }
}

/// Every entry of `definitions`, in order: keys, statistics, metrics.
pub fn definitions() -> impl Iterator<Item = (&'static str, &'static str)> {
    let metrics = Metric::ALL.into_iter().map(|metric| (metric.name(), metric.definition()));
    KEY_DEFINITIONS.into_iter().chain(STATISTIC_DEFINITIONS).chain(metrics)
}

/// The formula of one report key (`p99_ttft_ms` gives that of `ttft_ms`); `None` if no report has this key.
pub fn definition(key: &str) -> Option<&'static str> {
    let metric = Metric::ALL.into_iter().find(|metric| {
        key.strip_suffix(metric.name())
            .and_then(|statistic| statistic.strip_suffix('_'))
            .is_some_and(|statistic| STATISTICS.contains(&statistic))
    });
    if let Some(metric) = metric {
        return Some(metric.definition());
    }
    let pattern = if Metric::ALL.into_iter().any(|metric| metric.samples_key() == key) {
        "num_*_samples"
    } else if FAILURE_KINDS.into_iter().any(|kind| failure_key(kind) == key) {
        "failed_*_requests"
    } else {
        key
    };
    definitions().find(|(name, _)| *name == pattern).map(|(_, formula)| formula)
}

fn failure_key(kind: FailureKind) -> String {
    format!("failed_{}_requests", failure_name(kind))
}

impl Report {
    /// Keys and values in the order in which they are written, without the closing `definitions`.
    pub fn entries(&self) -> Vec<(String, Value)> {
        let mut entries: Vec<(String, Value)> = Vec::with_capacity(180);
        let mut put = |key: &str, value: Value| entries.push((key.to_owned(), value));
        put("num_requests", json!(self.num_requests));
        put("completed_requests", json!(self.completed_requests));
        put("failed_requests", json!(self.failed_requests));
        for kind in FAILURE_KINDS {
            put(&failure_key(kind), json!(self.failures.get(&kind).copied().unwrap_or(0)));
        }
        put("total_input_tokens", json!(self.total_input_tokens));
        put("total_output_tokens", json!(self.total_output_tokens));
        put("duration_ms", json!(self.duration_ms));
        put("request_throughput_rps", json!(self.request_throughput_rps));
        put("input_throughput_tok_s", json!(self.input_throughput_tok_s));
        put("output_throughput_tok_s", json!(self.output_throughput_tok_s));
        put("total_throughput_tok_s", json!(self.total_throughput_tok_s));
        put("prefix_cache_reused_ratio", json!(self.prefix_cache_reused_ratio));
        put("first_admission_prefix_cache_reused_ratio", json!(self.first_admission_prefix_cache_reused_ratio));
        put("infinite_cache_reused_ratio", json!(self.infinite_cache_reused_ratio));
        put("belady_reused_ratio", json!(self.belady_reused_ratio));
        put("unfinished_requests", json!(self.unfinished_requests));
        for metric in Metric::ALL {
            put(&metric.samples_key(), json!(self.metric(metric).map_or(0, |summary| summary.samples)));
        }
        for metric in Metric::ALL {
            let figures = self.metric(metric).map(LatencySummary::figures);
            for (index, statistic) in STATISTICS.iter().enumerate() {
                put(&format!("{statistic}_{}", metric.name()), json!(figures.map(|figures| figures[index])));
            }
        }
        put("requests_per_worker", json!(self.requests_per_worker));
        put("speedup_ratio", json!(self.speedup_ratio));
        put("workload", json!(self.workload));
        put("router_mode", json!(self.router_mode));
        put("seed", json!(self.seed));
        put("arrival_mode", json!(self.arrival_mode));
        put("concurrency", json!(self.concurrency));
        put("histogram_relative_error", json!(self.histogram_relative_error));
        put("quantile_rule", json!(self.quantile_rule));
        put("reference", json!(self.reference));
        put("warnings", json!(self.warnings));
        entries
    }

    /// The number under one report key, for assertions, objectives and goals; `None` if the key is unknown, not a
    /// number, or has no figure in this run.
    pub fn value(&self, key: &str) -> Option<f64> {
        let entries = self.entries();
        entries.iter().find(|(name, _)| name == key).and_then(|(_, value)| value.as_f64())
    }

    /// The text of `report.json`: indented, ending in a line break, the same bytes for the same report.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("string keys and plain values always serialise");
        text.push('\n');
        text
    }

    /// Writes `report.json` in one step.
    ///
    /// # Errors
    /// [`MeasureError::File`] if the folder is missing or not writable.
    pub fn write(&self, path: &Path) -> Result<(), MeasureError> {
        write_atomic(path, self.to_json().as_bytes())
    }

    /// Reads a `report.json`; see [`parse`](Self::parse).
    ///
    /// # Errors
    /// As for [`parse`](Self::parse), and [`MeasureError::File`] if the file cannot be read.
    pub fn read(path: &Path) -> Result<Report, MeasureError> {
        Report::parse(&read_text(path)?, &path.display().to_string())
    }

    /// Reads the text of a report; `file` names it in messages. Unknown keys are passed over. Only `num_requests` and
    /// `completed_requests` are required; other missing figures are absent, and missing totals are 0 with a warning.
    ///
    /// # Errors
    /// [`MeasureError::Json`] if the text is not JSON, [`MeasureError::Value`] if it is no object, counts no requests,
    /// or holds a value of the wrong type.
    pub fn parse(text: &str, file: &str) -> Result<Report, MeasureError> {
        let value: Value = serde_json::from_str(text).map_err(|error| MeasureError::Json {
            file: file.to_owned(),
            line: error.line(),
            column: error.column(),
            expected: "report",
        })?;
        let Value::Object(object) = value else {
            return Err(wrong(file, "(top level)", Some(&value), "an object"));
        };
        Fields { file, object: &object }.report()
    }
}

impl Serialize for Report {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let formulas = Ordered(definitions().map(|(key, formula)| (key.to_owned(), json!(formula))).collect());
        let entries = self.entries();
        serializer.collect_map(
            entries
                .iter()
                .map(|(key, value)| (key.as_str(), Entry::Value(value)))
                .chain([("definitions", Entry::Ordered(&formulas))]),
        )
    }
}

/// An object whose keys keep their order.
struct Ordered(Vec<(String, Value)>);

impl Serialize for Ordered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(key, value)| (key, value)))
    }
}

#[derive(Serialize)]
#[serde(untagged)]
enum Entry<'a> {
    Value(&'a Value),
    Ordered(&'a Ordered),
}

/// The keys of a report while it is read.
struct Fields<'a> {
    file: &'a str,
    object: &'a Map<String, Value>,
}

impl Fields<'_> {
    fn report(&self) -> Result<Report, MeasureError> {
        let num_requests = self.required_count("num_requests")?;
        let completed_requests = self.required_count("completed_requests")?;
        let mut missing = Vec::new();
        let mut report = Report {
            num_requests,
            completed_requests,
            failed_requests: self.count("failed_requests")?.unwrap_or(num_requests.saturating_sub(completed_requests)),
            failures: BTreeMap::new(),
            total_input_tokens: self.total("total_input_tokens", &mut missing)?,
            total_output_tokens: self.total("total_output_tokens", &mut missing)?,
            duration_ms: self.number("duration_ms")?.unwrap_or(0.0),
            request_throughput_rps: self.number("request_throughput_rps")?,
            input_throughput_tok_s: self.number("input_throughput_tok_s")?,
            output_throughput_tok_s: self.number("output_throughput_tok_s")?,
            total_throughput_tok_s: self.number("total_throughput_tok_s")?,
            prefix_cache_reused_ratio: self.number("prefix_cache_reused_ratio")?,
            first_admission_prefix_cache_reused_ratio: self.number("first_admission_prefix_cache_reused_ratio")?,
            infinite_cache_reused_ratio: self.number("infinite_cache_reused_ratio")?,
            belady_reused_ratio: self.number("belady_reused_ratio")?,
            unfinished_requests: self.count("unfinished_requests")?,
            metrics: BTreeMap::new(),
            requests_per_worker: self.parsed("requests_per_worker", "counts by worker")?.unwrap_or_default(),
            speedup_ratio: self.number("speedup_ratio")?,
            workload: self.parsed("workload", "a string")?,
            router_mode: self.parsed("router_mode", "a string")?,
            seed: self.count("seed")?,
            arrival_mode: self.parsed("arrival_mode", "a string")?,
            concurrency: self.count("concurrency")?,
            histogram_relative_error: self.number("histogram_relative_error")?.unwrap_or(0.0),
            quantile_rule: self.parsed("quantile_rule", "a string")?.unwrap_or_default(),
            reference: self.parsed("reference", "an object")?,
            warnings: self.parsed("warnings", "a list of strings")?.unwrap_or_default(),
        };
        for kind in FAILURE_KINDS {
            report.failures.insert(kind, self.count(&failure_key(kind))?.unwrap_or(0));
        }
        for metric in Metric::ALL {
            report.metrics.extend(self.summary(metric, completed_requests)?.map(|summary| (metric, summary)));
        }
        report.warnings.append(&mut missing);
        Ok(report)
    }

    /// A distribution exists if its mean does; single figures that other programs leave out are NaN, written as null.
    fn summary(&self, metric: Metric, completed_requests: u64) -> Result<Option<LatencySummary>, MeasureError> {
        let mut figures = [f64::NAN; STATISTICS.len()];
        for (figure, statistic) in figures.iter_mut().zip(STATISTICS) {
            *figure = self.number(&format!("{statistic}_{}", metric.name()))?.unwrap_or(f64::NAN);
        }
        let samples = self.count(&metric.samples_key())?.unwrap_or(completed_requests);
        let exists = figures.iter().any(|figure| figure.is_finite());
        Ok(exists.then(|| LatencySummary::from_figures(samples, figures)))
    }

    fn present(&self, key: &str) -> Option<&Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    fn required_count(&self, key: &str) -> Result<u64, MeasureError> {
        self.count(key)?.ok_or_else(|| wrong(self.file, key, None, "a whole number of at least 0"))
    }

    fn total(&self, key: &str, missing: &mut Vec<String>) -> Result<u64, MeasureError> {
        let total = self.count(key)?;
        if total.is_none() {
            missing.push(format!("{}: no `{key}`, taken as 0", self.file));
        }
        Ok(total.unwrap_or(0))
    }

    fn count(&self, key: &str) -> Result<Option<u64>, MeasureError> {
        self.parsed(key, "a whole number of at least 0")
    }

    fn number(&self, key: &str) -> Result<Option<f64>, MeasureError> {
        self.parsed(key, "a number")
    }

    fn parsed<T: for<'de> Deserialize<'de>>(
        &self,
        key: &str,
        expected: &'static str,
    ) -> Result<Option<T>, MeasureError> {
        let Some(value) = self.present(key) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|_| wrong(self.file, key, Some(value), expected))
    }
}

fn wrong(file: &str, key: &str, value: Option<&Value>, expected: &'static str) -> MeasureError {
    let value = value.map_or_else(|| "missing".to_owned(), Value::to_string);
    MeasureError::Value { file: file.to_owned(), key: key.to_owned(), value, expected }
}
