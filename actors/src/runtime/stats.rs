//! Counters of a node: written by its threads, read by whoever asks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Monotone counters, all relaxed: they count, they order nothing.
#[derive(Debug, Default)]
pub struct Stats {
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
}

impl Stats {
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
        }
    }

    pub(crate) fn add(&self, counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}
