//! `replay --journal`: a live run again, from its journals, without sockets and without waiting.

use std::fs::File;
use std::io::{BufReader, IsTerminal};
use std::path::{Path, PathBuf};

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::cli::{Failure, say};
use crate::journal::{JournalError, Replayed, replay};

/// The journals to repeat, instead of a trace.
#[derive(Clone, Debug, Default, Args)]
pub struct ReplayJournalArgs {
    /// Repeat live runs from the journals of `mocker`, `router` or `loadgen`, and check that every output is the same.
    #[arg(long, value_name = "FILE", num_args = 1.., exclusive = true, help_heading = "Journal")]
    journal: Vec<PathBuf>,
}

impl ReplayJournalArgs {
    /// Repeats the journals, if there are any: then that is all there is to do.
    pub(crate) fn run(&self) -> Option<Result<(), Failure>> {
        if self.journal.is_empty() { None } else { Some(replay_all(&self.journal)) }
    }
}

/// Every journal has its say, also behind one that differs.
fn replay_all(paths: &[PathBuf]) -> Result<(), Failure> {
    let mut errors = Vec::new();
    for path in paths {
        match replay_file(path) {
            Ok(replayed) => report(path, &replayed),
            Err(error) => errors.push(error.to_string()),
        }
    }
    if errors.is_empty() { Ok(()) } else { Err(Failure::run(errors.join("\nerror: "))) }
}

fn report(path: &Path, replayed: &Replayed) {
    let path = path.display();
    say(format_args!("{path}: {}: {}, identical\n", replayed.machine, replayed.counts));
    if let Some(cut) = replayed.cut {
        let how = if cut.torn { "is torn behind line" } else { "has no end behind line" };
        eprintln!("note: {path} {how} {}: its program was killed; up to there all is identical", cut.last_line);
    }
}

fn replay_file(path: &Path) -> Result<Replayed, JournalError> {
    let name = path.display().to_string();
    let unreadable = |cause| JournalError::Unreadable { file: name.clone(), cause };
    let file = File::open(path).map_err(unreadable)?;
    let bytes = file.metadata().map_err(unreadable)?.len();
    let bar = if std::io::stderr().is_terminal() { ProgressBar::new(bytes) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bytes}/{total_bytes} {wide_bar} {elapsed} gone, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let replayed = replay(&name, BufReader::with_capacity(1 << 20, bar.wrap_read(file)));
    bar.finish_and_clear();
    replayed
}
