//! Replays that would get no further: who waits for what is said, and what can never fit is refused.

use serde_json::Value;

use crate::lab::{Finished, Lab};
use crate::support::live;

async fn replay(lab: &Lab, arguments: &str) -> Finished {
    lab.run("replay", &arguments.split_whitespace().collect::<Vec<_>>()).await
}

#[test]
fn a_replay_that_gets_no_further_says_who_waits_for_what() {
    live(async {
        let lab = Lab::new();
        // On four blocks the second request makes room for the first; the third, which comes meanwhile, takes the block
        // that the first needs next. From then on the first wants all four, and the third may not pass it.
        let row = |at, input, output| {
            format!("{{\"timestamp\": {at}, \"input_length\": {input}, \"output_length\": {output}}}\n")
        };
        lab.write("t.jsonl", &[row(0, 5, 12), row(0, 4, 5), row(5, 4, 5)].concat());
        let tight = "t.jsonl --num-prefill-workers 3 --num-decode-workers 1 --block-size 4 --num-gpu-blocks 4";
        let files = "--timing fixed --prefill-ms 10 --decode-ms 1 --report r.json --timeline t.json --explain e.jsonl";
        assert_eq!(
            replay(&lab, &format!("{tight} {files}")).await.error(1),
            "the replay is stuck at 18.000 ms, requests under way: 3, and nothing will ever happen; \
             row 0 waits, preempted, for admission at decode worker 0, \
             row 1 waits, preempted, for admission at decode worker 0, \
             row 2 waits for admission at decode worker 0; \
             decode worker 0 rank 0: 0 running, 3 waiting, 1 of 4 KV blocks in use"
        );
        assert_eq!(lab.names(), ["t.jsonl"], "nothing half-written");
    });
}

#[test]
fn guesses_that_never_fit_are_refused() {
    live(async {
        let lab = Lab::new();
        lab.write("t.jsonl", "{\"timestamp\": 0, \"input_length\": 23, \"output_length\": 2}\n");
        let tight = "t.jsonl --block-size 4 --num-gpu-blocks 6 --allow-failures --requests-out r.jsonl";
        for (guesses, status, error) in [
            ("", "completed", Value::Null),
            ("--aic-nextn 1", "rejected", "prompt and output need 7 KV blocks, the pool has 6 (num_gpu_blocks)".into()),
        ] {
            for fleet in ["", "--num-prefill-workers 1 --num-decode-workers 1"] {
                replay(&lab, &format!("{tight} {guesses} {fleet}")).await.ok();
                let text = std::fs::read_to_string(lab.work().join("r.jsonl")).expect("a result");
                let line: Value = serde_json::from_str(text.trim()).expect("one line");
                assert_eq!((&line["status"], &line["error"]), (&status.into(), &error), "{guesses} {fleet}");
            }
        }
    });
}

#[test]
fn decisions_between_ranks_name_worker_and_rank() {
    live(async {
        let lab = Lab::new();
        lab.write("t.jsonl", &"{\"timestamp\": 0, \"input_length\": 9, \"output_length\": 2}\n".repeat(4));
        replay(&lab, "t.jsonl --num-workers 2 --dp-size 2 --explain e.jsonl --requests-out r.jsonl").await.ok();
        let targets = |name: &str, of: &dyn Fn(&Value) -> Value| -> Vec<(u64, u64)> {
            let text = std::fs::read_to_string(lab.work().join(name)).expect("a result");
            let lines = text.lines().map(|line| of(&serde_json::from_str(line).expect("JSON")));
            let mut targets: Vec<_> = lines
                .map(|at| (at["worker"].as_u64().expect("a worker"), at["dp_rank"].as_u64().unwrap_or(0)))
                .collect();
            targets.sort_unstable();
            targets
        };
        let explained = targets("e.jsonl", &Value::clone);
        assert_eq!(explained, [(0, 0), (0, 1), (1, 0), (1, 1)]);
        assert_eq!(targets("r.jsonl", &|line| line["route"][0].clone()), explained);
    });
}
