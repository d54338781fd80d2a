//! How much may go on in a world, and what is wrong with it on purpose.
//!
//! ```text
//!   Size ─▶ World::new ─▶ budget, counted down by pushes, aborts, faults
//!        └▶ plant: one bug in the glue around the shipped cores
//! ```

use std::hash::{Hash, Hasher};

/// How much can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Receivers, each a node of its own: 1 or 2.
    pub(crate) receivers: usize,
    /// Attempts that callers may make on each node.
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
}

impl From<Size> for Budget {
    fn from(size: Size) -> Self {
        Budget {
            pushes: size.pushes,
            resets: size.resets,
            losses: size.losses,
            panics: size.panics,
            aborts: size.aborts,
        }
    }
}

/// A bug in what is around the cores, to show that the properties notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Plant {
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
}
