//! Reading times out of tables.

use super::*;

const MINIMAX: &str = include_str!("../../../../profiles/minimax-m2.5_b200-sxm_tp4_vllm-0.19.0.json");

/// Requests of equal length.
fn batch(requests: u32, prefix_tokens: u32, new_tokens: u32) -> PrefillBatch {
    prompts(&vec![(prefix_tokens, new_tokens); requests as usize])
}

#[test]
fn at_a_point_of_the_grid_stands_the_tables_number() {
    let model = TimingModel::from_profile_json("minimax", MINIMAX).expect("a table");
    let file: serde_json::Value = serde_json::from_str(MINIMAX).expect("JSON");
    let points = |table: &str, axis: &str| -> Vec<u32> {
        let list = file[table][axis].as_array().expect("an axis");
        list.iter().map(|point| point.as_u64().expect("a number") as u32).collect()
    };
    let mut checked = 0;
    for (b, requests) in points("prefill", "batch").into_iter().enumerate() {
        for (t, total) in points("prefill", "total_new_tokens").into_iter().enumerate() {
            for (p, prefix) in points("prefill", "prefix_tokens").into_iter().enumerate() {
                // Other totals are no multiple of a mean.
                if total % requests == 0 {
                    let time =
                        model.step_time(batch(requests, prefix, total / requests), DecodeBatch::default(), 1.0, 1.0);
                    let expected = file["prefill"]["milliseconds"][b][t][p].as_f64().expect("a number");
                    let place = format!("batch {requests}, {total} new tokens, prefix {prefix}");
                    assert_eq!(time, StepTime { span: SimSpan::from_ms(expected), clamped: false }, "{place}");
                    assert_eq!(model.prefill_ms(batch(requests, prefix, total / requests)), expected, "{place}");
                    checked += 1;
                }
            }
        }
    }
    for (b, sequences) in points("decode", "batch").into_iter().enumerate() {
        for (c, context) in points("decode", "context_tokens").into_iter().enumerate() {
            let decode = decoding(sequences, u64::from(sequences) * u64::from(context));
            let expected = file["decode"]["milliseconds"][b][c].as_f64().expect("a number");
            let time = model.step_time(PrefillBatch::default(), decode, 1.0, 1.0);
            let place = format!("batch {sequences}, context {context}");
            assert_eq!(model.decode_ms(decode), expected, "{place}");
            assert_eq!(time, StepTime { span: SimSpan::from_ms(expected), clamped: false }, "{place}");
            checked += 1;
        }
    }
    assert!(checked > 3000, "only {checked} points");
}

#[test]
fn between_points_every_axis_is_linear() {
    let model = tiny();
    assert_ms("middle of a cell", model.prefill_ms(batch(1, 25, 150)), (10.0 + 12.0 + 20.0 + 24.0) / 4.0);
    // 10 + ¼·10 and 12 + ¼·12, then a fifth of the way.
    assert_ms("off the middle", model.prefill_ms(batch(1, 10, 125)), 12.5 + 0.2 * (15.0 - 12.5));
    // Between batches 2 and 4, each half-way between 100 and 200 tokens in all.
    assert_ms("batch 3", model.prefill_ms(batch(3, 0, 50)), (20.0 + 40.0) / 2.0);
    assert_ms("decode, middle of the contexts", model.decode_ms(decoding(1, 200)), 3.0);
    // A third of the way from batch 1 to 4, at context 150: 2.5 and 7.5.
    assert_ms("decode, batch 2", model.decode_ms(decoding(2, 300)), 2.5 + 5.0 / 3.0);
}

#[test]
fn the_estimators_own_figures_are_met_between_the_points() {
    let model = TimingModel::from_profile_json("minimax", MINIMAX).expect("a table");
    let near = |what: &str, ours: f64, estimated: f64| {
        assert!((ours / estimated - 1.0).abs() < 0.01, "{what}: {ours} ms, the estimator says {estimated} ms");
    };
    near("1024 on 1024 cached", model.prefill_ms(batch(1, 1024, 1024)), 44.863);
    near("three of 1024", model.prefill_ms(batch(3, 0, 1024)), 84.846);
    near("decode at 1k", model.decode_ms(decoding(1, 1000)), 6.338);
    near("decode at 131k", model.decode_ms(decoding(1, 131_000)), 7.171);
    near("32 at 16k", model.decode_ms(decoding(32, 32 * 16_000)), 14.186);
}

#[test]
fn outside_the_tables_the_edge_counts_and_is_told() {
    let model = tiny();
    let nothing = DecodeBatch::default();
    for (what, prefill, expected_ms, clamped) in [
        ("first corner", batch(1, 0, 100), 10.0, false),
        ("last corner", batch(4, 50, 50), 58.0, false),
        ("batch above", batch(5, 50, 40), 58.0, true),
        ("tokens below", batch(1, 0, 99), 10.0, true),
        ("tokens above", batch(1, 0, 1000), 20.0, true),
        ("prefix above", batch(1, 51, 100), 12.0, true),
        ("all above", batch(9, 99, 999), 58.0, true),
    ] {
        let time = model.step_time(prefill, nothing, 1.0, 1.0);
        assert_eq!(time, StepTime { span: SimSpan::from_ms(expected_ms), clamped }, "{what}");
    }
    for (what, decode, expected_ms, clamped) in [
        ("first corner", decoding(1, 100), 2.0, false),
        ("last corner", decoding(4, 1200), 12.0, false),
        ("batch above", decoding(5, 1500), 12.0, true),
        ("context below", decoding(1, 99), 2.0, true),
        ("context above", decoding(1, 301), 4.0, true),
        // The mean of 301 is 300 after integer division.
        ("context 1203 of 4", decoding(4, 1203), 12.0, false),
    ] {
        let time = model.step_time(PrefillBatch::default(), decode, 1.0, 1.0);
        assert_eq!(time, StepTime { span: SimSpan::from_ms(expected_ms), clamped }, "{what}");
    }
    assert!(model.step_time(batch(1, 0, 100), decoding(1, 99), 1.0, 1.0).clamped, "one part is enough");
    assert!(model.step_time(batch(1, 0, 99), decoding(1, 100), 1.0, 1.0).clamped, "one part is enough");
}

#[test]
fn a_batch_is_priced_by_integer_means() {
    let model = tiny();
    let ms = |chunks: &[(u32, u32)]| model.prefill_ms(prompts(chunks));
    assert_eq!(ms(&[(0, 64), (0, 128)]), ms(&[(0, 96), (0, 96)]));
    assert_eq!(ms(&[(0, 64), (0, 129)]), ms(&[(0, 96), (0, 96)]), "a half token is dropped");
    // Means 101 and 5: 2 × 96 new tokens on a prefix of 5.
    assert_eq!(ms(&[(11, 64), (0, 128)]), ms(&[(5, 96), (5, 96)]));
    assert_ms("2 × 96", ms(&[(0, 64), (0, 128)]), 14.0 + 0.92 * 12.0);
    assert_eq!(model.decode_ms(decoding(2, 401)), model.decode_ms(decoding(2, 400)));
}

#[test]
fn nothing_to_do_costs_nothing() {
    let model = tiny();
    for (what, prefill) in [("no requests", PrefillBatch::default()), ("no new tokens", batch(2, 64, 0))] {
        let time = model.step_time(prefill, DecodeBatch::default(), 1.0, 1.0);
        assert_eq!(time, StepTime::default(), "{what}");
    }
}

#[test]
fn no_decode_takes_less_than_a_millisecond() {
    let quick = TINY.replace("[[2, 4], [6, 12]]", "[[0.2, 0.4], [6, 12]]");
    let model = TimingModel::from_profile_json("quick", &quick).expect("a table");
    assert_eq!(model.decode_ms(decoding(1, 200)), 1.0);
    assert_eq!(model.step_time(PrefillBatch::default(), decoding(1, 200), 2.0, 1.0).span, SimSpan::from_ms(0.5));
}

#[test]
fn a_mixed_step_is_the_sum_of_its_parts() {
    let time = tiny().step_time(batch(1, 0, 100), decoding(1, 200), 4.0, 3.0);
    assert_eq!(time, StepTime { span: SimSpan::from_ms(10.0 / 4.0 + 3.0 / 12.0), clamped: false });
}

#[test]
fn a_profile_is_short_in_debug_output_and_cheap_to_clone() {
    let model = TimingModel::from_profile_json("minimax", MINIMAX).expect("a table");
    let shown = format!("{model:?}");
    assert_eq!(shown, r#"Profile(ProfileTable { name: "minimax", prefill: [6, 48, 11], decode: [31, 19], .. })"#);
    let (TimingModel::Profile(one), TimingModel::Profile(other)) = (&model, model.clone()) else {
        panic!("{shown}");
    };
    assert!(Arc::ptr_eq(one, &other));
    assert_ne!(model, tiny());
}
