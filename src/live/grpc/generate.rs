//! The Generate call of protocol A, for any backend.
//!
//! With `stream` set, every event of the backend becomes a chunk and a last message completes the request; without, only
//! the last message is sent.

use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::{Code, Response, Status};

use crate::live::backend::{Backend, FinishReason, GenerateCall, GenerateEvent, Generation, ModelFacts, ServeError};
use crate::live::grpc::engine::generate_request::Input;
use crate::live::grpc::engine::generate_response::Response as Body;
use crate::live::grpc::engine::{GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk};
use crate::live::grpc::{OVERLAP_KEY, REJECTED_KEY, WORKER_KEY};
use crate::live::http::tokenizer::Tokenizer;

/// The stream of a Generate call.
pub type GenerateStream = BoxStream<'static, Result<GenerateResponse, Status>>;

/// Output tokens if the request does not say.
const DEFAULT_MAX_TOKENS: u32 = 16;

/// Serves one Generate call.
pub async fn generate<B: Backend>(backend: &B, request: GenerateRequest) -> Result<Response<GenerateStream>, Status> {
    let facts = backend.model().map_err(status)?;
    let streaming = request.stream;
    let call = call(request, &facts).map_err(status)?;
    let prompt_tokens = call.prompt.len() as u32;
    let generation = backend.generate(call).await.map_err(status)?;
    let (worker, overlap_blocks) = (generation.worker.clone(), generation.overlap_blocks);
    let mut response = Response::new(messages(generation, prompt_tokens, streaming));
    name_worker(response.metadata_mut(), &worker, overlap_blocks);
    Ok(response)
}

/// Names for requests that bring none.
static NEXT_NAME: AtomicU64 = AtomicU64::new(0);

fn call(request: GenerateRequest, facts: &ModelFacts) -> Result<GenerateCall, ServeError> {
    let vocab_tokens = facts.vocab_tokens;
    if let Some(rank) = request.data_parallel_rank.filter(|rank| *rank != 0) {
        return Err(ServeError::Invalid(format!("`data_parallel_rank` is {rank}, expected 0: a worker has one rank")));
    }
    let sampling = request.sampling_params.unwrap_or_default();
    if sampling.n > 1 {
        return Err(ServeError::Invalid(format!("`n` is {}, expected 1", sampling.n)));
    }
    let prompt = match request.input {
        Some(Input::Tokenized(tokenized)) => tokenized.input_ids,
        Some(Input::Text(text)) => {
            let mut ids = Vec::new();
            Tokenizer::new(vocab_tokens).encode(&text, &mut ids);
            ids
        }
        None => Vec::new(),
    };
    if prompt.is_empty() {
        return Err(ServeError::Invalid("the prompt is empty, expected at least 1 token".to_owned()));
    }
    if let Some((at, token)) = prompt.iter().enumerate().find(|(_, token)| **token >= vocab_tokens) {
        let message = format!("`input_ids[{at}]` is {token}, expected a token id below {vocab_tokens}");
        return Err(ServeError::Invalid(message));
    }
    let max_output_tokens = sampling.max_tokens.unwrap_or(DEFAULT_MAX_TOKENS);
    if prompt.len() as u64 + u64::from(max_output_tokens) > u64::from(facts.max_model_len) {
        return Err(ServeError::Invalid(format!(
            "a prompt of {} tokens and `max_tokens` {max_output_tokens} are more than the model's {} tokens",
            prompt.len(),
            facts.max_model_len
        )));
    }
    let kv_transfer_params = match request.kv_transfer_params_json.as_deref().filter(|text| !text.is_empty()) {
        Some(text) => Some(serde_json::from_str(text).map_err(|error| {
            ServeError::Invalid(format!("`kv_transfer_params_json` is {text}, expected a JSON object: {error}"))
        })?),
        None => None,
    };
    let request_id = match request.request_id {
        name if name.is_empty() => format!("grpc-{}", NEXT_NAME.fetch_add(1, Ordering::Relaxed)),
        name => name,
    };
    Ok(GenerateCall {
        request_id,
        prompt,
        max_output_tokens,
        // The wire's seed is signed: its bits are kept.
        seed: sampling.seed.map(|seed| u64::from(seed as u32)),
        kv_transfer_params,
    })
}

/// What a stream remembers for its last message.
struct Progress {
    streaming: bool,
    prompt_tokens: u32,
    cached_tokens: u32,
    completion_tokens: u32,
    output_ids: Vec<u32>,
    arrived_ns: u64,
    first_token_ns: u64,
    last_token_ns: u64,
    kv_transfer_params_json: Option<String>,
}

fn messages(generation: Generation, prompt_tokens: u32, streaming: bool) -> GenerateStream {
    let progress = Progress {
        streaming,
        prompt_tokens,
        cached_tokens: 0,
        completion_tokens: 0,
        output_ids: Vec::new(),
        arrived_ns: 0,
        first_token_ns: 0,
        last_token_ns: 0,
        kv_transfer_params_json: None,
    };
    let worker = (generation.worker, generation.overlap_blocks);
    let steps = stream::unfold(Some((generation.events, progress)), move |state| {
        let worker = worker.clone();
        async move {
            let (mut events, mut progress) = state?;
            loop {
                match events.next().await {
                    Some(Ok(GenerateEvent::Tokens { token_ids, times_ns, arrived_ns, cached_tokens })) => {
                        let chunk = progress.note(token_ids, times_ns, arrived_ns, cached_tokens);
                        if let Some(chunk) = chunk {
                            return Some((Ok(chunk), Some((events, progress))));
                        }
                    }
                    Some(Ok(GenerateEvent::Held(params))) => {
                        progress.kv_transfer_params_json = Some(params.to_string())
                    }
                    Some(Ok(GenerateEvent::Finished { reason, cached_tokens })) => {
                        return Some((Ok(progress.complete(reason, cached_tokens)), None));
                    }
                    Some(Err(error)) => {
                        let mut status = status(error);
                        name_worker(status.metadata_mut(), &worker.0, worker.1);
                        return Some((Err(status), None));
                    }
                    None => {
                        return Some((Err(Status::internal("the engine ended the request without a last word")), None));
                    }
                }
            }
        }
    });
    steps.boxed()
}

impl Progress {
    fn note(
        &mut self,
        token_ids: Vec<u32>,
        times_ns: Vec<u64>,
        arrived_ns: u64,
        cached_tokens: u32,
    ) -> Option<GenerateResponse> {
        self.arrived_ns = arrived_ns;
        self.cached_tokens = cached_tokens;
        if self.completion_tokens == 0 {
            self.first_token_ns = times_ns.first().copied().unwrap_or(0);
        }
        self.last_token_ns = times_ns.last().copied().unwrap_or(self.last_token_ns);
        self.completion_tokens += token_ids.len() as u32;
        if !self.streaming {
            self.output_ids.extend(token_ids);
            return None;
        }
        let chunk = GenerateStreamChunk {
            token_ids,
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens,
            token_times_ns: times_ns,
            arrived_ns,
            ..GenerateStreamChunk::default()
        };
        Some(GenerateResponse { response: Some(Body::Chunk(chunk)) })
    }

    fn complete(self, reason: FinishReason, cached_tokens: u32) -> GenerateResponse {
        let complete = GenerateComplete {
            output_ids: self.output_ids,
            finish_reason: reason.name().to_owned(),
            prompt_tokens: self.prompt_tokens,
            completion_tokens: self.completion_tokens,
            cached_tokens: self.cached_tokens.max(cached_tokens),
            arrived_ns: self.arrived_ns,
            first_token_ns: self.first_token_ns,
            last_token_ns: self.last_token_ns,
            kv_transfer_params_json: self.kv_transfer_params_json,
            ..GenerateComplete::default()
        };
        GenerateResponse { response: Some(Body::Complete(complete)) }
    }
}

fn name_worker(metadata: &mut MetadataMap, worker: &str, overlap_blocks: Option<u32>) {
    if let Ok(value) = MetadataValue::try_from(worker) {
        metadata.insert(WORKER_KEY, value);
    }
    if let Some(blocks) = overlap_blocks {
        metadata.insert(OVERLAP_KEY, MetadataValue::from(blocks));
    }
}

/// The gRPC status of an error.
pub fn status(error: ServeError) -> Status {
    let code = match &error {
        ServeError::Invalid(_) => Code::InvalidArgument,
        ServeError::Rejected(_) => Code::ResourceExhausted,
        ServeError::Unavailable(_) | ServeError::ShuttingDown => Code::Unavailable,
        ServeError::WorkerFailed { .. } | ServeError::Stopped => Code::Aborted,
    };
    let mut status = Status::new(code, error.to_string());
    if matches!(error, ServeError::Rejected(_)) {
        status.metadata_mut().insert(REJECTED_KEY, MetadataValue::from_static("1"));
    }
    status
}
