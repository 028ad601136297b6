//! Workers that come, go, die and return, and a router that stops: what clients see, and that nothing stays booked.

use http::Method;
use http_body_util::BodyExt;
use mockfleet::live::gateway::GatewayConfig;
use mockfleet::live::grpc::engine::HealthCheckRequest;
use mockfleet::router::RouterMode;
use serde_json::json;
use tonic::Code;

use crate::lab::Lab;
use crate::support::{
    ACTIVE, ENDLESS, Space, TestFleet, WORKERS, connect, endless, generate, get, live, metric, post, prompt, request,
    routed, send, slow, soon, start_gateway, until_idle, until_load, until_metric, until_running, url,
};

#[test]
fn a_killed_worker_ends_its_streams_with_an_error_and_the_other_takes_over() {
    live(async {
        let lab = Lab::new();
        let slow = ["--speedup-ratio", "1", "--timing-model", "fixed", "--prefill-ms", "5", "--decode-ms", "5"];
        let (victim, victim_urls) = lab.mocker(1, &slow).await;
        let (_other, other_urls) = lab.mocker(1, &slow).await;
        let (_router, router) = lab.router(&["--router-mode", "round-robin"]).await;
        until_metric(&router, WORKERS, |up| up == 2.0).await;
        let mut client = connect(&router).await;
        let completions = format!("{router}/v1/completions");
        let (mut on_victim, mut on_other, mut http_streams) = (None, None, Vec::new());
        // Two of each kind: with round-robin one of them is on the victim.
        for number in [1, 2] {
            let running = endless(&mut client, request(prompt(number, 40), ENDLESS)).await;
            let side = if running.worker == victim_urls[0] { &mut on_victim } else { &mut on_other };
            *side = Some(running);
        }
        let mut body = json!({"prompt": prompt(3, 40), "max_tokens": ENDLESS, "stream": true});
        for _ in 0..2 {
            let reply = send(Method::POST, &completions, &body.to_string()).await;
            let on_victim = reply.headers().get("x-mockfleet-worker").is_some_and(|worker| *worker == victim_urls[0]);
            http_streams.push((on_victim, reply.into_body()));
        }
        body["stream"] = json!(false);
        let wholes = [0, 1].map(|_| {
            let (completions, body) = (completions.clone(), body.clone());
            tokio::spawn(async move { post(&completions, &body).await })
        });
        until_running(&mut connect(&victim_urls[0]).await, 3).await;
        // A request that has its first token cannot go elsewhere any more.
        until_metric(&router, "mockfleet_router_time_to_first_token_seconds_count", |started| started == 6.0).await;
        victim.signal(libc::SIGKILL);

        let error = on_victim.expect("a stream on the victim").end().await.expect_err("an error, not an end");
        assert_eq!(error.code(), Code::Aborted, "{error:?}");
        assert!(error.message().contains(&victim_urls[0]), "{error:?}");
        let broken = http_streams.iter().position(|(on_victim, _)| *on_victim).expect("a stream on the victim");
        let (_, broken) = http_streams.swap_remove(broken);
        let sent = soon("the end of an event stream", broken.collect()).await.expect("a whole body").to_bytes();
        let sent = String::from_utf8_lossy(&sent).into_owned();
        assert!(sent.contains(r#""code":"worker_failed""#) && !sent.contains("[DONE]"), "{sent}");
        let mut wholes = wholes.into_iter();
        let (mut one, mut two) = (wholes.next().expect("a task"), wholes.next().expect("a task"));
        let failed = soon("a failed request", async {
            tokio::select! { one = &mut one => one, two = &mut two => two }
        })
        .await;
        let failed = failed.expect("an answer");
        assert_eq!((failed.status, &failed.json()["error"]["code"]), (502, &json!("worker_failed")), "{failed:?}");

        for number in 4..8 {
            let got = generate(&mut client, request(prompt(number, 20), 2)).await.expect("the other worker serves");
            assert_eq!(got.worker(), other_urls[0]);
        }
        until_metric(&router, WORKERS, |up| up == 1.0).await;
        // The survivors of the other worker go on; dropped, they leave nothing booked.
        drop((on_other, http_streams));
        one.abort();
        two.abort();
        until_metric(&router, ACTIVE, |active| active == 0.0).await;
        until_idle(&mut connect(&other_urls[0]).await).await;

        let port = victim_urls[0].rsplit_once(':').expect("a port").1;
        let again = ["--port", port].iter().chain(&slow).copied().collect::<Vec<_>>();
        let (_again, again_urls) = lab.mocker(1, &again).await;
        assert_eq!(again_urls, victim_urls);
        until_metric(&router, WORKERS, |up| up == 2.0).await;
        let mut served = Vec::new();
        for number in 10..14 {
            served.push(generate(&mut client, request(prompt(number, 20), 2)).await.expect("an answer").worker());
        }
        assert_eq!(served.iter().filter(|worker| **worker == victim_urls[0]).count(), 2, "{served:?}");
    });
}

#[test]
fn a_request_without_a_token_yet_moves_to_another_worker() {
    live(async {
        let lab = Lab::new();
        // The first token takes 100 s: nobody has one when the worker dies.
        let stuck = ["--speedup-ratio", "1", "--timing-model", "fixed", "--prefill-ms", "100000", "--decode-ms", "5"];
        let quick = ["--speedup-ratio", "1", "--timing-model", "fixed", "--prefill-ms", "5", "--decode-ms", "5"];
        let (victim, victim_urls) = lab.mocker(1, &stuck).await;
        let (_other, other_urls) = lab.mocker(1, &quick).await;
        let (_router, router) = lab.router(&[]).await;
        until_metric(&router, WORKERS, |up| up == 2.0).await;
        let mut client = connect(&router).await;
        let waiting = [1, 2].map(|number| {
            let mut client = client.clone();
            tokio::spawn(async move { generate(&mut client, request(prompt(number, 20), 2)).await })
        });
        until_load(&mut connect(&victim_urls[0]).await, "a request", |load| load.num_total_reqs == 1).await;
        victim.signal(libc::SIGKILL);
        for request in waiting {
            let got = request.await.expect("a task").expect("an answer from the worker that lives");
            assert_eq!((got.worker(), got.tokens().len()), (other_urls[0].clone(), 2));
        }
        generate(&mut client, request(prompt(3, 20), 2)).await.expect("an answer");
        let page = get(&format!("{router}/metrics")).await.text;
        assert_eq!(metric(&page, "mockfleet_router_rerouted_requests_total"), Some(1.0));
    });
}

#[test]
fn a_worker_that_stops_and_returns_is_picked_up() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let (space, worker) = (fleet.space.clone(), fleet.url(0));
        let named = |config: &mut GatewayConfig| config.workers = vec![worker.clone()];
        let found = start_gateway(&space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        let fixed = start_gateway(&Space::new(), RouterMode::Kv, named).await.expect("the router starts");
        let mut client = connect(&url(&found)).await;
        let mut running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        let stopping = tokio::spawn(fleet.fleet.stop());
        let cut = running.end().await.expect_err("an abort status");
        assert_eq!((cut.code(), cut.message().contains("the server was stopped")), (Code::Aborted, true), "{cut:?}");
        soon("the fleet's end", stopping).await.expect("a summary");
        for gateway in [&found, &fixed] {
            until_metric(&url(gateway), WORKERS, |up| up == 0.0).await;
            let mut client = connect(&url(gateway)).await;
            let refused = generate(&mut client, request(prompt(2, 20), 2)).await.expect_err("nobody is there");
            assert_eq!(refused.code(), Code::Unavailable, "{refused:?}");
            let reply =
                post(&format!("{}/v1/completions", url(gateway)), &json!({"prompt": [1, 2], "max_tokens": 2})).await;
            assert_eq!((reply.status, &reply.json()["error"]["code"]), (503, &json!("unavailable")), "{reply:?}");
            assert_eq!(get(&format!("{}/health", url(gateway))).await.status, 503);
            assert!(!client.health_check(HealthCheckRequest {}).await.expect("an answer").into_inner().healthy);
        }
        let port = worker.rsplit_once(':').expect("a port").1.parse().expect("a number");
        let back = TestFleet::start_in(&space, |config| {
            slow(config);
            config.port = port;
        })
        .await;
        for gateway in [&found, &fixed] {
            until_metric(&url(gateway), WORKERS, |up| up == 1.0).await;
            let mut client = connect(&url(gateway)).await;
            let got = generate(&mut client, request(prompt(1, 40), 2)).await.expect("an answer");
            assert_eq!(got.worker(), back.url(0));
        }
    });
}

#[test]
fn a_worker_that_registers_later_gets_its_share() {
    live(async {
        let (fleet, gateway, mut client) = routed(RouterMode::RoundRobin, 1).await;
        let late = TestFleet::start_in(&fleet.space, |_| {}).await;
        until_metric(&url(&gateway), WORKERS, |up| up == 2.0).await;
        let mut served = Vec::new();
        for number in 0..4 {
            served.push(generate(&mut client, request(prompt(number, 20), 2)).await.expect("an answer").worker());
        }
        assert_eq!(served.iter().filter(|worker| **worker == late.url(0)).count(), 2, "{served:?}");
    });
}

#[test]
fn a_worker_that_does_not_fit_later_gets_no_requests() {
    live(async {
        let (fleet, gateway, mut client) = routed(RouterMode::RoundRobin, 1).await;
        let _odd = TestFleet::start_in(&fleet.space, |config| config.engine.block_size = 32).await;
        let late = TestFleet::start_in(&fleet.space, |_| {}).await;
        until_metric(&url(&gateway), WORKERS, |up| up == 2.0).await;
        for number in 0..4 {
            let worker = generate(&mut client, request(prompt(number, 20), 2)).await.expect("an answer").worker();
            assert!([fleet.url(0), late.url(0)].contains(&worker), "{worker}");
        }
    });
}

#[test]
fn after_the_last_worker_another_kind_of_fleet_may_come() {
    live(async {
        let (fleet, gateway, mut client) = routed(RouterMode::Kv, 1).await;
        generate(&mut client, request(prompt(1, 40), 2)).await.expect("an answer");
        let space = fleet.space.clone();
        fleet.fleet.stop().await;
        until_metric(&url(&gateway), WORKERS, |up| up == 0.0).await;
        let other = TestFleet::start_in(&space, |config| {
            config.engine.block_size = 32;
            config.model = "other-model".to_owned();
        })
        .await;
        until_metric(&url(&gateway), WORKERS, |up| up == 1.0).await;
        let got = generate(&mut client, request(prompt(1, 40), 2)).await.expect("an answer");
        assert_eq!((got.worker(), got.overlap_blocks()), (other.url(0), 0));
        let model = get(&format!("{}/v1/models", url(&gateway))).await.json()["data"][0].clone();
        assert_eq!((&model["id"], &model["block_size"]), (&json!("other-model"), &json!(32)));
    });
}

#[test]
fn a_router_that_stops_lets_nobody_hang() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let gateway = start_gateway(&fleet.space, RouterMode::Kv, |_| {}).await.expect("the router starts");
        let mut client = connect(&url(&gateway)).await;
        let mut running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        soon("the router's end", gateway.stop()).await;
        running.end().await.expect_err("cut off");
        let mut worker = fleet.client(0).await;
        until_idle(&mut worker).await;
    });
}
