//! Tests of the trace room: scan.

use std::fmt::Write;

use proptest::prelude::*;

use super::super::row::{TraceRow, parse_row};
use super::super::scan::scan_row;
use super::row;

const BLOCK_TOKENS: u32 = 4;

/// A row that was used before: nothing of it may be left.
fn used() -> TraceRow {
    TraceRow {
        request_id: Some("old request".to_owned()),
        session_id: Some("old session".to_owned()),
        timestamp_ms: Some(9.0),
        delay_ms: Some(9.0),
        priority: Some(9),
        strict_priority: Some(9),
        output_token_ids: Some(vec![9]),
        ..row(9, &[9, 9])
    }
}

/// What the scanner makes of a line; `None` if it gives up.
fn scan(text: &str) -> Option<TraceRow> {
    let mut row = used();
    let end = scan_row(text.as_bytes(), BLOCK_TOKENS, &mut row)?;
    (end == text.len()).then_some(row)
}

/// Holds the scanner against the careful reading.
fn agrees(text: &str) {
    if let Some(scanned) = scan(text) {
        let careful = parse_row(text, 0, 0, BLOCK_TOKENS).expect(text);
        assert_eq!(scanned, careful, "{text}");
        let bits = |ms: Option<f64>| ms.map(f64::to_bits);
        assert_eq!(bits(scanned.timestamp_ms), bits(careful.timestamp_ms), "{text}");
    }
}

#[test]
fn plain_rows_are_scanned() {
    let lines = [
        r#"{"timestamp": 27482, "input_length": 6, "output_length": 52, "hash_ids": [46, 47, 2366]}"#,
        r#"{"timestamp":27482,"input_length":6,"output_length":52,"hash_ids":[46,47]}"#,
        r#"{"hash_ids": [ 18446744073709551615 , 0 ], "output_tokens": 0, "input_tokens": 8, "created_time": 12.5}"#,
        r#"{"session_id": "a b", "request_id": 12, "delay_ms": 0, "input_length": 9, "output_length": 1}"#,
        r#"{"input_length": 9, "output_length": 1, "priority": 3, "strict_priority": 4, "user": "x", "turn": 7}"#,
        "  {\"input_length\": 1,\t\"output_length\": 1}  \r",
    ];
    for text in lines {
        assert!(scan(text).is_some(), "{text}");
        agrees(text);
    }
}

#[test]
fn rows_that_are_wrong_or_odd_are_left_to_the_careful_reading() {
    let lengths = r#""input_length": 8, "output_length": 1"#;
    let lines = [
        String::new(),
        "{}".to_owned(),
        "[1]".to_owned(),
        format!("{{{lengths}"),
        format!("{{{lengths},}}"),
        format!("{{{lengths}}} {{}}"),
        format!("{{{lengths},\n\"delay\": 1}}"),
        format!("{{{lengths}, \"input_tokens\": 8}}"),
        format!("{{{lengths}, \"hash_ids\": [1]}}"),
        format!("{{{lengths}, \"hash_ids\": [1, 2,]}}"),
        format!("{{{lengths}, \"hash_ids\": [1 2]}}"),
        format!("{{{lengths}, \"hash_ids\": [1, 02]}}"),
        format!("{{{lengths}, \"hash_ids\": [1, 2.0]}}"),
        format!("{{{lengths}, \"hash_ids\": [1, 18446744073709551616]}}"),
        format!("{{{lengths}, \"output_token_ids\": [1]}}"),
        format!("{{{lengths}, \"delay\": -1}}"),
        format!("{{{lengths}, \"delay\": 1.}}"),
        format!("{{{lengths}, \"delay\": 1e3}}"),
        format!("{{{lengths}, \"delay\": 1.5e3}}"),
        format!("{{{lengths}, \"delay\": 01.5}}"),
        format!("{{{lengths}, \"timestamp\": 9007199254740995}}"),
        format!("{{{lengths}, \"timestamp\": null}}"),
        format!("{{{lengths}, \"session_id\": \"a\\u0062\"}}"),
        format!("{{{lengths}, \"session_id\": \"é\"}}"),
        format!("{{{lengths}, \"session_id\": \"a\tb\"}}"),
        format!("{{{lengths}, \"other\": {{}}}}"),
        r#"{"input_length": 0, "output_length": 1}"#.to_owned(),
        r#"{"input_length": 4294967296, "output_length": 1}"#.to_owned(),
        r#"{"output_length": 1, "hash_ids": [1]}"#.to_owned(),
    ];
    for text in &lines {
        assert_eq!(scan(text), None, "{text}");
    }
}

#[test]
fn times_of_many_digits_are_no_others() {
    // The last but one is 2^64 + 1 without its point, the one before has as many places as powers of ten are exact.
    for time in ["9007199254740992.0", "9007199254740992.5", "0.0000000000000000000001", "1844674407.3709551617", "0.0"]
    {
        agrees(&format!(r#"{{"timestamp": {time}, "input_length": 1, "output_length": 1}}"#));
    }
}

/// Text that comes close to a row, more often plain than not.
const LIKE_A_ROW: &str = concat!(
    r#"\{"input_(length|tokens)":( [1-9]|1[0-9]|0), ?"output_length" ?: ?[0-9]{1,2}"#,
    r#"(, ?"(timestamp|created_time|delay|priority|strict_priority|session_id|request_id|x)": ?"#,
    r#"([0-9]{1,20}|[0-9]{1,17}\.[0-9]{0,19}|-?[0-9.e]{1,4}|null|"[a-z0-9]{0,3}")){0,3}"#,
    r#"(, ?"(hash_ids|output_token_ids)": ?\[[0-9]{1,20}(, ?[0-9]{1,3}){0,4}\])?[ ,]?\}?\r?"#
);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn what_is_scanned_is_what_careful_reading_finds(text in LIKE_A_ROW) {
        agrees(&text);
    }

    #[test]
    fn times_are_the_same_to_the_last_bit(whole in 0u64..10_000_000_000, decimals in "[0-9]{1,9}|0{0,20}[0-9]{1,20}") {
        let text = format!(r#"{{"timestamp": {whole}.{decimals}, "input_length": 1, "output_length": 1}}"#);
        agrees(&text);
        let few = decimals.len() + whole.to_string().len() <= 15;
        prop_assert!(scan(&text).is_some() || !few, "{}", text);
    }

    #[test]
    fn a_row_that_is_cut_off_is_none(cut in 0usize..80) {
        let text = r#"{"timestamp": 274, "input_length": 6, "output_length": 52, "hash_ids": [46, 47, 2366]}"#;
        prop_assert_eq!(scan(&text[..cut]), None);
    }
}

#[test]
fn generated_rows_are_scanned() {
    use super::super::{ConversationOptions, conversation_like, write_rows};
    let folder = tempfile::TempDir::new().unwrap();
    let path = folder.path().join("rows.jsonl");
    let options = ConversationOptions { name_sessions: true, ..ConversationOptions::default() };
    write_rows(&path, &conversation_like(crate::rng::Seed(1), 200, &options)).unwrap();
    let mut scanned = TraceRow::default();
    let mut left = String::new();
    for line in std::fs::read_to_string(&path).unwrap().lines() {
        if scan_row(line.as_bytes(), 512, &mut scanned) != Some(line.len()) {
            writeln!(left, "{line}").unwrap();
        }
    }
    assert_eq!(left, "");
}
