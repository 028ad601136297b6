//! `mocker`; see `mocker --help`.

use std::process::ExitCode;

use mockfleet::cli;

fn main() -> ExitCode {
    cli::start::<cli::mocker::MockerArgs>()
}
