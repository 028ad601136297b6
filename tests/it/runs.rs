//! The programs at work: signals, registrations, result folders, and a whole run from fleet to comparison.

use std::fs;
use std::path::Path;

use mockfleet::measure::read_requests_csv;
use serde_json::Value;

use crate::lab::{Finished, Lab, rows};
use crate::support::{ENDLESS, connect, endless, live, prompt, request, until, until_idle, until_running};

#[test]
fn flags_win_over_the_file() {
    live(async {
        let lab = Lab::new();
        lab.write("fleet.yaml", "num-workers: 3\nblock_size: 32\nspeedup_ratio: 7\n");
        let (mocker, urls) = lab.mocker(2, &["--config", "fleet.yaml", "--speedup-ratio", "9"]).await;
        assert_eq!(urls.len(), 2);
        let out = mocker.said("worker 1 at ").await;
        assert!(out.contains("blocks of 32 tokens, speedup 9"), "{out}");
    });
}

#[test]
fn signals_end_servers_cleanly() {
    live(async {
        let lab = Lab::new();
        for signal in [libc::SIGINT, libc::SIGTERM] {
            let (mocker, _) = lab.mocker(3, &[]).await;
            assert_eq!(lab.registrations("default").len(), 3);
            let (router, _) = lab.router(&[]).await;
            router.signal(signal);
            let ended = router.end().await.ok();
            assert!(ended.stderr.starts_with("stopping"), "{ended:?}");
            mocker.signal(signal);
            let ended = mocker.end().await.ok();
            assert!(ended.stderr.contains("stopped: 0 requests finished, 0 aborted"), "{ended:?}");
            assert_eq!(lab.registrations("default"), Vec::<String>::new());
        }
    });
}

const SLOW: [&str; 8] = ["--speedup-ratio", "1", "--timing-model", "fixed", "--prefill-ms", "5", "--decode-ms", "5"];

#[test]
fn a_signal_in_the_middle_of_requests_aborts_them_after_the_grace_period() {
    live(async {
        let lab = Lab::new();
        let (mocker, urls) = lab.mocker(1, &[&SLOW[..], &["--grace-s", "0.2"]].concat()).await;
        let (router, router_url) = lab.router(&["--grace-s", "0.2"]).await;
        let mut through = endless(&mut connect(&router_url).await, request(prompt(1, 40), ENDLESS)).await;
        let mut direct = endless(&mut connect(&urls[0]).await, request(prompt(2, 40), ENDLESS)).await;
        router.signal(libc::SIGTERM);
        router.end().await.ok();
        assert!(through.end().await.is_err(), "cut off by the router");
        until_running(&mut connect(&urls[0]).await, 1).await;
        mocker.signal(libc::SIGTERM);
        let ended = mocker.end().await.ok();
        assert!(direct.end().await.expect_err("an abort status").message().contains("the server was stopped"));
        assert!(ended.stderr.contains("stopped: 0 requests finished, 1 aborted"), "{ended:?}");
        assert_eq!(lab.registrations("default"), Vec::<String>::new());
    });
}

#[test]
fn the_registration_of_a_killed_fleet_is_removed_by_the_next_who_looks() {
    live(async {
        let lab = Lab::new();
        let (killed, killed_urls) = lab.mocker(2, &[]).await;
        killed.signal(libc::SIGKILL);
        // Not reaped yet: a zombie is as dead.
        let (_alive, alive_urls) = lab.mocker(1, &["--namespace", "other"]).await;
        assert_eq!(lab.registrations("default").len(), 2, "a killed process removes nothing");
        let run = lab.run("router", &["--port", "0", "--worker-timeout-s", "0.3"]).await;
        run.error(1);
        run.says_nothing_else();
        assert_eq!(lab.registrations("default"), Vec::<String>::new());
        let (router, _) = lab.router(&["--namespace", "other"]).await;
        let out = router.said("worker 0 at ").await;
        assert!(out.contains(&alive_urls[0]) && !out.contains(&killed_urls[0]), "{out}");
        // Its port can be taken again at once.
        let port = killed_urls[0].rsplit_once(':').expect("a port").1;
        let (_again, again_urls) = lab.mocker(1, &["--port", port]).await;
        assert_eq!(again_urls[0], killed_urls[0]);
    });
}

#[test]
fn a_second_signal_ends_a_server_at_once() {
    live(async {
        let lab = Lab::new();
        let (mocker, urls) = lab.mocker(1, &[&SLOW[..], &["--grace-s", "1000"]].concat()).await;
        let mut running = endless(&mut connect(&urls[0]).await, request(prompt(1, 40), ENDLESS)).await;
        mocker.signal(libc::SIGTERM);
        until("the first signal's echo", async || lab.registrations("default").is_empty().then_some(())).await;
        mocker.signal(libc::SIGINT);
        assert_eq!(mocker.end().await.status.code(), Some(130));
        running.end().await.expect_err("cut off");
    });
}

/// Arguments of a run that takes a moment.
fn run<'a>(url: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let small = ["--url", url, "--isl", "256", "--osl", "8", "--num-requests", "10", "--num-prefix-groups", "2"];
    [&small[..], &["--concurrency", "4", "--seed", "3"], more].concat()
}

#[test]
fn ctrl_c_in_a_run_leaves_no_results() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &SLOW).await;
        let url = urls[0].replace("http", "grpc");
        let loadgen = lab.launch("loadgen", &["--url", &url, "--isl", "256", "--osl", "10000", "--concurrency", "3"]);
        let mut worker = connect(&urls[0]).await;
        until_running(&mut worker, 3).await;
        loadgen.catches_signals().await;
        loadgen.signal(libc::SIGINT);
        let ended = loadgen.end().await;
        let error = ended.error(1);
        assert!(error.contains("interrupted after 0 of 200 requests; nothing was written"), "{error}");
        ended.says_nothing_else();
        // Not even a hidden half of one.
        let left = fs::read_dir(lab.work().join("results")).into_iter().flatten().count();
        assert_eq!(left, 0, "{:?}", lab.names());
        until_idle(&mut worker).await;
    });
}

#[test]
fn an_existing_result_folder_is_kept() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &[]).await;
        fs::create_dir_all(lab.work().join("results/mine")).expect("a folder");
        fs::create_dir_all(lab.work().join("results/prefix-ratio-0.5-direct")).expect("a folder");
        lab.write("results/mine/notes.txt", "keep me");
        for (name, folder) in [(&["--name", "mine"][..], "results/mine"), (&[], "results/prefix-ratio-0.5-direct")] {
            let refused = lab.run("loadgen", &run(&urls[0], name)).await;
            let error = refused.error(1);
            assert!(error.contains(folder) && error.contains("exists already"), "{error}");
            assert!(refused.stderr.contains("hint: `--force`"), "{}", refused.stderr);
            refused.says_nothing_else();
        }
        assert_eq!(fs::read_to_string(lab.work().join("results/mine/notes.txt")).expect("the file"), "keep me");
        let foreign = lab.run("loadgen", &run(&urls[0], &["--name", "mine", "--force"])).await.error(1);
        assert!(foreign.contains("results/mine holds no report.json"), "{foreign}");
        assert_eq!(fs::read_to_string(lab.work().join("results/mine/notes.txt")).expect("the file"), "keep me");
        for flags in [&["--name", "run"][..], &["--name", "run", "--force"]] {
            lab.run("loadgen", &run(&urls[0], flags)).await.ok();
            assert!(!lab.work().join("results/run/notes.txt").exists(), "replaced as a whole");
            lab.write("results/run/notes.txt", "of the run before");
        }
        let mut names: Vec<_> = fs::read_dir(lab.work().join("results")).expect("a folder").flatten().collect();
        names.retain(|entry| entry.file_name().to_string_lossy().starts_with('.'));
        assert!(names.is_empty(), "nothing half-done is left: {names:?}");
    });
}

/// What is known of every request before it is sent, and what came of it.
fn workload(folder: &Path) -> Vec<(u64, u32, u32, u32, bool)> {
    let records = read_requests_csv(&folder.join("requests.csv")).expect("a requests.csv");
    let row = |r: &mockfleet::session::ledger::RequestRecord| {
        (r.row, r.input_tokens, r.requested_output_tokens, r.output_tokens, r.completed())
    };
    records.iter().map(row).collect()
}

fn json_alone(run: &Finished) -> Value {
    serde_json::from_str(&run.stdout).unwrap_or_else(|error| panic!("{error}: {run:#?}"))
}

#[test]
fn a_whole_run_from_fleet_to_comparison() {
    live(async {
        let lab = Lab::new();
        let (_mocker, _) = lab.mocker(2, &[]).await;
        let (_router, url) = lab.router(&["--router-mode", "kv"]).await;
        let grpc = url.replace("http", "grpc");
        let table = lab.run("loadgen", &run(&grpc, &["--name", "one"])).await.ok();
        assert!(table.stdout.contains("TTFT"), "{}", table.stdout);
        let json = lab.run("loadgen", &run(&url, &["--json"])).await.ok();
        let results = lab.work().join("results");
        let (one, two) = (results.join("one"), results.join("prefix-ratio-0.5-kv"));
        for folder in [&one, &two] {
            let mut names: Vec<_> =
                fs::read_dir(folder).expect("a result folder").flatten().map(|e| e.file_name()).collect();
            names.sort();
            let expected = ["latency-cdf.png", "latency.png", "report.json", "requests.csv", "run.json", "table.txt"];
            let expected = [&expected[..], &["throughput.png", "timeline.png"]].concat();
            assert_eq!(names, expected);
            for png in expected.iter().filter(|name| name.ends_with(".png")) {
                assert!(fs::read(folder.join(png)).expect("a picture").starts_with(b"\x89PNG\r\n\x1a\n"), "{png}");
            }
        }
        let written = |folder: &Path, name: &str| fs::read_to_string(folder.join(name)).expect("a text");
        assert_eq!(table.stdout, written(&one, "table.txt"));
        let report = json_alone(&json);
        assert_eq!(json.stdout, written(&two, "report.json"), "--json prints the report and nothing else");
        for (key, value) in [("completed_requests", 10), ("failed_requests", 0), ("num_requests", 10), ("seed", 3)] {
            assert_eq!(report[key], value, "{key}");
        }
        assert_eq!((&report["router_mode"], &report["speedup_ratio"]), (&"kv".into(), &50.0.into()));
        assert!(report["mean_ttft_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{report}");
        assert!(serde_json::from_str::<Value>(&written(&one, "run.json")).expect("JSON")["version"].is_string());
        let sent = workload(&one);
        assert_eq!(sent.len(), 10);
        assert!(sent.iter().all(|row| row.1 > 128 && row.3 == row.2 && row.4), "all tokens came: {sent:?}");
        assert_eq!(workload(&two), sent, "the same seed, over the other protocol");
        let folders = ["compare", "results/one", "results/prefix-ratio-0.5-kv"];
        let compared = lab.run("loadgen", &folders).await.ok();
        assert!(
            compared.stdout.contains("one") && compared.stdout.contains("prefix-ratio-0.5-kv"),
            "{}",
            compared.stdout
        );
        for name in ["comparison.json", "table.txt", "latency.png", "latency-cdf.png", "throughput.png", "timeline.png"]
        {
            assert!(results.join(name).is_file(), "{name} in the folders' parent");
        }
        let compared = lab.run("loadgen", &[&folders[..], &["--json", "--output", "both"]].concat()).await.ok();
        json_alone(&compared);
        assert_eq!(compared.stdout, written(&lab.work().join("both"), "comparison.json"));
        let error = lab.run("loadgen", &["compare", "results/one", "results/none"]).await.error(1);
        assert!(error.contains("none"), "{error}");
    });
}

#[test]
fn a_trace_is_replayed_with_its_lengths() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &[]).await;
        lab.write("good.jsonl", &(rows().join("\n") + "\n"));
        let stats = json_alone(&lab.run("trace", &["stats", "good.jsonl", "--json"]).await.ok());
        assert_eq!((&stats["num_requests"], &stats["max_input_tokens"]), (&9.into(), &600.into()));
        let grpc = urls[0].replace("http", "grpc");
        let closed = ["--trace", "good.jsonl", "--concurrency", "3"];
        lab.run("loadgen", &[&closed[..], &["--url", &grpc, "--name", "closed"]].concat()).await.ok();
        let timed = ["--trace", "good.jsonl", "--head", "5", "--url", &urls[0], "--name", "timed"];
        lab.run("loadgen", &timed).await.ok();
        let closed = workload(&lab.work().join("results/closed"));
        assert_eq!(closed.len(), 9);
        assert!(closed.iter().all(|row| (row.1, row.2, row.3, row.4) == (600, 4, 4, true)), "{closed:?}");
        assert_eq!(workload(&lab.work().join("results/timed")), closed[..5]);
        let replayed = lab.run("replay", &["good.jsonl", "--concurrency", "3", "--json"]).await.ok();
        assert_eq!(json_alone(&replayed)["completed_requests"], 9, "the same without sockets");
        for (seed, file) in [("1", "a.jsonl"), ("1", "b.jsonl.gz"), ("2", "c.jsonl")] {
            lab.run("trace", &["generate", file, "--num-requests", "50", "--seed", seed]).await.ok();
        }
        let stats = async |file: &str| lab.run("trace", &["stats", file]).await.ok().stdout;
        assert_eq!(stats("a.jsonl").await, stats("b.jsonl.gz").await, "the same seed, also gzipped");
        assert_ne!(stats("a.jsonl").await, stats("c.jsonl").await);
    });
}

#[test]
fn arrivals_at_a_rate_are_the_same_live_and_in_the_replay() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &[]).await;
        lab.write("good.jsonl", &(rows().join("\n") + "\n"));
        lab.write("rate.toml", "request_rate = 20\narrival_pattern = \"gamma\"\narrival_smoothness = 0.5\nseed = 5\n");
        let loadgen = ["--trace", "good.jsonl", "--config", "rate.toml", "--url", &urls[0], "--name", "rate"];
        lab.run("loadgen", &loadgen).await.ok();
        let replay = ["good.jsonl", "--config", "rate.toml", "--requests-csv", "replayed.csv", "--json"];
        let report = json_alone(&lab.run("replay", &replay).await.ok());
        assert_eq!((&report["arrival_mode"], &report["completed_requests"]), (&"gamma".into(), &9.into()));
        let intended = |path: &Path| -> Vec<f64> {
            read_requests_csv(path).expect("requests").iter().map(|record| record.intended_ms).collect()
        };
        let moments = intended(&lab.work().join("results/rate/requests.csv"));
        assert_eq!(moments, intended(&lab.work().join("replayed.csv")));
        assert!(moments.len() == 9 && moments[0] == 0.0 && moments.is_sorted() && moments[8] > 1.0, "{moments:?}");
        // A flag of another way takes the file's place.
        let closed = lab.run("replay", &["good.jsonl", "--config", "rate.toml", "--concurrency", "2", "--json"]).await;
        assert_eq!(json_alone(&closed.ok())["arrival_mode"], "concurrency");
    });
}

#[test]
fn a_row_without_output_is_the_same_over_http_and_grpc() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &[]).await;
        lab.write("none.jsonl", r#"{"input_length": 20, "output_length": 0, "hash_ids": [1]}"#);
        for (url, name) in [(urls[0].replace("http", "grpc"), "grpc"), (urls[0].clone(), "http")] {
            lab.run("loadgen", &["--trace", "none.jsonl", "--concurrency", "1", "--url", &url, "--name", name])
                .await
                .ok();
        }
    });
}

#[test]
fn failed_requests_make_a_failed_run_with_results() {
    live(async {
        let lab = Lab::new();
        let (mocker, urls) = lab.mocker(1, &["--num-gpu-blocks", "2"]).await;
        // The shared prefix alone fills 2 blocks of 64.
        let failed = lab.run("loadgen", &run(&urls[0], &["--name", "failed"])).await;
        assert_eq!(failed.status.code(), Some(1), "{failed:#?}");
        assert!(
            failed.stderr.contains("error: 10 of 10 requests failed and 0 were never sent; the first failure: "),
            "{}",
            failed.stderr
        );
        assert!(workload(&lab.work().join("results/failed")).iter().all(|row| !row.4));
        lab.run("loadgen", &run(&urls[0], &["--name", "allowed", "--allow-failures"])).await.ok();
        drop(mocker);
        until("the port to close", async || std::net::TcpStream::connect(urls[0].trim_start_matches("http://")).err())
            .await;
    });
}

#[test]
fn a_result_name_does_not_lead_out_of_the_results() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &[]).await;
        let absolute = lab.work().join("absolute").display().to_string();
        for name in ["../escaped", "deep/er", &absolute] {
            let error = lab.run("loadgen", &run(&urls[0], &["--name", name])).await;
            assert!(error.error(2).contains("name"), "{error:?}");
        }
        assert!(lab.names().iter().all(|name| name == "results"), "{:?}", lab.names());
    });
}

#[test]
fn a_trace_may_have_any_file_name() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &[]).await;
        lab.write("my trace (1).jsonl", &(rows().join("\n") + "\n"));
        lab.run("loadgen", &["--url", &urls[0], "--trace", "my trace (1).jsonl", "--concurrency", "2"]).await.ok();
    });
}
