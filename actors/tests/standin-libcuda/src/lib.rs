//! A stand-in for `libcuda.so.1` (and `libnvrtc.so`), for tests only: the functions that kvroom uses,
//! over host memory, with a thread for each stream.
//!
//! ```text
//!   exports  ── the driver's functions ─┐            control ── what a test asks and injects
//!   compiler ── NVRTC's functions       ├─▶ state: devices, memory, handles, faults
//!   stream   ── a queue and a thread ───┘
//! ```
//!
//! It is strict where the driver is vague: memory that was freed, or never allocated, is an illegal
//! access, which loses the device. Memory and events that are exported are files of this process, which
//! others open by its number.
//!
//! What a process of its own cannot be told by a call is told by files of the folder `STANDIN_ORDERS`:
//! `fail-CALL` with a number makes that call fail, `hang-CALL` holds it up while the file is there, and
//! `lose-DEVICE` with a number loses the device.
#![allow(unsafe_code)] // It is a C library.
#![allow(non_snake_case, missing_docs)] // CUDA's names, which CUDA documents.

#[macro_use]
mod macros;

mod compiler;
mod control;
mod event;
mod exports;
mod kernels;
mod memory;
mod orders;
mod state;
mod stream;
mod work;

pub use compiler::*;
pub use control::*;
pub use exports::*;
pub use work::*;

/// Writes a result where the caller wants it.
///
/// # Safety
///
/// `to` is null or may be written.
unsafe fn put<T>(to: *mut T, value: T) -> Result<(), u32> {
    if to.is_null() {
        return Err(state::INVALID_VALUE);
    }
    // SAFETY: not null, and the caller's to write.
    unsafe { to.write(value) };
    Ok(())
}

/// Runs the body of an exported function and makes a number of its result.
fn code(body: impl FnOnce() -> Result<(), u32>) -> u32 {
    body().err().unwrap_or(0)
}
