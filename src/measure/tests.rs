//! Tests of the measuring room: the reference's definitions, round trips, and what people see.

use std::collections::BTreeSet;
use std::path::Path;

use proptest::prelude::*;

use super::latency::{HISTOGRAM_RELATIVE_ERROR, STATISTICS};
use super::report::FAILURE_KINDS;
use super::schema::{definition, definitions, failure_name};
use super::*;
use crate::rng::Seed;
use crate::session::ledger::{FailureKind, Outcome, RequestRecord};

/// A completed request with evenly spaced tokens.
fn completed(row: u64, sent_ms: f64, ttft_ms: f64, output_tokens: u32, tpot_ms: f64) -> RequestRecord {
    let first_ms = sent_ms + ttft_ms;
    let last_ms = first_ms + tpot_ms * f64::from(output_tokens - 1);
    RequestRecord {
        row,
        session_id: None,
        turn: 0,
        input_tokens: 100,
        requested_output_tokens: output_tokens,
        output_tokens,
        reused_tokens: Some(25),
        worker: Some(format!("worker-{}", row % 2)),
        overlap_blocks: Some(1),
        intended_ms: sent_ms,
        sent_ms,
        first_token_ms: Some(first_ms),
        second_token_ms: (output_tokens > 1).then_some(first_ms + tpot_ms),
        last_token_ms: Some(last_ms),
        end_ms: last_ms,
        max_stall_ms: (output_tokens > 1).then_some(tpot_ms),
        engine_ttft_ms: Some(ttft_ms - 0.5),
        engine_tpot_ms: (output_tokens > 1).then_some(tpot_ms),
        outcome: Outcome::Completed,
    }
}

fn failed(row: u64, sent_ms: f64, end_ms: f64, kind: FailureKind) -> RequestRecord {
    RequestRecord {
        output_tokens: 0,
        reused_tokens: None,
        worker: None,
        overlap_blocks: None,
        first_token_ms: None,
        second_token_ms: None,
        last_token_ms: None,
        end_ms,
        max_stall_ms: None,
        engine_ttft_ms: None,
        engine_tpot_ms: None,
        outcome: Outcome::Failed { kind, message: "it said \"no\", twice\nand left".to_owned() },
        ..completed(row, sent_ms, 1.0, 2, 1.0)
    }
}

fn facts() -> RunFacts {
    RunFacts {
        virtual_time: false,
        unfinished_requests: None,
        reuse_bounds: None,
        workload: "toolagent".to_owned(),
        router_mode: "kv".to_owned(),
        arrival_mode: "concurrency".to_owned(),
        concurrency: Some(2),
        seed: 42,
        speedup_ratio: 10.0,
        prefix_cache_reused_tokens: None,
        warnings: Vec::new(),
    }
}

/// The pooled gaps of evenly spaced requests.
fn gaps(records: &[RequestRecord]) -> LatencySet {
    let mut gaps = LatencySet::exact();
    for record in records.iter().filter(|record| record.completed()) {
        gaps.record_n(record.tpot_ms().unwrap_or(0.0), u64::from(record.output_tokens - 1));
    }
    gaps
}

fn small_run(slower: f64) -> Vec<RequestRecord> {
    (0..8u32)
        .map(|row| completed(u64::from(row), f64::from(row) * 12.5, 20.0 + slower * f64::from(row), 5, 2.5))
        .collect()
}

fn report_of(records: &[RequestRecord]) -> Report {
    Report::build(records, &gaps(records), &facts())
}

#[test]
fn percentile_takes_the_rounded_rank() {
    let set = LatencySet::from_samples([5.0, 1.0, 4.0, 2.0, 3.0, 6.0]);
    // Ranks round(5 · p/100): 1.25 → 1, 2.5 → 3, 3.75 → 4, 4.5 → 5.
    let ranks = [(0.0, 1.0), (25.0, 2.0), (50.0, 4.0), (75.0, 5.0), (90.0, 6.0), (100.0, 6.0), (250.0, 6.0)];
    for (p, expected) in ranks {
        assert_eq!(set.percentile(p), Some(expected), "p{p}");
    }
}

#[test]
fn summary_of_known_samples() {
    let summary = LatencySet::from_samples([2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]).summary().unwrap();
    assert_eq!((summary.samples, summary.mean, summary.std), (8, 5.0, 2.0));
    assert_eq!((summary.min, summary.median, summary.max), (2.0, 5.0, 9.0));
    assert_eq!(LatencySet::exact().summary(), None);
    assert_eq!(LatencySet::histogram().summary(), None);
}

#[test]
fn negative_samples_count_as_zero_and_nan_is_no_sample() {
    for mut set in [LatencySet::exact(), LatencySet::histogram()] {
        set.record(-3.0);
        set.record(-1e-9);
        set.record(f64::NAN);
        set.record(6.0);
        let summary = set.summary().unwrap();
        assert_eq!((summary.samples, summary.min, summary.mean, summary.max), (3, 0.0, 2.0, 6.0));
        assert_eq!(set.negative_samples(), 1, "rounding below a nanosecond is not a negative sample");
    }
}

#[test]
fn histogram_grows_beyond_a_day() {
    let mut set = LatencySet::histogram();
    let forty_days_ms = 40.0 * 86_400_000.0;
    set.record(1.0);
    set.record_n(forty_days_ms, 2);
    let p99 = set.percentile(99.0).unwrap();
    assert!((p99 / forty_days_ms - 1.0).abs() <= HISTOGRAM_RELATIVE_ERROR, "{p99}");
}

#[test]
fn rates_leave_out_gaps_of_zero() {
    let (_, rates) = LatencySet::from_samples([0.0, 2.0, 4.0, 5.0]).summary_with_rates();
    let rates = rates.unwrap();
    assert_eq!((rates.samples, rates.min, rates.median, rates.max), (3, 200.0, 250.0, 500.0));
}

proptest! {
    #[test]
    fn histogram_stays_within_its_error(
        samples in prop::collection::vec((0.000_1..1e7_f64, 1_u64..4), 1..200),
        split in 0_usize..200,
    ) {
        let (mut exact, mut whole) = (LatencySet::exact(), LatencySet::histogram());
        let mut parts = [LatencySet::histogram(), LatencySet::histogram()];
        for (index, &(sample, count)) in samples.iter().enumerate() {
            exact.record_n(sample, count);
            whole.record_n(sample, count);
            parts[usize::from(index >= split)].record_n(sample, count);
        }
        let [mut merged, rest] = parts;
        merged.merge(&rest);
        let mut mixed = exact.clone();
        mixed.merge(&LatencySet::histogram());

        let truth = exact.summary().unwrap();
        for set in [&whole, &merged, &mixed] {
            let summary = set.summary().unwrap();
            prop_assert_eq!((summary.samples, summary.min, summary.max), (truth.samples, truth.min, truth.max));
            prop_assert!((summary.mean - truth.mean).abs() <= 1e-9 * truth.max);
            prop_assert!((summary.std - truth.std).abs() <= 1e-6 * truth.max);
            for (figure, expected) in summary.figures().into_iter().zip(truth.figures()).skip(3).take(6) {
                // Half a nanosecond from storing whole nanoseconds comes on top.
                let bound = set.relative_error() * expected + 1e-6;
                prop_assert!((figure - expected).abs() <= bound, "{} {}", figure, expected);
            }
        }
    }

    #[test]
    fn exact_set_agrees_with_sorting(mut samples in prop::collection::vec(0.0..1e5_f64, 1..100), p in 0_u32..=100) {
        let set = LatencySet::from_samples(samples.iter().copied());
        samples.sort_by(f64::total_cmp);
        // round(x) for x = k/100 is floor((2k + 100) / 200).
        let rank = ((samples.len() - 1) * p as usize * 2 + 100) / 200;
        prop_assert_eq!(set.percentile(f64::from(p)), Some(samples[rank]));
        samples.reverse();
        prop_assert_eq!(LatencySet::from_samples(samples).summary(), set.summary(), "order of recording matters");
    }

    #[test]
    fn csv_gives_back_any_record(
        row in any::<u64>(), turn in any::<u32>(), ms in prop::collection::vec(prop::option::of(-1e9..1e9_f64), 6),
        session_id in prop::option::of("[a-z,\"\r\n ü]{0,8}"), worker in prop::option::of("\\PC{0,8}"),
        message in "[a-z,\"\r\n ü]{0,8}", kind in prop::option::of(prop::sample::select(FAILURE_KINDS.to_vec())),
    ) {
        let record = RequestRecord {
            row, turn, session_id, worker,
            first_token_ms: ms[0], second_token_ms: ms[1], last_token_ms: ms[2],
            max_stall_ms: ms[3], engine_ttft_ms: ms[4], engine_tpot_ms: ms[5],
            outcome: kind.map_or(Outcome::Completed, |kind| Outcome::Failed { kind, message }),
            ..completed(0, 0.1, 0.2, 7, 0.3)
        };
        let records = vec![record.clone(), completed(1, 0.0, 1.0, 1, 0.0), record];
        prop_assert_eq!(parse_requests_csv(&requests_csv(&records), "requests.csv").unwrap(), records);
    }
}

#[test]
fn report_matches_the_reference_on_its_sanity_case() {
    // Two sessions on one worker, fixed 10 ms prefill and 2 ms decode; the reference's figures for this case.
    let of_length =
        |input_tokens, reused, record| RequestRecord { input_tokens, reused_tokens: Some(reused), ..record };
    let records = [
        of_length(8, 0, completed(0, 0.0, 10.0, 2, 12.0)),
        of_length(12, 8, completed(1, 72.0, 10.0, 2, 2.0)),
        of_length(8, 0, completed(2, 5.0, 17.0, 2, 2.0)),
        of_length(12, 8, completed(3, 34.0, 10.0, 2, 2.0)),
    ];
    let report = report_of(&records);
    assert_eq!(report.duration_ms, 84.0);
    assert_eq!(report.first_admission_prefix_cache_reused_ratio, Some(0.4));
    assert_eq!(report.value("mean_ttft_ms"), Some(11.75));
    assert_eq!(report.value("max_ttst_ms"), Some(12.0));
    assert_eq!(report.value("max_e2e_latency_ms"), Some(22.0));
    assert_eq!(report.value("request_throughput_rps"), Some(4.0 / 0.084));
    assert_eq!(report.value("num_itl_samples"), Some(4.0));
    assert_eq!(report.value("no_such_key"), None);
}

#[test]
fn failed_requests_are_counted_and_touch_no_latency() {
    let mut records = small_run(1.0);
    let clean = report_of(&records);
    records.push(failed(8, 3.0, 60.0, FailureKind::Timeout));
    records.push(failed(9, 4.0, 60.0, FailureKind::Connect));
    let report = report_of(&records);
    assert_eq!((report.num_requests, report.completed_requests, report.failed_requests), (10, 8, 2));
    assert_eq!(report.value("failed_timeout_requests"), Some(1.0));
    assert_eq!(report.value("failed_cancelled_requests"), Some(0.0));
    assert_eq!(report.metrics, clean.metrics);
    assert_eq!(report.total_output_tokens, clean.total_output_tokens);
    let note = "2 of 10 requests failed (1 connect, 1 timeout): latencies and rates cover the completed ones only";
    assert_eq!(report.warnings, [note]);
}

#[test]
fn empty_run_has_null_figures() {
    let report = report_of(&[]);
    assert_eq!((report.duration_ms, report.request_throughput_rps), (0.0, None));
    assert!(report.to_json().contains("\"p99_ttft_ms\": null"));
    assert_eq!(Report::parse(&report.to_json(), "report.json").unwrap(), report);
}

#[test]
fn late_sends_are_warned_about_and_show_in_effective_latency() {
    let records: Vec<RequestRecord> = small_run(0.0)
        .into_iter()
        .map(|record| RequestRecord { intended_ms: record.sent_ms - 5.0, ..record })
        .collect();
    let report = report_of(&records);
    assert_eq!(report.value("p99_send_lag_ms"), Some(5.0));
    assert_eq!(report.value("mean_effective_ttft_ms"), Some(25.0));
    assert!(report.warnings[0].starts_with("requests left late"), "{:?}", report.warnings);
}

#[test]
fn reuse_ratios_follow_what_is_known() {
    let mut records = small_run(0.0);
    records[0].reused_tokens = None;
    let known = RunFacts { prefix_cache_reused_tokens: Some(400), ..facts() };
    let report = Report::build(&records, &gaps(&records), &known);
    assert_eq!(report.prefix_cache_reused_ratio, Some(0.5));
    assert_eq!(report.first_admission_prefix_cache_reused_ratio, Some(0.25));
    assert!(report.warnings[0].starts_with("1 of 8 completed requests do not tell"), "{:?}", report.warnings);
}

#[test]
fn every_key_of_a_report_has_a_definition_and_no_key_twice() {
    let entries = report_of(&small_run(1.0)).entries();
    let undefined: Vec<&String> = entries.iter().map(|(key, _)| key).filter(|key| definition(key).is_none()).collect();
    assert_eq!(undefined, Vec::<&String>::new());
    assert_eq!(entries.iter().map(|(key, _)| key).collect::<BTreeSet<_>>().len(), entries.len());
    assert_eq!(definitions().map(|(key, _)| key).collect::<BTreeSet<_>>().len(), definitions().count());
    for statistic in STATISTICS {
        assert!(entries.iter().any(|(key, _)| *key == format!("{statistic}_send_lag_ms")));
    }
}

#[test]
fn failure_names_are_those_of_the_ledger() {
    for kind in FAILURE_KINDS {
        assert_eq!(serde_json::to_value(kind).unwrap(), failure_name(kind));
    }
}

#[test]
fn report_json_keeps_its_form() {
    let mut records = small_run(1.0);
    records.push(failed(8, 3.0, 60.0, FailureKind::Timeout));
    insta::assert_snapshot!("report_json", report_of(&records).to_json());
}

#[test]
fn report_survives_writing_and_reading() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let report = report_of(&small_run(1.0));
    report.write(&path).unwrap();
    assert_eq!(Report::read(&path).unwrap(), report);
}

#[test]
fn a_replay_is_reported_under_the_names_of_the_reference_too() {
    let mut records = small_run(1.0).split_off(1);
    records.push(failed(8, 3.0, 60.0, FailureKind::Rejected));
    let facts = RunFacts { virtual_time: true, unfinished_requests: Some(2), ..facts() };
    let report = Report::build(&records, &gaps(&records), &facts);
    let reference = report.reference.as_ref().expect("figures of a replay");
    let end_ms = records.iter().map(|record| record.end_ms).fold(0.0, f64::max);
    assert!(end_ms > report.duration_ms, "the first send is not at 0");
    assert_eq!(reference["duration_ms"], end_ms);
    assert_eq!(reference["num_requests"], report.num_requests + 2);
    assert_eq!(reference["output_throughput_tok_s"], report.total_output_tokens as f64 / (end_ms / 1000.0));
    let same = |key: &str| !key.contains("throughput_") && !["duration_ms", "num_requests"].contains(&key);
    for (key, value) in reference.iter().filter(|(key, _)| same(key)) {
        assert_eq!(value.as_f64(), report.value(key), "{key} is the same figure in both");
    }
    // Counts, samples, nine statistics of six metrics.
    assert_eq!(reference.len(), 11 + 3 + 9 * 6);
    assert_eq!(Report::parse(&report.to_json(), "report.json").unwrap(), report);
}

#[test]
fn reader_takes_reports_with_missing_keys() {
    let text = r#"{"num_requests": 4, "completed_requests": 3, "mean_ttft_ms": 7.5, "wall_time_ms": 3}"#;
    let report = Report::parse(text, "old.json").unwrap();
    assert_eq!(
        (report.failed_requests, report.value("mean_ttft_ms"), report.value("p99_ttft_ms")),
        (1, Some(7.5), None)
    );
    assert_eq!(report.warnings[0], "old.json: no `total_input_tokens`, taken as 0");
    let table = comparison_table(&[("old".to_owned(), report)]);
    assert!(table.lines().any(|line| line.starts_with("TTFT p99") && line.ends_with(" -")), "{table}");
}

#[test]
fn reader_names_file_key_value_and_what_it_expected() {
    let message = |text: &str| Report::parse(text, "report.json").unwrap_err().to_string();
    assert_eq!(
        message(r#"{"num_requests": -5, "completed_requests": 3}"#),
        "report.json: `num_requests` is -5, expected a whole number of at least 0"
    );
    assert_eq!(
        message(r#"{"num_requests": 5, "completed_requests": 3, "p99_itl_ms": "slow"}"#),
        "report.json: `p99_itl_ms` is \"slow\", expected a number"
    );
    assert_eq!(message("{}"), "report.json: `num_requests` is missing, expected a whole number of at least 0");
    assert_eq!(message("[1"), "report.json:1:2: not valid JSON, expected a report");
}

#[test]
fn csv_reader_names_line_and_column() {
    let text = requests_csv(&[failed(0, 0.0, 1.0, FailureKind::Stream), completed(1, 0.0, 1.0, 2, 1.0)]);
    let message = |text: &str| parse_requests_csv(text, "requests.csv").unwrap_err().to_string();
    // The first record's message has a line break, so the second starts on line 4.
    assert_eq!(
        message(&text.replace(",completed,", ",done,")),
        "requests.csv:4: `outcome` is `done`, expected `completed` or a kind of failure, such as `timeout`"
    );
    assert_eq!(
        message(&text.replacen("sent_ms", "left_ms", 1)),
        "requests.csv:1: column `sent_ms` is missing, expected the header of a requests.csv"
    );
}

#[test]
fn tables_keep_their_form() {
    let mut slower = small_run(3.0);
    slower.push(failed(8, 3.0, 60.0, FailureKind::Timeout));
    let runs = [("round_robin".to_owned(), report_of(&slower)), ("kv".to_owned(), report_of(&small_run(1.0)))];
    insta::assert_snapshot!("summary_table", summary_table(&runs[0].1));
    insta::assert_snapshot!("comparison_table", comparison_table(&runs));
    assert_eq!(comparison_table(&[]), "");
}

fn folder_of(label: &str, records: Vec<RequestRecord>) -> ResultFolder {
    ResultFolder { label: label.to_owned(), report: report_of(&records), records }
}

/// Requests whose latency wanders, and the same ones `faster_ms` faster with a little noise.
fn wandering(faster_ms: f64) -> Vec<RequestRecord> {
    let wave = |row: u32, period: f64| (f64::from(row) / period).sin();
    (0..400)
        .map(|row| {
            let ttft_ms = 300.0 + 200.0 * wave(row, 40.0) - faster_ms * (1.0 + 0.5 * wave(row, 7.0));
            completed(u64::from(row), f64::from(row) * 10.0, ttft_ms, 20, 5.0)
        })
        .collect()
}

#[test]
fn pairing_finds_a_difference_that_is_small_beside_the_spread() {
    let runs =
        [folder_of("base", wandering(0.0)), folder_of("fast", wandering(4.0)), folder_of("same", wandering(0.0))];
    let comparison = compare(&runs, Seed(7));
    let ttft = &comparison.runs[0].differences[0];
    assert_eq!((ttft.metric, ttft.pairs, ttft.block_pairs, ttft.verdict), ("ttft_ms", 400, 20, "faster"));
    let (low, high) = (ttft.ci95_low_ms.unwrap(), ttft.ci95_high_ms.unwrap());
    assert!(low < ttft.mean_difference_ms && ttft.mean_difference_ms < high && high < -3.0, "{ttft:?}");
    assert_eq!(comparison.runs[1].differences[0].verdict, "no clear difference");
    assert_eq!(comparison.warnings, Vec::<String>::new());
    assert_eq!(comparison.to_json(), compare(&runs, Seed(7)).to_json());
    assert_ne!(comparison.runs, compare(&runs, Seed(8)).runs);
}

#[test]
fn unlike_runs_are_warned_about() {
    let mut other = wandering(1.0);
    other.truncate(398);
    other[3].input_tokens = 7;
    let mut run = folder_of("other", other);
    run.report.speedup_ratio = Some(2.0);
    run.report.workload = None;
    let comparison = compare(&[folder_of("base", wandering(0.0)), run], Seed(1));
    assert_eq!((comparison.runs[0].paired_requests, comparison.runs[0].unpaired_requests), (397, 4));
    assert_eq!(
        comparison.warnings,
        [
            "num_requests differs: 400 in base, 398 in other",
            "workload differs: toolagent in base, unknown in other",
            "speedup_ratio differs: 10 in base, 2 in other",
            "4 requests of base and other have no partner that completed with the same lengths: differences cover 397 \
             pairs",
        ]
    );
}

#[test]
fn folder_is_read_or_its_missing_file_named() {
    let folder = tempfile::tempdir().unwrap();
    let records = small_run(1.0);
    report_of(&records).write(&folder.path().join("report.json")).unwrap();
    let message = ResultFolder::read("a", folder.path()).unwrap_err().to_string();
    assert!(message.contains("requests.csv: cannot read: "), "{message}");
    write_requests_csv(&folder.path().join("requests.csv"), &records).unwrap();
    assert_eq!(ResultFolder::read("a", folder.path()).unwrap().records, records);
}

#[test]
fn run_info_survives_writing_and_reading() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    let lateness = LatencySet::from_samples([0.01, 0.02, 0.9]);
    let info = RunInfo { version: "0.1.0".to_owned(), wall_duration_ms: 12.5, ..RunInfo::default() };
    let info = info.with_pacer_lateness(&lateness);
    assert_eq!(info.wall_max_pacer_lateness_ms, Some(0.9));
    info.write(&path).unwrap();
    assert_eq!(RunInfo::read(&path).unwrap(), info);
}

#[test]
fn atomic_write_replaces_and_leaves_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    write_atomic(&path, b"old").unwrap();
    write_atomic(&path, b"new").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    let message = write_atomic(&folder.path().join("none/report.json"), b"x").unwrap_err().to_string();
    assert!(message.contains("none/report.json: cannot write: "), "{message}");
    assert!(write_atomic(Path::new("/"), b"x").is_err());
    // A folder stands where the file should go: the rename fails after the temporary file was written.
    std::fs::create_dir(folder.path().join("taken")).unwrap();
    assert!(write_atomic(&folder.path().join("taken"), b"x").is_err());
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 2);
}
