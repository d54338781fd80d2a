//! One leg of a sender room: what its claim wants, what was posted, what has landed.

use crate::room::event::{Chunk, JobSpec, LegTerms};
use kvroom_kernels::coverage::{Coverage, Rect};
use std::sync::Arc;

/// How far a leg is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    /// Pages are being copied, or are still to be pushed.
    Pages,
    /// All pages have landed; the aux row is under way.
    Aux,
    /// `Complete` was said.
    Complete,
    /// `Accepted` came back.
    Accepted,
    /// A gate refused a piece; the peer's reason is on its way.
    Refused,
}

/// Whether a claim's sections agree with its own range of tokens, so that no copy can leave its
/// list of pages and none of the list stays unwritten.
pub(super) fn check(terms: &LegTerms) -> Result<(), String> {
    for (i, s) in terms.sections.iter().enumerate() {
        if terms.sections[..i].iter().any(|t| t.pool == s.pool) {
            return Err(format!("section {i} names pool {} a second time", s.pool.0));
        }
        if s.layer >= s.layer_end {
            return Err(format!(
                "section {i} covers layers {}..{}, which is none",
                s.layer, s.layer_end
            ));
        }
        let per = u64::from(s.page_tokens);
        if per == 0 || !terms.skip.is_multiple_of(per) {
            return Err(format!(
                "section {i}: skip {} is not at a page boundary (pages hold {per} tokens)",
                terms.skip
            ));
        }
        let want = terms.total.div_ceil(per).saturating_sub(terms.skip / per);
        if want != u64::from(s.pages) {
            return Err(format!(
                "section {i}: tokens {}..{} fill {want} pages, the claim lists {}",
                terms.skip, terms.total, s.pages
            ));
        }
    }
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Leg {
    pub(super) terms: Arc<LegTerms>,
    pub(super) phase: Phase,
    pub(super) landed: Coverage,
    pub(super) posted: u64,
    pub(super) written: u64,
    pub(super) checksum: u64,
    /// Jobs that are not over.
    pub(super) outstanding: u32,
    pub(super) lost: bool,
}

impl Leg {
    pub(super) fn new(terms: Arc<LegTerms>) -> Self {
        Leg {
            terms,
            phase: Phase::Pages,
            landed: Coverage::new(),
            posted: 0,
            written: 0,
            checksum: 0,
            outstanding: 0,
            lost: false,
        }
    }

    /// All cells that this leg must have before it is complete.
    pub(super) fn wanted(&self) -> Coverage {
        let mut wanted = Coverage::new();
        for (i, s) in self.terms.sections.iter().enumerate() {
            // Disjoint by construction: one rectangle a section.
            let _ = wanted.insert(i as u16, s.layer..s.layer_end, 0..s.pages);
        }
        wanted
    }

    /// The copies that bring `chunk` to this leg, with their sizes in bytes. Empty if the leg wants
    /// nothing of it.
    pub(super) fn jobs_for(&self, chunk: &Chunk) -> Vec<(JobSpec, u64)> {
        let mut jobs = Vec::new();
        for (i, s) in self.terms.sections.iter().enumerate() {
            if s.pool != chunk.pool {
                continue;
            }
            let per = u64::from(s.page_tokens.max(1));
            let first = chunk.tokens.start / per;
            let end = chunk.tokens.end.div_ceil(per);
            let skip = self.terms.skip / per;
            let start = first.max(skip);
            let layers = chunk.layers.start.max(s.layer)..chunk.layers.end.min(s.layer_end);
            if start >= end || layers.is_empty() {
                continue;
            }
            let pages = end - start;
            let bytes = pages
                .saturating_mul(u64::from(layers.end - layers.start))
                .saturating_mul(s.page_bytes);
            // The claim lists a page for every page of `[skip, total)` (`check`), and the caller
            // has seen that the chunk ends at or before `total`: all places are in the list.
            jobs.push((
                JobSpec::Pages {
                    chunk: chunk.no,
                    section: i as u16,
                    layers,
                    from: (start - first) as u32,
                    to: (start - skip) as u32,
                    pages: pages as u32,
                },
                bytes,
            ));
        }
        jobs
    }
}

/// Adds the cells that a finished job wrote.
pub(super) fn account(landed: &mut Coverage, spec: &JobSpec) -> Result<(), String> {
    let added = match spec {
        JobSpec::Pages {
            section,
            layers,
            to,
            pages,
            ..
        } => {
            let to = if crate::switched!(CoverageIsASum) {
                landed.cells() as u32
            } else {
                *to
            };
            landed.insert(*section, layers.clone(), to..to + pages)
        }
        JobSpec::Aux => landed.insert(Rect::AUX, 0..1, 0..1),
    };
    added.map_err(|overlap| overlap.to_string())
}
