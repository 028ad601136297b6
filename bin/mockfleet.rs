//! `mockfleet CMD`: all programs in one, for those whose PATH has another `router` or `trace`.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use mockfleet::cli;

/// A GPU-free laboratory for LLM serving: mock engines, a KV-aware router and a load generator.
#[derive(Debug, Parser)]
#[command(name = "mockfleet", version, max_term_width = 110)]
struct Mockfleet {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mocker(cli::mocker::MockerArgs),
    Router(cli::router::RouterArgs),
    Loadgen(cli::loadgen::LoadgenArgs),
    Replay(cli::replay::ReplayArgs),
    Trace(cli::trace::TraceArgs),
}

fn main() -> ExitCode {
    mockfleet::ui::log::init();
    match Mockfleet::parse_from(std::env::args_os().map(cli::with_dashes)).command {
        Command::Mocker(arguments) => cli::finish(arguments),
        Command::Router(arguments) => cli::finish(arguments),
        Command::Loadgen(arguments) => cli::finish(arguments),
        Command::Replay(arguments) => cli::finish(arguments),
        Command::Trace(arguments) => cli::finish(arguments),
    }
}
