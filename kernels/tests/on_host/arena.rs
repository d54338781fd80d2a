//! One case: memory with marks, arguments, and what has to come out.

use kvroom_kernels::cuda::Kernel;

pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;
pub(crate) const ADD: u8 = 4;

/// The arena is there again every so many bytes, as the program sees it: more than 32 bits can say.
pub(crate) const REPEAT: u64 = (1 << 33) + 4096;

/// SplitMix64: the same numbers everywhere.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number under `end`.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn chance(&mut self, one_in: u64) -> bool {
        self.below(one_in) == 0
    }

    /// Moves some of these addresses and strides far away, to where the same bytes are.
    pub(crate) fn far(&mut self, numbers: &mut [&mut u64]) {
        for number in numbers {
            **number += REPEAT * self.below(1000) * self.below(2);
        }
    }

    pub(crate) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len() as u64) as usize]
    }

    /// `count` numbers under `end`; none twice if they are to be `apart`.
    pub(crate) fn list(&mut self, count: u64, end: u64, apart: bool) -> Vec<u32> {
        let mut all: Vec<u32> = (0..end as u32).collect();
        let pick = |random: &mut Random, all: &mut Vec<u32>| {
            let at = random.below(all.len() as u64) as usize;
            if apart { all.swap_remove(at) } else { all[at] }
        };
        (0..count).map(|_| pick(self, &mut all)).collect()
    }
}

/// Memory that a case is made in: random bytes, regions with red zones between them.
pub(crate) struct Arena {
    pub(crate) bytes: Vec<u8>,
    pub(crate) marks: Vec<u8>,
}

impl Arena {
    pub(crate) fn new(random: &mut Random) -> Self {
        let mut arena = Arena {
            bytes: Vec::new(),
            marks: Vec::new(),
        };
        arena.grow(random, 64);
        arena
    }

    fn grow(&mut self, random: &mut Random, bytes: u64) {
        self.bytes.extend((0..bytes).map(|_| random.next() as u8));
        self.marks.resize(self.bytes.len(), 0);
    }

    /// A region whose address is `off` more than a multiple of 16, with a red zone on both sides.
    pub(crate) fn region(&mut self, random: &mut Random, bytes: u64, off: u64) -> u64 {
        let red = 48 - self.bytes.len() as u64 % 16 + off;
        self.grow(random, red);
        let at = self.bytes.len() as u64;
        assert_eq!(at % 16, off);
        self.grow(random, bytes + 48);
        at
    }

    /// A table of pages, where its marks say nothing yet.
    pub(crate) fn table(&mut self, random: &mut Random, pages: &[u32]) -> u64 {
        let off = random.pick(&[0, 4, 8, 12]);
        let at = self.region(random, 4 * pages.len() as u64, off);
        for (place, page) in pages.iter().enumerate() {
            let place = at as usize + 4 * place;
            self.bytes[place..place + 4].copy_from_slice(&page.to_le_bytes());
        }
        at
    }

    pub(crate) fn mark(&mut self, at: u64, bytes: u64, mark: u8) {
        for byte in &mut self.marks[at as usize..(at + bytes) as usize] {
            *byte |= mark;
        }
    }

    pub(crate) fn slice(&self, at: u64, bytes: u64) -> &[u8] {
        &self.bytes[at as usize..(at + bytes) as usize]
    }
}

/// A launch, and the arena that has to come out of it.
pub(crate) struct Case {
    pub(crate) kernel: Kernel,
    pub(crate) blocks: u32,
    pub(crate) threads: u32,
    pub(crate) args: Vec<u8>,
    pub(crate) arena: Arena,
    pub(crate) expected: Vec<u8>,
    pub(crate) shape: String,
}

/// What came out.
pub(crate) struct Outcome {
    pub(crate) faults: u64,
    pub(crate) fault_at: u64,
    pub(crate) fault: String,
    pub(crate) bytes: Vec<u8>,
}

impl Case {
    /// What is wrong with an outcome; none if it is as it has to be.
    pub(crate) fn difference(&self, outcome: &Outcome) -> Option<String> {
        let Outcome {
            faults,
            fault_at,
            fault,
            ..
        } = outcome;
        let what = if *faults > 0 {
            format!("{fault} at {fault_at} ({faults} such)")
        } else {
            let mut pairs = outcome.bytes.iter().zip(&self.expected);
            let at = pairs.position(|(is, should)| is != should)?;
            let (is, should) = (outcome.bytes[at], self.expected[at]);
            format!("byte {at} is {is}, not {should}")
        };
        let Case {
            blocks,
            threads,
            shape,
            ..
        } = self;
        Some(format!("{what}; {blocks} x {threads}, {shape}"))
    }
}
