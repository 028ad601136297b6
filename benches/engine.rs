//! Promise: the engine costs so little that a replay's time goes to nothing else: tokens a second of one core.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mockfleet::engine::{Engine, EngineConfig, EngineInput, EngineRequest};
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

criterion_group!(benches, bench);
criterion_main!(benches);
