//! The thread that writes a live machine's journal, and the machine that it listens to.
//!
//! A [`Recorded`] machine passes every call on and hands a copy of it, with its outputs, to the thread's channel; text
//! is made and written there, so that the machine's thread does not wait for the disk. The channel has a limit. If the disk
//! is so slow that it is reached the machine waits after all, and both log and summary say so: a journal with a gap would
//! be worth nothing. If nothing can be written any more, as on a full disk, the run goes on and the journal is reported as
//! failed.
//!
//! What was written is handed to the system a few times a second, so a killed process leaves all but its last moments.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use thiserror::Error;

use crate::journal::{JournalCounts, JournalWriter, Machine};
use crate::live::clock::wall_now;
use crate::time::SimTime;

/// Calls that may wait to be written.
const MOST_WAITING: usize = 8192;
/// Wall time after which what was written is handed to the system.
const FLUSH_INTERVAL: Duration = Duration::from_millis(200);
const BUFFER_BYTES: usize = 256 << 10;

/// Why there is no journal, or only a part of one.
#[derive(Debug, Error)]
pub enum RecordError {
    /// The file is there already.
    #[error("{}: there is a file already, and a journal overwrites nothing\n  hint: remove it, or name another", path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The file system refused.
    #[error("{}: cannot write the journal: {cause}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        cause: io::Error,
    },
}

/// What a finished journal holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordSummary {
    /// How much is in it.
    pub counts: JournalCounts,
    /// How often the machine had to wait for the journal.
    pub waits: u64,
}

/// What is to be written down.
enum Entry<M: Machine> {
    Start(M::Setup),
    Input(SimTime, M::Input, Vec<M::Output>),
    Advance(SimTime, Vec<M::Output>),
    /// Nothing more comes.
    End,
}

/// What the two ends of the channel know of each other.
#[derive(Debug, Default)]
struct Shared {
    path: PathBuf,
    waits: AtomicU64,
    failed: AtomicBool,
}

/// The way into a journal; cheap to clone.
pub struct Tape<M: Machine> {
    sender: SyncSender<Entry<M>>,
    shared: Arc<Shared>,
}

impl<M: Machine> Clone for Tape<M> {
    fn clone(&self) -> Self {
        Tape { sender: self.sender.clone(), shared: self.shared.clone() }
    }
}

impl<M: Machine> Tape<M> {
    fn is_open(&self) -> bool {
        !self.shared.failed.load(Ordering::Relaxed)
    }

    /// Hands an entry over. One that comes after the journal was finished is none of the run's.
    fn put(&self, entry: Entry<M>) {
        let Err(TrySendError::Full(entry)) = self.sender.try_send(entry) else { return };
        if self.shared.waits.fetch_add(1, Ordering::Relaxed) == 0 {
            let path = self.shared.path.display();
            tracing::warn!("{path}: the journal lags {MOST_WAITING} calls behind, the run waits for it");
        }
        let _ = self.sender.send(entry);
    }
}

/// A machine that tells its journal, if it has one, of every call. Reading it needs no call.
pub struct Recorded<M: Machine> {
    machine: M,
    tape: Option<Tape<M>>,
}

impl<M: Machine> Recorded<M> {
    /// Builds a machine, whose journal begins (or begins anew) here.
    ///
    /// # Errors
    /// The first value of the setup that is out of range.
    pub fn build(setup: M::Setup, tape: Option<Tape<M>>) -> Result<Self, M::Error> {
        let machine = M::build(&setup)?;
        if let Some(tape) = &tape {
            tape.put(Entry::Start(setup));
        }
        Ok(Recorded { machine, tape })
    }

    fn tape(&self) -> Option<&Tape<M>> {
        self.tape.as_ref().filter(|tape| tape.is_open())
    }

    /// Something arrived at `now`.
    pub fn handle(&mut self, now: SimTime, input: M::Input, out: &mut Vec<M::Output>) {
        if self.tape().is_none() {
            return self.machine.handle(now, input, out);
        }
        let (copy, before) = (input.clone(), out.len());
        self.machine.handle(now, input, out);
        if let Some(tape) = &self.tape {
            tape.put(Entry::Input(now, copy, out[before..].to_vec()));
        }
    }

    /// Time has passed up to `to`, inclusive.
    pub fn advance(&mut self, to: SimTime, out: &mut Vec<M::Output>) {
        let before = out.len();
        self.machine.advance(to, out);
        if let Some(tape) = self.tape() {
            tape.put(Entry::Advance(to, out[before..].to_vec()));
        }
    }
}

impl<M: Machine> std::ops::Deref for Recorded<M> {
    type Target = M;

    fn deref(&self) -> &M {
        &self.machine
    }
}

/// A journal that is being written. Dropped before a machine was built, it leaves no file behind.
pub struct Journal<M: Machine> {
    tape: Tape<M>,
    thread: Option<JoinHandle<io::Result<JournalCounts>>>,
}

impl<M: Machine> Journal<M> {
    /// Creates the file, which must not be there yet, and starts the thread that writes it.
    ///
    /// # Errors
    /// The file exists or cannot be created.
    pub fn create(path: &Path) -> Result<Self, RecordError> {
        let failed = |cause: io::Error| match cause.kind() {
            io::ErrorKind::AlreadyExists => RecordError::Exists { path: path.to_owned() },
            _ => RecordError::File { path: path.to_owned(), cause },
        };
        let file = OpenOptions::new().write(true).create_new(true).open(path).map_err(failed)?;
        let (sender, receiver) = sync_channel(MOST_WAITING);
        let shared = Arc::new(Shared { path: path.to_owned(), ..Shared::default() });
        let thread_shared = shared.clone();
        #[expect(clippy::disallowed_methods, reason = "a disk may block for long, which no task may")]
        let thread = std::thread::Builder::new()
            .name("journal".to_owned())
            .spawn(move || write(&thread_shared, file, &receiver))
            .map_err(failed)?;
        Ok(Journal { tape: Tape { sender, shared }, thread: Some(thread) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.tape.shared.path
    }

    /// The way in.
    pub fn tape(&self) -> Tape<M> {
        self.tape.clone()
    }

    /// Writes what was handed over until now, and the end. The machine has stopped before.
    ///
    /// # Errors
    /// Something could not be written; the journal ends before it.
    pub fn finish(mut self) -> Result<RecordSummary, RecordError> {
        let shared = self.tape.shared.clone();
        match self.end() {
            Ok(counts) => Ok(RecordSummary { counts, waits: shared.waits.load(Ordering::Relaxed) }),
            Err(cause) => Err(RecordError::File { path: shared.path.clone(), cause }),
        }
    }

    fn end(&mut self) -> io::Result<JournalCounts> {
        let Some(thread) = self.thread.take() else { return Ok(JournalCounts::default()) };
        // A thread that is gone already needs no word.
        let _ = self.tape.sender.send(Entry::End);
        thread.join().unwrap_or_else(|_| Err(io::Error::other("the thread that writes it panicked")))
    }
}

impl<M: Machine> Drop for Journal<M> {
    fn drop(&mut self) {
        // Whoever wants to know has called `finish`.
        let _ = self.end();
    }
}

/// The thread: writes until the end, and goes on listening if it cannot write any more.
fn write<M: Machine>(shared: &Shared, file: File, entries: &Receiver<Entry<M>>) -> io::Result<JournalCounts> {
    let written = write_all(file, entries);
    match &written {
        Ok(counts) if counts.starts == 0 => {
            // No machine, no journal; a file that cannot be removed tells the same.
            let _ = std::fs::remove_file(&shared.path);
        }
        Ok(_) => {}
        Err(cause) => {
            shared.failed.store(true, Ordering::Relaxed);
            tracing::error!("{}: {cause}: the journal ends here, the run goes on without it", shared.path.display());
            while let Ok(entry) = entries.recv() {
                if matches!(entry, Entry::End) {
                    break;
                }
            }
        }
    }
    written
}

fn write_all<M: Machine>(file: File, entries: &Receiver<Entry<M>>) -> io::Result<JournalCounts> {
    let mut writer = JournalWriter::<M, _>::new(BufWriter::with_capacity(BUFFER_BYTES, file))?;
    let mut flushed = wall_now();
    loop {
        let outputs = match entries.recv_timeout(FLUSH_INTERVAL) {
            Ok(Entry::Start(setup)) => {
                writer.start(&setup)?;
                Vec::new()
            }
            Ok(Entry::Input(now, input, outputs)) => {
                writer.input(now, &input)?;
                outputs
            }
            Ok(Entry::Advance(to, outputs)) => {
                writer.advance(to)?;
                outputs
            }
            Err(RecvTimeoutError::Timeout) => Vec::new(),
            Ok(Entry::End) | Err(RecvTimeoutError::Disconnected) => return writer.finish(),
        };
        for output in &outputs {
            writer.output(output)?;
        }
        let now = wall_now();
        if now.duration_since(flushed) >= FLUSH_INTERVAL {
            writer.flush()?;
            flushed = now;
        }
    }
}

#[cfg(test)]
mod tests;
