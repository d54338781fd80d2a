//! The same search over each kind of plane: where frames outlive their sender, where lanes of
//! another process are inside, where a device writes and nothing can stop it but a fence.
//!
//! ```text
//!   tcp   frames sent twice · aborts            shm   aborts · a writer that is stopped
//!   ucx   flushes that fail · aborts · sessions given up · with and without a fence
//! ```

use crate::exhaustive::{SIZE, search, search_large};
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

/// With a second attempt, on the same pages or others.
fn twice(size: Size) -> Size {
    Size {
        attempts: 2,
        pushes: 8,
        ..size
    }
}

#[test]
fn frames_that_are_sent_twice_and_outlive_their_sender_keep_the_contract() {
    let size = Size {
        aborts: 1,
        resends: 1,
        ..TCP
    };
    search("tcp", 1_500, size);
    search_large("tcp, two attempts", 50_000, twice(size));
}

#[test]
fn lanes_of_another_process_keep_the_contract() {
    let size = Size { aborts: 1, ..SHM };
    search("shm, two attempts", 6_000, twice(size));
}

#[test]
fn a_device_that_writes_at_any_time_keeps_the_contract() {
    let size = Size { aborts: 2, ..UCX };
    search("ucx", 400, size);
    search_large("ucx, two attempts", 15_000, twice(size));
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
