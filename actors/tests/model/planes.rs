//! The same search over each kind of plane: where frames outlive their sender, where lanes of
//! another process are inside, where a device writes and nothing can stop it but a fence.
//!
//! ```text
//!   tcp   frames sent twice · aborts            shm   aborts · a writer that is stopped
//!   ucx   flushes that fail · aborts · sessions given up · with and without a fence
//! ```

use crate::exhaustive::{SIZE, is_large, search};
use crate::model::size::{Kind, Size};

pub(crate) const TCP: Size = Size {
    plane: Kind::Tcp,
    ..SIZE
};
pub(crate) const SHM: Size = Size {
    plane: Kind::Shm,
    ..SIZE
};
pub(crate) const UCX: Size = Size {
    plane: Kind::Ucx,
    ..SIZE
};

#[test]
fn frames_that_are_sent_twice_and_outlive_their_sender_keep_the_contract() {
    let size = Size {
        aborts: 1,
        resends: 1,
        ..TCP
    };
    search("tcp", 500, size);
    if is_large() {
        search(
            "tcp, large",
            100_000,
            Size {
                attempts: 2,
                pushes: 8,
                ..size
            },
        );
    }
}

#[test]
fn lanes_of_another_process_keep_the_contract() {
    search(
        "shm",
        300,
        Size {
            aborts: 1,
            attempts: 2,
            pushes: 8,
            ..SHM
        },
    );
}

#[test]
fn a_device_that_writes_at_any_time_keeps_the_contract() {
    search(
        "ucx",
        300,
        Size {
            aborts: 1,
            attempts: 2,
            pushes: 8,
            ..UCX
        },
    );
}

#[test]
fn a_flush_that_fails_keeps_the_contract_with_and_without_a_fence() {
    let size = Size {
        aborts: 1,
        flush_errors: 1,
        ..UCX
    };
    search("ucx, flush fails, no fence", 300, size);
    search(
        "ucx, flush fails, fence",
        300,
        Size {
            fence: true,
            ..size
        },
    );
}

#[test]
fn a_path_that_is_fenced_when_its_session_is_given_up_keeps_the_contract() {
    let size = Size {
        aborts: 1,
        losses: 1,
        fence: true,
        ..UCX
    };
    search("ucx, given up, fence", 1_000, size);
}
