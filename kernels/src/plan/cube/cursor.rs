//! Where a plan is: the outer indices, the segment, and the loops within.
//!
//! A step adds to two addresses. Only when an index other than the segment moves are the addresses
//! computed anew from all of them (`fix`), and that is by products of numbers that were checked
//! when the plan was made: each place is one of a row of its pool.

use super::nest::Nest;
use super::table::{Lane, Level, Table};

#[derive(Clone, Debug, Default)]
pub(super) struct Cursor {
    /// Where the run begins on both sides, its bytes, and how many of them were handed out.
    pub(super) src: u64,
    pub(super) dst: u64,
    pub(super) run: u64,
    pub(super) within: u64,
    /// Steps done in each loop of the nest, the fastest first.
    pub(super) inner: [u64; 4],
    /// Which nest of the lane: 0 for the first segment, 2 for the last, 1 for all others.
    variant: usize,
    /// Where the segment's first row would be, were it in page 0 at offset 0.
    fixed: (u64, u64),
    /// Outer indices; 0 for those that are inner.
    layer: u32,
    plane: u32,
    head: u32,
    token: u32,
    /// The segment, the first segment of its destination page, and that page's place in the list.
    segment: usize,
    group: usize,
    dst_at: usize,
    /// The source page's place in its list, and which segment of it this is.
    src_at: usize,
    src_sub: u32,
    dst_sub: u32,
}

impl Cursor {
    /// At the first run.
    pub(super) fn new(table: &Table) -> Cursor {
        let mut cursor = Cursor {
            src_sub: table.src_first,
            dst_sub: table.dst_first,
            ..Cursor::default()
        };
        cursor.fix(table);
        cursor.arrive(table);
        cursor
    }

    #[inline]
    pub(super) fn nest<'a>(&self, table: &'a Table) -> &'a Nest {
        &self.lane(table).nests[self.variant]
    }

    /// To the next run. There must be one.
    #[inline]
    pub(super) fn step(&mut self, table: &Table) {
        self.within = 0;
        let nest = self.nest(table);
        for (done, l) in self.inner.iter_mut().zip(&nest.loops[..nest.depth]) {
            *done += 1;
            if *done < l.count {
                self.src += l.src;
                self.dst += l.dst;
                return;
            }
            *done = 0;
            self.src -= (l.count - 1) * l.src;
            self.dst -= (l.count - 1) * l.dst;
        }
        self.outer(table);
    }

    /// To the next place of the outer indices, from which the loops begin again.
    #[inline]
    fn outer(&mut self, table: &Table) {
        let levels = &table.levels[..table.depth];
        let Some((fastest, others)) = levels.split_last() else {
            return;
        };
        if self.bump(table, *fastest) {
            if !matches!(fastest, Level::Page | Level::Segment) {
                self.fix(table);
            }
        } else {
            for level in others.iter().rev() {
                if self.bump(table, *level) {
                    break;
                }
            }
            self.fix(table);
        }
        self.arrive(table);
    }

    /// To the next value of one index, or back to its first and `false`.
    #[inline]
    fn bump(&mut self, table: &Table, level: Level) -> bool {
        let (index, count) = match level {
            Level::Page => return self.next_page(table),
            Level::Segment => return self.next_segment(table),
            Level::Layer => (&mut self.layer, table.layers),
            Level::Plane => (&mut self.plane, table.planes),
            Level::Head => {
                let heads = self.lane(table).heads;
                (&mut self.head, heads)
            }
            Level::Token => (&mut self.token, table.granules[self.variant]),
        };
        *index += 1;
        if *index < count {
            return true;
        }
        *index = 0;
        false
    }

    #[inline]
    fn next_page(&mut self, table: &Table) -> bool {
        self.group += self.group_len(table);
        self.segment = self.group;
        if self.group == table.segments {
            self.group = 0;
            self.segment = 0;
            self.dst_at = 0;
            self.src_at = 0;
            self.src_sub = table.src_first;
            self.dst_sub = table.dst_first;
            self.vary(table);
            return false;
        }
        self.dst_at += 1;
        self.dst_sub = 0;
        if table.src_parts == 1 {
            self.src_at = self.segment;
        } else {
            // Then a destination page is one segment.
            self.src_sub += 1;
            if self.src_sub == table.src_parts {
                self.src_sub = 0;
                self.src_at += 1;
            }
        }
        self.vary(table);
        true
    }

    /// Only where destination pages are the larger ones: a source page is one segment.
    fn next_segment(&mut self, table: &Table) -> bool {
        let last = self.segment + 1 == self.group + self.group_len(table);
        if last {
            self.segment = self.group;
            self.dst_sub = match self.group {
                0 => table.dst_first,
                _ => 0,
            };
        } else {
            self.segment += 1;
            self.dst_sub += 1;
        }
        self.src_at = self.segment;
        self.vary(table);
        !last
    }

    /// Segments of the destination page at hand.
    #[inline]
    fn group_len(&self, table: &Table) -> usize {
        let first = match self.group {
            0 => table.dst_first,
            _ => 0,
        };
        let whole = (table.dst_parts - first) as usize;
        whole.min(table.segments - self.group)
    }

    #[inline]
    fn vary(&mut self, table: &Table) {
        self.variant = match self.segment {
            0 => 0,
            s if s + 1 == table.segments => 2,
            _ => 1,
        };
    }

    #[inline]
    fn lane<'a>(&self, table: &'a Table) -> &'a Lane {
        let index = match table.apart {
            true => self.plane as usize,
            false => 0,
        };
        &table.lanes[index]
    }

    fn fix(&mut self, table: &Table) {
        let lane = self.lane(table);
        let plane = match table.apart {
            true => 0,
            false => u64::from(self.plane),
        };
        let (layer, head) = (u64::from(self.layer), u64::from(self.head));
        let token = u64::from(self.token);
        let place = |map: &crate::layout::cube::PlaneMap, step: u64| {
            map.base + layer * map.layer + plane * step + head * map.head + token * map.token
        };
        self.fixed = (
            place(&lane.src, lane.plane_step.0),
            place(&lane.dst, lane.plane_step.1),
        );
    }

    /// Looks the pages up, and begins with the first run there.
    #[inline]
    fn arrive(&mut self, table: &Table) {
        let lane = self.lane(table);
        let src_page = u64::from(table.src_pages[table.src_start + self.src_at]);
        let dst_page = u64::from(table.dst_pages[table.dst_start + self.dst_at]);
        self.src = self.fixed.0 + src_page * lane.src.page + u64::from(self.src_sub) * lane.part.0;
        self.dst = self.fixed.1 + dst_page * lane.dst.page + u64::from(self.dst_sub) * lane.part.1;
        if self.segment == 0 {
            self.src += lane.skip.0;
            self.dst += lane.skip.1;
        }
        self.run = lane.nests[self.variant].run;
    }
}
