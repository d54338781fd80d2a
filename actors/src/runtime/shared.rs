//! What all threads of a node read: its name, limits, clock and pools. Immutable, or atomic.

use super::pulse::{Beats, Entrance};
use super::stats::Stats;
use crate::fabric::ucx::{Ucx, UcxError};
use crate::ids::{ClaimNo, Incarnation, LifeId, PoolId, RoomId, Tick};
use crate::limits::{Deadlines, Limits};
use crate::memory::{
    ClaimNumbers, GateTable, Origin, Pool, ProcessId, SharedError, SharedMemory, gate_table,
};
use crate::record::Recorder;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;
use tokio::sync::{Semaphore, watch};

/// One pool of a node.
#[derive(Clone, Debug)]
pub struct NamedPool {
    /// What peers call it.
    pub id: PoolId,
    /// The pool.
    pub pool: Pool,
}

/// The pools of a node at one moment.
#[derive(Clone, Debug, Default)]
pub struct Pools {
    /// All that take new rooms, by id.
    pub pools: Vec<NamedPool>,
}

impl Pools {
    /// The pool of this name.
    pub fn named(&self, name: &str) -> Option<&NamedPool> {
        self.pools.iter().find(|p| p.pool.layout().name == name)
    }

    /// Memory for a gate table of a peer's process, if it has to outlive this one: beside a pool that
    /// does.
    pub(crate) fn gate_table(
        &self,
        writer: &ProcessId,
        bytes: usize,
    ) -> Option<Result<SharedMemory, SharedError>> {
        gate_table(self.pools.iter().map(|p| &p.pool), writer, bytes)
    }

    /// Whether gate tables are files.
    pub(crate) fn gate_tables_are_files(&self) -> bool {
        self.pools.iter().any(|p| p.pool.attachment().is_some())
    }

    /// Pages that former lives of the pools may still write.
    pub fn quarantined(&self) -> usize {
        self.pools.iter().map(|p| p.pool.quarantined_pages()).sum()
    }

    /// Looks again at pages that former lives of the pools may still write; how many came free.
    pub(crate) fn look_again(&self) -> usize {
        self.pools.iter().map(|p| p.pool.look_again()).sum()
    }

    /// The id of this very pool.
    pub fn id_of(&self, pool: &Pool) -> Option<PoolId> {
        self.pools
            .iter()
            .find(|p| p.pool.same_pool(pool))
            .map(|p| p.id)
    }
}

/// One node, as its threads see it.
#[derive(Debug)]
pub struct NodeShared {
    /// Its name.
    pub name: String,
    /// This life of it.
    pub incarnation: Incarnation,
    /// Its limits.
    pub limits: Limits,
    /// Its deadlines.
    pub deadlines: Deadlines,
    /// How it talks to other processes.
    pub net: super::net::Net,
    /// Gates of its claims.
    pub gates: Arc<GateTable>,
    /// Counters.
    pub stats: Arc<Stats>,
    /// What happened lately.
    pub recorder: Recorder,
    /// Room for rooms: one permit a life, from admission to the return of its last lease.
    pub rooms: Arc<Semaphore>,
    /// Room for jobs on the lanes.
    pub jobs: Arc<Semaphore>,
    /// How much room that is when no job is on any lane.
    pub job_slots: usize,
    /// Its pools, as last announced.
    pub pools: watch::Receiver<Arc<Pools>>,
    /// The process that it runs in.
    pub origin: Origin,
    /// Signs of life of its parts.
    pub beats: Beats,
    /// Its listeners.
    pub doors: Vec<Arc<Entrance>>,
    pub(crate) started: Instant,
    pub(crate) claims: ClaimNumbers,
    pub(crate) next_life: AtomicU64,
    /// UCX, if it is to be used; or why it cannot be.
    pub ucx: Option<Result<Ucx, UcxError>>,
}

impl NodeShared {
    /// Now, on the node's clock.
    pub fn now(&self) -> Tick {
        Tick::default().after(self.started.elapsed())
    }

    /// A life that was never used.
    pub fn new_life(&self) -> LifeId {
        LifeId(self.next_life.fetch_add(1, Ordering::Relaxed))
    }

    /// A claim number that was never used; each session takes them in rising order.
    pub(crate) fn new_claim(&self) -> ClaimNo {
        self.claims.take()
    }

    /// Which of `shards` shards a room belongs to.
    pub fn shard_of(room: RoomId, shards: usize) -> usize {
        // The finaliser of splitmix64: ids that count up spread evenly.
        let mut z = room.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % shards.max(1) as u64) as usize
    }
}
