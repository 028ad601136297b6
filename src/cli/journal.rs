//! `--journal` of the live programs: everything that the program's machine is told, for `replay --journal`.

use std::path::PathBuf;

use clap::Args;
use serde::{Deserialize, Serialize};

use crate::cli::Failure;
use crate::journal::Machine;
use crate::live::journal::{Journal, RecordError, Tape};

/// What flags and file may set of a journal.
#[derive(Clone, Debug, Default, Args, Serialize, Deserialize)]
#[serde(default)]
pub struct JournalSettings {
    /// Write all that happens to a new file, from which `replay --journal` repeats it exactly [default: no journal].
    #[arg(long, value_name = "FILE", help_heading = "Journal")]
    journal: Option<PathBuf>,
}

/// The journal of a program that runs, if one is wanted.
pub(crate) struct Recording<M: Machine>(Option<Journal<M>>);

impl JournalSettings {
    /// Creates the file, if one is wanted.
    pub(crate) fn create<M: Machine>(&self) -> Result<Recording<M>, Failure> {
        let journal = self.journal.as_deref().map(Journal::create).transpose();
        journal.map(Recording).map_err(|error| match error {
            RecordError::Exists { .. } => Failure::usage(error),
            RecordError::File { .. } => Failure::run(error),
        })
    }
}

impl<M: Machine> Recording<M> {
    /// The way in, for the machine.
    pub(crate) fn tape(&self) -> Option<Tape<M>> {
        self.0.as_ref().map(Journal::tape)
    }

    /// Finishes the file and says what is in it. The machine has stopped before.
    pub(crate) fn finish(self) -> Result<(), Failure> {
        let Some(journal) = self.0 else { return Ok(()) };
        let path = journal.path().to_owned();
        let summary = journal.finish().map_err(Failure::run)?;
        if summary.counts.starts > 0 {
            eprintln!("journal of {} in {}", summary.counts, path.display());
        }
        if summary.waits > 0 {
            eprintln!(
                "warning: {} calls had to wait for the journal: the run was slower than without it",
                summary.waits
            );
        }
        Ok(())
    }
}
