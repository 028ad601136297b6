//! Unit tests of the router room: the reference's worked examples, and what each key changes.

use super::*;
use crate::engine::hash::{BlockId, Chain, block_chain, sequence_hash, tokens_hash};
use crate::engine::{KvEventData, StoredBlock};
use crate::ids::{RequestId, SequenceHash, TokensHash, WorkerId};
use crate::rng::Seed;
use crate::router::load::LoadBook;
use crate::router::policy::kv;
use crate::time::SimTime;

fn config(credit: f64, scale: f64) -> RouterConfig {
    RouterConfig {
        router_mode: RouterMode::Kv,
        overlap_score_credit: credit,
        prefill_load_scale: scale,
        ..RouterConfig::default()
    }
}

fn cost(config: &RouterConfig, block_size: u32, input_tokens: u32, facts: CostTerms) -> f64 {
    facts.priced(RequestCost { input_tokens, block_size, least_prefill_tokens: 0 }, config).cost
}

#[test]
fn hash_vectors_of_the_reference() {
    let tokens: Vec<u32> = (1..=12).collect();
    let chain = block_chain(&tokens, 4);
    let local: Vec<u64> = chain.iter().map(|id| id.tokens.0).collect();
    assert_eq!(local, [14643705804678351452, 16777012769546811212, 483935686894639516]);
    let sequence: Vec<u64> = chain.iter().map(|id| id.sequence.0).collect();
    assert_eq!(sequence, [14643705804678351452, 4945711292740353085, 12583592247330656132]);
    let long: Vec<u32> = (0..64).collect();
    let sequence: Vec<u64> = block_chain(&long, 16).iter().map(|id| id.sequence.0).collect();
    assert_eq!(sequence, [15310707395893867146, 13769157705258532664, 11879827756109914528, 3888788807566526800]);
}

#[test]
fn worked_example_costs_18_10_11() {
    let base = config(1.0, 1.0);
    let costs: Vec<f64> = [(2, 10), (5, 5), (8, 9)]
        .map(|(overlap_blocks, active_decode_blocks)| {
            cost(&base, 16, 160, CostTerms { overlap_blocks, active_decode_blocks, ..CostTerms::default() })
        })
        .to_vec();
    assert_eq!(costs, [18.0, 10.0, 11.0]);
    assert_eq!(kv::choose(&costs, 0.0, TieBreak::Seeded, &mut Seed(1).rng()), 1);
}

#[test]
fn credit_above_one_eats_backlog_and_scale_follows_the_clamp() {
    // Credit 1.0 prefers the cold worker (9 against 8), 1.5 the warm one (7 against 8).
    let warm = CostTerms { overlap_blocks: 4, active_decode_blocks: 5, ..CostTerms::default() };
    let cold = CostTerms::default();
    assert_eq!(cost(&config(1.0, 1.0), 16, 128, warm), 9.0);
    assert_eq!(cost(&config(1.5, 1.0), 16, 128, warm), 7.0);
    assert_eq!(cost(&config(1.0, 1.0), 16, 128, cold), 8.0);
    let scaled = CostTerms { overlap_blocks: 2, active_decode_blocks: 3, ..CostTerms::default() };
    assert_eq!(cost(&config(1.0, 2.0), 16, 64, scaled), 7.0);
    // More overlap than prompt, which only other indexes could tell of; and more credit than work: 0, not negative.
    let all = CostTerms {
        overlap_blocks: 6,
        active_prefill_tokens: 16,
        active_decode_blocks: 2,
        additional_active_blocks: 3,
        ..CostTerms::default()
    };
    assert_eq!(cost(&config(1.0, 2.0), 16, 64, all), 7.0);
    let untracked = RouterConfig { router_track_prefill_tokens: false, ..config(1.0, 2.0) };
    assert_eq!(cost(&untracked, 16, 64, all), 5.0);
    assert_eq!(cost(&config(2.0, 2.0), 16, 64, all), 5.0);
}

#[test]
fn requests_in_flight_have_a_weight() {
    let busy = CostTerms { active_decode_blocks: 100, active_requests: 4, ..CostTerms::default() };
    let weighted = |decode_active_request_weight| RouterConfig { decode_active_request_weight, ..config(1.0, 1.0) };
    assert_eq!(cost(&weighted(0.0), 16, 0, busy), 100.0);
    assert_eq!(cost(&weighted(32.0), 16, 0, busy), 228.0);
}

#[test]
fn the_credit_fades_with_the_backlog() {
    let warm = CostTerms { overlap_blocks: 4, active_prefill_tokens: 48, ..CostTerms::default() };
    let decaying = |overlap_score_credit_decay| RouterConfig { overlap_score_credit_decay, ..config(1.0, 1.0) };
    assert_eq!(cost(&decaying(0.0), 16, 64, warm), 3.0);
    assert!((cost(&decaying(1.0), 16, 64, warm) - (7.0 - 4.0 / 1.75)).abs() < 1e-12);
    // Only what is beyond the least backlog of all counts.
    let request = RequestCost { input_tokens: 64, block_size: 16, least_prefill_tokens: 48 };
    let even = warm.priced(request, &decaying(1.0));
    assert_eq!((even.credit_blocks, even.cost), (4.0, 3.0));
    // A prompt without blocks: no division by zero.
    let request = RequestCost { input_tokens: 0, block_size: 16, least_prefill_tokens: 1600 };
    for (decay, key) in [(0.0, "off"), (1.0, "on")] {
        let costs = [(1600, 50), (1600, 50), (1616, 0)].map(|(active_prefill_tokens, active_decode_blocks)| {
            let facts = CostTerms { active_prefill_tokens, active_decode_blocks, ..CostTerms::default() };
            facts.priced(request, &decaying(decay)).cost
        });
        assert_eq!(kv::choose(&costs, 0.0, TieBreak::Seeded, &mut Seed(1).rng()), 2, "decay {key}: {costs:?}");
    }
}

#[test]
fn softmax_vectors_of_the_reference() {
    let near = |ours: Vec<f64>, theirs: &[f64]| {
        assert!(ours.iter().zip(theirs).all(|(a, b)| (a - b).abs() < 1e-6), "{ours:?} against {theirs:?}");
    };
    near(kv::weights(&[1.0, 2.0, 4.0], 0.5), &[0.606519, 0.311397, 0.082083]);
    near(kv::weights(&[18.0, 10.0, 11.0], 1.0), &[0.163475, 0.444370, 0.392155]);
    near(kv::weights(&[18.0, 10.0, 11.0], 0.2), &[0.004370, 0.648509, 0.347122]);
    near(kv::weights(&[3.0, 900.0], 1.0), &[0.731059, 0.268941]);
    near(kv::weights(&[5.0, 5.0], 1.0), &[0.5, 0.5]);
    let extremes = kv::weights(&[f64::MAX, f64::MIN], 1.0);
    assert_eq!(kv::draw_index(&extremes, 0.6), 1);
}

#[test]
fn ties_spread_by_seed_and_repeat_with_it() {
    let draws = |seed| {
        let mut rng = Seed(seed).rng();
        (0..120).map(|_| kv::choose(&[3.0, 1.0, 1.0, 1.0, 2.0], 0.0, TieBreak::Seeded, &mut rng)).collect::<Vec<_>>()
    };
    assert_eq!(draws(4), draws(4));
    let distinct: std::collections::BTreeSet<usize> = draws(4).into_iter().collect();
    assert_eq!(distinct.into_iter().collect::<Vec<_>>(), [1, 2, 3]);
    let mut rng = Seed(4).rng();
    assert!((0..20).all(|_| kv::choose(&[3.0, 1.0, 1.0], 0.0, TieBreak::Lowest, &mut rng) == 1));
}

fn chain(blocks: &[u32]) -> Chain {
    block_chain(&blocks.iter().flat_map(|block| [*block; 4]).collect::<Vec<_>>(), 4).into()
}

#[test]
fn bookings_share_prefixes() {
    let mut book = LoadBook::new();
    let worker = WorkerId(0);
    let state = |book: &LoadBook| {
        let load = book.load(worker);
        (load.active_blocks, load.active_prefill_tokens)
    };
    book.book(RequestId(1), worker, &chain(&[1, 2, 3]), 12);
    assert_eq!(state(&book), (3, 12));
    book.book(RequestId(2), worker, &chain(&[5]), 4);
    assert_eq!(state(&book), (4, 16));
    book.book(RequestId(3), worker, &chain(&[1, 2, 3, 4]), 0);
    assert_eq!(state(&book), (5, 16));
    let mut shared = Vec::new();
    book.find_shared(&chain(&[1, 2, 7]), &mut shared);
    assert_eq!(shared, [(worker, 2)]);
    book.free(RequestId(2));
    assert_eq!(state(&book), (4, 12));
    book.free(RequestId(3));
    assert_eq!(state(&book), (3, 12));
    book.prefill_completed(RequestId(1));
    book.prefill_completed(RequestId(1));
    assert_eq!(state(&book), (3, 0));
    book.free(RequestId(1));
    book.free(RequestId(1));
    assert_eq!(state(&book), (0, 0));
    assert!(book.is_empty());
}

fn stored(parent: Option<SequenceHash>, chain: &[BlockId]) -> KvEventData {
    let blocks = chain
        .iter()
        .map(|id| StoredBlock {
            sequence_hash: id.sequence,
            tokens_hash: id.tokens,
            token_ids: std::sync::Arc::default(),
        })
        .collect();
    KvEventData::Stored { parent, blocks }
}

fn depth(index: &BlockIndex, chain: &[BlockId]) -> Vec<(u32, u32)> {
    let mut overlaps = Vec::new();
    index.find_matches(chain, &mut overlaps);
    overlaps.into_iter().map(|(worker, blocks)| (worker.0, blocks)).collect()
}

#[test]
fn index_counts_leading_blocks_exactly() {
    let mut index = BlockIndex::new();
    let long = chain(&[1, 2, 3, 4, 5]);
    index.apply(WorkerId(1), &stored(None, &long));
    index.apply(WorkerId(0), &stored(None, &long[..2]));
    index.apply(WorkerId(0), &stored(None, &long[..2]));
    assert_eq!(depth(&index, &long), [(0, 2), (1, 5)]);
    assert_eq!(depth(&index, &chain(&[1, 2, 9])), [(0, 2), (1, 2)]);
    assert_eq!(depth(&index, &chain(&[2, 1])), []);
    // The middle block goes: what follows is out of reach, and back when the block is.
    index.apply(WorkerId(1), &KvEventData::Removed { blocks: [long[2].sequence].into_iter().collect() });
    assert_eq!(depth(&index, &long), [(0, 2), (1, 2)]);
    index.apply(WorkerId(1), &stored(Some(long[1].sequence), &long[2..3]));
    assert_eq!(depth(&index, &long), [(0, 2), (1, 5)]);
    // A parent nobody announced: the blocks are not placed, and counted.
    index.apply(WorkerId(0), &stored(Some(SequenceHash(77)), &long[3..]));
    assert_eq!((index.orphan_events(), depth(&index, &long)), (1, vec![(0, 2), (1, 5)]));
    index.apply(WorkerId(1), &KvEventData::Cleared);
    index.forget_worker(WorkerId(0));
    assert!(index.is_empty());
    assert_eq!(index.worker_blocks(WorkerId(0)) + index.worker_blocks(WorkerId(1)), 0);
}

#[test]
fn index_takes_opaque_names() {
    // A foreign engine may name blocks as it likes; only parents and tokens count.
    let mut index = BlockIndex::new();
    let ours = chain(&[1, 2]);
    let foreign: Vec<StoredBlock> = ours
        .iter()
        .zip([1001, 1002])
        .map(|(id, name)| StoredBlock {
            sequence_hash: SequenceHash(name),
            tokens_hash: id.tokens,
            token_ids: std::sync::Arc::default(),
        })
        .collect();
    index.apply(WorkerId(3), &KvEventData::Stored { parent: None, blocks: foreign[..1].iter().cloned().collect() });
    index.apply(
        WorkerId(3),
        &KvEventData::Stored { parent: Some(SequenceHash(1001)), blocks: foreign[1..].iter().cloned().collect() },
    );
    assert_eq!(depth(&index, &ours), [(3, 2)]);
    index.apply(WorkerId(3), &KvEventData::Removed { blocks: [SequenceHash(1002)].into_iter().collect() });
    assert_eq!(depth(&index, &ours), [(3, 1)]);
}

fn route(router: &mut Router, id: u64, prompt: &[u32], excluded: &[u32]) -> Option<Decision> {
    let tokens: Vec<u32> = prompt.iter().flat_map(|block| [*block; 4]).collect();
    let request = RouteRequest {
        id: RequestId(id),
        input_tokens: tokens.len() as u32,
        chain: Router::chain(&tokens, router.block_size()),
        excluded: excluded.iter().copied().map(WorkerId).collect(),
        ..RouteRequest::default()
    };
    let mut out = Vec::new();
    router.handle(SimTime::ZERO, RouterInput::Request(request), &mut out);
    match out.pop() {
        Some(RouterOutput::Routed(_, decision)) => Some(decision),
        _ => None,
    }
}

fn router(mode: RouterMode, workers: u32) -> Router {
    let mut router =
        Router::new(RouterConfig { router_mode: mode, ..RouterConfig::default() }, 4).expect("a valid configuration");
    for worker in 0..workers {
        router.handle(SimTime::ZERO, up(worker), &mut Vec::new());
    }
    router
}

fn up(worker: u32) -> RouterInput {
    RouterInput::WorkerUp { worker: WorkerId(worker), max_num_batched_tokens: None }
}

#[test]
fn kv_mode_follows_the_prefix_and_avoids_load() {
    let mut router = router(RouterMode::Kv, 2);
    let prefix = chain(&[1, 2, 3, 4]);
    router.handle(SimTime::ZERO, RouterInput::Kv(WorkerId(1), stored(None, &prefix)), &mut Vec::new());
    let first = route(&mut router, 1, &[1, 2, 3, 4, 5], &[]).expect("a worker");
    assert_eq!((first.worker, first.overlap_blocks, first.best_overlap_blocks), (WorkerId(1), Some(4), Some(4)));
    // A stranger goes to the idle worker.
    let second = route(&mut router, 2, &[7, 8, 9], &[]).expect("a worker");
    assert_eq!((second.worker, second.overlap_blocks), (WorkerId(0), Some(0)));
    // The same prefix, but its holder failed the request before.
    let third = route(&mut router, 3, &[1, 2, 3, 4, 6], &[1]).expect("a worker");
    assert_eq!((third.worker, third.best_overlap_blocks), (WorkerId(0), Some(0)));
    for id in 1..=3 {
        router.handle(SimTime::ZERO, RouterInput::Ended(RequestId(id)), &mut Vec::new());
    }
    assert!(router.load().is_empty());
}

#[test]
fn round_robin_is_fair_while_workers_come_and_go() {
    let mut router = router(RouterMode::RoundRobin, 2);
    let turn = |router: &mut Router, id| route(router, id, &[1], &[]).map(|decision| decision.worker.0);
    assert_eq!((0..4).map(|id| turn(&mut router, id)).collect::<Vec<_>>(), [Some(0), Some(1), Some(0), Some(1)]);
    router.handle(SimTime::ZERO, RouterInput::WorkerDown(WorkerId(0)), &mut Vec::new());
    assert_eq!((4..6).map(|id| turn(&mut router, id)).collect::<Vec<_>>(), [Some(1), Some(1)]);
    router.handle(SimTime::ZERO, RouterInput::WorkerDown(WorkerId(1)), &mut Vec::new());
    assert_eq!(turn(&mut router, 6), None);
}

#[test]
fn unshared_bookings_count_in_full() {
    let mut book = LoadBook::new();
    let worker = WorkerId(0);
    assert!(book.book_unshared(RequestId(1), worker, 3, 12));
    assert!(book.book_unshared(RequestId(2), worker, 3, 4));
    assert!(!book.book_unshared(RequestId(2), worker, 9, 9), "booked already");
    book.book(RequestId(3), worker, &chain(&[1, 2]), 0);
    let load = book.load(worker);
    assert_eq!((load.active_blocks, load.active_prefill_tokens, load.active_requests), (8, 16, 3));
    for id in 1..=3 {
        book.free(RequestId(id));
    }
    assert_eq!(book.load(worker), crate::router::load::WorkerLoad::default());
}

#[test]
fn tracking_keys_change_what_is_booked() {
    // Two equal prompts of four blocks on the only worker, then a third.
    let third = |changed: RouterConfig| {
        let changed = RouterConfig { router_mode: RouterMode::Kv, ..changed };
        let mut router = Router::new(changed, 4).expect("a valid configuration");
        router.handle(SimTime::ZERO, up(0), &mut Vec::new());
        let [_, _, third] = [1, 2, 3].map(|id| route(&mut router, id, &[1, 2, 3, 4], &[]).expect("a worker").terms);
        (third.active_prefill_tokens, third.active_decode_blocks, third.additional_active_blocks, third.cost)
    };
    let default = RouterConfig::default();
    assert_eq!(third(default.clone()), (32, 4, 0, 16.0));
    assert_eq!(third(RouterConfig { router_assume_kv_reuse: false, ..default.clone() }), (32, 8, 4, 24.0));
    assert_eq!(third(RouterConfig { router_track_active_blocks: false, ..default.clone() }), (32, 0, 0, 12.0));
    assert_eq!(third(RouterConfig { router_track_prefill_tokens: false, ..default.clone() }), (0, 4, 0, 4.0));
    assert_eq!(third(RouterConfig { decode_active_request_weight: 5.0, ..default }), (32, 4, 0, 26.0));
}

#[test]
fn pools_follow_what_matters_in_them() {
    let config = RouterConfig { router_mode: RouterMode::Kv, ..RouterConfig::default() };
    let second = |pool| {
        let mut router = Router::for_pool(config.clone(), 4, pool, 1).expect("a valid configuration");
        router.handle(SimTime::ZERO, up(0), &mut Vec::new());
        let held = RouterInput::Kv(WorkerId(0), stored(None, &chain(&[1, 2])));
        router.handle(SimTime::ZERO, held, &mut Vec::new());
        let [_, second] = [1, 2].map(|id| route(&mut router, id, &[1, 2, 3, 4], &[]).expect("a worker"));
        let terms = second.terms;
        (second.overlap_blocks, terms.active_prefill_tokens, terms.active_decode_blocks, terms.additional_active_blocks)
    };
    assert_eq!(second(Pool::Agg), (Some(2), 8, 4, 0));
    assert_eq!(second(Pool::Prefill), (Some(2), 8, 0, 0));
    assert_eq!(second(Pool::Decode), (Some(0), 0, 4, 4));
}

#[test]
fn pools_draw_apart_and_keep_their_own_turns() {
    let draws = |mode, pool| {
        let config = RouterConfig { router_mode: mode, seed: 3, ..RouterConfig::default() };
        let mut router = Router::for_pool(config, 4, pool, 2).expect("a valid configuration");
        for worker in 0..4 {
            router.handle(SimTime::ZERO, up(worker), &mut Vec::new());
        }
        (0..24).map(|id| route(&mut router, id, &[1], &[]).expect("a worker").worker.0).collect::<Vec<_>>()
    };
    let random = [Pool::Agg, Pool::Prefill, Pool::Decode].map(|pool| draws(RouterMode::Random, pool));
    assert!(random[0] != random[1] && random[1] != random[2], "{random:?}");
    // Two workers of two ranks: aggregated by worker, then rank; the pools by the flat list.
    assert_eq!(draws(RouterMode::RoundRobin, Pool::Agg)[..5], [0, 2, 1, 3, 0]);
    assert_eq!(draws(RouterMode::RoundRobin, Pool::Decode)[..5], [0, 1, 2, 3, 0]);
}

#[test]
fn decisions_are_explained_on_demand_in_every_mode() {
    for mode in [RouterMode::RoundRobin, RouterMode::Random, RouterMode::Kv] {
        let config = RouterConfig { router_mode: mode, ..RouterConfig::default() };
        let mut router = Router::lean(config, 4).expect("a valid configuration");
        for worker in 0..2 {
            router.handle(SimTime::ZERO, up(worker), &mut Vec::new());
        }
        assert_eq!(route(&mut router, 0, &[1, 2], &[]).and_then(|decision| decision.explained), None);
        router.explain(true);
        router.handle(SimTime::ZERO, RouterInput::Kv(WorkerId(1), stored(None, &chain(&[1]))), &mut Vec::new());
        let decision = route(&mut router, 1, &[1, 2], &[]).expect("a worker");
        let explained = Explained::of(&decision, SimTime(5), 1, Pool::Agg).expect("an explanation");
        assert_eq!(explained.candidates.len(), 2, "{mode:?}");
        assert_eq!((explained.best_overlap_blocks(), explained.chosen()), (1, Some(&decision.terms)), "{mode:?}");
    }
}

#[test]
fn bad_values_are_named() {
    let default = RouterConfig::default;
    let refused = |config: RouterConfig| config.validate().map_err(|error| error.key);
    assert_eq!(refused(RouterConfig { router_temperature: f64::NAN, ..default() }), Err("router_temperature"));
    assert_eq!(
        refused(RouterConfig { router_queue_threshold: Some(-1.0), ..default() }),
        Err("router_queue_threshold")
    );
    let ttl = RouterConfig { router_predicted_ttl_secs: Some(0.0), ..default() };
    assert_eq!(refused(ttl), Err("router_predicted_ttl_secs"));
    let ttl = RouterConfig { router_predicted_ttl_secs: Some(5.0), ..default() };
    assert_eq!(refused(ttl.clone()), Ok(()));
    assert_eq!(refused(RouterConfig { use_kv_events: false, ..ttl.clone() }), Err("router_predicted_ttl_secs"));
    assert_eq!(ttl.validate_live().map_err(|error| error.key), Err("router_predicted_ttl_secs"));
    let outputs = RouterConfig { router_track_output_blocks: true, ..default() };
    assert_eq!(
        refused(RouterConfig { router_track_active_blocks: false, ..outputs }),
        Err("router_track_output_blocks")
    );
    let blind = RouterConfig { use_kv_events: false, ..default() };
    let message = blind.validate_live().map_err(|error| error.to_string());
    let expected = "`use_kv_events` is false, expected true: a live router learns caches from events only";
    assert_eq!(message, Err(expected.to_owned()));
    assert!(serde_json::from_str::<RouterConfig>(r#"{"overlap_score_weight": 1.0}"#).is_err(), "an unknown key");
    let (first, _) = (sequence_hash(None, TokensHash(5)), tokens_hash(&[1]));
    assert_eq!(first, SequenceHash(5));
}
