//! What is said to an engine and what it says.

use serde::{Deserialize, Serialize};

use crate::engine::events::KvEvent;
use crate::engine::prompt::Prompt;
use crate::engine::stats::EngineStats;
use crate::ids::RequestId;
use crate::rng::Seed;
use crate::time::{SimSpan, SimTime};

/// A request for an engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct EngineRequest {
    /// Its name, unique among the live requests of this engine.
    pub id: RequestId,
    /// The prompt.
    pub prompt: Prompt,
    /// Output tokens to make; 0 computes the prompt only.
    pub max_output_tokens: u32,
    /// Output tokens follow from this seed and their position.
    pub output_seed: Seed,
    /// Output token ids are below this.
    pub vocab_tokens: u32,
    /// Higher ones are admitted first where `scheduling_policy` is `priority`; without meaning elsewhere.
    pub priority: i32,
}

/// What can arrive at an engine.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineInput {
    /// A request joins the waiting queue. A duplicate of a live id is ignored.
    Submit(EngineRequest),
    /// The client is gone: the request's blocks are free at once and nothing more is said about it.
    Cancel(RequestId),
    /// Empty the cache, if no request holds a block.
    FlushCache,
    /// To a prefill worker: the blocks that it holds for a request have been copied and can be released. Takes effect when
    /// the running step ends.
    ReleaseSource(RequestId),
    /// To a decode worker: make room for the prompt of a request that is prefilled elsewhere.
    Reserve(EngineRequest),
    /// To a decode worker: the prompt's blocks have arrived, the request can decode. Takes effect when the running step
    /// ends.
    Activate(RequestId),
}

/// Why a request can never run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum RejectReason {
    /// Prompt and output need more blocks than the pool has.
    PoolTooSmall {
        /// Blocks needed at the end of the request.
        needed_blocks: u32,
        /// Blocks in the pool.
        num_gpu_blocks: u32,
    },
    /// The prompt leaves no room for output.
    PromptTooLong {
        /// Prompt length.
        prompt_tokens: u32,
        /// The model's limit.
        max_model_len: u32,
    },
    /// Chunked prefill is off and the prompt is longer than a step.
    Unchunkable {
        /// Prompt length.
        prompt_tokens: u32,
        /// A step's token budget.
        max_num_batched_tokens: u32,
    },
    /// The prompt is empty.
    EmptyPrompt,
}

impl std::fmt::Display for RejectReason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            RejectReason::PoolTooSmall { needed_blocks, num_gpu_blocks } => write!(
                f,
                "prompt and output need {needed_blocks} KV blocks, the pool has {num_gpu_blocks} (num_gpu_blocks)"
            ),
            RejectReason::PromptTooLong { prompt_tokens, max_model_len } => {
                write!(f, "a prompt of {prompt_tokens} tokens leaves no room below max_model_len {max_model_len}")
            }
            RejectReason::Unchunkable { prompt_tokens, max_num_batched_tokens } => write!(
                f,
                "a prompt of {prompt_tokens} tokens does not fit in a step of {max_num_batched_tokens} tokens \
                 (max_num_batched_tokens), and chunked prefill is off"
            ),
            RejectReason::EmptyPrompt => write!(f, "the prompt is empty, expected at least 1 token"),
        }
    }
}

/// What an engine says.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum EngineOutput {
    /// The request is in the running batch from this moment on.
    Admitted {
        /// Which request.
        id: RequestId,
        /// Tokens taken from the cache.
        reused_tokens: u32,
        /// True if it had been admitted before and was preempted since.
        readmission: bool,
    },
    /// The cache changed.
    Kv(KvEvent),
    /// The next output token.
    Token {
        /// Whose.
        id: RequestId,
        /// The token.
        token_id: u32,
        /// Its place in the output, from 0.
        position: u32,
        /// Prompt tokens that came from the cache at the first admission.
        reused_tokens: u32,
        /// True for the last one.
        finished: bool,
        /// Longest wait between two tokens of the request so far; zero for the first token.
        max_gap: SimSpan,
    },
    /// A request without output is done.
    Finished {
        /// Which request.
        id: RequestId,
        /// Prompt tokens that came from the cache at the first admission.
        reused_tokens: u32,
    },
    /// The request can never run.
    Rejected {
        /// Which request.
        id: RequestId,
        /// Why.
        reason: RejectReason,
    },
    /// A running request was thrown out; it waits for another admission.
    Preempted {
        /// Which request.
        id: RequestId,
    },
    /// From a prefill worker: the prompt is computed, its blocks wait for [`EngineInput::ReleaseSource`].
    SourceHeld {
        /// Which request.
        id: RequestId,
        /// Prompt tokens that came from the cache at the first admission.
        reused_tokens: u32,
    },
    /// From a prefill worker: the blocks are released.
    SourceReleased {
        /// Which request.
        id: RequestId,
    },
    /// From a decode worker: there is room for the prompt.
    DestinationReserved {
        /// Which request.
        id: RequestId,
        /// Blocks of the prompt that were not there yet.
        fresh_blocks: u32,
    },
    /// From a decode worker: the request waits for its first decode step.
    DestinationActivated {
        /// Which request.
        id: RequestId,
    },
    /// A step ended.
    StepEnded {
        /// The engine's state after it.
        stats: EngineStats,
        /// Prompt tokens computed in the step.
        prefill_tokens: u32,
        /// Sequences that decoded in the step.
        decode_sequences: u32,
        /// When the step started.
        started: SimTime,
    },
    /// Answer to [`EngineInput::FlushCache`].
    Flushed {
        /// False if a request holds blocks or a step is running.
        done: bool,
    },
}

/// A moment and what happened then.
pub type Timed<T> = (SimTime, T);
