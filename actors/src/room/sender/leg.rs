//! One leg of a sender room: what its claim wants, what was posted, what has landed.

use crate::room::event::{Chunk, JobSpec, LegTerms, SectionShape};
use kvroom_kernels::coverage::{Coverage, Rect};
use std::ops::Range;
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
        if s.slice.is_some_and(|slice| slice.row) {
            if s.pages != 1 {
                let pages = s.pages;
                return Err(format!("section {i}: {pages} pages for one row"));
            }
            continue;
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
        for (section, s) in self.sections() {
            // Disjoint by construction: one rectangle a section.
            let _ = wanted.insert(section, s.layer..s.layer_end, 0..s.pages);
        }
        wanted
    }

    /// The sections of which this leg carries something, with their numbers in the claim.
    fn sections(&self) -> impl Iterator<Item = (u16, &SectionShape)> {
        let numbered = (0..).zip(&self.terms.sections);
        numbered.map(|(i, s)| (s.slice.map_or(i, |slice| slice.section), s))
    }

    /// The copies that bring `chunk` to this leg, with their sizes in bytes. Empty if the leg wants
    /// nothing of it.
    ///
    /// # Errors
    /// In words, why the chunk is not cut where the receiver's cells are.
    pub(super) fn jobs_for(&self, chunk: &Chunk) -> Result<Vec<(JobSpec, u64)>, String> {
        let mut jobs = Vec::new();
        for (section, s) in self.sections().filter(|(_, s)| s.pool == chunk.pool) {
            let layers = layers(s, chunk).map_err(|why| self.told(chunk, &why))?;
            let (tokens, from, to) = match s.slice {
                Some(slice) if slice.row => (chunk.tokens.clone(), 0..1, 0..1),
                _ => match self.stretch(s, chunk)? {
                    Some(stretch) => stretch,
                    None => continue,
                },
            };
            if layers.is_empty() {
                continue;
            }
            let bytes = bytes(s, &tokens, to.len()).saturating_mul(layers.len() as u64);
            // The claim lists a page for every page of `[skip, total)` (`check`), and the caller
            // has seen that the chunk ends at or before `total`: all places are in the list.
            let spec = JobSpec::Pages {
                chunk: chunk.no,
                section,
                layers,
                tokens,
                from,
                to,
            };
            jobs.push((spec, bytes));
        }
        Ok(jobs)
    }

    /// The tokens of a chunk that this leg wants, which of its pages hold them, and which places of the
    /// claim; nothing if it wants none.
    fn stretch(&self, s: &SectionShape, chunk: &Chunk) -> Result<Option<Stretch>, String> {
        let there = u64::from(s.page_tokens.max(1));
        let here = u64::from(
            s.slice
                .map_or(s.page_tokens, |slice| slice.page_tokens)
                .max(1),
        );
        let (skip, total) = (self.terms.skip, self.terms.total);
        let tokens = chunk.tokens.start.max(skip)..chunk.tokens.end;
        if tokens.is_empty() {
            return Ok(None);
        }
        // Where pages are of one size, a chunk begins at one and ends at one, or at the request's end.
        let cut = |at: u64| !at.is_multiple_of(there) && at != total;
        if s.slice.is_some()
            && let Some(at) = [tokens.start, tokens.end].into_iter().find(|at| cut(*at))
        {
            return Err(self.told(
                chunk,
                &format!(
                    "it is cut at token {at}, inside a page of the receiver, whose pages hold {there} \
                     tokens (here {here}): cut chunks where pages of both sides end"
                ),
            ));
        }
        let first = chunk.tokens.start / here;
        let from = (tokens.start / here - first) as u32..(tokens.end.div_ceil(here) - first) as u32;
        let begin = skip / there;
        let to = (tokens.start / there - begin) as u32..(tokens.end.div_ceil(there) - begin) as u32;
        Ok(Some((tokens, from, to)))
    }

    fn told(&self, chunk: &Chunk, why: &str) -> String {
        let (start, end) = (chunk.tokens.start, chunk.tokens.end);
        let (no, rank) = (chunk.no.0, self.terms.rank);
        format!("chunk {no} (tokens {start}..{end}) to rank {rank}: {why}")
    }
}

/// Tokens, which pages of a chunk hold them, and which places of the claim.
type Stretch = (Range<u64>, Range<u32>, Range<u32>);

/// The layers of a chunk that the section wants, as the destination counts them.
fn layers(s: &SectionShape, chunk: &Chunk) -> Result<Range<u32>, String> {
    let mut layers = chunk.layers.clone();
    if let Some(slice) = s.slice {
        let all = 0..chunk.pool_layers;
        let each = match slice.pool_layers {
            0 if layers == all => return Ok(s.layer..s.layer_end),
            0 => {
                return Err(format!(
                    "it has layers {}..{} of the pool, where the planes of a layer lie far apart: push all \
                     0..{} at once",
                    layers.start, layers.end, all.end
                ));
            }
            each => each,
        };
        if !layers.start.is_multiple_of(each) || !layers.end.is_multiple_of(each) {
            return Err(format!(
                "layers {}..{} of the pool cut the planes of a layer apart, of which there are {each}",
                layers.start, layers.end
            ));
        }
        // From layers of the source rank to those of the destination's, of which some may be before its
        // first one.
        let shift = |layer: u32| {
            let layer = i64::from(layer / each) - i64::from(slice.source_layer);
            u32::try_from((layer + i64::from(s.layer)).max(0)).unwrap_or(u32::MAX)
        };
        layers = shift(layers.start)..shift(layers.end);
    }
    Ok(layers.start.max(s.layer)..layers.end.min(s.layer_end))
}

/// Bytes of a stretch of the section in one layer.
fn bytes(s: &SectionShape, tokens: &Range<u64>, pages: usize) -> u64 {
    match s.slice {
        Some(slice) if !slice.row => {
            let granule = u64::from(slice.granule.max(1));
            let granules = tokens.end.div_ceil(granule) - tokens.start / granule;
            let in_page = u64::from(s.page_tokens) / granule;
            granules.saturating_mul(s.page_bytes / in_page.max(1))
        }
        _ => s.page_bytes.saturating_mul(pages as u64),
    }
}

/// Adds the cells that a finished job wrote.
pub(super) fn account(landed: &mut Coverage, spec: &JobSpec) -> Result<(), String> {
    let added = match spec {
        JobSpec::Pages {
            section,
            layers,
            to,
            ..
        } => {
            let to = if crate::switched!(CoverageIsASum) {
                let first = landed.cells() as u32;
                first..first + to.len() as u32
            } else {
                to.clone()
            };
            landed.insert(*section, layers.clone(), to)
        }
        JobSpec::Aux => landed.insert(Rect::AUX, 0..1, 0..1),
    };
    added.map_err(|overlap| overlap.to_string())
}

#[cfg(test)]
mod tests;
