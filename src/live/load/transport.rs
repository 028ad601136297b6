//! The way a request is sent, whichever protocol.

use crate::live::load::grpc::GrpcTransport;
use crate::live::load::http::HttpTransport;
use crate::live::load::observe::{Failure, Observation};
use crate::live::load::target::{Target, TargetFacts, Transport};

/// One request, ready to be sent.
#[derive(Clone, Debug)]
pub struct Shot {
    /// Its name on the wire.
    pub request_id: String,
    /// Prompt token ids.
    pub prompt: Vec<u32>,
    /// Output tokens to ask for.
    pub output_tokens: u32,
    /// Output tokens follow from it.
    pub seed: u32,
}

/// Connections to the target; cheap to clone.
#[derive(Clone)]
pub enum Connections {
    /// gRPC.
    Grpc(GrpcTransport),
    /// HTTP.
    Http(Box<HttpTransport>),
}

impl Connections {
    /// Connects, or fails with what happened.
    pub async fn open(target: &Target, facts: &TargetFacts) -> Result<Self, String> {
        match target.transport {
            Transport::Grpc => GrpcTransport::open(target).await.map(Connections::Grpc),
            Transport::Http => {
                HttpTransport::open(target, &facts.model).map(|transport| Connections::Http(Box::new(transport)))
            }
        }
    }

    /// Sends a request and notes its tokens; returns when it has ended.
    pub async fn send(&self, shot: Shot, observation: &mut Observation) -> Result<(), Failure> {
        match self {
            Connections::Grpc(transport) => transport.send(shot, observation).await,
            Connections::Http(transport) => transport.send(shot, observation).await,
        }
    }
}
