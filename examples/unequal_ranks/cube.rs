//! A numbered cube: what every byte of a request must be, in whatever pool it lies.
//!
//! ```text
//!   (pool, layer, plane, head, token, byte)  ─▶  one number, the same on all ranks
//!   memory of a rank, walked from its first byte on in the order of its layout  ─▶  an image of its pages
//! ```
//!
//! Nothing here uses a plan or a stride of what is judged: where a byte lies is found by counting.
#![allow(dead_code)] // Each user uses a part of it.

use kvroom::layout::{CubeLayout, Dim};
use kvroom::{Order, PoolLayout, WriteLease};
use std::ops::Range;

/// What is in the pages of a source beside the request, and in those of a destination before it.
pub(crate) const JUNK: u8 = 0xa5;
pub(crate) const FREE: u8 = 0x5a;

/// A row of a pool, by what the rank counts.
#[derive(Clone, Copy, Default)]
struct Row {
    plane: usize,
    page: u32,
    layer: u32,
    head: u32,
    granule: u32,
}

/// Tells of each row, in the order of memory, where it begins; gives the bytes of all.
fn walk(
    of: &CubeLayout,
    depth: usize,
    row: Row,
    mut at: usize,
    tell: &mut impl FnMut(Row, usize),
) -> usize {
    let Some(dim) = of.order.0.get(depth) else {
        tell(row, at);
        return at + row_bytes(of, row.plane);
    };
    let count = match dim {
        Dim::Page => of.pages,
        Dim::Layer => of.layers.held,
        Dim::Plane => of.planes.len() as u32,
        Dim::Head => of.planes[row.plane].heads.held,
        Dim::Token => of.page_tokens / of.granule,
    };
    for i in 0..count {
        let mut next = row;
        match dim {
            Dim::Page => next.page = i,
            Dim::Layer => next.layer = i,
            Dim::Plane => next.plane = i as usize,
            Dim::Head => next.head = i,
            Dim::Token => next.granule = i,
        }
        at = walk(of, depth + 1, next, at, tell);
        if *dim == Dim::Page {
            at += of.page_gap as usize;
        }
    }
    at
}

fn row_bytes(of: &CubeLayout, plane: usize) -> usize {
    let p = &of.planes[plane];
    p.channels as usize * of.granule as usize * usize::from(p.dtype.bits) / 8
}

/// The number of a row, by what the model counts (SplitMix64 of all indices).
fn number(of: &CubeLayout, row: Row, granule: u64) -> u64 {
    let layer = u64::from(of.layers.first + row.layer);
    let head = u64::from(of.planes[row.plane].heads.first + row.head);
    let mut z = of.name.bytes().fold(7_u64, |z, b| z * 31 + u64::from(b));
    for index in [layer, row.plane as u64, head, granule] {
        z = (z ^ index).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
    }
    z
}

/// How many pages of a pool hold these tokens of a request; one for a row of states.
pub(crate) fn pages_of(of: &CubeLayout, tokens: &Range<u64>) -> u32 {
    of.pages_of(tokens.clone()) as u32
}

/// What the cells of these pages hold, if they hold the tokens: by layer of the pool, then by place. All
/// that is not of the request is `free`.
fn image(
    of: &CubeLayout,
    cells: &PoolLayout,
    pages: &[u32],
    tokens: &Range<u64>,
    free: u8,
) -> Vec<Vec<Vec<u8>>> {
    let in_page = u64::from(of.page_tokens / of.granule);
    let granule = u64::from(of.granule);
    let (granules, first) = match of.kind.is_row() {
        true => (0..in_page, 0),
        false => {
            let granules = tokens.start / granule..tokens.end.div_ceil(granule);
            (granules.clone(), granules.start / in_page)
        }
    };
    let mut memory = vec![free; of.bytes().unwrap_or(0) as usize];
    let end = walk(of, 0, Row::default(), 0, &mut |row, at| {
        let Some(place) = pages.iter().position(|page| *page == row.page) else {
            return;
        };
        let granule = (first + place as u64) * in_page + u64::from(row.granule);
        if granules.contains(&granule) {
            let number = number(of, row, granule).to_le_bytes();
            for (i, byte) in memory[at..at + row_bytes(of, row.plane)]
                .iter_mut()
                .enumerate()
            {
                *byte = number[i % 8].wrapping_add((i / 8) as u8);
            }
        }
    });
    assert_eq!(
        end,
        memory.len(),
        "the pool has other bytes than were counted"
    );
    let cell = |layer: u32, page: u32| {
        let n = match cells.order {
            Order::LayersFirst => layer * cells.pages + page,
            Order::PagesFirst => page * cells.layers + layer,
        };
        let bytes = cells.page_bytes as usize;
        memory[n as usize * bytes..][..bytes].to_vec()
    };
    (0..cells.layers)
        .map(|layer| pages.iter().map(|page| cell(layer, *page)).collect())
        .collect()
}

/// Writes the request's numbers into the pages of a source.
pub(crate) fn fill(lease: &mut WriteLease, of: &CubeLayout, tokens: &Range<u64>) {
    let cells = PoolLayout::clone(lease.pool().layout());
    let image = image(of, &cells, lease.pages(), tokens, JUNK);
    for (layer, places) in (0..).zip(image) {
        for (place, bytes) in places.into_iter().enumerate() {
            lease.page_mut(layer, place).copy_from_slice(&bytes);
        }
    }
}

/// Writes over all pages of a destination.
pub(crate) fn clear(lease: &mut WriteLease) {
    let cells = PoolLayout::clone(lease.pool().layout());
    for layer in 0..cells.layers {
        for place in 0..lease.pages().len() {
            lease.page_mut(layer, place).fill(FREE);
        }
    }
}

/// How many bytes of the pages are right, if all are: the request's numbers where it is, and nothing
/// changed where it is not.
pub(crate) fn check(
    lease: &WriteLease,
    of: &CubeLayout,
    tokens: &Range<u64>,
) -> Result<u64, String> {
    let cells = lease.pool().layout();
    let mut right = 0;
    let image = image(of, cells, lease.pages(), tokens, FREE);
    for (layer, places) in (0..).zip(image) {
        for (place, wanted) in places.into_iter().enumerate() {
            let got = lease.page(layer, place);
            if let Some(at) = (got.iter().zip(&wanted)).position(|(a, b)| a != b) {
                return Err(format!(
                    "pool {}, layer {layer}, place {place}, byte {at}: {:02x} instead of {:02x}",
                    of.name, got[at], wanted[at]
                ));
            }
            right += wanted.len() as u64;
        }
    }
    Ok(right)
}
