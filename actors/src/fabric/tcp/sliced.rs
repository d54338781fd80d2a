//! The sender's side of a job that carries slices of cells.
//!
//! ```text
//!   stream of the job's cells   │ layer 0: 0 1 2 3 │ layer 1: 0 1 2 3 │ …        (see `SliceCells`)
//!   a stretch of it                  ▲▲▲ cells of one layer
//!                               ▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲▲ whole layers
//!                                               ▲ units of one cell, if a frame holds no whole one
//! ```
//!
//! Which pages the receiver has is not known here, and not needed: the order of a frame's bytes
//! follows from the receiver's layout alone.

use super::frame::Data;
use super::job::Stretch;
use super::window::Window;
use crate::copy::job::Place;
use crate::limits::UNIT;
use crate::slice::{Slice, SliceCells};
use kvroom_kernels::layout::cube::{Dim, Span};
use kvroom_kernels::plan::End;
use kvroom_kernels::plan::cube::{CubePlan, CubePlanError, PageList};
use std::ops::Range;
use std::sync::Arc;

/// Places of one frame: each costs a look at its page.
const MAX_PLACES: u32 = 4096;

/// See the module.
pub(super) struct SlicedJob {
    slice: Arc<Slice>,
    cells: SliceCells,
    /// The source's list, and where the job's pages are in it.
    pages: Arc<[u32]>,
    from: Range<usize>,
    /// Stands for the receiver's pages.
    somewhere: Arc<[u32]>,
    most: Most,
}

/// What a frame may be at most, so that its bytes come one cell after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Most {
    Rectangle,
    Layer,
    Cell,
}

impl Most {
    /// For a destination of this order, of which the part has these heads of the planes.
    fn cell_by_cell(slice: &Slice) -> Most {
        let (order, heads) = (slice.dst.order, &slice.part.heads);
        let uneven = heads.windows(2).any(|pair| pair[0].len() != pair[1].len());
        let apart = uneven && order.slower(Dim::Head, Dim::Plane);
        let mut dims = order.0.into_iter().filter(|dim| *dim != Dim::Layer);
        match (order.0[0], dims.next()) {
            _ if apart => Most::Cell,
            (Dim::Layer, Some(Dim::Page)) => Most::Rectangle,
            (_, Some(Dim::Page)) => Most::Layer,
            _ => Most::Cell,
        }
    }
}

impl SlicedJob {
    /// The cells of a job with a slice. In one that is staged, each frame is a stretch of the stream.
    ///
    /// # Errors
    /// The layouts, pages, layers and tokens do not fit each other; in words.
    pub(super) fn new(
        place: &Place,
        slice: &Arc<Slice>,
        staged: bool,
    ) -> Result<SlicedJob, String> {
        let wrong = |e: &CubePlanError| format!("a sliced job: {e}; this is a bug of its plan");
        let from = PageList {
            list: Arc::clone(&place.pages),
            range: place.from.clone(),
        };
        let somewhere = PageList::whole(vec![0; place.to.len()]);
        slice
            .plan(place.layers.clone(), from, somewhere.clone())
            .map_err(|error| wrong(&error))?;
        let first = u32::try_from(place.to.start).map_err(|_| wrong(&CubePlanError::TooLarge))?;
        let (tokens, dst) = (slice.tokens.clone(), &slice.dst);
        let part = slice.part.of_layers(span(dst.layers.first, &place.layers));
        let cells = SliceCells::new(dst, &part, tokens, somewhere.clone(), first)
            .map_err(|error| wrong(&error))?;
        if cells.layers() != place.layers {
            let (asked, has) = (&place.layers, cells.layers());
            return Err(format!(
                "a sliced job: layers {asked:?}, of which the part has {has:?}; this is a bug of its plan"
            ));
        }
        Ok(SlicedJob {
            slice: Arc::clone(slice),
            cells,
            pages: Arc::clone(&place.pages),
            from: place.from.clone(),
            somewhere: somewhere.list,
            most: match staged {
                true => Most::cell_by_cell(slice),
                false => Most::Rectangle,
            },
        })
    }

    /// Bytes that the job carries.
    pub(super) fn bytes(&self) -> u64 {
        self.cells.bytes()
    }

    /// How long a stretch from byte `at` of the stream is: about `budget` bytes and at most `limit`,
    /// but a unit or a cell that is less.
    pub(super) fn stretch_from(&self, at: u64, budget: u64, limit: usize) -> u32 {
        let Some(here) = self.cells.at(at) else {
            return 0;
        };
        let most = (limit as u64).clamp(1, u64::from(u32::MAX));
        let want = budget.clamp(1, most);
        let (cell, places) = (self.cells.cell(here.place), self.cells.places());
        let length = if here.within > 0 || cell > want {
            let end = here.within.saturating_add(want).min(cell);
            let end = match end == cell {
                true => end,
                false => (end - end % UNIT).max((here.within + UNIT).min(cell)),
            };
            end - here.within
        } else {
            let layer = self.rect(1, places.clone());
            if self.most == Most::Cell {
                cell
            } else if self.most == Most::Rectangle
                && here.place == places.start
                && layer <= want
                && places.len() <= MAX_PLACES as usize
            {
                let layers = (want / layer).min(u64::from(self.cells.layers().end - here.layer));
                layers * layer
            } else {
                let count = self.cells.places_in(here.place, want).clamp(1, MAX_PLACES);
                self.rect(1, here.place..here.place + count)
            }
        };
        length as u32 // at most `want`, or a unit
    }

    /// Layers and places of a stretch, and where in its cell it begins if it is less than that.
    pub(super) fn cut(&self, stretch: Stretch) -> (Range<u32>, Range<u32>, u64) {
        let Some(here) = self.cells.at(stretch.position) else {
            return (0..0, 0..0, 0);
        };
        let (layer, place) = (here.layer, here.place);
        let (places, length) = (self.cells.places(), u64::from(stretch.length));
        let whole = self.rect(1, places.clone());
        if here.within > 0 || length < self.cells.cell(place) {
            (layer..layer + 1, place..place + 1, here.within)
        } else if place == places.start && length >= whole {
            // At most as many as the job has.
            (layer..layer + (length / whole) as u32, places, 0)
        } else {
            let count = self.cells.places_in(place, length);
            (layer..layer + 1, place..place + count, 0)
        }
    }

    /// Where in the source's pool the payload of a frame is.
    ///
    /// # Errors
    /// What does not fit, in words.
    pub(super) fn window(&self, data: &Data) -> Result<Window, String> {
        let Slice {
            src, dst, tokens, ..
        } = &*self.slice;
        let frame = self.cells.tokens(data.places.clone());
        let range = if src.kind.is_row() {
            let first = self.cells.places().start;
            let at = |place: u32| self.from.start + (place - first) as usize;
            at(data.places.start)..at(data.places.end)
        } else {
            let page = u64::from(src.page_tokens.max(1));
            let first = tokens.start / page;
            // Within the job's list, or the plan says so.
            let at = |page: u64| self.from.start + (page - first) as usize;
            at(frame.start / page)..at(frame.end.div_ceil(page))
        };
        let from = PageList {
            list: Arc::clone(&self.pages),
            range,
        };
        let to = PageList {
            list: Arc::clone(&self.somewhere),
            range: 0..data.places.len(),
        };
        let part = self
            .slice
            .part
            .of_layers(span(dst.layers.first, &data.layers));
        let plan = CubePlan::new(src, dst, from, to, frame, &part).map_err(|e| e.to_string())?;
        let length = u64::from(data.length);
        Ok(Window::new(plan, End::Source, data.position, length))
    }

    fn rect(&self, layers: u32, places: Range<u32>) -> u64 {
        let first = self.cells.layers().start;
        let layers = first..first.saturating_add(layers);
        self.cells.rect(&layers, &places).unwrap_or(0)
    }
}

/// Layers of a rank, as the model counts them.
pub(super) fn span(first: u32, layers: &Range<u32>) -> Span {
    Span::new(
        first.saturating_add(layers.start),
        first.saturating_add(layers.end),
    )
}
