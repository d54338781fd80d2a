//! What an engine in this process has made, taken by its raw handle.
#![allow(unsafe_code)] // Contracts that only the caller can keep.

use super::super::context::Context;
use super::super::memory::DeviceMemory;
use super::super::ready::Ready;
use std::ffi::c_void;

/// An engine's memory on the context's device. `over` is called once nothing here uses it any more:
/// not before the last event behind work that does, and never if the device is lost before.
///
/// # Safety
///
/// `at` is the address of `bytes` bytes that the context's device reaches and that stay until `over`
/// is called. Nobody else uses the ranges that are lent to kvroom while they are.
#[must_use]
pub unsafe fn memory_of_engine(
    context: &Context,
    at: u64,
    bytes: u64,
    over: Box<dyn FnOnce() + Send + Sync>,
) -> DeviceMemory {
    DeviceMemory::of_engine(&context.inner, at, bytes, over)
}

/// An engine's event (`cudaEvent_t`, the same as `CUevent`), to be waited for by streams.
///
/// # Safety
///
/// `event` is an event of this process, and is not destroyed before what is returned is dropped. (Work
/// that was queued behind it does not need it any more.)
#[must_use]
pub unsafe fn ready_of_engine(context: &Context, event: *mut c_void) -> Ready {
    Ready::of_engine(&context.inner, event as u64)
}
