//! Where registrations lie: a folder of the user's own, that nobody else can write to.
//!
//! Whoever can write there can send a router's requests wherever he likes. So the folder is made for its owner alone,
//! and one that is another user's, or writable by others, is refused instead of used.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use super::error::DiscoveryError;

/// The variable that names the folder outright.
const VARIABLE: &str = "MOCKFLEET_RUNTIME_DIR";
/// Permission for group and for all others to write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The folder that holds the namespaces: `$MOCKFLEET_RUNTIME_DIR`, else `$XDG_RUNTIME_DIR/mockfleet`, else
/// `mockfleet-<uid>` in the folder for temporary files. It need not exist yet.
///
/// An `$XDG_RUNTIME_DIR` that is not absolute or does not exist counts as not set.
pub fn runtime_dir() -> PathBuf {
    choose(env::var_os(VARIABLE), env::var_os("XDG_RUNTIME_DIR"), &env::temp_dir(), user())
}

pub(super) fn choose(own: Option<OsString>, xdg: Option<OsString>, temp: &Path, user: u32) -> PathBuf {
    if let Some(folder) = own.filter(|folder| !folder.is_empty()) {
        return PathBuf::from(folder);
    }
    match xdg.map(PathBuf::from).filter(|folder| folder.is_absolute() && folder.is_dir()) {
        Some(folder) => folder.join("mockfleet"),
        None => temp.join(format!("mockfleet-{user}")),
    }
}

/// Makes the folder, and those above it, for this user alone; one that exists must be as safe.
pub(super) fn ensure_private(folder: &Path) -> Result<(), DiscoveryError> {
    let make = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    make.map_err(|cause| DiscoveryError::file(folder, "create the folder", cause))?;
    let refused = |cause| DiscoveryError::file(folder, "look at the folder", cause);
    // A link is only as good as whoever made it, so both it and what it leads to are looked at.
    let link = fs::symlink_metadata(folder).map_err(refused)?;
    check_owner(folder, link.uid(), user())?;
    let target = fs::metadata(folder).map_err(refused)?;
    check(folder, &target, user())
}

fn check(folder: &Path, found: &Metadata, user: u32) -> Result<(), DiscoveryError> {
    check_owner(folder, found.uid(), user)?;
    check_mode(folder, found.mode())
}

pub(super) fn check_owner(folder: &Path, owner: u32, user: u32) -> Result<(), DiscoveryError> {
    if owner == user {
        return Ok(());
    }
    Err(DiscoveryError::UnsafeFolder {
        path: folder.to_path_buf(),
        fault: format!("the folder belongs to user {owner}"),
        expected: format!("one of user {user}, who runs this"),
        hint: format!("set {VARIABLE} to a folder of your own"),
    })
}

pub(super) fn check_mode(folder: &Path, mode: u32) -> Result<(), DiscoveryError> {
    if mode & WRITABLE_BY_OTHERS == 0 {
        return Ok(());
    }
    Err(DiscoveryError::UnsafeFolder {
        path: folder.to_path_buf(),
        fault: format!("others may write to the folder (mode {:03o})", mode & 0o777),
        expected: "one that only its owner may write to".to_string(),
        hint: format!("set {VARIABLE} to a folder that only you may write to"),
    })
}

fn user() -> u32 {
    // SAFETY: the call takes nothing, touches no memory of ours, and cannot fail.
    unsafe { libc::geteuid() }
}
