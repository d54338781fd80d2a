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
    #[allow(clippy::result_large_err)] // It is the planner's.
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
    #[allow(clippy::result_large_err)] // It is the planner's.
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
    #[allow(clippy::result_large_err)] // It is the planner's.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use kvroom_kernels::layout::cube::{CubeKind, DimOrder, Dtype, Plane, Share};

    /// 4 layers, two planes of 8 heads of 2 bytes, of which the rank holds some.
    fn holding(first: u32, held: u32, page_tokens: u32) -> Arc<CubeLayout> {
        let plane = Plane {
            heads: Share::part(8, first, held),
            channels: 1,
            dtype: Dtype::bf16(),
        };
        Arc::new(CubeLayout {
            name: "kv".into(),
            kind: CubeKind::Kv,
            layers: Share::part(9, 3, 4),
            planes: vec![plane; 2],
            page_tokens,
            granule: 1,
            pages: 8,
            page_gap: 0,
            order: DimOrder::NHD,
        })
    }

    fn heads(start: u32, end: u32) -> Part {
        Part {
            layers: Span::new(3, 7),
            heads: vec![Span::new(start, end); 2],
        }
    }

    fn pages(range: Range<usize>) -> PageList {
        PageList {
            list: Arc::new([0, 1, 2, 3, 4, 5, 6, 7]),
            range,
        }
    }

    /// Heads 0..4 to heads 2..8, of which the sender may write 2..4.
    fn both() -> (Slice, TargetSlice) {
        let (src, dst) = (holding(0, 4, 4), holding(2, 6, 8));
        let job = Slice {
            src,
            dst: Arc::clone(&dst),
            part: heads(2, 4),
            tokens: 16..30,
        };
        let target = TargetSlice {
            dst,
            part: heads(2, 4),
            tokens: 8..30,
        };
        (job, target)
    }

    #[test]
    fn a_job_has_the_bytes_of_its_layers_heads_and_tokens() {
        let (job, target) = both();
        // Two planes of two heads of two bytes, for 14 tokens.
        assert_eq!(job.bytes(0..1), 8 * 14);
        assert_eq!(job.bytes(1..4), 8 * 14 * 3);
        let plan = job.plan(1..4, pages(0..4), pages(1..3)).unwrap();
        assert_eq!(plan.total_bytes(), 8 * 14 * 3);
        let plan = target.plan(&job, 1..4, pages(0..4), pages(1..3));
        assert_eq!(plan.unwrap().total_bytes(), 8 * 14 * 3);
        // Layers that the part does not have.
        assert_eq!(job.bytes(4..9), 0);
    }

    #[test]
    fn what_a_job_asks_beyond_what_the_receiver_allows_is_not_planned() {
        let (mut job, mut target) = both();
        let writes = |target: &TargetSlice, job: &Slice, layers| {
            let plan = target.plan(job, layers, pages(0..4), pages(1..3)).unwrap();
            plan.total_bytes()
        };
        target.part = heads(3, 4);
        assert_eq!(writes(&target, &job, 0..4), 4 * 14 * 4);
        target.part.layers = Span::new(5, 6);
        assert_eq!(writes(&target, &job, 0..4), 4 * 14);
        // What it says of the destination counts for nothing.
        job.dst = holding(0, 8, 8);
        job.part = heads(0, 4);
        assert_eq!(writes(&target, &job, 0..4), 4 * 14);
        target.part = Part::nothing(2);
        let error = target.plan(&job, 0..4, pages(0..4), pages(1..3));
        assert!(error.unwrap_err().contains("the plan is empty"));
    }

    #[test]
    fn a_job_that_is_for_other_places_than_its_tokens_have_is_refused() {
        let (mut job, target) = both();
        let plan = |job: &Slice, from, to| target.plan(job, 0..4, from, to).map(|_| ());
        assert_eq!(plan(&job, pages(0..4), pages(1..3)), Ok(()));
        let error = plan(&job, pages(0..4), pages(0..2)).unwrap_err();
        assert!(error.contains("do not begin at place 0"), "{error}");
        job.tokens = 16..31;
        let error = plan(&job, pages(0..4), pages(1..3)).unwrap_err();
        assert!(error.contains("which is for 8..30"), "{error}");
        job.tokens = 0..14;
        let error = plan(&job, pages(0..4), pages(0..2)).unwrap_err();
        assert!(error.contains("which is for 8..30"), "{error}");
    }

    #[test]
    fn both_sides_have_the_same_rows_of_what_is_carried() {
        let (job, target) = both();
        let here: Vec<_> = job.rows(0..4, pages(0..4)).unwrap().collect();
        let there = Slice {
            src: Arc::clone(&target.dst),
            ..job
        };
        let there: Vec<_> = there.rows(0..4, pages(1..3)).unwrap().collect();
        assert_eq!(here.len(), 4 * 2 * 2 * 14);
        let names = |rows: &[kvroom_kernels::plan::cube::Row]| {
            rows.iter().map(|row| row.name).collect::<Vec<_>>()
        };
        assert_eq!(names(&here), names(&there));
    }
}
