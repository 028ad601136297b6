//! mockfleet: a GPU-free laboratory for LLM serving.

pub mod cli;
pub mod engine;
pub mod ids;
pub mod journal;
pub mod live;
pub mod measure;
pub mod plot;
pub mod rng;
pub mod router;
pub mod session;
pub mod sim;
pub mod time;
pub mod trace;
pub mod ui;
