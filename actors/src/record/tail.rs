//! Entries that a shard has written and nobody has taken yet: a queue of a few fixed places.
//!
//! ```text
//!   the shard ──▶ put ──▶ [ | | | | ] ──▶ take ──▶ whoever holds the book: a reader, or the shard
//!              to += 1                 from += 1    itself when there is no place left
//! ```
//!
//! Rules:
//! - One thread puts, and one at a time takes; both are the caller's to see to. Then an entry that is
//!   taken is whole, is taken once, and in order. (With more than one there would be entries made of two;
//!   no memory is at risk.)
//! - `to` is written by who puts alone, after the entry, and released; who takes acquires it. `from` the
//!   other way round, so that a place is written again only when its entry has been read.
//! - Neither waits for the other.

use super::sync::{AtomicU64, Ordering};

/// `PLACES` entries of `WORDS` words.
#[derive(Debug)]
pub(crate) struct Tail<const WORDS: usize, const PLACES: usize> {
    /// How many were put, ever.
    to: AtomicU64,
    /// What `from` was when it was last looked at. For who puts alone.
    seen: AtomicU64,
    places: [[AtomicU64; WORDS]; PLACES],
    /// How many were taken, ever.
    from: AtomicU64,
}

impl<const WORDS: usize, const PLACES: usize> Tail<WORDS, PLACES> {
    pub(crate) fn new() -> Self {
        Tail {
            to: AtomicU64::new(0),
            seen: AtomicU64::new(0),
            places: std::array::from_fn(|_| std::array::from_fn(|_| AtomicU64::new(0))),
            from: AtomicU64::new(0),
        }
    }

    /// Puts an entry in; false if there is no place.
    #[inline]
    pub(crate) fn put(&self, entry: &[u64; WORDS]) -> bool {
        let to = self.to.load(Ordering::Relaxed);
        if to - self.seen.load(Ordering::Relaxed) >= PLACES as u64 {
            let from = self.from.load(Ordering::Acquire);
            self.seen.store(from, Ordering::Relaxed);
            if to - from >= PLACES as u64 {
                return false;
            }
        }
        for (place, word) in self.place(to).iter().zip(entry) {
            place.store(*word, Ordering::Relaxed);
        }
        self.to.store(to + 1, Ordering::Release);
        true
    }

    /// How many there are to be taken: this many are whole.
    pub(crate) fn waiting(&self) -> u64 {
        let to = self.to.load(Ordering::Acquire);
        to - self.from.load(Ordering::Relaxed)
    }

    /// Reads the entry that `ahead` others are in front of; [`Tail::waiting`] said that there are more
    /// than that.
    #[inline]
    pub(crate) fn peek(&self, ahead: u64, entry: &mut [u64; WORDS]) {
        let from = self.from.load(Ordering::Relaxed);
        for (word, place) in entry.iter_mut().zip(self.place(from + ahead)) {
            *word = place.load(Ordering::Relaxed);
        }
    }

    /// Only its first word.
    #[inline]
    pub(crate) fn first(&self, ahead: u64) -> u64 {
        let from = self.from.load(Ordering::Relaxed);
        let first = self.place(from + ahead).first();
        first.map_or(0, |word| word.load(Ordering::Relaxed))
    }

    /// So many have been read: their places are free.
    pub(crate) fn taken(&self, count: u64) {
        let from = self.from.load(Ordering::Relaxed);
        self.from.store(from + count, Ordering::Release);
    }

    #[inline]
    fn place(&self, no: u64) -> &[AtomicU64; WORDS] {
        &self.places[(no % PLACES as u64) as usize]
    }
}
