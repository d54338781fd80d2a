//! What the runtime keeps with a life: the caller's channel, the gates, the claims to be made.

use super::io::{Input, Output, StartRefused};
use crate::copy::device::Ready;
use crate::copy::device_lane::Device;
use crate::copy::schedule::Class;
use crate::handle::{ChunkPromise, Landed, RoomPromise, RoomShared};
use crate::ids::{LegNo, PoolId, RoomKey, Tick};
use crate::memory::{CancelFlag, Closing, Lease, OpenGate, Witness};
use crate::peer::message::{AuxRow, Part, Trace};
use crate::room::actor::RoomActor;
use crate::room::{Role, StateName};
use crate::supervisor::timers::Armed;
use actix::Addr;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, oneshot};

/// A lease that is lent to a room, with the chunk's handle if it is a chunk's.
#[derive(Debug)]
pub struct Lent {
    /// The lease.
    pub lease: Lease,
    /// Who waits for it.
    pub chunk: Option<ChunkPromise>,
    /// Room for the chunk, in its room's window and on the lanes; given back with the lease.
    pub slot: Option<ChunkSlot>,
    /// When the source's data is there, if it may not be yet.
    pub ready: Option<Arc<Ready>>,
}

/// Room for one chunk.
#[derive(Debug)]
pub struct ChunkSlot {
    /// In the window of its room.
    pub window: OwnedSemaphorePermit,
    /// On the lanes: one for each receiver.
    pub jobs: OwnedSemaphorePermit,
}

impl From<Lease> for Lent {
    fn from(lease: Lease) -> Self {
        Lent {
            lease,
            chunk: None,
            slot: None,
            ready: None,
        }
    }
}

/// A start that was refused, with everything that came with it.
#[derive(Debug)]
pub struct Refusal {
    /// Why.
    pub why: StartRefused,
    /// The leases.
    pub leases: Vec<Lease>,
}

/// Told once whether a room was started.
pub type StartReply = oneshot::Sender<Result<(), Box<Refusal>>>;

/// What a receiver room's claims say, apart from what is different on each leg.
#[derive(Clone, Debug)]
pub struct Draft {
    /// First token wanted.
    pub skip: u64,
    /// Length of the request.
    pub total: u64,
    /// The pool of each section.
    pub pools: Vec<PoolId>,
    /// The claim of each leg.
    pub legs: Vec<DraftLeg>,
    /// The aux row.
    pub aux: Option<AuxRow>,
    /// Whether checksums are compared.
    pub checksum: bool,
    /// Trace context.
    pub trace: Option<Trace>,
    /// Bytes wanted in all.
    pub wanted: u64,
}

/// What is said to one sender only.
#[derive(Clone, Debug)]
pub struct DraftLeg {
    /// What it covers.
    pub part: Part,
    /// How many receivers it has.
    pub receivers: u16,
    /// Which of them this is.
    pub rank: u16,
}

/// A receiver leg's gate.
#[derive(Debug)]
pub(crate) enum Gate {
    /// The claim has no number yet.
    None,
    /// Writers may enter.
    Open(OpenGate),
    /// Closed; somebody is inside.
    Closing(Closing),
    /// Closed and empty; the witness is with custody.
    Closed,
}

/// What is kept with a life.
pub struct Attached {
    pub(crate) shared: RoomPromise,
    /// Its room; none before it was admitted.
    pub(crate) key: Option<RoomKey>,
    pub(crate) reply: Option<StartReply>,
    /// Counts against the node's limit until the life is over.
    pub(crate) _permit: OwnedSemaphorePermit,
    pub(crate) class: Class,
    /// When it was started.
    pub(crate) since: Tick,
    /// The room's actor.
    pub(crate) actor: Option<Addr<RoomActor>>,
    /// When its clocks run out.
    pub(crate) armed: Armed,
    /// The room's own deadline, if it has one.
    pub(crate) deadline: Option<Duration>,
    /// The room's state, as last counted.
    pub(crate) state: StateName,
    /// When it passed its drain deadline, if it did.
    pub(crate) quarantined: Option<Tick>,
    /// When the clock of its outcome ran out, on its shard's running time, while it has none.
    pub(crate) late: Option<Tick>,
    /// The trace context of its request. Boxed: few rooms have one.
    pub(crate) trace: Option<Box<Trace>>,
    /// It is the host's own, and is not among the rooms that are counted.
    pub(crate) apart: bool,
    /// The attempt that it is a new try of.
    pub(crate) retry_of: Option<u32>,
    /// Bytes of each leg, as far as any moved.
    pub(crate) moved: Vec<Moved>,
    pub(crate) role: AttachedRole,
}

/// Bytes of a leg.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Moved {
    /// In jobs that were posted.
    pub(crate) posted: u64,
    /// Of those, what the jobs that came back have written; at a receiver, what had landed when the
    /// gate was closed.
    pub(crate) written: u64,
}

impl std::fmt::Debug for Attached {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Attached")
            .field("class", &self.class)
            .field("since", &self.since)
            .field("role", &self.role)
            .finish_non_exhaustive()
    }
}

/// What differs by role.
#[derive(Debug)]
pub(crate) enum AttachedRole {
    Sender {
        /// Stops the life's jobs.
        cancel: CancelFlag,
        /// Whether any job was posted.
        posted: bool,
        /// The lane that copies all of it, if it is kept to one.
        lane: Option<u16>,
        /// Devices that copy for it.
        devices: Vec<Device>,
    },
    Receiver {
        /// Needed until the last claim is opened.
        draft: Option<Box<Draft>>,
        gates: Vec<Gate>,
        landed: Landed,
        /// The tokens that its pages hold, if its senders write parts of cells: then sums are by rows.
        rows_of: Option<Range<u64>>,
    },
}

impl Attached {
    /// For a sender room.
    pub fn sender(
        shared: Arc<RoomShared>,
        reply: StartReply,
        permit: OwnedSemaphorePermit,
        class: Class,
        since: Tick,
        deadline: Option<Duration>,
    ) -> Self {
        let cancel = CancelFlag::new();
        let role = AttachedRole::Sender {
            cancel,
            posted: false,
            lane: None,
            devices: Vec::new(),
        };
        Attached {
            shared: RoomPromise::new(shared),
            key: None,
            reply: Some(reply),
            _permit: permit,
            class,
            since,
            actor: None,
            armed: Armed::default(),
            deadline,
            state: StateName::Registered,
            quarantined: None,
            late: None,
            trace: None,
            apart: false,
            retry_of: None,
            moved: Vec::new(),
            role,
        }
    }

    /// Has all copies made by one lane.
    pub fn on_lane(mut self, on: Option<u16>) -> Self {
        if let AttachedRole::Sender { lane, .. } = &mut self.role {
            *lane = on;
        }
        self
    }

    /// Says that it is a new try of an earlier attempt.
    pub fn retry_of(mut self, attempt: Option<u32>) -> Self {
        self.retry_of = attempt;
        self
    }

    /// Keeps it out of what is counted about rooms.
    pub fn apart(mut self, apart: bool) -> Self {
        self.apart = apart;
        self
    }

    /// For a receiver room.
    pub fn receiver(
        shared: Arc<RoomShared>,
        reply: StartReply,
        permit: OwnedSemaphorePermit,
        class: Class,
        since: Tick,
        deadline: Option<Duration>,
        draft: Draft,
    ) -> Self {
        let gates = draft.legs.iter().map(|_| Gate::None).collect();
        let trace = draft.trace.map(Box::new);
        let is_sliced = draft
            .legs
            .iter()
            .any(|leg| matches!(leg.part, Part::Slices(_)));
        let rows_of = is_sliced.then_some(draft.skip..draft.total);
        let landed = Landed {
            wanted: draft.wanted,
            ..Landed::default()
        };
        let role = AttachedRole::Receiver {
            draft: Some(Box::new(draft)),
            gates,
            landed,
            rows_of,
        };
        Attached {
            shared: RoomPromise::new(shared),
            key: None,
            reply: Some(reply),
            _permit: permit,
            class,
            since,
            actor: None,
            armed: Armed::default(),
            deadline,
            state: StateName::Registered,
            quarantined: None,
            late: None,
            trace,
            apart: false,
            retry_of: None,
            moved: Vec::new(),
            role,
        }
    }

    /// Bytes of a leg, to be added to.
    pub(crate) fn moved_on(&mut self, leg: LegNo) -> &mut Moved {
        let at = usize::from(leg.0);
        if self.moved.len() <= at {
            // Most rooms have one leg.
            self.moved.reserve_exact(at + 1 - self.moved.len());
            self.moved.resize(at + 1, Moved::default());
        }
        &mut self.moved[at]
    }

    pub(crate) fn role(&self) -> Role {
        match self.role {
            AttachedRole::Sender { .. } => Role::Sender,
            AttachedRole::Receiver { .. } => Role::Receiver,
        }
    }
}

/// A shard's input with real leases and witnesses.
pub type RealInput = Input<Lent, Witness, Box<Attached>>;
/// A shard's output with real leases and witnesses.
pub(crate) type RealOutput = Output<Lent, Witness, Box<Attached>>;
