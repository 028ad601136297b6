//! Where a value stands in a line of JSON.
//!
//! The JSON parser gives values without places. For an error message the line is scanned once more, only as deep as the
//! top level of its object or the elements of one list. The scanner trusts nothing: on text that is not JSON it finds
//! nothing, and the message then points at the start of the line.

use std::ops::Range;

/// Byte range of the value of the `nth` (from 0) occurrence of the top-level key `name`.
pub(super) fn value_of(line: &str, name: &str, nth: usize) -> Option<Range<usize>> {
    let mut scan = Scan { text: line.as_bytes(), at: 0 };
    scan.expect(b'{')?;
    let mut met = 0;
    loop {
        let key = scan.value()?;
        scan.expect(b':')?;
        let value = scan.value()?;
        if key_is(&line[key], name) {
            if met == nth {
                return Some(value);
            }
            met += 1;
        }
        scan.expect(b',')?;
    }
}

/// Byte range of the `nth` (from 0) element of the list that stands at `list` in the line.
pub(super) fn element_of(line: &str, list: Range<usize>, nth: usize) -> Option<Range<usize>> {
    let mut scan = Scan { text: line.as_bytes().get(..list.end)?, at: list.start };
    scan.expect(b'[')?;
    for _ in 0..nth {
        scan.value()?;
        scan.expect(b',')?;
    }
    scan.value()
}

/// A key, in quotes as it stands in the line, against a name; a key may be written with escapes.
fn key_is(quoted: &str, name: &str) -> bool {
    if quoted.contains('\\') {
        return serde_json::from_str::<String>(quoted).is_ok_and(|key| key == name);
    }
    quoted.trim_matches('"') == name
}

struct Scan<'a> {
    text: &'a [u8],
    at: usize,
}

impl Scan<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn skip_space(&mut self) {
        while self.peek().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Steps over white space and the byte `wanted`.
    fn expect(&mut self, wanted: u8) -> Option<()> {
        self.skip_space();
        if self.peek()? != wanted {
            return None;
        }
        self.at += 1;
        Some(())
    }

    /// Steps over white space and one value, and says where the value stands.
    fn value(&mut self) -> Option<Range<usize>> {
        self.skip_space();
        let start = self.at;
        match self.peek()? {
            b'"' => self.string()?,
            b'{' | b'[' => self.nested()?,
            _ => {
                while self
                    .peek()
                    .is_some_and(|byte| !matches!(byte, b',' | b':' | b']' | b'}') && !byte.is_ascii_whitespace())
                {
                    self.at += 1;
                }
            }
        }
        (self.at > start).then_some(start..self.at)
    }

    fn string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        Some(())
    }

    fn nested(&mut self) -> Option<()> {
        let mut depth = 0usize;
        loop {
            match self.peek()? {
                b'"' => {
                    self.string()?;
                    continue;
                }
                b'{' | b'[' => depth += 1,
                b'}' | b']' => depth -= 1,
                _ => {}
            }
            self.at += 1;
            if depth == 0 {
                return Some(());
            }
        }
    }
}
