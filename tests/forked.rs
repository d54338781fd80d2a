//! A node and its pools in a child of fork.
#![allow(clippy::unwrap_used)]
#![allow(unsafe_code)] // Forks.

mod common;

use common::*;
use kvroom::{ConnectError, LeaseError, LocalHub, Node, NodeError, Pool, RoomId, StartErrorKind};

/// What `child` gives in a child of this process. It may allocate: libc makes its locks free in the
/// child.
fn in_child(child: impl FnOnce() -> bool) -> bool {
    // SAFETY: the child runs what the caller gives on its one thread, and ends without the parent's
    // destructors.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0, "no child was made");
    if pid == 0 {
        let good = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child)).unwrap_or(false);
        // SAFETY: ends this child at once.
        unsafe { libc::_exit(i32::from(good)) };
    }
    let mut status = 0;
    // SAFETY: the pointer is to an integer of this frame.
    let waited = unsafe { libc::waitpid(pid, &raw mut status, 0) };
    assert_eq!(waited, pid);
    assert!(libc::WIFEXITED(status), "the child died: {status}");
    libc::WEXITSTATUS(status) == 1
}

#[test]
fn a_node_and_its_pools_say_in_a_child_of_fork_that_they_are_not_there() {
    let pool = Pool::shared(kv(16, 4096)).unwrap();
    let node = Node::builder("parent")
        .hub(&LocalHub::new())
        .pool(pool.clone());
    let node = node.blocking_start().unwrap();
    let lease = pool.lease_write(&[3]).unwrap();
    assert!(in_child(|| {
        let refused = node.send(RoomId(1)).blocking_start().unwrap_err();
        refused.kind == StartErrorKind::Forked
    }));
    let leases = |e: kvroom::StartError| (e.kind, e.leases.len());
    assert!(in_child(|| {
        let room = node.receive(RoomId(1)).into(lease);
        leases(room.blocking_start().unwrap_err()) == (StartErrorKind::Forked, 1)
    }));
    assert!(in_child(|| matches!(
        node.blocking_connect("local://x"),
        Err(ConnectError::Forked)
    )));
    assert!(in_child(|| matches!(
        pool.lease_read(&[0]),
        Err(LeaseError::Forked { .. })
    )));
    assert!(in_child(|| {
        let started = Node::builder("child").pool(pool.clone()).blocking_start();
        matches!(started, Err(NodeError::PoolOfParent(name)) if name == "kv")
    }));
    // Nothing of this touched the parent.
    drop(pool.lease_write(&[0, 1, 2]).unwrap());
    assert!(node.blocking_shutdown().drained);
}
