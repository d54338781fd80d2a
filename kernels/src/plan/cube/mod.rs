//! Which bytes of one rank's pool go where in another's, for any two layouts that fit.
//!
//! ```text
//!   tokens     │0      16      32      48   55│          request: tokens 0..55
//!   source     │ page 9│ page 4│ page 7│ page 2 │        pages of 16 tokens
//!   dest.      │ page 3        │ page 8         │        pages of 32 tokens
//!   segments   │  s0   │  s1   │  s2   │ s3 │            never cross a page of either side
//!
//!   outer      indices in destination order, down to the last one that jumps (a page list decides,
//!              or planes differ in shape):                       layer, page, plane, [segment]
//!   inner      what is faster lies at fixed distances: a nest of loops, joined into runs
//! ```
//!
//! A [`CubePlan`] owns what it needs and holds a cursor, so that it can stand in a lane's queue
//! between pieces. Its size does not depend on the number of pages; no descriptor is ever stored.
//! Every index is checked at construction and never again; the walk adds distances and looks pages
//! up, and divides nowhere but to cut a run that is larger than the piece asked for.
//!
//! It gives its bytes out in one of two forms, which may be mixed, or all at once in a third:
//!
//! - [`next_piece`](CubePlan::next_piece): bytes that lie together on both sides, joined as far as
//!   they do in the order of the walk. For memcpy, for iovecs, for RDMA. Whoever wants many at once
//!   takes [`next_pieces`](CubePlan::next_pieces).
//! - [`next_strided`](CubePlan::next_strided): runs of equal length at equal distances, as a 2D copy
//!   or a kernel takes them. A head slice of a page is one of these, not one piece for each token.
//! - [`grids`](CubePlan::grids): loops over whole page tables, which is what a kernel is launched
//!   with. A head slice of a request is one of these.
//!
//! The walk goes through the destination in the order of its layout; pages in that of the list. One
//! exception: if a part has different heads for different planes and the destination has heads
//! before planes, it goes plane by plane.

mod cursor;
mod cut;
mod error;
mod grid;
mod nest;
mod rows;
mod table;
mod tiling;

pub use error::CubePlanError;
pub use grid::{Grid, GridSide};
pub use rows::{Row, RowName, Rows};
pub use tiling::{TilingError, tiles};

use super::Piece;
use crate::layout::cube::{CubeLayout, Span, few_planes};
use cursor::Cursor;
use serde::{Deserialize, Serialize};
use std::ops::Range;
use std::sync::Arc;
use table::Table;

/// What of a pool is copied, in indices of the model: what one leg carries.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Part {
    /// The layers.
    pub layers: Span,
    /// The heads of each plane; none of a plane if the range is empty.
    #[serde(deserialize_with = "few_planes")]
    pub heads: Vec<Span>,
}

impl Part {
    /// All that both hold; nothing (an empty range) where they do not meet.
    #[must_use]
    pub fn common(src: &CubeLayout, dst: &CubeLayout) -> Part {
        let planes = src.planes.iter().zip(&dst.planes);
        Part {
            layers: src.layers.span().meet(dst.layers.span()),
            heads: planes
                .map(|(a, b)| a.heads.span().meet(b.heads.span()))
                .collect(),
        }
    }

    /// No layers, and no heads of any of so many planes.
    #[must_use]
    pub fn nothing(planes: usize) -> Part {
        Part {
            layers: Span::new(0, 0),
            heads: vec![Span::new(0, 0); planes],
        }
    }

    /// Whether there are no layers in it, or no heads of any plane.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.layers.is_empty() || self.heads.iter().all(|heads| heads.is_empty())
    }

    /// Whether all of `other` is in it.
    #[must_use]
    pub fn holds(&self, other: &Part) -> bool {
        let mut planes = self.heads.iter().zip(&other.heads);
        self.layers.holds(other.layers)
            && self.heads.len() == other.heads.len()
            && planes.all(|(mine, theirs)| mine.holds(*theirs))
    }

    /// Bytes that it has in one layer of one granule of a pool with such planes; `u64::MAX` if they are
    /// more.
    #[must_use]
    pub fn granule_bytes(&self, layout: &CubeLayout) -> u64 {
        let planes = self.heads.iter().zip(&layout.planes);
        planes.fold(0, |sum, (heads, plane)| {
            let row = plane.row_bytes(layout.granule).unwrap_or(0);
            sum.saturating_add(row.saturating_mul(u64::from(heads.len())))
        })
    }

    /// The same heads of fewer layers: what there is to send once the layers `done` are computed.
    #[must_use]
    pub fn of_layers(&self, done: Span) -> Part {
        Part {
            layers: self.layers.meet(done),
            heads: self.heads.clone(),
        }
    }
}

/// A stretch of a block table: the pages that hold the tokens, in their order.
#[derive(Clone, Debug)]
pub struct PageList {
    /// The table.
    pub list: Arc<[u32]>,
    /// Which of its entries. The first one's page holds the first token.
    pub range: Range<usize>,
}

impl PageList {
    /// All of a table.
    #[must_use]
    pub fn whole(list: impl Into<Arc<[u32]>>) -> PageList {
        let list = list.into();
        let range = 0..list.len();
        PageList { list, range }
    }
}

/// `count` runs of `bytes` at fixed distances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Strided {
    /// First byte of the first run, from the start of the source pool.
    pub src: u64,
    /// First byte of the first run, from the start of the destination pool.
    pub dst: u64,
    /// Bytes of each run; at least 1.
    pub bytes: u64,
    /// How many runs; at least 1.
    pub count: u64,
    /// Bytes from a run to the next at the source; 0 if there is one run.
    pub src_step: u64,
    /// Bytes from a run to the next at the destination; 0 if there is one run.
    pub dst_step: u64,
}

impl From<Piece> for Strided {
    fn from(piece: Piece) -> Strided {
        let Piece { src, dst, bytes } = piece;
        Strided {
            src,
            dst,
            bytes,
            count: 1,
            src_step: 0,
            dst_step: 0,
        }
    }
}

/// A copy between two pools of unequal shape, and how far it is.
#[derive(Clone, Debug)]
pub struct CubePlan {
    table: Arc<Table>,
    cursor: Cursor,
    total: u64,
    left: u64,
}

impl CubePlan {
    /// Plans `part` of the tokens `tokens` of a request, which lie in the pages `from` at the source
    /// and `to` at the destination. Tokens count from the request's beginning, and so do page
    /// boundaries; both lists name exactly the pages that hold a token of the range.
    ///
    /// If tokens are in granules, the range begins at one, and its last granule is copied whole. For
    /// row pools `tokens` is ignored: the lists name equally many rows, and rows are copied whole.
    ///
    /// That a page is not named twice is for the leases to know.
    ///
    /// # Errors
    /// [`CubePlanError`] says which layout, range, list or index cannot be used.
    pub fn new(
        src: &CubeLayout,
        dst: &CubeLayout,
        from: PageList,
        to: PageList,
        tokens: Range<u64>,
        part: &Part,
    ) -> Result<CubePlan, CubePlanError> {
        let (table, total) = Table::new(src, dst, from, to, tokens, part)?;
        let cursor = Cursor::new(&table);
        Ok(CubePlan {
            table: Arc::new(table),
            cursor,
            total,
            left: total,
        })
    }

    /// Bytes of the whole plan.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.total
    }

    /// Bytes that were not handed out yet; 0 when the plan is done.
    #[must_use]
    pub fn remaining_bytes(&self) -> u64 {
        self.left
    }

    /// The next bytes to copy, at most `max_bytes` of them; none when the plan is done, or if
    /// `max_bytes` is 0.
    ///
    /// A row (one head at one token) is cut only if it is larger than `max_bytes`; the rest of what
    /// was cut comes first in the next piece.
    #[inline]
    pub fn next_piece(&mut self, max_bytes: u64) -> Option<Piece> {
        if self.left == 0 || max_bytes == 0 {
            return None;
        }
        let (table, at) = (&*self.table, &mut self.cursor);
        let rest = at.run - at.within;
        let (src, dst) = (at.src + at.within, at.dst + at.within);
        if rest > max_bytes {
            let row = at.nest(table).row;
            let odd = match row <= max_bytes {
                true => (at.within + max_bytes) % row,
                false => 0,
            };
            let bytes = max_bytes - odd;
            at.within += bytes;
            self.left -= bytes;
            return Some(Piece { src, dst, bytes });
        }
        self.left -= rest;
        let bytes = self.join((src + rest, dst + rest), rest, max_bytes);
        Some(Piece { src, dst, bytes })
    }

    /// As many of the next pieces as there is room for in `out`, and how many they are: what
    /// [`next_piece`](CubePlan::next_piece) gives when it is asked that often. Where whole pages
    /// follow each other, this is several times as fast.
    pub fn next_pieces(&mut self, max_bytes: u64, out: &mut [Piece]) -> usize {
        let mut filled = 0;
        while let Some(room) = out.get_mut(filled..)
            && !room.is_empty()
        {
            let at = &self.cursor;
            if at.ahead > 0 && at.within == 0 && at.run <= max_bytes && self.left > 0 {
                filled += self.whole_pages(max_bytes, room);
            } else if let Some(piece) = self.next_piece(max_bytes) {
                room[0] = piece;
                filled += 1;
            } else {
                break;
            }
        }
        filled
    }

    /// Pieces of whole pages of one run each, from the cursor's on, into `out`, which has room.
    fn whole_pages(&mut self, max_bytes: u64, out: &mut [Piece]) -> usize {
        let (table, at) = (&*self.table, &mut self.cursor);
        // Numbers by themselves, since a struct would be copied through memory each time.
        let (mut src, mut dst, mut bytes) = (at.src, at.dst, at.run);
        let run = at.run;
        let mut filled = 0;
        let mut steps = 0;
        for next in at.pages_ahead(table) {
            steps += 1;
            if next == (src + bytes, dst + bytes) && max_bytes - bytes >= run {
                bytes += run;
                continue;
            }
            out[filled] = Piece { src, dst, bytes };
            filled += 1;
            self.left -= bytes;
            (src, dst) = next;
            bytes = run;
            if filled == out.len() {
                break;
            }
        }
        at.skip_ahead(table, steps);
        if filled < out.len() {
            // None is ahead any more; what comes next may still follow this piece.
            self.left -= bytes;
            let bytes = self.join((src + bytes, dst + bytes), bytes, max_bytes);
            out[filled] = Piece { src, dst, bytes };
            filled += 1;
        }
        filled
    }

    /// Steps on from a run that was taken off `left` and ends a piece of `bytes` at `end`. Joins to it
    /// what follows on both sides, and answers how many bytes it has then.
    #[inline]
    fn join(&mut self, mut end: (u64, u64), mut bytes: u64, max_bytes: u64) -> u64 {
        let (table, at) = (&*self.table, &mut self.cursor);
        while self.left > 0 {
            at.step(table);
            if (at.src, at.dst) != end || max_bytes - bytes < at.run {
                break;
            }
            end = (end.0 + at.run, end.1 + at.run);
            bytes += at.run;
            self.left -= at.run;
        }
        bytes
    }

    /// The next runs to copy, at most `max_bytes` together; none when the plan is done, or if
    /// `max_bytes` is 0. Runs that do not end at `max_bytes` are cut as by
    /// [`next_piece`](CubePlan::next_piece).
    #[inline]
    pub fn next_strided(&mut self, max_bytes: u64) -> Option<Strided> {
        if self.left == 0 {
            return None;
        }
        let (table, at) = (&*self.table, &mut self.cursor);
        let nest = at.nest(table);
        let run = nest.run;
        let Some(fastest) = nest.loops[..nest.depth].first() else {
            return self.next_piece(max_bytes).map(Strided::from);
        };
        if at.within > 0 || run > max_bytes {
            let most = max_bytes.min(run - at.within);
            return self.next_piece(most).map(Strided::from);
        }
        let rest = fastest.count - at.inner[0];
        let count = match rest * run <= max_bytes {
            true => rest,
            false => max_bytes / run,
        };
        let (src_step, dst_step) = match count {
            1 => (0, 0),
            _ => (fastest.src, fastest.dst),
        };
        let runs = Strided {
            src: at.src,
            dst: at.dst,
            bytes: run,
            count,
            src_step,
            dst_step,
        };
        self.left -= count * run;
        at.inner[0] += count - 1;
        at.src += (count - 1) * fastest.src;
        at.dst += (count - 1) * fastest.dst;
        if self.left > 0 {
            at.step(table);
        }
        Some(runs)
    }

    /// The whole plan, wherever the cursor is, as loops over page tables: at most three for each
    /// plane, and mostly one for all. They may run in any order, or at the same time.
    #[must_use]
    pub fn grids(&self) -> Vec<Grid> {
        grid::grids(&self.table)
    }

    /// What is left, in the longest pieces possible. The plan itself does not move.
    pub fn runs(&self) -> impl Iterator<Item = Piece> + use<> {
        let mut plan = self.clone();
        std::iter::from_fn(move || plan.next_piece(u64::MAX))
    }

    /// What is left, as strided runs. The plan itself does not move.
    pub fn strided(&self) -> impl Iterator<Item = Strided> + use<> {
        let mut plan = self.clone();
        std::iter::from_fn(move || plan.next_strided(u64::MAX))
    }
}

#[cfg(test)]
mod tests;
