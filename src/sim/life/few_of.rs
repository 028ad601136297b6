//! A list that nearly always has at most one entry, and then lies in place.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::slice;

use serde::{Serialize, Serializer};

/// A list that can be read as a slice and grows at its end. Up to one entry it takes no memory of its own.
#[derive(Clone, PartialEq, Eq)]
pub struct FewOf<T>(Entries<T>);

#[derive(Clone, PartialEq, Eq)]
#[expect(clippy::box_collection, reason = "one word, so that the list is as small as its first entry")]
enum Entries<T> {
    None,
    One(T),
    Many(Box<Vec<T>>),
}

impl<T> FewOf<T> {
    /// Adds an entry at the end.
    pub fn push(&mut self, entry: T) {
        self.0 = match std::mem::replace(&mut self.0, Entries::None) {
            Entries::None => Entries::One(entry),
            // A second entry is rare and a third rarer still: room for no more than is needed.
            Entries::One(first) => Entries::Many(Box::new(Vec::from([first, entry]))),
            Entries::Many(mut entries) => {
                entries.push(entry);
                Entries::Many(entries)
            }
        };
    }
}

impl<T> Default for FewOf<T> {
    fn default() -> Self {
        FewOf(Entries::None)
    }
}

impl<T> Deref for FewOf<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        match &self.0 {
            Entries::None => &[],
            Entries::One(entry) => slice::from_ref(entry),
            Entries::Many(entries) => entries,
        }
    }
}

impl<T> DerefMut for FewOf<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        match &mut self.0 {
            Entries::None => &mut [],
            Entries::One(entry) => slice::from_mut(entry),
            Entries::Many(entries) => entries,
        }
    }
}

impl<T> Extend<T> for FewOf<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

impl<T> FromIterator<T> for FewOf<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut few = FewOf::default();
        few.extend(entries);
        few
    }
}

impl<'a, T> IntoIterator for &'a FewOf<T> {
    type Item = &'a T;
    type IntoIter = slice::Iter<'a, T>;
    fn into_iter(self) -> slice::Iter<'a, T> {
        self.iter()
    }
}

impl<T: fmt::Debug> fmt::Debug for FewOf<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl<T: Serialize> Serialize for FewOf<T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}
