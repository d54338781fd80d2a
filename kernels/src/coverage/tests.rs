use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};

type Model = BTreeSet<(u16, u32, u32)>;

fn rect(section: u16, layers: Range<u32>, pages: Range<u32>) -> Rect {
    Rect {
        section,
        layer: layers.start,
        layer_end: layers.end,
        page: pages.start,
        page_end: pages.end,
    }
}

fn set(rects: &[Rect]) -> Coverage {
    let mut set = Coverage::new();
    for r in rects {
        set.insert(r.section, r.layer..r.layer_end, r.page..r.page_end)
            .unwrap();
    }
    set
}

fn cells_of(r: &Rect) -> Model {
    let r = *r;
    (r.layer..r.layer_end)
        .flat_map(move |l| (r.page..r.page_end).map(move |p| (r.section, l, p)))
        .collect()
}

fn model_of(set: &Coverage) -> Model {
    set.rects().iter().flat_map(cells_of).collect()
}

fn hash(set: &Coverage) -> u64 {
    let mut hasher = DefaultHasher::new();
    set.hash(&mut hasher);
    hasher.finish()
}

fn cell(at: (u16, u32, u32)) -> Cell {
    Cell {
        section: at.0,
        layer: at.1,
        page: at.2,
    }
}

#[test]
fn chunks_in_order_stay_one_rectangle() {
    let mut by_chunk = Coverage::new();
    for c in 0..1000 {
        by_chunk.insert(0, 0..32, c * 16..(c + 1) * 16).unwrap();
        assert_eq!(by_chunk.rects().len(), 1);
    }
    let mut by_layer = Coverage::new();
    for l in 0..32 {
        by_layer.insert(0, l..l + 1, 0..16_000).unwrap();
        assert_eq!(by_layer.rects().len(), 1);
    }
    assert_eq!(by_chunk, by_layer);
    assert_eq!(by_chunk.cells(), 32 * 16_000);
}

#[test]
fn chunks_that_come_layer_by_layer_never_take_more_than_three_rectangles() {
    let mut set = Coverage::new();
    for c in 0..50u32 {
        for l in 0..8 {
            set.insert(0, l..l + 1, c * 4..(c + 1) * 4).unwrap();
            assert!(set.rects().len() <= 3, "{:?}", set.rects());
        }
    }
    assert_eq!(set.rects(), [rect(0, 0..8, 0..200)]);
}

#[test]
fn a_repeated_cell_is_named_and_changes_nothing() {
    let mut set = set(&[rect(1, 0..4, 0..4)]);
    let before = set.clone();
    let error = set.insert(1, 2..6, 3..9).unwrap_err();
    assert_eq!(error.cell, cell((1, 2, 3)));
    assert!(error.to_string().contains("section 1, layer 2, page 3"));
    assert_eq!(set, before);
    assert_eq!(set.insert(2, 2..6, 3..9), Ok(()));
}

#[test]
fn empty_and_inverted_ranges_add_nothing() {
    let mut set = Coverage::new();
    set.insert(0, 3..3, 0..9).unwrap();
    set.insert(0, 0..9, 4..4).unwrap();
    #[allow(clippy::reversed_empty_ranges)]
    set.insert(0, 5..2, 0..9).unwrap();
    assert!(set.is_empty());
    assert_eq!(set, Coverage::new());
}

#[test]
fn sizes_that_do_not_fit_are_counted_without_overflow() {
    let all = set(&[rect(0, 0..u32::MAX, 0..u32::MAX)]);
    assert_eq!(all.cells(), u64::from(u32::MAX) * u64::from(u32::MAX));
    let more = set(&[
        rect(0, 0..u32::MAX, 0..u32::MAX),
        rect(Rect::AUX, 0..u32::MAX, 0..u32::MAX),
    ]);
    assert_eq!(more.cells(), u64::MAX);
    assert!(all.contains(0, u32::MAX - 1, u32::MAX - 1));
    assert!(!all.contains(0, u32::MAX, 0));
}

#[test]
fn a_failed_absorb_changes_nothing() {
    let mut a = set(&[rect(0, 0..2, 0..2), rect(3, 0..2, 0..2)]);
    let b = set(&[rect(0, 0..2, 5..6), rect(3, 1..2, 1..4)]);
    let before = a.clone();
    assert_eq!(a.absorb(&b).unwrap_err().cell, cell((3, 1, 1)));
    assert_eq!(a, before);
}

#[test]
fn a_set_from_the_wire_must_be_canonical() {
    let bad = |rects: &[Rect]| {
        Coverage {
            rects: rects.to_vec(),
        }
        .validate()
        .unwrap_err()
    };
    let good = |rects: &[Rect]| {
        Coverage {
            rects: rects.to_vec(),
        }
        .validate()
        .unwrap()
    };

    assert_eq!(
        bad(&[rect(0, 1..1, 0..4)]),
        CoverageError::Empty { index: 0 }
    );
    let inverted = Rect {
        page: 5,
        page_end: 2,
        ..rect(0, 0..1, 0..1)
    };
    assert_eq!(
        bad(&[rect(0, 0..1, 0..1), inverted]),
        CoverageError::Empty { index: 1 }
    );
    let wrong = CoverageError::NotCanonical { index: 1 };
    assert_eq!(
        bad(&[rect(0, 0..2, 0..4), rect(0, 1..3, 4..8)]),
        wrong,
        "slabs overlap"
    );
    assert_eq!(
        bad(&[rect(0, 0..2, 0..4), rect(0, 0..2, 3..8)]),
        wrong,
        "runs overlap"
    );
    assert_eq!(
        bad(&[rect(0, 0..2, 0..4), rect(0, 0..2, 4..8)]),
        wrong,
        "runs touch"
    );
    assert_eq!(
        bad(&[rect(0, 0..2, 6..8), rect(0, 0..2, 0..4)]),
        wrong,
        "pages out of order"
    );
    assert_eq!(
        bad(&[rect(1, 0..2, 0..4), rect(0, 0..2, 0..4)]),
        wrong,
        "sections out of order"
    );
    assert_eq!(
        bad(&[rect(0, 2..4, 0..4), rect(0, 0..2, 0..9)]),
        wrong,
        "layers out of order"
    );
    assert_eq!(
        bad(&[rect(0, 0..2, 0..4), rect(0, 2..3, 0..4)]),
        wrong,
        "slabs should be one"
    );
    let two_runs = [
        rect(0, 0..2, 0..4),
        rect(0, 0..2, 6..8),
        rect(0, 2..3, 0..4),
        rect(0, 2..3, 6..8),
    ];
    assert_eq!(bad(&two_runs), CoverageError::NotCanonical { index: 2 });
    good(&two_runs[..3]);
    good(&[rect(0, 0..2, 0..4), rect(0, 3..4, 0..4)]);
    good(&[rect(0, 0..2, 0..4), rect(1, 2..4, 0..4)]);
    good(&[]);
}

#[test]
fn a_set_with_too_many_rectangles_is_refused() {
    let rects = |n: usize| Coverage {
        rects: (0..n as u32)
            .map(|i| rect(0, 0..1, 2 * i..2 * i + 1))
            .collect(),
    };
    rects(Coverage::MAX_RECTS).validate().unwrap();
    let over = Coverage::MAX_RECTS + 1;
    assert_eq!(
        rects(over).validate(),
        Err(CoverageError::TooMany { rects: over })
    );
}

fn rects() -> impl Strategy<Value = Vec<Rect>> {
    let one = (0u16..2, 0u32..6, 0u32..4, 0u32..9, 0u32..6)
        .prop_map(|(s, l, h, p, w)| rect(s, l..l + h, p..p + w));
    proptest::collection::vec(one, 0..14)
}

/// Builds a set and its model; rectangles that overlap must be refused and are left out.
fn grow(rects: &[Rect]) -> (Coverage, Model) {
    let (mut set, mut model) = (Coverage::new(), Model::new());
    for r in rects {
        let cells = cells_of(r);
        let before = set.clone();
        let added = set.insert(r.section, r.layer..r.layer_end, r.page..r.page_end);
        match model.intersection(&cells).next() {
            Some(first) => {
                assert_eq!(added, Err(Overlap { cell: cell(*first) }));
                assert_eq!(set, before);
            }
            None => {
                assert_eq!(added, Ok(()));
                model.extend(&cells);
            }
        }
    }
    (set, model)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn a_set_holds_exactly_what_was_added(list in rects()) {
        let (set, model) = grow(&list);
        prop_assert_eq!(set.validate(), Ok(()));
        prop_assert_eq!(model_of(&set), model.clone());
        prop_assert_eq!(set.cells(), model.len() as u64);
        prop_assert_eq!(set.is_empty(), model.is_empty());
        for s in 0..3 {
            for l in 0..10 {
                for p in 0..16 {
                    prop_assert_eq!(set.contains(s, l, p), model.contains(&(s, l, p)));
                }
            }
        }
    }

    #[test]
    fn equal_sets_are_equal_values_whatever_the_order(
        list in rects(),
        seed in proptest::collection::vec(any::<prop::sample::Index>(), 200),
    ) {
        let (set, model) = grow(&list);
        // The same cells one by one, in another order.
        let mut cells: Vec<_> = model.into_iter().collect();
        let mut again = Coverage::new();
        for pick in seed.iter().cycle() {
            if cells.is_empty() {
                break;
            }
            let (s, l, p) = cells.swap_remove(pick.index(cells.len()));
            again.insert(s, l..l + 1, p..p + 1).unwrap();
            prop_assert_eq!(again.validate(), Ok(()));
        }
        prop_assert_eq!(&set, &again);
        prop_assert_eq!(hash(&set), hash(&again));
    }

    #[test]
    fn a_union_is_refused_at_the_first_common_cell_or_holds_both(a in rects(), b in rects()) {
        let ((mut left, lm), (right, rm)) = (grow(&a), grow(&b));
        let before = left.clone();
        match lm.intersection(&rm).next() {
            Some(first) => {
                prop_assert_eq!(left.absorb(&right), Err(Overlap { cell: cell(*first) }));
                prop_assert_eq!(left, before);
            }
            None => {
                prop_assert_eq!(left.absorb(&right), Ok(()));
                prop_assert_eq!(left.validate(), Ok(()));
                prop_assert_eq!(model_of(&left), lm.union(&rm).copied().collect::<Model>());
            }
        }
    }

    #[test]
    fn missing_and_extra_cells_are_the_first_differences(a in rects(), b in rects()) {
        let ((have, hm), (want, wm)) = (grow(&a), grow(&b));
        prop_assert_eq!(have.first_missing(&want), wm.difference(&hm).next().map(|c| cell(*c)));
        prop_assert_eq!(have.first_extra(&want), hm.difference(&wm).next().map(|c| cell(*c)));
        prop_assert_eq!(have.is_exactly(&want), hm == wm);
    }

    #[test]
    fn nothing_panics_on_a_set_that_was_not_validated(
        raw in proptest::collection::vec(
            (0u16..2, 0u32..6, 0u32..6, 0u32..6, 0u32..6)
                .prop_map(|(s, a, b, c, d)| Rect {
                    section: s, layer: a, layer_end: b, page: c, page_end: d,
                }), 0..8),
        list in rects(),
    ) {
        let odd = Coverage { rects: raw };
        let (mut good, _) = grow(&list);
        let _ = (odd.cells(), odd.contains(0, 2, 2), odd.first_missing(&good));
        let _ = (odd.first_extra(&good), good.clone().absorb(&odd), odd.clone().absorb(&good));
        let before = good.clone();
        if good.absorb(&odd).is_err() {
            prop_assert_eq!(&good, &before);
        }
        prop_assert_eq!(good.validate(), Ok(()));
    }
}
