//! Memory at addresses, for launches.

use super::Addressed;
use std::ops::Range;

/// Some memories, each at an address; an access outside of them fails with its address.
pub(crate) struct Host(Vec<(u64, Vec<u8>)>);

impl Host {
    pub(crate) fn new(memories: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Host {
        Host(memories.into_iter().collect())
    }

    /// What is in one of them now.
    pub(crate) fn bytes(&self, nth: usize) -> Vec<u8> {
        self.0[nth].1.clone()
    }

    /// Which memory a range is in, and where in it.
    fn find(&self, at: u64, bytes: usize) -> Result<(usize, Range<usize>), u64> {
        let found = self.0.iter().enumerate().find_map(|(nth, (base, memory))| {
            let from = usize::try_from(at.checked_sub(*base)?).ok()?;
            let range = from..from.checked_add(bytes)?;
            (range.end <= memory.len()).then_some((nth, range))
        });
        found.ok_or(at)
    }
}

impl Addressed for Host {
    type Error = u64;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), u64> {
        let (nth, range) = self.find(at, into.len())?;
        into.copy_from_slice(&self.0[nth].1[range]);
        Ok(())
    }

    fn write(&mut self, at: u64, from: &[u8]) -> Result<(), u64> {
        let (nth, range) = self.find(at, from.len())?;
        self.0[nth].1[range].copy_from_slice(from);
        Ok(())
    }
}

/// A page table as it lies in memory.
pub(crate) fn words(table: &[u32]) -> Vec<u8> {
    table.iter().flat_map(|page| page.to_le_bytes()).collect()
}

/// Bytes that look like chance.
pub(crate) fn noise(seed: u64, bytes: u64) -> Vec<u8> {
    let mut numbers = crate::plan::testing::Numbers(seed);
    (0..bytes).map(|_| numbers.next() as u8).collect()
}
