//! Files appear whole or not at all: written under a temporary name, then renamed.
//!
//! This protects readers and earlier results from a run that is killed in the middle. It does not wait for the disk, so
//! it is no promise against a power cut.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use super::error::MeasureError;

/// Writes `bytes` to `path`, replacing what was there in one step.
///
/// The temporary file lies in the same folder, so that the rename stays within one file system; it is removed if
/// anything fails. The folder must exist.
///
/// # Errors
/// [`MeasureError::File`] with `path` if the folder is missing or not writable, or the disk is full.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> Result<(), MeasureError> {
    let temporary = temporary_beside(path).map_err(|cause| MeasureError::writing(path, cause))?;
    let written =
        create(&temporary).and_then(|mut file| file.write_all(bytes)).and_then(|()| fs::rename(&temporary, path));
    written.map_err(|cause| {
        // The first error is the one to tell; a temporary file that was never made cannot be removed either.
        let _ = fs::remove_file(&temporary);
        MeasureError::writing(path, cause)
    })
}

/// A file that is written bit by bit and gets its name when it is whole; dropped before, it leaves nothing.
#[derive(Debug)]
pub struct PendingFile {
    path: PathBuf,
    temporary: PathBuf,
    /// `None` when all is done.
    file: Option<BufWriter<File>>,
}

impl PendingFile {
    /// Begins a file that will be at `path`, whose folder must exist.
    ///
    /// # Errors
    /// [`MeasureError::File`] with `path` if the folder is missing or not writable.
    pub fn create(path: &Path) -> Result<Self, MeasureError> {
        let writing = |cause| MeasureError::writing(path, cause);
        let temporary = temporary_beside(path).map_err(writing)?;
        let file = create(&temporary).map_err(writing)?;
        Ok(PendingFile { path: path.to_owned(), temporary, file: Some(BufWriter::new(file)) })
    }

    /// Gives the file its name, replacing what was there.
    ///
    /// # Errors
    /// [`MeasureError::File`] if the disk is full or the file cannot be renamed.
    pub fn finish(mut self) -> Result<(), MeasureError> {
        let renamed = self.flush().and_then(|()| fs::rename(&self.temporary, &self.path));
        renamed.map_err(|cause| MeasureError::writing(&self.path, cause))?;
        self.file = None;
        Ok(())
    }
}

impl Write for PendingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.as_mut().map_or(Ok(bytes.len()), |file| file.write(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.as_mut().map_or(Ok(()), BufWriter::flush)
    }
}

impl Drop for PendingFile {
    fn drop(&mut self) {
        if self.file.take().is_some() {
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Reads a whole UTF-8 text file.
pub(super) fn read_text(path: &Path) -> Result<String, MeasureError> {
    fs::read_to_string(path).map_err(|cause| MeasureError::reading(path, cause))
}

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// A name that no other writer uses: two threads differ by the count, two processes by their number.
fn temporary_beside(path: &Path) -> io::Result<PathBuf> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let write = WRITES.fetch_add(1, Ordering::Relaxed);
    let temporary = format!(".{}.{}-{write}.tmp", name.to_string_lossy(), std::process::id());
    Ok(path.with_file_name(temporary))
}
