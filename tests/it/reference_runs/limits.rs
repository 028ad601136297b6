//! How far a figure may be from the reference's, and the comparison that says of all that are too far how far.

use serde_json::Value;

use super::Reference;

/// Both compute in nanoseconds: what is left is the order of sums of floats.
const SAME: f64 = 1e-6;
/// Percentiles over token gaps: the reference keeps a sketch of 0.1 % and ours are exact.
const SKETCH: f64 = 0.002;
/// The reference asks an estimator for each step's time, we read a table of the same estimator.
const TABLE: f64 = 0.005;
/// The same, above the median, where few steps decide; and wherever chance has a part.
const TABLE_TAIL: f64 = 0.02;
/// The same for the mean time to the second token: a prompt of another request falls between the two or just does not. Noise
/// of 0.05 % on the table moves this mean by 2 %, and its tail, which lies on that jump, by 20 %.
const TABLE_TTST: f64 = 0.03;
/// A mean over seeds of ours beside one run of the reference without a seed.
const CHANCE: f64 = 0.015;
/// The same for the share of prompt tokens reused, as a difference.
const CHANCE_REUSE: f64 = 0.01;

/// Means that chance moves least.
const MEANS: [&str; 4] = ["mean_ttft_ms", "mean_tpot_ms", "mean_e2e_latency_ms", "output_throughput_tok_s"];
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

/// The means over some seeds of ours against the reference's one run.
pub fn near(reference: &Reference, ours: &[Value]) {
    let share = if reference.timed_by_profile() { TABLE_TAIL } else { CHANCE };
    let mut apart = Vec::new();
    for key in MEANS.into_iter().chain([REUSE]) {
        let figures: Vec<f64> = ours.iter().map(|report| report[key].as_f64().expect("a number")).collect();
        let mean = figures.iter().sum::<f64>() / figures.len() as f64;
        let theirs = reference.expected[key].as_f64().expect("a number");
        let limit = if key == REUSE { CHANCE_REUSE } else { share * theirs };
        if (mean - theirs).abs() > limit {
            apart.push(describe(key, Some(mean), theirs, &format!("{limit:.4}; by seed {figures:?}")));
        }
    }
    for report in ours {
        for key in ["num_requests", "completed_requests", "total_input_tokens", "total_output_tokens"] {
            if report[key] != reference.expected[key] {
                apart.push(format!("{key} is {}, the reference has {}", report[key], reference.expected[key]));
            }
        }
    }
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
