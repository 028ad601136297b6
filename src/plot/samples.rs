//! The numbers behind a figure, and the only statistics a figure takes of them.
//!
//! Values that are not finite mean "no value" and are left out. The percentile rule is the project's: of the sorted
//! samples, the element at index round((n − 1)·p/100), never an interpolated value.

/// One run's numbers, as the figures that compare runs need them. NaN and infinite values count as absent.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunCurves {
    /// The run's name in the legend.
    pub label: String,
    /// Time to first token of every request that has one, in milliseconds, in any order.
    pub ttft_ms: Vec<f64>,
    /// Mean time per output token after the first, of every request that has one, in milliseconds, in any order.
    pub tpot_ms: Vec<f64>,
    /// Time from sending to the last token of every completed request, in milliseconds, in any order.
    pub e2e_latency_ms: Vec<f64>,
    /// Output tokens per second over the whole run.
    pub output_throughput_tok_s: f64,
    /// Completed requests per second over the whole run.
    pub request_throughput_rps: f64,
    /// Prompt tokens served from the prefix cache at first admission, as a share of all prompt tokens, 0 to 1.
    pub prefix_reused_ratio: f64,
    /// Requests of which every token arrived.
    pub completed_requests: u64,
    /// Requests that ended in any other way.
    pub failed_requests: u64,
}

/// One run's requests over time, in parallel vectors: element i of each is the same request. Times are milliseconds
/// since the start of the run. NaN stands for "never happened"; elements beyond the shortest vector needed are ignored.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Timeline {
    /// The run's name in the legend.
    pub label: String,
    /// When the request was sent, in milliseconds since the start of the run.
    pub sent_ms: Vec<f64>,
    /// Its time to first token, in milliseconds; NaN if no token came.
    pub ttft_ms: Vec<f64>,
    /// When it ended, in whatever way, in milliseconds since the start of the run.
    pub end_ms: Vec<f64>,
}

/// Larger magnitudes (30 million years of milliseconds) are drawn as this, so that no sum or product overflows.
const LARGEST_DRAWN: f64 = 1e18;

/// `value` as it is drawn: absent if not finite, bounded in magnitude.
pub(super) fn drawable(value: f64) -> Option<f64> {
    value.is_finite().then(|| value.clamp(-LARGEST_DRAWN, LARGEST_DRAWN))
}

/// The drawable values of `samples`, ascending.
pub(super) fn sorted(samples: &[f64]) -> Vec<f64> {
    let mut values: Vec<f64> = samples.iter().copied().filter_map(drawable).collect();
    values.sort_by(f64::total_cmp);
    values
}

/// The element at index round((n − 1)·`percent`/100) of ascending `values`; none of no values.
pub(super) fn percentile(values: &[f64], percent: f64) -> Option<f64> {
    let last = values.len().checked_sub(1)?;
    let index = (last as f64 * percent / 100.0).round() as usize;
    values.get(index.min(last)).copied()
}

/// The smallest and the largest of `values`; none of no values.
pub(super) fn extent(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    values.into_iter().fold(None, |range: Option<(f64, f64)>, value| {
        let (low, high) = range.unwrap_or((value, value));
        Some((low.min(value), high.max(value)))
    })
}
