//! All rings of a node, who writes into them, and how they are read.

use super::entry::{Entry, Part, PeerIs, What};
use super::ring::{Kept, Ring};
use crate::ids::{Incarnation, PeerRef};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Names of peers that are remembered; the oldest go first.
const MOST_NAMES: usize = 8_192;
/// Entries that are copied with one look at a ring.
const AT_ONCE: usize = 64;

/// The flight recorder of a node. Clones are the same.
#[derive(Clone, Debug)]
pub struct Recorder(Arc<Rings>);

#[derive(Debug)]
struct Rings {
    /// One for each shard and one for all else; none if nothing is recorded.
    rings: Vec<Mutex<Ring>>,
    /// Number of the next entry. Taken with the ring's lock held.
    next: AtomicU64,
    started: Instant,
    size: usize,
    names: Mutex<BTreeMap<PeerRef, Arc<str>>>,
}

/// What [`Recorder::read`] gives.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Records {
    /// In the order of their numbers.
    pub entries: Vec<Entry>,
    /// Entries between `since` and `next` that were overwritten before they were read.
    pub lost: u64,
    /// Where to go on.
    pub next: u64,
}

/// The writer of one ring.
#[derive(Clone, Debug)]
pub struct Scribe {
    recorder: Recorder,
    ring: usize,
    part: Part,
}

impl Recorder {
    /// For a node with so many shards; each ring keeps `size` entries. With 0 nothing is recorded.
    pub(crate) fn new(shards: usize, size: usize, started: Instant) -> Recorder {
        let rings = if size == 0 { 0 } else { shards + 1 };
        Recorder(Arc::new(Rings {
            rings: (0..rings).map(|_| Mutex::new(Ring::new(size))).collect(),
            next: AtomicU64::new(0),
            started,
            size,
            names: Mutex::default(),
        }))
    }

    /// Entries that each ring keeps; 0 if nothing is recorded.
    pub fn size(&self) -> usize {
        self.0.size
    }

    /// The number that the next entry gets. What happens from now on has this number or a higher one.
    pub fn next_seq(&self) -> u64 {
        self.0.next.load(Ordering::Acquire)
    }

    /// Entries from number `since` on, `max` of them at most, oldest first. Asks no thread of the node
    /// and waits for none of them.
    ///
    /// Who goes on with `next` each time reads everything once, or knows how much was lost. With a
    /// `since` that has not happened yet there are no entries, and `next` is `since`.
    pub fn read(&self, since: u64, max: usize) -> Records {
        let below = self.settled();
        let mut found = Vec::new();
        for ring in &self.0.rings {
            let mut from = since;
            let mut left = max;
            while left > 0 {
                let before = found.len();
                // A writer waits for no more than this.
                lock(ring).copy(from, below, left.min(AT_ONCE), &mut found);
                let got = found.len() - before;
                let Some(last) = found.last().filter(|_| got > 0) else {
                    break;
                };
                (from, left) = (last.seq + 1, left - got);
            }
        }
        found.sort_unstable_by_key(|kept| kept.seq);
        found.truncate(max);
        let next = match found.last() {
            // There may be more than was taken, of each ring.
            Some(last) if found.len() == max => last.seq + 1,
            _ if max == 0 => since,
            _ => below.max(since),
        };
        let lost = next
            .saturating_sub(since)
            .saturating_sub(found.len() as u64);
        let names = lock(&self.0.names);
        let entries = found.into_iter().map(|kept| {
            let peer = kept.what.peer().and_then(|peer| names.get(&peer).cloned());
            Entry {
                seq: kept.seq,
                at: Duration::from_micros(kept.at),
                part: kept.part,
                peer,
                what: kept.what,
            }
        });
        Records {
            entries: entries.collect(),
            lost,
            next,
        }
    }

    /// Everything that is there, oldest first; `lost` is what was overwritten since the node's start.
    pub fn read_all(&self) -> Records {
        self.read(0, usize::MAX)
    }

    /// A number below which every entry is in its ring.
    fn settled(&self) -> u64 {
        // Numbers are taken with a ring's lock held: with all of them held, none is on its way.
        let held: Vec<_> = self.0.rings.iter().map(lock).collect();
        let next = self.next_seq();
        drop(held);
        next
    }

    /// The writer for a part whose ring is that of shard `shard`.
    pub(crate) fn shard(&self, shard: usize) -> Scribe {
        let last = self.0.rings.len().saturating_sub(1);
        Scribe {
            recorder: self.clone(),
            ring: shard.min(last),
            part: Part::Shard(u16::try_from(shard).unwrap_or(u16::MAX)),
        }
    }

    /// The writer for anything that is not on a shard's thread.
    pub(crate) fn part(&self, part: Part) -> Scribe {
        Scribe {
            recorder: self.clone(),
            ring: self.0.rings.len().saturating_sub(1),
            part,
        }
    }

    /// From now on this peer has a name.
    pub(crate) fn know(&self, peer: PeerRef, name: &str) {
        let mut names = lock(&self.0.names);
        names.insert(peer, name.into());
        if names.len() > MOST_NAMES {
            names.pop_first();
        }
    }
}

impl Scribe {
    /// Writes an entry, made only if anything is recorded.
    #[inline]
    pub(crate) fn write(&self, what: impl FnOnce() -> What) {
        if let Some(ring) = self.recorder.0.rings.get(self.ring) {
            self.put(ring, what());
        }
    }

    /// Whether anything is recorded.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        !self.recorder.0.rings.is_empty()
    }

    fn put(&self, ring: &Mutex<Ring>, what: What) {
        let rings = &*self.recorder.0;
        let at = u64::try_from(rings.started.elapsed().as_micros()).unwrap_or(u64::MAX);
        let mut ring = lock(ring);
        let overwritten = ring.push(Kept {
            seq: rings.next.fetch_add(1, Ordering::AcqRel),
            at,
            part: self.part,
            what,
        });
        drop(ring);
        // Its texts are freed without the lock.
        drop(overwritten);
    }

    /// A peer's session is so now.
    pub(crate) fn peer(&self, peer: PeerRef, incarnation: Incarnation, is: PeerIs, why: &str) {
        self.write(|| What::Peer {
            peer,
            incarnation,
            is,
            why: why.into(),
        });
    }

    /// Something that needs no more than a sentence.
    pub(crate) fn note(&self, note: &'static str) {
        self.write(|| What::Note(note.into()));
    }
}

/// Nothing panics with a lock of this module held; what was written before is whole anyway.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
