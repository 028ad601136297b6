//! The programs as users run them: processes in a folder of their own, with a runtime folder of their own.
//!
//! Output goes to files, so nothing blocks and nobody has to read along. Whatever still runs when its handle is dropped
//! is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};

use crate::support::until;

/// The columns that `--help` is laid out for.
const COLUMNS: &str = "100";

/// Where a test's programs work.
pub struct Lab {
    folder: tempfile::TempDir,
}

/// A program that has ended.
#[derive(Debug)]
pub struct Finished {
    pub status: ExitStatus,
    pub stdout: String,
    pub stderr: String,
}

/// A program that runs.
pub struct Running {
    child: Child,
    what: String,
    stdout: PathBuf,
    stderr: PathBuf,
}

fn executable(program: &str) -> &'static str {
    match program {
        "mocker" => env!("CARGO_BIN_EXE_mocker"),
        "router" => env!("CARGO_BIN_EXE_router"),
        "loadgen" => env!("CARGO_BIN_EXE_loadgen"),
        "trace" => env!("CARGO_BIN_EXE_trace"),
        "replay" => env!("CARGO_BIN_EXE_replay"),
        "mockfleet" => env!("CARGO_BIN_EXE_mockfleet"),
        _ => panic!("no program {program}"),
    }
}

impl Lab {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for part in ["work", "logs"] {
            fs::create_dir(folder.path().join(part)).expect("a folder");
        }
        Lab { folder }
    }

    /// The folder that programs work in.
    pub fn work(&self) -> PathBuf {
        self.folder.path().join("work")
    }

    /// Writes a file into the working folder.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.work().join(name), text).expect("a written file");
    }

    /// A file of the working folder.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.work().join(name)).expect("a file")
    }

    /// Names in the working folder, sorted.
    pub fn names(&self) -> Vec<String> {
        names_in(&self.work())
    }

    /// The registrations in a namespace, sorted; lock files are none.
    pub fn registrations(&self, namespace: &str) -> Vec<String> {
        let mut names = names_in(&self.folder.path().join("runtime").join(namespace));
        names.retain(|name| !name.starts_with('.'));
        names
    }

    /// Starts a program.
    pub fn launch(&self, program: &str, arguments: &[&str]) -> Running {
        let logs = self.folder.path().join("logs");
        let number = names_in(&logs).len();
        let log = |stream: &str| logs.join(format!("{number}-{program}.{stream}"));
        let (stdout, stderr) = (log("out"), log("err"));
        let child = Command::new(executable(program))
            .args(arguments)
            .current_dir(self.work())
            .env("MOCKFLEET_RUNTIME_DIR", self.folder.path().join("runtime"))
            .env("COLUMNS", COLUMNS)
            .env("NO_COLOR", "1")
            .env_remove("RUST_LOG")
            .stdin(Stdio::null())
            .stdout(File::create(&stdout).expect("a log"))
            .stderr(File::create(&stderr).expect("a log"))
            .spawn()
            .expect("the program starts");
        Running { child, what: format!("{program} {}", arguments.join(" ")), stdout, stderr }
    }

    /// Runs a program to its end.
    pub async fn run(&self, program: &str, arguments: &[&str]) -> Finished {
        self.launch(program, arguments).end().await
    }

    /// Starts a fleet on free ports at speedup 50 and waits until all workers serve. Returns their addresses.
    pub async fn mocker(&self, workers: usize, arguments: &[&str]) -> (Running, Vec<String>) {
        let number = workers.to_string();
        let fixed = ["--num-workers", &number, "--port", "0", "--speedup-ratio", "50"];
        // A flag may be given once: a test's own replaces ours.
        let ours = fixed.chunks(2).filter(|pair| !arguments.contains(&pair[0])).flatten();
        let all: Vec<&str> = ours.chain(arguments).copied().collect();
        let mocker = self.launch("mocker", &all);
        let last = format!("worker {} at ", workers - 1);
        let out = mocker.said(&last).await;
        mocker.catches_signals().await;
        let urls = out.lines().filter_map(|line| line.split_once(" at ")?.1.split_once(": ")).map(|(url, _)| url);
        let urls: Vec<String> = urls.map(str::to_owned).collect();
        assert_eq!(urls.len(), workers, "one line a worker: {out}");
        (mocker, urls)
    }

    /// Starts a router on a free port and waits until it serves. Returns its address.
    pub async fn router(&self, arguments: &[&str]) -> (Running, String) {
        let all: Vec<&str> = ["--port", "0"].iter().chain(arguments).copied().collect();
        let router = self.launch("router", &all);
        let out = router.said("router at ").await;
        router.catches_signals().await;
        let rest = out.strip_prefix("router at ").expect("the first line names the router");
        let url = rest.split_once(": ").expect("its address ends with a colon").0.to_owned();
        (router, url)
    }
}

/// Nine good rows of a trace, one a line.
pub fn rows() -> Vec<String> {
    let row =
        |at: u32| format!(r#"{{"timestamp": {at}, "input_length": 600, "output_length": 4, "hash_ids": [0, {at}]}}"#);
    (1..10).map(row).collect()
}

fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

impl Running {
    fn output(&self) -> (String, String) {
        let read = |path: &Path| String::from_utf8_lossy(&fs::read(path).expect("a log")).into_owned();
        (read(&self.stdout), read(&self.stderr))
    }

    /// Waits until a whole line of stdout starts with `start`; returns all of stdout.
    pub async fn said(&self, start: &str) -> String {
        until(&format!("`{start}` from {}: {:?}", self.what, self.output()), async || {
            let out = self.output().0;
            let whole = &out[..out.rfind('\n').map_or(0, |end| end + 1)];
            whole.lines().any(|line| line.starts_with(start)).then(|| whole.to_owned())
        })
        .await
    }

    /// Waits until the program has its own handlers for SIGINT and SIGTERM: before that a signal just kills it.
    pub async fn catches_signals(&self) {
        if !cfg!(target_os = "linux") {
            return tokio::time::sleep(std::time::Duration::from_millis(300)).await;
        }
        let wanted = (1 << (libc::SIGINT - 1)) | (1 << (libc::SIGTERM - 1));
        until(&format!("signal handlers of {}", self.what), async || {
            let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).ok()?;
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"))?;
            let caught = u64::from_str_radix(mask.trim(), 16).ok()?;
            (caught & wanted == wanted).then_some(())
        })
        .await;
    }

    /// Sends a signal.
    pub fn signal(&self, signal: i32) {
        let pid = libc::pid_t::try_from(self.child.id()).expect("a process id");
        // SAFETY: the child is ours and not reaped, so its number belongs to nobody else; no memory is touched.
        assert_eq!(unsafe { libc::kill(pid, signal) }, 0, "a signal to {}", self.what);
    }

    /// Waits for the program's end.
    pub async fn end(mut self) -> Finished {
        let what = format!("the end of {}", self.what);
        let child = &mut self.child;
        let status = until(&what, async || child.try_wait().expect("a child")).await;
        let (stdout, stderr) = self.output();
        Finished { status, stdout, stderr }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // An error means that it has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Finished {
    /// The program did what it was asked to.
    pub fn ok(self) -> Self {
        assert_eq!(self.status.code(), Some(0), "{self:#?}");
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        self
    }

    /// The program failed with this exit code and says so in one `error:` line, on stderr alone. Returns that line.
    pub fn error(&self, code: i32) -> String {
        assert_eq!(self.status.code(), Some(code), "{self:#?}");
        assert_eq!(self.stdout, "", "{self:#?}");
        let mut errors = self.stderr.lines().filter(|line| line.to_lowercase().contains("error:"));
        let error = errors.next().unwrap_or_else(|| panic!("no error line: {self:#?}"));
        assert_eq!(errors.next(), None, "a second error: {self:#?}");
        let error = error.strip_prefix("error: ").unwrap_or_else(|| panic!("an error within a line: {self:#?}"));
        assert!(!self.stderr.contains("panicked"), "{self:#?}");
        error.to_owned()
    }

    /// Besides the error there are only its hints, or what clap says below its own.
    pub fn says_nothing_else(&self) {
        let known = ["error: ", "  hint: ", "", "Usage: ", "For more information, try", "  tip: ", "  [", "  <"];
        for line in self.stderr.lines() {
            let fine =
                known.iter().any(|start| if start.is_empty() { line.is_empty() } else { line.starts_with(start) });
            assert!(fine, "`{line}` in {self:#?}");
        }
    }
}
