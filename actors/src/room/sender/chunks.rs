//! The chunks of a sender room: which were pushed, and which legs each has still to land on.

use crate::ids::{ChunkNo, PoolId};
use crate::room::event::Chunk;
use kvroom_kernels::coverage::Coverage;
use std::collections::BTreeMap;

/// Boxed with the first push: many rooms wait long for it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Chunks(Option<Box<All>>);

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct All {
    /// By place, so that a repeat is found: (pool, first token, first layer).
    pushed: BTreeMap<(PoolId, u64, u32), Held>,
    /// What has been pushed of each pool, in pages of the request.
    covered: BTreeMap<PoolId, Coverage>,
    /// Where a chunk ended inside a page: this must be the request's end.
    ragged: Option<u64>,
    /// The largest token any chunk reaches.
    end: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Held {
    pub(super) chunk: Chunk,
    /// Legs on which it has not landed; bound or not.
    pub(super) legs_left: u16,
    /// Jobs that carry it now.
    pub(super) jobs: u32,
}

/// What a push turned out to be.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Pushed {
    New,
    Repeated,
}

impl Chunks {
    /// Takes a chunk in, or says what is wrong with it.
    pub(super) fn push(&mut self, chunk: Chunk, receivers: u16) -> Result<Pushed, String> {
        self.0.get_or_insert_default().push(chunk, receivers)
    }

    /// Whether this very chunk was pushed before: same place, same pages.
    pub(super) fn has(&self, chunk: &Chunk) -> bool {
        let held = self
            .0
            .as_ref()
            .and_then(|all| all.pushed.get(&place(chunk)));
        held.is_some_and(|held| {
            let held = &held.chunk;
            held.tokens == chunk.tokens && held.layers == chunk.layers && held.pages == chunk.pages
        })
    }

    /// Where a chunk ended inside a page.
    pub(super) fn ragged(&self) -> Option<u64> {
        self.0.as_ref()?.ragged
    }

    /// The largest token any chunk reaches.
    pub(super) fn end(&self) -> u64 {
        self.0.as_ref().map_or(0, |all| all.end)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Chunk> {
        let all = self.0.iter().flat_map(|all| all.pushed.values());
        all.map(|held| &held.chunk)
    }

    pub(super) fn find(&mut self, place: Place) -> Option<&mut Held> {
        self.0.as_mut()?.pushed.get_mut(&place)
    }
}

impl All {
    /// Takes a chunk in, or says what is wrong with it.
    fn push(&mut self, chunk: Chunk, receivers: u16) -> Result<Pushed, String> {
        check(&chunk)?;
        let place = (chunk.pool, chunk.tokens.start, chunk.layers.start);
        if let Some(held) = self.pushed.get(&place)
            && held.chunk.tokens == chunk.tokens
            && held.chunk.layers == chunk.layers
        {
            if held.chunk.pages == chunk.pages {
                return Ok(Pushed::Repeated);
            }
            return Err(format!(
                "chunk {}: tokens {}..{} were pushed before with other pages",
                chunk.no.0, chunk.tokens.start, chunk.tokens.end
            ));
        }
        let per = u64::from(chunk.page_tokens);
        let pages = page_range(&chunk)?;
        let ragged = !chunk.tokens.end.is_multiple_of(per);
        if let Some(end) = self.ragged
            && ((ragged && chunk.tokens.end != end) || chunk.tokens.end > end)
        {
            return Err(format!(
                "chunk {}: ends at token {}, but an earlier chunk ended inside a page at {end}, \
                 which only the request's last one may",
                chunk.no.0, chunk.tokens.end
            ));
        }
        if ragged && self.end > chunk.tokens.end {
            return Err(format!(
                "chunk {}: ends inside a page at token {}, but an earlier chunk reaches {}",
                chunk.no.0, chunk.tokens.end, self.end
            ));
        }
        self.covered
            .entry(chunk.pool)
            .or_default()
            .insert(0, chunk.layers.clone(), pages)
            .map_err(|overlap| {
                format!(
                    "chunk {}: overlaps what was pushed before: {overlap}",
                    chunk.no.0
                )
            })?;
        if ragged {
            self.ragged = Some(chunk.tokens.end);
        }
        self.end = self.end.max(chunk.tokens.end);
        self.pushed.insert(
            place,
            Held {
                chunk,
                legs_left: receivers,
                jobs: 0,
            },
        );
        Ok(Pushed::New)
    }
}

/// Where a chunk is kept.
pub(super) type Place = (PoolId, u64, u32);

/// The place of a chunk.
pub(super) fn place(chunk: &Chunk) -> Place {
    (chunk.pool, chunk.tokens.start, chunk.layers.start)
}

fn check(chunk: &Chunk) -> Result<(), String> {
    let ChunkNo(no) = chunk.no;
    let (start, end) = (chunk.tokens.start, chunk.tokens.end);
    if start >= end {
        return Err(format!("chunk {no}: token range {start}..{end} is empty"));
    }
    if chunk.layers.start >= chunk.layers.end || chunk.layers.end > chunk.pool_layers {
        return Err(format!(
            "chunk {no}: layers {}..{} are not in the pool's 0..{}",
            chunk.layers.start, chunk.layers.end, chunk.pool_layers
        ));
    }
    if !start.is_multiple_of(u64::from(chunk.page_tokens.max(1))) {
        return Err(format!(
            "chunk {no}: token {start} is not at a page boundary (pages hold {} tokens)",
            chunk.page_tokens
        ));
    }
    let pages = page_range(chunk)?;
    let want = pages.end - pages.start;
    if want as usize != chunk.pages.len() {
        return Err(format!(
            "chunk {no}: tokens {start}..{end} fill {want} pages, its lease has {}",
            chunk.pages.len()
        ));
    }
    Ok(())
}

fn page_range(chunk: &Chunk) -> Result<std::ops::Range<u32>, String> {
    let per = u64::from(chunk.page_tokens.max(1));
    let first = u32::try_from(chunk.tokens.start / per);
    let end = u32::try_from(chunk.tokens.end.div_ceil(per));
    match (first, end) {
        (Ok(first), Ok(end)) => Ok(first..end),
        _ => Err(format!(
            "chunk {}: token {} is beyond 2^32 pages",
            chunk.no.0, chunk.tokens.end
        )),
    }
}
