//! Who has a piece of memory, whatever name it was opened by: a lock of the memory itself.
//!
//! ```text
//!   byte of the lock:   2^62 + (namespace of processes << 24 | number of the process)
//!   take ─▶ whose bytes are locked? ─▶ nobody's, or of dead processes ─▶ the own one is locked
//! ```
//!
//! Rules:
//! - Two names of one file, or descriptors in two processes, are one memory: the lock lies on what they
//!   name, far behind its end, and the place of the locked byte says which process has it.
//! - Locks belong to open files, so the lock has one of its own, which is passed to nobody. The kernel
//!   drops it with the process, unless a child of fork has it too: so it is given up aloud when the memory
//!   is let go of, and what is locked by a process that is proven dead counts for nothing.
//! - A process of another namespace, or one without a number here, counts as alive.

use super::process::{PidFd, pid_namespace};
use super::{sys, sys::lock_byte};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Locked while it is decided who has the memory.
const DECIDING: u64 = (1 << 62) - 1;
const HELD: u64 = 1 << 62;
/// Bits of a process's number, of which the kernel gives 22 at most.
const NUMBER: u32 = 24;
const ALL: Range<u64> = HELD..HELD + (1 << (32 + NUMBER));
/// More processes than this have never left locks behind.
const MANY: usize = 1_024;

/// This process's lock.
#[derive(Debug)]
pub(super) struct Hold {
    /// An open file of its own. Closing it gives up nothing that a child of fork has too.
    file: OwnedFd,
    at: u64,
}

/// Somebody has it: the process, or 0 if it cannot be named from here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeldBy(pub(super) u32);

impl Hold {
    /// Locks the memory for this process, unless a process that is not provably dead has it: this one
    /// itself, for something else, among them.
    pub(super) fn take(memory: BorrowedFd<'_>) -> io::Result<Result<Hold, HeldBy>> {
        let file = sys::reopen(memory)?;
        if !lock_byte(file.as_fd(), DECIDING, true)? {
            return Ok(Err(HeldBy(0)));
        }
        let taken = decide(file.as_fd());
        lock_byte(file.as_fd(), DECIDING, false)?;
        Ok(taken?.map(|at| Hold { file, at }))
    }

    /// Lets others have it. Not for children of fork, whose parent's it is.
    pub(super) fn release(self) {
        // It fails for no lock that is held, and there is nobody to tell.
        let _ = lock_byte(self.file.as_fd(), self.at, false);
    }
}

fn decide(fd: BorrowedFd<'_>) -> io::Result<Result<u64, HeldBy>> {
    // Without a namespace it is in, this process has a place that nobody takes for a dead one's.
    let namespace = pid_namespace().unwrap_or(0);
    if let Some(by) = holder(fd, namespace)? {
        return Ok(Err(by));
    }
    let at = place(namespace, std::process::id());
    Ok(if lock_byte(fd, at, true)? {
        Ok(at)
    } else {
        Err(HeldBy(0))
    })
}

/// Who has it and is not provably dead.
fn holder(fd: BorrowedFd<'_>, namespace: u32) -> io::Result<Option<HeldBy>> {
    let mut ranges = vec![ALL];
    let mut dead = 0;
    while let Some(range) = ranges.pop() {
        let Some(at) = sys::locked_in(fd, range.clone())? else {
            continue;
        };
        let (theirs, number) = parts(at);
        let named = namespace != 0 && theirs == namespace;
        if !named || dead == MANY || !is_dead(number) {
            return Ok(Some(HeldBy(if named { number } else { 0 })));
        }
        dead += 1;
        // What the kernel tells is one of them, in no order.
        ranges.extend(
            [range.start..at, at + 1..range.end]
                .into_iter()
                .filter(|r| !r.is_empty()),
        );
    }
    Ok(None)
}

fn is_dead(number: u32) -> bool {
    match PidFd::of_number(number) {
        Ok(fd) => fd.is_dead(),
        Err(e) => e.raw_os_error() == Some(libc::ESRCH),
    }
}

fn place(namespace: u32, number: u32) -> u64 {
    HELD + (u64::from(namespace) << NUMBER | u64::from(number) & ((1 << NUMBER) - 1))
}

fn parts(at: u64) -> (u32, u32) {
    let place = at.saturating_sub(HELD);
    (
        (place >> NUMBER) as u32,
        (place & ((1 << NUMBER) - 1)) as u32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;

    /// The same memory, by open files of their own.
    fn memory(n: usize) -> Vec<File> {
        let first = File::from(sys::memfd(c"held", 0).unwrap());
        let others = (1..n).map(|_| File::from(sys::reopen(first.as_fd()).unwrap()));
        let others: Vec<_> = others.collect();
        std::iter::once(first).chain(others).collect()
    }

    /// A number that no process has: of a child that is dead and was waited for.
    fn of_a_dead_one() -> u32 {
        let mut child = std::process::Command::new("true").spawn().unwrap();
        let id = child.id();
        child.wait().unwrap();
        id
    }

    fn held_by(memory: &File) -> u32 {
        Hold::take(memory.as_fd()).unwrap().unwrap_err().0
    }

    #[test]
    fn memory_is_held_once_by_whatever_descriptor_and_by_whom_is_said() {
        let files = memory(2);
        let me = std::process::id();
        let hold = Hold::take(files[0].as_fd()).unwrap().unwrap();
        // The same descriptor, and another one.
        assert_eq!((held_by(&files[0]), held_by(&files[1])), (me, me));
        hold.release();
        let again = Hold::take(files[1].as_fd()).unwrap().unwrap();
        assert_eq!(held_by(&files[0]), me);
        // Aloud: other tests fork, and a child has the open file as well.
        again.release();
        Hold::take(files[0].as_fd()).unwrap().unwrap().release();
    }

    #[test]
    fn what_a_dead_process_left_locked_holds_nothing_and_what_cannot_be_named_does() {
        let files = memory(3);
        let here = pid_namespace().unwrap();
        let dead = [of_a_dead_one(), of_a_dead_one()];
        for (file, number) in files[..2].iter().zip(dead) {
            assert!(lock_byte(file.as_fd(), place(here, number), true).unwrap());
        }
        let hold = Hold::take(files[2].as_fd()).unwrap().unwrap();
        assert_eq!(held_by(&files[2]), std::process::id());
        hold.release();
        // The number of a dead process, told in another namespace: it may be anybody there.
        assert!(lock_byte(files[2].as_fd(), place(here ^ 1, dead[0]), true).unwrap());
        assert_eq!(held_by(&files[0]), 0);
    }

    #[test]
    fn a_place_says_which_process_and_fits_behind_the_end_of_any_file() {
        for (namespace, number) in [(0, 0), (0xF000_0001, 1), (u32::MAX, 1 << 22)] {
            let at = place(namespace, number);
            assert_eq!(parts(at), (namespace, number));
            assert!(ALL.contains(&at) && i64::try_from(ALL.end).is_ok());
        }
    }
}
