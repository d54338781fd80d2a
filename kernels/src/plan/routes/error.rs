//! What routes cannot be made from.

use super::{MAX_POOLS, MAX_RANKS};
use crate::layout::cube::{CubeError, CubeMismatch, Span};
use crate::plan::End;

/// Routes that cannot be made. The ranks must be configured so that together they fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// One side has too many ranks.
    #[error("the {end} has {ranks} ranks; the most is {MAX_RANKS}")]
    Ranks {
        /// Which side.
        end: End,
        /// How many.
        ranks: usize,
    },
    /// A rank has too many pools.
    #[error("rank {rank} of the {end} has {pools} pools; the most is {MAX_POOLS}")]
    Pools {
        /// Which side.
        end: End,
        /// Which rank.
        rank: usize,
        /// How many.
        pools: usize,
    },
    /// A rank's pools are no set that a rank can have.
    #[error("rank {rank} of the {end}: {error}")]
    Set {
        /// Which side.
        end: End,
        /// Which rank.
        rank: usize,
        /// What is wrong with it.
        error: Box<CubeError>,
    },
    /// The sides cannot be planned onto each other.
    #[error(transparent)]
    Mismatch(#[from] CubeMismatch),
    /// A receiver holds something that no sender does.
    #[error(
        "receiver {receiver} holds layers {layers}, heads {heads} of plane {plane} of pool {pool:?}, \
         which no sender holds; a rank is missing, or its share is wrong"
    )]
    Uncovered {
        /// The receiving rank.
        receiver: usize,
        /// The pool's name.
        pool: String,
        /// Layers.
        layers: Span,
        /// The plane.
        plane: usize,
        /// Heads.
        heads: Span,
    },
    /// The model is cut into too many small parts.
    #[error("the ranks cut pool {pool:?} into too many parts; cut it in larger ones")]
    Ragged {
        /// The pool's name.
        pool: String,
    },
}
