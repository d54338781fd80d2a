//! Everything that a node counts, for dashboards and alerts.
//!
//! Read without asking any of the node's threads: it answers at once, also while one of them is stuck,
//! which is when somebody looks at it. Numbers of one reading may be a moment apart.

use super::node::Node;
use kvroom_actors::fabric::Fabric;
use kvroom_actors::room::Role;
use kvroom_actors::runtime::meter::{FABRICS, Metered};
use kvroom_actors::runtime::queue::Queue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

pub use kvroom_actors::runtime::histogram::Durations;
pub use kvroom_actors::runtime::meter::MOST_NAMED;
pub use kvroom_actors::runtime::stats::Counts;
pub use kvroom_actors::runtime::tally::{RoomEnds, RoomSteps, RoomsIn};

/// A reading of all counters and gauges of a node. Counters never go down in its life.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Metrics {
    /// Since the node's start.
    pub at: Duration,
    /// Rooms ever started, by role.
    pub started: Vec<(Role, u64)>,
    /// Of those, new tries of attempts that failed, by role.
    pub retries: Vec<(Role, u64)>,
    /// Rooms now, by role and state; every pair is there.
    pub rooms: Vec<RoomsIn>,
    /// Steps of rooms from one state to another; those that were ever made.
    pub steps: Vec<RoomSteps>,
    /// How rooms ended, by role, code and side; every end is there.
    pub ends: Vec<RoomEnds>,
    /// From a room's start to its outcome, by role.
    pub room_duration: Vec<(Role, Durations)>,
    /// How long a piece took, by fabric: its copy, or over sockets from its first byte to its
    /// acknowledgement. One piece in sixteen is timed.
    pub piece_duration: Vec<(Fabric, Durations)>,
    /// From the moment that somebody here asked for an abort to the room's outcome.
    pub abort_to_answer: Durations,
    /// From the moment that somebody here asked for an abort, or else from the outcome, to the return
    /// of the leases of aborted rooms.
    pub abort_to_reusable: Durations,
    /// What concerns each peer: the first [`MOST_NAMED`] names that the node met, and last all others
    /// together.
    pub peers: Vec<PeerMetrics>,
    /// What waits for each copy lane, and on each shard's own thread.
    pub queues: Vec<QueueMetrics>,
    /// Memory that is held past its time.
    pub quarantine: Quarantine,
    /// Who had to wait, or was turned away.
    pub pressure: Pressure,
    /// Plain counters.
    pub counts: Counts,
}

/// What concerns one peer, in all of its lives. Bytes are those that landed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerMetrics {
    /// Its name; none for all peers beyond [`MOST_NAMED`] together.
    pub name: Option<String>,
    /// Bytes that this node wrote to it, by fabric. Over sockets they count when it acknowledges them.
    pub sent: Vec<(Fabric, u64)>,
    /// Bytes that came from it, by fabric. Over sockets they count with each frame; what a peer of this
    /// host writes by itself counts when the gate of its claim is closed.
    pub received: Vec<(Fabric, u64)>,
    /// Its lives with a session; one or none, but for those that are counted together.
    pub up: u64,
    /// Its lives whose session waits to be resumed.
    pub resuming: u64,
    /// Pages of rooms with it that passed their drain deadline.
    pub quarantined_pages: u64,
}

/// A queue of copy jobs.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QueueMetrics {
    /// Whose it is.
    pub of: QueueOf,
    /// Jobs there now, those that are being copied among them.
    pub queued: u64,
    /// Jobs that ever came.
    pub jobs: u64,
    /// Bytes that the lane copied itself, or read for checksums.
    pub bytes: u64,
    /// From a job's arrival to its first piece.
    pub wait: Durations,
}

/// Whose queue it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueOf {
    /// A copy lane, counted from 0: what it copies, and what goes over sockets on its thread.
    Lane(usize),
    /// A shard, counted from 0: small pieces that go over sockets on its own thread. What it copies at
    /// once waits nowhere.
    Shard(usize),
    /// The thread of UCX, if the node uses it. Bytes count with the peer alone.
    Ucx,
}

/// Memory that is held past its time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Quarantine {
    /// Rooms that passed their drain deadline and are not proven quiet.
    pub rooms: u64,
    /// Pages of those.
    pub pages: u64,
    /// How long ago the first of them passed its drain deadline.
    pub oldest: Option<Duration>,
    /// Pages that writers of former lives of the node's pools may still write.
    pub former_pages: u64,
}

/// Who had to wait, or was turned away, since the start; and how much room there is now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pressure {
    /// Starts that waited ([`crate::Limits::rooms`]).
    pub start_waited: u64,
    /// Starts of a batch that were refused ([`crate::Limits::rooms`]).
    pub start_refused: u64,
    /// `reserve` calls that waited for their room's window ([`crate::Limits::chunks_in_flight`]).
    pub reserve_waited_for_window: u64,
    /// `reserve` calls that waited for the lanes ([`crate::Limits::jobs_per_lane`]).
    pub reserve_waited_for_lanes: u64,
    /// `try_reserve` calls that found their room's window full.
    pub reserve_refused_by_window: u64,
    /// `try_reserve` calls that found the lanes full.
    pub reserve_refused_by_lanes: u64,
    /// Claims that had to wait for a peer's credit ([`crate::Limits::claims_per_peer`] there).
    pub claims_waited: u64,
    /// Claims that wait for a peer's credit now.
    pub claims_waiting: u64,
    /// [`crate::Limits::rooms`].
    pub rooms_limit: u64,
    /// Rooms of those that could start now.
    pub rooms_free: u64,
    /// Jobs that all lanes hold together.
    pub jobs_limit: u64,
    /// Of those, what is free now.
    pub jobs_free: u64,
}

impl Node {
    /// Everything that this node counts. Asks none of its threads, and takes microseconds.
    pub fn metrics(&self) -> Metrics {
        let shared = self.shared();
        let (stats, now) = (&shared.stats, shared.now());
        let rooms = &stats.rooms;
        let pieces = FABRICS.into_iter().zip(stats.meters.pieces());
        let lanes = (0..).map(QueueOf::Lane).zip(&stats.lanes);
        let homes = (0..).map(QueueOf::Shard).zip(&stats.homes);
        let ucx = matches!(shared.ucx, Some(Ok(_))).then_some((QueueOf::Ucx, &stats.ucx));
        let oldest = stats.oldest.iter().filter_map(|o| o.since()).min();
        // Not borrowed for longer than that: who adds a pool waits for it, and shards behind that.
        let pools = std::sync::Arc::clone(&shared.pools.borrow());
        let former = pools.quarantined();
        Metrics {
            at: now.since(Default::default()),
            started: rooms.begun().to_vec(),
            retries: rooms.retries().to_vec(),
            rooms: rooms.present(),
            steps: rooms.steps(),
            ends: rooms.ends(),
            room_duration: rooms.lasted().to_vec(),
            piece_duration: pieces.map(|(fabric, h)| (fabric, h.read())).collect(),
            abort_to_answer: rooms.abort_to_answer(),
            abort_to_reusable: rooms.abort_to_reusable(),
            peers: stats
                .meters
                .read()
                .into_iter()
                .map(PeerMetrics::from)
                .collect(),
            queues: lanes
                .chain(homes)
                .chain(ucx)
                .map(|(of, q)| QueueMetrics::new(of, q))
                .collect(),
            quarantine: Quarantine {
                rooms: get(&stats.quarantined_now),
                pages: get(&stats.quarantined_pages),
                oldest: oldest.map(|since| now.since(since)),
                former_pages: former as u64,
            },
            pressure: Pressure {
                start_waited: get(&stats.start_waited),
                start_refused: get(&stats.start_full),
                reserve_waited_for_window: get(&stats.reserve_waited_window),
                reserve_waited_for_lanes: get(&stats.reserve_waited_jobs),
                reserve_refused_by_window: get(&stats.reserve_full_window),
                reserve_refused_by_lanes: get(&stats.reserve_full_jobs),
                claims_waited: get(&stats.claims_waited),
                claims_waiting: get(&stats.claims_waiting),
                rooms_limit: shared.limits.rooms as u64,
                rooms_free: shared.rooms.available_permits() as u64,
                jobs_limit: shared.job_slots as u64,
                jobs_free: shared.jobs.available_permits() as u64,
            },
            counts: stats.read(),
        }
    }
}

impl QueueMetrics {
    fn new(of: QueueOf, queue: &Queue) -> Self {
        QueueMetrics {
            of,
            queued: queue.jobs(),
            jobs: queue.came(),
            bytes: queue.bytes(),
            wait: queue.waited(),
        }
    }
}

impl From<Metered> for PeerMetrics {
    fn from(m: Metered) -> Self {
        PeerMetrics {
            name: m.name,
            sent: FABRICS.into_iter().zip(m.sent).collect(),
            received: FABRICS.into_iter().zip(m.received).collect(),
            up: m.up,
            resuming: m.resuming,
            quarantined_pages: m.quarantined_pages,
        }
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}
