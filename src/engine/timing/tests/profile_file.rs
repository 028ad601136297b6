//! What profiles may hold, and what is said about those that hold something else.

use super::*;

const STEP: &str = r#"{"source": "made up", "step": {"base_ms": 12.5, "prefill_token_us": 40,
    "decode_sequence_us": 46, "kv_token_read_ns": 69, "chunk_context_ns": 2}}"#;

fn message(text: &str) -> String {
    TimingModel::from_profile_json("mine", text).expect_err(text).to_string()
}

#[test]
fn a_table_that_cannot_be_used_says_where() {
    for (seen, instead, expected) in [
        (
            r#""batch": [1, 2, 4]"#,
            r#""batch": [1, 2, 2]"#,
            "`prefill.batch[2]` is 2, expected more than 2, the point before it",
        ),
        (r#""batch": [1, 2, 4]"#, r#""batch": [0, 2, 4]"#, "`prefill.batch[0]` is 0, expected a number of at least 1"),
        (
            r#""batch": [1, 4]"#,
            r#""batch": [4, 1]"#,
            "`decode.batch[1]` is 1, expected more than 4, the point before it",
        ),
        (r#""batch": [1, 4]"#, r#""batch": []"#, "`decode.batch` is a list of 0, expected a list of numbers"),
        (r#""batch": [1, 4], "#, "", "`decode.batch` is missing, expected a list of numbers"),
        (r#"[100, 300]"#, r#"[-100, 300]"#, "`decode.context_tokens[0]` is -100, expected a number of at least 0"),
        (r#"[100, 300]"#, r#"["100", 300]"#, "`decode.context_tokens[0]` is \"100\", expected a number of at least 0"),
        (r#"[0, 50]"#, r#"[0, null]"#, "`prefill.prefix_tokens[1]` is null, expected a number of at least 0"),
        (r#"[0, 50]"#, r#"50"#, "`prefill.prefix_tokens` is 50, expected a list of numbers"),
        (
            r#"[[14, 18], [26, 30]]"#,
            r#"[[14, 18], [26]]"#,
            "`prefill.milliseconds[1][1]` is a list of 1, expected a list of 2, one for each of prefill.prefix_tokens",
        ),
        (
            r#"[[14, 18], [26, 30]]"#,
            r#"[14, 18]"#,
            "`prefill.milliseconds[1][0]` is 14, expected a list of 2, one for each of prefill.prefix_tokens",
        ),
        (
            r#", [[30, 34], [50, 58]]"#,
            "",
            "`prefill.milliseconds` is a list of 2, expected a list of 3, one for each of prefill.batch",
        ),
        (r#"[6, 12]"#, r#"[6, -12]"#, "`decode.milliseconds[1][1]` is -12, expected milliseconds from 0 to 86400000"),
        (
            r#"[6, 12]"#,
            r#"[6, 1e8]"#,
            "`decode.milliseconds[1][1]` is 100000000.0, expected milliseconds from 0 to 86400000",
        ),
        (r#"[6, 12]"#, r#"[6, "x"]"#, "`decode.milliseconds[1][1]` is \"x\", expected milliseconds"),
        (
            r#""axes": ["batch", "context_tokens_per_request"]"#,
            r#""axes": ["context_tokens_per_request", "batch"]"#,
            r#"`decode.axes` is ["context_tokens_per_request","batch"], expected ["batch","context_tokens_per_request"]"#,
        ),
        (
            r#""context_tokens""#,
            r#""contexts""#,
            "`decode.contexts` is an unknown key, expected one of the keys axes, milliseconds, batch, context_tokens",
        ),
        (r#""decode""#, r#""decoding""#, "`decode` is missing, expected an object"),
        (
            r#""prefill""#,
            r#""step": 5, "prefill""#,
            "`prefill` is there beside `step`, expected either tables or coefficients",
        ),
    ] {
        assert!(TINY.contains(seen), "{seen}");
        assert_eq!(message(&TINY.replacen(seen, instead, 1)), format!("mine: {expected}"));
    }
}

#[test]
fn coefficients_that_cannot_be_used_say_where() {
    for (seen, instead, expected) in [
        ("12.5", "-1", "`step.base_ms` is -1, expected milliseconds from 0 to 86400000"),
        ("12.5", "\"12.5\"", "`step.base_ms` is \"12.5\", expected a number"),
        (r#""base_ms": 12.5, "#, "", "`step.base_ms` is missing, expected a number"),
        ("69", "-69", "`step.kv_token_read_ns` is -69, expected a number from 0 to 1000000000"),
        (
            "\"base_ms\"",
            "\"saturating_ms\": 1, \"base_ms\"",
            "`step.saturating_tokens` is 0, expected a number above 0, as saturating_ms is above 0",
        ),
    ] {
        assert!(STEP.contains(seen), "{seen}");
        assert_eq!(message(&STEP.replacen(seen, instead, 1)), format!("mine: {expected}"));
    }
    let unknown = message(&STEP.replacen("base_ms", "bass_ms", 1));
    assert!(
        unknown.starts_with("mine: `step.bass_ms` is an unknown key, expected one of the keys base_ms, "),
        "{unknown}"
    );
}

#[test]
fn text_that_is_no_json_object_is_refused() {
    assert_eq!(message("[1, 2]"), "mine: it holds a list of 2, expected an object");
    let error = message("{\"prefill\": ");
    assert!(error.starts_with("mine: EOF while parsing") && error.contains("line 1"), "{error}");
    // Larger than any f64.
    let error = message(&TINY.replacen("300", "1e999", 1));
    assert!(error.contains("number out of range"), "{error}");
}

#[test]
fn a_profile_may_hold_coefficients() {
    let model = TimingModel::from_profile_json("mine", STEP).expect("a model");
    let expected = StepModel {
        base_ms: 12.5,
        prefill_token_us: 40.0,
        decode_sequence_us: 46.0,
        kv_token_read_ns: 69.0,
        chunk_context_ns: 2.0,
        ..StepModel::default()
    };
    assert_eq!(model, TimingModel::Step(expected));
}

#[test]
fn an_axis_of_one_point_is_a_constant() {
    let flat = r#"{"prefill": {"batch": [1], "total_new_tokens": [64], "prefix_tokens": [0], "milliseconds": [[[7]]]},
        "decode": {"batch": [1], "context_tokens": [1], "milliseconds": [[3]]}}"#;
    let model = TimingModel::from_profile_json("flat", flat).expect("a table");
    assert_eq!(model.prefill_ms(prompts(&[(0, 1000)])), 7.0);
    assert!(model.step_time(prompts(&[(0, 1000)]), DecodeBatch::default(), 1.0, 1.0).clamped);
    assert!(!model.step_time(prompts(&[(0, 64)]), decoding(1, 1), 1.0, 1.0).clamped);
}
