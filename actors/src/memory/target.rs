//! Where the writers of one claim may write, and whom they tell.

use super::held::Held;
use super::pool::PoolMemory;
use kvroom_kernels::coverage::Rect;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Told by the last writer to leave a closed gate, so that the owner tries to finish it.
///
/// A ring may come late, after the gate was finished on a tick, and it may be missing if the writer
/// was stopped before it rang.
pub trait Doorbell: Send + Sync {
    /// The gate of claim `number` is closed and empty, or was. Called on the lane's thread; must
    /// not block.
    fn ring(&self, number: crate::ids::ClaimNo);
}

/// What landed through a gate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Landed {
    /// Pieces written.
    pub pieces: u64,
    /// Bytes written.
    pub bytes: u64,
}

/// Pages of one pool that a claim's writers may write. Keeps the pages held.
pub struct TargetSection {
    held: Arc<Held>,
}

/// What a claim's gate protects. Owned by the gate's slot from open to closed and empty.
pub struct Target {
    sections: Box<[TargetSection]>,
    aux: Option<TargetSection>,
    pieces: AtomicU64,
    bytes: AtomicU64,
    doorbell: Arc<dyn Doorbell>,
}

impl TargetSection {
    pub(super) fn new(held: Arc<Held>) -> Self {
        TargetSection { held }
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    /// The pool's memory.
    pub fn memory(&self) -> &PoolMemory {
        self.held.memory()
    }

    /// The pages, in the claim's order.
    pub fn pages(&self) -> &[u32] {
        self.held.pages()
    }
}

impl Target {
    /// A target of `sections`, in the claim's order, and perhaps an aux row.
    pub fn new(
        sections: Vec<TargetSection>,
        aux: Option<TargetSection>,
        doorbell: Arc<dyn Doorbell>,
    ) -> Self {
        Target {
            sections: sections.into_boxed_slice(),
            aux,
            pieces: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            doorbell,
        }
    }

    /// Section `section`; [`Rect::AUX`] is the aux row.
    pub fn section(&self, section: u16) -> Option<&TargetSection> {
        if section == Rect::AUX {
            self.aux.as_ref()
        } else {
            self.sections.get(section as usize)
        }
    }

    /// What has landed so far; exact once the gate is closed and empty.
    pub fn landed(&self) -> Landed {
        // Relaxed: for the exact answer the gate word has ordered every add before this.
        Landed {
            pieces: self.pieces.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    pub(super) fn count(&self, bytes: u64) {
        self.pieces.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(super) fn doorbell(&self) -> &Arc<dyn Doorbell> {
        &self.doorbell
    }
}

impl fmt::Debug for TargetSection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TargetSection")
            .field("pool", &self.memory().layout().name)
            .field("pages", &self.pages())
            .finish()
    }
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Target")
            .field("sections", &self.sections)
            .field("aux", &self.aux)
            .field("landed", &self.landed())
            .finish_non_exhaustive()
    }
}
