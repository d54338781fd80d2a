//! A plan's grids are the plan.

use super::property::Case;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeMap;

/// Every run of a grid, as its documentation says. Each byte of the destination once.
fn bytes(case: &Case, grids: &[Grid]) -> BTreeMap<u64, u64> {
    let mut all = BTreeMap::new();
    for grid in grids {
        let place = |side: &GridSide, list: &PageList, at: [u64; 4]| {
            let [layer, row, plane, head] = at;
            let flat = u64::from(side.first_row) + row;
            let page_rows = u64::from(side.page_rows);
            let table = &list.list[side.table.clone()];
            let page = u64::from(table[(flat / page_rows) as usize]);
            let within = flat % page_rows * side.row;
            let inner = plane * side.plane + head * side.head;
            side.base + layer * side.layer + page * side.page + within + inner
        };
        for layer in 0..grid.layers {
            for row in 0..grid.rows {
                for plane in 0..grid.planes {
                    for head in 0..grid.heads {
                        let at = [layer, row, plane, head];
                        let src = place(&grid.src, &case.from, at);
                        let dst = place(&grid.dst, &case.to, at);
                        for byte in 0..grid.run_bytes {
                            assert_eq!(all.insert(dst + byte, src + byte), None, "twice: {at:?}");
                        }
                    }
                }
            }
        }
        for (side, list) in [(&grid.src, &case.from), (&grid.dst, &case.to)] {
            let last = (u64::from(side.first_row) + grid.rows - 1) / u64::from(side.page_rows);
            assert_eq!(
                last + 1,
                side.table.len() as u64,
                "the table is what is used"
            );
            assert!(side.table.end <= list.range.end);
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn grids_are_the_bytes_of_the_plan(seed in any::<u64>()) {
        let case = Case::new(seed);
        let mut wanted = BTreeMap::new();
        for Piece { src, dst, bytes } in case.naive() {
            wanted.extend((0..bytes).map(|byte| (dst + byte, src + byte)));
        }
        prop_assert_eq!(bytes(&case, &case.plan().grids()), wanted, "{:?}", case);
    }
}

#[test]
fn a_head_slice_of_a_whole_request_is_one_grid() {
    let src = kv(DimOrder::NHD, Share::part(4, 2, 2));
    let dst = kv(DimOrder::NHD, Share::whole(4));
    let grids = plan(&src, &dst, &[1, 2, 3], &[4, 5, 6], 0..10).grids();
    assert_eq!(grids.len(), 1);
    let Grid {
        layers,
        rows,
        planes,
        heads,
        run_bytes,
        ..
    } = grids[0];
    assert_eq!((layers, rows, planes, heads, run_bytes), (2, 10, 2, 1, 8));
}

#[test]
fn pages_that_lie_together_are_rows_and_the_cut_last_one_is_a_grid_of_its_own() {
    let l = kv(DimOrder::SPLIT_NHD, Share::whole(4));
    let grids = plan(&l, &l, &[1, 2, 3], &[4, 5, 6], 0..10).grids();
    let shape = |g: &Grid| (g.layers * g.planes, g.rows, g.heads, g.run_bytes);
    let shapes: Vec<_> = grids.iter().map(shape).collect();
    assert_eq!(shapes, [(4, 2, 1, 64), (4, 1, 1, 32)]);
}
