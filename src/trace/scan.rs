//! The quick way to read a row, for the shape that nearly all rows have.
//!
//! A careful reading ([`parse_row`](super::row::parse_row)) builds a value for every number, so that it can say what
//! is wrong with it. Rows of real traces are plain: ASCII, names without escapes, whole numbers, nothing wrong. This
//! scanner reads just those, straight from the file's buffer into a row whose memory is used again. Whatever else it
//! meets, right or wrong, it gives up, and the careful reading has the word. So it never explains anything, and a row
//! that it does read must be what the careful reading makes of it (the tests hold one against the other).

use super::row::{MAX_TIME_MS, TraceRow};

/// Decimal places by whose power of ten a whole number up to 2^53 can be divided with one rounding only.
const MAX_PLACES: usize = 22;
/// Whole numbers of so many digits fit u64 for sure.
const SAFE_DIGITS: usize = 19;

/// Bits of the fields that a row has given.
mod given {
    pub(super) const INPUT: u16 = 1;
    pub(super) const OUTPUT: u16 = 1 << 1;
    pub(super) const TIMESTAMP: u16 = 1 << 2;
    pub(super) const DELAY: u16 = 1 << 3;
    pub(super) const HASHES: u16 = 1 << 4;
    pub(super) const SESSION: u16 = 1 << 5;
    pub(super) const REQUEST: u16 = 1 << 6;
    pub(super) const PRIORITY: u16 = 1 << 7;
    pub(super) const STRICT_PRIORITY: u16 = 1 << 8;
    /// Of a key that is not a field.
    pub(super) const NOTHING: u16 = 0;
}

/// Reads the row that `text` begins with and says where it ends: at the first byte after it that is neither a space nor
/// a tab nor a carriage return. Takes no line feed into a row. `row` and `line` are left as they are.
///
/// `None` if the row is not plain or `text` ends within it; the row's fields then mean nothing.
pub(super) fn scan_row(text: &[u8], block_tokens: u32, row: &mut TraceRow) -> Option<usize> {
    row.hash_ids.clear();
    (row.timestamp_ms, row.delay_ms, row.priority, row.strict_priority) = (None, None, None, None);
    row.output_token_ids = None;
    let mut scan = Scan { text, at: 0 };
    let mut seen = 0;
    scan.expect(b'{')?;
    loop {
        scan.skip_space();
        let key = scan.string()?;
        scan.expect(b':')?;
        scan.skip_space();
        let field = scan.field(key, row)?;
        if seen & field != 0 {
            return None;
        }
        seen |= field;
        scan.skip_space();
        match scan.next()? {
            b',' => {}
            b'}' => break,
            _ => return None,
        }
    }
    let lengths = given::INPUT | given::OUTPUT;
    let capacity_tokens = row.hash_ids.len() as u64 * u64::from(block_tokens);
    if seen & lengths != lengths || seen & given::HASHES != 0 && u64::from(row.input_tokens) > capacity_tokens {
        return None;
    }
    if seen & given::SESSION == 0 {
        row.session_id = None;
    }
    if seen & given::REQUEST == 0 {
        row.request_id = None;
    }
    scan.skip_space();
    Some(scan.at)
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn next(&mut self) -> Option<u8> {
        let byte = self.peek()?;
        self.at += 1;
        Some(byte)
    }

    fn skip_space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r')) {
            self.at += 1;
        }
    }

    /// Steps over white space and the byte `wanted`.
    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.skip_space();
        (self.next()? == wanted).then_some(())
    }

    /// Reads the value of `key` into the row, and says which field that was.
    fn field(&mut self, key: &[u8], row: &mut TraceRow) -> Option<u16> {
        match key {
            b"input_length" | b"input_tokens" => {
                row.input_tokens = u32::try_from(self.whole()?).ok().filter(|tokens| *tokens > 0)?;
                Some(given::INPUT)
            }
            b"output_length" | b"output_tokens" => {
                row.output_tokens = u32::try_from(self.whole()?).ok()?;
                Some(given::OUTPUT)
            }
            b"timestamp" | b"created_time" => {
                row.timestamp_ms = Some(self.time()?);
                Some(given::TIMESTAMP)
            }
            b"delay" | b"delay_ms" => {
                row.delay_ms = Some(self.time()?);
                Some(given::DELAY)
            }
            b"hash_ids" => {
                self.list(&mut row.hash_ids)?;
                Some(given::HASHES)
            }
            b"session_id" => {
                keep(&mut row.session_id, self.name()?);
                Some(given::SESSION)
            }
            b"request_id" => {
                keep(&mut row.request_id, self.name()?);
                Some(given::REQUEST)
            }
            b"priority" => {
                row.priority = Some(i32::try_from(self.whole()?).ok()?);
                Some(given::PRIORITY)
            }
            b"strict_priority" => {
                row.strict_priority = Some(u32::try_from(self.whole()?).ok()?);
                Some(given::STRICT_PRIORITY)
            }
            b"output_token_ids" => None,
            _ => self.name().map(|_| given::NOTHING),
        }
    }

    /// A string without escapes.
    fn string(&mut self) -> Option<&'a [u8]> {
        if self.next()? != b'"' {
            return None;
        }
        let rest = &self.text[self.at..];
        let length = rest.iter().position(|byte| matches!(byte, b'"' | b'\\' | ..b' ' | 0x7f..))?;
        self.at += length + 1;
        (rest[length] == b'"').then_some(&rest[..length])
    }

    /// A string or a whole number, as text.
    fn name(&mut self) -> Option<&'a str> {
        let start = self.at;
        let name = match self.peek()? {
            b'"' => self.string()?,
            _ => {
                self.whole()?;
                &self.text[start..self.at]
            }
        };
        str::from_utf8(name).ok()
    }

    /// A whole number of at least 0.
    #[inline]
    fn whole(&mut self) -> Option<u64> {
        let rest = &self.text[self.at..];
        let (number, digits) = digits(rest, 0);
        self.at += digits;
        match digits {
            0 => None,
            _ if rest[0] == b'0' && digits > 1 => None,
            1..=SAFE_DIGITS => Some(number),
            _ => str::from_utf8(&rest[..digits]).ok()?.parse().ok(),
        }
    }

    /// Milliseconds of at least 0, whole or with decimal places.
    fn time(&mut self) -> Option<f64> {
        let whole = self.whole()?;
        if self.peek() != Some(b'.') {
            return Some(whole as f64).filter(|ms| *ms <= MAX_TIME_MS);
        }
        self.at += 1;
        let (number, places) = digits(&self.text[self.at..], whole);
        self.at += places;
        // Number and power are exact, so there is one rounding, and the quotient is the f64 next to what is written.
        let all_digits = places + whole.checked_ilog10().map_or(1, |digits| digits as usize + 1);
        let exact = (1..=MAX_PLACES).contains(&places) && all_digits <= SAFE_DIGITS && number as f64 <= MAX_TIME_MS;
        exact.then(|| number as f64 / POWERS_OF_TEN[places])
    }

    fn list(&mut self, numbers: &mut Vec<u64>) -> Option<()> {
        self.expect(b'[')?;
        self.skip_space();
        if self.peek()? == b']' {
            self.at += 1;
            return Some(());
        }
        loop {
            self.skip_space();
            numbers.push(self.whole()?);
            let mut after = self.next()?;
            if !matches!(after, b',' | b']') {
                self.at -= 1;
                self.skip_space();
                after = self.next()?;
            }
            match after {
                b',' => {}
                b']' => return Some(()),
                _ => return None,
            }
        }
    }
}

/// Appends the digits that `text` begins with to a number, modulo 2^64, and says how many they are.
#[inline]
fn digits(text: &[u8], mut number: u64) -> (u64, usize) {
    let mut count = 0;
    for byte in text {
        let digit = byte.wrapping_sub(b'0');
        if digit > 9 {
            break;
        }
        number = number.wrapping_mul(10).wrapping_add(digit.into());
        count += 1;
    }
    (number, count)
}

/// Powers of ten that f64 holds exactly, by exponent.
const POWERS_OF_TEN: [f64; MAX_PLACES + 1] = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
];

/// Puts a text into a place, into its memory if there is one.
fn keep(place: &mut Option<String>, text: &str) {
    let kept = place.get_or_insert_default();
    kept.clear();
    kept.push_str(text);
}
