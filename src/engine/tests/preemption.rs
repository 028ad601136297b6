//! Preemption: the reference's measured runs, and what a victim keeps and loses.

use super::*;

/// The reference's run D: three requests of 8 + 16 tokens in a pool of 8 blocks.
struct RunD {
    preemption_mode: PreemptionMode,
    caching: bool,
    end_ms: [f64; 3],
    /// Time and reused tokens of each admission of each request.
    admissions: [&'static [(f64, u32)]; 3],
    /// The reference's count of tokens computed in prefill or in recomputation.
    committed_prefill_tokens: u32,
}

const RUN_D: [RunD; 4] = [
    RunD {
        preemption_mode: PreemptionMode::Lifo,
        caching: true,
        end_ms: [40.0, 64.0, 86.0],
        admissions: [&[(0.0, 0)], &[(0.0, 0), (40.0, 8)], &[(0.0, 0), (40.0, 0), (64.0, 8)]],
        committed_prefill_tokens: 33,
    },
    RunD {
        preemption_mode: PreemptionMode::Fifo,
        caching: true,
        end_ms: [80.0, 86.0, 40.0],
        admissions: [&[(0.0, 0), (40.0, 0)], &[(0.0, 0), (40.0, 8), (80.0, 8)], &[(0.0, 0)]],
        committed_prefill_tokens: 33,
    },
    RunD {
        preemption_mode: PreemptionMode::Lifo,
        caching: false,
        end_ms: [40.0, 64.0, 96.0],
        admissions: [&[(0.0, 0)], &[(0.0, 0), (40.0, 0)], &[(0.0, 0), (40.0, 0), (64.0, 0)]],
        committed_prefill_tokens: 63,
    },
    RunD {
        preemption_mode: PreemptionMode::Fifo,
        caching: false,
        end_ms: [80.0, 96.0, 40.0],
        admissions: [&[(0.0, 0), (40.0, 0)], &[(0.0, 0), (40.0, 0), (80.0, 0)], &[(0.0, 0)]],
        committed_prefill_tokens: 71,
    },
];

fn run_d(mode: PreemptionMode, caching: bool) -> Bench {
    let config = EngineConfig {
        max_num_batched_tokens: Some(64),
        preemption_mode: mode,
        enable_prefix_caching: caching,
        ..fixed(8)
    };
    let mut bench = Bench::new(config);
    for id in 0..3 {
        bench.submit(0.0, id, prompt(100 * id as u32, 8), 16);
    }
    bench.run();
    bench
}

#[test]
fn three_requests_in_a_pool_for_two() {
    for case in &RUN_D {
        let place = format!("{:?}, caching {}", case.preemption_mode, case.caching);
        let bench = run_d(case.preemption_mode, case.caching);
        for id in 0..3 {
            assert_eq!(bench.admissions(id), case.admissions[id as usize], "{place}: admissions of request {id}");
            assert_eq!(bench.end_ms(id), Some(case.end_ms[id as usize]), "{place}: end of request {id}");
            assert_eq!(bench.tokens(id).len(), 16, "{place}: output of request {id}");
            assert_eq!(bench.token_times(id)[0], 10.0, "{place}: first token of request {id}");
        }
        let gaps = (0..3).flat_map(|id| {
            let times = bench.token_times(id);
            times.windows(2).map(|pair| pair[1] - pair[0]).collect::<Vec<_>>()
        });
        assert_eq!(gaps.fold(0.0, f64::max), 42.0, "{place}: largest gap between two tokens");
        let stats = bench.engine.stats();
        assert_eq!(stats.preemptions_total, 3, "{place}: preemptions");
        assert_eq!(stats.active_blocks, 0, "{place}: active blocks");
    }
}

#[test]
fn recomputation_costs_what_the_reference_commits() {
    for case in &RUN_D {
        let bench = run_d(case.preemption_mode, case.caching);
        let computed: u32 = bench.steps.iter().map(|step| step.computed_tokens).sum();
        // 48 output tokens: 3 from first prefills and 3 from recomputations, the others from a decode of one token each.
        let decoded = 48 - 3 - 3;
        // The reference counts no prefill where the whole prompt comes from the cache.
        let mut behind_a_cached_prompt = 0;
        for id in 0..3 {
            for (at_ms, reused) in bench.admissions(id).into_iter().filter(|(_, reused)| *reused >= 8) {
                let made = bench.token_times(id).iter().filter(|token_ms| **token_ms <= at_ms).count() as u32;
                behind_a_cached_prompt += 8 + made - reused;
            }
        }
        assert_eq!(
            computed - decoded - behind_a_cached_prompt,
            case.committed_prefill_tokens,
            "{:?}, caching {}",
            case.preemption_mode,
            case.caching
        );
    }
}

#[test]
fn regenerated_tokens_take_budget_but_no_prefill_time() {
    let bench = run_d(PreemptionMode::Lifo, false);
    // At 40 ms both victims come back, with 8 prompt tokens each, and 9 and 1 output tokens.
    let back = bench.steps.iter().find(|step| step.started_ms == 40.0).expect("a step at 40 ms");
    assert_eq!(back.prefill, (2, 8, 0), "{back:?}");
    assert_eq!(back.decode.0, 2, "both have made a token before: {back:?}");
    assert_eq!(back.computed_tokens, 17 + 9, "{back:?}");
}

#[test]
fn the_seven_block_run() {
    let config = EngineConfig {
        max_num_batched_tokens: Some(3),
        max_num_seqs: Some(4),
        timing_model: TimingModel::Fixed { prefill_ms: 0.5, decode_ms: 0.25 },
        ..fixed(7)
    };
    let mut bench = Bench::new(config);
    bench.submit(5.5, 0, prompt(0, 12), 11).submit(6.0, 1, prompt(0, 7), 9).submit(6.5, 2, prompt(0, 13), 4).run();
    let ends: Vec<_> = (0..3).map(|id| bench.end_ms(id)).collect();
    assert_eq!(ends, [Some(11.0), Some(12.25), Some(12.25)]);
    let reused: Vec<Vec<u32>> =
        (0..3).map(|id| bench.admissions(id).into_iter().map(|(_, reused)| reused).collect()).collect();
    assert_eq!(reused.iter().map(|all| all.len() - 1).collect::<Vec<_>>(), [0, 1, 1], "readmissions");
    assert_eq!(reused.iter().map(|all| all[0]).collect::<Vec<_>>(), [0, 4, 12], "at first admission");
    assert_eq!(reused.iter().filter_map(|all| all.iter().max()).collect::<Vec<_>>(), [&0, &8, &12], "most");
    // What a client hears is the first admission's, also after a preemption.
    for (of, at_first) in [(0, 0), (1, 4), (2, 12)] {
        for (at, output) in &bench.said {
            if let EngineOutput::Token { id, reused_tokens, .. } = output
                && id.0 == of
            {
                assert_eq!(*reused_tokens, at_first, "request {of} at {at}");
            }
        }
    }
}

/// Two requests of 4 tokens in 3 blocks: when both need their second block, one has to go.
fn two_in_three_blocks(preemption_mode: PreemptionMode) -> Bench {
    let mut bench = Bench::new(EngineConfig { preemption_mode, ..fixed(3) });
    bench.submit(0.0, 0, prompt(0, 4), 4).submit(0.0, 1, prompt(100, 4), 4).run_to(10.0);
    bench
}

#[test]
fn the_victim_is_first_in_the_queue_with_nothing_computed() {
    for (mode, victim) in [(PreemptionMode::Lifo, 1), (PreemptionMode::Fifo, 0)] {
        let mut bench = two_in_three_blocks(mode);
        bench.submit(10.0, 2, prompt(200, 4), 1).run_to(11.0);
        let front = bench.engine.waiting.front().map(|slot| &bench.engine.sequences[*slot]).expect("a victim");
        assert_eq!(front.id.0, victim, "{mode:?}");
        assert_eq!((front.computed_tokens, front.held.blocks(), front.preemptions), (0, 0, 1), "{mode:?}");
        assert_eq!((front.generated_tokens, front.known_tokens()), (1, 5), "{mode:?}: it keeps its token");
        bench.run();
        let outputs: Vec<usize> = (0..3).map(|id| bench.tokens(id).len()).collect();
        assert_eq!(outputs, [4, 4, 1], "{mode:?}");
        let readmitted = bench.admissions(victim)[1].0;
        assert!(readmitted <= bench.admissions(2)[0].0, "{mode:?}: the victim is before the newcomer");
    }
}

#[test]
fn a_step_that_preempts_admits_nobody() {
    let mut bench = two_in_three_blocks(PreemptionMode::Lifo);
    // The newcomer's one block would be free from 10 ms on, when the victim gave its block back.
    assert_eq!(bench.blocks(), (2, 1, 0));
    bench.submit(10.5, 2, prompt(200, 1), 1).run_to(10.6);
    assert_eq!(bench.engine.waiting.len(), 2);
    assert_eq!(bench.admissions(1), [(0.0, 0)]);
}

#[test]
fn tokens_go_on_where_they_stopped() {
    let bench = run_d(PreemptionMode::Lifo, true);
    for id in 0..3 {
        let expected: Vec<u32> = (0..16).map(|position| OUTPUT_SEED.nth(id).token_at(position, VOCAB_TOKENS)).collect();
        let ours: Vec<u32> = bench.tokens(id).into_iter().map(|(_, token_id)| token_id).collect();
        assert_eq!(ours, expected, "request {id}");
    }
}
