//! The embedding API: nodes, rooms of both roles, and what comes back from them.

mod batch;
mod block;
mod chunk;
mod error;
pub(crate) mod health;
pub mod metrics;
mod node;
mod parts;
mod receive;
pub mod record;
mod retry;
mod send;
mod stats;
mod ucx;

pub use chunk::{Chunk, ChunkBuilder, PushedChunk, Slot};
pub use error::{
    Ended, FinishError, FinishProblem, PushError, ReserveError, StartError, StartErrorKind,
};
pub use kvroom_actors::room::Role;
pub use node::{Node, NodeBuilder, Peer};
pub use receive::{ReceiveBuilder, ReceiveRoom};
pub use retry::{Pages, RetriedReceive, RetriedSend, Retry};
pub use send::{SendBuilder, SendRoom};
pub use stats::{AbortedRooms, EarlyClaim, LegBytes, NodeStats, RoomInfo, ShutdownReport, Which};
pub use ucx::UcxFacts;

use kvroom_actors::handle::Landed;
use kvroom_actors::memory::Proof;
use kvroom_actors::room::Outcome;

/// What comes back from a room that is over: the leases, and why they may be used again.
#[derive(Debug)]
#[must_use = "dropping it gives the pages back to their pools"]
pub struct Released<L> {
    /// The leases, in the order they were given. Without the chunks that had come back by
    /// themselves. Empty, and `proofs` too, if somebody took them before, or if the node stopped with
    /// the room still held: then they never come.
    pub leases: Vec<L>,
    /// The aux row.
    pub aux: Option<L>,
    /// How the room ended.
    pub outcome: Outcome,
    /// What the return rests on, one for each leg that was ever opened.
    pub proofs: Vec<Proof>,
    /// What had landed when the gates closed; all zero for a sender.
    pub landed: Landed,
}
