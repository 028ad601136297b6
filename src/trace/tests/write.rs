//! Tests of the trace room: write.

use std::fs;

use tempfile::TempDir;

use super::super::*;
use super::row;
use crate::rng::Seed;

#[test]
fn rows_are_written_under_the_public_names() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("out.jsonl");
    let full = TraceRow {
        request_id: Some("r".to_owned()),
        session_id: Some("s".to_owned()),
        timestamp_ms: Some(3000.0),
        delay_ms: Some(0.25),
        priority: Some(-1),
        strict_priority: Some(2),
        output_token_ids: Some(vec![4]),
        ..row(9, &[u64::MAX])
    };
    write_rows(&path, &[row(600, &[0, 1]), full]).unwrap();
    assert_eq!(
        fs::read_to_string(&path).unwrap(),
        "{\"input_length\":600,\"output_length\":1,\"hash_ids\":[0,1]}\n\
         {\"request_id\":\"r\",\"session_id\":\"s\",\"timestamp\":3000,\"delay\":0.25,\"input_length\":9,\"output_length\":1,\
         \"hash_ids\":[18446744073709551615],\"priority\":-1,\"strict_priority\":2,\"output_token_ids\":[4]}\n"
    );
}

#[test]
fn what_is_written_is_read_back_plain_and_packed() {
    let folder = TempDir::new().unwrap();
    let options = ConversationOptions { tick_ms: 0, name_sessions: true, ..ConversationOptions::default() };
    let rows = conversation_like(Seed(4), 300, &options);
    for name in ["t.jsonl", "t.jsonl.gz", "t.GZ"] {
        let path = folder.path().join(name);
        write_rows(&path, &rows).unwrap();
        assert_eq!(read_all(&path, &ReadOptions::default()).unwrap().rows, rows, "{name}");
        let packed = fs::read(&path).unwrap().starts_with(b"\x1f\x8b");
        assert_eq!(packed, name != "t.jsonl", "{name}");
        let first = fs::read(&path).unwrap();
        write_rows(&path, &rows).unwrap();
        assert_eq!(fs::read(&path).unwrap(), first, "{name}: the same rows give the same bytes");
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 3, "no temporary file is left");
}

#[test]
fn a_file_that_cannot_be_written_is_named_and_leaves_nothing() {
    let folder = TempDir::new().unwrap();
    let missing = folder.path().join("missing").join("t.jsonl");
    let error = write_rows(&missing, &[row(1, &[0])]).unwrap_err().to_string();
    assert!(error.contains("missing/t.jsonl: cannot be written: "), "{error}");
    let taken = folder.path().join("taken");
    fs::create_dir(&taken).unwrap();
    assert!(write_rows(&taken, &[row(1, &[0])]).is_err());
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no temporary file is left");
}
