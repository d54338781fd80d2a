//! One file for each family of events, and a property over two joined sessions.

mod acks;
mod claims;
mod credit;
mod joined;
mod probes;
mod queueing;
mod resume;

use super::*;
use crate::ids::{ClaimId, ClaimNo, RoomKey};
use crate::peer::message::{Claim, ClaimTag, Part};
use crate::reason::{Code, Reason};

pub(super) const A: Incarnation = Incarnation {
    started_ns: 1,
    nonce: 1,
};
pub(super) const B: Incarnation = Incarnation {
    started_ns: 2,
    nonce: 2,
};

pub(super) const LIMITS: SessionLimits = SessionLimits {
    unacknowledged: 8,
    progress: 4,
    our_window: 4,
    their_window: 4,
};

pub(super) fn pair() -> (Session, Session) {
    (Session::new(A, B, LIMITS), Session::new(B, A, LIMITS))
}

/// Claim `n` of `receiver`, to be written by `sender`.
pub(super) fn tag(receiver: Incarnation, sender: Incarnation, n: u64) -> ClaimTag {
    let id = ClaimId {
        receiver,
        sender,
        number: ClaimNo(n),
    };
    ClaimTag {
        id,
        room: RoomKey::new(n, 0),
    }
}

pub(super) fn claim(receiver: Incarnation, sender: Incarnation, n: u64) -> Box<Claim> {
    Box::new(Claim {
        tag: tag(receiver, sender, n),
        receivers: 1,
        rank: 0,
        part: Part::Whole,
        sections: Vec::new(),
        skip: 0,
        total: 0,
        aux: None,
        gate: 0,
        deadline_ms: 0,
        checksum: false,
        trace: None,
    })
}

/// An abort by `receiver` of its claim `n`.
pub(super) fn abort(receiver: Incarnation, sender: Incarnation, n: u64) -> Body {
    Body::Abort {
        tag: tag(receiver, sender, n),
        reason: Reason::from(Code::Requested),
    }
}

pub(super) fn frames(session: &mut Session, most: usize) -> Vec<Frame> {
    let mut out = Vec::new();
    session.transmit(most, &mut out);
    out
}

/// Everything `from` has to say, received by `to`.
pub(super) fn exchange(from: &mut Session, to: &mut Session) -> Vec<Received> {
    frames(from, usize::MAX)
        .into_iter()
        .map(|f| to.receive(f).unwrap())
        .collect()
}

pub(super) fn seqs(frames: &[Frame]) -> Vec<u64> {
    frames.iter().map(|f| f.seq).collect()
}
