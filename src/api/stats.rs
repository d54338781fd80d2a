//! What a node tells about itself.

use super::node::Peer;
use kvroom_actors::ids::{RoomId, RoomKey};
use kvroom_actors::memory::Pool;
use kvroom_actors::peer::message::Trace;
use kvroom_actors::room::{Outcome, Role, StateName};
pub use kvroom_actors::supervisor::info::LegBytes;
use std::time::Duration;

/// Which rooms an abort is for.
#[derive(Clone, Debug)]
pub enum Which {
    /// Every room of the node.
    All,
    /// Every attempt of this room, in both roles.
    Room(RoomId),
    /// Every room with this tag.
    Tag(String),
    /// Every room but those with this tag: what a host keeps running for itself.
    AllBut(String),
    /// Every room with a leg to this peer.
    Peer(Peer),
    /// Every room that holds pages of this pool; its reason is `PoolRetired`.
    Pool(Pool),
}

/// Who was told to end, of those that an abort is for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AbortedRooms {
    /// Rooms of the shards that have answered, with claims that waited for one.
    pub rooms: usize,
    /// Shards that have not answered, by their numbers: what they have ends when they go on.
    pub silent: Vec<usize>,
}

/// One room of a node.
#[derive(Clone, Debug)]
pub struct RoomInfo {
    /// Its key.
    pub key: RoomKey,
    /// Its role.
    pub role: Role,
    /// Its state.
    pub state: StateName,
    /// Its outcome, if it is known: then the room drains.
    pub outcome: Option<Outcome>,
    /// Names of the peers of its legs.
    pub peers: Vec<String>,
    /// What each of these legs is at, for people: for example `gate open`.
    pub legs: Vec<&'static str>,
    /// Bytes of each of these legs.
    pub moved: Vec<LegBytes>,
    /// Its tag.
    pub tag: Option<String>,
    /// Pages it holds.
    pub pages: u64,
    /// Since its start.
    pub age: Duration,
    /// It passed its drain deadline, and its memory is still not proven quiet.
    pub quarantined: bool,
    /// Why its memory is still held, if its outcome is known.
    pub held_because: Option<String>,
    /// The trace context of its request: a receiver's own, or what came with a sender's first claim
    /// that has one.
    pub trace: Option<Trace>,
    /// The attempt of the same room that it is a new try of.
    pub retry_of: Option<u32>,
}

/// A claim that waits for a local `send`.
#[derive(Clone, Debug)]
pub struct EarlyClaim {
    /// The room that it is for.
    pub key: RoomKey,
    /// Name of the decode node.
    pub peer: String,
    /// Destination pages that it holds there.
    pub pages: u64,
}

/// Counters and gauges of a node. Counters never go down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Rooms that are alive now.
    pub rooms_live: u64,
    /// Rooms that have ended and whose memory is not proven quiet yet.
    pub rooms_draining: u64,
    /// Pages of those.
    pub draining_pages: u64,
    /// Pages of rooms that passed their drain deadline.
    pub quarantined_pages: u64,
    /// Claims that wait for a `send` now.
    pub early_claims: u64,
    /// Claims in the tables now, in both roles.
    pub claims: u64,
    /// Keys whose outcome is remembered now.
    pub remembered_keys: u64,
    /// Room actors that are alive now.
    pub actors: u64,
    /// Clocks that are armed now.
    pub clocks: u64,
    /// Rooms ever started.
    pub started: u64,
    /// Rooms that ended `Done`.
    pub done: u64,
    /// Rooms that ended `Aborted`.
    pub aborted: u64,
    /// Bytes that lanes of this node have copied, or read for checksums.
    pub bytes_copied: u64,
    /// Copy jobs that met a closed gate.
    pub refused_jobs: u64,
    /// Messages about claims that are not live here.
    pub stale_messages: u64,
    /// Events that meant nothing to their room.
    pub stale_events: u64,
    /// Chunks that were pushed twice with the same pages.
    pub repeated_chunks: u64,
    /// Claims that were refused.
    pub claims_refused: u64,
    /// Rooms that ever passed their drain deadline.
    pub rooms_quarantined: u64,
    /// Room actors that panicked.
    pub panicked: u64,
    /// Witnesses that nobody waited for. Not zero is a defect.
    pub stray_witnesses: u64,
    /// Gates of peers on this host whose word did not say any more, when a lane of this node left,
    /// that it is inside. Not zero is a defect, of the peer or here.
    pub overwritten_words: u64,
    /// Sessions begun, with any peer.
    pub sessions_opened: u64,
    /// Sessions that went on over another connection.
    pub sessions_resumed: u64,
    /// Connections of sessions that were lost.
    pub transports_lost: u64,
    /// Greetings that ended because one side did not want the other.
    pub greetings_refused: u64,
    /// Greetings that were put out to make room for another.
    pub greetings_put_out: u64,
}

/// What was left when a node stopped.
#[derive(Clone, Debug, Default)]
pub struct ShutdownReport {
    /// Every room drained before the deadline. False too if a shard has died or did not answer.
    pub drained: bool,
    /// Rooms whose memory could not be proven quiet: leaked, never unmapped. Those of a shard that
    /// did not answer are not among them.
    pub leaked: Vec<RoomInfo>,
}
