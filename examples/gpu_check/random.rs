//! Numbers that look like chance and are the same in every run (SplitMix64).

#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// One of `0..count`, which is at least 1.
    pub(crate) fn below(&mut self, count: u64) -> u64 {
        self.next() % count
    }

    /// One of `from..=to`.
    pub(crate) fn among(&mut self, from: u64, to: u64) -> u64 {
        from + self.below(to - from + 1)
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// So many bytes.
    pub(crate) fn bytes(&mut self, count: u64) -> Vec<u8> {
        let mut bytes = vec![0; count as usize];
        self.fill(&mut bytes);
        bytes
    }

    pub(crate) fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            let word = self.next().to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
    }

    /// All of `0..count`, shuffled.
    pub(crate) fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..count).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, self.below(i as u64 + 1) as usize);
        }
        all
    }

    /// `count` different ones of `0..of`.
    pub(crate) fn pages(&mut self, count: u32, of: u32) -> Vec<u32> {
        let mut all = self.shuffled(of);
        all.truncate(count as usize);
        all
    }
}
