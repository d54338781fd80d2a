//! Errors of the embedding API. Each says who is at fault and gives back what it was given.

use kvroom_actors::ids::RoomKey;
use kvroom_actors::memory::{ReadLease, WriteLease};
use kvroom_actors::reason::Reason;
use kvroom_actors::supervisor::spent::Spent;

use super::Chunk;

/// A room was not started. The leases are here.
#[derive(Debug, thiserror::Error)]
#[error("{kind}")]
pub struct StartError {
    /// Why.
    pub kind: StartErrorKind,
    /// The destination leases, as they were given.
    pub leases: Vec<WriteLease>,
    /// The aux row.
    pub aux: Option<WriteLease>,
}

/// Why a room was not started.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StartErrorKind {
    /// The caller: the key is in use by a live room.
    #[error("room {0} exists and is alive: use the next attempt, or wait for its outcome")]
    RoomExists(RoomKey),
    /// The caller: the key was used.
    #[error("the key of room {key} is spent, its room ended {outcome}: use the next attempt")]
    KeySpent {
        /// The key.
        key: RoomKey,
        /// How its room ended.
        outcome: Spent,
    },
    /// The caller: the request cannot be meant.
    #[error("{0}")]
    BadRequest(String),
    /// This node: a limit.
    #[error("limit {limit} = {value} is reached: {advice}")]
    LimitReached {
        /// The field of `Limits`.
        limit: &'static str,
        /// Its value.
        value: u64,
        /// What to do.
        advice: String,
    },
    /// The caller: the node is another process's.
    #[error(
        "the node is of the process that this one was forked from, and its threads are not here: start a node in \
         this process, or fork before one is started"
    )]
    Forked,
    /// This node has stopped, or is about to.
    #[error("the node is stopped and starts no rooms")]
    NodeStopped,
}

/// The room is over; this is how.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("room {key} is over: {reason}")]
pub struct Ended {
    /// The room.
    pub key: RoomKey,
    /// Why it ended.
    pub reason: Reason,
}

/// There is no slot now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReserveError {
    /// The room is over.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// All slots are in use: wait with `reserve`, or try again when a chunk has landed.
    #[error("limit {limit} = {value} is reached: wait until a chunk has landed")]
    Full {
        /// The field of `Limits`.
        limit: &'static str,
        /// Its value.
        value: usize,
    },
}

/// A chunk was not taken. It is here.
#[derive(Debug, thiserror::Error)]
#[error("the chunk was not taken by room {key}: {reason}")]
pub struct PushError {
    /// The room.
    pub key: RoomKey,
    /// Why it ended; or what is wrong with the chunk, and then the room goes on.
    pub reason: Reason,
    /// The chunk with its lease.
    pub chunk: Chunk,
}

/// `finish` was not taken. The aux row is here.
#[derive(Debug, thiserror::Error)]
#[error("finish was not taken: {why}")]
pub struct FinishError {
    /// Why.
    pub why: FinishProblem,
    /// The aux row.
    pub aux: Option<ReadLease>,
}

/// Why `finish` was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FinishProblem {
    /// The room is over.
    #[error(transparent)]
    Ended(#[from] Ended),
    /// It was said before.
    #[error("finish({0}) was said before")]
    Twice(u64),
    /// The aux lease is no row of an aux pool of this node.
    #[error("{0}")]
    BadAux(String),
}
