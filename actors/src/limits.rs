//! Every limit and deadline of a node, with its default, in one place.
//!
//! Reaching a limit gives back-pressure or an error that names the field here. Deadlines are
//! durations and start when the thing they bound starts; none of them ever returns memory.

use std::time::Duration;

/// Bytes of a cell that are accounted for together when they come over a network: data frames begin
/// and end on multiples of it within a cell. Part of the protocol.
pub const UNIT: u64 = 64 << 10;

/// A data frame with a longer payload ends its sender's session: 16 MiB. Part of the protocol.
pub const MAX_DATA_FRAME: usize = 16 << 20;

/// How much of everything one node holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Rooms alive or draining on this node, both roles together; claims that wait for a peer's
    /// credit are among them. `start` waits when it is reached.
    pub rooms: usize,
    /// Gates, and with them claims, that can be open or draining at once on this node.
    pub gates: usize,
    /// Chunks of one sender room that were pushed and have not landed on every leg.
    pub chunks_in_flight: usize,
    /// Claims from one peer that wait for a local `send`. As large as the credit, so that a peer that
    /// keeps to its credit is never refused for this.
    pub early_claims_per_peer: usize,
    /// Claims that a peer may have open towards this node (the credit it is given).
    pub claims_per_peer: u32,
    /// Pages that draining rooms of one peer may hold before new claims to it are refused.
    pub quarantined_pages_per_peer: u64,
    /// Outcomes of ended rooms that are remembered, so that a used key is refused.
    pub spent_keys: usize,
    /// Receivers of one sender room.
    pub receivers: u16,
    /// Senders of one receiver room.
    pub senders: u16,
    /// Pages in one claim, all pools together.
    pub pages_per_claim: usize,
    /// Bytes of one control frame. Bounds what a decode may allocate.
    pub frame_bytes: usize,
    /// Reliable frames of one session that may be unacknowledged.
    pub frames_unacknowledged: usize,
    /// Jobs that may wait on one copy lane.
    pub jobs_per_lane: usize,
    /// Connections whose greeting is not over yet. One more puts the oldest out, so that strangers
    /// who say nothing keep nobody out.
    pub greetings: usize,
    /// Payload bytes of one data frame that this node sends over a network. Taken as [`UNIT`] if it is
    /// less and as [`MAX_DATA_FRAME`] if it is more.
    pub data_frame_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            rooms: 65_536,
            gates: 65_536,
            chunks_in_flight: 1_024,
            early_claims_per_peer: 16_384,
            claims_per_peer: 16_384,
            quarantined_pages_per_peer: 1 << 20,
            spent_keys: 1_000_000,
            receivers: 256,
            senders: 256,
            pages_per_claim: 1 << 20,
            frame_bytes: 8 << 20,
            frames_unacknowledged: 1 << 20,
            jobs_per_lane: 1 << 20,
            greetings: 256,
            data_frame_bytes: 1 << 20,
        }
    }
}

/// How long things may take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// From a room's start to its outcome; `None` for no bound but the stall clock.
    pub outcome: Option<Duration>,
    /// Bytes posted and none landed.
    pub stall: Duration,
    /// From the start of draining to being counted and shown as quarantined.
    pub drain: Duration,
    /// How long a claim waits for the local `send`.
    pub early_claim: Duration,
    /// How long a connection may take until its greeting is over, and `connect` until it gives up.
    pub connect: Duration,
    /// A peer that was silent for this long is asked whether it is there.
    pub ping: Duration,
    /// A connection on which nothing came for this long, though asked for, is given up. Time in which
    /// this process did not run does not count.
    pub liveness: Duration,
    /// How long a session without a connection is kept, to be resumed by the same two incarnations.
    pub resume: Duration,
    /// First wait before a lost peer is connected to again; each failure doubles it.
    pub backoff_first: Duration,
    /// Longest such wait.
    pub backoff_most: Duration,
    /// How long shutdown waits for rooms to drain before it leaks what is left, and says so.
    pub shutdown: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        Deadlines {
            outcome: Some(Duration::from_secs(120)),
            stall: Duration::from_secs(15),
            drain: Duration::from_secs(5),
            early_claim: Duration::from_secs(60),
            connect: Duration::from_secs(5),
            ping: Duration::from_secs(1),
            liveness: Duration::from_secs(5),
            resume: Duration::from_secs(10),
            backoff_first: Duration::from_millis(50),
            backoff_most: Duration::from_secs(2),
            shutdown: Duration::from_secs(10),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_part_of_the_protocol_is_what_it_was() {
        assert_eq!((UNIT, MAX_DATA_FRAME), (65_536, 16_777_216));
    }
}
