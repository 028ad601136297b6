//! Promise: a routing decision takes microseconds: prompts of 200 blocks that match on eight of 64 workers, in an index of
//! a million blocks.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mockfleet::engine::hash::{BlockId, block_chain};
use mockfleet::engine::{KvEventData, StoredBlock};
use mockfleet::ids::WorkerId;
use mockfleet::router::BlockIndex;

const WORKERS: u32 = 64;
const CHAINS: u32 = 5_000;
const CHAIN_BLOCKS: u32 = 200;

fn chain(number: u32) -> Vec<BlockId> {
    let tokens: Vec<u32> = (0..CHAIN_BLOCKS * 16).map(|at| number * CHAIN_BLOCKS + at / 16).collect();
    block_chain(&tokens, 16)
}

fn stored(chain: &[BlockId]) -> KvEventData {
    let blocks = chain
        .iter()
        .map(|id| StoredBlock {
            sequence_hash: id.sequence,
            tokens_hash: id.tokens,
            token_ids: std::sync::Arc::default(),
        })
        .collect();
    KvEventData::Stored { parent: None, blocks }
}

fn bench(criterion: &mut Criterion) {
    let mut index = BlockIndex::new();
    let chains: Vec<Vec<BlockId>> = (0..CHAINS).map(chain).collect();
    for (number, chain) in chains.iter().enumerate() {
        // Every chain lies on one worker, every hundredth on eight.
        let copies = if number % 100 == 0 { 8 } else { 1 };
        for copy in 0..copies {
            index.apply(WorkerId((number as u32 + copy * 7) % WORKERS), &stored(chain));
        }
    }
    println!("{} distinct blocks", index.len());
    let mut group = criterion.benchmark_group("index");
    let mut overlaps = Vec::new();
    for (name, step) in [("find 200 blocks on one worker", 1), ("find 200 blocks on eight workers", 100)] {
        let mut at = 0;
        group.bench_function(name, |bencher| {
            bencher.iter(|| {
                at = (at + step) % CHAINS as usize;
                index.find_matches(&chains[at - at % step], &mut overlaps);
                overlaps.len()
            });
        });
    }
    group.throughput(Throughput::Elements(u64::from(2 * CHAIN_BLOCKS)));
    group.bench_function("store and remove 200 blocks", |bencher| {
        let fresh = chain(CHAINS + 1);
        let removed = KvEventData::Removed { blocks: fresh.iter().rev().map(|id| id.sequence).collect() };
        let stored = stored(&fresh);
        bencher.iter(|| {
            index.apply(WorkerId(3), &stored);
            index.apply(WorkerId(3), &removed);
        });
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
