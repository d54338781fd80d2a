//! Shared pools.
#![allow(unsafe_code)] // Makes children.

use super::*;
use crate::memory::shared::SharedMemory;

fn shared() -> Pool {
    Pool::shared(layout(Order::LayersFirst)).unwrap()
}

/// What `child` gives in a child of this process that was made by fork; it must not allocate.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child calls only what its caller gives, and ends.
    let pid = unsafe { libc::fork() };
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

/// A child of fork that does nothing; it ends with this.
pub(super) struct StoppedChild(libc::pid_t);

pub(super) fn stopped_child() -> StoppedChild {
    // SAFETY: the child only waits, and is killed.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child was made");
    if pid == 0 {
        loop {
            // SAFETY: takes no pointers.
            unsafe { libc::pause() };
        }
    }
    StoppedChild(pid)
}

impl Drop for StoppedChild {
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        // SAFETY: as above, and no status is asked for.
        unsafe { libc::waitpid(self.0, std::ptr::null_mut(), 0) };
    }
}

#[test]
fn a_shared_pool_is_a_pool_and_starts_zeroed_and_aligned() {
    let pool = shared();
    assert_eq!(pool.backing(), Backing::Memfd { huge: false });
    assert!((0..3).all(|layer| (0..8).all(|page| seen(&pool, layer, page) == [0; 16])));
    let (start, _) = pool.memory().at(0, 1).unwrap();
    assert_eq!(start.addr().get() % 4096, 0);
    pool.lease_write(&[2]).unwrap().page_mut(1, 0).fill(5);
    assert_eq!(pool.lease_read(&[2]).unwrap().page(1, 0), [5; 16]);
    assert_eq!(
        Pool::owned(layout(Order::PagesFirst)).unwrap().backing(),
        Backing::Private
    );
}

#[test]
fn who_has_the_descriptor_sees_the_pools_bytes_where_the_layout_says() {
    let pool = shared();
    let mine = pool.shared_memory().unwrap();
    let fd = mine.fd().try_clone_to_owned().unwrap();
    let theirs = SharedMemory::receive(fd, 3 * 8 * 16).unwrap();
    pool.lease_write(&[5]).unwrap().page_mut(2, 0).fill(9);
    let word = theirs.word(at(2, 5) as usize).unwrap();
    assert_eq!(
        word.load(std::sync::atomic::Ordering::Relaxed),
        0x0909_0909_0909_0909
    );
}

#[test]
fn the_memory_stays_while_a_lease_a_view_or_a_section_of_it_is_left() {
    let pool = shared();
    let weak = Arc::downgrade(pool.shared_memory().unwrap());
    let mut lease = pool.lease_write(&[0]).unwrap();
    let section = lease.target_section();
    drop(pool);
    drop(lease);
    assert!(weak.upgrade().is_some(), "a section of it is left");
    drop(section);
    assert!(weak.upgrade().is_none());
}

#[test]
fn memory_that_there_is_not_is_an_error_that_names_pool_and_bytes() {
    let huge = PoolLayout {
        page_bytes: 1 << 50,
        ..layout(Order::LayersFirst)
    };
    let error = Pool::shared(huge).unwrap_err();
    assert!(matches!(error, PoolError::Shared { .. }));
    let text = error.to_string();
    assert!(
        text.contains("\"kv\"") && text.contains(&(24_u64 << 50).to_string()),
        "{text}"
    );
}

#[test]
fn in_a_child_of_fork_leases_are_refused_and_nothing_is_touched() {
    let pool = shared();
    let lease = pool.lease_read(&[1]).unwrap();
    assert!(!in_child(|| pool.memory().is_mapped()));
    // The answers hold a name, which is allocated: a single small allocation, of which a child of a
    // process with several threads may do one only if nobody held the allocator's lock. The C
    // library takes care of its own.
    assert!(in_child(|| matches!(
        pool.lease_write(&[0]),
        Err(LeaseError::Forked { .. })
    )));
    assert!(in_child(|| matches!(
        pool.lease_read(&[1]),
        Err(LeaseError::Forked { .. })
    )));
    assert!(in_child(|| matches!(
        pool.observe(0, 0, &mut [0; 16]),
        Err(PoolError::Forked { .. })
    )));
    // What the child makes is its own.
    assert!(in_child(|| shared().lease_write(&[0]).is_ok()));
    // Dropping in the child unmaps nothing, and gives nothing back here.
    assert!(in_child(move || {
        drop((lease, pool));
        true
    }));
}
