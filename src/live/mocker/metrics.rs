//! A worker's metrics page: vLLM's names with live values, so that dashboards and routers work unchanged.
//!
//! Times are wall-clock seconds. Histogram buckets are vLLM's.

use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use crate::engine::EngineStats;
use crate::live::backend::ModelFacts;

const TTFT_BUCKETS_S: [f64; 22] = [
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const ITL_BUCKETS_S: [f64; 19] =
    [0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0];
const E2E_BUCKETS_S: [f64; 21] = [
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];

/// The latency histograms of one worker; everything else on the page comes from its engine's statistics.
#[derive(Debug)]
pub struct WorkerMetrics {
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    e2e_request_latency: Histogram,
}

impl Default for WorkerMetrics {
    fn default() -> Self {
        WorkerMetrics {
            time_to_first_token: Histogram::new(TTFT_BUCKETS_S),
            inter_token_latency: Histogram::new(ITL_BUCKETS_S),
            e2e_request_latency: Histogram::new(E2E_BUCKETS_S),
        }
    }
}

impl WorkerMetrics {
    /// A request got its first token so many wall seconds after it arrived.
    pub fn time_to_first_token_s(&self, seconds: f64) {
        self.time_to_first_token.observe(seconds);
    }

    /// A token came so many wall seconds after the one before.
    pub fn inter_token_latency_s(&self, seconds: f64) {
        self.inter_token_latency.observe(seconds);
    }

    /// A request ended so many wall seconds after it arrived.
    pub fn e2e_request_latency_s(&self, seconds: f64) {
        self.e2e_request_latency.observe(seconds);
    }

    /// The page, in the OpenMetrics text format.
    pub fn page(&self, stats: &EngineStats, (held, transfers): (u64, u64), facts: &ModelFacts) -> String {
        let labels = [("model_name", facts.model.clone()), ("engine", "0".to_owned())];
        let mut registry = Registry::with_labels(labels.into_iter().map(|(key, value)| (key.into(), value.into())));
        for (name, help, value) in [
            ("num_requests_running", "Sequences in the running batch", f64::from(stats.running)),
            ("num_requests_waiting", "Sequences in the waiting queue", f64::from(stats.waiting)),
            ("kv_cache_usage_perc", "Share of KV blocks held by running sequences, 0 to 1", stats.kv_cache_usage()),
            ("gpu_cache_usage_perc", "The same under its older name", stats.kv_cache_usage()),
            ("kv_transfer_held_requests", "Prompts whose blocks are held for a decode worker", held as f64),
        ] {
            registry.register(format!("vllm:{name}"), help, ConstGauge::new(value));
        }
        for (name, help, value) in [
            ("num_preemptions", "Preemptions", stats.preemptions_total),
            ("prompt_tokens", "Prompt tokens of admitted requests", stats.prompt_tokens_total),
            ("generation_tokens", "Output tokens", stats.generated_tokens_total),
            ("prefix_cache_queries", "Prompt tokens looked up in the prefix cache", stats.prompt_tokens_total),
            ("prefix_cache_hits", "Prompt tokens found in the prefix cache", stats.reused_tokens_total),
            ("engine_steps", "Engine steps", stats.steps_total),
            ("kv_transfers", "Hand-offs that have ended, sent or received", transfers),
        ] {
            registry.register(format!("vllm:{name}"), help, ConstCounter::new(value));
        }
        for (name, help, histogram) in [
            ("time_to_first_token_seconds", "Wall time from arrival to the first token", &self.time_to_first_token),
            ("inter_token_latency_seconds", "Wall time between two tokens of a request", &self.inter_token_latency),
            ("e2e_request_latency_seconds", "Wall time from arrival to the last token", &self.e2e_request_latency),
        ] {
            registry.register(format!("vllm:{name}"), help, histogram.clone());
        }
        let success: Family<[(&str, &str); 1], Gauge> = Family::default();
        for (reason, count) in
            [("length", stats.finished_total), ("abort", stats.cancelled_total), ("error", stats.rejected_total)]
        {
            success.get_or_create(&[("finished_reason", reason)]).set(count as i64);
        }
        // A gauge by type, since the family's values are set and not counted; the name is vLLM's.
        registry.register("vllm:request_success_total", "Requests that ended, by reason", success);
        let info: Family<[(&str, String); 2], Gauge> = Family::default();
        let config = [("block_size", facts.block_size.to_string()), ("num_gpu_blocks", stats.total_blocks.to_string())];
        info.get_or_create(&config).set(1);
        registry.register("vllm:cache_config_info", "The KV cache's shape", info);
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut page, &registry);
        page
    }
}
