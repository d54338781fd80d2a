//! Proofs that memory may be used again: each can be made only where the thing it says happens.

use super::far::{PathFenced, PeerDrained};
use super::shared_table::WriterDead;
use super::table::GateClosed;
use super::ticket::JobOver;
use crate::ids::ClaimNo;
use std::fmt;

/// The receipt that a claim was withdrawn before it was sent: no other node ever heard of it.
#[derive(Debug, PartialEq, Eq)]
pub struct Withdrawn {
    claim: ClaimNo,
}

impl Withdrawn {
    /// Only for the owner of a session, where it gives up a numbered claim whose frame was never
    /// queued.
    pub(crate) fn new(claim: ClaimNo) -> Self {
        Withdrawn { claim }
    }

    /// For a claim or job that was given up before it had a number or a lane: nothing of it left
    /// the thread that made it.
    pub(crate) fn unnumbered() -> Self {
        Withdrawn { claim: ClaimNo(0) }
    }

    /// Which claim.
    pub fn claim(&self) -> ClaimNo {
        self.claim
    }
}

/// One proof, move-only: it is used up by returning the lease it was made for.
///
/// There is none for [`Proof::SourceFenced`]: a source whose path was destroyed comes back as
/// [`Witness::Job`], when its fabric has let go of it.
#[derive(Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Witness {
    /// The claim was never sent.
    NeverSubmitted(Withdrawn),
    /// The job is over: its lane has let go of it.
    Job(JobOver),
    /// The claim's gate is closed and nobody is inside.
    GateClosed(GateClosed),
    /// The claim's gate is closed, and the one process that enters it is dead.
    WriterDead(WriterDead),
    /// Whoever the claim was sent to has said that it is out.
    PeerDrained(PeerDrained),
    /// The path that the claim was written over is destroyed.
    PathFenced(PathFenced),
}

impl Witness {
    /// What kind of proof it is.
    pub fn proof(&self) -> Proof {
        match self {
            Witness::NeverSubmitted(_) => Proof::NeverSubmitted,
            Witness::Job(_) => Proof::Completed,
            Witness::GateClosed(_) => Proof::GateClosed,
            Witness::WriterDead(_) => Proof::WriterDead,
            Witness::PeerDrained(_) => Proof::PeerDrained,
            Witness::PathFenced(_) => Proof::PathFenced,
        }
    }
}

/// The kinds of proof, as reports name them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Proof {
    /// Nothing was ever sent.
    NeverSubmitted,
    /// The fabric completed it and flushed.
    Completed,
    /// The addressed incarnation answered that it is out.
    PeerDrained,
    /// The gate is closed and nobody is inside.
    GateClosed,
    /// The path was destroyed in a way that stops writes.
    PathFenced,
    /// The path was destroyed in a way that stops reads.
    SourceFenced,
    /// The writing process is dead, on this host, and it wrote with the CPU only.
    WriterDead,
}

impl fmt::Display for Proof {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Proof::NeverSubmitted => "NeverSubmitted",
            Proof::Completed => "Completed",
            Proof::PeerDrained => "PeerDrained",
            Proof::GateClosed => "GateClosed",
            Proof::PathFenced => "PathFenced",
            Proof::SourceFenced => "SourceFenced",
            Proof::WriterDead => "WriterDead",
        })
    }
}
