//! Numbered cubes, moved between ranks and compared to the last byte.
//!
//! Every byte of memory is a 64-bit number: which byte of which row of which cell of the model it
//! is. So no two bytes are equal, and a byte in the wrong place is found whatever it is.

use super::{Addresses, Numbers, Row, row_bytes};
use crate::layout::cube::CubeLayout;
use crate::plan::Piece;
use crate::plan::cube::{CubePlan, PageList, Part};
use crate::plan::routes::{RouteError, Routes, routes};
use std::ops::Range;

/// What was in the memory of a receiver before.
const FREE: u64 = u64::MAX;
/// What a sender has outside the request.
const JUNK: u64 = u64::MAX - 1;

/// Makes the pieces of one part. The one under test, or one with a fault.
pub(crate) type Planner =
    dyn Fn(&CubeLayout, &CubeLayout, PageList, PageList, Range<u64>, &Part) -> Vec<Piece>;
/// Makes the routes.
pub(crate) type Router =
    dyn Fn(&[Vec<CubeLayout>], &[Vec<CubeLayout>], u64) -> Result<Routes, RouteError>;

/// One request between two sets of ranks.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) senders: Vec<Vec<CubeLayout>>,
    pub(crate) receivers: Vec<Vec<CubeLayout>>,
    pub(crate) tokens: Range<u64>,
    pub(crate) turn: u64,
    pub(crate) seed: u64,
}

/// A rank's pool with its memory and the pages of the request.
struct Held<'a> {
    layout: &'a CubeLayout,
    rows: Addresses,
    memory: Vec<u64>,
    pages: PageList,
}

pub(crate) fn planner(
    src: &CubeLayout,
    dst: &CubeLayout,
    from: PageList,
    to: PageList,
    tokens: Range<u64>,
    part: &Part,
) -> Vec<Piece> {
    let plan = CubePlan::new(src, dst, from, to, tokens, part).unwrap();
    plan.runs().collect()
}

impl World {
    /// Moves the request as the code under test plans it.
    pub(crate) fn check(&self) -> Result<(), String> {
        self.check_with(&|s, r, turn| routes(s, r, turn), &planner)
    }

    /// Moves the request as `router` and `planner` say. An error says what is not as it must be.
    pub(crate) fn check_with(&self, router: &Router, planner: &Planner) -> Result<(), String> {
        let mut numbers = Numbers(self.seed);
        let mut sources = self.side(&self.senders, JUNK, &mut numbers);
        for held in sources.iter_mut().flatten() {
            self.number(held);
        }
        let mut sinks = self.side(&self.receivers, FREE, &mut numbers);
        let plan = router(&self.senders, &self.receivers, self.turn).map_err(|e| e.to_string())?;
        for leg in &plan.legs {
            for part in &leg.parts {
                let src = &sources[leg.sender][part.src_pool];
                let dst = &mut sinks[leg.receiver][part.dst_pool];
                let lists = (src.pages.clone(), dst.pages.clone());
                let tokens = self.tokens.clone();
                let pieces = planner(src.layout, dst.layout, lists.0, lists.1, tokens, &part.part);
                for piece in pieces {
                    copy(src, dst, piece)
                        .map_err(|e| format!("leg {} to {}: {e}", leg.sender, leg.receiver))?;
                }
            }
        }
        for (rank, held) in sinks.into_iter().enumerate() {
            for got in held {
                let mut wanted = Held {
                    memory: vec![FREE; got.memory.len()],
                    ..got
                };
                self.number(&mut wanted);
                if got.memory == wanted.memory {
                    continue;
                }
                let differs = |(a, b): (&u64, &u64)| a != b;
                if let Some(at) = got.memory.iter().zip(&wanted.memory).position(differs) {
                    let name = &wanted.layout.name;
                    let (got, wanted) = (got.memory[at], wanted.memory[at]);
                    return Err(format!(
                        "receiver {rank}, pool {name}, byte {at}: {got:x} instead of {wanted:x}"
                    ));
                }
            }
        }
        Ok(())
    }

    fn side<'a>(
        &self,
        ranks: &'a [Vec<CubeLayout>],
        fill: u64,
        numbers: &mut Numbers,
    ) -> Vec<Vec<Held<'a>>> {
        let mut one = |layout: &'a CubeLayout| {
            let rows = Addresses::new(layout);
            let memory = vec![fill; rows.bytes as usize];
            let count = match layout.kind.is_row() {
                true => 1,
                false => {
                    let page = u64::from(layout.page_tokens);
                    let last = (self.tokens.end - 1) / page;
                    (last - self.tokens.start / page + 1) as usize
                }
            };
            let before = numbers.among(0, 2) as usize;
            let mut list = vec![u32::MAX; before];
            list.extend(numbers.distinct(count, layout.pages));
            list.push(u32::MAX);
            let range = before..before + count;
            let list = list.into();
            Held {
                layout,
                rows,
                memory,
                pages: PageList { list, range },
            }
        };
        ranks
            .iter()
            .map(|pools| pools.iter().map(&mut one).collect())
            .collect()
    }

    /// Writes the cube's numbers wherever the request's pages have them.
    fn number(&self, held: &mut Held<'_>) {
        let layout = held.layout;
        let pages = &held.pages.list[held.pages.range.clone()];
        let per_page = u64::from(layout.page_tokens / layout.granule);
        let (granules, first_page) = match layout.kind.is_row() {
            true => (0..per_page, 0),
            false => {
                let granule = u64::from(layout.granule);
                let range = self.tokens.start / granule..self.tokens.end.div_ceil(granule);
                let first = range.start / per_page;
                (range, first)
            }
        };
        for (row, at) in &held.rows.rows {
            let Some(place) = pages.iter().position(|page| *page == row.page) else {
                continue;
            };
            let granule = (first_page + place as u64) * per_page + u64::from(row.granule);
            if granules.contains(&granule) {
                let number = number(layout, *row, granule);
                for byte in 0..row_bytes(layout, row.plane) {
                    held.memory[(at + byte) as usize] = number + byte;
                }
            }
        }
    }
}

/// The number of a row's first byte. The same row of the model has the same number on all ranks.
fn number(layout: &CubeLayout, row: Row, granule: u64) -> u64 {
    let name = layout
        .name
        .bytes()
        .fold(0_u64, |sum, b| sum * 31 + u64::from(b))
        % 61;
    let layer = u64::from(layout.layers.first + row.layer);
    let head = u64::from(layout.planes[row.plane].heads.first + row.head);
    let mut number = name;
    for (index, bits) in [
        (layer, 8),
        (row.plane as u64, 3),
        (head, 10),
        (granule, 16),
        (0, 10),
    ] {
        assert!(index < 1 << bits);
        number = number << bits | index;
    }
    number
}

fn copy(src: &Held<'_>, dst: &mut Held<'_>, piece: Piece) -> Result<(), String> {
    let range = |from: u64| from as usize..(from + piece.bytes) as usize;
    let bytes = src.memory.get(range(piece.src));
    let room = dst.memory.get_mut(range(piece.dst));
    let (Some(bytes), Some(room)) = (bytes, room) else {
        return Err(format!("{piece:?} is outside the pool"));
    };
    if room.iter().any(|byte| *byte != FREE) {
        return Err(format!("{piece:?} is written a second time"));
    }
    room.copy_from_slice(bytes);
    Ok(())
}
