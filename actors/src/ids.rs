//! Names: of nodes, rooms, claims, peers and everything that a message or a table refers to.
//!
//! Two kinds live here. Names that cross the wire ([`RoomKey`], [`Incarnation`], [`ClaimId`]) mean
//! the same on both nodes. Names that do not ([`PeerRef`], [`LifeId`], [`ChunkNo`]) are small
//! numbers of one node, used as keys of its tables, and never leave it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The engines' bootstrap room: which request a transfer belongs to. Any value is allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RoomId(pub u64);

/// One try of one request. A key is used once: unequal attempts never bind to each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RoomKey {
    /// The request.
    pub id: RoomId,
    /// The try; a count or a nonce from whoever routes requests. 0 if not given.
    pub attempt: u32,
}

impl RoomKey {
    /// The key of `attempt` of room `id`.
    pub fn new(id: u64, attempt: u32) -> Self {
        RoomKey {
            id: RoomId(id),
            attempt,
        }
    }
}

impl fmt::Display for RoomKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.id.0, self.attempt)
    }
}

impl fmt::Display for RoomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One life of a node's process. Later lives compare greater: first by start time, then by chance.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Incarnation {
    /// Start of the node, in nanoseconds since the Unix epoch.
    pub started_ns: u64,
    /// Random, so that two lives started in the same nanosecond differ.
    pub nonce: u64,
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:08x}", self.started_ns, self.nonce as u32)
    }
}

/// The number of a claim: 1 to 2^48 − 1, rising in session order, never used twice.
///
/// 48 bits are what a gate's stamp holds; at a million claims a second they last nine years.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimNo(pub u64);

impl ClaimNo {
    /// The largest number that fits a gate's stamp.
    pub const MAX: ClaimNo = ClaimNo((1 << 48) - 1);
}

impl fmt::Display for ClaimNo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "claim {}", self.0)
    }
}

/// A claim's full name: it belongs to one pair of incarnations and to no other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimId {
    /// Who offers the pages.
    pub receiver: Incarnation,
    /// Who may write into them.
    pub sender: Incarnation,
    /// The number the receiver's session gave it.
    pub number: ClaimNo,
}

/// A pool of a node, as its peers name it: the order of registration, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PoolId(pub u16);

/// A peer incarnation as this node knows it. Never crosses the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PeerRef(pub u32);

/// One life of a room on this node, unique for the node's own life. Never crosses the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LifeId(pub u64);

/// A leg of a room: its place in the room's list of legs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LegNo(pub u16);

/// A chunk of a sender room: counted from 0 in the order of pushes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ChunkNo(pub u32);

/// A moment on a node's own clock, in nanoseconds since the node started. The pure cores are told
/// the time; they never ask for it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub struct Tick(pub u64);

impl Tick {
    /// This moment plus `d`, saturating at the end of time (584 years).
    pub fn after(self, d: std::time::Duration) -> Tick {
        Tick(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }

    /// How long after `earlier` this moment is; zero if it is not after it.
    pub fn since(self, earlier: Tick) -> std::time::Duration {
        std::time::Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn the_largest_claim_number_is_the_last_one_of_48_bits() {
        let bits = |no: u64| u64::BITS - no.leading_zeros();
        assert_eq!((bits(ClaimNo::MAX.0), bits(ClaimNo::MAX.0 + 1)), (48, 49));
    }

    #[test]
    fn how_long_ago_a_moment_was_is_what_was_added_to_it_and_never_less_than_nothing() {
        let (then, pause) = (Tick(7), Duration::from_millis(3));
        let now = then.after(pause);
        assert_eq!((now.since(then), then.since(now)), (pause, Duration::ZERO));
    }
}
