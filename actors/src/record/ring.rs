//! One ring: the last entries of one writer, in order. Pure.

use super::entry::{Part, What};
use super::words::{self, WORDS, Words};
use std::collections::VecDeque;

/// An entry as it is kept.
#[derive(Clone, Copy, Debug)]
struct Kept {
    seq: u64,
    words: Words,
}

/// A copy of an entry.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) seq: u64,
    pub(super) words: Words,
    /// What it says, where the words do not.
    pub(super) whole: Option<What>,
}

/// At most `size` entries; sequences rise.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Vec<Kept>,
    /// What those say that have no form as words, by their numbers.
    whole: VecDeque<(u64, What)>,
    /// Where the next one goes, once it is full.
    next: usize,
    size: usize,
}

/// Room for so many entries is taken at once. The system gives the memory as it fills.
const AT_FIRST: usize = 1 << 16;

impl Ring {
    pub(super) fn new(size: usize) -> Self {
        Ring {
            entries: Vec::with_capacity(size.min(AT_FIRST)),
            whole: VecDeque::new(),
            next: 0,
            size: size.max(1),
        }
    }

    /// Puts an entry in, over the oldest one if it is full.
    #[inline]
    pub(super) fn push(&mut self, seq: u64, words: &Words) {
        self.put(seq, |slot| *slot = *words);
    }

    /// The same, with the words written in place.
    #[inline]
    pub(super) fn put(&mut self, seq: u64, write: impl FnOnce(&mut Words)) {
        if self.entries.len() < self.size {
            let mut words = [0; WORDS];
            write(&mut words);
            self.entries.push(Kept { seq, words });
        } else if let Some(slot) = self.entries.get_mut(self.next) {
            if words::is_whole(&slot.words) {
                self.whole.pop_front();
            }
            slot.seq = seq;
            write(&mut slot.words);
            self.next += 1;
            if self.next == self.size {
                self.next = 0;
            }
        }
    }

    /// Puts one in that has no form as words, written at `at` nanoseconds by `part`.
    pub(super) fn push_whole(&mut self, seq: u64, at: u64, part: Part, what: What) {
        let mut words = words::whole(part);
        words[0] = at;
        self.push(seq, &words);
        self.whole.push_back((seq, what));
    }

    /// Copies entries with `since <= seq < below` into `out`, oldest first and `most` of them.
    pub(super) fn copy(&self, since: u64, below: u64, most: usize, out: &mut Vec<Found>) {
        let (new, old) = self.entries.split_at(self.next);
        let mut left = most;
        for half in [old, new] {
            let first = half.partition_point(|k| k.seq < since);
            let end = half.partition_point(|k| k.seq < below);
            let found = half.get(first..end).unwrap_or_default();
            let found = &found[..found.len().min(left)];
            left -= found.len();
            out.extend(found.iter().map(|kept| self.found(kept)));
        }
    }

    fn found(&self, kept: &Kept) -> Found {
        let whole = words::is_whole(&kept.words).then(|| {
            let at = self.whole.binary_search_by_key(&kept.seq, |(seq, _)| *seq);
            at.ok().and_then(|at| self.whole.get(at))
        });
        Found {
            seq: kept.seq,
            words: kept.words,
            whole: whole.flatten().map(|(_, what)| what.clone()),
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        assert!(self.whole.len() <= self.entries.len());
        self.entries.len()
    }
}
