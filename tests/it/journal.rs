//! Journals of live runs: the replay says the same, and says where it does not.

use std::fs;

use crate::lab::{Lab, Running};
use crate::support::{
    ACTIVE, ENDLESS, WORKERS, connect, endless, generate, live, prompt, request, until, until_idle, until_metric,
    until_running,
};
use mockfleet::live::grpc::engine::AbortRequest;

/// A cache that the prompts of a run overfill, so that blocks are evicted, and that holds one long request; step times
/// from tables, which the journal has to carry.
const TIGHT: [&str; 8] = [
    "--num-gpu-blocks",
    "640",
    "--block-size",
    "16",
    "--max-num-batched-tokens",
    "512",
    "--timing",
    "minimax-m2.5_b200-sxm_tp4_vllm-0.19.0",
];
/// A request at a worker takes as long as its test.
const SLOW: [&str; 8] = ["--speedup-ratio", "1", "--timing", "fixed", "--prefill-ms", "5", "--decode-ms", "5"];

async fn stop(program: Running) {
    program.signal(libc::SIGTERM);
    program.end().await.ok();
}

fn lines(lab: &Lab, name: &str) -> Vec<String> {
    let text = fs::read_to_string(lab.work().join(name)).expect("a journal");
    text.lines().map(str::to_owned).collect()
}

fn count(lines: &[String], word: &str) -> usize {
    lines.iter().filter(|line| line.contains(word)).count()
}

/// A fleet, a router in mode kv and a load generator, each with its journal; clients that leave and abort; a flush.
async fn run_live(lab: &Lab, speedup: &str) {
    let (mocker, urls) =
        lab.mocker(2, &[&TIGHT[..], &["--speedup-ratio", speedup, "--journal", "fleet.journal"]].concat()).await;
    let kv = ["--router-mode", "kv", "--router-temperature", "0.3", "--router-queue-threshold", "0.5"];
    let (router, router_url) = lab.router(&[&kv[..], &["--journal", "router.journal"]].concat()).await;
    until_metric(&router_url, WORKERS, |up| up == 2.0).await;
    let mut client = connect(&router_url).await;
    let mut worker = connect(&urls[0]).await;
    let left = endless(&mut client, request(prompt(1, 40), ENDLESS)).await;
    drop(left);
    let named = request(prompt(2, 40), ENDLESS);
    let name = named.request_id.clone();
    let mut aborted = endless(&mut worker, named).await;
    worker.abort(AbortRequest { request_ids: vec![name] }).await.expect("an abort");
    let _ = aborted.end().await;
    generate(&mut client, request(prompt(3, 11_000), 4)).await.expect_err("more than the pool has");
    until_idle(&mut worker).await;
    until_metric(&router_url, ACTIVE, |active| active == 0.0).await;
    until_idle(&mut connect(&urls[1]).await).await;
    let load = ["--isl", "1500", "--osl", "25", "--num-requests", "40", "--num-prefix-groups", "4", "--seed", "3"];
    let grpc = router_url.replace("http", "grpc");
    let more = ["--concurrency", "10", "--flush-cache", "--url", &grpc, "--journal", "load.journal"];
    let loaded = lab.run("loadgen", &[&load[..], &more].concat()).await.ok();
    assert!(loaded.stderr.contains("journal of 40 inputs, "), "{loaded:?}");
    stop(router).await;
    stop(mocker).await;
}

async fn is_repeated_at(speedup: &str) {
    let lab = Lab::new();
    run_live(&lab, speedup).await;
    let names = ["fleet.journal", "router.journal", "load.journal"];
    let replayed = lab.run("replay", &[&["--journal"][..], &names].concat()).await.ok();
    assert_eq!(replayed.stderr, "");
    let said: Vec<&str> = replayed.stdout.lines().collect();
    assert_eq!(said.len(), 3, "{replayed:?}");
    for ((name, machine), line) in names.iter().zip(["fleet", "router", "driver"]).zip(&said) {
        assert!(line.starts_with(&format!("{name}: {machine}: ")) && line.ends_with(" outputs, identical"), "{line}");
    }
    // The runs had what could make them differ.
    let [fleet, router, load] = names.map(|name| lines(&lab, name));
    for (journal, word, least) in [
        (&fleet, "\"tables\":{\"decode\":", 1),
        (&fleet, "{\"submit\":", 42),
        (&fleet, "{\"cancel\":", 2),
        (&fleet, "\"flush_cache\"", 2),
        (&fleet, "{\"flushed\":{\"done\":true}}", 2),
        (&fleet, "{\"rejected\":", 1),
        (&fleet, "{\"removed\":", 1),
        (&fleet, "{\"token\":", 40 * 15),
        (&router, "{\"worker_up\":", 2),
        (&router, "{\"stored\":", 20),
        (&router, "\"cleared\"", 2),
        (&router, "{\"prefill_completed\":", 41),
        (&router, "{\"ended\":", 42),
        (&router, "{\"routed\":", 42),
        (&load, "{\"ended\":", 40),
    ] {
        assert!(count(journal, word) >= least, "{} times {word}, expected {least}", count(journal, word));
    }
}

#[test]
fn a_live_run_is_repeated_at_speedup_1() {
    live(is_repeated_at("1"));
}

#[test]
fn a_live_run_is_repeated_at_speedup_16() {
    live(is_repeated_at("16"));
}

#[test]
fn a_changed_a_cut_and_a_foreign_journal_are_told_apart() {
    live(async {
        let lab = Lab::new();
        run_live(&lab, "50").await;
        let whole = lines(&lab, "fleet.journal");
        let mut tokens = whole.iter().enumerate().filter(|(_, line)| line.contains("{\"token\":"));
        let (at, token) = tokens.nth(300).expect("many tokens");
        let mut changed = whole.clone();
        changed[at] = token.replace("\"position\":", "\"position\":1");
        lab.write("changed.journal", &(changed.join("\n") + "\n"));
        let run = lab.run("replay", &["--journal", "changed.journal"]).await;
        let error = run.error(1);
        assert!(error.starts_with(&format!("changed.journal:{}: at ", at + 1)), "{error}");
        assert!(error.contains(" ms (call in line "), "{error}");
        assert!(run.stderr.contains("\n  expected: ") && run.stderr.contains("\n  got:      "), "{run:?}");
        // Torn within a line, and cut behind one.
        let start = whole[..at].join("\n");
        for (text, said) in [
            (format!("{start}\n{}", &token[..20]), format!("note: cut.journal is torn behind line {at}: ")),
            (format!("{start}\n"), format!("note: cut.journal has no end behind line {at}: ")),
        ] {
            lab.write("cut.journal", &text);
            let run = lab.run("replay", &["--journal", "cut.journal"]).await.ok();
            assert!(run.stderr.starts_with(&said), "{run:?}");
            assert!(run.stdout.ends_with(" outputs, identical\n"), "{run:?}");
        }
        let version = format!("\"{}\"", env!("CARGO_PKG_VERSION"));
        lab.write("old.journal", &whole.join("\n").replacen(&version, "\"0.0.1\"", 1));
        let run = lab.run("replay", &["--journal", "old.journal", "load.journal"]).await;
        assert_eq!(run.status.code(), Some(1));
        assert!(run.stderr.starts_with("error: old.journal:1: written by mockfleet 0.0.1, this is "), "{run:?}");
        assert!(run.stdout.starts_with("load.journal: driver: "), "the others are repeated all the same: {run:?}");
        // A journal overwrites nothing, and is no trace.
        for (program, arguments, words) in [
            ("mocker", &["--port", "0", "--journal", "fleet.journal"][..], "fleet.journal: there is a file already"),
            ("replay", &["--journal", "fleet.journal", "--num-workers", "2"], "--journal"),
        ] {
            let error = lab.run(program, arguments).await.error(2);
            assert!(error.contains(words), "{error}");
        }
        assert_eq!(lines(&lab, "fleet.journal"), whole);
        let error = lab.run("replay", &["--journal", "missing.journal"]).await.error(1);
        assert!(error.starts_with("missing.journal: "), "{error}");
    });
}

#[test]
fn a_killed_fleet_leaves_a_journal_that_is_repeated() {
    live(async {
        let lab = Lab::new();
        let (mocker, urls) = lab.mocker(1, &[&SLOW[..], &["--journal", "fleet.journal"]].concat()).await;
        let _running = endless(&mut connect(&urls[0]).await, request(prompt(1, 100), ENDLESS)).await;
        until("tokens in the file", async || (count(&lines(&lab, "fleet.journal"), "{\"token\":") > 40).then_some(()))
            .await;
        mocker.signal(libc::SIGKILL);
        mocker.end().await;
        let run = lab.run("replay", &["--journal", "fleet.journal"]).await.ok();
        assert!(run.stderr.contains("its program was killed; up to there all is identical"), "{run:?}");
        assert!(run.stdout.starts_with("fleet.journal: fleet: 1 inputs, "), "{run:?}");
    });
}

#[test]
fn an_interrupted_load_is_repeated() {
    live(async {
        let lab = Lab::new();
        let (_mocker, urls) = lab.mocker(1, &SLOW).await;
        let url = urls[0].replace("http", "grpc");
        let load = ["--url", &url, "--isl", "256", "--osl", "10000", "--concurrency", "3", "--journal", "load.journal"];
        let loadgen = lab.launch("loadgen", &load);
        until_running(&mut connect(&urls[0]).await, 3).await;
        loadgen.catches_signals().await;
        loadgen.signal(libc::SIGINT);
        assert_eq!(loadgen.end().await.status.code(), Some(1));
        assert_eq!(count(&lines(&lab, "load.journal"), "\"in\":\"stop\""), 1);
        let run = lab.run("replay", &["--journal", "load.journal"]).await.ok();
        assert_eq!(run.stderr, "");
        assert!(run.stdout.starts_with("load.journal: driver: 4 inputs, "), "{run:?}");
    });
}

#[test]
fn a_router_that_loses_its_fleet_begins_anew_in_its_journal() {
    live(async {
        let lab = Lab::new();
        let (first, _) = lab.mocker(1, &[]).await;
        let (router, url) = lab.router(&["--router-mode", "kv", "--journal", "router.journal"]).await;
        let mut client = connect(&url).await;
        generate(&mut client, request(prompt(1, 100), 4)).await.expect("an answer");
        stop(first).await;
        until_metric(&url, WORKERS, |up| up == 0.0).await;
        let (second, _) = lab.mocker(1, &["--block-size", "32"]).await;
        until_metric(&url, WORKERS, |up| up == 1.0).await;
        generate(&mut client, request(prompt(1, 100), 4)).await.expect("an answer");
        stop(router).await;
        stop(second).await;
        let journal = lines(&lab, "router.journal");
        let starts: Vec<&String> = journal.iter().filter(|line| line.starts_with("{\"start\":")).collect();
        assert!(starts.len() == 2 && starts[1].contains("\"block_size\":32"), "{starts:?}");
        assert!(count(&journal, "{\"worker_down\":") == 2 && count(&journal, "{\"routed\":") == 2, "{journal:#?}");
        let run = lab.run("replay", &["--journal", "router.journal"]).await.ok();
        assert_eq!(run.stderr, "");
    });
}
