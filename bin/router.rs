//! `router`; see `router --help`.

use std::process::ExitCode;

use mockfleet::cli;

fn main() -> ExitCode {
    cli::start::<cli::router::RouterArgs>()
}
