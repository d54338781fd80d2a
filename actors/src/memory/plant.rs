//! Wrong things on purpose, so that an oracle can be shown to notice them. Not part of any build of
//! the library or the program.
#![allow(unsafe_code)] // Touches pages that nobody leased to it.

use super::bell::Bell;
use super::pool::Pool;
use super::remote::RemotePool;
use super::shared::{HugePages, ProcessId, SharedMemory, SharedOptions};
use super::shared_table::TableMemory;
use super::target::TargetSection;
use super::ticket::Ticket;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
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

/// What a peer of this host shares, for one that shares something else. All of it is as it should be.
pub mod near {
    use super::{
        AsFd, Bell, HugePages, OwnedFd, ProcessId, SharedMemory, SharedOptions, TableMemory, io,
    };

    const PLAIN: SharedOptions = SharedOptions {
        huge: HugePages::Off,
        numa_node: None,
    };

    /// A sealed memfd of so many zeroed bytes.
    ///
    /// # Errors
    /// The system's.
    pub fn memory(bytes: usize) -> io::Result<OwnedFd> {
        let memory = SharedMemory::create("near", bytes, &PLAIN).map_err(io::Error::other)?;
        memory.fd().try_clone_to_owned()
    }

    /// A gate table of so many slots.
    ///
    /// # Errors
    /// The system's.
    pub fn gate_table(slots: u32) -> io::Result<OwnedFd> {
        let bytes = TableMemory::bytes_of(slots);
        let memory = SharedMemory::create("gates", bytes, &PLAIN).map_err(io::Error::other)?;
        let table = TableMemory::create(memory, &ProcessId::own()?);
        table.fd().try_clone_to_owned()
    }

    /// A pidfd of a process that lives.
    ///
    /// # Errors
    /// The system's.
    pub fn pidfd(pid: u32) -> io::Result<OwnedFd> {
        match ProcessId::of(pid)?.open()? {
            Some(pidfd) => pidfd.as_fd().try_clone_to_owned(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// A doorbell.
    ///
    /// # Errors
    /// The system's.
    pub fn doorbell() -> io::Result<OwnedFd> {
        Bell::new().map(OwnedFd::from)
    }
}
