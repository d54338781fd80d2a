//! What a plan cannot be made from.

use crate::layout::{LayoutError, Mismatch};
use std::fmt;

/// One end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum End {
    /// Where bytes are read.
    Source,
    /// Where bytes are written.
    Destination,
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            End::Source => "source",
            End::Destination => "destination",
        })
    }
}

/// A plan that cannot be made. Nothing was planned; whoever named the pages must correct them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// A layout is not one that a pool can have.
    #[error("{end} layout: {error}")]
    Layout {
        /// Whose layout.
        end: End,
        /// What is wrong with it.
        error: LayoutError,
    },
    /// The two pools cannot be planned onto each other.
    #[error(transparent)]
    Mismatch(#[from] Mismatch),
    /// The layer range is inverted or outside the pool.
    #[error("layers {start}..{end} are not in the pools, which have layers 0..{layers}")]
    Layers {
        /// First layer asked for.
        start: u32,
        /// One past the last.
        end: u32,
        /// Layers of both pools.
        layers: u32,
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
    /// The two ranges do not name equally many pages.
    #[error("{src} source pages cannot fill {dst} destination pages; name equally many")]
    LengthsDiffer {
        /// Pages of the source range.
        src: usize,
        /// Pages of the destination range.
        dst: usize,
    },
    /// No page or no layer was named.
    #[error("the plan is empty; name at least one page and one layer")]
    Empty,
    /// The bytes do not fit a `u64`, which lists without repeated pages always do.
    #[error("the plan has more than 2^64 bytes; the lists must repeat pages")]
    TooLarge,
}
