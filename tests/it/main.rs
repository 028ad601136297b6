//! The one integration binary: what users and other programs may rely on.

mod failover;
mod gateway;
mod golden;
mod handoff;
mod journal;
mod lab;
mod programs;
mod reference_runs;
mod replay;
mod replay_determinism;
mod replay_program;
mod replay_stuck;
mod runs;
mod session_cases;
mod support;
mod tidy;
mod worker;
