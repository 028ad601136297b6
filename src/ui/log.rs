//! The log: warnings and errors by default, `RUST_LOG` for more (`RUST_LOG=info`, `RUST_LOG=mockfleet=debug`).

use std::io::IsTerminal;

use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

/// Sends the log to stderr. Called once, at the start of a program.
pub fn init() {
    let wish = std::env::var("RUST_LOG").unwrap_or_default();
    let (filter, problem) = match wish.parse::<Targets>() {
        Ok(filter) if !wish.is_empty() => (filter, None),
        Ok(_) => (Targets::new().with_default(tracing::Level::WARN), None),
        Err(error) => (Targets::new().with_default(tracing::Level::WARN), Some(error)),
    };
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .with_target(false)
        .without_time();
    // A second call would fail: then a log is set up already, which is all that is wanted.
    let _ = tracing_subscriber::registry().with(lines).with(filter).try_init();
    if let Some(error) = problem {
        tracing::warn!("RUST_LOG is `{wish}`: {error}; showing warnings and errors");
    }
}
