//! Tests of the room, one file an idea.

mod folders;
mod listing;
mod liveness;
#[cfg(target_os = "linux")]
mod proc_stat;
mod static_list;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use super::*;

/// No names, no messages.
const NOTHING: [&str; 0] = [];

/// A worker of this process.
fn worker(port: u16, worker_index: u32) -> Registration {
    let pid = std::process::id();
    Registration {
        worker_type: Default::default(),
        url: format!("http://127.0.0.1:{port}"),
        pid,
        process_started: process_started(pid),
        worker_index,
        model: "mock-8b".to_string(),
        block_size: 16,
        num_gpu_blocks: 4096,
        speedup_ratio: 10.0,
        version: "0.1.0".to_string(),
    }
}

/// The same, of another process.
fn worker_of(pid: u32, port: u16) -> Registration {
    Registration { pid, process_started: process_started(pid), ..worker(port, 0) }
}

/// A process that lasts until it is dropped.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").stdout(Stdio::null()).spawn().unwrap())
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn kill(&mut self) {
        self.0.kill().unwrap();
    }

    fn reap(&mut self) {
        self.0.wait().unwrap();
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn namespace() -> (TempDir, Namespace) {
    let root = tempfile::tempdir().unwrap();
    let namespace = Namespace::open_in(root.path(), "test").unwrap();
    (root, namespace)
}

/// Names of the registrations on disk.
fn files(namespace: &Namespace) -> Vec<String> {
    let entries = fs::read_dir(namespace.folder()).unwrap();
    let mut names: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.retain(|name| name != ".lock");
    names.sort();
    names
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}
