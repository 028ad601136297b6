//! Two fleets that hand prompts over, driven as their pacers do it, beside the replay of the same workload.

use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::mpsc::unbounded_channel;

use super::*;
use crate::engine::{KvTransferTimingMode, WorkerType};
use crate::rng::Seed;
use crate::router::{RouterConfig, RouterMode};
use crate::session::plan::ArrivalMode;
use crate::session::workload::Workload;
use crate::sim::{FleetConfig, ReplayConfig, replay};
use crate::time::SimSpan;
use crate::trace::{PrefixRatioOptions, PromptHasher};

const WORKER: WorkerId = WorkerId(0);

/// When things happened to a request.
#[derive(Debug, Default, PartialEq, Eq)]
struct Times {
    held: Option<SimTime>,
    activated: Option<SimTime>,
    released: Option<SimTime>,
    first_token: Option<SimTime>,
    last_token: Option<SimTime>,
}

/// A request under way, seen from outside.
struct Journey {
    request: EngineRequest,
    prefill: UnboundedReceiver<Reply>,
    decode: Option<UnboundedReceiver<Reply>>,
    times: Times,
}

/// Says something to a fleet, as the pacer does: what was due before comes first.
fn tell(actor: &mut FleetActor, now: SimTime, command: FleetCommand) {
    while let Some(deadline) = actor.next_deadline().filter(|deadline| *deadline <= now) {
        actor.advance(deadline);
    }
    actor.handle(now, command);
}

fn engine(worker_type: WorkerType, edit: impl Fn(&mut EngineConfig)) -> EngineConfig {
    let mut config = EngineConfig { block_size: 16, worker_type, ..EngineConfig::default() };
    edit(&mut config);
    config
}

fn workload(requests: u64) -> Workload {
    let options = PrefixRatioOptions {
        isl_tokens: 900,
        osl_tokens: 40,
        requests,
        num_prefix_groups: 6,
        ..PrefixRatioOptions::default()
    };
    Workload::prefix(Seed(3), &options).expect("a workload")
}

/// What the two live fleets do with requests that come at `arrivals`.
fn drive(workload: &Workload, arrivals: &[SimTime], engines: [&EngineConfig; 2]) -> (Vec<Times>, [FleetActor; 2]) {
    let [mut prefill, mut decode] =
        engines.map(|engine| FleetActor::new(std::slice::from_ref(engine), 1.0, None).expect("a fleet"));
    let mut hasher = PromptHasher::default();
    let seed = Seed(0).split("output");
    let mut journeys: Vec<Journey> = Vec::new();
    loop {
        let arrival = arrivals.get(journeys.len()).copied();
        let due = [arrival, prefill.next_deadline(), decode.next_deadline()].into_iter().flatten().min();
        let Some(now) = due else { break };
        for actor in [&mut prefill, &mut decode] {
            if actor.next_deadline().is_some_and(|deadline| deadline <= now) {
                actor.advance(now);
            }
        }
        if arrival == Some(now) {
            let item = &workload.items[journeys.len()];
            let id = RequestId(journeys.len() as u64);
            let request = EngineRequest {
                id,
                prompt: hasher.hash(&item.prompt, engines[0].block_size),
                max_output_tokens: item.output_tokens,
                output_seed: seed.nth(id.0),
                vocab_tokens: u32::MAX,
                priority: 0,
            };
            let (reply, replies) = unbounded_channel();
            tell(&mut prefill, now, FleetCommand::Submit { worker: WORKER, request: request.clone(), reply });
            let times = Times::default();
            journeys.push(Journey { request, prefill: replies, decode: None, times });
        }
        for journey in &mut journeys {
            if let Ok(Reply::Held { at, .. }) = journey.prefill.try_recv() {
                journey.times.held = Some(at);
                let (reply, replies) = unbounded_channel();
                let (request, sender) = (journey.request.clone(), Box::new(engines[0].clone()));
                tell(&mut decode, now, FleetCommand::Receive { worker: WORKER, request, sender, reply });
                journey.decode = Some(replies);
            }
        }
        for journey in &mut journeys {
            while let Some(Ok(reply)) = journey.decode.as_mut().map(UnboundedReceiver::try_recv) {
                match reply {
                    Reply::Received => {
                        journey.times.activated = Some(now);
                        tell(&mut prefill, now, FleetCommand::Release { worker: WORKER, id: journey.request.id });
                    }
                    Reply::Token { at, .. } => {
                        journey.times.first_token.get_or_insert(at);
                        journey.times.last_token = Some(at);
                    }
                    other => panic!("{other:?}"),
                }
            }
            let is_held = prefill.held.contains(&(WORKER, journey.request.id));
            if journey.times.activated.is_some() && journey.times.released.is_none() && !is_held {
                journey.times.released = Some(now);
            }
        }
    }
    (journeys.into_iter().map(|journey| journey.times).collect(), [prefill, decode])
}

/// Compares both; returns how many prompts waited for room at the decode worker.
fn compare(edit: impl Fn(&mut EngineConfig), request_rate: f64) -> usize {
    let engines = [WorkerType::Prefill, WorkerType::Decode].map(|worker_type| engine(worker_type, &edit));
    let workload = workload(80);
    let config = ReplayConfig {
        fleet: FleetConfig::Disaggregated { prefill: vec![engines[0].clone()], decode: vec![engines[1].clone()] },
        router: RouterConfig { router_mode: RouterMode::RoundRobin, ..RouterConfig::default() },
        arrival: ArrivalMode::Poisson { request_rate, seed: 11 },
        kv_event_lag: SimSpan::ZERO,
        max_sim_time: None,
        check: false,
        explain: false,
        tell_steps: false,
        every_step: false,
        seed: 0,
    };
    let replayed = replay(&config, &workload, |_| {}).expect("a replay").lives;
    let arrivals: Vec<SimTime> = replayed.iter().map(|life| life.arrival).collect();
    let (live, actors) = drive(&workload, &arrivals, [&engines[0], &engines[1]]);
    assert_eq!(live.len(), replayed.len());
    let mut waited = 0;
    let takes_no_time = engines[0].kv_transfer_time(1, 1) == SimSpan::ZERO;
    for (row, (mut live, replayed)) in live.into_iter().zip(&replayed).enumerate() {
        let handoff = replayed.handoff().expect("a hand-off");
        let expected = Times {
            held: handoff.source_held.get(),
            activated: handoff.destination_activated.get(),
            released: handoff.source_released.get(),
            first_token: replayed.first_token.get(),
            last_token: replayed.last_token.get(),
        };
        if takes_no_time && expected.released == expected.held {
            // A word from another process cannot be there before the step that starts at this very moment.
            assert!(live.released >= expected.released, "request {row}");
            live.released = expected.released;
        }
        assert_eq!(live, expected, "request {row}");
        assert!(expected.last_token.is_some(), "request {row} has an end");
        waited += usize::from(handoff.destination_reserved != handoff.source_held);
    }
    for actor in &actors {
        assert_eq!(actor.fleet.check(), Ok(()));
        assert_eq!(actor.fleet.stats(WORKER).expect("a worker").active_blocks, 0);
        assert!(actor.held.is_empty() && actor.transfers.is_empty());
        assert_eq!(actor.next_deadline(), None);
    }
    waited
}

#[test]
fn hand_offs_happen_when_the_replay_says_so() {
    let copies = |mode: KvTransferTimingMode| {
        move |config: &mut EngineConfig| {
            config.kv_transfer_bytes_per_token = Some(131_072);
            config.kv_transfer_bandwidth = Some(1.7);
            config.kv_transfer_timing_mode = mode;
        }
    };
    assert!(compare(copies(KvTransferTimingMode::FullPrompt), 3.0) > 10);
    // Room for few sequences, then for few blocks: many prompts wait.
    let few_sequences = |config: &mut EngineConfig| {
        copies(KvTransferTimingMode::FullPrompt)(config);
        config.max_num_seqs = Some(3);
    };
    assert!(compare(few_sequences, 8.0) > 40);
    let few_blocks = |config: &mut EngineConfig| {
        copies(KvTransferTimingMode::FullPrompt)(config);
        config.num_gpu_blocks = 450;
    };
    assert!(compare(few_blocks, 5.0) > 40);
    assert!(compare(copies(KvTransferTimingMode::DestinationMissing), 5.0) > 10);
    assert!(compare(|_| {}, 8.0) > 10);
    assert!(compare(|config| config.max_num_seqs = Some(3), 8.0) > 40);
}
