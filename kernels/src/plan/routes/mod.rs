//! Which ranks of one side send what to which ranks of the other.
//!
//! ```text
//!   prefill, TP 4, 2 heads          decode, TP 2          legs
//!   rank 0: head 0 ─────────────▶   rank 0: head 0        0 → 0
//!   rank 1: head 0   silent                               2 → 1
//!   rank 2: head 1 ─────────────▶   rank 1: head 1        1 and 3 hold the same and stay silent
//!   rank 3: head 1   silent
//! ```
//!
//! Nothing here computes with tensor-parallel sizes: for every cell (layer, plane, head) that a
//! receiver holds, one of the senders that hold it is chosen. That is right for any two cuttings of
//! the model, replicas of grouped heads and uneven stages included, and for pools that are cut
//! differently within one rank (heads of the attention replicated, those of a state split).
//!
//! Of several senders that hold a cell, the choice falls on one that has a leg to this receiver
//! already, then on the one with the least to send, then by turns. So replicas share the receivers
//! among them; ranks that no leg names are silent. `turn` (a number of the request) says where
//! turns begin, so that over many requests all replicas are used.
//!
//! Scales go with their data, in the same leg. An aux row goes by exactly one leg to each receiver:
//! a rank that has no valid one leaves the pool out of its set.
//!
//! The same ranks in the same order and the same `turn` give the same routes everywhere; either side
//! can compute them.
//!
//! ```
//! use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share};
//! use kvroom_kernels::plan::cube::{CubePlan, PageList};
//! use kvroom_kernels::plan::routes::routes;
//!
//! // What a rank holds of 32 layers and 4 heads of 128 channels.
//! let rank = |rank: u32, ranks: u32, order: DimOrder| {
//!     let heads = Share::of_rank(4, rank, ranks)?;
//!     let plane = Plane { heads, channels: 128, dtype: Dtype::bf16() };
//!     Some([CubeLayout {
//!         name: "kv".into(),
//!         kind: CubeKind::Kv,
//!         layers: Share::whole(32),
//!         planes: vec![plane.clone(), plane],
//!         page_tokens: 16,
//!         granule: 1,
//!         pages: 1000,
//!         page_gap: 0,
//!         order,
//!     }])
//! };
//! let side = |ranks, order| -> Option<Vec<_>> { (0..ranks).map(|r| rank(r, ranks, order)).collect() };
//! let prefill = side(4, DimOrder::NHD).ok_or("4 ranks do not divide the heads")?;
//! let decode = side(2, DimOrder::HND).ok_or("2 ranks do not divide the heads")?;
//!
//! let plan = routes(&prefill, &decode, 0)?;
//! let legs: Vec<_> = plan.legs.iter().map(|leg| (leg.sender, leg.receiver)).collect();
//! assert_eq!(legs, [(0, 0), (1, 0), (2, 1), (3, 1)]);
//!
//! // The last leg: 20 tokens, in two pages on either side.
//! let (leg, of) = (&plan.legs[3], &plan.legs[3].parts[0]);
//! let (src, dst) = (&prefill[leg.sender][of.src_pool], &decode[leg.receiver][of.dst_pool]);
//! let (from, to) = (PageList::whole([7, 2]), PageList::whole([501, 500]));
//! let mut copy = CubePlan::new(src, dst, from, to, 0..20, &of.part)?;
//! assert_eq!(copy.total_bytes(), 20 * 32 * 2 * 256);
//! while let Some(piece) = copy.next_piece(128 << 10) {
//!     assert!(piece.bytes <= 128 << 10);
//!     // copy piece.bytes from piece.src of the sender's pool to piece.dst of the receiver's
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod choose;
mod error;

pub use error::RouteError;

use super::cube::Part;
use crate::layout::cube::{CubeKind, CubeLayout, explain_sets, validate_set};
use crate::plan::End;
use choose::{Choice, Chooser};
use serde::{Deserialize, Serialize};

/// Most ranks of one side.
pub const MAX_RANKS: usize = 256;
/// Most pools of one rank.
pub const MAX_POOLS: usize = 32;
/// Most candidates that are looked at for one set of routes. 256 ranks of 32 heads and 8 stages onto
/// 256 that hold everything need a quarter of it; what exceeds it was made to cost time.
pub const MAX_WORK: u64 = 1 << 26;

/// Everything one receiver gets from one sender.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Leg {
    /// Index of the sending rank.
    pub sender: usize,
    /// Index of the receiving rank.
    pub receiver: usize,
    /// What it carries, in the order of the receiver's pools, aux rows last; at least one.
    pub parts: Vec<PoolPart>,
}

/// What a leg carries of one pool. A pool may be named by several of them, which do not overlap.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PoolPart {
    /// Index of the pool in the sender's set.
    pub src_pool: usize,
    /// Index of the pool in the receiver's set.
    pub dst_pool: usize,
    /// Layers and heads.
    pub part: Part,
}

/// Who sends what to whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Routes {
    /// By receiver, then by sender.
    pub legs: Vec<Leg>,
    /// Senders without a leg.
    pub silent: Vec<usize>,
}

impl Routes {
    /// The legs that one receiver waits for.
    pub fn to(&self, receiver: usize) -> impl Iterator<Item = &Leg> {
        self.legs.iter().filter(move |leg| leg.receiver == receiver)
    }

    /// The legs that one sender serves.
    pub fn from(&self, sender: usize) -> impl Iterator<Item = &Leg> {
        self.legs.iter().filter(move |leg| leg.sender == sender)
    }
}

/// Routes from `senders` to `receivers`: the pools of each rank. Every cell of every receiver is
/// served exactly once.
///
/// # Errors
/// [`RouteError`] says which rank's pools are wrong, what the sides differ in, or what nobody holds.
pub fn routes<S, R>(senders: &[S], receivers: &[R], turn: u64) -> Result<Routes, RouteError>
where
    S: AsRef<[CubeLayout]>,
    R: AsRef<[CubeLayout]>,
{
    let senders: Vec<&[CubeLayout]> = senders.iter().map(AsRef::as_ref).collect();
    let receivers: Vec<&[CubeLayout]> = receivers.iter().map(AsRef::as_ref).collect();
    check(End::Source, &senders)?;
    check(End::Destination, &receivers)?;
    explain_sets(
        senders.iter().flat_map(|set| set.iter()),
        receivers.iter().flat_map(|set| set.iter()),
    )?;
    within(MAX_WORK, &senders, &receivers, turn)
}

/// Routes between sets that were checked, if no more than `work` candidates need be looked at.
fn within(
    work: u64,
    senders: &[&[CubeLayout]],
    receivers: &[&[CubeLayout]],
    turn: u64,
) -> Result<Routes, RouteError> {
    let mut chooser = Chooser::new(senders, turn, work);
    let mut legs = Vec::new();
    for (receiver, pools) in receivers.iter().enumerate() {
        chooser.next_receiver(receiver);
        let mut choices: Vec<Vec<Choice>> = vec![Vec::new(); pools.len()];
        for at in in_order(pools) {
            let data = match &pools[at].kind {
                CubeKind::Scale { of } => pools.iter().position(|p| p.name == *of),
                _ => None,
            };
            let lead = data.map(|data| (&pools[data], choices[data].as_slice()));
            let made = chooser.choose(&pools[at], lead)?;
            choices[at] = made;
        }
        legs.extend(legs_of(senders, receiver, pools, &choices));
    }
    let silent = (0..senders.len())
        .filter(|sender| legs.iter().all(|leg| leg.sender != *sender))
        .collect();
    Ok(Routes { legs, silent })
}

fn check(end: End, ranks: &[&[CubeLayout]]) -> Result<(), RouteError> {
    if ranks.len() > MAX_RANKS {
        let ranks = ranks.len();
        return Err(RouteError::Ranks { end, ranks });
    }
    for (rank, pools) in ranks.iter().enumerate() {
        if pools.len() > MAX_POOLS {
            let pools = pools.len();
            return Err(RouteError::Pools { end, rank, pools });
        }
        validate_set(pools).map_err(|error| RouteError::Set {
            end,
            rank,
            error: Box::new(error),
        })?;
    }
    Ok(())
}

/// Data first, scales after what they belong to, and rows last, so that these go by legs which are
/// there anyway.
fn in_order(pools: &[CubeLayout]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..pools.len()).collect();
    order.sort_by_key(|at| match pools[*at].kind {
        CubeKind::Kv | CubeKind::Latent | CubeKind::IndexK => 0,
        CubeKind::State => 1,
        CubeKind::Scale { .. } => 2,
        CubeKind::Aux => 3,
    });
    order
}

/// Gathers one receiver's choices by sender.
fn legs_of(
    senders: &[&[CubeLayout]],
    receiver: usize,
    pools: &[CubeLayout],
    choices: &[Vec<Choice>],
) -> Vec<Leg> {
    let mut legs = Vec::new();
    let rows_last = |at: &usize| matches!(pools[*at].kind, CubeKind::Aux);
    let mut order: Vec<usize> = (0..pools.len()).collect();
    order.sort_by_key(rows_last);
    for (sender, held) in senders.iter().enumerate() {
        let mut parts = Vec::new();
        for &dst_pool in &order {
            let pool = &pools[dst_pool];
            let Some(src_pool) = held.iter().position(|p| p.name == pool.name) else {
                continue;
            };
            for part in choose::parts(&choices[dst_pool], sender, pool.planes.len()) {
                parts.push(PoolPart {
                    src_pool,
                    dst_pool,
                    part,
                });
            }
        }
        if !parts.is_empty() {
            legs.push(Leg {
                sender,
                receiver,
                parts,
            });
        }
    }
    legs
}

#[cfg(test)]
mod tests;
