//! How far a figure may be from the reference's, and the comparison that says of all that are too far how far.

use serde_json::Value;

use super::Reference;

/// Both compute in nanoseconds: what is left is the order of sums of floats.
const SAME: f64 = 1e-6;
/// Percentiles over token gaps: the reference keeps a sketch of 0.1 % and ours are exact.
const SKETCH: f64 = 0.002;
/// The reference asks an estimator for each step's time, we read a table of the same estimator.
const TABLE: f64 = 0.005;
/// The same, above the median, where few steps decide.
const TABLE_TAIL: f64 = 0.02;
/// The same for the mean time to the second token: a prompt of another request falls between the two or just does not. Noise
/// of 0.05 % on the table moves this mean by 2 %, and its tail, which lies on that jump, by 20 %.
const TABLE_TTST: f64 = 0.03;
/// One seed of ours beside one run of the reference without a seed: as far as 20 seeds of ours are apart, rounded up.
/// Their means are nearer, see `results/reference`.
const CHANCE: [(&str, f64); 4] =
    [("mean_ttft_ms", 0.03), ("mean_tpot_ms", 0.04), ("mean_e2e_latency_ms", 0.01), ("output_throughput_tok_s", 0.01)];
/// The same for the share of prompt tokens reused, as a difference.
const CHANCE_REUSE: f64 = 0.01;
const REUSE: &str = "first_admission_prefix_cache_reused_ratio";

/// The largest difference of a figure of a run that leaves nothing to chance, as a share of the reference's; `None` if
/// the figure depends on too few steps to be compared.
fn share(key: &str, profile: bool) -> Option<f64> {
    let percentile = ["median_", "p75_", "p90_", "p95_", "p99_"].iter().any(|start| key.starts_with(start));
    match profile {
        _ if key.ends_with("_requests") || key.ends_with("_tokens") => Some(0.0),
        false if percentile && key.ends_with("_itl_ms") => Some(SKETCH),
        false => Some(SAME),
        true if ["min_", "max_"].iter().any(|start| key.starts_with(start)) => None,
        true if key == "mean_ttst_ms" => Some(TABLE_TTST),
        true if key.ends_with("_ttst_ms") && key != "median_ttst_ms" => None,
        true if key.starts_with("median_") || !percentile && !key.starts_with("std_") => Some(TABLE),
        true => Some(TABLE_TAIL),
    }
}

/// Every figure of the reference's summary against ours.
pub fn equal(reference: &Reference, ours: &Value) {
    let profile = reference.timed_by_profile();
    let expected = reference.expected.as_object().expect("figures by key");
    assert_eq!(expected.len(), 54, "{}: figures of the summary", reference.name);
    let compared = expected.iter().filter_map(|(key, theirs)| Some((key, theirs, share(key, profile)?)));
    let apart: Vec<String> = compared
        .filter_map(|(key, theirs, share)| {
            let (ours, theirs) = (ours[key].as_f64(), theirs.as_f64().expect("a number"));
            let near = ours.is_some_and(|ours| (ours - theirs).abs() <= share * theirs.abs());
            (!near).then(|| describe(key, ours, theirs, &format!("{} %", 100.0 * share)))
        })
        .collect();
    assert!(apart.is_empty(), "{}: too far from the reference:\n{}", reference.name, apart.join("\n"));
}

/// What chance moves little in a run with KV routing, and what it does not move at all.
pub fn near(reference: &Reference, ours: &Value) {
    let figure = |of: &Value, key: &str| of[key].as_f64().expect("a number");
    let theirs = |key| figure(&reference.expected, key);
    let shares = CHANCE.map(|(key, share)| (key, share * theirs(key)));
    let counts =
        ["num_requests", "completed_requests", "total_input_tokens", "total_output_tokens"].map(|key| (key, 0.0));
    let apart: Vec<String> = shares
        .into_iter()
        .chain([(REUSE, CHANCE_REUSE)])
        .chain(counts)
        .filter(|(key, limit)| (figure(ours, key) - theirs(key)).abs() > *limit)
        .map(|(key, limit)| describe(key, Some(figure(ours, key)), theirs(key), &limit.to_string()))
        .collect();
    assert!(apart.is_empty(), "{}: too far from the reference:\n{}", reference.name, apart.join("\n"));
}

fn describe(key: &str, ours: Option<f64>, theirs: f64, limit: &str) -> String {
    match ours {
        Some(ours) => {
            let percent = 100.0 * (ours - theirs) / theirs;
            format!("{key} is {ours}, the reference has {theirs}: {percent:+.5} %, limit {limit}")
        }
        None => format!("{key} is absent, the reference has {theirs}"),
    }
}
