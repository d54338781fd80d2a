//! Wrong things on purpose, so that an oracle can be shown to notice them. Not part of any build of
//! the library or the program.
#![allow(unsafe_code)] // Touches pages that nobody leased to it.

use super::pool::Pool;
use super::remote::RemotePool;
use super::target::TargetSection;
use super::ticket::Ticket;
use std::ptr::NonNull;
use std::sync::Arc;

/// Where something wrong is written.
#[derive(Clone, Debug)]
pub(crate) enum Wrong {
    /// A pool of this process.
    Here(Pool),
    /// A pool of another process of this host, mapped here.
    There(Arc<RemotePool>),
}

impl Wrong {
    /// Bytes of one of its pages in one layer.
    pub(crate) fn page_bytes(&self) -> usize {
        let layout = match self {
            Wrong::Here(pool) => pool.layout(),
            Wrong::There(pool) => pool.layout(),
        };
        usize::try_from(layout.page_bytes).unwrap_or(0)
    }

    /// As [`write_late`].
    pub(crate) fn write_late(&self, layer: u32, page: u32, bytes: &[u8]) {
        match self {
            Wrong::Here(pool) => write_late(pool, layer, page, bytes),
            Wrong::There(pool) => {
                if let Some((start, len)) = pool.cell(layer, page) {
                    store(start, len, bytes);
                }
            }
        }
    }
}

/// Writes into a page without any lease or gate, as a lane that forgot both would. Out-of-range
/// cells are ignored.
///
/// The bytes are stored one by one with volatile stores, so that only the pages are wrong and not
/// the program: what it breaks is the contract, at the memory that devices share anyway.
pub fn write_late(pool: &Pool, layer: u32, page: u32, bytes: &[u8]) {
    if let Some((start, len)) = pool.memory().cell(layer, page) {
        store(start, len, bytes);
    }
}

/// Stores bytes in a cell of `len` bytes of a pool's memory, which the caller keeps alive.
fn store(start: NonNull<u8>, len: usize, bytes: &[u8]) {
    for (i, byte) in bytes.iter().take(len).enumerate() {
        // SAFETY: `i` is less than the length of the cell, which lies within the memory.
        let to = unsafe { start.add(i) };
        // SAFETY: writable as long as the pool, or its mapping, lives. Racing with the page's owner is the point.
        unsafe { to.write_volatile(*byte) };
    }
}

/// Keeps the source pages of a job held for ever, whatever becomes of its lease.
pub(crate) fn keep_source(ticket: &Ticket) {
    if let Some(view) = ticket.source() {
        std::mem::forget(view.again());
    }
}

/// The pool of a target, to be written to when nothing is lent any more.
pub(crate) fn pool_of(section: &TargetSection) -> Pool {
    section.held().pool().clone()
}

/// The pool of a job's source, to be read when nothing is lent any more.
pub(crate) fn source_pool(ticket: &Ticket) -> Option<Pool> {
    ticket.source().map(|view| view.held().pool().clone())
}
