//! What one run knows: its rooms, its free pages, its oracle. Engines report to it.

use crate::engine::{End, Listener, RoomNo};
use crate::oracle::{Oracle, PageStore, Shape};
use crate::storms::{RoomSpec, Side};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What happened to one side of a room. `None`: not yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct SideLog {
    /// It was started.
    pub(crate) started: Option<Instant>,
    /// Somebody called abort on this side before it had ended.
    pub(crate) aborted: Option<Instant>,
    /// The outcome.
    pub(crate) end: Option<(End, Instant)>,
    /// The last of its pages came back.
    pub(crate) back: Option<Instant>,
    /// Pages that are out.
    pub(crate) out: u32,
}

impl SideLog {
    /// From abort to the outcome, if the abort is what ended it.
    pub(crate) fn abort_to_answer(&self) -> Option<Duration> {
        match (self.aborted, &self.end) {
            (Some(called), Some((End::Aborted(_), at))) => {
                Some(at.saturating_duration_since(called))
            }
            _ => None,
        }
    }

    /// From abort to the last page being back, if the abort is what ended it.
    pub(crate) fn abort_to_reusable(&self) -> Option<Duration> {
        let called = self.abort_to_answer().and(self.aborted)?;
        let back = self.back.filter(|_| self.out == 0)?;
        Some(back.saturating_duration_since(called))
    }
}

/// One room of the run.
pub(crate) struct Room {
    /// From the script.
    pub(crate) spec: RoomSpec,
    landed: AtomicU64,
    pushed: AtomicU64,
    log: Mutex<Log>,
}

/// Both sides of a room and the bytes that had landed when its memory came back.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log {
    /// The receiver.
    pub(crate) decode: SideLog,
    /// The sender.
    pub(crate) prefill: SideLog,
    /// Destination pages of the receiver, in the order of the request.
    pub(crate) pages: Vec<u32>,
    /// Bytes landed at the end, by the engine's own account or else by its progress.
    pub(crate) landed: Option<u64>,
}

impl Log {
    /// One side's.
    pub(crate) fn side(&mut self, side: Side) -> &mut SideLog {
        match side {
            Side::Decode => &mut self.decode,
            Side::Prefill => &mut self.prefill,
        }
    }
}

impl Room {
    fn new(spec: RoomSpec) -> Self {
        Room {
            spec,
            landed: AtomicU64::new(0),
            pushed: AtomicU64::new(0),
            log: Mutex::new(Log::default()),
        }
    }

    /// Bytes that have landed.
    pub(crate) fn landed(&self) -> u64 {
        self.landed.load(Ordering::Relaxed)
    }

    /// Bytes that were handed over by prefill.
    pub(crate) fn pushed(&self) -> u64 {
        self.pushed.load(Ordering::Relaxed)
    }

    /// Prefill handed over `bytes` more.
    pub(crate) fn add_pushed(&self, bytes: u64) {
        self.pushed.fetch_add(bytes, Ordering::Relaxed);
    }

    /// What happened so far.
    pub(crate) fn log(&self) -> MutexGuard<'_, Log> {
        self.log.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See the module.
pub(crate) struct World {
    /// Sizes.
    pub(crate) shape: Shape,
    /// As in the script.
    pub(crate) rooms: Vec<Room>,
    /// The judge.
    pub(crate) oracle: Oracle,
    destination: Arc<dyn PageStore>,
    source: Arc<dyn PageStore>,
    free: [Mutex<Vec<u32>>; 2],
}

impl World {
    /// A world with all pages free.
    pub(crate) fn new(
        shape: Shape,
        specs: &[RoomSpec],
        destination: Arc<dyn PageStore>,
        source: Arc<dyn PageStore>,
    ) -> Self {
        let oracle = Oracle::new(shape, &*destination, &*source);
        let free = |pages: u32| Mutex::new((0..pages).rev().collect());
        World {
            shape,
            rooms: specs.iter().cloned().map(Room::new).collect(),
            oracle,
            destination,
            source,
            free: [free(shape.destination_pages), free(shape.source_pages)],
        }
    }

    /// Bytes that a room moves.
    pub(crate) fn wanted(&self, room: &Room) -> u64 {
        u64::from(room.spec.turn.pages) * self.shape.page_total()
    }

    /// Takes free destination pages for a room and has the oracle poison them.
    pub(crate) fn take_destination(&self, no: RoomNo) -> Option<Vec<u32>> {
        let room = self.rooms.get(no)?;
        let pages = self.take(Side::Decode, room.spec.turn.pages)?;
        self.oracle
            .destination_taken(no, &pages, &*self.destination);
        let mut log = room.log();
        log.decode.out = pages.len() as u32;
        log.pages = pages.clone();
        Some(pages)
    }

    /// Takes `count` free source pages for the pages from `first` on, and has the oracle write
    /// what prefill computed into them.
    pub(crate) fn take_source(&self, no: RoomNo, first: u32, count: u32) -> Option<Vec<u32>> {
        let room = self.rooms.get(no)?;
        let pages = self.take(Side::Prefill, count)?;
        let pairs: Vec<(u32, u32)> = {
            let mut log = room.log();
            log.prefill.out += count;
            let to = log.pages.iter().skip(first as usize);
            pages.iter().copied().zip(to.copied()).collect()
        };
        self.oracle.source_taken(no, &pairs, &*self.source);
        Some(pages)
    }

    /// How many rooms have both bytes there and bytes missing, and no outcome.
    pub(crate) fn in_flight(&self, rooms: &[RoomNo]) -> usize {
        let flying = |room: &&Room| {
            let landed = room.landed();
            landed > 0 && landed < self.wanted(room) && room.log().decode.end.is_none()
        };
        rooms
            .iter()
            .filter_map(|&no| self.rooms.get(no))
            .filter(flying)
            .count()
    }

    /// Bytes of these rooms that were handed over and have not landed.
    pub(crate) fn queued(&self, rooms: &[RoomNo]) -> u64 {
        let queued = |room: &Room| room.pushed().saturating_sub(room.landed());
        rooms
            .iter()
            .filter_map(|&no| self.rooms.get(no))
            .map(queued)
            .sum()
    }

    fn take(&self, side: Side, count: u32) -> Option<Vec<u32>> {
        let mut free = self.free(side);
        let rest = free.len().checked_sub(count as usize)?;
        Some(free.split_off(rest))
    }

    /// A page that the engine said is back and still has in its table is not used again; at the
    /// end it is what the engine lends out and nobody has.
    fn put_free(&self, side: Side, pages: &[u32], store: &dyn PageStore) {
        let free: Vec<u32> = pages
            .iter()
            .copied()
            .filter(|&page| store.is_free(page))
            .collect();
        self.free(side).extend(free);
    }

    fn free(&self, side: Side) -> MutexGuard<'_, Vec<u32>> {
        let [decode, prefill] = &self.free;
        let list = if side == Side::Decode {
            decode
        } else {
            prefill
        };
        list.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener for World {
    fn landed(&self, room: RoomNo, bytes: u64) {
        if let Some(room) = self.rooms.get(room) {
            room.landed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn ended(&self, room: RoomNo, side: Side, end: End, at: Instant) {
        if let Some(room) = self.rooms.get(room) {
            room.log().side(side).end.get_or_insert((end, at));
        }
    }

    fn destination_back(&self, no: RoomNo, pages: &[u32], landed: Option<u64>, at: Instant) {
        let Some(room) = self.rooms.get(no) else {
            return;
        };
        let done = {
            let mut log = room.log();
            log.decode.out = log.decode.out.saturating_sub(pages.len() as u32);
            log.decode.back = Some(at);
            log.landed
                .get_or_insert(landed.unwrap_or_else(|| room.landed()));
            matches!(log.decode.end, Some((End::Done, _)))
        };
        self.oracle
            .destination_back(no, pages, done, &*self.destination);
        self.put_free(Side::Decode, pages, &*self.destination);
    }

    fn source_back(&self, no: RoomNo, pages: &[u32], at: Instant) {
        self.oracle.source_back(pages, &*self.source);
        if let Some(room) = self.rooms.get(no) {
            let mut log = room.log();
            log.prefill.out = log.prefill.out.saturating_sub(pages.len() as u32);
            log.prefill.back = Some(at);
        }
        self.put_free(Side::Prefill, pages, &*self.source);
    }
}
