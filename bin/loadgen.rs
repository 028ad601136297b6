//! `loadgen`; see `loadgen --help`.

use std::process::ExitCode;

use mockfleet::cli;

fn main() -> ExitCode {
    cli::start::<cli::loadgen::LoadgenArgs>()
}
