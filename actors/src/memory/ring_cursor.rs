//! One direction of a ring: two cursors, and two flags that say who sleeps.
//!
//! ```text
//!    head (reader's)         tail (writer's)          free-running; tail - head bytes wait
//!      ▼                       ▼
//!   ───┴──── bytes to read ────┴──── free ──── … capacity
//!
//!   writer: bytes · tail := t (release) · FENCE · reader_sleeps? take it, ring
//!   reader: reader_sleeps := 1          · FENCE · look again     · sleep until rung
//! ```
//!
//! Rules:
//! - Each side keeps its own cursor for itself, and never reads back what it has published.
//! - The other side may be wrong or hostile. Its cursor must not go back, and must not go beyond
//!   what there is; anything else is its fault, and an error. What is counted here is then within
//!   the capacity, whatever the shared words say.
//! - Who is about to sleep says so, and then looks again. The two fences order flag and cursor on
//!   both sides: either the one that publishes sees the flag, or the one that sleeps sees the cursor.
//! - A flag is only ever swapped, so that all its changes are in one order; who takes it rings. Each
//!   time that somebody sleeps it is rung for once.
//! - A flag that is set for nothing costs a ring for nothing, and no more.
//!
//! Orderings: a cursor is released by its owner and acquired by the other: bytes are written before
//! the tail tells of them, and read before the head gives them up. The flags carry no data, the
//! fences alone order them.

use super::sync::{AtomicU32, AtomicU64, Ordering, fence};
use std::fmt;

/// What the other side's cursor says cannot be: it is at fault, and not to be talked to any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BadCursor {
    /// The writer's went back, or beyond what the ring can hold.
    Tail {
        /// What it says.
        said: u64,
        /// What the reader has read.
        head: u64,
        /// The last one that made sense.
        before: u64,
    },
    /// The reader's went back, or beyond what was written.
    Head {
        /// What it says.
        said: u64,
        /// What the writer has written.
        tail: u64,
        /// The last one that made sense.
        before: u64,
    },
}

impl fmt::Display for BadCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadCursor::Tail { said, head, before } => write!(
                f,
                "the peer says that it has written {said} bytes to the ring, after {before}, of \
                 which {head} are read"
            ),
            BadCursor::Head { said, tail, before } => write!(
                f,
                "the peer says that it has read {said} bytes of the ring, after {before}, and \
                 {tail} were written"
            ),
        }
    }
}

impl std::error::Error for BadCursor {}

/// What one side has published, and whether the other one sleeps until it publishes more. The flag is
/// on the line of the cursor that it waits for: who publishes has that line at hand.
#[repr(C, align(128))]
struct Published {
    cursor: AtomicU64,
    awaited: AtomicU32,
}

impl Published {
    /// More is to be seen. Says whether the other side sleeps and has to be rung; it is to be rung
    /// then, since nobody else will be told.
    fn tell(&self, cursor: u64) -> bool {
        // Release: what was done with the bytes happens before the other side sees this.
        self.cursor.store(cursor, Ordering::Release);
        // Before the flag is looked at. Pairs with the fence in `await_more`.
        fence(Ordering::SeqCst);
        self.awaited.load(Ordering::Relaxed) != 0 && self.awaited.swap(0, Ordering::Relaxed) != 0
    }

    /// Says that whoever is told here is about to sleep.
    fn await_more(&self) {
        self.awaited.swap(1, Ordering::Relaxed);
        // Before the cursor is looked at. Pairs with the fence in `tell`.
        fence(Ordering::SeqCst);
    }

    fn awake(&self) {
        self.awaited.swap(0, Ordering::Relaxed);
    }
}

/// The words of one direction, in memory that both sides map. All zero: nothing was written, nobody
/// sleeps.
#[repr(C)]
pub(crate) struct Words {
    tail: Published,
    head: Published,
}

#[cfg(test)]
impl Words {
    pub(crate) fn new() -> Self {
        let none = || Published {
            cursor: AtomicU64::new(0),
            awaited: AtomicU32::new(0),
        };
        Words {
            tail: none(),
            head: none(),
        }
    }

    /// What a peer at fault may say.
    pub(crate) fn forge(&self, tail: u64, head: u64) {
        self.tail.cursor.store(tail, Ordering::Relaxed);
        self.head.cursor.store(head, Ordering::Relaxed);
    }
}

/// The writing side's own account.
#[derive(Debug)]
pub(crate) struct Producer {
    capacity: u64,
    tail: u64,
    /// The last head that made sense.
    head: u64,
    /// Said that it sleeps.
    awaits: bool,
}

impl Producer {
    /// Of a new ring of so many bytes.
    pub(crate) fn new(capacity: u64) -> Self {
        Producer {
            capacity,
            tail: 0,
            head: 0,
            awaits: false,
        }
    }

    /// Where the next byte goes, counted from the ring's beginning.
    pub(crate) fn at(&self) -> u64 {
        self.tail
    }

    /// How many bytes fit, at most the capacity; the other side's word is asked for only if it is
    /// not known that `want` do.
    ///
    /// # Errors
    /// The peer's cursor is wrong.
    pub(crate) fn free(&mut self, words: &Words, want: u64) -> Result<u64, BadCursor> {
        let held = self.tail.wrapping_sub(self.head);
        if self.capacity - held >= want {
            return Ok(self.capacity - held);
        }
        // Acquire: the reader has done with those bytes.
        let said = words.head.cursor.load(Ordering::Acquire);
        let left = self.tail.wrapping_sub(said);
        if left > held {
            return Err(BadCursor::Head {
                said,
                tail: self.tail,
                before: self.head,
            });
        }
        self.head = said;
        Ok(self.capacity - left)
    }

    /// `n` more bytes are there to be read; at most as many as were free. Says whether the reader
    /// sleeps: it is to be rung then.
    pub(crate) fn publish(&mut self, words: &Words, n: u64) -> bool {
        self.tail = self.tail.wrapping_add(n);
        words.tail.tell(self.tail)
    }

    /// Whether there is room, or the peer's cursor is wrong: one load.
    pub(crate) fn look(&self, words: &Words) -> bool {
        self.tail
            .wrapping_sub(words.head.cursor.load(Ordering::Relaxed))
            != self.capacity
    }

    /// Says that this side is about to sleep until there is room. It must [`Producer::look`] again.
    pub(crate) fn announce(&mut self, words: &Words) {
        words.head.await_more();
        self.awaits = true;
    }

    /// This side does not sleep.
    pub(crate) fn awake(&mut self, words: &Words) {
        if std::mem::take(&mut self.awaits) {
            words.head.awake();
        }
    }
}

/// The reading side's own account.
#[derive(Debug)]
pub(crate) struct Consumer {
    capacity: u64,
    head: u64,
    /// The last tail that made sense.
    tail: u64,
    /// Said that it sleeps.
    awaits: bool,
}

impl Consumer {
    /// Of a new ring of so many bytes.
    pub(crate) fn new(capacity: u64) -> Self {
        Consumer {
            capacity,
            head: 0,
            tail: 0,
            awaits: false,
        }
    }

    /// Where the next byte is, counted from the ring's beginning.
    pub(crate) fn at(&self) -> u64 {
        self.head
    }

    /// How many bytes are there, at most the capacity.
    ///
    /// # Errors
    /// The peer's cursor is wrong.
    pub(crate) fn available(&mut self, words: &Words) -> Result<u64, BadCursor> {
        // Acquire: the bytes were written before.
        let said = words.tail.cursor.load(Ordering::Acquire);
        let there = said.wrapping_sub(self.head);
        if there > self.capacity || there < self.tail.wrapping_sub(self.head) {
            return Err(BadCursor::Tail {
                said,
                head: self.head,
                before: self.tail,
            });
        }
        self.tail = said;
        Ok(there)
    }

    /// `n` bytes were read, at most as many as were available. Says whether the writer sleeps: it is
    /// to be rung then.
    pub(crate) fn consume(&mut self, words: &Words, n: u64) -> bool {
        self.head = self.head.wrapping_add(n);
        words.head.tell(self.head)
    }

    /// Whether there is something, or the peer's cursor is wrong: one load.
    pub(crate) fn look(&self, words: &Words) -> bool {
        words.tail.cursor.load(Ordering::Relaxed) != self.head
    }

    /// Says that this side is about to sleep until there is something. It must [`Consumer::look`]
    /// again.
    pub(crate) fn announce(&mut self, words: &Words) {
        words.tail.await_more();
        self.awaits = true;
    }

    /// This side does not sleep.
    pub(crate) fn awake(&mut self, words: &Words) {
        if std::mem::take(&mut self.awaits) {
            words.tail.awake();
        }
    }
}
