//! Who serves whom.

use super::*;
use crate::layout::cube::{CubeKind, DimOrder, Dtype, Share, Span};
use crate::plan::testing::models::{plane, pool};
use proptest::prelude::*;
use std::collections::HashMap;

fn side(model: Model, tp: u32, pp: u32) -> Vec<Vec<CubeLayout>> {
    let cutting = Cutting {
        tp,
        pp,
        page_tokens: 4,
        order: DimOrder::NHD,
    };
    ranks(model, cutting, &(0..8), &mut Numbers(1))
}

fn pairs(routes: &Routes) -> Vec<(usize, usize)> {
    routes
        .legs
        .iter()
        .map(|leg| (leg.sender, leg.receiver))
        .collect()
}

#[test]
fn replicas_of_grouped_heads_stay_silent_where_one_of_them_is_enough() {
    let plan = |turn| {
        let heads = Model::Plain { heads: 2 };
        routes(&side(heads, 4, 1), &side(heads, 2, 1), turn).unwrap()
    };
    assert_eq!(pairs(&plan(0)), [(0, 0), (2, 1)]);
    assert_eq!(plan(0).silent, [1, 3]);
    assert_eq!(
        pairs(&plan(1)),
        [(1, 0), (3, 1)],
        "another request, the other replicas"
    );
}

#[test]
fn replicas_share_the_receivers_among_them() {
    let heads = Model::Plain { heads: 1 };
    let plan = routes(&side(heads, 2, 1), &side(heads, 8, 1), 0).unwrap();
    assert_eq!((plan.from(0).count(), plan.from(1).count()), (4, 4));
    let plan = routes(&side(Model::Mla, 4, 1), &side(Model::Mla, 4, 1), 0).unwrap();
    assert_eq!(pairs(&plan), [(0, 0), (1, 1), (2, 2), (3, 3)]);
    assert_eq!(plan.silent, [0_usize; 0]);
}

#[test]
fn each_stage_sends_its_layers_and_one_leg_has_the_aux_row() {
    let heads = Model::Plain { heads: 4 };
    let plan = routes(&side(heads, 2, 2), &side(heads, 1, 1), 0).unwrap();
    assert_eq!(pairs(&plan), [(0, 0), (1, 0), (2, 0), (3, 0)]);
    let layers: Vec<Span> = plan
        .legs
        .iter()
        .map(|leg| leg.parts[0].part.layers)
        .collect();
    assert_eq!(
        layers,
        [
            Span::new(0, 1),
            Span::new(0, 1),
            Span::new(1, 3),
            Span::new(1, 3)
        ]
    );
    let heads: Vec<Span> = plan
        .legs
        .iter()
        .map(|leg| leg.parts[0].part.heads[1])
        .collect();
    assert_eq!(
        heads,
        [
            Span::new(0, 2),
            Span::new(2, 4),
            Span::new(0, 2),
            Span::new(2, 4)
        ]
    );
    // Receivers' pools: "kv", "aux".
    let aux: Vec<usize> = (plan.legs.iter())
        .filter(|leg| leg.parts.iter().any(|p| p.dst_pool == 1))
        .map(|leg| leg.sender)
        .collect();
    assert_eq!(aux, [2], "by a rank that has one, and a leg");
}

#[test]
fn scales_go_in_the_leg_of_their_data() {
    for turn in 0..4 {
        let model = Model::Scaled { heads: 2 };
        let plan = routes(&side(model, 8, 1), &side(model, 4, 1), turn).unwrap();
        for leg in &plan.legs {
            let part = |pool| {
                let of = leg.parts.iter().find(|p| p.dst_pool == pool);
                of.map(|p| p.part.clone())
            };
            assert_eq!(part(0), part(1));
            assert!(part(0).is_some());
        }
    }
}

#[test]
fn scales_follow_their_data_where_two_legs_could_bring_them() {
    // Heads 0..2 and 1..3: both senders have head 1, and both serve the receiver of all three.
    let rank = |first, held| {
        let planes = |channels| vec![plane(Share::part(3, first, held), channels, Dtype::bf16())];
        let of = "kv".to_owned();
        vec![
            pool("scales", CubeKind::Scale { of }, Share::whole(1), planes(1)),
            pool("kv", CubeKind::Kv, Share::whole(1), planes(16)),
        ]
    };
    for turn in 0..2 {
        let plan = routes(&[rank(0, 2), rank(1, 2)], &[rank(0, 3)], turn).unwrap();
        assert_eq!(pairs(&plan), [(0, 0), (1, 0)]);
        for leg in &plan.legs {
            let parts: Vec<&Part> = leg.parts.iter().map(|p| &p.part).collect();
            assert_eq!(parts.len(), 2);
            assert_eq!(parts[0], parts[1], "sender {}", leg.sender);
        }
    }
}

#[test]
fn what_nobody_holds_is_named() {
    let heads = Model::Plain { heads: 4 };
    let mut senders = side(heads, 4, 1);
    senders.remove(2);
    let error = routes(&senders, &side(heads, 2, 1), 0).unwrap_err();
    assert_eq!(
        error,
        RouteError::Uncovered {
            receiver: 1,
            pool: "kv".into(),
            layers: Span::new(0, 3),
            plane: 0,
            heads: Span::new(2, 3),
        }
    );
    let text = error.to_string();
    assert!(
        text.contains("heads 2..3 of plane 0 of pool \"kv\""),
        "{text}"
    );
}

#[test]
fn ranks_that_are_wrong_or_too_many_are_named() {
    let heads = Model::Plain { heads: 4 };
    let good = side(heads, 1, 1);
    let many: Vec<Vec<CubeLayout>> = vec![good[0].clone(); MAX_RANKS + 1];
    assert!(matches!(
        routes(&many, &good, 0),
        Err(RouteError::Ranks {
            end: End::Source,
            ranks: 257
        })
    ));
    let full = vec![vec![good[0][0].clone(); MAX_POOLS + 1]];
    assert!(matches!(
        routes(&good, &full, 0),
        Err(RouteError::Pools { pools: 33, .. })
    ));
    let mut twice = good.clone();
    let copy = twice[0][0].clone();
    twice[0].push(copy);
    let error = routes(&good, &twice, 0).unwrap_err();
    assert!(
        matches!(
            error,
            RouteError::Set {
                end: End::Destination,
                rank: 0,
                ..
            }
        ),
        "{error}"
    );
    let mut other = good.clone();
    other[0].pop();
    assert!(matches!(
        routes(&good, &other, 0),
        Err(RouteError::Mismatch(_))
    ));
}

#[test]
fn cuttings_made_to_cost_time_are_refused() {
    // Each sender begins and ends somewhere else: 20 cuts of either axis, 10 candidates and more.
    let of_one = |first: u32, held: u32| {
        let share = Share::part(40, first, held);
        let planes = vec![plane(share, 1, Dtype::bf16())];
        vec![pool("kv", CubeKind::Kv, share, planes)]
    };
    let senders: Vec<_> = (0..20).map(|first| of_one(first, 20)).collect();
    let (senders, receivers): (Vec<_>, _) = (senders, [of_one(10, 20)]);
    let senders: Vec<&[CubeLayout]> = senders.iter().map(Vec::as_slice).collect();
    let receivers: Vec<&[CubeLayout]> = receivers.iter().map(Vec::as_slice).collect();
    let error = within(1000, &senders, &receivers, 0).unwrap_err();
    assert_eq!(error, RouteError::Ragged { pool: "kv".into() });
    assert!(within(MAX_WORK, &senders, &receivers, 0).is_ok());
}

#[test]
fn the_largest_cuttings_of_engines_are_not_refused() {
    let side = |tp, pp, planes: usize| -> Vec<Vec<CubeLayout>> {
        (0..tp * pp)
            .map(|rank| {
                let layers = Share::part(64, rank / tp * (64 / pp), 64 / pp);
                let heads = Share::of_rank(32, rank % tp, tp).unwrap();
                let of = "kv".to_owned();
                let planes = |channels| vec![plane(heads, channels, Dtype::bf16()); planes];
                vec![
                    pool("kv", CubeKind::Kv, layers, planes(128)),
                    pool("scales", CubeKind::Scale { of }, layers, planes(1)),
                ]
            })
            .collect()
    };
    let whole = side(1, 1, 2).remove(0);
    let receivers = vec![whole; MAX_RANKS / 16];
    let senders = side(32, 8, 2);
    assert_eq!(senders.len(), MAX_RANKS);
    let plan = routes(&senders, &receivers, 0).unwrap();
    assert_eq!(plan.legs.len(), MAX_RANKS * receivers.len());
    assert!(plan.legs.iter().all(|leg| leg.parts.len() == 2));
}

/// How often each cell that a receiver holds is served.
fn served(senders: &[Vec<CubeLayout>], receivers: &[Vec<CubeLayout>], routes: &Routes) {
    let mut count: HashMap<(usize, usize, u32, usize, u32), u32> = HashMap::new();
    for leg in &routes.legs {
        for PoolPart {
            src_pool,
            dst_pool,
            part,
        } in &leg.parts
        {
            let src = &senders[leg.sender][*src_pool];
            let dst = &receivers[leg.receiver][*dst_pool];
            assert_eq!(src.name, dst.name);
            for layer in part.layers.start..part.layers.end {
                for (plane, heads) in part.heads.iter().enumerate() {
                    for head in heads.start..heads.end {
                        let cell = (leg.receiver, *dst_pool, layer, plane, head);
                        *count.entry(cell).or_default() += 1;
                        let one = Span::new(head, head + 1);
                        assert!(src.layers.span().holds(Span::new(layer, layer + 1)));
                        assert!(src.planes[plane].heads.span().holds(one));
                    }
                }
            }
        }
    }
    let mut cells = 0;
    for (receiver, pools) in receivers.iter().enumerate() {
        for (at, pool) in pools.iter().enumerate() {
            let layers = pool.layers.span();
            for layer in layers.start..layers.end {
                for (plane, p) in pool.planes.iter().enumerate() {
                    let heads = p.heads.span();
                    for head in heads.start..heads.end {
                        let cell = (receiver, at, layer, plane, head);
                        assert_eq!(count.get(&cell), Some(&1), "{cell:?}");
                        cells += 1;
                    }
                }
            }
        }
    }
    assert_eq!(count.len(), cells);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_cell_of_every_receiver_is_served_exactly_once(
        model in prop_oneof![
            Just(Model::Plain { heads: 2 }),
            Just(Model::Scaled { heads: 4 }),
            Just(Model::Mla),
            Just(Model::Hybrid { heads: 1 }),
        ],
        sizes in (0u32..4, 1u32..4, 0u32..4, 1u32..4),
        turn in any::<u64>(),
    ) {
        let (from_tp, from_pp, to_tp, to_pp) = sizes;
        let senders = side(model, 1 << from_tp, from_pp);
        let receivers = side(model, 1 << to_tp, to_pp);
        let plan = routes(&senders, &receivers, turn).unwrap();
        served(&senders, &receivers, &plan);
        let again = routes(&senders, &receivers, turn).unwrap();
        prop_assert_eq!(&plan, &again);
        // An aux row comes to each receiver that has one by exactly one leg.
        for (receiver, pools) in receivers.iter().enumerate() {
            let aux = pools.iter().position(|p| p.kind == CubeKind::Aux);
            let legs = plan.to(receiver).filter(|leg| {
                leg.parts.iter().any(|p| Some(p.dst_pool) == aux)
            });
            prop_assert_eq!(legs.count(), usize::from(aux.is_some()));
        }
    }

    #[test]
    fn replicas_have_equally_much_to_send_but_for_one_receiver(
        senders in 1usize..9,
        receivers in 1usize..9,
        turn in any::<u64>(),
    ) {
        let one = side(Model::Mla, 1, 1).remove(0);
        let (from, to) = (vec![one.clone(); senders], vec![one; receivers]);
        let plan = routes(&from, &to, turn).unwrap();
        let counts: Vec<usize> = (0..senders).map(|s| plan.from(s).count()).collect();
        let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
        prop_assert!(most - least <= 1, "{:?}", counts);
        prop_assert_eq!(plan.legs.len(), receivers);
    }
}
