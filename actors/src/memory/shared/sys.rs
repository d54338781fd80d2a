//! The system calls of shared memory that the standard library does not have, each made safe.
//!
//! Rules: one function, one call; descriptors come in borrowed and go out owned; an error is the
//! call's own. What a call means is said by who uses it.
#![allow(unsafe_code)] // System calls.

use std::ffi::{CStr, CString};
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub(super) const HUGETLB: libc::c_uint = libc::MFD_HUGETLB;
/// Sealed against being made executable; kernels before 6.3 do not know it.
pub(super) const NOEXEC_SEAL: libc::c_uint = 0x0008;
pub(super) const SEALS: libc::c_int = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
pub(super) const SEAL_SHRINK: libc::c_int = libc::F_SEAL_SHRINK;
const HUGETLBFS: u64 = 0x9584_58f6;
const TMPFS: u64 = 0x0102_1994;

fn check(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(result)
    }
}

/// A descriptor that a call just gave.
fn owned(result: libc::c_int) -> io::Result<OwnedFd> {
    let fd = check(result)?;
    // SAFETY: the kernel gave it to this call just now, so nobody else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn long(n: u64) -> io::Result<libc::off_t> {
    libc::off_t::try_from(n).map_err(|_| io::Error::from_raw_os_error(libc::EFBIG))
}

/// `memfd_create`, closed on exec and sealable, with further flags.
pub(super) fn memfd(name: &CStr, flags: libc::c_uint) -> io::Result<OwnedFd> {
    let flags = flags | libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: `name` ends with a zero byte and outlives the call.
    owned(unsafe { libc::memfd_create(name.as_ptr(), flags) })
}

/// `fallocate`: afterwards these bytes are there, and what they held is unchanged.
pub(super) fn allocate(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (long(offset)?, long(bytes)?);
    loop {
        // SAFETY: takes no pointers.
        match check(unsafe { libc::fallocate(fd.as_raw_fd(), 0, offset, bytes) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            other => return other.map(drop),
        }
    }
}

/// `posix_fallocate`: as [`allocate`], also on filesystems that have no such call.
pub(super) fn posix_allocate(fd: BorrowedFd<'_>, offset: u64, bytes: u64) -> io::Result<()> {
    let (offset, bytes) = (long(offset)?, long(bytes)?);
    loop {
        // SAFETY: takes no pointers.
        match unsafe { libc::posix_fallocate(fd.as_raw_fd(), offset, bytes) } {
            0 => return Ok(()),
            libc::EINTR => {}
            errno => return Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Adds all of [`SEALS`].
pub(super) fn seal(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, SEALS) }).map(drop)
}

/// The seals of a descriptor; fails for what cannot be sealed.
pub(super) fn seals(fd: BorrowedFd<'_>) -> io::Result<libc::c_int> {
    // SAFETY: takes no pointers.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })
}

/// What a file's filesystem is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filesystem {
    /// Pages of this many bytes, from the reserve of huge pages.
    Huge(u64),
    /// Memory.
    Tmpfs,
    Other,
}

pub(super) fn filesystem(fd: BorrowedFd<'_>) -> io::Result<Filesystem> {
    let mut stat = std::mem::MaybeUninit::<libc::statfs>::uninit();
    // SAFETY: the pointer is to room for one `statfs`.
    check(unsafe { libc::fstatfs(fd.as_raw_fd(), stat.as_mut_ptr()) })?;
    // SAFETY: the call succeeded and filled it in.
    let stat = unsafe { stat.assume_init() };
    Ok(match stat.f_type as u64 {
        HUGETLBFS => Filesystem::Huge(stat.f_bsize as u64),
        TMPFS => Filesystem::Tmpfs,
        _ => Filesystem::Other,
    })
}

/// Gives an open file one more name, on the same filesystem.
pub(super) fn link(fd: BorrowedFd<'_>, path: &Path) -> io::Result<()> {
    let old = CString::new(format!("/proc/self/fd/{}", fd.as_raw_fd()))?;
    let new = CString::new(path.as_os_str().as_bytes())?;
    let (here, follow) = (libc::AT_FDCWD, libc::AT_SYMLINK_FOLLOW);
    // SAFETY: both paths end with a zero byte and outlive the call.
    check(unsafe { libc::linkat(here, old.as_ptr(), here, new.as_ptr(), follow) }).map(drop)
}

/// The user that this process acts as.
pub(crate) fn user() -> u32 {
    // SAFETY: takes no pointers, and cannot fail.
    unsafe { libc::geteuid() }
}

/// A descriptor of a process of this machine, closed on exec.
pub(super) fn pidfd(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes no pointers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    owned(fd as libc::c_int)
}

/// Whether a descriptor is readable now.
pub(crate) fn readable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    ready(fd, libc::POLLIN)
}

/// Whether a descriptor is writable now.
pub(crate) fn writable(fd: BorrowedFd<'_>) -> io::Result<bool> {
    ready(fd, libc::POLLOUT)
}

fn ready(fd: BorrowedFd<'_>, events: libc::c_short) -> io::Result<bool> {
    let mut poll = libc::pollfd {
        fd: fd.as_raw_fd(),
        events,
        revents: 0,
    };
    loop {
        // SAFETY: one element, and the call does not wait.
        match check(unsafe { libc::poll(&raw mut poll, 1, 0) }) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
            Ok(_) => return Ok(poll.revents & events != 0),
        }
    }
}

/// The same file by an open file of its own, to read and to write.
pub(super) fn reopen(fd: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", fd.as_raw_fd());
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true);
    Ok(options.open(path)?.into())
}

/// The first byte of a lock that another open file has in this range: of one of them.
pub(super) fn locked_in(fd: BorrowedFd<'_>, range: Range<u64>) -> io::Result<Option<u64>> {
    let mut lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: long(range.start)?,
        l_len: long(range.end.saturating_sub(range.start))?,
        l_pid: 0,
    };
    // SAFETY: the pointer is to a `flock` that outlives the call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_GETLK, &raw mut lock) })?;
    let locked = libc::c_int::from(lock.l_type) != libc::F_UNLCK;
    Ok(locked.then_some((lock.l_start as u64).max(range.start)))
}

/// Locks the byte at `at` for this open file, or unlocks it; false if another open file has it.
/// The lock goes when the last descriptor of this open file is closed, so also with its process.
pub(super) fn lock_byte(fd: BorrowedFd<'_>, at: u64, locked: bool) -> io::Result<bool> {
    let kind = if locked { libc::F_WRLCK } else { libc::F_UNLCK };
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: long(at)?,
        l_len: 1,
        l_pid: 0,
    };
    // SAFETY: the pointer is to a `flock` that outlives the call.
    match check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const lock) }) {
        Ok(_) => Ok(true),
        Err(e) if matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EACCES)) => Ok(false),
        Err(e) => Err(e),
    }
}
