//! mockfleet: a GPU-free laboratory for LLM serving.

pub mod ids;
pub mod rng;
pub mod session;
pub mod time;
