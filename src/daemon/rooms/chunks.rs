//! The chunks of one room, so that a repeat is a no-op and a contradiction is refused before the room
//! sees it. Pure.

use super::request::PushChunk;
use crate::daemon::http::Problem;
use kvroom::{PoolKind, PoolLayout};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// Most chunks that are kept for one room.
pub(super) const MAX_CHUNKS: usize = 65_536;

/// A chunk that can be meant, in a pool of this shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Checked {
    pub(super) tokens: Range<u64>,
    pub(super) layers: Range<u32>,
    pub(super) pool: String,
    pub(super) pages: Vec<u32>,
}

/// What a chunk is next to those before it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Compared {
    /// Not there yet.
    New,
    /// There, with the same pages.
    Same,
}

impl Checked {
    /// Everything that can be wrong with it by itself, named.
    pub(super) fn new(chunk: PushChunk, layout: &PoolLayout) -> Result<Checked, Problem> {
        let [start, end] = chunk.tokens;
        let [first, last] = chunk.layers.unwrap_or([0, layout.layers]);
        let per = u64::from(layout.page_tokens.max(1));
        let bad = |text: String| Err(Problem::unusable(text));
        let name = &layout.name;
        if layout.kind != PoolKind::Kv {
            return bad(format!(
                "pool {name:?} holds aux rows: give its row to finish"
            ));
        }
        if start >= end {
            return bad(format!(
                "tokens [{start}, {end}] are none: the second is the first that does not belong to it"
            ));
        }
        if !start.is_multiple_of(per) {
            return bad(format!(
                "token {start} is not at a page boundary of pool {name:?} ({per} tokens a page)"
            ));
        }
        let want = end.div_ceil(per) - start / per;
        if want != chunk.pages.len() as u64 {
            let got = chunk.pages.len();
            return bad(format!(
                "tokens {start} to {end} fill {want} pages of pool {name:?}, {got} were given"
            ));
        }
        if first >= last || last > layout.layers {
            let all = layout.layers;
            return bad(format!(
                "layers [{first}, {last}] are none of pool {name:?}, which has {all}"
            ));
        }
        if let Some(page) = chunk.pages.iter().find(|page| **page >= layout.pages) {
            let last = layout.pages.saturating_sub(1);
            return bad(format!(
                "page {page} does not exist: pool {name:?} has pages 0 to {last}"
            ));
        }
        Ok(Checked {
            tokens: start..end,
            layers: first..last,
            pool: chunk.pool,
            pages: chunk.pages,
        })
    }
}

/// The chunks of a room so far.
#[derive(Debug, Default)]
pub(super) struct Chunks {
    pools: HashMap<String, OfPool>,
    count: usize,
}

#[derive(Debug, Default)]
struct OfPool {
    by_start: BTreeMap<(u64, u32), Kept>,
    longest: u64,
}

#[derive(Debug)]
struct Kept {
    end: u64,
    last: u32,
    pages: Box<[u32]>,
}

impl Chunks {
    /// How many.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    /// What this one is next to those before it.
    pub(super) fn compare(&self, chunk: &Checked) -> Result<Compared, Problem> {
        let Some(pool) = self.pools.get(&chunk.pool) else {
            return self.room_for_one();
        };
        let from = chunk.tokens.start.saturating_sub(pool.longest);
        for ((start, first), kept) in pool.by_start.range((from, 0)..(chunk.tokens.end, 0)) {
            let apart = kept.end <= chunk.tokens.start
                || kept.last <= chunk.layers.start
                || *first >= chunk.layers.end;
            if apart {
                continue;
            }
            let place = (*start..kept.end, *first..kept.last);
            let same_place = place == (chunk.tokens.clone(), chunk.layers.clone());
            if same_place && *kept.pages == *chunk.pages {
                return Ok(Compared::Same);
            }
            let what = if same_place {
                "with other pages"
            } else {
                "and overlaps it"
            };
            return Err(Problem::conflict(
                "chunk-conflict",
                "The chunk contradicts another one",
                format!(
                    "tokens {start} to {} of layers {first} to {} were pushed before, {what}; the room goes on",
                    kept.end, kept.last
                ),
            ));
        }
        self.room_for_one()
    }

    /// Remembers it.
    pub(super) fn add(&mut self, chunk: Checked) {
        let pool = self.pools.entry(chunk.pool).or_default();
        pool.longest = pool.longest.max(chunk.tokens.end - chunk.tokens.start);
        let kept = Kept {
            end: chunk.tokens.end,
            last: chunk.layers.end,
            pages: chunk.pages.into(),
        };
        pool.by_start
            .insert((chunk.tokens.start, chunk.layers.start), kept);
        self.count += 1;
    }

    /// Pages by pool, each once.
    pub(super) fn pages(&self) -> impl Iterator<Item = (&str, Vec<u32>)> {
        self.pools.iter().map(|(name, pool)| {
            let all = pool
                .by_start
                .values()
                .flat_map(|kept| kept.pages.iter().copied());
            let mut all: Vec<u32> = all.collect();
            all.sort_unstable();
            all.dedup();
            (name.as_str(), all)
        })
    }

    /// Forgets the pages: the room is over.
    pub(super) fn forget(&mut self) {
        self.pools = HashMap::new();
    }

    fn room_for_one(&self) -> Result<Compared, Problem> {
        if self.count < MAX_CHUNKS {
            return Ok(Compared::New);
        }
        let text = format!("a room takes {MAX_CHUNKS} chunks over HTTP: push more pages in each");
        Err(Problem::limit("chunks", text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvroom::Order;

    fn layout() -> PoolLayout {
        PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 4,
            pages: 8,
            page_bytes: 64,
            page_tokens: 16,
        }
    }

    fn push(tokens: [u64; 2], layers: Option<[u32; 2]>, pages: &[u32]) -> Result<Checked, String> {
        let chunk = PushChunk {
            attempt: None,
            tokens,
            layers,
            pool: "kv".into(),
            pages: pages.to_vec(),
            ready: None,
        };
        Checked::new(chunk, &layout()).map_err(|p| p.detail)
    }

    #[test]
    fn what_cannot_be_meant_is_named() {
        for (tokens, layers, pages, says) in [
            ([16, 16], None, &[0][..], "none"),
            ([32, 16], None, &[0], "none"),
            ([8, 16], None, &[0], "boundary"),
            ([0, 32], None, &[0], "fill 2 pages"),
            ([0, 16], None, &[8], "page 8 does not exist"),
            ([0, 16], Some([2, 2]), &[0], "layers"),
            ([0, 16], Some([0, 5]), &[0], "which has 4"),
            ([u64::MAX - 15, u64::MAX], None, &[], "fill 1 pages"),
        ] {
            let why = push(tokens, layers, pages).unwrap_err();
            assert!(why.contains(says), "{tokens:?} {layers:?}: {why}");
        }
        assert!(push([0, 20], Some([1, 3]), &[0, 1]).is_ok());
    }

    #[test]
    fn a_repeat_is_the_same_and_other_pages_or_an_overlap_are_a_contradiction() {
        let mut chunks = Chunks::default();
        chunks.add(push([16, 48], Some([0, 2]), &[0, 1]).unwrap());
        let compare = |tokens, layers, pages: &[u32]| {
            let chunk = push(tokens, Some(layers), pages).unwrap();
            chunks.compare(&chunk).map_err(|p| p.code)
        };
        let conflict = || Err("chunk-conflict");
        assert_eq!(compare([16, 48], [0, 2], &[0, 1]), Ok(Compared::Same));
        assert_eq!(compare([16, 48], [0, 2], &[0, 2]), conflict());
        assert_eq!(compare([16, 48], [2, 4], &[0, 1]), Ok(Compared::New));
        assert_eq!(compare([32, 64], [1, 4], &[0, 1]), conflict());
        assert_eq!(compare([0, 32], [0, 4], &[0, 1]), conflict());
        assert_eq!(compare([48, 64], [0, 4], &[0]), Ok(Compared::New));
        assert_eq!(compare([0, 16], [0, 4], &[0]), Ok(Compared::New));
    }
}
