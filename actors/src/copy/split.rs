//! A large job cut into parts, so that all lanes of a node work on it.
//!
//! ```text
//!   Job (512 pages, 32 layers) ──split(2)──▶ layers 0..16 ─▶ lane 0 ─┐
//!                                            layers 16..32 ─▶ lane 1 ┴▶ the last one posts the ticket
//! ```
//!
//! Parts of cells are cut between layers only.
//!
//! Rules: parts are disjoint and together the whole. They are cut where runs are short anyway: between
//! layers where layers lie one behind the other in the pool, between pages otherwise. To the room it
//! stays one job: [`Ticket::split`](crate::memory::Ticket) sees to that.

use super::job::Place;
use kvroom_kernels::layout::Order;
use std::ops::Range;

/// A part has at least so many bytes: a hop to a lane is to be worth it.
const LEAST: u64 = 512 << 10;

/// The places of at most `most` parts of about equal size; one place, the whole, if it is too small.
pub(super) fn places(place: &Place, order: Order, cell: u64, most: usize) -> Vec<Place> {
    let (layers, pages) = (place.layers.len(), place.from.len());
    let bytes = match &place.slice {
        Some(slice) => slice.bytes(place.layers.clone()),
        None => (layers as u64 * pages as u64).saturating_mul(cell),
    };
    let worth = usize::try_from(bytes / LEAST).unwrap_or(usize::MAX);
    let most = most.min(worth);
    let by_layers = match order {
        // Pages of the two sides are not alike.
        _ if place.slice.is_some() => true,
        Order::LayersFirst => layers >= most || layers >= pages,
        Order::PagesFirst => pages < most && layers > pages,
    };
    let parts = most.min(if by_layers { layers } else { pages }).max(1);
    let part = |i: usize| {
        let mut part = place.clone();
        if by_layers {
            let cut = share(layers, i, parts);
            // No more than `layers`, which came from a range of u32.
            part.layers =
                place.layers.start + cut.start as u32..place.layers.start + cut.end as u32;
        } else {
            let cut = share(pages, i, parts);
            part.from = place.from.start + cut.start..place.from.start + cut.end;
            part.to = place.to.start + cut.start..place.to.start + cut.end;
        }
        part
    };
    (0..parts).map(part).collect()
}

/// The `i`th of `parts` shares of `count` things.
fn share(count: usize, i: usize, parts: usize) -> Range<usize> {
    count * i / parts..count * (i + 1) / parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn place(layers: Range<u32>, pages: usize) -> Place {
        Place {
            section: 0,
            layers,
            pages: (0..100 + pages as u32).collect(),
            from: 3..3 + pages,
            to: 7..7 + pages,
            slice: None,
        }
    }

    fn cells(place: &Place) -> Vec<(u32, usize, usize)> {
        let pairs = || place.from.clone().zip(place.to.clone());
        let layers = place.layers.clone();
        layers
            .flat_map(|l| pairs().map(move |(f, t)| (l, f, t)))
            .collect()
    }

    proptest! {
        #[test]
        fn parts_are_disjoint_and_together_the_whole(
            first in 0..5_u32,
            layers in 1..9_u32,
            pages in 1..9_usize,
            most in 1..6_usize,
            cell in prop_oneof![Just(16_u64), Just(64 << 10), Just(1 << 20), Just(1 << 40)],
            pages_first in any::<bool>(),
        ) {
            let whole = place(first..first + layers, pages);
            let order = if pages_first { Order::PagesFirst } else { Order::LayersFirst };
            let parts = places(&whole, order, cell, most);
            prop_assert!(parts.len() <= most);
            prop_assert!(parts.iter().all(|p| p.from.len() == p.to.len()));
            let all: Vec<_> = parts.iter().flat_map(cells).collect();
            prop_assert!(parts.iter().all(|p| !cells(p).is_empty()));
            let set: BTreeSet<_> = all.iter().copied().collect();
            prop_assert_eq!(set.len(), all.len());
            prop_assert_eq!(set, cells(&whole).into_iter().collect::<BTreeSet<_>>());
        }
    }

    #[test]
    fn a_large_job_has_a_part_for_each_lane_cut_where_runs_end() {
        let whole = place(0..32, 512);
        let cell = 16 << 10;
        let by_layers = places(&whole, Order::LayersFirst, cell, 2);
        assert_eq!(by_layers.len(), 2);
        assert_eq!(
            (by_layers[0].layers.clone(), by_layers[1].layers.clone()),
            (0..16, 16..32)
        );
        let by_pages = places(&whole, Order::PagesFirst, cell, 2);
        assert_eq!(
            (by_pages[0].to.clone(), by_pages[1].to.clone()),
            (7..263, 263..519)
        );
        assert!(by_pages.iter().all(|p| p.layers == (0..32)));
        // One layer, or one page: the other way is what there is.
        assert_eq!(
            places(&place(0..1, 256), Order::LayersFirst, 1 << 20, 4).len(),
            4
        );
        assert_eq!(
            places(&place(0..8, 1), Order::PagesFirst, 1 << 20, 4).len(),
            4
        );
    }

    #[test]
    fn a_small_job_stays_whole() {
        let whole = place(0..4, 16);
        assert_eq!(places(&whole, Order::LayersFirst, 8 << 10, 4).len(), 1);
        assert_eq!(places(&whole, Order::LayersFirst, 16 << 10, 4).len(), 2);
        assert_eq!(places(&whole, Order::LayersFirst, 1 << 20, 1).len(), 1);
    }
}
