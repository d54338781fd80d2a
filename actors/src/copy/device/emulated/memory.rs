//! One address space of blocks with room between them.

use super::super::backend::{Address, RawCopy};
use super::kernels::IllegalAccess;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Addresses begin here, so that small numbers are none.
const FIRST: Address = 1 << 32;
/// Addresses between two blocks that are in none, at least.
const GAP: u64 = 1 << 16;

/// Whose memory it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Home {
    Host,
    Device(u32),
}

/// One allocation.
pub(super) struct Block {
    base: Address,
    pub(super) home: Home,
    bytes: RwLock<Box<[u8]>>,
}

#[derive(Default)]
pub(in super::super) struct Memory {
    state: RwLock<State>,
}

#[derive(Default)]
struct State {
    blocks: BTreeMap<Address, Arc<Block>>,
    next: Address,
    host_bytes: u64,
    device_bytes: BTreeMap<u32, u64>,
}

impl State {
    fn used(&mut self, home: Home) -> &mut u64 {
        match home {
            Home::Host => &mut self.host_bytes,
            Home::Device(ordinal) => self.device_bytes.entry(ordinal).or_default(),
        }
    }
}

impl Memory {
    /// A new block, if there is room for it. What is in it is not zero, as on a device.
    pub(super) fn allocate(&self, home: Home, bytes: u64, limit: u64) -> Option<Address> {
        let size = usize::try_from(bytes).ok()?;
        let mut state = write(&self.state);
        let used = state.used(home);
        let sum = used.checked_add(bytes).filter(|sum| *sum <= limit)?;
        *used = sum;
        let base = state.next.max(FIRST);
        state.next = base + bytes.next_multiple_of(GAP) + GAP;
        let block = Block {
            base,
            home,
            bytes: RwLock::new(vec![0xA5; size].into_boxed_slice()),
        };
        state.blocks.insert(base, Arc::new(block));
        Some(base)
    }

    /// Whether there was such a block.
    pub(super) fn free(&self, base: Address) -> bool {
        let mut state = write(&self.state);
        let Some(block) = state.blocks.remove(&base) else {
            return false;
        };
        let bytes = read(&block.bytes).len() as u64;
        *state.used(block.home) -= bytes;
        true
    }

    pub(super) fn blocks(&self) -> usize {
        read(&self.state).blocks.len()
    }

    /// The block that a range is in, and where in it.
    pub(super) fn find(&self, at: Address, bytes: u64) -> Result<Place, IllegalAccess> {
        let illegal = IllegalAccess { at, bytes };
        let state = read(&self.state);
        let (base, block) = state.blocks.range(..=at).next_back().ok_or(illegal)?;
        let offset = at - base;
        let of = read(&block.bytes).len() as u64;
        let end = offset.checked_add(bytes).filter(|end| *end <= of);
        let end = end.ok_or(illegal)?;
        Ok(Place {
            block: Arc::clone(block),
            from: offset as usize,
            to: end as usize,
        })
    }

    /// Copies as a device does.
    pub(super) fn copy(&self, copy: RawCopy) -> Result<(), IllegalAccess> {
        let from = self.find(copy.from, copy.bytes)?;
        let to = self.find(copy.to, copy.bytes)?;
        if Arc::ptr_eq(&from.block, &to.block) {
            write(&to.block.bytes).copy_within(from.from..from.to, to.from);
            return Ok(());
        }
        // In the order of addresses, so that two copies the other way round do not wait for each other.
        if from.block.base < to.block.base {
            let source = read(&from.block.bytes);
            let mut target = write(&to.block.bytes);
            target[to.from..to.to].copy_from_slice(&source[from.from..from.to]);
        } else {
            let mut target = write(&to.block.bytes);
            let source = read(&from.block.bytes);
            target[to.from..to.to].copy_from_slice(&source[from.from..from.to]);
        }
        Ok(())
    }
}

/// A range that is there.
pub(super) struct Place {
    pub(super) block: Arc<Block>,
    from: usize,
    to: usize,
}

impl Place {
    pub(super) fn base(&self) -> Address {
        self.block.base
    }

    pub(super) fn offset(&self) -> u64 {
        self.from as u64
    }

    pub(super) fn block_bytes(&self) -> u64 {
        read(&self.block.bytes).len() as u64
    }

    pub(super) fn read(&self, see: &mut dyn FnMut(&[u8])) {
        see(&read(&self.block.bytes)[self.from..self.to]);
    }

    pub(super) fn write(&self, see: &mut dyn FnMut(&mut [u8])) {
        see(&mut write(&self.block.bytes)[self.from..self.to]);
    }
}

fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}
