//! Copies into the pools of a peer on this host, through the peer's own gates in shared memory.
//!
//! ```text
//!   Claim arrives ──▶ ShmClaim: gate slot, number, and for each section the mapped pool and its pages
//!   job ──plan──▶ enter the peer's gate ──▶ copy runs ──▶ sfence, leave ──▶ next piece
//! ```
//!
//! Rules: the same as for `local`, with the gate's word in the peer's table. A peer on this host is
//! trusted with the whole of each pool that is shared with it: nothing but its own care keeps a process
//! from writing elsewhere in a mapping that it has. What both sides do keep is the contract: no write
//! outside a gate, no return of memory but by the word or by the proof that the writer is dead.

use super::Fact;
use crate::copy::job::Place;
use crate::copy::pieces::Pieces;
use crate::ids::ClaimNo;
use crate::memory::{Bell, Refused, RemoteGates, RemotePool, SharedGates, Ticket, Writer};
use kvroom_kernels::coverage::Rect;
use kvroom_kernels::plan::Piece;
use std::cell::Cell;
use std::sync::Arc;

/// The way to one life of a peer on this host. Clones are the same.
#[derive(Clone, Debug)]
pub(crate) struct ShmRoute {
    /// Gates of this node's own claims, which the peer enters.
    pub(crate) ours: Arc<SharedGates>,
    /// Gates of the peer's claims.
    pub(crate) theirs: Arc<RemoteGates>,
    /// The peer's process.
    pub(crate) writer: Arc<Writer>,
    /// Rung by the peer when it leaves a closed gate empty.
    pub(crate) bell: Arc<Bell>,
}

/// Pages of one section of a claim.
#[derive(Debug)]
pub(crate) struct ShmSection {
    pub(crate) pool: Arc<RemotePool>,
    pub(crate) pages: Arc<[u32]>,
}

/// A claim of a peer on this host: where to write, and through which gate.
#[derive(Debug)]
pub(crate) struct ShmClaim {
    pub(crate) gates: Arc<RemoteGates>,
    pub(crate) slot: u32,
    pub(crate) number: ClaimNo,
    pub(crate) sections: Vec<ShmSection>,
    pub(crate) aux: Option<ShmSection>,
}

impl ShmClaim {
    fn section(&self, section: u16) -> Option<&ShmSection> {
        if section == Rect::AUX {
            self.aux.as_ref()
        } else {
            self.sections.get(usize::from(section))
        }
    }

    /// Plans the copies of a job onto the pages that the claim names.
    ///
    /// # Errors
    /// [`Fact::Errored`] if the two ends do not fit.
    pub(crate) fn plan(
        &self,
        layout: &Arc<kvroom_kernels::layout::PoolLayout>,
        place: &Place,
    ) -> Result<Pieces, Fact> {
        let Some(section) = self.section(place.section) else {
            return Err(Fact::Errored(format!(
                "the claim has no section {}",
                place.section
            )));
        };
        super::plan_onto(layout, place, section.pool.layout(), &section.pages)
    }

    /// The destination's pool and first page, for a lane that does the wrong thing.
    #[cfg(feature = "plant")]
    pub(crate) fn destination(&self, place: &Place) -> Option<(Arc<RemotePool>, u32)> {
        let section = self.section(place.section)?;
        let page = *section.pages.get(place.to.start)?;
        Some((Arc::clone(&section.pool), page))
    }

    /// As [`super::local::LocalRoute::place`].
    pub(crate) fn place(&self, section: u16, runs: &[Piece], bytes: &[u8]) -> Result<(), Fact> {
        let Some(to) = self.section(section) else {
            let text = format!("the claim has no section {section}");
            return Err(Fact::Errored(text));
        };
        let inside = match self.gates.enter(self.slot, self.number) {
            Ok(inside) => inside,
            Err(Refused::Full) => {
                let text = "too many writers are inside the claim's gate";
                return Err(Fact::Errored(text.into()));
            }
            Err(_) => return Err(Fact::Refused),
        };
        let cursor = Cell::new(0);
        let mut rest = bytes;
        for run in runs {
            let (now, later) = rest.split_at((run.bytes as usize).min(rest.len()));
            let placed = inside.place((&*to.pool, &*to.pages), run.dst, now, &cursor);
            placed.map_err(|error| Fact::Errored(error.to_string()))?;
            rest = later;
        }
        Ok(())
    }

    /// As [`super::local::LocalRoute::write`].
    pub(crate) fn write(
        &self,
        section: u16,
        plan: &mut Pieces,
        cell: u64,
        budget: u64,
        source: &Ticket,
    ) -> (u64, Option<Fact>) {
        let Some(to) = self.section(section) else {
            let text = format!("the claim has no section {section}");
            return (0, Some(Fact::Errored(text)));
        };
        let inside = match self.gates.enter(self.slot, self.number) {
            Ok(inside) => inside,
            Err(Refused::Full) => {
                let text = "too many writers are inside the claim's gate";
                return (0, Some(Fact::Errored(text.into())));
            }
            Err(_) => return (0, Some(Fact::Refused)),
        };
        #[cfg(feature = "plant")]
        crate::copy::plant::inside_a_gate();
        let mut copying = inside.copier((&*to.pool, &*to.pages), source);
        let mut given = 0;
        while given == 0 || budget - given >= cell {
            let Some(run) = plan.next_piece(budget - given) else {
                break;
            };
            if let Err(error) = copying.copy(run.dst, run.src, run.bytes) {
                return (copying.finish(), Some(Fact::Errored(error.to_string())));
            }
            given += run.bytes;
        }
        (copying.finish(), None)
    }
}

/// One claim's gate, in this process or in a peer's.
#[derive(Clone, Debug)]
pub(crate) enum Way {
    Local(super::local::LocalRoute),
    Shm(Arc<ShmClaim>),
}
