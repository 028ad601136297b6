//! What the live tests share: fleets and routers of their own, clients, programs as processes, and waits with a limit.
//!
//! Nothing here asserts how long something takes: waits poll, and give up after a time that only a hang can reach.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use mockfleet::engine::{EngineConfig, TimingModel};
use mockfleet::live::discovery::runtime_dir;
use mockfleet::live::gateway::gate::WorkerClient;
use mockfleet::live::gateway::{self, Gateway, GatewayConfig, GatewayError};
use mockfleet::live::grpc::engine::generate_request::Input;
use mockfleet::live::grpc::engine::generate_response::Response as Body;
use mockfleet::live::grpc::engine::{
    GenerateComplete, GenerateRequest, GenerateResponse, GenerateStreamChunk, GetLoadsRequest, SamplingParams,
    SchedulerLoad, TokenizedInput,
};
use mockfleet::live::grpc::{OVERLAP_KEY, WORKER_KEY};
use mockfleet::live::mocker::{self, Fleet, MockerConfig};
use mockfleet::router::{RouterConfig, RouterMode};
use serde_json::Value;
use tonic::metadata::MetadataMap;
use tonic::{Status, Streaming};

/// A test that takes longer hangs.
const TEST_LIMIT: Duration = Duration::from_secs(40);
/// Something that has not happened by then will not.
pub const WAIT_LIMIT: Duration = Duration::from_secs(15);
/// Tokens of a request that lasts as long as its test.
pub const ENDLESS: u32 = 10_000;
/// Tokens in a KV block of a test's fleet.
pub const BLOCK: u32 = 16;

/// A router's metric: workers that take requests.
pub const WORKERS: &str = "mockfleet_router_workers";
/// A router's metric: requests in flight.
pub const ACTIVE: &str = "mockfleet_router_active_requests";

/// Runs a test's body; one that hangs fails.
pub fn live(body: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let ended = runtime.block_on(async { tokio::time::timeout(TEST_LIMIT, body).await });
    runtime.shutdown_timeout(Duration::from_secs(1));
    ended.expect("the test hangs");
}

/// Waits for one thing that must happen.
pub async fn soon<T>(what: &str, happening: impl Future<Output = T>) -> T {
    let waited = tokio::time::timeout(WAIT_LIMIT, happening).await;
    waited.unwrap_or_else(|_| panic!("{what}: not within {} s", WAIT_LIMIT.as_secs()))
}

/// Asks until there is an answer.
pub async fn until<T>(what: &str, mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    soon(what, async {
        loop {
            if let Some(answer) = ask().await {
                return answer;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
}

/// A namespace of its own, in the user's runtime folder; its folder goes with it.
pub struct Space(pub String);

impl Space {
    pub fn new() -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        Arc::new(Space(format!("test-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))))
    }
}

impl Drop for Space {
    fn drop(&mut self) {
        // What is left is a lock file; a test that failed may leave more.
        let _ = std::fs::remove_dir_all(runtime_dir().join(&self.0));
    }
}

/// A fleet of one fast worker with a small cache, to be edited.
fn mocker_config(space: &Space) -> MockerConfig {
    MockerConfig {
        num_workers: 1,
        host: Ipv4Addr::LOCALHOST.into(),
        port: 0,
        namespace: space.0.clone(),
        speedup_ratio: 100.0,
        model: "mock-model".to_owned(),
        vocab_tokens: 1 << 20,
        announced_model_len: 1 << 20,
        seed: 0,
        handoff_timeout: Duration::from_secs(30),
        grace: Duration::from_millis(200),
        engine: EngineConfig {
            num_gpu_blocks: 1024,
            block_size: BLOCK,
            timing_model: TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 },
            ..EngineConfig::default()
        },
    }
}

/// An edit for fleets whose requests must still run when the test acts: a token takes 5 ms of wall time.
pub fn slow(config: &mut MockerConfig) {
    config.speedup_ratio = 1.0;
    config.engine.timing_model = TimingModel::Fixed { prefill_ms: 5.0, decode_ms: 5.0 };
}

/// A fleet in this process.
pub struct TestFleet {
    pub fleet: Fleet,
    pub space: Arc<Space>,
}

impl TestFleet {
    pub async fn start(edit: impl FnOnce(&mut MockerConfig)) -> Self {
        Self::start_in(&Space::new(), edit).await
    }

    pub async fn start_in(space: &Arc<Space>, edit: impl FnOnce(&mut MockerConfig)) -> Self {
        let mut config = mocker_config(space);
        edit(&mut config);
        let fleet = mocker::start(&config).await.expect("the fleet starts");
        TestFleet { fleet, space: space.clone() }
    }

    pub fn url(&self, worker: usize) -> String {
        self.fleet.urls()[worker].clone()
    }

    pub async fn client(&self, worker: usize) -> WorkerClient {
        connect(&self.url(worker)).await
    }
}

/// A fleet of so many workers, a router that knows them all, and a client of it.
pub async fn routed(mode: RouterMode, workers: u32) -> (TestFleet, Gateway, WorkerClient) {
    let fleet = TestFleet::start(|config| config.num_workers = workers).await;
    let gateway = start_gateway(&fleet.space, mode, |_| {}).await.expect("the router starts");
    until_metric(&url(&gateway), WORKERS, |up| up == f64::from(workers)).await;
    let client = connect(&url(&gateway)).await;
    (fleet, gateway, client)
}

/// Starts a router in this process, on any free port, for the workers of a namespace.
pub async fn start_gateway(
    space: &Space,
    mode: RouterMode,
    edit: impl FnOnce(&mut GatewayConfig),
) -> Result<Gateway, GatewayError> {
    let mut config = GatewayConfig {
        router: RouterConfig { router_mode: mode, ..RouterConfig::default() },
        address: (Ipv4Addr::LOCALHOST, 0).into(),
        namespace: space.0.clone(),
        workers: Vec::new(),
        block_size: None,
        worker_timeout: WAIT_LIMIT,
        grace: Duration::from_millis(200),
    };
    edit(&mut config);
    gateway::start(&config).await
}

/// A router's address.
pub fn url(gateway: &Gateway) -> String {
    format!("http://{}", gateway.address())
}

pub async fn connect(url: &str) -> WorkerClient {
    WorkerClient::connect(url.to_owned()).await.expect("a gRPC connection")
}

/// A prompt that shares no block with a prompt of another number.
pub fn prompt(number: u32, tokens: u32) -> Vec<u32> {
    (0..tokens).map(|position| number * 10_000 + position).collect()
}

/// A streaming request with seed 7.
pub fn request(prompt: Vec<u32>, max_tokens: u32) -> GenerateRequest {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    GenerateRequest {
        request_id: format!("request-{}", NEXT.fetch_add(1, Ordering::Relaxed)),
        input: Some(Input::Tokenized(TokenizedInput { input_ids: prompt, ..TokenizedInput::default() })),
        sampling_params: Some(SamplingParams {
            max_tokens: Some(max_tokens),
            seed: Some(7),
            ..SamplingParams::default()
        }),
        stream: true,
        ..GenerateRequest::default()
    }
}

/// Everything that came back for a request.
#[derive(Debug)]
pub struct Collected {
    pub headers: MetadataMap,
    pub chunks: Vec<GenerateStreamChunk>,
    pub complete: GenerateComplete,
    pub trailers: MetadataMap,
}

impl Collected {
    /// The output, from chunks or from the last message.
    pub fn tokens(&self) -> Vec<u32> {
        let streamed: Vec<u32> = self.chunks.iter().flat_map(|chunk| chunk.token_ids.iter().copied()).collect();
        if self.chunks.is_empty() { self.complete.output_ids.clone() } else { streamed }
    }

    pub fn worker(&self) -> String {
        text(&self.headers, WORKER_KEY).expect("a worker's name")
    }

    pub fn overlap_blocks(&self) -> u32 {
        text(&self.headers, OVERLAP_KEY).expect("an overlap").parse().expect("a number")
    }
}

pub fn text(metadata: &MetadataMap, key: &str) -> Option<String> {
    metadata.get(key).map(|value| value.to_str().expect("plain text").to_owned())
}

/// Sends a request and reads its answer to the end.
pub async fn generate(client: &mut WorkerClient, request: GenerateRequest) -> Result<Collected, Status> {
    soon("the end of a request", async {
        let response = client.generate(request).await?;
        let headers = response.metadata().clone();
        let mut messages = response.into_inner();
        let mut chunks = Vec::new();
        let mut complete = None;
        while let Some(message) = messages.message().await? {
            assert!(complete.is_none(), "a message after the last one");
            match message.response.expect("a message of some kind") {
                Body::Chunk(chunk) => chunks.push(chunk),
                Body::Complete(last) => complete = Some(last),
            }
        }
        let trailers = messages.trailers().await?.unwrap_or_default();
        Ok(Collected { headers, chunks, complete: complete.expect("a last message"), trailers })
    })
    .await
}

/// A request that does not end by itself. Dropping it is leaving.
pub struct Endless {
    pub worker: String,
    messages: Streaming<GenerateResponse>,
}

/// Starts a request that does not end by itself, and waits for its first token.
pub async fn endless(client: &mut WorkerClient, request: GenerateRequest) -> Endless {
    let response = soon("an answer", client.generate(request)).await.expect("an answer");
    let worker = text(response.metadata(), WORKER_KEY).expect("a worker's name");
    let mut messages = response.into_inner();
    let first = soon("the first token", messages.message()).await.expect("a stream").expect("a message");
    assert!(matches!(first.response, Some(Body::Chunk(_))), "{first:?}");
    Endless { worker, messages }
}

impl Endless {
    /// Its last message, or its error.
    pub async fn end(&mut self) -> Result<GenerateComplete, Status> {
        soon("the end of a stream", async {
            loop {
                let message = self.messages.message().await?.expect("a last message");
                if let Some(Body::Complete(last)) = message.response {
                    assert_eq!(self.messages.message().await?, None, "a message after the last one");
                    return Ok(last);
                }
            }
        })
        .await
    }
}

/// A worker's load as GetLoads tells it.
pub async fn load(client: &mut WorkerClient) -> SchedulerLoad {
    let loads = client.get_loads(GetLoadsRequest::default()).await.expect("an answer to GetLoads").into_inner().loads;
    assert_eq!(loads.len(), 1, "one rank");
    loads[0]
}

/// Waits until a worker runs exactly so many requests.
pub async fn until_running(client: &mut WorkerClient, requests: i32) {
    until_load(client, &format!("{requests} running requests"), |load| load.num_running_reqs == requests).await;
}

/// Waits until a worker has a load of some kind.
pub async fn until_load(client: &mut WorkerClient, what: &str, wanted: impl Fn(&SchedulerLoad) -> bool) {
    until(what, async || wanted(&load(client).await).then_some(())).await;
}

/// Waits until a worker has nothing to do and nobody holds a block.
pub async fn until_idle(client: &mut WorkerClient) {
    let idle = |load: &SchedulerLoad| load.num_total_reqs == 0 && load.num_used_tokens == 0;
    until_load(client, "a worker without requests and blocks in use", idle).await;
}

/// An HTTP answer, read to the end.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: HeaderMap,
    pub text: String,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {}", self.text))
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().expect("plain text"))
    }

    /// The objects of an event stream, `[DONE]` as a string.
    pub fn events(&self) -> Vec<Value> {
        let data = self.text.lines().filter_map(|line| line.strip_prefix("data: "));
        data.map(|data| match data {
            "[DONE]" => Value::from(data),
            object => serde_json::from_str(object).unwrap_or_else(|error| panic!("{error}: {object}")),
        })
        .collect()
    }
}

/// Sends an HTTP request; the body can be read, or dropped in the middle.
pub async fn send(
    method: Method,
    url: &str,
    body: &str,
) -> Response<impl http_body::Body<Data = Bytes, Error = impl std::error::Error + use<>> + Unpin + use<>> {
    let client: Client<_, Full<Bytes>> = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::builder().method(method).uri(url).header("content-type", "application/json");
    let request = request.body(Full::new(Bytes::from(body.to_owned()))).expect("a request");
    soon("an HTTP answer", client.request(request)).await.expect("an HTTP answer")
}

pub async fn http(method: Method, url: &str, body: &str) -> Answer {
    let (head, body) = send(method, url, body).await.into_parts();
    let bytes = soon("the end of an HTTP answer", body.collect()).await.expect("a whole body").to_bytes();
    Answer { status: head.status.as_u16(), headers: head.headers, text: String::from_utf8_lossy(&bytes).into_owned() }
}

pub async fn get(url: &str) -> Answer {
    http(Method::GET, url, "").await
}

pub async fn post(url: &str, body: &Value) -> Answer {
    http(Method::POST, url, &body.to_string()).await
}

/// A metric of a page, added up over its labels; `None` if the page does not have it.
pub fn metric(page: &str, name: &str) -> Option<f64> {
    let samples = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name).filter(|rest| rest.starts_with(['{', ' ']))?;
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    samples.reduce(|sum, sample| sum + sample)
}

/// Waits until a metrics page has a value.
pub async fn until_metric(url: &str, name: &str, wanted: impl Fn(f64) -> bool) {
    until(&format!("{name} at {url}"), async || {
        let page = get(&format!("{url}/metrics")).await.text;
        metric(&page, name).is_some_and(&wanted).then_some(())
    })
    .await;
}
