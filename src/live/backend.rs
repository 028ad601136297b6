//! What a server asks of whatever makes the tokens: a worker's engine, or a router in front of many.
//!
//! The HTTP and gRPC surfaces are written once against [`Backend`]; a worker and the router differ only behind it.

use std::future::Future;

use futures_util::stream::BoxStream;
use thiserror::Error;

/// A request, with its prompt as token ids.
#[derive(Clone, Debug)]
pub struct GenerateCall {
    /// The client's name for it, or one that the server made up.
    pub request_id: String,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Output tokens wanted.
    pub max_output_tokens: u32,
    /// Seed of the output tokens; without one they follow from the request id.
    pub seed: Option<u64>,
    /// What the KV connector is told: a JSON object, as vLLM's NIXL connector has it.
    pub kv_transfer_params: Option<serde_json::Value>,
}

/// A seed as protocol A can carry it: 32 bits. Both surfaces fold, so that a request gives the same tokens whichever way
/// it comes.
pub fn fold_seed(seed: u64) -> u32 {
    (seed ^ (seed >> 32)) as u32
}

/// An accepted request.
pub struct Generation {
    /// The worker that serves it (its address), as response headers name it.
    pub worker: String,
    /// Leading prompt blocks that the router believed to be in the worker's cache; `None` on a worker itself.
    pub overlap_blocks: Option<u32>,
    /// What happens to it. Ends after [`GenerateEvent::Finished`] or an error. Dropping it cancels the request.
    pub events: BoxStream<'static, Result<GenerateEvent, ServeError>>,
}

/// What happens to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum GenerateEvent {
    /// The next output tokens: one, or several if the reader was late.
    Tokens {
        /// The tokens.
        token_ids: Vec<u32>,
        /// When the engine made each, in simulated nanoseconds since the fleet's start.
        times_ns: Vec<u64>,
        /// When the request reached the engine, on the same clock.
        arrived_ns: u64,
        /// Prompt tokens that came from the cache.
        cached_tokens: u32,
    },
    /// The prompt's blocks wait for another worker: the `kv_transfer_params` for it. Comes before the end.
    Held(serde_json::Value),
    /// The request is complete.
    Finished {
        /// Why it ended.
        reason: FinishReason,
        /// Prompt tokens that came from the cache.
        cached_tokens: u32,
    },
}

/// Why a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// All tokens asked for were made.
    Length,
    /// The server was stopped, or somebody asked to abort it.
    Abort,
}

impl FinishReason {
    /// The word for it in both protocols.
    pub fn name(self) -> &'static str {
        match self {
            FinishReason::Length => "length",
            FinishReason::Abort => "abort",
        }
    }
}

/// Why a request could not be served.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ServeError {
    /// The request itself is wrong (HTTP 400, INVALID_ARGUMENT).
    #[error("{0}")]
    Invalid(String),
    /// The request can never run on these workers (HTTP 400, RESOURCE_EXHAUSTED).
    #[error("the request can never run: {0}")]
    Rejected(String),
    /// Nobody can take the request now (HTTP 503, UNAVAILABLE).
    #[error("{0}")]
    Unavailable(String),
    /// The worker failed after it had taken the request (HTTP 502, ABORTED).
    #[error("worker {worker} failed: {message}")]
    WorkerFailed {
        /// Its address.
        worker: String,
        /// What happened.
        message: String,
    },
    /// The server is being stopped and takes no requests (HTTP 503, UNAVAILABLE).
    #[error("the server is shutting down")]
    ShuttingDown,
    /// The server was stopped while the request ran, and its grace period is over (HTTP 503, ABORTED).
    #[error("the request was aborted: the server was stopped")]
    Stopped,
}

/// Facts about the model that a server shows.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelFacts {
    /// The model's name.
    pub model: String,
    /// Longest sequence in tokens.
    pub max_model_len: u32,
    /// Token ids are below this.
    pub vocab_tokens: u32,
    /// Tokens in a KV block.
    pub block_size: u32,
    /// How many times faster than real time the fleet runs.
    pub speedup_ratio: f64,
}

/// Whatever makes the tokens.
pub trait Backend: Clone + Send + Sync + 'static {
    /// Takes a request, or says why not. Errors after this come through the events.
    fn generate(&self, call: GenerateCall) -> impl Future<Output = Result<Generation, ServeError>> + Send;

    /// The model; an error while it is not known yet (a router without workers).
    fn model(&self) -> Result<ModelFacts, ServeError>;

    /// `Ok` if requests can be served now.
    fn health(&self) -> Result<(), ServeError>;

    /// The metrics page, in the OpenMetrics text format.
    fn metrics(&self) -> String;

    /// Further facts for `/v1/models`, merged into the model's entry (the router adds its mode and its workers).
    fn model_extras(&self) -> serde_json::Map<String, serde_json::Value> {
        serde_json::Map::new()
    }
}
