//! The gate word: through it passes every write to a claim's pages.
//!
//! ```text
//!   bit 63    bit 62     61..48          47..0
//!  ┌────────┬──────────┬───────────────┬────────────────────┐
//!  │ closed │ orphaned │ writers inside│ number of the claim│
//!  └────────┴──────────┴───────────────┴────────────────────┘
//!
//!   vacant ──open(n)──▶ open(n) ──close(n)──▶ closed(n), k inside ──last leaves──▶ closed(n), 0
//!      ▲                   │ enter, leave                                             │
//!      └───────────────────┴──────────── the slot is used again ◀─────────────────────┘
//! ```
//!
//! Rules:
//! - Entering and leaving are compare-and-swaps of the whole word, so nobody acts on a stamp that is
//!   not there any more. Closing is one atomic `or`, by the owner, who alone changes the number. All
//!   are changes of one word, so close and the last leave see each other: exactly one of them finds
//!   the gate closed and empty.
//! - The all-zero word is vacant. A word that is closed with nobody inside is vacant too; it keeps
//!   the last number, and a gate is not opened twice in a row with the same one.
//! - `orphaned` says that nobody waits for the gate to become empty: whoever leaves last recycles
//!   the slot. It is only ever set together with `closed`.
//! - A full gate refuses; the count never wraps into the number.
//!
//! Orderings, once for all:
//! - `open` releases and `enter` acquires: who is inside sees what was put into the slot before.
//!   Acquire also keeps the writer's stores behind its entry.
//! - `leave` releases, and whoever then finds the word closed and empty has acquired: all changes
//!   of the word are read-modify-writes, so its last value continues the release sequence of every
//!   leave before, and every store of every writer happens before what the closer does next.
//! - One word, so coherence alone orders closing against entering; nothing needs `SeqCst`.
//! - Streaming stores are not ordered by any of this. Who uses them puts an `sfence` before `leave`.

use super::sync::{AtomicU64, Ordering};
use std::fmt;

const CLOSED: u64 = 1 << 63;
const ORPHANED: u64 = 1 << 62;
const ONE_INSIDE: u64 = 1 << 48;
const NUMBER: u64 = ONE_INSIDE - 1;

/// Writers that can be inside one gate at once; the next is refused.
pub(crate) const MAX_INSIDE: u16 = (1 << 14) - 1;

/// Why a writer was not let in, or a word not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Refused {
    /// The table has no such slot.
    NoSuchSlot,
    /// The gate is not that claim's, or not any more.
    Stale,
    /// The gate is that claim's, and closed.
    Closed,
    /// 16383 writers are inside already.
    Full,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Refused::NoSuchSlot => "the gate table has no such slot",
            Refused::Stale => "the gate belongs to another claim",
            Refused::Closed => "the claim's gate is closed",
            Refused::Full => "16383 writers are inside the gate already",
        })
    }
}

impl std::error::Error for Refused {}

/// Why a gate could not be opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OpenRefused {
    /// The number is 0 or does not fit 48 bits.
    BadNumber,
    /// The word's last claim had this very number.
    NumberReused,
    /// The gate is in use.
    NotVacant,
}

/// What a leave found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Left {
    /// The gate is open, or others are still inside.
    Going,
    /// This was the last writer of a closed gate, and its owner wants to know.
    LastAfterClose,
    /// This was the last writer of a closed gate that nobody owns: the caller recycles the slot.
    LastOfOrphan,
    /// The word does not say that this writer is inside: somebody else wrote it. It was left alone:
    /// whoever was counted stays counted, which keeps memory longer and never shorter.
    Overwritten,
}

/// One word's worth of state, unpacked.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    fn closed(self) -> bool {
        self.0 & CLOSED != 0
    }
    fn orphaned(self) -> bool {
        self.0 & ORPHANED != 0
    }
    fn inside(self) -> u16 {
        ((self.0 / ONE_INSIDE) as u16) & MAX_INSIDE
    }
    fn number(self) -> u64 {
        self.0 & NUMBER
    }
    fn vacant(self) -> bool {
        self.0 == 0 || (self.closed() && self.inside() == 0)
    }
    fn check(self, number: u64) -> Result<(), Refused> {
        if number == 0 || self.number() != number {
            Err(Refused::Stale)
        } else {
            Ok(())
        }
    }
}

/// As [`Gate::shut`], of a word that is only known as one.
pub(crate) fn shut(word: &AtomicU64) -> (u64, u16) {
    // AcqRel: as for `close`.
    let word = Word(word.fetch_or(CLOSED, Ordering::AcqRel));
    (word.number(), word.inside())
}

/// The gate word. It may live in memory that other processes map.
#[repr(transparent)]
pub(crate) struct Gate {
    word: AtomicU64,
}

impl Gate {
    /// A gate that belongs to no claim; its bytes are all zero.
    pub(crate) fn vacant() -> Self {
        Gate {
            word: AtomicU64::new(0),
        }
    }

    /// Opens a vacant gate for claim `number`. Only the slot's owner calls this.
    pub(crate) fn open(&self, number: u64) -> Result<(), OpenRefused> {
        if number == 0 || number > NUMBER {
            return Err(OpenRefused::BadNumber);
        }
        // Relaxed: who owns the slot has synchronised with who recycled it.
        let seen = self.word.load(Ordering::Relaxed);
        if !Word(seen).vacant() {
            return Err(OpenRefused::NotVacant);
        }
        if Word(seen).number() == number {
            return Err(OpenRefused::NumberReused);
        }
        // Release: publishes what the owner put into the slot.
        match self
            .word
            .compare_exchange(seen, number, Ordering::Release, Ordering::Relaxed)
        {
            Ok(_) => Ok(()),
            Err(_) => Err(OpenRefused::NotVacant),
        }
    }

    /// Lets one writer of claim `number` in.
    pub(crate) fn enter(&self, number: u64) -> Result<(), Refused> {
        // Relaxed: a guess; the compare-and-swap decides. A job reaches its lane after `open`, so
        // the lane cannot read a word older than that one.
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            Word(seen).check(number)?;
            if Word(seen).closed() {
                return Err(Refused::Closed);
            }
            if Word(seen).inside() == MAX_INSIDE {
                return Err(Refused::Full);
            }
            // Acquire: see the slot's contents, and keep the writes that follow behind this.
            match self.word.compare_exchange_weak(
                seen,
                seen + ONE_INSIDE,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
    }

    /// Lets one writer out. Called once for each successful `enter`, with its number.
    ///
    /// `before_last` runs before the swap that would leave a closed gate empty for its owner, since
    /// after it the slot's contents may be gone. It may run more than once, or in vain.
    pub(crate) fn leave(&self, number: u64, mut before_last: impl FnMut()) -> Left {
        let mut seen = self.word.load(Ordering::Relaxed);
        loop {
            let word = Word(seen);
            if word.check(number).is_err() || word.inside() == 0 {
                return Left::Overwritten;
            }
            let left = match (word.closed() && word.inside() == 1, word.orphaned()) {
                (false, _) => Left::Going,
                (true, false) => Left::LastAfterClose,
                (true, true) => Left::LastOfOrphan,
            };
            if left == Left::LastAfterClose {
                before_last();
            }
            // Release: my writes happen before who finds the gate empty. Acquire: if that is me
            // (an orphan's last writer), the others' writes and their use of the slot's contents
            // happen before I take those away.
            match self.word.compare_exchange_weak(
                seen,
                seen - ONE_INSIDE,
                Ordering::AcqRel,
                Ordering::Relaxed,
            ) {
                Ok(_) => return left,
                Err(now) => seen = now,
            }
        }
    }

    /// Closes the gate of claim `number` and tells how many writers are still inside. With 0 the
    /// caller may take the slot's contents away; otherwise one writer's leave reports the end.
    /// Closing a closed gate changes nothing.
    pub(crate) fn close(&self, number: u64) -> Result<u16, Refused> {
        self.set(number, CLOSED)
    }

    /// Closes the gate and gives up the wait for its end: with 0 inside the caller recycles the
    /// slot, otherwise the last writer to leave does.
    pub(crate) fn orphan(&self, number: u64) -> Result<u16, Refused> {
        self.set(number, CLOSED | ORPHANED)
    }

    /// Closes the gate, whosever it is, in one step; says whose it was and how many are still inside.
    /// For whoever takes over a table whose owner is gone: nobody opens this gate again.
    pub(crate) fn shut(&self) -> (u64, u16) {
        shut(&self.word)
    }

    /// Whether claim `number` is closed and nobody is inside. Only its owner may ask.
    pub(crate) fn is_closed_and_empty(&self, number: u64) -> bool {
        // Acquire: pairs with every leave (see the module's head).
        let word = Word(self.word.load(Ordering::Acquire));
        word.check(number).is_ok() && word.closed() && word.inside() == 0
    }

    fn set(&self, number: u64, bits: u64) -> Result<u16, Refused> {
        // Relaxed: the number is the owner's, who alone changes it, and this is the owner.
        Word(self.word.load(Ordering::Relaxed)).check(number)?;
        // One step, whatever writers do meanwhile.
        // Acquire: if nobody is inside, all writes so far happen before what the caller does.
        // Release: what the owner did with the slot's contents happens before an orphan's
        // last writer takes them away.
        let seen = self.word.fetch_or(bits, Ordering::AcqRel);
        Ok(Word(seen).inside())
    }
}
