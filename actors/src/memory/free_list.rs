//! Which slots of a fixed table are free: those given back, newest first, then those never used.
//!
//! ```text
//!   head: [ tag:40 | index+1:24 ] ──▶ link(index) ──▶ link ──▶ 0        unused: untouched ..slots
//! ```
//!
//! Rules: an index is out once, to whoever took it, until it is given back. The tag counts what
//! was given back: a taker that read an old link fails its compare-and-swap even if the same index
//! is on top again (ABA), since for that it was given back, unless that happened 2^40 times. The links live in the
//! slots, as atomics: a taker that lost its race may read the link of a slot that is in use.

use super::sync::{AtomicU32, AtomicU64, Ordering};

const INDEX_BITS: u32 = 24;
const INDEX: u64 = (1 << INDEX_BITS) - 1;
const TAG_ONE: u64 = 1 << INDEX_BITS;

/// The most slots one list can manage.
pub(crate) const MAX_SLOTS: usize = INDEX as usize;

pub(crate) struct FreeList {
    head: AtomicU64,
    unused: AtomicU32,
    slots: u32,
}

impl FreeList {
    /// All of `slots` are free; at most [`MAX_SLOTS`].
    pub(crate) fn new(slots: usize) -> Self {
        FreeList {
            head: AtomicU64::new(0),
            unused: AtomicU32::new(0),
            slots: slots.min(MAX_SLOTS) as u32,
        }
    }

    /// Takes a free index; `None` if all are out. `link` finds the link of an index.
    pub(crate) fn take<'a>(&self, link: impl Fn(u32) -> &'a AtomicU32) -> Option<u32> {
        // Acquire, here and on failure: pairs with `give` (all changes of the head are
        // read-modify-writes, so any later head continues its release sequence). The taker sees
        // the link, and the slot as its last owner left it.
        let mut head = self.head.load(Ordering::Acquire);
        while head & INDEX != 0 {
            let index = ((head & INDEX) - 1) as u32;
            let next = u64::from(link(index).load(Ordering::Relaxed));
            let new = (head & !INDEX) | next;
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::AcqRel, Ordering::Acquire)
            {
                Ok(_) => return Some(index),
                Err(now) => head = now,
            }
        }
        // Relaxed: nobody has ever written to an unused slot.
        let mut unused = self.unused.load(Ordering::Relaxed);
        while unused < self.slots {
            match self.unused.compare_exchange_weak(
                unused,
                unused + 1,
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(unused),
                Err(now) => unused = now,
            }
        }
        None
    }

    /// Gives back an index that [`FreeList::take`] handed out. The caller owns it until here.
    pub(crate) fn give(&self, index: u32, link: &AtomicU32) {
        let mut head = self.head.load(Ordering::Relaxed);
        loop {
            link.store((head & INDEX) as u32, Ordering::Relaxed);
            let new = (head & !INDEX).wrapping_add(TAG_ONE) | (u64::from(index) + 1);
            // Release: the link, and all that the owner did with the slot, before the next taker.
            match self
                .head
                .compare_exchange_weak(head, new, Ordering::Release, Ordering::Relaxed)
            {
                Ok(_) => return,
                Err(now) => head = now,
            }
        }
    }
}
