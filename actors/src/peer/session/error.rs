//! What a session refuses, and what it accuses the peer of.
//!
//! [`Refused`] and [`OpenRefused`] are this node's own and hand back what was given;
//! [`ResumeRefused`] and [`Violation`] are the peer's fault and end the session.

use crate::ids::ClaimNo;
use crate::peer::message::{Body, Claim};
use std::fmt;

/// Something was not queued, and comes back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct Refused<T: fmt::Debug> {
    /// What was to be queued.
    pub item: T,
    /// Why it was not.
    pub why: WhyRefused,
}

/// Why something was not queued. This node's doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyRefused {
    /// The peer acknowledges too little.
    #[error("frames_unacknowledged = {limit} reached: try again when the peer has acknowledged")]
    Full {
        /// The limit.
        limit: usize,
    },
    /// The body does not belong into `queue`.
    #[error("a body of this kind is not queued: use {call}")]
    WrongCall {
        /// What to call.
        call: &'static str,
    },
}

impl Refused<Box<Body>> {
    pub(super) fn full(body: Body, limit: usize) -> Self {
        Refused {
            item: Box::new(body),
            why: WhyRefused::Full { limit },
        }
    }

    pub(super) fn wrong_call(body: Body, call: &'static str) -> Self {
        Refused {
            item: Box::new(body),
            why: WhyRefused::WrongCall { call },
        }
    }
}

/// A claim was not opened, and comes back.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{why}")]
pub struct OpenRefused {
    /// The claim.
    pub claim: Box<Claim>,
    /// Why not.
    pub why: WhyNotOpened,
}

/// Why a claim was not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WhyNotOpened {
    /// The peer takes no more claims now.
    #[error("the peer gives no more claims (its claims_per_peer): wait for its credit")]
    NoCredit,
    /// Numbers must rise, and fit a gate's stamp. A bug of the caller.
    #[error("{number} does not rise above {opened}, or is over 2^48 - 1: use the next number")]
    NotRising {
        /// The number given.
        number: ClaimNo,
        /// The highest opened before.
        opened: u64,
    },
    /// The claim's tag names another number or other incarnations. A bug of the caller.
    #[error("the claim's tag is not of this session and number")]
    OtherName,
}

/// A session cannot go on over a new transport. The peer's numbers cannot be right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ResumeRefused {
    /// The peer acknowledged more before than it says it has now.
    #[error("peer says it received {peer_received} frames after acknowledging {acked}: give up")]
    Forgotten {
        /// What its greeting says.
        peer_received: u64,
        /// What it acknowledged.
        acked: u64,
    },
    /// The peer says it has frames that were never sent.
    #[error("peer says it received {peer_received} frames of {sent} sent: give up")]
    NeverSent {
        /// What its greeting says.
        peer_received: u64,
        /// What was sent.
        sent: u64,
    },
}

/// The peer broke the protocol. Close the transport and give the session up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// It acknowledged what was never sent.
    #[error("peer acknowledged frame {ack} of {sent} sent")]
    AckOfUnsent {
        /// The acknowledgement.
        ack: u64,
        /// The highest number sent.
        sent: u64,
    },
    /// A reliable body without a number, or the reverse.
    #[error("peer sent {name} with number {seq}")]
    BadNumber {
        /// The message.
        name: &'static str,
        /// Its number.
        seq: u64,
    },
    /// A body about a claim of other incarnations, or from the wrong side.
    #[error("peer sent {name} about a claim that is not this session's, or not its to say")]
    ForeignClaim {
        /// The message.
        name: &'static str,
    },
    /// It opened more claims than it was given.
    #[error("peer opened a claim beyond the {window} it may have (claims_per_peer)")]
    NoCredit {
        /// What it may have open.
        window: u32,
    },
    /// It gave more credit than can be counted.
    #[error("peer gave {claims} claims more than can be counted")]
    CreditOverflow {
        /// What it gave.
        claims: u32,
    },
}
