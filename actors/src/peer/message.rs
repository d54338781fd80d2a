//! What two nodes say to each other: the bodies of control frames, as data.
//!
//! ```text
//!   receiver (decode)                     sender (prefill)
//!      Claim ───────────────────────────▶   write here
//!            ◀─────────────────────────── Bound
//!            ◀─────────────────────────── Progress*        overwritten, not queued
//!            ◀─────────────────────────── Complete         all written and flushed
//!      Accepted | Rejected ─────────────▶
//!
//!      Abort ───────────────────────────▶   stop, tell me when you are out
//!            ◀─────────────────────────── Failed           told at once
//!            ◀─────────────────────────── Quiesced         out, and never again
//! ```
//!
//! Every message about a room carries a [`ClaimTag`]. The claim's id decides; the room key is there
//! so that a node can route the message to the shard of that room without a table.

use crate::ids::{ClaimId, PoolId, RoomKey};
use crate::peer::hello::FarKey;
use crate::peer::lists;
use crate::reason::Reason;
use kvroom_kernels::coverage::Coverage;
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::layout::cube::CubeLayout;
use kvroom_kernels::plan::cube::Part as CubePart;
use serde::{Deserialize, Serialize};

/// Which claim a message is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ClaimTag {
    /// The claim.
    pub id: ClaimId,
    /// The room it was made for.
    pub room: RoomKey,
}

/// Destination pages of one pool: one page index for every page of `[skip, total)`, in order.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Section {
    /// The receiver's pool.
    pub pool: PoolId,
    /// Page indices in that pool.
    #[serde(with = "lists::pages")]
    pub pages: Vec<u32>,
}

/// One row of an aux pool of the receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AuxRow {
    /// The receiver's aux pool.
    pub pool: PoolId,
    /// The row: a page index of that pool.
    pub row: u32,
}

/// What the sender of this claim covers of each section.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Part {
    /// All layers and heads.
    Whole,
    /// Layers `first..end` of every section (pipeline stages).
    Layers {
        /// First layer.
        first: u32,
        /// One past the last.
        end: u32,
    },
    /// Of each section these layers and heads of the model, or nothing. Both sides have said what the
    /// bytes of the section's pool mean; cells need not be alike.
    Slices(#[serde(deserialize_with = "lists::few_parts")] Vec<Option<CubePart>>),
}

/// The W3C trace context of the request, carried so that both sides log the same ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Trace {
    /// Trace id.
    pub trace_id: u128,
    /// Span id of the parent.
    pub span_id: u64,
}

/// As in a `traceparent`: 32 and 16 digits.
impl std::fmt::Display for Trace {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}-{:016x}", self.trace_id, self.span_id)
    }
}

/// The receiver's offer of destination pages to one sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Claim {
    /// Name and room of the claim.
    pub tag: ClaimTag,
    /// How many receivers the room has in all; at least 1.
    pub receivers: u16,
    /// Which of them this is, `0..receivers`.
    pub rank: u16,
    /// What this sender covers.
    pub part: Part,
    /// Destination pages, one entry a pool; at most [`Claim::MAX_SECTIONS`].
    #[serde(deserialize_with = "lists::few_sections")]
    pub sections: Vec<Section>,
    /// First token wanted; the ones before it are already there. Page-aligned.
    pub skip: u64,
    /// Length of the request in tokens.
    pub total: u64,
    /// Where the aux row goes, if the receiver wants one.
    pub aux: Option<AuxRow>,
    /// The gate's slot in the receiver's gate table.
    pub gate: u32,
    /// How long the receiver will wait for the outcome, in milliseconds from receipt.
    pub deadline_ms: u32,
    /// Whether `Complete` must carry a checksum.
    pub checksum: bool,
    /// Trace context.
    pub trace: Option<Trace>,
}

impl Claim {
    /// Most sections in one claim. Checked while decoding, before any is kept: an empty section is
    /// three times larger in memory than on the wire.
    pub const MAX_SECTIONS: usize = 64;
}

/// The body of a control frame.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Body {
    /// Receiver to sender: write here.
    Claim(Box<Claim>),
    /// Sender to receiver: a local sender room took the claim.
    Bound {
        /// Which claim.
        tag: ClaimTag,
    },
    /// Sender to receiver: how far it is. Overwritten in place, never queued twice.
    Progress {
        /// Which claim.
        tag: ClaimTag,
        /// Bytes posted to the fabric so far.
        posted: u64,
        /// Bytes that have landed so far.
        written: u64,
    },
    /// Sender to receiver: all is written and flushed.
    Complete {
        /// Which claim.
        tag: ClaimTag,
        /// Length of the request in tokens, as the sender's `finish` said.
        total: u64,
        /// Which cells were written.
        coverage: Coverage,
        /// Sum over all cells, if the claim asked for it.
        checksum: Option<u64>,
    },
    /// Receiver to sender: all of it is here.
    Accepted {
        /// Which claim.
        tag: ClaimTag,
    },
    /// Receiver to sender: it completed, and is not usable.
    Rejected {
        /// Which claim.
        tag: ClaimTag,
        /// Why.
        reason: Reason,
    },
    /// Sender to receiver: the room ended. `Quiesced` follows when it is drained.
    Failed {
        /// Which claim.
        tag: ClaimTag,
        /// Why.
        reason: Reason,
    },
    /// Receiver to sender: stop, and tell me when you are out.
    Abort {
        /// Which claim.
        tag: ClaimTag,
        /// Why.
        reason: Reason,
    },
    /// Sender to receiver: no write of this claim can happen any more.
    Quiesced {
        /// Which claim.
        tag: ClaimTag,
        /// Which cells had been written.
        landed: Coverage,
    },
    /// More claims may be opened towards whoever sends this.
    Credit {
        /// How many more.
        claims: u32,
    },
    /// A pool of the sender of this message may be named in claims from now on.
    PoolAdded {
        /// Its id.
        pool: PoolId,
        /// Its layout.
        layout: PoolLayout,
        /// What its bytes mean, if that was said.
        content: Option<Box<CubeLayout>>,
        /// How it is written through UCX, if it can be.
        far: Option<Box<FarKey>>,
    },
    /// The pool takes no new claims.
    PoolRetired {
        /// Its id.
        pool: PoolId,
    },
    /// Are you there?
    Ping {
        /// Echoed.
        nonce: u64,
    },
    /// I am.
    Pong {
        /// From the ping.
        nonce: u64,
    },
    /// The session ends by intent.
    Bye {
        /// Whether every room of it had drained.
        drained: bool,
    },
    /// You are an older incarnation of a node I already talk to.
    Superseded,
    /// The session ends; whoever says it lives on. Code `SessionLost`: on purpose, so that nobody is to
    /// connect again by itself.
    GaveUp {
        /// Why.
        reason: Reason,
    },
}

impl Body {
    /// The claim that the message is about; none for housekeeping.
    pub fn tag(&self) -> Option<ClaimTag> {
        match self {
            Body::Claim(c) => Some(c.tag),
            Body::Bound { tag }
            | Body::Progress { tag, .. }
            | Body::Complete { tag, .. }
            | Body::Accepted { tag }
            | Body::Rejected { tag, .. }
            | Body::Failed { tag, .. }
            | Body::Abort { tag, .. }
            | Body::Quiesced { tag, .. } => Some(*tag),
            Body::Credit { .. }
            | Body::PoolAdded { .. }
            | Body::PoolRetired { .. }
            | Body::Ping { .. }
            | Body::Pong { .. }
            | Body::Bye { .. }
            | Body::Superseded
            | Body::GaveUp { .. } => None,
        }
    }

    /// The message's name, for logs and errors.
    pub fn name(&self) -> &'static str {
        match self {
            Body::Claim(_) => "Claim",
            Body::Bound { .. } => "Bound",
            Body::Progress { .. } => "Progress",
            Body::Complete { .. } => "Complete",
            Body::Accepted { .. } => "Accepted",
            Body::Rejected { .. } => "Rejected",
            Body::Failed { .. } => "Failed",
            Body::Abort { .. } => "Abort",
            Body::Quiesced { .. } => "Quiesced",
            Body::Credit { .. } => "Credit",
            Body::PoolAdded { .. } => "PoolAdded",
            Body::PoolRetired { .. } => "PoolRetired",
            Body::Ping { .. } => "Ping",
            Body::Pong { .. } => "Pong",
            Body::Bye { .. } => "Bye",
            Body::Superseded => "Superseded",
            Body::GaveUp { .. } => "GaveUp",
        }
    }
}

/// One frame of a session. `seq` counts reliable frames of this direction from 1; 0 marks a frame
/// that is not resent (a bare acknowledgement, `Ping`, `Pong`, `Progress`).
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Frame {
    /// Number of this frame, or 0.
    pub seq: u64,
    /// Highest number received in order from the other side.
    pub ack: u64,
    /// What it says; none for a bare acknowledgement.
    pub body: Option<Body>,
}

impl Frame {
    /// The same frame, borrowed.
    pub fn as_ref(&self) -> FrameRef<'_> {
        FrameRef {
            seq: self.seq,
            ack: self.ack,
            body: self.body.as_ref(),
        }
    }
}

/// A [`Frame`] whose body is still owned by the session that may have to send it again. It is
/// encoded exactly as a frame is, without a copy of the body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
pub struct FrameRef<'a> {
    /// Number of this frame, or 0.
    pub seq: u64,
    /// Highest number received in order from the other side.
    pub ack: u64,
    /// What it says; none for a bare acknowledgement.
    pub body: Option<&'a Body>,
}

impl FrameRef<'_> {
    /// An owned copy.
    pub fn to_frame(self) -> Frame {
        Frame {
            seq: self.seq,
            ack: self.ack,
            body: self.body.cloned(),
        }
    }
}
