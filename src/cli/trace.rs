//! `trace`: make traces and look at them.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use clap_complete::Shell;
use serde_json::json;

use crate::cli::input::InputSettings;
use crate::cli::{Failure, Program, say};
use crate::rng::Seed;
use crate::trace::{ConversationOptions, TraceStats, conversation_like, read_all, write_rows};

/// Make traces, and tell what is in them.
#[derive(Debug, Parser)]
#[command(name = "trace", version, max_term_width = 110, allow_negative_numbers = true, arg_required_else_help = true)]
pub struct TraceArgs {
    #[command(subcommand)]
    command: Option<Command>,
    /// Print completions for a shell and exit.
    #[arg(long, value_name = "SHELL", value_enum)]
    completions: Option<Shell>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write a generated trace with the lengths and the reuse structure of the public conversation trace.
    Generate(GenerateArgs),
    /// Print lengths and prefix reuse of a trace.
    Stats(StatsArgs),
}

#[derive(Debug, Args)]
struct GenerateArgs {
    /// The file to write; gzipped if its name ends in .gz.
    #[arg(value_name = "FILE")]
    output: PathBuf,
    /// Number of requests.
    #[arg(long, value_name = "N", default_value_t = 1000)]
    num_requests: u64,
    /// Replace an existing file.
    #[arg(long)]
    force: bool,
    /// Seed of all random choices.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
}

#[derive(Debug, Args)]
struct StatsArgs {
    /// A Mooncake trace (JSON lines, also gzipped).
    #[arg(value_name = "FILE")]
    trace: PathBuf,
    #[command(flatten)]
    input: InputSettings,
    /// Print JSON on stdout, and nothing else.
    #[arg(long)]
    json: bool,
}

impl Program for TraceArgs {
    fn run(self) -> Result<(), Failure> {
        match self.command {
            Some(Command::Generate(arguments)) => generate(&arguments),
            Some(Command::Stats(arguments)) => stats(&arguments),
            None => Err(Failure::usage("no command, expected generate or stats")),
        }
    }

    fn completions(&self) -> Option<Shell> {
        self.completions
    }
}

fn generate(arguments: &GenerateArgs) -> Result<(), Failure> {
    if arguments.num_requests == 0 {
        return Err(Failure::usage("`num_requests` is 0, expected a whole number of at least 1"));
    }
    if arguments.output.exists() && !arguments.force {
        let path = arguments.output.display();
        return Err(Failure::run(format!("{path} exists already\n  hint: `--force` replaces it")));
    }
    let rows = conversation_like(Seed(arguments.seed), arguments.num_requests, &ConversationOptions::default());
    write_rows(&arguments.output, &rows).map_err(Failure::run)?;
    eprintln!("{} rows in {}", rows.len(), arguments.output.display());
    Ok(())
}

fn stats(arguments: &StatsArgs) -> Result<(), Failure> {
    let trace = read_all(&arguments.trace, &arguments.input.resolve()).map_err(Failure::run)?;
    if let Some(first) = &trace.first_skipped {
        eprintln!("note: {} bad rows were skipped; the first: {first}", trace.skipped_rows);
    }
    let stats = TraceStats::of(&trace.rows, trace.block_tokens);
    let figures = [
        ("num_requests", json!(stats.rows)),
        ("mean_input_tokens", json!(stats.input.mean_tokens)),
        ("max_input_tokens", json!(stats.input.max_tokens)),
        ("mean_output_tokens", json!(stats.output.mean_tokens)),
        ("max_output_tokens", json!(stats.output.max_tokens)),
        ("total_blocks", json!(stats.total_blocks)),
        ("distinct_blocks", json!(stats.distinct_blocks)),
        ("infinite_cache_reused_block_ratio", json!(stats.infinite_cache_reused_block_ratio())),
        ("infinite_cache_reused_token_ratio", json!(stats.infinite_cache_reused_token_ratio())),
        ("duration_ms", json!(stats.duration_ms)),
        ("distinct_timestamps", json!(stats.distinct_timestamps)),
    ];
    if arguments.json {
        let object: serde_json::Map<_, _> = figures.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
        say(format_args!("{}\n", serde_json::Value::Object(object)));
        return Ok(());
    }
    for (key, value) in figures {
        match value.as_f64().filter(|_| value.is_f64()) {
            Some(number) => say(format_args!("{key:<36}{number:>16.4}\n")),
            None => say(format_args!("{key:<36}{value:>16}\n")),
        }
    }
    Ok(())
}
