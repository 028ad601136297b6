//! Requests through the router: where they go, what comes back, and what is refused.

use std::time::Duration;

use http::Method;
use http_body_util::BodyExt;
use mockfleet::engine::TimingModel;
use mockfleet::live::gateway::gate::WorkerClient;
use mockfleet::live::gateway::{GatewayConfig, GatewayError};
use mockfleet::live::grpc::engine::{AbortRequest, GenerateRequest, HealthCheckRequest};
use mockfleet::router::RouterMode;
use serde_json::json;
use tonic::Code;

use crate::support::{
    ACTIVE, BLOCK, ENDLESS, Space, TestFleet, WORKERS, connect, endless, generate, get, live, metric, post, prompt,
    request, routed, send, slow, start_gateway, text, until_idle, until_load, until_metric, until_running, url,
};

#[test]
fn requests_pass_through_unchanged_on_both_surfaces() {
    live(async {
        let (fleet, gateway, mut client) = routed(RouterMode::RoundRobin, 1).await;
        let direct = generate(&mut fleet.client(0).await, request(prompt(1, 40), 20)).await.expect("an answer");
        let through = generate(&mut client, request(prompt(1, 40), 20)).await.expect("an answer");
        assert_eq!(through.tokens(), direct.tokens(), "same seed, same tokens");
        assert_eq!(through.complete.finish_reason, "length");
        assert_eq!(through.complete.cached_tokens, 2 * BLOCK);
        let times_ns: Vec<u64> = through.chunks.iter().flat_map(|chunk| chunk.token_times_ns.clone()).collect();
        assert_eq!(times_ns.len(), 20);
        assert!(times_ns.is_sorted_by(|a, b| a < b), "{times_ns:?}");
        assert_eq!(through.worker(), fleet.url(0));
        for key in ["x-mockfleet-worker", "x-mockfleet-overlap-blocks"] {
            assert_eq!(text(&through.trailers, key), text(&through.headers, key), "{key} in the trailers");
        }
        let mut whole = request(prompt(1, 40), 20);
        whole.stream = false;
        assert_eq!(generate(&mut client, whole).await.expect("an answer").tokens(), direct.tokens());
        let body = json!({"prompt": prompt(1, 40), "max_tokens": 20, "seed": 7, "return_token_ids": true});
        let reply = post(&format!("{}/v1/completions", url(&gateway)), &body).await;
        assert_eq!(reply.header("x-mockfleet-worker"), Some(fleet.url(0).as_str()));
        assert_eq!(reply.json()["choices"][0]["token_ids"], json!(direct.tokens()));
        assert_eq!(reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"], 2 * BLOCK);
        let chat = json!({"messages": [{"role": "user", "content": "two words"}], "max_tokens": 2, "stream": true});
        let events = post(&format!("{}/v1/chat/completions", url(&gateway)), &chat).await.events();
        assert_eq!(events.last(), Some(&json!("[DONE]")), "{events:?}");
        let model = get(&format!("{}/v1/models", url(&gateway))).await.json()["data"][0].clone();
        assert_eq!((&model["id"], &model["block_size"]), (&json!("mock-model"), &json!(BLOCK)));
        assert_eq!(
            (&model["router_mode"], &model["workers"]),
            (&json!("round-robin"), &json!([{"worker": 0, "url": fleet.url(0)}]))
        );
        assert_eq!(get(&format!("{}/health", url(&gateway))).await.status, 200);
        assert!(client.health_check(HealthCheckRequest {}).await.expect("an answer").into_inner().healthy);
        gateway.stop().await;
    });
}

#[test]
fn kv_mode_sends_a_prompt_back_to_where_it_is_cached() {
    live(async {
        let (_fleet, gateway, mut client) = routed(RouterMode::Kv, 3).await;
        let blocks = 50;
        let mut homes = Vec::new();
        for number in 1..=3 {
            let first = generate(&mut client, request(prompt(number, blocks * BLOCK + 5), 2)).await.expect("an answer");
            assert_eq!(first.overlap_blocks(), 0);
            until_metric(&url(&gateway), "mockfleet_router_index_blocks", |known| known >= f64::from(number * blocks))
                .await;
            homes.push(first.worker());
        }
        for round in 0..3 {
            for (number, home) in (1..=3).zip(&homes) {
                let again = request(prompt(number, blocks * BLOCK + 5), 2);
                let again = generate(&mut client, again).await.expect("an answer");
                assert_eq!(again.worker(), *home, "round {round}, prompt {number}");
                assert_eq!(again.overlap_blocks(), blocks);
                assert_eq!(again.complete.cached_tokens, blocks * BLOCK);
            }
        }
        let body = json!({"prompt": prompt(2, blocks * BLOCK + 5), "max_tokens": 2});
        let reply = post(&format!("{}/v1/completions", url(&gateway)), &body).await;
        assert_eq!(reply.header("x-mockfleet-worker"), Some(homes[1].as_str()));
        assert_eq!(reply.header("x-mockfleet-overlap-blocks"), Some("50"));
        let page = get(&format!("{}/metrics", url(&gateway))).await.text;
        assert_eq!(metric(&page, "mockfleet_router_overlap_blocks_total"), Some(500.0));
        assert_eq!(metric(&page, "mockfleet_router_requests_total"), Some(13.0));
    });
}

#[test]
fn a_router_that_starts_late_learns_what_is_cached() {
    live(async {
        let fleet = TestFleet::start(|config| config.num_workers = 2).await;
        generate(&mut fleet.client(1).await, request(prompt(1, 20 * BLOCK), 1)).await.expect("an answer");
        let gateway = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        until_metric(&url(&gateway), "mockfleet_router_index_blocks", |known| known == 20.0).await;
        let got = generate(&mut connect(&url(&gateway)).await, request(prompt(1, 20 * BLOCK), 1)).await;
        assert_eq!(got.as_ref().expect("an answer").worker(), fleet.url(1));
    });
}

#[test]
fn round_robin_takes_turns() {
    live(async {
        let (fleet, gateway, mut client) = routed(RouterMode::RoundRobin, 2).await;
        let mut served = Vec::new();
        for number in 0..6 {
            served.push(generate(&mut client, request(prompt(number, 20), 2)).await.expect("an answer").worker());
        }
        for number in 6..10 {
            let body = json!({"prompt": prompt(number, 20), "max_tokens": 2});
            let reply = post(&format!("{}/v1/completions", url(&gateway)), &body).await;
            served.push(reply.header("x-mockfleet-worker").expect("a worker").to_owned());
        }
        assert!(served.windows(2).all(|pair| pair[0] != pair[1]), "{served:?}");
        for worker in [0, 1] {
            assert_eq!(served.iter().filter(|url| **url == fleet.url(worker)).count(), 5, "{served:?}");
        }
    });
}

#[test]
fn namespaces_are_apart() {
    live(async {
        let (one, one_gateway, mut one_client) = routed(RouterMode::RoundRobin, 1).await;
        let (other, other_gateway, mut other_client) = routed(RouterMode::RoundRobin, 2).await;
        for number in 0..4 {
            let got = generate(&mut one_client, request(prompt(number, 20), 2)).await.expect("an answer");
            assert_eq!(got.worker(), one.url(0));
            let got = generate(&mut other_client, request(prompt(number, 20), 2)).await.expect("an answer");
            assert!([other.url(0), other.url(1)].contains(&got.worker()));
        }
        for (gateway, workers) in [(one_gateway, 1.0), (other_gateway, 2.0)] {
            let page = get(&format!("{}/metrics", url(&gateway))).await.text;
            assert_eq!(metric(&page, WORKERS), Some(workers));
        }
    });
}

#[test]
fn workers_that_do_not_fit_are_an_error_at_the_start() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let wrong = start_gateway(&fleet.space, RouterMode::Kv, |config| config.block_size = Some(64)).await;
        let Err(GatewayError::Mismatch(problem)) = wrong else { panic!("a mismatch with --block-size") };
        for word in [fleet.url(0), "block size 16".to_owned(), "--block-size 64".to_owned()] {
            assert!(problem.contains(&word), "{problem}");
        }
        let other = TestFleet::start_in(&fleet.space, |config| config.engine.block_size = 32).await;
        let wrong = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await;
        let Err(GatewayError::Mismatch(problem)) = wrong else { panic!("a mismatch of workers") };
        for word in ["block size", "16", "32"] {
            assert!(problem.contains(word), "{problem}");
        }
        other.fleet.stop().await;
        start_gateway(&fleet.space, RouterMode::Kv, |config| config.block_size = Some(BLOCK)).await.expect("this fits");
    });
}

#[test]
fn clients_that_leave_free_booking_and_blocks() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let gateway = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        let (mut worker, mut client) = (fleet.client(0).await, connect(&url(&gateway)).await);
        let completions = format!("{}/v1/completions", url(&gateway));
        let free = async |worker: &mut WorkerClient| {
            until_metric(&url(&gateway), ACTIVE, |active| active == 0.0).await;
            until_idle(worker).await;
        };
        let running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        until_metric(&url(&gateway), ACTIVE, |active| active == 1.0).await;
        drop(running);
        free(&mut worker).await;
        for stream in [true, false] {
            let body = json!({"prompt": prompt(2, 40), "max_tokens": ENDLESS, "stream": stream}).to_string();
            let completions = completions.clone();
            let sending = tokio::spawn(async move {
                let body = send(Method::POST, &completions, &body).await.into_body();
                let _ = body.collect().await;
            });
            until_running(&mut worker, 1).await;
            until_metric(&url(&gateway), ACTIVE, |active| active == 1.0).await;
            sending.abort();
            free(&mut worker).await;
        }
        let named = request(prompt(3, 40), ENDLESS);
        let request_ids = vec![named.request_id.clone()];
        let mut running = endless(&mut client, named).await;
        client.abort(AbortRequest { request_ids }).await.expect("an answer to Abort");
        assert_eq!(running.end().await.expect("a last message").finish_reason, "abort");
        free(&mut worker).await;
    });
}

#[test]
fn a_client_that_leaves_before_the_first_token_frees_booking_and_blocks() {
    live(async {
        let fleet = TestFleet::start(|config| {
            slow(config);
            config.engine.timing_model = TimingModel::Fixed { prefill_ms: 1e6, decode_ms: 5.0 };
        })
        .await;
        let gateway = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        let mut worker = fleet.client(0).await;
        let mut client = connect(&url(&gateway)).await;
        let sending = tokio::spawn(async move { client.generate(request(prompt(1, 40), 5)).await.map(|_| ()) });
        until_load(&mut worker, "a request", |load| load.num_total_reqs == 1).await;
        sending.abort();
        until_metric(&url(&gateway), ACTIVE, |active| active == 0.0).await;
        until_idle(&mut worker).await;
    });
}

#[test]
fn abort_reaches_the_later_of_two_requests_of_one_name() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let gateway = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        let mut client = connect(&url(&gateway)).await;
        let named = |number| GenerateRequest { request_id: "twice".to_owned(), ..request(prompt(number, 40), ENDLESS) };
        let earlier = endless(&mut client, named(1)).await;
        let mut later = endless(&mut client, named(2)).await;
        drop(earlier);
        until_metric(&url(&gateway), ACTIVE, |active| active == 1.0).await;
        client.abort(AbortRequest { request_ids: vec!["twice".to_owned()] }).await.expect("an answer to Abort");
        assert_eq!(later.end().await.expect("a last message").finish_reason, "abort");
    });
}

#[test]
fn a_router_without_workers_gives_up_in_time() {
    live(async {
        let space = Space::new();
        let short = |config: &mut GatewayConfig| config.worker_timeout = Duration::from_millis(200);
        let Err(error) = start_gateway(&space, RouterMode::Kv, short).await else { panic!("no worker, no router") };
        assert!(matches!(error, GatewayError::NoWorker { .. }), "{error}");
        for word in [space.0.as_str(), "0.2 s", "hint: start `mocker --namespace"] {
            assert!(error.to_string().contains(word), "{error}");
        }
        let named = start_gateway(&space, RouterMode::Kv, |config| {
            short(config);
            config.workers = vec!["http://127.0.0.1:1".to_owned()];
        });
        let Err(error) = named.await else { panic!("no worker, no router") };
        assert!(matches!(error, GatewayError::Unreachable { .. }), "{error}");
        assert!(error.to_string().contains("http://127.0.0.1:1"), "{error}");
    });
}

#[test]
fn bad_requests_are_the_clients_fault_and_not_the_workers() {
    live(async {
        let fleet = TestFleet::start(|config| config.engine.num_gpu_blocks = 4).await;
        let gateway = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        let mut client = connect(&url(&gateway)).await;
        let refused = generate(&mut client, request(prompt(1, 100), 1)).await.expect_err("too large");
        assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
        assert!(refused.message().contains("the pool has 4"), "{refused:?}");
        let refused = generate(&mut client, request(vec![1 << 20], 1)).await.expect_err("no such token");
        assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
        let completions = format!("{}/v1/completions", url(&gateway));
        for stream in [false, true] {
            let body = json!({"prompt": prompt(1, 100), "max_tokens": 1, "stream": stream});
            let refused = post(&completions, &body).await;
            assert_eq!(
                (refused.status, &refused.json()["error"]["code"]),
                (400, &json!("request_rejected")),
                "{refused:?}"
            );
        }
        generate(&mut client, request(prompt(1, 20), 2)).await.expect("the worker is still trusted");
        let page = get(&format!("{}/metrics", url(&gateway))).await.text;
        for counter in ["rerouted_requests", "refused_requests", "failed_requests"] {
            assert_eq!(metric(&page, &format!("mockfleet_router_{counter}_total")), Some(0.0), "{counter}");
        }
        until_metric(&url(&gateway), ACTIVE, |active| active == 0.0).await;
    });
}

#[test]
fn requests_wait_in_the_router_while_its_worker_is_busy() {
    const QUEUED: &str = "mockfleet_router_queued_requests";
    live(async {
        let fleet = TestFleet::start(|config| {
            slow(config);
            config.engine.timing_model = TimingModel::Fixed { prefill_ms: 1e6, decode_ms: 5.0 };
        })
        .await;
        let space = fleet.space.clone();
        let threshold = |config: &mut GatewayConfig| config.router.router_queue_threshold = Some(0.0);
        let gateway = start_gateway(&space, RouterMode::Kv, threshold).await.expect("the router starts");
        let client = connect(&url(&gateway)).await;
        let send = |number| {
            let mut client = client.clone();
            tokio::spawn(async move { client.generate(request(prompt(number, 40), 2)).await })
        };
        let until = async |queued: f64, active: f64| {
            until_metric(&url(&gateway), QUEUED, |now| now == queued).await;
            until_metric(&url(&gateway), ACTIVE, |now| now == active).await;
        };
        let first = send(1);
        until(0.0, 1.0).await;
        let second = send(2);
        until(1.0, 1.0).await;
        let third = send(3);
        until(2.0, 1.0).await;
        // Who leaves while it waits is forgotten; who leaves the worker makes room.
        second.abort();
        until(1.0, 1.0).await;
        first.abort();
        until(0.0, 1.0).await;
        let fourth = send(4);
        until(1.0, 1.0).await;
        let page = get(&format!("{}/metrics", url(&gateway))).await.text;
        assert_eq!(metric(&page, "mockfleet_router_requests_total"), Some(2.0));
        assert_eq!(metric(&page, "mockfleet_router_queue_wait_seconds_count"), Some(1.0));
        fleet.fleet.stop().await;
        for left in [third, fourth] {
            let error = left.await.expect("not aborted").expect_err("no worker is left");
            assert_eq!(error.code(), Code::Unavailable, "{error:?}");
        }
        until(0.0, 0.0).await;
    });
}

#[test]
fn what_only_a_replay_takes_is_refused() {
    live(async {
        let space = Space::new();
        let blind = |config: &mut GatewayConfig| config.router.use_kv_events = false;
        let error = start_gateway(&space, RouterMode::Kv, blind).await.err().expect("refused");
        assert!(matches!(error, GatewayError::Config(_)), "{error}");
        assert!(error.to_string().starts_with("`use_kv_events` is false"), "{error}");
    });
}
