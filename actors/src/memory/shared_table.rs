//! A gate table in shared memory: the receiver of claims owns it, one peer enters its gates.
//!
//! ```text
//!   bytes 0..64   magic, version, number of slots, the writer's process
//!   64 each       slot: gate word │ pieces landed │ bytes landed │ unused
//!
//!   receiver's process                          writer's process
//!   SharedGates ──open──▶ SharedOwner           RemoteGates ──enter──▶ RemoteInside (`remote`)
//!     │ close, try_finish     │ word: closed        │ Drop: fence, leave
//!     ▼                       ▼                     ▼
//!   target back, slot free   rung by ◀──────── last after close: rings the receiver's eventfd
//! ```
//!
//! Rules:
//! - one table for each life of a peer, so whoever is inside a gate of it is that one process;
//! - everything in it is atomic: the other side may write at any time. What it holds is checked where
//!   it is used, and no reference is made to anything else of that memory;
//! - the target (pages, and whom to tell) stays in this process: the writer knows the pages from the
//!   claim, and the stamp in the word pins them;
//! - a closed gate ends by being empty, or by the proof that the writer's process is dead. Such a slot
//!   is never used again, nor is its table: the peer's next life gets another one.
#![allow(unsafe_code)] // Views atomics in a shared mapping.

use super::free_list::{FreeList, MAX_SLOTS};
use super::gate::{Gate, OpenRefused};
use super::shared::{PidFd, ProcessId, SharedError, SharedMemory};
use super::target::{Doorbell, Landed, Target};
use crate::ids::ClaimNo;
use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// `kvroomGT`, little-endian.
const MAGIC: u64 = u64::from_le_bytes(*b"kvroomGT");
/// Changes with the layout.
const VERSION: u32 = 1;
/// Bytes of the header, and of a slot.
const LINE: usize = 64;

/// Why a table that somebody else made cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TableError {
    /// It is none, or of another version.
    #[error(
        "the peer's gate table is none that this build knows (magic {magic:#x}, version {version})"
    )]
    Foreign {
        /// What is where the magic should be.
        magic: u64,
        /// What is where the version should be.
        version: u32,
    },
    /// It says that it is larger than it is.
    #[error("the peer's gate table has {bytes} bytes, {slots} slots need more")]
    TooSmall {
        /// Bytes that are there.
        bytes: usize,
        /// Slots that it says it has.
        slots: u32,
    },
}

#[repr(C, align(64))]
struct Header {
    magic: AtomicU64,
    version: AtomicU32,
    slots: AtomicU32,
    /// The writer's [`ProcessId`].
    writer: [AtomicU64; ProcessId::BYTES / 8],
    _unused: u64,
}

/// One gate, as both processes see it.
#[repr(C, align(64))]
pub(super) struct SharedSlot {
    pub(super) gate: Gate,
    pub(super) pieces: AtomicU64,
    pub(super) bytes: AtomicU64,
    _unused: [u64; 5],
}

const _: () = assert!(size_of::<Header>() == LINE && size_of::<SharedSlot>() == LINE);

/// A table's memory, on either side.
#[derive(Clone)]
pub(crate) struct TableMemory {
    memory: Arc<SharedMemory>,
    slots: u32,
}

impl TableMemory {
    /// Bytes of a slot, which begins with the gate's word, and of the header before the first.
    pub(super) const SLOT: usize = LINE;

    /// Bytes that a table of so many slots takes.
    pub(crate) fn bytes_of(slots: u32) -> usize {
        LINE + slots as usize * LINE
    }

    /// Makes a table of zeroed memory, with as many slots as it has room for.
    pub(crate) fn create(memory: SharedMemory, writer: &ProcessId) -> TableMemory {
        let slots = (memory.len().saturating_sub(LINE) / LINE).min(MAX_SLOTS) as u32;
        let table = TableMemory {
            memory: Arc::new(memory),
            slots,
        };
        let header = table.header();
        for (word, value) in header.writer.iter().zip(writer.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        header.slots.store(slots, Ordering::Relaxed);
        header.version.store(VERSION, Ordering::Relaxed);
        // Release: whoever sees the magic sees the rest.
        header.magic.store(MAGIC, Ordering::Release);
        table
    }

    /// Takes a table that another process, or an earlier life of this one, made.
    ///
    /// # Errors
    ///
    /// [`TableError`]: it is none, or smaller than it says.
    pub(crate) fn open(memory: SharedMemory) -> Result<TableMemory, TableError> {
        let bytes = memory.len();
        let foreign = |magic, version| Err(TableError::Foreign { magic, version });
        if bytes < LINE {
            return foreign(0, 0);
        }
        let mut table = TableMemory {
            memory: Arc::new(memory),
            slots: 0,
        };
        let header = table.header();
        let magic = header.magic.load(Ordering::Acquire);
        let version = header.version.load(Ordering::Relaxed);
        if magic != MAGIC || version != VERSION {
            return foreign(magic, version);
        }
        let slots = header.slots.load(Ordering::Relaxed);
        if slots as usize > MAX_SLOTS || Self::bytes_of(slots) > bytes {
            return Err(TableError::TooSmall { bytes, slots });
        }
        table.slots = slots;
        Ok(table)
    }

    /// How many gates it has.
    pub(crate) fn slots(&self) -> u32 {
        self.slots
    }

    /// The process that enters its gates.
    pub(crate) fn writer(&self) -> ProcessId {
        let words = &self.header().writer;
        ProcessId::from_words(std::array::from_fn(|i| words[i].load(Ordering::Relaxed)))
    }

    /// The mapping.
    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    /// What is passed to the writer.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.memory.fd()
    }

    /// Closes a slot for good, whoever has it, and says whose it was and how many are still inside.
    /// For a table whose owner is gone.
    pub(crate) fn shut(&self, slot: u32) -> Option<(u64, u16)> {
        self.slot(slot).map(|s| s.gate.shut())
    }

    pub(super) fn slot(&self, slot: u32) -> Option<&SharedSlot> {
        if slot >= self.slots {
            return None;
        }
        let at = LINE + slot as usize * LINE;
        // SAFETY: `at` and the slot behind it lie within the mapping: `slots` was checked against its
        // length when this was made.
        let place = unsafe { self.memory.start().add(at) };
        // SAFETY: mapped, aligned (a mapping is, to 4096) and never unmapped while `self` lives; all of
        // it is atomics, which other processes may change, or unused.
        Some(unsafe { place.cast::<SharedSlot>().as_ref() })
    }

    fn header(&self) -> &Header {
        // SAFETY: at least `LINE` bytes are mapped (checked, or made for one slot at least), aligned,
        // and all of it is atomics.
        unsafe { self.memory.start().cast::<Header>().as_ref() }
    }
}

/// Whether the one process that enters a table's gates still lives.
#[derive(Debug)]
pub(crate) struct Writer {
    pidfd: PidFd,
    dead: AtomicBool,
    made: Instant,
    /// Milliseconds from then to when the kernel was asked last.
    asked: AtomicU64,
}

/// How often the kernel is asked at most, in milliseconds: many gates ask at once.
const ASK_EVERY: u64 = 5;

impl Writer {
    /// The process behind this descriptor.
    pub(crate) fn new(pidfd: PidFd) -> Self {
        Writer {
            pidfd,
            dead: AtomicBool::new(false),
            made: Instant::now(),
            asked: AtomicU64::new(u64::MAX),
        }
    }

    /// Whether the kernel says that it is gone: none of its threads runs any more, nor ever will. May
    /// be a few milliseconds late.
    pub(crate) fn is_dead(&self) -> bool {
        if self.dead.load(Ordering::Acquire) {
            return true;
        }
        let now = u64::try_from(self.made.elapsed().as_millis()).unwrap_or(u64::MAX);
        let asked = self.asked.swap(now, Ordering::Relaxed);
        if asked != u64::MAX && now.saturating_sub(asked) < ASK_EVERY {
            self.asked.store(asked, Ordering::Relaxed);
            return false;
        }
        self.ask()
    }

    /// The same, asked of the kernel now.
    pub(crate) fn ask(&self) -> bool {
        let dead = self.pidfd.is_dead();
        if dead {
            self.dead.store(true, Ordering::Release);
        }
        dead
    }

    /// Its descriptor, readable when it is dead.
    pub(crate) fn pidfd(&self) -> &PidFd {
        &self.pidfd
    }
}

/// The witness that the process which alone entered a claim's gate is dead. It wrote with the CPU
/// only, so nothing of it can write any more.
#[derive(Debug, PartialEq, Eq)]
pub struct WriterDead {
    number: ClaimNo,
    landed: Landed,
}

impl WriterDead {
    /// Whose gate it was.
    pub fn number(&self) -> ClaimNo {
        self.number
    }

    /// What had landed through it, as far as the writer had counted.
    pub fn landed(&self) -> Landed {
        self.landed
    }
}

/// Told when a claim's pages are lent, and when they are not any more; so that what outlives this
/// process can say whose pages they are.
pub(crate) trait Lending: Send + Sync {
    /// The target's pages are about to be lent to this claim.
    ///
    /// # Errors
    ///
    /// That cannot be noted: then they may not be.
    fn lent(&self, number: u64, target: &Target) -> Result<(), SharedError>;
    /// They are not any more.
    fn back(&self, number: u64, target: &Target);
}

/// Why a gate was not opened.
#[derive(Debug)]
pub(super) enum WhyNotLent {
    /// No slot is free.
    Exhausted,
    /// It cannot be noted whose the pages are.
    NotRecorded(SharedError),
    /// The word of this slot refused.
    Gate(u32, OpenRefused),
}

/// Gates of the claims towards one life of a peer on this host.
pub(crate) struct SharedGates {
    table: TableMemory,
    free: FreeList,
    links: Box<[AtomicU32]>,
    writer: Arc<Writer>,
    lending: Option<Arc<dyn Lending>>,
    waits: Mutex<Waits>,
    /// Whether anything may be in `waits`: the peer rings for other things, too.
    waiting: AtomicBool,
}

/// Gates that are closed and not empty. Only ends of rooms come here.
#[derive(Default)]
struct Waits {
    /// Somebody wants to hear when they are.
    closing: Vec<(u32, u64, Arc<dyn Doorbell>)>,
    /// Nobody does: their slots and targets are kept until they are.
    orphans: Vec<(u32, u64, Box<Target>)>,
}

impl SharedGates {
    /// The gates of a table, for claims that `writer` serves.
    pub(crate) fn new(
        table: TableMemory,
        writer: Arc<Writer>,
        lending: Option<Arc<dyn Lending>>,
    ) -> Arc<Self> {
        let links = (0..table.slots()).map(|_| AtomicU32::new(0)).collect();
        Arc::new(SharedGates {
            free: FreeList::new(table.slots() as usize),
            table,
            links,
            writer,
            lending,
            waits: Mutex::default(),
            waiting: AtomicBool::new(false),
        })
    }

    /// The table, to be passed to the writer.
    pub(crate) fn table(&self) -> &TableMemory {
        &self.table
    }

    /// Opens a gate, or says why not and hands the target back.
    pub(super) fn open(
        this: &Arc<Self>,
        number: u64,
        target: Box<Target>,
    ) -> Result<SharedOwner, (WhyNotLent, Box<Target>)> {
        let taken = match this.take() {
            Some(index) => Some(index),
            None => {
                this.sweep();
                this.take()
            }
        };
        let Some((index, slot)) = taken.and_then(|i| Some((i, this.table.slot(i)?))) else {
            return Err((WhyNotLent::Exhausted, target));
        };
        slot.pieces.store(0, Ordering::Relaxed);
        slot.bytes.store(0, Ordering::Relaxed);
        if let Some(lending) = &this.lending
            && let Err(why) = lending.lent(number, &target)
        {
            this.give(index);
            return Err((WhyNotLent::NotRecorded(why), target));
        }
        if let Err(why) = slot.gate.open(number) {
            if let Some(lending) = &this.lending {
                lending.back(number, &target);
            }
            this.give(index);
            return Err((WhyNotLent::Gate(index, why), target));
        }
        Ok(SharedOwner {
            gates: Arc::clone(this),
            index,
            number,
            target: Some(target),
            closed: AtomicBool::new(false),
        })
    }

    /// The peer has rung: gates that it left empty are told of.
    pub(crate) fn rang(&self) {
        if !self.waiting.load(Ordering::Acquire) {
            return;
        }
        let mut rung = Vec::new();
        {
            let mut waits = self.waits();
            waits.closing.retain(|(slot, number, bell)| {
                let over = self.is_over(*slot, *number);
                if over {
                    rung.push((*number, Arc::clone(bell)));
                }
                !over
            });
        }
        for (number, bell) in rung {
            bell.ring(ClaimNo(number));
        }
        self.sweep();
        let waits = self.waits();
        if waits.closing.is_empty() && waits.orphans.is_empty() {
            self.waiting.store(false, Ordering::Release);
        }
    }

    fn take(&self) -> Option<u32> {
        self.free.take(|i| &self.links[i as usize])
    }

    fn give(&self, index: u32) {
        self.free.give(index, &self.links[index as usize]);
    }

    fn is_over(&self, slot: u32, number: u64) -> bool {
        let empty = self
            .table
            .slot(slot)
            .is_some_and(|s| s.gate.is_closed_and_empty(number));
        empty || self.writer.is_dead()
    }

    /// Lets go of targets that nobody waits for and nobody can write any more.
    fn sweep(&self) {
        let over: Vec<_> = {
            let mut waits = self.waits();
            let (over, rest) = waits
                .orphans
                .drain(..)
                .partition(|(slot, number, _)| self.is_over(*slot, *number));
            waits.orphans = rest;
            over
        };
        for (slot, number, target) in over {
            self.let_go(slot, number, target);
        }
    }

    fn let_go(&self, slot: u32, number: u64, target: Box<Target>) -> Landed {
        let landed = self.landed(slot);
        if let Some(lending) = &self.lending {
            lending.back(number, &target);
        }
        drop(target);
        // Not if somebody died inside: its count stays in the word.
        if self
            .table
            .slot(slot)
            .is_some_and(|s| s.gate.is_closed_and_empty(number))
        {
            self.give(slot);
        }
        landed
    }

    fn landed(&self, slot: u32) -> Landed {
        self.table.slot(slot).map_or(Landed::default(), |s| Landed {
            pieces: s.pieces.load(Ordering::Relaxed),
            bytes: s.bytes.load(Ordering::Relaxed),
        })
    }

    fn waits(&self) -> std::sync::MutexGuard<'_, Waits> {
        // A list of what waits is whole after each push and each drain.
        self.waits.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for SharedGates {
    fn drop(&mut self) {
        self.sweep();
        // Nobody looks at the rest again, and somebody is inside: their pages stay lent for ever.
        self.waits().orphans.drain(..).for_each(std::mem::forget);
    }
}

impl fmt::Debug for SharedGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SharedGates")
            .field("slots", &self.table.slots())
            .field("writer", &self.writer)
            .finish_non_exhaustive()
    }
}

/// The one owner of an open or draining gate of a shared table. Move-only.
pub(super) struct SharedOwner {
    gates: Arc<SharedGates>,
    index: u32,
    number: u64,
    /// `None` once it is over.
    target: Option<Box<Target>>,
    /// This owner has closed it; what the word says may be the last thing that a dying writer wrote.
    closed: AtomicBool,
}

impl SharedOwner {
    pub(super) fn index(&self) -> u32 {
        self.index
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    pub(super) fn target(&self) -> &Target {
        match &self.target {
            Some(target) => target,
            None => unreachable!("an owner has its target until it is consumed"),
        }
    }

    pub(super) fn landed(&self) -> Landed {
        self.gates.landed(self.index)
    }

    /// Lets nobody in any more. If somebody is inside, the target's doorbell is told of their leaving.
    pub(super) fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
        let Some(slot) = self.gates.table.slot(self.index) else {
            return;
        };
        if slot.gate.close(self.number) != Ok(0) {
            let bell = Arc::clone(self.target().doorbell());
            let entry = (self.index, self.number, bell);
            let mut waits = self.gates.waits();
            waits.closing.push(entry);
            self.gates.waiting.store(true, Ordering::Release);
        }
    }

    /// Ends the slot's use if the gate is closed and nobody is inside.
    pub(super) fn try_finish(mut self) -> Result<Landed, Self> {
        let empty = self
            .gates
            .table
            .slot(self.index)
            .is_some_and(|s| s.gate.is_closed_and_empty(self.number));
        match self.target.take() {
            Some(target) if empty => Ok(self.end(target)),
            target => {
                self.target = target;
                Err(self)
            }
        }
    }

    /// Ends the slot's use if its gate is closed and the one process that enters it is dead.
    pub(super) fn try_finish_dead(mut self) -> Result<WriterDead, Self> {
        let closed = self.closed.load(Ordering::Relaxed);
        let dead = closed && self.gates.writer.is_dead();
        match self.target.take() {
            Some(target) if dead => {
                let number = ClaimNo(self.number);
                let landed = self.end(target);
                Ok(WriterDead { number, landed })
            }
            target => {
                self.target = target;
                Err(self)
            }
        }
    }

    fn end(&mut self, target: Box<Target>) -> Landed {
        let number = self.number;
        let mut waits = self.gates.waits();
        waits.closing.retain(|(_, n, _)| *n != number);
        drop(waits);
        self.gates.let_go(self.index, number, target)
    }
}

impl Drop for SharedOwner {
    fn drop(&mut self) {
        let Some(target) = self.target.take() else {
            return;
        };
        if let Some(slot) = self.gates.table.slot(self.index) {
            // The stamp is the owner's, so this cannot be refused.
            let _ = slot.gate.close(self.number);
        }
        if self.gates.is_over(self.index, self.number) {
            self.gates.let_go(self.index, self.number, target);
        } else {
            let mut waits = self.gates.waits();
            waits.closing.retain(|(_, n, _)| *n != self.number);
            waits.orphans.push((self.index, self.number, target));
            self.gates.waiting.store(true, Ordering::Release);
        }
    }
}
