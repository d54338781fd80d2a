//! Which cells of a claim have been written.
//!
//! ```text
//!            pages ─▶                     one section, two slabs:
//!   layers   ████████··██████              layers 0..2: runs 0..8, 10..16
//!     │      ████████··██████
//!     ▼      ████████████····              layers 2..3: run 0..12
//! ```
//!
//! A section is cut into *slabs*: maximal ranges of layers that hold the same pages. A slab is a
//! list of *runs* of pages that do not touch. That form is the only one a set of cells has, so equal
//! sets are equal values, whatever the order in which they grew.
//!
//! Rules: cells are added, never removed, and a cell can be added once: writing it twice is an error
//! of the writer ([`Overlap`]). A set that came from a peer is [validated](Coverage::validate)
//! before it is used; on one that was not, answers may be wrong, but nothing panics.

mod rects;

use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A set of (section, layer, page) cells, as disjoint rectangles in a canonical order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Coverage {
    rects: Vec<Rect>,
}

/// All cells of `layers × pages` in one section. Ranges are half-open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Rect {
    /// Index into the claim's sections; [`Rect::AUX`] for the aux row.
    pub section: u16,
    /// First layer.
    pub layer: u32,
    /// One past the last layer.
    pub layer_end: u32,
    /// First page, counted in the claim's list for this section.
    pub page: u32,
    /// One past the last page.
    pub page_end: u32,
}

/// One page in one layer of one section.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cell {
    /// Index into the claim's sections; [`Rect::AUX`] for the aux row.
    pub section: u16,
    /// The layer.
    pub layer: u32,
    /// The page, counted in the claim's list for this section.
    pub page: u32,
}

/// Cells were to be added of which some are there already: something was written twice. The set is
/// as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{cell} is covered already; it must not be written a second time")]
pub struct Overlap {
    /// The first cell that is in both, by section, layer and page.
    pub cell: Cell,
}

/// A set that is not in its canonical form. Whoever sent it broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CoverageError {
    /// It has more rectangles than are accepted.
    #[error("a coverage set of {rects} rectangles; at most {max} are accepted", max = Coverage::MAX_RECTS)]
    TooMany {
        /// How many it has.
        rects: usize,
    },
    /// A rectangle has no cell, or its ends are the wrong way round.
    #[error("rectangle {index} of a coverage set has no cells")]
    Empty {
        /// Its place in the list.
        index: usize,
    },
    /// Two rectangles overlap, are out of order, or should have been one.
    #[error("rectangles {} and {index} of a coverage set overlap, are out of order or should be one", index - 1)]
    NotCanonical {
        /// The place of the second one.
        index: usize,
    },
}

impl Rect {
    /// The section number that stands for the claim's aux row.
    pub const AUX: u16 = u16::MAX;

    /// How many cells it has.
    #[must_use]
    pub fn cells(&self) -> u64 {
        u64::from(self.layer_end.saturating_sub(self.layer))
            * u64::from(self.page_end.saturating_sub(self.page))
    }
}

impl Coverage {
    /// The most rectangles a set from a peer may have. Encoded they fit a control frame of 8 MiB.
    pub const MAX_RECTS: usize = 1 << 18;

    /// The empty set. Allocates nothing.
    #[must_use]
    pub const fn new() -> Self {
        Coverage { rects: Vec::new() }
    }

    /// Adds all cells of `layers × pages` of a section. An empty or inverted range adds nothing.
    ///
    /// Adding what continues an earlier addition (the next pages of the same layers, the next layers
    /// of the same pages) takes constant time and no memory.
    ///
    /// # Errors
    /// [`Overlap`] names the first cell that is there already; nothing was added.
    pub fn insert(
        &mut self,
        section: u16,
        layers: Range<u32>,
        pages: Range<u32>,
    ) -> Result<(), Overlap> {
        if layers.is_empty() || pages.is_empty() {
            return Ok(());
        }
        rects::insert(
            &mut self.rects,
            Rect {
                section,
                layer: layers.start,
                layer_end: layers.end,
                page: pages.start,
                page_end: pages.end,
            },
        )
        .map_err(|cell| Overlap { cell })
    }

    /// Adds all cells of another set.
    ///
    /// # Errors
    /// [`Overlap`] names the first cell that is in both; nothing was added.
    pub fn absorb(&mut self, other: &Coverage) -> Result<(), Overlap> {
        if self.is_empty() && other.validate().is_ok() {
            self.rects.clone_from(&other.rects);
            return Ok(());
        }
        if let [r] = other.rects.as_slice() {
            return self.insert(r.section, r.layer..r.layer_end, r.page..r.page_end);
        }
        if let Some(cell) = rects::first_common(&self.rects, &other.rects) {
            return Err(Overlap { cell });
        }
        let mut union = self.clone();
        for r in &other.rects {
            union.insert(r.section, r.layer..r.layer_end, r.page..r.page_end)?;
        }
        *self = union;
        Ok(())
    }

    /// Whether a cell is in the set.
    #[must_use]
    pub fn contains(&self, section: u16, layer: u32, page: u32) -> bool {
        rects::contains(
            &self.rects,
            Cell {
                section,
                layer,
                page,
            },
        )
    }

    /// How many cells are in the set; `u64::MAX` if they are more than that.
    #[must_use]
    pub fn cells(&self) -> u64 {
        let cells: u128 = self.rects.iter().map(|r| u128::from(r.cells())).sum();
        u64::try_from(cells).unwrap_or(u64::MAX)
    }

    /// Whether no cell is in the set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rects.is_empty()
    }

    /// The first cell, by section, layer and page, that is wanted and not here.
    #[must_use]
    pub fn first_missing(&self, wanted: &Coverage) -> Option<Cell> {
        if self == wanted {
            None
        } else {
            rects::first_outside(&wanted.rects, &self.rects)
        }
    }

    /// The first cell, by section, layer and page, that is here and not wanted.
    #[must_use]
    pub fn first_extra(&self, wanted: &Coverage) -> Option<Cell> {
        wanted.first_missing(self)
    }

    /// Whether the set has all wanted cells and no others.
    #[must_use]
    pub fn is_exactly(&self, wanted: &Coverage) -> bool {
        self == wanted
    }

    /// The rectangles in canonical order: by section, layer, page; none overlaps another.
    #[must_use]
    pub fn rects(&self) -> &[Rect] {
        &self.rects
    }

    /// Whether the set is in its canonical form, which sets made here always are and sets from the
    /// wire may not be.
    ///
    /// # Errors
    /// [`CoverageError`] names the first rectangle that is wrong, or the limit.
    pub fn validate(&self) -> Result<(), CoverageError> {
        if self.rects.len() > Self::MAX_RECTS {
            return Err(CoverageError::TooMany {
                rects: self.rects.len(),
            });
        }
        rects::validate(&self.rects)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Cell {
            section,
            layer,
            page,
        } = self;
        if *section == Rect::AUX {
            write!(f, "aux row, layer {layer}, page {page}")
        } else {
            write!(f, "section {section}, layer {layer}, page {page}")
        }
    }
}

#[cfg(test)]
mod tests;
