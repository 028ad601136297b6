//! `mockfleet CMD`: all programs in one, for those whose PATH has another `router` or `trace`.

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use clap_complete::Shell;
use mockfleet::cli;

/// A GPU-free laboratory for LLM serving: mock engines, a KV-aware router and a load generator.
#[derive(Debug, Parser)]
#[command(name = "mockfleet", version, max_term_width = 110, arg_required_else_help = true)]
struct Mockfleet {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
}

#[derive(Debug, Subcommand)]
enum Command {
    Mocker(cli::mocker::MockerArgs),
    Router(cli::router::RouterArgs),
    Loadgen(cli::loadgen::LoadgenArgs),
    Replay(Box<cli::replay::ReplayArgs>),
    Trace(cli::trace::TraceArgs),
}

fn main() -> ExitCode {
    mockfleet::ui::log::init();
    let arguments = Mockfleet::parse_from(std::env::args_os().map(cli::with_dashes));
    if let Some(shell) = arguments.completions {
        cli::print_completions(&mut Mockfleet::command(), shell);
        return ExitCode::SUCCESS;
    }
    let Some(command) = arguments.command else {
        eprintln!("error: no command, expected one of mocker, router, loadgen, replay, trace");
        return ExitCode::from(cli::WRONG_USAGE);
    };
    match command {
        Command::Mocker(arguments) => cli::finish(arguments),
        Command::Router(arguments) => cli::finish(arguments),
        Command::Loadgen(arguments) => cli::finish(arguments),
        Command::Replay(arguments) => cli::finish(*arguments),
        Command::Trace(arguments) => cli::finish(arguments),
    }
}
