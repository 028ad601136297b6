//! `replay`; see `replay --help`.

use std::process::ExitCode;

use mockfleet::cli;

fn main() -> ExitCode {
    cli::start::<cli::replay::ReplayArgs>()
}
