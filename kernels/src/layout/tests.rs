use super::*;

fn kv() -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: 3,
        pages: 5,
        page_bytes: 64,
        page_tokens: 16,
    }
}

fn aux() -> PoolLayout {
    PoolLayout {
        name: "aux".into(),
        kind: PoolKind::Aux,
        page_tokens: 0,
        ..kv()
    }
}

#[test]
fn every_zero_is_refused_by_its_name() {
    assert_eq!(kv().validate(), Ok(()));
    let broken = [
        ("layers", PoolLayout { layers: 0, ..kv() }),
        ("pages", PoolLayout { pages: 0, ..kv() }),
        (
            "page_bytes",
            PoolLayout {
                page_bytes: 0,
                ..kv()
            },
        ),
        (
            "page_tokens",
            PoolLayout {
                page_tokens: 0,
                ..kv()
            },
        ),
    ];
    for (name, layout) in broken {
        match layout.validate() {
            Err(LayoutError::Zero { field, .. }) => assert_eq!(field, name),
            other => panic!("{name}: {other:?}"),
        }
    }
}

#[test]
fn a_name_has_1_to_64_bytes() {
    for (bytes, ok) in [(0, false), (1, true), (64, true), (65, false)] {
        let layout = PoolLayout {
            name: "x".repeat(bytes),
            ..kv()
        };
        assert_eq!(layout.validate().is_ok(), ok, "{bytes}");
    }
}

#[test]
fn a_pool_that_cannot_be_addressed_is_refused_and_saturates() {
    let huge = PoolLayout {
        layers: u32::MAX,
        pages: u32::MAX,
        page_bytes: 2,
        ..kv()
    };
    assert!(matches!(huge.validate(), Err(LayoutError::TooLarge { .. })));
    assert_eq!(huge.bytes(), u64::MAX);
    assert_eq!(huge.cell_offset(u32::MAX - 1, u32::MAX - 1), None);
    let past_isize = PoolLayout {
        layers: 1,
        pages: 1,
        page_bytes: 1 << 63,
        ..kv()
    };
    assert!(matches!(
        past_isize.validate(),
        Err(LayoutError::TooLarge { .. })
    ));
}

#[test]
fn an_aux_pool_ignores_page_tokens_and_takes_one_row() {
    assert_eq!(aux().validate(), Ok(()));
    assert_eq!(aux().pages_for(0), 1);
    assert_eq!(aux().pages_for(1_000_000), 1);
    let other = PoolLayout {
        page_tokens: 7,
        ..aux()
    };
    assert_eq!(explain(&aux(), &other), Ok(()));
    assert_eq!(aux().fingerprint(), other.fingerprint());
    assert!(matches!(
        PoolLayout { layers: 0, ..aux() }.validate(),
        Err(LayoutError::Zero {
            field: "layers",
            ..
        })
    ));
}

#[test]
fn tokens_round_up_to_whole_pages() {
    for (tokens, pages) in [(0, 0), (1, 1), (16, 1), (17, 2), (u64::MAX, 1 << 60)] {
        assert_eq!(kv().pages_for(tokens), pages, "{tokens}");
    }
}

#[test]
fn cells_tile_the_pool_in_both_orders() {
    for order in [Order::LayersFirst, Order::PagesFirst] {
        let layout = PoolLayout { order, ..kv() };
        let mut offsets: Vec<u64> = (0..3)
            .flat_map(|l| (0..5).map(move |p| (l, p)))
            .map(|(l, p)| layout.cell_offset(l, p).unwrap())
            .collect();
        offsets.sort_unstable();
        let wanted: Vec<u64> = (0..15).map(|i| i * 64).collect();
        assert_eq!(offsets, wanted);
        assert_eq!(layout.bytes(), 15 * 64);
        assert_eq!(layout.cell_offset(3, 0), None);
        assert_eq!(layout.cell_offset(0, 5), None);
    }
    assert_eq!(kv().cell_offset(1, 0), Some(5 * 64));
    assert_eq!(
        PoolLayout {
            order: Order::PagesFirst,
            ..kv()
        }
        .cell_offset(1, 0),
        Some(64)
    );
}

#[test]
fn the_fingerprint_is_pinned_and_sees_every_field() {
    let changed = [
        kv(),
        PoolLayout {
            name: "kw".into(),
            ..kv()
        },
        PoolLayout {
            kind: PoolKind::Aux,
            ..kv()
        },
        PoolLayout {
            order: Order::PagesFirst,
            ..kv()
        },
        PoolLayout { layers: 4, ..kv() },
        PoolLayout { pages: 6, ..kv() },
        PoolLayout {
            page_bytes: 65,
            ..kv()
        },
        PoolLayout {
            page_tokens: 17,
            ..kv()
        },
    ];
    let prints: std::collections::BTreeSet<u64> = changed.iter().map(|l| l.fingerprint()).collect();
    assert_eq!(prints.len(), changed.len());
    assert_eq!(kv().fingerprint(), PINNED, "{:#x}", kv().fingerprint());
}

/// Computed outside this crate from the byte string that `fingerprint` documents.
const PINNED: u64 = 0xf794_ce13_b65b_6215;

#[test]
fn a_mismatch_names_every_differing_field_with_both_values() {
    let other = PoolLayout {
        name: "k".into(),
        layers: 61,
        page_bytes: 4096,
        page_tokens: 64,
        ..kv()
    };
    let text = explain(&kv(), &other).unwrap_err().to_string();
    for part in [
        "name",
        "\"kv\"",
        "\"k\"",
        "layers is 3",
        "61",
        "64 at",
        "4096",
        "page_tokens is 16",
    ] {
        assert!(text.contains(part), "{part} missing in: {text}");
    }
    assert!(
        !text.contains("kind") && !text.contains("pages is"),
        "{text}"
    );
    assert!(
        explain(&kv(), &aux())
            .unwrap_err()
            .to_string()
            .contains("kind is Kv")
    );
}

#[test]
fn order_and_number_of_pages_may_differ() {
    let other = PoolLayout {
        order: Order::PagesFirst,
        pages: 99,
        ..kv()
    };
    assert_eq!(explain(&kv(), &other), Ok(()));
}
