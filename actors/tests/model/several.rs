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

use crate::exhaustive::{SIZE, is_large, search};
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
    for plane in [Kind::Tcp, Kind::Shm] {
        let size = Size { plane, ..TWO_ROOMS };
        search(&format!("{plane:?}, two rooms"), 500, size);
        if is_large() {
            let size = Size { aborts: 1, ..size };
            search(&format!("{plane:?}, two rooms (large)"), 10_000, size);
        }
    }
}

#[test]
fn a_path_that_is_fenced_takes_all_its_rooms_and_no_memory() {
    let size = Size {
        plane: Kind::Ucx,
        fence: true,
        flush_errors: 1,
        ..TWO_ROOMS
    };
    search("Ucx, two rooms, a flush fails", 500, size);
    if is_large() {
        let size = Size {
            aborts: 1,
            losses: 1,
            ..size
        };
        search("Ucx, two rooms (large)", 10_000, size);
    }
}

#[test]
fn a_room_of_two_senders_keeps_the_contract() {
    for plane in [Kind::Tcp, Kind::Shm, Kind::Ucx] {
        let size = Size { plane, ..FAN_IN };
        search(&format!("{plane:?}, fan-in"), 500, size);
        if is_large() {
            let size = Size {
                aborts: 1,
                mortal: Mortal::Senders,
                crashes: 1,
                ..size
            };
            search(&format!("{plane:?}, fan-in (large)"), 10_000, size);
        }
    }
}

#[test]
fn a_room_of_two_receivers_keeps_the_contract() {
    for plane in [Kind::Tcp, Kind::Shm, Kind::Ucx] {
        let size = Size { plane, ..FAN_OUT };
        search(&format!("{plane:?}, fan-out"), 500, size);
        if is_large() {
            let size = Size { aborts: 1, ..size };
            search(&format!("{plane:?}, fan-out (large)"), 10_000, size);
        }
    }
}
