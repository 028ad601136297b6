//! What became of each request: one record, the same live and in the replay.
//!
//! All times are simulated milliseconds since the start of the run (live: wall clock × speedup ratio).

use serde::{Deserialize, Serialize};

/// Why a request did not complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// No connection to the server could be made.
    Connect,
    /// The server refused the request as impossible (bad request, prompt too long, pool too small).
    Rejected,
    /// The server said that it has no capacity or no worker now.
    Unavailable,
    /// The stream ended with an error, or without its last message.
    Stream,
    /// No answer within the time limit.
    Timeout,
    /// The answer was complete, but not what was asked for (wrong output length, malformed message).
    Mismatch,
    /// The run was stopped before the request ended.
    Cancelled,
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Every token arrived.
    Completed,
    /// Something went wrong; the message is for people.
    Failed {
        /// The kind that reports count by.
        kind: FailureKind,
        /// What happened, in one line.
        message: String,
    },
}

/// One request's life. Times are simulated milliseconds since the start of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestRecord {
    /// Position of the request in the trace or workload, from 0.
    pub row: u64,
    /// Session, if the trace names one.
    pub session_id: Option<String>,
    /// Turn within the session, from 0.
    pub turn: u32,
    /// Prompt length.
    pub input_tokens: u32,
    /// Output length asked for.
    pub requested_output_tokens: u32,
    /// Output tokens received.
    pub output_tokens: u32,
    /// Prompt tokens served from the prefix cache at first admission, as the server reports them.
    pub reused_tokens: Option<u32>,
    /// The worker that served the request, as the router names it.
    pub worker: Option<String>,
    /// Blocks of the prompt that the router believed to be on that worker.
    pub overlap_blocks: Option<u32>,
    /// When the plan wanted the request to be sent.
    pub intended_ms: f64,
    /// When it was handed to the transport.
    pub sent_ms: f64,
    /// When the first output token arrived.
    pub first_token_ms: Option<f64>,
    /// When the second output token arrived.
    pub second_token_ms: Option<f64>,
    /// When the last output token arrived.
    pub last_token_ms: Option<f64>,
    /// When the request ended, in whatever way.
    pub end_ms: f64,
    /// Longest wait between two consecutive arrivals of tokens.
    pub max_stall_ms: Option<f64>,
    /// Time to first token on the engine's own clock: from its arrival at the worker to its first token.
    pub engine_ttft_ms: Option<f64>,
    /// Mean time per output token on the engine's own clock.
    pub engine_tpot_ms: Option<f64>,
    /// How it ended.
    pub outcome: Outcome,
}

impl RequestRecord {
    /// True if every token arrived.
    pub fn completed(&self) -> bool {
        self.outcome == Outcome::Completed
    }

    /// Time to first token from the moment of sending, in milliseconds.
    pub fn ttft_ms(&self) -> Option<f64> {
        self.first_token_ms.map(|t| t - self.sent_ms)
    }

    /// Time to first token from the moment the plan wanted it sent, in milliseconds.
    pub fn effective_ttft_ms(&self) -> Option<f64> {
        self.first_token_ms.map(|t| t - self.intended_ms)
    }

    /// Time from first to second token, in milliseconds.
    pub fn ttst_ms(&self) -> Option<f64> {
        Some(self.second_token_ms? - self.first_token_ms?)
    }

    /// Time per output token after the first, (last − first)/(n − 1), in milliseconds; none below two tokens.
    pub fn tpot_ms(&self) -> Option<f64> {
        let gaps = self.output_tokens.checked_sub(1).filter(|gaps| *gaps > 0)?;
        Some((self.last_token_ms? - self.first_token_ms?) / f64::from(gaps))
    }

    /// Time from sending to the last token, in milliseconds.
    pub fn e2e_latency_ms(&self) -> Option<f64> {
        self.last_token_ms.map(|t| t - self.sent_ms)
    }

    /// Time from the intended moment of sending to the last token, in milliseconds.
    pub fn effective_e2e_latency_ms(&self) -> Option<f64> {
        self.last_token_ms.map(|t| t - self.intended_ms)
    }
}
