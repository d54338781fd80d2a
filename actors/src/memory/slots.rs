//! A fixed number of gates, each with what its writers need, put there for the life of one claim.
//!
//! ```text
//!   Owner ──open──▶ slot { gate word, contents, link } ◀──enter── Entered (any number)
//!     │ close, try_finish                                  │ Drop: leave
//!     ▼                                                    ▼
//!   contents back, slot free                    last after close: ring the owner's bell
//!   (dropped instead: orphaned)                 last of an orphan: free the slot here
//! ```
//!
//! Why the contents can be lent as `&T` with no lock. Exactly one party may write the cell:
//! - the taker of a free slot, before `open`: nobody enters a vacant gate, nobody else has the slot;
//! - whoever finds the gate closed and empty: the one `Owner` in `try_finish` or `drop`, or, only
//!   after the `Owner` gave the slot up in the same word, the last writer to leave.
//!
//! Everybody else only reads it, and only while inside, or as the `Owner`, which is what keeps the
//! slot from being recycled. The gate word orders all of this (see `gate`).
//!
//! Forgetting an [`Entered`] or an [`Owner`] leaves the slot in use for ever: memory is kept, and
//! nothing becomes unsound.
#![allow(unsafe_code)] // The contents' cell: written by one party, read by those inside.

use super::free_list::{FreeList, MAX_SLOTS};
use super::gate::{Gate, Left, OpenRefused, Refused};
use super::sync::{Arc, AtomicU32, UnsafeCell, zeroed_slice};
use std::marker::PhantomData;

/// What a slot holds: it knows how to call its owner after it may be gone itself.
pub(crate) trait Occupant {
    /// Outlives the contents.
    type Bell;
    /// Taken while the contents are still pinned.
    fn bell(&self) -> Self::Bell;
    /// Rung once the gate is closed and empty; must not panic.
    fn ring(bell: Self::Bell, number: u64);
}

/// Why no slot was opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotOpened {
    /// Every slot is open or draining.
    Exhausted,
    /// The gate refused the number.
    Gate(OpenRefused),
}

pub(crate) struct Slots<T> {
    slots: Box<[Slot<T>]>,
    free: FreeList,
}

struct Slot<T> {
    gate: Gate,
    contents: UnsafeCell<Option<Box<T>>>,
    link: AtomicU32,
}

// SAFETY: contents move between threads (T: Send) and are read by several (T: Sync); who may touch
// the cell when is said at the head of this module, and the gate word orders it.
unsafe impl<T: Send + Sync> Sync for Slot<T> {}

impl<T> Slot<T> {
    fn new() -> Self {
        Slot {
            gate: Gate::vacant(),
            contents: UnsafeCell::new(None),
            link: AtomicU32::new(0),
        }
    }
}

impl<T: Occupant> Slots<T> {
    /// At least 1 and at most [`MAX_SLOTS`] slots.
    pub(crate) fn new(slots: usize) -> Self {
        let slots = slots.clamp(1, MAX_SLOTS);
        Slots {
            // SAFETY: `Slot::new` is all zeros: atomics of 0, and `None`, which for
            // `Option<Box<T>>` is documented to be the null pointer.
            slots: unsafe { zeroed_slice(slots, Slot::new) },
            free: FreeList::new(slots),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Puts `contents` into a free slot and opens its gate.
    pub(crate) fn open(
        this: &Arc<Self>,
        number: u64,
        contents: Box<T>,
    ) -> Result<Owner<T>, (NotOpened, Box<T>)> {
        let Some(index) = this.free.take(|i| &this.slots[i as usize].link) else {
            return Err((NotOpened::Exhausted, contents));
        };
        let slot = &this.slots[index as usize];
        // SAFETY: the slot came from the free list, so it is ours alone, and its gate is vacant.
        slot.contents
            .with_mut(|cell| unsafe { *cell = Some(contents) });
        match slot.gate.open(number) {
            Ok(()) => Ok(Owner {
                slots: Arc::clone(this),
                index,
                number,
                over: false,
            }),
            Err(why) => {
                // SAFETY: the gate was not opened; the slot is still ours alone.
                let contents = unsafe { this.recycle(index) };
                match contents {
                    Some(contents) => Err((NotOpened::Gate(why), contents)),
                    None => unreachable!("the contents were put there above"),
                }
            }
        }
    }

    /// Lets a writer of claim `number` into slot `index`.
    pub(crate) fn enter(&self, index: u32, number: u64) -> Result<Entered<'_, T>, Refused> {
        let slot = self.slots.get(index as usize).ok_or(Refused::NoSuchSlot)?;
        slot.gate.enter(number)?;
        Ok(Entered {
            slots: self,
            index,
            number,
            on_this_thread: PhantomData,
        })
    }

    /// Lets a writer of claim `number` into slot `index`, to stay as long as a device works for it.
    pub(crate) fn stay(this: &Arc<Self>, index: u32, number: u64) -> Result<Staying<T>, Refused> {
        let slot = this.slots.get(index as usize).ok_or(Refused::NoSuchSlot)?;
        slot.gate.enter(number)?;
        Ok(Staying {
            slots: Arc::clone(this),
            index,
            number,
        })
    }

    /// Ends one writer's stay.
    ///
    /// # Safety
    ///
    /// The caller is inside the slot's gate with this number, and uses the contents no more.
    unsafe fn leave(&self, index: u32, number: u64) {
        let mut bell = None;
        let gate = &self.slots[index as usize].gate;
        // SAFETY: still inside, until the gate's word says otherwise.
        let contents = || unsafe { self.contents(index) };
        match gate.leave(number, || bell = Some(contents().bell())) {
            Left::Going => {}
            // This process alone writes the word, so it is a bug here.
            Left::Overwritten => debug_assert!(false, "left without entering"),
            Left::LastAfterClose => {
                if let Some(bell) = bell {
                    T::ring(bell, number);
                }
            }
            Left::LastOfOrphan => {
                // SAFETY: the gate is closed and empty, its owner gave it up, and only one leave
                // is the last.
                drop(unsafe { self.recycle(index) });
            }
        }
    }

    /// The contents of a slot that is open or draining.
    ///
    /// # Safety
    ///
    /// For as long as the result is used the caller is inside the slot's gate or its `Owner`.
    unsafe fn contents(&self, index: u32) -> &T {
        // SAFETY: pinned by the caller: whoever could take the contents away needs the gate to be
        // empty and the owner to be gone or to be doing it itself, by value.
        let contents = self.slots[index as usize]
            .contents
            .with(|cell| unsafe { &*cell });
        match contents {
            Some(contents) => contents,
            None => unreachable!("an open gate's slot has contents"),
        }
    }

    /// Takes the contents out and frees the slot.
    ///
    /// # Safety
    ///
    /// The caller alone owns the slot: its gate is vacant (or closed and empty), no `Owner` is left
    /// or the caller is consuming it, and nobody else comes to the same conclusion.
    unsafe fn recycle(&self, index: u32) -> Option<Box<T>> {
        let slot = &self.slots[index as usize];
        // SAFETY: owned alone, says the caller.
        let contents = slot.contents.with_mut(|cell| unsafe { (*cell).take() });
        self.free.give(index, &slot.link);
        contents
    }
}

/// The one owner of an open or draining slot. Move-only.
pub(crate) struct Owner<T: Occupant> {
    slots: Arc<Slots<T>>,
    index: u32,
    number: u64,
    over: bool,
}

impl<T: Occupant> Owner<T> {
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn contents(&self) -> &T {
        // SAFETY: this is the owner, borrowed for as long as the result.
        unsafe { self.slots.contents(self.index) }
    }

    /// Lets nobody in any more; says how many are still inside.
    pub(crate) fn close(&self) -> u16 {
        let inside = self.slots.slots[self.index as usize]
            .gate
            .close(self.number);
        // The stamp is the owner's until it is consumed, so this cannot be refused. If it were,
        // counting somebody as inside is the answer that keeps memory.
        debug_assert!(inside.is_ok(), "a gate lost its owner's stamp");
        inside.unwrap_or(1)
    }

    /// Ends the slot's use if the gate is closed and nobody is inside: every write of every writer
    /// happens before the return. Otherwise gives the owner back.
    pub(crate) fn try_finish(mut self) -> Result<Box<T>, Self> {
        if !self.slots.slots[self.index as usize]
            .gate
            .is_closed_and_empty(self.number)
        {
            return Err(self);
        }
        self.over = true;
        // SAFETY: closed and empty, seen with acquire. Only the owner or, after it orphaned the
        // slot, a last writer recycles; this is the owner, consumed here.
        let contents = unsafe { self.slots.recycle(self.index) };
        match contents {
            Some(contents) => Ok(contents),
            None => unreachable!("an owner's slot has contents"),
        }
    }
}

impl<T: Occupant> Drop for Owner<T> {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        if self.slots.slots[self.index as usize]
            .gate
            .orphan(self.number)
            == Ok(0)
        {
            // SAFETY: closed and orphaned in one step that found nobody inside, so no writer will
            // leave after it; the owner is going away here.
            drop(unsafe { self.slots.recycle(self.index) });
        }
    }
}

/// A writer inside a gate; it pins the slot's contents. It stays on its thread, so that it cannot
/// be held across an await.
pub(crate) struct Entered<'s, T: Occupant> {
    slots: &'s Slots<T>,
    index: u32,
    number: u64,
    on_this_thread: PhantomData<*const ()>,
}

impl<T: Occupant> Entered<'_, T> {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn contents(&self) -> &T {
        // SAFETY: inside the gate for as long as `self` lives.
        unsafe { self.slots.contents(self.index) }
    }
}

impl<T: Occupant> Drop for Entered<'_, T> {
    fn drop(&mut self) {
        // SAFETY: inside since `enter`, and this is the only leave.
        unsafe { self.slots.leave(self.index, self.number) };
    }
}

/// A writer that stays inside while a device works for it, on whatever thread. It pins the contents.
pub(crate) struct Staying<T: Occupant> {
    slots: Arc<Slots<T>>,
    index: u32,
    number: u64,
}

impl<T: Occupant> Staying<T> {
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn contents(&self) -> &T {
        // SAFETY: inside the gate for as long as `self` lives.
        unsafe { self.slots.contents(self.index) }
    }
}

impl<T: Occupant> Drop for Staying<T> {
    fn drop(&mut self) {
        // SAFETY: inside since `stay`, and this is the only leave.
        unsafe { self.slots.leave(self.index, self.number) };
    }
}
