//! One file a worker: written at its start, removed at its end, read by every router.
//!
//! Readers take no lock, since files appear whole (written aside, then renamed). Whoever changes the folder holds the
//! lock file, so that looking and acting are one step: two processes cannot both find a URL free, and a file judged
//! stale is not replaced by a fresh one before it is removed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::error::DiscoveryError;
use super::process::is_alive;
use super::registration::Registration;
use super::runtime_dir::{ensure_private, runtime_dir};

/// Longest name of a namespace.
const NAME_CHARACTERS: usize = 64;
/// Hidden, so that it is not taken for a registration.
const LOCK: &str = ".lock";
/// Ending of a file that is being written.
const UNFINISHED: &str = ".tmp";

/// The workers of one fleet: a folder of registrations.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
    folder: PathBuf,
}

impl Namespace {
    /// Opens a namespace of this user, and makes its folder if need be. See [`runtime_dir`](super::runtime_dir()).
    ///
    /// # Errors
    /// As [`Namespace::open_in`].
    pub fn open(name: &str) -> Result<Namespace, DiscoveryError> {
        Namespace::open_in(&runtime_dir(), name)
    }

    /// Opens a namespace below `root`, and makes both folders if need be.
    ///
    /// # Errors
    /// [`DiscoveryError::Namespace`] for a bad name, [`DiscoveryError::UnsafeFolder`] if either folder is another
    /// user's or others may write to it, [`DiscoveryError::File`] if it cannot be made.
    pub fn open_in(root: &Path, name: &str) -> Result<Namespace, DiscoveryError> {
        check_name(name)?;
        ensure_private(root)?;
        let folder = root.join(name);
        ensure_private(&folder)?;
        Ok(Namespace { name: name.to_string(), folder })
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Makes a worker known until the guard is dropped. What the same process said before of the same URL is replaced;
    /// the earlier guard then does nothing.
    ///
    /// # Errors
    /// [`DiscoveryError::Taken`] if another living process has the URL, [`DiscoveryError::PortTaken`] if this one has
    /// the port under another host, [`DiscoveryError::WorkerUrl`] or [`DiscoveryError::Value`] for a registration that
    /// nobody could use, [`DiscoveryError::UnsafeFolder`] or [`DiscoveryError::File`] if the folder fails.
    pub fn register(&self, registration: &Registration) -> Result<RegistrationGuard, DiscoveryError> {
        let registration = registration.clone().checked()?;
        // Somebody may have tidied up since the namespace was opened.
        ensure_private(&self.folder)?;
        let _lock = lock(&self.folder)?;
        let found = self.scan()?;
        found.remove_stale()?;
        self.remove_unfinished()?;
        let taken = found.live.iter().find_map(|other| self.conflict(&registration, other));
        taken.map_or(Ok(()), Err)?;
        self.write(&registration)
    }

    /// The workers whose process lives, by port, then by index. Files of the dead are removed; files that nobody can
    /// read as a registration are left out. A folder that is gone holds no workers.
    ///
    /// # Errors
    /// [`DiscoveryError::File`] if the folder cannot be read: this says nothing about the workers, so what was known of
    /// them is better kept than dropped.
    pub fn list(&self) -> Result<Vec<Registration>, DiscoveryError> {
        self.tidy().map(|found| found.live)
    }

    /// As [`Namespace::list`], with a message for every file that was left out unread, and for a folder that could not
    /// be read at all.
    pub fn list_with_problems(&self) -> (Vec<Registration>, Vec<String>) {
        match self.tidy() {
            Ok(found) => (found.live, found.problems),
            Err(error) => (Vec::new(), vec![error.to_string()]),
        }
    }

    /// Looks; if there is anything to clear away, looks again under the lock and does it.
    fn tidy(&self) -> Result<Found, DiscoveryError> {
        let found = self.scan()?;
        if found.stale.is_empty() {
            return Ok(found);
        }
        let cleared = lock(&self.folder).and_then(|_lock| {
            let found = self.scan()?;
            found.remove_stale()?;
            Ok(found)
        });
        // Who lives is known all the same.
        Ok(cleared.unwrap_or_else(|error| found.with_problem(error.to_string())))
    }

    fn conflict(&self, new: &Registration, other: &Registration) -> Option<DiscoveryError> {
        let (url, pid) = (new.url.clone(), other.pid);
        if other.pid != new.pid {
            return (other.url == new.url).then(|| DiscoveryError::Taken { namespace: self.name.clone(), url, pid });
        }
        let same_port_elsewhere = other.url != new.url && other.file_name() == new.file_name();
        same_port_elsewhere.then(|| DiscoveryError::PortTaken { url, other: other.url.clone(), pid })
    }

    /// Reads every registration there is.
    fn scan(&self) -> Result<Found, DiscoveryError> {
        let mut found = Found::default();
        for name in names_in(&self.folder)? {
            if name.starts_with('.') || !name.ends_with(".json") {
                continue;
            }
            let path = self.folder.join(&name);
            match read(&path, &name) {
                Ok(None) => {}
                Ok(Some(entry)) if is_alive(entry.pid, entry.process_started) => found.live.push(entry),
                Ok(Some(_)) => found.stale.push(path),
                Err(problem) => found.problems.push(problem),
            }
        }
        found.live.sort_by(|a, b| a.sort_key().cmp(&b.sort_key()));
        found.problems.sort();
        Ok(found)
    }

    /// Clears what writers left that were killed in the middle. Writers hold the lock, so under it nobody is at work.
    fn remove_unfinished(&self) -> Result<(), DiscoveryError> {
        let names = names_in(&self.folder)?;
        let unfinished = names.iter().filter(|name| name.starts_with('.') && name.ends_with(UNFINISHED));
        unfinished.map(|name| self.folder.join(name)).try_for_each(|path| remove_if_there(&path))
    }

    /// Writes the file aside, then puts it in its place in one step.
    fn write(&self, registration: &Registration) -> Result<RegistrationGuard, DiscoveryError> {
        let name = registration.file_name();
        let path = self.folder.join(&name);
        let aside = self.folder.join(format!(".{name}{UNFINISHED}"));
        let written = serde_json::to_vec_pretty(registration).map_err(io::Error::other).and_then(|mut text| {
            text.push(b'\n');
            let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&aside)?;
            file.write_all(&text)?;
            fs::rename(&aside, &path)?;
            Ok(file)
        });
        match written {
            Ok(file) => Ok(RegistrationGuard { path, file, removed: false }),
            Err(cause) => {
                // The first error is the one to tell; the next writer clears what is left.
                let _ = fs::remove_file(&aside);
                Err(DiscoveryError::file(&path, "write", cause))
            }
        }
    }
}

/// Keeps a registration in place; dropping it removes the file.
#[derive(Debug)]
#[must_use = "dropping the guard removes the registration"]
pub struct RegistrationGuard {
    path: PathBuf,
    /// Kept open, so that the system gives its inode number to no other file: that is how the guard knows its own.
    file: File,
    removed: bool,
}

impl RegistrationGuard {
    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Removes the registration now, and says whether that worked. One that is gone, or was replaced by a later one, is
    /// left alone.
    ///
    /// # Errors
    /// [`DiscoveryError::File`] if the folder cannot be locked or the file not removed.
    pub fn remove(mut self) -> Result<(), DiscoveryError> {
        self.remove_own()
    }

    fn remove_own(&mut self) -> Result<(), DiscoveryError> {
        if std::mem::replace(&mut self.removed, true) || !self.is_in_place()? {
            return Ok(());
        }
        let _lock = match self.path.parent() {
            Some(folder) => Some(lock(folder)?),
            None => None,
        };
        if self.is_in_place()? { remove_if_there(&self.path) } else { Ok(()) }
    }

    fn is_in_place(&self) -> Result<bool, DiscoveryError> {
        let identities = self.file.metadata().and_then(|own| Ok((own, if_there(fs::symlink_metadata(&self.path))?)));
        let (own, there) = identities.map_err(|cause| DiscoveryError::file(&self.path, "look at the file", cause))?;
        Ok(there.is_some_and(|there| (there.dev(), there.ino()) == (own.dev(), own.ino())))
    }
}

impl Drop for RegistrationGuard {
    fn drop(&mut self) {
        // Nobody is left to tell; once the process has ended, the next reader clears the file.
        let _ = self.remove_own();
    }
}

/// What lies in a namespace's folder.
#[derive(Debug, Default)]
struct Found {
    live: Vec<Registration>,
    stale: Vec<PathBuf>,
    problems: Vec<String>,
}

impl Found {
    fn remove_stale(&self) -> Result<(), DiscoveryError> {
        self.stale.iter().try_for_each(|path| remove_if_there(path))
    }

    fn with_problem(mut self, problem: String) -> Self {
        self.problems.push(problem);
        self
    }
}

/// Reads one file: `None` if it has vanished, a message if it is no registration.
fn read(path: &Path, name: &str) -> Result<Option<Registration>, String> {
    let place = path.display();
    let cannot = |cause: io::Error| format!("{place}: cannot read: {cause}");
    let Some(kind) = if_there(fs::symlink_metadata(path)).map_err(cannot)? else { return Ok(None) };
    if !kind.is_file() {
        return Err(format!("{place}: not a plain file, expected the registration of a worker"));
    }
    let Some(text) = if_there(fs::read(path)).map_err(cannot)? else { return Ok(None) };
    let parsed: Registration = serde_json::from_slice(&text).map_err(|cause| {
        let (line, column, text) = (cause.line(), cause.column(), cause.to_string());
        let fault = text.split(" at line ").next().unwrap_or_default();
        format!(
            "{place}:{line}:{column}: not the registration of a worker: {fault}\n  hint: remove the file if \
             nobody uses it"
        )
    })?;
    let entry = parsed.checked().map_err(|error| format!("{place}: {error}"))?;
    // A copy under another name would make one worker two.
    let expected = entry.file_name();
    if name == expected { Ok(Some(entry)) } else { Err(format!("{place}: holds what belongs in {expected}")) }
}

/// The names in a folder; none if there is no such folder. A name that is not UTF-8 is none of ours.
fn names_in(folder: &Path) -> Result<Vec<String>, DiscoveryError> {
    let failed = |cause| DiscoveryError::file(folder, "read the folder", cause);
    let Some(entries) = if_there(fs::read_dir(folder)).map_err(failed)? else { return Ok(Vec::new()) };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name().into_string().ok()));
    names.filter_map(Result::transpose).collect::<io::Result<_>>().map_err(failed)
}

/// Waits until nobody else changes the folder. Every holder is done within a few file operations.
fn lock(folder: &Path) -> Result<File, DiscoveryError> {
    let path = folder.join(LOCK);
    let failed = |cause| DiscoveryError::file(&path, "lock", cause);
    // Nothing is ever written to it.
    let open = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
    let file = open.map_err(failed)?;
    loop {
        match file.lock() {
            Ok(()) => return Ok(file),
            Err(cause) if cause.kind() == io::ErrorKind::Interrupted => {}
            Err(cause) => return Err(failed(cause)),
        }
    }
}

fn remove_if_there(path: &Path) -> Result<(), DiscoveryError> {
    if_there(fs::remove_file(path)).map(drop).map_err(|cause| DiscoveryError::file(path, "remove", cause))
}

/// That something is not there (any more) is an answer, not a failure.
fn if_there<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(cause) if cause.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(cause) => Err(cause),
    }
}

fn check_name(name: &str) -> Result<(), DiscoveryError> {
    let foreign = name.chars().find(|c| !(c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-')));
    let fault = match foreign {
        _ if name.is_empty() => "is empty".to_string(),
        Some(c) => format!("holds `{}`", c.escape_debug()),
        None if name.starts_with('.') => "starts with a dot".to_string(),
        None if name.len() > NAME_CHARACTERS => format!("has {} characters", name.len()),
        None => return Ok(()),
    };
    Err(DiscoveryError::Namespace { name: name.to_string(), fault })
}
