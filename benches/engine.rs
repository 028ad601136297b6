//! Promise: the engine costs so little that a replay's time goes to nothing else: tokens a second of one core.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mockfleet::engine::blocks::{BlockPool, HeldBlocks};
use mockfleet::engine::hash::{Chain, SequenceBlocks, block_chain};
use mockfleet::engine::{Engine, EngineConfig, EngineInput, EngineRequest, RemovedBlocks};
use mockfleet::ids::RequestId;
use mockfleet::rng::Seed;
use mockfleet::time::SimTime;

const REQUESTS: u64 = 64;
const OUTPUT_TOKENS: u64 = 256;

fn run(config: &EngineConfig, prompts: &[Vec<u32>]) -> u64 {
    let mut engine = Engine::new(config.clone()).expect("a valid configuration");
    let mut out = Vec::new();
    for (index, prompt) in prompts.iter().enumerate() {
        let request = EngineRequest {
            id: RequestId(index as u64),
            prompt: prompt.clone().into(),
            max_output_tokens: OUTPUT_TOKENS as u32,
            output_seed: Seed(index as u64),
            vocab_tokens: 1 << 20,
            priority: 0,
        };
        engine.handle(SimTime::ZERO, EngineInput::Submit(request), &mut out);
    }
    while let Some(deadline) = engine.next_deadline() {
        engine.advance(deadline, &mut out);
        out.clear();
    }
    engine.stats().generated_tokens_total
}

fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("engine");
    group.throughput(Throughput::Elements(REQUESTS * OUTPUT_TOKENS));
    let prompts: Vec<Vec<u32>> =
        (0..REQUESTS).map(|request| (0..1024).map(|at| (request * 7 + at / 64) as u32).collect()).collect();
    group.bench_function("64 requests of 1024 in, 256 out", |bencher| {
        let config = EngineConfig::default();
        bencher.iter(|| run(&config, &prompts));
    });
    group.bench_function("the same in a pool that preempts", |bencher| {
        let config = EngineConfig { num_gpu_blocks: 400, ..EngineConfig::default() };
        bencher.iter(|| run(&config, &prompts));
    });
    group.finish();
}

/// Prompts of two hundred blocks through a full pool: look up, reserve, publish, release; each evicts another.
fn pool(criterion: &mut Criterion) {
    const BLOCKS: u32 = 200;
    const PROMPTS: usize = 64;
    let prompt = |number: u32| -> Chain {
        // Half of each prompt is another's, too.
        let tokens: Vec<u32> =
            (0..BLOCKS).map(|at| if at < 100 { number / 2 * 1000 + at } else { number * 1000 + at }).collect();
        block_chain(&tokens, 1).into()
    };
    let prompts: Vec<Chain> = (0..PROMPTS as u32).map(prompt).collect();
    let mut pool = BlockPool::new(BLOCKS * PROMPTS as u32 / 2);
    let mut next = 0;
    let mut group = criterion.benchmark_group("block pool");
    group.throughput(Throughput::Elements(u64::from(BLOCKS)));
    group.bench_function("a prompt of 200 blocks, half of them cached", |bencher| {
        bencher.iter(|| {
            next = (next + 1) % PROMPTS;
            let blocks = SequenceBlocks::from(&prompts[next][..]);
            let (mut held, mut removed) = (HeldBlocks::default(), RemovedBlocks::default());
            let found = pool.match_prefix(blocks).blocks.min(BLOCKS - 1);
            assert!(pool.reserve(blocks, found, BLOCKS - found, &mut held, &mut removed));
            pool.publish(&mut held, blocks, (found, BLOCKS), &prompts[next], found);
            pool.release_all(&mut held);
            found
        });
    });
    group.finish();
}

criterion_group!(benches, bench, pool);
criterion_main!(benches);
