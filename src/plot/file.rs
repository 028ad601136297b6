//! What can go wrong with a figure, and how a finished one reaches the disk: whole, or not at all.

use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Why a figure could not be drawn or written.
#[derive(Debug, thiserror::Error)]
pub enum PlotError {
    /// There is nothing to compare.
    #[error("a figure needs at least one run")]
    NoRuns,
    /// The embedded font does not parse.
    #[error("the embedded font cannot be read: {0}")]
    Font(#[from] ab_glyph::InvalidFont),
    /// The drawing backend refused a shape or the size of the picture.
    #[error("the picture cannot be drawn: {0}")]
    Draw(String),
    /// The picture could not be encoded as PNG.
    #[error("the picture cannot be encoded as PNG: {0}")]
    Encode(#[from] png::EncodingError),
    /// The file could not be written or renamed.
    #[error("{}: cannot write the figure: {source}", path.display())]
    Write {
        /// The file that was being written: the wanted one, or the temporary one beside it.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Writes `png` to `path` through a temporary name in the same folder, then renames it, so that a reader never sees half
/// a picture. The folder must exist; a file of that name is replaced.
pub fn write_png(path: &Path, png: &[u8]) -> Result<(), PlotError> {
    let failed_at = |path: &Path| {
        let path = path.to_path_buf();
        move |source| PlotError::Write { path, source }
    };
    let Some(name) = path.file_name() else {
        let source = io::Error::new(io::ErrorKind::InvalidInput, "the path names no file");
        return Err(failed_at(path)(source));
    };
    let mut temporary_name = OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}.tmp", std::process::id()));
    let temporary = path.with_file_name(temporary_name);

    let written = fs::write(&temporary, png)
        .map_err(failed_at(&temporary))
        .and_then(|()| fs::rename(&temporary, path).map_err(failed_at(path)));
    if written.is_err() {
        // The first error is the one worth telling; a leftover that cannot be removed adds nothing to it.
        let _ = fs::remove_file(&temporary);
    }
    written
}
