//! One ring: the last entries of one writer, in order. Pure.

use super::entry::{Part, What};

/// An entry as it is kept.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) seq: u64,
    /// Microseconds since the node's start.
    pub(super) at: u64,
    pub(super) part: Part,
    pub(super) what: What,
}

/// At most `size` entries; sequences rise.
#[derive(Debug)]
pub(super) struct Ring {
    entries: Vec<Kept>,
    /// Where the next one goes, once it is full.
    next: usize,
    size: usize,
}

/// A ring takes memory as it fills, in steps of this many entries.
const FIRST: usize = 64;

impl Ring {
    pub(super) fn new(size: usize) -> Self {
        Ring {
            entries: Vec::with_capacity(size.min(FIRST)),
            next: 0,
            size: size.max(1),
        }
    }

    /// Puts an entry in; gives back the oldest one, if it is overwritten.
    pub(super) fn push(&mut self, kept: Kept) -> Option<Kept> {
        if self.entries.len() < self.size {
            self.entries.push(kept);
            return None;
        }
        let slot = self.entries.get_mut(self.next)?;
        self.next += 1;
        if self.next == self.size {
            self.next = 0;
        }
        Some(std::mem::replace(slot, kept))
    }

    /// Copies entries with `since <= seq < below` into `out`, oldest first and `most` of them.
    pub(super) fn copy(&self, since: u64, below: u64, most: usize, out: &mut Vec<Kept>) {
        let (new, old) = self.entries.split_at(self.next);
        let mut left = most;
        for half in [old, new] {
            let first = half.partition_point(|k| k.seq < since);
            let end = half.partition_point(|k| k.seq < below);
            let found = half.get(first..end).unwrap_or_default();
            let found = &found[..found.len().min(left)];
            left -= found.len();
            out.extend_from_slice(found);
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }
}
