//! The gates of a node: claims open them, lanes enter them, and each ends with a witness.
//!
//! ```text
//!   open ──▶ OpenGate ──close──▶ Closing ──try_finish──▶ GateClosed (the witness)
//!               │                  │  ▲         │ somebody is inside
//!               └── dropped ──┬────┘  └─────────┘ again when the doorbell rings, or on a tick
//!                             ▼
//!          no witness; the slot is recycled, and the target let go, when it is empty
//! ```
//!
//! Rules: each of the three is move-only and made only by the one before it, so a witness exists
//! only for a gate that was closed with nobody inside. `slots` and `gate` have the mechanism.

use super::far::{FarGate, FarOver, FarPath, PeerOut};
use super::gate::{OpenRefused, Refused};
use super::shared::SharedError;
use super::shared_table::{SharedGates, SharedOwner, WhyNotLent, WriterDead};
use super::slots::{self, Entered, NotOpened as SlotNotOpened, Occupant, Owner, Slots};
use super::stream::Unfenced;
use super::target::{Doorbell, Landed, Target};
use crate::ids::ClaimNo;
use kvroom_kernels::coverage::Coverage;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

impl Occupant for Target {
    type Bell = Arc<dyn Doorbell>;

    fn bell(&self) -> Self::Bell {
        Arc::clone(self.doorbell())
    }

    fn ring(bell: Self::Bell, number: u64) {
        // On a lane's thread, perhaps while it unwinds; the owner's tick makes up for a lost ring.
        if catch_unwind(AssertUnwindSafe(|| bell.ring(ClaimNo(number)))).is_err() {
            tracing::error!(number, "a gate's doorbell panicked");
        }
    }
}

/// Every slot of the table is open or draining.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("all {limit} gates of this node are open or draining (limit `gates`)")]
pub struct GatesExhausted {
    /// How many the table has.
    pub limit: usize,
}

/// Why a gate was not opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotOpened {
    /// No slot is free.
    #[error(transparent)]
    Exhausted(#[from] GatesExhausted),
    /// The number is not one of a claim.
    #[error("{0} does not fit a gate: numbers go from 1 to 2^48 - 1; this is a bug of the caller")]
    BadNumber(ClaimNo),
    /// The slot's last claim had this number.
    #[error("the number of {0} was used before; this is a bug of the caller")]
    NumberReused(ClaimNo),
    /// Beside a pool that outlives this process it cannot be noted that pages of it are lent.
    #[error("pages are not lent to a peer on this host: {0}")]
    NotRecorded(SharedError),
    /// The word of a gate that a peer's process maps is not as this node left it.
    #[error(
        "gate {slot}, which was to be that of {number}, is not free although this node left it so: the \
         peer's process wrote over it; start that again"
    )]
    Overwritten {
        /// Whose gate it was to be.
        number: ClaimNo,
        /// Which gate it is.
        slot: u32,
    },
}

/// A gate was not opened; the target comes back.
#[derive(Debug, thiserror::Error)]
#[error("{why}")]
pub struct OpenError {
    /// Why.
    pub why: NotOpened,
    /// What was to be opened.
    pub target: Box<Target>,
}

/// The gates of a node.
pub struct GateTable {
    slots: Arc<Slots<Target>>,
}

impl GateTable {
    /// A table of `slots` gates, at least 1 and at most 2^24 - 1. Unused ones take no resident
    /// memory.
    pub fn new(slots: usize) -> Arc<GateTable> {
        Arc::new(GateTable {
            slots: Arc::new(Slots::new(slots)),
        })
    }

    /// Opens a gate for claim `number`, which no gate of this table has had before.
    ///
    /// # Errors
    ///
    /// [`OpenError`] hands the target back.
    pub fn open(&self, number: ClaimNo, target: Target) -> Result<OpenGate, OpenError> {
        match Slots::open(&self.slots, number.0, Box::new(target)) {
            Ok(owner) => Ok(OpenGate {
                owner: GateOwner::Here(owner),
            }),
            Err((why, target)) => {
                let why = match why {
                    SlotNotOpened::Exhausted => NotOpened::Exhausted(GatesExhausted {
                        limit: self.slots.len(),
                    }),
                    SlotNotOpened::Gate(OpenRefused::BadNumber) => NotOpened::BadNumber(number),
                    SlotNotOpened::Gate(OpenRefused::NumberReused | OpenRefused::NotVacant) => {
                        NotOpened::NumberReused(number)
                    }
                };
                Err(OpenError { why, target })
            }
        }
    }

    /// Lets a lane in to write one bounded piece for claim `number`, whose gate is in `slot`.
    ///
    /// # Errors
    ///
    /// [`Refused`]: the claim's gate is closed, or the slot is not (or not any more) that claim's.
    pub fn enter(&self, slot: u32, number: ClaimNo) -> Result<Inside<'_>, Refused> {
        Ok(Inside {
            unfenced: Unfenced::default(),
            entered: self.slots.enter(slot, number.0)?,
        })
    }
}

impl GateTable {
    /// Lets a lane in for one bounded piece that a device writes: whoever has it drops it when the
    /// event behind that work has fired, and not before.
    ///
    /// # Errors
    ///
    /// As [`GateTable::enter`].
    pub fn stay(&self, slot: u32, number: ClaimNo) -> Result<Staying, Refused> {
        Ok(Staying {
            inside: Slots::stay(&self.slots, slot, number.0)?,
        })
    }
}

impl fmt::Debug for GateTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("GateTable")
            .field("slots", &self.slots.len())
            .finish()
    }
}

/// Opens a gate for claim `number` in the table that a peer on this host enters.
///
/// # Errors
///
/// [`OpenError`] hands the target back.
pub(crate) fn open_shared(
    gates: &Arc<SharedGates>,
    number: ClaimNo,
    target: Target,
) -> Result<OpenGate, OpenError> {
    match SharedGates::open(gates, number.0, Box::new(target)) {
        Ok(owner) => Ok(OpenGate {
            owner: GateOwner::Shared(owner),
        }),
        Err((why, target)) => {
            let why = match why {
                WhyNotLent::Exhausted => NotOpened::Exhausted(GatesExhausted {
                    limit: gates.table().slots() as usize,
                }),
                WhyNotLent::NotRecorded(why) => NotOpened::NotRecorded(why),
                WhyNotLent::Gate(_, OpenRefused::BadNumber) => NotOpened::BadNumber(number),
                // This node uses no number twice, and takes only slots that it has found empty.
                WhyNotLent::Gate(slot, OpenRefused::NumberReused | OpenRefused::NotVacant) => {
                    NotOpened::Overwritten { number, slot }
                }
            };
            Err(OpenError { why, target })
        }
    }
}

/// Opens a gate for claim `number` whose writer writes by itself over `path`.
pub(crate) fn open_far(number: ClaimNo, target: Target, path: &Arc<FarPath>) -> OpenGate {
    OpenGate {
        owner: GateOwner::Far(FarGate::open(number, Box::new(target), Arc::clone(path))),
    }
}

/// Where a gate's word is.
enum GateOwner {
    /// In this process alone.
    Here(Owner<Target>),
    /// In memory that a peer's process maps, too.
    Shared(SharedOwner),
    /// With its writer.
    Far(FarGate),
}

impl GateOwner {
    fn index(&self) -> u32 {
        match self {
            GateOwner::Here(owner) => owner.index(),
            GateOwner::Shared(owner) => owner.index(),
            // Nobody looks for it.
            GateOwner::Far(_) => 0,
        }
    }

    fn number(&self) -> ClaimNo {
        ClaimNo(match self {
            GateOwner::Here(owner) => owner.number(),
            GateOwner::Shared(owner) => owner.number(),
            GateOwner::Far(gate) => return gate.number(),
        })
    }

    fn target(&self) -> &Target {
        match self {
            GateOwner::Here(owner) => owner.contents(),
            GateOwner::Shared(owner) => owner.target(),
            GateOwner::Far(gate) => gate.target(),
        }
    }

    fn landed(&self) -> Landed {
        match self {
            GateOwner::Here(owner) => owner.contents().landed(),
            GateOwner::Shared(owner) => owner.landed(),
            GateOwner::Far(gate) => gate.target().landed(),
        }
    }
}

/// An open gate. Dropping it closes it; its slot is used again when it is empty, never before.
#[must_use = "dropping an open gate closes it, and no witness of that is made"]
pub struct OpenGate {
    owner: GateOwner,
}

impl OpenGate {
    /// Where lanes find it.
    pub fn slot(&self) -> u32 {
        self.owner.index()
    }

    /// Whose it is.
    pub fn number(&self) -> ClaimNo {
        self.owner.number()
    }

    /// What has landed so far.
    pub fn landed(&self) -> Landed {
        self.owner.landed()
    }

    /// Where its writers write.
    pub fn target(&self) -> &Target {
        self.owner.target()
    }

    /// Lets nobody in any more.
    pub fn close(self) -> Closing {
        match &self.owner {
            GateOwner::Here(owner) => {
                owner.close();
            }
            GateOwner::Shared(owner) => owner.close(),
            // Its writer is told by the room's abort, or was out before.
            GateOwner::Far(_) => {}
        }
        Closing { owner: self.owner }
    }

    /// Closes a gate that nobody was told of.
    pub(crate) fn withdraw(mut self) {
        if let GateOwner::Far(gate) = &mut self.owner {
            gate.withdraw();
        }
    }

    /// As [`Closing::hear`].
    pub(crate) fn hear(&mut self, said: &PeerOut, cells: &Coverage) {
        if let GateOwner::Far(gate) = &mut self.owner {
            gate.hear(said, cells);
        }
    }
}

/// A closed gate that may still have writers inside.
///
/// Dropping it gives up the witness, not the safety: the target is let go and the slot used again
/// by the last writer that leaves.
#[must_use = "without `try_finish` no witness is made"]
pub struct Closing {
    owner: GateOwner,
}

impl Closing {
    /// Where it is.
    pub fn slot(&self) -> u32 {
        self.owner.index()
    }

    /// Whose it is.
    pub fn number(&self) -> ClaimNo {
        self.owner.number()
    }

    /// What has landed so far.
    pub fn landed(&self) -> Landed {
        self.owner.landed()
    }

    /// The witness, if nobody is inside. Cheap; also to be tried on a tick.
    ///
    /// # Errors
    ///
    /// The gate itself, if somebody is.
    pub fn try_finish(self) -> Result<GateClosed, Closing> {
        let number = self.number();
        // The target is dropped before the witness exists, so the leases it was made of are whole
        // again by then.
        match self.owner {
            GateOwner::Here(owner) => match owner.try_finish() {
                Ok(target) => {
                    let landed = target.landed();
                    drop(target);
                    Ok(GateClosed { number, landed })
                }
                Err(owner) => Err(Closing {
                    owner: GateOwner::Here(owner),
                }),
            },
            GateOwner::Shared(owner) => match owner.try_finish() {
                Ok(landed) => Ok(GateClosed { number, landed }),
                Err(owner) => Err(Closing {
                    owner: GateOwner::Shared(owner),
                }),
            },
            // Whether anybody is inside is not to be seen from here.
            GateOwner::Far(_) => Err(self),
        }
    }

    /// The writer of a far gate has said that it is out; `cells` is what it says it wrote. Nothing for other
    /// gates, and for another claim's.
    pub(crate) fn hear(&mut self, said: &PeerOut, cells: &Coverage) {
        if let GateOwner::Far(gate) = &mut self.owner {
            gate.hear(said, cells);
        }
    }

    /// The witness that the writer of a far gate is out, if it said so or its path is fenced.
    ///
    /// # Errors
    ///
    /// The gate itself, if not.
    pub(crate) fn try_finish_far(self) -> Result<FarOver, Closing> {
        match self.owner {
            GateOwner::Far(gate) => gate.try_finish().map_err(|gate| Closing {
                owner: GateOwner::Far(gate),
            }),
            GateOwner::Here(_) | GateOwner::Shared(_) => Err(self),
        }
    }

    /// The witness that whoever is inside is dead, if the gate is one of a peer on this host and the
    /// kernel says so.
    ///
    /// # Errors
    ///
    /// The gate itself, if not.
    pub fn try_finish_dead(self) -> Result<WriterDead, Closing> {
        match self.owner {
            GateOwner::Here(_) | GateOwner::Far(_) => Err(self),
            GateOwner::Shared(owner) => owner.try_finish_dead().map_err(|owner| Closing {
                owner: GateOwner::Shared(owner),
            }),
        }
    }
}

/// The witness that claim `number` writes nothing any more in this process: its gate is closed and
/// nobody is inside. Every write that went through it happens before the witness was made.
#[derive(Debug, PartialEq, Eq)]
pub struct GateClosed {
    number: ClaimNo,
    landed: Landed,
}

impl GateClosed {
    /// Whose gate it was.
    pub fn number(&self) -> ClaimNo {
        self.number
    }

    /// All that landed through it.
    pub fn landed(&self) -> Landed {
        self.landed
    }
}

/// A writer inside a gate. Held for one bounded piece; dropping it leaves. It cannot be sent to
/// another thread, so a future that holds it across an await is not `Send`.
///
/// ```compile_fail,E0277
/// fn must_be_send<T: Send>() {}
/// must_be_send::<kvroom_actors::memory::Inside<'static>>();
/// ```
pub struct Inside<'t> {
    /// Before `entered`, so that its fence comes before the gate is left.
    unfenced: Unfenced,
    entered: Entered<'t, Target>,
}

impl Inside<'_> {
    /// Where the claim's writers may write.
    pub fn target(&self) -> &Target {
        self.entered.contents()
    }

    /// Whose gate it is.
    pub fn number(&self) -> ClaimNo {
        ClaimNo(self.entered.number())
    }

    /// What must be fenced before this leaves.
    pub(super) fn unfenced(&self) -> &Unfenced {
        &self.unfenced
    }
}

/// A writer inside a gate for as long as a device works for it. Unlike [`Inside`] it may be dropped on
/// any thread; dropping it leaves.
pub struct Staying {
    inside: slots::Staying<Target>,
}

impl Staying {
    /// Where the claim's writers may write.
    pub fn target(&self) -> &Target {
        self.inside.contents()
    }

    /// Whose gate it is.
    pub fn number(&self) -> ClaimNo {
        ClaimNo(self.inside.number())
    }
}

macro_rules! debug_with_number {
    ($($name:ident $(<$life:lifetime>)?),*) => {$(
        impl fmt::Debug for $name $(<$life>)? {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_struct(stringify!($name)).field("number", &self.number()).finish()
            }
        }
    )*};
}
debug_with_number!(OpenGate, Closing, Inside<'_>, Staying);
