//! Pools in a device's memory: which bytes of it queued work may read and write.
//!
//! ```text
//!   Ticket (part of a job) ── source(offset, bytes) ──▶ Source<'_>     pages that the job's view holds
//!   Staying (inside a gate) ── target(section, …) ────▶ Target<'_>     pages that the target holds
//! ```
//!
//! The same rules as in `copy`: a range is checked against the pool and against the pages lent before
//! its address is given out. That address is borrowed from the ticket or from the stay, and queued work
//! owns those until its event has fired ([`crate::copy::device`]).

use super::copy::{CopyError, End, lent_pages};
use super::elsewhere::Elsewhere;
use super::held::Held;
use super::pool::{Pool, PoolError, PoolMemory};
use super::table::Staying;
use super::target::TargetSection;
use super::ticket::Ticket;
use crate::copy::device::{DeviceMemory, Source, Target};
use crate::copy::device_lane::Device;
use kvroom_kernels::layout::PoolLayout;
use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;

/// Where the memory of a pool is, if the CPU does not reach it.
pub(super) struct OnDevice {
    device: Device,
    memory: Arc<DeviceMemory>,
}

impl Elsewhere for OnDevice {
    fn bytes(&self) -> u64 {
        self.memory.bytes()
    }

    fn read(&self, offset: u64, into: &mut [u8]) -> Result<(), String> {
        let read = self.device.read(&self.memory, offset, into);
        read.map_err(|why| why.to_string())
    }

    fn write(
        &self,
        offset: u64,
        bytes: &[u8],
        held: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), String> {
        let written = self.device.write(&self.memory, offset, bytes, held);
        written.map_err(|why| why.to_string())
    }

    fn as_any(&self) -> &dyn Any {
        self
    }
}

fn of(memory: &PoolMemory) -> Option<&OnDevice> {
    memory.elsewhere()?.as_any().downcast_ref()
}

impl Pool {
    /// A pool in memory of the device that is allocated for it. It is not zeroed.
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`], or [`PoolError::Device`] with what the driver said.
    pub fn on_device(layout: PoolLayout, device: &Device) -> Result<Pool, PoolError> {
        let bytes = super::pool::bytes_of(&layout)?;
        let memory = device.context().device_memory(bytes as u64);
        let memory = memory.map_err(|why| PoolError::Device {
            pool: layout.name.clone(),
            why: why.to_string(),
        })?;
        Pool::in_device_memory(layout, device, memory)
    }

    /// A pool in memory that is there: another process's that was opened
    /// ([`Context::import`](crate::copy::device::Context::import)), or an engine's in this one. The
    /// memory is let go of when the last handle, lease, gate and job that could touch it is gone.
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`], [`PoolError::TooSmall`], or [`PoolError::Device`] if the memory is of
    /// another device.
    pub fn in_device_memory(
        layout: PoolLayout,
        device: &Device,
        memory: DeviceMemory,
    ) -> Result<Pool, PoolError> {
        if !memory.is_of(device.context()) {
            return Err(PoolError::Device {
                pool: layout.name,
                why: "its memory is of another device's context; this is a bug of the caller"
                    .to_owned(),
            });
        }
        let home = OnDevice {
            device: device.clone(),
            memory: Arc::new(memory),
        };
        Pool::new_elsewhere(layout, Box::new(home))
    }

    /// The memory itself, if it is a device's: for an engine's own work there. Who queues some sees to it
    /// that it holds a lease of the pages until that is over.
    pub fn device_memory(&self) -> Option<&Arc<DeviceMemory>> {
        of(self.memory()).map(|home| &home.memory)
    }

    /// The device that its memory is on, if it is on one.
    pub fn device(&self) -> Option<&Device> {
        of(self.memory()).map(|home| &home.device)
    }
}

impl TargetSection {
    /// The device that its pool is on, if it is on one.
    pub fn device(&self) -> Option<&Device> {
        self.held().pool().device()
    }
}

impl Ticket {
    /// The device that the source's pool is on, if it is on one.
    pub(crate) fn device(&self) -> Option<&Device> {
        self.source().and_then(|view| view.held().pool().device())
    }

    /// Bytes of the source for queued work.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: they are not among those that the job may read.
    pub(crate) fn device_source(&self, offset: u64, bytes: u64) -> Result<Source<'_>, CopyError> {
        let Some(view) = self.source() else {
            unreachable!("a ticket has its source until it is dropped");
        };
        range(view.held(), End::Source, offset, bytes, &self.source_cursor).map(Source::from)
    }
}

impl Staying {
    /// Bytes of a section for queued work.
    ///
    /// # Errors
    ///
    /// [`CopyError`]: they are not among those that the claim lends.
    pub(crate) fn device_target(
        &self,
        section: u16,
        offset: u64,
        bytes: u64,
        cursor: &Cell<usize>,
    ) -> Result<Target<'_>, CopyError> {
        let Some(to) = self.target().section(section) else {
            return Err(CopyError::NoSuchSection { section });
        };
        range(to.held(), End::Destination, offset, bytes, cursor)
    }
}

fn range<'h>(
    held: &'h Held,
    end: End,
    offset: u64,
    bytes: u64,
    cursor: &Cell<usize>,
) -> Result<Target<'h>, CopyError> {
    lent_pages(held, end, offset, bytes, cursor)?;
    let pool = || held.memory().layout().name.clone();
    let Some(home) = of(held.memory()) else {
        return Err(CopyError::Device {
            end,
            pool: pool(),
            why: "it is not on a device; this is a bug of kvroom".to_owned(),
        });
    };
    let range = home.memory.range(offset..offset + bytes);
    range.map_err(|why| CopyError::Device {
        end,
        pool: pool(),
        why: why.to_string(),
    })
}
