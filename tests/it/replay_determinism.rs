//! What a replay's files depend on: not on which of them are asked for, and on the seed only where something is drawn.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::lab::Lab;
use crate::support::live;

/// A file with everything in it that a replay decided about requests.
const REQUESTS: (&str, &str) = ("--requests-out", "out.jsonl");
const REPORT: (&str, &str) = ("--report", "report.json");
const TIMELINE: (&str, &str) = ("--timeline", "timeline.json");
const EXPLAIN: (&str, &str) = ("--explain", "explain.jsonl");
const STATE: (&str, &str) = ("--state-out", "state.jsonl");

/// Fleets of every kind; the pool of one is so small that requests are preempted and rejected.
const FLEETS: [&[&str]; 5] = [
    &["--num-workers", "3", "--concurrency", "12", "--router-mode", "kv"],
    &["--num-workers", "3", "--concurrency", "12", "--router-mode", "random"],
    &["--num-workers", "2", "--concurrency", "16", "--num-gpu-blocks", "1200"],
    &["--num-workers", "2", "--concurrency", "16", "--dp-size", "2", "--router-mode", "kv"],
    &[
        "--num-prefill-workers",
        "2",
        "--num-decode-workers",
        "2",
        "--concurrency",
        "16",
        "--router-mode",
        "kv",
        "--kv-transfer-bytes-per-token",
        "100000",
        "--kv-transfer-bandwidth",
        "20",
    ],
];

/// A trace that reuses prefixes, of which there is too much for a small pool.
async fn lab() -> Lab {
    let lab = Lab::new();
    lab.run("trace", &["generate", "trace.jsonl", "--num-requests", "120"]).await.ok();
    lab
}

/// Replays and returns the files asked for, in their order.
async fn files<const N: usize>(lab: &Lab, flags: &[&str], wanted: [(&str, &str); N]) -> [String; N] {
    let mut arguments = vec!["trace.jsonl", "--allow-failures"];
    arguments.extend(flags);
    arguments.extend(wanted.iter().flat_map(|(flag, name)| [*flag, *name]));
    lab.run("replay", &arguments).await.ok();
    wanted.map(|(_, name)| lab.read(name))
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
}

#[test]
fn asking_for_a_file_changes_no_other() {
    live(async {
        let lab = lab().await;
        for flags in FLEETS {
            let [report, requests] = files(&lab, flags, [REPORT, REQUESTS]).await;
            for more in [TIMELINE, EXPLAIN, STATE] {
                let [with_report, with_requests, _] = files(&lab, flags, [REPORT, REQUESTS, more]).await;
                assert_eq!(report, with_report, "{flags:?} {}", more.0);
                assert_eq!(requests, with_requests, "{flags:?} {}", more.0);
            }
        }
    });
}

#[test]
fn another_seed_parts_the_runs_at_a_tie() {
    live(async {
        let lab = lab().await;
        for flags in [FLEETS[0], FLEETS[4]] {
            let run = async |seed| {
                let [explain, requests] = files(&lab, &[flags, &["--seed", seed]].concat(), [EXPLAIN, REQUESTS]).await;
                (lines(&explain), requests)
            };
            let (first, requests) = run("0").await;
            let mut parted = 0;
            for seed in ["1", "2", "3", "4", "5"] {
                let (other, other_requests) = run(seed).await;
                let Some((one, two)) = first.iter().zip(&other).find(|(one, two)| one != two) else {
                    assert_eq!(requests, other_requests, "{flags:?}: the same decisions, other results");
                    continue;
                };
                parted += 1;
                // Up to here the runs are one, and so is what the routers know; of those that cost least each took one.
                assert!(one["ties"].as_u64() > Some(1), "{flags:?}, seed {seed}: {one} against {two}");
                assert_ne!(one["worker"], two["worker"], "{flags:?}, seed {seed}");
                let but_worker = |line: &Value| {
                    let mut line = line.clone();
                    line.as_object_mut().expect("an object").remove("worker");
                    line
                };
                assert_eq!(but_worker(one), but_worker(two), "{flags:?}, seed {seed}");
            }
            assert!(parted > 0, "{flags:?}: cold workers tie, and five seeds draw as the first");
        }
    });
}

#[test]
fn where_nothing_is_drawn_a_seed_is_only_a_key() {
    live(async {
        let lab = lab().await;
        let timing = ["--timing", "fixed", "--prefill-ms", "20", "--decode-ms", "5"];
        let round_robin: &[&str] = &["--num-workers", "3", "--concurrency", "12"];
        let lowest: &[&str] =
            &["--num-workers", "3", "--concurrency", "12", "--router-mode", "kv", "--tie-break", "lowest"];
        let constant: &[&str] = &["--num-workers", "2", "--request-rate", "3", "--arrival-pattern", "constant"];
        for flags in [round_robin, lowest, constant] {
            let flags = [flags, &timing[..]].concat();
            let wanted = [REPORT, REQUESTS, TIMELINE, EXPLAIN, STATE];
            let one = files(&lab, &flags, wanted).await;
            let other = files(&lab, &[&flags[..], &["--seed", "9"]].concat(), wanted).await;
            assert!(other[0].contains("\"seed\": 9,"), "{flags:?}");
            for ((one, other), (flag, _)) in one.iter().zip(&other).zip(wanted) {
                let other =
                    if flag == REPORT.0 { other.replace("\"seed\": 9,", "\"seed\": 0,") } else { other.clone() };
                assert_eq!(*one, other, "{flags:?} {flag}");
            }
        }
    });
}

#[test]
fn sampled_arrivals_and_guesses_leave_the_requests_as_they_are() {
    live(async {
        let lab = lab().await;
        let poisson: &[&str] = &["--num-workers", "2", "--request-rate", "3"];
        let guesses: &[&str] = &["--num-workers", "2", "--concurrency", "12", "--aic-nextn", "2"];
        for flags in [poisson, guesses] {
            let [one] = files(&lab, flags, [REQUESTS]).await;
            let [other] = files(&lab, &[flags, &["--seed", "9"]].concat(), [REQUESTS]).await;
            let (one, other) = (lines(&one), lines(&other));
            assert_eq!(one.len(), other.len());
            for (one, other) in one.iter().zip(&other) {
                for key in ["row", "session_id", "turn", "input_tokens", "output_tokens", "status"] {
                    assert_eq!(one[key], other[key], "{flags:?}: {key}");
                }
            }
            let moved = one.iter().zip(&other).filter(|(one, other)| one["last_token_ms"] != other["last_token_ms"]);
            assert!(moved.count() > one.len() / 2, "{flags:?}: times are drawn");
        }
    });
}

/// Spans by track, `(start, end, name, arguments)`, times in nanoseconds.
type Spans = BTreeMap<(u64, u64), Vec<(u64, u64, String, Value)>>;

#[derive(Default)]
struct Picture {
    spans: Spans,
    /// A worker's gauges from a moment on.
    counters: BTreeMap<String, BTreeMap<u64, Value>>,
    /// Names and places of tracks, marks of failures.
    rest: Vec<Value>,
}

impl Picture {
    fn read(text: &str) -> Picture {
        let file: Value = serde_json::from_str(text).expect("JSON");
        let mut picture = Picture::default();
        for event in file["traceEvents"].as_array().expect("events") {
            let number = |key: &str| event[key].as_u64().unwrap_or_else(|| panic!("{key} of {event}"));
            let nanos = |key: &str| {
                let micros = event[key].as_f64().unwrap_or_else(|| panic!("{key} of {event}"));
                (micros * 1000.0).round() as u64
            };
            let name = event["name"].as_str().expect("a name").to_owned();
            let arguments = event["args"].clone();
            match event["ph"].as_str() {
                Some("X") => {
                    let span = (nanos("ts"), nanos("ts") + nanos("dur"), name, arguments);
                    picture.spans.entry((number("pid"), number("tid"))).or_default().push(span);
                }
                Some("C") => {
                    picture.counters.entry(name).or_default().insert(nanos("ts"), arguments);
                }
                _ => picture.rest.push(event.clone()),
            }
        }
        picture
    }

    /// A worker's gauges at a moment.
    fn gauges(&self, worker: &str, at: u64) -> Option<&Value> {
        self.counters[worker].range(..=at).next_back().map(|(_, gauges)| gauges)
    }
}

#[test]
fn a_row_of_steps_in_a_timeline_is_those_steps() {
    live(async {
        let lab = lab().await;
        for flags in [FLEETS[0], FLEETS[2], FLEETS[4]] {
            let [rows] = files(&lab, flags, [TIMELINE]).await;
            // The gauges of every step are wanted, so none are taken together.
            let [steps, _] = files(&lab, flags, [TIMELINE, STATE]).await;
            let (rows, steps) = (Picture::read(&rows), Picture::read(&steps));
            assert_eq!(rows.rest, steps.rest, "{flags:?}: names and marks");
            // Within a row they may be late.
            for (worker, counters) in &rows.counters {
                for (at, gauges) in counters {
                    assert_eq!(Some(gauges), steps.gauges(worker, *at), "{flags:?}, {worker} at {at} ns");
                }
            }
            let (rows, steps) = (rows.spans, steps.spans);
            assert!(rows.keys().eq(steps.keys()), "{flags:?}: tracks");
            let mut rows_of_many = 0;
            for (track, rows) in rows {
                let mut single = steps[&track].iter();
                for (start, end, name, arguments) in rows {
                    let many = arguments["steps"].as_u64().unwrap_or(1);
                    rows_of_many += u64::from(many > 1);
                    let mut reached = start;
                    for step in 1..=many {
                        let (from, to, single_name, told) = single.next().expect("as many steps");
                        assert_eq!((*from, single_name), (reached, &name), "{flags:?}, {track:?}");
                        // A row's gauges are those of its last step: somebody may come within it.
                        let gauges: &[&str] = &["active_blocks", "running", "waiting"];
                        let gauges = if step == many { gauges } else { &[] };
                        for key in ["decode_sequences", "prefill_tokens", "row"].iter().chain(gauges) {
                            assert_eq!(told[key], arguments[key], "{flags:?}, {track:?} at {from} ns: {key}");
                        }
                        reached = *to;
                    }
                    assert_eq!(reached, end, "{flags:?}, {track:?}");
                }
                assert_eq!(single.next(), None, "{flags:?}, {track:?}: more steps");
            }
            assert!(rows_of_many > 0, "{flags:?}: no steps were taken together");
        }
    });
}
