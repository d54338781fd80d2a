//! In which process: this one, or a child of fork that got copies of what is not usable there.
//!
//! ```text
//!   parent: page [ 1 ]     fork, clone ──▶ child: page [ 0 ] (MADV_WIPEONFORK) ──asked──▶ [ 2 ]
//!   what was made: Origin(1)                      Origin(1): not here
//!                                                 what it makes itself: Origin(2), here
//! ```
//!
//! Rules: shared memory and a node's threads are not there in a child of the process that made them, so
//! whoever has such a thing keeps its [`Origin`] and asks. A child may make its own. Asking allocates
//! nothing and calls nothing but, for the first time in a process, the kernel.
#![allow(unsafe_code)] // A page that the kernel wipes in children.

use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

/// A page that holds the number of this process, and 0 in children that have not asked yet.
static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(null_mut());
/// The number of the first process that asks.
const FIRST: u32 = 1;
/// The last number: of this process, or in a child of its parent. Ordinary memory, which is copied.
static LAST: AtomicU32 = AtomicU32::new(FIRST);

/// The process that something was made in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(u32);

impl Origin {
    /// This process.
    pub fn here() -> Origin {
        Origin(number())
    }

    /// Whether this is still the process it was made in, and no child of that by fork or clone. Two
    /// loads.
    pub fn is_here(self) -> bool {
        self.0 == number()
    }
}

/// Whether this process is a child of fork of one that had used kvroom.
pub fn forked() -> bool {
    let number = number();
    number > FIRST && !PAGE.load(Ordering::Relaxed).is_null()
}

fn number() -> u32 {
    match NonNull::new(PAGE.load(Ordering::Acquire)) {
        // SAFETY: such a page is never unmapped once it was published.
        Some(page) => match unsafe { page.as_ref() }.load(Ordering::Relaxed) {
            // SAFETY: as above.
            0 => new_process(unsafe { page.as_ref() }),
            number => number,
        },
        None => first_time(),
    }
}

/// The page is this process's first sign that it is another one.
#[cold]
fn new_process(page: &AtomicU32) -> u32 {
    let mine = LAST.fetch_add(1, Ordering::Relaxed).saturating_add(1);
    // Another thread of this process may have been first; its number is as good.
    match page.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(number) => number,
    }
}

#[cold]
fn first_time() -> u32 {
    let Some(page) = numbered_page() else {
        // Kernels before 4.14, which have no pidfd either and so no peers over shared memory.
        return std::process::id();
    };
    // Release: who finds the page finds the number in it. Another thread's page is as good, and this one
    // then stays mapped and unused.
    match PAGE.compare_exchange(
        null_mut(),
        page.as_ptr(),
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => FIRST,
        Err(_) => number(),
    }
}

/// With the first number in it, before anybody finds it: a page that says 0 is taken for that of a child.
fn numbered_page() -> Option<NonNull<AtomicU32>> {
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
    let page = NonNull::new(page.cast::<AtomicU32>())?;
    // SAFETY: mapped, writable, zeroed and aligned to a page, and never unmapped from here on.
    unsafe { page.as_ref() }.store(FIRST, Ordering::Relaxed);
    Some(page)
}

#[cfg(test)]
mod tests {
    use super::{FIRST, Origin, forked, numbered_page};
    use std::sync::atomic::Ordering;

    /// What `child` gives in a child of this process, made by `fork`.
    fn in_child(fork: fn() -> libc::pid_t, child: impl FnOnce() -> bool) -> bool {
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

    fn fork() -> libc::pid_t {
        // SAFETY: the child only asks, and ends.
        unsafe { libc::fork() }
    }

    /// Without libc's knowledge.
    fn clone() -> libc::pid_t {
        // SAFETY: as above. No flags but the signal at the end.
        unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as libc::pid_t }
    }

    #[test]
    fn a_child_knows_that_it_is_one_however_it_was_made() {
        let here = Origin::here();
        assert!(here.is_here() && !forked());
        for make in [fork, clone] {
            assert!(in_child(make, forked));
            assert!(in_child(make, || !here.is_here()));
            assert!(
                in_child(make, || Origin::here().is_here()),
                "it may make its own"
            );
        }
        assert!(
            here.is_here() && !forked(),
            "the parent is still the parent"
        );
    }

    #[test]
    fn a_page_has_its_number_before_it_can_be_found() {
        // Threads of one process that ask first at the same time: one that finds the other's page must not
        // take this process for a child.
        let page = numbered_page().unwrap();
        // SAFETY: mapped, and never unmapped.
        assert_eq!(unsafe { page.as_ref() }.load(Ordering::Relaxed), FIRST);
    }

    #[test]
    fn a_childs_child_is_neither() {
        let here = Origin::here();
        assert!(in_child(fork, || {
            let child = Origin::here();
            in_child(fork, || {
                !here.is_here() && !child.is_here() && Origin::here().is_here()
            })
        }));
    }
}
