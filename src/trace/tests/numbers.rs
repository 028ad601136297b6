//! Tests of the trace room: numbers of block hashes.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::numbers::BlockNumbers;

#[test]
fn numbers_count_up_and_end_below_the_last() {
    let mut numbers = BlockNumbers::starting_at(u32::MAX - 4);
    assert_eq!(numbers.of(7), Some(u32::MAX - 4));
    assert_eq!(numbers.take(2), Some(u32::MAX - 3));
    assert_eq!(numbers.of(u64::MAX), Some(u32::MAX - 1));
    assert_eq!((numbers.of(8), numbers.take(1)), (None, None));
    assert_eq!((numbers.of(7), numbers.of(u64::MAX)), (Some(u32::MAX - 4), Some(u32::MAX - 1)));
}

proptest! {
    /// Hashes that are small, that become small when more were met, and that never are.
    #[test]
    fn numbers_are_those_of_a_map(
        hashes in prop::collection::vec(
            prop_oneof![0..40u64, 0..9_000u64, (0..40u64).prop_map(|low| u64::MAX - low)],
            0..3_000,
        ),
    ) {
        let (mut numbers, mut naive) = (BlockNumbers::starting_at(3), BTreeMap::new());
        for hash in hashes {
            let next = 3 + naive.len() as u32;
            prop_assert_eq!(numbers.of(hash), Some(*naive.entry(hash).or_insert(next)));
        }
        prop_assert_eq!(numbers.end() as usize, 3 + naive.len());
    }
}
