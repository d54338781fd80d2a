//! Every refusal, by its name.

use super::*;
use crate::layout::cube::{CubeError, CubeMismatch};
use crate::plan::End;

fn refused(
    src: &CubeLayout,
    dst: &CubeLayout,
    from: PageList,
    to: PageList,
    tokens: Range<u64>,
    part: &Part,
) -> CubePlanError {
    CubePlan::new(src, dst, from, to, tokens, part).unwrap_err()
}

fn lists() -> (PageList, PageList) {
    (PageList::whole([0, 1]), PageList::whole([2, 3]))
}

#[test]
fn a_layout_that_no_pool_can_have_and_one_that_does_not_fit_are_refused() {
    let good = kv(DimOrder::NHD, Share::whole(4));
    let broken = CubeLayout {
        pages: 0,
        ..good.clone()
    };
    let part = Part::common(&good, &good);
    let (from, to) = lists();
    let error = refused(&good, &broken, from.clone(), to.clone(), 0..8, &part);
    assert!(matches!(
        error,
        CubePlanError::Layout {
            end: End::Destination,
            error: CubeError::Bounds { .. }
        }
    ));
    let other = CubeLayout {
        page_tokens: 6,
        ..good.clone()
    };
    let error = refused(&good, &other, from, to, 0..8, &part);
    assert!(
        matches!(error, CubePlanError::Mismatch(CubeMismatch { .. })),
        "{error}"
    );
}

#[test]
fn what_one_end_does_not_hold_is_refused() {
    let src = kv(DimOrder::NHD, Share::part(4, 2, 2));
    let dst = kv(DimOrder::NHD, Share::whole(4));
    let part = |layers: Span, heads: &[Span]| Part {
        layers,
        heads: heads.to_vec(),
    };
    let err = |part: Part| {
        let (from, to) = lists();
        refused(&src, &dst, from, to, 0..8, &part)
    };
    let two = Span::new(2, 4);
    assert_eq!(
        err(part(Span::new(1, 3), &[two, two])),
        CubePlanError::Layers {
            end: End::Source,
            asked: Span::new(1, 3),
            held: Span::new(0, 2)
        }
    );
    assert_eq!(
        err(part(Span::new(0, 2), &[two, Span::new(1, 4)])),
        CubePlanError::Heads {
            end: End::Source,
            plane: 1,
            asked: Span::new(1, 4),
            held: two,
        }
    );
    assert_eq!(
        err(part(Span::new(0, 2), &[two])),
        CubePlanError::Planes {
            named: 1,
            planes: 2
        }
    );
    let none = Span::new(3, 3);
    assert_eq!(
        err(part(Span::new(0, 2), &[none, none])),
        CubePlanError::Empty
    );
    assert_eq!(
        err(part(Span::new(1, 1), &[two, two])),
        CubePlanError::Empty
    );
}

#[test]
fn a_list_that_is_shorter_or_longer_than_the_tokens_is_refused_never_cut() {
    let src = kv(DimOrder::NHD, Share::whole(4));
    let dst = CubeLayout {
        page_tokens: 8,
        ..src.clone()
    };
    let part = Part::common(&src, &dst);
    let err = |from: &[u32], to: &[u32], tokens| {
        let (from, to) = (PageList::whole(from), PageList::whole(to));
        refused(&src, &dst, from, to, tokens, &part)
    };
    // Tokens 3..9: pages 0, 1, 2 of four tokens, pages 0 and 1 of eight.
    for (from, to, end, needed, named) in [
        (vec![0, 1], vec![0, 1], End::Source, 3, 2),
        (vec![0, 1, 2, 3], vec![0, 1], End::Source, 3, 4),
        (vec![0, 1, 2], vec![0], End::Destination, 2, 1),
        (vec![0, 1, 2], vec![0, 1, 2], End::Destination, 2, 3),
    ] {
        let wanted = CubePlanError::PageCount { end, needed, named };
        assert_eq!(err(&from, &to, 3..9), wanted);
    }
    let out = err(&[0, 8, 2], &[0, 1], 3..9);
    assert_eq!(
        out,
        CubePlanError::PageOutOfRange {
            end: End::Source,
            position: 1,
            page: 8,
            pages: 8
        }
    );
    assert_eq!(err(&[], &[], 3..3), CubePlanError::Empty);
    #[allow(clippy::reversed_empty_ranges)]
    let inverted = err(&[], &[], 4..3);
    assert_eq!(
        inverted,
        CubePlanError::Tokens {
            start: 4,
            stop: 3,
            granule: 1
        }
    );
    let list = PageList {
        list: [0, 1, 2].into(),
        range: 1..4,
    };
    let error = refused(&src, &dst, list, PageList::whole([0, 1]), 3..9, &part);
    assert_eq!(
        error,
        CubePlanError::ListRange {
            end: End::Source,
            start: 1,
            stop: 4,
            len: 3
        }
    );
}

#[test]
fn a_range_that_begins_within_a_granule_and_rows_that_do_not_pair_are_refused() {
    let l = CubeLayout {
        granule: 2,
        ..kv(DimOrder::NHD, Share::whole(4))
    };
    let part = Part::common(&l, &l);
    let (from, to) = lists();
    assert_eq!(
        refused(&l, &l, from, to, 3..8, &part),
        CubePlanError::Tokens {
            start: 3,
            stop: 8,
            granule: 2
        }
    );
    let rows = CubeLayout {
        kind: CubeKind::State,
        ..l
    };
    let error = refused(
        &rows,
        &rows,
        PageList::whole([0]),
        PageList::whole([]),
        0..1,
        &part,
    );
    assert_eq!(
        error,
        CubePlanError::PageCount {
            end: End::Destination,
            needed: 1,
            named: 0
        }
    );
}
