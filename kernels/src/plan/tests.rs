use super::*;
use crate::layout::PoolKind;
use proptest::prelude::*;

fn layout(order: Order, layers: u32, pages: u32, page_bytes: u64) -> Arc<PoolLayout> {
    Arc::new(PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order,
        layers,
        pages,
        page_bytes,
        page_tokens: 16,
    })
}

fn plan(
    src: &Arc<PoolLayout>,
    dst: &Arc<PoolLayout>,
    layers: Range<u32>,
    src_pages: &[u32],
    dst_pages: &[u32],
) -> Result<Plan, PlanError> {
    let (s, d) = (src_pages.len(), dst_pages.len());
    Plan::new(
        src,
        dst,
        layers,
        src_pages.into(),
        0..s,
        dst_pages.into(),
        0..d,
    )
}

/// Every cell by itself, in destination order, from `cell_offset` alone.
fn naive(
    src: &PoolLayout,
    dst: &PoolLayout,
    layers: Range<u32>,
    src_pages: &[u32],
    dst_pages: &[u32],
) -> Vec<Piece> {
    let pairs = || src_pages.iter().zip(dst_pages);
    let cell = |layer: u32, s: u32, d: u32| Piece {
        src: src.cell_offset(layer, s).unwrap(),
        dst: dst.cell_offset(layer, d).unwrap(),
        bytes: src.page_bytes,
    };
    let mut out = Vec::new();
    match dst.order {
        Order::LayersFirst => {
            for layer in layers {
                out.extend(pairs().map(|(s, d)| cell(layer, *s, *d)));
            }
        }
        Order::PagesFirst => {
            for (s, d) in pairs() {
                out.extend(layers.clone().map(|layer| cell(layer, *s, *d)));
            }
        }
    }
    out
}

/// Joins neighbours that follow each other on both sides.
fn merged(pieces: &[Piece]) -> Vec<Piece> {
    let mut out: Vec<Piece> = Vec::new();
    for p in pieces {
        match out.last_mut() {
            Some(l) if l.src + l.bytes == p.src && l.dst + l.bytes == p.dst => l.bytes += p.bytes,
            _ => out.push(*p),
        }
    }
    out
}

#[test]
fn consecutive_pages_in_layers_first_pools_are_one_run_a_layer() {
    let l = layout(Order::LayersFirst, 2, 10, 100);
    let plan = plan(&l, &l, 0..2, &[3, 4, 5], &[0, 1, 2]).unwrap();
    let runs: Vec<Piece> = plan.runs().collect();
    assert_eq!(
        runs,
        [
            Piece {
                src: 300,
                dst: 0,
                bytes: 300
            },
            Piece {
                src: 1300,
                dst: 1000,
                bytes: 300
            },
        ]
    );
}

#[test]
fn all_layers_of_a_page_are_one_run_in_pages_first_pools() {
    let l = layout(Order::PagesFirst, 4, 10, 100);
    let plan = plan(&l, &l, 0..4, &[7, 2], &[1, 5]).unwrap();
    let runs: Vec<Piece> = plan.runs().collect();
    assert_eq!(
        runs,
        [
            Piece {
                src: 2800,
                dst: 400,
                bytes: 400
            },
            Piece {
                src: 800,
                dst: 2000,
                bytes: 400
            },
        ]
    );
}

#[test]
fn a_cell_that_fits_is_never_cut_and_one_that_does_not_is() {
    let l = layout(Order::LayersFirst, 1, 4, 100);
    let mut whole = plan(&l, &l, 0..1, &[0, 1, 2], &[0, 1, 2]).unwrap();
    assert_eq!(whole.next_piece(250).map(|p| p.bytes), Some(200));
    assert_eq!(whole.next_piece(250).map(|p| p.bytes), Some(100));
    assert_eq!(whole.next_piece(250), None);

    let mut cut = plan(&l, &l, 0..1, &[0, 1], &[2, 3]).unwrap();
    assert_eq!(
        cut.next_piece(60),
        Some(Piece {
            src: 0,
            dst: 200,
            bytes: 60
        })
    );
    assert_eq!(cut.remaining_bytes(), 140);
    assert_eq!(
        cut.next_piece(200),
        Some(Piece {
            src: 60,
            dst: 260,
            bytes: 140
        })
    );
    assert_eq!(cut.remaining_bytes(), 0);
    assert_eq!(cut.total_bytes(), 200);
}

#[test]
fn a_piece_of_no_bytes_is_none_and_moves_nothing() {
    let l = layout(Order::LayersFirst, 1, 4, 100);
    let mut plan = plan(&l, &l, 0..1, &[0], &[0]).unwrap();
    assert_eq!(plan.next_piece(0), None);
    assert_eq!(plan.remaining_bytes(), 100);
}

#[test]
fn what_cannot_be_planned_is_refused_by_its_name() {
    let l = layout(Order::LayersFirst, 2, 4, 100);
    let err = |r: Result<Plan, PlanError>| r.unwrap_err();

    assert_eq!(
        err(plan(&l, &l, 0..2, &[0, 9], &[0, 1])),
        PlanError::PageOutOfRange {
            end: End::Source,
            position: 1,
            page: 9,
            pages: 4
        }
    );
    let text = err(plan(&l, &l, 0..2, &[0, 1], &[0, 4])).to_string();
    assert!(text.contains("destination page 4 at position 1"), "{text}");
    assert_eq!(
        err(plan(&l, &l, 0..2, &[0, 1], &[0])),
        PlanError::LengthsDiffer { src: 2, dst: 1 }
    );
    assert_eq!(err(plan(&l, &l, 0..2, &[], &[])), PlanError::Empty);
    assert_eq!(err(plan(&l, &l, 1..1, &[0], &[0])), PlanError::Empty);
    assert_eq!(
        err(plan(&l, &l, 1..3, &[0], &[0])),
        PlanError::Layers {
            start: 1,
            end: 3,
            layers: 2
        }
    );
    #[allow(clippy::reversed_empty_ranges)]
    let inverted = err(plan(&l, &l, 2..1, &[0], &[0]));
    assert_eq!(
        inverted,
        PlanError::Layers {
            start: 2,
            end: 1,
            layers: 2
        }
    );

    let list: Arc<[u32]> = [0u32, 1].into();
    assert_eq!(
        err(Plan::new(
            &l,
            &l,
            0..2,
            list.clone(),
            0..2,
            list.clone(),
            1..3
        )),
        PlanError::ListRange {
            end: End::Destination,
            start: 1,
            stop: 3,
            len: 2
        }
    );

    let other = layout(Order::LayersFirst, 2, 4, 128);
    assert!(matches!(
        err(plan(&l, &other, 0..2, &[0], &[0])),
        PlanError::Mismatch(_)
    ));
    let none = layout(Order::LayersFirst, 0, 4, 100);
    assert!(matches!(
        err(plan(&l, &none, 0..0, &[0], &[0])),
        PlanError::Layout {
            end: End::Destination,
            ..
        }
    ));
}

#[test]
fn the_position_of_a_bad_page_counts_from_the_start_of_the_list() {
    let l = layout(Order::LayersFirst, 1, 4, 1);
    let src: Arc<[u32]> = [0u32, 1, 2, 77].into();
    let dst: Arc<[u32]> = [3u32, 2].into();
    assert_eq!(
        Plan::new(&l, &l, 0..1, src, 2..4, dst, 0..2).unwrap_err(),
        PlanError::PageOutOfRange {
            end: End::Source,
            position: 3,
            page: 77,
            pages: 4
        }
    );
}

fn orders() -> impl Strategy<Value = Order> {
    prop_oneof![Just(Order::LayersFirst), Just(Order::PagesFirst)]
}

/// Distinct pages of a pool of `pages`, often with neighbours in order.
fn pages_of(pages: u32) -> impl Strategy<Value = Vec<u32>> {
    let all: Vec<u32> = (0..pages).collect();
    prop_oneof![Just(all.clone()), Just(all).prop_shuffle()]
}

#[derive(Debug, Clone)]
struct Case {
    src: Arc<PoolLayout>,
    dst: Arc<PoolLayout>,
    layers: Range<u32>,
    src_pages: Vec<u32>,
    dst_pages: Vec<u32>,
    skip: (usize, usize),
    len: usize,
    maxes: Vec<u64>,
}

impl Case {
    fn plan(&self) -> Plan {
        let (s, d) = self.skip;
        Plan::new(
            &self.src,
            &self.dst,
            self.layers.clone(),
            self.src_pages.as_slice().into(),
            s..s + self.len,
            self.dst_pages.as_slice().into(),
            d..d + self.len,
        )
        .unwrap()
    }

    fn naive(&self) -> Vec<Piece> {
        let (s, d) = self.skip;
        naive(
            &self.src,
            &self.dst,
            self.layers.clone(),
            &self.src_pages[s..s + self.len],
            &self.dst_pages[d..d + self.len],
        )
    }
}

fn cases() -> impl Strategy<Value = Case> {
    (orders(), orders(), 1u32..5, 1u32..9, 1u32..9, 1u64..20).prop_flat_map(
        |(so, d_o, layers, sp, dp, bytes)| {
            let most = sp.min(dp) as usize;
            (
                pages_of(sp),
                pages_of(dp),
                (0..layers).prop_flat_map(move |a| (Just(a), a + 1..=layers)),
                1..=most,
                proptest::collection::vec(1u64..60, 1..6),
            )
                .prop_flat_map(move |(src_pages, dst_pages, (a, b), len, maxes)| {
                    (0..=src_pages.len() - len, 0..=dst_pages.len() - len).prop_map(move |skip| {
                        Case {
                            src: layout(so, layers, sp, bytes),
                            dst: layout(d_o, layers, dp, bytes),
                            layers: a..b,
                            src_pages: src_pages.clone(),
                            dst_pages: dst_pages.clone(),
                            skip,
                            len,
                            maxes: maxes.clone(),
                        }
                    })
                })
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn runs_and_cells_equal_the_naive_list(case in cases()) {
        let plan = case.plan();
        let runs: Vec<Piece> = plan.runs().collect();
        prop_assert_eq!(runs, merged(&case.naive()));
        let cells: Vec<Piece> = plan.cells().map(|c| c.piece).collect();
        prop_assert_eq!(cells, case.naive());
        for c in plan.cells() {
            prop_assert_eq!(c.src_page, case.src_pages[case.skip.0 + c.index]);
            prop_assert_eq!(case.src.cell_offset(c.layer, c.src_page), Some(c.piece.src));
            prop_assert_eq!(case.dst.cell_offset(c.layer, c.dst_page), Some(c.piece.dst));
        }
    }

    #[test]
    fn pieces_of_changing_size_copy_every_byte_exactly_once(case in cases()) {
        let mut plan = case.plan();
        let mut from = vec![u64::MAX; usize::try_from(case.dst.bytes()).unwrap()];
        let mut left = plan.total_bytes();
        let mut maxes = case.maxes.iter().cycle();
        while plan.remaining_bytes() > 0 {
            let max = *maxes.next().unwrap();
            let piece = plan.next_piece(max).unwrap();
            prop_assert!(piece.bytes >= 1 && piece.bytes <= max);
            left -= piece.bytes;
            prop_assert_eq!(plan.remaining_bytes(), left);
            for i in 0..piece.bytes {
                let at = &mut from[usize::try_from(piece.dst + i).unwrap()];
                prop_assert_eq!(*at, u64::MAX, "byte written twice");
                *at = piece.src + i;
            }
        }
        prop_assert_eq!(plan.next_piece(u64::MAX), None);
        let mut wanted = vec![u64::MAX; from.len()];
        for cell in case.naive() {
            for i in 0..cell.bytes {
                wanted[usize::try_from(cell.dst + i).unwrap()] = cell.src + i;
            }
        }
        prop_assert_eq!(from, wanted);
    }

    #[test]
    fn no_piece_cuts_a_cell_that_fits(case in cases()) {
        let cell = case.src.page_bytes;
        let max = cell + case.maxes[0];
        let mut plan = case.plan();
        while let Some(piece) = plan.next_piece(max) {
            prop_assert_eq!(piece.bytes % cell, 0);
            prop_assert_eq!(piece.src % cell, 0);
        }
    }
}
