//! Writing a journal: a header, then line by line, with a check sum every so often and at the end.

use std::fmt;
use std::io::{self, Write};

use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::Xxh3;

use crate::journal::line::{
    AdvanceLine, EndLine, FORMAT, Header, InputLine, LINES_A_SUM, OUTPUT_START, StartLine, SumLine, VERSION,
    digest_text,
};
use crate::journal::machine::Machine;
use crate::time::SimTime;

/// How much is in a journal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JournalCounts {
    /// Machines built: 1, or more where a router lost all its workers.
    pub starts: u64,
    /// Calls that told the machine something.
    pub inputs: u64,
    /// Calls that let time pass.
    pub advances: u64,
    /// Outputs.
    pub outputs: u64,
}

impl fmt::Display for JournalCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let JournalCounts { inputs, advances, outputs, .. } = self;
        write!(f, "{inputs} inputs, {advances} wake-ups, {outputs} outputs")
    }
}

/// Writes the journal of a machine of type `M`.
///
/// Every method fails as `out` does; after an error nothing more should be written.
pub struct JournalWriter<M, W> {
    out: W,
    line: Vec<u8>,
    lines: u64,
    hash: Xxh3,
    counts: JournalCounts,
    machine: std::marker::PhantomData<fn(M)>,
}

impl<M: Machine, W: Write> JournalWriter<M, W> {
    /// Writes the header.
    pub fn new(out: W) -> io::Result<Self> {
        let mut writer = JournalWriter {
            out,
            line: Vec::new(),
            lines: 0,
            hash: Xxh3::new(),
            counts: JournalCounts::default(),
            machine: std::marker::PhantomData,
        };
        writer.json(&Header { journal: FORMAT, version: VERSION.to_owned(), machine: M::NAME.to_owned() })?;
        Ok(writer)
    }

    /// The machine is built; the calls from here on are to it.
    pub fn start(&mut self, setup: &M::Setup) -> io::Result<()> {
        self.counts.starts += 1;
        self.json(&StartLine { start: setup })
    }

    /// The machine was told something.
    pub fn input(&mut self, now: SimTime, input: &M::Input) -> io::Result<()> {
        self.counts.inputs += 1;
        self.json(&InputLine { t: now, input })
    }

    /// The machine's time passed.
    pub fn advance(&mut self, to: SimTime) -> io::Result<()> {
        self.counts.advances += 1;
        self.json(&AdvanceLine { to })
    }

    /// The last call's next output.
    pub fn output(&mut self, output: &M::Output) -> io::Result<()> {
        self.counts.outputs += 1;
        output_line(output, &mut self.line)?;
        self.write_line()
    }

    /// How much was written so far.
    pub fn counts(&self) -> JournalCounts {
        self.counts
    }

    /// Hands what was written on to the file.
    pub fn flush(&mut self) -> io::Result<()> {
        self.out.flush()
    }

    /// Writes the last lines: the sum and the counts.
    pub fn finish(mut self) -> io::Result<JournalCounts> {
        self.end()?;
        Ok(self.counts)
    }

    fn end(&mut self) -> io::Result<()> {
        self.sum()?;
        self.json(&EndLine { end: self.counts })?;
        self.out.flush()
    }

    /// As [`finish`](Self::finish), for those who want to look at what was written.
    #[cfg(test)]
    pub(super) fn finish_into(mut self) -> io::Result<W> {
        self.end()?;
        Ok(self.out)
    }

    fn sum(&mut self) -> io::Result<()> {
        let sum = digest_text(self.hash.digest());
        self.json(&SumLine { sum })
    }

    fn json(&mut self, line: &impl Serialize) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, line)?;
        self.write_line()
    }

    fn write_line(&mut self) -> io::Result<()> {
        self.line.push(b'\n');
        self.out.write_all(&self.line)?;
        self.hash.update(&self.line);
        self.lines += 1;
        // A sum is a line, too, but never the last before the next sum.
        if self.lines.is_multiple_of(LINES_A_SUM) { self.sum() } else { Ok(()) }
    }
}

/// An output's line, without its end.
pub(super) fn output_line(output: &impl Serialize, line: &mut Vec<u8>) -> serde_json::Result<()> {
    line.clear();
    line.extend_from_slice(OUTPUT_START);
    serde_json::to_writer(&mut *line, output)?;
    line.push(b'}');
    Ok(())
}
