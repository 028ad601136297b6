//! The book against one that keeps every block apart.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::engine::hash::block_chain;

const WORKERS: u32 = 3;

#[derive(Clone, Debug)]
enum Step {
    Book { worker: u32, prompt: usize, blocks: usize },
    Free { nth: usize },
    Forget { worker: u32 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        5 => (0..WORKERS, 0..12usize, 0..7usize).prop_map(|(worker, prompt, blocks)| Step::Book { worker, prompt, blocks }),
        4 => (0..20usize).prop_map(|nth| Step::Free { nth }),
        1 => (0..WORKERS).prop_map(|worker| Step::Forget { worker }),
    ]
}

fn chain(prompt: usize, blocks: usize) -> Chain {
    let tokens: Vec<u32> =
        (0..blocks).map(|at| if at >= prompt % 6 { (at + 10 * prompt) as u32 } else { at as u32 }).collect();
    block_chain(&tokens, 1).into()
}

/// How many leading blocks of `chain` the worker's bookings have, and how many distinct blocks they have in all.
fn flat(live: &BTreeMap<u64, (u32, Chain)>, worker: u32, chain: &Chain) -> (u32, u32) {
    let own = live.values().filter(|(booked, _)| *booked == worker).flat_map(|(_, chain)| chain.iter());
    let blocks: std::collections::BTreeSet<u64> = own.map(|id| id.sequence.0).collect();
    let shared = chain.iter().take_while(|id| blocks.contains(&id.sequence.0)).count();
    (shared as u32, blocks.len() as u32)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn counts_what_a_book_of_single_blocks_counts(steps in prop::collection::vec(step(), 1..60)) {
        let mut book = LoadBook::new();
        let mut live: BTreeMap<u64, (u32, Chain)> = BTreeMap::new();
        let mut shared = Vec::new();
        for (id, step) in (0u64..).zip(&steps) {
            match *step {
                Step::Book { worker, prompt, blocks } => {
                    let chain = chain(prompt, blocks);
                    prop_assert!(book.book(RequestId(id), WorkerId(worker), &chain, 5));
                    prop_assert!(!book.book(RequestId(id), WorkerId(worker), &chain, 5));
                    live.insert(id, (worker, chain));
                }
                Step::Free { nth } => {
                    let Some(id) = live.keys().copied().nth(nth) else { continue };
                    let freed = live.remove(&id).map(|(worker, _)| WorkerId(worker));
                    prop_assert_eq!(book.free(RequestId(id)), freed);
                }
                Step::Forget { worker } => {
                    live.retain(|_, (booked, _)| *booked != worker);
                    book.forget_worker(WorkerId(worker));
                }
            }
            for prompt in 0..12 {
                let chain = chain(prompt, 7);
                book.find_shared(&chain, &mut shared);
                for worker in 0..WORKERS {
                    let (most, blocks) = flat(&live, worker, &chain);
                    let found = shared.iter().find(|(own, _)| own.0 == worker).map_or(0, |(_, blocks)| *blocks);
                    prop_assert_eq!(found, most);
                    let load = book.load(WorkerId(worker));
                    prop_assert_eq!(load.active_blocks, blocks);
                    let requests = live.values().filter(|(booked, _)| *booked == worker).count() as u32;
                    prop_assert_eq!((load.active_requests, load.active_prefill_tokens), (requests, u64::from(5 * requests)));
                }
            }
        }
        for id in live.keys() {
            book.free(RequestId(*id));
        }
        prop_assert!(book.is_empty());
        prop_assert_eq!((book.runs.len(), book.runs.blocks()), (0, 0));
    }
}
