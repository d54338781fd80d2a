//! Devices at the two ends of a network: what is sent from a slot, and what goes from a slot into pages.
//!
//! ```text
//!   sender      pages ─▶ slot ──landed──▶ Staged ─▶ frames        the slot is back when all is acknowledged
//!   receiver    frame ─▶ Arriving ──valid──▶ lane: slot ─▶ pages, then marked, gate left, acknowledged
//! ```
//!
//! The two have slots of their own: those of a sender are free when the other node has answered, and that
//! may be waiting for a slot itself.

use super::hands::bug;
use super::straight::{self, Opened};
use super::{Device, Mail, Waker};
use crate::copy::device::{Context, DeviceError, ExportedSlot, Pinned, Slot, Source, Staging};
use crate::fabric::tcp::frame::{Reference, RingName};
use crate::fabric::tcp::staged::{
    Delivery, NoSlots, StagedSink, StagedSlot, StagedSource, TellOpened, Wake,
};
use crate::memory::{Pool, PoolRange, TargetSection};
use std::cell::Cell;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// A part of a job that lies in a slot, on its way over a network.
pub(super) struct Staged {
    /// None only within `Drop`.
    pub(super) slot: Option<Outgoing>,
    pub(super) bytes: u64,
    pub(super) sum: Option<u64>,
    pub(super) quota: Option<Quota>,
    pub(super) waker: Waker,
}

/// Where it lies.
pub(super) enum Outgoing {
    /// Its bytes are read from here.
    Pinned(Slot),
    /// They are handed over, in the ring of this number.
    Exported(u32, ExportedSlot),
}

/// One of the slots that a peer may have at a time.
pub(super) struct Quota(Arc<AtomicUsize>);

impl Quota {
    pub(super) fn take(of: &Arc<AtomicUsize>) -> Quota {
        of.fetch_add(1, Ordering::Relaxed);
        Quota(Arc::clone(of))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl StagedSource for Staged {
    fn read(&self, range: Range<u64>, see: &mut dyn FnMut(&[u8])) -> bool {
        match &self.slot {
            Some(Outgoing::Pinned(slot)) if range.end <= self.bytes => {
                slot.read(range, |bytes| see(bytes)).is_ok()
            }
            _ => false,
        }
    }

    fn checksum(&self) -> Option<u64> {
        self.sum
    }

    fn handed(&self) -> Option<Reference> {
        match &self.slot {
            Some(Outgoing::Exported(ring, slot)) => Some(Reference {
                ring: *ring,
                offset: slot.offset(),
            }),
            _ => None,
        }
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // Back first: who is woken looks for it.
        drop(self.slot.take());
        drop(self.quota.take());
        self.waker.wake();
    }
}

/// Slots for frames that arrive for one device.
pub(super) struct Inbox {
    context: Context,
    slots: usize,
    ring: Mutex<Ring>,
    waiting: Mutex<Vec<Wake>>,
}

/// Made with the first frame; a node that only sends needs none.
#[derive(Default)]
struct Ring {
    slots: Option<Staging>,
    /// The lane was asked for slots of so many bytes.
    asked: u64,
    /// And the driver gave none.
    refused: Option<DeviceError>,
}

/// A frame that arrives for a device.
struct Arriving {
    /// None only within `Drop`.
    slot: Option<Slot>,
    bytes: usize,
    device: Device,
}

/// A frame whose bytes are on their way into pages. The order is that of dropping.
pub(super) struct Landing {
    pub(super) delivery: Delivery,
    pub(super) ranges: Vec<PoolRange>,
    pub(super) cursor: Cell<usize>,
    pub(super) from: Whence,
}

/// Where the bytes of a frame are.
pub(super) enum Whence {
    /// In pinned memory.
    Slot(Free),
    /// In a ring of another process.
    Far(Arc<Opened>, Range<u64>),
}

/// A slot that tells who waits for one when it is free.
pub(super) struct Free {
    slot: Option<Slot>,
    device: Device,
}

impl Inbox {
    pub(super) fn new(context: Context, slots: usize) -> Inbox {
        Inbox {
            context,
            slots,
            ring: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// A slot of `bytes` bytes at least; if none is free, or if the lane has to make some first, `wake` is
    /// called when one may be.
    fn take(
        &self,
        device: &Device,
        bytes: usize,
        wake: &Wake,
    ) -> Result<Option<Slot>, DeviceError> {
        if let Some(sticky) = self.context.lost() {
            // Slots may be gone with it.
            return Err(DeviceError::Lost(sticky.clone()));
        }
        // Before it is looked: a slot that comes back meanwhile wakes for nothing, and is not missed.
        {
            let mut waiting = lock(&self.waiting);
            if !waiting.iter().any(|one| Arc::ptr_eq(one, wake)) {
                waiting.push(Arc::clone(wake));
            }
        }
        let slot = self.look(device, bytes);
        if !matches!(slot, Ok(None)) {
            let mut waiting = lock(&self.waiting);
            if let Some(at) = waiting.iter().position(|one| Arc::ptr_eq(one, wake)) {
                waiting.swap_remove(at);
            }
        }
        slot
    }

    fn look(&self, device: &Device, bytes: usize) -> Result<Option<Slot>, DeviceError> {
        let mut ring = lock(&self.ring);
        let wanted = bytes as u64;
        if let Some(slots) = ring.slots.as_ref().filter(|s| s.slot_bytes() >= wanted) {
            return Ok(slots.take());
        }
        if let Some(refused) = ring.refused.take() {
            // Who comes later has it tried again.
            ring.asked = 0;
            return Err(refused);
        }
        if ring.asked < wanted {
            let ask = Mail::Ring(device.clone(), bytes);
            if device.shared.mail.try_send(ask).is_err() {
                return Err(DeviceError::Limit {
                    what: "jobs that wait for a device (DeviceOptions::jobs)",
                    limit: device.shared.jobs,
                });
            }
            ring.asked = wanted;
        }
        Ok(None)
    }

    /// A slot is free, or none ever will be.
    pub(super) fn came_free(&self) {
        let waiting = std::mem::take(&mut *lock(&self.waiting));
        waiting.iter().for_each(|wake| wake());
    }
}

/// The sink of a node: whatever device a section is on.
#[derive(Debug, Default)]
pub(crate) struct DeviceSink;

impl StagedSink for DeviceSink {
    fn takes(&self, section: &TargetSection) -> bool {
        section.device().is_some()
    }

    fn slot(
        &self,
        section: &TargetSection,
        bytes: usize,
        wake: &Wake,
    ) -> Result<Option<Box<dyn StagedSlot>>, NoSlots> {
        let Some(device) = section.device() else {
            return Err(NoSlots {
                lost: false,
                why: "a section that is not on a device; a bug of kvroom".into(),
            });
        };
        let slot = device.shared.inbox.take(device, bytes, wake);
        let slot = slot.map_err(|error| NoSlots {
            lost: error.is_sticky(),
            why: error.to_string(),
        })?;
        Ok(slot.map(|slot| {
            Box::new(Arriving {
                slot: Some(slot),
                bytes,
                device: device.clone(),
            }) as Box<dyn StagedSlot>
        }))
    }

    fn open(&self, pool: &Pool, ring: &RingName, tell: TellOpened) {
        straight::opens(pool, ring, tell);
    }
}

impl StagedSlot for Arriving {
    fn write(&mut self, range: Range<u64>, see: &mut dyn FnMut(&mut [u8])) -> bool {
        match &mut self.slot {
            Some(slot) if range.end <= self.bytes as u64 => {
                slot.write(range, |bytes| see(bytes)).is_ok()
            }
            _ => false,
        }
    }

    fn deliver(mut self: Box<Self>, to: Delivery) {
        let device = self.device.clone();
        let slot = Free {
            slot: self.slot.take(),
            device: device.clone(),
        };
        let landing = Landing {
            delivery: to,
            ranges: Vec::new(),
            cursor: Cell::new(0),
            from: Whence::Slot(slot),
        };
        device.land(landing);
    }
}

impl Drop for Arriving {
    fn drop(&mut self) {
        if let Some(slot) = self.slot.take() {
            drop(slot);
            self.device.shared.inbox.came_free();
        }
    }
}

impl Whence {
    /// It never comes back.
    pub(super) fn never(&self) {
        if let Whence::Slot(free) = self {
            free.device.shared.inbox.came_free();
        }
    }

    /// Whether it is in memory of another process.
    pub(super) fn is_far(&self) -> bool {
        matches!(self, Whence::Far(..))
    }

    /// So many bytes of it, for queued work.
    pub(super) fn source(&self, bytes: u64) -> Result<Source<'_>, DeviceError> {
        match self {
            Whence::Slot(free) => {
                let slot: Option<&Pinned> = free.slot.as_deref();
                slot.ok_or_else(|| bug("no slot"))?.source(0..bytes)
            }
            Whence::Far(ring, range) => {
                let memory = ring.memory().ok_or_else(|| bug("a ring that is closed"))?;
                Ok(memory.range(range.clone())?.part(0..bytes)?.into())
            }
        }
    }
}

impl Drop for Free {
    fn drop(&mut self) {
        drop(self.slot.take());
        self.device.shared.inbox.came_free();
    }
}

impl Device {
    /// Makes slots for frames of so many bytes. On the lane's thread. Frames are as large as the peer was
    /// told, which is one size for all; larger ones come once. Slots of a former size are freed as they
    /// come back.
    pub(super) fn make_ring(&self, bytes: usize) {
        let inbox = &self.shared.inbox;
        let size = (bytes as u64).next_power_of_two().max(64 << 10);
        let made = Staging::new(&inbox.context, inbox.slots, size);
        let mut ring = lock(&inbox.ring);
        let before = match made {
            Ok(slots) => ring.slots.replace(slots),
            Err(refused) => {
                ring.refused = Some(refused);
                None
            }
        };
        drop(ring);
        // What is free of the ring before goes back to the driver, with nothing locked.
        drop(before);
        inbox.came_free();
    }

    /// Has a frame copied from its slot into its pages.
    pub(super) fn land(&self, landing: Landing) {
        use std::sync::mpsc::TrySendError;
        match self.shared.mail.try_send(Mail::Land(Box::new(landing))) {
            Ok(()) => {}
            Err(TrySendError::Full(Mail::Land(landing))) => {
                let jobs = self.shared.jobs;
                let why = format!(
                    "the device's queue holds {jobs} jobs, which is its limit (DeviceOptions::jobs)"
                );
                landing.delivery.broke(false, &why);
            }
            Err(TrySendError::Disconnected(Mail::Land(landing))) => {
                landing
                    .delivery
                    .broke(false, "the device's copy actor has ended");
            }
            Err(_) => {}
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
