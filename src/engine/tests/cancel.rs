//! Cancellation and flushing: what is gone at once, what is not said any more, and who does not notice.

use super::*;

/// Outputs about one request after a moment.
fn said_after(bench: &Bench, after_ms: f64, of: u64) -> usize {
    let about = |output: &EngineOutput| match output {
        EngineOutput::Admitted { id, .. }
        | EngineOutput::Token { id, .. }
        | EngineOutput::Finished { id, .. }
        | EngineOutput::Rejected { id, .. } => id.0 == of,
        _ => false,
    };
    bench.said.iter().filter(|(at, output)| at.as_ms() >= after_ms && about(output)).count()
}

#[test]
fn in_the_middle_of_a_step_blocks_are_free_at_once_and_no_token_follows() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 6), 5).submit(0.0, 1, prompt(100, 6), 3).run_to(4.0);
    assert_eq!(bench.blocks(), (4, 0, 12));
    bench.cancel(5.0, 0).run_to(5.0);
    // The full block keeps its content, the partial one has none.
    assert_eq!(bench.blocks(), (2, 1, 13));
    bench.run();
    assert_eq!(said_after(&bench, 5.0, 0), 0);
    assert_eq!(bench.token_times(1), [10.0, 12.0, 14.0], "the other does not notice");
    let stats = bench.engine.stats();
    assert_eq!((stats.cancelled_total, stats.finished_total, stats.running), (1, 1, 0));
}

#[test]
fn a_cancelled_decoder_falls_silent() {
    let mut bench = Bench::new(fixed(40));
    bench.submit(0.0, 0, prompt(0, 4), 100).submit(0.0, 1, prompt(100, 4), 4).cancel(13.0, 0).run();
    assert_eq!(bench.token_times(0), [10.0, 12.0]);
    assert_eq!(bench.token_times(1), [10.0, 12.0, 14.0, 16.0]);
}

#[test]
fn a_waiting_request_leaves_the_queue() {
    let mut bench = Bench::new(EngineConfig { max_num_seqs: Some(1), ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 4), 3).submit(0.0, 1, prompt(100, 4), 3).submit(0.0, 2, prompt(200, 4), 3);
    bench.cancel(5.0, 1).run();
    assert_eq!(said_after(&bench, 0.0, 1), 0);
    assert_eq!(bench.admissions(2), [(14.0, 0)], "the next one moves up");
    assert_eq!(bench.engine.stats().cancelled_total, 1);
}

#[test]
fn the_head_of_the_queue_goes_and_lets_the_one_behind_in() {
    let mut bench = Bench::new(fixed(8));
    bench.submit(0.0, 0, prompt(0, 8), 8).submit(0.0, 1, prompt(100, 28), 1).submit(0.0, 2, prompt(200, 4), 1);
    bench.cancel(11.0, 1).run();
    assert_eq!(bench.admissions(2), [(12.0, 0)]);
}

#[test]
fn the_last_output_of_the_running_step_is_not_shown() {
    // Its last token, its end without a token, its rejection: all decided when the step started.
    for (prompt_tokens, max_output_tokens) in [(4, 1), (4, 0), (100, 1)] {
        let mut bench = Bench::new(fixed(16));
        bench.submit(0.0, 0, prompt(0, prompt_tokens), max_output_tokens).submit(0.0, 1, prompt(200, 4), 2);
        bench.cancel(9.0, 0).run();
        assert_eq!(said_after(&bench, 9.0, 0), 0, "{prompt_tokens} + {max_output_tokens} tokens");
        assert_eq!(bench.token_times(1), [10.0, 12.0], "{prompt_tokens} + {max_output_tokens} tokens");
    }
}

#[test]
fn a_step_whose_requests_are_all_gone_still_ends() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 5).cancel(3.0, 0).submit(4.0, 1, prompt(0, 9), 1).run();
    let ends: Vec<f64> = bench
        .said
        .iter()
        .filter(|(_, output)| matches!(output, EngineOutput::StepEnded { .. }))
        .map(|(at, _)| at.as_ms())
        .collect();
    assert_eq!(ends, [10.0, 20.0]);
    assert_eq!(bench.admissions(1), [(10.0, 8)], "what it had computed is reused");
    assert_eq!(bench.events().len(), 1, "and was announced");
}

#[test]
fn unknown_and_ended_requests_can_be_cancelled() {
    let mut bench = Bench::new(fixed(16));
    bench.cancel(0.0, 9).submit(0.0, 0, prompt(0, 4), 2).cancel(20.0, 0).cancel(20.0, 0).run();
    assert_eq!(bench.token_times(0), [10.0, 12.0]);
    assert_eq!(bench.engine.stats().cancelled_total, 0);
}

#[test]
fn a_cancelled_name_can_be_used_again() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 5).cancel(5.0, 0).submit(5.0, 0, prompt(100, 4), 2).run();
    assert_eq!(bench.token_times(0), [20.0, 22.0]);
}

#[test]
fn a_cancelled_holder_leaves_shared_blocks_to_the_others() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 9).submit(0.0, 1, prompt(0, 8), 3).cancel(11.0, 0).run_to(11.0);
    // First block shared, second blocks each their own, and one for the answer of each.
    assert_eq!(bench.blocks(), (3, 1, 12));
    bench.run();
    assert_eq!(bench.token_times(1), [10.0, 12.0, 14.0]);
    assert_eq!(bench.blocks().0, 0);
}

fn flushes(bench: &Bench) -> Vec<(f64, bool)> {
    let flushed = bench.said.iter().filter_map(|(at, output)| match output {
        EngineOutput::Flushed { done } => Some((at.as_ms(), *done)),
        _ => None,
    });
    flushed.collect()
}

#[test]
fn an_idle_engine_forgets_its_cache() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 1).flush(20.0).submit(30.0, 1, prompt(0, 8), 1).run();
    assert_eq!(flushes(&bench), [(20.0, true)]);
    assert_eq!(bench.events()[1], (20.0, KvEventData::Cleared));
    assert_eq!(bench.admissions(1), [(30.0, 0)]);
    assert_eq!(bench.blocks(), (0, 2, 14));
}

#[test]
fn a_busy_engine_refuses_to_forget() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 3).flush(5.0).flush(10.0).submit(20.0, 1, prompt(0, 9), 1).run();
    assert_eq!(flushes(&bench), [(5.0, false), (10.0, false)]);
    assert_eq!(bench.admissions(1), [(20.0, 8)]);
}

#[test]
fn a_flush_in_the_middle_of_a_last_step_does_not_overtake_its_events() {
    // The only request ends with this step: its blocks are not held any more, but what it stored is yet to be said.
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 1).flush(5.0).run();
    let events = bench.events();
    let cleared = events.iter().position(|(_, data)| *data == KvEventData::Cleared);
    assert!(
        cleared.is_none_or(|place| place + 1 == events.len()),
        "a listener believes in blocks that are gone: {events:?}"
    );
}

#[test]
fn a_flush_after_a_cancellation_in_the_same_step_does_not_overtake_its_events() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 9).cancel(4.0, 0).flush(5.0).run();
    let events = bench.events();
    let cleared = events.iter().position(|(_, data)| *data == KvEventData::Cleared);
    assert!(
        cleared.is_none_or(|place| place + 1 == events.len()),
        "a listener believes in blocks that are gone: {events:?}"
    );
}
