//! The writing side of a peer on this host: its pools and its gates, mapped into this process.
//!
//! ```text
//!   ShmClaim { slot, number, pages of each section }
//!        │ enter: compare-and-swap of the word in the peer's table
//!        ▼
//!   RemoteInside ──copy_from(ticket)──▶ pages of the peer's pool
//!        │ Drop: sfence if stores were streamed, leave; last of a closed gate: ring the peer
//! ```
//!
//! Rules: as for a gate of this process (`copy`): a writer inside, a live ticket, and only pages that
//! the claim names. That those are lent to that claim is what the stamp in the word says: the peer
//! opens a gate with its number before it names it, and lends its pages again only when it is closed
//! and empty.
#![allow(unsafe_code)] // The copy into a mapping of the peer's pool.

use super::bell::Bell;
use super::copy::{CopyError, End, lent};
use super::gate::{Left, Refused};
use super::held::covers;
use super::pool::pages_of;
use super::shared::SharedMemory;
use super::shared_table::TableMemory;
use super::stream::{Copier, Unfenced};
use super::ticket::Ticket;
use crate::ids::ClaimNo;
use kvroom_kernels::layout::PoolLayout;
use std::cell::Cell;
use std::fmt;
use std::marker::PhantomData;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool of a peer on this host.
pub(crate) struct RemotePool {
    memory: SharedMemory,
    layout: Arc<PoolLayout>,
    bytes: u64,
}

impl RemotePool {
    /// The pool of this layout in a mapping; `None` if it does not fit into it.
    pub(crate) fn new(memory: SharedMemory, layout: PoolLayout) -> Option<Self> {
        let cells = u64::from(layout.layers).checked_mul(u64::from(layout.pages))?;
        let bytes = cells.checked_mul(layout.page_bytes)?;
        (bytes > 0 && bytes <= memory.len() as u64).then(|| RemotePool {
            memory,
            layout: Arc::new(layout),
            bytes,
        })
    }

    /// Its shape.
    pub(crate) fn layout(&self) -> &Arc<PoolLayout> {
        &self.layout
    }

    /// Where a page begins in one layer, and its length; `None` if there is none.
    #[cfg(feature = "plant")]
    pub(super) fn cell(&self, layer: u32, page: u32) -> Option<(NonNull<u8>, usize)> {
        self.at(
            self.layout.cell_offset(layer, page)?,
            self.layout.page_bytes,
        )
    }

    fn at(&self, offset: u64, bytes: u64) -> Option<(NonNull<u8>, usize)> {
        if offset.checked_add(bytes)? > self.bytes {
            return None;
        }
        // SAFETY: `offset` is at most `bytes`, which is at most the length of this mapping.
        let start = unsafe { self.memory.start().add(offset as usize) };
        Some((start, bytes as usize))
    }
}

impl fmt::Debug for RemotePool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemotePool")
            .field("layout", &self.layout)
            .finish_non_exhaustive()
    }
}

/// The gates of a peer on this host, for claims that this process serves.
pub(crate) struct RemoteGates {
    table: TableMemory,
    /// The peer's.
    bell: Arc<Bell>,
    /// Words that did not say any more that a writer of this process is inside.
    overwritten: Arc<AtomicU64>,
}

impl RemoteGates {
    /// The gates in a table of the peer; `bell` wakes it. `overwritten` counts the writers that were
    /// not inside any more when they left: somebody else wrote the word, or it is a bug here.
    pub(crate) fn new(table: TableMemory, bell: Arc<Bell>, overwritten: Arc<AtomicU64>) -> Self {
        RemoteGates {
            table,
            bell,
            overwritten,
        }
    }

    /// Lets a lane in to write one bounded piece for claim `number`, whose gate is in `slot`.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the claim's gate is closed, or the slot is not (or not any more) that claim's.
    pub(crate) fn enter(&self, slot: u32, number: ClaimNo) -> Result<RemoteInside<'_>, Refused> {
        let shared = self.table.slot(slot).ok_or(Refused::NoSuchSlot)?;
        shared.gate.enter(number.0)?;
        Ok(RemoteInside {
            unfenced: Unfenced::default(),
            entered: RemoteEntered {
                gates: self,
                slot,
                number: number.0,
                on_this_thread: PhantomData,
            },
        })
    }
}

impl fmt::Debug for RemoteGates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteGates")
            .field("slots", &self.table.slots())
            .finish_non_exhaustive()
    }
}

/// A writer inside a gate of a peer. Held for one bounded piece, on one thread; dropping it leaves.
pub(crate) struct RemoteInside<'g> {
    /// Before `entered`, so that its fence comes before the gate is left.
    unfenced: Unfenced,
    entered: RemoteEntered<'g>,
}

struct RemoteEntered<'g> {
    gates: &'g RemoteGates,
    slot: u32,
    number: u64,
    on_this_thread: PhantomData<*const ()>,
}

impl RemoteInside<'_> {
    /// As [`super::Inside::copy_from`], into the peer's pool, of which the claim names `pages`.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing was copied.
    #[cfg(test)]
    pub(crate) fn copy_from(
        &self,
        to: (&RemotePool, &[u32]),
        offset: u64,
        source: &Ticket,
        source_offset: u64,
        bytes: u64,
    ) -> Result<(), CopyError> {
        self.copier(to, source).copy(offset, source_offset, bytes)
    }

    /// Writes bytes to `offset` of the peer's pool, of which the claim names `pages`, and counts them as
    /// landed. `cursor` remembers where in the list the last page was found.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing was written.
    pub(crate) fn place(
        &self,
        (pool, pages): (&RemotePool, &[u32]),
        offset: u64,
        bytes: &[u8],
        cursor: &Cell<usize>,
    ) -> Result<(), CopyError> {
        let to = named(pool, pages, offset, bytes.len() as u64, cursor)?;
        // SAFETY: as in `RemoteCopying::copy`, from a slice, which is no memory of the mapping.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), bytes.len()) };
        if let Some(slot) = self.entered.gates.table.slot(self.entered.slot) {
            slot.pieces.fetch_add(1, Ordering::Relaxed);
            slot.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        }
        Ok(())
    }

    /// As [`super::Inside::copier`], into the peer's pool, of which the claim names `pages`.
    pub(crate) fn copier<'a>(
        &'a self,
        (pool, pages): (&'a RemotePool, &'a [u32]),
        source: &'a Ticket,
    ) -> RemoteCopying<'a> {
        RemoteCopying {
            entered: &self.entered,
            pool,
            pages,
            source,
            copier: Copier::new(&self.unfenced),
            pieces: 0,
            bytes: 0,
        }
    }
}

/// As [`super::Copying`], into a pool of a peer.
#[must_use = "what it copied is counted when it is finished"]
pub(crate) struct RemoteCopying<'a> {
    entered: &'a RemoteEntered<'a>,
    pool: &'a RemotePool,
    pages: &'a [u32],
    /// Keeps the source for as long as a range may wait.
    source: &'a Ticket,
    copier: Copier<'a>,
    pieces: u64,
    bytes: u64,
}

impl RemoteCopying<'_> {
    /// Copies one range, perhaps together with the next one.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing of this range was copied.
    pub(crate) fn copy(
        &mut self,
        offset: u64,
        source_offset: u64,
        bytes: u64,
    ) -> Result<(), CopyError> {
        let (pool, source) = (self.pool, self.source);
        let Some(from) = source.source() else {
            unreachable!("a ticket has its source until it is dropped");
        };
        let to = named(pool, self.pages, offset, bytes, &source.target_cursor)?;
        let (from, len) = lent(
            from.held(),
            End::Source,
            source_offset,
            bytes,
            &source.source_cursor,
        )?;
        // SAFETY:
        // - Both ranges lie within their mappings, which the pool and the view keep; pool, ticket and
        //   guard are borrowed for as long as this exists, and dropping this flushes. They are
        //   mappings of their own, so the addresses do not overlap.
        // - Source: held for reading while the ticket lives; nobody writes it.
        // - Destination: memory of another process, of which this one makes no references. The peer
        //   lent these pages to the claim whose gate this is inside of, and makes no reference to them
        //   until that is closed and empty; other writers of the claim have other cells.
        unsafe { self.copier.copy(from, to, len) };
        self.pieces += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// All of it is copied; gives how many bytes that were.
    pub(crate) fn finish(self) -> u64 {
        self.bytes
    }
}

/// Where a range is that lies in pages which the claim names.
fn named(
    pool: &RemotePool,
    pages: &[u32],
    offset: u64,
    bytes: u64,
    cursor: &Cell<usize>,
) -> Result<NonNull<u8>, CopyError> {
    let end = End::Destination;
    let Some((to, _)) = pool.at(offset, bytes) else {
        return Err(CopyError::OutOfPool {
            end,
            offset,
            bytes,
            pool_bytes: pool.bytes,
        });
    };
    if bytes > 0 {
        let wanted = pages_of(&pool.layout, offset..offset + bytes);
        covers(pages, wanted, cursor).map_err(|page| CopyError::NotLent { end, page })?;
    }
    Ok(to)
}

impl Drop for RemoteCopying<'_> {
    fn drop(&mut self) {
        self.copier.flush();
        if let Some(slot) = self.entered.gates.table.slot(self.entered.slot) {
            // Relaxed: leaving releases.
            slot.pieces.fetch_add(self.pieces, Ordering::Relaxed);
            slot.bytes.fetch_add(self.bytes, Ordering::Relaxed);
        }
    }
}

impl fmt::Debug for RemoteInside<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteInside")
            .field("number", &self.entered.number)
            .finish_non_exhaustive()
    }
}

impl Drop for RemoteEntered<'_> {
    fn drop(&mut self) {
        let Some(slot) = self.gates.table.slot(self.slot) else {
            return;
        };
        match slot.gate.leave(self.number, || {}) {
            Left::Going => {}
            // By the owner, whose word and whose pages it is; or this process left twice.
            Left::Overwritten => {
                self.gates.overwritten.fetch_add(1, Ordering::Relaxed);
            }
            // The owner's tick makes up for a ring that fails.
            Left::LastAfterClose | Left::LastOfOrphan => self.gates.bell.ring(),
        }
    }
}
