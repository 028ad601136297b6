//! Unit tests of the engine room, and the bench on which they drive one engine.
//!
//! Where a test holds numbers of the reference, they were measured on it (NVIDIA Dynamo 1.6.1); `fixed` timing is 10 ms for
//! a step's prefill part and 2 ms for its decode part, blocks have 4 tokens.

mod cancel;
mod events;
mod fleet;
mod pool;
mod preemption;
mod random;
mod reject;
mod reuse;
mod scheduler;
mod timing;

use super::messages::Timed;
use super::*;
use crate::ids::RequestId;
use crate::rng::Seed;
use crate::time::SimTime;

/// Outputs of the bench's requests follow from this seed and the request's number.
const OUTPUT_SEED: Seed = Seed(7);
const VOCAB_TOKENS: u32 = 1 << 20;

/// An engine of `num_gpu_blocks` blocks of 4 tokens with 10 ms prefill and 2 ms decode steps.
fn fixed(num_gpu_blocks: u32) -> EngineConfig {
    EngineConfig {
        num_gpu_blocks,
        block_size: 4,
        timing_model: TimingModel::Fixed { prefill_ms: 10.0, decode_ms: 2.0 },
        ..EngineConfig::default()
    }
}

/// `len` tokens that count up from `first`: prompts with different firsts share nothing.
fn prompt(first: u32, len: u32) -> Vec<u32> {
    (first..first + len).collect()
}

fn request(id: u64, prompt: Vec<u32>, max_output_tokens: u32) -> EngineRequest {
    EngineRequest {
        id: RequestId(id),
        prompt: prompt.into(),
        max_output_tokens,
        output_seed: OUTPUT_SEED.nth(id),
        vocab_tokens: VOCAB_TOKENS,
        priority: 0,
    }
}

/// A step as the timing model saw it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Step {
    started_ms: f64,
    /// Requests, mean of their prompt tokens, mean of their prefix.
    prefill: (u32, u64, u64),
    /// Sequences, tokens they hold, mean of these.
    decode: (u32, u64, u64),
    computed_tokens: u32,
}

/// One engine, what is still to arrive, and all that it said.
struct Bench {
    engine: Engine,
    inputs: Vec<(SimTime, EngineInput)>,
    said: Vec<Timed<EngineOutput>>,
    steps: Vec<Step>,
}

impl Bench {
    fn new(config: EngineConfig) -> Bench {
        let engine = Engine::new(config).expect("a valid configuration");
        Bench { engine, inputs: Vec::new(), said: Vec::new(), steps: Vec::new() }
    }

    /// Request `id` shall arrive at `at_ms`.
    fn submit(&mut self, at_ms: f64, id: u64, prompt: Vec<u32>, max_output_tokens: u32) -> &mut Bench {
        self.input(at_ms, EngineInput::Submit(request(id, prompt, max_output_tokens)))
    }

    fn cancel(&mut self, at_ms: f64, id: u64) -> &mut Bench {
        self.input(at_ms, EngineInput::Cancel(RequestId(id)))
    }

    fn flush(&mut self, at_ms: f64) -> &mut Bench {
        self.input(at_ms, EngineInput::FlushCache)
    }

    fn input(&mut self, at_ms: f64, input: EngineInput) -> &mut Bench {
        self.inputs.push((SimTime::from_ms(at_ms), input));
        self.inputs.sort_by_key(|(at, _)| *at);
        self
    }

    /// Runs until nothing is left to do.
    fn run(&mut self) -> &mut Bench {
        self.run_to(f64::INFINITY)
    }

    /// Runs up to a moment, inclusive. At one moment steps end, inputs arrive, steps start.
    fn run_to(&mut self, to_ms: f64) -> &mut Bench {
        let to = SimTime::from_ms(to_ms);
        loop {
            let arrival = self.inputs.first().map(|(at, _)| *at);
            let Some(now) = arrival.into_iter().chain(self.engine.next_deadline()).min().filter(|at| *at <= to) else {
                return self;
            };
            self.engine.complete_step(now, &mut self.said);
            while self.inputs.first().is_some_and(|(at, _)| *at == now) {
                let (_, input) = self.inputs.remove(0);
                self.engine.handle(now, input, &mut self.said);
            }
            self.start_step(now);
            self.engine.check().unwrap_or_else(|broken| panic!("at {now}: {broken}"));
        }
    }

    /// Starts a step; a copy of the engine tells what is in it.
    fn start_step(&mut self, now: SimTime) {
        let mut copy = self.engine.clone();
        copy.plan_step(now, false, &mut Vec::new());
        let plan = copy.plan;
        let before = self.engine.stats().steps_total;
        self.engine.start_step(now, &mut self.said);
        if self.engine.stats().steps_total == before {
            return;
        }
        let mean = |sum: u64, count: u32| sum.checked_div(u64::from(count)).unwrap_or(0);
        let (prefill, decode) = (plan.prefill, plan.decode);
        self.steps.push(Step {
            started_ms: now.as_ms(),
            prefill: (
                prefill.requests,
                mean(prefill.prompt_tokens, prefill.requests),
                mean(prefill.prefix_tokens, prefill.requests),
            ),
            decode: (decode.sequences, decode.context_tokens, mean(decode.context_tokens, decode.sequences)),
            computed_tokens: plan.computed_tokens,
        });
    }

    /// Time and reused tokens of each admission.
    fn admissions(&self, of: u64) -> Vec<(f64, u32)> {
        let admitted = self.said.iter().filter_map(|(at, output)| match output {
            EngineOutput::Admitted { id, reused_tokens, .. } if id.0 == of => Some((at.as_ms(), *reused_tokens)),
            _ => None,
        });
        admitted.collect()
    }

    /// Time and id of each output token.
    fn tokens(&self, of: u64) -> Vec<(f64, u32)> {
        let tokens = self.said.iter().filter_map(|(at, output)| match output {
            EngineOutput::Token { id, token_id, .. } if id.0 == of => Some((at.as_ms(), *token_id)),
            _ => None,
        });
        tokens.collect()
    }

    fn token_times(&self, of: u64) -> Vec<f64> {
        self.tokens(of).into_iter().map(|(at_ms, _)| at_ms).collect()
    }

    /// When the request completed.
    fn end_ms(&self, of: u64) -> Option<f64> {
        self.said.iter().find_map(|(at, output)| match output {
            EngineOutput::Token { id, finished: true, .. } | EngineOutput::Finished { id, .. } if id.0 == of => {
                Some(at.as_ms())
            }
            _ => None,
        })
    }

    /// When and why the request was rejected.
    fn rejection(&self, of: u64) -> Option<(f64, RejectReason)> {
        self.said.iter().find_map(|(at, output)| match output {
            EngineOutput::Rejected { id, reason } if id.0 == of => Some((at.as_ms(), *reason)),
            _ => None,
        })
    }

    /// The cache's changes; fails unless they are numbered from 0 in the order in which they were said.
    fn events(&self) -> Vec<(f64, KvEventData)> {
        let events = self.said.iter().filter_map(|(at, output)| match output {
            EngineOutput::Kv(event) => Some((at.as_ms(), event)),
            _ => None,
        });
        let numbered = events.enumerate().map(|(place, (at_ms, event))| {
            assert_eq!(event.event_id, place as u64, "event number at {at_ms} ms");
            (at_ms, event.data.clone())
        });
        numbered.collect()
    }

    /// Active, inactive and free blocks.
    fn blocks(&self) -> (u32, u32, u32) {
        let pool = &self.engine.pool;
        (pool.active(), pool.inactive(), pool.free())
    }
}
