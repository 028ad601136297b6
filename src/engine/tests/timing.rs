//! How long steps take: the reference's polynomials, its measured runs, and what of a batch the model sees.

use super::*;
use crate::engine::timing::{DecodeBatch, PrefillBatch};
use crate::time::SimSpan;

/// Largest difference to a measured time, milliseconds.
const TOLERANCE_MS: f64 = 1e-6;

fn assert_ms(what: &str, ours: f64, measured: f64) {
    assert_near(what, ours, measured, TOLERANCE_MS);
}

fn assert_near(what: &str, ours: f64, measured: f64, tolerance_ms: f64) {
    assert!((ours - measured).abs() <= tolerance_ms, "{what}: {ours} ms, the reference has {measured} ms");
}

fn prefill(requests: u32, prompt_tokens: u64, prefix_tokens: u64) -> PrefillBatch {
    PrefillBatch { requests, prompt_tokens, prefix_tokens, ..PrefillBatch::default() }
}

fn decode(sequences: u32, context_tokens: u64, pool_tokens: u64) -> DecodeBatch {
    DecodeBatch { sequences, context_tokens, pool_tokens }
}

#[test]
fn polynomial_prefill_of_one_prompt() {
    let model = TimingModel::Polynomial;
    for (tokens, measured) in
        [(64, 17.474885), (128, 18.451798), (488, 24.011197), (1000, 32.105859), (1024, 32.490712)]
    {
        assert_ms(&format!("prefill({tokens})"), model.prefill_ms(prefill(1, tokens, 0)), measured);
    }
    assert_ms("prefill(512)", model.prefill_ms(prefill(1, 512, 0)), 24.385704);
    assert_ms("1024 of 1088 cached", model.prefill_ms(prefill(1, 1088, 1024)), 17.474885);
}

#[test]
fn polynomial_prefill_sees_means_by_integer_division() {
    let model = TimingModel::Polynomial;
    assert_ms("64 + 128", model.prefill_ms(prefill(2, 192, 0)), 19.432160);
    assert_ms("96 + 96", model.prefill_ms(prefill(2, 192, 0)), model.prefill_ms(prefill(1, 192, 0)));
    // 2 × (193 / 2) = 192, and 2 × (193 / 2 − 5 / 2) = 188.
    assert_ms("64 + 129", model.prefill_ms(prefill(2, 193, 0)), model.prefill_ms(prefill(1, 192, 0)));
    assert_ms("prefix 5", model.prefill_ms(prefill(2, 193, 5)), model.prefill_ms(prefill(1, 188, 0)));
}

#[test]
fn polynomial_decode_by_share_of_the_pool() {
    let model = TimingModel::Polynomial;
    let pool = 16_384 * 64;
    assert_ms("context 65", model.decode_ms(decode(1, 65, pool)), 5.743348);
    assert_ms("context 66", model.decode_ms(decode(1, 66, pool)), 5.743399);
    let full = -25.74 + 54.01 + 5.74;
    assert_ms("full pool", model.decode_ms(decode(9, pool, pool)), full);
    assert_ms("more than the pool", model.decode_ms(decode(9, pool + 1000, pool)), full);
    assert_ms("no pool", model.decode_ms(decode(1, 1, 0)), full);
}

#[test]
fn an_empty_batch_takes_no_time() {
    for model in [TimingModel::Polynomial, TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 }] {
        assert_eq!(model.prefill_ms(prefill(0, 0, 0)), 0.0, "{model:?}");
        assert_eq!(model.decode_ms(decode(0, 0, 100)), 0.0, "{model:?}");
        assert_eq!(model.step_time(prefill(0, 0, 0), decode(0, 0, 100), 1.0, 1.0).span, SimSpan::ZERO, "{model:?}");
    }
    let cached = TimingModel::Polynomial.prefill_ms(prefill(1, 64, 64));
    assert_eq!(cached, 0.0, "a fully cached prompt has no prefill time");
}

#[test]
fn a_step_takes_the_sum_of_its_parts_divided_by_the_speedup() {
    let model = TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 };
    let (one_prompt, one_sequence) = (prefill(1, 8, 0), decode(1, 5, 64));
    assert_eq!(model.step_time(one_prompt, one_sequence, 1.0, 1.0).span, SimSpan::from_ms(12.0));
    assert_eq!(
        model.step_time(one_prompt, one_sequence, 3.0, 1.0).span,
        SimSpan(3_333_333 + 666_666),
        "each part is cut to whole nanoseconds"
    );
    assert_eq!(model.step_time(one_prompt, one_sequence, 4.0, 1.0).span, SimSpan::from_ms(3.0));
}

#[test]
fn values_that_no_clock_can_follow_are_refused() {
    for ratio in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = Engine::new(EngineConfig { speedup_ratio: ratio, ..fixed(16) }).expect_err("refused");
        assert_eq!(error.key, "speedup_ratio", "{error}");
        let error = Engine::new(EngineConfig { decode_speedup_ratio: ratio, ..fixed(16) }).expect_err("refused");
        assert_eq!(error.key, "decode_speedup_ratio", "{error}");
    }
    for bad in [-1.0, f64::NAN, f64::INFINITY] {
        for (key, prefill_ms, decode_ms) in [("prefill_ms", bad, 1.0), ("decode_ms", 1.0, bad)] {
            let timing_model = TimingModel::Fixed { prefill_ms, decode_ms };
            let error = Engine::new(EngineConfig { timing_model, ..fixed(16) }).expect_err("refused");
            assert_eq!(error.key, key, "{error}");
        }
    }
    assert!(
        Engine::new(EngineConfig { timing_model: TimingModel::Fixed { prefill_ms: 0.0, decode_ms: 0.0 }, ..fixed(1) })
            .is_ok()
    );
}

/// An engine with blocks of 64 tokens and the default timing.
fn polynomial() -> Bench {
    Bench::new(EngineConfig::default())
}

#[test]
fn prompts_of_64_and_128_end_together() {
    let mut bench = polynomial();
    bench.submit(0.0, 0, prompt(0, 64), 1).submit(0.0, 1, prompt(1000, 128), 1).run();
    for id in [0, 1] {
        assert_ms(&format!("request {id}"), bench.end_ms(id).expect("an end"), 19.432160);
    }
}

#[test]
fn an_arrival_inside_a_step_waits_for_its_end() {
    let mut bench = polynomial();
    bench.submit(0.0, 0, prompt(0, 64), 3).submit(20.0, 1, prompt(1000, 128), 1).run();
    let times = bench.token_times(0);
    assert_ms("first step", times[0], 17.474885);
    assert_ms("second step", times[1], 23.218233);
    assert_ms("admission", bench.admissions(1)[0].0, 23.218233);
    assert_ms("first token", bench.token_times(1)[0], 47.413430);
    assert_ms("the other's third token", times[2], 47.413430);
}

#[test]
fn speedup_divides_the_whole_run() {
    for (speedup_ratio, first_ms, end_ms) in [(1.0, 17.474885, 28.961632), (2.0, 8.737442, 14.480815)] {
        let mut bench = Bench::new(EngineConfig { speedup_ratio, ..EngineConfig::default() });
        bench.submit(0.0, 0, prompt(0, 64), 3).run();
        // The reference rounds to nanoseconds before it divides: up to one nanosecond a step.
        let ours = bench.token_times(0);
        assert_near(&format!("first token at {speedup_ratio}"), ours[0], first_ms, 1.5e-6);
        assert_near(&format!("end at {speedup_ratio}"), ours[2], end_ms, 3.5e-6);
    }
}

#[test]
fn decode_speedup_leaves_the_first_token_alone() {
    let mut bench =
        Bench::new(EngineConfig { speedup_ratio: 2.0, decode_speedup_ratio: 2.0, ..EngineConfig::default() });
    bench.submit(0.0, 0, prompt(0, 64), 2).run();
    let ours = bench.token_times(0);
    assert_near("first token", ours[0], 8.737442, 1.5e-6);
    assert_near("gap", ours[1] - ours[0], 1.435837, 1.5e-6);
}

#[test]
fn a_cached_prefix_is_paid_for_only_once() {
    let mut bench = polynomial();
    let long: Vec<u32> = prompt(0, 1088);
    bench.submit(0.0, 0, long[..1024].to_vec(), 1).submit(100.0, 1, long, 1).run();
    assert_ms("the prefix", bench.end_ms(0).expect("an end"), 32.490712);
    assert_eq!(bench.admissions(1), [(100.0, 1024)]);
    assert_ms("the rest", bench.end_ms(1).expect("an end") - 100.0, 17.474885);
}
