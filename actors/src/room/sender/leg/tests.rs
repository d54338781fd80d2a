//! What a leg makes of a chunk where the two sides are cut differently.

use super::*;
use crate::ids::{ChunkNo, PoolId};
use crate::room::event::SliceShape;
use std::sync::Arc;

/// Layers 3..5 of the destination, which are 1..3 of the source; 10 bytes a token and layer.
fn shape(here: u32, there: u32, pages: u32) -> SectionShape {
    SectionShape {
        pool: PoolId(0),
        layer: 3,
        layer_end: 5,
        page_tokens: there,
        page_bytes: u64::from(there) * 10,
        pages,
        slice: Some(SliceShape {
            section: 2,
            source_layer: 1,
            pool_layers: 1,
            page_tokens: here,
            granule: 1,
            row: false,
        }),
    }
}

fn leg(skip: u64, total: u64, section: SectionShape) -> Leg {
    Leg::new(Arc::new(LegTerms {
        receivers: 1,
        rank: 0,
        skip,
        total,
        sections: Box::new([section]),
        aux: false,
        checksum: false,
    }))
}

fn chunk(tokens: Range<u64>, layers: Range<u32>, page_tokens: u32) -> Chunk {
    Chunk {
        no: ChunkNo(7),
        pool: PoolId(0),
        tokens,
        layers,
        pages: Arc::new([0; 8]),
        page_tokens,
        pool_layers: 6,
    }
}

/// Layers, tokens, pages of the chunk, places of the claim, bytes.
type Made = (Range<u32>, Range<u64>, Range<u32>, Range<u32>, u64);

#[track_caller]
fn made(leg: &Leg, chunk: &Chunk) -> Option<Made> {
    let mut jobs = leg.jobs_for(chunk).unwrap();
    assert!(jobs.len() <= 1);
    let (spec, bytes) = jobs.pop()?;
    match spec {
        JobSpec::Pages {
            section,
            layers,
            tokens,
            from,
            to,
            ..
        } => {
            assert_eq!(section, 2);
            Some((layers, tokens, from, to, bytes))
        }
        JobSpec::Aux => None,
    }
}

#[test]
fn two_small_pages_of_the_source_fill_one_large_page_of_the_claim() {
    let leg = leg(32, 100, shape(16, 32, 3));
    // What lies below the skip stays, and the rest is counted from it.
    let job = made(&leg, &chunk(0..64, 0..6, 16));
    assert_eq!(job, Some((3..5, 32..64, 2..4, 0..1, 32 * 10 * 2)));
    // The request ends inside a page of either side.
    let job = made(&leg, &chunk(64..100, 0..6, 16));
    assert_eq!(job, Some((3..5, 64..100, 0..3, 1..3, 36 * 10 * 2)));
    assert_eq!(made(&leg, &chunk(0..32, 0..6, 16)), None);
}

#[test]
fn a_large_page_of_the_source_fills_two_of_the_claim_or_its_second_half_does() {
    let job = made(&leg(0, 90, shape(32, 16, 6)), &chunk(32..90, 0..6, 32));
    assert_eq!(job, Some((3..5, 32..90, 0..2, 2..6, 58 * 10 * 2)));
    let job = made(&leg(48, 90, shape(32, 16, 3)), &chunk(32..90, 0..6, 32));
    assert_eq!(job, Some((3..5, 48..90, 0..2, 0..3, 42 * 10 * 2)));
}

#[test]
fn layers_of_a_chunk_become_those_of_the_destination() {
    let leg = leg(0, 16, shape(16, 16, 1));
    let layers = |layers| made(&leg, &chunk(0..16, layers, 16)).map(|job| job.0);
    assert_eq!(layers(0..6), Some(3..5));
    assert_eq!(layers(1..2), Some(3..4));
    assert_eq!(layers(2..6), Some(4..5));
    // These the destination does not have, or another sender covers.
    assert_eq!(layers(0..1), None);
    assert_eq!(layers(3..6), None);
}

#[test]
fn where_planes_lie_apart_a_chunk_has_all_planes_of_its_layers() {
    let with = |pool_layers| {
        let mut shape = shape(16, 16, 1);
        shape.slice = shape.slice.map(|slice| SliceShape {
            pool_layers,
            ..slice
        });
        leg(0, 16, shape)
    };
    // Of six layers of the pool, two for each of the rank.
    let (by_layer, by_plane) = (with(2), with(0));
    let job = made(&by_layer, &chunk(0..16, 2..4, 16));
    assert_eq!(job.map(|job| job.0), Some(3..4));
    for layers in [2..3, 3..4] {
        let error = by_layer.jobs_for(&chunk(0..16, layers, 16)).unwrap_err();
        assert!(error.contains("cut the planes of a layer apart"), "{error}");
    }
    let job = made(&by_plane, &chunk(0..16, 0..6, 16));
    assert_eq!(job.map(|job| job.0), Some(3..5));
    let error = by_plane.jobs_for(&chunk(0..16, 0..3, 16)).unwrap_err();
    assert!(error.contains("push all 0..6 at once"), "{error}");
}

#[test]
fn a_chunk_that_is_cut_inside_a_page_of_the_claim_is_refused_with_the_place() {
    let leg = leg(0, 100, shape(16, 32, 4));
    for (tokens, at) in [(0..48, 48), (16..64, 16)] {
        let error = leg.jobs_for(&chunk(tokens, 0..6, 16)).unwrap_err();
        let says = format!("it is cut at token {at}, inside a page of the receiver");
        assert!(error.contains(&says), "{error}");
        assert!(error.contains("hold 32 tokens (here 16)"), "{error}");
    }
}

#[test]
fn a_row_is_one_page_whatever_the_tokens_are() {
    let mut row = shape(3, 3, 1);
    row.slice = row.slice.map(|slice| SliceShape { row: true, ..slice });
    let of_row = leg(48, 100, row);
    assert_eq!(check(&of_row.terms), Ok(()));
    let job = made(&of_row, &chunk(0..1, 0..6, 1));
    assert_eq!(job, Some((3..5, 0..1, 0..1, 0..1, 30 * 2)));
    let error = check(&leg(48, 100, SectionShape { pages: 2, ..row }).terms).unwrap_err();
    assert!(error.contains("2 pages for one row"), "{error}");
}
