//! Processes die, are stopped and replaced, and begin again, over each kind of plane.
//!
//! ```text
//!   senders     die with copies under way, inside a gate, with the device; are stopped, and another
//!               process takes their name
//!   receivers   die; their pools die with them, or are attached by the next life
//! ```
//!
//! A search takes two attempts where it can: what the first life left must harm nobody's second.
//!
//! One process dies or is stopped in each. What dies with a process: its rooms, sessions, sources,
//! and what its lanes had not begun. What does not: frames on the wire, what was inside a gate of
//! another process's memory, puts with a device, and the receiver's pool where it survives. Pools of
//! a dead sender are not modelled; a receiver that is only stopped still holds its pools.

use crate::exhaustive::{SIZE, search, search_large};
use crate::model::size::{Kind, Mortal, Size};

/// Two attempts, and one process dies.
pub(crate) const DEATH: Size = Size {
    attempts: 2,
    pushes: 8,
    crashes: 1,
    ..SIZE
};

/// The sender's process dies.
pub(crate) const fn sender_dies(plane: Kind) -> Size {
    let mortal = Mortal::Senders;
    Size {
        plane,
        mortal,
        ..DEATH
    }
}

/// The receiver's process dies, and its pool is there in its next life.
pub(crate) const fn pool_survives(plane: Kind) -> Size {
    Size {
        plane,
        mortal: Mortal::Receivers,
        survives: true,
        ..DEATH
    }
}

#[test]
fn a_sender_that_dies_and_begins_again_over_tcp_keeps_the_contract() {
    search("tcp, sender dies", 6_000, sender_dies(Kind::Tcp));
}

#[test]
fn a_sender_that_dies_inside_a_gate_and_begins_again_keeps_the_contract() {
    search("shm, sender dies", 4_000, sender_dies(Kind::Shm));
}

#[test]
fn a_sender_that_is_stopped_inside_a_gate_and_replaced_keeps_the_contract() {
    let size = Size {
        crashes: 0,
        stops: 1,
        ..sender_dies(Kind::Shm)
    };
    search("shm, sender is stopped", 7_000, size);
}

#[test]
fn a_sender_that_dies_with_puts_under_way_keeps_the_contract() {
    let size = sender_dies(Kind::Ucx);
    search("ucx, sender dies, no fence", 10_000, size);
    let fence = Size {
        fence: true,
        ..size
    };
    search_large("ucx, sender dies, fence", 10_000, fence);
}

#[test]
fn a_receiver_that_dies_with_its_pool_keeps_the_contract() {
    let size = |plane| Size {
        survives: false,
        ..pool_survives(plane)
    };
    search("tcp, receiver and pool die", 5_000, size(Kind::Tcp));
    search("shm, receiver and pool die", 4_000, size(Kind::Shm));
    search_large("ucx, receiver and pool die", 10_000, size(Kind::Ucx));
}

#[test]
fn a_pool_that_outlives_its_receiver_keeps_the_contract() {
    search("tcp, pool survives", 5_000, pool_survives(Kind::Tcp));
    search("shm, pool survives", 4_000, pool_survives(Kind::Shm));
    let ucx = Size {
        fence: true,
        ..pool_survives(Kind::Ucx)
    };
    search_large("ucx, pool survives", 10_000, ucx);
    let one = Size { attempts: 1, ..ucx };
    search("ucx, pool survives, one attempt", 500, one);
}

/// Each side may die, be stopped and abort. One attempt; two would take days. By default nobody is
/// stopped.
#[test]
fn either_side_dies_or_is_stopped_with_aborts_and_keeps_the_contract() {
    for plane in [Kind::Tcp, Kind::Shm, Kind::Ucx] {
        let size = Size {
            mortal: Mortal::All,
            attempts: 1,
            aborts: 1,
            survives: true,
            fence: true,
            ..sender_dies(plane)
        };
        search(&format!("{plane:?}, all"), 3_000, size);
        let size = Size { stops: 1, ..size };
        search_large(&format!("{plane:?}, all, stopped"), 5_000, size);
    }
}
