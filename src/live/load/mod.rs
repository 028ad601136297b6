//! The load generator's live half: it sends what the driver releases and measures what comes back.
//!
//! [`target`] learns what it talks to, [`observe`] times one request, [`transport`] sends it over [`grpc`] or [`http`],
//! [`mod@run`] paces the whole, [`results`] writes the folder and draws its pictures.

pub mod config;
pub mod grpc;
pub mod http;
pub mod observe;
pub mod results;
pub mod run;
pub mod sse;
pub mod target;
pub mod transport;

pub use config::LoadConfig;
pub use run::{LoadError, LoadResult, run};
