//! One worker's gRPC calls (protocol A).

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt};
use tonic::{Request, Response, Status};

use crate::engine::WorkerType;
use crate::live::backend::Backend;
use crate::live::clock::unix_seconds;
use crate::live::grpc::common::{
    EngineLoad, FlushCacheRequest, FlushCacheResponse, GetTokenizerChunk, GetTokenizerRequest, KvCacheEvent,
    KvEventBatch, KvSnapshotChunk, ProfileResponse, StartProfileRequest, StopProfileRequest, SubscribeKvEventsRequest,
};
use crate::live::grpc::convert::to_wire;
use crate::live::grpc::engine::vllm_engine_server::VllmEngine;
use crate::live::grpc::engine::{
    AbortRequest, AbortResponse, EmbedRequest, EmbedResponse, GenerateRequest, GetLoadsRequest, GetLoadsResponse,
    GetModelInfoRequest, GetModelInfoResponse, GetServerInfoRequest, GetServerInfoResponse, HealthCheckRequest,
    HealthCheckResponse, SchedulerLoad,
};
use crate::live::grpc::generate::{GenerateStream, generate};
use crate::live::kv_log::KvRead;
use crate::live::mocker::worker::WorkerBackend;

/// How often a subscriber hears the load when the cache is quiet (wall time).
const LOAD_INTERVAL: Duration = Duration::from_secs(1);

/// The service of one worker.
#[derive(Clone, Debug)]
pub struct WorkerService {
    backend: WorkerBackend,
    max_num_seqs: Option<u32>,
    max_num_batched_tokens: Option<u32>,
}

impl WorkerService {
    /// Calls go to `backend`; the limits are those of its engine, to be announced.
    pub fn new(backend: WorkerBackend, max_num_seqs: Option<u32>, max_num_batched_tokens: Option<u32>) -> Self {
        WorkerService { backend, max_num_seqs, max_num_batched_tokens }
    }

    fn used_tokens(&self) -> i32 {
        self.tokens_of(self.backend.stats().active_blocks)
    }

    fn tokens_of(&self, blocks: u32) -> i32 {
        on_wire(u64::from(blocks) * u64::from(self.backend.facts().block_size))
    }

    fn load(&self, sample: u64, load_only: bool) -> EngineLoad {
        let stats = self.backend.stats();
        EngineLoad {
            running_requests: stats.running,
            waiting_requests: stats.waiting,
            token_usage: stats.kv_cache_usage(),
            max_running_requests: self.max_num_seqs.unwrap_or(0),
            num_used_tokens: Some(self.used_tokens()),
            max_total_num_tokens: Some(self.tokens_of(stats.total_blocks)),
            sample,
            load_only,
            ..EngineLoad::default()
        }
    }
}

/// The wire's counts are 32-bit and signed; more is said as the most there is.
fn on_wire(count: u64) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

fn unsupported<T>(what: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!("a mock engine has no {what}")))
}

#[tonic::async_trait]
impl VllmEngine for WorkerService {
    type GenerateStream = GenerateStream;
    type GetTokenizerStream = BoxStream<'static, Result<GetTokenizerChunk, Status>>;
    type SubscribeKvEventsStream = BoxStream<'static, Result<KvEventBatch, Status>>;

    async fn generate(&self, request: Request<GenerateRequest>) -> Result<Response<GenerateStream>, Status> {
        generate(&self.backend, request.into_inner()).await
    }

    async fn embed(&self, _: Request<EmbedRequest>) -> Result<Response<EmbedResponse>, Status> {
        unsupported("embeddings")
    }

    async fn health_check(&self, _: Request<HealthCheckRequest>) -> Result<Response<HealthCheckResponse>, Status> {
        Ok(Response::new(match self.backend.health() {
            Ok(()) => HealthCheckResponse { healthy: true, message: "ready".to_owned() },
            Err(error) => HealthCheckResponse { healthy: false, message: error.to_string() },
        }))
    }

    async fn flush_cache(&self, _: Request<FlushCacheRequest>) -> Result<Response<FlushCacheResponse>, Status> {
        let success = self.backend.flush_cache().await;
        let message = if success { "the cache is empty" } else { "running requests hold blocks, nothing was changed" };
        Ok(Response::new(FlushCacheResponse { success, message: message.to_owned() }))
    }

    async fn start_profile(&self, _: Request<StartProfileRequest>) -> Result<Response<ProfileResponse>, Status> {
        unsupported("profiler")
    }

    async fn stop_profile(&self, _: Request<StopProfileRequest>) -> Result<Response<ProfileResponse>, Status> {
        unsupported("profiler")
    }

    async fn abort(&self, request: Request<AbortRequest>) -> Result<Response<AbortResponse>, Status> {
        for request_id in request.into_inner().request_ids {
            self.backend.abort(&request_id);
        }
        Ok(Response::new(AbortResponse {}))
    }

    async fn get_model_info(&self, _: Request<GetModelInfoRequest>) -> Result<Response<GetModelInfoResponse>, Status> {
        let facts = self.backend.facts();
        Ok(Response::new(GetModelInfoResponse {
            model_path: facts.model.clone(),
            served_model_name: facts.model.clone(),
            tokenizer_path: facts.model.clone(),
            model_type: "mock".to_owned(),
            architectures: vec!["MockForCausalLM".to_owned()],
            is_generation: true,
            max_context_length: facts.max_model_len,
            max_req_input_len: on_wire(facts.max_model_len.into()),
            vocab_size: facts.vocab_tokens,
            ..GetModelInfoResponse::default()
        }))
    }

    async fn get_server_info(
        &self,
        _: Request<GetServerInfoRequest>,
    ) -> Result<Response<GetServerInfoResponse>, Status> {
        let facts = self.backend.facts();
        let stats = self.backend.stats();
        let kv_role = match self.backend.worker_type() {
            WorkerType::Aggregated => None,
            WorkerType::Prefill => Some("kv_producer"),
            WorkerType::Decode => Some("kv_consumer"),
        };
        Ok(Response::new(GetServerInfoResponse {
            active_requests: stats.running + stats.waiting,
            uptime_seconds: self.backend.pacer().clock().wall_elapsed().as_secs_f64(),
            server_type: "mockfleet".to_owned(),
            kv_connector: kv_role.map_or_else(String::new, |_| "NixlConnector".to_owned()),
            kv_role: kv_role.unwrap_or_default().to_owned(),
            kv_engine_id: self.backend.url().to_owned(),
            data_parallel_size: 1,
            block_size: on_wire(facts.block_size.into()),
            max_num_seqs: self.max_num_seqs.map_or(0, |seqs| on_wire(seqs.into())),
            speedup_ratio: facts.speedup_ratio,
            num_gpu_blocks: stats.total_blocks,
            max_num_batched_tokens: self.max_num_batched_tokens.unwrap_or(0),
            ..GetServerInfoResponse::default()
        }))
    }

    async fn get_loads(&self, _: Request<GetLoadsRequest>) -> Result<Response<GetLoadsResponse>, Status> {
        let stats = self.backend.stats();
        let hit_rate = stats.reused_tokens_total as f64 / (stats.prompt_tokens_total.max(1)) as f64;
        let load = SchedulerLoad {
            dp_rank: 0,
            num_running_reqs: on_wire(stats.running.into()),
            num_waiting_reqs: on_wire(stats.waiting.into()),
            num_total_reqs: on_wire(u64::from(stats.running) + u64::from(stats.waiting)),
            num_used_tokens: self.used_tokens(),
            max_total_num_tokens: self.tokens_of(stats.total_blocks),
            token_usage: stats.kv_cache_usage(),
            cache_hit_rate: hit_rate,
            utilization: f64::from(stats.running) / f64::from(self.max_num_seqs.unwrap_or(u32::MAX)),
            max_running_requests: self.max_num_seqs.map_or(0, |seqs| on_wire(seqs.into())),
            ..SchedulerLoad::default()
        };
        Ok(Response::new(GetLoadsResponse {
            timestamp: format!("{:.6}", unix_seconds()),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            dp_rank_count: 1,
            loads: vec![load],
        }))
    }

    async fn get_tokenizer(
        &self,
        _: Request<GetTokenizerRequest>,
    ) -> Result<Response<Self::GetTokenizerStream>, Status> {
        unsupported("tokenizer bundle")
    }

    async fn subscribe_kv_events(
        &self,
        request: Request<SubscribeKvEventsRequest>,
    ) -> Result<Response<Self::SubscribeKvEventsStream>, Status> {
        let request = request.into_inner();
        let subscription = Subscription {
            service: self.clone(),
            newest: self.backend.shared().kv_log.watch(),
            next_event_id: request.start_sequence_number,
            ready: VecDeque::new(),
            greet: request.load_records_before_first_batch,
            loads_welcome: request.load_records_before_first_batch,
            samples: 0,
        };
        let batches = stream::unfold(subscription, |mut subscription| async move {
            subscription.next().await.map(|batch| (Ok(batch), subscription))
        });
        Ok(Response::new(batches.boxed()))
    }
}

/// Blocks in one part of a snapshot: some hundred kilobytes on the wire.
const SNAPSHOT_PART_BLOCKS: usize = 1024;

/// One subscriber of a worker's cache events: a batch an event, numbered as the event is.
struct Subscription {
    service: WorkerService,
    newest: tokio::sync::watch::Receiver<u64>,
    next_event_id: u64,
    ready: VecDeque<KvEventBatch>,
    greet: bool,
    /// Load records may be sent: the subscriber knows them, or has seen an event.
    loads_welcome: bool,
    samples: u64,
}

impl Subscription {
    async fn next(&mut self) -> Option<KvEventBatch> {
        if std::mem::take(&mut self.greet) {
            return Some(self.load_record());
        }
        loop {
            if let Some(batch) = self.ready.pop_front() {
                self.loads_welcome = true;
                return Some(batch);
            }
            // Marked as seen before reading, so that news in between wakes the next wait.
            self.newest.borrow_and_update();
            self.read();
            if !self.ready.is_empty() {
                continue;
            }
            match tokio::time::timeout(LOAD_INTERVAL, self.newest.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return None,
                Err(_) if self.loads_welcome => return Some(self.load_record()),
                Err(_) => {}
            }
        }
    }

    fn read(&mut self) {
        let block_size = self.service.backend.facts().block_size;
        match self.service.backend.shared().kv_log.read(self.next_event_id) {
            KvRead::Events(events) => {
                for event in events {
                    let batch = self.batch(event.event_id, vec![to_wire(event.event_id, &event.data, block_size)]);
                    self.ready.push_back(batch);
                    self.next_event_id = event.event_id + 1;
                }
            }
            KvRead::Snapshot { changes, next_event_id } => {
                self.next_event_id = next_event_id;
                let blocks = changes.len() as u64 - 1;
                let parts: Vec<_> = changes.chunks(SNAPSHOT_PART_BLOCKS).collect();
                for (index, part) in parts.iter().enumerate() {
                    let events = part.iter().map(|change| to_wire(0, change, block_size)).collect();
                    let mut batch = self.batch(next_event_id.saturating_sub(1), events);
                    batch.snapshot = Some(KvSnapshotChunk {
                        index: index as u32,
                        count: parts.len() as u32,
                        blocks,
                        unknown_before: 0,
                    });
                    self.ready.push_back(batch);
                }
            }
        }
    }

    /// A batch that says how busy the worker is and repeats the last number.
    fn load_record(&mut self) -> KvEventBatch {
        self.samples += 1;
        let load = Some(self.service.load(self.samples, true));
        KvEventBatch { load, ..self.batch(self.next_event_id.saturating_sub(1), Vec::new()) }
    }

    fn batch(&self, sequence_number: u64, events: Vec<KvCacheEvent>) -> KvEventBatch {
        KvEventBatch { sequence_number, timestamp: unix_seconds(), events, dp_rank: Some(0), ..KvEventBatch::default() }
    }
}
