//! What a room is told and what it wants done, as data.

use super::{Outcome, Quiescence};
use crate::ids::{ChunkNo, LegNo, PoolId};
use crate::reason::Reason;
use kvroom_kernels::coverage::Coverage;
use std::ops::Range;
use std::sync::Arc;

/// Pages that prefill hands over, at a logical position of the request.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Chunk {
    /// Its number in this room.
    pub no: ChunkNo,
    /// The local pool that holds its pages.
    pub pool: PoolId,
    /// Token range of the request. The start is page-aligned; so is the end, unless it is the
    /// request's.
    pub tokens: Range<u64>,
    /// Layers that are ready.
    pub layers: Range<u32>,
    /// Source pages, one for every page of `tokens`.
    pub pages: Arc<[u32]>,
    /// Tokens in a page of the pool.
    pub page_tokens: u32,
    /// Layers of the pool.
    pub pool_layers: u32,
}

/// How a pool of this node and a section of a claim fit together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SectionShape {
    /// The local pool of the same name.
    pub pool: PoolId,
    /// Layers that this sender covers, counted at the destination.
    pub layer: u32,
    /// One past the last layer that this sender covers.
    pub layer_end: u32,
    /// Tokens in a page of the destination.
    pub page_tokens: u32,
    /// Bytes that this sender covers of a page in one layer.
    pub page_bytes: u64,
    /// Pages that the claim lists.
    pub pages: u32,
    /// How the source differs, if not whole cells are carried; else the two are alike.
    pub slice: Option<SliceShape>,
}

/// How the source of a section lies to its destination, where ranks hold different parts of the model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SliceShape {
    /// The section's number in the claim: those of which the sender covers nothing are not among the
    /// terms.
    pub section: u16,
    /// The layer of the source rank, from 0, that is [`SectionShape::layer`] at the destination.
    pub source_layer: u32,
    /// Layers that the source's *pool* has for each layer of the rank: more than one where planes lie
    /// apart. 0 if those of one layer are not neighbours: then a chunk must have all layers.
    pub pool_layers: u32,
    /// Tokens in a page of the source; it divides those of the destination, or they divide it.
    pub page_tokens: u32,
    /// Tokens that are never cut apart; it divides both.
    pub granule: u32,
    /// It is a row for each request: one page on both sides, whatever the tokens are.
    pub row: bool,
}

/// A claim as a sender room sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LegTerms {
    /// How many receivers the receiver believes there are.
    pub receivers: u16,
    /// Which of them it is.
    pub rank: u16,
    /// First token wanted.
    pub skip: u64,
    /// Length of the request in tokens.
    pub total: u64,
    /// The claim's sections, in its order.
    pub sections: Box<[SectionShape]>,
    /// Whether an aux row is wanted.
    pub aux: bool,
    /// Whether a checksum is wanted.
    pub checksum: bool,
}

/// How a copy job ended.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobEnd {
    /// All of it landed and was flushed.
    Landed {
        /// Checksum over the job's cells; 0 if the claim did not ask.
        checksum: u64,
    },
    /// A closed gate refused a piece.
    Refused,
    /// The fabric failed; the text says how.
    Errored(String),
    /// It was cancelled before its end.
    Cancelled,
}

/// A copy that a sender room wants: pages of a chunk to places of a claim.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum JobSpec {
    /// Pages of a chunk.
    Pages {
        /// Which chunk.
        chunk: ChunkNo,
        /// Section of the claim.
        section: u16,
        /// Layers, counted at the destination.
        layers: Range<u32>,
        /// Which tokens of the request the pages hold.
        tokens: Range<u64>,
        /// Which pages of the chunk are wanted.
        from: Range<u32>,
        /// Where they go: places in the claim's list. As many, unless page sizes differ.
        to: Range<u32>,
    },
    /// The aux row.
    Aux,
}

/// The room's clocks. A state knows only that one is armed; durations come from the room's
/// deadlines, instants from the shell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Timer {
    /// From start to outcome.
    Outcome,
    /// Posted and not landed.
    Stall,
    /// From the start of draining.
    Drain,
    /// A closed gate refused a piece, and the peer has not yet said why.
    Explain,
}

impl Timer {
    /// All of them.
    pub const ALL: [Timer; 4] = [Timer::Outcome, Timer::Stall, Timer::Drain, Timer::Explain];
}

/// What a room says to the peer of a leg. The supervisor adds the claim's name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Say {
    /// Sender: took the claim.
    Bound,
    /// Sender: how far it is, in bytes.
    Progress {
        /// Bytes posted.
        posted: u64,
        /// Bytes landed.
        written: u64,
    },
    /// Sender: all written and flushed.
    Complete {
        /// Length of the request.
        total: u64,
        /// Cells written.
        coverage: Coverage,
        /// Sum over all cells, if asked for.
        checksum: Option<u64>,
    },
    /// Sender: ended; `Quiesced` follows.
    Failed(Reason),
    /// Sender: out, and never again.
    Quiesced {
        /// Cells that had been written.
        landed: Coverage,
    },
    /// Receiver: it is all here.
    Accepted,
    /// Receiver: it completed and is not usable.
    Rejected(Reason),
    /// Receiver: stop.
    Abort(Reason),
}

/// Something worth counting that changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Note {
    /// The event means nothing in this state: late, repeated, or not for this role.
    Stale(&'static str),
    /// A chunk repeated an earlier one with the same pages.
    RepeatedChunk,
}

/// What can happen to a room.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event<W> {
    // from the caller
    /// The caller, a tag, a peer's removal or shutdown ends the room.
    Abort(Reason),
    /// Sender: pages are ready.
    Push(Chunk),
    /// Sender: there is no more.
    Finish {
        /// Length of the request in tokens.
        total: u64,
        /// Whether the caller supplied an aux row.
        aux: bool,
    },

    // from the supervisor, about claims
    /// Sender: a claim found this room. The leg is new.
    Bind {
        /// Number of the new leg.
        leg: LegNo,
        /// What it asks for.
        terms: Arc<LegTerms>,
    },
    /// Receiver: the claim has its number and is on its way.
    ClaimOpened(LegNo),
    /// Receiver: the claim was not opened and never will be.
    ClaimNotOpened {
        /// Which leg.
        leg: LegNo,
        /// Why.
        reason: Reason,
    },

    // from the peer of a leg
    /// Receiver: the sender's room took the claim.
    Bound(LegNo),
    /// Receiver: how far the sender is.
    Progress {
        /// Which leg.
        leg: LegNo,
        /// Bytes posted.
        posted: u64,
        /// Bytes landed.
        written: u64,
    },
    /// Receiver: the sender has written and flushed everything.
    Complete {
        /// Which leg.
        leg: LegNo,
        /// Length of the request as the sender has it.
        total: u64,
        /// Cells it wrote.
        coverage: Coverage,
        /// Its checksum.
        checksum: Option<u64>,
    },
    /// Sender: the receiver has all of it.
    Accepted(LegNo),
    /// Sender: the receiver cannot use it.
    Rejected {
        /// Which leg.
        leg: LegNo,
        /// Why.
        reason: Reason,
    },
    /// The peer ended its side: `Failed` at a receiver, `Abort` at a sender.
    PeerEnded {
        /// Which leg.
        leg: LegNo,
        /// Why.
        reason: Reason,
    },
    /// Receiver: the peer is out of this claim.
    PeerOut(LegNo),
    /// The leg's session or peer is gone.
    LegLost {
        /// Which leg.
        leg: LegNo,
        /// Why.
        reason: Reason,
    },

    // from lanes, gates and clocks
    /// Sender: bytes of running jobs landed.
    Moved {
        /// Which leg.
        leg: LegNo,
        /// How many more bytes.
        bytes: u64,
    },
    /// Sender: a job is over.
    JobOver {
        /// Which leg.
        leg: LegNo,
        /// Which job: the number its `Post` effect carried.
        job: u32,
        /// Bytes it landed that no `Moved` has told of.
        rest: u64,
        /// How it ended.
        end: JobEnd,
    },
    /// Receiver: the sum over the destination's cells.
    Summed(u64),
    /// A clock ran out.
    Timer(Timer),
    /// Every obligation of this life is met.
    Quiet(Quiescence<W>),
    /// Makes the handler panic. Only in builds for tests.
    #[cfg(any(test, feature = "plant"))]
    Explode,
}

impl<W> Event<W> {
    /// The event's name, for tables and logs.
    pub fn name(&self) -> &'static str {
        match self {
            Event::Abort(_) => "Abort",
            Event::Push(_) => "Push",
            Event::Finish { .. } => "Finish",
            Event::Bind { .. } => "Bind",
            Event::ClaimOpened(_) => "ClaimOpened",
            Event::ClaimNotOpened { .. } => "ClaimNotOpened",
            Event::Bound(_) => "Bound",
            Event::Progress { .. } => "Progress",
            Event::Complete { .. } => "Complete",
            Event::Accepted(_) => "Accepted",
            Event::Rejected { .. } => "Rejected",
            Event::PeerEnded { .. } => "PeerEnded",
            Event::PeerOut(_) => "PeerOut",
            Event::LegLost { .. } => "LegLost",
            Event::Moved { .. } => "Moved",
            Event::JobOver { .. } => "JobOver",
            Event::Summed(_) => "Summed",
            Event::Timer(_) => "Timer",
            Event::Quiet(_) => "Quiet",
            #[cfg(any(test, feature = "plant"))]
            Event::Explode => "Explode",
        }
    }
}

/// What a room wants done. The supervisor does it, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Effect<W> {
    /// Receiver: number the claim of this leg, open its gate, queue it.
    OpenClaim(LegNo),
    /// Receiver: take the claim back if it was not numbered yet.
    WithdrawClaim(LegNo),
    /// Receiver: close the gate of this leg.
    CloseGate(LegNo),
    /// Receiver: sum the destination's cells, now that they are final.
    Sum,
    /// Sender: this claim gets nothing from this room, which goes on without it.
    RefuseClaim {
        /// Which leg.
        leg: LegNo,
        /// Why.
        reason: Reason,
    },
    /// Sender: copy.
    Post {
        /// Which leg.
        leg: LegNo,
        /// Number of the job, unique in this room.
        job: u32,
        /// What.
        spec: JobSpec,
    },
    /// Sender: stop all jobs of this life at the next piece.
    CancelJobs,
    /// Sender: this chunk has landed on every leg; its lease may go back.
    ReleaseChunk(ChunkNo),
    /// Sender: this chunk is not taken; its lease goes back with the reason.
    BounceChunk {
        /// Which chunk.
        chunk: ChunkNo,
        /// Why.
        reason: Reason,
    },
    /// Say this to the peer of the leg.
    Say {
        /// Which leg.
        leg: LegNo,
        /// What.
        say: Say,
    },
    /// Arm (or re-arm) a clock.
    SetTimer(Timer),
    /// Disarm it.
    ClearTimer(Timer),
    /// The outcome, for the caller. Once in a life.
    Publish(Outcome),
    /// No job will be posted and no claim opened any more: `Quiet` is due when all witnesses are
    /// in.
    Seal,
    /// The drain deadline passed: count the room as quarantined.
    Quarantine,
    /// The end: the leases may go back on this proof.
    ReturnLease(Quiescence<W>),
    /// Count it.
    Note(Note),
}
