//! Bytes of a device's memory in and out by hand, with a bound: for tests, tools, oracles and sums.

use super::Device;
use crate::copy::device::{Context, DeviceError, DeviceMemory, Pinned, Polled, Priority, Stream};
use std::any::Any;
use std::ops::Range;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

/// Bytes that go at a time.
const STEP: u64 = 256 << 10;

/// How long one step may take.
const BOUND: Duration = Duration::from_secs(2);

/// A stream and a buffer for that, made when they are needed first. The stream goes before the lane's.
pub(super) struct Access {
    context: Context,
    ready: Option<(Stream, Pinned)>,
}

impl Access {
    pub(super) fn new(context: Context) -> Self {
        Access {
            context,
            ready: None,
        }
    }

    fn take(&mut self) -> Result<(Stream, Pinned), DeviceError> {
        match self.ready.take() {
            Some(ready) => Ok(ready),
            None => Ok((
                self.context.stream(Priority::High)?,
                self.context.pinned(STEP)?,
            )),
        }
    }
}

impl Device {
    /// Copies bytes of memory of this device out.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`], [`DeviceError::Silent`] if it takes too long, or what the driver
    /// says.
    pub fn read(
        &self,
        memory: &Arc<DeviceMemory>,
        offset: u64,
        into: &mut [u8],
    ) -> Result<(), DeviceError> {
        let mut access = self.access();
        for (at, part) in steps(offset, into.len()) {
            let (stream, buffer) = access.take()?;
            let (at, n) = (at..at + part.len() as u64, part.len() as u64);
            let holds = (Arc::clone(memory), buffer);
            let flight = stream.queue(holds, |(memory, buffer), q| {
                let from = memory.range(at)?;
                q.copy(buffer.target(0..n)?, from)
            });
            let (_, buffer) = landed(flight)?;
            buffer.read(0..n, |bytes| into[part].copy_from_slice(bytes))?;
            access.ready = Some((stream, buffer));
        }
        Ok(())
    }

    /// Copies bytes into memory of this device. `keeps` is kept until they are there, also if that takes
    /// longer than this waits.
    ///
    /// # Errors
    ///
    /// As [`Device::read`].
    pub fn write(
        &self,
        memory: &Arc<DeviceMemory>,
        offset: u64,
        bytes: &[u8],
        keeps: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), DeviceError> {
        let mut access = self.access();
        for (at, part) in steps(offset, bytes.len()) {
            let (stream, mut buffer) = access.take()?;
            let (at, n) = (at..at + part.len() as u64, part.len() as u64);
            buffer.write(0..n, |into| into.copy_from_slice(&bytes[part]))?;
            let holds = (Arc::clone(memory), buffer, Arc::clone(&keeps));
            let flight = stream.queue(holds, |(memory, buffer, _), q| {
                q.copy(memory.range(at)?, buffer.source(0..n)?)
            });
            let (_, buffer, _) = landed(flight)?;
            access.ready = Some((stream, buffer));
        }
        Ok(())
    }

    fn access(&self) -> std::sync::MutexGuard<'_, Access> {
        let access = &self.shared.access;
        access.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Where each step begins in the memory, and what of the slice it is.
fn steps(offset: u64, len: usize) -> impl Iterator<Item = (u64, Range<usize>)> {
    let step = STEP as usize;
    (0..len)
        .step_by(step)
        .map(move |at| (offset + at as u64, at..len.min(at + step)))
}

type Queued<T> = Result<crate::copy::device::InFlight<T>, crate::copy::device::QueueError<T>>;

fn landed<T: Send + 'static>(flight: Queued<T>) -> Result<T, DeviceError> {
    match flight.map_err(|refused| refused.error)?.wait(BOUND) {
        Polled::Landed(holds) => Ok(holds),
        // It is parked with what it owns.
        Polled::Pending(_) => Err(DeviceError::Silent(BOUND)),
        Polled::Lost(lost) => Err(lost.why().clone()),
    }
}
