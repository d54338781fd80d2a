//! What wakes the thread of UCX: descriptors of its workers, and its doorbell.
#![allow(unsafe_code)] // System calls.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// Descriptors that are waited for, each with a number of the caller's.
pub(super) struct Events(OwnedFd);

/// Most that are heard of in one wait; the others are in the next one.
const MOST: usize = 64;

impl Events {
    pub(super) fn new() -> io::Result<Events> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else has it.
        Ok(Events(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// Hears of a descriptor for as long as it can be read, until it is removed or closed.
    pub(super) fn add(&self, fd: RawFd, number: u64) -> io::Result<()> {
        let mut event = libc::epoll_event {
            events: libc::EPOLLIN as u32,
            u64: number,
        };
        self.control(libc::EPOLL_CTL_ADD, fd, &mut event)
    }

    pub(super) fn remove(&self, fd: RawFd) -> io::Result<()> {
        let mut event = libc::epoll_event { events: 0, u64: 0 };
        self.control(libc::EPOLL_CTL_DEL, fd, &mut event)
    }

    fn control(&self, what: i32, fd: RawFd, event: &mut libc::epoll_event) -> io::Result<()> {
        // SAFETY: one event, borrowed for the call; a number that is no descriptor is an error.
        match unsafe { libc::epoll_ctl(self.0.as_raw_fd(), what, fd, event) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Adds the numbers of those that can be read; waits for one as long as it may. A signal ends the wait.
    pub(super) fn wait(&self, within: Option<Duration>, into: &mut Vec<u64>) {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; MOST];
        let timeout = match within {
            None => -1,
            // Up, or what is due in a moment would be asked for again and again until then.
            Some(time) => i32::try_from(time.as_micros().div_ceil(1000)).unwrap_or(i32::MAX),
        };
        // SAFETY: as many events as the array has.
        let found = unsafe {
            libc::epoll_wait(
                self.0.as_raw_fd(),
                events.as_mut_ptr(),
                MOST as i32,
                timeout,
            )
        };
        let found = usize::try_from(found).unwrap_or(0);
        into.extend(events.iter().take(found).map(|event| event.u64));
    }
}
