//! The metrics with a distribution: name, formula, and how one request's record gives a sample.

use crate::session::ledger::RequestRecord;

/// A metric that reports describe by mean, extremes, percentiles and deviation. The order is that of reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Metric {
    /// Time to first token, from sending, in ms.
    Ttft,
    /// Time from the first to the second token, in ms.
    Ttst,
    /// Mean time per output token after the first, one sample a request, in ms.
    Tpot,
    /// Time between tokens, one sample a gap, pooled over all requests, in ms.
    Itl,
    /// Time from sending to the last token, in ms.
    E2eLatency,
    /// Output tokens per second as one user sees them, one sample a gap.
    OutputTokenThroughputPerUser,
    /// Time to first token, from the moment the plan wanted the request sent, in ms.
    EffectiveTtft,
    /// Time to the last token, from the moment the plan wanted the request sent, in ms.
    EffectiveE2eLatency,
    /// How much later than planned a request was sent, in ms.
    SendLag,
    /// Longest wait between two arrivals of tokens within a request, in ms.
    MaxStall,
    /// Time to first token on the engine's own clock, in ms.
    EngineTtft,
    /// Mean time per output token on the engine's own clock, in ms.
    EngineTpot,
}

impl Metric {
    /// Every metric, in the order of reports.
    pub const ALL: [Metric; 12] = [
        Metric::Ttft,
        Metric::Ttst,
        Metric::Tpot,
        Metric::Itl,
        Metric::E2eLatency,
        Metric::OutputTokenThroughputPerUser,
        Metric::EffectiveTtft,
        Metric::EffectiveE2eLatency,
        Metric::SendLag,
        Metric::MaxStall,
        Metric::EngineTtft,
        Metric::EngineTpot,
    ];

    /// Name in report keys, after a statistic and an underscore: `p99_` + `ttft_ms`.
    pub fn name(self) -> &'static str {
        match self {
            Metric::Ttft => "ttft_ms",
            Metric::Ttst => "ttst_ms",
            Metric::Tpot => "tpot_ms",
            Metric::Itl => "itl_ms",
            Metric::E2eLatency => "e2e_latency_ms",
            Metric::OutputTokenThroughputPerUser => "output_token_throughput_per_user",
            Metric::EffectiveTtft => "effective_ttft_ms",
            Metric::EffectiveE2eLatency => "effective_e2e_latency_ms",
            Metric::SendLag => "send_lag_ms",
            Metric::MaxStall => "max_stall_ms",
            Metric::EngineTtft => "engine_ttft_ms",
            Metric::EngineTpot => "engine_tpot_ms",
        }
    }

    /// Key that holds the number of samples: `num_ttft_samples`.
    pub fn samples_key(self) -> String {
        let name = self.name();
        format!("num_{}_samples", name.strip_suffix("_ms").unwrap_or(name))
    }

    /// Unit of the samples, for tables.
    pub fn unit(self) -> &'static str {
        match self {
            Metric::OutputTokenThroughputPerUser => "tok/s",
            _ => "ms",
        }
    }

    /// Words for tables.
    pub fn title(self) -> &'static str {
        match self {
            Metric::Ttft => "TTFT",
            Metric::Ttst => "TTST",
            Metric::Tpot => "TPOT",
            Metric::Itl => "ITL",
            Metric::E2eLatency => "E2E",
            Metric::OutputTokenThroughputPerUser => "per-user output",
            Metric::EffectiveTtft => "effective TTFT",
            Metric::EffectiveE2eLatency => "effective E2E",
            Metric::SendLag => "send lag",
            Metric::MaxStall => "longest stall",
            Metric::EngineTtft => "engine TTFT",
            Metric::EngineTpot => "engine TPOT",
        }
    }

    /// The formula, as written beside the figures.
    pub fn definition(self) -> &'static str {
        match self {
            Metric::Ttft => "first token - sent; one sample per completed request with output",
            Metric::Ttst => "second token - first token; one sample per completed request with 2 or more output tokens",
            Metric::Tpot => {
                "(last token - first token) / (output tokens - 1); one sample per completed request with 2 or more \
                 output tokens"
            }
            Metric::Itl => {
                "time between consecutive output tokens, pooled over all gaps of all completed requests; a message \
                 with k tokens counts as k gaps of 1/k of its wait"
            }
            Metric::E2eLatency => "last token - sent; one sample per completed request with output",
            Metric::OutputTokenThroughputPerUser => {
                "1000 / itl_ms in tokens per second, over the gaps of itl_ms that are above 0; one sample per gap; replay only"
            }
            Metric::EffectiveTtft => {
                "first token - intended send; includes the wait that a late sender would hide; one sample per \
                 completed request with output"
            }
            Metric::EffectiveE2eLatency => {
                "last token - intended send; includes the wait that a late sender would hide; one sample per \
                 completed request with output"
            }
            Metric::SendLag => "sent - intended send, never below 0; one sample per completed request",
            Metric::MaxStall => {
                "longest wait between two consecutive arrivals of tokens; one sample per completed request with at \
                 least two arrivals"
            }
            Metric::EngineTtft => {
                "first token - arrival at the worker, on the engine's own clock; one sample per completed request \
                 whose worker tells it"
            }
            Metric::EngineTpot => {
                "mean time per output token after the first, on the engine's own clock; one sample per completed \
                 request whose worker tells it"
            }
        }
    }

    /// The sample that one record gives; `None` if it gives none, and always for the metrics pooled over gaps
    /// ([`Itl`](Metric::Itl) and [`OutputTokenThroughputPerUser`](Metric::OutputTokenThroughputPerUser)).
    ///
    /// Whether the request completed is for the caller to ask.
    pub fn sample(self, record: &RequestRecord) -> Option<f64> {
        match self {
            Metric::Ttft => record.ttft_ms(),
            Metric::Ttst => record.ttst_ms(),
            Metric::Tpot => record.tpot_ms(),
            Metric::Itl | Metric::OutputTokenThroughputPerUser => None,
            Metric::E2eLatency => record.e2e_latency_ms(),
            Metric::EffectiveTtft => record.effective_ttft_ms(),
            Metric::EffectiveE2eLatency => record.effective_e2e_latency_ms(),
            Metric::SendLag => Some(record.sent_ms - record.intended_ms),
            Metric::MaxStall => record.max_stall_ms,
            Metric::EngineTtft => record.engine_ttft_ms,
            Metric::EngineTpot => record.engine_tpot_ms,
        }
    }
}
