//! Random pairs of layouts: the plan is exactly the list that naive loops give.

use super::*;
use crate::layout::cube::{Dim, Plane};
use crate::plan::testing::{Addresses, Numbers, Row, row_bytes};
use proptest::prelude::*;
use std::collections::HashMap;

#[derive(Debug)]
pub(super) struct Case {
    pub(super) src: CubeLayout,
    pub(super) dst: CubeLayout,
    pub(super) from: PageList,
    pub(super) to: PageList,
    pub(super) tokens: Range<u64>,
    pub(super) part: Part,
}

impl Case {
    pub(super) fn new(seed: u64) -> Case {
        let n = &mut Numbers(seed);
        let (src_order, dst_order) = (n.order(), n.order());
        let joined = |order: DimOrder| order.slower(Dim::Head, Dim::Plane);
        let alike = joined(src_order) || joined(dst_order) || n.among(0, 1) == 0;
        let planes = n.among(1, 3) as usize;
        let granule = n.among(1, 2);
        let all: Vec<(u32, u32, u16)> = (0..planes)
            .map(|_| (n.among(1, 4), n.among(1, 3), n.one_of(&[4, 8, 16])))
            .map(|(heads, channels, bits)| (heads, channels * 2, bits))
            .collect();
        let first = all[0];
        let same_width = n.among(0, 1) == 0;
        let model: Vec<(u32, Plane)> = (all.iter())
            .map(|(heads, channels, bits)| {
                let total = if alike { first.0 } else { *heads };
                let (channels, bits) = match same_width {
                    true => (first.1, first.2),
                    false => (*channels, *bits),
                };
                (
                    total,
                    plane(Share::whole(total), channels, Dtype::new("any", bits)),
                )
            })
            .collect();
        let layers = n.among(1, 3);
        let (small, factor) = (n.among(1, 3), n.among(1, 3));
        let src_small = n.among(0, 1) == 0;
        let side = |order: DimOrder, is_small: bool, n: &mut Numbers| {
            let share = |total: u32, n: &mut Numbers| {
                // What both sides hold in any case.
                let middle = total / 2;
                let first = n.among(0, middle);
                Share::part(total, first, n.among(middle + 1, total) - first)
            };
            let one = share(model[0].0, n);
            let planes = (model.iter())
                .map(|(total, p)| Plane {
                    heads: if alike { one } else { share(*total, n) },
                    ..p.clone()
                })
                .collect();
            let mut layout = pool("any", CubeKind::Kv, share(layers, n), planes);
            layout.order = order;
            layout.granule = granule;
            layout.page_tokens = small * granule * if is_small { 1 } else { factor };
            layout.page_gap = u64::from(n.among(0, 1) * 5);
            layout
        };
        let mut src = side(src_order, src_small, n);
        let mut dst = side(dst_order, !src_small, n);
        if n.among(0, 4) == 0 {
            dst = src.clone();
        }
        let start = u64::from(n.among(0, 20) * granule);
        let tokens = start..start + u64::from(n.among(1, 30));
        let mut list = |layout: &mut CubeLayout| {
            let count = layout.pages_of(tokens.clone()) as usize;
            layout.pages = count as u32 + n.among(0, 3);
            PageList::whole(n.distinct(count, layout.pages))
        };
        let (from, to) = (list(&mut src), list(&mut dst));
        let mut part = Part::common(&src, &dst);
        if n.among(0, 3) == 0 && part.heads.len() > 1 {
            part.heads[0] = Span::new(0, 0);
        }
        for span in &mut part.heads {
            if n.among(0, 3) == 0 && span.len() > 1 {
                span.start += n.among(0, 1);
                span.end = n.among(span.start + 1, span.end);
            }
        }
        Case {
            src,
            dst,
            from,
            to,
            tokens,
            part,
        }
    }

    pub(super) fn plan(&self) -> CubePlan {
        let (from, to) = (self.from.clone(), self.to.clone());
        CubePlan::new(
            &self.src,
            &self.dst,
            from,
            to,
            self.tokens.clone(),
            &self.part,
        )
        .unwrap()
    }

    /// Bytes of the two pools.
    pub(super) fn pool_bytes(&self) -> (u64, u64) {
        (
            Addresses::new(&self.src).bytes,
            Addresses::new(&self.dst).bytes,
        )
    }

    /// The plan of some of its tokens, with the pages that these need.
    fn chunk(&self, tokens: Range<u64>) -> CubePlan {
        let pages = |layout: &CubeLayout, list: &PageList| {
            let before = tokens.start / u64::from(layout.page_tokens)
                - self.tokens.start / u64::from(layout.page_tokens);
            let start = list.range.start + before as usize;
            PageList {
                list: list.list.clone(),
                range: start..start + layout.pages_of(tokens.clone()) as usize,
            }
        };
        let (from, to) = (pages(&self.src, &self.from), pages(&self.dst, &self.to));
        CubePlan::new(&self.src, &self.dst, from, to, tokens, &self.part).unwrap()
    }

    /// Every row by itself, in the order of the destination.
    pub(super) fn naive(&self) -> Vec<Piece> {
        let mut dims = self.dst.order.0.to_vec();
        let uneven = |spans: Vec<&Span>| spans.windows(2).any(|w| w[0].len() != w[1].len());
        let there = self
            .part
            .heads
            .iter()
            .filter(|span| !span.is_empty())
            .collect();
        if uneven(there) && self.dst.order.slower(Dim::Head, Dim::Plane) {
            dims.retain(|dim| *dim != Dim::Plane);
            dims.insert(0, Dim::Plane);
        }
        let mut walk = Walk {
            case: self,
            src: Addresses::new(&self.src).rows.into_iter().collect(),
            dst: Addresses::new(&self.dst).rows.into_iter().collect(),
            out: Vec::new(),
        };
        let first = (0..self.part.heads.len()).find(|i| !self.part.heads[*i].is_empty());
        let row = Row {
            plane: first.unwrap(),
            ..Row::default()
        };
        walk.go(&dims, row, 0);
        walk.out
    }
}

struct Walk<'a> {
    case: &'a Case,
    src: HashMap<Row, u64>,
    dst: HashMap<Row, u64>,
    out: Vec<Piece>,
}

impl Walk<'_> {
    /// `row` has indices of the model; the page is the place in the destination's list.
    fn go(&mut self, dims: &[Dim], row: Row, at: usize) {
        let Case { dst, part, to, .. } = self.case;
        let Some(dim) = dims.get(at) else {
            return self.row(row);
        };
        match dim {
            Dim::Page => {
                for page in 0..to.range.len() as u32 {
                    self.go(dims, Row { page, ..row }, at + 1);
                }
            }
            Dim::Layer => {
                for layer in part.layers.start..part.layers.end {
                    self.go(dims, Row { layer, ..row }, at + 1);
                }
            }
            Dim::Plane => {
                for plane in 0..part.heads.len() {
                    if !part.heads[plane].is_empty() {
                        self.go(dims, Row { plane, ..row }, at + 1);
                    }
                }
            }
            Dim::Head => {
                for head in 0..part.heads[row.plane].len() {
                    self.go(dims, Row { head, ..row }, at + 1);
                }
            }
            Dim::Token => {
                for granule in 0..dst.page_tokens / dst.granule {
                    self.go(dims, Row { granule, ..row }, at + 1);
                }
            }
        }
    }

    fn row(&mut self, row: Row) {
        let Case {
            src,
            dst,
            from,
            to,
            tokens,
            part,
        } = self.case;
        let granule = u64::from(src.granule);
        let (first, end) = (tokens.start / granule, tokens.end.div_ceil(granule));
        let per = |layout: &CubeLayout| u64::from(layout.page_tokens / layout.granule);
        let global = (first / per(dst) + u64::from(row.page)) * per(dst) + u64::from(row.granule);
        if global < first || global >= end {
            return;
        }
        let head = part.heads[row.plane].start + row.head;
        let local = |layout: &CubeLayout, list: &PageList| Row {
            plane: row.plane,
            page: list.list[(global / per(layout) - first / per(layout)) as usize],
            layer: row.layer - layout.layers.first,
            head: head - layout.planes[row.plane].heads.first,
            granule: (global % per(layout)) as u32,
        };
        self.out.push(Piece {
            src: self.src[&local(src, from)],
            dst: self.dst[&local(dst, to)],
            bytes: row_bytes(src, row.plane),
        });
    }
}

/// Joins neighbours that follow each other on both sides.
fn joined(pieces: &[Piece]) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for p in pieces {
        match out.last_mut() {
            Some(l) if l.src + l.bytes == p.src && l.dst + l.bytes == p.dst => l.bytes += p.bytes,
            _ => out.push(*p),
        }
    }
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn runs_are_the_naive_list_joined_as_far_as_both_sides_allow(seed in any::<u64>()) {
        let case = Case::new(seed);
        let naive = case.naive();
        let runs: Vec<Piece> = case.plan().runs().collect();
        prop_assert_eq!(runs, joined(&naive), "{:?}", case);
        prop_assert_eq!(case.plan().total_bytes(), naive.iter().map(|p| p.bytes).sum::<u64>());
    }

    #[test]
    fn chunks_of_tokens_and_of_layers_are_the_request_at_once(seed in any::<u64>()) {
        let mut case = Case::new(seed);
        let sorted = |pieces: Vec<Piece>| {
            let mut bytes: Vec<(u64, u64)> = (pieces.iter())
                .flat_map(|p| (0..p.bytes).map(|i| (p.dst + i, p.src + i)))
                .collect();
            bytes.sort_unstable();
            bytes
        };
        let wanted = sorted(case.naive());
        let n = &mut Numbers(seed);
        let granule = u64::from(case.src.granule);
        let last = case.tokens.end.div_ceil(granule) - 1;
        let cut = u64::from(n.among(0, (last - case.tokens.start / granule) as u32));
        let cut = (case.tokens.start / granule + cut) * granule;
        let Part { layers, heads } = case.part.clone();
        let mut pieces = Vec::new();
        for layer in layers.start..layers.end {
            let heads = heads.clone();
            case.part = Part { layers: Span::new(layer, layer + 1), heads };
            for tokens in [case.tokens.start..cut, cut..case.tokens.end] {
                if !tokens.is_empty() {
                    pieces.extend(case.chunk(tokens).runs());
                }
            }
        }
        prop_assert_eq!(sorted(pieces), wanted, "{:?}", case);
    }

    #[test]
    fn many_pieces_at_once_are_those_that_come_one_by_one(
        seed in any::<u64>(),
        room in 1usize..9,
        max in prop_oneof![1u64..200, Just(u64::MAX)],
    ) {
        let case = Case::new(seed);
        let (mut one_by_one, mut at_once) = (case.plan(), case.plan());
        let mut out = vec![Piece { src: 0, dst: 0, bytes: 0 }; room];
        loop {
            let filled = at_once.next_pieces(max, &mut out);
            for piece in &out[..filled] {
                prop_assert_eq!(Some(*piece), one_by_one.next_piece(max), "{:?}", case);
            }
            prop_assert_eq!(at_once.remaining_bytes(), one_by_one.remaining_bytes());
            if filled < room {
                break;
            }
        }
        prop_assert_eq!(at_once.remaining_bytes(), 0);
        prop_assert_eq!(at_once.next_pieces(max, &mut out), 0);
    }

    #[test]
    fn strided_runs_are_the_same_rows_in_the_same_order(seed in any::<u64>()) {
        let case = Case::new(seed);
        let mut flat = Vec::new();
        for s in case.plan().strided() {
            prop_assert!(s.count > 1 || (s.src_step, s.dst_step) == (0, 0));
            flat.extend((0..s.count).map(|i| Piece {
                src: s.src + i * s.src_step,
                dst: s.dst + i * s.dst_step,
                bytes: s.bytes,
            }));
        }
        prop_assert_eq!(joined(&flat), joined(&case.naive()), "{:?}", case);
    }

    #[test]
    fn pieces_of_changing_size_are_the_same_bytes_in_the_same_order(
        seed in any::<u64>(),
        maxes in proptest::collection::vec((1u64..80, any::<bool>()), 1..6),
    ) {
        let case = Case::new(seed);
        let mut plan = case.plan();
        let (mut flat, mut left) = (Vec::new(), plan.total_bytes());
        let mut maxes = maxes.iter().cycle();
        while plan.remaining_bytes() > 0 {
            let (max, strided) = *maxes.next().unwrap();
            let s = match strided {
                true => plan.next_strided(max).unwrap(),
                false => plan.next_piece(max).unwrap().into(),
            };
            prop_assert!(s.bytes >= 1 && s.bytes * s.count <= max);
            left -= s.bytes * s.count;
            prop_assert_eq!(plan.remaining_bytes(), left);
            flat.extend((0..s.count).map(|i| Piece {
                src: s.src + i * s.src_step,
                dst: s.dst + i * s.dst_step,
                bytes: s.bytes,
            }));
        }
        prop_assert_eq!(plan.next_piece(u64::MAX), None);
        prop_assert_eq!(plan.next_strided(u64::MAX), None);
        prop_assert_eq!(joined(&flat), joined(&case.naive()), "{:?}", case);
    }
}
