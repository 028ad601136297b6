//! The command lines: what the user said, checked and turned into what it means.
//!
//! One file a program. Each holds the arguments as typed, `resolve` (pure, tested) that turns them and a configuration
//! file into the program's own configuration, and `main`, which runs it and returns the exit code: 0 fine, 1 failed,
//! 2 wrong usage.

pub mod arrival;
pub mod engine;
pub mod fleet;
pub mod input;
pub mod journal;
pub mod loadgen;
pub mod mocker;
pub mod replay;
pub mod replay_journal;
pub mod replay_output;
pub mod router;
pub mod settings;
pub mod timing;
pub mod trace;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use clap_complete::Shell;

/// Exit code for a run that failed.
pub const FAILED: u8 = 1;
/// Exit code for wrong usage.
pub const WRONG_USAGE: u8 = 2;

/// An error with the exit code that it deserves.
#[derive(Debug)]
pub struct Failure {
    code: u8,
    message: String,
}

impl Failure {
    /// The command line or the configuration is wrong.
    pub fn usage(error: impl ToString) -> Self {
        Failure { code: WRONG_USAGE, message: error.to_string() }
    }

    /// The run failed.
    pub fn run(error: impl ToString) -> Self {
        Failure { code: FAILED, message: error.to_string() }
    }
}

/// A program's arguments.
pub trait Program: Parser {
    /// Runs it.
    fn run(self) -> Result<(), Failure>;

    /// The shell to print completions for, if that is all that is wanted.
    fn completions(&self) -> Option<Shell>;
}

/// Parses the command line, runs the program, prints its error and returns its exit code.
pub fn start<P: Program>() -> ExitCode {
    crate::ui::log::init();
    let arguments = P::parse_from(std::env::args_os().map(with_dashes));
    finish(arguments)
}

/// The same for arguments that are parsed already.
pub fn finish<P: Program>(arguments: P) -> ExitCode {
    if let Some(shell) = arguments.completions() {
        print_completions(&mut P::command(), shell);
        return ExitCode::SUCCESS;
    }
    match arguments.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("error: {}", failure.message);
            ExitCode::from(failure.code)
        }
    }
}

/// Prints a shell's completions of a program.
pub fn print_completions(command: &mut clap::Command, shell: Shell) {
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, command, name, &mut script);
    say(String::from_utf8_lossy(&script));
}

/// Flags may be written with `_` as well, as configuration keys are.
pub fn with_dashes(argument: OsString) -> OsString {
    let Some(text) = argument.to_str() else { return argument };
    let Some(flag) = text.strip_prefix("--") else { return argument };
    let (name, value) = flag.split_at(flag.find('=').unwrap_or(flag.len()));
    format!("--{}{value}", name.replace('_', "-")).into()
}

/// A number on the command line: finite, or a configuration file's value would take its place.
pub(crate) fn finite(text: &str) -> Result<f64, String> {
    let number: f64 = text.parse().map_err(|_| "expected a number".to_owned())?;
    if number.is_finite() { Ok(number) } else { Err("expected a finite number".to_owned()) }
}

/// Prints to stdout. A reader that has seen enough and is gone (`| head`) is no error.
pub(crate) fn say(text: impl std::fmt::Display) {
    let mut stdout = std::io::stdout().lock();
    let written = write!(stdout, "{text}").and_then(|()| stdout.flush());
    if let Err(error) = written
        && error.kind() != std::io::ErrorKind::BrokenPipe
    {
        eprintln!("error: stdout: {error}");
        std::process::exit(FAILED.into());
    }
}

/// The runtime of a program.
pub(crate) fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::run(format!("cannot start the runtime: {error}")))
}

/// A ratio that divides or multiplies time. Beyond a million, either way, clocks lose their nanoseconds.
pub(crate) fn ratio(key: &str, value: f64) -> Result<f64, Failure> {
    if (1e-6..=1e6).contains(&value) {
        return Ok(value);
    }
    Err(Failure::usage(format!("`{key}` is {value}, expected a number above 0, from 0.000001 to 1000000")))
}

/// A span of wall time; a year is the most.
pub(crate) fn seconds(key: &str, value: f64) -> Result<f64, Failure> {
    if (0.0..=31_536_000.0).contains(&value) {
        return Ok(value);
    }
    Err(Failure::usage(format!("`{key}` is {value}, expected seconds from 0 to 31536000")))
}

/// Number of workers in one process; more are a slip of the finger.
pub(crate) fn workers(key: &str, value: Option<u32>) -> Result<u32, Failure> {
    match value.unwrap_or(1) {
        workers @ 1..=4096 => Ok(workers),
        workers => Err(Failure::usage(format!("`{key}` is {workers}, expected a whole number from 1 to 4096"))),
    }
}
