//! A plan as a kernel takes it: one nest of loops over whole page tables, and no descriptors.
//!
//! ```text
//!   for layer, row, plane, head:          flat = first_row + row
//!     copy run_bytes bytes from             page = table[flat / page_rows]
//!     src to dst, on either side:           base + layer·layer + page·page + (flat % page_rows)·row
//!                                                + plane·plane + head·head
//! ```
//!
//! A row here is one token (a granule), or all tokens of a segment where these lie together on both
//! sides; then first and last segments that are cut off are grids of their own.

use super::table::{Lane, Table};
use crate::layout::cube::PlaneMap;
use std::ops::Range;

/// One side of a [`Grid`]: distances in bytes, and the shape of its pages.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct GridSide {
    /// The first run of page 0, from the start of the pool.
    pub base: u64,
    /// From a layer to the next; 0 if there is one.
    pub layer: u64,
    /// From a page to the next.
    pub page: u64,
    /// From a row to the next of the same page.
    pub row: u64,
    /// From a plane to the next; 0 if there is one.
    pub plane: u64,
    /// From a head to the next; 0 if there is one.
    pub head: u64,
    /// Rows of a page; at least 1.
    pub page_rows: u32,
    /// Row of the first page at which the grid begins.
    pub first_row: u32,
    /// Entries of the page list that are the grid's table.
    pub table: Range<usize>,
}

/// Runs under four loops. Grids of one plan are disjoint; together they are all of it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Grid {
    /// Layers; at least 1, as all counts here.
    pub layers: u64,
    /// Rows of all pages together.
    pub rows: u64,
    /// Planes of a row.
    pub planes: u64,
    /// Heads of a plane.
    pub heads: u64,
    /// Bytes that lie together on both sides.
    pub run_bytes: u64,
    /// Where runs are read.
    pub src: GridSide,
    /// Where they are written.
    pub dst: GridSide,
}

/// A loop inside of a row: how often, and how far on both sides.
#[derive(Clone, Copy)]
struct Step {
    count: u64,
    by: (u64, u64),
}

impl Step {
    /// Makes it part of the run, if its steps are the run's length.
    fn joins(&mut self, run: &mut u64) -> bool {
        if self.count > 1 && self.by == (*run, *run) {
            *run *= self.count;
            *self = Step::none();
            return true;
        }
        false
    }

    /// A loop of one, or one that was joined.
    fn none() -> Step {
        Step {
            count: 1,
            by: (0, 0),
        }
    }

    fn new(count: u64, src: u64, dst: u64) -> Step {
        match count {
            1 => Step::none(),
            _ => Step {
                count,
                by: (src, dst),
            },
        }
    }
}

/// The grids of a table: for each lane one, or one for each kind of segment.
pub(super) fn grids(table: &Table) -> Vec<Grid> {
    let mut grids = Vec::new();
    for lane in &table.lanes {
        let kinds = [
            0..table.whole.start,
            table.whole.clone(),
            table.whole.end..table.segments,
        ];
        let mut by_segment = Vec::new();
        for (kind, segments) in kinds.into_iter().enumerate() {
            if !segments.is_empty() {
                // An only segment that is cut is a first one.
                let kind = if segments.start == 0 && kind == 2 {
                    0
                } else {
                    kind
                };
                by_segment.push(of_segments(table, lane, kind, segments));
            }
        }
        let all: Option<Vec<Grid>> = by_segment.into_iter().collect();
        grids.extend(all.unwrap_or_else(|| vec![of_tokens(table, lane)]));
    }
    grids
}

/// With a segment as the row; none if its tokens do not lie together.
fn of_segments(table: &Table, lane: &Lane, kind: usize, segments: Range<usize>) -> Option<Grid> {
    let tokens = Step::new(table.granules[kind].into(), lane.src.token, lane.dst.token);
    let (mut grid, joined) = within_a_row(table, lane, Some(tokens));
    if !joined {
        return None;
    }
    grid.rows = segments.len() as u64;
    let side = |side: &mut GridSide, parts: u32, first: u32, step: u64, start: usize| {
        let flat = first as usize + segments.start;
        let parts_of = parts as usize;
        let end = (first as usize + segments.end).div_ceil(parts_of);
        side.row = step;
        side.page_rows = parts;
        // A remainder of a number of 32 bits.
        side.first_row = (flat % parts_of) as u32;
        side.table = start + flat / parts_of..start + end;
    };
    let (src_start, dst_start) = (table.src_start, table.dst_start);
    side(
        &mut grid.src,
        table.src_parts,
        table.src_first,
        lane.part.0,
        src_start,
    );
    side(
        &mut grid.dst,
        table.dst_parts,
        table.dst_first,
        lane.part.1,
        dst_start,
    );
    if kind == 0 {
        grid.src.base += lane.skip.0;
        grid.dst.base += lane.skip.1;
    }
    Some(grid)
}

/// With a token as the row.
fn of_tokens(table: &Table, lane: &Lane) -> Grid {
    let (mut grid, _) = within_a_row(table, lane, None);
    let whole = u64::from(table.granules[1]);
    let middle = table.segments.saturating_sub(2) as u64;
    let last = if table.segments > 1 {
        table.granules[2]
    } else {
        0
    };
    grid.rows = u64::from(table.granules[0]) + middle * whole + u64::from(last);
    let side = |side: &mut GridSide, map: &PlaneMap, parts: u32, first: u32, start: usize| {
        side.row = map.token;
        side.page_rows = parts * table.granules[1];
        side.first_row = first * table.granules[1] + table.skip;
        let end = (first as usize + table.segments).div_ceil(parts as usize);
        side.table = start..start + end;
    };
    side(
        &mut grid.src,
        &lane.src,
        table.src_parts,
        table.src_first,
        table.src_start,
    );
    side(
        &mut grid.dst,
        &lane.dst,
        table.dst_parts,
        table.dst_first,
        table.dst_start,
    );
    grid
}

/// A grid without its rows: what lies together is joined into the run, and whether `tokens` did.
fn within_a_row(table: &Table, lane: &Lane, tokens: Option<Step>) -> (Grid, bool) {
    let (src, dst) = (&lane.src, &lane.dst);
    let planes = if table.apart { 1 } else { table.planes };
    let mut run = src.row;
    let mut token = tokens.unwrap_or_else(Step::none);
    let mut head = Step::new(lane.heads.into(), src.head, dst.head);
    let mut plane = Step::new(planes.into(), lane.plane_step.0, lane.plane_step.1);
    let mut layer = Step::new(table.layers.into(), src.layer, dst.layer);
    while [&mut token, &mut head, &mut plane, &mut layer]
        .into_iter()
        .any(|step| step.joins(&mut run))
    {}
    let side = |map: &PlaneMap, of: fn((u64, u64)) -> u64| GridSide {
        base: map.base,
        layer: of(layer.by),
        page: map.page,
        row: 0,
        plane: of(plane.by),
        head: of(head.by),
        page_rows: 1,
        first_row: 0,
        table: 0..0,
    };
    let grid = Grid {
        layers: layer.count,
        rows: 0,
        planes: plane.count,
        heads: head.count,
        run_bytes: run,
        src: side(src, |by| by.0),
        dst: side(dst, |by| by.1),
    };
    (grid, token.count == 1)
}
