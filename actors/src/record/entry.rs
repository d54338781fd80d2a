//! What an entry says. Names and numbers of what happened, never a byte of a page.

use crate::ids::{ClaimNo, Incarnation, LegNo, LifeId, PeerRef, RoomKey};
use crate::memory::Proof;
use crate::peer::message::Body;
use crate::reason::Reason;
use crate::room::event::{Chunk, Event, JobEnd, LegTerms, Timer};
use crate::room::{Role, StateName};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// One thing that happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its number: rising over the whole node, without holes.
    pub seq: u64,
    /// When: since the node's start, on the node's clock. Of a shard: when the turn began that it is of.
    pub at: Duration,
    /// Where.
    pub part: Part,
    /// Name of the peer that `what` is about, if it is about one.
    pub peer: Option<Arc<str>>,
    /// What.
    pub what: What,
}

/// A part of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Part {
    /// A shard, by its number. Sessions are on shards' threads, too.
    Shard(u16),
    /// A copy lane, by its number.
    Lane(u16),
    /// The node's own thread.
    Node,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum What {
    /// A room was told an event.
    Room(Step),
    /// A message went into a session's transport. One that is sent again is here again.
    Sent(Word),
    /// A message came and was taken.
    Received(Word),
    /// A sender room's leg: whose claim it is.
    Leg {
        /// The room.
        key: RoomKey,
        /// Its life.
        life: LifeId,
        /// The leg.
        leg: LegNo,
        /// The receiver.
        peer: PeerRef,
        /// Its claim.
        claim: ClaimNo,
    },
    /// A gate of a receiver room.
    Gate {
        /// The room.
        key: RoomKey,
        /// Its life.
        life: LifeId,
        /// The leg.
        leg: LegNo,
        /// The claim.
        claim: ClaimNo,
        /// How it is now.
        is: GateIs,
    },
    /// A copy was posted.
    Job {
        /// The sender room.
        key: RoomKey,
        /// Its life.
        life: LifeId,
        /// The leg.
        leg: LegNo,
        /// Its number in the room.
        job: u32,
        /// Where it went.
        road: Road,
        /// Its bytes.
        bytes: u64,
    },
    /// The leases that a life still held went back: it is over.
    Lease {
        /// The room.
        key: RoomKey,
        /// Its life.
        life: LifeId,
        /// What the return rests on.
        proofs: Proofs,
    },
    /// A room is a new try of an earlier one, of the same id and role.
    Retry {
        /// The room.
        key: RoomKey,
        /// Its life.
        life: LifeId,
        /// Its role.
        role: Role,
        /// The attempt that is tried again.
        of: u32,
    },
    /// A start was refused.
    Refused {
        /// The room.
        key: RoomKey,
        /// Its role.
        role: Role,
    },
    /// A peer's session.
    Peer {
        /// The peer.
        peer: PeerRef,
        /// Which life of it.
        incarnation: Incarnation,
        /// How it is now.
        is: PeerIs,
        /// Why; empty if there is nothing to say.
        why: Box<str>,
    },
    /// Something else.
    Note(Cow<'static, str>),
}

/// What a room was told, and what became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The room.
    pub key: RoomKey,
    /// Its life: unique for the life of the node.
    pub life: LifeId,
    /// Its role.
    pub role: Role,
    /// Its state before.
    pub from: StateName,
    /// Its state after.
    pub to: StateName,
    /// What it was told.
    pub told: Told,
    /// Why it ended, where it ended `Aborted`: the outcome was published here.
    pub reason: Option<Box<Reason>>,
}

/// An [`Event`] without its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields of the event of the same name.
pub enum Told {
    /// It was started.
    Start(Begun),
    /// A receiver's leg behind the first one: cells that its sender is to write.
    Leg {
        leg: LegNo,
        peer: PeerRef,
        cells: u64,
    },
    Abort(Reason),
    Push(ChunkTold),
    Finish {
        total: u64,
        aux: bool,
    },
    Bind {
        leg: LegNo,
        terms: Arc<LegTerms>,
    },
    ClaimOpened(LegNo),
    ClaimNotOpened {
        leg: LegNo,
        reason: Reason,
    },
    Bound(LegNo),
    Progress {
        leg: LegNo,
        posted: u64,
        written: u64,
    },
    /// With the number of cells in place of the cells.
    Complete {
        leg: LegNo,
        total: u64,
        cells: u64,
        checksum: Option<u64>,
    },
    Accepted(LegNo),
    Rejected {
        leg: LegNo,
        reason: Reason,
    },
    PeerEnded {
        leg: LegNo,
        reason: Reason,
    },
    PeerOut(LegNo),
    LegLost {
        leg: LegNo,
        reason: Reason,
    },
    Moved {
        leg: LegNo,
        bytes: u64,
    },
    JobOver {
        leg: LegNo,
        job: u32,
        rest: u64,
        end: JobEnd,
    },
    Summed(u64),
    Timer(Timer),
    Quiet,
    /// Its actor panicked; its custody goes on without it.
    Panicked,
}

/// What a room begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun {
    /// A sender room.
    Sender {
        /// How many receivers there will be.
        receivers: u16,
        /// Until its outcome is due; none without a deadline.
        deadline: Option<Duration>,
    },
    /// A receiver room.
    Receiver {
        /// How many senders there are.
        legs: u16,
        /// The sender of the first leg.
        peer: PeerRef,
        /// Cells that it is to write.
        cells: u64,
        /// Length of the request in tokens.
        total: u64,
        /// Whether sums are compared.
        checksum: bool,
        /// Destination pages.
        pages: u64,
        /// Until its outcome is due; none without a deadline.
        deadline: Option<Duration>,
    },
}

/// A chunk without its list of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // The fields of `Chunk`.
pub struct ChunkTold {
    pub no: u32,
    pub pool: u16,
    pub tokens: (u64, u64),
    pub layers: (u32, u32),
    /// How many pages, and the first and the last of them; 0 if there are none.
    pub pages: u32,
    pub first: u32,
    pub last: u32,
    pub page_tokens: u32,
    pub pool_layers: u32,
}

/// A message without its payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word {
    /// To whom, or from whom.
    pub peer: PeerRef,
    /// Its name; see [`message_named`].
    pub message: &'static str,
    /// The claim that it is about. Claims are numbered by the receiving node.
    pub claim: Option<ClaimNo>,
    /// The room that it is about.
    pub room: Option<RoomKey>,
    /// Number of its frame in the session; 0 for one that is not sent again.
    pub frame: u64,
}

/// How a gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GateIs {
    /// The writer of its claim may enter.
    Open,
    /// Closed, with somebody inside.
    Occupied,
    /// Closed, with nobody inside.
    Closed,
    /// Closed, and who is inside is dead.
    WriterDead,
    /// Closed, and its writer has said that it is out.
    Drained,
    /// Closed, and the path of its writer is destroyed.
    Fenced,
}

/// Where a job went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Road {
    /// The shard copied it in the same turn.
    Here,
    /// To this lane, and others behind it if it was split.
    Lane(u16),
    /// Over sockets.
    Tcp,
    /// Through UCX.
    Ucx,
    /// It could not be built, and went nowhere.
    Nowhere,
    /// To the copy actor of the device with this number.
    Device(u16),
}

/// How a peer's session is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeerIs {
    /// Up.
    Up,
    /// Its connection is lost, and it may go on.
    Resuming,
    /// There is none.
    Down,
}

/// A set of proofs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Proofs(u8);

const PROOFS: [Proof; 7] = [
    Proof::NeverSubmitted,
    Proof::Completed,
    Proof::PeerDrained,
    Proof::GateClosed,
    Proof::PathFenced,
    Proof::SourceFenced,
    Proof::WriterDead,
];

impl Proofs {
    /// Those in the set.
    pub fn iter(self) -> impl Iterator<Item = Proof> {
        let all = PROOFS.into_iter().enumerate();
        all.filter(move |(i, _)| self.0 & (1 << i) != 0)
            .map(|(_, proof)| proof)
    }

    pub(super) fn bits(self) -> u8 {
        self.0
    }

    pub(super) fn of_bits(bits: u8) -> Proofs {
        Proofs(bits)
    }

    /// The proof of this name.
    pub fn named(name: &str) -> Option<Proof> {
        PROOFS.into_iter().find(|p| p.to_string() == name)
    }
}

impl FromIterator<Proof> for Proofs {
    fn from_iter<I: IntoIterator<Item = Proof>>(all: I) -> Self {
        let bit = |proof| PROOFS.iter().position(|p| *p == proof).unwrap_or_default();
        Proofs(all.into_iter().fold(0, |set, proof| set | 1 << bit(proof)))
    }
}

/// Names of messages that are recorded.
pub(super) const MESSAGES: [&str; 15] = [
    "Claim",
    "Bound",
    "Progress",
    "Complete",
    "Accepted",
    "Rejected",
    "Failed",
    "Abort",
    "Quiesced",
    "Credit",
    "PoolAdded",
    "PoolRetired",
    "Bye",
    "Superseded",
    "GaveUp",
];

/// The name of a message as entries have it; none for one that there is not, or that is not recorded
/// (acknowledgements and heartbeats).
pub fn message_named(name: &str) -> Option<&'static str> {
    MESSAGES.into_iter().find(|known| *known == name)
}

/// Which of [`MESSAGES`] it is; none for one that is not recorded.
pub(super) fn message_no(body: &Body) -> Option<u8> {
    Some(match body {
        Body::Claim(_) => 0,
        Body::Bound { .. } => 1,
        Body::Progress { .. } => 2,
        Body::Complete { .. } => 3,
        Body::Accepted { .. } => 4,
        Body::Rejected { .. } => 5,
        Body::Failed { .. } => 6,
        Body::Abort { .. } => 7,
        Body::Quiesced { .. } => 8,
        Body::Credit { .. } => 9,
        Body::PoolAdded { .. } => 10,
        Body::PoolRetired { .. } => 11,
        Body::Bye { .. } => 12,
        Body::Superseded => 13,
        Body::GaveUp { .. } => 14,
        Body::Ping { .. } | Body::Pong { .. } => return None,
    })
}

impl What {
    /// The peer that it is about.
    pub fn peer(&self) -> Option<PeerRef> {
        match self {
            What::Sent(word) | What::Received(word) => Some(word.peer),
            What::Leg { peer, .. } | What::Peer { peer, .. } => Some(*peer),
            What::Room(step) => match &step.told {
                Told::Start(Begun::Receiver { peer, .. }) | Told::Leg { peer, .. } => Some(*peer),
                _ => None,
            },
            _ => None,
        }
    }

    /// The room that it is about.
    pub fn room(&self) -> Option<RoomKey> {
        match self {
            What::Room(step) => Some(step.key),
            What::Sent(word) | What::Received(word) => word.room,
            What::Leg { key, .. }
            | What::Gate { key, .. }
            | What::Job { key, .. }
            | What::Lease { key, .. }
            | What::Retry { key, .. }
            | What::Refused { key, .. } => Some(*key),
            What::Peer { .. } | What::Note(_) => None,
        }
    }
}

impl Told {
    /// The event without what it carries.
    pub(crate) fn of<W>(event: &Event<W>) -> Told {
        match event {
            Event::Abort(reason) => Told::Abort(reason.clone()),
            Event::Push(chunk) => Told::Push(ChunkTold::of(chunk)),
            Event::Finish { total, aux } => Told::Finish {
                total: *total,
                aux: *aux,
            },
            Event::Bind { leg, terms } => Told::Bind {
                leg: *leg,
                terms: Arc::clone(terms),
            },
            Event::ClaimOpened(leg) => Told::ClaimOpened(*leg),
            Event::ClaimNotOpened { leg, reason } => Told::ClaimNotOpened {
                leg: *leg,
                reason: reason.clone(),
            },
            Event::Bound(leg) => Told::Bound(*leg),
            Event::Progress {
                leg,
                posted,
                written,
            } => Told::Progress {
                leg: *leg,
                posted: *posted,
                written: *written,
            },
            Event::Complete {
                leg,
                total,
                coverage,
                checksum,
            } => Told::Complete {
                leg: *leg,
                total: *total,
                cells: coverage.cells(),
                checksum: *checksum,
            },
            Event::Accepted(leg) => Told::Accepted(*leg),
            Event::Rejected { leg, reason } => Told::Rejected {
                leg: *leg,
                reason: reason.clone(),
            },
            Event::PeerEnded { leg, reason } => Told::PeerEnded {
                leg: *leg,
                reason: reason.clone(),
            },
            Event::PeerOut(leg) => Told::PeerOut(*leg),
            Event::LegLost { leg, reason } => Told::LegLost {
                leg: *leg,
                reason: reason.clone(),
            },
            Event::Moved { leg, bytes } => Told::Moved {
                leg: *leg,
                bytes: *bytes,
            },
            Event::JobOver {
                leg,
                job,
                rest,
                end,
            } => Told::JobOver {
                leg: *leg,
                job: *job,
                rest: *rest,
                end: end.clone(),
            },
            Event::Summed(sum) => Told::Summed(*sum),
            Event::Timer(timer) => Told::Timer(*timer),
            Event::Quiet(_) => Told::Quiet,
            #[cfg(any(test, feature = "plant"))]
            Event::Explode => Told::Panicked,
        }
    }

    /// The event's name.
    pub fn name(&self) -> &'static str {
        match self {
            Told::Start(_) => "Start",
            Told::Leg { .. } => "Leg",
            Told::Abort(_) => "Abort",
            Told::Push(_) => "Push",
            Told::Finish { .. } => "Finish",
            Told::Bind { .. } => "Bind",
            Told::ClaimOpened(_) => "ClaimOpened",
            Told::ClaimNotOpened { .. } => "ClaimNotOpened",
            Told::Bound(_) => "Bound",
            Told::Progress { .. } => "Progress",
            Told::Complete { .. } => "Complete",
            Told::Accepted(_) => "Accepted",
            Told::Rejected { .. } => "Rejected",
            Told::PeerEnded { .. } => "PeerEnded",
            Told::PeerOut(_) => "PeerOut",
            Told::LegLost { .. } => "LegLost",
            Told::Moved { .. } => "Moved",
            Told::JobOver { .. } => "JobOver",
            Told::Summed(_) => "Summed",
            Told::Timer(_) => "Timer",
            Told::Quiet => "Quiet",
            Told::Panicked => "Panicked",
        }
    }

    /// The leg that it is about.
    pub fn leg(&self) -> Option<LegNo> {
        match self {
            Told::Leg { leg, .. }
            | Told::Bind { leg, .. }
            | Told::ClaimOpened(leg)
            | Told::ClaimNotOpened { leg, .. }
            | Told::Bound(leg)
            | Told::Progress { leg, .. }
            | Told::Complete { leg, .. }
            | Told::Accepted(leg)
            | Told::Rejected { leg, .. }
            | Told::PeerEnded { leg, .. }
            | Told::PeerOut(leg)
            | Told::LegLost { leg, .. }
            | Told::Moved { leg, .. }
            | Told::JobOver { leg, .. } => Some(*leg),
            Told::Start(_)
            | Told::Abort(_)
            | Told::Push(_)
            | Told::Finish { .. }
            | Told::Summed(_)
            | Told::Timer(_)
            | Told::Quiet
            | Told::Panicked => None,
        }
    }
}

impl ChunkTold {
    pub(super) fn of(chunk: &Chunk) -> ChunkTold {
        ChunkTold {
            no: chunk.no.0,
            pool: chunk.pool.0,
            tokens: (chunk.tokens.start, chunk.tokens.end),
            layers: (chunk.layers.start, chunk.layers.end),
            pages: u32::try_from(chunk.pages.len()).unwrap_or(u32::MAX),
            first: chunk.pages.first().copied().unwrap_or_default(),
            last: chunk.pages.last().copied().unwrap_or_default(),
            page_tokens: chunk.page_tokens,
            pool_layers: chunk.pool_layers,
        }
    }
}

impl Step {
    /// The event's name.
    pub fn event(&self) -> &'static str {
        self.told.name()
    }
}
