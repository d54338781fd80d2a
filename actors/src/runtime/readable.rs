//! A descriptor in the reactor of a thread that is waited for and never read there: an eventfd, a pidfd.
#![allow(unsafe_code)] // The reactor wants to be promised that the descriptor stays.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[derive(Debug)]
struct Owned(OwnedFd);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Readable(AsyncFd<Owned>);

impl Readable {
    /// Enters the reactor of this thread.
    ///
    /// # Errors
    /// The reactor's; or the descriptor is of a kind that cannot be waited for.
    pub(crate) fn new(fd: OwnedFd) -> io::Result<Readable> {
        // SAFETY: owned by what is handed over, which names this descriptor only, and never closes or
        // changes it before it is dropped.
        let fd = unsafe { AsyncFd::register_with_interest(Owned(fd), Interest::READABLE) };
        Ok(Readable(fd?))
    }

    /// Ends when it has become readable since this ended last, or since it entered: each time that an
    /// eventfd is rung counts, though nobody reads its count. Any number of tasks may wait.
    ///
    /// # Errors
    /// The reactor is shutting down.
    pub(crate) async fn again(&self) -> io::Result<()> {
        self.0.readable().await?.clear_ready();
        Ok(())
    }
}
