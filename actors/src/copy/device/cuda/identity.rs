//! Which devices there are, and what the driver's numbers mean.
#![allow(unsafe_code)] // Calls the driver.

use super::super::backend::{Identity, Kind, Result};
use super::super::error::classify;
use super::api::{self, Api};
use std::ffi::{c_int, c_uint};

// Numbers of CUDA's headers.
const MULTIPROCESSORS: c_uint = 16;
const CAPABILITY_MAJOR: c_uint = 75;
const CAPABILITY_MINOR: c_uint = 76;

/// How many devices this process sees.
pub(super) fn count(api: &Api) -> Result<u32> {
    let mut count: c_int = 0;
    // SAFETY: writes one number.
    let code = unsafe { (api.call.device_count)(&mut count) };
    result(0, "cuDeviceGetCount", code)?;
    Ok(u32::try_from(count).unwrap_or(0))
}

/// What a device is.
pub(super) fn identify(api: &Api, ordinal: u32) -> Result<(api::Device, Identity)> {
    let mut device = 0;
    // SAFETY: writes one number.
    let code = unsafe { (api.call.device_get)(&mut device, ordinal as c_int) };
    result(ordinal, "cuDeviceGet", code)?;
    let mut name = [0u8; 256];
    // SAFETY: writes at most so many bytes, with a zero byte at their end.
    let code = unsafe { (api.call.device_name)(name.as_mut_ptr().cast(), 256, device) };
    result(ordinal, "cuDeviceGetName", code)?;
    let length = name
        .iter()
        .position(|byte| *byte == 0)
        .unwrap_or(name.len());
    let mut uuid = [0u8; 16];
    // SAFETY: writes 16 bytes.
    let code = unsafe { (api.call.device_uuid)(&mut uuid, device) };
    result(ordinal, "cuDeviceGetUuid", code)?;
    let mut memory = 0usize;
    // SAFETY: writes one number.
    let code = unsafe { (api.call.device_memory)(&mut memory, device) };
    result(ordinal, "cuDeviceTotalMem", code)?;
    let attribute = |which| {
        let mut value: c_int = 0;
        // SAFETY: writes one number.
        let code = unsafe { (api.call.device_attribute)(&mut value, which, device) };
        result(ordinal, "cuDeviceGetAttribute", code)?;
        Ok(u32::try_from(value).unwrap_or(0))
    };
    let identity = Identity {
        kind: Kind::Cuda,
        ordinal,
        uuid,
        name: String::from_utf8_lossy(&name[..length]).into_owned(),
        capability: (attribute(CAPABILITY_MAJOR)?, attribute(CAPABILITY_MINOR)?),
        memory_bytes: memory as u64,
        multiprocessors: attribute(MULTIPROCESSORS)?,
        driver: api.version,
    };
    Ok((device, identity))
}

pub(super) fn result(device: u32, call: &'static str, code: u32) -> Result<()> {
    result_of(device, call, code, 0)
}

pub(super) fn result_of(device: u32, call: &'static str, code: u32, bytes: u64) -> Result<()> {
    match code {
        0 => Ok(()),
        code => Err(classify(device, call, code, bytes)),
    }
}
