//! The one request of this world, and what its parts look like to rooms and on the wire.
//!
//! ```text
//!   tokens 0 1 │ 2 3 │ 4 5 │ 6     four pages of two tokens, and an aux row
//!              └ rank 1 has the first page already
//! ```

use super::plane::{AUX, cell};
use super::size::Size;
use kvroom_actors::ids::{ChunkNo, LegNo, PoolId};
use kvroom_actors::peer::message::{Claim, ClaimTag, Part};
use kvroom_actors::room::event::{LegTerms, SectionShape};
use kvroom_actors::room::receiver::{LegPlan, Terms};
use kvroom_actors::room::{Chunk, JobSpec};
use kvroom_actors::supervisor::custody::Held;
use kvroom_kernels::coverage::{Coverage, Rect};
use std::collections::BTreeSet;

/// Its length and page size in tokens.
pub(crate) const TOTAL: u64 = 7;
const PAGE: u32 = 2;
const PAGES: u32 = 4;

/// The lease that a job reads.
pub(crate) fn held(spec: &JobSpec) -> Held {
    match spec {
        JobSpec::Pages { chunk, .. } => Held::Chunk(*chunk),
        JobSpec::Aux => Held::Aux,
    }
}

/// What must have been written when the receiver of this rank is done: as much by each sender.
pub(crate) fn cells(size: &Size, rank: usize) -> BTreeSet<u32> {
    let legs = (0..size.senders as u16).map(LegNo);
    let pages = || (0..PAGES - skip(rank)).chain([AUX]);
    legs.flat_map(|leg| pages().map(move |page| cell(leg, page)))
        .collect()
}

pub(crate) fn chunk(no: ChunkNo, (from, to): (u32, u32)) -> Chunk {
    let per = u64::from(PAGE);
    Chunk {
        no,
        pool: PoolId(0),
        tokens: u64::from(from) * per..(u64::from(to) * per).min(TOTAL),
        layers: 0..1,
        pages: (from..to).collect(),
        page_tokens: PAGE,
        pool_layers: 1,
    }
}

pub(crate) fn receiver_terms(size: &Size, rank: usize) -> Terms {
    let mut wanted = Coverage::new();
    wanted.insert(0, 0..1, 0..PAGES - skip(rank)).unwrap();
    wanted.insert(Rect::AUX, 0..1, 0..1).unwrap();
    Terms {
        legs: vec![LegPlan { wanted }; size.senders],
        total: TOTAL,
        checksum: size.checksum,
    }
}

/// The claim of this rank. Pools are not part of this world: its sections are empty.
pub(crate) fn claim(size: &Size, rank: usize, tag: ClaimTag) -> Box<Claim> {
    Box::new(Claim {
        tag,
        receivers: size.receivers as u16,
        rank: rank as u16,
        part: Part::Whole,
        sections: Vec::new(),
        skip: u64::from(skip(rank) * PAGE),
        total: TOTAL,
        aux: None,
        gate: 0,
        deadline_ms: u32::MAX,
        checksum: size.checksum,
        trace: None,
    })
}

/// What the sender makes of it.
pub(crate) fn leg_terms(claim: &Claim) -> LegTerms {
    LegTerms {
        receivers: claim.receivers,
        rank: claim.rank,
        skip: claim.skip,
        total: claim.total,
        sections: Box::new([SectionShape {
            pool: PoolId(0),
            layer: 0,
            layer_end: 1,
            page_tokens: PAGE,
            page_bytes: 64,
            pages: PAGES - skip(usize::from(claim.rank)),
            slice: None,
        }]),
        aux: true,
        checksum: claim.checksum,
    }
}

fn skip(rank: usize) -> u32 {
    u32::from(rank == 1)
}
