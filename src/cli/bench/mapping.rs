//! Memory for the yardsticks that has the same kind of pages behind it as a pool.
//!
//! Rules: it is never given to another process or thread but as a slice, so the borrow checker
//! knows of every access.
#![allow(unsafe_code)] // Maps memory.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

/// What is behind a mapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Backing {
    /// Memory of this process alone.
    Private,
    /// A memfd, mapped shared; of huge pages if so.
    Memfd { huge: bool },
}

/// Mapped memory that can be read and written, all of it touched.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    len: usize,
}

impl Mapping {
    /// Maps `len` bytes and writes `value` to all of them.
    ///
    /// # Errors
    /// The system gives no such memory.
    pub(crate) fn new(backing: Backing, len: usize, value: u8) -> io::Result<Mapping> {
        let mut mapping = match backing {
            Backing::Private => Mapping::map(libc::MAP_PRIVATE | libc::MAP_ANONYMOUS, None, len)?,
            Backing::Memfd { huge } => {
                let file = memfd(huge)?;
                file.set_len(len as u64)?;
                Mapping::map(libc::MAP_SHARED, Some(&file), len)?
            }
        };
        mapping.bytes_mut().fill(value);
        Ok(mapping)
    }

    fn map(flags: i32, file: Option<&File>, len: usize) -> io::Result<Mapping> {
        let fd = file.map_or(-1, AsRawFd::as_raw_fd);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing that exists.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Mapping { start, len })
    }

    /// All of it.
    pub(crate) fn bytes(&self) -> &[u8] {
        // SAFETY: mapped and initialised for this length as long as `self` lives; no file behind it
        // is known to anybody else, and writes need `&mut self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }

    /// All of it, to write.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` is the only way in.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: it was mapped with this length, and every slice of it borrowed from `self`.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.len) };
    }
}

fn memfd(huge: bool) -> io::Result<File> {
    let flags = libc::MFD_CLOEXEC | if huge { libc::MFD_HUGETLB } else { 0 };
    // SAFETY: the name is a string that ends with a zero.
    let fd = unsafe { libc::memfd_create(c"kvroom-bench".as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_memory_holds_what_is_written_whatever_is_behind_it() {
        for backing in [Backing::Private, Backing::Memfd { huge: false }] {
            let mut mapping = Mapping::new(backing, 10_000, 7).unwrap();
            mapping.bytes_mut()[9_999] = 8;
            assert_eq!(mapping.bytes()[..9_999], [7; 9_999]);
            assert_eq!(mapping.bytes()[9_999], 8);
        }
    }

    #[test]
    fn no_memory_is_an_error() {
        assert!(Mapping::new(Backing::Private, 0, 0).is_err());
        assert!(Mapping::new(Backing::Private, usize::MAX / 2, 0).is_err());
    }
}
