//! Telling a machine again what a journal says that it was told, and comparing every answer.

use std::collections::VecDeque;
use std::io::BufRead;

use serde::de::DeserializeOwned;
use xxhash_rust::xxh3::Xxh3;

use crate::engine::Fleet;
use crate::journal::error::{Difference, JournalError};
use crate::journal::line::{
    AdvanceLine, EndLine, FORMAT, Header, InputLine, Kind, StartLine, SumLine, VERSION, digest_text,
};
use crate::journal::machine::Machine;
use crate::journal::write::{JournalCounts, output_line};
use crate::router::Router;
use crate::session::driver::Driver;
use crate::time::SimTime;

/// A replay whose outputs are those of the run, byte by byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// The machine's name.
    pub machine: &'static str,
    /// How much was replayed.
    pub counts: JournalCounts,
    /// Set if the journal has no end, as that of a process that was killed.
    pub cut: Option<Cut>,
}

/// Where a journal ends that has no end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cut {
    /// The last whole line.
    pub last_line: u64,
    /// True if part of another line follows.
    pub torn: bool,
}

/// Replays a journal up to its end, or up to its last whole line. `file` is its name in errors.
///
/// # Errors
/// The first line that is no line of a journal of this version, or whose output is another than that of the machine.
pub fn replay(file: &str, reader: impl BufRead) -> Result<Replayed, JournalError> {
    let mut lines = Lines::new(file, reader);
    let expected = "expected the header of a journal, as `mocker --journal FILE` writes it";
    if !lines.next()? {
        return Err(lines.error(1, format!("no whole line, {expected}")));
    }
    let Ok(header) = serde_json::from_slice::<Header>(lines.line()) else {
        return Err(lines.error(1, format!("another kind of file, {expected}")));
    };
    if header.journal != FORMAT {
        return Err(lines.error(1, format!("`journal` is {}, expected format {FORMAT}", header.journal)));
    }
    if header.version != VERSION {
        let (file, own) = (file.to_owned(), VERSION.to_owned());
        return Err(JournalError::Version { file, found: header.version, own });
    }
    match header.machine.as_str() {
        Fleet::NAME => Rerun::<Fleet, _>::new(lines).run(),
        Router::NAME => Rerun::<Router, _>::new(lines).run(),
        Driver::NAME => Rerun::<Driver, _>::new(lines).run(),
        other => {
            let names = [Fleet::NAME, Router::NAME, Driver::NAME].join(", ");
            Err(lines.error(1, format!("`machine` is {other}, expected one of {names}")))
        }
    }
}

/// A journal's lines, with the digest of those before the current one.
struct Lines<'a, R> {
    file: &'a str,
    reader: R,
    line: Vec<u8>,
    number: u64,
    /// Of all lines before the current one.
    hash: Xxh3,
    torn: bool,
    /// The last line with a good sum.
    good: u64,
}

impl<'a, R: BufRead> Lines<'a, R> {
    fn new(file: &'a str, reader: R) -> Self {
        Lines { file, reader, line: Vec::new(), number: 0, hash: Xxh3::new(), torn: false, good: 0 }
    }

    /// Goes to the next whole line; false if there is none.
    fn next(&mut self) -> Result<bool, JournalError> {
        self.hash.update(&self.line);
        self.line.clear();
        let read = self.reader.read_until(b'\n', &mut self.line);
        read.map_err(|cause| JournalError::Unreadable { file: self.file.to_owned(), cause })?;
        self.torn = !self.line.is_empty() && self.line.last() != Some(&b'\n');
        if self.line.is_empty() || self.torn {
            return Ok(false);
        }
        self.number += 1;
        Ok(true)
    }

    /// The current line, without its end.
    fn line(&self) -> &[u8] {
        self.line.strip_suffix(b"\n").unwrap_or(&self.line)
    }

    fn error(&self, line: u64, problem: impl Into<String>) -> JournalError {
        JournalError::Line { file: self.file.to_owned(), line, problem: problem.into() }
    }

    fn here(&self, problem: impl Into<String>) -> JournalError {
        self.error(self.number, problem)
    }

    /// Reads the current line.
    fn read<T: DeserializeOwned>(&self) -> Result<T, JournalError> {
        serde_json::from_slice(self.line()).map_err(|error| self.here(format!("not as it was written: {error}")))
    }

    /// Checks the sum in the current line.
    fn check_sum(&mut self) -> Result<(), JournalError> {
        let SumLine { sum } = self.read()?;
        if sum != digest_text(self.hash.digest()) {
            let (first, last) = (self.good + 1, self.number - 1);
            return Err(JournalError::Changed { file: self.file.to_owned(), first, last });
        }
        self.good = self.number;
        Ok(())
    }

    /// True if the next sum is wrong.
    fn next_sum_is_wrong(&mut self) -> bool {
        loop {
            if Kind::of(self.line()) == Some(Kind::Sum) {
                return self.check_sum().is_err();
            }
            if !self.next().unwrap_or(false) {
                return false;
            }
        }
    }
}

/// A machine that is told again what it was told.
struct Rerun<'a, M: Machine, R> {
    lines: Lines<'a, R>,
    /// The machine, and what it was built from.
    machine: Option<(M::Setup, M)>,
    /// Time and line of the last call.
    call: (SimTime, u64),
    outputs: Vec<M::Output>,
    /// What the last call said and the journal has not told yet, as lines.
    said: VecDeque<Vec<u8>>,
    spare: Vec<Vec<u8>>,
    counts: JournalCounts,
}

impl<'a, M: Machine, R: BufRead> Rerun<'a, M, R> {
    fn new(lines: Lines<'a, R>) -> Self {
        Rerun {
            lines,
            machine: None,
            call: (SimTime::ZERO, 1),
            outputs: Vec::new(),
            said: VecDeque::new(),
            spare: Vec::new(),
            counts: JournalCounts::default(),
        }
    }

    fn run(mut self) -> Result<Replayed, JournalError> {
        while self.lines.next()? {
            let Some(kind) = Kind::of(self.lines.line()) else {
                let expected = "expected one of `start`, `t`, `to`, `o`, `sum`, `end` as its first key";
                return Err(self.lines.here(format!("no line of a journal, {expected}")));
            };
            if matches!(kind, Kind::Start | Kind::Input | Kind::Advance | Kind::End)
                && let Some(unheard) = self.said.pop_front()
            {
                return Err(self.differs(None, Some(&unheard)));
            }
            match kind {
                Kind::Output => self.compare()?,
                Kind::Sum => self.lines.check_sum()?,
                Kind::Start => self.start()?,
                Kind::Input => {
                    let InputLine::<M::Input> { t, input } = self.lines.read()?;
                    self.counts.inputs += 1;
                    if let Some((setup, _)) = &self.machine {
                        M::check(setup, &input).map_err(|problem| self.lines.here(problem))?;
                    }
                    self.call(t, |machine, out| machine.handle(t, input, out))?;
                }
                Kind::Advance => {
                    let AdvanceLine { to } = self.lines.read()?;
                    self.counts.advances += 1;
                    self.call(to, |machine, out| machine.advance(to, out))?;
                }
                Kind::End => return self.end(),
            }
        }
        // The outputs of the last call may be cut off.
        let cut = Cut { last_line: self.lines.number, torn: self.lines.torn };
        Ok(Replayed { machine: M::NAME, counts: self.counts, cut: Some(cut) })
    }

    fn start(&mut self) -> Result<(), JournalError> {
        let StartLine { start } = self.lines.read::<StartLine<M::Setup>>()?;
        let machine = M::build(&start).map_err(|error| self.lines.here(error.to_string()))?;
        self.machine = Some((start, machine));
        self.call = (SimTime::ZERO, self.lines.number);
        self.counts.starts += 1;
        Ok(())
    }

    fn call(&mut self, at: SimTime, call: impl FnOnce(&mut M, &mut Vec<M::Output>)) -> Result<(), JournalError> {
        let (before, line) = self.call;
        if at < before {
            let problem = format!("the time is {} ns, expected at least {} ns, as in line {line}", at.0, before.0);
            return Err(self.lines.here(problem));
        }
        self.call = (at, self.lines.number);
        let Some((_, machine)) = &mut self.machine else {
            return Err(self.lines.here("a call, expected a line `start` before the first one"));
        };
        call(machine, &mut self.outputs);
        for output in self.outputs.drain(..) {
            let mut line = self.spare.pop().unwrap_or_default();
            output_line(&output, &mut line).map_err(|error| self.lines.here(error.to_string()))?;
            self.said.push_back(line);
        }
        Ok(())
    }

    /// Compares the current line with what the machine said next.
    fn compare(&mut self) -> Result<(), JournalError> {
        self.counts.outputs += 1;
        match self.said.pop_front() {
            Some(said) if said == self.lines.line() => {
                self.spare.push(said);
                Ok(())
            }
            said => {
                let expected = self.lines.line().to_vec();
                Err(self.differs(Some(&expected), said.as_deref()))
            }
        }
    }

    fn differs(&mut self, expected: Option<&[u8]>, got: Option<&[u8]>) -> JournalError {
        let text = |line: &[u8]| String::from_utf8_lossy(line).into_owned();
        let (at, call_line) = self.call;
        let difference = Difference {
            machine: M::NAME,
            line: self.lines.number,
            at,
            call_line,
            expected: expected.map(text),
            got: got.map(text),
            changed: self.lines.next_sum_is_wrong(),
        };
        JournalError::Differs { file: self.lines.file.to_owned(), difference: Box::new(difference) }
    }

    fn end(mut self) -> Result<Replayed, JournalError> {
        let EndLine { end } = self.lines.read()?;
        if end != self.counts {
            let (told, seen) = (end, self.counts);
            return Err(self.lines.here(format!("counts {told:?}, expected those of the lines before: {seen:?}")));
        }
        if self.lines.next()? || self.lines.torn {
            return Err(self.lines.error(self.lines.number + 1, "something behind the line `end`, expected nothing"));
        }
        Ok(Replayed { machine: M::NAME, counts: self.counts, cut: None })
    }
}
