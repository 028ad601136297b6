//! Sending over gRPC (protocol A).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};

use crate::live::clock::wall_now;
use crate::live::grpc::engine::generate_request::Input;
use crate::live::grpc::engine::generate_response::Response as Body;
use crate::live::grpc::engine::vllm_engine_client::VllmEngineClient;
use crate::live::grpc::engine::{GenerateRequest, SamplingParams, TokenizedInput};
use crate::live::grpc::{CONNECTION_WINDOW_BYTES, OVERLAP_KEY, REJECTED_KEY, TOKEN_WINDOW_BYTES, WORKER_KEY};
use crate::live::load::observe::{Failure, Observation};
use crate::live::load::target::{Target, root_cause};
use crate::live::load::transport::Shot;
use crate::session::ledger::FailureKind;

/// Connections, so that a long prompt does not hold up the tokens of everybody else.
const CONNECTIONS: usize = 4;

/// Open connections.
#[derive(Clone)]
pub struct GrpcTransport {
    clients: Arc<[VllmEngineClient<Channel>]>,
    next: Arc<AtomicUsize>,
}

impl GrpcTransport {
    /// Connects.
    pub async fn open(target: &Target) -> Result<Self, String> {
        let endpoint = Endpoint::from_shared(target.http_url())
            .map_err(|error| error.to_string())?
            .connect_timeout(Duration::from_secs(5))
            .tcp_nodelay(true)
            .initial_stream_window_size(TOKEN_WINDOW_BYTES)
            .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
        let mut clients = Vec::with_capacity(CONNECTIONS);
        for _ in 0..CONNECTIONS {
            let channel = endpoint.connect().await.map_err(|error| root_cause(&error))?;
            clients.push(VllmEngineClient::new(channel).max_decoding_message_size(usize::MAX));
        }
        Ok(GrpcTransport { clients: clients.into(), next: Arc::default() })
    }

    /// Sends a request and notes its tokens.
    pub async fn send(&self, shot: Shot, observation: &mut Observation) -> Result<(), Failure> {
        let turn = self.next.fetch_add(1, Ordering::Relaxed);
        let mut client = self.clients[turn % self.clients.len()].clone();
        let request = GenerateRequest {
            request_id: shot.request_id,
            input: Some(Input::Tokenized(TokenizedInput { input_ids: shot.prompt, ..TokenizedInput::default() })),
            sampling_params: Some(SamplingParams {
                max_tokens: Some(shot.output_tokens),
                ignore_eos: true,
                n: 1,
                seed: Some(shot.seed as i32),
                ..SamplingParams::default()
            }),
            stream: true,
            ..GenerateRequest::default()
        };
        observation.sent(wall_now());
        let response = client.generate(request).await.map_err(|status| failure(&status))?;
        let text = |key: &str| response.metadata().get(key).and_then(|value| value.to_str().ok()).map(str::to_owned);
        observation.worker = text(WORKER_KEY);
        observation.overlap_blocks = text(OVERLAP_KEY).and_then(|blocks| blocks.parse().ok());
        let mut messages = response.into_inner();
        while let Some(message) = messages.message().await.map_err(|status| failure(&status))? {
            match message.response {
                Some(Body::Chunk(chunk)) => {
                    observation.tokens(wall_now(), chunk.token_ids.len() as u32);
                    observation.engine_times(chunk.arrived_ns, &chunk.token_times_ns);
                    observation.reused_tokens = Some(chunk.cached_tokens);
                }
                Some(Body::Complete(complete)) => {
                    observation.reused_tokens = Some(complete.cached_tokens);
                    return match complete.finish_reason.as_str() {
                        "length" | "stop" => Ok(()),
                        reason => {
                            Err(Failure::new(FailureKind::Stream, format!("the server ended it with `{reason}`")))
                        }
                    };
                }
                None => {}
            }
        }
        Err(Failure::new(FailureKind::Stream, "the stream ended without its last message"))
    }
}

fn failure(status: &Status) -> Failure {
    let kind = match status.code() {
        Code::InvalidArgument | Code::NotFound => FailureKind::Rejected,
        Code::ResourceExhausted if status.metadata().contains_key(REJECTED_KEY) => FailureKind::Rejected,
        Code::Unavailable | Code::ResourceExhausted => FailureKind::Unavailable,
        Code::DeadlineExceeded => FailureKind::Timeout,
        Code::Cancelled => FailureKind::Cancelled,
        _ => FailureKind::Stream,
    };
    Failure::new(kind, format!("{:?}: {}", status.code(), status.message()))
}
