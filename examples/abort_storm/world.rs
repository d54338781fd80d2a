//! What one run knows: its rooms and the pages of both sides. Engines report to it.
//!
//! With two processes each has a world of the same script. What happens in the other one is
//! reported to the same listener.

use crate::engine::{End, Listener, RoomNo};
use crate::memory::{Destination, DestinationPages, Source, SourcePages};
use crate::oracle::{PageStore, Shape};
use crate::stamp::Stamps;
use crate::storms::{RoomSpec, Side};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Pages of one room that have not come back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Out {
    /// On the receiving side.
    pub(crate) destination: u64,
    /// On the sending side.
    pub(crate) source: u64,
}

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
    /// The receiving side's pages, and the judge.
    pub(crate) destination: Box<dyn Destination>,
    source: Box<dyn Source>,
    moments: Mutex<Vec<(String, Instant)>>,
}

/// The stamps of a script.
pub(crate) fn stamps(shape: Shape, specs: &[RoomSpec]) -> Arc<Stamps> {
    let pages = specs.iter().map(|spec| spec.turn.pages);
    Arc::new(Stamps::new(pages, shape.source_pages))
}

impl World {
    /// A world with all pages free.
    pub(crate) fn new(
        shape: Shape,
        specs: &[RoomSpec],
        destination: Box<dyn Destination>,
        source: Box<dyn Source>,
    ) -> Self {
        World {
            shape,
            rooms: specs.iter().cloned().map(Room::new).collect(),
            destination,
            source,
            moments: Mutex::default(),
        }
    }

    /// A world with the pages of both sides in this process.
    pub(crate) fn whole(
        shape: Shape,
        specs: &[RoomSpec],
        destination: Arc<dyn PageStore>,
        source: Arc<dyn PageStore>,
    ) -> Self {
        let stamps = stamps(shape, specs);
        let destination = DestinationPages::new(shape, Arc::clone(&stamps), destination);
        let source = SourcePages::new(shape, stamps, source);
        World::new(shape, specs, Box::new(destination), Box::new(source))
    }

    /// Bytes that a room moves.
    pub(crate) fn wanted(&self, room: &Room) -> u64 {
        u64::from(room.spec.turn.pages) * self.shape.page_total()
    }

    /// Takes free destination pages for a room and has the oracle poison them.
    pub(crate) fn take_destination(&self, no: RoomNo) -> Option<Vec<u32>> {
        let room = self.rooms.get(no)?;
        let pages = self.destination.take(no, room.spec.turn.pages)?;
        let mut log = room.log();
        log.decode.out = pages.len() as u32;
        log.pages = pages.clone();
        Some(pages)
    }

    /// Takes `count` free source pages for the pages from `first` on, and has what prefill computed
    /// written into them.
    pub(crate) fn take_source(&self, no: RoomNo, first: u32, count: u32) -> Option<Vec<u32>> {
        let pages = self.source.take(no, first, count)?;
        self.placed(no, first, &pages);
        Some(pages)
    }

    /// Source pages were taken for the room's pages from `first` on.
    pub(crate) fn placed(&self, no: RoomNo, first: u32, pages: &[u32]) {
        if let Some(room) = self.rooms.get(no) {
            room.log().prefill.out += pages.len() as u32;
        }
        self.destination.placed(no, first, pages);
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

    /// The rooms whose pages have not come back.
    pub(crate) fn out(&self) -> BTreeMap<RoomNo, Out> {
        let mut out: BTreeMap<RoomNo, Out> = BTreeMap::new();
        for (room, pages) in self.destination.out() {
            out.entry(room).or_default().destination = pages;
        }
        for (room, pages) in self.source.out() {
            out.entry(room).or_default().source = pages;
        }
        out
    }

    /// The process that played this side is gone, and with it its rooms and its pages.
    pub(crate) fn side_lost(&self, side: Side, at: Instant) {
        for room in &self.rooms {
            let mut log = room.log();
            let log = log.side(side);
            if log.started.is_some() {
                log.out = 0;
                log.end
                    .get_or_insert((End::Aborted("its process was killed".into()), at));
            }
        }
    }

    /// Something that happened to the whole run, for the timeline.
    pub(crate) fn mark(&self, what: &str) {
        lock(&self.moments).push((what.to_owned(), Instant::now()));
    }

    /// What was marked.
    pub(crate) fn moments(&self) -> Vec<(String, Instant)> {
        lock(&self.moments).clone()
    }
}

impl Listener for World {
    fn pushed(&self, room: RoomNo, bytes: u64) {
        if let Some(room) = self.rooms.get(room) {
            room.pushed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn landed(&self, room: RoomNo, bytes: u64) {
        if let Some(room) = self.rooms.get(room) {
            room.landed.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    fn ended(&self, room: RoomNo, side: Side, end: End, at: Instant) {
        if side == Side::Prefill && end != End::Done {
            self.destination.voided(room);
        }
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
        self.destination.back(no, pages, done);
    }

    fn source_back(&self, no: RoomNo, pages: &[u32], at: Instant) {
        // Spoiled before anything else: whoever reads on reads what nobody sends.
        self.source.back(pages);
        if let Some(room) = self.rooms.get(no) {
            let mut log = room.log();
            log.prefill.out = log.prefill.out.saturating_sub(pages.len() as u32);
            log.prefill.back = Some(at);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
