//! Golden cubes: numbered through the layouts of all senders, moved, read through those of all
//! receivers; every byte is compared, those around included.
//!
//! The grid, in full: prefill TP 1, 2, 4, 8 × decode TP 1, 2, 4, 8 × model (1, 2, 4, 8 heads plain;
//! 2 and 8 heads in packed 4 bits with scales; MLA with index keys; 2 heads with convolution and SSM
//! state) × prefill PP 1, 2 × decode PP 1, 2 × page sizes 4 → 4, 2 → 4, 6 → 2. Along it orders go
//! round: each of the pairs of [`ORDERS`] comes up. All pairs of orders are crossed with all page
//! sizes and models once more for TP 2 and 4. Ends of requests are on no page boundary.

use super::*;
use crate::layout::cube::{Dim, DimOrder};
use proptest::prelude::*;
use std::collections::BTreeSet;

const ORDERS: [DimOrder; 8] = [
    DimOrder::NHD,
    DimOrder::HND,
    DimOrder::SPLIT_NHD,
    DimOrder::PLANES_NHD,
    DimOrder::PAGES_NHD,
    DimOrder::PAGES_HND,
    DimOrder::INTERLEAVED,
    DimOrder([Dim::Plane, Dim::Head, Dim::Layer, Dim::Page, Dim::Token]),
];
const MODELS: [Model; 8] = [
    Model::Plain { heads: 1 },
    Model::Plain { heads: 2 },
    Model::Plain { heads: 4 },
    Model::Plain { heads: 8 },
    Model::Scaled { heads: 2 },
    Model::Scaled { heads: 8 },
    Model::Mla,
    Model::Hybrid { heads: 2 },
];
const PAGES: [(u32, u32); 3] = [(4, 4), (2, 4), (6, 2)];

fn cutting(tp: u32, pp: u32, page_tokens: u32, order: DimOrder) -> Cutting {
    Cutting {
        tp,
        pp,
        page_tokens,
        order,
    }
}

#[test]
fn every_byte_of_every_rank_arrives_for_each_cutting_of_the_grid() {
    let mut seen = BTreeSet::new();
    let mut case = 0_u64;
    for model in MODELS {
        for (from_tp, to_tp) in pairs(&[1, 2, 4, 8]) {
            for (from_pp, to_pp) in pairs(&[1, 2]) {
                for (from_page, to_page) in PAGES {
                    let pair = (case * 29 % 64) as usize;
                    let (a, b) = (ORDERS[pair / 8], ORDERS[pair % 8]);
                    seen.insert((a, b));
                    let from = cutting(from_tp, from_pp, from_page, a);
                    let to = cutting(to_tp, to_pp, to_page, b);
                    let tokens = case % 5..case % 5 + 1 + case % 9;
                    let result = world(model, from, to, tokens, case).check();
                    assert_eq!(result, Ok(()), "{model:?}, {from:?} to {to:?}, case {case}");
                    case += 1;
                }
            }
        }
    }
    assert_eq!(case, 8 * 16 * 4 * 3);
    assert_eq!(seen.len(), 64);
}

#[test]
fn every_byte_arrives_for_each_pair_of_orders() {
    let mut case = 0_u64;
    for (a, b) in pairs(&ORDERS) {
        for (from_page, to_page) in PAGES {
            for model in [MODELS[2], MODELS[5], MODELS[6], MODELS[7]] {
                let (from, to) = (cutting(4, 1, from_page, a), cutting(2, 1, to_page, b));
                let (from, to) = if case.is_multiple_of(2) {
                    (from, to)
                } else {
                    (to, from)
                };
                let result = world(model, from, to, 1..12, case).check();
                assert_eq!(result, Ok(()), "{model:?}, {from:?} to {to:?}, case {case}");
                case += 1;
            }
        }
    }
}

fn pairs<T: Copy>(of: &[T]) -> impl Iterator<Item = (T, T)> {
    of.iter()
        .flat_map(move |a| of.iter().map(move |b| (*a, *b)))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn every_byte_arrives_for_any_cutting(seed in any::<u64>()) {
        let n = &mut Numbers(seed);
        let model = n.one_of(&MODELS);
        let (small, factor) = (n.among(1, 3), n.among(1, 3));
        let small_first = n.among(0, 1) == 0;
        let mut side = |is_small: bool| {
            let page = small * if is_small { 1 } else { factor };
            cutting(n.one_of(&[1, 2, 4, 8]), n.among(1, 3), page, n.order())
        };
        let (from, to) = (side(small_first), side(!small_first));
        let start = u64::from(n.among(0, 9));
        let tokens = start..start + u64::from(n.among(1, 8 * small));
        let result = world(model, from, to, tokens, seed).check();
        prop_assert_eq!(result, Ok(()), "{:?}, {:?} to {:?}", model, from, to);
    }
}
