//! A job for the network, cut into parts that each fit a slot. Pure.
//!
//! ```text
//!   layers × places ──▶ some layers, all places     if a layer fits
//!                       one layer, some places      if not
//!   runs of a part: layer by layer, place by place, as its frames have them
//! ```

use crate::copy::job::Place;
use crate::slice::Slice;
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::layout::cube::CubeLayout;
use kvroom_kernels::plan::Piece;
use kvroom_kernels::plan::cube::PageList;
use std::ops::Range;
use std::sync::Arc;

/// The parts that are still to come.
#[derive(Debug)]
pub(super) struct Cut {
    place: Place,
    layout: Arc<PoolLayout>,
    most: u64,
    runs: usize,
    /// The layer that comes next.
    layer: u32,
    /// What of it comes next: places of a job of whole cells, tokens of one with a slice.
    at: u64,
}

impl Cut {
    /// Parts of at most `most` bytes and `runs` runs.
    pub(super) fn new(place: Place, layout: Arc<PoolLayout>, most: u64, runs: usize) -> Cut {
        Cut {
            layer: place.layers.start,
            at: 0,
            place,
            layout,
            most,
            runs: runs.max(1),
        }
    }

    /// The next part; none after the last.
    ///
    /// # Errors
    /// In words: what cannot be cut is larger than a slot.
    pub(super) fn next(&mut self) -> Result<Option<Place>, String> {
        if self.layer >= self.place.layers.end {
            return Ok(None);
        }
        let part = match self.place.slice.clone() {
            None => self.cells()?,
            Some(slice) => self.sliced(&slice)?,
        };
        Ok(Some(part))
    }

    fn cells(&mut self) -> Result<Place, String> {
        let (cell, places) = (self.layout.page_bytes, self.place.from.len());
        let fit = usize::try_from(self.most / cell.max(1)).unwrap_or(usize::MAX);
        let fit = fit.min(self.runs);
        if fit == 0 {
            return Err(self.too_large("a page in a layer", cell));
        }
        if fit >= places.max(1) {
            let layers = u32::try_from(fit / places.max(1)).unwrap_or(u32::MAX);
            return Ok(self.layers(layers));
        }
        let first = self.at as usize; // at most `places`
        let end = places.min(first + fit);
        let mut part = self.place.clone();
        part.layers = self.layer..self.layer + 1;
        part.from = self.place.from.start + first..self.place.from.start + end;
        part.to = self.place.to.start + first..self.place.to.start + end;
        self.passed(end as u64, places as u64);
        Ok(part)
    }

    fn sliced(&mut self, slice: &Slice) -> Result<Place, String> {
        let one = slice.bytes(self.layer..self.layer + 1);
        if one <= self.most {
            let layers = u32::try_from(self.most / one.max(1)).unwrap_or(u32::MAX);
            return Ok(self.layers(layers));
        }
        let (from, to) = (page(&slice.src), page(&slice.dst));
        let unit = from / common(from, to) * to;
        let tokens = slice.tokens.end - slice.tokens.start;
        // Rounded up, so that what is said to fit does.
        let bytes = one.div_ceil(tokens.max(1)).saturating_mul(unit);
        let units = self.most / bytes.max(1);
        if units == 0 || slice.dst.kind.is_row() {
            let what = match slice.dst.kind.is_row() {
                true => "a row in a layer",
                false => "the smallest part of a layer that whole pages of both sides hold",
            };
            return Err(self.too_large(what, bytes.min(one)));
        }
        let first = slice.tokens.start + self.at;
        let end = slice.tokens.end.min(first + units.saturating_mul(unit));
        let mut part = self.place.clone();
        part.layers = self.layer..self.layer + 1;
        part.from = pages(&self.place.from, &slice.tokens, &(first..end), from);
        part.to = pages(&self.place.to, &slice.tokens, &(first..end), to);
        part.slice = Some(Arc::new(Slice {
            tokens: first..end,
            ..slice.clone()
        }));
        self.passed(end - slice.tokens.start, tokens);
        Ok(part)
    }

    /// So many whole layers, if there are.
    fn layers(&mut self, layers: u32) -> Place {
        let end = self.layer.saturating_add(layers.max(1));
        let end = end.min(self.place.layers.end);
        let mut part = self.place.clone();
        part.layers = self.layer..end;
        self.layer = end;
        part
    }

    fn passed(&mut self, at: u64, of: u64) {
        self.at = at;
        if at >= of {
            self.at = 0;
            self.layer += 1;
        }
    }

    fn too_large(&self, what: &str, bytes: u64) -> String {
        format!(
            "{what} of pool \"{}\" has {bytes} bytes, a staging slot {}: raise DeviceOptions::slot_bytes",
            self.layout.name, self.most
        )
    }
}

/// What a part reads, in the order of its bytes. Where that goes is counted from 0.
///
/// # Errors
/// In words: a page that the pool or the lease does not have, or two ends that do not fit.
pub(super) fn runs(part: &Place, layout: &PoolLayout) -> Result<Vec<Piece>, String> {
    let mut runs = Vec::new();
    let mut at = 0;
    let mut add = |src: u64, bytes: u64| {
        let dst = at;
        at += bytes;
        runs.push(Piece { src, dst, bytes });
    };
    for layer in part.layers.clone() {
        let Some(slice) = &part.slice else {
            for i in part.from.clone() {
                let page = part.pages.get(i).copied();
                let cell = page.and_then(|page| layout.cell_offset(layer, page));
                let cell = cell.ok_or("a job reads a page that is not there; a bug of the plan")?;
                add(cell, layout.page_bytes);
            }
            continue;
        };
        let (from, to) = (page(&slice.src), page(&slice.dst));
        for (i, place) in part.to.clone().enumerate() {
            let mut one = Slice::clone(slice);
            let mut source = part.from.clone();
            if !slice.dst.kind.is_row() {
                let first = slice.tokens.start / to * to + i as u64 * to;
                let tokens = first.max(slice.tokens.start)..(first + to).min(slice.tokens.end);
                source = pages(&part.from, &slice.tokens, &tokens, from);
                one.tokens = tokens;
            }
            let source = PageList {
                list: Arc::clone(&part.pages),
                range: source,
            };
            // Where it goes at the other end does not matter here, but that it is one page.
            let there = PageList::whole([0_u32; 1]);
            let plan = one.plan(layer..layer + 1, source, there);
            let mut plan = plan.map_err(|error| format!("place {place}: {error}"))?;
            while let Some(piece) = plan.next_piece(u64::MAX) {
                add(piece.src, piece.bytes);
            }
        }
    }
    Ok(runs)
}

fn page(cube: &CubeLayout) -> u64 {
    u64::from(cube.page_tokens.max(1))
}

/// The entries of a list for `all` that hold `some` of its tokens.
fn pages(list: &Range<usize>, all: &Range<u64>, some: &Range<u64>, page: u64) -> Range<usize> {
    let first = some.start / page - all.start / page;
    let end = some.end.div_ceil(page) - all.start / page;
    list.start + first as usize..list.start + end as usize
}

/// The largest number that divides both.
fn common(mut a: u64, mut b: u64) -> u64 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvroom_kernels::layout::{Order, PoolKind};
    use proptest::prelude::*;

    fn layout(page_bytes: u64) -> Arc<PoolLayout> {
        Arc::new(PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 12,
            pages: 200,
            page_bytes,
            page_tokens: 16,
        })
    }

    fn place(layers: Range<u32>, pages: usize) -> Place {
        Place {
            section: 0,
            layers,
            pages: (0..100 + pages as u32).rev().collect(),
            from: 3..3 + pages,
            to: 7..7 + pages,
            slice: None,
        }
    }

    fn cells(place: &Place) -> Vec<(u32, usize, usize)> {
        let pairs = || place.from.clone().zip(place.to.clone());
        let layers = place.layers.clone();
        layers
            .flat_map(|l| pairs().map(move |(f, t)| (l, f, t)))
            .collect()
    }

    proptest! {
        #[test]
        fn parts_follow_each_other_and_are_the_whole_and_each_fits(
            first in 0..3_u32, layers in 1..9_u32, pages in 1..60_usize,
            cell in 1..300_u64, most in 300..4_000_u64, runs in 1..40_usize,
        ) {
            let whole = place(first..first + layers, pages);
            let layout = layout(cell);
            let mut cut = Cut::new(whole.clone(), Arc::clone(&layout), most, runs);
            let mut all = Vec::new();
            while let Some(part) = cut.next().unwrap() {
                let list = super::runs(&part, &layout).unwrap();
                prop_assert!(list.len() <= runs);
                prop_assert!(part.bytes(&layout) <= most);
                prop_assert_eq!(list.iter().map(|r| r.bytes).sum::<u64>(), part.bytes(&layout));
                all.extend(cells(&part));
            }
            prop_assert_eq!(all, cells(&whole));
        }
    }

    #[test]
    fn a_page_that_no_slot_holds_is_refused_with_what_to_do() {
        let mut cut = Cut::new(place(0..2, 3), layout(5_000), 4_096, 8);
        let text = cut.next().unwrap_err();
        assert!(
            text.contains("5000 bytes") && text.contains("slot_bytes"),
            "{text}"
        );
    }
}
