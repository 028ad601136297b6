//! Is one run better than another, or is it chance? Runs of the same workload, paired request by request.
//!
//! Each request that completed in both runs gives one difference, run − baseline, so what makes requests unlike each
//! other cancels out. Neighbouring requests share queues and caches and thus their luck; drawing them one by one would
//! make the interval too narrow. The interval therefore comes from a circular block bootstrap: means of stretches of
//! about √n consecutive rows, drawn with a seed, 2,000 times; its ends are the 2.5th and 97.5th percentiles.
//! It covers chance within these two runs, not what another seed or trace would bring.

use std::path::Path;

use rand::RngExt;
use serde::Serialize;

use super::error::MeasureError;
use super::latency::rank;
use super::metric::Metric;
use super::report::Report;
use super::requests_csv::read_requests_csv;
use crate::rng::Seed;
use crate::session::ledger::RequestRecord;

/// How often the mean difference is drawn anew.
pub const RESAMPLES: u32 = 2000;
/// Share of resampled means within the interval.
pub const CONFIDENCE: f64 = 0.95;
/// The metrics that are compared request by request.
pub const PAIRED_METRICS: [Metric; 2] = [Metric::Ttft, Metric::Tpot];

const METHOD: &str = "circular block bootstrap of the mean of paired differences, percentile interval";

/// A run as found in its folder.
#[derive(Clone, Debug)]
pub struct ResultFolder {
    /// What tables and warnings call the run.
    pub label: String,
    /// Its `report.json`.
    pub report: Report,
    /// Its `requests.csv`.
    pub records: Vec<RequestRecord>,
}

impl ResultFolder {
    /// Reads `report.json` and `requests.csv` of `folder`.
    ///
    /// # Errors
    /// Any [`MeasureError`] of the two readers; it names the file.
    pub fn read(label: &str, folder: &Path) -> Result<ResultFolder, MeasureError> {
        Ok(ResultFolder {
            label: label.to_owned(),
            report: Report::read(&folder.join("report.json"))?,
            records: read_requests_csv(&folder.join("requests.csv"))?,
        })
    }
}

/// Runs compared with the first of them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// Label of the first run.
    pub baseline: String,
    /// How the intervals were made.
    pub method: &'static str,
    /// Share of resampled means within an interval.
    pub confidence: f64,
    /// Number of resampled means.
    pub resamples: u32,
    /// Seed of the draws.
    pub seed: u64,
    /// The other runs, in the order given.
    pub runs: Vec<PairedRun>,
    /// Why figures may not be comparable.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// The comparison as indented JSON, ending in a line break; the same bytes for the same runs and seed.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("plain fields always serialise");
        text.push('\n');
        text
    }
}

/// One run beside the baseline.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairedRun {
    /// Label of the run.
    pub label: String,
    /// Rows that completed in both runs and ask for the same numbers of tokens.
    pub paired_requests: u64,
    /// Rows of either run without such a partner.
    pub unpaired_requests: u64,
    /// One entry for each of [`PAIRED_METRICS`] that has pairs.
    pub differences: Vec<PairedDifference>,
}

/// The mean of run − baseline over pairs of requests, in ms; below zero the run is faster.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PairedDifference {
    /// Name of the metric, as in report keys.
    pub metric: &'static str,
    /// Pairs in which both requests have a sample.
    pub pairs: u64,
    /// Mean of the baseline's samples, in ms.
    pub baseline_mean_ms: f64,
    /// Mean of the run's samples, in ms.
    pub run_mean_ms: f64,
    /// Mean of run − baseline, in ms.
    pub mean_difference_ms: f64,
    /// `mean_difference_ms` / `baseline_mean_ms` × 100; `None` if the baseline's mean is 0.
    pub mean_difference_percent: Option<f64>,
    /// Lower end of the 95 % interval, in ms; `None` below two pairs.
    pub ci95_low_ms: Option<f64>,
    /// Upper end of the 95 % interval, in ms; `None` below two pairs.
    pub ci95_high_ms: Option<f64>,
    /// Consecutive pairs drawn together.
    pub block_pairs: u64,
    /// `faster`, `slower`, or `no clear difference` if the interval holds 0 or does not exist.
    pub verdict: &'static str,
}

/// Compares each run with the first. The same runs and seed give the same result; without runs it is empty.
pub fn compare(results: &[ResultFolder], seed: Seed) -> Comparison {
    let mut comparison = Comparison {
        baseline: String::new(),
        method: METHOD,
        confidence: CONFIDENCE,
        resamples: RESAMPLES,
        seed: seed.0,
        runs: Vec::new(),
        warnings: Vec::new(),
    };
    if let Some((baseline, others)) = results.split_first() {
        comparison.baseline.clone_from(&baseline.label);
        for (index, run) in others.iter().enumerate() {
            let (pairs, unpaired_requests) = paired(&baseline.records, &run.records);
            comparison.warnings.extend(differences_in_kind(baseline, run));
            comparison.warnings.extend(pairing_note(baseline, run, pairs.len(), unpaired_requests));
            let seed = seed.split("paired difference").nth(index as u64);
            comparison.runs.push(PairedRun {
                label: run.label.clone(),
                paired_requests: pairs.len() as u64,
                unpaired_requests,
                differences: PAIRED_METRICS.iter().filter_map(|metric| difference(&pairs, *metric, seed)).collect(),
            });
        }
    }
    comparison
}

type Pair<'a> = (&'a RequestRecord, &'a RequestRecord);

/// Rows that completed in both runs with the same lengths, in order of rows, and the number of rows left over.
fn paired<'a>(baseline: &'a [RequestRecord], run: &'a [RequestRecord]) -> (Vec<Pair<'a>>, u64) {
    let by_row = |records: &'a [RequestRecord]| -> Vec<&'a RequestRecord> {
        let mut sorted: Vec<&RequestRecord> = records.iter().collect();
        sorted.sort_by_key(|record| record.row);
        sorted
    };
    let (baseline, run) = (by_row(baseline), by_row(run));
    let mut candidates = run.iter().peekable();
    let mut pairs = Vec::with_capacity(baseline.len());
    for base in &baseline {
        while candidates.next_if(|candidate| candidate.row < base.row).is_some() {}
        if let Some(candidate) = candidates.next_if(|candidate| candidate.row == base.row) {
            let same_lengths = base.input_tokens == candidate.input_tokens
                && base.requested_output_tokens == candidate.requested_output_tokens;
            if same_lengths && base.completed() && candidate.completed() {
                pairs.push((*base, *candidate));
            }
        }
    }
    let unpaired = baseline.len() + run.len() - 2 * pairs.len();
    (pairs, unpaired as u64)
}

/// A warning for each fact that makes the two runs unlike in more than what is compared.
fn differences_in_kind(baseline: &ResultFolder, run: &ResultFolder) -> Vec<String> {
    let mut warnings = Vec::new();
    let mut unlike = |what: &str, base: String, other: String| {
        if base != other {
            warnings.push(format!("{what} differs: {base} in {}, {other} in {}", baseline.label, run.label));
        }
    };
    let (base, other) = (&baseline.report, &run.report);
    unlike("num_requests", base.num_requests.to_string(), other.num_requests.to_string());
    unlike("workload", known(base.workload.as_ref()), known(other.workload.as_ref()));
    unlike("speedup_ratio", known(base.speedup_ratio), known(other.speedup_ratio));
    unlike("arrival_mode", known(base.arrival_mode.as_ref()), known(other.arrival_mode.as_ref()));
    unlike("concurrency", known(base.concurrency), known(other.concurrency));
    warnings
}

fn known(fact: Option<impl ToString>) -> String {
    fact.map_or_else(|| "unknown".to_owned(), |fact| fact.to_string())
}

fn pairing_note(baseline: &ResultFolder, run: &ResultFolder, pairs: usize, unpaired: u64) -> Option<String> {
    (unpaired > 0).then(|| {
        format!(
            "{unpaired} requests of {} and {} have no partner that completed with the same lengths: differences \
             cover {pairs} pairs",
            baseline.label, run.label
        )
    })
}

fn difference(pairs: &[Pair<'_>], metric: Metric, seed: Seed) -> Option<PairedDifference> {
    let samples: Vec<(f64, f64)> = pairs
        .iter()
        .filter_map(|(base, run)| Some((metric.sample(base)?, metric.sample(run)?)))
        .filter(|(base, run)| base.is_finite() && run.is_finite())
        .collect();
    if samples.is_empty() {
        return None;
    }
    let differences: Vec<f64> = samples.iter().map(|(base, run)| run - base).collect();
    let baseline_mean_ms = mean(samples.iter().map(|(base, _)| *base), samples.len());
    let mean_difference_ms = mean(differences.iter().copied(), samples.len());
    let block = block_length(samples.len());
    let interval = bootstrap_interval(&differences, block, seed.split(metric.name()));
    let verdict = match interval {
        Some((_, high)) if high < 0.0 => "faster",
        Some((low, _)) if low > 0.0 => "slower",
        _ => "no clear difference",
    };
    Some(PairedDifference {
        metric: metric.name(),
        pairs: samples.len() as u64,
        baseline_mean_ms,
        run_mean_ms: mean(samples.iter().map(|(_, run)| *run), samples.len()),
        mean_difference_ms,
        mean_difference_percent: (baseline_mean_ms != 0.0).then(|| 100.0 * mean_difference_ms / baseline_mean_ms),
        ci95_low_ms: interval.map(|(low, _)| low),
        ci95_high_ms: interval.map(|(_, high)| high),
        block_pairs: block as u64,
        verdict,
    })
}

fn mean(values: impl Iterator<Item = f64>, count: usize) -> f64 {
    values.sum::<f64>() / count as f64
}

/// Consecutive pairs drawn together: √n, rounded up.
fn block_length(pairs: usize) -> usize {
    (pairs as f64).sqrt().ceil() as usize
}

/// The 2.5th and 97.5th percentiles of resampled means; `None` below two values.
fn bootstrap_interval(values: &[f64], block: usize, seed: Seed) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    // Running sums over the values laid end to end twice: any stretch, also one around the end, is one subtraction.
    let mut sums = vec![0.0];
    let mut total = 0.0;
    for value in values.iter().chain(values) {
        total += value;
        sums.push(total);
    }
    let mut rng = seed.rng();
    let mut means: Vec<f64> = (0..RESAMPLES)
        .map(|_| {
            let mut left = values.len();
            let mut sum = 0.0;
            while left > 0 {
                let start = rng.random_range(0..values.len() as u64) as usize;
                let length = block.min(left);
                sum += sums[start + length] - sums[start];
                left -= length;
            }
            sum / values.len() as f64
        })
        .collect();
    means.sort_unstable_by(f64::total_cmp);
    let end = |p| rank(means.len() as u64, p).and_then(|rank| means.get(rank as usize).copied());
    let tail = 100.0 * (1.0 - CONFIDENCE) / 2.0;
    Some((end(tail)?, end(100.0 - tail)?))
}
