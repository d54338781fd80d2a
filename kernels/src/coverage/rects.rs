//! Slices of rectangles in canonical order: adding to them, looking into them, checking them.
//!
//! Canonical: sorted by (section, layer, page); rectangles of one slab share their layers, and their
//! pages neither overlap nor touch; slabs do not overlap, and two that touch hold different pages.

use super::{Cell, CoverageError, Rect};
use std::cmp::Ordering;
use std::ops::Range;

/// Adds `new`, which has cells, or returns the first of its cells that is there already.
pub(super) fn insert(rects: &mut Vec<Rect>, new: Rect) -> Result<(), Cell> {
    let near = neighbours(rects, &new);
    if let Some(cell) = common(&rects[near.clone()], &new) {
        return Err(cell);
    }
    let only_its_slab = rects[near.clone()]
        .first()
        .is_some_and(|r| same_layers(r, &new))
        && rects[near.clone()]
            .last()
            .is_some_and(|r| same_layers(r, &new));
    if near.is_empty() {
        rects.insert(near.start, new);
    } else if only_its_slab {
        insert_run(rects, near, new);
    } else {
        let rebuilt = rebuild(&rects[near.clone()], &new);
        rects.splice(near, rebuilt);
    }
    Ok(())
}

/// The first cell, in order, that is in both. `a` must be canonical.
pub(super) fn first_common(a: &[Rect], b: &[Rect]) -> Option<Cell> {
    b.iter()
        .filter_map(|r| common(&a[neighbours(a, r)], r))
        .min()
}

pub(super) fn contains(rects: &[Rect], cell: Cell) -> bool {
    let next = rects.partition_point(|r| {
        (r.section, r.layer) < (cell.section, cell.layer)
            || (r.section, r.layer) == (cell.section, cell.layer) && r.page <= cell.page
    });
    // Either a run of a slab that begins at this layer, or of the slab before.
    let Some(last) = next.checked_sub(1).and_then(|i| rects.get(i)) else {
        return false;
    };
    if last.section != cell.section || last.layer_end <= cell.layer {
        return false;
    }
    if last.layer == cell.layer {
        return cell.page < last.page_end;
    }
    let slab = rects.partition_point(|r| (r.section, r.layer) < (last.section, last.layer));
    let Some(runs) = rects.get(slab..next) else {
        return false;
    };
    let at = runs.partition_point(|r| r.page_end <= cell.page);
    runs.get(at).is_some_and(|r| r.page <= cell.page)
}

/// The first cell, in order, that is in `wanted` and not in `have`.
pub(super) fn first_outside(wanted: &[Rect], have: &[Rect]) -> Option<Cell> {
    let mut best: Option<Cell> = None;
    for w in wanted.iter().filter(|w| w.cells() > 0) {
        if best.is_some_and(|b| (b.section, b.layer) < (w.section, w.layer)) {
            break;
        }
        let found = outside(w, &have[neighbours(have, w)]);
        best = match (best, found) {
            (Some(b), Some(f)) => Some(b.min(f)),
            (b, f) => b.or(f),
        };
    }
    best
}

pub(super) fn validate(rects: &[Rect]) -> Result<(), CoverageError> {
    if let Some(index) = rects
        .iter()
        .position(|r| r.layer >= r.layer_end || r.page >= r.page_end)
    {
        return Err(CoverageError::Empty { index });
    }
    for index in 1..rects.len() {
        let (a, b) = (&rects[index - 1], &rects[index]);
        let fine = a.section < b.section
            || a.section == b.section
                && (a.layer_end <= b.layer || same_layers(a, b) && a.page_end < b.page);
        if !fine {
            return Err(CoverageError::NotCanonical { index });
        }
    }
    // Two slabs that touch and hold the same pages should be one.
    let mut before: Option<&[Rect]> = None;
    let mut index = 0;
    for slab in rects.chunk_by(same_layers) {
        if before.is_some_and(|b| touch(b, slab) && same_pages(b, slab)) {
            return Err(CoverageError::NotCanonical { index });
        }
        before = Some(slab);
        index += slab.len();
    }
    Ok(())
}

/// The rectangles of `r`'s section whose layers overlap or touch those of `r`: whole slabs.
fn neighbours(rects: &[Rect], r: &Rect) -> Range<usize> {
    let start = rects.partition_point(|x| (x.section, x.layer_end) < (r.section, r.layer));
    let end = rects.partition_point(|x| (x.section, x.layer) <= (r.section, r.layer_end));
    start..end.max(start)
}

/// The first cell of `r` that is in one of `near`, which are canonical and of its section.
fn common(near: &[Rect], r: &Rect) -> Option<Cell> {
    let inner = |x: &&[Rect]| x[0].layer < r.layer_end && r.layer < x[0].layer_end;
    for slab in near.chunk_by(same_layers).filter(inner) {
        let at = slab.partition_point(|x| x.page_end <= r.page);
        if let Some(hit) = slab.get(at).filter(|x| x.page < r.page_end) {
            return Some(Cell {
                section: r.section,
                layer: hit.layer.max(r.layer),
                page: hit.page.max(r.page),
            });
        }
    }
    None
}

/// The first cell of `w` that is in none of `near`, which are canonical and of its section.
fn outside(w: &Rect, near: &[Rect]) -> Option<Cell> {
    let mut layer = w.layer;
    for slab in near.chunk_by(same_layers) {
        if slab[0].layer_end <= layer {
            continue;
        }
        if slab[0].layer > layer || layer >= w.layer_end {
            break;
        }
        let at = slab.partition_point(|x| x.page_end <= w.page);
        let Some(run) = slab.get(at).filter(|x| x.page <= w.page) else {
            return Some(Cell {
                section: w.section,
                layer,
                page: w.page,
            });
        };
        if run.page_end < w.page_end {
            return Some(Cell {
                section: w.section,
                layer,
                page: run.page_end,
            });
        }
        layer = slab[0].layer_end;
    }
    (layer < w.layer_end).then_some(Cell {
        section: w.section,
        layer,
        page: w.page,
    })
}

/// Adds a run to the slab at `slab`, which has the same layers and no neighbour that touches.
fn insert_run(rects: &mut Vec<Rect>, slab: Range<usize>, new: Rect) {
    let at = slab.start + rects[slab.clone()].partition_point(|x| x.page < new.page);
    let joins_before = at > slab.start && rects[at - 1].page_end == new.page;
    let joins_after = at < slab.end && rects[at].page == new.page_end;
    match (joins_before, joins_after) {
        (true, true) => {
            rects[at - 1].page_end = rects[at].page_end;
            rects.remove(at);
        }
        (true, false) => rects[at - 1].page_end = new.page_end,
        (false, true) => rects[at].page = new.page,
        (false, false) => rects.insert(at, new),
    }
}

/// The canonical form of `near` plus `new`; they share a section and no cell.
fn rebuild(near: &[Rect], new: &Rect) -> Vec<Rect> {
    let mut out = Builder {
        out: Vec::with_capacity(near.len() + 3),
        last: 0,
    };
    let mut layer = new.layer;
    for slab in near.chunk_by(same_layers) {
        let (start, end) = (slab[0].layer, slab[0].layer_end);
        // What of the new rectangle lies above this slab, then the slab in up to three parts.
        let gap_end = start.min(new.layer_end);
        if layer < gap_end {
            out.push(layer..gap_end, &[], Some(new));
            layer = gap_end;
        }
        let inner = start.max(new.layer)..end.min(new.layer_end);
        if inner.is_empty() {
            out.push(start..end, slab, None);
            continue;
        }
        out.push(start..inner.start, slab, None);
        out.push(inner.clone(), slab, Some(new));
        out.push(inner.end..end, slab, None);
        layer = inner.end;
    }
    out.push(layer..new.layer_end, &[], Some(new));
    out.out
}

/// Takes slabs in order and joins those that should be one.
struct Builder {
    out: Vec<Rect>,
    /// Where the last slab begins.
    last: usize,
}

impl Builder {
    /// Adds a slab with the runs of `slab`, and with the pages of `new` if there is one.
    fn push(&mut self, layers: Range<u32>, slab: &[Rect], new: Option<&Rect>) {
        if layers.is_empty() {
            return;
        }
        let start = self.out.len();
        let fit = |r: &Rect| Rect {
            layer: layers.start,
            layer_end: layers.end,
            ..*r
        };
        self.out.extend(slab.iter().map(fit));
        if let Some(new) = new {
            let end = self.out.len();
            insert_run(&mut self.out, start..end, fit(new));
        }
        let (before, added) = self.out.split_at_mut(start);
        let before = &mut before[self.last..];
        if touch(before, added) && same_pages(before, added) {
            before.iter_mut().for_each(|r| r.layer_end = layers.end);
            self.out.truncate(start);
        } else {
            self.last = start;
        }
    }
}

fn same_layers(a: &Rect, b: &Rect) -> bool {
    (a.section, a.layer, a.layer_end) == (b.section, b.layer, b.layer_end)
}

/// Whether slab `b` begins where slab `a` ends.
fn touch(a: &[Rect], b: &[Rect]) -> bool {
    match (a.first(), b.first()) {
        (Some(a), Some(b)) => a.section == b.section && a.layer_end == b.layer,
        _ => false,
    }
}

fn same_pages(a: &[Rect], b: &[Rect]) -> bool {
    let pages = |r: &Rect| (r.page, r.page_end);
    a.iter().map(pages).cmp(b.iter().map(pages)) == Ordering::Equal
}
