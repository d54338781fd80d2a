//! An entry as a few numbers: what a ring keeps of it, and a shard writes without allocating. Pure.
//!
//! ```text
//!   word 0   when, nanoseconds since the node's start
//!   word 1   what | which | role, from, to | marks | attempt      8, 8, 8, 8 and 32 bits
//!   word 2   room
//!   word 3   life, or the claim of a message
//!   word 4   leg | a number of 16 bits | one of 32 bits
//!   5 to 10  what else belongs to it
//! ```
//!
//! Rules: whatever `write` writes, `read` reads back as it was. What has a text in it, or a list longer than
//! one, has no such form ([`of`] gives none) and is kept whole beside the ring.

mod read;
mod write;

pub(super) use read::read;
pub(crate) use write::Hearing;
pub(super) use write::{frame, of, step};

use super::entry::{GateIs, Part};
use crate::ids::LegNo;
use crate::room::event::Timer;
use crate::room::{Role, StateName};

/// Words of an entry.
pub(super) const WORDS: usize = 11;

/// An entry.
pub(super) type Words = [u64; WORDS];

const ROOM: u8 = 1;
const SENT: u8 = 2;
const RECEIVED: u8 = 3;
const LEG: u8 = 4;
const GATE: u8 = 5;
const JOB: u8 = 6;
const LEASE: u8 = 7;
const REFUSED: u8 = 8;
const RETRY: u8 = 10;
/// It is kept whole elsewhere.
const WHOLE: u8 = 9;

// Marks; each kind has its own.
const HAS_CLAIM: u8 = 1;
const HAS_ROOM: u8 = 2;
const HAS_DEADLINE: u8 = 1;
const HAS_SUM: u8 = 2;
const HAS_AUX: u8 = 4;
const HAS_SECTION: u8 = 8;

/// Which event: what [`Told`] is.
mod told {
    pub(super) const START_SENDER: u8 = 0;
    pub(super) const START_RECEIVER: u8 = 1;
    pub(super) const LEG: u8 = 2;
    pub(super) const PUSH: u8 = 3;
    pub(super) const FINISH: u8 = 4;
    pub(super) const BIND: u8 = 5;
    pub(super) const CLAIM_OPENED: u8 = 6;
    pub(super) const BOUND: u8 = 7;
    pub(super) const PROGRESS: u8 = 8;
    pub(super) const COMPLETE: u8 = 9;
    pub(super) const ACCEPTED: u8 = 10;
    pub(super) const PEER_OUT: u8 = 11;
    pub(super) const MOVED: u8 = 12;
    pub(super) const JOB_LANDED: u8 = 13;
    pub(super) const JOB_REFUSED: u8 = 14;
    pub(super) const JOB_CANCELLED: u8 = 15;
    pub(super) const SUMMED: u8 = 16;
    pub(super) const TIMER: u8 = 17;
    pub(super) const QUIET: u8 = 18;
    pub(super) const PANICKED: u8 = 19;
}

const STATES: [StateName; 5] = [
    StateName::Registered,
    StateName::Transferring,
    StateName::Draining,
    StateName::Done,
    StateName::Aborted,
];
const TIMERS: [Timer; 4] = [Timer::Outcome, Timer::Stall, Timer::Drain, Timer::Explain];
const GATES: [GateIs; 6] = [
    GateIs::Open,
    GateIs::Occupied,
    GateIs::Closed,
    GateIs::WriterDead,
    GateIs::Drained,
    GateIs::Fenced,
];

/// Word 1.
#[inline]
fn head(what: u8, which: u8, states: u8, marks: u8, attempt: u32) -> u64 {
    u64::from(what)
        | u64::from(which) << 8
        | u64::from(states) << 16
        | u64::from(marks) << 24
        | u64::from(attempt) << 32
}

/// Word 4.
#[inline]
fn small(leg: LegNo, short: u16, long: u32) -> u64 {
    u64::from(leg.0) | u64::from(short) << 16 | u64::from(long) << 32
}

fn two(low: u32, high: u32) -> u64 {
    u64::from(low) | u64::from(high) << 32
}

fn low(word: u64) -> u32 {
    word as u32
}

fn high(word: u64) -> u32 {
    (word >> 32) as u32
}

#[inline]
fn states(role: Role, from: StateName, to: StateName) -> u8 {
    let role = match role {
        Role::Sender => 0,
        Role::Receiver => 1,
    };
    role | state_no(from) << 1 | state_no(to) << 4
}

#[inline]
fn state_no(state: StateName) -> u8 {
    match state {
        StateName::Registered => 0,
        StateName::Transferring => 1,
        StateName::Draining => 2,
        StateName::Done => 3,
        StateName::Aborted => 4,
    }
}

/// Stands in a ring for an entry that is kept whole.
pub(super) fn whole(part: Part) -> Words {
    let mut w = [0; WORDS];
    let (which, no) = match part {
        Part::Shard(no) => (0, no),
        Part::Lane(no) => (1, no),
        Part::Node => (2, 0),
    };
    w[1] = head(WHOLE, which, 0, 0, u32::from(no));
    w
}

/// Whether it stands for one that is kept whole.
#[inline]
pub(super) fn is_whole(w: &Words) -> bool {
    w[1] as u8 == WHOLE
}

/// The part that an entry that is kept whole is of.
pub(super) fn part(w: &Words) -> Part {
    let no = high(w[1]) as u16;
    match (w[1] >> 8) as u8 {
        0 => Part::Shard(no),
        1 => Part::Lane(no),
        _ => Part::Node,
    }
}
