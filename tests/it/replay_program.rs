//! `replay` as its users meet it: the golden cases by their own files, all its result files, and what it says when
//! something is wrong.

use std::path::Path;

use serde_json::Value;

use crate::lab::Lab;
use crate::support::live;

/// Largest difference of a time, milliseconds.
const TOLERANCE_MS: f64 = 0.001;

fn golden(case: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(case);
    folder.to_str().expect("a path in UTF-8").to_owned()
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

/// Fails where a number of the reference is not ours.
fn assert_near(what: &str, ours: &Value, theirs: &Value) {
    match (ours.as_f64(), theirs.as_f64()) {
        (Some(ours), Some(theirs)) => assert!((ours - theirs).abs() <= TOLERANCE_MS, "{what}: {ours} against {theirs}"),
        _ => assert_eq!(ours, theirs, "{what}"),
    }
}

/// The gauges that the reference has published, sampled every millisecond; with hand-offs a sample does not show the
/// requests that arrive in its moment.
fn compare_state(case: &str, told: &[Value], expected: &Value) {
    for sample in expected["state"].as_array().expect("state") {
        // The last sample is rounded to a microsecond.
        let at_ms = sample[0].as_f64().expect("t_ms");
        let at_ms = if at_ms.fract() > 0.0 { at_ms + TOLERANCE_MS } else { at_ms };
        let early = sample[1] != "agg" && at_ms > 0.0;
        let shown = told.iter().rev().find(|line| {
            let then_ms = line["at_ms"].as_f64().expect("at_ms");
            let visible = then_ms < at_ms || then_ms == at_ms && !(early && line["cause"] == "arrival");
            visible && line["pool"] == sample[1] && line["worker"] == sample[2]
        });
        for (column, key) in [(3, "running"), (4, "waiting"), (5, "active_blocks"), (6, "inactive_blocks")] {
            let ours = shown.map_or(0, |line| line[key].as_u64().expect("a count"));
            assert_eq!(
                Some(ours),
                sample[column].as_u64(),
                "{case}: {key} of {} {} at {at_ms} ms",
                sample[1],
                sample[2]
            );
        }
    }
}

#[test]
fn golden_cases_run_by_their_own_files() {
    live(async {
        let lab = Lab::new();
        for case in [
            "chunked-prefill",
            "disaggregated",
            "eviction",
            "kv-router-2-workers",
            "max-num-seqs",
            "polynomial-timing",
            "preemption-lifo",
            "prefix-reuse",
            "round-robin-2-workers",
            "router-queue-priority",
            "sessions-concurrency",
            "unchunked-prefill",
        ] {
            let config = format!("{}/case.json", golden(case));
            // Where costs are equal the reference draws by chance; in these cases it drew the lowest number.
            let flags = [
                "--config",
                &config,
                "--requests-out",
                "out.jsonl",
                "--state-out",
                "state.jsonl",
                "--check",
                "--tie-break",
                "lowest",
                "--json",
            ];
            lab.run("replay", &flags).await.ok();
            let ours = lines(&lab.read("out.jsonl"));
            let expected = std::fs::read_to_string(format!("{}/expected.json", golden(case))).expect("a file");
            let expected: Value = serde_json::from_str(&expected).expect("JSON");
            compare_state(case, &lines(&lab.read("state.jsonl")), &expected);
            let rows = expected["requests"].as_array().expect("rows");
            assert_eq!(ours.len(), rows.len(), "{case}");
            for (ours, theirs) in ours.iter().zip(rows) {
                let what = |key: &str| format!("{case}, row {}, {key}", theirs["row"]);
                for (key, own) in [
                    ("row", "row"),
                    ("session_id", "session_id"),
                    ("turn", "turn"),
                    ("arrival_ms", "arrival_ms"),
                    ("input_length", "input_tokens"),
                    ("output_length", "output_tokens"),
                    ("first_token_ms", "first_token_ms"),
                    ("last_token_ms", "last_token_ms"),
                    ("time_to_second_token_ms", "ttst_ms"),
                    ("mean_inter_token_latency_ms", "tpot_ms"),
                    ("worker", "worker"),
                    ("prefill_worker", "prefill_worker"),
                    ("source_held_ms", "source_held_ms"),
                    ("destination_reserved_ms", "destination_reserved_ms"),
                    ("destination_activated_ms", "destination_activated_ms"),
                    ("source_released_ms", "source_released_ms"),
                ] {
                    assert_near(&what(key), &ours[own], &theirs[key]);
                }
                let admissions = theirs["admissions"].as_array().expect("admissions");
                assert_eq!(
                    ours["admissions"].as_array().map(Vec::len),
                    Some(admissions.len()),
                    "{}",
                    what("admissions")
                );
                for (at, theirs) in admissions.iter().enumerate() {
                    let ours = &ours["admissions"][at];
                    assert_near(&what("at_ms"), &ours["at_ms"], &theirs["at_ms"]);
                    assert_near(&what("reused"), &ours["reused_tokens"], &theirs["reused"]);
                }
                for (at, theirs) in theirs["route"].as_array().into_iter().flatten().enumerate() {
                    let ours = &ours["route"][at];
                    for (key, own) in [
                        ("outcome", "outcome"),
                        ("wait", "wait_ms"),
                        ("sel_overlap", "selected_overlap_blocks"),
                        ("best_overlap", "best_overlap_blocks"),
                    ] {
                        assert_near(&what(key), &ours[own], &theirs[key]);
                    }
                }
            }
        }
    });
}

/// Replays a generated trace with all result files; returns them by name.
async fn files(lab: &Lab, flags: &[&str]) -> Vec<(&'static str, String)> {
    let results = [
        ("report.json", "--report"),
        ("requests.csv", "--requests-csv"),
        ("out.jsonl", "--requests-out"),
        ("timeline.json", "--timeline"),
        ("explain.jsonl", "--explain"),
        ("state.jsonl", "--state-out"),
    ];
    let mut arguments = vec!["trace.jsonl"];
    arguments.extend(results.iter().flat_map(|(name, flag)| [*flag, *name]));
    arguments.extend(flags);
    lab.run("replay", &arguments).await.ok();
    results.iter().map(|(name, _)| (*name, lab.read(name))).collect()
}

#[test]
fn the_same_seed_gives_the_same_files_and_another_only_other_draws() {
    live(async {
        let lab = Lab::new();
        lab.run("trace", &["generate", "trace.jsonl", "--num-requests", "150"]).await.ok();
        let fleets: [&[&str]; 3] = [
            &["--num-workers", "3", "--concurrency", "12", "--router-mode", "kv", "--router-temperature", "0.4"],
            &["--num-prefill-workers", "2", "--num-decode-workers", "2", "--request-rate", "3", "--router-mode", "kv"],
            &["--num-workers", "2", "--concurrency", "12", "--aic-nextn", "2", "--num-gpu-blocks", "2200"],
        ];
        for flags in fleets {
            let first = files(&lab, flags).await;
            assert_eq!(first, files(&lab, flags).await, "{flags:?}");
            let other = files(&lab, &[flags, &["--seed", "1"]].concat()).await;
            let differs = first.iter().zip(&other).filter(|(one, other)| one != other).count();
            assert!(differs >= 1, "at least the seed in the report: {flags:?}");
        }
        // Where nothing is drawn, nothing but the seed is another.
        let plain = ["--num-workers", "2", "--concurrency", "12"];
        let first = files(&lab, &plain).await;
        let other = files(&lab, &[&plain[..], &["--seed", "1"]].concat()).await;
        for ((name, one), (_, other)) in first.into_iter().zip(other) {
            assert_eq!(one, other.replace("\"seed\": 1,", "\"seed\": 0,"), "{name}");
        }
        // Telling more changes no result.
        lab.run("replay", &[&["trace.jsonl", "--report", "short.json"][..], fleets[0]].concat()).await.ok();
        files(&lab, fleets[0]).await;
        assert_eq!(lab.read("short.json"), lab.read("report.json"));
    });
}

#[test]
fn a_timeline_is_one_that_perfetto_takes() {
    live(async {
        let lab = Lab::new();
        lab.run("trace", &["generate", "trace.jsonl", "--num-requests", "60"]).await.ok();
        let flags = ["--num-prefill-workers", "2", "--num-decode-workers", "1", "--concurrency", "8"];
        let transfer = ["--kv-transfer-bytes-per-token", "100000", "--kv-transfer-bandwidth", "20"];
        files(&lab, &[&flags[..], &transfer].concat()).await;
        let timeline: Value = serde_json::from_str(&lab.read("timeline.json")).expect("JSON");
        let mut tracks: std::collections::BTreeMap<(u64, u64), Vec<(f64, f64)>> = Default::default();
        let mut named = Vec::new();
        for event in timeline["traceEvents"].as_array().expect("events") {
            let number = |key: &str| event[key].as_f64().unwrap_or_else(|| panic!("{key} of {event}"));
            match event["ph"].as_str().expect("a phase") {
                "X" => {
                    let track = (number("pid") as u64, number("tid") as u64);
                    tracks.entry(track).or_default().push((number("ts"), number("dur")));
                }
                "M" if event["name"] == "thread_name" => named.push(event["args"]["name"].to_string()),
                _ => {}
            }
        }
        assert_eq!(named[..3], ["\"prefill worker 0\"", "\"prefill worker 1\"", "\"decode worker 0\""]);
        assert_eq!((named.len(), tracks.len()), (63, 63), "every worker and request has spans");
        for (track, mut spans) in tracks {
            spans.sort_by(|one, other| one.0.total_cmp(&other.0));
            for pair in spans.windows(2) {
                assert!(pair[1].0 >= pair[0].0 + pair[0].1 - 1e-3, "track {track:?}: {pair:?} overlap");
            }
        }
    });
}

#[test]
fn a_run_that_is_stopped_says_what_is_left() {
    live(async {
        let lab = Lab::new();
        lab.run("trace", &["generate", "trace.jsonl", "--num-requests", "60"]).await.ok();
        let flags = ["trace.jsonl", "--concurrency", "4", "--max-sim-time-ms", "30000", "--requests-out", "out.jsonl"];
        let stopped = lab.run("replay", &flags).await.ok();
        assert!(stopped.stdout.contains("warning: stopped at 30000.000 ms of simulated time"), "{}", stopped.stdout);
        let unfinished = lines(&lab.read("out.jsonl")).iter().filter(|line| line["status"] == "unfinished").count();
        assert_eq!(unfinished, 4, "those that were under way");
        let report = lab.run("replay", &[&flags[..], &["--json"]].concat()).await.ok();
        let told: Value = serde_json::from_str(&report.stdout).expect("JSON alone");
        assert_eq!(
            told["num_requests"].as_u64().zip(told["unfinished_requests"].as_u64()).map(|(a, b)| a + b),
            Some(60)
        );
        assert!(report.stderr.starts_with("warning: stopped at"), "{}", report.stderr);
    });
}

#[test]
fn steps_outside_of_a_profile_are_counted_aloud() {
    live(async {
        let lab = Lab::new();
        // Longer than anything that was measured.
        let hash_ids: Vec<String> = (0..1800).map(|id| id.to_string()).collect();
        let row = r#"{"timestamp": 0, "input_length": 921600, "output_length": 5, "hash_ids": ["#;
        lab.write("trace.jsonl", &format!("{row}{}]}}\n", hash_ids.join(", ")));
        let profile = "minimax-m2.5_b200-sxm_tp4_vllm-0.19.0";
        let told = lab.run("replay", &["trace.jsonl", "--timing", profile]).await.ok();
        let warning = told.stdout.lines().find(|line| line.contains("lie outside the timing profile's tables"));
        assert!(warning.is_some_and(|warning| warning.starts_with("warning: ")), "{}", told.stdout);
    });
}

#[test]
fn wrong_keys_and_flags_are_named_and_nothing_is_written() {
    live(async {
        let lab = Lab::new();
        let row = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 7]}"#;
        lab.write("t.jsonl", &format!("{row}\n"));
        lab.write("router.json", "{\n\"trace\": \"t.jsonl\",\n\"router\": {\"overlap_score_credits\": 1}\n}");
        lab.write(
            "twice.json",
            "{\"trace\": \"t.jsonl\", \"router_temperature\": 1,\n\"router\": {\"router_temperature\": 1}}",
        );
        lab.write("arrival.json", "{\"trace\": \"t.jsonl\",\n\"arrival\": {\"mode\": \"concurrency\"}}");
        lab.write("mode.json", "{\"trace\": \"t.jsonl\",\n\"arrival\": {\"mode\": \"all at once\"}}");
        lab.write("broken.json", "{\"trace\": \"t.jsonl\",\n\"engine\": {");
        lab.write("engine.json", "{\"trace\": \"t.jsonl\",\n\"engine\": {\"num_gpu_blocks\": -1}}");
        lab.write("blocks.json", "{\"trace\": \"t.jsonl\",\n\"engine\": [{\"block_size\": 16}, {\"block_size\": 32}]}");
        lab.write("none.json", "{\"trace\": \"nowhere.jsonl\"}");
        let before = lab.names();
        for (arguments, words) in [
            (&["--config", "router.json"][..], "router.json:3: unknown key `overlap_score_credits`, expected one of "),
            (
                &["--config", "twice.json"],
                "twice.json:2: `router.router_temperature` is the same key as `router_temperature`",
            ),
            (&["--config", "arrival.json"], "arrival.json:2: `arrival` is {\"mode\":\"concurrency\"}: missing field"),
            (&["--config", "mode.json"], "arrival` is {\"mode\":\"all at once\"}: unknown variant"),
            (&["--config", "broken.json"], "broken.json:2:"),
            (&["--config", "engine.json"], "engine.json: `engine`: `num_gpu_blocks` is -1: "),
            (&["--config", "blocks.json"], "`block_size` is 32, expected the same for all workers"),
            (&["--config", "none.json"], "nowhere.jsonl"),
            (&["t.jsonl", "--kv-event-lag-ms", "-1"], "`kv_event_lag_ms` is -1, expected milliseconds from 0"),
            (&["t.jsonl", "--max-sim-time-ms", "nan"], "expected a finite number"),
            (&["t.jsonl", "--num-prefill-workers", "1"], "`num_decode_workers` is missing"),
            (&["t.jsonl", "--num-workers", "2", "--num-decode-workers", "1"], "cannot be used with"),
            (&["t.jsonl", "--dp-size", "0"], "`dp_size` is 0, expected a whole number of at least 1"),
            (
                &["t.jsonl", "--aic-nextn-accept-rates", "0.5,x", "--aic-nextn", "1"],
                "numbers from 0 to 1, separated by commas",
            ),
            (&["t.jsonl", "--kv-transfer-timing-mode", "none"], "possible values: full-prompt, destination-missing"),
            (&["t.jsonl", "--timeline", "nowhere/t.json"], "nowhere: no such folder"),
            (&["t.jsonl", "--explain", "x", "--report", "x"], "`report` and `explain` are both x, expected two files"),
        ] {
            let failed = lab.run("replay", &[arguments, &["--requests-csv", "requests.csv"]].concat()).await;
            assert!(!failed.status.success() && failed.stderr.contains(words), "{arguments:?}: {}", failed.stderr);
            assert_eq!(lab.names(), before, "{arguments:?}");
        }
    });
}
