//! The rows of a part in one rank's pool, each with the name that it has in the model.
//!
//! ```text
//!   for layer: for plane: for head: for granule of the tokens   ─▶   name, offset, bytes
//! ```
//!
//! Two ranks that hold the same part name the same rows, wherever each has them: what is said of rows
//! (a checksum) is the same on both sides, however the copies between them were cut.

use super::table::{granules, maps, pages, within};
use super::{CubePlanError, PageList, Part};
use crate::layout::cube::{CubeLayout, PlaneMap};
use crate::plan::End;
use std::ops::Range;

/// Which row of the model it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RowName {
    /// The layer.
    pub layer: u32,
    /// The plane.
    pub plane: u32,
    /// The head.
    pub head: u32,
    /// The granule (the token, where each lies by itself) of the request; of a row pool, within the
    /// rows, one after the other.
    pub granule: u64,
}

/// A row, and where it lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Row {
    /// Which it is.
    pub name: RowName,
    /// Its first byte, from the start of the pool.
    pub offset: u64,
    /// How many bytes.
    pub bytes: u64,
}

/// All rows of a part, by layer, plane, head and granule.
#[derive(Clone, Debug)]
pub struct Rows {
    layout: (u32, Vec<(PlaneMap, u32)>),
    part: Part,
    pages: PageList,
    granules: Range<u64>,
    page_granules: u64,
    /// The next row, if `left` is not 0.
    at: RowName,
    left: u64,
}

impl Rows {
    /// The rows of `part` that the tokens `tokens` of a request have in a pool with this layout, in the
    /// pages `of`. The list is as for [`CubePlan::new`](super::CubePlan::new).
    ///
    /// # Errors
    /// [`CubePlanError`], as if it were the source of a copy.
    pub fn new(
        layout: &CubeLayout,
        of: PageList,
        tokens: Range<u64>,
        part: &Part,
    ) -> Result<Rows, CubePlanError> {
        let maps = maps(End::Source, layout)?;
        within(End::Source, layout, part)?;
        let granules = granules(layout, &of, &of, tokens)?;
        pages(End::Source, layout, &of, &granules)?;
        let heads: u64 = part.heads.iter().map(|h| u64::from(h.len())).sum();
        let left = heads
            .checked_mul(u64::from(part.layers.len()))
            .and_then(|rows| rows.checked_mul(granules.end - granules.start))
            .ok_or(CubePlanError::TooLarge)?;
        let firsts = layout.planes.iter().map(|plane| plane.heads.first);
        let at = RowName {
            layer: part.layers.start,
            plane: 0,
            head: part.heads.first().map_or(0, |heads| heads.start),
            granule: granules.start,
        };
        let mut rows = Rows {
            layout: (layout.layers.first, maps.into_iter().zip(firsts).collect()),
            part: part.clone(),
            pages: of,
            granules,
            page_granules: u64::from(layout.page_granules().max(1)),
            at,
            left,
        };
        rows.skip_empty_planes();
        Ok(rows)
    }

    /// Whether all rows were given out.
    #[must_use]
    pub fn is_done(&self) -> bool {
        self.left == 0
    }

    /// A head was ended, or a layer begun: goes on to the next plane that has heads.
    fn skip_empty_planes(&mut self) {
        if self.left == 0 {
            return;
        }
        while let Some(heads) = self.part.heads.get(self.at.plane as usize) {
            if self.at.head < heads.end && !heads.is_empty() {
                return;
            }
            self.at.plane += 1;
            let next = self.part.heads.get(self.at.plane as usize);
            if let Some(next) = next {
                self.at.head = next.start;
            }
        }
        self.at.layer += 1;
        self.at.plane = 0;
        self.at.head = self.part.heads.first().map_or(0, |heads| heads.start);
        // Some plane has heads, since rows are left.
        self.skip_empty_planes();
    }
}

impl Iterator for Rows {
    type Item = Row;

    fn next(&mut self) -> Option<Row> {
        if self.left == 0 {
            return None;
        }
        let name = self.at;
        let (first_layer, planes) = &self.layout;
        let (map, first_head) = planes.get(name.plane as usize)?;
        let page = name.granule / self.page_granules - self.granules.start / self.page_granules;
        let at = self.pages.range.start + usize::try_from(page).ok()?;
        let page = *self.pages.list.get(at)?;
        // The layout was validated and holds the part: nothing of this overflows.
        let offset = map.base
            + u64::from(page) * map.page
            + u64::from(name.layer - first_layer) * map.layer
            + u64::from(name.head - first_head) * map.head
            + name.granule % self.page_granules * map.token;
        let row = Row {
            name,
            offset,
            bytes: map.row,
        };
        self.left -= 1;
        self.at.granule += 1;
        if self.at.granule == self.granules.end {
            self.at.granule = self.granules.start;
            self.at.head += 1;
            self.skip_empty_planes();
        }
        Some(row)
    }
}
