//! The primary context of a device: retained, current for one call at a time, released.
#![allow(unsafe_code)] // Calls the driver.

use super::super::backend::{Address, Handle, Identity, Result};
use super::super::error::DeviceError;
use super::api::{self, Api, Ptr};
use super::copies::Copier;
use super::identity::{count, identify, result};
use super::nvrtc::Compiler;
use std::fmt;
use std::ptr;

const NOT_READY: u32 = 600;

/// The primary context of a device, retained.
pub(super) struct Cuda {
    pub(super) api: &'static Api,
    pub(super) identity: Identity,
    pub(super) device: api::Device,
    pub(super) context: Ptr,
    pub(super) copies: Copier,
    pub(super) compiler: Compiler,
}

// SAFETY: the driver takes its handles on any thread; nothing here points to memory of Rust.
unsafe impl Send for Cuda {}
// SAFETY: the same, and at the same time.
unsafe impl Sync for Cuda {}

/// The context is this thread's current one until this is dropped; then it is again what it was.
pub(super) struct Current<'a>(&'a Cuda);

impl Drop for Current<'_> {
    fn drop(&mut self) {
        let mut popped = ptr::null_mut();
        // SAFETY: takes off what `current` put on; writes one pointer.
        let _ = unsafe { (self.0.api.call.context_pop)(&mut popped) };
    }
}

impl Cuda {
    /// Retains the primary context of a device.
    pub(super) fn open(ordinal: u32, compiler: Compiler) -> Result<Self> {
        let api = api::driver()?;
        let count = count(api)?;
        if ordinal >= count {
            return Err(DeviceError::NoSuchDevice { ordinal, count });
        }
        let (device, identity) = identify(api, ordinal)?;
        let mut context = ptr::null_mut();
        // SAFETY: writes one pointer; the device is one.
        let code = unsafe { (api.call.primary_retain)(&mut context, device) };
        result(ordinal, "cuDevicePrimaryCtxRetain", code)?;
        Ok(Cuda {
            api,
            identity,
            device,
            context,
            copies: Copier::new(ordinal),
            compiler,
        })
    }

    pub(super) fn check(&self, call: &'static str, code: u32) -> Result<()> {
        result(self.identity.ordinal, call, code)
    }

    /// Makes the context current. The thread may be the engine's, so what it had is put back.
    pub(super) fn current(&self) -> Result<Current<'_>> {
        // SAFETY: the context is retained as long as this is.
        let code = unsafe { (self.api.call.context_push)(self.context) };
        self.check("cuCtxPushCurrent", code)?;
        Ok(Current(self))
    }

    pub(super) fn fired(&self, call: &'static str, code: u32) -> Result<bool> {
        match code {
            NOT_READY => Ok(false),
            code => self.check(call, code).map(|()| true),
        }
    }

    /// The allocation that an address is in: its start and bytes.
    pub(super) fn allocation(&self, at: Address) -> Result<(Address, u64)> {
        let (mut base, mut bytes) = (0, 0usize);
        // SAFETY: writes an address and a number.
        let code = unsafe { (self.api.call.memory_range)(&mut base, &mut bytes, at) };
        self.check("cuMemGetAddressRange", code)?;
        Ok((base, bytes as u64))
    }

    /// Loads PTX or a cubin.
    pub(super) fn load_image(&self, image: &[u8]) -> Result<Handle> {
        let _current = self.current()?;
        // The driver finds the end of PTX by a zero byte; a cubin says how long it is.
        let mut ended = image.to_vec();
        ended.push(0);
        let mut module = ptr::null_mut();
        // SAFETY: writes one pointer; the image ends with a zero byte and outlives the call.
        let code = unsafe { (self.api.call.module_load)(&mut module, ended.as_ptr().cast()) };
        self.check("cuModuleLoadData", code)?;
        Ok(module as Handle)
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        // SAFETY: nothing made from it is left: everything holds the context it was made from. The
        // engine retains its own.
        let code = unsafe { (self.api.call.primary_release)(self.device) };
        if let Err(error) = self.check("cuDevicePrimaryCtxRelease", code) {
            tracing::debug!(%error, "the primary context was not released");
        }
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cuda")
            .field("ordinal", &self.identity.ordinal)
            .finish_non_exhaustive()
    }
}

/// A handle as the driver has it.
pub(super) fn pointer(handle: u64) -> Ptr {
    handle as usize as Ptr
}
