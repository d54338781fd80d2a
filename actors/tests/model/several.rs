//! Several rooms at once: beside each other on one route, several senders into one room, several
//! receivers of one room; and one session that is given up, or one path that is fenced, under them.
//!
//! ```text
//!   two rooms     s ═╤═ 42 ═╤═ r        what is said of one claim never touches the other
//!                    └─ 43 ─┘
//!   fan-in        s0 ═╗                 done only with the parts of both
//!                 s1 ═╩═ r
//!   fan-out       s ═╦═ r0              done only when both are
//!                    ╚═ r1
//! ```

use crate::exhaustive::{SIZE, search, search_large};
use crate::model::size::{Kind, Mortal, Size};

/// Two rooms on one route, with a claim each at the same time.
const TWO_ROOMS: Size = Size {
    rooms: 2,
    credit: 2,
    pushes: 8,
    ..SIZE
};

/// Two senders, each with a part of one room.
const FAN_IN: Size = Size {
    senders: 2,
    pushes: 8,
    ..SIZE
};

/// Two receivers of one room.
const FAN_OUT: Size = Size {
    receivers: 2,
    pushes: 8,
    ..SIZE
};

#[test]
fn two_rooms_on_one_route_leave_each_other_alone() {
    let size = |plane| Size { plane, ..TWO_ROOMS };
    search("tcp, two rooms", 7_000, size(Kind::Tcp));
    search("shm, two rooms", 3_500, size(Kind::Shm));
    let aborts = Size {
        aborts: 1,
        ..size(Kind::Shm)
    };
    search_large("shm, two rooms, abort", 10_000, aborts);
}

#[test]
fn a_path_that_is_fenced_takes_all_its_rooms_and_no_memory() {
    let size = Size {
        plane: Kind::Ucx,
        fence: true,
        flush_errors: 1,
        ..TWO_ROOMS
    };
    search("ucx, two rooms, a flush fails", 20_000, size);
    let size = Size { losses: 1, ..size };
    search_large("ucx, two rooms, a flush fails, given up", 20_000, size);
}

#[test]
fn a_room_of_two_senders_keeps_the_contract() {
    let size = |plane| Size { plane, ..FAN_IN };
    search("shm, fan-in", 3_500, size(Kind::Shm));
    search("ucx, fan-in", 5_000, size(Kind::Ucx));
    search_large("tcp, fan-in", 6_000, size(Kind::Tcp));
    let dies = Size {
        mortal: Mortal::Senders,
        crashes: 1,
        ..size(Kind::Shm)
    };
    search_large("shm, fan-in, a sender dies", 10_000, dies);
}

#[test]
fn a_room_of_two_receivers_keeps_the_contract() {
    let size = |plane| Size { plane, ..FAN_OUT };
    search("shm, fan-out", 4_000, size(Kind::Shm));
    search_large("tcp, fan-out", 10_000, size(Kind::Tcp));
    search_large("ucx, fan-out", 8_000, size(Kind::Ucx));
    let aborts = Size {
        aborts: 1,
        ..size(Kind::Shm)
    };
    search_large("shm, fan-out, abort", 10_000, aborts);
}
