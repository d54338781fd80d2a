//! What the oracle writes into pages, so that every 8-byte word says where it came from.
//!
//! ```text
//!   bits 63..32  the stamp: what the page was written for (all its layers)
//!   bits 31..0   f(stamp, layer, place): a word that was moved to another layer or place, or cut
//!                in the middle, does not look true
//! ```
//!
//! The place is the word's place in its block of 512 bytes; only the first word of a block says
//! which block it is. So most of a cell is filled and compared by plain memory copies.
//!
//! A stamp explains itself, so that a process knows what another one wrote into its pages, without
//! having been told of it before the bytes arrive:
//!
//! ```text
//!   00  poison of a destination page: a count
//!   01  what a room (one attempt of it) has to send for one of its pages: the rooms' pages of the
//!       script, counted through
//!   10  written onto a source page after its lease came back: page + pages of the pool * count
//! ```

/// What one page is written for. 0 is what fresh memory holds and is never given out.
pub(crate) type Stamp = u32;

const SOURCE: Stamp = 1 << 30;
const SPOILED: Stamp = 2 << 30;
const KIND: Stamp = 3 << 30;

/// What a stamp means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Written by the oracle for a destination page's owner.
    Poison,
    /// What page `index` of `claim` has to be.
    Source { claim: usize, index: u32 },
    /// Written onto source page `page` after its lease came back; no room ever sends it.
    Spoiled { page: u32 },
    /// Nobody gives out such a stamp.
    Unknown,
}

/// The stamps of one script: every process that runs it makes the same ones.
#[derive(Clone, Debug)]
pub(crate) struct Stamps {
    /// For each claim its first page, and one more for the end.
    first: Vec<u32>,
    source_pages: u32,
}

impl Stamps {
    /// For claims of so many pages each, and a source pool of so many.
    pub(crate) fn new(pages: impl Iterator<Item = u32>, source_pages: u32) -> Stamps {
        let mut first = vec![0u32];
        let mut sum = 0u32;
        for pages in pages {
            // A script beyond a thousand million pages does not fit any machine.
            sum = sum.saturating_add(pages).min(!KIND);
            first.push(sum);
        }
        Stamps {
            first,
            source_pages: source_pages.max(1),
        }
    }

    /// What page `index` of `claim` has to be.
    pub(crate) fn source(&self, claim: usize, index: u32) -> Stamp {
        let first = self.first.get(claim).copied().unwrap_or(!KIND);
        SOURCE | (first.saturating_add(index) & !KIND)
    }

    /// For source page `page`, when its lease has come back for the `count`th time.
    pub(crate) fn spoiled(&self, page: u32, count: u32) -> Stamp {
        let most = !KIND / self.source_pages;
        SPOILED | ((count % most) * self.source_pages + page)
    }

    /// For a destination page.
    pub(crate) fn poison(count: u32) -> Stamp {
        (count % !KIND) + 1
    }

    /// What a stamp means.
    pub(crate) fn origin(&self, stamp: Stamp) -> Origin {
        let value = stamp & !KIND;
        match stamp & KIND {
            0 => Origin::Poison,
            SOURCE => {
                let after = self.first.partition_point(|&first| first <= value);
                let claim = after.saturating_sub(1);
                match self.first.get(claim) {
                    Some(first) if after < self.first.len() => Origin::Source {
                        claim,
                        index: value - first,
                    },
                    _ => Origin::Unknown,
                }
            }
            SPOILED => Origin::Spoiled {
                page: value % self.source_pages,
            },
            _ => Origin::Unknown,
        }
    }
}

/// The odd step between the check values of neighbouring words.
const STEP: u32 = 0x9E37_79B1;
/// The odd step between the check values of neighbouring blocks' first words.
const BLOCK_STEP: u32 = 0x85EB_CA77;
/// Words of one block.
const BLOCK_WORDS: usize = 64;
/// Bytes of one block.
const BLOCK: usize = BLOCK_WORDS * 8;

/// What word 0 of `layer` checks with under `stamp`.
fn base(stamp: Stamp, layer: u32) -> u32 {
    let mut z = (u64::from(stamp) << 32) | u64::from(layer);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    (z ^ (z >> 31)) as u32
}

/// All words of one cell (one page in one layer) under one stamp.
pub(crate) struct Words {
    high: u64,
    low: u32,
}

impl Words {
    /// The words of `layer` under `stamp`.
    pub(crate) fn new(stamp: Stamp, layer: u32) -> Self {
        Words {
            high: u64::from(stamp) << 32,
            low: base(stamp, layer),
        }
    }

    /// Word `index`.
    pub(crate) fn at(&self, index: usize) -> u64 {
        let step = match index % BLOCK_WORDS {
            0 => ((index / BLOCK_WORDS) as u32).wrapping_mul(BLOCK_STEP),
            place => (place as u32).wrapping_mul(STEP),
        };
        self.high | u64::from(self.low.wrapping_add(step))
    }
}

/// The stamp a word claims to come from.
pub(crate) fn stamp_of(word: u64) -> Stamp {
    (word >> 32) as u32
}

/// Writes the words of `layer` under `stamp` into a whole cell.
pub(crate) fn fill(stamp: Stamp, layer: u32, cell: &mut [u8]) {
    let words = Words::new(stamp, layer);
    let first = cell.len().min(BLOCK);
    for index in 0..first / 8 {
        put(cell, index, words.at(index));
    }
    let mut filled = first;
    while filled < cell.len() {
        let more = filled.min(cell.len() - filled);
        cell.copy_within(0..more, filled);
        filled += more;
    }
    for index in (BLOCK_WORDS..cell.len() / 8).step_by(BLOCK_WORDS) {
        put(cell, index, words.at(index));
    }
}

fn put(cell: &mut [u8], index: usize, word: u64) {
    if let Some(place) = cell.get_mut(index * 8..index * 8 + 8) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// Whether a whole cell holds exactly what [`fill`] writes; `scratch` is as long as the cell.
pub(crate) fn holds(stamp: Stamp, layer: u32, cell: &[u8], scratch: &mut [u8]) -> bool {
    // Most cells that differ do so in their first word.
    if cell
        .get(..8)
        .is_some_and(|first| word(first) != Words::new(stamp, layer).at(0))
    {
        return false;
    }
    fill(stamp, layer, scratch);
    cell == scratch
}

/// Eight bytes of a cell as a word.
pub(crate) fn word(bytes: &[u8]) -> u64 {
    let mut eight = [0u8; 8];
    eight.copy_from_slice(bytes);
    u64::from_le_bytes(eight)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is(stamp: Stamp, layer: u32, cell: &[u8]) -> bool {
        holds(stamp, layer, cell, &mut vec![0; cell.len()])
    }

    #[test]
    fn a_stamp_says_what_it_is_for() {
        let stamps = Stamps::new([3, 1, 0, 2].into_iter(), 7);
        for (claim, pages) in [(0, 3), (1, 1), (3, 2)] {
            for index in 0..pages {
                let stamp = stamps.source(claim, index);
                assert_eq!(stamps.origin(stamp), Origin::Source { claim, index });
            }
        }
        assert_eq!(stamps.origin(stamps.source(4, 0)), Origin::Unknown);
        for count in [0, 1, 1 << 20, u32::MAX] {
            let stamp = stamps.spoiled(5, count);
            assert_eq!(stamps.origin(stamp), Origin::Spoiled { page: 5 });
            assert_eq!(stamps.origin(Stamps::poison(count)), Origin::Poison);
            assert_ne!(Stamps::poison(count), 0);
        }
    }

    #[test]
    fn a_filled_cell_holds_its_stamp_and_no_other() {
        for bytes in [64, 512, 1000, 4096, 8192] {
            let mut cell = vec![0u8; bytes];
            fill(7, 3, &mut cell);
            assert!(is(7, 3, &cell));
            assert!(!is(8, 3, &cell));
            assert!(!is(7, 2, &cell));
            let words = Words::new(7, 3);
            for (i, place) in cell.chunks_exact(8).enumerate() {
                assert_eq!(word(place), words.at(i), "word {i} of {bytes} bytes");
                assert_eq!(stamp_of(word(place)), 7);
            }
        }
    }

    #[test]
    fn one_flipped_bit_anywhere_is_seen() {
        let mut cell = vec![0u8; 1024];
        fill(1, 0, &mut cell);
        for byte in 0..cell.len() {
            cell[byte] ^= 0x10;
            assert!(!is(1, 0, &cell), "byte {byte}");
            cell[byte] ^= 0x10;
        }
    }

    #[test]
    fn a_piece_at_another_place_is_seen() {
        let mut cell = vec![0u8; 4096];
        fill(1, 0, &mut cell);
        for shift in (8..2048).step_by(8) {
            let mut moved = cell.clone();
            moved.copy_within(0..2048, shift);
            assert!(!is(1, 0, &moved), "moved by {shift} bytes");
        }
    }
}
