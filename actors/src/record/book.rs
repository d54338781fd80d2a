//! All rings of a node and the numbers of its entries: what is done with the one lock held. Pure.
//!
//! Entries get their numbers here, not when they are written: those of a shard in the order in which it
//! wrote them, those of several by the time that they carry. A shard's time is read when a turn begins,
//! which is after whatever the turn answers was written: so that a cause stands before its effect.

use super::entry::{Part, What};
use super::ring::{Found, Ring};
use super::words::Words;

/// What a ring is filled from.
pub(super) trait Source {
    /// How many entries wait.
    fn waiting(&self) -> u64;
    /// Reads one of those, counted from the oldest.
    fn peek(&self, ahead: u64, entry: &mut Words);
    /// When it was written.
    fn time(&self, ahead: u64) -> u64;
    /// So many of the oldest have been taken.
    fn taken(&self, count: u64);
}

/// The rings.
#[derive(Debug)]
pub(super) struct Book {
    /// One for each shard and one for all else; none if nothing is recorded.
    rings: Vec<Ring>,
    /// Number of the next entry.
    next: u64,
    /// Of each source: how many entries wait, and how many of them were taken. Kept for its memory.
    waits: Vec<Waits>,
}

#[derive(Clone, Copy, Debug)]
struct Waits {
    /// Which ring they go to.
    ring: usize,
    waiting: u64,
    taken: u64,
    /// When the first one was written that was not taken.
    first: u64,
}

impl Book {
    pub(super) fn new(rings: usize, size: usize) -> Book {
        Book {
            rings: (0..rings).map(|_| Ring::new(size)).collect(),
            next: 0,
            waits: Vec::with_capacity(rings),
        }
    }

    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Takes in what waits in the sources, of which the nth belongs to the nth ring.
    pub(super) fn fill<S: Source>(&mut self, sources: &[S]) {
        self.waits.clear();
        for (ring, source) in sources.iter().enumerate() {
            let waiting = source.waiting();
            if waiting > 0 {
                self.waits.push(Waits {
                    ring,
                    waiting,
                    taken: 0,
                    first: source.time(0),
                });
            }
        }
        while let Some(at) = self.earliest() {
            let others = (self.waits.iter().enumerate())
                .filter(|(i, w)| *i != at && w.taken < w.waiting)
                .map(|(_, w)| w.first);
            let until = others.min();
            self.take(at, until, sources);
        }
        for waits in &self.waits {
            if let Some(source) = sources.get(waits.ring) {
                source.taken(waits.taken);
            }
        }
    }

    /// Which source has the oldest entry.
    fn earliest(&self) -> Option<usize> {
        let there = self.waits.iter().enumerate();
        let there = there.filter(|(_, w)| w.taken < w.waiting);
        there.min_by_key(|(_, w)| w.first).map(|(at, _)| at)
    }

    /// Takes from a source what is not later than `until`, and one in any case.
    fn take<S: Source>(&mut self, at: usize, until: Option<u64>, sources: &[S]) {
        let Some(waits) = self.waits.get_mut(at) else {
            return;
        };
        let Some((ring, source)) = self.rings.get_mut(waits.ring).zip(sources.get(waits.ring))
        else {
            waits.taken = waits.waiting;
            return;
        };
        let (mut at, mut next) = (waits.taken, self.next);
        loop {
            ring.put(next, |words| source.peek(at, words));
            (at, next) = (at + 1, next + 1);
            if at >= waits.waiting {
                break;
            }
            if let Some(until) = until {
                waits.first = source.time(at);
                if waits.first > until {
                    break;
                }
            }
        }
        (waits.taken, self.next) = (at, next);
    }

    /// Puts an entry into a ring.
    pub(super) fn push(&mut self, ring: usize, words: &Words) {
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.push(self.next, words);
            self.next += 1;
        }
    }

    /// Puts an entry into a ring that has no form as words.
    pub(super) fn push_whole(&mut self, ring: usize, at: u64, part: Part, what: What) {
        if let Some(ring) = self.rings.get_mut(ring) {
            ring.push_whole(self.next, at, part, what);
            self.next += 1;
        }
    }

    /// Copies entries of a ring, as [`Ring::copy`] does.
    pub(super) fn copy(&self, ring: usize, range: (u64, u64), most: usize, out: &mut Vec<Found>) {
        if let Some(ring) = self.rings.get(ring) {
            ring.copy(range.0, range.1, most, out);
        }
    }
}
