//! Tests of the trace room: rows.

use proptest::prelude::*;

use super::super::locate;
use super::super::row::parse_row;
use super::parse;

/// The column and the message of the fault of a line.
fn fault(text: &str) -> (u64, String) {
    let fault = parse(text).expect_err(text);
    (fault.column, fault.problem.to_string())
}

#[test]
fn a_full_row_is_read_by_its_names() {
    let row = parse(concat!(
        r#"{"request_id": "r", "session_id": "s", "timestamp": 1.5, "delay": 2, "input_length": 7, "output_length": 2, "#,
        r#""hash_ids": [18446744073709551615, 0], "priority": -3, "strict_priority": 4, "output_token_ids": [9, 8], "x": {}}"#,
    ))
    .unwrap();
    assert_eq!(row.request_id.as_deref(), Some("r"));
    assert_eq!(row.session_id.as_deref(), Some("s"));
    assert_eq!((row.timestamp_ms, row.delay_ms), (Some(1.5), Some(2.0)));
    assert_eq!((row.input_tokens, row.output_tokens), (7, 2));
    assert_eq!(row.hash_ids, [u64::MAX, 0]);
    assert_eq!((row.priority, row.strict_priority), (Some(-3), Some(4)));
    assert_eq!(row.output_token_ids, Some(vec![9, 8]));
}

#[test]
fn aliases_mean_the_same() {
    let row =
        parse(r#"{"input_tokens": 3, "output_tokens": 0, "created_time": -5, "delay_ms": 0.5, "session_id": 12}"#)
            .unwrap();
    assert_eq!((row.input_tokens, row.output_tokens), (3, 0));
    assert_eq!((row.timestamp_ms, row.delay_ms), (Some(-5.0), Some(0.5)));
    assert_eq!(row.session_id.as_deref(), Some("12"));
    assert!(row.hash_ids.is_empty());
}

#[test]
fn prompt_length_follows_from_hashes() {
    let accepted = [
        (r#"{"output_length": 1, "hash_ids": [1, 2]}"#, 8),
        (r#"{"input_length": 8, "output_length": 1, "hash_ids": [1, 2]}"#, 8),
        (r#"{"input_length": 1, "output_length": 1, "hash_ids": [1, 2, 3]}"#, 1),
        (r#"{"input_length": 9, "output_length": 1}"#, 9),
        (r#"{"input_length": null, "output_length": 1, "hash_ids": [1]}"#, 4),
    ];
    for (text, input_tokens) in accepted {
        assert_eq!(parse(text).expect(text).input_tokens, input_tokens, "{text}");
    }
}

#[test]
fn faults_name_the_value_and_its_column() {
    let table = [
        (
            r#"{"input_length": 9, "output_length": -5}"#,
            38,
            "`output_length` is -5, expected a whole number of at least 0",
        ),
        (
            r#"{"input_length": 0, "output_length": 1}"#,
            18,
            "`input_length` is 0, expected a whole number of at least 1",
        ),
        (
            r#"{"input_tokens": 5.0, "output_length": 1}"#,
            18,
            "`input_tokens` is 5.0, expected a whole number of at least 1",
        ),
        (
            r#"{"input_length": 4294967296, "output_length": 1}"#,
            18,
            "`input_length` is 4294967296, expected a whole number of at most 4294967295",
        ),
        (
            r#"{"input_length": "9", "output_length": 1}"#,
            18,
            "`input_length` is \"9\", expected a whole number of at least 1",
        ),
        (r#"{"input_length": 9}"#, 1, "`output_length` is missing"),
        (r#"  {"output_length": 9}"#, 3, "`input_length` is missing and there are no `hash_ids` to derive it from"),
        (
            r#"{"output_length": 9, "hash_ids": []}"#,
            34,
            "`input_length` is missing and there are no `hash_ids` to derive it from",
        ),
        (
            r#"{"input_length": 8, "output_length": 9, "hash_ids": []}"#,
            18,
            "`input_length` is 8, expected at most 0: 0 `hash_ids` of 4 tokens hold no more",
        ),
        (
            r#"{"input_length": 9, "output_length": 9, "hash_ids": [1, 2]}"#,
            18,
            "`input_length` is 9, expected at most 8: 2 `hash_ids` of 4 tokens hold no more",
        ),
        (
            r#"{"input_length": 8, "output_length": 9, "hash_ids": [1, -2]}"#,
            57,
            "`hash_ids` is -2, expected only whole numbers from 0 to 18446744073709551615 in the list",
        ),
        (
            r#"{"input_length": 8, "output_length": 9, "hash_ids": {"a": 1}}"#,
            53,
            "`hash_ids` is {\"a\": 1}, expected a list of whole numbers",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "output_token_ids": [1, 2]}"#,
            61,
            "`output_token_ids` holds 2 ids, expected `output_length` of them, 3",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "input_tokens": 8}"#,
            57,
            "`input_length` and `input_tokens` are both given, expected one of them",
        ),
        (
            r#"{"delay": 8, "input_length": 8, "output_length": 3, "delay": 9}"#,
            62,
            "`delay` and `delay` are both given, expected one of them",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "delay": -1}"#,
            50,
            "`delay` is -1, expected milliseconds, a number of at least 0",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "timestamp": "82"}"#,
            54,
            "`timestamp` is \"82\", expected milliseconds, a number of at least -9007199254740992",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "timestamp": 1e300}"#,
            54,
            "`timestamp` is 1e300, expected milliseconds of at most 9007199254740992",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "priority": 3000000000}"#,
            53,
            "`priority` is 3000000000, expected a whole number from -2147483648 to 2147483647",
        ),
        (
            r#"{"input_length": 8, "output_length": 3, "session_id": []}"#,
            55,
            "`session_id` is [], expected a string or a number",
        ),
        (r#"[1, 2]"#, 1, "the line is not a JSON object: invalid type: sequence, expected an object"),
        (r#"{"input_length": 8"#, 18, "the line is not a JSON object: EOF while parsing an object"),
        (r#"{"input_length": 8} {}"#, 21, "the line is not a JSON object: trailing characters"),
    ];
    for (text, column, message) in table {
        assert_eq!(fault(text), (column, message.to_owned()), "{text}");
    }
}

#[test]
fn hashes_longer_than_any_prompt_are_refused() {
    let fault = parse_row(r#"{"output_length": 1, "hash_ids": [1, 2]}"#, 0, 1, u32::MAX).unwrap_err();
    assert_eq!(
        fault.problem.to_string(),
        "2 `hash_ids` of 4294967295 tokens make a prompt longer than 4294967295 tokens"
    );
}

#[test]
fn keys_with_escapes_and_values_with_braces_are_found() {
    let text = r#"{"x": "}\",{", "input\u005flength": -1, "y": [{"input_length": 3}]}"#;
    let place = locate::value_of(text, "input_length", 0).unwrap();
    assert_eq!(&text[place], "-1");
    assert_eq!(locate::value_of(text, "input_length", 1), None);
    assert_eq!(locate::value_of("no json", "x", 0), None);
}

fn json() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        Just(serde_json::Value::Null),
        any::<i64>().prop_map(Into::into),
        any::<f64>().prop_map(Into::into),
        ".*".prop_map(Into::into),
    ];
    leaf.prop_recursive(3, 20, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
            prop::collection::btree_map(".*", inner, 0..5)
                .prop_map(|map| serde_json::Value::Object(map.into_iter().collect())),
        ]
    })
}

/// Text that comes close to a row: known names, odd values, missing ends.
const LIKE_A_ROW: &str =
    r#"\{("(input_length|delay|hash_ids)" ?: ?(-?[0-9.e]{1,9}|null|"\\?|\[[0-9, -]*\]?|é),? ?){0,4}\}?"#;

proptest! {
    #[test]
    fn any_text_is_a_row_or_a_fault(text in "\\PC*") {
        let _ = parse(&text);
    }

    #[test]
    fn any_text_like_a_row_is_a_row_or_a_fault(text in LIKE_A_ROW) {
        let _ = parse(&text);
        let _ = locate::value_of(&text, "delay", 0);
    }

    #[test]
    fn values_are_found_where_the_parser_finds_them(fields in prop::collection::btree_map(".*", json(), 0..6), pretty: bool) {
        let object = serde_json::Value::Object(fields.clone().into_iter().collect());
        let text = if pretty { serde_json::to_string_pretty(&object) } else { serde_json::to_string(&object) }.unwrap();
        for (name, value) in &fields {
            let place = locate::value_of(&text, name, 0).expect("a key of the object");
            // Compared as text: reading a float back may change its last bit.
            let found: serde_json::Value = serde_json::from_str(&text[place.clone()]).expect("a whole value");
            prop_assert_eq!(found.is_array(), value.is_array());
            prop_assert_eq!(found.is_string(), value.is_string());
            if let serde_json::Value::Array(items) = value {
                for (nth, item) in items.iter().enumerate() {
                    let item_place = locate::element_of(&text, place.clone(), nth).expect("an element of the list");
                    let found: serde_json::Value = serde_json::from_str(&text[item_place]).expect("a whole element");
                    prop_assert_eq!(found.is_object(), item.is_object());
                }
                prop_assert_eq!(locate::element_of(&text, place, items.len()), None);
            }
        }
    }
}
