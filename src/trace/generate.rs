//! A generated trace that reuses prefixes as the public Mooncake conversation trace does.
//!
//! People open conversations at random times. A conversation starts with a system prompt that all share and a prompt of
//! widely varying length; after an answer it may go on: the next prompt is the last one, the answer, and a message. Now
//! and then the history is rewritten from some point on (an edit, another document), so only the part before is shared.
//! Arrivals are collected into ticks, as in the public trace.
//!
//! The simulation begins an hour before the first row. Conversations that are under way by then appear without their
//! past, so the first rows find less to reuse than later ones: the same warm-up that the public trace shows.
//!
//! The tables below are fitted to summary figures of the public trace; none of its rows is in here. The tests hold
//! generated figures against published ones and tabulate both.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rand::RngExt;
use rand_distr::{Distribution, Exp1, StandardNormal};
use rustc_hash::FxHashMap;

use super::read::DEFAULT_BLOCK_TOKENS;
use super::row::TraceRow;
use crate::rng::{Rng, Seed};

/// Length of a conversation's first prompt, in tokens, by quantile.
const FIRST_PROMPT_TOKENS: &[(f64, f64)] = &[
    (0.0, 891.0),
    (0.05, 897.0),
    (0.12, 905.0),
    (0.25, 1_240.0),
    (0.5, 4_600.0),
    (0.75, 11_400.0),
    (0.9, 24_000.0),
    (0.95, 35_200.0),
    (0.99, 80_000.0),
    (0.999, 119_000.0),
    (1.0, 126_195.0),
];
/// Length of an answer, in tokens, by quantile.
const OUTPUT_TOKENS: &[(f64, f64)] = &[
    (0.0, 1.0),
    (0.02, 3.0),
    (0.05, 10.0),
    (0.1, 24.0),
    (0.2, 100.0),
    (0.3, 213.0),
    (0.4, 291.0),
    (0.5, 350.0),
    (0.6, 399.0),
    (0.7, 447.0),
    (0.8, 504.0),
    (0.9, 597.0),
    (0.95, 698.0),
    (0.98, 891.0),
    (0.99, 1_115.0),
    (0.995, 1_554.0),
    (0.999, 2_000.0),
    (1.0, 2_000.0),
];
/// Length of a message that continues a conversation, in tokens, by quantile.
const MESSAGE_TOKENS: &[(f64, f64)] = &[
    (0.0, 1.0),
    (0.1, 3.0),
    (0.25, 9.0),
    (0.5, 26.0),
    (0.75, 355.0),
    (0.9, 4_200.0),
    (0.95, 6_900.0),
    (0.99, 16_700.0),
    (0.999, 37_500.0),
    (1.0, 90_000.0),
];
/// Chance that a conversation goes on after its first, second, … prompt; the last holds for all further ones.
const CONTINUES: &[f64] = &[0.365, 0.42, 0.51, 0.6, 0.66, 0.7];
/// The same for a prompt so short that it is a one-off question.
const ONE_OFF_CONTINUES: f64 = 0.014;
/// Prompts below this many tokens are one-off questions.
const ONE_OFF_BELOW_TOKENS: u32 = 1024;
/// Prompts per conversation that follow from the tables, the mean.
const MEAN_TURNS: f64 = 1.63;
/// Time from one prompt to the next: the shortest, and the median and spread (log-normal) of the rest.
const MIN_GAP_S: f64 = 10.0;
const MEDIAN_GAP_S: f64 = 105.0;
const GAP_SIGMA: f64 = 1.05;
/// Chance that a continuation rewrites its history, if that is long enough.
const REWRITES: f64 = 0.25;
/// Histories below this many tokens are not rewritten.
const REWRITE_FROM_TOKENS: u32 = 6_000;
/// Spread (log-normal) of the length of a rewritten prompt around the one before.
const REWRITE_SIGMA: f64 = 0.35;
/// The system prompt that all conversations share, in tokens.
const SHARED_TOKENS: u32 = 512;
/// Longest prompt, in tokens: a conversation that would exceed it ends.
const MAX_PROMPT_TOKENS: u32 = 126_195;
/// Ticks shorter than this many milliseconds are exact, so that they cannot overtake one another.
const MIN_JITTERED_TICK_MS: u32 = 10;
/// Rates that the simulation takes, in requests per second.
const MIN_RATE: f64 = 0.001;
const MAX_RATE: f64 = 1_000.0;
/// Conversations are followed from this long before the first row.
const PAST_S: f64 = 3_600.0;

/// What a generated conversation trace is like beyond its fixed tables.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ConversationOptions {
    /// Tokens that one hash stands for; at least 1 (0 counts as 1).
    pub block_tokens: u32,
    /// Mean rate of arrivals, in requests per second, from 0.001 to 1000 (values outside count as the nearest of
    /// these). The gaps within a conversation do not scale with it.
    pub requests_per_second: f64,
    /// Arrivals are collected into ticks of this many milliseconds; 0: each has its own time.
    pub tick_ms: u32,
    /// Whether rows name their conversation in `session_id`, which makes a replay wait for answers. The public trace
    /// has none.
    pub name_sessions: bool,
}

impl Default for ConversationOptions {
    fn default() -> Self {
        ConversationOptions {
            block_tokens: DEFAULT_BLOCK_TOKENS,
            requests_per_second: 3.4,
            tick_ms: 3_000,
            name_sessions: false,
        }
    }
}

/// Generates the first `requests` rows of a conversation trace, sorted by time from 0, hashes counted up from 0 in the
/// order of first appearance. The same seed and options give the same rows, and fewer requests give the beginning of
/// more.
pub fn conversation_like(seed: Seed, requests: u64, options: &ConversationOptions) -> Vec<TraceRow> {
    let mut crowd = Crowd::new(seed.split("conversation"), options);
    let mut out = RowWriter::new(seed.split("ticks"), options);
    let mut rows = Vec::new();
    while (rows.len() as u64) < requests {
        let turn = crowd.next_turn();
        if turn.at_s >= 0.0 {
            rows.push(out.row(rows.len() as u64, turn));
        }
    }
    rows
}

/// A prompt that somebody sends.
struct Turn {
    at_s: f64,
    conversation: u64,
    prompt_tokens: u32,
    output_tokens: u32,
    /// Names of the prompt's blocks, unique over the simulation.
    blocks: Vec<u64>,
}

/// A conversation between two prompts.
struct Conversation {
    rng: Rng,
    number: u64,
    turns: usize,
    prompt_tokens: u32,
    output_tokens: u32,
    blocks: Vec<u64>,
}

/// All conversations of the simulation, in order of time.
struct Crowd {
    seed: Seed,
    arrivals: Rng,
    opens_per_s: f64,
    block_tokens: u32,
    next_open_s: f64,
    opened: u64,
    next_block: u64,
    /// When waiting conversations go on: nanoseconds since the simulation began, then their number.
    waiting: BinaryHeap<Reverse<(u64, u64)>>,
    conversations: FxHashMap<u64, Conversation>,
}

impl Crowd {
    fn new(seed: Seed, options: &ConversationOptions) -> Self {
        let block_tokens = options.block_tokens.max(1);
        let rate = options.requests_per_second;
        // Written so that NaN becomes the lowest rate.
        let rate = if rate >= MIN_RATE { rate.min(MAX_RATE) } else { MIN_RATE };
        Crowd {
            seed,
            arrivals: seed.split("arrivals").rng(),
            opens_per_s: rate / MEAN_TURNS,
            block_tokens,
            next_open_s: 0.0,
            opened: 0,
            // The blocks of the system prompt come first.
            next_block: u64::from(SHARED_TOKENS / block_tokens),
            waiting: BinaryHeap::new(),
            conversations: FxHashMap::default(),
        }
    }

    fn next_turn(&mut self) -> Turn {
        let waiting_s = self.waiting.peek().map(|Reverse((at_ns, _))| *at_ns as f64 / 1e9);
        if let Some(at_s) = waiting_s.filter(|at_s| *at_s < self.next_open_s)
            && let Some(Reverse((_, number))) = self.waiting.pop()
            && let Some(mut conversation) = self.conversations.remove(&number)
        {
            self.go_on(&mut conversation);
            return self.send(at_s, conversation);
        }
        let at_s = self.next_open_s;
        let gap: f64 = Exp1.sample(&mut self.arrivals);
        self.next_open_s += gap / self.opens_per_s;
        let conversation = self.open();
        self.send(at_s, conversation)
    }

    fn open(&mut self) -> Conversation {
        let number = self.opened;
        self.opened += 1;
        let mut rng = self.seed.nth(number).rng();
        let mut conversation = Conversation {
            number,
            turns: 0,
            prompt_tokens: 0,
            output_tokens: 0,
            blocks: (0..u64::from(SHARED_TOKENS / self.block_tokens)).collect(),
            rng: self.seed.nth(number).split("turns").rng(),
        };
        let prompt_tokens = quantile(FIRST_PROMPT_TOKENS, &mut rng);
        self.extend(&mut conversation, SHARED_TOKENS, prompt_tokens);
        conversation
    }

    /// Makes the next prompt of a conversation out of the last one.
    fn go_on(&mut self, conversation: &mut Conversation) {
        let last_tokens = conversation.prompt_tokens;
        let rng = &mut conversation.rng;
        if last_tokens >= REWRITE_FROM_TOKENS && rng.random_bool(REWRITES) {
            let part: f64 = rng.random();
            let kept_tokens = SHARED_TOKENS + (f64::from(last_tokens - SHARED_TOKENS) * part * part) as u32;
            let spread: f64 = StandardNormal.sample(rng);
            let tokens = f64::from(last_tokens) * (REWRITE_SIGMA * spread).exp();
            let tokens = (tokens as u32).clamp(kept_tokens + 1, MAX_PROMPT_TOKENS.max(kept_tokens + 1));
            self.extend(conversation, kept_tokens, tokens);
        } else {
            let message_tokens = quantile(MESSAGE_TOKENS, rng);
            let tokens = (last_tokens + conversation.output_tokens + message_tokens).min(MAX_PROMPT_TOKENS);
            self.extend(conversation, last_tokens, tokens);
        }
    }

    /// Keeps the blocks that `kept_tokens` fill and names new ones up to `prompt_tokens`.
    fn extend(&mut self, conversation: &mut Conversation, kept_tokens: u32, prompt_tokens: u32) {
        conversation.blocks.truncate((kept_tokens / self.block_tokens) as usize);
        let new = u64::from(prompt_tokens.div_ceil(self.block_tokens)) - conversation.blocks.len() as u64;
        conversation.blocks.extend(self.next_block..self.next_block + new);
        self.next_block += new;
        conversation.prompt_tokens = prompt_tokens;
        conversation.output_tokens = quantile(OUTPUT_TOKENS, &mut conversation.rng);
        conversation.turns += 1;
    }

    /// Sends the conversation's prompt, and decides whether and when it goes on.
    fn send(&mut self, at_s: f64, mut conversation: Conversation) -> Turn {
        let turn = Turn {
            at_s: at_s - PAST_S,
            conversation: conversation.number,
            prompt_tokens: conversation.prompt_tokens,
            output_tokens: conversation.output_tokens,
            blocks: conversation.blocks.clone(),
        };
        let chance = match conversation.turns {
            _ if conversation.prompt_tokens < ONE_OFF_BELOW_TOKENS => ONE_OFF_CONTINUES,
            turns => CONTINUES[(turns - 1).min(CONTINUES.len() - 1)],
        };
        let goes_on = conversation.rng.random_bool(chance);
        let spread: f64 = StandardNormal.sample(&mut conversation.rng);
        let room_tokens = MAX_PROMPT_TOKENS.saturating_sub(conversation.prompt_tokens + conversation.output_tokens);
        if goes_on && room_tokens > 0 {
            let next_s = at_s + MIN_GAP_S + MEDIAN_GAP_S * (GAP_SIGMA * spread).exp();
            self.waiting.push(Reverse(((next_s * 1e9) as u64, conversation.number)));
            self.conversations.insert(conversation.number, conversation);
        }
        turn
    }
}

/// Turns prompts into rows: times into ticks, block names into hashes counted from 0.
struct RowWriter<'a> {
    options: &'a ConversationOptions,
    jitter: Seed,
    hash_of: FxHashMap<u64, u64>,
}

impl<'a> RowWriter<'a> {
    fn new(jitter: Seed, options: &'a ConversationOptions) -> Self {
        RowWriter { options, jitter, hash_of: FxHashMap::default() }
    }

    fn row(&mut self, row: u64, turn: Turn) -> TraceRow {
        let hash_of = &mut self.hash_of;
        let hash_ids = turn
            .blocks
            .iter()
            .map(|block| {
                let next = hash_of.len() as u64;
                *hash_of.entry(*block).or_insert(next)
            })
            .collect();
        TraceRow {
            row,
            line: row + 1,
            session_id: self.options.name_sessions.then(|| turn.conversation.to_string()),
            timestamp_ms: Some(self.timestamp_ms(turn.at_s)),
            input_tokens: turn.prompt_tokens,
            output_tokens: turn.output_tokens,
            hash_ids,
            ..TraceRow::default()
        }
    }

    /// The time of the tick that `at_s` falls into, a millisecond early or late now and then; without ticks, the time
    /// itself in whole microseconds, which a file keeps exactly.
    fn timestamp_ms(&self, at_s: f64) -> f64 {
        let at_ms = (at_s * 1e6).round() / 1e3;
        if self.options.tick_ms == 0 {
            return at_ms;
        }
        let tick_ms = f64::from(self.options.tick_ms);
        let tick = (at_ms / tick_ms).floor();
        let late_ms = match self.jitter.nth(tick as u64).0 % 9 {
            _ if tick == 0.0 || self.options.tick_ms < MIN_JITTERED_TICK_MS => 0.0,
            0 | 1 => -1.0,
            2 | 3 => 1.0,
            _ => 0.0,
        };
        tick * tick_ms + late_ms
    }
}

/// Draws a whole number from a table of quantiles, between which the logarithm is straight.
fn quantile(table: &[(f64, f64)], rng: &mut Rng) -> u32 {
    let wanted: f64 = rng.random();
    let above = table.partition_point(|(part, _)| *part <= wanted).clamp(1, table.len() - 1);
    let ((from, low), (to, high)) = (table[above - 1], table[above]);
    let along = ((wanted - from) / (to - from)).clamp(0.0, 1.0);
    (low * (high / low).powf(along)).round() as u32
}
