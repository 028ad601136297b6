//! Promise: a replay costs some twenty microseconds a request, whatever the number of workers, and KV routing little more.

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use mockfleet::engine::EngineConfig;
use mockfleet::rng::Seed;
use mockfleet::router::{RouterConfig, RouterMode};
use mockfleet::session::plan::ArrivalMode;
use mockfleet::session::workload::Workload;
use mockfleet::sim::{ReplayConfig, replay};
use mockfleet::trace::{ConversationOptions, Trace, conversation_like};

const REQUESTS: u64 = 1_000;

fn bench(criterion: &mut Criterion) {
    let rows = conversation_like(Seed(0), REQUESTS, &ConversationOptions::default());
    let workload = Workload::from_rows("generated".to_owned(), &Trace::from_rows("generated", 512, rows), false)
        .expect("a workload");
    let mut group = criterion.benchmark_group("replay");
    group.sample_size(20);
    group.throughput(Throughput::Elements(REQUESTS));
    for router_mode in [RouterMode::RoundRobin, RouterMode::Kv] {
        for workers in [8, 64, 256] {
            let router = RouterConfig { router_mode, ..RouterConfig::default() };
            let arrival = ArrivalMode::Concurrency { concurrency: 4 * workers };
            let engines = vec![EngineConfig::default(); workers as usize];
            let config = ReplayConfig::aggregated(engines, router, arrival, 0);
            group.bench_function(format!("{}, {workers} workers", router_mode.name()), |bencher| {
                bencher.iter(|| replay(&config, &workload, |_| {}).expect("a result").records.len());
            });
        }
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
