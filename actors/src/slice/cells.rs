//! The cells of a section of which only a slice is carried: how many bytes each one has of it.
//!
//! ```text
//!   place             0          1          2          3        pages of 32, tokens 16..110
//!   granules      16 .. 32   32 .. 64   64 .. 96   96 .. 110    a cell has these of them,
//!   bytes           16·row     32·row     32·row     14·row     each with one row of all heads
//!
//!   stream        layer 0: cells of places 0 1 2 3 │ layer 1: cells of places 0 1 2 3 │ …
//! ```
//!
//! Both ends of a leg count in the bytes of that stream, and name a stretch of it by a rectangle of
//! cells, or by bytes within one cell. In which order the bytes of a rectangle come is the plan's
//! matter (the destination's order).

use kvroom_kernels::layout::cube::CubeLayout;
use kvroom_kernels::plan::cube::{CubePlan, CubePlanError, PageList, Part};
use std::ops::Range;

/// See the module. Layers count in the destination rank from 0, places in the claim's list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SliceCells {
    layers: Range<u32>,
    places: Range<u32>,
    /// Of the request; for row pools, of the rows from the first place on.
    granules: Range<u64>,
    /// Tokens of a granule.
    granule: u64,
    /// Granules of a page.
    page: u64,
    /// Page of the request that the first place is.
    base: u64,
    /// Bytes of one granule in one layer: all heads of all planes that are in the slice.
    row: u64,
}

/// Where in the stream of the cells a byte is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct At {
    /// Layer.
    pub layer: u32,
    /// Place.
    pub place: u32,
    /// Bytes of the cell before it.
    pub within: u64,
}

impl SliceCells {
    /// The cells of `part` in the pages that hold `tokens` of a request; the first of them is
    /// place `first` of the claim's list.
    ///
    /// # Errors
    /// [`CubePlanError`]: the layout, the part, the tokens or the pages cannot be used.
    pub fn new(
        layout: &CubeLayout,
        part: &Part,
        tokens: Range<u64>,
        pages: PageList,
        first: u32,
    ) -> Result<SliceCells, Box<CubePlanError>> {
        let count = u32::try_from(pages.range.len()).map_err(|_| CubePlanError::TooLarge)?;
        let end = first.checked_add(count).ok_or(CubePlanError::TooLarge)?;
        // What it checks holds from here on: none of the sums and products below overflows.
        let again = pages.clone();
        let plan = CubePlan::new(layout, layout, pages, again, tokens.clone(), part)?;
        let (page, granule) = (
            u64::from(layout.page_granules()),
            u64::from(layout.granule.max(1)),
        );
        let (granules, base) = if layout.kind.is_row() {
            (0..u64::from(count) * page, 0)
        } else {
            let granules = tokens.start / granule..tokens.end.div_ceil(granule);
            let base = granules.start / page.max(1);
            (granules, base)
        };
        let layers = part.layers.start.saturating_sub(layout.layers.first);
        let layers = layers..layers + part.layers.len();
        let rows = layers.len() as u64 * (granules.end - granules.start);
        Ok(SliceCells {
            layers,
            places: first..end,
            granules,
            granule,
            page,
            base,
            row: plan.total_bytes() / rows.max(1),
        })
    }

    /// The layers that the part has.
    #[must_use]
    pub fn layers(&self) -> Range<u32> {
        self.layers.clone()
    }

    /// The places.
    #[must_use]
    pub fn places(&self) -> Range<u32> {
        self.places.clone()
    }

    /// Bytes of all cells.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.of(self.layers.len() as u64, self.places.clone())
    }

    /// Bytes of the cells of a place; 0 if there is no such place.
    #[must_use]
    pub fn cell(&self, place: u32) -> u64 {
        self.of(1, place..place.saturating_add(1))
    }

    /// Bytes of the largest cell that a section of this kind has.
    #[must_use]
    pub fn whole_cell(&self) -> u64 {
        self.page * self.row
    }

    /// Bytes of a rectangle of cells.
    ///
    /// # Errors
    /// Which layers or places are not among these, in words.
    pub fn rect(&self, layers: &Range<u32>, places: &Range<u32>) -> Result<u64, String> {
        let within = |of: &Range<u32>, all: &Range<u32>| {
            of.start < of.end && of.start >= all.start && of.end <= all.end
        };
        if !within(layers, &self.layers) {
            return Err(format!(
                "layers {layers:?}, the slice has {:?}",
                self.layers
            ));
        }
        if !within(places, &self.places) {
            return Err(format!(
                "places {places:?}, the slice has {:?}",
                self.places
            ));
        }
        Ok(self.of(layers.len() as u64, places.clone()))
    }

    /// The tokens of these places.
    #[must_use]
    pub fn tokens(&self, places: Range<u32>) -> Range<u64> {
        let granules = self.granules_of(places);
        granules.start * self.granule..granules.end * self.granule
    }

    /// Where byte `position` of the stream is; a byte behind the last one is nowhere.
    #[must_use]
    pub fn at(&self, position: u64) -> Option<At> {
        let layer = self.of(1, self.places.clone());
        if position >= self.bytes() {
            return None;
        }
        let rest = position % layer;
        let granule = self.granules.start + rest / self.row;
        // Of places there are at most 2^32, of layers too.
        let place = self.places.start + (granule / self.page - self.base) as u32;
        let before = self.of(1, self.places.start..place);
        Some(At {
            layer: self.layers.start + (position / layer) as u32,
            place,
            within: rest - before,
        })
    }

    /// How many places from `place` on have at most `bytes` bytes in one layer together.
    #[must_use]
    pub fn places_in(&self, place: u32, bytes: u64) -> u32 {
        let granules = self.granules_of(place..self.places.end);
        let reach = granules.start.saturating_add(bytes / self.row.max(1));
        if reach >= granules.end {
            return self.places.end.saturating_sub(place);
        }
        let next = self.places.start + (reach / self.page - self.base) as u32;
        next.saturating_sub(place)
    }

    fn of(&self, layers: u64, places: Range<u32>) -> u64 {
        let granules = self.granules_of(places);
        layers * (granules.end - granules.start) * self.row
    }

    fn granules_of(&self, places: Range<u32>) -> Range<u64> {
        let page = |place: u32| {
            let page = u64::from(place.saturating_sub(self.places.start));
            let granule = self.base.saturating_add(page).saturating_mul(self.page);
            granule.clamp(self.granules.start, self.granules.end)
        };
        let start = page(places.start);
        start..page(places.end).max(start)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use kvroom_kernels::layout::cube::{CubeKind, DimOrder, Dtype, Plane, Share, Span};
    use proptest::prelude::*;

    fn layout(kind: CubeKind, page_tokens: u32, granule: u32) -> CubeLayout {
        let plane = |held| Plane {
            heads: Share::part(8, 2, held),
            channels: 4,
            dtype: Dtype::bf16(),
        };
        CubeLayout {
            name: "kv".into(),
            kind,
            layers: Share::part(12, 4, 3),
            planes: vec![plane(4), plane(4)],
            page_tokens,
            granule,
            pages: 9,
            page_gap: 0,
            order: DimOrder::NHD,
        }
    }

    fn part() -> Part {
        Part {
            layers: Span::new(5, 7),
            heads: vec![Span::new(3, 5), Span::new(2, 5)],
        }
    }

    /// A token has 5 heads of 4 numbers of 2 bytes.
    const TOKEN: u64 = 5 * 8;

    #[test]
    fn a_cell_has_the_bytes_of_the_tokens_in_it() {
        let pages = PageList::whole([3, 1, 0, 7]);
        let cells =
            SliceCells::new(&layout(CubeKind::Kv, 32, 1), &part(), 16..110, pages, 5).unwrap();
        assert_eq!((cells.layers(), cells.places()), (1..3, 5..9));
        let tokens = [0, 16, 32, 32, 14, 0];
        for (place, tokens) in (4..).zip(tokens) {
            assert_eq!(cells.cell(place), tokens * TOKEN, "place {place}");
        }
        assert_eq!(cells.whole_cell(), 32 * TOKEN);
        assert_eq!(cells.bytes(), 2 * 94 * TOKEN);
        assert_eq!(cells.rect(&(1..2), &(5..7)), Ok(48 * TOKEN));
        assert_eq!(cells.tokens(6..9), 32..110);
        for (layers, places) in [(0..2, 5..7), (1..4, 5..7), (1..2, 4..6), (1..2, 8..10)] {
            assert!(cells.rect(&layers, &places).is_err());
        }
        #[allow(clippy::reversed_empty_ranges)] // From a peer.
        let none = [cells.rect(&(2..2), &(5..6)), cells.rect(&(1..2), &(7..6))];
        assert!(none.iter().all(Result::is_err));
    }

    #[test]
    fn a_granule_that_the_request_ends_in_counts_whole_and_a_row_has_all_of_its_page() {
        let pages = PageList::whole([3, 1]);
        let layout_8 = layout(CubeKind::Kv, 32, 8);
        let cells = SliceCells::new(&layout_8, &part(), 0..41, pages.clone(), 0).unwrap();
        assert_eq!((cells.cell(0), cells.cell(1)), (32 * TOKEN, 16 * TOKEN));
        assert_eq!(cells.tokens(1..2), 32..48);
        let rows = layout(CubeKind::State, 32, 1);
        let cells = SliceCells::new(&rows, &part(), 0..1, pages, 0).unwrap();
        assert_eq!((cells.cell(0), cells.cell(1)), (32 * TOKEN, 32 * TOKEN));
    }

    #[test]
    fn what_does_not_fit_has_no_cells() {
        let kv = layout(CubeKind::Kv, 32, 1);
        let cells = |part: &Part, tokens, pages: &[u32]| {
            SliceCells::new(&kv, part, tokens, PageList::whole(pages), 0)
        };
        assert!(cells(&part(), 0..64, &[0, 1]).is_ok());
        assert!(cells(&part(), 0..64, &[0]).is_err());
        assert!(cells(&part(), 0..64, &[0, 9]).is_err());
        assert!(cells(&part(), 5..5, &[]).is_err());
        let more = Part {
            heads: vec![Span::new(3, 7), Span::new(2, 5)],
            ..part()
        };
        assert!(cells(&more, 0..64, &[0, 1]).is_err());
        let pages = PageList::whole([0]);
        assert!(SliceCells::new(&kv, &part(), 0..32, pages, u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn every_byte_is_in_the_cell_where_counting_finds_it(
            start in 0u64..100, len in 1u64..150, first in 0u32..9, bytes in 0u64..9000,
        ) {
            let kv = layout(CubeKind::Kv, 16, 1);
            let count = kv.pages_of(start..start + len) as usize;
            prop_assume!(count <= 9);
            let pages = PageList::whole((0..count as u32).collect::<Vec<_>>());
            let cells = SliceCells::new(&kv, &part(), start..start + len, pages, first).unwrap();
            let mut position = 0;
            for layer in cells.layers() {
                for place in cells.places() {
                    let cell = cells.cell(place);
                    prop_assert!(cell > 0);
                    for within in [0, cell / 2, cell - 1] {
                        let at = At { layer, place, within };
                        prop_assert_eq!(cells.at(position + within), Some(at));
                    }
                    position += cell;
                }
            }
            prop_assert_eq!((position, cells.at(position)), (cells.bytes(), None));
            for place in cells.places() {
                let fit = (1..=cells.places().end - place)
                    .take_while(|n| cells.rect(&(1..2), &(place..place + n)).unwrap() <= bytes);
                prop_assert_eq!(cells.places_in(place, bytes), fit.count() as u32);
            }
        }
    }
}
