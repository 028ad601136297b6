//! One worker over its port: gRPC, HTTP, the event stream, and what becomes of requests that nobody waits for.

use http::Method;
use mockfleet::engine::hash::block_chain;
use mockfleet::live::gateway::gate::WorkerClient;
use mockfleet::live::grpc::common::{
    FlushCacheRequest, KvCacheEvent, KvEventBatch, SubscribeKvEventsRequest, kv_cache_event::Data,
};
use mockfleet::live::grpc::engine::generate_request::Input;
use mockfleet::live::grpc::engine::{
    AbortRequest, EmbedRequest, GenerateRequest, GetModelInfoRequest, GetServerInfoRequest, HealthCheckRequest,
    SamplingParams, SchedulerLoad,
};
use mockfleet::live::grpc::{OVERLAP_KEY, WORKER_KEY};
use serde_json::json;
use tonic::{Code, Streaming};

use crate::support::{
    BLOCK, ENDLESS, TestFleet, endless, generate, get, http, live, load, metric, post, prompt, request, send, slow,
    soon, text, until_idle, until_load, until_metric, until_running,
};

#[test]
fn a_stream_brings_every_token_with_its_time() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let mut client = fleet.client(0).await;
        let got = generate(&mut client, request(prompt(1, 40), 20)).await.expect("an answer");
        let mut tokens = 0;
        let mut times_ns = Vec::new();
        for chunk in &got.chunks {
            tokens += chunk.token_ids.len() as u32;
            assert_eq!((chunk.completion_tokens, chunk.prompt_tokens, chunk.cached_tokens), (tokens, 40, 0));
            assert_eq!(chunk.token_times_ns.len(), chunk.token_ids.len());
            assert!(chunk.token_ids.iter().all(|token| *token < 1 << 20), "{chunk:?}");
            assert_eq!(chunk.arrived_ns, got.complete.arrived_ns);
            times_ns.extend_from_slice(&chunk.token_times_ns);
        }
        assert_eq!(tokens, 20);
        assert!(times_ns.is_sorted_by(|a, b| a < b), "{times_ns:?}");
        let last = &got.complete;
        assert_eq!(last.finish_reason, "length");
        assert_eq!((last.prompt_tokens, last.completion_tokens, last.cached_tokens), (40, 20, 0));
        assert_eq!((last.first_token_ns, last.last_token_ns), (times_ns[0], times_ns[19]));
        // The model: at least 10 ms for the prompt, 2 ms for each further token, exactly, however late the pacer was.
        assert!(last.first_token_ns - last.arrived_ns >= 10_000_000, "{last:?}");
        assert!(times_ns.windows(2).all(|pair| pair[1] - pair[0] == 2_000_000), "{times_ns:?}");
        for metadata in [&got.headers, &got.trailers] {
            assert_eq!(text(metadata, WORKER_KEY), Some(fleet.url(0)), "{metadata:?}");
            assert_eq!(text(metadata, OVERLAP_KEY), None, "only a router knows of overlaps");
        }
    });
}

#[test]
fn the_same_seed_makes_the_same_tokens_on_every_worker() {
    live(async {
        let fleet = TestFleet::start(|config| config.num_workers = 2).await;
        let (mut one, mut other) = (fleet.client(0).await, fleet.client(1).await);
        let streamed = generate(&mut one, request(prompt(1, 40), 20)).await.expect("an answer");
        let mut whole = request(prompt(1, 40), 20);
        whole.stream = false;
        let whole = generate(&mut other, whole).await.expect("an answer");
        assert_eq!(whole.chunks.len(), 0, "without `stream` only the last message comes");
        assert_eq!(whole.complete.output_ids.len(), 20);
        assert_eq!(whole.complete.completion_tokens, 20);
        assert_eq!(whole.tokens(), streamed.tokens());
        assert_ne!(whole.worker(), streamed.worker());
        let mut reseeded = request(prompt(1, 40), 20);
        reseeded.sampling_params =
            Some(SamplingParams { max_tokens: Some(20), seed: Some(8), ..SamplingParams::default() });
        let reseeded = generate(&mut one, reseeded).await.expect("an answer");
        assert_ne!(reseeded.tokens(), streamed.tokens());
    });
}

#[test]
fn lengths_have_defaults_and_may_be_nothing() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let mut client = fleet.client(0).await;
        let mut unsaid = request(prompt(1, 5), 0);
        unsaid.sampling_params = None;
        assert_eq!(generate(&mut client, unsaid).await.expect("an answer").tokens().len(), 16);
        let none = generate(&mut client, request(prompt(2, 5), 0)).await.expect("an answer");
        assert_eq!((none.tokens().len(), none.complete.finish_reason.as_str()), (0, "length"));
        // Requests without a name are different requests.
        let unnamed = |number| GenerateRequest {
            request_id: String::new(),
            sampling_params: Some(SamplingParams { max_tokens: Some(8), ..SamplingParams::default() }),
            ..request(prompt(number, 5), 8)
        };
        let one = generate(&mut client, unnamed(3)).await.expect("an answer");
        let other = generate(&mut client, unnamed(3)).await.expect("an answer");
        assert_ne!(one.tokens(), other.tokens());
        let mut spoken = request(Vec::new(), 3);
        spoken.input = Some(Input::Text("four words of text".to_owned()));
        let spoken = generate(&mut client, spoken).await.expect("an answer");
        assert_eq!((spoken.complete.prompt_tokens, spoken.tokens().len()), (4, 3));
    });
}

#[test]
fn a_repeated_prompt_comes_from_the_cache() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let mut client = fleet.client(0).await;
        // (tokens, of which cached the second time): whole blocks only, and at least one token is computed.
        for (number, tokens, cached) in [(1, 5 * BLOCK + 3, 5 * BLOCK), (2, 5 * BLOCK, 4 * BLOCK), (3, BLOCK - 1, 0)] {
            for expected in [0, cached] {
                let got = generate(&mut client, request(prompt(number, tokens), 4)).await.expect("an answer");
                assert_eq!(got.complete.cached_tokens, expected, "prompt of {tokens} tokens");
                assert!(got.chunks.iter().all(|chunk| chunk.cached_tokens == expected), "{:?}", got.chunks);
            }
        }
    });
}

#[test]
fn abort_ends_the_stream_and_frees_its_blocks() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let mut client = fleet.client(0).await;
        let endless_request = request(prompt(1, 40), ENDLESS);
        let request_ids = vec!["nobody".to_owned(), endless_request.request_id.clone()];
        let mut running = endless(&mut client, endless_request).await;
        until_load(&mut client, "a prompt's blocks in use", |load| load.num_used_tokens >= 40).await;
        client.abort(AbortRequest { request_ids }).await.expect("an answer to Abort");
        let last = running.end().await.expect("a last message");
        assert_eq!(last.finish_reason, "abort");
        assert!((1..ENDLESS).contains(&last.completion_tokens), "{last:?}");
        until_idle(&mut client).await;
    });
}

#[test]
fn a_client_that_leaves_frees_its_blocks() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let mut client = fleet.client(0).await;
        drop(endless(&mut client, request(prompt(1, 40), ENDLESS)).await);
        until_idle(&mut client).await;
        // Without `stream` there is no message yet that could be in the way.
        let mut whole = request(prompt(2, 40), ENDLESS);
        whole.stream = false;
        let messages = client.generate(whole).await.expect("headers at once");
        until_running(&mut client, 1).await;
        drop(messages);
        until_idle(&mut client).await;
        let body = json!({"prompt": prompt(3, 40), "max_tokens": ENDLESS, "stream": true}).to_string();
        let reply = send(Method::POST, &format!("{}/v1/completions", fleet.url(0)), &body).await;
        until_running(&mut client, 1).await;
        drop(reply);
        until_idle(&mut client).await;
        let body = json!({"prompt": prompt(4, 40), "max_tokens": ENDLESS}).to_string();
        let url = format!("{}/v1/completions", fleet.url(0));
        let waiting = tokio::spawn(async move { send(Method::POST, &url, &body).await.status() });
        until_running(&mut client, 1).await;
        waiting.abort();
        until_idle(&mut client).await;
        let page = get(&format!("{}/metrics", fleet.url(0))).await.text;
        assert!(page.contains(r#"finished_reason="abort""#), "{page}");
    });
}

#[test]
fn a_worker_tells_what_it_is() {
    live(async {
        let fleet = TestFleet::start(|config| config.model = "some/model".to_owned()).await;
        let mut client = fleet.client(0).await;
        let health = client.health_check(HealthCheckRequest {}).await.expect("an answer").into_inner();
        assert!(health.healthy, "{health:?}");
        let model = client.get_model_info(GetModelInfoRequest {}).await.expect("an answer").into_inner();
        assert_eq!((model.served_model_name.as_str(), model.model_path.as_str()), ("some/model", "some/model"));
        assert_eq!((model.vocab_size, model.max_context_length, model.is_generation), (1 << 20, 1 << 20, true));
        let server = client.get_server_info(GetServerInfoRequest {}).await.expect("an answer").into_inner();
        assert_eq!((server.block_size, server.speedup_ratio, server.num_gpu_blocks), (BLOCK as i32, 100.0, 1024));
        assert_eq!((server.max_num_seqs, server.max_num_batched_tokens), (256, 8192));
        assert_eq!((server.data_parallel_size, server.active_requests), (1, 0));
        let idle = load(&mut client).await;
        assert_eq!((idle.num_running_reqs, idle.num_waiting_reqs, idle.num_used_tokens), (0, 0, 0));
        assert_eq!((idle.max_total_num_tokens, idle.max_running_requests), (1024 * BLOCK as i32, 256));
        let refused = client.embed(EmbedRequest::default()).await.expect_err("no embeddings");
        assert_eq!(refused.code(), Code::Unimplemented);
    });
}

#[test]
fn loads_show_running_and_waiting_requests() {
    live(async {
        let fleet = TestFleet::start(|config| {
            slow(config);
            config.engine.max_num_seqs = Some(1);
        })
        .await;
        let mut client = fleet.client(0).await;
        let _running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        let _waiting = client.generate(request(prompt(2, 40), ENDLESS)).await.expect("headers at once");
        let one_of_each = |load: &SchedulerLoad| (load.num_running_reqs, load.num_waiting_reqs) == (1, 1);
        until_load(&mut client, "one request running, one waiting", one_of_each).await;
        let busy = load(&mut client).await;
        assert_eq!(busy.num_total_reqs, 2, "{busy:?}");
        assert!(busy.token_usage > 0.0 && busy.utilization == 1.0, "{busy:?}");
    });
}

async fn flush(client: &mut WorkerClient) -> bool {
    client.flush_cache(FlushCacheRequest::default()).await.expect("an answer").into_inner().success
}

#[test]
fn the_cache_is_flushed_only_when_nobody_uses_it() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let mut client = fleet.client(0).await;
        let running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        assert!(!flush(&mut client).await, "refused while a request runs");
        drop(running);
        until_idle(&mut client).await;
        let again = generate(&mut client, request(prompt(1, 40), 1)).await.expect("an answer");
        assert_eq!(again.complete.cached_tokens, 2 * BLOCK, "a refused flush changes nothing");
        until_idle(&mut client).await;
        assert!(flush(&mut client).await);
        let fresh = generate(&mut client, request(prompt(1, 40), 1)).await.expect("an answer");
        assert_eq!(fresh.complete.cached_tokens, 0);
    });
}

async fn subscribe(client: &mut WorkerClient, start: u64, greet: bool) -> Streaming<KvEventBatch> {
    let subscription =
        SubscribeKvEventsRequest { start_sequence_number: start, load_records_before_first_batch: greet };
    soon("the headers", client.subscribe_kv_events(subscription)).await.expect("a stream").into_inner()
}

/// The next events of a stream, until there are so many: a batch holds a load record, a part of a snapshot, or one event
/// under its own number.
async fn events(batches: &mut Streaming<KvEventBatch>, wanted: usize) -> Vec<KvCacheEvent> {
    let mut found: Vec<KvCacheEvent> = Vec::new();
    while found.len() < wanted {
        let batch = soon("a batch", batches.message()).await.expect("a stream").expect("a batch");
        let ids: Vec<u64> = batch.events.iter().map(|event| event.event_id).collect();
        if batch.load.as_ref().is_some_and(|load| load.load_only) {
            assert!(ids.is_empty(), "{batch:?}");
        } else if batch.snapshot.is_none() {
            assert_eq!(ids, [batch.sequence_number], "{batch:?}");
        }
        found.extend(batch.events);
    }
    found
}

/// (hash, parent, tokens) of every stored block, in order.
fn stored(events: &[KvCacheEvent]) -> Vec<(u64, Option<u64>, Vec<u32>)> {
    let mut found = Vec::new();
    for event in events {
        let Some(Data::Stored(stored)) = &event.data else { continue };
        let mut parent = stored.parent_block_hash.map(|hash| hash as u64);
        for block in &stored.blocks {
            assert_eq!(block.block_size, BLOCK as i32);
            found.push((block.block_hash as u64, parent, block.token_ids.clone()));
            parent = Some(block.block_hash as u64);
        }
    }
    found
}

/// What a sequence's full blocks must look like.
fn chain_of(tokens: &[u32]) -> Vec<(u64, Option<u64>, Vec<u32>)> {
    let chain = block_chain(tokens, BLOCK as usize);
    let blocks = tokens.chunks_exact(BLOCK as usize).zip(&chain).enumerate();
    blocks
        .map(|(at, (tokens, id))| {
            let parent = at.checked_sub(1).map(|before| chain[before].sequence.0);
            (id.sequence.0, parent, tokens.to_vec())
        })
        .collect()
}

#[test]
fn cache_events_carry_hashes_that_anyone_can_recompute_and_are_replayed() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let mut client = fleet.client(0).await;
        let mut live_batches = subscribe(&mut client, 0, true).await;
        let first = soon("a load record at once", live_batches.message()).await.expect("a stream").expect("a batch");
        assert!(first.events.is_empty() && first.load.expect("a load").load_only, "{:?}", first.events);
        assert_eq!(first.sequence_number, 0);
        let got = generate(&mut client, request(prompt(1, 40), 20)).await.expect("an answer");
        // The last token is never computed: 59 tokens in the cache are 3 full blocks.
        let sequence = [prompt(1, 40), got.tokens()].concat();
        let expected = chain_of(&sequence[..3 * BLOCK as usize]);
        let mut seen = Vec::new();
        while stored(&seen).len() < expected.len() {
            seen.extend(events(&mut live_batches, 1).await);
        }
        assert_eq!(stored(&seen), expected);
        assert!(seen.iter().enumerate().all(|(at, event)| event.event_id == at as u64), "no gaps: {seen:?}");
        let mut replay = subscribe(&mut client, 0, false).await;
        assert_eq!(events(&mut replay, seen.len()).await, seen, "from the start");
        let mut rest = subscribe(&mut client, 1, false).await;
        assert_eq!(events(&mut rest, seen.len() - 1).await, seen[1..], "from the second event");
    });
}

#[test]
fn who_asks_for_events_that_are_not_there_gets_the_cache_as_it_is() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let mut client = fleet.client(0).await;
        let got = generate(&mut client, request(prompt(1, 40), 20)).await.expect("an answer");
        let sequence = [prompt(1, 40), got.tokens()].concat();
        let expected = chain_of(&sequence[..3 * BLOCK as usize]);
        let mut batches = subscribe(&mut client, 1_000_000, false).await;
        let snapshot = events(&mut batches, 1 + expected.len()).await;
        assert!(matches!(snapshot[0].data, Some(Data::Cleared(_))), "{snapshot:?}");
        assert_eq!(stored(&snapshot), expected);
        generate(&mut client, request(prompt(2, BLOCK), 1)).await.expect("an answer");
        let next = events(&mut batches, 1).await;
        assert_eq!(stored(&next), chain_of(&prompt(2, BLOCK)), "live events follow the snapshot");
        assert!(flush(&mut client).await);
        let cleared = events(&mut batches, 1).await;
        assert!(matches!(cleared[0].data, Some(Data::Cleared(_))), "{cleared:?}");
    });
}

#[test]
fn evicted_blocks_are_told() {
    live(async {
        let fleet = TestFleet::start(|config| config.engine.num_gpu_blocks = 4).await;
        let mut client = fleet.client(0).await;
        let mut batches = subscribe(&mut client, 0, false).await;
        for number in [1, 2] {
            generate(&mut client, request(prompt(number, 3 * BLOCK), 1)).await.expect("an answer");
        }
        let mut removed = Vec::new();
        while removed.is_empty() {
            for event in events(&mut batches, 1).await {
                if let Some(Data::Removed(gone)) = event.data {
                    removed.extend(gone.block_hashes.iter().map(|hash| *hash as u64));
                }
            }
        }
        // The last block of the first prompt goes first, its parent after it.
        let expected: Vec<u64> = chain_of(&prompt(1, 3 * BLOCK)).iter().rev().take(2).map(|block| block.0).collect();
        assert_eq!(removed, expected);
    });
}

#[test]
fn the_http_pages_tell_the_same() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let (url, mut client) = (fleet.url(0), fleet.client(0).await);
        let health = get(&format!("{url}/health")).await;
        assert_eq!((health.status, health.text.as_str()), (200, ""));
        let models = get(&format!("{url}/v1/models")).await.json();
        let model = &models["data"][0];
        assert_eq!(
            (&models["object"], &model["id"], &model["root"]),
            (&json!("list"), &json!("mock-model"), &json!("mock-model"))
        );
        assert_eq!((&model["max_model_len"], &model["block_size"]), (&json!(1 << 20), &json!(BLOCK)));
        assert!(get(&format!("{url}/version")).await.json()["version"].is_string());
        let running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        until_metric(&url, "vllm:num_requests_running", |running| running == 1.0).await;
        let page = get(&format!("{url}/metrics")).await;
        assert!(page.header("content-type").is_some_and(|kind| kind.contains("openmetrics")), "{:?}", page.headers);
        assert_eq!(metric(&page.text, "vllm:prefix_cache_hits_total"), Some(0.0));
        assert!(metric(&page.text, "vllm:kv_cache_usage_perc").is_some_and(|usage| usage > 0.0), "{}", page.text);
        assert!(page.text.contains(r#"block_size="16""#) && page.text.contains(r#"num_gpu_blocks="1024""#));
        drop(running);
        until_metric(&url, "vllm:num_requests_running", |running| running == 0.0).await;
        generate(&mut client, request(prompt(1, 40), 3)).await.expect("an answer");
        let page = get(&format!("{url}/metrics")).await.text;
        assert_eq!(metric(&page, "vllm:prefix_cache_queries_total"), Some(80.0));
        assert_eq!(metric(&page, "vllm:prefix_cache_hits_total"), Some(32.0));
        assert_eq!(metric(&page, "vllm:time_to_first_token_seconds_count"), Some(2.0));
        assert!(page.trim_end().ends_with("# EOF"), "{page}");
    });
}

#[test]
fn completions_take_token_ids_and_text() {
    live(async {
        let fleet = TestFleet::start(|_| {}).await;
        let url = format!("{}/v1/completions", fleet.url(0));
        let ids = json!({"model": "mock-model", "prompt": prompt(1, 40), "max_tokens": 6, "seed": 7, "return_token_ids": true});
        let whole = post(&url, &ids).await;
        assert_eq!((whole.status, whole.header("x-mockfleet-worker")), (200, Some(fleet.url(0).as_str())));
        let reply = whole.json();
        assert_eq!(reply["object"], "text_completion");
        assert_eq!(reply["choices"][0]["finish_reason"], "length");
        assert_eq!((&reply["usage"]["prompt_tokens"], &reply["usage"]["completion_tokens"]), (&json!(40), &json!(6)));
        assert_eq!(reply["usage"]["prompt_tokens_details"]["cached_tokens"], 0);
        let mut client = fleet.client(0).await;
        let grpc = generate(&mut client, request(prompt(1, 40), 6)).await.expect("an answer");
        assert_eq!(reply["choices"][0]["token_ids"], json!(grpc.tokens()), "both surfaces make the same tokens");
        // The output is in the cache as well, and comes back as text: 46 tokens and one word, 2 blocks known.
        let text = reply["choices"][0]["text"].as_str().expect("a text");
        let words: String = prompt(1, 40).iter().map(|id| format!("<token:{id}> ")).collect();
        let body = json!({"prompt": format!("{words}{text} word"), "max_tokens": 3, "stream": true,
            "stream_options": {"include_usage": true}, "return_token_ids": true});
        let streamed = post(&url, &body).await;
        assert!(streamed.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")));
        let events = streamed.events();
        assert_eq!(events.last(), Some(&json!("[DONE]")), "{events:?}");
        let ids: usize =
            events.iter().filter_map(|event| event["choices"][0]["token_ids"].as_array()).map(Vec::len).sum();
        assert_eq!(ids, 3);
        let usage = &events[events.len() - 2]["usage"];
        assert_eq!((&usage["prompt_tokens"], &usage["completion_tokens"]), (&json!(47), &json!(3)), "{events:?}");
        assert_eq!(usage["prompt_tokens_details"]["cached_tokens"], 2 * BLOCK);
        assert_eq!(events[events.len() - 3]["choices"][0]["finish_reason"], "length");
        let chat = json!({"messages": [{"role": "user", "content": "two words"}], "max_tokens": 2});
        let chat = post(&format!("{}/v1/chat/completions", fleet.url(0)), &chat).await.json();
        assert_eq!((&chat["object"], &chat["usage"]["completion_tokens"]), (&json!("chat.completion"), &json!(2)));
    });
}

#[test]
fn a_request_that_can_never_run_is_refused_with_its_reason() {
    live(async {
        let fleet = TestFleet::start(|config| config.engine.num_gpu_blocks = 4).await;
        let mut client = fleet.client(0).await;
        for (prompt_tokens, output) in [(100, 1), (60, 6)] {
            let refused =
                generate(&mut client, request(prompt(1, prompt_tokens), output)).await.expect_err("too large");
            assert_eq!(refused.code(), Code::ResourceExhausted, "{refused:?}");
            assert!(refused.message().contains("the pool has 4"), "{refused:?}");
            assert_eq!(text(refused.metadata(), WORKER_KEY), Some(fleet.url(0)));
        }
        generate(&mut client, request(prompt(1, 60), 5)).await.expect("this fits exactly");
        let url = format!("{}/v1/completions", fleet.url(0));
        let mut body = json!({"prompt": prompt(1, 100), "max_tokens": 1});
        let refused = post(&url, &body).await;
        assert_eq!(
            (refused.status, &refused.json()["error"]["code"]),
            (400, &json!("request_rejected")),
            "{refused:?}"
        );
        assert!(refused.text.contains("the pool has 4"), "{refused:?}");
        // The stream has begun when the engine refuses: the error comes in it, and takes the place of the end.
        body["stream"] = json!(true);
        let events = post(&url, &body).await.events();
        assert_eq!((events.len(), &events[0]["error"]["code"]), (1, &json!("request_rejected")), "{events:?}");
        until_idle(&mut client).await;
    });
}

#[test]
fn bad_grpc_requests_are_refused() {
    live(async {
        let fleet = TestFleet::start(|config| config.announced_model_len = 100).await;
        let mut client = fleet.client(0).await;
        let sampling = |n| Some(SamplingParams { n, ..SamplingParams::default() });
        for (bad, word) in [
            (request(Vec::new(), 1), "empty"),
            (GenerateRequest { input: None, ..request(Vec::new(), 1) }, "empty"),
            (request(vec![5, 1 << 20], 1), "input_ids[1]"),
            (GenerateRequest { sampling_params: sampling(2), ..request(prompt(1, 5), 1) }, "`n` is 2"),
            (request(prompt(1, 90), 11), "100 tokens"),
            (GenerateRequest { data_parallel_rank: Some(1), ..request(prompt(1, 5), 1) }, "data_parallel_rank"),
        ] {
            let refused = generate(&mut client, bad).await.expect_err(word);
            assert_eq!(refused.code(), Code::InvalidArgument, "{refused:?}");
            assert!(refused.message().contains(word), "{refused:?}");
        }
        assert_eq!(load(&mut client).await.num_total_reqs, 0);
    });
}

#[test]
fn bad_http_requests_are_refused() {
    live(async {
        let fleet = TestFleet::start(|config| config.announced_model_len = 100).await;
        let url = fleet.url(0);
        for (path, body, status, code) in [
            ("/v1/completions", "{", 400, "malformed_json"),
            ("/v1/completions", "{}", 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": ""}"#, 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": [1, -2]}"#, 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": [1048576]}"#, 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": ["one", "two"]}"#, 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": [1], "max_tokens": -1}"#, 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": [1], "n": 2}"#, 400, "invalid_value"),
            ("/v1/completions", r#"{"prompt": [1], "max_tokens": 100}"#, 400, "context_length_exceeded"),
            ("/v1/completions", r#"{"prompt": [1], "model": "other"}"#, 404, "model_not_found"),
            ("/v1/chat/completions", r#"{"messages": []}"#, 400, "invalid_value"),
            ("/v1/nothing", "{}", 404, "not_found"),
            ("/v1/models", "{}", 405, "method_not_allowed"),
        ] {
            let refused = http(Method::POST, &format!("{url}{path}"), body).await;
            let error = &refused.json()["error"];
            assert_eq!((refused.status, &error["code"]), (status, &json!(code)), "{path} {body}: {}", refused.text);
            assert!(error["message"].as_str().is_some_and(|message| !message.is_empty()), "{error}");
        }
        let unknown = r#"{"prompt": [1], "max_tokens": 1, "temperature": 0.5, "no_stop_trim": true}"#;
        assert_eq!(
            http(Method::POST, &format!("{url}/v1/completions"), unknown).await.status,
            200,
            "unknown fields are fine"
        );
    });
}

#[test]
fn a_fleet_that_stops_ends_its_requests() {
    live(async {
        let fleet = TestFleet::start(slow).await;
        let mut client = fleet.client(0).await;
        let mut running = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
        let stopping = tokio::spawn(fleet.fleet.stop());
        let cut = running.end().await.expect_err("an abort status");
        assert_eq!((cut.code(), cut.message().contains("the server was stopped")), (Code::Aborted, true), "{cut:?}");
        let summary = soon("the fleet's end", stopping).await.expect("a summary");
        assert_eq!((summary.finished, summary.aborted), (0, 1));
        assert!(client.health_check(HealthCheckRequest {}).await.is_err(), "the port is closed");
    });
}
