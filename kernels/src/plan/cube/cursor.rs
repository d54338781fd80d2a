//! Where a plan is: the outer indices, the segment, and the loops within.
//!
//! A step adds to two addresses, or looks the next pages up. Only when an index other than the
//! segment moves are the addresses computed anew from all of them (`fix`). All sums and products are
//! of numbers that were checked when the plan was made: each place is one of a row of its pool.
//!
//! Most steps of most plans go from one whole page to the next, on both sides, and a page is one run:
//! `ahead` counts how many of these follow, so that they look at nothing else.

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
    /// How many segments follow that are whole pages of one run on both sides.
    pub(super) ahead: usize,
    /// Where the segment's first row would be, were it in page 0 at offset 0; bytes of a page.
    fixed: (u64, u64),
    page: (u64, u64),
    /// The segment. Where a page is one segment, its place in the page list, too.
    segment: usize,
    /// Which nest of the lane: 1 for a whole segment, 0 for a first one and 2 for a last one.
    variant: usize,
    /// Outer indices; 0 for those that are inner.
    layer: u32,
    plane: u32,
    head: u32,
    token: u32,
    /// Where source pages are the larger ones: the page's place in its list, and which segment of it
    /// this is.
    src_at: usize,
    src_sub: u32,
    /// The same where destination pages are, and the first segment of the page.
    dst_at: usize,
    dst_sub: u32,
    group: usize,
}

impl Cursor {
    /// At the first run.
    pub(super) fn new(table: &Table) -> Cursor {
        let mut cursor = Cursor {
            src_sub: table.src_first,
            dst_sub: table.dst_first,
            ..Cursor::default()
        };
        cursor.vary(table);
        cursor.fix(table);
        cursor.arrive(table);
        cursor
    }

    #[inline]
    pub(super) fn nest<'a>(&self, table: &'a Table) -> &'a Nest {
        &self.lane(table).nests[self.variant]
    }

    /// Where the runs of the `ahead` next segments begin, on both sides.
    pub(super) fn pages_ahead<'a>(
        &self,
        table: &'a Table,
    ) -> impl Iterator<Item = (u64, u64)> + use<'a> {
        let from = &table.src_pages[table.src_start + self.segment + 1..][..self.ahead];
        let to = &table.dst_pages[table.dst_start + self.segment + 1..][..self.ahead];
        let (fixed, page) = (self.fixed, self.page);
        let place = move |(src, dst): (&u32, &u32)| {
            let (src, dst) = (u64::from(*src), u64::from(*dst));
            (fixed.0 + src * page.0, fixed.1 + dst * page.1)
        };
        from.iter().zip(to).map(place)
    }

    /// As many of them forward.
    pub(super) fn skip_ahead(&mut self, table: &Table, steps: usize) {
        self.ahead -= steps;
        self.segment += steps;
        self.look_up(table, self.segment, self.segment);
    }

    /// To the next run. There must be one.
    #[inline]
    pub(super) fn step(&mut self, table: &Table) {
        self.within = 0;
        if self.ahead > 0 {
            self.ahead -= 1;
            self.segment += 1;
            self.look_up(table, self.segment, self.segment);
        } else {
            self.step_far(table);
        }
    }

    /// In the loops of the nest, or by the outer indices.
    fn step_far(&mut self, table: &Table) {
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

    fn next_page(&mut self, table: &Table) -> bool {
        self.segment = match table.dst_parts {
            1 => self.segment + 1,
            _ => self.group + self.group_len(table),
        };
        self.group = self.segment;
        self.dst_at += 1;
        self.dst_sub = 0;
        if table.src_parts > 1 {
            // Then a destination page is one segment.
            self.src_sub += 1;
            if self.src_sub == table.src_parts {
                self.src_sub = 0;
                self.src_at += 1;
            }
        }
        let more = self.segment < table.segments;
        if !more {
            (self.segment, self.group) = (0, 0);
            (self.src_at, self.dst_at) = (0, 0);
            (self.src_sub, self.dst_sub) = (table.src_first, table.dst_first);
        }
        self.vary(table);
        more
    }

    /// Only where destination pages are the larger ones.
    fn next_segment(&mut self, table: &Table) -> bool {
        let more = self.segment + 1 < self.group + self.group_len(table);
        if more {
            self.segment += 1;
            self.dst_sub += 1;
        } else {
            self.segment = self.group;
            self.dst_sub = self.group_first(table);
        }
        self.vary(table);
        more
    }

    /// Segments of the destination page at hand.
    fn group_len(&self, table: &Table) -> usize {
        let whole = (table.dst_parts - self.group_first(table)) as usize;
        whole.min(table.segments - self.group)
    }

    /// Where in its page the first segment is.
    fn group_first(&self, table: &Table) -> u32 {
        match self.group {
            0 => table.dst_first,
            _ => 0,
        }
    }

    fn vary(&mut self, table: &Table) {
        self.variant = match self.segment {
            s if table.whole.contains(&s) => 1,
            0 => 0,
            _ => 2,
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
        let fixed = (
            place(&lane.src, lane.plane_step.0),
            place(&lane.dst, lane.plane_step.1),
        );
        let page = (lane.src.page, lane.dst.page);
        (self.fixed, self.page) = (fixed, page);
    }

    /// Looks the pages up, and begins with the first run there.
    fn arrive(&mut self, table: &Table) {
        let at = |parts: u32, place: usize| match parts {
            1 => self.segment,
            _ => place,
        };
        let src_at = at(table.src_parts, self.src_at);
        let dst_at = at(table.dst_parts, self.dst_at);
        self.look_up(table, src_at, dst_at);
        let lane = self.lane(table);
        let mut more = (
            u64::from(self.src_sub) * lane.part.0,
            u64::from(self.dst_sub) * lane.part.1,
        );
        if self.segment == 0 {
            more.0 += lane.skip.0;
            more.1 += lane.skip.1;
        }
        let nest = &lane.nests[self.variant];
        self.run = nest.run;
        self.src += more.0;
        self.dst += more.1;
        if table.by_page && self.variant == 1 && nest.depth == 0 {
            self.ahead = table.whole.end - 1 - self.segment;
        }
    }

    /// To where the pages at these places of the lists begin.
    #[inline]
    fn look_up(&mut self, table: &Table, src_at: usize, dst_at: usize) {
        let src_page = u64::from(table.src_pages[table.src_start + src_at]);
        let dst_page = u64::from(table.dst_pages[table.dst_start + dst_at]);
        self.src = self.fixed.0 + src_page * self.page.0;
        self.dst = self.fixed.1 + dst_page * self.page.1;
    }
}
