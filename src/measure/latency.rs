//! Many samples of one metric, and the ten figures that describe them.
//!
//! A [`LatencySet`] keeps its samples in one of two ways. *Exact*: every value, for the replay and for metrics with one
//! sample a request. *Histogram*: counts in buckets of three significant digits, for pooled token gaps of a live run,
//! which would be millions. Count, mean, minimum, maximum and standard deviation are exact in both; percentiles of a
//! histogram are bucket midpoints, off by at most [`HISTOGRAM_RELATIVE_ERROR`] of their value.
//!
//! Rank rule, the same for both: the p-th percentile of n samples is the sorted sample at rank round((n−1)·p/100),
//! counted from 0, halves rounded up. It is always a value that occurred, never an interpolation.

use hdrhistogram::Histogram;

use crate::measure::weighted::{self, WeightedSamples};
use crate::time::SimSpan;

/// Largest relative error of a histogram's percentiles: half a bucket of three significant digits (1/2048), rounded up.
pub const HISTOGRAM_RELATIVE_ERROR: f64 = 0.0005;

/// The rank rule in words, as written to reports.
pub const QUANTILE_RULE: &str = "sorted sample at rank round((n-1)*p/100), counted from 0, halves up";

/// Names of the statistics of a summary, in the order of reports.
pub const STATISTICS: [&str; 10] = ["mean", "min", "max", "median", "p25", "p75", "p90", "p95", "p99", "std"];

const NANOS_PER_MS: f64 = 1e6;
const NANOS_PER_DAY: u64 = 86_400_000_000_000;
const SIGNIFICANT_DIGITS: u8 = 3;

/// The figures of one metric. Same unit as the samples: milliseconds, unless the metric says otherwise.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencySummary {
    /// Number of samples, n.
    pub samples: u64,
    /// Arithmetic mean, Σx / n.
    pub mean: f64,
    /// Smallest sample.
    pub min: f64,
    /// Largest sample.
    pub max: f64,
    /// 50th percentile by the rank rule.
    pub median: f64,
    /// 25th percentile by the rank rule.
    pub p25: f64,
    /// 75th percentile by the rank rule.
    pub p75: f64,
    /// 90th percentile by the rank rule.
    pub p90: f64,
    /// 95th percentile by the rank rule.
    pub p95: f64,
    /// 99th percentile by the rank rule.
    pub p99: f64,
    /// Population standard deviation, √(Σ(x − mean)² / n).
    pub std: f64,
}

impl LatencySummary {
    /// The figures in the order of [`STATISTICS`].
    pub fn figures(&self) -> [f64; 10] {
        [self.mean, self.min, self.max, self.median, self.p25, self.p75, self.p90, self.p95, self.p99, self.std]
    }

    /// The reverse of [`figures`](Self::figures).
    pub fn from_figures(samples: u64, figures: [f64; 10]) -> Self {
        let [mean, min, max, median, p25, p75, p90, p95, p99, std] = figures;
        LatencySummary { samples, mean, min, max, median, p25, p75, p90, p95, p99, std }
    }
}

/// Samples of one metric, in milliseconds.
#[derive(Clone, Debug)]
pub struct LatencySet {
    samples: Samples,
    relative_error: f64,
    negative_samples: u64,
}

#[derive(Clone, Debug)]
enum Samples {
    /// Every value.
    Exact(WeightedSamples),
    /// Counts by whole nanoseconds, and the moments of the values before they were rounded.
    Histogram { buckets: Histogram<u64>, moments: Moments },
}

impl LatencySet {
    /// An empty set that keeps every value; each change of value takes 12 bytes, as long as there are not millions.
    pub fn exact() -> Self {
        LatencySet { samples: Samples::Exact(WeightedSamples::default()), relative_error: 0.0, negative_samples: 0 }
    }

    /// An empty set that counts values in buckets: about 0.3 MB up to a day of simulated time, growing beyond.
    pub fn histogram() -> Self {
        let mut buckets = Histogram::new_with_bounds(1, NANOS_PER_DAY, SIGNIFICANT_DIGITS)
            .expect("the bounds are constants within the range the histogram allows");
        buckets.auto(true);
        LatencySet {
            samples: Samples::Histogram { buckets, moments: Moments::default() },
            relative_error: HISTOGRAM_RELATIVE_ERROR,
            negative_samples: 0,
        }
    }

    /// An exact set of `samples_ms`.
    pub fn from_samples(samples_ms: impl IntoIterator<Item = f64>) -> Self {
        let mut set = LatencySet::exact();
        for sample_ms in samples_ms {
            set.record(sample_ms);
        }
        set
    }

    /// Adds one sample.
    pub fn record(&mut self, sample_ms: f64) {
        self.record_n(sample_ms, 1);
    }

    /// Adds the same sample `count` times, as for a step that gives a token to each of `count` sequences.
    ///
    /// A negative sample counts as zero, and as one of [`negative_samples`](Self::negative_samples) if it is more than
    /// a nanosecond below. NaN and infinity are no measurements and are left out.
    pub fn record_n(&mut self, sample_ms: f64, count: u64) {
        if !sample_ms.is_finite() || count == 0 {
            return;
        }
        if sample_ms < -1.0 / NANOS_PER_MS {
            self.negative_samples += count;
        }
        // The sum turns a negative zero, whose bits would sort last, into zero.
        let sample_ms = sample_ms.max(0.0) + 0.0;
        match &mut self.samples {
            Samples::Exact(samples) => samples.push(sample_ms, count),
            Samples::Histogram { buckets, moments } => {
                let recorded = buckets.record_n(to_nanos(sample_ms), count);
                debug_assert!(recorded.is_ok(), "a histogram that resizes itself takes any value");
                moments.add(sample_ms, count);
            }
        }
    }

    /// Adds waits, each so many times: as [`LatencySet::record_n`], which has to look at more.
    pub fn record_spans(&mut self, waits: impl ExactSizeIterator<Item = (SimSpan, u32)>) {
        match &mut self.samples {
            Samples::Exact(samples) => samples.extend(waits.map(|(wait, count)| (wait.as_ms(), count))),
            Samples::Histogram { .. } => waits.for_each(|(wait, count)| self.record_n(wait.as_ms(), u64::from(count))),
        }
    }

    /// Adds all samples of `other`. If either is a histogram, the result is one.
    pub fn merge(&mut self, other: &LatencySet) {
        let negative_samples = self.negative_samples + other.negative_samples;
        let relative_error = self.relative_error.max(other.relative_error);
        match (&mut self.samples, &other.samples) {
            (Samples::Exact(mine), Samples::Exact(theirs)) => {
                theirs.iter().for_each(|(sample_ms, count)| mine.push(sample_ms, count));
            }
            (Samples::Histogram { .. }, Samples::Exact(theirs)) => {
                theirs.iter().for_each(|(sample_ms, count)| self.record_n(sample_ms, count));
            }
            (Samples::Histogram { buckets, moments }, Samples::Histogram { buckets: more, moments: rest }) => {
                buckets.add(more).expect("a histogram that resizes itself takes any other");
                moments.merge(rest);
            }
            (Samples::Exact(_), Samples::Histogram { .. }) => {
                let mut merged = other.clone();
                merged.merge(self);
                *self = merged;
            }
        }
        self.negative_samples = negative_samples;
        self.relative_error = relative_error;
    }

    /// Number of samples.
    pub fn len(&self) -> u64 {
        match &self.samples {
            Samples::Exact(samples) => samples.total(),
            Samples::Histogram { moments, .. } => moments.count,
        }
    }

    /// True if nothing was recorded.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Samples that were more than a nanosecond below zero and were counted as zero.
    pub fn negative_samples(&self) -> u64 {
        self.negative_samples
    }

    /// Largest relative error of a percentile: 0 if exact, [`HISTOGRAM_RELATIVE_ERROR`] if not.
    pub fn relative_error(&self) -> f64 {
        self.relative_error
    }

    /// The `p`-th percentile (0 to 100) in milliseconds by the rank rule; `None` without samples.
    pub fn percentile(&self, p: f64) -> Option<f64> {
        self.percentiles([p]).map(|[found]| found)
    }

    fn percentiles<const N: usize>(&self, percents: [f64; N]) -> Option<[f64; N]> {
        let total = self.len();
        rank(total, 0.0)?;
        let ranks = percents.map(|percent| rank(total, percent).unwrap_or(0));
        match &self.samples {
            Samples::Exact(samples) => samples.figures(ranks).map(|(_, found)| found),
            Samples::Histogram { buckets, moments } => {
                let ascending = recorded(buckets, moments);
                Some(ranks.map(|rank| at_rank(&ascending, rank).unwrap_or(moments.max)))
            }
        }
    }

    /// All figures at once; `None` without samples.
    pub fn summary(&self) -> Option<LatencySummary> {
        match &self.samples {
            Samples::Exact(samples) => {
                let (moments, percentiles) = samples.figures(ranks(samples.total()))?;
                Some(summary_of(moments, percentiles))
            }
            Samples::Histogram { moments, .. } => {
                let std = moments.population_std();
                let Moments { count, mean, min, max, .. } = *moments;
                let of_all = weighted::Moments { samples: count, mean, std, min, max };
                Some(summary_of(of_all, self.percentiles(PERCENTS)?))
            }
        }
    }

    /// [`LatencySet::summary`], and that of 1000/x over all samples x above zero: gaps between tokens in milliseconds
    /// become tokens per second. `None` for the second from a histogram: the rates of small gaps would mean nothing.
    pub fn summary_with_rates(&self) -> (Option<LatencySummary>, Option<LatencySummary>) {
        let Samples::Exact(samples) = &self.samples else { return (self.summary(), None) };
        match samples.figures_with_rates(ranks(samples.total()), ranks) {
            Some((moments, percentiles, rates)) => (
                Some(summary_of(moments, percentiles)),
                rates.map(|(moments, percentiles)| summary_of(moments, percentiles)),
            ),
            None => (None, None),
        }
    }
}

/// Percentiles of a summary.
const PERCENTS: [f64; 6] = [50.0, 25.0, 75.0, 90.0, 95.0, 99.0];

/// Their ranks among so many samples.
fn ranks(samples: u64) -> [u64; PERCENTS.len()] {
    PERCENTS.map(|percent| rank(samples, percent).unwrap_or(0))
}

fn summary_of(moments: weighted::Moments, percentiles: [f64; PERCENTS.len()]) -> LatencySummary {
    let weighted::Moments { samples, mean, std, min, max } = moments;
    let [median, p25, p75, p90, p95, p99] = percentiles;
    LatencySummary { samples, mean, min, max, median, p25, p75, p90, p95, p99, std }
}

/// A histogram's values in milliseconds, ascending, each with its count.
fn recorded(buckets: &Histogram<u64>, moments: &Moments) -> Vec<(f64, u64)> {
    let recorded = buckets.iter_recorded().map(|bucket| {
        let midpoint_ms = buckets.median_equivalent(bucket.value_iterated_to()) as f64 / NANOS_PER_MS;
        // The midpoint of the outermost buckets may lie outside of what occurred.
        (midpoint_ms.min(moments.max).max(moments.min), bucket.count_at_value())
    });
    recorded.collect()
}

fn to_nanos(ms: f64) -> u64 {
    (ms * NANOS_PER_MS).round() as u64
}

/// The rank round((n−1)·p/100), counted from 0, of the p-th percentile of `n` sorted samples; `None` if n = 0.
pub(super) fn rank(n: u64, p: f64) -> Option<u64> {
    // Multiplying first keeps (n−1)·p exact for whole p, so that halves are halves.
    let steps = n.checked_sub(1)? as f64;
    Some((steps * p.clamp(0.0, 100.0) / 100.0).round() as u64)
}

/// The sample at a rank of ascending `(value, count)` runs.
fn at_rank(ascending: &[(f64, u64)], rank: u64) -> Option<f64> {
    let mut seen = 0;
    ascending.iter().find_map(|&(value, count)| {
        seen += count;
        (seen > rank).then_some(value)
    })
}

/// Count, extremes, mean and squared deviations, updated sample by sample (Welford) and merged pairwise (Chan).
#[derive(Clone, Copy, Debug)]
struct Moments {
    count: u64,
    mean: f64,
    squared_deviations: f64,
    min: f64,
    max: f64,
}

impl Default for Moments {
    fn default() -> Self {
        Moments { count: 0, mean: 0.0, squared_deviations: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Moments {
    fn add(&mut self, value: f64, count: u64) {
        self.merge(&Moments { count, mean: value, squared_deviations: 0.0, min: value, max: value });
    }

    fn merge(&mut self, other: &Moments) {
        let count = self.count + other.count;
        if count == 0 {
            return;
        }
        let distance = other.mean - self.mean;
        let weight = other.count as f64 / count as f64;
        self.mean += distance * weight;
        self.squared_deviations += other.squared_deviations + distance * distance * self.count as f64 * weight;
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.count = count;
    }

    fn population_std(&self) -> f64 {
        (self.squared_deviations / self.count as f64).sqrt()
    }
}
