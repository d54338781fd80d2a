//! Processes die, are stopped and replaced, and begin again, over each kind of plane.
//!
//! ```text
//!   senders     die with copies under way, inside a gate, with the device; are stopped, and another
//!               process takes their name
//!   receivers   die; their pools die with them, or are attached by the next life
//! ```
//!
//! Every search takes two attempts: what the first life left must harm nobody's second.

use crate::exhaustive::{SIZE, is_large, search};
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
    search("tcp, sender dies", 500, sender_dies(Kind::Tcp));
}

#[test]
fn a_sender_that_dies_inside_a_gate_and_begins_again_keeps_the_contract() {
    search("shm, sender dies", 500, sender_dies(Kind::Shm));
}

#[test]
fn a_sender_that_is_stopped_inside_a_gate_and_replaced_keeps_the_contract() {
    let size = Size {
        crashes: 0,
        stops: 1,
        ..sender_dies(Kind::Shm)
    };
    search("shm, sender is stopped", 500, size);
}

#[test]
fn a_sender_that_dies_with_puts_under_way_keeps_the_contract() {
    let size = sender_dies(Kind::Ucx);
    search("ucx, sender dies, no fence", 500, size);
    search(
        "ucx, sender dies, fence",
        500,
        Size {
            fence: true,
            ..size
        },
    );
}

#[test]
fn a_receiver_that_dies_with_its_pool_keeps_the_contract() {
    for plane in [Kind::Tcp, Kind::Shm, Kind::Ucx] {
        let size = Size {
            survives: false,
            ..pool_survives(plane)
        };
        search(&format!("{plane:?}, receiver and pool die"), 500, size);
    }
}

#[test]
fn a_pool_that_outlives_its_receiver_keeps_the_contract() {
    for plane in [Kind::Tcp, Kind::Shm, Kind::Ucx] {
        let fence = plane == Kind::Ucx;
        let size = Size {
            fence,
            ..pool_survives(plane)
        };
        search(&format!("{plane:?}, pool survives"), 500, size);
    }
}

/// Hours, if all of it is asked for.
#[test]
fn either_side_dies_or_is_stopped_with_aborts_and_keeps_the_contract() {
    for plane in [Kind::Tcp, Kind::Shm, Kind::Ucx]
        .into_iter()
        .filter(|_| is_large())
    {
        let size = Size {
            mortal: Mortal::All,
            stops: 1,
            aborts: 1,
            survives: true,
            fence: true,
            ..sender_dies(plane)
        };
        search(&format!("{plane:?}, all (large)"), 10_000, size);
    }
}
