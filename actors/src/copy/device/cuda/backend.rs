//! The calls of a device, over the CUDA driver.
#![allow(unsafe_code)] // Calls the driver.

use super::super::backend::{
    Address, Backend, Handle, Identity, IpcBytes, Kind, PeerKey, Priority, RawArg, RawCopy, Result,
};
use super::super::error::DeviceError;
use super::super::kernel::{Code, Launch};
use super::api::{IpcHandle, Ptr};
use super::context::{Cuda, pointer};
use super::identity::result_of;
use std::ffi::{CString, c_int, c_uint, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr;
use std::time::Duration;

// Numbers of CUDA's headers.
const STREAM_NON_BLOCKING: c_uint = 1;
const EVENT_NO_TIMING: c_uint = 2;
const EVENT_BETWEEN_PROCESSES: c_uint = 4;
const HOST_PORTABLE: c_uint = 1;
const IPC_PEER_ACCESS: c_uint = 1;
const PEER_ALREADY: u32 = 704;

/// Parameters that a kernel may have, whatever it is given.
const PARAMETERS: usize = 32;
/// What those beyond the arguments find: as large as all parameters together can be.
static ZEROS: [u64; 4096] = [0; 4096];

/// Streams that go first: CUDA takes what is below the least as the least.
const FIRST: c_int = -5;

impl Backend for Cuda {
    fn identity(&self) -> &Identity {
        &self.identity
    }

    fn peer_key(&self) -> PeerKey {
        PeerKey {
            kind: Kind::Cuda,
            device: self.identity.ordinal,
            context: self.context as u64,
        }
    }

    fn stream_create(&self, priority: Priority) -> Result<Handle> {
        let _current = self.current()?;
        let priority = match priority {
            Priority::Usual => 0,
            Priority::High => FIRST,
        };
        let mut stream = ptr::null_mut();
        // SAFETY: writes one pointer. It does not wait for the engine's default stream.
        let code =
            unsafe { (self.api.call.stream_create)(&mut stream, STREAM_NON_BLOCKING, priority) };
        self.check("cuStreamCreate", code)?;
        Ok(stream as Handle)
    }

    fn stream_destroy(&self, stream: Handle) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: its owner is being dropped; what is queued still happens.
        let code = unsafe { (self.api.call.stream_destroy)(pointer(stream)) };
        self.check("cuStreamDestroy", code)
    }

    fn stream_query(&self, stream: Handle) -> Result<bool> {
        let _current = self.current()?;
        // SAFETY: a stream that is there.
        let code = unsafe { (self.api.call.stream_query)(pointer(stream)) };
        self.fired("cuStreamQuery", code)
    }

    fn stream_wait(&self, stream: Handle, event: Handle) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: both are there; the record of now is taken, so the event may go afterwards.
        let code = unsafe { (self.api.call.stream_wait)(pointer(stream), pointer(event), 0) };
        self.check("cuStreamWaitEvent", code)
    }

    fn event_create(&self, between_processes: bool) -> Result<Handle> {
        let _current = self.current()?;
        let flags = match between_processes {
            true => EVENT_NO_TIMING | EVENT_BETWEEN_PROCESSES,
            false => EVENT_NO_TIMING,
        };
        let mut event = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.call.event_create)(&mut event, flags) };
        self.check("cuEventCreate", code)?;
        Ok(event as Handle)
    }

    fn event_destroy(&self, event: Handle) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: its owner gives it up.
        let code = unsafe { (self.api.call.event_destroy)(pointer(event)) };
        self.check("cuEventDestroy", code)
    }

    fn event_record(&self, event: Handle, stream: Handle) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: both are there.
        let code = unsafe { (self.api.call.event_record)(pointer(event), pointer(stream)) };
        self.check("cuEventRecord", code)
    }

    fn event_query(&self, event: Handle) -> Result<bool> {
        let _current = self.current()?;
        // SAFETY: it is there.
        let code = unsafe { (self.api.call.event_query)(pointer(event)) };
        self.fired("cuEventQuery", code)
    }

    fn event_export(&self, event: Handle) -> Result<IpcBytes> {
        let _current = self.current()?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: writes 64 bytes.
        let code = unsafe { (self.api.call.ipc_event)(&mut handle, pointer(event)) };
        self.check("cuIpcGetEventHandle", code)?;
        Ok(handle.0)
    }

    fn event_open(&self, bytes: &IpcBytes) -> Result<Handle> {
        let _current = self.current()?;
        let mut event = ptr::null_mut();
        // SAFETY: writes one pointer; the driver checks the bytes.
        let code = unsafe { (self.api.call.ipc_event_open)(&mut event, IpcHandle(*bytes)) };
        self.check("cuIpcOpenEventHandle", code)?;
        Ok(event as Handle)
    }

    fn device_alloc(&self, bytes: u64) -> Result<Address> {
        let _current = self.current()?;
        let mut at = 0;
        // SAFETY: writes one address.
        let code = unsafe { (self.api.call.memory_alloc)(&mut at, bytes as usize) };
        result_of(self.identity.ordinal, "cuMemAlloc", code, bytes)?;
        Ok(at)
    }

    fn device_free(&self, at: Address) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: its owner is being dropped, so no queued work uses it (`InFlight`).
        let code = unsafe { (self.api.call.memory_free)(at) };
        self.check("cuMemFree", code)
    }

    fn pinned_alloc(&self, bytes: u64) -> Result<Address> {
        let _current = self.current()?;
        let mut at = ptr::null_mut();
        // SAFETY: writes one pointer.
        let code = unsafe { (self.api.call.host_alloc)(&mut at, bytes as usize, HOST_PORTABLE) };
        result_of(self.identity.ordinal, "cuMemHostAlloc", code, bytes)?;
        // SAFETY: it has just been allocated with so many bytes. They are to be bytes of Rust, which
        // have been written; nobody else has them.
        unsafe { ptr::write_bytes(at.cast::<u8>(), 0, bytes as usize) };
        Ok(at as Address)
    }

    fn pinned_free(&self, at: Address) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as for `device_free`; nobody has a slice of it, since its owner is being dropped.
        let code = unsafe { (self.api.call.host_free)(pointer(at)) };
        self.check("cuMemFreeHost", code)
    }

    fn pinned_read(&self, at: Address, bytes: u64, see: &mut dyn FnMut(&[u8])) {
        // SAFETY: within one allocation of `pinned_alloc`, which was written as a whole; its owner is
        // borrowed, so no queued work writes it, and it stays.
        see(unsafe { std::slice::from_raw_parts(at as *const u8, bytes as usize) });
    }

    fn pinned_write(&self, at: Address, bytes: u64, see: &mut dyn FnMut(&mut [u8])) {
        // SAFETY: the same, and its owner is borrowed for writing.
        see(unsafe { std::slice::from_raw_parts_mut(at as *mut u8, bytes as usize) });
    }

    fn ipc_export(&self, at: Address) -> Result<(IpcBytes, u64)> {
        let _current = self.current()?;
        let (base, _) = self.allocation(at)?;
        let mut handle = IpcHandle([0; 64]);
        // SAFETY: writes 64 bytes.
        let code = unsafe { (self.api.call.ipc_memory)(&mut handle, at) };
        self.check("cuIpcGetMemHandle", code)?;
        Ok((handle.0, at - base))
    }

    fn ipc_open(&self, bytes: &IpcBytes) -> Result<(Address, u64)> {
        let _current = self.current()?;
        let mut at = 0;
        // SAFETY: writes one address; the driver checks the bytes.
        let code =
            unsafe { (self.api.call.ipc_memory_open)(&mut at, IpcHandle(*bytes), IPC_PEER_ACCESS) };
        self.check("cuIpcOpenMemHandle", code)?;
        match self.allocation(at) {
            Ok((base, mapped)) => Ok((at, mapped - (at - base))),
            Err(error) => {
                // SAFETY: it has just been opened, and nobody has the address.
                let _ = unsafe { (self.api.call.ipc_memory_close)(at) };
                Err(error)
            }
        }
    }

    fn ipc_close(&self, start: Address) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: as for `device_free`.
        let code = unsafe { (self.api.call.ipc_memory_close)(start) };
        self.check("cuIpcCloseMemHandle", code)
    }

    fn peer_possible(&self, other: PeerKey) -> Result<bool> {
        let mut can: c_int = 0;
        let mut device = 0;
        // SAFETY: writes one number.
        let code = unsafe { (self.api.call.device_get)(&mut device, other.device as c_int) };
        self.check("cuDeviceGet", code)?;
        // SAFETY: writes one number; both are devices.
        let code = unsafe { (self.api.call.peer_possible)(&mut can, self.device, device) };
        self.check("cuDeviceCanAccessPeer", code)?;
        Ok(can != 0)
    }

    fn peer_enable(&self, other: PeerKey) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: the other's context is retained by whoever asks.
        let code = unsafe { (self.api.call.peer_enable)(pointer(other.context), 0) };
        match code {
            // The engine may have done it before.
            PEER_ALREADY => Ok(()),
            code => self.check("cuCtxEnablePeerAccess", code),
        }
    }

    fn copy(&self, stream: Handle, copies: &[RawCopy]) -> Result<()> {
        let _current = self.current()?;
        self.copies.queue(self.api, pointer(stream), copies)
    }

    fn call(&self, stream: Handle, call: Box<dyn FnOnce() + Send>) -> Result<()> {
        let _current = self.current()?;
        let given: *mut Box<dyn FnOnce() + Send> = Box::into_raw(Box::new(call));
        // SAFETY: `called` gets the box, at most once.
        let code = unsafe { (self.api.call.host_call)(pointer(stream), called, given.cast()) };
        if code != 0 {
            // SAFETY: the driver did not take it, so it is ours still.
            drop(unsafe { Box::from_raw(given) });
        }
        self.check("cuLaunchHostFunc", code)
    }

    fn load(&self, code: &Code) -> Result<Handle> {
        match code {
            Code::Ptx(text) => self.load_image(text),
            Code::Cubin(bytes) => self.load_image(bytes),
            Code::Source(program) => {
                let (capability, driver) = (self.identity.capability, self.api.version);
                let image = self.compiler.compile(program, capability, driver)?;
                self.load_image(&image)
            }
        }
    }

    fn unload(&self, module: Handle) -> Result<()> {
        let _current = self.current()?;
        // SAFETY: none of its kernels is left, also not in queued work.
        let code = unsafe { (self.api.call.module_unload)(pointer(module)) };
        self.check("cuModuleUnload", code)
    }

    fn kernel(&self, module: Handle, name: &str) -> Result<Handle> {
        let _current = self.current()?;
        let unknown = || DeviceError::NoSuchKernel {
            name: name.to_owned(),
        };
        let c_name = CString::new(name).map_err(|_| unknown())?;
        let mut kernel = ptr::null_mut();
        // SAFETY: writes one pointer; the name ends with a zero byte and outlives the call.
        let code = unsafe {
            (self.api.call.module_function)(&mut kernel, pointer(module), c_name.as_ptr())
        };
        match code {
            500 => Err(unknown()),
            code => self.check("cuModuleGetFunction", code),
        }?;
        Ok(kernel as Handle)
    }

    fn launch(
        &self,
        stream: Handle,
        kernel: Handle,
        launch: &Launch,
        args: &[RawArg],
    ) -> Result<()> {
        let _current = self.current()?;
        let (words, starts) = words_of(args);
        let mut pointers: Vec<Ptr> = starts
            .into_iter()
            .map(|start| {
                words
                    .as_ptr()
                    .wrapping_add(start)
                    .cast_mut()
                    .cast::<c_void>()
            })
            .collect();
        // A kernel with more parameters than arguments finds zeros, and not what is behind the array.
        let zeros = ZEROS.as_ptr().cast_mut().cast::<c_void>();
        pointers.resize(pointers.len().max(PARAMETERS), zeros);
        let (grid, block) = (launch.grid, launch.block);
        // SAFETY: one pointer for each argument, to as many bytes as it has, or to zeros; they are read,
        // and not written, before the call returns. That the kernel takes these and stays within them is what `Code` vouches for.
        let code = unsafe {
            (self.api.call.launch)(
                pointer(kernel),
                grid.0,
                grid.1,
                grid.2,
                block.0,
                block.1,
                block.2,
                launch.shared_bytes,
                pointer(stream),
                pointers.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        self.check("cuLaunchKernel", code)
    }

    fn close(&self, _: Duration) -> usize {
        // The driver's threads are its own.
        0
    }
}

/// What the driver calls; a panic ends here.
unsafe extern "C" fn called(given: Ptr) {
    // SAFETY: what `call` gave, once.
    let call = unsafe { Box::from_raw(given.cast::<Box<dyn FnOnce() + Send>>()) };
    let _ = catch_unwind(AssertUnwindSafe(*call));
}

/// The arguments one after the other, each aligned to 8 bytes, and where each begins.
fn words_of(args: &[RawArg]) -> (Vec<u64>, Vec<usize>) {
    let (mut words, mut starts) = (Vec::new(), Vec::new());
    for arg in args {
        starts.push(words.len());
        match arg {
            RawArg::Address(value) | RawArg::U64(value) => words.push(*value),
            // Its bytes come first: every machine with CUDA is little-endian.
            RawArg::U32(value) => words.push(u64::from(*value)),
            RawArg::Bytes(bytes) => words.extend(bytes.chunks(8).map(|chunk| {
                let mut word = [0; 8];
                word[..chunk.len()].copy_from_slice(chunk);
                u64::from_ne_bytes(word)
            })),
        }
    }
    (words, starts)
}
