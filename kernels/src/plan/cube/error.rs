//! What a plan between cubes cannot be made from.

use crate::layout::cube::{CubeError, CubeMismatch, Span};
use crate::plan::End;

/// A plan that cannot be made. Nothing was planned; whoever named the pages must correct them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CubePlanError {
    /// A layout is not one that a pool can have.
    #[error("{end} layout: {error}")]
    Layout {
        /// Whose layout.
        end: End,
        /// What is wrong with it.
        error: CubeError,
    },
    /// The two pools cannot be planned onto each other.
    #[error(transparent)]
    Mismatch(#[from] CubeMismatch),
    /// One end does not hold all layers asked for.
    #[error("layers {asked} were asked for; the {end} holds {held}")]
    Layers {
        /// Which end.
        end: End,
        /// The layers asked for.
        asked: Span,
        /// What it holds.
        held: Span,
    },
    /// The part does not name one range of heads for each plane.
    #[error("the part names heads of {named} planes; the pool has {planes}")]
    Planes {
        /// Ranges in the part.
        named: usize,
        /// Planes of the pool.
        planes: usize,
    },
    /// One end does not hold all heads asked for.
    #[error("heads {asked} of plane {plane} were asked for; the {end} holds {held}")]
    Heads {
        /// Which end.
        end: End,
        /// The plane.
        plane: usize,
        /// The heads asked for.
        asked: Span,
        /// What it holds.
        held: Span,
    },
    /// The tokens are inverted, or begin within a granule.
    #[error("tokens {start}..{stop} are no range that begins at a multiple of {granule}")]
    Tokens {
        /// First token.
        start: u64,
        /// One past the last.
        stop: u64,
        /// Tokens that are never cut apart.
        granule: u32,
    },
    /// A range is inverted or outside its page list.
    #[error("{end} pages {start}..{stop} are not in the list, which has {len} entries")]
    ListRange {
        /// Whose list.
        end: End,
        /// First position asked for.
        start: usize,
        /// One past the last.
        stop: usize,
        /// Entries in the list.
        len: usize,
    },
    /// The pages named are more or fewer than those that hold the tokens.
    #[error("{needed} {end} pages hold the tokens and {named} were named; name exactly those")]
    PageCount {
        /// Whose pages.
        end: End,
        /// How many hold a token of the range.
        needed: u64,
        /// How many were named.
        named: usize,
    },
    /// A page index is outside its pool.
    #[error(
        "{end} page {page} at position {position} of the list is not in the pool, which has pages \
         0..{pages}"
    )]
    PageOutOfRange {
        /// Whose list.
        end: End,
        /// Where in the list.
        position: usize,
        /// The index found there.
        page: u32,
        /// Pages of the pool.
        pages: u32,
    },
    /// No page, token, layer or head was named.
    #[error("the plan is empty; name at least one page, token, layer and head")]
    Empty,
    /// The bytes do not fit a `u64`, which lists without repeated pages always do.
    #[error("the plan has more than 2^64 bytes; the lists must repeat pages")]
    TooLarge,
}
