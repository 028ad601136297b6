//! Random engines under random traffic: small pools, arrivals, cancellations and flushes, with every invariant on.
//!
//! A failure names its seed; `SEED=n cargo test random_fleets` runs that one alone.

use std::collections::BTreeMap;

use rand::RngExt;

use super::*;
use crate::ids::WorkerId;
use crate::rng::Rng;
use crate::router::BlockIndex as Index;

const CASES: u64 = 400;

#[derive(Clone, Debug)]
struct Arrival {
    at: SimTime,
    worker: usize,
    input: EngineInput,
}

#[derive(Debug)]
struct Scenario {
    configs: Vec<EngineConfig>,
    arrivals: Vec<Arrival>,
}

fn engine(rng: &mut Rng) -> EngineConfig {
    let timing_model = match rng.random_range(0..4u32) {
        0 => TimingModel::Polynomial,
        1 => TimingModel::Fixed { prefill_ms: 0.0, decode_ms: 0.0 },
        _ => TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 },
    };
    EngineConfig {
        num_gpu_blocks: rng.random_range(6..=40),
        block_size: rng.random_range(2..=8),
        max_model_len: rng.random_bool(0.2).then(|| rng.random_range(10..60)),
        max_num_seqs: rng.random_bool(0.7).then(|| rng.random_range(1..6)),
        max_num_batched_tokens: rng.random_bool(0.8).then(|| rng.random_range(1..40)),
        enable_prefix_caching: rng.random_bool(0.7),
        enable_chunked_prefill: rng.random_bool(0.7),
        preemption_mode: if rng.random_bool(0.5) { PreemptionMode::Lifo } else { PreemptionMode::Fifo },
        timing_model,
        ..EngineConfig::default()
    }
}

impl Scenario {
    fn new(seed: u64) -> Scenario {
        let mut rng = Seed(seed).split("random fleets").rng();
        let configs: Vec<EngineConfig> = (0..rng.random_range(1..=3)).map(|_| engine(&mut rng)).collect();
        let flushes = rng.random_bool(0.3);
        let mut arrivals = Vec::new();
        let mut at_ms = 0.0;
        for id in 0..rng.random_range(1..30u64) {
            at_ms += f64::from(rng.random_range(0..30u32)) * f64::from(rng.random_range(0..2u32));
            let worker = rng.random_range(0..configs.len());
            // Four families of prompts; within one, prompts share a prefix and part ways after it.
            let shared = rng.random_range(0..40);
            let mut tokens = prompt(1000 * rng.random_range(0..4u32), shared);
            tokens.extend(prompt(100_000 + 100 * rng.random_range(0..8u32), rng.random_range(0..12)));
            let request = request(id, tokens, rng.random_range(0..24));
            arrivals.push(Arrival { at: SimTime::from_ms(at_ms), worker, input: EngineInput::Submit(request) });
            if rng.random_bool(0.15) {
                let at = SimTime::from_ms(at_ms + f64::from(rng.random_range(0..60u32)));
                arrivals.push(Arrival { at, worker, input: EngineInput::Cancel(RequestId(id)) });
            }
            if flushes && rng.random_bool(0.2) {
                let at = SimTime::from_ms(at_ms + f64::from(rng.random_range(0..200u32)));
                arrivals.push(Arrival { at, worker, input: EngineInput::FlushCache });
            }
        }
        arrivals.sort_by_key(|arrival| arrival.at);
        Scenario { configs, arrivals }
    }
}

/// One engine with a listener that checks all it says.
struct Watched {
    engine: Engine,
    said: Vec<Timed<EngineOutput>>,
    heard: usize,
    last: SimTime,
    next_event_id: u64,
    index: Index,
    live: BTreeMap<u64, Watch>,
    readmissions: u64,
}

/// What the listener knows of one request.
struct Watch {
    request: EngineRequest,
    wanted: u32,
    tokens: u32,
    admissions: u64,
    ended: bool,
    cancelled: bool,
    rejected: bool,
}

impl Watched {
    fn new(config: EngineConfig) -> Watched {
        Watched {
            engine: Engine::new(config).expect("a valid configuration"),
            said: Vec::new(),
            heard: 0,
            last: SimTime::ZERO,
            next_event_id: 0,
            index: Index::new(),
            live: BTreeMap::new(),
            readmissions: 0,
        }
    }

    fn handle(&mut self, now: SimTime, input: &EngineInput) {
        if let EngineInput::Submit(request) = input {
            let prompt_tokens = request.prompt.len_tokens();
            let room = self.engine.config().max_model_len.map_or(u32::MAX, |len| len.saturating_sub(prompt_tokens));
            let wanted = request.max_output_tokens.min(room);
            let request = request.clone();
            let watch =
                Watch { request, wanted, tokens: 0, admissions: 0, ended: false, cancelled: false, rejected: false };
            self.live.insert(watch.request.id.0, watch);
        }
        self.engine.handle(now, input.clone(), &mut self.said);
        self.listen();
        if let EngineInput::Cancel(id) = input
            && let Some(watch) = self.live.get_mut(&id.0)
        {
            (watch.ended, watch.cancelled) = (true, true);
        }
    }

    fn listen(&mut self) {
        let new: Vec<Timed<EngineOutput>> = self.said[self.heard..].to_vec();
        self.heard = self.said.len();
        for (at, output) in new {
            assert!(at >= self.last, "time goes back from {} to {at}", self.last);
            self.last = at;
            match output {
                EngineOutput::Admitted { id, readmission, reused_tokens } => {
                    let block_size = self.engine.config().block_size;
                    let watch = self.watch(id);
                    assert_eq!(readmission, watch.admissions > 0, "request {id} at {at}: readmission");
                    assert_eq!(reused_tokens % block_size, 0, "request {id} at {at}: reused tokens");
                    watch.admissions += 1;
                    self.readmissions += u64::from(readmission);
                }
                EngineOutput::Token { id, token_id, position, finished, .. } => {
                    let watch = self.watch(id);
                    assert_eq!(position, watch.tokens, "request {id} at {at}: position");
                    let expected = watch.request.output_seed.token_at(position, watch.request.vocab_tokens);
                    assert_eq!(token_id, expected, "request {id} at {at}: token {position}");
                    watch.tokens += 1;
                    assert_eq!(finished, watch.tokens == watch.wanted, "request {id} at {at}: finished");
                    watch.ended = finished;
                }
                EngineOutput::Finished { id, .. } => {
                    let watch = self.watch(id);
                    assert_eq!(watch.wanted, 0, "request {id} at {at} ended without a token");
                    watch.ended = true;
                }
                EngineOutput::Rejected { id, .. } => {
                    let watch = self.watch(id);
                    assert_eq!(watch.admissions, 0, "request {id} at {at} is rejected after its admission");
                    (watch.ended, watch.rejected) = (true, true);
                }
                EngineOutput::Kv(event) => {
                    assert!(self.engine.config().enable_prefix_caching, "an event without caching at {at}");
                    assert_eq!(event.event_id, self.next_event_id, "event number at {at}");
                    self.next_event_id += 1;
                    self.index.apply(WorkerId(0), &event.data);
                }
                EngineOutput::StepEnded { stats, .. } => {
                    let most = self.engine.config().max_num_seqs.unwrap_or(u32::MAX);
                    assert!(stats.running <= most, "{} sequences running at {at}", stats.running);
                }
                EngineOutput::Preempted { id } => assert!(self.watch(id).admissions > 0, "request {id} is preempted"),
                EngineOutput::SourceHeld { .. }
                | EngineOutput::SourceReleased { .. }
                | EngineOutput::DestinationReserved { .. }
                | EngineOutput::DestinationActivated { .. } => panic!("no worker hands anything over"),
                EngineOutput::Flushed { .. } => {}
            }
        }
    }

    /// The request, which must not have ended.
    fn watch(&mut self, id: RequestId) -> &mut Watch {
        let watch = self.live.get_mut(&id.0).expect("a known request");
        assert!(!watch.ended, "request {id} is spoken of after its end");
        watch
    }

    /// A copy of the engine tells what the step that starts now would compute.
    fn check_budget(&self, now: SimTime) {
        let mut copy = self.engine.clone();
        copy.plan_step(now, false, &mut Vec::new());
        let computed = copy.plan.computed_tokens;
        let budget = self.engine.config().max_num_batched_tokens.unwrap_or(u32::MAX);
        assert!(computed <= budget, "{computed} tokens at {now} in a step of {budget}");
    }

    /// Between two steps, when all is said: listeners know of each prompt what the pool has.
    fn compare_index(&self) {
        let block_size = self.engine.config().block_size as usize;
        let caching = self.engine.config().enable_prefix_caching;
        let mut overlaps = Vec::new();
        for (id, watch) in self.live.iter().filter(|_| caching) {
            let chain = watch.request.prompt.chain(block_size as u32);
            self.index.find_matches(&chain, &mut overlaps);
            let heard = overlaps.first().map_or(0, |(_, depth)| *depth);
            assert_eq!(
                heard,
                self.engine.pool.match_prefix(chain[..].into()).blocks,
                "blocks of prompt {id} at {}",
                self.last
            );
        }
        assert_eq!(self.index.orphan_events(), 0, "events whose parent was not known");
    }

    fn compare_end(&self) {
        for (id, watch) in &self.live {
            assert!(watch.ended, "request {id} has no end: {} of {} tokens", watch.tokens, watch.wanted);
        }
        let stats = self.engine.stats();
        assert_eq!((stats.active_blocks, stats.running, stats.waiting), (0, 0, 0), "{stats:?}");
        assert_eq!(self.engine.pool.inactive() + self.engine.pool.free(), stats.total_blocks, "{stats:?}");
        assert!(stats.preemptions_total >= self.readmissions, "{stats:?}, {} readmissions", self.readmissions);
        let ended = stats.finished_total + stats.rejected_total + stats.cancelled_total;
        assert_eq!(ended, self.live.len() as u64, "{stats:?}");
    }
}

/// Engines one by one; at one moment steps end, inputs arrive, steps start.
fn run_engines(scenario: &Scenario) -> Vec<Watched> {
    let mut engines: Vec<Watched> = scenario.configs.iter().cloned().map(Watched::new).collect();
    let mut arrivals = scenario.arrivals.iter().peekable();
    for _ in 0..100_000 {
        let deadlines = engines.iter().filter_map(|watched| watched.engine.next_deadline());
        let arrival = arrivals.peek().map(|arrival| arrival.at);
        let Some(now) = deadlines.chain(arrival).min() else { return engines };
        for watched in &mut engines {
            let before = watched.said.len();
            watched.engine.complete_step(now, &mut watched.said);
            let ended = watched.said.len() > before;
            watched.listen();
            if ended {
                watched.compare_index();
            }
        }
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at == now) {
            engines[arrival.worker].handle(now, &arrival.input);
        }
        for watched in &mut engines {
            watched.check_budget(now);
            watched.engine.start_step(now, &mut watched.said);
            watched.listen();
            watched.engine.check().unwrap_or_else(|broken| panic!("at {now}: {broken}"));
        }
    }
    panic!("no end after 100000 moments: {scenario:?}")
}

/// The same traffic through the fleet, by the same order of verbs.
fn run_fleet(scenario: &Scenario) -> Vec<FleetOutput> {
    let mut fleet = Fleet::new(&scenario.configs).expect("valid configurations");
    let mut said = Vec::new();
    let mut arrivals = scenario.arrivals.iter().peekable();
    loop {
        let arrival = arrivals.peek().map(|arrival| arrival.at);
        let Some(now) = fleet.next_deadline().into_iter().chain(arrival).min() else { return said };
        fleet.complete_steps(now, &mut said);
        while let Some(arrival) = arrivals.next_if(|arrival| arrival.at == now) {
            let input = FleetInput { worker: WorkerId(arrival.worker as u32), input: arrival.input.clone() };
            fleet.handle(now, input, &mut said);
        }
        fleet.start_steps(now, &mut said);
        fleet.check().unwrap_or_else(|broken| panic!("at {now}: {broken}"));
    }
}

/// The same traffic by [`Fleet::advance`]: an arrival at a step's end just misses the next step, all else holds.
fn run_advance(scenario: &Scenario) -> Vec<FleetOutput> {
    let mut fleet = Fleet::new(&scenario.configs).expect("valid configurations");
    let mut said = Vec::new();
    for arrival in &scenario.arrivals {
        fleet.advance(arrival.at, &mut said);
        let input = FleetInput { worker: WorkerId(arrival.worker as u32), input: arrival.input.clone() };
        fleet.handle(arrival.at, input, &mut said);
    }
    while let Some(deadline) = fleet.next_deadline() {
        fleet.advance(deadline, &mut said);
        fleet.check().unwrap_or_else(|broken| panic!("at {deadline}: {broken}"));
    }
    said
}

fn of_worker(said: &[FleetOutput], worker: usize) -> Vec<Timed<EngineOutput>> {
    let own = said.iter().filter(|output| output.worker == WorkerId(worker as u32));
    own.map(|output| (output.at, output.output.clone())).collect()
}

/// Runs one seed; what the engines counted.
fn check(seed: u64) -> Vec<EngineStats> {
    let scenario = Scenario::new(seed);
    let engines = run_engines(&scenario);
    let fleet = run_fleet(&scenario);
    assert!(fleet.windows(2).all(|pair| pair[0].at <= pair[1].at), "the fleet's time goes back");
    for (worker, watched) in engines.iter().enumerate() {
        watched.compare_end();
        watched.compare_index();
        assert!(of_worker(&fleet, worker) == watched.said, "worker {worker} does other things in a fleet");
    }
    let advanced = run_advance(&scenario);
    for (worker, watched) in engines.iter().enumerate() {
        check_advance(&of_worker(&advanced, worker), watched);
    }
    engines.iter().map(|watched| watched.engine.stats()).collect()
}

/// Steps begin at other moments in `advance`, so only what does not depend on them is compared.
fn check_advance(said: &[Timed<EngineOutput>], watched: &Watched) {
    assert!(said.windows(2).all(|pair| pair[0].0 <= pair[1].0), "time goes back in `advance`");
    let mut next_event_id = 0;
    let mut tokens: BTreeMap<u64, u32> = BTreeMap::new();
    for (at, output) in said {
        match output {
            EngineOutput::Kv(event) => {
                assert_eq!(event.event_id, next_event_id, "event number at {at} in `advance`");
                next_event_id += 1;
            }
            EngineOutput::Token { id, .. } => *tokens.entry(id.0).or_default() += 1,
            _ => {}
        }
    }
    for (id, watch) in watched.live.iter().filter(|(_, watch)| !watch.cancelled) {
        let expected = if watch.rejected { 0 } else { watch.wanted };
        let made = tokens.get(id).copied().unwrap_or(0);
        assert_eq!(made, expected, "request {id}: output tokens in `advance`");
    }
}

#[test]
fn random_fleets_keep_their_promises() {
    let only: Option<u64> = std::env::var("SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..CASES, |seed| seed..seed + 1);
    let mut counted = [0; 5];
    for seed in seeds {
        let all = std::panic::catch_unwind(|| check(seed)).unwrap_or_else(|panic| {
            eprintln!("replay with: SEED={seed} cargo test random_fleets");
            std::panic::resume_unwind(panic)
        });
        for stats in all {
            let of_one = [
                stats.preemptions_total,
                stats.reused_tokens_total,
                stats.rejected_total,
                stats.cancelled_total,
                stats.finished_total,
            ];
            counted.iter_mut().zip(of_one).for_each(|(sum, count)| *sum += count);
        }
    }
    // The traffic reaches what it is for, or the invariants above say little.
    assert!(
        only.is_some() || counted.iter().all(|sum| *sum > 100),
        "preemptions, reused tokens, rejected, cancelled, finished: {counted:?}"
    );
}
