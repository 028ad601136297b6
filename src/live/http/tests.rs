//! Tests of the surface: a scripted backend behind a real server, asked by a real client.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{HeaderMap, Method, Request, StatusCode};
use bytes::Bytes;
use futures_util::stream::{self, StreamExt};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::*;
use crate::live::backend::{Backend, FinishReason, GenerateCall, GenerateEvent, Generation, ModelFacts, ServeError};

type Event = Result<GenerateEvent, ServeError>;

const PATIENCE: Duration = Duration::from_secs(10);

/// Plays a script for every request and remembers the calls.
#[derive(Clone)]
struct Scripted {
    script: Result<Vec<Event>, ServeError>,
    /// After the script nothing more happens, rather than the end.
    hangs: bool,
    health: Result<(), ServeError>,
    overlap_blocks: Option<u32>,
    calls: Arc<Mutex<Vec<GenerateCall>>>,
    /// A permit for each call taken, and one for each stream of events dropped.
    taken: Arc<Semaphore>,
    dropped: Arc<Semaphore>,
}

struct PermitOnDrop(Arc<Semaphore>);

impl Drop for PermitOnDrop {
    fn drop(&mut self) {
        self.0.add_permits(1);
    }
}

impl Scripted {
    fn new(script: Result<Vec<Event>, ServeError>) -> Scripted {
        Scripted {
            script,
            hangs: false,
            health: Ok(()),
            overlap_blocks: Some(3),
            calls: Arc::default(),
            taken: Arc::new(Semaphore::new(0)),
            dropped: Arc::new(Semaphore::new(0)),
        }
    }

    fn last_call(&self) -> GenerateCall {
        self.calls.lock().unwrap().last().cloned().expect("the backend was asked")
    }
}

impl Backend for Scripted {
    async fn generate(&self, call: GenerateCall) -> Result<Generation, ServeError> {
        self.calls.lock().unwrap().push(call);
        self.taken.add_permits(1);
        let events = stream::iter(self.script.clone()?);
        let guard = PermitOnDrop(self.dropped.clone());
        let end = if self.hangs { stream::pending().boxed() } else { stream::empty().boxed() };
        let events = events.chain(end).map(move |event| {
            let _held = &guard;
            event
        });
        Ok(Generation { worker: "10.0.0.1:7001".into(), overlap_blocks: self.overlap_blocks, events: events.boxed() })
    }

    fn model(&self) -> Result<ModelFacts, ServeError> {
        Ok(ModelFacts {
            model: "mock-7b".into(),
            max_model_len: 1_000_000,
            vocab_tokens: 32_000,
            block_size: 16,
            speedup_ratio: 2.5,
        })
    }

    fn health(&self) -> Result<(), ServeError> {
        self.health.clone()
    }

    fn metrics(&self) -> String {
        "# EOF\n".into()
    }

    fn model_extras(&self) -> Map<String, Value> {
        Map::from_iter([("mode".into(), json!("kv")), ("id".into(), json!("an impostor"))])
    }
}

fn tokens(token_ids: &[u32], times_ns: &[u64]) -> Event {
    let (token_ids, times_ns) = (token_ids.to_vec(), times_ns.to_vec());
    Ok(GenerateEvent::Tokens { token_ids, times_ns, arrived_ns: 5, cached_tokens: 2 })
}

fn finished(reason: FinishReason) -> Event {
    Ok(GenerateEvent::Finished { reason, cached_tokens: 2 })
}

fn three_tokens() -> Scripted {
    Scripted::new(Ok(vec![tokens(&[7], &[10]), tokens(&[8, 9], &[20, 30]), finished(FinishReason::Length)]))
}

/// Serves a backend on a free port until the test's runtime ends.
async fn serve(backend: Scripted) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    tokio::spawn(async move { axum::serve(listener, routes(backend)).await });
    address
}

struct Reply {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Reply {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }

    /// The `data:` lines: JSON, or the text itself for `[DONE]`.
    fn chunks(&self) -> Vec<Value> {
        let lines = self.body.split_terminator("\n\n").map(|line| line.strip_prefix("data: ").expect(line));
        lines.map(|line| serde_json::from_str(line).unwrap_or_else(|_| json!(line))).collect()
    }

    fn header(&self, name: impl axum::http::header::AsHeaderName) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }
}

async fn ask(address: &str, method: Method, path: &str, body: impl Into<Bytes>) -> Reply {
    let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
    let request = request.header(REQUEST_ID_HEADER, "mine").body(Full::new(body.into())).unwrap();
    let reply = Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap();
    let (head, body) = reply.into_parts();
    let body = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    Reply { status: head.status, headers: head.headers, body }
}

async fn post(backend: Scripted, path: &str, body: impl ToString) -> Reply {
    ask(&serve(backend).await, Method::POST, path, body.to_string()).await
}

#[tokio::test]
async fn completion_in_one_piece() {
    let backend = three_tokens();
    let body = json!({"model": "mock-7b", "prompt": [1, 2, 3], "max_tokens": 3, "seed": -1, "return_token_ids": true,
        "temperature": 0.5, "stop": null});
    let reply = post(backend.clone(), "/v1/completions", body).await;
    let mut json = reply.json();
    assert!(json["created"].take().as_u64().unwrap() > 1_600_000_000);
    assert_eq!(
        json,
        json!({
            "id": "mine", "object": "text_completion", "created": null, "model": "mock-7b",
            "choices": [{"index": 0, "text": " <token:7> <token:8> <token:9>", "finish_reason": "length",
                "logprobs": null, "token_ids": [7, 8, 9]}],
            "usage": {"prompt_tokens": 3, "completion_tokens": 3, "total_tokens": 6,
                "prompt_tokens_details": {"cached_tokens": 2}},
            "mockfleet": {"worker": "10.0.0.1:7001", "overlap_blocks": 3, "arrived_ns": 5, "first_token_ns": 10,
                "last_token_ns": 30},
        })
    );
    assert_eq!(reply.header("content-type"), Some("application/json"));
    assert_eq!(reply.header(REQUEST_ID_HEADER), Some("mine"));
    assert_eq!(reply.header(WORKER_HEADER), Some("10.0.0.1:7001"));
    assert_eq!(reply.header(OVERLAP_BLOCKS_HEADER), Some("3"));
    assert_eq!(reply.header(SPEEDUP_RATIO_HEADER), Some("2.5"));
    let call = backend.last_call();
    assert_eq!((call.request_id.as_str(), call.prompt, call.max_output_tokens), ("mine", vec![1, 2, 3], 3));
    assert_eq!(call.seed, Some(u64::MAX));
}

#[tokio::test]
async fn chat_in_one_piece_passes_abort_on() {
    let mut backend = Scripted::new(Ok(vec![tokens(&[7], &[10]), finished(FinishReason::Abort)]));
    backend.overlap_blocks = None;
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "max_completion_tokens": 4, "max_tokens": 9});
    let reply = post(backend.clone(), "/v1/chat/completions", body).await;
    let json = reply.json();
    assert_eq!(json["object"], "chat.completion");
    let choice = json!({"index": 0, "message": {"role": "assistant", "content": " <token:7>"}, "logprobs": null,
        "finish_reason": "abort"});
    assert_eq!(json["choices"], json!([choice]));
    assert_eq!(reply.header(OVERLAP_BLOCKS_HEADER), None);
    assert_eq!(backend.last_call().max_output_tokens, 4);
}

#[tokio::test]
async fn completion_streams_a_chunk_per_event() {
    let body = json!({"prompt": "two words", "stream": true, "stream_options": {"include_usage": true}});
    let backend = three_tokens();
    let reply = post(backend.clone(), "/v1/completions", body).await;
    assert_eq!(reply.header("content-type"), Some("text/event-stream"));
    assert_eq!(reply.header("cache-control"), Some("no-cache"));
    assert_eq!(reply.header(WORKER_HEADER), Some("10.0.0.1:7001"));
    let chunks = reply.chunks();
    let choices: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"]).collect();
    let choice =
        |text: &str, reason: Value| json!([{"index": 0, "text": text, "logprobs": null, "finish_reason": reason}]);
    assert_eq!(choices[0], &choice(" <token:7>", Value::Null));
    assert_eq!(choices[1], &choice(" <token:8> <token:9>", Value::Null));
    assert_eq!(choices[2], &choice("", json!("length")));
    assert_eq!(choices[3], &json!([]));
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 2}});
    assert_eq!(chunks[3]["usage"], usage);
    assert_eq!(chunks[4], "[DONE]");
    assert_eq!(chunks.len(), 5);
    assert!(chunks[..4].iter().all(|chunk| chunk["id"] == "mine" && chunk["object"] == "text_completion"));
    assert!(chunks[..3].iter().all(|chunk| chunk.get("usage").is_none() && chunk.get("mockfleet").is_none()));
    assert_eq!(backend.last_call().max_output_tokens, 16);
}

#[tokio::test]
async fn chat_streams_its_role_first_and_what_was_asked_for() {
    let body = json!({"messages": [{"role": "user", "content": "hello"}], "stream": true, "return_token_ids": true,
        "mockfleet_times": true, "stream_options": {"continuous_usage_stats": true}});
    let chunks = post(three_tokens(), "/v1/chat/completions", body).await.chunks();
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": ""}));
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(chunks[1]["choices"][0]["delta"], json!({"content": " <token:7>"}));
    assert_eq!(chunks[1]["usage"]["completion_tokens"], 1);
    assert_eq!(chunks[2]["choices"][0]["token_ids"], json!([8, 9]));
    assert_eq!(chunks[2]["usage"]["completion_tokens"], 3);
    assert_eq!(chunks[2]["mockfleet"], json!({"times_ns": [20, 30], "arrived_ns": 5}));
    assert_eq!(chunks[3]["choices"][0]["delta"], json!({}));
    assert_eq!(chunks[3]["choices"][0]["finish_reason"], "length");
    assert_eq!(chunks[4..], [json!("[DONE]")]);
}

#[tokio::test]
async fn error_in_a_stream_ends_it_without_done() {
    let died = ServeError::WorkerFailed { worker: "w".into(), message: "killed".into() };
    let scripts = [(vec![tokens(&[7], &[10]), Err(died)], "worker w failed: killed"), (vec![], "events ended")];
    for (script, expected) in scripts {
        let body = json!({"prompt": "x", "stream": true});
        let chunks = post(Scripted::new(Ok(script.clone())), "/v1/completions", body).await.chunks();
        assert_eq!(chunks.len(), script.len().max(1));
        let error = &chunks.last().unwrap()["error"];
        assert_eq!((&error["code"], &error["type"]), (&json!("worker_failed"), &json!("server_error")));
        assert!(error["message"].as_str().unwrap().contains(expected), "{error}");

        let whole = post(Scripted::new(Ok(script)), "/v1/completions", json!({"prompt": "x"})).await;
        assert_eq!(whole.status, StatusCode::BAD_GATEWAY);
        assert_eq!(whole.header(WORKER_HEADER), Some("10.0.0.1:7001"));
        assert!(whole.body.contains(expected));
    }
}

#[tokio::test]
async fn refusals_of_the_backend_have_their_status() {
    let failed = ServeError::WorkerFailed { worker: "w".into(), message: "gone".into() };
    for (refusal, status, code) in [
        (ServeError::Invalid("no".into()), 400, "invalid_value"),
        (ServeError::Rejected("too long".into()), 400, "request_rejected"),
        (ServeError::Unavailable("no workers".into()), 503, "unavailable"),
        (failed, 502, "worker_failed"),
        (ServeError::ShuttingDown, 503, "shutting_down"),
    ] {
        let body = json!({"prompt": "x", "stream": true});
        let reply = post(Scripted::new(Err(refusal.clone())), "/v1/completions", body).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (status, &json!(code)));
        assert_eq!(reply.json()["error"]["message"], refusal.to_string());
        assert_eq!(reply.header(REQUEST_ID_HEADER), Some("mine"));
    }
}

#[tokio::test]
async fn wrong_requests_hear_what_is_wrong() {
    let address = serve(three_tokens()).await;
    let completion = "/v1/completions";
    let chat = "/v1/chat/completions";
    for (path, body, status, code, message) in [
        (completion, "{\"prompt\": [1,\n 2", 400, "malformed_json", "line 2 column 2"),
        (completion, "not json", 400, "malformed_json", "line 1 column 2"),
        (completion, "[]", 400, "invalid_value", "line 1"),
        (completion, "{}", 400, "invalid_value", "`prompt` is missing"),
        (completion, r#"{"prompt": []}"#, 400, "invalid_value", "`prompt` is empty"),
        (completion, r#"{"prompt": "  "}"#, 400, "invalid_value", "`prompt` is empty"),
        (completion, r#"{"prompt": ["a", "b"]}"#, 400, "invalid_value", "more than one prompt"),
        (completion, r#"{"prompt": [[1], [2]]}"#, 400, "invalid_value", "more than one prompt"),
        (
            completion,
            r#"{"prompt": [1, -2]}"#,
            400,
            "invalid_value",
            "token 1 of `prompt` is -2, expected a whole number",
        ),
        (completion, r#"{"prompt": [[1, 2.5]]}"#, 400, "invalid_value", "token 1 of `prompt` is 2.5"),
        (completion, r#"{"prompt": [1, "a"]}"#, 400, "invalid_value", "token 1 of `prompt` is \"a\""),
        (completion, r#"{"prompt": [[[1]]]}"#, 400, "invalid_value", "token 0 of `prompt` is a list"),
        (completion, r#"{"prompt": [1, null]}"#, 400, "invalid_value", "token 1 of `prompt` to be a whole number"),
        (completion, r#"{"prompt": [1, 5000000000]}"#, 400, "invalid_value", "token 1 of `prompt` is 5000000000"),
        (completion, r#"{"prompt": [1, 32000]}"#, 400, "invalid_value", "token 1 of `prompt` is 32000, expected less"),
        (completion, r#"{"prompt": 5}"#, 400, "invalid_value", "`prompt` to be a text or a list"),
        (completion, r#"{"prompt": "x", "max_tokens": -1}"#, 400, "invalid_value", "`max_tokens` is -1"),
        (completion, r#"{"prompt": "x", "max_tokens": -1}"#, 400, "invalid_value", "`max_tokens` is -1"),
        (completion, r#"{"prompt": "x", "n": 2}"#, 400, "invalid_value", "`n` is 2"),
        (completion, r#"{"prompt": "x", "seed": 1.5}"#, 400, "invalid_value", "`seed` is 1.5"),
        (
            completion,
            r#"{"prompt": "x y", "max_tokens": 999999}"#,
            400,
            "context_length_exceeded",
            "2 tokens and 999999 more may be made, expected at most 1000000 together",
        ),
        (
            completion,
            r#"{"prompt": "x", "model": "gpt"}"#,
            404,
            "model_not_found",
            "`gpt` is not served here, expected `mock-7b`",
        ),
        (chat, "{}", 400, "invalid_value", "`messages` is missing"),
        (chat, r#"{"messages": []}"#, 400, "invalid_value", "`messages` is empty"),
        (chat, r#"{"messages": [{"content": "x"}]}"#, 400, "invalid_value", "missing field `role`"),
        (
            chat,
            r#"{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}"#,
            400,
            "invalid_value",
            "part 0 of message 0 has type `image_url`",
        ),
        ("/detokenize", r#"{"tokens": [40000]}"#, 400, "invalid_value", "token 0 of `tokens` is 40000"),
        ("/nowhere", "", 404, "not_found", "`/nowhere`"),
        ("/health", "", 405, "method_not_allowed", "POST"),
    ] {
        let reply = ask(&address, Method::POST, path, body).await;
        let error = &reply.json()["error"];
        assert_eq!((reply.status.as_u16(), &error["code"]), (status, &json!(code)), "{body}: {error}");
        assert_eq!(error["type"], "invalid_request_error");
        assert!(error["message"].as_str().unwrap().contains(message), "{body}: {error}");
    }
}

#[tokio::test]
async fn prompts_come_in_several_forms() {
    let backend = three_tokens();
    let address = serve(backend.clone()).await;
    for (prompt, expected) in [
        (json!([1, 2]), vec![1, 2]),
        (json!([[1, 2]]), vec![1, 2]),
        (json!("<token:1> <token:2>"), vec![1, 2]),
        (json!(["<token:1>  <token:2>"]), vec![1, 2]),
    ] {
        let body = json!({"model": "", "prompt": prompt, "n": 1, "stream": null}).to_string();
        let reply = ask(&address, Method::POST, "/v1/completions", body).await;
        assert_eq!((reply.status, backend.last_call().prompt), (StatusCode::OK, expected), "{}", reply.body);
    }
}

#[tokio::test]
async fn bodies_may_be_large_but_not_endless() {
    let backend = three_tokens();
    let address = serve(backend.clone()).await;
    let body = json!({"prompt": vec![31_999; 600_000]}).to_string();
    assert!(body.len() > 3 << 20);
    let reply = ask(&address, Method::POST, "/v1/completions", body).await;
    assert_eq!((reply.status, backend.last_call().prompt.len()), (StatusCode::OK, 600_000));
    let reply = ask(&address, Method::POST, "/v1/completions", vec![b' '; MAX_BODY_BYTES + 1]).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (413, &json!("body_too_large")));
}

#[tokio::test]
async fn unnamed_requests_get_names() {
    let backend = three_tokens();
    let uri = format!("http://{}/v1/completions", serve(backend.clone()).await);
    let mut names = Vec::new();
    for _ in 0..2 {
        let request = Request::post(&uri).body(Full::new(Bytes::from(r#"{"prompt": "x"}"#))).unwrap();
        let reply = Client::builder(TokioExecutor::new()).build_http().request(request).await.unwrap();
        names.push(reply.headers()[REQUEST_ID_HEADER].to_str().unwrap().to_owned());
        assert_eq!(names.last(), Some(&backend.last_call().request_id));
    }
    assert!(names.iter().all(|name| name.starts_with("cmpl-")) && names[0] != names[1], "{names:?}");
}

#[tokio::test]
async fn pages_without_a_body() {
    let mut backend = three_tokens();
    let address = serve(backend.clone()).await;
    for path in ["/health", "/ping"] {
        let reply = ask(&address, Method::GET, path, "").await;
        assert_eq!((reply.status, reply.body.as_str()), (StatusCode::OK, ""));
    }
    let models = ask(&address, Method::GET, "/v1/models", "").await.json();
    let entry = json!({"id": "mock-7b", "object": "model", "created": 0, "owned_by": "mockfleet", "root": "mock-7b",
        "max_model_len": 1_000_000, "block_size": 16, "speedup_ratio": 2.5, "vocab_tokens": 32_000, "mode": "kv"});
    assert_eq!(models, json!({"object": "list", "data": [entry]}));
    let version = ask(&address, Method::GET, "/version", "").await.json();
    assert_eq!(version, json!({"version": env!("CARGO_PKG_VERSION")}));
    let metrics = ask(&address, Method::GET, "/metrics", "").await;
    assert_eq!((metrics.header("content-type"), metrics.body.as_str()), (Some(METRICS_CONTENT_TYPE), "# EOF\n"));

    backend.health = Err(ServeError::Invalid("not ready".into()));
    let reply = ask(&serve(backend).await, Method::GET, "/health", "").await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["message"]), (503, &json!("not ready")));
}

#[tokio::test]
async fn tokenize_and_detokenize_undo_each_other() {
    let address = serve(three_tokens()).await;
    let text = ask(&address, Method::POST, "/detokenize", json!({"tokens": [5, 31_999]}).to_string()).await.json();
    assert_eq!(text, json!({"prompt": " <token:5> <token:31999>"}));
    let ids = ask(&address, Method::POST, "/tokenize", text.to_string()).await.json();
    assert_eq!(ids, json!({"count": 2, "max_model_len": 1_000_000, "tokens": [5, 31_999]}));
    let chat = json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "<token:5>"}]}]}).to_string();
    let ids = ask(&address, Method::POST, "/tokenize", chat).await.json();
    assert_eq!(ids["tokens"], json!([31_997, 5, 31_996]));
}

#[tokio::test]
async fn next_turn_of_a_chat_starts_with_the_last_one() {
    let backend = three_tokens();
    let address = serve(backend.clone()).await;
    let first = json!([{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello there"}]);
    let reply =
        ask(&address, Method::POST, "/v1/chat/completions", json!({"messages": first}).to_string()).await.json();
    let mut expected = backend.last_call().prompt;
    expected.extend([7, 8, 9]);
    let mut second = first.as_array().unwrap().clone();
    second.push(reply["choices"][0]["message"].clone());
    second.push(json!({"role": "tool", "content": null}));
    ask(&address, Method::POST, "/v1/chat/completions", json!({"messages": second}).to_string()).await;
    assert!(backend.last_call().prompt.starts_with(&expected));
}

#[tokio::test]
async fn client_going_away_drops_the_events() {
    for stream in [true, false] {
        let mut backend = Scripted::new(Ok(vec![tokens(&[7], &[10])]));
        backend.hangs = true;
        let mut socket = TcpStream::connect(serve(backend.clone()).await).await.unwrap();
        let body = json!({"prompt": "x", "stream": stream}).to_string();
        let head = format!("POST /v1/completions HTTP/1.1\r\nhost: here\r\ncontent-length: {}\r\n\r\n", body.len());
        socket.write_all((head + &body).as_bytes()).await.unwrap();
        timeout(PATIENCE, backend.taken.acquire()).await.unwrap().unwrap().forget();
        let mut seen = String::new();
        while stream && !seen.contains("<token:7>") {
            let mut buffer = [0; 1024];
            let count = timeout(PATIENCE, socket.read(&mut buffer)).await.unwrap().unwrap();
            seen.push_str(std::str::from_utf8(&buffer[..count]).unwrap());
        }
        assert_eq!(backend.dropped.available_permits(), 0);
        drop(socket);
        timeout(PATIENCE, backend.dropped.acquire()).await.expect("the events are dropped").unwrap().forget();
    }
}

#[tokio::test]
async fn stream_answers_before_its_first_event() {
    let mut backend = Scripted::new(Ok(Vec::new()));
    backend.hangs = true;
    let uri = format!("http://{}/v1/completions", serve(backend).await);
    let request = Request::post(&uri).body(Full::new(Bytes::from(r#"{"prompt": "x", "stream": true}"#))).unwrap();
    let reply = timeout(PATIENCE, Client::builder(TokioExecutor::new()).build_http().request(request)).await;
    assert_eq!(reply.expect("headers come at once").unwrap().headers()[WORKER_HEADER], "10.0.0.1:7001");
}
