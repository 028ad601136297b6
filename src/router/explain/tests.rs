//! Unit tests of the explanation: what it derives from the candidates, and its written form.

use super::*;
use crate::router::cost::RequestCost;

/// The reference's worked example: 160 tokens, blocks of 16, costs 18, 10 and 11.
fn worked_example(config: &RouterConfig) -> Explained {
    let facts = [(2, 10), (5, 5), (8, 9)];
    let candidates: Vec<(WorkerId, CostTerms)> = (0..)
        .zip(facts)
        .map(|(worker, (overlap_blocks, active_decode_blocks))| {
            let facts = CostTerms { overlap_blocks, active_decode_blocks, ..CostTerms::default() };
            (
                WorkerId(worker),
                facts.priced(RequestCost { input_tokens: 160, block_size: 16, least_prefill_tokens: 0 }, config),
            )
        })
        .collect();
    Explained {
        at: SimTime(12_000_001),
        row: 7,
        pool: Pool::Agg,
        worker: WorkerId(1),
        queued: true,
        wait: SimSpan(2_000_000),
        ties: least_cost_ties(&candidates),
        candidates,
    }
}

fn config(router_mode: RouterMode, router_temperature: f64) -> RouterConfig {
    RouterConfig { router_mode, router_temperature, ..RouterConfig::default() }
}

fn written(explained: &Explained, config: &RouterConfig) -> String {
    serde_json::to_string(&explained.line(config, 1)).expect("plain values")
}

#[test]
fn a_line_holds_every_term_in_the_order_of_the_docs() {
    let config = config(RouterMode::Kv, 0.0);
    let expected = concat!(
        r#"{"at_ms":12.000001,"row":7,"pool":"agg","mode":"kv","queued":true,"wait_ms":2.0,"worker":1,"ties":1,"#,
        r#""best_overlap_blocks":8,"candidates":["#,
        r#"{"worker":0,"overlap_blocks":2,"active_prefill_tokens":0,"active_decode_blocks":10,"#,
        r#""additional_active_blocks":0,"active_requests":0,"credit_blocks":2.0,"adjusted_prefill_blocks":8.0,"cost":18.0},"#,
        r#"{"worker":1,"overlap_blocks":5,"active_prefill_tokens":0,"active_decode_blocks":5,"#,
        r#""additional_active_blocks":0,"active_requests":0,"credit_blocks":5.0,"adjusted_prefill_blocks":5.0,"cost":10.0},"#,
        r#"{"worker":2,"overlap_blocks":8,"active_prefill_tokens":0,"active_decode_blocks":9,"#,
        r#""additional_active_blocks":0,"active_requests":0,"credit_blocks":8.0,"adjusted_prefill_blocks":2.0,"cost":11.0}]}"#,
    );
    assert_eq!(written(&worked_example(&config), &config), expected);
}

#[test]
fn the_example_of_the_docs_is_real() {
    // The fifth request of the golden case `kv-router-2-workers`: four of its eight blocks are on worker 0.
    let config = config(RouterMode::Kv, 0.0);
    let priced = [4, 0].map(|overlap_blocks| {
        let facts = CostTerms { overlap_blocks, additional_active_blocks: 8, ..CostTerms::default() };
        facts.priced(RequestCost { input_tokens: 32, block_size: 4, least_prefill_tokens: 0 }, &config)
    });
    let candidates: Vec<(WorkerId, CostTerms)> = (0..).map(WorkerId).zip(priced).collect();
    let explained = Explained {
        at: SimTime(120_000_000),
        row: 4,
        pool: Pool::Agg,
        worker: WorkerId(0),
        queued: false,
        wait: SimSpan::ZERO,
        ties: least_cost_ties(&candidates),
        candidates,
    };
    let page = include_str!("../../../docs/explain.md");
    let (_, rest) = page.split_once("```json\n").expect("an example");
    let (example, _) = rest.split_once("```").expect("an end");
    let json = |text: &str| serde_json::from_str::<serde_json::Value>(text).expect("JSON");
    let line = json(&written(&explained, &config));
    assert_eq!(line, json(example));
    let keys = |object: &serde_json::Value| object.as_object().expect("fields").keys().cloned().collect::<Vec<_>>();
    for key in keys(&line).into_iter().chain(keys(&line["candidates"][0])) {
        assert!(page.contains(&format!("\n| `{key}` |")), "{key}");
    }
}

#[test]
fn probabilities_only_where_costs_are_drawn_from() {
    let drawn = config(RouterMode::Kv, 1.0);
    let explained = worked_example(&drawn);
    let probabilities = explained.probabilities(&drawn).expect("a temperature above 0");
    for (ours, theirs) in probabilities.iter().zip([0.163475, 0.444370, 0.392155]) {
        assert!((ours - theirs).abs() < 1e-6, "{probabilities:?}");
    }
    assert!(written(&explained, &drawn).contains(r#""cost":10.0,"probability":0.44437"#));
    for none in [config(RouterMode::Kv, 0.0), config(RouterMode::RoundRobin, 1.0), config(RouterMode::Random, 1.0)] {
        assert_eq!(explained.probabilities(&none), None, "{none:?}");
        assert!(!written(&explained, &none).contains("probability"));
    }
}

#[test]
fn ties_count_the_least_cost_only() {
    let priced = |costs: &[f64]| -> Vec<(WorkerId, CostTerms)> {
        (0..).map(WorkerId).zip(costs.iter().map(|cost| CostTerms { cost: *cost, ..CostTerms::default() })).collect()
    };
    assert_eq!(least_cost_ties(&priced(&[3.0, 1.0, 2.0, 1.0, 3.0])), 2);
    assert_eq!(least_cost_ties(&priced(&[0.0])), 1);
    assert_eq!(least_cost_ties(&[]), 0);
}

#[test]
fn the_chosen_candidate_is_found_by_worker() {
    let mut explained = worked_example(&RouterConfig::default());
    assert_eq!(explained.chosen().map(|terms| terms.overlap_blocks), Some(5));
    explained.worker = WorkerId(9);
    assert_eq!(explained.chosen(), None);
}

#[test]
fn pools_are_written_by_their_names() {
    for pool in [Pool::Agg, Pool::Prefill, Pool::Decode] {
        assert_eq!(serde_json::to_string(&pool).expect("a text"), format!("\"{}\"", pool.name()));
    }
}
