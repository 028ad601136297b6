//! Tests of the trace room: read.

use std::fs;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use tempfile::TempDir;

use super::super::*;

const GOOD: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": 5, "hash_ids": [0, 1]}"#;
const BAD: &str = r#"{"timestamp": 0, "input_length": 600, "output_length": -5, "hash_ids": [0, 1]}"#;

fn packed(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).unwrap();
    encoder.finish().unwrap()
}

/// Reads bytes as a trace; the error is its text with the temporary folder taken out.
fn read_bytes(bytes: &[u8], options: &ReadOptions) -> Result<Trace, String> {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    fs::write(&path, bytes).unwrap();
    read_all(&path, options).map_err(|error| plain(&error, folder.path()))
}

fn plain(error: &TraceError, folder: &Path) -> String {
    error.to_string().replace(&format!("{}/", folder.display()), "")
}

fn read_text(text: &str) -> Result<Trace, String> {
    read_bytes(text.as_bytes(), &ReadOptions::default())
}

#[test]
fn line_ends_blank_lines_and_marks_do_no_harm() {
    let expected: Vec<(u64, u64)> = vec![(0, 1), (1, 3)];
    for text in [
        format!("{GOOD}\n\n{GOOD}\n"),
        format!("{GOOD}\n \t\n{GOOD}"),
        format!("{GOOD}\r\n\r\n{GOOD}\r\n"),
        format!("\u{feff}{GOOD}\n\n{GOOD}\n\n\n"),
    ] {
        for bytes in [text.clone().into_bytes(), packed(text.as_bytes())] {
            let trace = read_bytes(&bytes, &ReadOptions::default()).unwrap();
            let places: Vec<(u64, u64)> = trace.rows.iter().map(|row| (row.row, row.line)).collect();
            assert_eq!(places, expected, "{text:?}");
        }
    }
}

#[test]
fn gzip_of_several_members_is_read_to_its_end() {
    let mut bytes = packed(format!("{GOOD}\n").as_bytes());
    bytes.extend(packed(format!("{GOOD}\n").as_bytes()));
    assert_eq!(read_bytes(&bytes, &ReadOptions::default()).unwrap().rows.len(), 2);
}

#[test]
fn a_bad_row_is_named_by_file_line_and_column() {
    let error = read_text(&format!("{GOOD}\n\n{BAD}\n")).unwrap_err();
    assert_eq!(
        error,
        "trace.jsonl:3:56: `output_length` is -5, expected a whole number of at least 0\n  \
         hint: `--on-bad-row skip` leaves such rows out and counts them"
    );
}

#[test]
fn bad_rows_are_skipped_and_counted_on_request() {
    let options = ReadOptions { on_bad_row: OnBadRow::Skip, ..ReadOptions::default() };
    let mut bytes = format!("{BAD}\n{GOOD}\nnot json\n").into_bytes();
    bytes.extend(b"\xff\xfe\n");
    bytes.extend(format!("{GOOD}\n").as_bytes());
    let trace = read_bytes(&bytes, &options).unwrap();
    assert_eq!(trace.skipped_rows, 3);
    assert_eq!(trace.rows.iter().map(|row| row.row).collect::<Vec<_>>(), [1, 4]);
    assert!(
        trace
            .first_skipped
            .unwrap()
            .ends_with("trace.jsonl:1:56: `output_length` is -5, expected a whole number of at least 0")
    );
}

#[test]
fn the_limit_counts_good_rows() {
    let options = ReadOptions { on_bad_row: OnBadRow::Skip, limit_rows: Some(2), ..ReadOptions::default() };
    let trace = read_bytes(format!("{GOOD}\n{BAD}\n{GOOD}\n{BAD}\n{GOOD}\n").as_bytes(), &options).unwrap();
    assert_eq!((trace.rows.len(), trace.skipped_rows), (2, 1));
}

#[test]
fn a_trace_without_requests_is_an_error() {
    let skip = ReadOptions { on_bad_row: OnBadRow::Skip, ..ReadOptions::default() };
    let blank = "trace.jsonl: no requests: the file is empty or has only blank lines";
    assert_eq!(read_text("").unwrap_err(), blank);
    assert_eq!(read_text("\n\r\n").unwrap_err(), blank);
    assert_eq!(read_bytes(&packed(b""), &skip).unwrap_err(), blank);
    assert_eq!(
        read_bytes(b"x\ny\n", &skip).unwrap_err().split(", the first").next(),
        Some("trace.jsonl: no requests: all of its 2 rows are bad")
    );
    let none = ReadOptions { limit_rows: Some(0), ..skip };
    assert_eq!(read_bytes(GOOD.as_bytes(), &none).unwrap_err(), "trace.jsonl: no requests: the limit is 0 rows");
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let folder = TempDir::new().unwrap();
    let fails = |name: &str| {
        let error = read_all(&folder.path().join(name), &ReadOptions::default()).unwrap_err();
        plain(&error, folder.path())
    };
    assert!(fails("missing.jsonl").starts_with("missing.jsonl: cannot be opened: "));
    fs::create_dir(folder.path().join("folder")).unwrap();
    assert_eq!(fails("folder"), "folder: is a directory, expected a trace file (JSONL, plain or gzip)");
}

#[test]
fn damaged_gzip_fails_even_when_bad_rows_are_skipped() {
    let skip = ReadOptions { on_bad_row: OnBadRow::Skip, ..ReadOptions::default() };
    let text: String =
        (0..2000).map(|n| format!("{{\"input_length\": {}, \"output_length\": {n}}}\n", n * 7 % 1000 + 1)).collect();
    let whole = packed(text.as_bytes());
    assert_eq!(read_bytes(&whole, &skip).unwrap().rows.len(), 2000);
    for cut in [2, 5, 9, 11, whole.len() / 2, whole.len() - 9, whole.len() - 1] {
        let error = read_bytes(&whole[..cut], &skip).unwrap_err();
        assert!(error.starts_with("trace.jsonl: the gzip data ends early, after line "), "cut at {cut}: {error}");
    }
    let mut flipped = whole.clone();
    let last = flipped.len() - 6;
    flipped[last] ^= 1;
    let error = read_bytes(&flipped, &skip).unwrap_err();
    assert!(error.starts_with("trace.jsonl: the gzip data is damaged after line 2000: "), "{error}");
}

#[test]
fn the_reader_goes_on_after_a_bad_row_and_ends_after_a_broken_file() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("trace.jsonl");
    fs::write(&path, format!("{BAD}\n{GOOD}\n")).unwrap();
    let mut reader = TraceReader::open(&path, 512).unwrap();
    assert!(matches!(reader.next(), Some(Err(TraceError::Row { .. }))));
    assert!(matches!(reader.next(), Some(Ok(_))));
    assert!(reader.next().is_none());
    assert_eq!(reader.lines(), 2);

    let whole = packed(format!("{GOOD}\n").as_bytes());
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let items: Vec<_> = TraceReader::open(&path, 512).unwrap().collect();
    assert!(matches!(items.as_slice(), [.., Err(TraceError::TruncatedGzip { .. })]));
    assert!(matches!(TraceReader::open(&path, 0), Err(TraceError::ZeroBlock)));
}

#[test]
fn one_byte_files_are_text() {
    assert!(read_text("{").unwrap_err().starts_with("trace.jsonl:1:1: the line is not a JSON object"));
    assert!(read_bytes(b"\x1f", &ReadOptions::default()).unwrap_err().starts_with("trace.jsonl:1:1: "));
}

/// Rows plain, odd and bad, with line ends of both kinds, so many that they cross the buffer's end in all ways.
#[test]
fn a_long_file_is_read_as_its_lines_are() {
    let mut text = String::new();
    for n in 0..9_000u64 {
        let hashes: Vec<String> = (0..n % 37).map(|hash| (hash * n).to_string()).collect();
        let hashes = hashes.join(", ");
        match n % 11 {
            3 => {
                text +=
                    &format!("{{\"input_length\": 1, \"output_length\": {n}, \"x\": {{}}, \"timestamp\": -{n}}}\r\n")
            }
            5 => text += "  \n",
            7 => text += &format!("{{\"input_length\": 0, \"output_length\": {n}}}\n"),
            _ => {
                let end = if n % 2 == 0 { "\r\n" } else { "\n" };
                text += &format!("{{\"output_length\": {n}, \"input_length\": 1, \"hash_ids\": [0, {hashes}]}}{end}")
                    .replace(", ]", "]");
            }
        }
    }
    assert!(text.len() > 600_000);
    let (mut rows, mut bad) = (Vec::new(), 0);
    for (index, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        match super::super::row::parse_row(line, rows.len() as u64 + bad, index as u64 + 1, 512) {
            Ok(row) => rows.push(row),
            Err(_) => bad += 1,
        }
    }
    let options = ReadOptions { on_bad_row: OnBadRow::Skip, ..ReadOptions::default() };
    for bytes in [text.clone().into_bytes(), packed(text.as_bytes())] {
        let trace = read_bytes(&bytes, &options).unwrap();
        assert_eq!((trace.rows.len(), trace.skipped_rows), (rows.len(), bad));
        assert!(trace.rows == rows);
    }
}
