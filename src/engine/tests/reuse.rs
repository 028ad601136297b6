//! Prefix reuse: how much of a prompt comes from the cache, and when.

use super::*;

/// Reused tokens of a second prompt after a first, each with one output token.
fn reuse_after(num_gpu_blocks: u32, prompts: &[Vec<u32>]) -> Vec<u32> {
    let mut bench = Bench::new(fixed(num_gpu_blocks));
    for (id, prompt) in prompts.iter().enumerate() {
        bench.submit(100.0 * id as f64, id as u64, prompt.clone(), 1);
    }
    bench.run();
    (0..prompts.len() as u64).map(|id| bench.admissions(id)[0].1).collect()
}

#[test]
fn at_least_one_token_is_computed() {
    for (first, second, reused) in [(8, 8, 4), (9, 9, 8), (8, 12, 8), (8, 9, 8), (12, 8, 4), (4, 4, 0), (3, 3, 0)] {
        let ours = reuse_after(64, &[prompt(0, first), prompt(0, second)]);
        assert_eq!(ours, [0, reused], "{second} tokens after {first}");
    }
}

#[test]
fn an_aligned_full_hit_computes_its_last_block_again() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 1).submit(20.0, 1, prompt(0, 8), 1).run();
    assert_eq!(bench.admissions(1), [(20.0, 4)]);
    assert_eq!(bench.steps[1].prefill, (1, 8, 4));
    assert_eq!(bench.end_ms(1), Some(30.0));
    // The last block exists twice now: a duplicate takes room like any other.
    assert_eq!(bench.blocks(), (0, 3, 13));
}

#[test]
fn a_second_request_reuses_what_the_first_computes_in_the_same_step() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 2).submit(0.0, 1, prompt(0, 8), 2).run_to(0.0);
    assert_eq!(bench.blocks(), (3, 0, 13), "the last block twice");
    bench.run();
    assert_eq!((bench.admissions(0), bench.admissions(1)), (vec![(0.0, 0)], vec![(0.0, 4)]));
    assert_eq!(bench.steps[0].prefill, (2, 8, 2), "two prompts of 8 with 0 and 4 cached");
}

#[test]
fn a_prefix_must_stand_at_its_place() {
    let swapped = [prompt(4, 4), prompt(0, 4), prompt(8, 4)].concat();
    assert_eq!(reuse_after(64, &[prompt(0, 12), swapped]), [0, 0]);
    let other_middle = [prompt(0, 4), prompt(100, 4), prompt(8, 5)].concat();
    assert_eq!(reuse_after(64, &[prompt(0, 13), other_middle]), [0, 4], "a match stops at the first miss");
}

#[test]
fn a_leaf_is_evicted_before_its_parent() {
    assert_eq!(reuse_after(4, &[prompt(0, 12), prompt(100, 8), prompt(0, 12)]), [0, 0, 8]);
    // One block less for the first: had its first block gone, nothing would be reused.
    assert_eq!(reuse_after(4, &[prompt(0, 12), prompt(100, 12), prompt(0, 12)]), [0, 0, 4]);
}

#[test]
fn a_cycle_longer_than_the_pool_never_hits() {
    let [a, b, c] = [0, 100, 200].map(|first| prompt(first, 8));
    assert_eq!(reuse_after(4, &[a.clone(), b.clone(), c, a, b]), [0; 5]);
}

#[test]
fn an_eviction_earlier_in_the_step_is_seen_by_a_later_look_up() {
    let mut bench = Bench::new(fixed(6));
    // Cached and unused: two blocks of the first, then two of the second; two are free.
    bench.submit(0.0, 0, prompt(0, 8), 1).submit(20.0, 1, prompt(100, 8), 1);
    // In one step: four blocks for a stranger, which evicts the first's, and the first again.
    bench.submit(40.0, 2, prompt(200, 16), 1).submit(40.0, 3, prompt(0, 8), 1).run();
    assert_eq!((bench.admissions(2), bench.admissions(3)), (vec![(40.0, 0)], vec![(40.0, 0)]));
}

#[test]
fn an_answer_is_reusable_as_far_as_it_was_computed() {
    for (output_tokens, reused) in [(4, 8), (5, 12), (8, 12), (9, 16)] {
        let mut bench = Bench::new(fixed(64));
        bench.submit(0.0, 0, prompt(0, 8), output_tokens).run();
        let answer: Vec<u32> = bench.tokens(0).into_iter().map(|(_, token_id)| token_id).collect();
        let next_turn = [prompt(0, 8), answer, prompt(500, 4)].concat();
        bench.submit(100.0, 1, next_turn, 1).run();
        assert_eq!(bench.admissions(1), [(100.0, reused)], "after {output_tokens} output tokens");
    }
}

#[test]
fn with_caching_off_nothing_is_reused_and_nothing_said() {
    let mut bench = Bench::new(EngineConfig { enable_prefix_caching: false, ..fixed(8) });
    for turn in 0..5 {
        bench.submit(100.0 * turn as f64, turn, prompt(0, 13), 3);
    }
    bench.submit(500.0, 5, prompt(0, 8), 1).submit(500.0, 6, prompt(0, 8), 1).flush(600.0).run();
    for id in 0..7 {
        assert!(bench.admissions(id).iter().all(|(_, reused)| *reused == 0), "request {id}");
    }
    assert_eq!(bench.events(), []);
    assert_eq!(bench.engine.stats().reused_tokens_total, 0);
}

#[test]
fn the_counters_tell_the_share_of_reuse() {
    let mut bench = Bench::new(fixed(64));
    bench.submit(0.0, 0, prompt(0, 12), 2).submit(20.0, 1, prompt(0, 20), 3).run();
    let stats = bench.engine.stats();
    assert_eq!((stats.prompt_tokens_total, stats.reused_tokens_total), (32, 12));
    assert_eq!((stats.generated_tokens_total, stats.finished_total, stats.steps_total), (5, 2, 5));
    assert_eq!((stats.running, stats.waiting, stats.total_blocks), (0, 0, 64));
}
