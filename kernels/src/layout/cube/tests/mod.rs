//! Shares, maps, rules, fingerprints. What two sides may differ in is in `explain`.

mod explain;
mod rules;

use super::*;
use crate::layout::{Order, PoolKind};
use crate::plan::testing::models::{plane, pool};
use crate::plan::testing::{Addresses, Numbers, Row, row_bytes};
use proptest::prelude::*;

/// Layers 1..3 of 4, K and V with heads 2..4 of 8, 128 channels in 16 bits, 16 tokens a page.
fn kv() -> CubeLayout {
    CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::part(4, 1, 2),
        planes: vec![plane(Share::part(8, 2, 2), 128, Dtype::bf16()); 2],
        page_tokens: 16,
        granule: 1,
        pages: 10,
        page_gap: 0,
        order: DimOrder::NHD,
    }
}

/// Scales of `kv`, one for each 32 channels.
fn scales() -> CubeLayout {
    CubeLayout {
        name: "kv-scales".into(),
        kind: CubeKind::Scale { of: "kv".into() },
        planes: vec![plane(Share::part(8, 2, 2), 4, Dtype::fp8_e4m3()); 2],
        ..kv()
    }
}

#[test]
fn heads_are_dealt_out_in_ranges_and_replicas_stand_in_a_row() {
    let heads = |total, ranks| -> Vec<Option<Span>> {
        (0..ranks)
            .map(|r| Share::of_rank(total, r, ranks).map(Share::span))
            .collect()
    };
    let span = |start, end| Some(Span::new(start, end));
    assert_eq!(heads(8, 2), [span(0, 4), span(4, 8)]);
    assert_eq!(
        heads(2, 4),
        [span(0, 1), span(0, 1), span(1, 2), span(1, 2)]
    );
    assert_eq!(heads(1, 2), [span(0, 1), span(0, 1)]);
    assert_eq!(heads(6, 4), [None; 4]);
    assert_eq!(Share::of_rank(2, 4, 4), None);
    assert_eq!(Share::of_rank(0, 0, 1), None);
    assert_eq!(Share::of_rank(1, 0, 0), None);
}

#[test]
fn spans_that_do_not_meet_have_nothing_in_common() {
    let (a, b) = (Span::new(0, 3), Span::new(5, 9));
    assert!(a.meet(b).is_empty());
    assert_eq!(a.meet(Span::new(2, 7)), Span::new(2, 3));
    assert!(a.holds(Span::new(8, 8)) && a.holds(Span::new(1, 3)) && !a.holds(Span::new(2, 4)));
    assert_eq!(Span::new(3, 1).len(), 0);
    assert_eq!(
        Share::part(1, u32::MAX, 7).span(),
        Span::new(u32::MAX, u32::MAX)
    );
}

#[test]
fn the_bytes_of_a_row_may_be_packed() {
    let packed = |channels, bits, granule| {
        plane(Share::whole(1), channels, Dtype::new("x", bits)).row_bytes(granule)
    };
    assert_eq!(packed(128, 4, 1), Some(64));
    assert_eq!(packed(3, 4, 1), None, "12 bits");
    assert_eq!(packed(3, 4, 2), Some(3));
    assert_eq!(packed(128, 6, 1), Some(96));
    assert_eq!(
        packed(u32::MAX, u16::MAX, u32::MAX),
        None,
        "more than 2^64 bits"
    );
}

#[test]
fn a_convolution_state_is_three_segments_one_behind_the_other() {
    // x, B and C: 4, 1 and 1 of 8, 2 and 2 heads; 3 bytes for each, at 3 positions.
    let byte = || Dtype::fp8_e4m3();
    let state = CubeLayout {
        kind: CubeKind::State,
        planes: vec![
            plane(Share::part(8, 4, 4), 1, byte()),
            plane(Share::part(2, 1, 1), 2, byte()),
            plane(Share::part(2, 1, 1), 2, byte()),
        ],
        page_tokens: 3,
        order: DimOrder::HND,
        ..kv()
    };
    assert_eq!(state.validate(), Ok(()));
    let bases: Vec<u64> = state.maps().unwrap().iter().map(|map| map.base).collect();
    assert_eq!(bases, [0, 12, 18]);
    assert_eq!(state.maps().unwrap()[1].page, 24);
    assert_eq!(state.pages_of(0..1_000_000), 1);
    assert_eq!(state.token_bytes(), 2 * 24, "of a row");
}

#[test]
fn pages_are_counted_from_the_page_of_the_first_token() {
    for (tokens, pages) in [(0..0, 0), (0..16, 1), (0..17, 2), (15..17, 2), (16..32, 1)] {
        assert_eq!(kv().pages_of(tokens.clone()), pages, "{tokens:?}");
    }
    assert_eq!(kv().token_bytes(), 2 * 2 * 2 * 256);
}

#[test]
fn the_memory_of_a_layout_is_a_pool_of_cells_where_it_has_cells() {
    let of = |order, gap| {
        let layout = CubeLayout {
            order,
            page_gap: gap,
            ..kv()
        };
        let pool = layout.pool_layout()?;
        assert_eq!(Some(pool.bytes()), layout.bytes());
        assert_eq!(
            (pool.kind, pool.pages, pool.page_tokens),
            (PoolKind::Kv, 10, 16)
        );
        Some((pool.order, pool.layers, pool.page_bytes))
    };
    let page = 16 * 2 * 256;
    assert_eq!(
        of(DimOrder::NHD, 0),
        Some((Order::LayersFirst, 2, 2 * page))
    );
    assert_eq!(
        of(DimOrder::INTERLEAVED, 7),
        Some((Order::LayersFirst, 2, 2 * page + 7))
    );
    assert_eq!(
        of(DimOrder::SPLIT_NHD, 0),
        Some((Order::LayersFirst, 4, page))
    );
    assert_eq!(
        of(DimOrder::PLANES_NHD, 7),
        Some((Order::LayersFirst, 4, page + 7))
    );
    assert_eq!(
        of(DimOrder::PAGES_HND, 0),
        Some((Order::PagesFirst, 2, 2 * page))
    );
    assert_eq!(
        of(DimOrder::PAGES_HND, 7),
        None,
        "the gap is behind all layers"
    );
    let heads_first = DimOrder([Dim::Layer, Dim::Head, Dim::Page, Dim::Plane, Dim::Token]);
    assert_eq!(of(heads_first, 0), None);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn maps_are_where_rows_lie_when_memory_is_walked(seed in any::<u64>()) {
        let n = &mut Numbers(seed);
        let order = n.order();
        let alike = order.slower(Dim::Head, Dim::Plane);
        let first = n.among(1, 3);
        let planes = (0..n.among(1, 3))
            .map(|_| {
                let heads = if alike { first } else { n.among(1, 3) };
                plane(Share::part(9, 2, heads), n.among(1, 4), Dtype::fp8_e4m3())
            })
            .collect();
        let granule = n.among(1, 2);
        let layout = CubeLayout {
            layers: Share::part(7, 1, n.among(1, 3)),
            page_tokens: granule * n.among(1, 3),
            granule,
            page_gap: u64::from(n.among(0, 2)),
            order,
            ..pool("kv", CubeKind::Kv, Share::whole(1), planes)
        };
        prop_assert_eq!(layout.validate(), Ok(()));
        let walked = Addresses::new(&layout);
        prop_assert_eq!(layout.bytes(), Some(walked.bytes));
        let maps = layout.maps().unwrap();
        for (Row { plane, page, layer, head, granule }, at) in &walked.rows {
            let m = &maps[*plane];
            let product = |step: u64, by: &u32| step * u64::from(*by);
            let place = m.base + product(m.page, page) + product(m.layer, layer)
                + product(m.head, head) + product(m.token, granule);
            prop_assert_eq!(place, *at);
            prop_assert_eq!(m.row, row_bytes(&layout, *plane));
        }
    }

    #[test]
    fn nothing_panics_on_a_layout_that_was_not_validated(seed in any::<u64>()) {
        let n = &mut Numbers(seed);
        let edges = [0, 1, 2, 3, 7, 1 << 16, u32::MAX - 1, u32::MAX];
        let dims = [Dim::Page, Dim::Layer, Dim::Plane, Dim::Head, Dim::Token];
        let mut any = || {
            let mut share = || Share::part(n.one_of(&edges), n.one_of(&edges), n.one_of(&edges));
            let (layers, heads) = (share(), share());
            let planes = (0..n.among(0, 3))
                .map(|_| plane(heads, n.one_of(&edges), Dtype::new("x", n.one_of(&[0, 4, 16, u16::MAX]))))
                .collect();
            CubeLayout {
                kind: n.one_of(&[CubeKind::Kv, CubeKind::State, CubeKind::Scale { of: "b".into() }]),
                page_tokens: n.one_of(&edges),
                granule: n.one_of(&edges),
                pages: n.one_of(&edges),
                page_gap: n.one_of(&[0, 1, u64::MAX]),
                order: DimOrder([(); 5].map(|()| n.one_of(&dims))),
                ..pool(n.one_of(&["a", "b", ""]), CubeKind::Kv, layers, planes)
            }
        };
        let (a, b) = (any(), any());
        let _ = (a.validate(), a.maps(), a.bytes(), a.pool_layout(), a.fingerprint());
        let _ = (a.pages_of(3..u64::MAX), a.token_bytes(), a.page_granules());
        let _ = (super::explain(&a, &b), explain_sets([&a, &b], [&b]));
        let both = [a, b];
        let _ = validate_set(&both);
        let _ = crate::plan::routes::routes(&[&both], &[&both], 0);
        let part = crate::plan::cube::Part::common(&both[0], &both[1]);
        let list = crate::plan::cube::PageList::whole([0, 1]);
        let plan = |a, b| {
            crate::plan::cube::CubePlan::new(a, b, list.clone(), list.clone(), 0..u64::MAX, &part)
        };
        let _ = (plan(&both[0], &both[1]).is_ok(), plan(&both[0], &both[0]).is_ok());
    }
}

/// Computed outside this crate from the byte string that `fingerprint` documents.
const PINNED: [u64; 2] = [0x5869_c9ed_75c2_6be6, 0x06c7_d66a_f637_36d5];

#[test]
fn the_fingerprint_is_pinned_and_sees_every_field() {
    assert_eq!([kv().fingerprint(), scales().fingerprint()], PINNED);
    let plane_with = |change: &dyn Fn(&mut Plane)| {
        let mut layout = kv();
        change(&mut layout.planes[1]);
        layout
    };
    let with = |change: &dyn Fn(&mut CubeLayout)| {
        let mut layout = kv();
        change(&mut layout);
        layout
    };
    let changed = [
        kv(),
        scales(),
        with(&|l| l.name = "kw".into()),
        with(&|l| l.kind = CubeKind::Latent),
        with(&|l| l.kind = CubeKind::IndexK),
        with(&|l| l.kind = CubeKind::State),
        with(&|l| l.kind = CubeKind::Aux),
        with(&|l| l.kind = CubeKind::Scale { of: "a".into() }),
        with(&|l| l.kind = CubeKind::Scale { of: "b".into() }),
        with(&|l| l.layers.total = 5),
        with(&|l| l.layers.first = 2),
        with(&|l| l.layers.held = 1),
        with(&|l| l.planes.truncate(1)),
        plane_with(&|p| p.heads.total = 9),
        plane_with(&|p| p.heads.first = 3),
        plane_with(&|p| p.heads.held = 1),
        plane_with(&|p| p.channels = 64),
        plane_with(&|p| p.dtype = Dtype::new("fp16", 16)),
        plane_with(&|p| p.dtype.bits = 8),
        with(&|l| l.page_tokens = 32),
        with(&|l| l.granule = 2),
        with(&|l| l.pages = 11),
        with(&|l| l.page_gap = 1),
        with(&|l| l.order = DimOrder::HND),
        with(&|l| l.order = DimOrder::SPLIT_NHD),
    ];
    let prints: std::collections::BTreeSet<u64> = changed.iter().map(|l| l.fingerprint()).collect();
    assert_eq!(prints.len(), changed.len());
}

#[test]
fn descriptions_can_be_sent_and_read() {
    fn both<T: serde::Serialize + serde::de::DeserializeOwned>() {}
    both::<CubeLayout>();
    both::<crate::plan::cube::Part>();
    both::<crate::plan::routes::Leg>();
}
