//! Chance from a seed: what is drawn in order, and what is looked up.
//!
//! ```text
//!   Rng    drawn in order, for plans            roll   a table: the n-th draw of one thing is the
//!                                                      same whatever happens elsewhere
//!   Fnv    a hash that is the same everywhere
//! ```

use std::hash::Hasher;
use std::ops::Range;

/// SplitMix64.
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) fn new(seed: u64) -> Self {
        Rng(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        finish(self.0)
    }

    /// At least the range's start, below its end.
    pub(crate) fn draw(&mut self, range: Range<u64>) -> u64 {
        range.start + self.next() % (range.end - range.start).max(1)
    }

    pub(crate) fn index(&mut self, len: usize) -> usize {
        self.draw(0..len as u64) as usize
    }

    /// True this often in a hundred.
    pub(crate) fn percent(&mut self, often: u64) -> bool {
        self.next() % 100 < often
    }
}

/// A number that depends on all of these words and on nothing else.
pub(crate) fn roll(words: &[u64]) -> u64 {
    words.iter().fold(0x6b76_726f_6f6d, |sum, word| {
        finish(sum ^ word.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    })
}

fn finish(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// FNV-1a, 64 bits.
pub(crate) struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Hasher for Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
