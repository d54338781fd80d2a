//! The one place where bytes are copied between pools.
//!
//! Rules: a copy needs a writer inside the destination's gate and a live ticket of the source. It
//! writes only pages of that target and reads only pages of that view; everything else is refused
//! before a byte moves.
#![allow(unsafe_code)] // The copy, and slices of a source.

use super::held::Held;
use super::pool::PoolMemory;
use super::stream::Copier;
use super::table::Inside;
use super::target::Target;
use super::ticket::{SourceView, Ticket};
use std::cell::Cell;
use std::fmt;
use std::ptr::NonNull;

thread_local! {
    /// Where bytes of others' memory are shown, page after page.
    static SHOWN: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// The most of that which a thread keeps.
const KEPT: usize = 4 << 20;

/// Which end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum End {
    /// Where bytes are read.
    Source,
    /// Where bytes are written.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Destination => "destination",
        })
    }
}

/// Why a piece was not copied. No byte of it was.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CopyError {
    /// The claim has no such section.
    #[error("the claim has no section {section}; this is a bug of the plan")]
    NoSuchSection {
        /// The section asked for.
        section: u16,
    },
    /// The range is not within the pool.
    #[error(
        "{bytes} bytes at {offset} are outside the {end}'s pool of {pool_bytes} bytes; this is a bug of the plan"
    )]
    OutOfPool {
        /// Which end.
        end: End,
        /// First byte.
        offset: u64,
        /// Number of bytes.
        bytes: u64,
        /// Bytes of the pool.
        pool_bytes: u64,
    },
    /// The range touches a page that is not lent for this.
    #[error("the {end}'s page {page} is not one of those lent for this copy")]
    NotLent {
        /// Which end.
        end: End,
        /// The first such page.
        page: u32,
    },
    /// The memory is a device's: the CPU does not reach it.
    #[error(
        "the {end}'s pool \"{pool}\" is on a device, which only its own lane copies to and from; \
         this is a bug of kvroom"
    )]
    OnDevice {
        /// Which end.
        end: End,
        /// The pool's name.
        pool: String,
    },
    /// The device did not copy.
    #[error("the {end}'s pool \"{pool}\": {why}")]
    Device {
        /// Which end.
        end: End,
        /// The pool's name.
        pool: String,
        /// What its driver said.
        why: String,
    },
    /// Source and destination share bytes.
    #[error("source and destination overlap in memory")]
    Overlap,
}

impl Inside<'_> {
    /// Copies `bytes` bytes from `source_offset` in the ticket's pool to `offset` in the pool of the
    /// claim's section (`Rect::AUX`: its aux row), and counts them as landed. Offsets are in bytes
    /// from the start of the pools; the range may span several pages that are neighbours there.
    ///
    /// Who plans the copies sees to it that two of them at the same time do not write the same byte.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing was copied.
    pub fn copy_from(
        &self,
        section: u16,
        offset: u64,
        source: &Ticket,
        source_offset: u64,
        bytes: u64,
    ) -> Result<(), CopyError> {
        let mut copying = self.copier(section, source)?;
        copying.copy(offset, source_offset, bytes)
    }

    /// Copies of many ranges between the same two pools, which are faster together.
    ///
    /// # Errors
    ///
    /// [`CopyError::NoSuchSection`].
    pub fn copier<'a>(
        &'a self,
        section: u16,
        source: &'a Ticket,
    ) -> Result<Copying<'a>, CopyError> {
        let target = self.target();
        let Some(to) = target.section(section) else {
            return Err(CopyError::NoSuchSection { section });
        };
        let Some(from) = source.source() else {
            unreachable!("a ticket has its source until it is dropped");
        };
        Ok(Copying {
            target,
            to: to.held(),
            from: from.held(),
            source,
            copier: Copier::new(self.unfenced()),
            pieces: 0,
            bytes: 0,
        })
    }
}

impl Inside<'_> {
    /// Writes bytes of this process (a staging slot's) to `offset` of a section's pool. `cursor` remembers
    /// where in the list of pages the last one was found. It is for the caller to count them.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing was written.
    pub(crate) fn write(
        &self,
        section: u16,
        offset: u64,
        bytes: &[u8],
        cursor: &Cell<usize>,
    ) -> Result<(), CopyError> {
        let Some(to) = self.target().section(section) else {
            return Err(CopyError::NoSuchSection { section });
        };
        let (end, n) = (End::Destination, bytes.len() as u64);
        let (to, len) = lent(to.held(), end, offset, n, cursor)?;
        // SAFETY:
        // - The range lies within the pool (`lent`), whose memory the target keeps; `bytes` is a slice,
        //   and no slice of pages that are held for writing by a target exists, so they do not overlap.
        // - Destination: as in `Copying::copy`.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to.as_ptr(), len) };
        Ok(())
    }
}

/// Copies within one entry of a gate, from [`Inside::copier`]. One range may wait for the next one,
/// so what was copied is counted as landed when this is dropped or [finished](Copying::finish).
#[must_use = "what it copied is counted when it is finished"]
pub struct Copying<'a> {
    target: &'a Target,
    to: &'a Held,
    from: &'a Held,
    /// Keeps the source for as long as a range may wait.
    source: &'a Ticket,
    copier: Copier<'a>,
    pieces: u64,
    bytes: u64,
}

impl Copying<'_> {
    /// Copies as [`Inside::copy_from`], perhaps together with the next range.
    ///
    /// # Errors
    ///
    /// [`CopyError`]; nothing of this range was copied.
    pub fn copy(&mut self, offset: u64, source_offset: u64, bytes: u64) -> Result<(), CopyError> {
        let source = self.source;
        let (to, len) = lent(
            self.to,
            End::Destination,
            offset,
            bytes,
            &source.target_cursor,
        )?;
        let (from, _) = lent(
            self.from,
            End::Source,
            source_offset,
            bytes,
            &source.source_cursor,
        )?;
        if from.addr().get() < to.addr().get() + len && to.addr().get() < from.addr().get() + len {
            return Err(CopyError::Overlap);
        }
        // SAFETY:
        // - Both ranges lie within their pools, whose memory the target and the view keep alive; the
        //   guard and the ticket are borrowed for as long as this exists, and dropping this flushes.
        // - They do not overlap (checked above).
        // - Source: its pages are held for reading until the ticket is gone. So no write lease of
        //   them exists, and nobody writes them; no other range of this copier either.
        // - Destination: its pages are held for writing by this target. Being inside its gate pins
        //   the target, and as long as that lives the write lease gives no slices. So nobody reads
        //   or writes them but writers inside gates of that same lease, which do not meet in a byte
        //   (their plans are disjoint), and `Pool::observe`, which is made for that.
        unsafe { self.copier.copy(from, to, len) };
        self.pieces += 1;
        self.bytes += bytes;
        Ok(())
    }

    /// All of it is copied; gives how many bytes that were.
    pub fn finish(self) -> u64 {
        self.bytes
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.copier.flush();
        self.target.count_pieces(self.pieces, self.bytes);
    }
}

impl fmt::Debug for Copying<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Copying")
            .field("pieces", &self.pieces)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl SourceView {
    /// Shows `bytes` bytes at `offset` of the pool, for a checksum at the receiver.
    pub(crate) fn with_bytes<R>(
        &self,
        offset: u64,
        bytes: u64,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, CopyError> {
        self.with_bytes_from(&Cell::new(0), offset, bytes, f)
    }

    /// The same. `cursor` remembers where in the list of pages the last one was found.
    fn with_bytes_from<R>(
        &self,
        cursor: &Cell<usize>,
        offset: u64,
        bytes: u64,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, CopyError> {
        if let Some(device) = self.held().memory().elsewhere() {
            lent_pages(self.held(), End::Source, offset, bytes, cursor)?;
            let mut copy = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
            let read = device.read(offset, &mut copy);
            read.map_err(|why| CopyError::Device {
                end: End::Source,
                pool: self.held().memory().layout().name.clone(),
                why,
            })?;
            return Ok(f(&copy));
        }
        let (start, len) = lent(self.held(), End::Source, offset, bytes, cursor)?;
        if self.held().memory().is_foreign() {
            // Other processes may write it meanwhile: what is shown is a copy.
            let mut copy = SHOWN.take();
            if copy.len() < len {
                copy.resize(len, 0);
            }
            let seen = self.held().memory().look(offset, &mut copy[..len]);
            debug_assert!(seen.is_some(), "it was checked above");
            let result = f(&copy[..len]);
            if copy.len() <= KEPT {
                SHOWN.set(copy);
            }
            return Ok(result);
        }
        // SAFETY: within the pool's initialised memory; the pages are held for reading as long as
        // this view lives, so nobody writes them.
        Ok(f(unsafe {
            std::slice::from_raw_parts(start.as_ptr(), len)
        }))
    }
}

impl Ticket {
    /// Shows `bytes` bytes at `offset` of the source's pool, for a checksum at the sender, or for a message.
    pub(crate) fn with_source<R>(
        &self,
        offset: u64,
        bytes: u64,
        f: impl FnOnce(&[u8]) -> R,
    ) -> Result<R, CopyError> {
        match self.source() {
            Some(view) => view.with_bytes_from(&self.source_cursor, offset, bytes, f),
            None => unreachable!("a ticket has its source until it is dropped"),
        }
    }
}

/// Checks a range against the pool and against the pages lent.
pub(super) fn lent(
    held: &Held,
    end: End,
    offset: u64,
    bytes: u64,
    cursor: &Cell<usize>,
) -> Result<(NonNull<u8>, usize), CopyError> {
    lent_pages(held, end, offset, bytes, cursor)?;
    let memory: &PoolMemory = held.memory();
    memory.at(offset, bytes).ok_or_else(|| CopyError::OnDevice {
        end,
        pool: memory.layout().name.clone(),
    })
}

/// The same, wherever the memory is.
pub(super) fn lent_pages(
    held: &Held,
    end: End,
    offset: u64,
    bytes: u64,
    cursor: &Cell<usize>,
) -> Result<(), CopyError> {
    let memory: &PoolMemory = held.memory();
    if offset
        .checked_add(bytes)
        .is_none_or(|to| to > memory.bytes())
    {
        return Err(CopyError::OutOfPool {
            end,
            offset,
            bytes,
            pool_bytes: memory.bytes(),
        });
    }
    held.covers(offset, bytes, cursor)
        .map_err(|page| CopyError::NotLent { end, page })
}
