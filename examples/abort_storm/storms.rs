//! The storms, as data: who starts when, who aborts when and from which side.
//!
//! ```text
//!   load + seed ──▶ Script { rooms, steps, pace } ──▶ driver (the same for every engine)
//! ```
//!
//! An abort waits for what can be seen (a room has bytes there and bytes missing, megabytes are
//! queued), not for a clock alone; every wait is bounded, so that a wedge does not stop a storm.

use crate::load::{LARGEST_PAGES, LAYERS, Load, PAGE_BYTES, Rng, Turn};
use crate::oracle::Shape;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use std::time::Duration;

/// Which storm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Storm {
    /// All sessions are killed at once in the middle of their transfers
    Incident,
    /// Groups of aborts at a high rate while other rooms keep coming
    Groups,
    /// Long prefills are cancelled; a healthy one must not be behind them
    Convoy,
    /// Prefill is slow to produce, decode is slow to take its leases back
    SlowReader,
    /// Room ids are used again at once, with the next attempt
    IdReuse,
    /// Both sides abort the same rooms, in either order
    BothSides,
    /// The other process is killed in mid-transfer and started again (two processes)
    PeerKill,
    /// The other process is stopped in mid-transfer and goes on later (two processes)
    PeerStop,
}

impl Storm {
    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Storm::Incident => "incident",
            Storm::Groups => "groups",
            Storm::Convoy => "convoy",
            Storm::SlowReader => "slow-reader",
            Storm::IdReuse => "id-reuse",
            Storm::BothSides => "both-sides",
            Storm::PeerKill => "peer-kill",
            Storm::PeerStop => "peer-stop",
        }
    }

    /// It does something to the other process.
    pub(crate) fn strikes(self) -> bool {
        matches!(self, Storm::PeerKill | Storm::PeerStop)
    }
}

/// One room of a script: a receiver and a sender.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RoomSpec {
    /// The engines' room id.
    pub(crate) id: u64,
    /// Which try.
    pub(crate) attempt: u32,
    /// The agent's session; its tag.
    pub(crate) session: u32,
    /// What is moved.
    pub(crate) turn: Turn,
}

impl RoomSpec {
    /// What rooms of one session are aborted by.
    pub(crate) fn tag(&self) -> String {
        format!("session-{}", self.session)
    }
}

/// One of the two sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Side {
    /// The receiver.
    Decode,
    /// The sender.
    Prefill,
}

impl Side {
    /// The other one.
    pub(crate) fn other(self) -> Side {
        match self {
            Side::Decode => Side::Prefill,
            Side::Prefill => Side::Decode,
        }
    }
}

/// What is done to the other process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strike {
    /// It is killed, and started again under its name and address.
    Kill,
    /// It is stopped for so long.
    Stop(Duration),
}

/// One abort.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kill {
    /// Place in [`Script::rooms`].
    pub(crate) room: usize,
    /// Who calls.
    pub(crate) side: Side,
    /// Through the session's tag instead of the room (decode only).
    pub(crate) by_tag: bool,
}

/// One start of a room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Start {
    /// Place in [`Script::rooms`].
    pub(crate) room: usize,
    /// Whether the prefill side starts too.
    pub(crate) prefill: bool,
}

/// What the driver does next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Start receivers, and senders where said.
    Start(Vec<Start>),
    /// Start the senders of rooms whose receivers were started before.
    StartSenders(Vec<usize>),
    /// Until `percent` of the rooms have some bytes there and some missing, and `queued` bytes
    /// were handed over and have not landed. A runtime that is too fast for such a queue is not
    /// waited for long: the rooms in flight are what matters.
    AwaitInFlight {
        rooms: Vec<usize>,
        percent: usize,
        queued: u64,
        patience: Duration,
    },
    /// Until every room's receiver has its outcome.
    AwaitAnswered {
        rooms: Vec<usize>,
        patience: Duration,
    },
    /// Abort, in this order, without waiting in between.
    Abort(Vec<Kill>),
    /// Strike the other process, which has a side of these rooms.
    Strike { rooms: Vec<usize>, strike: Strike },
    /// Until a process that was stopped goes on.
    AwaitPeer,
    /// Until so long after the first step.
    At(Duration),
}

/// How fast the engines around the runtime are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pace {
    /// Pages of one chunk.
    pub(crate) chunk_pages: u32,
    /// Time between two steps of the prefill engine; a step computes a chunk for every request.
    pub(crate) step: Duration,
    /// How long decode looks at an outcome before it takes its lease back.
    pub(crate) slow_take: Duration,
}

/// A whole storm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Script {
    /// All rooms, the probe last.
    pub(crate) rooms: Vec<RoomSpec>,
    /// In order.
    pub(crate) steps: Vec<Step>,
    /// See there.
    pub(crate) pace: Pace,
    /// Rooms that nobody aborts are done, although the other process is stopped: its session is
    /// resumed.
    pub(crate) resumes: bool,
}

/// Pages of the probe: a quarter of a mebibyte.
pub(crate) const PROBE_PAGES: u32 = 8;
/// From start to outcome; the contract's deadline for every room of a storm.
pub(crate) const DEADLINE: Duration = Duration::from_secs(15);
/// The longest a step waits.
const PATIENCE: Duration = Duration::from_secs(4);
/// What must be queued when an incident's agents are killed.
const QUEUED: u64 = 4 << 20;
/// Pages that either pool has at most, unless one room alone needs more: 256 MiB.
const POOL_PAGES: u32 = 8192;
/// Aborted prefills of a convoy.
const CONVOY: usize = 12;
/// Attempts of one room id.
const ATTEMPTS: u32 = 3;

/// A stop of this many milliseconds is survived by the session: well within what it is kept.
const SHORT_STOP: (u32, u32) = (50, 1_000);
/// And one of so many is not.
const LONG_STOP: (u32, u32) = (2_500, 3_500);

impl Script {
    /// The script of `storm` over `load`, for one process, or two of which decode's lives.
    #[cfg(test)]
    pub(crate) fn new(storm: Storm, load: &Load, seed: u64) -> Script {
        Script::with_survivor(storm, load, seed, Side::Decode)
    }

    /// The script of `storm` over `load`. If the other process is struck, the `survivor` is here.
    pub(crate) fn with_survivor(storm: Storm, load: &Load, seed: u64, survivor: Side) -> Script {
        let mut writer = Writer::new(load, seed);
        match storm {
            Storm::Incident => writer.incident(),
            Storm::Groups => writer.groups(),
            Storm::Convoy => writer.convoy(),
            Storm::SlowReader => writer.slow_reader(),
            Storm::IdReuse => writer.id_reuse(),
            Storm::BothSides => writer.both_sides(),
            Storm::PeerKill => writer.peer_kill(),
            Storm::PeerStop => writer.peer_stop(survivor),
        }
        writer.finish()
    }

    /// The same load and nobody aborts: every sender starts with its receiver.
    #[must_use]
    pub(crate) fn without_aborts(mut self) -> Script {
        self.steps.retain(|step| {
            !matches!(
                step,
                Step::Abort(_)
                    | Step::AwaitInFlight { .. }
                    | Step::StartSenders(_)
                    | Step::Strike { .. }
                    | Step::AwaitPeer
            )
        });
        for step in &mut self.steps {
            match step {
                Step::Start(starts) => starts.iter_mut().for_each(|start| start.prefill = true),
                Step::AwaitAnswered { patience, .. } => *patience = DEADLINE,
                _ => {}
            }
        }
        self
    }

    /// Pools that hold what can be open at once and a quarter more, up to 256 MiB a side; beyond
    /// that a start waits for pages.
    pub(crate) fn shape(&self, page_tokens: u32) -> Shape {
        let pages = |room: &usize| self.rooms.get(*room).map_or(0, |spec| spec.turn.pages);
        let (mut open, mut peak) = (HashSet::new(), 0u32);
        for step in &self.steps {
            match step {
                Step::Start(starts) => open.extend(starts.iter().map(|start| start.room)),
                Step::AwaitAnswered { rooms, .. } => open.retain(|room| !rooms.contains(room)),
                _ => {}
            }
            peak = peak.max(open.iter().map(pages).fold(0, u32::saturating_add));
        }
        let largest = self
            .rooms
            .iter()
            .map(|spec| spec.turn.pages)
            .max()
            .unwrap_or(1);
        let wanted = peak
            .saturating_add(peak / 4)
            .saturating_add(PROBE_PAGES)
            .min(POOL_PAGES);
        let pages = wanted.max(largest.saturating_add(PROBE_PAGES));
        Shape {
            layers: LAYERS,
            page_bytes: PAGE_BYTES,
            page_tokens,
            destination_pages: pages,
            source_pages: pages,
        }
    }

    /// Place of the probe.
    pub(crate) fn probe(&self) -> usize {
        self.rooms.len().saturating_sub(1)
    }
}

struct Writer<'a> {
    load: &'a Load,
    rng: Rng,
    rooms: Vec<RoomSpec>,
    steps: Vec<Step>,
    pace: Pace,
    resumes: bool,
    next_id: u64,
}

impl<'a> Writer<'a> {
    fn new(load: &'a Load, seed: u64) -> Self {
        let mut rng = Rng::new(seed ^ 0x5709);
        // Room ids look like the routers' random 63-bit numbers, and never meet.
        let next_id = rng.next() >> 1;
        let pace = Pace {
            // Prefill computes; a room is in flight for as many steps as it has chunks.
            chunk_pages: 4,
            step: Duration::from_millis(4),
            slow_take: Duration::ZERO,
        };
        Writer {
            load,
            rng,
            rooms: Vec::new(),
            steps: Vec::new(),
            pace,
            resumes: false,
            next_id,
        }
    }

    fn room(&mut self, session: usize, turn: Turn) -> usize {
        self.next_id = self.next_id.wrapping_add(1 + (self.rng.next() >> 40));
        self.rooms.push(RoomSpec {
            id: self.next_id,
            attempt: 0,
            session: session as u32,
            turn,
        });
        self.rooms.len() - 1
    }

    /// The rooms of all sessions' turn `number`; a session with fewer turns repeats its last.
    fn turn(&mut self, number: usize) -> Vec<usize> {
        let load = self.load;
        let mut rooms = Vec::new();
        for (session, turns) in load.sessions.iter().enumerate() {
            if let Some(turn) = turns.get(number).or_else(|| turns.last()) {
                rooms.push(self.room(session, *turn));
            }
        }
        rooms
    }

    /// Cuts the longest of these rooms until all fit the pools together: rooms that wait for pages
    /// are not in flight when the others are.
    fn fit(&mut self, rooms: &[usize]) {
        let most = (POOL_PAGES / 4 * 3 / rooms.len().max(1) as u32).max(PROBE_PAGES);
        let page_tokens = u64::from(self.load.page_tokens);
        for &room in rooms {
            if let Some(spec) = self.rooms.get_mut(room)
                && spec.turn.pages > most
            {
                spec.turn.pages = most;
                spec.turn.tokens = u64::from(most + spec.turn.skip_pages) * page_tokens;
            }
        }
    }

    fn start(&mut self, rooms: &[usize]) {
        let starts = rooms
            .iter()
            .map(|&room| Start {
                room,
                prefill: true,
            })
            .collect();
        self.steps.push(Step::Start(starts));
    }

    fn await_answered(&mut self, rooms: &[usize]) {
        self.steps.push(Step::AwaitAnswered {
            rooms: rooms.to_vec(),
            patience: PATIENCE,
        });
    }

    fn await_in_flight(&mut self, rooms: &[usize], percent: usize, queued: u64) {
        let rooms = rooms.to_vec();
        self.steps.push(Step::AwaitInFlight {
            rooms,
            percent,
            queued,
            patience: PATIENCE,
        });
    }

    fn abort(&mut self, rooms: &[usize], side: Side, by_tag: bool) {
        let kills = rooms
            .iter()
            .map(|&room| Kill { room, side, by_tag })
            .collect();
        self.steps.push(Step::Abort(kills));
    }

    /// Turn 0 is served; some sessions get through turn 1; then all are in the middle of a large
    /// one and killed. The senders of a few have not started, and some of those start afterwards.
    fn incident(&mut self) {
        let first = self.turn(0);
        self.start(&first);
        self.await_answered(&first);
        let second: Vec<usize> = self
            .turn(1)
            .into_iter()
            .filter(|_| self.rng.chance(40))
            .collect();
        self.start(&second);
        self.await_answered(&second);
        let mut last = self.turn(2);
        self.fit(&last);
        let starts: Vec<Start> = last
            .iter()
            .map(|&room| Start {
                room,
                prefill: last.len() < 4 || !self.rng.chance(12),
            })
            .collect();
        let started: Vec<usize> = starts
            .iter()
            .filter(|s| s.prefill)
            .map(|s| s.room)
            .collect();
        let late: Vec<usize> = starts
            .iter()
            .filter(|start| !start.prefill && self.rng.chance(50))
            .map(|start| start.room)
            .collect();
        self.steps.push(Step::Start(starts));
        self.await_in_flight(&started, 50, QUEUED);
        self.rng.shuffle(&mut last);
        self.abort(&last, Side::Decode, true);
        self.steps.push(Step::StartSenders(late));
        self.await_answered(&last);
    }

    /// Ten groups: each is aborted as soon as most of it is in flight, while the next group and
    /// rooms that nobody aborts start.
    fn groups(&mut self) {
        let all = self.turn(1);
        let size = (all.len() / 10).max(1);
        let groups: Vec<Vec<usize>> = all.chunks(size).map(<[usize]>::to_vec).collect();
        let mut healthy = Vec::new();
        for group in &groups {
            let session = healthy.len() % self.load.sessions.len().max(1);
            if let Some(turn) = self
                .load
                .sessions
                .get(session)
                .and_then(|t| t.first())
                .copied()
            {
                healthy.push(self.room(session + self.load.sessions.len(), turn));
            }
            let mut starting = group.clone();
            starting.extend(healthy.last());
            self.rng.shuffle(&mut starting);
            self.start(&starting);
            self.await_in_flight(group, 50, 0);
            self.abort(group, Side::Decode, false);
        }
        self.await_answered(&all);
        self.await_answered(&healthy);
    }

    fn convoy(&mut self) {
        let count = self.load.sessions.len().clamp(1, CONVOY);
        let long = |load: &Load, session: usize| {
            let turns = load.sessions.get(session)?;
            let turn = turns.iter().max_by_key(|turn| turn.pages).copied()?;
            let pages = turn.pages.max(LARGEST_PAGES);
            let tokens = u64::from(pages + turn.skip_pages) * u64::from(load.page_tokens);
            Some(Turn {
                pages,
                skip_pages: turn.skip_pages,
                tokens,
            })
        };
        let mut cancelled = Vec::new();
        for session in 0..count {
            if let Some(turn) = long(self.load, session) {
                cancelled.push(self.room(session, turn));
            }
        }
        self.start(&cancelled);
        self.await_in_flight(&cancelled, 80, QUEUED);
        self.abort(&cancelled, Side::Decode, false);
        let healthy = self.room(count, probe_turn(self.load.page_tokens));
        self.start(&[healthy]);
        self.await_answered(&[healthy]);
        self.await_answered(&cancelled);
    }

    fn slow_reader(&mut self) {
        self.pace.step = Duration::from_millis(4);
        self.pace.slow_take = Duration::from_millis(30);
        let rooms = self.turn(1);
        self.start(&rooms);
        self.await_in_flight(&rooms, 50, 0);
        let (aborted, kept): (Vec<usize>, Vec<usize>) =
            rooms.iter().partition(|_| self.rng.chance(70));
        let aborted = if aborted.is_empty() {
            rooms.clone()
        } else {
            aborted
        };
        self.abort(&aborted, Side::Decode, true);
        self.await_answered(&aborted);
        self.await_answered(&kept);
    }

    /// Every id is tried three times: the first tries are aborted in flight, the next starts as
    /// soon as the one before has its outcome, the last is left alone.
    fn id_reuse(&mut self) {
        let mut rooms = self.turn(1);
        for attempt in 0..ATTEMPTS {
            self.start(&rooms);
            if attempt + 1 < ATTEMPTS {
                self.await_in_flight(&rooms, 50, 0);
                self.abort(&rooms, Side::Decode, false);
            }
            self.await_answered(&rooms);
            if attempt + 1 < ATTEMPTS {
                let next = |&room: &usize| {
                    let mut spec = self.rooms.get(room).cloned()?;
                    spec.attempt += 1;
                    self.rooms.push(spec);
                    Some(self.rooms.len() - 1)
                };
                rooms = rooms.iter().filter_map(next).collect();
            }
        }
    }

    fn both_sides(&mut self) {
        let rooms = self.turn(1);
        self.start(&rooms);
        self.await_in_flight(&rooms, 50, 0);
        let mut kills = Vec::new();
        for &room in &rooms {
            let mut sides = [Side::Decode, Side::Prefill];
            self.rng.shuffle(&mut sides);
            kills.extend(sides.map(|side| Kill {
                room,
                side,
                by_tag: false,
            }));
        }
        // Neighbouring pairs mix, so that the second side of one comes after the first of another.
        for pair in kills.chunks_exact_mut(4) {
            if self.rng.chance(50) {
                pair.swap(1, 2);
            }
        }
        self.steps.push(Step::Abort(kills));
        self.await_answered(&rooms);
    }

    /// One turn is served; in the middle of a large one the other process is killed.
    fn peer_kill(&mut self) {
        let rooms = self.large_turn();
        self.steps.push(Step::Strike {
            rooms: rooms.clone(),
            strike: Strike::Kill,
        });
        self.await_answered(&rooms);
    }

    /// The same, and it is stopped: for less than a session is kept, or for more. While it is, the
    /// side that runs aborts a part of the rooms, and their memory is free without the other one.
    fn peer_stop(&mut self, survivor: Side) {
        let rooms = self.large_turn();
        self.resumes = self.rng.chance(50);
        let (low, high) = if self.resumes { SHORT_STOP } else { LONG_STOP };
        let time = Duration::from_millis(u64::from(self.rng.between(low, high)));
        self.steps.push(Step::Strike {
            rooms: rooms.clone(),
            strike: Strike::Stop(time),
        });
        let mut killed = rooms.clone();
        self.rng.shuffle(&mut killed);
        killed.truncate(killed.len().div_ceil(3));
        self.abort(&killed, survivor, false);
        self.steps.push(Step::AwaitPeer);
        self.await_answered(&rooms);
    }

    /// Serves the first turn, and has most rooms of the last in flight.
    fn large_turn(&mut self) -> Vec<usize> {
        // The other process is heard of late, above all on a busy machine: rooms have to be in
        // flight for longer than that.
        self.pace.step = Duration::from_millis(50);
        let first = self.turn(0);
        self.start(&first);
        self.await_answered(&first);
        let last = self.turn(2);
        self.fit(&last);
        self.start(&last);
        self.await_in_flight(&last, 60, QUEUED);
        last
    }

    fn finish(mut self) -> Script {
        let session = self.load.sessions.len() * 2;
        self.room(session, probe_turn(self.load.page_tokens));
        Script {
            rooms: self.rooms,
            steps: self.steps,
            pace: self.pace,
            resumes: self.resumes,
        }
    }
}

fn probe_turn(page_tokens: u32) -> Turn {
    let tokens = u64::from(PROBE_PAGES) * u64::from(page_tokens);
    Turn {
        pages: PROBE_PAGES,
        skip_pages: 0,
        tokens,
    }
}

mod replay;

#[cfg(test)]
#[path = "storms_tests.rs"]
mod tests;
