//! Prefill and decode workers by hand, as a gateway would drive them: the prompt here, the output there, and what becomes
//! of the blocks when something goes wrong in between.

use std::time::Duration;

use http::Method;
use mockfleet::engine::{TimingModel, WorkerType};
use mockfleet::live::grpc::engine::{GenerateRequest, GetServerInfoRequest};
use mockfleet::live::mocker::MockerConfig;
use mockfleet::router::RouterMode;
use serde_json::{Value, json};
use tonic::Code;

use crate::lab::Lab;
use crate::support::{
    BLOCK, Collected, ENDLESS, TestFleet, WORKERS, connect, generate, get, http, live, metric, post, prompt, request,
    slow, start_gateway, until_idle, until_load, until_metric, url,
};

const ASK: &str = r#"{"do_remote_decode": true, "do_remote_prefill": false}"#;

/// A prompt token takes 1 MB, and the wire carries 1 GB a second: a token a millisecond.
fn prefill(config: &mut MockerConfig) {
    config.engine.worker_type = WorkerType::Prefill;
    config.engine.kv_transfer_bytes_per_token = Some(1_000_000);
    config.engine.kv_transfer_bandwidth = Some(1.0);
}

fn decode(config: &mut MockerConfig) {
    config.engine.worker_type = WorkerType::Decode;
}

fn asking(name: &str, prompt: Vec<u32>, output_tokens: u32, params: &str) -> GenerateRequest {
    let request_id = name.to_owned();
    let kv_transfer_params_json = Some(params.to_owned());
    GenerateRequest { request_id, kv_transfer_params_json, ..request(prompt, output_tokens) }
}

/// Sends a prompt to a prefill worker.
async fn compute(fleet: &TestFleet, name: &str, tokens: u32) -> Collected {
    let ask = GenerateRequest { stream: false, ..asking(name, prompt(1, tokens), 1, ASK) };
    generate(&mut fleet.client(0).await, ask).await.expect("a computed prompt")
}

fn params(got: &Collected) -> String {
    got.complete.kv_transfer_params_json.clone().expect("kv_transfer_params_json")
}

async fn figure(fleet: &TestFleet, name: &str) -> f64 {
    metric(&get(&format!("{}/metrics", fleet.url(0))).await.text, name).expect("a figure")
}

async fn held(fleet: &TestFleet) -> f64 {
    figure(fleet, "vllm:kv_transfer_held_requests").await
}

/// Waits until a worker does nothing and no block is in use.
async fn idle(fleet: &TestFleet) {
    until_idle(&mut fleet.client(0).await).await;
}

/// Waits until a prefill worker holds nothing and a worker does nothing.
async fn until_released(fleet: &TestFleet) {
    until_metric(&fleet.url(0), "vllm:kv_transfer_held_requests", |held| held == 0.0).await;
    idle(fleet).await;
}

#[test]
fn a_prompt_is_computed_here_and_its_output_made_there() {
    live(async {
        let (source, destination) = (TestFleet::start(prefill).await, TestFleet::start(decode).await);
        let computed = compute(&source, "mine", 40).await;
        assert_eq!((computed.complete.completion_tokens, computed.complete.finish_reason.as_str()), (1, "length"));
        assert_eq!(held(&source).await, 1.0);
        let written: Value = serde_json::from_str(&params(&computed)).expect("JSON");
        assert_eq!((&written["do_remote_prefill"], &written["do_remote_decode"]), (&json!(true), &json!(false)));
        assert_eq!(written["remote_block_ids"], json!([0, 1, 2]));
        assert_eq!(written["remote_engine_id"], json!(source.url(0)));

        let got = generate(&mut destination.client(0).await, asking("mine", prompt(1, 40), 20, &params(&computed)))
            .await
            .expect("an answer");
        assert_eq!(got.tokens().len(), 20);
        assert_eq!(got.tokens()[0], computed.tokens()[0], "the token of the prefill worker comes again");
        // 40 tokens take 40 ms on the wire, then a decode step takes 2 ms; the prompt costs nothing here.
        let times_ns: Vec<u64> = got.chunks.iter().flat_map(|chunk| chunk.token_times_ns.clone()).collect();
        assert_eq!(got.complete.first_token_ns - got.complete.arrived_ns, 42_000_000);
        assert!(times_ns.windows(2).all(|pair| pair[1] - pair[0] == 2_000_000), "{times_ns:?}");
        until_released(&source).await;
        idle(&destination).await;
        for fleet in [&source, &destination] {
            assert_eq!(figure(fleet, "vllm:kv_transfers_total").await, 1.0);
        }
        // What was released stays in the cache.
        let again = compute(&source, "again", 40).await;
        assert_eq!(again.complete.cached_tokens, 32);
    });
}

#[test]
fn the_same_over_http() {
    live(async {
        let (source, destination) = (TestFleet::start(prefill).await, TestFleet::start(decode).await);
        let ask: Value = serde_json::from_str(ASK).expect("JSON");
        let body = json!({"prompt": prompt(2, 40), "max_tokens": 1, "kv_transfer_params": ask, "seed": 5});
        let reply = post(&format!("{}/v1/completions", source.url(0)), &body).await;
        let computed: Value = reply.json();
        let params = &computed["kv_transfer_params"];
        assert_eq!(params["do_remote_prefill"], json!(true), "{computed}");
        let body = json!({"prompt": prompt(2, 40), "max_tokens": 7, "kv_transfer_params": params, "seed": 5});
        let reply = post(&format!("{}/v1/completions", destination.url(0)), &body).await;
        let made: Value = reply.json();
        assert_eq!(made["usage"]["completion_tokens"], json!(7), "{made}");
        let figure = |key: &str| made["mockfleet"][key].as_u64().expect("a time");
        assert_eq!(figure("first_token_ns") - figure("arrived_ns"), 42_000_000);
        until_released(&source).await;
        // Streamed, the params come in a chunk before the last one.
        let body = json!({"prompt": prompt(3, 40), "max_tokens": 1, "kv_transfer_params": ask, "stream": true});
        let reply = post(&format!("{}/v1/completions", source.url(0)), &body).await;
        let text = reply.text;
        assert_eq!(text.matches("\"kv_transfer_params\":{").count(), 1, "{text}");
        assert!(text.ends_with("data: [DONE]\n\n"), "{text}");
    });
}

#[test]
fn what_does_not_fit_is_refused_and_leaks_nothing() {
    live(async {
        let (source, destination) = (TestFleet::start(prefill).await, TestFleet::start(decode).await);
        let whole = TestFleet::start(|_| {}).await;
        let params = params(&compute(&source, "held", 40).await);
        let other_name = params.replace("\"handoff-", "\"handoff-9");
        let nowhere = params.replace(source.url(0).rsplit(':').next().expect("a port"), "1");
        for (fleet, tokens, params, code, words) in [
            (&source, 40, "{}", Code::InvalidArgument, "lack `do_remote_decode`"),
            (&destination, 40, ASK, Code::InvalidArgument, "lack `do_remote_prefill`"),
            (&destination, 40, "{", Code::InvalidArgument, "expected a JSON object"),
            (&whole, 40, ASK, Code::InvalidArgument, "this worker has no part in any"),
            (&destination, 41, params.as_str(), Code::InvalidArgument, "the prompt has 41 tokens, expected the 40"),
            (&destination, 40, other_name.as_str(), Code::Aborted, "it does not hold these blocks"),
            (&destination, 40, nowhere.as_str(), Code::Aborted, "the source of the KV blocks"),
        ] {
            let refused = generate(&mut fleet.client(0).await, asking("x", prompt(1, tokens), 5, params)).await;
            let status = refused.expect_err("refused");
            assert_eq!(status.code(), code, "{params}: {status}");
            assert!(status.message().contains(words), "{params}: {status}");
        }
        idle(&destination).await;
        idle(&whole).await;
        // None of them has taken the blocks away.
        let got = generate(&mut destination.client(0).await, asking("held", prompt(1, 40), 5, &params)).await;
        assert_eq!(got.expect("an answer").tokens().len(), 5);
        until_released(&source).await;
        // Once is enough.
        let late = generate(&mut destination.client(0).await, asking("held", prompt(1, 40), 5, &params)).await;
        assert_eq!(late.err().map(|status| status.code()), Some(Code::Aborted));
    });
}

#[test]
fn blocks_that_nobody_comes_for_are_released() {
    live(async {
        let source = TestFleet::start(|config| {
            prefill(config);
            config.handoff_timeout = Duration::from_millis(50);
        });
        let source = source.await;
        let params: Value = serde_json::from_str(&params(&compute(&source, "lonely", 100).await)).expect("JSON");
        until_released(&source).await;
        let name = params["remote_request_id"].as_str().expect("a name");
        let address = format!("{}/kv_transfer/{name}", source.url(0));
        assert_eq!(get(&address).await.status, 404);
        assert_eq!(http(Method::DELETE, &address, "").await.status, 404);
    });
}

#[test]
fn a_client_that_leaves_frees_both_sides() {
    live(async {
        let source = TestFleet::start(|config| {
            prefill(config);
            config.speedup_ratio = 1.0;
            config.engine.timing_model = TimingModel::Fixed { prefill_ms: 60_000.0, decode_ms: 1.0 };
        });
        let source = source.await;
        // A transfer of a minute: whoever leaves does so in the middle of it.
        let slow = |config: &mut MockerConfig| {
            decode(config);
            config.speedup_ratio = 1.0;
        };
        let destination = TestFleet::start(slow).await;
        let tokens = 60_000;
        let source_of_long = TestFleet::start(|config| {
            prefill(config);
            config.speedup_ratio = 1.0;
            config.engine.num_gpu_blocks = 8192;
        });
        let long = source_of_long.await;
        let big = TestFleet::start_in(&destination.space, |config| {
            slow(config);
            config.engine.num_gpu_blocks = 8192;
        });
        let big = big.await;
        let params = params(&compute(&long, "long", tokens).await);
        let mut client = big.client(0).await;
        let stream = client.generate(asking("long", prompt(1, tokens), 5, &params)).await.expect("a stream");
        until_load(&mut big.client(0).await, "room made", |load| load.num_waiting_reqs == 1).await;
        assert_eq!(held(&long).await, 1.0);
        drop(stream);
        idle(&big).await;
        until_released(&long).await;
        // Before its prompt is computed, which here takes a minute: nothing is held.
        let mut client = source.client(0).await;
        let stream = client.generate(asking("gone", prompt(4, 400), 1, ASK)).await.expect("a stream");
        until_load(&mut source.client(0).await, "a prompt in the batch", |load| load.num_used_tokens > 0).await;
        drop(stream);
        until_released(&source).await;
    });
}

/// A copy of 40 tokens takes 400 ms of wall time.
fn slow_copy(config: &mut MockerConfig) {
    slow(config);
    config.engine.kv_transfer_bandwidth = Some(0.1);
}

async fn until_waiting(fleet: &TestFleet) {
    until_load(&mut fleet.client(0).await, "room made", |load| load.num_used_tokens > 0).await;
}

/// The end of a request without end, from blocks that are lost while they are copied.
async fn lost(destination: &TestFleet, params: &str, meanwhile: impl Future<Output = ()>) {
    let mut client = destination.client(0).await;
    let asked = asking("lost", prompt(1, 40), ENDLESS, params);
    let waiting = tokio::spawn(async move { generate(&mut client, asked).await });
    until_waiting(destination).await;
    meanwhile.await;
    let status = waiting.await.expect("a task").expect_err("its blocks are gone");
    assert_eq!(status.code(), Code::Aborted, "{status}");
    assert!(status.message().contains("the source of the KV blocks"), "{status}");
    idle(destination).await;
}

#[test]
fn blocks_that_are_lost_while_they_are_copied_fail_the_request() {
    live(async {
        let with = |edit: fn(&mut MockerConfig)| move |config: &mut MockerConfig| (prefill(config), edit(config)).1;
        let destination = TestFleet::start(|config| (decode(config), slow(config)).1).await;
        let impatient = TestFleet::start(|config| {
            with(slow_copy)(config);
            config.handoff_timeout = Duration::from_millis(100);
        });
        let impatient = impatient.await;
        let written = params(&compute(&impatient, "late", 40).await);
        lost(&destination, &written, async {}).await;
        until_released(&impatient).await;
        let source = TestFleet::start(with(slow_copy)).await;
        let written = params(&compute(&source, "stopped", 40).await);
        lost(&destination, &written, async {
            source.fleet.stop().await;
        })
        .await;
        // Of two that copy the same, the first one lets go.
        let source = TestFleet::start(with(slow_copy)).await;
        let written = params(&compute(&source, "twice", 40).await);
        let other = TestFleet::start(|config| (decode(config), slow(config)).1).await;
        lost(&destination, &written, async {
            let address: Value = serde_json::from_str(&written).expect("JSON");
            let name = address["remote_request_id"].as_str().expect("a name");
            let released = http(Method::DELETE, &format!("{}/kv_transfer/{name}", source.url(0)), "").await;
            assert_eq!(released.status, 200, "{released:?}");
        })
        .await;
        let late = generate(&mut other.client(0).await, asking("twice", prompt(1, 40), 5, &written)).await;
        assert_eq!(late.err().map(|status| status.code()), Some(Code::Aborted));
        until_released(&source).await;
    });
}

#[test]
fn a_worker_that_was_started_again_does_not_hold_what_the_last_one_held() {
    live(async {
        let first = TestFleet::start(prefill).await;
        let port: u16 = first.url(0).rsplit(':').next().expect("a port").parse().expect("a number");
        let stale = params(&compute(&first, "old", 40).await);
        first.fleet.stop().await;
        let second = TestFleet::start(|config| {
            prefill(config);
            config.port = port;
        });
        let second = second.await;
        let fresh = params(&compute(&second, "new", 40).await);
        let destination = TestFleet::start(decode).await;
        let refused = generate(&mut destination.client(0).await, asking("old", prompt(1, 40), 5, &stale)).await;
        let status = refused.expect_err("held by nobody");
        assert!(status.message().contains("it does not hold these blocks"), "{status}");
        assert_eq!(held(&second).await, 1.0);
        generate(&mut destination.client(0).await, asking("new", prompt(1, 40), 5, &fresh)).await.expect("an answer");
        until_released(&second).await;
    });
}

#[test]
fn unlike_workers_do_not_pair() {
    live(async {
        let source = TestFleet::start(prefill).await;
        let written = params(&compute(&source, "held", 40).await);
        for (edit, words) in [
            ((|config| config.engine.block_size = 2 * BLOCK) as fn(&mut MockerConfig), "block_size 16, this worker 32"),
            (|config| config.speedup_ratio = 50.0, "speedup_ratio 100, this worker 50"),
        ] {
            let destination = TestFleet::start(|config| (decode(config), edit(config)).1).await;
            let refused = generate(&mut destination.client(0).await, asking("x", prompt(1, 40), 5, &written)).await;
            let status = refused.expect_err(words);
            assert_eq!(status.code(), Code::InvalidArgument, "{status}");
            assert!(status.message().contains(words), "{status}");
            idle(&destination).await;
        }
        assert_eq!(held(&source).await, 1.0, "for a worker that fits");
    });
}

#[test]
fn flags_start_a_pair_and_journals_of_it_are_repeated() {
    live(async {
        let lab = Lab::new();
        let transfer = ["--kv-transfer-bytes-per-token", "1000000", "--kv-transfer-bandwidth", "1"];
        let timing = ["--timing", "fixed", "--prefill-ms", "10", "--decode-ms", "2", "--block-size", "16"];
        let flags = |mode: &'static str, journal: &'static str| {
            [&["--disaggregation-mode", mode, "--journal", journal][..], &transfer, &timing].concat()
        };
        let (from, from_urls) = lab.mocker(1, &flags("prefill", "prefill.journal")).await;
        let (to, to_urls) = lab.mocker(1, &flags("decode", "decode.journal")).await;
        let (mut first, mut second) = (connect(&from_urls[0]).await, connect(&to_urls[0]).await);
        for number in 0..4 {
            let computed = generate(&mut first, asking("one", prompt(number, 40), 1, ASK)).await.expect("a prompt");
            let made = generate(&mut second, asking("one", prompt(number, 40), 4, &params(&computed))).await;
            let made = made.expect("an answer").complete;
            assert_eq!(made.first_token_ns - made.arrived_ns, 42_000_000, "{made:?}");
        }
        until_idle(&mut first).await;
        for program in [from, to] {
            program.signal(libc::SIGTERM);
            program.end().await.ok();
        }
        let replayed = lab.run("replay", &["--journal", "prefill.journal", "decode.journal"]).await.ok().stdout;
        assert_eq!(replayed.matches("identical").count(), 2, "{replayed}");
        let wrong = lab.run("mocker", &["--kv-transfer-bandwidth", "1"]).await;
        let complaint = "`kv_transfer_bandwidth` is about hand-offs, expected `disaggregation_mode` prefill or decode";
        assert!(wrong.error(2).contains(complaint));
    });
}

#[test]
fn workers_tell_their_part_and_a_router_leaves_them_alone() {
    live(async {
        let source = TestFleet::start(prefill).await;
        let space = source.space.clone();
        let destination = TestFleet::start_in(&space, decode).await;
        for (fleet, role) in [(&source, "kv_producer"), (&destination, "kv_consumer")] {
            let info = fleet.client(0).await.get_server_info(GetServerInfoRequest {}).await.expect("an answer");
            let info = info.into_inner();
            assert_eq!((info.kv_connector.as_str(), info.kv_role.as_str()), ("NixlConnector", role));
        }
        let whole = TestFleet::start_in(&space, |_| {}).await;
        let router = start_gateway(&space, RouterMode::RoundRobin, |_| {}).await.expect("the router starts");
        until_metric(&url(&router), WORKERS, |workers| workers == 1.0).await;
        let mut client = connect(&url(&router)).await;
        let got = generate(&mut client, request(prompt(1, 2 * BLOCK), 5)).await.expect("an answer");
        assert_eq!(got.worker(), whole.url(0));
        // Named, it is an error.
        let named = start_gateway(&space, RouterMode::RoundRobin, |config| {
            config.workers = vec![source.url(0)];
            config.worker_timeout = Duration::from_millis(500);
        });
        let error = named.await.err().expect("no worker for whole requests").to_string();
        assert!(error.contains(&source.url(0)), "{error}");
    });
}
