//! Promise: a worker streams at least 100,000 tokens a second a server core over loopback gRPC when every token is a
//! message of its own, and several times that when tokens travel together because the client lags.
//!
//! The worker is a process of its own; what is measured is the processor time it uses, summed over its threads, so
//! "elements per second" reads as tokens per second of one server core. On a system without /proc it is wall time.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use criterion::{Criterion, SamplingMode, Throughput, criterion_group, criterion_main};
use mockfleet::live::grpc::engine::generate_request::Input;
use mockfleet::live::grpc::engine::generate_response::Response as Body;
use mockfleet::live::grpc::engine::vllm_engine_client::VllmEngineClient;
use mockfleet::live::grpc::engine::{GenerateRequest, SamplingParams, TokenizedInput};
use mockfleet::live::grpc::{CONNECTION_WINDOW_BYTES, TOKEN_WINDOW_BYTES};
use tonic::transport::{Channel, Endpoint};

const STREAMS: u64 = 32;
const TOKENS: u64 = 1000;

struct Worker {
    process: Child,
    url: String,
}

impl Worker {
    /// A worker whose every step takes `step_ms` of wall clock.
    fn start(step_ms: f64) -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_mocker"))
            .args(["--port", "0", "--timing-model", "fixed", "--prefill-ms", "1", "--decode-ms", &step_ms.to_string()])
            .args(["--namespace", &format!("bench-{}", std::process::id())])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the mocker starts");
        let mut line = String::new();
        let stdout = process.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("the worker's line");
        let url = line.split_whitespace().nth(3).expect("the worker's address").trim_end_matches(':').to_owned();
        Worker { process, url }
    }

    /// Processor time of all its threads so far.
    fn cpu(&self) -> Option<Duration> {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.process.id())).ok()?;
        let ns = tasks
            .flatten()
            .filter_map(|task| std::fs::read_to_string(task.path().join("schedstat")).ok())
            .filter_map(|stat| stat.split_whitespace().next()?.parse::<u64>().ok());
        Some(Duration::from_nanos(ns.sum()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Streams `STREAMS` × `TOKENS` tokens and returns how many messages carried them.
async fn stream_all(channel: &Channel, round: u64, lag: Option<Duration>) -> u64 {
    let mut streams = Vec::new();
    for stream in 0..STREAMS {
        let mut client = VllmEngineClient::new(channel.clone());
        streams.push(tokio::spawn(async move {
            let request = GenerateRequest {
                request_id: format!("{round}-{stream}"),
                input: Some(Input::Tokenized(TokenizedInput {
                    input_ids: vec![(round * STREAMS + stream) as u32; 16],
                    ..TokenizedInput::default()
                })),
                sampling_params: Some(SamplingParams { max_tokens: Some(TOKENS as u32), ..SamplingParams::default() }),
                stream: true,
                ..GenerateRequest::default()
            };
            let mut messages = client.generate(request).await.expect("a stream").into_inner();
            let (mut tokens, mut count) = (0, 0);
            while let Some(message) = messages.message().await.expect("a message") {
                if let Some(Body::Chunk(chunk)) = message.response {
                    tokens += chunk.token_ids.len() as u64;
                    count += 1;
                }
                if let Some(lag) = lag {
                    tokio::time::sleep(lag).await;
                }
            }
            assert_eq!(tokens, TOKENS);
            count
        }));
    }
    let mut messages = 0;
    for stream in streams {
        messages += stream.await.expect("a stream that ended well");
    }
    messages
}

fn bench(criterion: &mut Criterion) {
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let mut group = criterion.benchmark_group("token_stream, server processor time");
    group.sampling_mode(SamplingMode::Flat).sample_size(10).throughput(Throughput::Elements(STREAMS * TOKENS));
    // 32 streams: a step of 1 ms offers 32,000 tokens/s, which the wire carries one by one; 0.02 ms offers 1,600,000,
    // which it can carry only together.
    for (name, step_ms, lag) in [
        ("a message for every token", 1.0, None),
        ("offered faster than the wire", 0.02, None),
        ("a client that reads every 5 ms", 0.1, Some(Duration::from_millis(5))),
    ] {
        let worker = Worker::start(step_ms);
        let mut round = 0;
        let mut messages = 0;
        group.bench_function(name, |bencher| {
            bencher.iter_custom(|rounds| {
                runtime.block_on(async {
                    // The windows of our own clients: little unread on a stream, no limit on a connection.
                    let endpoint = Endpoint::from_shared(worker.url.clone())
                        .expect("an address")
                        .tcp_nodelay(true)
                        .initial_stream_window_size(TOKEN_WINDOW_BYTES)
                        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
                    let channel = endpoint.connect().await.expect("a connection");
                    let (start, cpu) = (Instant::now(), worker.cpu());
                    for _ in 0..rounds {
                        round += 1;
                        messages += stream_all(&channel, round, lag).await;
                    }
                    match (cpu, worker.cpu()) {
                        (Some(before), Some(after)) => after.saturating_sub(before),
                        _ => start.elapsed(),
                    }
                })
            });
        });
        let tokens = round * STREAMS * TOKENS;
        println!("{name}: {:.2} tokens a message", tokens as f64 / messages.max(1) as f64);
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
