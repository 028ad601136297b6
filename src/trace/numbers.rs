//! Numbers for block hashes, in the order of first appearance.
//!
//! The hashes of most traces are themselves small numbers that count up, so their numbers stand in a plain list,
//! indexed by hash: a look-up costs a few nanoseconds where a map of millions of hashes would miss the processor's
//! cache each time, and it takes four bytes a hash. Hashes that are too large for a list of that size go into a map.

use rustc_hash::FxHashMap;

/// Stands in the list where no hash was met. Never a number: numbers end below it.
const NOT_MET: u32 = u32::MAX;
/// The list takes hashes below this, however few were met.
const LIST_FROM: usize = 1 << 10;
/// The list takes hashes below so many times the number of those met.
const LIST_SPARSENESS: usize = 4;

/// Gives numbers to hashes.
#[derive(Clone, Debug, Default)]
pub(super) struct BlockNumbers {
    next: u32,
    listed: Vec<u32>,
    mapped: FxHashMap<u64, u32>,
    met: usize,
}

impl BlockNumbers {
    /// Numbers that count up from `first`.
    pub(super) fn starting_at(first: u32) -> Self {
        BlockNumbers { next: first, ..Self::default() }
    }

    /// The number after all that were given.
    pub(super) fn end(&self) -> u32 {
        self.next
    }

    /// The number of a hash; `None` if there are no more numbers.
    pub(super) fn of(&mut self, hash: u64) -> Option<u32> {
        let listed = usize::try_from(hash).ok().and_then(|index| self.listed.get(index));
        match listed {
            Some(number) if *number != NOT_MET => Some(*number),
            _ => self.meet(hash),
        }
    }

    /// The first of so many new numbers, for blocks without hashes; `None` if there are not so many.
    pub(super) fn take(&mut self, count: u32) -> Option<u32> {
        let first = self.next;
        self.next = first.checked_add(count)?;
        Some(first)
    }

    /// The number of a hash that is not in the list.
    fn meet(&mut self, hash: u64) -> Option<u32> {
        // A hash may have been too large for the list when it was met first.
        if !self.mapped.is_empty()
            && let Some(number) = self.mapped.get(&hash)
        {
            return Some(*number);
        }
        let number = self.take(1)?;
        self.met += 1;
        let limit = LIST_FROM.max(self.met.saturating_mul(LIST_SPARSENESS)).max(self.listed.len());
        match usize::try_from(hash).ok().filter(|index| *index < limit) {
            Some(index) => {
                if index >= self.listed.len() {
                    self.listed.resize((index + 1).max(2 * self.listed.len()).max(LIST_FROM), NOT_MET);
                }
                self.listed[index] = number;
            }
            None => {
                self.mapped.insert(hash, number);
            }
        }
        Some(number)
    }
}
