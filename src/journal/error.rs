//! Why a journal cannot be replayed, or what came out different.

use std::fmt;

use thiserror::Error;

use crate::time::SimTime;

/// Bytes of a long answer that are shown around the place where it differs.
const SHOWN_BEFORE: usize = 60;
const SHOWN_AFTER: usize = 140;

/// A replay that ended without an answer, or with the wrong one. Files are named as the caller named them.
#[derive(Debug, Error)]
pub enum JournalError {
    /// The file cannot be read.
    #[error("{file}: {cause}, expected a journal")]
    Unreadable {
        /// The file.
        file: String,
        /// What the system says.
        cause: std::io::Error,
    },
    /// A line is not what it should be.
    #[error("{file}:{line}: {problem}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it, and what was expected.
        problem: String,
    },
    /// Another version wrote it.
    #[error(
        "{file}:1: written by mockfleet {found}, this is {own}: only the same version is sure to give the same outputs\n  \
         hint: replay it with the version that wrote it"
    )]
    Version {
        /// The file.
        file: String,
        /// Version that wrote it.
        found: String,
        /// This version.
        own: String,
    },
    /// The machine said something else than in the run.
    #[error("{file}:{}: {}", .difference.line, .difference)]
    Differs {
        /// The file.
        file: String,
        /// Where and what.
        difference: Box<Difference>,
    },
    /// All outputs are the same, but the file is not as it was written.
    #[error(
        "{file}: something in lines {first} to {last} was changed after it was written (their check sum is another)"
    )]
    Changed {
        /// The file.
        file: String,
        /// First line that the sum is about and that is not known to be good.
        first: u64,
        /// Last line that the sum is about.
        last: u64,
    },
}

/// The first place where a replay differs from the run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// The machine.
    pub machine: &'static str,
    /// The line of the output; if the replay had one more, the line before which it should be.
    pub line: u64,
    /// Time of the call that gave the output.
    pub at: SimTime,
    /// The line of the call.
    pub call_line: u64,
    /// What the journal holds; `None` if the run had no further output.
    pub expected: Option<String>,
    /// What the machine says now; `None` if nothing more.
    pub got: Option<String>,
    /// True if the journal itself is not as it was written, up to here or shortly behind.
    pub changed: bool,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (expected, got) = (self.expected.as_deref(), self.got.as_deref());
        let same = match (expected, got) {
            (Some(expected), Some(got)) => expected.bytes().zip(got.bytes()).take_while(|(a, b)| a == b).count(),
            _ => 0,
        };
        let show = |text: Option<&str>| text.map_or_else(|| "nothing more".to_owned(), |text| excerpt(text, same));
        write!(
            f,
            "at {} (call in line {}) the {} says something else\n  expected: {}\n  got:      {}",
            self.at,
            self.call_line,
            self.machine,
            show(expected),
            show(got)
        )?;
        if self.changed {
            write!(f, "\n  hint: the journal was changed after it was written (its check sum is another)")?;
        }
        Ok(())
    }
}

/// A long text around byte `at`.
fn excerpt(text: &str, at: usize) -> String {
    let start = text.floor_char_boundary(at.saturating_sub(SHOWN_BEFORE));
    let end = text.ceil_char_boundary((at + SHOWN_AFTER).min(text.len()));
    let dots = |cut: bool| if cut { "…" } else { "" };
    format!("{}{}{}", dots(start > 0), &text[start..end], dots(end < text.len()))
}
