//! Memory at addresses, for launches.

use super::Addressed;
use std::cell::RefCell;

/// Some memories, each at an address; an access outside of them fails with its address.
pub(crate) struct Host(RefCell<Vec<(u64, Vec<u8>)>>);

impl Host {
    pub(crate) fn new(memories: impl IntoIterator<Item = (u64, Vec<u8>)>) -> Host {
        Host(RefCell::new(memories.into_iter().collect()))
    }

    /// What is in one of them now.
    pub(crate) fn bytes(&self, nth: usize) -> Vec<u8> {
        self.0.borrow()[nth].1.clone()
    }

    fn with<R>(&self, at: u64, bytes: usize, see: impl FnOnce(&mut [u8]) -> R) -> Result<R, u64> {
        let mut all = self.0.borrow_mut();
        let found = all.iter_mut().find_map(|(base, memory)| {
            let from = usize::try_from(at.checked_sub(*base)?).ok()?;
            memory.get_mut(from..from.checked_add(bytes)?)
        });
        found.map(see).ok_or(at)
    }
}

impl Addressed for Host {
    type Error = u64;

    fn read(&self, at: u64, into: &mut [u8]) -> Result<(), u64> {
        self.with(at, into.len(), |memory| into.copy_from_slice(memory))
    }

    fn write(&self, at: u64, from: &[u8]) -> Result<(), u64> {
        self.with(at, from.len(), |memory| memory.copy_from_slice(from))
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
