//! Why a room ended, or why something was refused: one vocabulary for callers, peers and logs.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What kind of end it was. Stable names: they are on the wire, in reports and in metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Code {
    /// The caller asked for it.
    Requested,
    /// The caller dropped the room's handle.
    HandleDropped,
    /// The other node's process is gone, or was given up.
    PeerLost,
    /// The other node came back as a newer incarnation.
    PeerRestarted,
    /// The control session was given up while both nodes live.
    SessionLost,
    /// The room's deadline passed.
    DeadlineExceeded,
    /// Bytes were posted and none landed for the stall time.
    Stalled,
    /// Sender and receiver disagree on the request's length.
    LengthMismatch,
    /// Sender's and receiver's pools cannot be planned onto each other.
    LayoutMismatch,
    /// Two legs, or one leg twice, wrote the same cell.
    CoverageOverlap,
    /// The sender said complete and cells are missing.
    CoverageIncomplete,
    /// The bytes that landed are not the bytes that were sent.
    ChecksumMismatch,
    /// A chunk cannot be used: empty, outside the request, not page-aligned, or overlapping.
    BadChunk,
    /// A claim disagrees with the sender's room: number of receivers, rank, or pages.
    BadClaim,
    /// A claim waited for a local `send` until its deadline.
    EarlyClaimExpired,
    /// The peer has more waiting claims than this node holds for one peer.
    TooManyEarlyClaims,
    /// The key was used before and that life has ended.
    KeySpent,
    /// The key is in use by a live room.
    RoomExists,
    /// The room's actor panicked.
    ActorPanicked,
    /// A copy failed.
    CopyFailed,
    /// A piece was refused by a closed gate.
    CopyRefused,
    /// The route was fenced.
    RouteFenced,
    /// The pool was retired.
    PoolRetired,
    /// The node is shutting down.
    NodeShutdown,
    /// The receiver did not accept what was sent.
    Rejected,
    /// A configured limit was reached; the text names it.
    LimitReached,
    /// The peer broke the protocol; the text says how.
    ProtocolViolation,
    /// A device is lost: its context, which it shares with the engine, has an error that stays.
    DeviceLost,
}

impl Code {
    /// All of them, in the order in which they are declared.
    pub const ALL: [Code; 28] = [
        Code::Requested,
        Code::HandleDropped,
        Code::PeerLost,
        Code::PeerRestarted,
        Code::SessionLost,
        Code::DeadlineExceeded,
        Code::Stalled,
        Code::LengthMismatch,
        Code::LayoutMismatch,
        Code::CoverageOverlap,
        Code::CoverageIncomplete,
        Code::ChecksumMismatch,
        Code::BadChunk,
        Code::BadClaim,
        Code::EarlyClaimExpired,
        Code::TooManyEarlyClaims,
        Code::KeySpent,
        Code::RoomExists,
        Code::ActorPanicked,
        Code::CopyFailed,
        Code::CopyRefused,
        Code::RouteFenced,
        Code::PoolRetired,
        Code::NodeShutdown,
        Code::Rejected,
        Code::LimitReached,
        Code::ProtocolViolation,
        Code::DeviceLost,
    ];
}

/// On which side it happened, as seen from whoever holds the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Side {
    /// On this node.
    Local,
    /// On the other one; it told us, or its silence did.
    Peer,
}

/// A code, the side and a sentence for people.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reason {
    /// The kind of end.
    pub code: Code,
    /// Where it happened.
    pub side: Side,
    /// Details; at most [`Reason::MAX_TEXT`] bytes, cut at a character.
    pub text: String,
}

impl Reason {
    /// Longest text in bytes. Bounds what a peer can make us keep.
    pub const MAX_TEXT: usize = 256;

    /// A reason on this node.
    pub fn new(code: Code, text: impl Into<String>) -> Self {
        Reason {
            code,
            side: Side::Local,
            text: clip(text.into()),
        }
    }

    /// The same reason as the node at the other end of the wire sees it.
    #[must_use]
    pub fn from_peer(self) -> Self {
        Reason {
            code: self.code,
            side: Side::Peer,
            text: clip(self.text),
        }
    }
}

fn clip(mut text: String) -> String {
    if text.len() > Reason::MAX_TEXT {
        let mut end = Reason::MAX_TEXT;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
    }
    text
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            Side::Local => "",
            Side::Peer => "peer: ",
        };
        write!(f, "{side}{:?}", self.code)?;
        if !self.text.is_empty() {
            write!(f, ": {}", self.text)?;
        }
        Ok(())
    }
}

impl From<Code> for Reason {
    fn from(code: Code) -> Self {
        Reason {
            code,
            side: Side::Local,
            text: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_codes_are_listed_where_they_are_declared() {
        for (i, code) in Code::ALL.into_iter().enumerate() {
            assert_eq!(code as usize, i);
        }
        // A code behind the last one would be missing.
        let last = match Code::ALL[Code::ALL.len() - 1] {
            Code::DeviceLost => true,
            Code::ProtocolViolation
            | Code::Requested
            | Code::HandleDropped
            | Code::PeerLost
            | Code::PeerRestarted
            | Code::SessionLost
            | Code::DeadlineExceeded
            | Code::Stalled
            | Code::LengthMismatch
            | Code::LayoutMismatch
            | Code::CoverageOverlap
            | Code::CoverageIncomplete
            | Code::ChecksumMismatch
            | Code::BadChunk
            | Code::BadClaim
            | Code::EarlyClaimExpired
            | Code::TooManyEarlyClaims
            | Code::KeySpent
            | Code::RoomExists
            | Code::ActorPanicked
            | Code::CopyFailed
            | Code::CopyRefused
            | Code::RouteFenced
            | Code::PoolRetired
            | Code::NodeShutdown
            | Code::Rejected
            | Code::LimitReached => false,
        };
        assert!(last);
    }

    #[test]
    fn a_long_text_is_cut_at_a_character_boundary() {
        let r = Reason::new(Code::Requested, "é".repeat(200));
        assert!(r.text.len() <= Reason::MAX_TEXT);
        assert!(r.text.chars().all(|c| c == 'é'));
    }

    #[test]
    fn a_character_that_reaches_over_the_bound_is_left_out() {
        let r = Reason::new(Code::Requested, "€".repeat(100));
        assert_eq!(r.text, "€".repeat(85), "255 of 256 bytes");
    }
}
