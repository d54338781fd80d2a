//! How a request's tokens are cut into segments, which cross no page of either side.
//!
//! ```text
//!   granules        2 3 │ 4 5 6 7 │ 8 9 10 11 │ 12        a request of granules 2..13
//!   smaller pages  page 0│ page 1  │  page 2   │ page 3    of 4 granules: one segment each
//!   larger pages     page 0         │      page 1          of 8: two segments, at most
//!   segments       first │  whole  │   whole   │ last      the first leaves out granules 0 and 1
//! ```

use super::nest::Nest;
use super::table::Lane;
use crate::layout::cube::PlaneMap;
use std::ops::Range;

/// How the tokens are cut into segments: stretches of the smaller page size.
pub(super) struct Cut {
    pub(super) segments: usize,
    /// Granules that the first segment leaves out, and of each kind of segment.
    pub(super) skip: u32,
    pub(super) whole: u32,
    pub(super) granules: [u32; 3],
    pub(super) src_parts: u32,
    pub(super) dst_parts: u32,
    pub(super) src_first: u32,
    pub(super) dst_first: u32,
}

impl Cut {
    /// Of a range that is not empty; none if this machine cannot count its segments.
    pub(super) fn new(granules: &Range<u64>, src_page: u32, dst_page: u32) -> Option<Cut> {
        let whole = src_page.min(dst_page);
        let small = u64::from(whole);
        let (first, last) = (granules.start / small, (granules.end - 1) / small);
        let (src_parts, dst_parts) = (src_page / whole, dst_page / whole);
        // Remainders of numbers of 32 bits, but for `end`, which may be all of `whole`.
        let skip = (granules.start - first * small) as u32;
        let end = (granules.end - last * small) as u32;
        let only = first == last;
        Some(Cut {
            segments: usize::try_from(last - first + 1).ok()?,
            skip,
            whole,
            granules: [if only { end - skip } else { whole - skip }, whole, end],
            src_parts,
            dst_parts,
            src_first: (first % u64::from(src_parts)) as u32,
            dst_first: (first % u64::from(dst_parts)) as u32,
        })
    }

    pub(super) fn whole_segments(&self) -> Range<usize> {
        let first_is_cut = self.granules[0] != self.whole;
        let last_is_cut = self.granules[2] != self.whole;
        match (self.segments, first_is_cut) {
            (1, true) => 0..0,
            (1, false) => 0..1,
            (n, cut) => usize::from(cut)..n - usize::from(last_is_cut),
        }
    }

    pub(super) fn lane(&self, src: PlaneMap, dst: PlaneMap, heads: u32) -> Lane {
        let by = |tokens: u32| {
            let tokens = u64::from(tokens);
            (tokens * src.token, tokens * dst.token)
        };
        Lane {
            src,
            dst,
            plane_step: (0, 0),
            part: by(self.whole),
            skip: by(self.skip),
            heads,
            nests: [Nest::new(src.row); 3],
        }
    }
}
