//! Counters of a node: written by its threads, read by whoever asks, at any time and without asking
//! any of them: so they can be read while one of the threads is stuck.

use super::meter::Meters;
use super::queue::{Oldest, Queue};
use super::tally::Tally;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Monotone counters, all relaxed: they count, they order nothing.
#[derive(Debug)]
pub struct Stats {
    /// Rooms by state, end and time.
    pub rooms: Tally,
    /// Bytes by peer, and how long pieces took.
    pub meters: Meters,
    /// What waits on each lane.
    pub lanes: Box<[Arc<Queue>]>,
    /// What waits for sockets on each shard's own thread.
    pub homes: Box<[Arc<Queue>]>,
    /// What waits for the thread of UCX.
    pub ucx: Arc<Queue>,
    /// Of each shard.
    pub oldest: Box<[Oldest]>,
    /// Rooms that are quarantined now.
    pub quarantined_now: AtomicU64,
    /// Their pages.
    pub quarantined_pages: AtomicU64,
    /// Claims that wait for a peer's credit now.
    pub claims_waiting: AtomicU64,
    /// Claims that ever waited for a peer's credit.
    pub claims_waited: AtomicU64,
    /// Starts that waited for room.
    pub start_waited: AtomicU64,
    /// Starts of a batch that were refused for want of room.
    pub start_full: AtomicU64,
    /// `reserve` calls that waited for the room's own window.
    pub reserve_waited_window: AtomicU64,
    /// `reserve` calls that waited for the lanes.
    pub reserve_waited_jobs: AtomicU64,
    /// `try_reserve` calls that found the room's own window full.
    pub reserve_full_window: AtomicU64,
    /// `try_reserve` calls that found the lanes full.
    pub reserve_full_jobs: AtomicU64,
    /// Frames of a session that had come before.
    pub duplicate_frames: AtomicU64,
    /// Bytes that lanes copied (or read for checksums).
    pub copied_bytes: AtomicU64,
    /// Rooms admitted.
    pub started: AtomicU64,
    /// Rooms that ended `Done`.
    pub done: AtomicU64,
    /// Rooms that ended `Aborted`.
    pub aborted: AtomicU64,
    /// Copy jobs that met a closed gate.
    pub refused_jobs: AtomicU64,
    /// Payload bytes that network lanes placed into pages.
    pub received_bytes: AtomicU64,
    /// Payload bytes that arrived for a claim whose gate was closed, and were thrown away.
    pub late_bytes: AtomicU64,
    /// Frames that had such bytes.
    pub late_frames: AtomicU64,
    /// Frames that their sender declared void.
    pub void_frames: AtomicU64,
    /// Frames whose payload had a wrong sum.
    pub corrupt_frames: AtomicU64,
    /// Messages about claims that are not live.
    pub stale_messages: AtomicU64,
    /// Events that meant nothing in their room's state.
    pub stale_events: AtomicU64,
    /// Chunks pushed twice with the same pages.
    pub repeated_chunks: AtomicU64,
    /// Claims refused.
    pub claims_refused: AtomicU64,
    /// Rooms that passed their drain deadline.
    pub quarantined: AtomicU64,
    /// Room actors that panicked.
    pub panicked: AtomicU64,
    /// Witnesses that nobody owed.
    pub stray_witnesses: AtomicU64,
    /// Gate words of peers on this host that did not say any more that a writer of this node is inside.
    pub overwritten_words: Arc<AtomicU64>,
    /// Sessions begun, with any peer.
    pub sessions_opened: AtomicU64,
    /// Sessions that went on over another connection.
    pub sessions_resumed: AtomicU64,
    /// Connections of sessions that were lost.
    pub transports_lost: AtomicU64,
    /// Greetings that ended because one side did not want the other.
    pub greetings_refused: AtomicU64,
    /// Greetings that were put out to make room for another.
    pub greetings_put_out: AtomicU64,
}

impl Default for Stats {
    fn default() -> Self {
        Stats::new(1, 1)
    }
}

/// A reading of [`Stats`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[allow(missing_docs)] // The same names as in `Stats`.
pub struct Counts {
    pub copied_bytes: u64,
    pub started: u64,
    pub done: u64,
    pub aborted: u64,
    pub refused_jobs: u64,
    pub received_bytes: u64,
    pub late_bytes: u64,
    pub late_frames: u64,
    pub void_frames: u64,
    pub corrupt_frames: u64,
    pub stale_messages: u64,
    pub stale_events: u64,
    pub repeated_chunks: u64,
    pub claims_refused: u64,
    pub quarantined: u64,
    pub panicked: u64,
    pub stray_witnesses: u64,
    pub overwritten_words: u64,
    pub sessions_opened: u64,
    pub sessions_resumed: u64,
    pub transports_lost: u64,
    pub greetings_refused: u64,
    pub greetings_put_out: u64,
    pub duplicate_frames: u64,
}

impl Stats {
    /// Of a node with so many shards and lanes.
    pub fn new(shards: usize, lanes: usize) -> Self {
        Stats {
            rooms: Tally::default(),
            meters: Meters::default(),
            lanes: (0..lanes).map(|_| Arc::default()).collect(),
            homes: (0..shards).map(|_| Arc::default()).collect(),
            ucx: Arc::default(),
            oldest: (0..shards).map(|_| Oldest::default()).collect(),
            quarantined_now: Default::default(),
            quarantined_pages: Default::default(),
            claims_waiting: Default::default(),
            claims_waited: Default::default(),
            start_waited: Default::default(),
            start_full: Default::default(),
            reserve_waited_window: Default::default(),
            reserve_waited_jobs: Default::default(),
            reserve_full_window: Default::default(),
            reserve_full_jobs: Default::default(),
            duplicate_frames: Default::default(),
            copied_bytes: Default::default(),
            started: Default::default(),
            done: Default::default(),
            aborted: Default::default(),
            refused_jobs: Default::default(),
            received_bytes: Default::default(),
            late_bytes: Default::default(),
            late_frames: Default::default(),
            void_frames: Default::default(),
            corrupt_frames: Default::default(),
            stale_messages: Default::default(),
            stale_events: Default::default(),
            repeated_chunks: Default::default(),
            claims_refused: Default::default(),
            quarantined: Default::default(),
            panicked: Default::default(),
            stray_witnesses: Default::default(),
            overwritten_words: Default::default(),
            sessions_opened: Default::default(),
            sessions_resumed: Default::default(),
            transports_lost: Default::default(),
            greetings_refused: Default::default(),
            greetings_put_out: Default::default(),
        }
    }

    /// All counters now.
    pub fn read(&self) -> Counts {
        let get = |c: &AtomicU64| c.load(Ordering::Relaxed);
        Counts {
            copied_bytes: get(&self.copied_bytes),
            started: get(&self.started),
            done: get(&self.done),
            aborted: get(&self.aborted),
            refused_jobs: get(&self.refused_jobs),
            received_bytes: get(&self.received_bytes),
            late_bytes: get(&self.late_bytes),
            late_frames: get(&self.late_frames),
            void_frames: get(&self.void_frames),
            corrupt_frames: get(&self.corrupt_frames),
            stale_messages: get(&self.stale_messages),
            stale_events: get(&self.stale_events),
            repeated_chunks: get(&self.repeated_chunks),
            claims_refused: get(&self.claims_refused),
            quarantined: get(&self.quarantined),
            panicked: get(&self.panicked),
            stray_witnesses: get(&self.stray_witnesses),
            overwritten_words: get(&self.overwritten_words),
            sessions_opened: get(&self.sessions_opened),
            sessions_resumed: get(&self.sessions_resumed),
            transports_lost: get(&self.transports_lost),
            greetings_refused: get(&self.greetings_refused),
            greetings_put_out: get(&self.greetings_put_out),
            duplicate_frames: get(&self.duplicate_frames),
        }
    }

    /// Adds one to one of them.
    pub fn add(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
