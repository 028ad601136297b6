//! `trace`; see `trace --help`.

use std::process::ExitCode;

use mockfleet::cli;

fn main() -> ExitCode {
    cli::start::<cli::trace::TraceArgs>()
}
