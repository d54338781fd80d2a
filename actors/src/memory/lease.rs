//! Leases: the right to read or to write a set of pages.
//!
//! Rules:
//! - Move-only. Who lends a lease moves it away, and gets it back with a proof.
//! - Dropping one gives its pages back to the pool, as soon as no gate or job can reach them;
//!   forgetting one keeps them for ever. Neither is ever unsound.
//! - A write lease gives slices only while no target section made from it exists. That is the
//!   runtime's business: a lease that its user can name is never lent.
#![allow(unsafe_code)] // Makes slices of pages.

use super::held::{Held, Mode, is_alone};
use super::pool::{Pool, PoolError};
use super::target::TargetSection;
use super::ticket::SourceView;
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

/// The right to read some pages. Nobody writes them meanwhile.
pub struct ReadLease {
    held: Arc<Held>,
}

/// The right to write some pages. Nobody else reads or writes them meanwhile.
pub struct WriteLease {
    held: Arc<Held>,
}

/// A lease of either kind, as custody keeps it.
#[derive(Debug)]
pub enum Lease {
    /// Of a source.
    Read(ReadLease),
    /// Of a destination.
    Write(WriteLease),
}

impl ReadLease {
    pub(super) fn new(held: Held) -> Self {
        debug_assert!(held.mode() == Mode::Read);
        ReadLease {
            held: Arc::new(held),
        }
    }

    /// The pages, in the order they were asked for.
    pub fn pages(&self) -> &[u32] {
        self.held.pages()
    }

    /// The same list, shared.
    pub fn arc_pages(&self) -> Arc<[u32]> {
        Arc::clone(self.held.pages())
    }

    /// The pool the pages are of.
    pub fn pool(&self) -> &Pool {
        self.held.pool()
    }

    /// One layer of the page at position `index` of the lease.
    ///
    /// # Panics
    ///
    /// If `layer` is not below the pool's layers, or `index` not below the lease's length; if the pool is on
    /// a device (there are [`load`](Self::load) and `store`); if other processes write the pool's pages ([`Pool::of_others`]); and in a child of fork, if the pool is shared.
    #[track_caller]
    pub fn page(&self, layer: u32, index: usize) -> &[u8] {
        let (start, len) = cell(&self.held, layer, index);
        // SAFETY: the cell lies within the pool's initialised memory, which lives as long as this
        // lease. The page is held for reading, so no write lease of it exists and nobody writes it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// Copies one layer of the page at position `index` of the lease out, wherever the pool's memory
    /// is; as many bytes as both have.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchCell`], or [`PoolError::Device`] if the device did not answer in time.
    pub fn load(&self, layer: u32, index: usize, into: &mut [u8]) -> Result<(), PoolError> {
        load(&self.held, layer, index, into)
    }

    /// Turns it into a write lease, if nobody else reads any of the pages and no job still can.
    ///
    /// # Errors
    ///
    /// The lease itself, unchanged, if somebody else does.
    pub fn into_write(mut self) -> Result<WriteLease, ReadLease> {
        match Arc::get_mut(&mut self.held).map(Held::upgrade) {
            Some(true) => Ok(WriteLease { held: self.held }),
            _ => Err(self),
        }
    }

    /// Gives the pages back without telling the pool's release callback.
    pub fn release(self) {
        self.held.keep_quiet();
    }

    /// What a job reads through. Until it is gone the pages stay held.
    pub(crate) fn source_view(&self) -> SourceView {
        SourceView::new(Arc::clone(&self.held))
    }
}

impl WriteLease {
    pub(super) fn new(held: Held) -> Self {
        debug_assert!(held.mode() == Mode::Write);
        WriteLease {
            held: Arc::new(held),
        }
    }

    /// The pages, in the order they were asked for.
    pub fn pages(&self) -> &[u32] {
        self.held.pages()
    }

    /// The same list, shared.
    pub fn arc_pages(&self) -> Arc<[u32]> {
        Arc::clone(self.held.pages())
    }

    /// The pool the pages are of.
    pub fn pool(&self) -> &Pool {
        self.held.pool()
    }

    /// One layer of the page at position `index` of the lease.
    ///
    /// # Panics
    ///
    /// If `layer` is not below the pool's layers, or `index` not below the lease's length; if the pool is on
    /// a device (there are [`load`](Self::load) and `store`); if other processes write the pool's pages ([`Pool::of_others`]); and in a child of fork, if the pool is shared.
    #[track_caller]
    pub fn page(&self, layer: u32, index: usize) -> &[u8] {
        self.must_not_be_lent();
        let (start, len) = cell(&self.held, layer, index);
        // SAFETY: the cell lies within the pool's initialised memory, which lives as long as this
        // lease. Only this lease holds the page; no target section reaches it (checked above), and
        // none is made while `self` is borrowed (that takes `&mut self`). So nobody writes it.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// One layer of the page at position `index` of the lease, to write.
    ///
    /// # Panics
    ///
    /// If `layer` is not below the pool's layers, or `index` not below the lease's length; if the pool is on
    /// a device (there are [`load`](Self::load) and `store`); if other processes write the pool's pages ([`Pool::of_others`]); and in a child of fork, if the pool is shared.
    #[track_caller]
    pub fn page_mut(&mut self, layer: u32, index: usize) -> &mut [u8] {
        self.must_not_be_lent();
        let (start, len) = cell(&self.held, layer, index);
        // SAFETY: as in `page`, and `self` is borrowed mutably, so this is the only slice of any
        // page of this lease.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }

    /// Copies one layer of the page at position `index` of the lease out, wherever the pool's memory
    /// is; as many bytes as both have.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchCell`], or [`PoolError::Device`] if the device did not answer in time.
    pub fn load(&self, layer: u32, index: usize, into: &mut [u8]) -> Result<(), PoolError> {
        self.must_be_still()?;
        load(&self.held, layer, index, into)
    }

    /// Writes one layer of the page at position `index` of the lease from its first byte on, wherever
    /// the pool's memory is, and waits until that is done. For tests, tools and small things: an
    /// engine writes with kernels of its own.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchCell`], also if there are more bytes than a cell has; [`PoolError::Device`]
    /// if the device did not answer in time.
    pub fn store(&mut self, layer: u32, index: usize, bytes: &[u8]) -> Result<(), PoolError> {
        self.must_be_still()?;
        let (offset, cell) = place(&self.held, layer, index)?;
        if bytes.len() as u64 > cell {
            return Err(no_such_cell(&self.held, layer, index));
        }
        if let Some(device) = self.held.memory().elsewhere() {
            let written = device.write(offset, bytes, Arc::clone(&self.held) as _);
            return written.map_err(|why| PoolError::Device {
                pool: self.held.pool().layout().name.clone(),
                why,
            });
        }
        self.page_mut(layer, index)[..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    /// Turns it into a read lease.
    ///
    /// # Panics
    ///
    /// Only on a bug of the runtime: if the lease is still lent to a gate.
    #[track_caller]
    pub fn into_read(mut self) -> ReadLease {
        match Arc::get_mut(&mut self.held) {
            Some(held) => held.downgrade(),
            None => lent(),
        }
        ReadLease { held: self.held }
    }

    /// Gives the pages back without telling the pool's release callback.
    pub fn release(self) {
        self.held.keep_quiet();
    }

    /// What a target is made of: lanes inside that target's gate may write these pages. Until it is
    /// gone this lease gives no slices, and its pages stay held.
    pub(crate) fn target_section(&mut self) -> TargetSection {
        TargetSection::new(Arc::clone(&self.held))
    }

    /// What a checksum of the destination reads through, once no writer is left. Until it is gone
    /// this lease gives no slices, and its pages stay held.
    pub(crate) fn sum_view(&mut self) -> SourceView {
        SourceView::new(Arc::clone(&self.held))
    }

    /// Whether a write of it ([`WriteLease::store`]) has not ended, which took too long to be waited for.
    /// Until it has, the lease can be lent to no room.
    pub fn is_busy(&self) -> bool {
        !is_alone(&self.held)
    }

    #[track_caller]
    fn must_be_still(&self) -> Result<(), PoolError> {
        if self.held.memory().elsewhere().is_some() && self.is_busy() {
            return Err(PoolError::Device {
                pool: self.pool().layout().name.clone(),
                why: "a write of this lease has not ended; see `nvidia-smi`, or take another lease"
                    .to_owned(),
            });
        }
        self.must_not_be_lent();
        Ok(())
    }

    #[track_caller]
    fn must_not_be_lent(&self) {
        if !is_alone(&self.held) {
            lent();
        }
    }
}

impl Lease {
    /// The pages, in the order they were asked for.
    pub fn pages(&self) -> &[u32] {
        match self {
            Lease::Read(l) => l.pages(),
            Lease::Write(l) => l.pages(),
        }
    }

    /// The pool the pages are of.
    pub fn pool(&self) -> &Pool {
        match self {
            Lease::Read(l) => l.pool(),
            Lease::Write(l) => l.pool(),
        }
    }
}

impl From<ReadLease> for Lease {
    fn from(lease: ReadLease) -> Self {
        Lease::Read(lease)
    }
}

impl From<WriteLease> for Lease {
    fn from(lease: WriteLease) -> Self {
        Lease::Write(lease)
    }
}

impl fmt::Debug for ReadLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("ReadLease", &self.held, f)
    }
}

impl fmt::Debug for WriteLease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        debug("WriteLease", &self.held, f)
    }
}

fn debug(name: &str, held: &Held, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    f.debug_struct(name)
        .field("pool", &held.pool().layout().name)
        .field("pages", &held.pages())
        .finish()
}

fn no_such_cell(held: &Held, layer: u32, index: usize) -> PoolError {
    PoolError::NoSuchCell {
        pool: held.pool().layout().name.clone(),
        layer,
        page: held.pages().get(index).copied().unwrap_or(u32::MAX),
    }
}

/// Where a cell begins, and its bytes.
fn place(held: &Held, layer: u32, index: usize) -> Result<(u64, u64), PoolError> {
    let layout = held.pool().layout();
    let page = held.pages().get(index);
    page.and_then(|page| layout.cell_offset(layer, *page))
        .map(|offset| (offset, layout.page_bytes))
        .ok_or_else(|| no_such_cell(held, layer, index))
}

fn load(held: &Held, layer: u32, index: usize, into: &mut [u8]) -> Result<(), PoolError> {
    let (offset, cell) = place(held, layer, index)?;
    let n = into.len().min(usize::try_from(cell).unwrap_or(usize::MAX));
    let into = &mut into[..n];
    if let Some(device) = held.memory().elsewhere() {
        return device.read(offset, into).map_err(|why| PoolError::Device {
            pool: held.pool().layout().name.clone(),
            why,
        });
    }
    held.memory()
        .look(offset, into)
        .ok_or_else(|| no_such_cell(held, layer, index))
}

#[track_caller]
fn cell(held: &Held, layer: u32, index: usize) -> (NonNull<u8>, usize) {
    if !held.memory().is_mapped() {
        panic!("this lease is of shared memory, which is not mapped in a child of fork");
    }
    if held.memory().elsewhere().is_some() {
        panic!(
            "pool \"{}\" is on a device: use `load` and `store`",
            held.pool().layout().name
        );
    }
    if held.memory().is_foreign() {
        let layout = held.pool().layout();
        panic!(
            "pool \"{}\" is of other processes, which write it at any time: no slice of it is made",
            layout.name
        );
    }
    let pages = held.pages();
    let Some(page) = pages.get(index) else {
        panic!(
            "position {index} is outside a lease of {} pages",
            pages.len()
        );
    };
    let Some(cell) = held.memory().cell(layer, *page) else {
        let layout = held.pool().layout();
        panic!(
            "layer {layer} is outside pool \"{}\" of {} layers",
            layout.name, layout.layers
        );
    };
    cell
}

#[cold]
#[track_caller]
fn lent() -> ! {
    panic!("this write lease is still lent to a gate: the runtime gave it back too early")
}
