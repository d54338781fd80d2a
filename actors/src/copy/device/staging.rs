//! A bounded number of slots of pinned memory.

use super::backend::Result;
use super::context::{Context, lock};
use super::memory::Pinned;
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex};

/// Slots of pinned memory. All are allocated at the start, and there are never more: who finds none
/// waits.
#[derive(Clone)]
pub struct Staging {
    shared: Arc<Shared>,
}

struct Shared {
    free: Mutex<Vec<Pinned>>,
    slots: usize,
    slot_bytes: u64,
}

/// One slot. It goes back when it is dropped; what is lost with a device never does.
pub struct Slot {
    memory: Option<Pinned>,
    home: Arc<Shared>,
}

impl Staging {
    /// So many slots of so many bytes (at least 1 of each).
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::DeviceError::OutOfMemory); none is kept then.
    pub fn new(context: &Context, slots: usize, slot_bytes: u64) -> Result<Self> {
        let (slots, slot_bytes) = (slots.max(1), slot_bytes.max(1));
        let free = (0..slots).map(|_| context.pinned(slot_bytes));
        let free = Mutex::new(free.collect::<Result<Vec<_>>>()?);
        Ok(Staging {
            shared: Arc::new(Shared {
                free,
                slots,
                slot_bytes,
            }),
        })
    }

    /// A slot, if one is free.
    #[must_use]
    pub fn take(&self) -> Option<Slot> {
        let memory = lock(&self.shared.free).pop()?;
        Some(Slot {
            memory: Some(memory),
            home: Arc::clone(&self.shared),
        })
    }

    /// How many are free now.
    #[must_use]
    pub fn free(&self) -> usize {
        lock(&self.shared.free).len()
    }

    /// How many there are.
    #[must_use]
    pub fn slots(&self) -> usize {
        self.shared.slots
    }

    /// The bytes of one.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.shared.slot_bytes
    }
}

impl Deref for Slot {
    type Target = Pinned;

    fn deref(&self) -> &Pinned {
        match &self.memory {
            Some(memory) => memory,
            None => unreachable!("a slot has its memory until it is dropped"),
        }
    }
}

impl DerefMut for Slot {
    fn deref_mut(&mut self) -> &mut Pinned {
        match &mut self.memory {
            Some(memory) => memory,
            None => unreachable!("a slot has its memory until it is dropped"),
        }
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            lock(&self.home.free).push(memory);
        }
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Slot").field(&self.memory).finish()
    }
}

impl fmt::Debug for Staging {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Staging")
            .field("slots", &self.slots())
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}
