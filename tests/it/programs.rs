//! The programs as users meet them: help, wrong usage, bad input, configuration files.

use crate::lab::{Lab, rows};
use crate::support::live;

#[test]
fn help_is_what_it_was() {
    live(async {
        let lab = Lab::new();
        for words in [
            &["mocker"][..],
            &["router"],
            &["loadgen"],
            &["loadgen", "compare"],
            &["replay"],
            &["trace"],
            &["trace", "generate"],
            &["trace", "stats"],
            &["mockfleet"],
        ] {
            let arguments: Vec<&str> = words[1..].iter().copied().chain(["--help"]).collect();
            let help = lab.run(words[0], &arguments).await.ok();
            assert_eq!(help.stderr, "");
            insta::assert_snapshot!(format!("help_{}", words.join("_")), help.stdout);
        }
        // The multi-call binary shows the same, but for the name.
        for program in ["mocker", "router", "loadgen", "replay", "trace"] {
            let own = lab.run(program, &["--help"]).await.ok().stdout;
            let shared = lab.run("mockfleet", &[program, "--help"]).await.ok().stdout;
            let (own, shared) = (own.split_once("Usage: "), shared.split_once("Usage: "));
            assert_eq!(own.expect("a usage").0, shared.expect("a usage").0, "{program}");
        }
    });
}

#[test]
fn version_and_completions_need_nothing_else() {
    live(async {
        let lab = Lab::new();
        for program in ["mocker", "router", "loadgen", "replay", "trace", "mockfleet"] {
            let version = lab.run(program, &["--version"]).await.ok().stdout;
            assert_eq!(version, format!("{program} {}\n", env!("CARGO_PKG_VERSION")));
        }
        for program in ["mocker", "router", "loadgen", "replay", "trace"] {
            let completions = lab.run(program, &["--completions", "bash"]).await.ok().stdout;
            assert!(completions.contains(&format!("_{program}()")), "{completions}");
        }
        assert_eq!(lab.names(), Vec::<String>::new());
    });
}

#[test]
fn a_bad_trace_is_named_by_line_and_nothing_is_sent() {
    live(async {
        let lab = Lab::new();
        let with_line_7 = |line: &str| {
            let mut rows = rows();
            rows[6] = line.to_owned();
            rows.join("\n") + "\n"
        };
        lab.write("broken.jsonl", &with_line_7(r#"{"timestamp": 7, "input_length": 600, "#));
        lab.write(
            "negative.jsonl",
            &with_line_7(r#"{"timestamp": 7, "input_length": 600, "output_length": -5, "hash_ids": [0, 7]}"#),
        );
        lab.write(
            "prompt.jsonl",
            &with_line_7(r#"{"timestamp": 7, "input_length": -1, "output_length": 5, "hash_ids": [0, 7]}"#),
        );
        lab.write("words.jsonl", &with_line_7("seven"));
        lab.write("empty.jsonl", "");
        lab.write("blank.jsonl", "\n\n");
        lab.write("torn.jsonl.gz", "not gzipped");
        let before = lab.names();
        for (file, words) in [
            ("broken.jsonl", &["broken.jsonl:7:"][..]),
            ("negative.jsonl", &["negative.jsonl:7:56: `output_length` is -5"]),
            ("prompt.jsonl", &["prompt.jsonl:7:34: `input_length` is -1"]),
            ("words.jsonl", &["words.jsonl:7:"]),
            ("empty.jsonl", &["empty.jsonl"]),
            ("blank.jsonl", &["blank.jsonl"]),
            ("missing.jsonl", &["missing.jsonl", "No such file"]),
            ("torn.jsonl.gz", &["torn.jsonl.gz"]),
        ] {
            // Port 1 has no server: the trace's error comes first, since it is read first.
            for run in [
                lab.run("loadgen", &["--trace", file, "--url", "grpc://127.0.0.1:1", "--concurrency", "2"]).await,
                lab.run("trace", &["stats", file]).await,
                lab.run("replay", &[file, "--report", "report.json", "--requests-csv", "requests.csv"]).await,
            ] {
                let error = run.error(1);
                assert!(words.iter().all(|word| error.contains(word)), "{error}");
                run.says_nothing_else();
            }
        }
        assert_eq!(lab.names(), before);
    });
}

#[test]
fn a_port_in_use_is_one_error() {
    live(async {
        let lab = Lab::new();
        let taken = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = taken.local_addr().expect("an address").port().to_string();
        for program in ["mocker", "router"] {
            let run = lab.run(program, &["--port", &port]).await;
            let error = run.error(1);
            assert!(error.contains(&format!("127.0.0.1:{port}")) && error.contains("in use"), "{error}");
            run.says_nothing_else();
        }
        assert_eq!(lab.registrations("default"), Vec::<String>::new(), "no zombie registration");
    });
}

#[test]
fn a_second_worker_without_a_port_leaves_no_registration_of_the_first() {
    live(async {
        let lab = Lab::new();
        let run = lab.run("mocker", &["--port", "65535", "--num-workers", "2"]).await;
        let error = run.error(2);
        assert!(error.contains("65535"), "{error}");
        assert_eq!(lab.registrations("default"), Vec::<String>::new());
    });
}

#[test]
fn nobody_to_talk_to_is_one_error() {
    live(async {
        let lab = Lab::new();
        let run = lab.run("router", &["--port", "0", "--worker-timeout-s", "0.3", "--namespace", "lonely"]).await;
        let error = run.error(1);
        assert!(error.contains("no worker in namespace `lonely` within 0.3 s"), "{error}");
        assert!(run.stderr.contains("\n  hint: start `mocker --namespace lonely`"), "{}", run.stderr);
        run.says_nothing_else();
        let named = ["--port", "0", "--worker-timeout-s", "0.3", "--workers", "http://127.0.0.1:1"];
        let error = lab.run("router", &named).await.error(1);
        assert!(error.contains("http://127.0.0.1:1"), "{error}");
        for url in ["grpc://127.0.0.1:1", "http://127.0.0.1:1"] {
            let run = lab.run("loadgen", &["--url", url, "--num-requests", "4", "--num-prefix-groups", "2"]).await;
            let error = run.error(1);
            assert!(error.contains(url) && error.contains("refused"), "{error}");
            assert!(run.stderr.contains("\n  hint: start `router`"), "{}", run.stderr);
            run.says_nothing_else();
        }
        assert_eq!(lab.names(), Vec::<String>::new());
    });
}

#[test]
fn wrong_usage_is_one_error_and_exit_code_2() {
    live(async {
        let lab = Lab::new();
        for (program, arguments, word) in [
            ("mocker", &["--speedup-ratio", "0"][..], "`speedup_ratio` is 0"),
            ("mocker", &["--speedup-ratio", "-1"], "-1"),
            ("mocker", &["--num-workers", "0"], "`num_workers` is 0"),
            ("mocker", &["--block-size", "0"], "`block_size` is 0"),
            ("mocker", &["--num-gpu-blocks", "0"], "`num_gpu_blocks` is 0"),
            ("mocker", &["--vocab-tokens", "1"], "`vocab_tokens` is 1"),
            ("mocker", &["--grace-s=-1"], "`grace_s` is -1"),
            ("mocker", &["--timing-model", "fixed"], "`prefill_ms` is missing"),
            ("mocker", &["--port", "70000"], "70000"),
            ("mocker", &["--nonsense"], "--nonsense"),
            ("mockfleet", &["mocker", "--speedup-ratio", "0"], "`speedup_ratio` is 0"),
            ("mockfleet", &["nonsense"], "nonsense"),
            ("router", &["--router-mode", "best"], "expected round-robin, random, power-of-two"),
            ("router", &["--router-temperature=-1"], "`router_temperature` is -1"),
            ("router", &["--worker-timeout-s=-1"], "`worker_timeout_s` is -1"),
            ("router", &["--workers", "ftp://somewhere:1"], "ftp://somewhere:1"),
            ("router", &["--workers", "127.0.0.1:9", "http://127.0.0.1:9"], "is the same as"),
            ("loadgen", &["--concurrency", "0"], "`concurrency` is 0"),
            ("loadgen", &["--concurrency", "2", "--arrival-speedup-ratio", "1"], "cannot be used with"),
            ("loadgen", &["--request-rate", "2", "--concurrency", "1"], "cannot be used with"),
            ("loadgen", &["--request-rate", "0"], "`request_rate` is 0"),
            ("loadgen", &["--arrival-pattern", "gamma"], "`arrival_pattern` is set without `request_rate`"),
            ("loadgen", &["--arrival-speedup-ratio", "1"], "`arrival_speedup_ratio` is set without `trace`"),
            ("loadgen", &["--trace", "t.jsonl", "--arrival-speedup-ratio", "0"], "`arrival_speedup_ratio` is 0"),
            ("loadgen", &["--trace", "t.jsonl", "--isl", "5"], "`isl` belongs to the prefix workload"),
            ("loadgen", &["--head", "5"], "`head` is set without `trace`"),
            ("loadgen", &["--isl", "0"], "isl"),
            ("loadgen", &["--prefix-ratio", "1.5"], "1.5"),
            ("loadgen", &["--url", "127.0.0.1:8000"], "127.0.0.1:8000"),
            ("loadgen", &["compare", "alone"], "DIR"),
            ("trace", &["generate", "out.jsonl", "--num-requests", "0"], "`num_requests` is 0"),
            ("trace", &["nonsense"], "nonsense"),
            ("replay", &[], "no trace, expected"),
            ("replay", &["t.jsonl", "--arrival-speedup-ratio", "0"], "`arrival_speedup_ratio` is 0"),
            ("replay", &["t.jsonl", "--num-workers", "0"], "`num_workers` is 0"),
            ("replay", &["t.jsonl", "--concurrency", "0"], "`concurrency` is 0"),
            ("replay", &["t.jsonl", "--request-rate", "2", "--arrival-speedup-ratio", "1"], "cannot be used with"),
            (
                "replay",
                &["t.jsonl", "--request-rate", "2", "--arrival-smoothness", "1"],
                "`arrival_smoothness` belongs to",
            ),
            ("replay", &["t.jsonl", "--router-mode", "best"], "expected round-robin, random, power-of-two"),
        ] {
            let run = lab.run(program, arguments).await;
            let error = run.error(2);
            assert!(error.contains(word), "{program} {arguments:?}: {error}");
            run.says_nothing_else();
        }
        assert_eq!(lab.names(), Vec::<String>::new(), "nothing was written");
        assert_eq!(lab.registrations("default"), Vec::<String>::new());
    });
}

#[test]
fn a_wrong_configuration_file_is_named_by_line() {
    live(async {
        let lab = Lab::new();
        lab.write("key.toml", "num_workers = 2\nworkers_num = 2\n");
        lab.write("key.yaml", "# workers\nnum-workers: 2\n\nworkers-num: 2\n");
        lab.write("kind.toml", "port = 0\nnum_workers = \"eight\"\n");
        lab.write("kind.yaml", "port: 0\nnum_workers: eight\n");
        lab.write("range.yml", "port: 70000\n");
        lab.write("mode.toml", "seed = 1\nrouter_mode = \"best\"\n");
        lab.write("mode.yaml", "router_mode: best\n");
        lab.write("zero.toml", "speedup_ratio = 0\n");
        lab.write("load.toml", "isl = 5\nosl = \"long\"\n");
        lab.write("torn.toml", "port = \n");
        lab.write("torn.yaml", "port: [\n");
        lab.write("list.yaml", "- 5\n");
        lab.write("settings.ini", "port = 0\n");
        let before = lab.names();
        for (program, file, start) in [
            ("mocker", "key.toml", "key.toml:2: unknown key `workers_num`"),
            ("mocker", "key.yaml", "key.yaml:4: unknown key `workers-num`"),
            ("mocker", "kind.toml", "kind.toml:2: `num_workers` is \"eight\""),
            ("mocker", "kind.yaml", "kind.yaml:2: `num_workers` is \"eight\""),
            ("mocker", "range.yml", "range.yml:1: `port` is 70000"),
            ("router", "mode.toml", "mode.toml:2: `router_mode` is \"best\""),
            ("router", "mode.yaml", "mode.yaml:1: `router_mode` is \"best\""),
            ("router", "key.toml", "key.toml:1: unknown key `num_workers`"),
            ("loadgen", "load.toml", "load.toml:2: `osl` is \"long\""),
            ("replay", "mode.toml", "mode.toml:2: `router_mode` is \"best\""),
            ("replay", "load.toml", "load.toml:1: unknown key `isl`"),
            ("mocker", "zero.toml", "`speedup_ratio` is 0"),
            ("mocker", "torn.toml", "torn.toml"),
            ("mocker", "torn.yaml", "torn.yaml"),
            ("mocker", "list.yaml", "list.yaml"),
            ("mocker", "settings.ini", "settings.ini: unknown kind of configuration file"),
            ("mocker", "missing.toml", "missing.toml: No such file"),
        ] {
            let trace = if program == "replay" { &["t.jsonl"][..] } else { &[] };
            let error = lab.run(program, &[trace, &["--config", file]].concat()).await.error(2);
            assert!(error.starts_with(start), "{program} {file}: {error}");
        }
        assert_eq!(lab.names(), before);
    });
}

#[test]
fn the_line_of_a_key_is_not_that_of_a_longer_one() {
    live(async {
        let lab = Lab::new();
        lab.write("value.toml", "trace_block_size = 64\ntrace = 5\n");
        let error = lab.run("loadgen", &["--config", "value.toml"]).await.error(2);
        assert!(error.starts_with("value.toml:2: `trace` is 5"), "{error}");
        lab.write("key.toml", "num_workers = 2\nnum_worker = 2\n");
        let error = lab.run("mocker", &["--config", "key.toml"]).await.error(2);
        assert!(error.starts_with("key.toml:2: unknown key `num_worker`"), "{error}");
    });
}

#[test]
fn a_flag_that_is_not_finite_is_refused() {
    live(async {
        let lab = Lab::new();
        for (program, flag, word) in [
            ("router", "--overlap-score-credit=nan", "expected a finite number"),
            ("loadgen", "--prefix-ratio=nan", "expected a finite number"),
            ("mocker", "--speedup-ratio=inf", "expected a finite number"),
        ] {
            let error = lab.run(program, &[flag]).await.error(2);
            assert!(error.contains(word), "{program} {flag}: {error}");
        }
    });
}

#[test]
fn a_key_that_is_given_twice_is_an_error() {
    live(async {
        let lab = Lab::new();
        lab.write("twice.toml", "num_workers = 1\nnum-workers = 0\n");
        let error = lab.run("mocker", &["--config", "twice.toml"]).await.error(2);
        assert!(error.contains("twice.toml:2") && error.contains("num-workers"), "{error}");
    });
}

#[test]
fn a_named_run_without_a_server_writes_nothing() {
    live(async {
        let lab = Lab::new();
        lab.run("loadgen", &["--url", "grpc://127.0.0.1:1", "--name", "mine"]).await.error(1);
        assert_eq!(lab.names(), Vec::<String>::new());
    });
}

#[test]
fn a_hint_names_no_flag_that_the_program_lacks() {
    live(async {
        let lab = Lab::new();
        lab.write("bad.jsonl", "seven\n");
        for (program, arguments) in [("trace", &["stats", "bad.jsonl"][..]), ("replay", &["bad.jsonl"])] {
            let run = lab.run(program, arguments).await;
            run.error(1);
            let hint = "--on-bad-row";
            let known = lab.run(program, &[&arguments[..arguments.len() - 1], &["--help"]].concat()).await.stdout;
            assert!(!run.stderr.contains(hint) || known.contains(hint), "{run:#?}");
        }
    });
}
