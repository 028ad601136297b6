//! Unit tests of the queue: who waits, who leaves first, and that nobody is forgotten in it.

use super::*;
use crate::engine::{KvEventData, StoredBlock};
use crate::router::{Router, RouterConfig, RouterInput, RouterMode, RouterOutput, TieBreak};
use crate::time::SimSpan;

/// A router before workers of 40 tokens a step, and what it said last.
struct Bench {
    router: Router,
    out: Vec<RouterOutput>,
}

impl Bench {
    fn new(threshold: f64, policy: QueuePolicy, workers: u32) -> Bench {
        let config = RouterConfig {
            router_mode: RouterMode::Kv,
            router_queue_threshold: Some(threshold),
            router_queue_policy: policy,
            tie_break: TieBreak::Lowest,
            ..RouterConfig::default()
        };
        let router = Router::new(config, 4).expect("a valid configuration");
        let mut bench = Bench { router, out: Vec::new() };
        for worker in 0..workers {
            bench.tell(0, RouterInput::WorkerUp { worker: WorkerId(worker), max_num_batched_tokens: Some(40) });
        }
        bench
    }

    /// Names of the requests that go with this input, each with its worker.
    fn tell(&mut self, now_ms: u64, input: RouterInput) -> Vec<(u64, u32)> {
        self.out.clear();
        self.router.handle(SimTime(now_ms * 1_000_000), input, &mut self.out);
        let routed = |output: &RouterOutput| match output {
            RouterOutput::Routed(id, decision) => Some((id.0, decision.worker.0)),
            RouterOutput::NoWorker(_) => None,
        };
        self.out.iter().filter_map(routed).collect()
    }

    fn request(&mut self, now_ms: u64, request: RouteRequest) -> Vec<(u64, u32)> {
        self.tell(now_ms, RouterInput::Request(request))
    }

    fn first_token(&mut self, now_ms: u64, id: u64) -> Vec<(u64, u32)> {
        self.tell(now_ms, RouterInput::PrefillCompleted(RequestId(id)))
    }

    fn waiting(&self) -> Vec<u64> {
        assert_eq!(self.router.queue_len(), self.router.queued().count());
        self.router.queued().map(|id| id.0).collect()
    }
}

/// A prompt of so many tokens that shares nothing with other requests.
fn request(id: u64, input_tokens: u32) -> RouteRequest {
    let tokens: Vec<u32> = (0..input_tokens).map(|token| id as u32 * 1000 + token).collect();
    RouteRequest { id: RequestId(id), input_tokens, chain: Router::chain(&tokens, 4), ..RouteRequest::default() }
}

fn urgent(id: u64, input_tokens: u32, priority_jump: f64, strict_priority: u32) -> RouteRequest {
    RouteRequest { priority_jump, strict_priority, ..request(id, input_tokens) }
}

/// The order in which requests leave a router whose only worker does one at a time.
fn order(bench: &mut Bench, first: u64) -> Vec<u64> {
    let mut left = vec![first];
    while let Some(id) = left.last().copied().filter(|_| !bench.waiting().is_empty()) {
        let released = bench.first_token(1000, id);
        assert_eq!(released.len(), 1, "{:?} are left", bench.waiting());
        left.extend(released.iter().map(|(id, _)| id));
    }
    left.split_off(1)
}

#[test]
fn without_a_threshold_nobody_waits() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 1);
    let config = RouterConfig { router_queue_threshold: None, ..bench.router.config().clone() };
    bench.router = Router::new(config, 4).expect("a valid configuration");
    bench.tell(0, RouterInput::WorkerUp { worker: WorkerId(0), max_num_batched_tokens: Some(1) });
    assert_eq!((0..9).filter(|id| bench.request(0, request(*id, 40)) == [(*id, 0)]).count(), 9);
}

#[test]
fn requests_wait_while_all_workers_are_busy() {
    // Half of 40 tokens may be under way: the second request of 12 makes a worker busy, not the first.
    let mut bench = Bench::new(0.5, QueuePolicy::Fcfs, 2);
    let placed: Vec<_> = (0..6).map(|id| bench.request(id, request(id, 12)).len()).collect();
    assert_eq!((placed, bench.waiting()), (vec![1, 1, 1, 1, 0, 0], vec![4, 5]));
    // What has left room is known by its tokens, not by its number of requests.
    assert_eq!(bench.first_token(10, 0), [(4, 0)]);
    let [RouterOutput::Routed(_, decision)] = &bench.out[..] else { panic!("{:?}", bench.out) };
    assert_eq!((decision.queued, decision.wait), (true, SimSpan::from_ms(6.0)));
    assert_eq!(bench.tell(11, RouterInput::Ended(RequestId(1))), [(5, 1)]);
    assert!(bench.waiting().is_empty());
}

#[test]
fn one_signal_may_release_several() {
    let mut bench = Bench::new(0.5, QueuePolicy::Fcfs, 1);
    bench.request(0, request(0, 40));
    (1..6).for_each(|id| assert!(bench.request(id, request(id, 8)).is_empty()));
    // 8, 16, 24 tokens: at the third the worker is busy again.
    assert_eq!(bench.first_token(10, 0), [(1, 0), (2, 0), (3, 0)]);
    assert_eq!(bench.waiting(), [4, 5]);
}

#[test]
fn a_worker_that_comes_takes_from_the_queue() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 1);
    (0..3).for_each(|id| assert_eq!(bench.request(id, request(id, 8)).len(), usize::from(id == 0)));
    let up = RouterInput::WorkerUp { worker: WorkerId(1), max_num_batched_tokens: None };
    assert_eq!(bench.tell(5, up), [(1, 1)]);
    assert_eq!(bench.waiting(), [2]);
}

#[test]
fn priorities_are_seconds_and_tiers_go_first() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 1);
    bench.request(0, request(0, 8));
    bench.request(100, request(1, 8));
    bench.request(200, urgent(2, 8, 0.05, 0));
    bench.request(300, urgent(3, 8, 0.25, 0));
    bench.request(400, urgent(4, 8, -9.0, 0));
    bench.request(500, urgent(5, 8, 0.0, 1));
    bench.request(600, urgent(6, 8, 0.0, 1));
    assert_eq!(order(&mut bench, 0), [5, 6, 3, 1, 2, 4]);
}

#[test]
fn last_come_first_served() {
    let mut bench = Bench::new(0.0, QueuePolicy::Lcfs, 1);
    bench.request(0, request(0, 8));
    bench.request(100, urgent(1, 8, 0.15, 0));
    bench.request(200, request(2, 8));
    bench.request(300, request(3, 8));
    bench.request(400, urgent(4, 8, 0.0, 1));
    assert_eq!(order(&mut bench, 0), [4, 3, 1, 2]);
}

#[test]
fn short_prompts_first_by_what_no_cache_holds() {
    let mut bench = Bench::new(0.0, QueuePolicy::Wspt, 1);
    let cached = request(3, 40);
    let block = |id: &crate::engine::hash::BlockId| StoredBlock {
        sequence_hash: id.sequence,
        tokens_hash: id.tokens,
        token_ids: std::sync::Arc::default(),
    };
    let blocks = cached.chain[..9].iter().map(block).collect();
    bench.tell(0, RouterInput::Kv(WorkerId(0), KvEventData::Stored { parent: None, blocks }));
    bench.request(0, request(0, 8));
    bench.request(1, request(1, 12));
    // Twice the prompt at three times the weight; then 4 uncached tokens of 40; then equal to the first: as they came.
    bench.request(2, urgent(2, 24, 2.0, 0));
    bench.request(3, cached);
    bench.request(4, request(4, 12));
    assert_eq!(order(&mut bench, 0), [3, 2, 1, 4]);
    assert_eq!(score(QueuePolicy::Wspt, SimTime::ZERO, 0.0, 64), 1.0 / 64.0);
    assert_eq!(score(QueuePolicy::Wspt, SimTime::ZERO, 0.0, 0), 1.0);
}

#[test]
fn nobody_passes_those_that_wait() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 2);
    bench.request(0, request(0, 8));
    // Worker 1 is free, but this one must not go there.
    assert!(bench.request(1, RouteRequest { excluded: vec![WorkerId(1)], ..request(1, 8) }).is_empty());
    // The next one takes nothing from it: it leaves the queue at once, and says so.
    assert_eq!(bench.request(2, request(2, 8)), [(2, 1)]);
    let [RouterOutput::Routed(_, decision)] = &bench.out[..] else { panic!("{:?}", bench.out) };
    assert_eq!((decision.queued, decision.wait), (true, SimSpan::ZERO));
    assert_eq!(bench.waiting(), [1]);
    assert_eq!(bench.first_token(3, 0), [(1, 0)]);
}

#[test]
fn cancelled_requests_leave_no_trace() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 1);
    (0..4).for_each(|id| {
        bench.request(id, request(id, 8));
    });
    assert!(bench.tell(5, RouterInput::Ended(RequestId(1))).is_empty());
    assert_eq!((bench.waiting(), bench.router.load().len()), (vec![2, 3], 1));
    assert_eq!(bench.tell(6, RouterInput::Ended(RequestId(0))), [(2, 0)]);
    bench.tell(7, RouterInput::Ended(RequestId(3)));
    bench.tell(8, RouterInput::Ended(RequestId(2)));
    assert!(bench.router.load().is_empty() && bench.waiting().is_empty());
}

#[test]
fn the_last_worker_takes_the_hope_of_those_that_wait() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 2);
    bench.request(0, request(0, 8));
    bench.request(1, request(1, 8));
    bench.request(2, request(2, 8));
    bench.request(3, RouteRequest { excluded: vec![WorkerId(0)], ..request(3, 8) });
    bench.tell(4, RouterInput::WorkerDown(WorkerId(1)));
    assert_eq!(bench.out, [RouterOutput::NoWorker(RequestId(3))]);
    assert_eq!(bench.waiting(), [2]);
    bench.tell(5, RouterInput::WorkerDown(WorkerId(0)));
    assert_eq!(bench.out, [RouterOutput::NoWorker(RequestId(2))]);
    assert!(bench.request(6, request(6, 8)).is_empty());
    assert_eq!(bench.out, [RouterOutput::NoWorker(RequestId(6))]);
    assert!(bench.waiting().is_empty());
}

#[test]
fn overlaps_are_those_of_the_arrival() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 1);
    bench.request(0, request(0, 8));
    let late = request(1, 8);
    let block = StoredBlock {
        sequence_hash: late.chain[0].sequence,
        tokens_hash: late.chain[0].tokens,
        token_ids: std::sync::Arc::default(),
    };
    bench.request(1, late);
    let blocks = std::iter::once(block).collect();
    bench.tell(2, RouterInput::Kv(WorkerId(0), KvEventData::Stored { parent: None, blocks }));
    bench.first_token(3, 0);
    let [RouterOutput::Routed(_, decision)] = &bench.out[..] else { panic!("{:?}", bench.out) };
    assert_eq!((decision.overlap_blocks, bench.router.load().load(WorkerId(0)).active_prefill_tokens), (Some(0), 8));
}

#[test]
fn a_queue_drains_under_pressure() {
    let mut bench = Bench::new(0.0, QueuePolicy::Fcfs, 2);
    let mut placed: Vec<u64> = (0..10).flat_map(|id| bench.request(0, request(id, 16))).map(|(id, _)| id).collect();
    let mut next = 0;
    while next < placed.len() {
        let id = placed[next];
        placed.extend(bench.first_token(1, id).iter().map(|(id, _)| id));
        placed.extend(bench.tell(2, RouterInput::Ended(RequestId(id))).iter().map(|(id, _)| id));
        next += 1;
    }
    assert_eq!(placed, (0..10).collect::<Vec<_>>());
    assert!(bench.router.load().is_empty() && bench.waiting().is_empty());
}
