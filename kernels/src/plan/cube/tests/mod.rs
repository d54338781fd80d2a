//! What a plan is, shown on small ones, and what it cannot be made from.

mod errors;
mod grid;
mod kernel;
mod property;
mod rows;
mod tiling;

use super::*;
use crate::layout::cube::{CubeKind, DimOrder, Dtype, Share};
use crate::plan::testing::models::{plane, pool};

/// 2 layers, K and V, 4 heads of 4 bytes, 4 tokens a page: a page of one plane has 64 bytes.
fn kv(order: DimOrder, heads: Share) -> CubeLayout {
    let planes = vec![plane(heads, 2, Dtype::bf16()); 2];
    CubeLayout {
        order,
        ..pool("kv", CubeKind::Kv, Share::whole(2), planes)
    }
}

fn plan(
    src: &CubeLayout,
    dst: &CubeLayout,
    from: &[u32],
    to: &[u32],
    tokens: Range<u64>,
) -> CubePlan {
    let part = Part::common(src, dst);
    let (from, to) = (PageList::whole(from), PageList::whole(to));
    CubePlan::new(src, dst, from, to, tokens, &part).unwrap()
}

fn piece(src: u64, dst: u64, bytes: u64) -> Piece {
    Piece { src, dst, bytes }
}

#[test]
fn consecutive_pages_of_equal_layouts_are_one_run_a_layer() {
    let l = kv(DimOrder::NHD, Share::whole(4));
    let plan = plan(&l, &l, &[3, 4], &[0, 1], 0..8);
    // 8 pages of 128 bytes in each layer.
    let runs: Vec<Piece> = plan.runs().collect();
    assert_eq!(runs, [piece(384, 0, 256), piece(1024 + 384, 1024, 256)]);
}

#[test]
fn all_layers_of_a_page_are_one_run_if_pages_come_first() {
    let l = kv(DimOrder::PAGES_HND, Share::whole(4));
    let plan = plan(&l, &l, &[5, 1], &[0, 7], 0..8);
    let runs: Vec<Piece> = plan.runs().collect();
    assert_eq!(runs, [piece(5 * 256, 0, 256), piece(256, 7 * 256, 256)]);
}

#[test]
fn a_head_slice_is_one_strided_copy_for_each_plane_of_a_page() {
    let src = kv(DimOrder::SPLIT_NHD, Share::part(4, 2, 2));
    let dst = kv(DimOrder::NHD, Share::whole(4));
    let mut plan = plan(&src, &dst, &[6], &[1], 0..4);
    assert_eq!(plan.total_bytes(), 2 * 2 * 4 * 8);
    let first = plan.next_strided(u64::MAX).unwrap();
    let wanted = Strided {
        src: 6 * 32,
        dst: 128 + 8,
        bytes: 8,
        count: 4,
        src_step: 8,
        dst_step: 16,
    };
    assert_eq!(first, wanted);
    assert_eq!(plan.strided().count(), 3);
    assert_eq!(plan.runs().count(), 12);
    // Three runs fit, then what is left of the four, then a part of one.
    assert_eq!(plan.next_strided(31).map(|s| s.count), Some(3));
    assert_eq!(
        plan.next_strided(31).map(|s| (s.count, s.src_step)),
        Some((1, 0))
    );
    let cut = plan.next_strided(6).unwrap();
    assert_eq!(
        (cut.bytes, cut.count),
        (4, 1),
        "a row of 4 bytes stays whole"
    );
    let rest = plan.next_strided(u64::MAX).unwrap();
    assert_eq!((rest.bytes, rest.count), (4, 1));
    assert_eq!(plan.next_strided(0), None);
    assert_eq!(plan.remaining_bytes(), 2 * 32 - 8);
}

#[test]
fn heads_first_on_both_sides_gives_one_run_for_the_heads_of_a_page() {
    let src = kv(DimOrder::HND, Share::part(4, 2, 2));
    let dst = kv(DimOrder::HND, Share::whole(4));
    let plan = plan(&src, &dst, &[0], &[0], 0..4);
    let lengths: Vec<u64> = plan.runs().map(|run| run.bytes).collect();
    assert_eq!(lengths, [32; 4], "one for each layer and plane");
}

#[test]
fn small_pages_fill_a_large_one_and_join_where_they_follow_each_other() {
    let src = kv(DimOrder::SPLIT_NHD, Share::whole(4));
    let dst = CubeLayout {
        page_tokens: 8,
        ..src.clone()
    };
    // Tokens 4..10 of the request: all of page 2, the first half of page 3.
    let plan = plan(&src, &dst, &[2, 3], &[5, 0], 4..10);
    let runs: Vec<Piece> = plan.runs().take(2).collect();
    assert_eq!(
        runs,
        [piece(2 * 64, 5 * 128 + 64, 64), piece(3 * 64, 0, 32)]
    );
    let joined = self::plan(&src, &dst, &[2, 3], &[5], 0..7);
    assert_eq!(joined.runs().next(), Some(piece(2 * 64, 5 * 128, 64 + 48)));
}

#[test]
fn a_row_is_cut_only_if_it_is_larger_than_the_piece() {
    let l = kv(DimOrder::SPLIT_NHD, Share::whole(4));
    let mut plan = plan(&l, &l, &[0], &[0], 0..4);
    let mut lengths = Vec::new();
    for max in [30, 3, 5, 100, 1] {
        lengths.push(plan.next_piece(max).unwrap().bytes);
    }
    // 28 of 30; 3 of a row of 4; its last byte and a row; what is left of the plane; one byte.
    assert_eq!(lengths, [28, 3, 5, 28, 1]);
    assert_eq!(plan.next_piece(0), None);
    assert_eq!(plan.remaining_bytes(), 256 - 65);
}

#[test]
fn a_granule_is_never_cut_and_its_last_tokens_travel_along() {
    let l = CubeLayout {
        granule: 2,
        ..kv(DimOrder::SPLIT_NHD, Share::whole(4))
    };
    let plan = plan(&l, &l, &[1], &[2], 0..3);
    assert_eq!(plan.total_bytes(), 2 * 2 * 4 * 4 * 4);
}

#[test]
fn a_row_pool_moves_whole_rows_whatever_the_tokens_say() {
    let mut l = kv(DimOrder::NHD, Share::whole(4));
    l.kind = CubeKind::State;
    let plan = plan(&l, &l, &[1, 7], &[2, 3], 5..5);
    assert_eq!(plan.total_bytes(), 2 * 256);
}

#[test]
fn a_part_can_be_sent_layer_by_layer() {
    let l = kv(DimOrder::NHD, Share::part(4, 0, 2));
    let whole = Part::common(&l, &l);
    let mut all = Vec::new();
    for layer in 0..3 {
        let part = whole.of_layers(Span::new(layer, layer + 1));
        let (from, to) = (PageList::whole([1, 5]), PageList::whole([0, 3]));
        match CubePlan::new(&l, &l, from, to, 0..8, &part) {
            Ok(plan) => all.extend(plan.runs()),
            Err(error) => assert_eq!((error, layer), (CubePlanError::Empty, 2)),
        }
    }
    let at_once: Vec<Piece> = plan(&l, &l, &[1, 5], &[0, 3], 0..8).runs().collect();
    assert_eq!(all, at_once);
}

#[test]
fn a_plan_stays_small_however_many_descriptors_it_has() {
    use std::mem::size_of;
    let of = |lanes: usize| {
        let held = lanes * size_of::<table::Lane>() + size_of::<Table>() + size_of::<CubePlan>();
        held as u64
    };
    let most = of(CubeLayout::MAX_PLANES);
    assert!(
        most < 8 << 10,
        "{most} bytes with the most planes there can be"
    );
    // Equal layouts with a million descriptors: 16 bytes each would be 16 MB.
    let large = CubeLayout {
        pages: 1 << 20,
        ..kv(DimOrder::NHD, Share::whole(4))
    };
    let pages: Vec<u32> = (0..500_000).rev().collect();
    let plan = plan(&large, &large, &pages, &pages, 0..2_000_000);
    assert_eq!(plan.runs().count(), 1_000_000);
    assert_eq!(plan.table.lanes.len(), 1);
    assert!(
        of(1) < 16 * 100,
        "less than a hundred descriptors may have: {}",
        of(1)
    );
}
