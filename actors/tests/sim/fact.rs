//! What an onlooker sees of a world, in order. Nodes do not read this.

use kvroom_actors::ids::{LegNo, LifeId, RoomKey};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::{Outcome, Role};
use std::hash::{Hash, Hasher};

/// A lease of a node's caller, never used twice in a world.
pub(crate) type LeaseNo = u32;

/// A pool of a node; another number after each that died.
pub(crate) type PoolNo = u32;

/// A life of a node: the node, and which life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Life {
    pub(crate) node: usize,
    pub(crate) epoch: u32,
}

#[derive(Clone, Debug, Hash)]
pub(crate) enum Fact {
    /// The caller leased pages.
    Leased {
        node: usize,
        lease: LeaseNo,
        pool: PoolNo,
        write: bool,
        pages: Vec<u32>,
    },
    /// The caller has the lease back, and gives the pages back.
    Freed { lease: LeaseNo },
    /// A room was admitted.
    Started {
        at: Life,
        life: LifeId,
        key: RoomKey,
        role: Role,
        /// How many receivers the request has.
        receivers: usize,
        /// The outcome is due by then, on the node's running clock.
        due: u64,
        /// Its destination cells: lease, section, and places from 0.
        wants: Vec<(LeaseNo, u16, u32)>,
        layers: u32,
    },
    /// It was not.
    StartRefused { at: Life, key: RoomKey, why: String },
    /// A chunk came back unused.
    Bounced { lease: LeaseNo },
    /// A claim has its gate.
    Opened {
        at: Life,
        life: LifeId,
        leg: LegNo,
        claim: ClaimTag,
    },
    /// A writer is inside.
    Entered { claim: ClaimTag },
    /// It is out.
    Left { claim: ClaimTag },
    /// The witness of a gate was made.
    GateClosed { claim: ClaimTag, dead: bool },
    /// A room asked for a claim, which has no number yet.
    Asked { at: Life, life: LifeId, leg: LegNo },
    /// It never got one.
    NotOpened { at: Life, life: LifeId, leg: LegNo },
    /// A job reads this lease.
    Posted {
        at: Life,
        life: LifeId,
        job: u64,
        lease: LeaseNo,
        claim: ClaimTag,
    },
    /// Its ticket is gone.
    JobOver { at: Life, life: LifeId, job: u64 },
    /// Bytes of a source were read.
    Read { lease: LeaseNo },
    /// A cell of a claim was written.
    Wrote {
        claim: ClaimTag,
        section: u16,
        layer: u32,
        place: u32,
        pool: PoolNo,
        page: u32,
    },
    /// The destination is being read for a checksum.
    Summing { at: Life, life: LifeId, on: bool },
    /// The outcome is delivered, at this moment of the node's running clock.
    Published {
        at: Life,
        life: LifeId,
        outcome: Outcome,
        running: u64,
    },
    /// The life is over; its leases are with the caller.
    Returned {
        at: Life,
        life: LifeId,
        leases: Vec<LeaseNo>,
    },
    /// A node says something about a claim, in this session.
    Said {
        at: Life,
        name: &'static str,
        claim: ClaimTag,
        session: u64,
    },
    /// A shard hears that a session has begun.
    Met { at: Life, session: u64 },
    /// A session ends with an accusation of a correct peer.
    Accused { at: Life, why: String },
    /// A session counts another number of claims than came.
    Miscounted { at: Life, counted: u32, open: usize },
    /// The caller looked at what came back of a room that is done.
    Looked {
        at: Life,
        life: LifeId,
        wrong: Option<String>,
    },
    /// The caller looked at a free page before it used it.
    Canary {
        node: usize,
        page: u32,
        found: u64,
        left: u64,
    },
    /// The caller may not write a page that came back.
    StillRead { lease: LeaseNo },
    /// A process is gone, with all its nodes' callers.
    Died { at: Life, pool_survives: bool },
    /// How much a node holds.
    Load { at: Life, load: Load },
    /// A fault begins or ends, and whatever else is worth a line.
    Note(String),
    /// The faults have ended.
    Calm,
    /// The world is over: what is left of a node.
    Left0ver { at: Life, what: String },
    /// A fresh room after the storm.
    Probe { room: u64, done: bool },
}

/// What a node holds now, and its bounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Load {
    pub(crate) inbox: usize,
    /// Of these, said by peers.
    pub(crate) from_peers: usize,
    pub(crate) early: usize,
    /// Of these, the most of one peer.
    pub(crate) early_of_one: usize,
    pub(crate) lives: usize,
    pub(crate) claims: usize,
    pub(crate) frames: usize,
    pub(crate) pipe: usize,
    pub(crate) remembered: usize,
}

impl Load {
    /// The most of each.
    pub(crate) fn most(self, other: Load) -> Load {
        Load {
            inbox: self.inbox.max(other.inbox),
            from_peers: self.from_peers.max(other.from_peers),
            early: self.early.max(other.early),
            early_of_one: self.early_of_one.max(other.early_of_one),
            lives: self.lives.max(other.lives),
            claims: self.claims.max(other.claims),
            frames: self.frames.max(other.frames),
            pipe: self.pipe.max(other.pipe),
            remembered: self.remembered.max(other.remembered),
        }
    }
}

impl Hash for super::plan::Plan {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.seed.hash(state);
    }
}
