//! What one process rings to wake another: an eventfd.
//!
//! Who waits has it in its reactor, which sees each ring by itself (edges) and never reads the count:
//! that saves a call for each ring. A count that is full is emptied by whoever rings.

use super::descriptors::eventfd;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// An eventfd that is rung.
#[derive(Debug)]
pub(crate) struct Bell(File);

impl Bell {
    /// A new one.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub(crate) fn new() -> io::Result<Bell> {
        eventfd().map(Bell::from)
    }

    /// Wakes who waits for it. One call to the kernel.
    ///
    /// # Errors
    /// It is no eventfd: who sent it is at fault.
    pub(crate) fn ring(&self) -> io::Result<()> {
        match (&self.0).write(&1u64.to_ne_bytes()) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                // Full. Whoever else empties it has rung, or will.
                let _ = (&self.0).read(&mut [0; 8]);
                match (&self.0).write(&1u64.to_ne_bytes()) {
                    Err(e) if e.kind() != io::ErrorKind::WouldBlock => Err(e),
                    _ => Ok(()),
                }
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => self.ring(),
            Err(e) => Err(e),
            Ok(_) => Ok(()),
        }
    }

    /// How often it was rung since it was asked last.
    #[cfg(test)]
    pub(crate) fn rung(&self) -> u64 {
        let mut count = [0; 8];
        match (&self.0).read(&mut count) {
            Ok(_) => u64::from_ne_bytes(count),
            Err(e) => {
                assert_eq!(e.kind(), io::ErrorKind::WouldBlock);
                0
            }
        }
    }
}

impl From<OwnedFd> for Bell {
    fn from(fd: OwnedFd) -> Self {
        Bell(File::from(fd))
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> Self {
        OwnedFd::from(bell.0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
