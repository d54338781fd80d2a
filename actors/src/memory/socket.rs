//! Pages straight to and from a socket, without a copy in between.
//!
//! Rules: pages are written by a writer inside the claim's gate only, and for one non-blocking read;
//! they are read through a live ticket only. Every range is checked against the pool and against the
//! pages lent before the kernel sees an address. What lies around the pages in the stream (headers,
//! trailers) goes to and comes from small buffers in the same call.
#![allow(unsafe_code)] // readv and writev on pages, which are reached by raw pointers only.

use super::copy::{CopyError, End, lent};
use super::table::Inside;
use super::ticket::Ticket;
use std::cell::Cell;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd};

/// Bytes of a pool that belong to one page, or to pages that are neighbours there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PoolRange {
    /// From the start of the pool, in bytes.
    pub(crate) offset: u64,
    /// How many.
    pub(crate) bytes: u64,
}

/// Why nothing moved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SocketError {
    /// A range is not one of those lent.
    #[error(transparent)]
    Range(#[from] CopyError),
    /// The socket; `WouldBlock` among them.
    #[error(transparent)]
    Socket(#[from] io::Error),
}

/// Most ranges in one call.
pub(crate) const MAX_RANGES: usize = 256;

/// Small buffers before and behind the ranges.
const AROUND: usize = 2;

struct Vectors {
    list: [MaybeUninit<libc::iovec>; MAX_RANGES + AROUND],
    len: usize,
}

impl Vectors {
    fn new() -> Self {
        Vectors {
            list: [const { MaybeUninit::uninit() }; MAX_RANGES + AROUND],
            len: 0,
        }
    }

    fn push(&mut self, base: *mut u8, len: usize) {
        if len > 0
            && let Some(place) = self.list.get_mut(self.len)
        {
            place.write(libc::iovec {
                iov_base: base.cast(),
                iov_len: len,
            });
            self.len += 1;
        }
    }

    fn as_ptr(&self) -> *const libc::iovec {
        self.list.as_ptr().cast()
    }

    fn count(&self) -> libc::c_int {
        self.len as libc::c_int // at most MAX_RANGES + AROUND
    }
}

impl Inside<'_> {
    /// One read of what is there: into the ranges of a section's pool in order (the first
    /// [`MAX_RANGES`] of them), and what comes behind them into `tail`. The socket must be
    /// non-blocking. `cursor` remembers where in the page list the last page was found.
    ///
    /// # Errors
    /// [`SocketError`]; nothing was read.
    pub(crate) fn read_from(
        &self,
        socket: BorrowedFd<'_>,
        section: u16,
        ranges: &[PoolRange],
        tail: &mut [u8],
        cursor: &Cell<usize>,
    ) -> Result<usize, SocketError> {
        let Some(to) = self.target().section(section) else {
            return Err(CopyError::NoSuchSection { section }.into());
        };
        let mut vectors = Vectors::new();
        for range in ranges.iter().take(MAX_RANGES) {
            let (at, len) = lent(
                to.held(),
                End::Destination,
                range.offset,
                range.bytes,
                cursor,
            )?;
            vectors.push(at.as_ptr(), len);
        }
        if ranges.len() <= MAX_RANGES {
            vectors.push(tail.as_mut_ptr(), tail.len());
        }
        // SAFETY:
        // - The list's first `count` entries were written, and point to memory that lives through
        //   this call: `tail` is borrowed, the pools' memory is kept by the target.
        // - The kernel writes bytes there. The pages are held for writing by this target, being
        //   inside its gate pins it, and as long as it lives nobody makes a slice of them. The same
        //   cell may be written at the same moment through another connection (a frame that was sent
        //   again; a peer that lies): by the kernel too, or with volatile stores below.
        let n = unsafe { libc::readv(socket.as_raw_fd(), vectors.as_ptr(), vectors.count()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error().into())
    }

    /// Goes on with a CRC32C over bytes of the section's pool that were just written.
    pub(crate) fn sum_written(
        &self,
        section: u16,
        range: PoolRange,
        cursor: &Cell<usize>,
        mut crc: u32,
    ) -> Result<u32, CopyError> {
        let Some(to) = self.target().section(section) else {
            return Err(CopyError::NoSuchSection { section });
        };
        let (at, len) = lent(
            to.held(),
            End::Destination,
            range.offset,
            range.bytes,
            cursor,
        )?;
        // With volatile loads: a slice of these bytes may not exist, since another connection can bring
        // the same cell at this very moment; see `read_from`.
        // SAFETY: `lent` answered with a range within the pool, which the target keeps alive.
        crc = unsafe { sum(at.as_ptr(), len, crc) };
        Ok(crc)
    }

    /// Copies bytes that were read ahead into the section's pool.
    pub(crate) fn place(
        &self,
        section: u16,
        range: PoolRange,
        bytes: &[u8],
        cursor: &Cell<usize>,
    ) -> Result<(), CopyError> {
        let Some(to) = self.target().section(section) else {
            return Err(CopyError::NoSuchSection { section });
        };
        let want = range.bytes.min(bytes.len() as u64);
        let (at, len) = lent(to.held(), End::Destination, range.offset, want, cursor)?;
        for (i, byte) in bytes.iter().take(len).enumerate() {
            // SAFETY: `i` is less than the length of the range, which lies within the pool.
            let to = unsafe { at.as_ptr().add(i) };
            // SAFETY: writable as long as the target lives; nobody has a slice of it. Volatile, since
            // another connection may bring the same cell at this moment; see `read_from`.
            unsafe { to.write_volatile(*byte) };
        }
        Ok(())
    }
}

impl Ticket {
    /// One write: `head`, then ranges of the source's pool in order (the first [`MAX_RANGES`]), and,
    /// if those were all, `tail`. The socket must be non-blocking; the kernel has taken what it
    /// counts when this returns.
    ///
    /// # Errors
    /// [`SocketError`]; nothing was written.
    pub(crate) fn write_to(
        &self,
        socket: BorrowedFd<'_>,
        head: &[u8],
        ranges: &[PoolRange],
        tail: &[u8],
    ) -> Result<usize, SocketError> {
        let Some(from) = self.source() else {
            unreachable!("a ticket has its source until it is dropped");
        };
        let mut vectors = Vectors::new();
        vectors.push(head.as_ptr().cast_mut(), head.len());
        for range in ranges.iter().take(MAX_RANGES) {
            let (at, len) = lent(
                from.held(),
                End::Source,
                range.offset,
                range.bytes,
                &self.source_cursor,
            )?;
            vectors.push(at.as_ptr(), len);
        }
        if ranges.len() <= MAX_RANGES {
            vectors.push(tail.as_ptr().cast_mut(), tail.len());
        }
        // SAFETY: the list's first `count` entries were written and point to memory that lives
        // through this call: `head` and `tail` are borrowed, the source's pages are held for reading
        // until this ticket, which is borrowed, is gone. The kernel only reads them.
        let n = unsafe { libc::writev(socket.as_raw_fd(), vectors.as_ptr(), vectors.count()) };
        usize::try_from(n).map_err(|_| io::Error::last_os_error().into())
    }
}

impl Ticket {
    /// Goes on with a CRC32C over the first [`MAX_RANGES`] ranges of the source's pool; gives how many
    /// bytes these are, too.
    ///
    /// # Errors
    /// A range is not one of those lent.
    pub(crate) fn sum_source(
        &self,
        ranges: &[PoolRange],
        mut crc: u32,
    ) -> Result<(u32, u64), CopyError> {
        let Some(from) = self.source() else {
            unreachable!("a ticket has its source until it is dropped");
        };
        let mut bytes = 0;
        for range in ranges.iter().take(MAX_RANGES) {
            let (at, len) = lent(
                from.held(),
                End::Source,
                range.offset,
                range.bytes,
                &self.source_cursor,
            )?;
            // With volatile loads: other processes may write a pool of theirs, so no slice of it.
            // SAFETY: `lent` answered with a range within the pool, which the ticket keeps alive.
            crc = unsafe { sum(at.as_ptr(), len, crc) };
            bytes += range.bytes;
        }
        Ok((crc, bytes))
    }
}

/// One read into a plain buffer.
///
/// # Errors
/// The socket's, `WouldBlock` among them.
pub(crate) fn read_plain(socket: BorrowedFd<'_>, into: &mut [u8]) -> io::Result<usize> {
    // SAFETY: `into` is borrowed, and as long as is said.
    let n = unsafe { libc::read(socket.as_raw_fd(), into.as_mut_ptr().cast(), into.len()) };
    usize::try_from(n).map_err(|_| io::Error::last_os_error())
}

/// Goes on with a CRC32C over bytes that others may write, in steps through a buffer.
///
/// # Safety
///
/// `from` is valid for reads of `len` bytes.
unsafe fn sum(from: *const u8, len: usize, mut crc: u32) -> u32 {
    let mut buffer = [0; 4096];
    let mut done = 0;
    while done < len {
        let n = buffer.len().min(len - done);
        // SAFETY: `done` is less than `len`.
        let next = unsafe { from.add(done) };
        // SAFETY: `n` bytes from there are within the range.
        unsafe { load(next, &mut buffer[..n]) };
        crc = crc32c::crc32c_append(crc, &buffer[..n]);
        done += n;
    }
    crc
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
