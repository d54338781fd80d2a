//! Whether parts tile what a rank holds: random tilings, and what spoils them.

use super::*;
use crate::layout::cube::Plane;
use crate::plan::testing::Numbers;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// A rank with layers 2..7 of 9 and planes of 4 and 3 heads, not all from the first one on.
fn held() -> CubeLayout {
    let plane = |first, heads, total| Plane {
        heads: Share::part(total, first, heads),
        channels: 1,
        dtype: Dtype::fp8_e4m3(),
    };
    let planes = vec![plane(2, 4, 8), plane(0, 3, 3)];
    pool("kv", CubeKind::State, Share::part(9, 2, 5), planes)
}

/// Cuts what is held into layer ranges, and the heads of each into as many parts as it likes.
fn tiling(n: &mut Numbers) -> Vec<Part> {
    let of = held();
    let cut = |span: Span, n: &mut Numbers| {
        let mut spans = vec![span];
        while let Some(last) = spans.last().copied()
            && last.len() > 1
            && n.among(0, 1) == 0
        {
            let at = n.among(last.start + 1, last.end - 1);
            spans.pop();
            spans.extend([Span::new(last.start, at), Span::new(at, last.end)]);
        }
        spans
    };
    let mut parts = Vec::new();
    for layers in cut(of.layers.span(), n) {
        let planes: Vec<Vec<Span>> = (of.planes.iter())
            .map(|plane| cut(plane.heads.span(), n))
            .collect();
        let most = planes.iter().map(Vec::len).max().unwrap_or(0);
        for i in 0..most {
            let heads = planes.iter().map(|spans| spans.get(i).copied());
            let heads = heads.map(|span| span.unwrap_or(Span::new(0, 0))).collect();
            parts.push(Part { layers, heads });
        }
    }
    let turn = n.among(0, parts.len() as u32 - 1) as usize;
    parts.rotate_left(turn);
    parts
}

/// How often each (layer, plane, head) is in a part, of all that is held.
fn counted(parts: &[Part]) -> BTreeMap<(u32, usize, u32), Vec<usize>> {
    let of = held();
    let mut cells = BTreeMap::new();
    for layer in of.layers.span().start..of.layers.span().end {
        for (plane, p) in of.planes.iter().enumerate() {
            for head in p.heads.span().start..p.heads.span().end {
                let is_in = |part: &Part| {
                    let heads = part.heads[plane];
                    (part.layers.start..part.layers.end).contains(&layer)
                        && (heads.start..heads.end).contains(&head)
                };
                let who = (0..parts.len()).filter(|i| is_in(&parts[*i])).collect();
                cells.insert((layer, plane, head), who);
            }
        }
    }
    cells
}

/// The first cell that is not in one part, as counting finds it.
fn wanted(parts: &[Part]) -> Option<((u32, usize, u32), Vec<usize>)> {
    counted(parts).into_iter().find(|(_, who)| who.len() != 1)
}

fn agrees(parts: &[Part]) {
    match (tiles(&held(), parts), wanted(parts)) {
        (Ok(()), None) => {}
        (Err(TilingError::Missing { layer, plane, head }), Some((cell, who))) => {
            assert_eq!(((layer, plane, head), 0), (cell, who.len()), "{parts:?}");
        }
        (
            Err(TilingError::Twice {
                layer,
                plane,
                head,
                parts: [a, b],
            }),
            Some((cell, who)),
        ) => {
            assert_eq!((layer, plane, head), cell, "{parts:?}");
            assert!(a != b && who.contains(&a) && who.contains(&b), "{parts:?}");
        }
        (said, wanted) => panic!("{said:?}, and counting finds {wanted:?} in {parts:?}"),
    }
}

proptest! {
    #[test]
    fn a_tiling_is_right_and_what_is_missing_or_twice_in_another_one_is_the_first_such_cell(
        seed in any::<u64>(),
    ) {
        let n = &mut Numbers(seed);
        let parts = tiling(n);
        agrees(&parts);
        prop_assert_eq!(wanted(&parts), None);
        let one = n.among(0, parts.len() as u32 - 1) as usize;
        let mut fewer = parts.clone();
        fewer.remove(one);
        prop_assert!(wanted(&fewer).is_some());
        agrees(&fewer);
        let mut more = parts.clone();
        more.extend(tiling(n));
        agrees(&more);
        // One part grown or shrunk by a head or a layer, within what is held.
        let mut other = parts;
        let part = &mut other[one];
        match n.among(0, 2) {
            0 if part.layers.end < 7 => part.layers.end += 1,
            1 if part.layers.len() > 1 => part.layers.start += 1,
            _ => part.heads[0] = Span::new(2, 6),
        }
        agrees(&other);
    }
}

#[test]
fn a_part_that_is_wrong_by_itself_is_named() {
    let part = |layers, a, b| Part {
        layers,
        heads: vec![a, b],
    };
    let (layers, first, second) = (Span::new(2, 7), Span::new(2, 6), Span::new(0, 3));
    let whole = part(layers, first, second);
    let says = |wrong: Part| {
        let error = tiles(&held(), [&whole, &wrong]).unwrap_err();
        error.to_string()
    };
    assert_eq!(
        says(part(Span::new(1, 7), first, second)),
        "part 1 names layers 1..7; the rank holds 2..7"
    );
    assert_eq!(
        says(part(layers, first, Span::new(2, 4))),
        "part 1 names heads 2..4 of plane 1; the rank holds 0..3"
    );
    let one = Part {
        layers,
        heads: vec![first],
    };
    assert_eq!(says(one), "part 1 names heads of 1 planes; the pool has 2");
    assert_eq!(says(Part::nothing(2)), "part 1 has nothing in it");
    assert_eq!(
        says(part(Span::new(3, 4), Span::new(0, 0), second)),
        "parts 0 and 1 both have head 0 of plane 1 in layer 3"
    );
}
