//! A doorbell between processes: an eventfd that one side rings and the other one waits for.
//!
//! Rules:
//! - Ringing never fails loudly: a bell that has been rung 2^64 times is made silent first, so that who
//!   waits for edges and never reads the count hears this one too.
//! - Ringing does not block. That a bell does not block is a flag of the open file, which both processes
//!   have, and the other one can take it away at any time. So the kernel is asked before each call, too.
//!   What is left is a race that a peer has to run on purpose: to fill or to empty the count between the
//!   question and the call.
#![allow(unsafe_code)] // Makes an eventfd.

use super::shared::{readable, writable};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

/// See the module.
#[derive(Debug)]
pub(crate) struct Bell(File);

impl Bell {
    /// A new one, not rung.
    pub(crate) fn new() -> io::Result<Bell> {
        // SAFETY: no memory is involved.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: just made, and nobody else has it.
        Ok(Bell::from(unsafe { OwnedFd::from_raw_fd(fd) }))
    }

    /// One that another process sent: nothing else, or ringing it could stop this process.
    ///
    /// # Errors
    /// It is no eventfd, or one that blocks.
    pub(crate) fn received(fd: OwnedFd) -> io::Result<Bell> {
        let number = fd.as_raw_fd();
        let wrong = |what| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        let name = fs::read_link(format!("/proc/self/fd/{number}"))?;
        if name.as_os_str() != "anon_inode:[eventfd]" {
            return wrong("the descriptor is no eventfd");
        }
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}"))?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"));
        let flags = flags.and_then(|octal| i32::from_str_radix(octal.trim(), 8).ok());
        match flags {
            Some(flags) if flags & libc::O_NONBLOCK != 0 => Ok(Bell(File::from(fd))),
            _ => wrong("the descriptor is an eventfd that blocks"),
        }
    }

    /// Wakes whoever waits for it.
    pub(crate) fn ring(&self) {
        if !self.try_ring() {
            self.silence();
            self.try_ring();
        }
    }

    /// False if the count is full.
    fn try_ring(&self) -> bool {
        if !writable(self.as_fd()).unwrap_or(false) {
            return false;
        }
        let rung = (&self.0).write(&1_u64.to_ne_bytes());
        !rung.is_err_and(|e| e.kind() == io::ErrorKind::WouldBlock)
    }

    /// Makes it silent again; says whether it was rung. Never while a reactor waits for it: a ring that
    /// is taken away before the reactor has looked wakes nobody.
    pub(crate) fn silence(&self) -> bool {
        readable(self.as_fd()).unwrap_or(false) && (&self.0).read(&mut [0; 8]).is_ok()
    }

    /// How often it was rung since it was silenced last.
    #[cfg(test)]
    pub(crate) fn count(&self) -> u64 {
        use std::os::fd::AsRawFd;
        let info = format!("/proc/self/fdinfo/{}", self.0.as_raw_fd());
        let info = std::fs::read_to_string(info).unwrap();
        let count = info.lines().find_map(|l| l.strip_prefix("eventfd-count:"));
        u64::from_str_radix(count.unwrap().trim(), 16).unwrap()
    }

    /// Another descriptor of the same bell.
    pub(crate) fn try_clone(&self) -> io::Result<Bell> {
        self.0.try_clone().map(Bell)
    }
}

impl From<OwnedFd> for Bell {
    fn from(fd: OwnedFd) -> Bell {
        Bell(File::from(fd))
    }
}

impl From<Bell> for OwnedFd {
    fn from(bell: Bell) -> OwnedFd {
        OwnedFd::from(bell.0)
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::time::Duration;

    /// As a peer can do to a bell that it was given, at any time.
    fn let_it_block(bell: &Bell) {
        // SAFETY: takes no pointers.
        let done = unsafe { libc::fcntl(bell.0.as_raw_fd(), libc::F_SETFL, 0) };
        assert_eq!(done, 0);
    }

    #[test]
    fn a_bell_that_the_peer_made_blocking_and_filled_stops_nobody() {
        let bell = Bell::new().unwrap();
        let peers = bell.try_clone().unwrap();
        (&peers.0).write_all(&(u64::MAX - 1).to_ne_bytes()).unwrap();
        let_it_block(&peers);
        let (done, over) = mpsc::channel();
        std::thread::spawn(move || {
            bell.ring();
            let rung = bell.count();
            done.send((rung, bell.silence(), bell.silence()))
        });
        let heard = over.recv_timeout(Duration::from_secs(20));
        assert_eq!(heard, Ok((1, true, false)), "ringing blocked");
    }
}
