//! Who gets into a step: order, budget, the admission gate, and what the timing model is asked.

use super::*;

/// What the timing model is asked: (requests, mean prompt, mean prefix) or (sequences, tokens, mean).
type Call = (u32, u64, u64);

const NONE: Call = (0, 0, 0);

/// The timing model's prefill and decode call of each step.
fn calls(bench: &Bench) -> Vec<(Call, Call)> {
    bench.steps.iter().map(|step| (step.prefill, step.decode)).collect()
}

#[test]
fn one_request_prefills_then_decodes() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 2).run();
    assert_eq!(bench.token_times(0), [10.0, 12.0]);
    assert_eq!(calls(&bench), [((1, 4, 0), NONE), (NONE, (1, 5, 5))]);
    assert_eq!(bench.engine.next_deadline(), None, "idle after completion");
}

#[test]
fn two_requests_share_their_steps() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 2).submit(0.0, 1, prompt(100, 4), 2).run();
    for id in [0, 1] {
        assert_eq!(bench.token_times(id), [10.0, 12.0], "request {id}");
    }
    assert_eq!(calls(&bench), [((2, 4, 0), NONE), (NONE, (2, 10, 5))]);
}

#[test]
fn a_decoder_waits_for_the_prefill_beside_it() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 2).submit(5.0, 1, prompt(100, 8), 1).run();
    assert_eq!(bench.admissions(1), [(10.0, 0)]);
    assert_eq!((bench.end_ms(0), bench.end_ms(1)), (Some(22.0), Some(22.0)));
    assert_eq!(calls(&bench), [((1, 4, 0), NONE), ((1, 8, 0), (1, 5, 5))]);
}

#[test]
fn an_arrival_at_a_steps_end_is_in_the_next_step() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 2).submit(10.0, 1, prompt(100, 8), 1).run();
    assert_eq!(bench.admissions(1), [(10.0, 0)]);
    assert_eq!((bench.end_ms(0), bench.end_ms(1)), (Some(22.0), Some(22.0)));
}

#[test]
fn a_long_prompt_is_computed_in_chunks() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(4), ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 10), 2).run();
    assert_eq!(bench.token_times(0), [30.0, 32.0]);
    assert_eq!(calls(&bench), [((1, 4, 0), NONE), ((1, 8, 4), NONE), ((1, 10, 8), NONE), (NONE, (1, 11, 11))]);
}

#[test]
fn a_partial_prefill_stays_in_the_batch() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(12), ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 8), 2).submit(0.0, 1, prompt(100, 8), 2).run_to(0.0);
    assert_eq!((bench.engine.running.len(), bench.blocks().0), (2, 3), "running, active blocks");
    let computed: Vec<u32> =
        bench.engine.running.iter().map(|slot| bench.engine.sequences[*slot].computed_tokens).collect();
    assert_eq!(computed, [8, 4]);
    bench.run();
    assert_eq!(bench.token_times(0), [10.0, 22.0]);
    assert_eq!(bench.token_times(1), [22.0, 24.0]);
}

#[test]
fn running_sequences_use_the_budget_before_waiting_ones() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(4), ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 8), 3).submit(0.0, 1, prompt(100, 4), 1).run();
    // Third step: one token for the first, three for the second, whose last follows in the fourth.
    assert_eq!(bench.admissions(1), [(20.0, 0)]);
    assert_eq!(calls(&bench)[2..], [((1, 3, 0), (1, 9, 9)), ((1, 4, 3), (1, 10, 10))]);
    assert_eq!((bench.end_ms(0), bench.end_ms(1)), (Some(44.0), Some(44.0)));
}

#[test]
fn a_used_up_budget_admits_nobody() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(2), ..fixed(16) });
    for id in 0..3 {
        bench.submit(0.0, id, prompt(100 * id as u32, 2), 3);
    }
    bench.run();
    let admitted: Vec<f64> = (0..3).map(|id| bench.admissions(id)[0].0).collect();
    assert_eq!(admitted[..2], [0.0, 10.0]);
    // From 22 ms on the first two decode; the third gets in when the first has ended.
    assert!(bench.steps.iter().all(|step| step.computed_tokens <= 2), "{:?}", bench.steps);
    assert!(admitted[2] >= bench.end_ms(0).expect("an end"), "{admitted:?}");
}

#[test]
fn an_unchunked_prompt_waits_until_it_fits_into_a_step() {
    let mut bench =
        Bench::new(EngineConfig { max_num_batched_tokens: Some(8), enable_chunked_prefill: false, ..fixed(64) });
    bench.submit(0.0, 0, prompt(0, 4), 2).submit(0.0, 1, prompt(100, 8), 1).submit(0.0, 2, prompt(200, 2), 1).run();
    // 8 > 4 left in the first step, 8 > 7 in the second; the one behind does not overtake.
    assert_eq!(bench.token_times(0), [10.0, 12.0]);
    assert_eq!(bench.admissions(1), [(12.0, 0)]);
    assert_eq!(bench.admissions(2), [(22.0, 0)]);
    assert_eq!(calls(&bench), [((1, 4, 0), NONE), (NONE, (1, 5, 5)), ((1, 8, 0), NONE), ((1, 2, 0), NONE)]);
}

#[test]
fn max_num_seqs_of_one_serves_one_after_another() {
    let mut bench = Bench::new(EngineConfig { max_num_seqs: Some(1), ..fixed(16) });
    for id in 0..3 {
        bench.submit(0.0, id, prompt(100 * id as u32, 4), 3);
    }
    bench.run();
    let admitted: Vec<_> = (0..3).map(|id| bench.admissions(id)).collect();
    assert_eq!(admitted, [[(0.0, 0)], [(14.0, 0)], [(28.0, 0)]]);
}

#[test]
fn nobody_overtakes_the_head_of_the_queue() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(64), ..fixed(8) });
    bench.submit(0.0, 0, prompt(0, 8), 8).submit(0.0, 1, prompt(100, 28), 1).submit(0.0, 2, prompt(200, 4), 1).run();
    assert_eq!(bench.end_ms(0), Some(24.0));
    assert_eq!((bench.admissions(1), bench.admissions(2)), (vec![(24.0, 0)], vec![(24.0, 0)]));
    assert_eq!(bench.engine.stats().preemptions_total, 0, "the gate waits, it does not preempt");
}

#[test]
fn an_active_prefix_is_no_cost_at_the_gate_but_an_inactive_one_is() {
    // Active: the holder of 4 of the 8 blocks runs on, the newcomer of 6 blocks needs only 2 more.
    let mut bench = Bench::new(fixed(8));
    bench.submit(0.0, 0, prompt(0, 16), 3).submit(5.0, 1, prompt(0, 24), 1).run();
    assert_eq!(bench.admissions(1), [(10.0, 16)]);
    // Inactive: the same prefix, but a stranger holds 3 blocks, so 6 do not fit into 5 until it ends.
    let mut bench = Bench::new(fixed(8));
    bench.submit(0.0, 0, prompt(0, 16), 1).submit(10.0, 1, prompt(100, 11), 2).submit(10.0, 2, prompt(0, 24), 1).run();
    assert_eq!(bench.end_ms(1), Some(22.0));
    assert_eq!(bench.admissions(2), [(22.0, 16)]);
}

#[test]
fn a_request_without_output_ends_without_a_token() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 0).submit(20.0, 1, prompt(0, 4), 0).submit(40.0, 2, prompt(0, 5), 0).run();
    let finished: Vec<(f64, u64, u32)> = bench
        .said
        .iter()
        .filter_map(|(at, output)| match output {
            EngineOutput::Finished { id, reused_tokens } => Some((at.as_ms(), id.0, *reused_tokens)),
            _ => None,
        })
        .collect();
    // The second is wholly cached: nothing is left to compute, and it takes no time.
    assert_eq!(finished, [(10.0, 0, 0), (20.0, 1, 4), (50.0, 2, 4)]);
    assert!((0..3).all(|id| bench.tokens(id).is_empty()));
    assert_eq!(bench.engine.stats().finished_total, 3);
}

#[test]
fn a_slot_is_taken_in_the_step_that_computes_its_token() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 3).run_to(0.0);
    assert_eq!(bench.blocks().0, 1, "the first output token is made, not computed");
    bench.run_to(10.0);
    assert_eq!(bench.blocks().0, 2, "now it is computed, into a block of its own");
    // The last token is never computed: a prompt that fills the pool may have one output token.
    let mut bench = Bench::new(fixed(1));
    bench.submit(0.0, 0, prompt(0, 4), 1).run();
    assert_eq!(bench.end_ms(0), Some(10.0));
}

#[test]
fn steps_that_take_no_time_still_end() {
    let timing_model = TimingModel::Fixed { prefill_ms: 0.0, decode_ms: 0.0 };
    let mut bench = Bench::new(EngineConfig { timing_model, ..fixed(16) });
    bench.submit(3.0, 0, prompt(0, 8), 5).run();
    assert_eq!(bench.token_times(0), [3.0; 5]);
    assert_eq!(bench.engine.stats().steps_total, 5);
}

#[test]
fn output_tokens_follow_from_the_seed() {
    let output = |seed: Seed, vocab_tokens: u32| {
        let mut bench = Bench::new(fixed(16));
        let request = EngineRequest { output_seed: seed, vocab_tokens, ..request(0, prompt(0, 4), 8) };
        bench.input(0.0, EngineInput::Submit(request)).run();
        bench.tokens(0).into_iter().map(|(_, token_id)| token_id).collect::<Vec<u32>>()
    };
    assert_eq!(output(Seed(1), VOCAB_TOKENS), output(Seed(1), VOCAB_TOKENS));
    assert_ne!(output(Seed(1), VOCAB_TOKENS), output(Seed(2), VOCAB_TOKENS));
    let expected: Vec<u32> = (0..8).map(|position| Seed(1).token_at(position, 100)).collect();
    assert_eq!(output(Seed(1), 100), expected);
    assert!(expected.iter().all(|token| *token < 100));
}

#[test]
fn a_duplicate_of_a_live_request_is_ignored() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 2).submit(5.0, 0, prompt(100, 8), 9).run();
    assert_eq!(bench.token_times(0), [10.0, 12.0]);
    bench.submit(20.0, 0, prompt(200, 4), 1).run();
    assert_eq!(bench.token_times(0), [10.0, 12.0, 30.0], "the name is free again after the end");
}

#[test]
fn advance_ends_and_starts_steps() {
    let mut engine = Engine::new(fixed(16)).expect("a valid configuration");
    let mut said = Vec::new();
    engine.handle(SimTime::ZERO, EngineInput::Submit(request(0, prompt(0, 4), 3)), &mut said);
    assert_eq!(engine.next_deadline(), Some(SimTime::ZERO));
    engine.advance(SimTime::from_ms(11.0), &mut said);
    assert_eq!(engine.next_deadline(), Some(SimTime::from_ms(12.0)));
    engine.advance(SimTime::from_ms(100.0), &mut said);
    assert_eq!(engine.next_deadline(), None);
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 3).run();
    assert_eq!(said, bench.said);
}
