//! Requests that can never run, and those that the model's length cuts.

use super::*;

/// Submits a request that is rejected for `reason`, and one behind it that runs as if it were alone.
fn assert_rejected(config: EngineConfig, prompt_tokens: u32, max_output_tokens: u32, reason: RejectReason) {
    let place = format!("{prompt_tokens} + {max_output_tokens} tokens");
    let mut bench = Bench::new(config.clone());
    bench.submit(0.0, 0, prompt(0, prompt_tokens), max_output_tokens).run();
    assert_eq!(bench.rejection(0), Some((0.0, reason)), "{place}");
    assert_eq!(bench.engine.next_deadline(), None, "{place}");
    let mut bench = Bench::new(config);
    bench.submit(0.0, 0, prompt(0, prompt_tokens), max_output_tokens).submit(0.0, 1, prompt(100, 3), 2).run();
    assert_eq!(bench.rejection(0), Some((10.0, reason)), "{place}: at the end of the step that saw it");
    assert_eq!((bench.admissions(0), bench.tokens(0)), (vec![], vec![]), "{place}");
    assert_eq!(
        (bench.admissions(1), bench.token_times(1)),
        (vec![(0.0, 0)], vec![10.0, 12.0]),
        "{place}: the follower"
    );
    let stats = bench.engine.stats();
    assert_eq!((stats.rejected_total, stats.finished_total, stats.prompt_tokens_total), (1, 1, 3), "{place}");
}

#[test]
fn a_pool_that_cannot_hold_prompt_and_output() {
    let reason = |needed_blocks| RejectReason::PoolTooSmall { needed_blocks, num_gpu_blocks: 4 };
    assert_rejected(fixed(4), 17, 1, reason(5));
    assert_rejected(fixed(4), 17, 0, reason(5));
    // The prompt alone would fit; the peer would preempt such a request for ever.
    assert_rejected(fixed(4), 16, 2, reason(5));
    assert_rejected(fixed(4), 1, 17, reason(5));
    assert_rejected(fixed(4), 8, u32::MAX, reason(1 << 30));
    for (input, output) in [(16, 1), (16, 0), (15, 2), (1, 16)] {
        let mut bench = Bench::new(fixed(4));
        bench.submit(0.0, 0, prompt(0, input), output).run();
        assert_eq!(bench.tokens(0).len(), output as usize, "{input} + {output} tokens fit");
    }
}

#[test]
fn a_prompt_that_leaves_no_room_for_output() {
    let config = EngineConfig { max_model_len: Some(8), ..fixed(16) };
    for prompt_tokens in [8, 9, 100] {
        let reason = RejectReason::PromptTooLong { prompt_tokens, max_model_len: 8 };
        assert_rejected(config.clone(), prompt_tokens, 2, reason);
        assert_rejected(config.clone(), prompt_tokens, 0, reason);
    }
}

#[test]
fn the_models_length_cuts_the_output() {
    for (input, wanted, made) in [(7, 10, 1), (3, 10, 5), (3, 5, 5), (3, 2, 2), (3, 0, 0)] {
        // Two blocks are enough, as the output is cut before the pool is looked at.
        let mut bench = Bench::new(EngineConfig { max_model_len: Some(8), ..fixed(2) });
        bench.submit(0.0, 0, prompt(0, input), wanted).run();
        assert_eq!(bench.tokens(0).len(), made, "{input} + {wanted} tokens");
        assert!(bench.end_ms(0).is_some(), "{input} + {wanted} tokens");
        assert_eq!(bench.rejection(0), None, "{input} + {wanted} tokens");
    }
}

#[test]
fn a_prompt_that_no_step_can_take_whole() {
    let config = EngineConfig { enable_chunked_prefill: false, max_num_batched_tokens: Some(8), ..fixed(16) };
    let reason = RejectReason::Unchunkable { prompt_tokens: 9, max_num_batched_tokens: 8 };
    assert_rejected(config.clone(), 9, 1, reason);
    let mut bench = Bench::new(config);
    bench.submit(0.0, 0, prompt(0, 8), 1).run();
    assert_eq!(bench.end_ms(0), Some(10.0), "8 tokens fit");
}

#[test]
fn an_empty_prompt() {
    assert_rejected(fixed(16), 0, 3, RejectReason::EmptyPrompt);
    assert_rejected(fixed(16), 0, 0, RejectReason::EmptyPrompt);
}

#[test]
fn a_hopeless_head_is_rejected_although_the_budget_is_used_up() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(4), ..fixed(4) });
    bench.submit(0.0, 0, prompt(0, 8), 1).submit(0.0, 1, prompt(100, 17), 1).run();
    assert_eq!(bench.rejection(1).map(|(at_ms, _)| at_ms), Some(10.0));
}

#[test]
fn reasons_name_the_values_and_the_key() {
    let said = |reason: RejectReason| reason.to_string();
    assert_eq!(
        said(RejectReason::PoolTooSmall { needed_blocks: 5, num_gpu_blocks: 4 }),
        "prompt and output need 5 KV blocks, the pool has 4 (num_gpu_blocks)"
    );
    assert_eq!(
        said(RejectReason::PromptTooLong { prompt_tokens: 9, max_model_len: 8 }),
        "a prompt of 9 tokens leaves no room below max_model_len 8"
    );
    assert_eq!(
        said(RejectReason::Unchunkable { prompt_tokens: 9, max_num_batched_tokens: 8 }),
        "a prompt of 9 tokens does not fit in a step of 8 tokens (max_num_batched_tokens), and chunked prefill is off"
    );
    assert_eq!(said(RejectReason::EmptyPrompt), "the prompt is empty, expected at least 1 token");
}

#[test]
fn a_configuration_out_of_range_names_its_key() {
    let cases: [(&str, EngineConfig); 5] = [
        ("num_gpu_blocks", EngineConfig { num_gpu_blocks: 0, ..fixed(16) }),
        ("block_size", EngineConfig { block_size: 1, ..fixed(16) }),
        ("max_model_len", EngineConfig { max_model_len: Some(0), ..fixed(16) }),
        ("max_num_seqs", EngineConfig { max_num_seqs: Some(0), ..fixed(16) }),
        ("max_num_batched_tokens", EngineConfig { max_num_batched_tokens: Some(0), ..fixed(16) }),
    ];
    for (key, config) in cases {
        assert_eq!(Engine::new(config).expect_err("refused").key, key);
    }
    let unbounded = EngineConfig { max_model_len: None, max_num_seqs: None, max_num_batched_tokens: None, ..fixed(16) };
    assert!(Engine::new(unbounded).is_ok());
}
