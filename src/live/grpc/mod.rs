//! The gRPC surface: vLLM's engine contract (protocol A), generated from proto/.
//!
//! [`generate`] serves the Generate call for any [`Backend`](crate::live::backend::Backend), [`convert`] translates cache
//! events between the wire and the engine's own types.

pub mod convert;
pub mod generate;

/// The generated messages and stubs. The nesting follows the packages' names, which the generated code relies on.
#[allow(missing_docs, clippy::all, clippy::pedantic, rustdoc::all)]
pub mod wire {
    pub mod smg {
        pub mod grpc {
            pub mod common {
                tonic::include_proto!("smg.grpc.common");
            }
        }
    }
    pub mod vllm {
        pub mod grpc {
            pub mod engine {
                tonic::include_proto!("vllm.grpc.engine");
            }
        }
    }
}

pub use wire::smg::grpc::common;
pub use wire::vllm::grpc::engine;

/// Response metadata: the worker that serves the request.
pub const WORKER_KEY: &str = "x-mockfleet-worker";
/// Response metadata: prompt blocks that the router believed to be in that worker's cache.
pub const OVERLAP_KEY: &str = "x-mockfleet-overlap-blocks";

/// Metadata of a RESOURCE_EXHAUSTED status: the request can never run, trying again or elsewhere is of no use. Without it
/// the status means that something ran out just now.
pub const REJECTED_KEY: &str = "x-mockfleet-rejected";

/// Unread bytes of a token stream; small, so that a reader who lags gets several tokens in one message.
pub const TOKEN_WINDOW_BYTES: u32 = 64 << 10;
/// Unread bytes of all streams of a connection: one slow stream holds up no other.
pub const CONNECTION_WINDOW_BYTES: u32 = 1 << 30;
