//! Faults that engines have had in public, each as a case that must be right here, and as a fault
//! that is planted, which the cubes must find.

use super::*;
use crate::layout::cube::{CubeKind, DimOrder};
use crate::plan::Piece;
use crate::plan::cube::PageList;
use crate::plan::testing::models::{LAYERS, STATE_HEADS};
use crate::plan::testing::world::{Planner, Router, planner};

fn right(
    senders: &[Vec<CubeLayout>],
    to: &[Vec<CubeLayout>],
    t: u64,
) -> Result<Routes, RouteError> {
    routes(senders, to, t)
}

fn cut(tp: u32, pp: u32) -> Cutting {
    Cutting {
        tp,
        pp,
        page_tokens: 4,
        order: DimOrder::SPLIT_NHD,
    }
}

fn case(model: Model, from: Cutting, to: Cutting) -> World {
    world(model, from, to, 1..11, 7)
}

/// That the world is right, and that the fault is found in it.
fn found(world: &World, router: &Router, planner: &Planner) -> String {
    assert_eq!(world.check(), Ok(()));
    world.check_with(router, planner).unwrap_err()
}

/// The pieces of a plan with `shift` more at the source, or less where there is not as much.
fn shifted(pieces: Vec<Piece>, shift: u64) -> Vec<Piece> {
    let by = |p: Piece| Piece {
        src: p.src.checked_sub(shift).unwrap_or(p.src + shift),
        ..p
    };
    pieces.into_iter().map(by).collect()
}

#[test]
fn heads_of_replicated_groups_are_read_where_they_are() {
    // Two heads: prefill TP 1 holds both, of decode TP 4 ranks 0 and 1 hold head 0, 2 and 3 head 1.
    let world = case(Model::Plain { heads: 2 }, cut(1, 1), cut(4, 1));
    let one_head_off: &Planner = &|src, dst, from, to, tokens, part| {
        let shift = src.maps().unwrap()[0].head;
        shifted(planner(src, dst, from, to, tokens, part), shift)
    };
    let error = found(&world, &right, one_head_off);
    assert!(error.contains("instead of"), "{error}");
    // Ranks taken in turns (0, 1, 0, 1), as if heads were dealt out one by one.
    let dealt: &Planner = &|src, dst, from, to, tokens, part| {
        let shift = src.maps().unwrap()[0].head;
        match part.heads[0].start {
            0 if dst.planes[0].heads.held == 1 => planner(src, dst, from, to, tokens, part),
            _ => shifted(planner(src, dst, from, to, tokens, part), shift),
        }
    };
    found(&world, &right, dealt);
}

#[test]
fn replicas_fill_a_block_of_all_heads_and_no_head_is_left_out() {
    // Four heads: prefill TP 8 holds each twice, decode TP 1 all. One replica alone fills a quarter.
    let world = case(Model::Plain { heads: 4 }, cut(8, 1), cut(1, 1));
    let first_only: &Router = &|senders, receivers, turn| {
        let mut routes = routes(senders, receivers, turn)?;
        routes.legs.truncate(1);
        Ok(routes)
    };
    found(&world, first_only, &planner);
    // And all of them together write everything twice.
    let nobody_silent: &Router = &|senders, receivers, turn| {
        let mut all = routes(senders, receivers, turn)?;
        all.legs.extend(routes(senders, receivers, turn + 1)?.legs);
        Ok(all)
    };
    let error = found(&world, nobody_silent, &planner);
    assert!(error.contains("second time"), "{error}");
}

#[test]
fn stages_send_the_layers_they_have_to_the_places_these_have_elsewhere() {
    for (from, to) in [
        (cut(2, 2), cut(4, 1)),
        (cut(4, 1), cut(1, 2)),
        (cut(1, 3), cut(2, 2)),
    ] {
        let world = case(Model::Plain { heads: 4 }, from, to);
        // Layers counted from the stage's own first one.
        let local: &Planner = &|src, dst, from, to, tokens, part| {
            let shift = (src.maps().unwrap()[0].layer) * u64::from(part.layers.start);
            let pieces = planner(src, dst, from, to, tokens, part);
            if part.layers.start == 0 {
                pieces
            } else {
                shifted(pieces, shift)
            }
        };
        found(&world, &right, local);
        // The last stage only.
        let last_stage: &Router = &|senders, receivers, turn| {
            let mut routes = routes(senders, receivers, turn)?;
            for leg in &mut routes.legs {
                leg.parts.retain(|p| p.part.layers.end == LAYERS);
            }
            Ok(routes)
        };
        found(&world, last_stage, &planner);
    }
}

#[test]
fn segments_of_a_convolution_state_are_cut_each_by_itself() {
    for (from, to) in [
        (cut(1, 1), cut(2, 1)),
        (cut(4, 1), cut(1, 1)),
        (cut(8, 1), cut(2, 1)),
    ] {
        let world = case(Model::Hybrid { heads: 2 }, from, to);
        // The row as one flat array, cut in as many equal parts as there are ranks.
        let flat: &Planner = &|src, dst, from, to, tokens, part| {
            if src.name != "conv" {
                return planner(src, dst, from, to, tokens, part);
            }
            flat_rows(src, dst, &from, &to)
        };
        found(&world, &right, flat);
    }
}

/// What a rank would send if the row of a state were flat: its share of all bytes, layer by layer.
fn flat_rows(src: &CubeLayout, dst: &CubeLayout, from: &PageList, to: &PageList) -> Vec<Piece> {
    let (a, b) = (src.maps().unwrap()[0], dst.maps().unwrap()[0]);
    let row = |layout: &CubeLayout| {
        let of = |p: &crate::layout::cube::Plane| p.heads.held * p.channels;
        u64::from(layout.planes.iter().map(of).sum::<u32>() * layout.page_tokens)
    };
    let bytes = row(src).min(row(dst));
    let share = |layout: &CubeLayout| {
        let first = u64::from(layout.planes[0].heads.first);
        first * row(layout) / u64::from(layout.planes[0].heads.held)
    };
    let src_first = share(dst).saturating_sub(share(src));
    let dst_first = share(src).saturating_sub(share(dst));
    let layers = src.layers.held.min(dst.layers.held);
    (0..u64::from(layers))
        .map(|layer| Piece {
            src: u64::from(from.list[from.range.start]) * a.page + layer * a.layer + src_first,
            dst: u64::from(to.list[to.range.start]) * b.page + layer * b.layer + dst_first,
            bytes,
        })
        .collect()
}

#[test]
fn a_state_is_split_over_all_ranks_even_where_heads_are_replicated() {
    // Two heads of attention over four ranks: two of them would do. The state needs all four.
    let world = case(Model::Hybrid { heads: 2 }, cut(4, 1), cut(1, 1));
    assert_eq!(world.check(), Ok(()));
    let plan = routes(&world.senders, &world.receivers, 0).unwrap();
    assert_eq!(plan.silent, [0_usize; 0]);
    let of = |name: &str| {
        let at = world.receivers[0].iter().position(|p| p.name == name);
        let legs = plan.legs.iter();
        legs.filter(|leg| leg.parts.iter().any(|p| Some(p.dst_pool) == at))
            .count()
    };
    assert_eq!((of("kv"), of("ssm")), (2, 4));
    assert_eq!(STATE_HEADS % 4, 0);
}

#[test]
fn scales_are_never_left_behind() {
    let world = case(Model::Scaled { heads: 2 }, cut(4, 1), cut(2, 1));
    let data_only: &Router = &|senders, receivers, turn| {
        let mut routes = routes(senders, receivers, turn)?;
        for leg in &mut routes.legs {
            let scales = |at: usize| matches!(senders[0][at].kind, CubeKind::Scale { .. });
            leg.parts.retain(|part| !scales(part.src_pool));
        }
        Ok(routes)
    };
    let error = found(&world, data_only, &planner);
    assert!(error.contains("kv-scales"), "{error}");
    // One side that does not name them is no side to plan with.
    let mut without = world.clone();
    for rank in &mut without.receivers {
        rank.retain(|pool| pool.name != "kv-scales");
    }
    let error = without.check().unwrap_err();
    assert!(
        error.contains("scales of \"kv\"") && error.contains("missing"),
        "{error}"
    );
}

#[test]
fn tokens_beyond_the_end_of_a_request_are_not_touched() {
    let world = case(Model::Mla, cut(1, 1), cut(2, 1));
    // Whole pages, as if the request ended on a boundary.
    let whole: &Planner = &|src, dst, from, to, tokens, part| {
        let page = u64::from(src.page_tokens);
        let tokens = match src.kind.is_row() {
            true => tokens,
            false => tokens.start..tokens.end.next_multiple_of(page),
        };
        planner(src, dst, from, to, tokens, part)
    };
    found(&world, &right, whole);
}
