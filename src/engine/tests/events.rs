//! The cache's changes as the world hears of them.

use super::*;
use crate::engine::hash::{BlockId, block_chain};
use crate::ids::SequenceHash;

fn chain(tokens: &[u32]) -> Vec<BlockId> {
    block_chain(tokens, 4)
}

/// A stored event: parent and blocks, without token ids.
fn stored(parent: Option<BlockId>, blocks: &[BlockId]) -> KvEventData {
    let block = |id: &BlockId| StoredBlock {
        sequence_hash: id.sequence,
        tokens_hash: id.tokens,
        token_ids: Default::default(),
    };
    KvEventData::Stored { parent: parent.map(|id| id.sequence), blocks: blocks.iter().map(block).collect() }
}

fn removed(blocks: &[BlockId]) -> KvEventData {
    KvEventData::Removed { blocks: blocks.iter().map(|id| id.sequence).collect() }
}

#[test]
fn full_blocks_are_stored_in_one_group_when_the_step_ends() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 11), 1).run();
    assert_eq!(bench.events(), [(10.0, stored(None, &chain(&prompt(0, 11))))]);
}

#[test]
fn a_chunked_block_is_visible_when_it_is_computed() {
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(2), ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 8), 1).run();
    let blocks = chain(&prompt(0, 8));
    assert_eq!(bench.events(), [(20.0, stored(None, &blocks[..1])), (40.0, stored(Some(blocks[0]), &blocks[1..]))]);
}

#[test]
fn a_generated_block_is_visible_when_its_last_token_is_computed() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 4), 6).run();
    let answer: Vec<u32> = bench.tokens(0).into_iter().map(|(_, token_id)| token_id).collect();
    let blocks = chain(&[prompt(0, 4), answer].concat());
    // The fourth output token fills the block at 16 ms and is computed in the step after.
    assert_eq!(bench.token_times(0)[3], 16.0);
    assert_eq!(bench.events(), [(10.0, stored(None, &blocks[..1])), (18.0, stored(Some(blocks[0]), &blocks[1..2]))]);
}

#[test]
fn a_copy_of_a_known_block_is_not_stored_again() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 1).submit(0.0, 1, prompt(0, 8), 1).submit(20.0, 2, prompt(0, 8), 1).run();
    assert_eq!(bench.events(), [(10.0, stored(None, &chain(&prompt(0, 8))))]);
}

#[test]
fn a_group_begins_behind_what_is_known() {
    // Both compute the same prompt in two steps; whoever comes second in a step stores copies, of which nobody is told.
    let long = prompt(0, 16);
    let blocks = chain(&long);
    let mut bench = Bench::new(EngineConfig { max_num_batched_tokens: Some(12), ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 12), 4).submit(10.0, 1, long, 1).run();
    let events: Vec<KvEventData> = bench.events().into_iter().map(|(_, data)| data).collect();
    assert_eq!(events[..2], [stored(None, &blocks[..3]), stored(Some(blocks[2]), &blocks[3..])]);
}

#[test]
fn only_the_last_copy_is_removed() {
    let mut bench = Bench::new(fixed(3));
    // Two copies of the second block, one of the first; then strangers evict one block each.
    bench.submit(0.0, 0, prompt(0, 8), 1).submit(0.0, 1, prompt(0, 8), 1);
    for stranger in 0..3 {
        bench.submit(20.0 * (stranger + 1) as f64, 10 + stranger, prompt(100 * (stranger as u32 + 1), 4), 1);
    }
    bench.run();
    let ours = chain(&prompt(0, 8));
    let strangers = [100, 200, 300].map(|first| chain(&prompt(first, 4)));
    assert_eq!(
        bench.events(),
        [
            (10.0, stored(None, &ours)),
            (30.0, stored(None, &strangers[0])),
            (50.0, removed(&ours[1..])),
            (50.0, stored(None, &strangers[1])),
            (70.0, removed(&ours[..1])),
            (70.0, stored(None, &strangers[2])),
        ]
    );
}

#[test]
fn evicted_blocks_are_named_in_their_order_once_a_reservation() {
    let mut bench = Bench::new(fixed(4));
    bench.submit(0.0, 0, prompt(0, 8), 1).submit(20.0, 1, prompt(100, 8), 1).submit(40.0, 2, prompt(200, 12), 1).run();
    let [first, second, third] = [(0, 8), (100, 8), (200, 12)].map(|(from, len)| chain(&prompt(from, len)));
    let events: Vec<KvEventData> = bench.events().into_iter().map(|(_, data)| data).collect();
    let evicted = removed(&[first[1], first[0], second[1]]);
    assert_eq!(events, [stored(None, &first), stored(None, &second), evicted, stored(None, &third)]);
}

#[test]
fn events_come_before_tokens_and_the_steps_end_after_them() {
    let mut bench = Bench::new(fixed(16));
    bench.submit(0.0, 0, prompt(0, 8), 2).submit(0.0, 1, prompt(100, 4), 1).run();
    let order: Vec<(f64, &str)> = bench
        .said
        .iter()
        .map(|(at, output)| {
            let kind = match output {
                EngineOutput::Admitted { .. } => "admitted",
                EngineOutput::Kv(_) => "kv",
                EngineOutput::Token { .. } => "token",
                EngineOutput::StepEnded { .. } => "end",
                _ => "other",
            };
            (at.as_ms(), kind)
        })
        .collect();
    let first = ["kv", "kv", "token", "token", "end"].map(|kind| (10.0, kind));
    let expected = [&[(0.0, "admitted"), (0.0, "admitted")], &first[..], &[(12.0, "token"), (12.0, "end")]].concat();
    assert_eq!(order, expected);
}

#[test]
fn completion_and_preemption_say_nothing_of_the_cache() {
    let mut bench = Bench::new(fixed(3));
    bench.submit(0.0, 0, prompt(0, 4), 4).submit(0.0, 1, prompt(100, 4), 4).run_to(12.0);
    assert_eq!(bench.engine.stats().preemptions_total, 1);
    let stores = [(10.0, stored(None, &chain(&prompt(0, 4)))), (10.0, stored(None, &chain(&prompt(100, 4))))];
    assert_eq!(bench.events(), stores);
}

#[test]
fn token_ids_are_in_the_events_where_asked_for() {
    let mut bench = Bench::new(EngineConfig { emit_kv_token_ids: true, ..fixed(16) });
    bench.submit(0.0, 0, prompt(0, 6), 4).run();
    let answer: Vec<u32> = bench.tokens(0).into_iter().map(|(_, token_id)| token_id).collect();
    let known = [prompt(0, 6), answer].concat();
    let told: Vec<Vec<u32>> = bench
        .events()
        .into_iter()
        .flat_map(|(_, data)| match data {
            KvEventData::Stored { blocks, .. } => blocks.iter().collect(),
            KvEventData::Removed { .. } | KvEventData::Cleared => Vec::new(),
        })
        .map(|block| block.token_ids.to_vec())
        .collect();
    assert_eq!(told, [&known[..4], &known[4..8]]);
}

#[test]
fn hashes_chain_and_leave_out_a_partial_block() {
    let blocks = chain(&prompt(0, 11));
    assert_eq!(blocks.len(), 2);
    assert_eq!(blocks[0].sequence, SequenceHash(blocks[0].tokens.0), "the first block's hash is its tokens'");
    assert_eq!(blocks[..], chain(&prompt(0, 12))[..2], "what follows does not change a block");
    let moved = chain(&[prompt(4, 4), prompt(0, 4)].concat());
    assert_eq!(moved[1].tokens, blocks[0].tokens);
    assert_ne!(moved[1].sequence, blocks[0].sequence);
}
