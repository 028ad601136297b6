//! The OpenAI-compatible HTTP surface, the same for a worker and for the router.
//!
//! [`routes()`] puts it in front of any [`Backend`](crate::live::backend::Backend). A request's way through the room:
//! `request` reads the body and `prompt` the prompt in it, `generate` checks both against the model and asks the
//! backend, then `reply` writes one JSON object or `stream` a chunk per event. What completions and chat do differently
//! is a table of facts in `completions` and `chat`. [`tokenizer`] turns words into token ids and back, [`error`] says
//! what went wrong in OpenAI's shape, [`headers`] names the headers.

pub mod error;
pub mod headers;
pub mod tokenizer;

mod chat;
mod completions;
mod generate;
mod prompt;
mod reply;
mod request;
mod routes;
mod stream;
mod surface;
#[cfg(test)]
mod tests;
mod tokenize;

pub use error::ApiError;
pub use headers::{OVERLAP_BLOCKS_HEADER, REQUEST_ID_HEADER, SPEEDUP_RATIO_HEADER, WORKER_HEADER};
pub use routes::{MAX_BODY_BYTES, METRICS_CONTENT_TYPE, routes};
pub use tokenizer::Tokenizer;
