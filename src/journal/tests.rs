//! Journals written and replayed: the same is told, anything else is named by its line.

use std::sync::Arc;

use super::error::JournalError;
use super::machine::{DriverSetup, FleetSetup, Machine, RouterSetup};
use super::replay::{Cut, Replayed, replay};
use super::write::JournalWriter;
use crate::engine::hash::block_chain;
use crate::engine::{
    EngineConfig, EngineInput, EngineOutput, EngineRequest, Fleet, FleetInput, FleetOutput, KvEventData, Prompt,
    StoredBlock, TimingModel, WorkerType,
};
use crate::ids::{RequestId, WorkerId};
use crate::rng::Seed;
use crate::router::{RouteRequest, Router, RouterConfig, RouterInput, RouterMode};
use crate::session::driver::{Driver, DriverInput};
use crate::session::plan::{ArrivalMode, PlannedSession, PlannedTurn};
use crate::time::SimTime;

/// A machine whose every call is journaled.
struct Journaled<M: Machine> {
    machine: M,
    writer: JournalWriter<M, Vec<u8>>,
}

impl<M: Machine> Journaled<M> {
    fn new(setup: &M::Setup) -> Self {
        let machine = M::build(setup).expect("a setup in range");
        let mut writer = JournalWriter::new(Vec::new()).expect("a header");
        writer.start(setup).expect("a line");
        Journaled { machine, writer }
    }

    fn handle(&mut self, now: u64, input: M::Input) -> Vec<M::Output> {
        let mut out = Vec::new();
        self.writer.input(SimTime(now), &input).expect("a line");
        self.machine.handle(SimTime(now), input, &mut out);
        self.heard(out)
    }

    fn advance(&mut self, to: SimTime) -> Vec<M::Output> {
        let mut out = Vec::new();
        self.writer.advance(to).expect("a line");
        self.machine.advance(to, &mut out);
        self.heard(out)
    }

    fn heard(&mut self, out: Vec<M::Output>) -> Vec<M::Output> {
        out.iter().for_each(|output| self.writer.output(output).expect("a line"));
        out
    }

    fn text(self) -> String {
        String::from_utf8(self.writer.finish_into().expect("an end")).expect("UTF-8")
    }
}

fn again(text: &str) -> Result<Replayed, JournalError> {
    replay("some.journal", text.as_bytes())
}

fn refused(text: &str) -> String {
    again(text).expect_err(text).to_string()
}

fn engine_request(id: u64, prompt: Prompt) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        prompt,
        max_output_tokens: 5,
        output_seed: Seed(id),
        vocab_tokens: 999,
        priority: 0,
    }
}

/// Two workers, requests of both kinds of prompts, one that can never run, a cancelled one, a flush.
fn fleet_journal() -> String {
    let small = EngineConfig { num_gpu_blocks: 8, block_size: 4, emit_kv_token_ids: true, ..EngineConfig::default() };
    let setup = FleetSetup { engines: vec![small.clone(), EngineConfig { num_gpu_blocks: 16, ..small }] };
    let mut fleet = Journaled::<Fleet>::new(&setup);
    let tokens: Vec<u32> = [1, 1, 1, 1, 5, 6, 7, 8, 3].repeat(2);
    let prompts = [Prompt::Tokens(tokens.clone()), Prompt::hashed(&tokens, 4), Prompt::Tokens(vec![2; 100])];
    let mut now = 0;
    for (id, prompt) in (0..).zip(prompts.into_iter().cycle().take(9)) {
        now += 1_000_000;
        while let Some(due) = fleet.machine.next_deadline().filter(|due| due.0 <= now) {
            fleet.advance(due);
        }
        let worker = WorkerId(id as u32 % 2);
        fleet.handle(now, FleetInput { worker, input: EngineInput::Submit(engine_request(id, prompt)) });
        if id == 4 {
            fleet.handle(now, FleetInput { worker, input: EngineInput::Cancel(RequestId(4)) });
        }
    }
    while let Some(due) = fleet.machine.next_deadline() {
        fleet.advance(due);
        now = now.max(due.0);
    }
    fleet.handle(now, FleetInput { worker: WorkerId(1), input: EngineInput::FlushCache });
    fleet.text()
}

/// A prefill and a decode worker that hand one request over.
fn handoff_journal() -> String {
    let worker = |worker_type| EngineConfig { block_size: 4, worker_type, ..EngineConfig::default() };
    let setup = FleetSetup { engines: vec![worker(WorkerType::Prefill), worker(WorkerType::Decode)] };
    let mut fleet = Journaled::<Fleet>::new(&setup);
    let (prefill, decode) = (WorkerId(0), WorkerId(1));
    let request = engine_request(1, Prompt::Tokens((0..30).collect()));
    fleet.handle(5, FleetInput { worker: prefill, input: EngineInput::Submit(request.clone()) });
    while let Some(due) = fleet.machine.next_deadline() {
        let mut said = fleet.advance(due);
        while let Some(FleetOutput { output, .. }) = said.pop() {
            let tell = match output {
                EngineOutput::SourceHeld { .. } => vec![(decode, EngineInput::Reserve(request.clone()))],
                EngineOutput::DestinationReserved { id, .. } => {
                    vec![(decode, EngineInput::Activate(id)), (prefill, EngineInput::ReleaseSource(id))]
                }
                _ => Vec::new(),
            };
            for (worker, input) in tell {
                said.extend(fleet.handle(due.0, FleetInput { worker, input }));
            }
        }
    }
    fleet.text()
}

/// A router in mode kv with a queue, and a second life after its workers have gone.
fn router_journal() -> String {
    let config = RouterConfig {
        router_mode: RouterMode::Kv,
        router_temperature: 0.7,
        router_queue_threshold: Some(0.1),
        seed: 3,
        ..RouterConfig::default()
    };
    let setup = RouterSetup { config, block_size: 4 };
    let mut router = Journaled::<Router>::new(&setup);
    let chain = block_chain(&[7; 40], 4);
    let stored = chain.iter().map(|id| StoredBlock {
        sequence_hash: id.sequence,
        tokens_hash: id.tokens,
        token_ids: Arc::default(),
    });
    for worker in [WorkerId(0), WorkerId(1)] {
        router.handle(5, RouterInput::WorkerUp { worker, max_num_batched_tokens: Some(100) });
    }
    let event = KvEventData::Stored { parent: None, blocks: stored.take(5).collect() };
    router.handle(6, RouterInput::Kv(WorkerId(1), event));
    for id in 0..20 {
        let request = RouteRequest {
            id: RequestId(id),
            input_tokens: 40,
            chain: chain.clone().into(),
            priority_jump: 0.1 + 0.2,
            ..RouteRequest::default()
        };
        router.handle(10 + id, RouterInput::Request(request));
    }
    for id in 0..10 {
        router.handle(50 + 2 * id, RouterInput::PrefillCompleted(RequestId(id)));
        router.handle(51 + 2 * id, RouterInput::Ended(RequestId(id)));
    }
    router.handle(
        80,
        RouterInput::Kv(WorkerId(1), KvEventData::Removed { blocks: [chain[4].sequence].into_iter().collect() }),
    );
    router.handle(90, RouterInput::WorkerDown(WorkerId(0)));
    router.handle(99, RouterInput::WorkerDown(WorkerId(1)));
    router.machine = Router::build(&setup).expect("a setup in range");
    router.writer.start(&setup).expect("a line");
    router.handle(1, RouterInput::WorkerUp { worker: WorkerId(1), max_num_batched_tokens: None });
    router.handle(2, RouterInput::Request(RouteRequest { input_tokens: 3, ..RouteRequest::default() }));
    router.text()
}

fn driver_setup(arrival: ArrivalMode) -> DriverSetup {
    let session = |row: u64| PlannedSession {
        session_id: Some(format!("session \"{row}\"")),
        start_ms: Some(row as f64 / 3.0),
        turns: (0..3).map(|turn| PlannedTurn { row: row * 3 + turn, delay_ms: 1.0 / 3.0 + turn as f64 }).collect(),
    };
    DriverSetup { arrival, sessions: (0..5).map(session).collect() }
}

fn driver_journal(arrival: ArrivalMode) -> String {
    let mut driver = Journaled::<Driver>::new(&driver_setup(arrival));
    let mut now = 0;
    while let Some(due) = driver.machine.next_deadline() {
        for release in driver.advance(due.max(SimTime(now))) {
            now = now.max(due.0) + 13;
            let session_continues = release.id != RequestId(4);
            driver.handle(now, DriverInput::Ended { id: release.id, session_continues });
        }
        if now > 50_000_000_000 {
            driver.handle(now, DriverInput::Stop);
        }
    }
    driver.text()
}

#[test]
fn every_machine_says_the_same_again() {
    let journals = [
        fleet_journal(),
        handoff_journal(),
        router_journal(),
        driver_journal(ArrivalMode::Concurrency { concurrency: 2 }),
        driver_journal(ArrivalMode::Timestamps { arrival_speedup_ratio: 0.3 }),
        driver_journal(ArrivalMode::Gamma { request_rate: 0.07, smoothness: 0.3, seed: 9 }),
    ];
    for (text, machine) in journals.iter().zip(["fleet", "fleet", "router", "driver", "driver", "driver"]) {
        let replayed = again(text).unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!((replayed.machine, replayed.cut), (machine, None));
        assert!(replayed.counts.outputs > 9, "{replayed:?}");
        assert_eq!(replayed.counts.starts, if machine == "router" { 2 } else { 1 });
        let lines_of = |start: &str| text.lines().filter(|line| line.starts_with(start)).count() as u64;
        assert_eq!(replayed.counts.inputs, lines_of("{\"t\":"));
        assert_eq!(replayed.counts.advances, lines_of("{\"to\":"));
        assert_eq!(replayed.counts.outputs, lines_of("{\"o\":"));
    }
    let [_, handoff, router, ..] = &journals;
    for word in ["reserve", "activate", "release_source", "source_released", "destination_activated", "token"] {
        assert!(handoff.contains(&format!("{{\"{word}\":")), "no {word} in {handoff}");
    }
    assert!(
        router.contains(r#""queued":true"#) && router.contains(r#""priority_jump":0.30000000000000004"#),
        "{router}"
    );
}

/// A journal with one line replaced.
fn with_line(text: &str, number: usize, edit: impl Fn(&str) -> String) -> String {
    let lines = text.lines().zip(1..);
    lines.map(|(line, at)| if at == number { edit(line) } else { format!("{line}\n") }).collect()
}

/// Number and text of the first line that holds a word.
fn find<'a>(text: &'a str, word: &str) -> (usize, &'a str) {
    let mut lines = (1..).zip(text.lines());
    lines.find(|(_, line)| line.contains(word)).unwrap_or_else(|| panic!("no line with {word}:\n{text}"))
}

#[test]
fn a_changed_output_is_named_by_its_line() {
    for (text, word, old, new) in [
        (fleet_journal(), "{\"token\":", "\"token_id\":", "\"token_id\":1"),
        (fleet_journal(), "pool_too_small", "\"needed_blocks\":", "\"needed_blocks\":1"),
        (router_journal(), "\"routed\":", "\"cost\":", "\"cost\":1"),
        (driver_journal(ArrivalMode::Concurrency { concurrency: 1 }), "{\"o\":", "\"intended\":", "\"intended\":1"),
    ] {
        let (number, line) = find(&text, word);
        let error = refused(&with_line(&text, number, |line| line.replacen(old, new, 1) + "\n"));
        assert!(error.starts_with(&format!("some.journal:{number}: at ")), "{error}");
        assert!(error.contains("expected: ") && error.contains("got: ") && error.contains("was changed"), "{error}");
        let call = text.lines().take(number).filter(|line| !line.starts_with("{\"o\":")).count();
        assert!(call > 2 && !line.is_empty());
    }
}

#[test]
fn an_output_too_few_or_too_many_is_named_by_its_line() {
    let text = fleet_journal();
    let (number, line) = find(&text, "{\"token\":");
    let error = refused(&with_line(&text, number, |line| format!("{line}\n{line}\n")));
    assert!(error.starts_with(&format!("some.journal:{}: at ", number + 1)), "{error}");
    let last_output = line;
    let error = refused(&text.replacen(&format!("{last_output}\n"), "", 1));
    assert!(error.starts_with(&format!("some.journal:{number}: at ")), "{error}");
    // The last output of a call is missed at the next call.
    let lines: Vec<&str> = text.lines().collect();
    let last = (2..lines.len()).find(|at| lines[*at].starts_with("{\"o\":") && !lines[at + 1].starts_with("{\"o\":"));
    let last = last.expect("the end of a call");
    let error = refused(&with_line(&text, last + 1, |_| String::new()));
    assert!(error.starts_with(&format!("some.journal:{}: at ", last + 1)), "{error}");
    assert!(error.contains("expected: nothing more"), "{error}");
}

#[test]
fn a_changed_input_is_found_by_what_follows_or_by_the_sum() {
    let text = fleet_journal();
    let (number, _) = find(&text, "\"id\":0,\"prompt\"");
    let error = refused(&with_line(&text, number, |line| {
        line.replace("\"max_output_tokens\":5", "\"max_output_tokens\":4") + "\n"
    }));
    assert!(error.contains("says something else") && error.contains("was changed"), "{error}");
    // Nothing follows from a priority here.
    let error = refused(&with_line(&text, number, |line| line.replace("\"priority\":0", "\"priority\":7") + "\n"));
    let lines = text.lines().count();
    let expected = format!("some.journal: something in lines 1 to {} was changed", lines - 2);
    assert!(error.starts_with(&expected), "{error}");
}

#[test]
fn a_long_journal_has_sums_on_its_way() {
    let mut driver = Journaled::<Driver>::new(&driver_setup(ArrivalMode::Concurrency { concurrency: 1 }));
    for at in 0..3000 {
        driver.handle(at, DriverInput::Ended { id: RequestId(77), session_continues: true });
    }
    let text = driver.text();
    let sums: Vec<usize> = (1..).zip(text.lines()).filter(|(_, line)| line.contains("sum")).map(|(at, _)| at).collect();
    assert_eq!(sums, [1025, 2049, 3005]);
    assert!(again(&text).is_ok());
    let error = refused(&with_line(&text, 1500, |line| line.replace("77", "78") + "\n"));
    assert!(error.starts_with("some.journal: something in lines 1026 to 2048 was changed"), "{error}");
}

#[test]
fn a_cut_journal_works_up_to_the_cut() {
    for text in [fleet_journal(), router_journal(), driver_journal(ArrivalMode::Concurrency { concurrency: 3 })] {
        let whole = again(&text).expect("the same outputs").counts;
        let header = text.find('\n').expect("a header") + 1;
        for end in (header..text.len()).step_by(7) {
            let cut = again(&text[..end]).unwrap_or_else(|error| panic!("cut at {end}: {error}"));
            let last_line = text[..end].matches('\n').count() as u64;
            assert_eq!(cut.cut, Some(Cut { last_line, torn: !text[..end].ends_with('\n') }));
            assert!(cut.counts.outputs <= whole.outputs && cut.counts.inputs <= whole.inputs);
        }
    }
}

#[test]
fn what_is_no_journal_is_refused_by_line() {
    let text = fleet_journal();
    let own = env!("CARGO_PKG_VERSION");
    for (broken, expected) in [
        (String::new(), "some.journal:1: no whole line"),
        ("{\"timestamp\": 7}\n".to_owned(), "some.journal:1: another kind of file"),
        (text.replacen(&format!("\"{own}\""), "\"0.0.9\"", 1), "some.journal:1: written by mockfleet 0.0.9, this is"),
        (text.replacen("\"journal\":1", "\"journal\":2", 1), "some.journal:1: `journal` is 2, expected format 1"),
        (text.replacen("\"fleet\"", "\"fleece\"", 1), "some.journal:1: `machine` is fleece, expected one of fleet"),
        (with_line(&text, 2, |_| String::new()), "some.journal:2: a call, expected a line `start`"),
        (
            with_line(&text, 2, |line| line.replacen("\"block_size\":4", "\"block_size\":1", 1) + "\n"),
            "some.journal:2: `block_size` is 1",
        ),
        (
            with_line(&text, 2, |line| line.replacen("\"count\":1", "\"count\":9999", 1) + "\n"),
            "some.journal:2: not as it was written: `count` is 9999",
        ),
        (with_line(&text, 3, |_| "seven\n".to_owned()), "some.journal:3: no line of a journal"),
        (
            with_line(&text, 3, |line| line.replacen("submit", "omit", 1) + "\n"),
            "some.journal:3: not as it was written: unknown variant `omit`",
        ),
        (
            with_line(&text, 3, |line| line.replacen("1x4", "1x", 1) + "\n"),
            "some.journal:3: not as it was written: tokens `1x`",
        ),
        (text.replacen("{\"t\":9000000", "{\"t\":1", 1), "the time is 1 ns, expected at least"),
        (text.clone() + "more\n", "something behind the line `end`"),
        (text.replacen("\"end\":{\"starts\":1", "\"end\":{\"starts\":2", 1), "expected those of the lines before"),
    ] {
        let error = refused(&broken);
        assert!(error.contains(expected), "{error}\nis not: {expected}");
    }
}

#[test]
fn a_fleet_with_tables_is_built_the_same() {
    let text = include_str!("../../profiles/minimax-m2.5_b200-sxm_tp4_vllm-0.19.0.json");
    let tables = TimingModel::from_profile_json("mine", text).expect("a profile");
    assert!(matches!(tables, TimingModel::Profile(_)));
    let timed = EngineConfig { timing_model: tables, ..EngineConfig::default() };
    let fixed = TimingModel::Fixed { prefill_ms: 1.0 / 3.0, decode_ms: 0.1 };
    let plain = EngineConfig { timing_model: fixed, ..EngineConfig::default() };
    let setup = FleetSetup { engines: vec![timed.clone(), timed.clone(), plain, timed] };
    let written = serde_json::to_string(&setup).expect("text");
    assert_eq!(written.matches("\"count\":2").count(), 1, "workers that are alike are written once");
    assert_eq!(serde_json::from_str::<FleetSetup>(&written).expect("a setup"), setup);
}

mod edited {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Calls are edited (a setup decides how much memory is taken), digits become other digits.
        #[test]
        fn an_edited_journal_is_no_panic(machine in 0usize..4, edits in prop::collection::vec((any::<prop::sample::Index>(), b'0'..=b'9'), 1..4)) {
            let text = match machine {
                0 => fleet_journal(),
                1 => handoff_journal(),
                2 => router_journal(),
                _ => driver_journal(ArrivalMode::Concurrency { concurrency: 2 }),
            };
            let mut bytes = text.into_bytes();
            let mut digits = Vec::new();
            let mut start = 0;
            for line in bytes.split_inclusive(|byte| *byte == b'\n') {
                if line.starts_with(b"{\"t\":") {
                    digits.extend((start..start + line.len()).filter(|at| bytes[*at].is_ascii_digit()));
                }
                start += line.len();
            }
            for (index, digit) in edits {
                let at = digits[index.index(digits.len())];
                bytes[at] = digit;
            }
            // Whatever it says, it says it.
            if let Err(error) = replay("some.journal", bytes.as_slice()) {
                prop_assert!(error.to_string().starts_with("some.journal:"));
            }
        }
    }
}
