//! The stream of one worker's cache events, for any number of subscribers that come and go.
//!
//! The log keeps the last events so that a subscriber can start from a sequence number, and a mirror of the cache so that
//! one who asks for events that are no longer kept gets a snapshot instead: everything cleared, then every block, parents
//! first. Memory is bounded by the ring and by the pool.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use rustc_hash::FxHashMap;
use tokio::sync::watch;

use crate::engine::{KvEvent, KvEventData, StoredBlock};
use crate::ids::SequenceHash;

/// Events kept for replay.
const KEPT_EVENTS: usize = 10_000;
/// Token ids kept for replay (4 bytes each).
const KEPT_TOKENS: usize = 2 << 20;

/// What a subscriber gets.
#[derive(Clone, Debug)]
pub enum KvRead {
    /// Events from the asked number on, without gaps.
    Events(Vec<Arc<KvEvent>>),
    /// The asked events are gone: the cache as it is, to be continued with event `next_event_id`.
    Snapshot {
        /// Changes that build the cache from nothing.
        changes: Vec<KvEventData>,
        /// The first event that is not in the snapshot.
        next_event_id: u64,
    },
}

#[derive(Clone, Debug)]
struct Mirrored {
    parent: Option<SequenceHash>,
    block: StoredBlock,
}

#[derive(Debug, Default)]
struct Inner {
    kept: VecDeque<Arc<KvEvent>>,
    kept_tokens: usize,
    next_event_id: u64,
    mirror: FxHashMap<SequenceHash, Mirrored>,
}

/// The log of one worker.
#[derive(Debug)]
pub struct KvLog {
    inner: Mutex<Inner>,
    newest: watch::Sender<u64>,
}

impl Default for KvLog {
    fn default() -> Self {
        Self::new()
    }
}

impl KvLog {
    /// An empty log.
    pub fn new() -> Self {
        KvLog { inner: Mutex::default(), newest: watch::channel(0).0 }
    }

    /// Appends an event and wakes the subscribers.
    pub fn push(&self, event: KvEvent) {
        let next = {
            let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            debug_assert_eq!(event.event_id, inner.next_event_id, "events are numbered without gaps");
            inner.mirror(&event.data);
            inner.next_event_id = event.event_id + 1;
            inner.kept_tokens += tokens_in(&event.data);
            inner.kept.push_back(Arc::new(event));
            while inner.kept.len() > KEPT_EVENTS || inner.kept_tokens > KEPT_TOKENS {
                let Some(gone) = inner.kept.pop_front() else { break };
                inner.kept_tokens -= tokens_in(&gone.data);
            }
            inner.next_event_id
        };
        self.newest.send_replace(next);
    }

    /// A watch on the number of the next event, to wait for news.
    pub fn watch(&self) -> watch::Receiver<u64> {
        self.newest.subscribe()
    }

    /// Everything from event `from` on.
    pub fn read(&self, from: u64) -> KvRead {
        let (mirror, next_event_id) = {
            let inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
            let first_kept = inner.kept.front().map_or(inner.next_event_id, |event| event.event_id);
            if from >= first_kept && from <= inner.next_event_id {
                return KvRead::Events(inner.kept.iter().skip((from - first_kept) as usize).cloned().collect());
            }
            // The pacer waits for the lock: only handles are copied under it.
            (inner.mirror.clone(), inner.next_event_id)
        };
        KvRead::Snapshot { changes: snapshot(&mirror), next_event_id }
    }
}

impl Inner {
    fn mirror(&mut self, data: &KvEventData) {
        match data {
            KvEventData::Stored { parent, blocks } => {
                let mut parent = *parent;
                for block in blocks.iter() {
                    let own = block.sequence_hash;
                    self.mirror.insert(own, Mirrored { parent, block });
                    parent = Some(own);
                }
            }
            KvEventData::Removed { blocks } => {
                for block in blocks.iter() {
                    self.mirror.remove(&block);
                }
            }
            KvEventData::Cleared => self.mirror.clear(),
        }
    }
}

/// Changes that build the cache from nothing: parents before their children, siblings in a fixed order.
fn snapshot(mirror: &FxHashMap<SequenceHash, Mirrored>) -> Vec<KvEventData> {
    let mut children: FxHashMap<Option<SequenceHash>, Vec<SequenceHash>> = FxHashMap::default();
    for (hash, mirrored) in mirror {
        // A block whose parent was evicted cannot be placed by one who starts from the snapshot; it is left out.
        children.entry(mirrored.parent).or_default().push(*hash);
    }
    let mut changes = vec![KvEventData::Cleared];
    let mut open: Vec<Option<SequenceHash>> = vec![None];
    while let Some(parent) = open.pop() {
        let mut hashes = children.remove(&parent).unwrap_or_default();
        hashes.sort_unstable();
        for hash in hashes {
            if let Some(mirrored) = mirror.get(&hash) {
                changes.push(KvEventData::Stored { parent, blocks: [mirrored.block.clone()].into_iter().collect() });
                open.push(Some(hash));
            }
        }
    }
    changes
}

fn tokens_in(data: &KvEventData) -> usize {
    match data {
        KvEventData::Stored { blocks, .. } => blocks.iter().map(|block| block.token_ids.len()).sum(),
        KvEventData::Removed { .. } | KvEventData::Cleared => 0,
    }
}
