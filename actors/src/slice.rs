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
use kvroom_kernels::plan::cube::{CubePlan, CubePlanError, PageList, Part, Rows};
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
    /// Bytes that `layers` (of the destination rank, from 0) have; `u64::MAX` if they are more.
    #[must_use]
    pub fn bytes(&self, layers: Range<u32>) -> u64 {
        let part = self.of_layers(layers);
        let granules = granules(&self.dst, &self.tokens);
        part.granule_bytes(&self.dst)
            .saturating_mul(u64::from(part.layers.len()))
            .saturating_mul(granules)
    }

    /// The same tokens and heads, of these layers of the destination rank, from 0.
    fn of_layers(&self, layers: Range<u32>) -> Part {
        let first = self.dst.layers.first;
        let layers = Span::new(
            first.saturating_add(layers.start),
            first.saturating_add(layers.end),
        );
        self.part.of_layers(layers)
    }

    /// The rows of `layers` (of the destination rank, from 0) as the source has them.
    ///
    /// # Errors
    /// [`CubePlanError`]: the pages do not hold them.
    pub fn rows(&self, layers: Range<u32>, from: PageList) -> Result<Rows, CubePlanError> {
        Rows::new(
            &self.src,
            from,
            self.tokens.clone(),
            &self.of_layers(layers),
        )
    }

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
        let part = self.of_layers(layers);
        CubePlan::new(&self.src, &self.dst, from, to, self.tokens.clone(), &part)
    }
}

impl TargetSlice {
    /// The copy that a job of the sender may make: its own layout and tokens, and no more than the
    /// receiver has said of layers and heads. `to` is where in the claim's list the pages begin.
    ///
    /// # Errors
    /// In words: the job is for other pages than its tokens have, or the two ends do not fit.
    pub fn plan(
        &self,
        job: &Slice,
        layers: Range<u32>,
        from: PageList,
        to: PageList,
    ) -> Result<CubePlan, String> {
        let page = u64::from(self.dst.page_tokens.max(1));
        let (first, end) = (job.tokens.start, job.tokens.end);
        let inside = self.tokens.start <= first && end <= self.tokens.end;
        let place = (first / page).saturating_sub(self.tokens.start / page);
        if !self.dst.kind.is_row() && (!inside || place != to.range.start as u64) {
            return Err(format!(
                "tokens {first}..{end} do not begin at place {} of the claim, which is for {}..{}",
                to.range.start, self.tokens.start, self.tokens.end
            ));
        }
        let allowed = Slice {
            src: Arc::clone(&job.src),
            dst: Arc::clone(&self.dst),
            part: self.part.clone(),
            tokens: job.tokens.clone(),
        };
        allowed
            .plan(layers, from, to)
            .map_err(|error| error.to_string())
    }

    /// The rows that the claim's pages have of what the sender covers.
    ///
    /// # Errors
    /// [`CubePlanError`]: the pages do not hold them.
    pub fn rows(&self, pages: Arc<[u32]>) -> Result<Rows, CubePlanError> {
        let pages = PageList::whole(pages);
        Rows::new(&self.dst, pages, self.tokens.clone(), &self.part)
    }
}

/// How many granules the tokens have; of a row pool, those of its row.
fn granules(layout: &CubeLayout, tokens: &Range<u64>) -> u64 {
    if layout.kind.is_row() {
        return u64::from(layout.page_granules());
    }
    let granule = u64::from(layout.granule.max(1));
    tokens
        .end
        .div_ceil(granule)
        .saturating_sub(tokens.start / granule)
}
