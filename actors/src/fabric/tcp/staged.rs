//! Ends of a job that are not in memory of this process's CPU: bytes come from, or go to, staging.
//!
//! ```text
//!   sender      device ──gather──▶ staging ── StagedSource ──▶ frames
//!
//!   receiver    frame ──▶ StagedSlot ──trailer valid──▶ Delivery { stay in the gate } ──▶ device
//!                 │ none is free                                     │ scattered
//!                 └ this connection is not read until one is         └ marked, gate left, acknowledged
//! ```
//!
//! Rules:
//! - A staging source is let go of when its job is over; frames that are half written then go on with
//!   zeroes, as those from pages do.
//! - Nothing of a claim's pages is touched before a frame's trailer said that it is valid. From then on
//!   the delivery stays in the claim's gate until it is over: a closed gate waits for it.
//! - A delivery is over once: it landed, or it failed. One that is lost has failed. Acknowledgements go
//!   out in the order in which deliveries end.
//! - Slots become free without anything coming over a network, or two nodes wait for each other: so they
//!   are not those that sources are staged in.
//! - Bytes of a device may be handed to a process of the same host: then the frame says where they are
//!   (`handed`), and the slot is a place in the sender's ring that the receiver has opened.

use super::frame::{Data, Fate, Reference, RingName};
use super::handed::{Handing, Landing};
use super::receive;
#[cfg(test)]
use crate::ids::ClaimNo;
use crate::memory::{Pool, PoolRange, Staying, TargetSection};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// What a job carries, gathered.
pub(crate) trait StagedSource: Send {
    /// Shows some of its bytes; false if it does not have these, which is an error of the job.
    ///
    /// They count through the job layer by layer, in each of them place by place. A cell's bytes are those
    /// of the page; with a slice, those that the slice has of it, in the order in which a
    /// [`CubePlan`](kvroom_kernels::plan::cube::CubePlan) of that one cell gives them out.
    fn read(&self, range: Range<u64>, see: &mut dyn FnMut(&[u8])) -> bool;

    /// The sum over the job's cells (or rows, if it carries parts of cells); none if nobody made it.
    fn checksum(&self) -> Option<u64>;

    /// Where its bytes are, if they are handed over and not read: the ring, and where in it they begin.
    fn handed(&self) -> Option<Reference> {
        None
    }
}

/// Why there are no slots for a section, and never will be.
#[derive(Clone, Debug)]
pub(crate) struct NoSlots {
    /// Its device is lost.
    pub(crate) lost: bool,
    /// In words.
    pub(crate) why: String,
}

/// Called when a slot may be free again.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// Where frames for memory go that the CPU does not reach.
pub(crate) trait StagedSink: Send + Sync {
    /// Whether the pages of this section are written through it.
    fn takes(&self, section: &TargetSection) -> bool;

    /// A slot for so many bytes of a section: 1 to [`MAX_DATA_FRAME`](crate::limits::MAX_DATA_FRAME). If none is free,
    /// `wake` is called when one may be, once; a slot that becomes free while this is called counts.
    ///
    /// Called on the thread of a lane; must not block.
    ///
    /// # Errors
    /// In words: there never will be one, since the device is lost or gives no memory.
    fn slot(
        &self,
        section: &TargetSection,
        bytes: usize,
        wake: &Wake,
    ) -> Result<Option<Box<dyn StagedSlot>>, NoSlots>;

    /// Opens a ring of another process for the pages of a pool, and tells what came of it; a no in words.
    ///
    /// Called on the thread of a lane; must not block. It may be told at once, on any thread.
    fn open(&self, pool: &Pool, ring: &RingName, tell: TellOpened) {
        let _ = (pool, ring);
        tell(Err("the receiver takes no handed frames".into()));
    }
}

/// Told what came of opening a ring.
pub(crate) type TellOpened = Box<dyn FnOnce(Result<Arc<dyn FarRing>, String>) + Send>;

/// Device memory of another process, opened here.
pub(crate) trait FarRing: Send + Sync {
    /// Its bytes.
    fn bytes(&self) -> u64;

    /// Whether pages of this section can be written from it.
    fn serves(&self, section: &TargetSection) -> bool;

    /// Some of it, which was found to be within it: a slot that is full.
    fn slot(self: Arc<Self>, range: Range<u64>) -> Box<dyn StagedSlot>;
}

/// Room for one frame. It is free again when it is dropped, which may be at any time.
pub(crate) trait StagedSlot: Send {
    /// Shows some of its bytes, to be written; false if it is smaller than what was asked for.
    fn write(&mut self, range: Range<u64>, see: &mut dyn FnMut(&mut [u8])) -> bool;

    /// All of the frame is in it, and valid: to where [`Delivery`] says. Must not block; an error is for
    /// [`Delivery::failed`].
    fn deliver(self: Box<Self>, to: Delivery);
}

/// Told what became of frame `.0`, of which `.2` bytes landed, or came for nothing.
pub(super) type Tell = Arc<dyn Fn(u64, Fate, u32) + Send + Sync>;

/// A frame on its way from a slot into the pages of its claim. Whoever queues work for it owns it until
/// that work is over, and ends it then; it may end on any thread.
#[must_use = "a delivery that is dropped has failed"]
pub(crate) struct Delivery {
    /// None once it is over.
    stay: Option<Staying>,
    data: Data,
    tell: Tell,
    /// Dropped last: who waits for its place finds all else over.
    landing: Option<Landing>,
}

impl Delivery {
    pub(super) fn new(stay: Staying, data: Data, tell: Tell) -> Delivery {
        let stay = Some(stay);
        Delivery {
            stay,
            data,
            tell,
            landing: None,
        }
    }

    /// It has one of the places of handed frames.
    pub(super) fn counted(mut self, landing: Option<Landing>) -> Delivery {
        self.landing = landing;
        self
    }

    /// Inside the claim's gate, with its pages.
    pub(crate) fn stay(&self) -> &Staying {
        match &self.stay {
            Some(stay) => stay,
            None => unreachable!("a delivery stays until it is consumed"),
        }
    }

    /// The claim.
    #[cfg(test)]
    pub(crate) fn claim(&self) -> ClaimNo {
        self.data.claim
    }

    /// The section of the claim.
    pub(crate) fn section(&self) -> u16 {
        self.data.section
    }

    /// The rectangle of cells that the frame is of: layers, and places in the claim's list.
    #[cfg(test)]
    pub(crate) fn cells(&self) -> (Range<u32>, Range<u32>) {
        (self.data.layers.clone(), self.data.places.clone())
    }

    /// Where in the bytes of its rectangle the frame begins. If the section has a slice, that is 0 unless
    /// the rectangle is one cell.
    #[cfg(test)]
    pub(crate) fn position(&self) -> u64 {
        self.data.position
    }

    /// Bytes of the frame.
    pub(crate) fn length(&self) -> u32 {
        self.data.length
    }

    /// Where in the section's pool the slot's bytes go, one range behind the other.
    ///
    /// # Errors
    /// In words; a bug of this side, since the frame was checked.
    pub(crate) fn for_each_range(&self, mut f: impl FnMut(PoolRange)) -> Result<(), String> {
        let Some(section) = self.stay().target().section(self.data.section) else {
            return Err("the claim has no such section any more".into());
        };
        receive::ranges_of(&self.data, section, &mut f)
    }

    /// All of it is in the pages, and will be seen there.
    pub(crate) fn landed(mut self) {
        if let Some(stay) = self.stay.take() {
            let target = stay.target();
            if let Some(section) = target.section(self.data.section) {
                receive::mark(&self.data, section);
                target.count(u64::from(self.data.length));
            }
            drop(stay);
            (self.tell)(self.data.seq, Fate::Landed, self.data.length);
        }
    }

    /// It is over, and not all of it is in the pages: the claim's room ends with that.
    pub(crate) fn broke(self, lost: bool, why: &str) {
        self.tell(lost, why);
        self.failed(why);
    }

    /// Its device is lost while it writes, and nobody can say when that ends: the claim's room ends, and this
    /// stays where it is.
    pub(crate) fn lost(&self, why: &str) {
        self.tell(true, why);
    }

    fn tell(&self, lost: bool, why: &str) {
        let target = self.stay().target();
        target.device_failed(self.data.claim, lost, why);
    }

    /// It is over, and not all of it is in the pages. The sender hears that it was refused: its leg fails.
    pub(crate) fn failed(self, why: &str) {
        tracing::warn!(claim = %self.data.claim, why, "a frame did not get from staging into its pages");
        drop(self);
    }
}

impl Drop for Delivery {
    fn drop(&mut self) {
        if let Some(stay) = self.stay.take() {
            drop(stay);
            (self.tell)(self.data.seq, Fate::Refused, self.data.length);
        }
    }
}

impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("data", &self.data)
            .finish_non_exhaustive()
    }
}

/// What a connection needs of a sink.
pub(super) struct Staging {
    pub(super) sink: Arc<dyn StagedSink>,
    pub(super) wake: Wake,
    pub(super) tell: Tell,
    pub(super) handing: Arc<Handing>,
}
