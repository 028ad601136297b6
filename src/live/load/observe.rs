//! One request under observation: when its tokens came, by this side's clock and by the engine's.

use std::time::Instant;

use crate::session::ledger::{FailureKind, Outcome, RequestRecord};

/// What a transport tells while a request runs, and what it adds up to.
#[derive(Clone, Debug, Default)]
pub struct Observation {
    /// When the request was handed to the transport.
    sent: Option<Instant>,
    first: Option<Instant>,
    second: Option<Instant>,
    last: Option<Instant>,
    output_tokens: u32,
    /// Wall seconds between arrivals of tokens, and how many tokens came at the end of each.
    gaps_s: Vec<(f64, u32)>,
    /// Prompt tokens from the cache, as the server says.
    pub reused_tokens: Option<u32>,
    /// The worker, as the server says.
    pub worker: Option<String>,
    /// Overlap blocks, as the router says.
    pub overlap_blocks: Option<u32>,
    engine_arrived_ns: Option<u64>,
    engine_first_ns: Option<u64>,
    engine_last_ns: Option<u64>,
}

/// Why a request did not complete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The kind that reports count by.
    pub kind: FailureKind,
    /// What happened, in one line.
    pub message: String,
}

impl Failure {
    /// A failure of a kind.
    pub fn new(kind: FailureKind, message: impl Into<String>) -> Self {
        Failure { kind, message: message.into() }
    }
}

impl Observation {
    /// The request is handed to the transport now.
    pub fn sent(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// So many tokens arrived at `now`, together.
    pub fn tokens(&mut self, now: Instant, count: u32) {
        if count == 0 {
            return;
        }
        let gap_s = self.last.map_or(0.0, |last| now.duration_since(last).as_secs_f64());
        // Tokens that come with the first one follow it without a gap.
        let after_first = if self.output_tokens == 0 { count - 1 } else { count };
        if after_first > 0 {
            self.gaps_s.push((gap_s / f64::from(after_first), after_first));
        }
        self.first.get_or_insert(now);
        if self.second.is_none() && self.output_tokens + count >= 2 {
            self.second = Some(now);
        }
        self.last = Some(now);
        self.output_tokens += count;
    }

    /// The engine's own times of these tokens, simulated nanoseconds.
    pub fn engine_times(&mut self, arrived_ns: u64, times_ns: &[u64]) {
        if let (Some(first), Some(last)) = (times_ns.first(), times_ns.last()) {
            self.engine_arrived_ns.get_or_insert(arrived_ns);
            self.engine_first_ns.get_or_insert(*first);
            self.engine_last_ns = Some(*last);
        }
    }

    /// Output tokens so far.
    pub fn output_tokens(&self) -> u32 {
        self.output_tokens
    }

    /// Every gap between tokens in simulated milliseconds, with its number of tokens.
    pub fn gaps_ms(&self, speedup_ratio: f64) -> impl Iterator<Item = (f64, u32)> + '_ {
        self.gaps_s.iter().map(move |(gap_s, tokens)| (gap_s * 1e3 * speedup_ratio, *tokens))
    }

    /// Completes a record that holds what was planned; `ms` maps this side's clock to simulated milliseconds.
    pub fn into_record(
        self,
        planned: RequestRecord,
        ended: Instant,
        result: Result<(), Failure>,
        ms: impl Fn(Instant) -> f64,
    ) -> RequestRecord {
        let wanted = planned.requested_output_tokens;
        let outcome = match result {
            Ok(()) if self.output_tokens == wanted => Outcome::Completed,
            Ok(()) => Outcome::Failed {
                kind: FailureKind::Mismatch,
                message: format!("{} output tokens came, {wanted} were asked for", self.output_tokens),
            },
            Err(failure) => Outcome::Failed { kind: failure.kind, message: failure.message },
        };
        // A gap of several tokens is one stall.
        let stalls = self.gaps_s.iter().map(|(gap_s, tokens)| gap_s * f64::from(*tokens));
        let max_stall_s = stalls.fold(None, |max: Option<f64>, stall| Some(max.map_or(stall, |max| max.max(stall))));
        let scale = match (self.first, self.last) {
            (Some(first), Some(last)) if last > first => {
                (ms(last) - ms(first)) / last.duration_since(first).as_secs_f64()
            }
            _ => 0.0,
        };
        let engine_ms = |from: Option<u64>, to: Option<u64>| Some(to?.saturating_sub(from?) as f64 / 1e6);
        let engine_tpot_ms = engine_ms(self.engine_first_ns, self.engine_last_ns)
            .filter(|_| self.output_tokens > 1)
            .map(|span_ms| span_ms / f64::from(self.output_tokens - 1));
        RequestRecord {
            output_tokens: self.output_tokens,
            reused_tokens: self.reused_tokens,
            worker: self.worker,
            overlap_blocks: self.overlap_blocks,
            sent_ms: self.sent.map_or(planned.sent_ms, &ms),
            first_token_ms: self.first.map(&ms),
            second_token_ms: self.second.map(&ms),
            last_token_ms: self.last.map(&ms),
            end_ms: ms(ended),
            max_stall_ms: max_stall_s.map(|stall_s| stall_s * scale),
            engine_ttft_ms: engine_ms(self.engine_arrived_ns, self.engine_first_ns),
            engine_tpot_ms,
            outcome,
            ..planned
        }
    }
}
