//! What a leg carries of a section where both pools say what their bytes mean.
//!
//! ```text
//!   source rank: heads 0..2, pages of 16        destination rank: heads 1..4, pages of 32
//!   token │0      16      32 …                  token │0              32 …
//!         │ page 9│ page 4│        ── heads 1..2 ──▶  │ page 3        │
//! ```
//!
//! A job's [`Place`](crate::copy::job::Place) names pages on both sides; with a slice these are not alike, and
//! not equally many. Layers count in the destination rank, from 0; heads and a part's layers are the
//! model's.

mod cells;

pub use cells::{At, SliceCells};

use kvroom_kernels::layout::cube::{CubeLayout, Span};
use kvroom_kernels::plan::cube::{CubePlan, CubePlanError, PageList, Part};
use std::ops::Range;
use std::sync::Arc;

/// Both layouts, and which layers, heads and tokens are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Slice {
    /// The sender's.
    pub src: Arc<CubeLayout>,
    /// The receiver's.
    pub dst: Arc<CubeLayout>,
    /// What the leg carries of them.
    pub part: Part,
    /// Tokens of the request that the places of the job hold.
    pub tokens: Range<u64>,
}

/// What one sender may write of a section of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetSlice {
    /// The receiver's layout.
    pub dst: Arc<CubeLayout>,
    /// What the sender covers of it.
    pub part: Part,
    /// Tokens of the request that the claim's pages hold.
    pub tokens: Range<u64>,
}

impl Slice {
    /// The copy of `layers` (of the destination rank, from 0) from pages to pages.
    ///
    /// # Errors
    /// [`CubePlanError`]: the two ends do not fit.
    pub fn plan(
        &self,
        layers: Range<u32>,
        from: PageList,
        to: PageList,
    ) -> Result<CubePlan, CubePlanError> {
        let first = self.dst.layers.first;
        let layers = Span::new(
            first.saturating_add(layers.start),
            first.saturating_add(layers.end),
        );
        let part = self.part.of_layers(layers);
        CubePlan::new(&self.src, &self.dst, from, to, self.tokens.clone(), &part)
    }
}
