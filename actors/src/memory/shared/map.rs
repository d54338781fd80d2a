//! A shared mapping of a file or memfd.
//!
//! ```text
//!   reserved   ┆ unmapped ┆ mapped, aligned to a huge page if it is that large ┆ unmapped ┆
//! ```
//!
//! Rules:
//! - It is not there in a child of fork (`MADV_DONTFORK`), so such a child unmaps nothing either:
//!   its addresses may be somebody else's by then.
//! - No reference to plain bytes is made here: others write them. Words are reached as atomics.
//! - Whoever maps a file answers for nobody truncating it; then an access is a SIGBUS.
#![allow(unsafe_code)] // Owns a mapping.

use super::fork::Origin;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::AtomicU64;

/// What the system maps by one entry if it can.
pub(super) const HUGE_PAGE: usize = 2 << 20;
const PREFERRED: libc::c_int = 1;

pub(super) struct Mapping {
    start: NonNull<u8>,
    len: usize,
    origin: Origin,
}

// SAFETY: an address can be sent anywhere; accesses are justified where they are made.
unsafe impl Send for Mapping {}
// SAFETY: as above; what is reached through a shared one are atomics.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes, to read and to write, shared with all who map the same file.
    /// `len` is more than 0.
    pub(super) fn of(fd: BorrowedFd<'_>, len: usize) -> io::Result<Mapping> {
        let origin = Origin::here();
        let mapping = Mapping {
            start: place(fd, len)?,
            len,
            origin,
        };
        mapping.advise(0, len, libc::MADV_DONTFORK)?;
        Ok(mapping)
    }

    /// Whether it is there: not in a child of fork.
    pub(super) fn is_here(&self) -> bool {
        self.origin.is_here()
    }

    pub(super) fn start(&self) -> NonNull<u8> {
        self.start
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// `madvise` of a part; cut off at the end of the mapping. Only advice that keeps the contents
    /// may be given.
    pub(super) fn advise(&self, at: usize, bytes: usize, advice: libc::c_int) -> io::Result<()> {
        let at = at.min(self.len);
        // SAFETY: within the mapping, or at its end.
        let start = unsafe { self.start.add(at) };
        let bytes = bytes.min(self.len - at);
        // SAFETY: the range is of this mapping, which nobody else owns.
        check(unsafe { libc::madvise(start.as_ptr().cast(), bytes, advice) })
    }

    /// Has pages that are allocated from now on come from this node while it has any.
    pub(super) fn prefer_node(&self, node: u32) -> io::Result<()> {
        let bits = u64::BITS as usize;
        let mut mask = vec![0_u64; node as usize / bits + 1];
        if let Some(word) = mask.last_mut() {
            *word = 1 << (node as usize % bits);
        }
        // The kernel wants the number of bits and one more.
        let max = mask.len() * bits + 1;
        let start = self.start.as_ptr();
        // SAFETY: the range is of this mapping, and the mask has as many bits as is said.
        let result = unsafe {
            libc::syscall(
                libc::SYS_mbind,
                start,
                self.len,
                PREFERRED,
                mask.as_ptr(),
                max,
                0,
            )
        };
        check(result as libc::c_int)
    }

    /// The word at `offset`, if it lies within the mapping and is aligned.
    pub(super) fn word(&self, offset: usize) -> Option<&AtomicU64> {
        let end = offset.checked_add(size_of::<AtomicU64>())?;
        if end > self.len || !offset.is_multiple_of(align_of::<AtomicU64>()) {
            return None;
        }
        // SAFETY: within the mapping, checked above.
        let word = unsafe { self.start.add(offset) }.cast::<AtomicU64>();
        // SAFETY: mapped for as long as `self` is borrowed, aligned since mappings begin at a page,
        // and only reached as an atomic by everybody who maps the file.
        Some(unsafe { word.as_ref() })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_here() {
            // SAFETY: the mapping is this one's own, and nothing that borrows from it is left.
            unsafe { unmap(self.start, self.len) };
        }
    }
}

fn check(result: libc::c_int) -> io::Result<()> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// Maps the file where a huge page could begin, if it is at least one long.
fn place(fd: BorrowedFd<'_>, len: usize) -> io::Result<NonNull<u8>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    if len < HUGE_PAGE {
        // SAFETY: at no given address.
        return unsafe { map(null_mut(), len, access, libc::MAP_SHARED, fd.as_raw_fd()) };
    }
    let len = len.next_multiple_of(page());
    let room = len
        .checked_add(HUGE_PAGE)
        .ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
    let nothing = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: at no given address.
    let reserved = unsafe { map(null_mut(), room, libc::PROT_NONE, nothing, -1) }?;
    let before = reserved.addr().get().next_multiple_of(HUGE_PAGE) - reserved.addr().get();
    // SAFETY: `before` is less than a huge page, and that much more than `len` was reserved.
    let start = unsafe { reserved.add(before) };
    // SAFETY: at most at the end of what was reserved.
    let after = unsafe { start.add(len) };
    let fixed = libc::MAP_SHARED | libc::MAP_FIXED;
    let to = start.as_ptr().cast();
    // SAFETY: what is mapped over is a part of what was reserved above.
    let mapped = unsafe { map(to, len, access, fixed, fd.as_raw_fd()) };
    if let Err(e) = mapped {
        // SAFETY: reserved above, and used by nobody.
        unsafe { unmap(reserved, room) };
        return Err(e);
    }
    // SAFETY: reserved above, lies before the mapping, and is used by nobody.
    unsafe { unmap(reserved, before) };
    // SAFETY: reserved above, lies behind the mapping, and is used by nobody.
    unsafe { unmap(after, room - before - len) };
    Ok(start)
}

/// Bytes of a page.
pub(super) fn page() -> usize {
    // SAFETY: takes no pointers.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(4096)
}

/// # Safety
///
/// With `MAP_FIXED` the caller owns what is mapped at `at`.
unsafe fn map(
    at: *mut libc::c_void,
    len: usize,
    access: libc::c_int,
    flags: libc::c_int,
    fd: libc::c_int,
) -> io::Result<NonNull<u8>> {
    // SAFETY: without `MAP_FIXED` this takes no memory away; with it the caller owns what was there.
    let start = unsafe { libc::mmap(at, len, access, flags, fd, 0) };
    if start == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(start.cast()).ok_or_else(|| io::Error::other("mapped at address 0"))
}

/// # Safety
///
/// The caller owns this range, and nothing uses it any more.
unsafe fn unmap(start: NonNull<u8>, len: usize) {
    if len == 0 {
        return;
    }
    // SAFETY: as the caller promises.
    let result = unsafe { libc::munmap(start.as_ptr().cast(), len) };
    debug_assert_eq!(result, 0, "munmap failed");
}
