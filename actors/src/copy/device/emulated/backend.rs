//! The calls of a device, over threads and host memory.

use super::super::backend::{
    Address, Backend, Handle, Identity, IpcBytes, Kind, PeerKey, Priority, RawArg, RawCopy, Result,
};
use super::super::context::lock;
use super::super::error::DeviceError;
use super::super::kernel::{Code, Launch};
use super::device::{Device, Later};
use super::kernels::Value;
use super::memory::Home;
use super::stream::{End, Step, Stream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Threads that are told to end at once get so long.
const LAST: Duration = Duration::from_millis(200);

impl Backend for Device {
    fn identity(&self) -> &Identity {
        &self.state.identity
    }

    fn peer_key(&self) -> PeerKey {
        PeerKey {
            kind: Kind::Emulated,
            device: self.ordinal(),
            context: Arc::as_ptr(&self.machine) as u64,
        }
    }

    fn stream_create(&self, priority: Priority) -> Result<Handle> {
        let later = self.begin("cuStreamCreate")?;
        self.join_ended();
        let limit = self.machine.config.streams;
        let counted =
            self.state
                .streams
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |count| {
                    (count < limit).then_some(count + 1)
                });
        if counted.is_err() {
            return Err(DeviceError::Limit {
                what: "streams",
                limit,
            });
        }
        let Ok((stream, thread)) = Stream::start(&self.machine, &self.state, priority) else {
            self.state.streams.fetch_sub(1, Ordering::SeqCst);
            return Err(self.error("cuStreamCreate", 304));
        };
        let handle = self.machine.number();
        lock(&self.streams).insert(handle, Arc::clone(&stream));
        lock(&self.threads).push((stream, thread));
        self.end(handle, later)
    }

    fn stream_destroy(&self, stream: Handle) -> Result<()> {
        // The thread ends whatever the driver would say: it is not the device's.
        let found = lock(&self.streams).remove(&stream);
        if let Some(stream) = &found {
            stream.close(End::Drained);
        }
        self.begin("cuStreamDestroy")?;
        found
            .map(|_| ())
            .ok_or_else(|| self.error("cuStreamDestroy", 400))
    }

    fn stream_query(&self, stream: Handle) -> Result<bool> {
        self.begin("cuStreamQuery")?;
        let idle = self.find("cuStreamQuery", stream)?.is_idle();
        // What it did last may have been what lost the device.
        self.begin("cuStreamQuery")?;
        Ok(idle)
    }

    fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        let event = self.event("cuStreamWaitEvent", event)?;
        let recorded = event.recorded.load(Ordering::SeqCst);
        self.push("cuStreamWaitEvent", stream, Step::Wait(event, recorded))
    }

    fn event_create(&self, _: bool) -> Result<Handle> {
        let later = self.begin("cuEventCreate")?;
        let handle = self.machine.number();
        lock(&self.machine.events).insert(handle, Arc::default());
        self.end(handle, later)
    }

    fn event_destroy(&self, event: Handle) -> Result<()> {
        self.begin("cuEventDestroy")?;
        let found = lock(&self.machine.events).remove(&event);
        found
            .map(|_| ())
            .ok_or_else(|| self.error("cuEventDestroy", 400))
    }

    fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        let later = self.begin("cuEventRecord")?;
        let event = self.event("cuEventRecord", event)?;
        let stream = self.find("cuEventRecord", stream)?;
        let recorded = event.recorded.fetch_add(1, Ordering::SeqCst) + 1;
        stream.push(Step::Record(event, recorded));
        if let Later(Some(code)) = later {
            stream.push(Step::Fail(code));
        }
        Ok(())
    }

    fn event_query(&self, event: Handle) -> Result<bool> {
        self.begin("cuEventQuery")?;
        let event = self.event("cuEventQuery", event)?;
        Ok(event.is_done(event.recorded.load(Ordering::SeqCst)))
    }

    fn event_export(&self, event: Handle) -> Result<IpcBytes> {
        let later = self.begin("cuIpcGetEventHandle")?;
        self.event("cuIpcGetEventHandle", event)?;
        self.end(self.ipc_bytes(event), later)
    }

    fn event_open(&self, bytes: &IpcBytes) -> Result<Handle> {
        let later = self.begin("cuIpcOpenEventHandle")?;
        let number = self.number_of("cuIpcOpenEventHandle", bytes)?;
        let event = self.event("cuIpcOpenEventHandle", number)?;
        let handle = self.machine.number();
        lock(&self.machine.events).insert(handle, event);
        self.end(handle, later)
    }

    fn device_alloc(&self, bytes: u64) -> Result<Address> {
        let limit = self.machine.config.device_bytes;
        self.allocate("cuMemAlloc", Home::Device(self.ordinal()), bytes, limit)
    }

    fn device_free(&self, at: Address) -> Result<()> {
        self.free("cuMemFree", at)
    }

    fn pinned_alloc(&self, bytes: u64) -> Result<Address> {
        let limit = self.machine.config.pinned_bytes;
        self.allocate("cuMemHostAlloc", Home::Host, bytes, limit)
    }

    fn pinned_free(&self, at: Address) -> Result<()> {
        self.free("cuMemFreeHost", at)
    }

    fn pinned_read(&self, at: Address, bytes: u64, see: &mut dyn FnMut(&[u8])) {
        if let Some(place) = self.place(at, bytes) {
            place.read(see);
        }
    }

    fn pinned_write(&self, at: Address, bytes: u64, see: &mut dyn FnMut(&mut [u8])) {
        if let Some(place) = self.place(at, bytes) {
            place.write(see);
        }
    }

    fn ipc_export(&self, at: Address) -> Result<(IpcBytes, u64)> {
        let later = self.begin("cuIpcGetMemHandle")?;
        let place = self.place(at, 1);
        let place = place.ok_or_else(|| self.error("cuIpcGetMemHandle", 1))?;
        self.end((self.ipc_bytes(place.base()), place.offset()), later)
    }

    fn ipc_open(&self, bytes: &IpcBytes) -> Result<(Address, u64)> {
        let later = self.begin("cuIpcOpenMemHandle")?;
        let base = self.number_of("cuIpcOpenMemHandle", bytes)?;
        let place = self.place(base, 1).filter(|place| place.offset() == 0);
        let place = place.ok_or_else(|| self.error("cuIpcOpenMemHandle", 400))?;
        let here = place.block.home == Home::Device(self.ordinal());
        if !here && !self.machine.config.peers {
            return Err(self.error("cuIpcOpenMemHandle", 217));
        }
        self.end((base, place.block_bytes()), later)
    }

    fn ipc_close(&self, _: Address) -> Result<()> {
        self.begin("cuIpcCloseMemHandle").map(|_| ())
    }

    fn peer_possible(&self, other: PeerKey) -> Result<bool> {
        self.begin("cuDeviceCanAccessPeer")?;
        let here = self.peer_key();
        Ok(self.machine.config.peers
            && other.context == here.context
            && other.device != here.device)
    }

    fn peer_enable(&self, other: PeerKey) -> Result<()> {
        let later = self.begin("cuCtxEnablePeerAccess")?;
        let mut reaches = lock(&self.state.reaches);
        if !reaches.contains(&other.device) {
            reaches.push(other.device);
        }
        drop(reaches);
        self.end((), later)
    }

    fn copy(&self, stream: Handle, copies: &[RawCopy]) -> Result<()> {
        self.push("cuMemcpyBatchAsync", stream, Step::Copy(copies.to_vec()))
    }

    fn call(&self, stream: Handle, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        self.push("cuLaunchHostFunc", stream, Step::Call(call))
    }

    fn load(&self, _: &Code) -> Result<Handle> {
        let later = self.begin("cuModuleLoadData")?;
        let module = self.machine.number();
        let is_loaded = Arc::new(AtomicBool::new(true));
        lock(&self.modules).insert(module, is_loaded);
        self.end(module, later)
    }

    fn unload(&self, module: Handle) -> Result<()> {
        lock(&self.kernels).retain(|_, (of, ..)| *of != module);
        if let Some(is_loaded) = lock(&self.modules).remove(&module) {
            is_loaded.store(false, Ordering::SeqCst);
        }
        self.begin("cuModuleUnload").map(|_| ())
    }

    fn kernel(&self, module: Handle, name: &str) -> Result<Handle> {
        let later = self.begin("cuModuleGetFunction")?;
        let kernel = self.machine.config.kernels.get(name).map(Arc::clone);
        let kernel = kernel.ok_or_else(|| DeviceError::NoSuchKernel {
            name: name.to_owned(),
        })?;
        let handle = self.machine.number();
        let is_loaded = lock(&self.modules).get(&module).map(Arc::clone);
        let is_loaded = is_loaded.ok_or_else(|| self.error("cuModuleGetFunction", 400))?;
        lock(&self.kernels).insert(handle, (module, is_loaded, kernel));
        self.end(handle, later)
    }

    fn launch(
        &self,
        stream: Handle,
        kernel: Handle,
        launch: &Launch,
        args: &[RawArg],
    ) -> Result<()> {
        let found = lock(&self.kernels).get(&kernel).cloned();
        let (_, is_loaded, kernel) = found.ok_or_else(|| self.error("cuLaunchKernel", 400))?;
        let args = args.iter().map(|arg| match arg {
            RawArg::Address(value) | RawArg::U64(value) => Value::U64(*value),
            RawArg::U32(value) => Value::U32(*value),
            RawArg::Bytes(bytes) => Value::Bytes(bytes.clone()),
        });
        let step = Step::Launch {
            kernel,
            is_loaded,
            launch: *launch,
            args: args.collect(),
        };
        self.push("cuLaunchKernel", stream, step)
    }

    fn close(&self, bound: Duration) -> usize {
        let until = Instant::now() + bound;
        let streams = std::mem::take(&mut *lock(&self.streams));
        streams
            .values()
            .for_each(|stream| stream.close(End::Drained));
        let threads = std::mem::take(&mut *lock(&self.threads));
        let waits: Vec<_> = threads
            .into_iter()
            .filter_map(|(stream, thread)| match stream.is_over_within(until) {
                true => {
                    let _ = thread.join();
                    None
                }
                false => Some((stream, thread)),
            })
            .collect();
        waits.iter().for_each(|(stream, _)| stream.close(End::Now));
        let last = Instant::now() + LAST;
        let mut left = 0;
        for (stream, thread) in waits {
            if stream.is_over_within(last) {
                let _ = thread.join();
            } else {
                left += 1;
            }
        }
        left
    }
}

impl Device {
    fn ipc_bytes(&self, number: u64) -> IpcBytes {
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&number.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.machine.nonce.to_le_bytes());
        bytes
    }

    /// What a handle of this machine stands for.
    fn number_of(&self, call: &'static str, bytes: &IpcBytes) -> Result<u64> {
        let word = |at: usize| {
            let mut word = [0; 8];
            word.copy_from_slice(&bytes[at..at + 8]);
            u64::from_le_bytes(word)
        };
        match word(8) == self.machine.nonce {
            true => Ok(word(0)),
            false => Err(self.error(call, 400)),
        }
    }
}
