//! `--explain FILE`: one routing decision a line, with every term of every candidate.
//!
//! The lines are JSON objects in the order in which decisions were taken; `docs/explain.md` has the keys.

use std::io::{self, Write};

use crate::router::RouterConfig;
use crate::router::explain::Explained;

/// Writes decisions to `out` as they are taken. Each line is written with one call; hand over a buffered writer.
#[derive(Debug)]
pub struct ExplainWriter<W> {
    out: W,
    line: Vec<u8>,
    decisions: u64,
}

impl<W: Write> ExplainWriter<W> {
    /// A writer that has written nothing yet.
    pub fn new(out: W) -> Self {
        ExplainWriter { out, line: Vec::new(), decisions: 0 }
    }

    /// Writes one decision; `config` is that of the router that took it, whose workers have `ranks` ranks each.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn decision(&mut self, explained: &Explained, config: &RouterConfig, ranks: u32) -> io::Result<()> {
        self.line.clear();
        serde_json::to_writer(&mut self.line, &explained.line(config, ranks))?;
        self.line.push(b'\n');
        self.decisions += 1;
        self.out.write_all(&self.line)
    }

    /// How many decisions were written.
    pub fn decisions(&self) -> u64 {
        self.decisions
    }

    /// Flushes and gives `out` back.
    ///
    /// # Errors
    /// Those of `out`.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests;
