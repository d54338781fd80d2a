//! Copies between pools of nodes in one process, through the receiver's own gates.
//!
//! The destination's page list is not the one of the claim message but the one pinned in the gate's
//! slot: a writer that is inside sees the pages that the receiver lent, and no others.

use super::Fact;
use crate::copy::device_lane::Device;
use crate::copy::job::Place;
use crate::copy::pieces::Pieces;
use crate::ids::ClaimNo;
use crate::memory::{GateTable, Refused, Staying, Ticket};
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::plan::cube::PageList;
use kvroom_kernels::plan::{Piece, Plan};
use std::cell::Cell;
use std::sync::Arc;

/// One claim's gate in another node of this process.
#[derive(Clone, Debug)]
pub struct LocalRoute {
    gates: Arc<GateTable>,
    slot: u32,
    number: ClaimNo,
}

impl LocalRoute {
    /// The route to the claim `number`, whose gate is in `slot` of the receiver's table.
    pub fn new(gates: Arc<GateTable>, slot: u32, number: ClaimNo) -> Self {
        LocalRoute {
            gates,
            slot,
            number,
        }
    }

    /// Plans the copies of a job onto the pages that the receiver lent.
    ///
    /// # Errors
    /// [`Fact::Refused`] if the gate is closed, [`Fact::Errored`] if the two ends do not fit.
    pub(crate) fn plan(&self, layout: &Arc<PoolLayout>, place: &Place) -> Result<Pieces, Fact> {
        let inside = self.gates.enter(self.slot, self.number).map_err(refused)?;
        let target = inside.target();
        let Some(section) = target.section(place.section) else {
            return Err(Fact::Errored(format!(
                "the claim has no section {}",
                place.section
            )));
        };
        let errored = |text| Err(Fact::Errored(text));
        match (&place.slice, section.slice()) {
            (None, None) => {
                let plan = Plan::new(
                    layout,
                    section.memory().layout(),
                    place.layers.clone(),
                    Arc::clone(&place.pages),
                    place.from.clone(),
                    section.arc_pages(),
                    place.to.clone(),
                );
                plan.map(Pieces::Cells)
                    .or_else(|error| errored(error.to_string()))
            }
            // What the receiver allows, whatever its message said.
            (Some(job), Some(allowed)) => {
                let to = PageList {
                    list: section.arc_pages(),
                    range: place.to.clone(),
                };
                let plan = allowed.plan(job, place.layers.clone(), place.source(), to);
                plan.map(|plan| Pieces::Slices(Box::new(plan)))
                    .or_else(errored)
            }
            _ => errored(format!(
                "section {}: one side means whole cells, the other parts of them",
                place.section
            )),
        }
    }

    /// The destination's pool and first page, for a lane that does the wrong thing.
    #[cfg(feature = "plant")]
    pub(crate) fn destination(&self, place: &Place) -> Option<(crate::memory::Pool, u32)> {
        let inside = self.gates.enter(self.slot, self.number).ok()?;
        let section = inside.target().section(place.section)?;
        let page = *section.pages().get(place.to.start)?;
        Some((crate::memory::plant::pool_of(section), page))
    }

    /// The device that a section of the claim is on, if it is on one and its gate is open.
    pub(crate) fn device(&self, section: u16) -> Option<Device> {
        let inside = self.gates.enter(self.slot, self.number).ok()?;
        inside.target().section(section)?.device().cloned()
    }

    /// Enters for as long as a device writes.
    ///
    /// # Errors
    /// [`Fact`]: the gate is closed, or full.
    pub(crate) fn stay(&self) -> Result<Staying, Fact> {
        self.gates.stay(self.slot, self.number).map_err(refused)
    }

    /// Writes `bytes`, which are those of the runs in their order.
    ///
    /// # Errors
    /// [`Fact`]: the gate is closed, or a run does not lie in the claim's pages; of those before it the
    /// bytes are there.
    pub(crate) fn place(&self, section: u16, runs: &[Piece], bytes: &[u8]) -> Result<(), Fact> {
        let inside = self.gates.enter(self.slot, self.number).map_err(refused)?;
        let cursor = Cell::new(0);
        let mut rest = bytes;
        for run in runs {
            let (now, later) = rest.split_at((run.bytes as usize).min(rest.len()));
            let placed = inside.write(section, run.dst, now, &cursor);
            placed.map_err(|error| Fact::Errored(error.to_string()))?;
            rest = later;
        }
        inside
            .target()
            .count_pieces(runs.len() as u64, (bytes.len() - rest.len()) as u64);
        Ok(())
    }

    /// Copies one piece of at most `budget` bytes: enters the gate, writes the next runs of the
    /// plan, leaves. Cells have `cell` bytes; one is cut only if it is larger than the budget.
    ///
    /// Gives how many bytes landed, and why it stopped if it could not go on.
    pub(crate) fn write(
        &self,
        section: u16,
        plan: &mut Pieces,
        cell: u64,
        budget: u64,
        source: &Ticket,
    ) -> (u64, Option<Fact>) {
        let inside = match self.gates.enter(self.slot, self.number) {
            Ok(inside) => inside,
            Err(why) => return (0, Some(refused(why))),
        };
        #[cfg(feature = "plant")]
        crate::copy::plant::inside_a_gate();
        let mut copying = match inside.copier(section, source) {
            Ok(copying) => copying,
            Err(error) => return (0, Some(Fact::Errored(error.to_string()))),
        };
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

fn refused(why: Refused) -> Fact {
    match why {
        Refused::Full => Fact::Errored("too many writers are inside the claim's gate".into()),
        _ => Fact::Refused,
    }
}
