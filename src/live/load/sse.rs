//! Server-sent events, as far as OpenAI's streams use them: `data:` lines, comments, blank lines, `[DONE]`.

/// Splits a stream of bytes into the payloads of its `data:` lines.
#[derive(Clone, Debug, Default)]
pub struct SseLines {
    buffer: Vec<u8>,
    /// Bytes of `buffer` that are known to hold no line end.
    scanned: usize,
}

impl SseLines {
    /// Takes in bytes and calls `payload` for every complete `data:` line.
    pub fn feed(&mut self, bytes: &[u8], mut payload: impl FnMut(&[u8])) {
        self.buffer.extend_from_slice(bytes);
        let mut start = 0;
        while let Some(at) = self.buffer[self.scanned..].iter().position(|byte| *byte == b'\n') {
            let end = self.scanned + at;
            let line = &self.buffer[start..end];
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if let Some(data) = line.strip_prefix(b"data:") {
                payload(data.strip_prefix(b" ").unwrap_or(data));
            }
            start = end + 1;
            self.scanned = start;
        }
        self.buffer.drain(..start);
        self.scanned = self.buffer.len();
    }
}

#[cfg(test)]
mod tests {
    use super::SseLines;

    #[test]
    fn lines_may_be_cut_anywhere() {
        let stream = b": hello\r\ndata: {\"a\":1}\r\n\r\ndata:x\n\ndata: [DONE]\n\n";
        for cut in 1..stream.len() {
            let mut lines = SseLines::default();
            let mut seen = Vec::new();
            for piece in [&stream[..cut], &stream[cut..]] {
                lines.feed(piece, |data| seen.push(String::from_utf8_lossy(data).into_owned()));
            }
            assert_eq!(seen, ["{\"a\":1}", "x", "[DONE]"], "cut at {cut}");
        }
    }
}
