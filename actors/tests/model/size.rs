//! How much may go on in a world, and what is wrong with it on purpose.
//!
//! ```text
//!   Size ─▶ World::new ─▶ budget, counted down by pushes, aborts, faults
//!        └▶ plant: one bug in the glue around the shipped cores
//! ```

use std::hash::{Hash, Hasher};

/// How bytes get from a sender to a receiver: see `plane.rs`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Both nodes are in one process.
    Local,
    /// The receiver's lanes write. What is on the wire survives its sender.
    Tcp,
    /// The sender's lanes write, through gates that lie in the receiver's memory.
    Shm,
    /// A device writes, and there is no gate: a put lands any time before its flush.
    Ucx,
}

/// Processes that may die or be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mortal {
    Nobody,
    Senders,
    Receivers,
    All,
}

/// How much can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// How bytes go.
    pub(crate) plane: Kind,
    /// Senders, each a node of its own; all of them serve every receiver.
    pub(crate) senders: usize,
    /// Receivers, each a node of its own: 1 or 2.
    pub(crate) receivers: usize,
    /// Rooms that are alive beside each other on each node.
    pub(crate) rooms: u32,
    /// Attempts that callers may make of each room on each node.
    pub(crate) attempts: u32,
    /// Whether a checksum is asked for.
    pub(crate) checksum: bool,
    /// Page ranges that prefill pushes, in this order.
    pub(crate) chunks: &'static [(u32, u32)],
    /// Pushes in all, repeats among them.
    pub(crate) pushes: u32,
    /// Whether a sender's caller pushes and finishes in the same turn as it starts.
    pub(crate) prepared: bool,
    /// Claims that a receiver may have open towards the sender.
    pub(crate) credit: u32,
    /// Claims whose progress may wait to be sent; with 0 none is ever told, which is allowed.
    pub(crate) progress: usize,
    /// Whether acknowledgements travel by themselves, or only with something else.
    pub(crate) acks: bool,
    /// Transports that may be reset and resumed.
    pub(crate) resets: u32,
    /// Sessions that may be given up.
    pub(crate) losses: u32,
    /// Rooms that may panic.
    pub(crate) panics: u32,
    /// Aborts by callers.
    pub(crate) aborts: u32,
    /// Whether rooms and cores answer at once, or have mailboxes that fall behind.
    pub(crate) at_once: bool,
    /// The same for owners of sessions, who take commands and fill pipes.
    pub(crate) eager: bool,
    /// Whether clocks run out at any moment, or only when nothing else can happen.
    pub(crate) clocks: bool,
    /// Whether copies may fail by themselves.
    pub(crate) failures: bool,
    /// Whose processes may die or be stopped.
    pub(crate) mortal: Mortal,
    /// Processes that may die. Each may be started again.
    pub(crate) crashes: u32,
    /// Processes that may be stopped. Each may go on, and meanwhile another one may take its name.
    pub(crate) stops: u32,
    /// Whether the pools of a dead receiver are there in its next life.
    pub(crate) survives: bool,
    /// Frames of `Kind::Tcp` that may be sent a second time, on another connection.
    pub(crate) resends: u32,
    /// Flushes of `Kind::Ucx` that may end in an error.
    pub(crate) flush_errors: u32,
    /// Whether a path of `Kind::Ucx` can be destroyed so that nothing lands any more.
    pub(crate) fence: bool,
    /// What is wrong on purpose.
    pub(crate) plant: Option<Plant>,
}

/// The same in all states of a search, so it does not tell them apart.
impl Hash for Size {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// How much of a size is left.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    pub(crate) pushes: u32,
    pub(crate) resets: u32,
    pub(crate) losses: u32,
    pub(crate) panics: u32,
    pub(crate) aborts: u32,
    pub(crate) crashes: u32,
    pub(crate) stops: u32,
    pub(crate) resends: u32,
    pub(crate) flush_errors: u32,
}

impl From<Size> for Budget {
    fn from(size: Size) -> Self {
        Budget {
            pushes: size.pushes,
            resets: size.resets,
            losses: size.losses,
            panics: size.panics,
            aborts: size.aborts,
            crashes: size.crashes,
            stops: size.stops,
            resends: size.resends,
            flush_errors: size.flush_errors,
        }
    }
}

macro_rules! plants {
    ($($(#[doc = $text:literal])* $name:ident,)*) => {
        /// A bug in what is around the cores, to show that the properties notice.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(crate) enum Plant { $($(#[doc = $text])* $name,)* }

        impl Plant {
            /// All of them.
            pub(crate) const ALL: &[Plant] = &[$(Plant::$name,)*];
        }
    };
}

plants! {
    /// A closed gate yields its witness while a writer is inside.
    GateYieldsEarly,
    /// A lane leaves the gate and says that a copy landed when it begins.
    LandedBeforeTheFlush,
    /// An abort is answered `Quiesced` while the claim's copies are out.
    QuiescedWhileOut,
    /// A claim of an earlier session gives its credit back in this one.
    CreditAcrossSessions,
    /// A session that is given up forgets the claims that wait for a credit.
    WaitingForgotten,
    /// A greeting says that one more frame was received than was.
    ResumedTooFar,
    /// A greeting says that one frame less was received than was: the last one is sent again. No harm
    /// comes of it, since a session knows what it has; unless a rule is turned off.
    ResumedTooShort,
    /// A caller finishes before all is pushed, and may push a chunk again instead. No harm comes of
    /// it, since the room is told what is missing; unless a rule is turned off.
    FinishedTooEarly,
    /// A broken path is closed by force, and that is taken for a fence.
    ForcedCloseIsAFence,
    /// That the writing process is dead is taken for an end of its puts.
    DeathEndsPuts,
    /// A fence ends what is under way; what the old claims bring later lands.
    FenceNotSticky,
    /// A flush that ended in an error is taken for one that did not.
    FailedFlushIsAFlush,
    /// After a failed flush the leg goes on by another route, and is complete there.
    RouteChanged,
    /// A writer that is inside is given up when a newer life of its node says hello.
    DiscountedOnHello,
    /// Peers are known by name only, and claims by number: an old claim's abort is asked of the
    /// new life, and its answer taken.
    AbortToTheNewLife,
    /// A pool's next life leaves the gates of the last one open.
    AttachedWithoutClosing,
    /// A pool's next life begins with claim number 1 again.
    NumbersBeginAgain,
    /// A node's table has pages free when the outcome of their room is known, and not when their
    /// lease came back.
    FreedAtTheOutcome,
}
