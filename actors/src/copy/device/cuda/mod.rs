//! Devices by the CUDA driver, which is opened at run time.
//!
//! ```text
//!   open(ordinal) ─▶ api (libcuda.so.1: a table of functions) ─▶ primary context ─▶ Context
//!   Code::Source ──▶ nvrtc (libnvrtc.so) ─▶ cache (files) ─▶ PTX ─▶ cuModuleLoadData
//!   probe(bound) ──▶ what is there, for people
//! ```
//!
//! The *primary* context is used, which an engine in the same process has, too: its memory and events
//! can be used as they are, and an error that stays is shared. A driver that is missing, too old or
//! broken is an error and never a panic.

mod api;
mod backend;
mod cache;
mod context;
mod copies;
mod identity;
mod nvrtc;
mod probe;
mod raw;

pub use cache::{Cache, CacheLimits};
pub use probe::{Copies, Driver, Probe, probe};
pub use raw::{memory_of_engine, ready_of_engine};

use super::backend::Result;
use super::context::Context;

/// The primary context of a device. Source of kernels is compiled without a cache.
///
/// # Errors
///
/// [`DeviceError::NoDriver`](super::DeviceError::NoDriver) and its like; or what the driver says.
pub fn open(ordinal: u32) -> Result<Context> {
    open_with(ordinal, None)
}

/// The same, with a place for compiled kernels.
///
/// # Errors
///
/// As [`open`]. A cache that cannot be used is none: it only costs time.
pub fn open_with(ordinal: u32, cache: Option<Cache>) -> Result<Context> {
    let cuda = context::Cuda::open(ordinal, nvrtc::Compiler::new(cache))?;
    Ok(Context::new(Box::new(cuda)))
}
