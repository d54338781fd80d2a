//! Which cells of a claim a network lane has written: the receiver's own account.
//!
//! ```text
//!   section ── layers x places ── cells ── units of at most UNIT bytes ── one bit each
//! ```
//!
//! Of a section with a slice, a cell has as many bytes as the slice has in it: fewer in the page where
//! the request begins or ends.
//!
//! Rules: a bit is set after the bytes of its unit were placed and their frame was found valid, and
//! never cleared. A cell counts when all its units are marked. Marking twice changes nothing: what a
//! lost connection had not acknowledged is sent again.

use crate::limits::UNIT;
use kvroom_kernels::coverage::{Coverage, Rect};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Units of a cell of so many bytes.
fn units(cell: u64) -> u64 {
    cell.div_ceil(UNIT)
}

/// The marks of one section. Allocates nothing before the first one.
#[derive(Debug, Default)]
pub(super) struct Marks {
    bits: OnceLock<Box<[AtomicU64]>>,
}

/// Cells of a section: how many layers and places, and bytes of one.
#[derive(Clone, Copy, Debug)]
pub(super) struct Grid {
    pub(super) layers: u32,
    pub(super) places: u32,
    pub(super) cell: u64,
    /// Bytes of those at the first place and at the last one, at most as many.
    pub(super) ends: [u64; 2],
}

impl Grid {
    /// Of cells that all have the same size.
    pub(super) fn even(layers: u32, places: u32, cell: u64) -> Grid {
        let ends = [cell, cell];
        Grid {
            layers,
            places,
            cell,
            ends,
        }
    }

    /// Bytes of the cells of a place.
    fn bytes(self, place: u32) -> u64 {
        match place {
            0 => self.ends[0],
            p if p + 1 == self.places => self.ends[1],
            _ => self.cell,
        }
    }

    fn bits(self) -> u64 {
        u64::from(self.layers) * u64::from(self.places) * units(self.cell)
    }

    fn first_bit(self, layer: u32, place: u32) -> u64 {
        (u64::from(layer) * u64::from(self.places) + u64::from(place)) * units(self.cell)
    }
}

impl Marks {
    /// Marks `bytes` bytes of a cell from `offset`, a multiple of [`UNIT`]. What does not reach the
    /// end of its unit (or of the cell) is not marked. Outside the grid nothing is.
    pub(super) fn mark(&self, grid: Grid, layer: u32, place: u32, offset: u64, bytes: u64) {
        if layer >= grid.layers || place >= grid.places {
            return;
        }
        let cell = grid.bytes(place);
        if offset >= cell {
            return;
        }
        let bits = self.bits.get_or_init(|| {
            let words = usize::try_from(grid.bits().div_ceil(64)).unwrap_or(0);
            (0..words).map(|_| AtomicU64::new(0)).collect()
        });
        let end = offset.saturating_add(bytes).min(cell);
        let last = if end == cell { units(cell) } else { end / UNIT };
        let at = grid.first_bit(layer, place);
        for bit in at + offset.div_ceil(UNIT)..at + last {
            if let Some(word) = bits.get((bit / 64) as usize) {
                // Release: whoever sees the mark sees the bytes.
                word.fetch_or(1 << (bit % 64), Ordering::Release);
            }
        }
    }

    /// Whether all of a cell is marked; never of one without bytes.
    pub(super) fn has(&self, grid: Grid, layer: u32, place: u32) -> bool {
        let Some(bits) = self.bits.get() else {
            return false;
        };
        if layer >= grid.layers || place >= grid.places {
            return false;
        }
        let (at, units) = (grid.first_bit(layer, place), units(grid.bytes(place)));
        units > 0
            && (at..at + units).all(|bit| {
                bits.get((bit / 64) as usize)
                    .is_some_and(|word| word.load(Ordering::Acquire) >> (bit % 64) & 1 == 1)
            })
    }

    /// Whether all cells of a rectangle are marked.
    pub(super) fn has_all(&self, grid: Grid, rect: &Rect) -> bool {
        (rect.layer..rect.layer_end)
            .all(|layer| (rect.page..rect.page_end).all(|page| self.has(grid, layer, page)))
    }

    /// Adds all marked cells to a set that has none of this section.
    pub(super) fn add_to(&self, grid: Grid, section: u16, set: &mut Coverage) {
        for layer in 0..grid.layers {
            let mut from = 0;
            while from < grid.places {
                let run = (from..grid.places).take_while(|p| self.has(grid, layer, *p));
                let end = from + run.count() as u32;
                // Cannot overlap: each cell is visited once.
                let _ = set.insert(section, layer..layer + 1, from..end);
                from = end + 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRID: Grid = Grid {
        layers: 2,
        places: 3,
        cell: 3 * UNIT / 2,
        ends: [3 * UNIT / 2; 2],
    };

    #[test]
    fn a_cell_counts_when_every_unit_of_it_is_marked() {
        let marks = Marks::default();
        marks.mark(GRID, 1, 2, 0, UNIT);
        assert!(!marks.has(GRID, 1, 2));
        marks.mark(GRID, 1, 2, UNIT, UNIT / 2);
        assert!(marks.has(GRID, 1, 2));
        assert!(!marks.has(GRID, 1, 1));
        assert!(!marks.has(GRID, 0, 2));
    }

    #[test]
    fn a_piece_that_ends_within_a_unit_does_not_mark_it() {
        let marks = Marks::default();
        marks.mark(GRID, 0, 0, 0, UNIT + 1);
        marks.mark(GRID, 0, 0, UNIT, UNIT / 2 - 1);
        assert!(!marks.has(GRID, 0, 0));
        // From the middle of a unit it does not mark that unit either.
        marks.mark(GRID, 0, 1, 1, GRID.cell - 1);
        assert!(!marks.has(GRID, 0, 1));
    }

    #[test]
    fn what_is_outside_marks_nothing() {
        let marks = Marks::default();
        marks.mark(GRID, 2, 0, 0, GRID.cell);
        marks.mark(GRID, 0, 3, 0, GRID.cell);
        marks.mark(GRID, 0, 0, GRID.cell, 1);
        let mut set = Coverage::new();
        marks.add_to(GRID, 0, &mut set);
        assert!(set.is_empty());
    }

    #[test]
    fn what_is_outside_is_not_there_whatever_is_marked() {
        let marks = Marks::default();
        for (layer, place) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
            marks.mark(GRID, layer, place, 0, GRID.cell);
            assert!(marks.has(GRID, layer, place));
        }
        // The fourth place of layer 0 would be the first one of layer 1.
        assert!(!marks.has(GRID, 0, 3) && !marks.has(GRID, 2, 0));
    }

    #[test]
    fn the_cells_at_both_ends_count_with_the_bytes_that_they_have() {
        let grid = Grid {
            ends: [UNIT / 2, UNIT + 5],
            ..GRID
        };
        let marks = Marks::default();
        marks.mark(grid, 0, 0, 0, UNIT / 2);
        marks.mark(grid, 0, 1, 0, UNIT + 5);
        marks.mark(grid, 0, 2, 0, UNIT);
        assert!(marks.has(grid, 0, 0));
        assert!(
            !marks.has(grid, 0, 1),
            "it has more bytes than the last one"
        );
        assert!(!marks.has(grid, 0, 2));
        marks.mark(grid, 0, 2, UNIT, 5);
        assert!(marks.has(grid, 0, 2));
        // What a place has no bytes of has not landed.
        let empty = Grid {
            ends: [0, 1],
            ..GRID
        };
        assert!(!marks.has(empty, 0, 0));
    }

    #[test]
    fn the_last_cell_of_many_has_its_bits() {
        let grid = Grid {
            layers: 3,
            places: 50,
            ..GRID
        };
        let marks = Marks::default();
        marks.mark(grid, 2, 49, 0, grid.cell);
        assert!(marks.has(grid, 2, 49) && !marks.has(grid, 2, 48));
    }

    #[test]
    fn the_marked_cells_are_a_set() {
        let marks = Marks::default();
        for (layer, place) in [(0, 0), (0, 2), (1, 0), (1, 1), (1, 2)] {
            marks.mark(GRID, layer, place, 0, GRID.cell);
            marks.mark(GRID, layer, place, 0, GRID.cell);
        }
        let mut set = Coverage::new();
        marks.add_to(GRID, 7, &mut set);
        assert_eq!(set.cells(), 5);
        assert!(set.contains(7, 1, 1) && !set.contains(7, 0, 1));
        let rect = |layer, page_end| Rect {
            section: 7,
            layer,
            layer_end: 2,
            page: 0,
            page_end,
        };
        assert!(marks.has_all(GRID, &rect(1, 3)));
        assert!(!marks.has_all(GRID, &rect(0, 3)));
    }
}
