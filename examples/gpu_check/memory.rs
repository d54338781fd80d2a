//! Bytes to a device and back, and waiting for it.

use crate::devices::Device;
use crate::failure::Failure;
use kvroom_actors::copy::device::{DeviceMemory, InFlight, Polled};
use std::sync::Arc;
use std::thread::yield_now;
use std::time::{Duration, Instant};

/// The longest that one piece of work may take.
pub(crate) const LONG: Duration = Duration::from_secs(30);

/// Bytes that are brought at once.
const CHUNK: u64 = 64 << 20;

/// Waits for work without sleeping, since it may be what is measured; other threads get their turn.
pub(crate) fn land<T: Send + 'static>(flight: InFlight<T>) -> Result<T, Failure> {
    let until = Instant::now() + LONG;
    let mut flight = flight;
    loop {
        match flight.poll() {
            Polled::Landed(holds) => return Ok(holds),
            Polled::Lost(lost) => return Err(Failure::Device(lost.why().clone())),
            Polled::Pending(_) if Instant::now() >= until => return Err(Failure::Late(LONG)),
            Polled::Pending(again) => flight = again,
        }
        yield_now();
    }
}

/// Memory of the device with these bytes.
pub(crate) fn upload(device: &Device, bytes: &[u8]) -> Result<DeviceMemory, Failure> {
    let memory = Arc::new(device.context.device_memory(bytes.len() as u64)?);
    overwrite(device, &memory, |at, to| {
        to.copy_from_slice(&bytes[at as usize..at as usize + to.len()]);
    })?;
    Arc::into_inner(memory).ok_or_else(|| Failure::Shape("memory that is still used".to_owned()))
}

/// The same, of a page table.
pub(crate) fn upload_table(device: &Device, table: &[u32]) -> Result<DeviceMemory, Failure> {
    let bytes: Vec<u8> = table.iter().flat_map(|page| page.to_le_bytes()).collect();
    upload(device, &bytes)
}

/// Fills all of a memory with what `fill` says of each part, which begins at its first argument.
pub(crate) fn overwrite(
    device: &Device,
    memory: &Arc<DeviceMemory>,
    mut fill: impl FnMut(u64, &mut [u8]),
) -> Result<(), Failure> {
    let stream = device.stream()?;
    let mut pinned = device.context.pinned(memory.bytes().min(CHUNK))?;
    for (at, bytes) in chunks(memory.bytes()) {
        pinned.write(0..bytes, |to| fill(at, to))?;
        let holds = (pinned, Arc::clone(memory));
        let flight = stream.queue(holds, |(pinned, memory), q| {
            q.copy(memory.range(at..at + bytes)?, pinned.source(0..bytes)?)
        })?;
        pinned = land(flight)?.0;
    }
    Ok(())
}

/// All bytes of a memory, once everything that was queued in this process before is over.
pub(crate) fn download(device: &Device, memory: &Arc<DeviceMemory>) -> Result<Vec<u8>, Failure> {
    let stream = device.stream()?;
    let mut pinned = device.context.pinned(memory.bytes().min(CHUNK))?;
    let mut all = Vec::with_capacity(memory.bytes() as usize);
    for (at, bytes) in chunks(memory.bytes()) {
        let holds = (pinned, Arc::clone(memory));
        let flight = stream.queue(holds, |(pinned, memory), q| {
            q.copy(pinned.target(0..bytes)?, memory.range(at..at + bytes)?)
        })?;
        pinned = land(flight)?.0;
        pinned.read(0..bytes, |seen| all.extend_from_slice(seen))?;
    }
    Ok(all)
}

fn chunks(bytes: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes.div_ceil(CHUNK)).map(move |nth| {
        let at = nth * CHUNK;
        (at, CHUNK.min(bytes - at))
    })
}

/// Compares what is there with what must be there.
pub(crate) fn same(what: &str, seen: &[u8], wanted: &[u8]) -> Result<(), Failure> {
    if seen == wanted {
        return Ok(());
    }
    let wrong = seen.iter().zip(wanted).filter(|(a, b)| a != b).count();
    let at = seen.iter().zip(wanted).position(|(a, b)| a != b);
    let at = at.unwrap_or_else(|| seen.len().min(wanted.len()));
    let byte = |of: &[u8]| {
        of.get(at)
            .map_or("nothing".to_owned(), |b| format!("{b:#04x}"))
    };
    Err(Failure::Wrong(format!(
        "{what}: byte {at} of {} is {} and must be {}; {wrong} bytes are wrong",
        wanted.len(),
        byte(seen),
        byte(wanted)
    )))
}
