//! Where the writers of one claim may write, and whom they tell.

use super::held::Held;
use super::marks::{Grid, Marks};
use super::pool::{Pool, PoolMemory};
use crate::ids::PeerRef;
use crate::slice::{SliceCells, TargetSlice};
use kvroom_kernels::coverage::{Coverage, Rect};
use kvroom_kernels::plan::cube::{CubePlanError, PageList};
use std::fmt;
use std::ops::Range;
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

    /// A device cannot write what came for claim `number`: it is lost, or its driver refused. The room is
    /// to end. Called on a lane's thread; must not block.
    fn device_failed(&self, number: crate::ids::ClaimNo, lost: bool, why: &str) {
        let _ = (number, lost, why);
    }
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
    marks: Marks,
    /// Boxed: most claims have none.
    slice: Option<Box<Sliced>>,
}

/// What of a section may be written, and what its cells have of that.
struct Sliced {
    slice: Arc<TargetSlice>,
    /// An error is a slice that is not of these pages: whoever made the target is wrong.
    cells: Result<SliceCells, Box<CubePlanError>>,
}

/// What a claim's gate protects. Owned by the gate's slot from open to closed and empty.
pub struct Target {
    sections: Box<[TargetSection]>,
    aux: Option<TargetSection>,
    /// The one peer that may write, when bytes come from the network.
    writer: Option<PeerRef>,
    /// The layers that it may write.
    layers: Range<u32>,
    pieces: AtomicU64,
    bytes: AtomicU64,
    doorbell: Arc<dyn Doorbell>,
}

impl TargetSection {
    pub(super) fn new(held: Arc<Held>) -> Self {
        TargetSection {
            held,
            marks: Marks::default(),
            slice: None,
        }
    }

    /// Only these bytes of the cells may be written; none, if the slice is not one of these pages.
    #[must_use]
    pub fn only(mut self, slice: Arc<TargetSlice>) -> Self {
        let pages = PageList::whole(self.arc_pages());
        let cells = SliceCells::new(&slice.dst, &slice.part, slice.tokens.clone(), pages, 0);
        self.slice = Some(Box::new(Sliced { slice, cells }));
        self
    }

    /// Which bytes of the cells may be written, if not all of them.
    pub fn slice(&self) -> Option<&Arc<TargetSlice>> {
        self.slice.as_ref().map(|s| &s.slice)
    }

    /// What the cells have of the slice, if there is one.
    pub(crate) fn cells(&self) -> Option<Result<&SliceCells, &CubePlanError>> {
        self.slice
            .as_ref()
            .map(|s| s.cells.as_ref().map_err(|error| &**error))
    }

    pub(super) fn held(&self) -> &Held {
        &self.held
    }

    fn grid(&self) -> Grid {
        let layout = self.memory().layout();
        let places = self.pages().len() as u32;
        match self.slice.as_deref() {
            None => Grid::even(layout.layers, places, layout.page_bytes),
            Some(Sliced { slice, cells }) => match cells {
                Ok(cells) => Grid {
                    layers: slice.dst.layers.held,
                    places,
                    cell: cells.whole_cell(),
                    ends: [cells.cell(0), cells.cell(places.saturating_sub(1))],
                },
                Err(_) => Grid::even(0, 0, 0),
            },
        }
    }

    /// Notes that `bytes` bytes of a cell (of what the slice has in it, if there is one) were written
    /// from `offset` on, and found valid.
    pub(crate) fn mark(&self, layer: u32, place: u32, offset: u64, bytes: u64) {
        self.marks.mark(self.grid(), layer, place, offset, bytes);
    }

    /// The pool's memory.
    pub fn memory(&self) -> &PoolMemory {
        self.held.memory()
    }

    /// The pages, in the claim's order.
    pub fn pages(&self) -> &[u32] {
        self.held.pages()
    }

    /// The same list, shared.
    pub fn arc_pages(&self) -> Arc<[u32]> {
        Arc::clone(self.held.pages())
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
            writer: None,
            layers: 0..u32::MAX,
            pieces: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            doorbell,
        }
    }

    /// Only this peer may write over a network, and only these layers.
    #[must_use]
    pub fn only_for(mut self, writer: PeerRef, layers: Range<u32>) -> Self {
        self.writer = Some(writer);
        self.layers = layers;
        self
    }

    /// A pool in it that no other process can map.
    pub(crate) fn private_pool(&self) -> Option<&Pool> {
        let sections = self.sections.iter().chain(&self.aux);
        sections
            .map(|s| s.held.pool())
            .find(|p| p.shared_memory().is_none())
    }

    /// The pools and pages that it is made of.
    pub(super) fn sections(&self) -> impl Iterator<Item = &TargetSection> {
        self.sections.iter().chain(&self.aux)
    }

    /// Who may write over a network.
    pub fn writer(&self) -> Option<PeerRef> {
        self.writer
    }

    /// Which layers.
    pub fn layers(&self) -> Range<u32> {
        self.layers.clone()
    }

    /// Whether network lanes have marked all these cells.
    pub fn has_all(&self, cells: &Coverage) -> bool {
        cells.rects().iter().all(|rect| {
            self.section(rect.section)
                .is_some_and(|s| s.marks.has_all(s.grid(), rect))
        })
    }

    /// The cells that network lanes have marked.
    pub fn marked(&self) -> Coverage {
        let mut set = Coverage::new();
        for (i, section) in (0..Rect::AUX).zip(&self.sections) {
            section.marks.add_to(section.grid(), i, &mut set);
        }
        if let Some(aux) = &self.aux {
            aux.marks.add_to(aux.grid(), Rect::AUX, &mut set);
        }
        set
    }

    /// Section `section`; [`Rect::AUX`] is the aux row.
    pub fn section(&self, section: u16) -> Option<&TargetSection> {
        if section == Rect::AUX {
            self.aux.as_ref()
        } else {
            self.sections.get(section as usize)
        }
    }

    /// The bytes of these cells, of what may be written of them.
    pub(super) fn bytes_of(&self, cells: &Coverage) -> u64 {
        let bytes = cells.rects().iter().map(|rect| {
            let Some(section) = self.section(rect.section) else {
                return 0;
            };
            let (layers, places) = (rect.layer..rect.layer_end, rect.page..rect.page_end);
            match section.cells() {
                Some(Ok(cells)) => cells.rect(&layers, &places).unwrap_or(0),
                Some(Err(_)) => 0,
                None => {
                    let cells = layers.len() as u64 * places.len() as u64;
                    cells.saturating_mul(section.memory().layout().page_bytes)
                }
            }
        });
        bytes.fold(0, u64::saturating_add)
    }

    /// What has landed so far; exact once the gate is closed and empty.
    pub fn landed(&self) -> Landed {
        // Relaxed: for the exact answer the gate word has ordered every add before this.
        Landed {
            pieces: self.pieces.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn count(&self, bytes: u64) {
        self.count_pieces(1, bytes);
    }

    pub(crate) fn count_pieces(&self, pieces: u64, bytes: u64) {
        self.pieces.fetch_add(pieces, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Tells the claim's owner that a device cannot write what came for it.
    pub(crate) fn device_failed(&self, number: crate::ids::ClaimNo, lost: bool, why: &str) {
        self.doorbell.device_failed(number, lost, why);
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
