//! Who posts next, and how much: windows of rooms on one route. Pure.
//!
//! ```text
//!   job ─▶ room ─ ready ─▶ Scheduler ─▶ next ─▶ Part: puts, then a flush ─▶ flushed ─┐
//!            ▲                                                                       │
//!            └── a part of its window is free ◀──────────────────────────────────────┘
//! ```
//!
//! Rules:
//! - What a room has posted and not flushed is at most its window, in bytes and in puts. A window has two
//!   parts, so that the network has something to do while the first one's flush comes back.
//! - A room with something to post waits for others no longer than a part of each of them; interactive
//!   rooms go first, as on lanes.
//! - A job comes out of here once: when all of it was posted, or when it is taken out.

use crate::copy::schedule::{Class, Config, Scheduler, Turn, Work};
use std::collections::{BTreeMap, VecDeque};

/// Parts of a window.
const PARTS: u32 = 2;

/// What may be posted and not flushed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of a room.
    pub(super) bytes: u64,
    /// Puts of a room.
    pub(super) puts: u32,
    /// Jobs of the route that wait or are being posted.
    pub(super) jobs: usize,
}

/// A room, in one class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Room {
    pub(super) life: u64,
    pub(super) class: Class,
}

/// What a room may post now, to be flushed together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    pub(super) room: Room,
    pub(super) bytes: u64,
    pub(super) puts: u32,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Windows {
    part: (u64, u32),
    jobs: usize,
    held: usize,
    ready: Scheduler<Ready>,
    rooms: BTreeMap<Room, State>,
}

/// A room's place in the scheduler.
#[derive(Debug)]
struct Ready(u64);

impl Work for Ready {
    fn remaining(&self) -> u64 {
        self.0
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

#[derive(Debug, Default)]
struct State {
    /// Of which something is to be posted, the first one first.
    jobs: VecDeque<u32>,
    /// Parts that were posted and not flushed.
    out: u32,
    /// It is in the scheduler.
    ready: bool,
}

impl Windows {
    pub(super) fn new(limits: Limits) -> Self {
        let bytes = (limits.bytes / u64::from(PARTS)).max(1);
        let puts = (limits.puts / PARTS).max(1);
        let jobs = limits.jobs.max(1);
        let config = Config {
            interactive_piece: bytes,
            bulk_piece: bytes,
            capacity: jobs,
            ..Config::default()
        };
        Windows {
            part: (bytes, puts),
            jobs,
            held: 0,
            ready: Scheduler::new(&config),
            rooms: BTreeMap::new(),
        }
    }

    /// A job comes, behind those of its room. False if there are too many.
    #[must_use]
    pub(super) fn push(&mut self, room: Room, job: u32) -> bool {
        if self.held >= self.jobs {
            return false;
        }
        self.held += 1;
        self.rooms.entry(room).or_default().jobs.push_back(job);
        self.wake(room);
        true
    }

    /// Who posts next. Then each of its jobs that is posted whole is [taken out](Self::take), and
    /// [`Self::posted`] says that this is done.
    pub(super) fn next(&mut self) -> Option<Part> {
        let Turn::Piece(turn) = self.ready.next()? else {
            return None; // None is ever cancelled.
        };
        let room = Room {
            life: turn.flow(),
            class: turn.class(),
        };
        let budget = turn.budget();
        // One that can go on comes back, behind the others.
        drop(turn.report(budget, true));
        if let Some(state) = self.rooms.get_mut(&room) {
            state.ready = false;
        }
        let (bytes, puts) = self.part;
        Some(Part { room, bytes, puts })
    }

    /// The job that a room posts now.
    pub(super) fn front(&self, room: Room) -> Option<u32> {
        self.rooms.get(&room)?.jobs.front().copied()
    }

    /// Takes a job out: it was posted whole, or is to be posted no more. False if it is not here.
    pub(super) fn take(&mut self, room: Room, job: u32) -> bool {
        let Some(state) = self.rooms.get_mut(&room) else {
            return false;
        };
        let Some(at) = state.jobs.iter().position(|j| *j == job) else {
            return false;
        };
        state.jobs.remove(at);
        self.held -= 1;
        self.forget(room);
        true
    }

    /// A room has posted what it could; whether there is something that will be flushed.
    pub(super) fn posted(&mut self, room: Room, something: bool) {
        if let Some(state) = self.rooms.get_mut(&room) {
            state.out += u32::from(something);
        } else if something {
            let state = self.rooms.entry(room).or_default();
            state.out = 1;
        }
        self.wake(room);
        self.forget(room);
    }

    /// A part of a room's window is flushed.
    pub(super) fn flushed(&mut self, room: Room) {
        if let Some(state) = self.rooms.get_mut(&room) {
            state.out = state.out.saturating_sub(1);
        }
        self.wake(room);
        self.forget(room);
    }

    /// Jobs of a room that wait or are being posted, in their order.
    pub(super) fn jobs_of(&self, life: u64) -> Vec<(Room, u32)> {
        let both = [Class::Interactive, Class::Bulk].map(|class| Room { life, class });
        let jobs = both.into_iter().filter_map(|room| {
            let state = self.rooms.get(&room)?;
            Some(state.jobs.iter().map(move |job| (room, *job)))
        });
        jobs.flatten().collect()
    }

    /// Puts a room into the scheduler, if it has something to post and room for it.
    fn wake(&mut self, room: Room) {
        let Some(state) = self.rooms.get_mut(&room) else {
            return;
        };
        if state.ready || state.jobs.is_empty() || state.out >= PARTS {
            return;
        }
        // There is a place: no more rooms are ready than there are jobs.
        let pushed = self.ready.push(room.life, room.class, Ready(self.part.0));
        state.ready = pushed.is_ok();
    }

    fn forget(&mut self, room: Room) {
        let idle = |s: &State| s.jobs.is_empty() && s.out == 0 && !s.ready;
        if self.rooms.get(&room).is_some_and(idle) {
            self.rooms.remove(&room);
        }
    }
}

#[cfg(test)]
mod tests;
