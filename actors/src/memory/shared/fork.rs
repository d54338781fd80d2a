//! Whether this process is a child of fork of the one that first asked.
//!
//! ```text
//!   parent: page [ 1 ]      fork, clone ──▶ child: page [ 0 ]     (MADV_WIPEONFORK)
//! ```
//!
//! Rules: shared memory and the node's threads are not there in such a child, so nothing of kvroom
//! may be used in it. What is created in a child whose parent never asked is the child's own.
#![allow(unsafe_code)] // A page that the kernel wipes in children.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A page that holds 1 in the process that made it, and 0 in its children.
static GUARD: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// Where the kernel has no such pages: the process that asked first.
static PROCESS: AtomicU32 = AtomicU32::new(0);

/// Whether this process came from a fork (or clone) of one that used kvroom: pools, nodes and rooms
/// of the parent are not usable here. Costs two loads. It may be asked in a child before `exec`.
pub fn forked() -> bool {
    match NonNull::new(GUARD.load(Ordering::Acquire)) {
        // SAFETY: such a page is never unmapped once it was published.
        Some(page) => unsafe { page.as_ref() }.load(Ordering::Relaxed) == 0,
        None => first_time(),
    }
}

#[cold]
fn first_time() -> bool {
    let me = std::process::id();
    // Whoever asked first without getting a page.
    let first = PROCESS.load(Ordering::Relaxed);
    if first != 0 {
        return first != me;
    }
    let Some(page) = wiped_page() else {
        let was = PROCESS.compare_exchange(0, me, Ordering::Relaxed, Ordering::Relaxed);
        return was.is_err_and(|first| first != me);
    };
    // Relaxed: published by the exchange below.
    // SAFETY: mapped, writable, zeroed and aligned to a page.
    unsafe { page.as_ref() }.store(1, Ordering::Relaxed);
    // Release: who finds the page also finds the 1. Another thread's page is as good, and this one
    // then stays mapped and unused.
    let _ = GUARD.compare_exchange(
        null_mut(),
        page.as_ptr(),
        Ordering::Release,
        Ordering::Relaxed,
    );
    false
}

fn wiped_page() -> Option<NonNull<AtomicU32>> {
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    let bytes = super::map::page();
    // SAFETY: a new mapping takes no memory away.
    let page = unsafe { libc::mmap(null_mut(), bytes, access, flags, -1, 0) };
    if page == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: the page was mapped above and is ours alone.
    if unsafe { libc::madvise(page, bytes, libc::MADV_WIPEONFORK) } != 0 {
        return None;
    }
    NonNull::new(page.cast())
}

#[cfg(test)]
mod tests {
    use super::forked;

    /// What `child` gives in a child of this process, made by `fork`.
    fn in_child(fork: fn() -> libc::pid_t, child: fn() -> bool) -> bool {
        let pid = fork();
        assert!(pid >= 0, "no child was made");
        if pid == 0 {
            let code = libc::c_int::from(child());
            // SAFETY: ends this child at once, without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let mut status = 0;
        // SAFETY: the pointer is to an integer of this frame.
        let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
        assert_eq!(waited, pid);
        assert!(libc::WIFEXITED(status), "the child died: {status}");
        libc::WEXITSTATUS(status) == 1
    }

    #[test]
    fn a_child_knows_that_it_is_one_however_it_was_made() {
        assert!(!forked());
        // SAFETY: the child only asks (two loads) and ends.
        let fork = || unsafe { libc::fork() };
        // Flags of `clone` without libc's knowledge: only the signal at the end.
        // SAFETY: as above.
        let clone =
            || unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t };
        assert!(in_child(fork, forked));
        assert!(in_child(clone, forked));
        assert!(!forked(), "the parent is still the parent");
    }
}
