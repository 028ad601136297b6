//! The models that come from profiles: tables, the line for a step, and the files that hold them.

mod grid;
mod profile;
mod profile_file;
mod step;

use super::*;

/// A table whose midpoints a reader can work out.
const TINY: &str = r#"{"source": "made up",
    "prefill": {"axes": ["batch", "total_new_tokens", "prefix_tokens_per_request"],
        "batch": [1, 2, 4], "total_new_tokens": [100, 200], "prefix_tokens": [0, 50],
        "milliseconds": [[[10, 12], [20, 24]], [[14, 18], [26, 30]], [[30, 34], [50, 58]]]},
    "decode": {"axes": ["batch", "context_tokens_per_request"],
        "batch": [1, 4], "context_tokens": [100, 300],
        "milliseconds": [[2, 4], [6, 12]]}}"#;

fn tiny() -> TimingModel {
    TimingModel::from_profile_json("tiny", TINY).expect("a table")
}

/// Requests by (tokens there before, tokens computed).
fn prompts(chunks: &[(u32, u32)]) -> PrefillBatch {
    let mut batch = PrefillBatch::default();
    for (before_tokens, new_tokens) in chunks {
        batch.add_chunk(*before_tokens, *new_tokens);
    }
    batch
}

fn decoding(sequences: u32, context_tokens: u64) -> DecodeBatch {
    DecodeBatch { sequences, context_tokens, pool_tokens: 1 << 20 }
}

fn assert_ms(what: &str, ours: f64, expected: f64) {
    assert!((ours - expected).abs() < 1e-9, "{what}: {ours} ms, expected {expected} ms");
}

#[test]
fn a_chunk_counts_all_its_sums() {
    let batch = prompts(&[(500, 1000), (0, 7)]);
    let expected = PrefillBatch {
        requests: 2,
        prompt_tokens: 1507,
        prefix_tokens: 500,
        new_tokens: 1007,
        // 1000 × (500 + 500) + 7 × (0 + 3)
        chunk_context: 1_000_021,
    };
    assert_eq!(batch, expected);
}

#[test]
fn tokens_computed_anew_are_work_to_the_step_alone() {
    let mut batch = prompts(&[(0, 100)]);
    batch.add_recomputed(100, 20);
    // 100 × 50 + 20 × (100 + 10)
    assert_eq!((batch.new_tokens, batch.chunk_context), (120, 7200));
    for model in [TimingModel::Polynomial, tiny()] {
        assert_eq!(model.prefill_ms(batch), model.prefill_ms(prompts(&[(0, 100)])), "{model:?}");
    }
    let mut alone = PrefillBatch::default();
    alone.add_recomputed(100, 20);
    let line = TimingModel::Step(StepModel { base_ms: 1.0, prefill_token_us: 10.0, ..StepModel::default() });
    let ms = |model: &TimingModel| model.step_time(alone, DecodeBatch::default(), 1.0, 1.0).span.as_ms();
    assert_ms("a line", ms(&line), 1.2);
    assert_ms("the reference's", ms(&TimingModel::Polynomial), 0.0);
}

#[test]
fn a_model_in_a_file_is_an_object_with_a_type() {
    let step = StepModel { base_ms: 1.5, kv_token_read_ns: 2.0, ..StepModel::default() };
    for model in
        [TimingModel::Polynomial, TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 1.0 }, TimingModel::Step(step)]
    {
        let text = serde_json::to_string(&model).expect("JSON");
        assert_eq!(serde_json::from_str::<TimingModel>(&text).expect("a model"), model, "{text}");
    }
    let short = r#"{"type": "step", "base_ms": 1.5, "prefill_token_us": 0, "decode_sequence_us": 0,
        "kv_token_read_ns": 2, "chunk_context_ns": 0}"#;
    assert_eq!(serde_json::from_str::<TimingModel>(short).expect("a model"), TimingModel::Step(step));
    let misspelt = short.replace("base_ms", "bass_ms");
    assert!(serde_json::from_str::<TimingModel>(&misspelt).expect_err("refused").to_string().contains("bass_ms"));
}

#[test]
fn a_profile_is_written_by_its_name_and_not_read_back() {
    let text = serde_json::to_string(&tiny()).expect("JSON");
    assert_eq!(text, r#"{"type":"profile","profile":"tiny"}"#);
    let error = serde_json::from_str::<TimingModel>(&text).expect_err("refused").to_string();
    assert!(error.contains("profile"), "{error}");
}

#[test]
fn a_row_of_decode_steps_is_timed_as_its_steps_are() {
    let step = StepModel { base_ms: 1.0, decode_sequence_us: 5.0, kv_token_read_ns: 1.0, ..StepModel::default() };
    let fixed = TimingModel::Fixed { prefill_ms: 1.0, decode_ms: 1.5 };
    for model in [TimingModel::Polynomial, fixed, TimingModel::Step(step), tiny()] {
        for (speedup, decode_speedup) in [(1.0, 1.0), (4.0, 1.0), (1.0, 3.0)] {
            for sequences in [0, 1, 7] {
                let batch = |nth: u32| DecodeBatch {
                    pool_tokens: 10_000,
                    ..decoding(sequences, u64::from(500 + nth * sequences))
                };
                let mut row = Vec::new();
                model.decode_row(batch(0), 5, speedup, decode_speedup, |time| row.push(time));
                let steps = |nth| model.step_time(PrefillBatch::default(), batch(nth), speedup, decode_speedup);
                assert_eq!(row, (0..5).map(steps).collect::<Vec<_>>(), "{model:?} {speedup} {decode_speedup}");
            }
        }
    }
}

#[test]
fn decode_speedup_multiplies_the_speedup_in_the_decode_part_alone() {
    let model = TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 };
    let (prefill, decode) = (prompts(&[(0, 8)]), decoding(1, 5));
    let ms = |speedup, decode_speedup| model.step_time(prefill, decode, speedup, decode_speedup).span.as_ms();
    assert_ms("decode twice as fast", ms(1.0, 2.0), 11.0);
    assert_ms("all twice, decode four times", ms(2.0, 2.0), 5.5);
    // Measured on the reference: speedup 2 and decode speedup 2, one token a step, context 65.
    let pool = DecodeBatch { sequences: 1, context_tokens: 65, pool_tokens: 16_384 * 64 };
    let step = TimingModel::Polynomial.step_time(PrefillBatch::default(), pool, 2.0, 2.0);
    assert!((step.span.as_ms() - 1.435843).abs() <= 1e-5, "{:?}", step.span);
}
