//! The index against one that keeps every block apart.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::engine::hash::block_chain;
use crate::engine::{RemovedBlocks, StoredBlock};

/// Who holds what, block by block.
#[derive(Default)]
struct Flat(BTreeMap<SequenceHash, BTreeSet<WorkerId>>);

impl Flat {
    fn store(&mut self, worker: WorkerId, blocks: &[BlockId]) {
        for block in blocks {
            self.0.entry(block.sequence).or_default().insert(worker);
        }
    }

    fn remove(&mut self, worker: WorkerId, block: SequenceHash) {
        if let Some(holders) = self.0.get_mut(&block) {
            holders.remove(&worker);
        }
        self.0.retain(|_, holders| !holders.is_empty());
    }

    fn holds(&self, worker: WorkerId, block: &BlockId) -> bool {
        self.0.get(&block.sequence).is_some_and(|held| held.contains(&worker))
    }

    /// The end of the stretch from `from` on that an engine could evict of a prompt, and its start: nobody of it needs the
    /// blocks for others behind them.
    fn evictable(&self, worker: WorkerId, prompts: &[Chain], prompt: usize, from: usize) -> (usize, usize) {
        let chain = &prompts[prompt];
        let to = chain.iter().take_while(|id| self.holds(worker, id)).count();
        let needed = |at: usize| {
            let others = prompts.iter().filter(|other| other[at].sequence == chain[at].sequence);
            others
                .filter_map(|other| other.get(at + 1))
                .any(|id| self.holds(worker, id) && chain.get(at + 1).is_none_or(|own| own.sequence != id.sequence))
        };
        let least = (from..to).rev().take_while(|at| !needed(*at)).last().unwrap_or(to);
        (least, to)
    }

    fn find(&self, chain: &[BlockId]) -> Vec<(WorkerId, u32)> {
        let held = |worker: &WorkerId| {
            chain.iter().take_while(|id| self.0.get(&id.sequence).is_some_and(|held| held.contains(worker))).count()
        };
        let workers: BTreeSet<WorkerId> = self.0.values().flatten().copied().collect();
        workers.iter().map(|worker| (*worker, held(worker) as u32)).filter(|(_, blocks)| *blocks > 0).collect()
    }
}

#[derive(Clone, Debug)]
enum Change {
    /// Blocks of a prompt, from one to another.
    Stored {
        worker: u32,
        prompt: usize,
        from: usize,
        to: usize,
    },
    /// Blocks of a prompt, as an engine evicts them.
    Evicted {
        worker: u32,
        prompt: usize,
        from: usize,
        to: usize,
    },
    /// Some blocks by name, in any order.
    Removed {
        worker: u32,
        prompt: usize,
        blocks: Vec<usize>,
    },
    Forgotten {
        worker: u32,
    },
}

const WORKERS: u32 = 3;
const BLOCKS: usize = 8;

/// Prompts that part at every depth.
fn prompts() -> Vec<Chain> {
    let prompt = |number: usize| -> Chain {
        let tokens: Vec<u32> = (0..BLOCKS as u32)
            .map(|at| if at as usize >= number % BLOCKS { at + 100 * number as u32 } else { at })
            .collect();
        block_chain(&tokens, 1).into()
    };
    (0..2 * BLOCKS).map(prompt).collect()
}

fn change() -> impl Strategy<Value = Change> {
    let place = (0..WORKERS, 0..2 * BLOCKS, 0..BLOCKS, 1..=BLOCKS);
    prop_oneof![
        6 => place.clone().prop_map(|(worker, prompt, from, to)| Change::Stored { worker, prompt, from: from.min(to - 1), to }),
        4 => place.prop_map(|(worker, prompt, from, to)| Change::Evicted { worker, prompt, from: from.min(to - 1), to }),
        2 => (0..WORKERS, 0..2 * BLOCKS, prop::collection::vec(0..BLOCKS, 1..4))
            .prop_map(|(worker, prompt, blocks)| Change::Removed { worker, prompt, blocks }),
        1 => (0..WORKERS).prop_map(|worker| Change::Forgotten { worker }),
    ]
}

/// How a worker tells of its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// As an engine of this process.
    Here,
    /// Over the wire, with the router's names.
    Wire,
    /// Over the wire, with names of its own.
    Foreign,
}

impl Voice {
    fn name(self, id: &BlockId) -> SequenceHash {
        match self {
            Voice::Here | Voice::Wire => id.sequence,
            Voice::Foreign => SequenceHash(!id.sequence.0),
        }
    }

    fn stored(self, chain: &Chain, from: usize, to: usize) -> KvEventData {
        let parent = from.checked_sub(1).map(|before| self.name(&chain[before]));
        let blocks = match self {
            Voice::Here => StoredBlocks::of_chain(chain.clone(), from as u32, to as u32, Chain::default(), Vec::new()),
            Voice::Wire | Voice::Foreign => chain[from..to]
                .iter()
                .map(|id| StoredBlock {
                    sequence_hash: self.name(id),
                    tokens_hash: id.tokens,
                    token_ids: std::sync::Arc::default(),
                })
                .collect(),
        };
        KvEventData::Stored { parent, blocks }
    }

    fn evicted(self, chain: &Chain, from: usize, to: usize) -> KvEventData {
        let blocks = match self {
            Voice::Here => {
                let mut blocks = RemovedBlocks::default();
                blocks.push(chain, from as u32, to as u32);
                blocks
            }
            Voice::Wire | Voice::Foreign => chain[from..to].iter().rev().map(|id| self.name(id)).collect(),
        };
        KvEventData::Removed { blocks }
    }
}

fn compare(index: &BlockIndex, flat: &Flat, prompts: &[Chain]) -> Result<(), TestCaseError> {
    let mut found = Vec::new();
    for prompt in prompts {
        index.find_matches(prompt, &mut found);
        prop_assert_eq!(&found, &flat.find(prompt));
    }
    prop_assert_eq!(index.len(), flat.0.len());
    for worker in (0..WORKERS).map(WorkerId) {
        let held = flat.0.values().filter(|held| held.contains(&worker)).count();
        prop_assert_eq!(index.worker_blocks(worker), held);
    }
    prop_assert!(index.run_count() <= index.len());
    Ok(())
}

fn play(changes: &[Change], voice: impl Fn(u32) -> Voice) -> Result<(), TestCaseError> {
    let prompts = prompts();
    let (mut index, mut flat) = (BlockIndex::new(), Flat::default());
    for change in changes {
        match change {
            Change::Stored { worker, prompt, from, to } => {
                let (own, voice, chain) = (WorkerId(*worker), voice(*worker), &prompts[*prompt]);
                // An engine of this process holds what is before.
                let held = chain.iter().take_while(|id| flat.holds(own, id)).count();
                let from = &if voice == Voice::Here { *from.min(&held) } else { *from };
                // Of a worker with names of its own nothing can be placed behind a block that it does not hold.
                let holds_parent = from
                    .checked_sub(1)
                    .is_none_or(|before| flat.0.get(&chain[before].sequence).is_some_and(|held| held.contains(&own)));
                if holds_parent || !matches!(voice, Voice::Foreign) {
                    flat.store(own, &chain[*from..*to]);
                }
                index.apply(own, &voice.stored(chain, *from, *to));
            }
            Change::Evicted { worker, prompt, from, to } => {
                let (own, voice, chain) = (WorkerId(*worker), voice(*worker), &prompts[*prompt]);
                let (from, to) = match voice {
                    Voice::Here => flat.evictable(own, &prompts, *prompt, *from),
                    Voice::Wire | Voice::Foreign => (*from, *to),
                };
                for id in &chain[from..to] {
                    flat.remove(own, id.sequence);
                }
                index.apply(own, &voice.evicted(chain, from, to));
            }
            Change::Removed { worker, .. } if voice(*worker) == Voice::Here => {}
            Change::Removed { worker, prompt, blocks } => {
                let ids = blocks.iter().map(|block| prompts[*prompt][*block]);
                for id in ids.clone() {
                    flat.remove(WorkerId(*worker), id.sequence);
                }
                let blocks = ids.map(|id| voice(*worker).name(&id)).collect();
                index.apply(WorkerId(*worker), &KvEventData::Removed { blocks });
            }
            Change::Forgotten { worker } => {
                for held in flat.0.values_mut() {
                    held.remove(&WorkerId(*worker));
                }
                flat.0.retain(|_, held| !held.is_empty());
                index.forget_worker(WorkerId(*worker));
            }
        }
        compare(&index, &flat, &prompts)?;
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn engines_of_this_process(changes in prop::collection::vec(change(), 1..40)) {
        play(&changes, |_| Voice::Here)?;
    }

    #[test]
    fn workers_behind_the_wire(changes in prop::collection::vec(change(), 1..40)) {
        play(&changes, |_| Voice::Wire)?;
    }

    #[test]
    fn names_of_all_kinds_in_one_index(changes in prop::collection::vec(change(), 1..40)) {
        play(&changes, |worker| [Voice::Here, Voice::Wire, Voice::Foreign][worker as usize])?;
    }
}

#[test]
fn a_prompt_is_one_run_and_a_branch_another() {
    let prompts = prompts();
    let mut index = BlockIndex::new();
    for (worker, prompt) in [(0, 7), (1, 7), (2, 4)] {
        index.apply(WorkerId(worker), &Voice::Here.stored(&prompts[prompt], 0, BLOCKS));
    }
    // They share their first four blocks.
    assert_eq!((index.run_count(), index.len()), (2, 2 * BLOCKS - 4));
}

#[test]
fn chunks_of_one_prompt_grow_one_run() {
    let prompts = prompts();
    let mut index = BlockIndex::new();
    for at in 0..BLOCKS {
        index.apply(WorkerId(0), &Voice::Here.stored(&prompts[3], at, at + 1));
    }
    assert_eq!((index.run_count(), index.len()), (1, BLOCKS));
    // Evicted from behind, block by block: nothing is cut.
    for at in (2..BLOCKS).rev() {
        index.apply(WorkerId(0), &Voice::Here.evicted(&prompts[3], at, at + 1));
        assert_eq!((index.run_count(), index.len()), (1, at));
    }
}
