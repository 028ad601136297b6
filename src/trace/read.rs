//! Reading Mooncake traces: one JSON object a line, plain or gzip.
//!
//! The reader streams: it holds a buffer of the file and one line at a time. Plain rows are scanned where they stand
//! in the buffer ([`scan_row`]); for all others the line is taken out and read with care ([`parse_row`]). It takes
//! gzip by its first bytes, whatever the name; CRLF, blank lines, a byte order mark and a missing last newline do no
//! harm. A bad row is an error that names file, line and column, and the reader can go on after it; when the file
//! itself fails, it ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::path::Path;

use flate2::bufread::MultiGzDecoder;

use super::error::{Place, RowProblem, TraceError};
use super::row::{RowFault, TraceRow, parse_row};
use super::scan::scan_row;

/// Tokens that one hash of a Mooncake trace stands for, unless said otherwise.
pub const DEFAULT_BLOCK_TOKENS: u32 = 512;

/// Longest line that the reader takes, in bytes.
const MAX_LINE_BYTES: u64 = 64 << 20;
/// Of the file as it is, and of what it unpacks to: a line that crosses the end of a buffer costs a copy.
const READ_BUFFER_BYTES: usize = 256 << 10;
const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// What to do with a row that is wrong.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBadRow {
    /// Stop with an error.
    #[default]
    Fail,
    /// Leave the row out and count it.
    Skip,
}

/// How to read a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadOptions {
    /// Tokens that one hash stands for; at least 1.
    pub block_tokens: u32,
    /// Stop after this many good rows; `None`: read all.
    pub limit_rows: Option<u64>,
    /// What to do with a row that is wrong.
    pub on_bad_row: OnBadRow,
}

impl Default for ReadOptions {
    fn default() -> Self {
        ReadOptions { block_tokens: DEFAULT_BLOCK_TOKENS, limit_rows: None, on_bad_row: OnBadRow::Fail }
    }
}

/// A trace in memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// The file, as the user named it, or what else the rows come from.
    pub path_display: String,
    /// Tokens that one hash stands for.
    pub block_tokens: u32,
    /// The rows, in the order of the file.
    pub rows: Vec<TraceRow>,
    /// Rows that were left out as bad.
    pub skipped_rows: u64,
    /// What was wrong with the first of them, with its place, in one line.
    pub first_skipped: Option<String>,
}

impl Trace {
    /// A trace of rows that were not read from a file; `name` stands for the file in messages.
    pub fn from_rows(name: impl Into<String>, block_tokens: u32, rows: Vec<TraceRow>) -> Self {
        Trace { path_display: name.into(), block_tokens, rows, skipped_rows: 0, first_skipped: None }
    }
}

/// What [`read_rows`] did beside handing out rows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ReadSummary {
    /// Good rows; at least 1.
    pub rows: u64,
    /// Rows that were left out as bad.
    pub skipped_rows: u64,
    /// What was wrong with the first of them, with its place, in one line.
    pub first_skipped: Option<String>,
}

/// Reads a trace and hands each good row to `take`, which keeps of it what it needs.
///
/// Fails if the file cannot be read, has a bad row that is not to be skipped, or has no good row.
pub fn read_rows(
    path: &Path,
    options: &ReadOptions,
    mut take: impl FnMut(&TraceRow),
) -> Result<ReadSummary, TraceError> {
    let mut reader = TraceReader::open(path, options.block_tokens)?;
    let limit_rows = options.limit_rows.unwrap_or(u64::MAX);
    let mut summary = ReadSummary::default();
    let mut row = TraceRow::default();
    while summary.rows < limit_rows {
        match reader.read_into(&mut row) {
            None => break,
            Some(Ok(())) => {
                summary.rows += 1;
                take(&row);
            }
            Some(Err(TraceError::Row { place, problem })) if options.on_bad_row == OnBadRow::Skip => {
                summary.skipped_rows += 1;
                summary.first_skipped.get_or_insert_with(|| format!("{place}: {problem}"));
            }
            Some(Err(error)) => return Err(error),
        }
    }
    if summary.rows == 0 {
        let reason = match (&summary.first_skipped, limit_rows) {
            (_, 0) => "the limit is 0 rows".to_owned(),
            (None, _) => "the file is empty or has only blank lines".to_owned(),
            (Some(first), _) => format!("all of its {} rows are bad, the first at {first}", summary.skipped_rows),
        };
        return Err(TraceError::NoRequests { file: path.display().to_string(), reason });
    }
    Ok(summary)
}

/// Reads a whole trace into memory.
pub fn read_all(path: &Path, options: &ReadOptions) -> Result<Trace, TraceError> {
    let mut rows = Vec::new();
    let ReadSummary { skipped_rows, first_skipped, .. } = read_rows(path, options, |row| rows.push(row.clone()))?;
    let path_display = path.display().to_string();
    Ok(Trace { path_display, block_tokens: options.block_tokens, rows, skipped_rows, first_skipped })
}

/// Reads a trace row by row.
///
/// After a [`TraceError::Row`] the next call goes on with the next line; after any other error there are no more rows.
pub struct TraceReader {
    input: Box<dyn BufRead + Send>,
    file: String,
    gzip: bool,
    block_tokens: u32,
    buffer: Vec<u8>,
    lines: u64,
    rows: u64,
    ended: bool,
}

impl TraceReader {
    /// Opens a trace whose hashes stand for `block_tokens` tokens each.
    pub fn open(path: &Path, block_tokens: u32) -> Result<Self, TraceError> {
        if block_tokens == 0 {
            return Err(TraceError::ZeroBlock);
        }
        let file = path.display().to_string();
        let fails = |cause| TraceError::Open { file: file.clone(), cause };
        let mut opened = File::open(path).map_err(fails)?;
        if opened.metadata().map_err(fails)?.is_dir() {
            return Err(TraceError::Directory { file });
        }
        let mut magic = Vec::with_capacity(GZIP_MAGIC.len());
        (&mut opened).take(GZIP_MAGIC.len() as u64).read_to_end(&mut magic).map_err(|cause| TraceError::Read {
            file: file.clone(),
            line: 0,
            cause,
        })?;
        let gzip = magic == GZIP_MAGIC;
        let bytes = BufReader::with_capacity(READ_BUFFER_BYTES, Cursor::new(magic).chain(opened));
        let input: Box<dyn BufRead + Send> = if gzip {
            Box::new(BufReader::with_capacity(READ_BUFFER_BYTES, MultiGzDecoder::new(bytes)))
        } else {
            Box::new(bytes)
        };
        Ok(TraceReader { input, file, gzip, block_tokens, buffer: Vec::new(), lines: 0, rows: 0, ended: false })
    }

    /// Lines read so far, blank and bad ones included.
    pub fn lines(&self) -> u64 {
        self.lines
    }

    /// Reads one line into the buffer, without its end; `false` at the end of the file.
    fn next_line(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let mut limited = (&mut self.input).take(MAX_LINE_BYTES + 1);
        if limited.read_until(b'\n', &mut self.buffer)? == 0 {
            return Ok(false);
        }
        self.lines += 1;
        if self.lines == 1 && self.buffer.starts_with(BYTE_ORDER_MARK) {
            self.buffer.drain(..BYTE_ORDER_MARK.len());
        }
        while self.buffer.last().is_some_and(|byte| matches!(byte, b'\n' | b'\r')) {
            self.buffer.pop();
        }
        Ok(true)
    }

    /// Steps over the rest of a line that is too long.
    fn skip_rest_of_line(&mut self) -> io::Result<()> {
        loop {
            let available = self.input.fill_buf()?;
            if available.is_empty() {
                return Ok(());
            }
            let newline = available.iter().position(|&byte| byte == b'\n');
            let step = newline.map_or(available.len(), |at| at + 1);
            self.input.consume(step);
            if newline.is_some() {
                return Ok(());
            }
        }
    }

    /// The next row into `row`, whose memory is used again; what was in it is gone. `None` at the end.
    ///
    /// For the rest as the iterator: after [`TraceError::Row`] there may be more.
    pub fn read_into(&mut self, row: &mut TraceRow) -> Option<Result<(), TraceError>> {
        if self.ended {
            return None;
        }
        let read = self.next_row(row);
        self.ended = !matches!(read, Some(Ok(()) | Err(TraceError::Row { .. })));
        read
    }

    /// Scans the next row in the file's buffer; `false`, and nothing is read, if it is not plain or not whole there.
    fn scan_buffer(&mut self, row: &mut TraceRow) -> io::Result<bool> {
        let buffer = match self.input.fill_buf() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(false),
            other => other?,
        };
        let end = scan_row(buffer, self.block_tokens, row).filter(|end| buffer.get(*end) == Some(&b'\n'));
        let Some(end) = end else { return Ok(false) };
        self.input.consume(end + 1);
        self.lines += 1;
        (row.row, row.line) = (self.rows, self.lines);
        self.rows += 1;
        Ok(true)
    }

    fn parse_line(&self, row: u64) -> Result<TraceRow, RowFault> {
        let text = str::from_utf8(&self.buffer)
            .map_err(|error| RowFault { column: error.valid_up_to() as u64 + 1, problem: RowProblem::NotUtf8 })?;
        parse_row(text, row, self.lines, self.block_tokens)
    }

    fn next_row(&mut self, into: &mut TraceRow) -> Option<Result<(), TraceError>> {
        loop {
            match self.scan_buffer(into) {
                Ok(true) => return Some(Ok(())),
                Ok(false) => {}
                Err(cause) => return Some(Err(self.read_error(cause))),
            }
            match self.next_line() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(cause) => return Some(Err(self.read_error(cause))),
            }
            if self.buffer.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let row = self.rows;
            self.rows += 1;
            let parsed = if self.buffer.len() as u64 > MAX_LINE_BYTES {
                if let Err(cause) = self.skip_rest_of_line() {
                    return Some(Err(self.read_error(cause)));
                }
                let problem = RowProblem::TooLong { limit_bytes: MAX_LINE_BYTES };
                Err(RowFault { column: MAX_LINE_BYTES + 1, problem })
            } else if scan_row(&self.buffer, self.block_tokens, into) == Some(self.buffer.len()) {
                (into.row, into.line) = (row, self.lines);
                return Some(Ok(()));
            } else {
                self.parse_line(row)
            };
            return Some(parsed.map(|parsed| *into = parsed).map_err(|RowFault { column, problem }| TraceError::Row {
                place: Place { file: self.file.clone(), line: self.lines, column },
                problem,
            }));
        }
    }

    fn read_error(&self, cause: io::Error) -> TraceError {
        let (file, line) = (self.file.clone(), self.lines);
        match cause.kind() {
            io::ErrorKind::UnexpectedEof if self.gzip => TraceError::TruncatedGzip { file, line },
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.gzip => {
                TraceError::DamagedGzip { file, line, cause }
            }
            _ => TraceError::Read { file, line, cause },
        }
    }
}

impl Iterator for TraceReader {
    type Item = Result<TraceRow, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut row = TraceRow::default();
        self.read_into(&mut row).map(|read| read.map(|()| row))
    }
}
