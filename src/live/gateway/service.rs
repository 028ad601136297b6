//! The router's gRPC calls (protocol A): Generate goes to a worker, the rest tells about the fleet as a whole.

use futures_util::stream::BoxStream;
use tonic::{Request, Response, Status};

use crate::live::backend::Backend;
use crate::live::gateway::backend::GatewayBackend;
use crate::live::grpc::common::{
    FlushCacheRequest, FlushCacheResponse, GetTokenizerChunk, GetTokenizerRequest, KvEventBatch, ProfileResponse,
    StartProfileRequest, StopProfileRequest, SubscribeKvEventsRequest,
};
use crate::live::grpc::engine::vllm_engine_server::VllmEngine;
use crate::live::grpc::engine::{
    AbortRequest, AbortResponse, EmbedRequest, EmbedResponse, GenerateRequest, GetLoadsRequest, GetLoadsResponse,
    GetModelInfoRequest, GetModelInfoResponse, GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest,
    HealthCheckResponse,
};
use crate::live::grpc::generate::{GenerateStream, generate, status};

/// The service of a router.
#[derive(Clone)]
pub struct GatewayService {
    backend: GatewayBackend,
}

impl GatewayService {
    /// Calls go to `backend`.
    pub fn new(backend: GatewayBackend) -> Self {
        GatewayService { backend }
    }
}

fn ask_a_worker<T>(what: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!("a router has no {what}: ask a worker")))
}

#[tonic::async_trait]
impl VllmEngine for GatewayService {
    type GenerateStream = GenerateStream;
    type GetTokenizerStream = BoxStream<'static, Result<GetTokenizerChunk, Status>>;
    type SubscribeKvEventsStream = BoxStream<'static, Result<KvEventBatch, Status>>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<GenerateStream>, Status> {
        generate(&self.backend, request.into_inner()).await
    }

    async fn embed(&self, _: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        ask_a_worker("embeddings")
    }

    async fn health_check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(match self.backend.health() {
            Ok(()) => HealthCheckResponse { healthy: true, message: "ready".to_owned() },
            Err(error) => HealthCheckResponse { healthy: false, message: error.to_string() },
        }))
    }

    async fn flush_cache(&self, request: Request<FlushCacheRequest>) -> Result<Response<FlushCacheResponse>, Status> {
        let request = request.into_inner();
        let mut refused = Vec::new();
        for mut worker in self.backend.gate().workers() {
            let done = worker.client.flush_cache(request).await;
            if !done.is_ok_and(|answer| answer.into_inner().success) {
                refused.push(worker.url);
            }
        }
        let success = refused.is_empty();
        let message =
            if success { "all caches are empty".to_owned() } else { format!("not flushed: {}", refused.join(", ")) };
        Ok(Response::new(FlushCacheResponse { success, message }))
    }

    async fn start_profile(&self, _: Request<StartProfileRequest>) -> Result<Response<ProfileResponse>, Status> {
        ask_a_worker("profiler")
    }

    async fn stop_profile(&self, _: Request<StopProfileRequest>) -> Result<Response<ProfileResponse>, Status> {
        ask_a_worker("profiler")
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortResponse>, Status> {
        for request_id in request.into_inner().request_ids {
            self.backend.abort(&request_id).await;
        }
        Ok(Response::new(AbortResponse {}))
    }

    async fn get_model_info(&self, _: Request<GetModelInfoRequest>) -> Result<Response<GetModelInfoResponse>, Status> {
        let facts = self.backend.model().map_err(status)?;
        Ok(Response::new(GetModelInfoResponse {
            model_path: facts.model.clone(),
            served_model_name: facts.model.clone(),
            tokenizer_path: facts.model,
            is_generation: true,
            max_context_length: facts.max_model_len,
            max_req_input_len: i32::try_from(facts.max_model_len).unwrap_or(i32::MAX),
            vocab_size: facts.vocab_tokens,
            ..GetModelInfoResponse::default()
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let facts = self.backend.model().map_err(status)?;
        Ok(Response::new(GetServerInfoResponse {
            active_requests: self.backend.gate().figures().active_requests as u32,
            server_type: "mockfleet-router".to_owned(),
            data_parallel_size: 1,
            block_size: facts.block_size as i32,
            speedup_ratio: facts.speedup_ratio,
            ..GetServerInfoResponse::default()
        }))
    }

    async fn get_loads(&self, _: Request<GetLoadsRequest>) -> Result<Response<GetLoadsResponse>, Status> {
        ask_a_worker("load of its own")
    }

    async fn get_tokenizer(
        &self,
        _: Request<GetTokenizerRequest>,
    ) -> Result<Response<Self::GetTokenizerStream>, Status> {
        ask_a_worker("tokenizer bundle")
    }

    async fn subscribe_kv_events(
        &self,
        _: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        ask_a_worker("cache")
    }
}
