//! Unit tests of the timeline: read back as the Perfetto UI reads it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use super::*;
use crate::engine::{EngineConfig, EngineInput, EngineOutput, EngineRequest, Fleet, FleetInput, TimingModel};
use crate::ids::{RequestId, WorkerId};
use crate::rng::Seed;
use crate::session::ledger::FailureKind;
use crate::sim::life::{Pool, reference};

fn at(ms: u64) -> SimTime {
    SimTime(ms * 1_000_000)
}

fn step(worker: u32, started: u64, ends: u64) -> StepSpan {
    StepSpan { worker, started: SimTime(started), ends: SimTime(ends), steps: 1, ..StepSpan::default() }
}

/// A file as the UI sees it: spans and counters in nanoseconds, by the names of their tracks.
#[derive(Default)]
struct Picture {
    /// Names of processes in their order on the screen, and of tracks in each.
    processes: Vec<(String, Vec<String>)>,
    /// Start, end, name and arguments of each span; points are spans without length.
    spans: BTreeMap<String, Vec<(u64, u64, String, Value)>>,
    counters: BTreeMap<String, Vec<(u64, u64)>>,
    other: Value,
}

fn nanos(micros: &Value) -> u64 {
    // The UI's importer multiplies by 1000 and rounds to the nearest.
    (micros.as_f64().expect("a number") * 1000.0).round() as u64
}

impl Picture {
    fn read(text: &str) -> Picture {
        let file: Value = serde_json::from_str(text).expect("JSON");
        let mut picture = Picture { other: file["otherData"].clone(), ..Picture::default() };
        let events = file["traceEvents"].as_array().expect("a list of events");
        let mut names: BTreeMap<(u64, u64), (u64, String)> = BTreeMap::new();
        for event in events.iter().filter(|event| event["ph"] == "M") {
            let pid = event["pid"].as_u64().expect("a process");
            let tid = event["tid"].as_u64().unwrap_or(pid);
            let entry = names.entry((pid, tid)).or_default();
            match event["name"].as_str() {
                Some("process_name" | "thread_name") => {
                    entry.1 = event["args"]["name"].as_str().expect("text").to_owned()
                }
                Some("process_sort_index" | "thread_sort_index") => {
                    entry.0 = event["args"]["sort_index"].as_u64().expect("a place");
                }
                other => panic!("{other:?}"),
            }
        }
        let distinct: BTreeSet<u64> = names.keys().map(|(_, tid)| *tid).collect();
        assert_eq!(distinct.len(), names.len(), "a track's number is used twice");
        let mut sorted: Vec<_> =
            names.iter().filter(|((pid, tid), _)| pid == tid).map(|((pid, _), name)| (name, pid)).collect();
        sorted.sort();
        for ((_, process), pid) in sorted {
            let mut tracks: Vec<_> =
                names.iter().filter(|((of, tid), _)| of == pid && tid != pid).map(|(_, name)| name).collect();
            tracks.sort();
            picture.processes.push((process.clone(), tracks.into_iter().map(|(_, name)| name.clone()).collect()));
        }
        for event in events {
            let pid = event["pid"].as_u64().expect("a process");
            let name = event["name"].as_str().expect("a name").to_owned();
            let track = || names[&(pid, event["tid"].as_u64().expect("a track"))].1.clone();
            match event["ph"].as_str() {
                Some("X") => {
                    let start = nanos(&event["ts"]);
                    let span = (start, start + nanos(&event["dur"]), name, event["args"].clone());
                    picture.spans.entry(track()).or_default().push(span);
                }
                Some("i") => {
                    assert_eq!(event["s"], "t");
                    let point = nanos(&event["ts"]);
                    picture.spans.entry(track()).or_default().push((point, point, name, event["args"].clone()));
                }
                Some("C") => {
                    for (key, value) in event["args"].as_object().expect("counters") {
                        let point = (nanos(&event["ts"]), value.as_u64().expect("a count"));
                        picture.counters.entry(format!("{name} {key}")).or_default().push(point);
                    }
                }
                Some("M") => {}
                other => panic!("{other:?}"),
            }
        }
        picture.check();
        picture
    }

    /// Nothing that the UI would leave out: spans of a track follow one another, counters go forward in time.
    fn check(&self) {
        for (track, spans) in &self.spans {
            for pair in spans.windows(2) {
                assert!(pair[0].1 <= pair[1].0, "{track}: {pair:?} overlap");
            }
        }
        for (counter, points) in &self.counters {
            assert!(points.is_sorted_by_key(|(at, _)| *at), "{counter} goes back in time");
        }
    }

    fn names(&self, track: &str) -> Vec<(&str, u64, u64)> {
        self.spans[track].iter().map(|(from, to, name, _)| (name.as_str(), *from, *to)).collect()
    }
}

/// What a small fleet does with some requests, round robin, and what that looks like.
fn fleet_run() -> (Vec<StepSpan>, Vec<RequestLife>) {
    let engine = EngineConfig {
        num_gpu_blocks: 12,
        block_size: 4,
        timing_model: TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 1.0 / 3.0 },
        ..EngineConfig::default()
    };
    let mut fleet = Fleet::new(&[engine.clone(), engine]).expect("a valid configuration");
    let (mut steps, mut out) = (Vec::new(), Vec::new());
    let mut lives: Vec<RequestLife> = (0..30).map(|row| RequestLife::new(row, 0, 0, at(row * 4), 12, 9)).collect();
    let mut arrivals = lives.clone().into_iter().peekable();
    loop {
        let due = [arrivals.peek().map(|life| life.arrival), fleet.next_deadline()].into_iter().flatten().min();
        let Some(now) = due else { return (steps, lives) };
        fleet.complete_steps(now, &mut out);
        while let Some(life) = arrivals.next_if(|life| life.arrival <= now) {
            let request = EngineRequest {
                id: RequestId(life.row),
                prompt: (0..12).map(|token| token + 100 * life.row as u32).collect::<Vec<u32>>().into(),
                priority: 0,
                max_output_tokens: 9,
                output_seed: Seed(3).nth(life.row),
                vocab_tokens: 1000,
            };
            let worker = WorkerId(life.row as u32 % 2);
            fleet.handle(now, FleetInput { worker, input: EngineInput::Submit(request) }, &mut out);
        }
        fleet.start_steps(now, &mut out);
        for output in out.drain(..) {
            match output.output {
                EngineOutput::Admitted { id, reused_tokens, .. } => {
                    lives[id.0 as usize].admitted(output.at, reused_tokens, Pool::Agg);
                }
                EngineOutput::Token { id, finished, .. } => {
                    lives[id.0 as usize].token(output.at);
                    if finished {
                        lives[id.0 as usize].ended(output.at, Outcome::Completed);
                    }
                }
                EngineOutput::StepEnded { stats, prefill_tokens, decode_sequences, started } => steps.push(StepSpan {
                    worker: output.worker.0,
                    started,
                    ends: output.at,
                    decode_sequences,
                    prefill_tokens,
                    running: stats.running,
                    waiting: stats.waiting,
                    active_blocks: stats.active_blocks,
                    steps: 1,
                }),
                _ => {}
            }
        }
    }
}

fn written(steps: &[StepSpan], lives: &[RequestLife], tracks: u64) -> String {
    let mut writer =
        TimelineWriter::new(Vec::new(), &["worker-0", "worker-1"]).expect("memory").with_request_tracks(tracks);
    steps.iter().for_each(|step| writer.step(step).expect("memory"));
    lives.iter().for_each(|life| writer.request(life, &format!("row {}", life.row)).expect("memory"));
    String::from_utf8(writer.finish().expect("memory")).expect("UTF-8")
}

#[test]
fn a_fleets_run_reads_back_exactly() {
    let (steps, lives) = fleet_run();
    let text = written(&steps, &lives, 100);
    assert_eq!(text, written(&steps, &lives, 100), "the same calls give the same bytes");
    let picture = Picture::read(&text);
    let rows: Vec<String> = lives.iter().map(|life| format!("row {}", life.row)).collect();
    let workers = vec!["worker-0".to_owned(), "worker-1".to_owned()];
    assert_eq!(picture.processes, [("workers".to_owned(), workers.clone()), ("requests".to_owned(), rows)]);
    for (worker, name) in (0..).zip(&workers) {
        let ours: Vec<&StepSpan> = steps.iter().filter(|step| step.worker == worker).collect();
        let drawn = &picture.spans[name];
        assert!(ours.len() > 20 && drawn.len() == ours.len());
        for (step, (from, to, _, args)) in ours.iter().zip(drawn) {
            // Thirds of milliseconds: every nanosecond is there.
            assert_eq!((step.started.0, step.ends.0), (*from, *to));
            assert_eq!(args["decode_sequences"].as_u64(), Some(u64::from(step.decode_sequences)));
            assert_eq!(args["prefill_tokens"].as_u64(), Some(u64::from(step.prefill_tokens)));
            assert_eq!(args["active_blocks"].as_u64(), Some(u64::from(step.active_blocks)));
        }
        // Counters start at 0 and are written at the end of each step that changes one of them.
        let counters = |step: &StepSpan| [step.active_blocks, step.running, step.waiting];
        let mut changes = vec![(0, [0; 3])];
        for step in &ours {
            if changes.last().is_some_and(|(_, last)| *last != counters(step)) {
                changes.push((step.ends.0, counters(step)));
            }
        }
        assert!(changes.len() > 10 && changes.len() < ours.len());
        for (index, key) in ["active_blocks", "running", "waiting"].into_iter().enumerate() {
            let expected: Vec<(u64, u64)> =
                changes.iter().map(|(at, values)| (*at, u64::from(values[index]))).collect();
            assert_eq!(picture.counters[&format!("{name} {key}")], expected);
        }
    }
    for life in &lives {
        let spans = &picture.spans[&format!("row {}", life.row)];
        assert_eq!((spans[0].0, spans.last().expect("a span").1), (life.arrival.0, life.end.0));
        assert_eq!(spans[0].3["row"].as_u64(), Some(life.row));
    }
}

#[test]
fn requests_beyond_the_limit_are_counted_and_told() {
    let (steps, lives) = fleet_run();
    let picture = Picture::read(&written(&steps, &lives, 4));
    let (name, tracks) = &picture.processes[1];
    assert_eq!((name.as_str(), tracks.len()), ("requests (first 4 of 30)", 4));
    let spans: usize = picture.spans.values().map(Vec::len).sum();
    let told = serde_json::json!({
        "workers": 2, "spans": spans, "requests": 30, "request_tracks": 4, "requests_left_out": 26,
    });
    assert_eq!(picture.other, told);
}

#[test]
fn a_run_without_requests_has_workers_only() {
    let picture = Picture::read(&written(&[], &[], 4));
    assert_eq!(picture.processes.len(), 1);
    assert_eq!(picture.counters["worker-1 waiting"], [(0, 0)]);
}

#[test]
fn the_file_in_full() {
    let mut writer = TimelineWriter::new(Vec::new(), &["prefill-0"]).expect("memory");
    let merged = StepSpan { decode_sequences: 2, running: 1, steps: 3, ..step(0, 1_000, 3_000_001) };
    writer.step(&merged).expect("memory");
    let mut life = RequestLife::new(7, 0, 0, SimTime(500), 9000, 4);
    life.ended(SimTime(1_500), Outcome::Failed { kind: FailureKind::Rejected, message: "a \"pool\"\nof 8".into() });
    writer.request(&life, "row 7 of \"s\"").expect("memory");
    let text = String::from_utf8(writer.finish().expect("memory")).expect("UTF-8");
    insta::assert_snapshot!("the_file_in_full", text);
    Picture::read(&text);
}

#[test]
fn spans_are_named_by_their_work() {
    let names = [(5, 0), (5, 2), (0, 2), (0, 0)].map(|(prefill_tokens, decode_sequences)| {
        StepSpan { prefill_tokens, decode_sequences, ..step(0, 0, 1) }.name()
    });
    assert_eq!(names, ["prefill", "prefill + decode", "decode", "step"]);
}

#[test]
fn a_preempted_and_a_handed_over_request_have_their_phases() {
    let (_, preemption) = reference::CASES[0];
    let mut preempted = reference::life(&reference::rows(preemption)[1]);
    preempted.preempted(at(18));
    let (_, disaggregated) = reference::CASES[1];
    let handed = reference::life(&reference::rows(disaggregated)[3]);
    let picture = Picture::read(&written(&[], &[preempted, handed], 4));
    let ms = |ms: u64| ms * 1_000_000;
    let expected =
        [("prefill", 0, ms(10)), ("decode", ms(10), ms(18)), ("preempted", ms(18), ms(29)), ("decode", ms(29), ms(47))];
    assert_eq!(picture.names("row 1"), expected);
    assert_eq!(picture.spans["row 1"][3].3["reused_tokens"], 16);
    let expected = [("queued", ms(61), ms(70)), ("prefill", ms(70), ms(80)), ("decode", ms(80), ms(83))];
    assert_eq!(picture.names("row 3"), expected);
}

#[test]
fn steps_that_cannot_be_drawn_are_faults() {
    let mut writer = TimelineWriter::new(Vec::new(), &["worker-0", "worker-1"]).expect("memory");
    writer.step(&step(0, 0, 2_000_000)).expect("memory");
    writer.step(&step(1, 1_000_000, 3_000_000)).expect("another worker");
    let fault = |writer: &mut TimelineWriter<Vec<u8>>, step: StepSpan| {
        let fault = writer.step(&step).expect_err("a fault");
        assert_eq!(fault.kind(), io::ErrorKind::InvalidInput);
        fault.to_string()
    };
    assert_eq!(
        fault(&mut writer, step(0, 1_000_000, 3_000_000)),
        "worker-0: a step from 1.000 ms to 3.000 ms, expected it to start at 2.000 ms or later and to end after that"
    );
    assert_eq!(fault(&mut writer, step(2, 0, 1)), "worker 2 has a step, expected one of the 2 workers named");
    fault(&mut writer, step(0, 5_000_000, 4_000_000));
    writer.step(&step(0, 2_000_000, 2_500_000)).expect("spans may touch");
}

#[test]
fn a_full_disk_is_told() {
    let mut room = [0_u8; 100];
    let fault = TimelineWriter::new(&mut room[..], &["worker-0"]).expect_err("no room");
    assert_eq!(fault.kind(), io::ErrorKind::WriteZero);
}
