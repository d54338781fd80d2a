//! What a room's handle and its shard share: the state for `poll`, the outcome, and what comes back.
//!
//! One side writes (the shard), the other reads (whoever holds the handle). Each cell is written
//! once, except the state, which is one atomic word.

use crate::ids::Tick;
use crate::memory::{GateLanded, Lease, Proof, ReadLease};
use crate::reason::{Code, Reason};
use crate::room::{Outcome, StateName};
use crate::supervisor::custody::Held;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokio::sync::Notify;

/// A room as `poll` sees it: one atomic load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Status {
    /// The room's state. While a room drains its outcome is known already.
    pub state: StateName,
    /// The outcome can be read without waiting.
    pub ended: bool,
    /// What was lent is back, on proof, and can be taken without waiting.
    pub released: bool,
    /// What was lent will never come back: the node stopped before it was proven that nobody writes or
    /// reads it any more. It is not unmapped, and nobody may use it again while this process lives.
    pub leaked: bool,
}

/// What had landed at the receiver when its gates closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Landed {
    /// Pieces that were copied.
    pub pieces: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Bytes that the room wanted in all.
    pub wanted: u64,
}

impl Landed {
    /// Adds what a gate counted; the bytes of it that count. A peer that shares memory counts by itself, in
    /// words that it may have damaged: one gate counts for no more than the room wanted.
    pub(crate) fn add(&mut self, gate: GateLanded) -> u64 {
        let bytes = gate.bytes.min(self.wanted);
        self.pieces = self.pieces.saturating_add(gate.pieces);
        self.bytes = self.bytes.saturating_add(bytes);
        bytes
    }
}

/// Leases that came back, with what proves that they may be used again.
#[derive(Debug)]
pub struct Back {
    /// The leases; not the chunks that had come back before.
    pub leases: Vec<(Held, Lease)>,
    /// What the return rests on: one for each claim or leg.
    pub proofs: Vec<Proof>,
    /// What had landed.
    pub landed: Landed,
}

/// Shared by the handle of a room and its shard.
#[derive(Debug)]
pub struct RoomShared {
    status: AtomicU32,
    /// When its abort began, on the node's clock; zero if it did not.
    abort_at: AtomicU64,
    outcome: OnceLock<Outcome>,
    back: Mutex<Option<Box<Back>>>,
    changed: Notify,
}

const ENDED: u32 = 1 << 8;
const RELEASED: u32 = 1 << 9;
const LEAKED: u32 = 1 << 10;

impl Default for RoomShared {
    fn default() -> Self {
        RoomShared {
            status: AtomicU32::new(code(StateName::Registered)),
            abort_at: AtomicU64::new(0),
            outcome: OnceLock::new(),
            back: Mutex::new(None),
            changed: Notify::new(),
        }
    }
}

impl RoomShared {
    /// The room's state, by one atomic load.
    pub fn status(&self) -> Status {
        let word = self.status.load(Ordering::Acquire);
        let state = match word & 0xff {
            0 => StateName::Registered,
            1 => StateName::Transferring,
            2 => StateName::Draining,
            3 => StateName::Done,
            _ => StateName::Aborted,
        };
        Status {
            state,
            ended: word & ENDED != 0,
            released: word & RELEASED != 0,
            leaked: word & LEAKED != 0,
        }
    }

    /// The outcome, if it is known.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.get()
    }

    /// Notes when somebody asked for the room's abort; the first time counts.
    pub fn abort_asked(&self, at: Tick) {
        let (order, at) = (Ordering::Relaxed, at.0.max(1));
        let _ = self.abort_at.compare_exchange(0, at, order, order);
    }

    /// When its abort began, if it did.
    pub(crate) fn abort_began(&self) -> Option<Tick> {
        match self.abort_at.load(Ordering::Relaxed) {
            0 => None,
            at => Some(Tick(at)),
        }
    }

    /// Waits for the outcome.
    pub async fn wait_outcome(&self) -> Outcome {
        loop {
            let changed = self.changed.notified();
            if let Some(outcome) = self.outcome.get() {
                return outcome.clone();
            }
            changed.await;
        }
    }

    /// Waits until the leases are back, or are known never to come.
    pub async fn wait_released(&self) {
        loop {
            let changed = self.changed.notified();
            if self.is_over() {
                return;
            }
            changed.await;
        }
    }

    fn is_over(&self) -> bool {
        let status = self.status();
        status.released || status.leaked
    }

    /// Takes what came back; the first caller gets it.
    pub fn take_back(&self) -> Option<Box<Back>> {
        self.back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    pub(crate) fn set_state(&self, state: StateName) {
        let bits = self.status.load(Ordering::Relaxed) & (ENDED | RELEASED | LEAKED);
        // Only the shard writes.
        self.status.store(bits | code(state), Ordering::Release);
    }

    pub(crate) fn publish(&self, outcome: Outcome) {
        let state = match outcome {
            Outcome::Done => StateName::Done,
            Outcome::Aborted(_) => StateName::Draining,
        };
        if self.outcome.set(outcome).is_ok() {
            let memory = self.status.load(Ordering::Relaxed) & (RELEASED | LEAKED);
            self.status
                .store(code(state) | ENDED | memory, Ordering::Release);
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn give_back(&self, back: Back) {
        *self.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(back));
        let state = match self.outcome.get() {
            Some(Outcome::Done) => StateName::Done,
            _ => StateName::Aborted,
        };
        self.status
            .store(code(state) | ENDED | RELEASED, Ordering::Release);
        self.changed.notify_waiters();
    }

    /// The shard is gone, or forgets the room: nothing will ever be given back. Does nothing if it
    /// was.
    pub(crate) fn lost(&self) {
        if self.is_over() {
            return;
        }
        self.publish(Outcome::Aborted(Reason::new(
            Code::NodeShutdown,
            "the node stopped before the room had ended",
        )));
        self.status.fetch_or(ENDED | LEAKED, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// The shard's end of a [`RoomShared`]. Dropped with the room still held, however that happens, it
/// tells whoever waits that nothing will come, so that nobody waits for ever.
#[derive(Debug)]
pub(crate) struct RoomPromise(Arc<RoomShared>);

impl RoomPromise {
    pub(crate) fn new(shared: Arc<RoomShared>) -> Self {
        RoomPromise(shared)
    }
}

impl std::ops::Deref for RoomPromise {
    type Target = RoomShared;

    fn deref(&self) -> &RoomShared {
        &self.0
    }
}

impl Drop for RoomPromise {
    fn drop(&mut self) {
        self.0.lost();
    }
}

fn code(state: StateName) -> u32 {
    match state {
        StateName::Registered => 0,
        StateName::Transferring => 1,
        StateName::Draining => 2,
        StateName::Done => 3,
        StateName::Aborted => 4,
    }
}

/// Shared by a pushed chunk's handle and the shard: the source lease on its way back.
#[derive(Debug, Default)]
pub struct ChunkShared {
    back: Mutex<Option<ChunkBack>>,
    done: std::sync::atomic::AtomicBool,
    changed: Notify,
}

/// A chunk's lease, returned.
#[derive(Debug)]
pub struct ChunkBack {
    /// The lease.
    pub lease: ReadLease,
    /// Why it was not taken; none if it landed, or ended with its room.
    pub bounced: Option<Reason>,
}

impl ChunkShared {
    /// Waits for the lease; the first caller gets it.
    pub async fn wait(&self) -> Option<ChunkBack> {
        loop {
            let changed = self.changed.notified();
            if self.done.load(Ordering::Acquire) {
                return self
                    .back
                    .lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .take();
            }
            changed.await;
        }
    }

    /// The lease, if it is back.
    pub fn take(&self) -> Option<ChunkBack> {
        self.back
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    fn done(&self) {
        self.done.store(true, Ordering::Release);
        self.changed.notify_waiters();
    }
}

/// The runtime's end of a [`ChunkShared`]. Dropped without a lease, it tells whoever waits that none
/// will come, so that nobody waits for ever.
#[derive(Debug)]
pub struct ChunkPromise(Arc<ChunkShared>);

impl ChunkPromise {
    /// A promise to whoever holds `shared`.
    pub fn new(shared: &Arc<ChunkShared>) -> Self {
        ChunkPromise(Arc::clone(shared))
    }

    /// Whether anybody can still take the lease.
    pub(crate) fn is_awaited(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    pub(crate) fn keep(self, back: ChunkBack) {
        *self.0.back.lock().unwrap_or_else(PoisonError::into_inner) = Some(back);
    }
}

impl Drop for ChunkPromise {
    fn drop(&mut self) {
        self.0.done();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_leaked_is_never_said_to_be_released() {
        let shared = RoomShared::default();
        shared.lost();
        let status = shared.status();
        assert!(
            status.ended && status.leaked && !status.released,
            "{status:?}"
        );
        shared.set_state(StateName::Draining);
        assert!(shared.status().leaked && !shared.status().released);

        let shared = RoomShared::default();
        shared.publish(Outcome::Done);
        shared.give_back(Back {
            leases: Vec::new(),
            proofs: Vec::new(),
            landed: Landed::default(),
        });
        shared.lost();
        let status = shared.status();
        assert!(status.released && !status.leaked, "{status:?}");
    }

    #[test]
    fn what_a_peer_says_of_itself_counts_for_no_more_than_was_wanted_and_never_wraps() {
        let mut landed = Landed {
            wanted: 100,
            ..Landed::default()
        };
        let gate = |pieces, bytes| GateLanded { pieces, bytes };
        assert_eq!(landed.add(gate(2, 60)), 60);
        assert_eq!((landed.pieces, landed.bytes), (2, 60));
        for _ in 0..3 {
            assert_eq!(landed.add(gate(u64::MAX, u64::MAX)), 100);
        }
        assert_eq!((landed.pieces, landed.bytes), (u64::MAX, 360));
    }
}
