//! Two rings of bytes in memory that two processes share, one for each direction.
//!
//! ```text
//!   0        256       512            4096            +256 KiB          +512 KiB
//!  ┌────────┬─────────┬──────────────┬───────────────┬────────────────┐
//!  │ words  │ words   │              │ bytes         │ bytes          │
//!  │ low▶hi │ hi▶low  │              │ low▶hi        │ hi▶low         │
//!  └────────┴─────────┴──────────────┴───────────────┴────────────────┘
//! ```
//!
//! Which bytes may be touched, and who is to be woken, is decided in `ring_cursor`. Here they are
//! copied. Rules:
//! - Every address is the index of a cursor modulo the length, in a range that `ring_cursor` allowed.
//!   The other side's words never make an address.
//! - Bytes are copied out, with volatile loads, before anybody looks at them: the other side may
//!   write them again at any time. No reference to them exists.
#![allow(unsafe_code)] // Bytes and words in shared memory, by raw pointers.

use super::ring_cursor::{BadCursor, Consumer, Producer, Words};
use super::shared::SharedMemory;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// Bytes that wait in one direction, at most: a batch of some thousand frames, and no more than
/// stays in a core's second cache.
pub(crate) const RING_BYTES: usize = 256 << 10;
/// Where the bytes begin.
const HEADER: usize = 4096;

const _: () = assert!(size_of::<Words>() == 256 && align_of::<Words>() == 128);
const _: () = assert!(RING_BYTES.is_power_of_two());

/// Which of the two nodes this is: the one with the lower incarnation, or the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RingSide {
    Lower,
    Higher,
}

/// Why a ring cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RingError {
    /// The memory is too small.
    #[error("a ring needs {need} bytes, and its memory has {len}: who made it is at fault")]
    TooSmall { len: usize, need: usize },
    /// The memory does not begin where a cache line does.
    #[error("the ring's memory is not aligned to 128 bytes")]
    Unaligned,
    /// The other side's cursor is wrong.
    #[error("{0}; the peer is at fault, and this connection is given up")]
    Peer(#[from] BadCursor),
}

/// A ring that nobody has used yet. Its memory is all zero.
pub(crate) struct RingMemory {
    memory: SharedMemory,
    side: RingSide,
}

impl fmt::Debug for RingMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingMemory")
            .field("side", &self.side)
            .finish_non_exhaustive()
    }
}

impl RingMemory {
    /// How much memory both directions need.
    pub(crate) const fn bytes() -> usize {
        HEADER + 2 * RING_BYTES
    }

    /// One side's view of memory that was made for one connection and is still all zero.
    ///
    /// # Errors
    /// The memory does not suit.
    pub(crate) fn new(memory: SharedMemory, side: RingSide) -> Result<RingMemory, RingError> {
        let (len, need) = (memory.len(), RingMemory::bytes());
        if len < need {
            return Err(RingError::TooSmall { len, need });
        }
        if memory.start().cast::<Words>().is_aligned() {
            Ok(RingMemory { memory, side })
        } else {
            Err(RingError::Unaligned)
        }
    }

    /// The two halves of this side. Once only, so that each cursor has one owner.
    pub(crate) fn split(self) -> (RingWriter, RingReader) {
        let memory = Arc::new(self.memory);
        let (out, inward) = match self.side {
            RingSide::Lower => (0, 1),
            RingSide::Higher => (1, 0),
        };
        let writer = RingWriter {
            at: Direction::new(&memory, out),
            producer: Producer::new(RING_BYTES as u64),
        };
        let reader = RingReader {
            at: Direction::new(&memory, inward),
            consumer: Consumer::new(RING_BYTES as u64),
        };
        (writer, reader)
    }
}

/// Where one direction's words and bytes are.
struct Direction {
    words: NonNull<Words>,
    bytes: NonNull<u8>,
    /// Keeps them mapped.
    _memory: Arc<SharedMemory>,
}

impl Direction {
    fn new(memory: &Arc<SharedMemory>, which: usize) -> Direction {
        // SAFETY: the memory is at least `RingMemory::bytes()` long, and `which` is 0 or 1.
        let words = unsafe { memory.start().add(which * size_of::<Words>()) };
        // SAFETY: as above.
        let bytes = unsafe { memory.start().add(HEADER + which * RING_BYTES) };
        Direction {
            words: words.cast(),
            bytes,
            _memory: Arc::clone(memory),
        }
    }

    fn words(&self) -> &Words {
        // SAFETY: aligned and within the memory (`RingMemory::new`), which `_memory` keeps; atomics
        // only, for which every value is one.
        unsafe { self.words.as_ref() }
    }

    /// The two parts that `len` bytes from `cursor` on are in: offset and length.
    fn parts(cursor: u64, len: usize) -> [(usize, usize); 2] {
        let at = (cursor % RING_BYTES as u64) as usize; // less than RING_BYTES
        let first = len.min(RING_BYTES - at);
        [(at, first), (0, (len - first).min(RING_BYTES))]
    }
}

/// The writing half of one side. Belongs to one thread.
pub(crate) struct RingWriter {
    at: Direction,
    producer: Producer,
}

/// How far a write or a read came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Moved {
    /// Bytes.
    pub(crate) bytes: usize,
    /// The other side sleeps, and is to be rung.
    pub(crate) ring: bool,
}

impl RingWriter {
    /// Copies in as many of these bytes as fit.
    ///
    /// # Errors
    /// The peer's cursor is wrong; nothing was written.
    pub(crate) fn write(&mut self, bytes: &[u8]) -> Result<Moved, RingError> {
        let free = self.producer.free(self.at.words(), bytes.len() as u64)?;
        let n = bytes.len().min(free as usize); // at most RING_BYTES
        if n == 0 {
            return Ok(Moved::default());
        }
        let mut done = 0;
        for (at, len) in Direction::parts(self.producer.at(), n) {
            // SAFETY: `at` is less than the direction's length.
            let to = unsafe { self.at.bytes.add(at) };
            let from = &bytes[done..done + len];
            // SAFETY: `len` bytes from `at` on are within the direction, and free: the reader, if it
            // keeps to the rules, does not touch them; no reference to them exists.
            unsafe { to.as_ptr().copy_from_nonoverlapping(from.as_ptr(), len) };
            done += len;
        }
        let ring = self.producer.publish(self.at.words(), n as u64);
        Ok(Moved { bytes: n, ring })
    }

    /// Whether a write would do or find something: there is room, or the peer is at fault.
    pub(crate) fn look(&self) -> bool {
        self.producer.look(self.at.words())
    }

    /// Says that this side is about to sleep until there is room. False if there is something to do
    /// already: do not sleep.
    pub(crate) fn arm(&mut self) -> bool {
        self.producer.announce(self.at.words());
        if self.look() {
            self.awake();
            return false;
        }
        true
    }

    /// This side does not sleep.
    pub(crate) fn awake(&mut self) {
        self.producer.awake(self.at.words());
    }
}

/// The reading half of one side. Belongs to one thread.
pub(crate) struct RingReader {
    at: Direction,
    consumer: Consumer,
}

impl RingReader {
    /// Copies out what is there, as much as `into` takes.
    ///
    /// # Errors
    /// The peer's cursor is wrong; nothing was read.
    pub(crate) fn read(&mut self, into: &mut [u8]) -> Result<Moved, RingError> {
        let there = self.consumer.available(self.at.words())?;
        let n = into.len().min(there as usize); // at most RING_BYTES
        if n == 0 {
            return Ok(Moved::default());
        }
        let mut done = 0;
        for (at, len) in Direction::parts(self.consumer.at(), n) {
            // SAFETY: `at` is less than the direction's length.
            let from = unsafe { self.at.bytes.add(at) };
            // SAFETY: `len` bytes from there are within the direction.
            unsafe { load(from.as_ptr(), &mut into[done..done + len]) };
            done += len;
        }
        let ring = self.consumer.consume(self.at.words(), n as u64);
        Ok(Moved { bytes: n, ring })
    }

    /// Whether a read would give or find something: there are bytes, or the peer is at fault.
    pub(crate) fn look(&self) -> bool {
        self.consumer.look(self.at.words())
    }

    /// Says that this side is about to sleep until there is something. False if there is already: do
    /// not sleep.
    pub(crate) fn arm(&mut self) -> bool {
        self.consumer.announce(self.at.words());
        if self.look() {
            self.awake();
            return false;
        }
        true
    }

    /// This side does not sleep.
    pub(crate) fn awake(&mut self) {
        self.consumer.awake(self.at.words());
    }
}

/// Volatile loads, eight bytes at a time where they are aligned.
///
/// # Safety
///
/// `from` is valid for reads of as many bytes as `into` has.
unsafe fn load(from: *const u8, into: &mut [u8]) {
    let mut at = 0;
    while at < into.len() {
        // SAFETY: `at` is less than the length of the range.
        let next = unsafe { from.add(at) };
        if next.addr().is_multiple_of(8) && into.len() - at >= 8 {
            // SAFETY: aligned, and eight bytes of the range are left.
            let word = unsafe { next.cast::<u64>().read_volatile() };
            into[at..at + 8].copy_from_slice(&word.to_ne_bytes());
            at += 8;
        } else {
            // SAFETY: within the range.
            into[at] = unsafe { next.read_volatile() };
            at += 1;
        }
    }
}
