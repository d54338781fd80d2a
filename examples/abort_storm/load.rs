//! What the agents ask for: sessions of growing multi-turn contexts, from a seed or from a trace.
//!
//! A turn is one room's worth of work: so many pages to move, behind a prefix that decode has.

use crate::trace::Request;
use std::collections::HashSet;

/// splitmix64: small, seeded, the same everywhere.
#[derive(Clone, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    /// A generator for `seed`.
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `low..=high`.
    pub(crate) fn between(&mut self, low: u32, high: u32) -> u32 {
        let span = u64::from(high.saturating_sub(low)) + 1;
        low + (self.next() % span) as u32
    }

    /// True in `percent` of 100 cases.
    pub(crate) fn chance(&mut self, percent: u32) -> bool {
        self.next() % 100 < u64::from(percent)
    }

    /// Puts a list into a random order.
    pub(crate) fn shuffle<T>(&mut self, list: &mut [T]) {
        for last in (1..list.len()).rev() {
            let other = (self.next() % (last as u64 + 1)) as usize;
            list.swap(last, other);
        }
    }
}

/// One request of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    /// Pages to move, at least 1.
    pub(crate) pages: u32,
    /// Pages of the prefix that decode already has.
    pub(crate) skip_pages: u32,
    /// Tokens of the whole request; the last page may be partly filled.
    pub(crate) tokens: u64,
}

/// The sessions and the size of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Load {
    /// Tokens in one page.
    pub(crate) page_tokens: u32,
    /// Turns of each session, in order; never empty.
    pub(crate) sessions: Vec<Vec<Turn>>,
}

/// Layers of the pools. With 8 KiB a cell, a page is 32 KiB.
pub(crate) const LAYERS: u32 = 4;
/// Bytes of one page in one layer.
pub(crate) const PAGE_BYTES: usize = 8 << 10;
/// Tokens of a page of the generated load: 1 KiB of cache per token.
pub(crate) const PAGE_TOKENS: u32 = 32;
/// Turns of a session.
pub(crate) const TURNS: usize = 3;
/// A room of 0.25 MiB.
const SMALLEST_PAGES: u32 = 8;
/// A room of 16 MiB.
pub(crate) const LARGEST_PAGES: u32 = 512;

impl Load {
    /// `sessions` agents whose contexts grow from turn to turn.
    pub(crate) fn generated(sessions: usize, seed: u64) -> Load {
        let mut rng = Rng::new(seed ^ 0x10AD);
        let session = |_| {
            let mut pages = rng.between(SMALLEST_PAGES, 24);
            let mut turns = Vec::with_capacity(TURNS);
            for _ in 0..TURNS {
                let spare = u64::from(rng.between(0, PAGE_TOKENS - 1));
                let tokens = u64::from(pages) * u64::from(PAGE_TOKENS) - spare;
                turns.push(Turn {
                    pages,
                    skip_pages: 0,
                    tokens,
                });
                let grown = match rng.between(0, 19) {
                    0 => pages * 4 + rng.between(32, 128),
                    1..=3 => pages * 2 + rng.between(8, 32),
                    _ => pages + rng.between(8, 32),
                };
                pages = grown.min(LARGEST_PAGES);
            }
            turns
        };
        Load {
            page_tokens: PAGE_TOKENS,
            sessions: (0..sessions).map(session).collect(),
        }
    }

    /// `sessions` agents that take the requests of a trace in turn. A block that an earlier
    /// request had is one that decode has (as if every earlier request had been served), except
    /// the last, which an engine always computes again. Blocks of the trace are pages here.
    pub(crate) fn from_trace(requests: &[Request], sessions: usize) -> Load {
        let sessions = sessions.min(requests.len()).max(1);
        let mut seen: HashSet<u64> = HashSet::new();
        let mut load = vec![Vec::new(); sessions];
        for (index, request) in requests.iter().take(sessions * TURNS).enumerate() {
            let blocks = request.hash_ids.len() as u32;
            let hit = request
                .hash_ids
                .iter()
                .take_while(|id| seen.contains(id))
                .count() as u32;
            let skip_pages = hit.min(blocks.saturating_sub(1));
            seen.extend(&request.hash_ids);
            let turn = Turn {
                pages: blocks - skip_pages,
                skip_pages,
                tokens: request.input_length,
            };
            if let Some(turns) = load.get_mut(index % sessions) {
                turns.push(turn);
            }
        }
        Load {
            page_tokens: crate::trace::BLOCK_TOKENS,
            sessions: load,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_seed_gives_the_same_load_and_another_seed_another() {
        assert_eq!(Load::generated(20, 1), Load::generated(20, 1));
        assert_ne!(Load::generated(20, 1), Load::generated(20, 2));
    }

    #[test]
    fn contexts_grow_and_every_room_is_a_quarter_to_sixteen_mebibytes() {
        let load = Load::generated(200, 3);
        for turns in &load.sessions {
            assert_eq!(turns.len(), TURNS);
            for pair in turns.windows(2) {
                assert!(pair[0].pages < pair[1].pages || pair[1].pages == LARGEST_PAGES);
            }
            for turn in turns {
                let bytes = u64::from(turn.pages) * u64::from(LAYERS) * PAGE_BYTES as u64;
                assert!((256 << 10..=16 << 20).contains(&bytes), "{bytes}");
                assert!(turn.tokens.div_ceil(u64::from(PAGE_TOKENS)) == u64::from(turn.pages));
            }
        }
    }

    #[test]
    fn a_prefix_that_was_seen_is_skipped_and_the_last_block_never_is() {
        let request = |ids: &[u64], tokens| Request {
            timestamp_ms: 0,
            input_length: tokens,
            output_length: 1,
            hash_ids: ids.to_vec(),
        };
        let requests = [
            request(&[1, 2, 3], 1500),
            request(&[1, 2, 4], 1536),
            request(&[1, 2, 3], 1500),
            request(&[9, 2], 600),
        ];
        let load = Load::from_trace(&requests, 2);
        let turns: Vec<(u32, u32)> = load
            .sessions
            .iter()
            .flatten()
            .map(|t| (t.pages, t.skip_pages))
            .collect();
        assert_eq!(
            turns,
            [(3, 0), (1, 2), (1, 2), (2, 0)],
            "sessions take requests in turn"
        );
    }
}
