//! Which bytes of one pool go where in another: a plan that is computed as it is walked.
//!
//! ```text
//!   Plan::new ── checks both layouts, both lists, the layers ── once
//!      │
//!      └─ next_piece(max) ─▶ Piece{src, dst, bytes}   cells that follow each other on BOTH sides
//!                                                     are one piece, up to max
//! ```
//!
//! A plan owns what it needs and holds a cursor, so it can wait in a lane's queue between pieces; no
//! descriptor is ever stored. It walks the cells in the order in which they lie at the destination.
//! A [`Plan`] is for equal layouts ([`explain`]); order of the indices and number of pages may
//! differ. Unequal ones (head slices, other page sizes, planes apart) are planned by [`cube`], and
//! [`routes`] says which ranks send what to which.

pub mod cube;
mod error;
pub mod routes;

pub use error::{End, PlanError};

use crate::layout::{Order, PoolLayout, explain};
use std::ops::Range;
use std::sync::Arc;

/// Bytes that lie together on both sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Piece {
    /// First byte, from the start of the source pool.
    pub src: u64,
    /// First byte, from the start of the destination pool.
    pub dst: u64,
    /// How many; at least 1.
    pub bytes: u64,
}

/// One page in one layer, as the plan pairs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct PlannedCell {
    /// The layer, the same on both sides.
    pub layer: u32,
    /// Which page of the plan, from 0: its place in both ranges.
    pub index: usize,
    /// Its page index in the source pool.
    pub src_page: u32,
    /// Its page index in the destination pool.
    pub dst_page: u32,
    /// Where its bytes are.
    pub piece: Piece,
}

/// A copy of pages between two pools, and how far it is.
#[derive(Clone, Debug)]
pub struct Plan {
    src: Pages,
    dst: Pages,
    page_bytes: u64,
    /// First layer, and how many.
    first_layer: u32,
    layers: u32,
    pages: usize,
    /// Whether the walk goes through all layers of a page before the next page.
    pages_first: bool,
    /// The cursor: layer counted from `first_layer`, page counted from the start of the ranges, and
    /// bytes of that cell that were handed out.
    layer: u32,
    page: usize,
    within: u64,
    /// Where page 0 begins on both sides, in the layer from which the walk looks pages up.
    base: (u64, u64),
    /// Where the cursor's cell begins on both sides; stale when nothing is left.
    at: (u64, u64),
    total: u64,
    left: u64,
}

/// One side of a plan: the page list, and how far apart neighbours are in bytes.
#[derive(Clone, Debug)]
struct Pages {
    list: Arc<[u32]>,
    start: usize,
    layer_stride: u64,
    page_stride: u64,
}

impl Plan {
    /// Plans `layers` of the pages `src_pages[src_range]` onto `dst_pages[dst_range]`, in order.
    ///
    /// Indices are checked here and never again. That a page is not named twice is for the leases
    /// to know.
    ///
    /// # Errors
    /// [`PlanError`] says which layout, range, list or index cannot be used.
    pub fn new(
        src: &Arc<PoolLayout>,
        dst: &Arc<PoolLayout>,
        layers: Range<u32>,
        src_pages: Arc<[u32]>,
        src_range: Range<usize>,
        dst_pages: Arc<[u32]>,
        dst_range: Range<usize>,
    ) -> Result<Plan, PlanError> {
        src.validate().map_err(|error| PlanError::Layout {
            end: End::Source,
            error,
        })?;
        dst.validate().map_err(|error| PlanError::Layout {
            end: End::Destination,
            error,
        })?;
        explain(src, dst)?;
        if layers.start > layers.end || layers.end > src.layers {
            return Err(PlanError::Layers {
                start: layers.start,
                end: layers.end,
                layers: src.layers,
            });
        }
        let pages = src_range.len();
        let (src_list, dst_list) = (src_pages, dst_pages);
        let src_side = Pages::new(End::Source, src, src_list, src_range)?;
        let dst_len = dst_range.len();
        let dst_side = Pages::new(End::Destination, dst, dst_list, dst_range)?;
        if pages != dst_len {
            return Err(PlanError::LengthsDiffer {
                src: pages,
                dst: dst_len,
            });
        }
        if pages == 0 || layers.is_empty() {
            return Err(PlanError::Empty);
        }
        let count = layers.end - layers.start;
        let total = (pages as u64)
            .checked_mul(u64::from(count))
            .and_then(|cells| cells.checked_mul(src.page_bytes))
            .ok_or(PlanError::TooLarge)?;
        let first = u64::from(layers.start);
        let base = (first * src_side.layer_stride, first * dst_side.layer_stride);
        let at = (src_side.offset(first, 0), dst_side.offset(first, 0));
        Ok(Plan {
            src: src_side,
            dst: dst_side,
            page_bytes: src.page_bytes,
            first_layer: layers.start,
            layers: count,
            pages,
            pages_first: dst.order == Order::PagesFirst,
            layer: 0,
            page: 0,
            within: 0,
            base,
            at,
            total,
            left: total,
        })
    }

    /// Bytes of the whole plan.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Bytes that [`Plan::next_piece`] has not handed out yet; 0 when the plan is done.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.left
    }

    /// The next bytes to copy, at most `max_bytes` of them; none when the plan is done, or if
    /// `max_bytes` is 0.
    ///
    /// A cell is cut only if it is larger than `max_bytes`; the rest of a cut cell comes first in
    /// the next piece.
    #[inline]
    pub fn next_piece(&mut self, max_bytes: u64) -> Option<Piece> {
        if self.left == 0 || max_bytes == 0 {
            return None;
        }
        let cell = self.page_bytes;
        let (src, dst) = self.at;
        let first = (cell - self.within).min(max_bytes);
        let mut piece = Piece {
            src: src + self.within,
            dst: dst + self.within,
            bytes: first,
        };
        self.left -= first;
        self.within += first;
        if self.within < cell {
            return Some(piece);
        }
        self.advance();
        while self.left > 0 && max_bytes - piece.bytes >= cell {
            if self.at != (piece.src + piece.bytes, piece.dst + piece.bytes) {
                break;
            }
            piece.bytes += cell;
            self.left -= cell;
            self.advance();
        }
        Some(piece)
    }

    /// What is left, in the longest pieces possible. The plan itself does not move.
    #[must_use]
    pub fn runs(&self) -> Runs {
        Runs { plan: self.clone() }
    }

    /// Every cell of the plan from its first one on, in the order of the walk, whatever the cursor.
    #[must_use]
    pub fn cells(&self) -> Cells<'_> {
        Cells {
            plan: self,
            layer: 0,
            page: 0,
        }
    }

    /// To the next cell, once the bytes of this one were taken off `left`.
    #[inline]
    fn advance(&mut self) {
        self.within = 0;
        if self.pages_first {
            self.layer += 1;
            if self.layer < self.layers {
                self.at.0 += self.src.layer_stride;
                self.at.1 += self.dst.layer_stride;
                return;
            }
            self.layer = 0;
            self.page += 1;
        } else {
            self.page += 1;
            if self.page == self.pages {
                self.page = 0;
                self.layer += 1;
                self.base.0 += self.src.layer_stride;
                self.base.1 += self.dst.layer_stride;
            }
        }
        if self.left > 0 {
            self.at.0 = self.base.0 + self.src.page_offset(self.page);
            self.at.1 = self.base.1 + self.dst.page_offset(self.page);
        }
    }

    fn after(&self, layer: u32, page: usize) -> (u32, usize) {
        if self.pages_first {
            if layer + 1 < self.layers {
                (layer + 1, page)
            } else {
                (0, page + 1)
            }
        } else if page + 1 < self.pages {
            (layer, page + 1)
        } else {
            (layer + 1, 0)
        }
    }
}

impl Pages {
    fn new(
        end: End,
        layout: &PoolLayout,
        list: Arc<[u32]>,
        range: Range<usize>,
    ) -> Result<Pages, PlanError> {
        let Some(used) = list.get(range.clone()) else {
            let (start, stop, len) = (range.start, range.end, list.len());
            return Err(PlanError::ListRange {
                end,
                start,
                stop,
                len,
            });
        };
        if let Some(at) = used.iter().position(|page| *page >= layout.pages) {
            return Err(PlanError::PageOutOfRange {
                end,
                position: range.start + at,
                page: used[at],
                pages: layout.pages,
            });
        }
        let (layer_stride, page_stride) = match layout.order {
            Order::LayersFirst => (
                u64::from(layout.pages) * layout.page_bytes,
                layout.page_bytes,
            ),
            Order::PagesFirst => (
                layout.page_bytes,
                u64::from(layout.layers) * layout.page_bytes,
            ),
        };
        Ok(Pages {
            list,
            start: range.start,
            layer_stride,
            page_stride,
        })
    }

    #[inline]
    fn page(&self, index: usize) -> u32 {
        self.list[self.start + index]
    }

    #[inline]
    fn offset(&self, layer: u64, index: usize) -> u64 {
        layer * self.layer_stride + self.page_offset(index)
    }

    #[inline]
    fn page_offset(&self, index: usize) -> u64 {
        u64::from(self.page(index)) * self.page_stride
    }
}

/// The maximal runs of a plan. See [`Plan::runs`].
#[derive(Clone, Debug)]
pub struct Runs {
    plan: Plan,
}

impl Iterator for Runs {
    type Item = Piece;

    fn next(&mut self) -> Option<Piece> {
        self.plan.next_piece(u64::MAX)
    }
}

/// The cells of a plan. See [`Plan::cells`].
#[derive(Clone, Debug)]
pub struct Cells<'a> {
    plan: &'a Plan,
    layer: u32,
    page: usize,
}

impl Iterator for Cells<'_> {
    type Item = PlannedCell;

    fn next(&mut self) -> Option<PlannedCell> {
        let plan = self.plan;
        if self.layer >= plan.layers || self.page >= plan.pages {
            return None;
        }
        let (layer, index) = (plan.first_layer + self.layer, self.page);
        (self.layer, self.page) = plan.after(self.layer, self.page);
        Some(PlannedCell {
            layer,
            index,
            src_page: plan.src.page(index),
            dst_page: plan.dst.page(index),
            piece: Piece {
                src: plan.src.offset(u64::from(layer), index),
                dst: plan.dst.offset(u64::from(layer), index),
                bytes: plan.page_bytes,
            },
        })
    }
}

#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
