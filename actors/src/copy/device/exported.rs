//! A bounded number of slots in device memory that other processes of the host can open.
//!
//! ```text
//!   ExportedRing ── take ──▶ ExportedSlot ── target ──▶ queued work writes it
//!        └ name: handle ──▶ another process opens it, and its device reads the slot
//! ```
//!
//! It is one allocation, and is never freed while the process lives: another process may have it open, and
//! freeing it then is undefined, says the driver's documentation. So its bytes are counted for ever
//! ([`exported_bytes`](super::DeviceStats::exported_bytes)), and its context is not released.

use super::backend::Result;
use super::context::{Context, lock};
use super::memory::{DeviceMemory, IpcMemory, Target};
use std::fmt;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// What is allocated is a multiple of this: the driver shares whole blocks of it, and there is to be nothing
/// of anybody else in those.
const BLOCK: u64 = 2 << 20;

/// Slots begin at multiples of this, as allocations do.
const ALIGNED: u64 = 512;

/// See the module.
pub(crate) struct ExportedRing {
    shared: Arc<Shared>,
}

struct Shared {
    /// Never dropped.
    memory: ManuallyDrop<DeviceMemory>,
    name: IpcMemory,
    free: Mutex<Vec<u64>>,
    slot_bytes: u64,
}

/// One slot. It goes back when it is dropped; what is lost with a device never does.
pub(crate) struct ExportedSlot {
    at: u64,
    home: Arc<Shared>,
}

impl ExportedRing {
    /// So many slots of so many bytes at least (at least 1 of each).
    ///
    /// # Errors
    ///
    /// [`OutOfMemory`](super::DeviceError::OutOfMemory), or what the driver says: not every one exports.
    pub(crate) fn new(context: &Context, slots: usize, slot_bytes: u64) -> Result<Self> {
        let (slots, slot_bytes) = (slots.max(1) as u64, slot_bytes.max(1));
        let slot_bytes = slot_bytes.next_multiple_of(ALIGNED);
        let bytes = slots.saturating_mul(slot_bytes);
        let whole = bytes.checked_next_multiple_of(BLOCK).unwrap_or(bytes);
        let memory = context.device_memory(whole)?;
        let exported = memory.export()?;
        // What else there is of the block is nobody's.
        let name = IpcMemory { bytes, ..exported };
        // From here on another process may have it.
        context.count_exported(memory.bytes());
        let free = (0..slots).rev().map(|slot| slot * slot_bytes).collect();
        Ok(ExportedRing {
            shared: Arc::new(Shared {
                memory: ManuallyDrop::new(memory),
                name,
                free: Mutex::new(free),
                slot_bytes,
            }),
        })
    }

    /// What another process needs to open all of it.
    pub(crate) fn name(&self) -> &IpcMemory {
        &self.shared.name
    }

    /// A slot, if one is free.
    pub(crate) fn take(&self) -> Option<ExportedSlot> {
        let at = lock(&self.shared.free).pop()?;
        let home = Arc::clone(&self.shared);
        Some(ExportedSlot { at, home })
    }

    /// How many are free now.
    pub(crate) fn free(&self) -> usize {
        lock(&self.shared.free).len()
    }
}

impl ExportedSlot {
    /// Where in the allocation that was exported it begins.
    pub(crate) fn offset(&self) -> u64 {
        self.home.name.offset + self.at
    }

    /// A range of it that queued work writes.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`](super::DeviceError::OutOfRange).
    pub(crate) fn target(&mut self, range: Range<u64>) -> Result<Target<'_>> {
        let all = self.at..self.at + self.home.slot_bytes;
        self.home.memory.range(all)?.part(range)
    }
}

impl Drop for ExportedSlot {
    fn drop(&mut self) {
        lock(&self.home.free).push(self.at);
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        let bytes = self.memory.bytes();
        tracing::info!(
            bytes,
            "device memory that other processes could open is kept until this process ends"
        );
    }
}

impl fmt::Debug for ExportedRing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExportedRing")
            .field("memory", &self.shared.memory)
            .field("free", &self.free())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for ExportedSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ExportedSlot").field(&self.at).finish()
    }
}
