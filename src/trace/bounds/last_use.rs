//! Who used each part of a prompt last: a tree of all prompts so far.
//!
//! The tree is a radix tree over tokens. An edge is a stretch of tokens that no prompt leaves midway, so one number,
//! the request that went along it last, holds for the whole stretch. Labels are segments, as prompts are; two stretches
//! are compared by segments, not by tokens, and a prompt costs a few steps however long it is. The tree knows no block
//! size.

use rustc_hash::FxHashMap;

use crate::trace::prompt::Segment;

/// The node that all prompts start from; it has no edge.
const ROOT: u32 = 0;

/// Tokens from the start of a prompt up to some point, counted from where the part before ends, with one last user.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct UsedPart {
    /// The request that used this part last.
    pub(super) request: u32,
    /// Where the part ends, in tokens from the start of the prompt.
    pub(super) end_tokens: u32,
}

/// A node, and the edge that leads to it.
struct Node {
    /// Where the label starts in [`PrefixTree::labels`]; it may go on over the following segments.
    label: Position,
    /// Length of the label.
    tokens: u32,
    /// The request that went along the edge last.
    last_use: u32,
}

/// A token within a list of segments.
#[derive(Clone, Copy)]
struct Position {
    segment: u32,
    /// Tokens of the segment that lie before.
    offset_tokens: u32,
}

/// All prompts so far.
pub(super) struct PrefixTree {
    nodes: Vec<Node>,
    /// The edge out of a node that starts with a token.
    children: FxHashMap<u64, u32>,
    labels: Vec<Segment>,
}

impl PrefixTree {
    pub(super) fn new() -> Self {
        let root = Node { label: Position { segment: 0, offset_tokens: 0 }, tokens: 0, last_use: 0 };
        PrefixTree { nodes: vec![root], children: FxHashMap::default(), labels: Vec::new() }
    }

    /// Adds the prompt of `request`, and writes to `parts` (emptied before) which requests used it last: the longest
    /// stretch that it shares with any earlier prompt, divided where the last user changes.
    pub(super) fn insert(&mut self, request: u32, prompt: &[Segment], parts: &mut Vec<UsedPart>) {
        parts.clear();
        let mut node = ROOT;
        let mut depth_tokens = 0;
        let mut at = Position { segment: 0, offset_tokens: 0 };
        while let Some(segment) = prompt.get(at.segment as usize) {
            let first_token = segment.token_at(at.offset_tokens);
            let Some(&child) = self.children.get(&edge(node, first_token)) else {
                self.grow(node, request, prompt, at);
                return;
            };
            let Node { mut label, tokens, last_use } = self.nodes[child as usize];
            let common_tokens = common_prefix(&self.labels, &mut label, prompt, &mut at, tokens);
            depth_tokens += common_tokens;
            match parts.last_mut() {
                Some(part) if part.request == last_use => part.end_tokens = depth_tokens,
                _ => parts.push(UsedPart { request: last_use, end_tokens: depth_tokens }),
            }
            node = match common_tokens == tokens {
                true => child,
                false => self.split(node, first_token, child, common_tokens, label),
            };
            self.nodes[node as usize].last_use = request;
        }
    }

    /// Adds what is left of a prompt as one edge out of `node`.
    fn grow(&mut self, node: u32, request: u32, prompt: &[Segment], from: Position) {
        let rest = &prompt[from.segment as usize..];
        let tokens = rest.iter().map(|segment| segment.tokens).sum::<u32>() - from.offset_tokens;
        let label = Position { segment: self.labels.len() as u32, offset_tokens: from.offset_tokens };
        let first_token = rest[0].token_at(from.offset_tokens);
        self.labels.extend_from_slice(rest);
        let leaf = self.add(Node { label, tokens, last_use: request });
        self.children.insert(edge(node, first_token), leaf);
    }

    /// Puts a node into the edge from `node` to `child`, after `upper_tokens` tokens, where the label is at `middle`.
    fn split(&mut self, node: u32, first_token: u32, child: u32, upper_tokens: u32, middle: Position) -> u32 {
        let lower = &mut self.nodes[child as usize];
        let upper = Node { label: lower.label, tokens: upper_tokens, last_use: lower.last_use };
        lower.label = middle;
        lower.tokens -= upper_tokens;
        let lower_first_token = self.labels[middle.segment as usize].token_at(middle.offset_tokens);
        let upper = self.add(upper);
        self.children.insert(edge(node, first_token), upper);
        self.children.insert(edge(upper, lower_first_token), child);
        upper
    }

    fn add(&mut self, node: Node) -> u32 {
        self.nodes.push(node);
        (self.nodes.len() - 1) as u32
    }
}

/// Key of the edge out of `node` whose label starts with `first_token`.
fn edge(node: u32, first_token: u32) -> u64 {
    u64::from(node) << 32 | u64::from(first_token)
}

/// Number of tokens, at most `limit_tokens`, that agree from the two positions on; moves both behind them.
fn common_prefix(a: &[Segment], at_a: &mut Position, b: &[Segment], at_b: &mut Position, limit_tokens: u32) -> u32 {
    let mut common_tokens = 0;
    while common_tokens < limit_tokens
        && let (Some(segment_a), Some(segment_b)) = (a.get(at_a.segment as usize), b.get(at_b.segment as usize))
    {
        let left_a = segment_a.tokens - at_a.offset_tokens;
        let left_b = segment_b.tokens - at_b.offset_tokens;
        let left = left_a.min(left_b).min(limit_tokens - common_tokens);
        let agreeing = agreeing_tokens(segment_a, at_a.offset_tokens, segment_b, at_b.offset_tokens, left);
        common_tokens += agreeing;
        at_a.advance(agreeing, segment_a.tokens);
        at_b.advance(agreeing, segment_b.tokens);
        if agreeing < left {
            break;
        }
    }
    common_tokens
}

impl Position {
    /// Moves on by `tokens`, which lie within the segment of `segment_tokens`.
    fn advance(&mut self, tokens: u32, segment_tokens: u32) {
        self.offset_tokens += tokens;
        if self.offset_tokens == segment_tokens {
            *self = Position { segment: self.segment + 1, offset_tokens: 0 };
        }
    }
}

/// Number of the next `left` tokens of two segments that agree.
fn agreeing_tokens(a: &Segment, mut offset_a: u32, b: &Segment, mut offset_b: u32, left: u32) -> u32 {
    let (run_a, run_b) = (a.run_tokens.max(1), b.run_tokens.max(1));
    let mut agreeing = 0;
    while agreeing < left && a.token_at(offset_a) == b.token_at(offset_b) {
        let (into_a, into_b) = (offset_a % run_a, offset_b % run_b);
        if run_a == run_b && into_a == into_b {
            // From here on the two count alike.
            return left;
        }
        let step = (run_a - into_a).min(run_b - into_b).min(left - agreeing);
        agreeing += step;
        offset_a += step;
        offset_b += step;
    }
    agreeing
}
