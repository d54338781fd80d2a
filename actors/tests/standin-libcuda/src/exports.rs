//! The driver's functions: devices, contexts, streams, events, memory. Each says its name, so that a
//! test can make it fail.

use crate::event::{Event, SHARED};
use crate::memory::Mapping;
use crate::state::{
    INVALID_HANDLE, INVALID_VALUE, NO_MEMORY, NOT_READY, NOT_SUPPORTED, begin, begin_on,
    context_of, device_of, lock, pop_current, push_current, setting,
};
use crate::stream::{Step, Stream};
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Ptr = *mut c_void;

/// `CU_EVENT_INTERPROCESS`.
const INTERPROCESS: c_uint = 4;

driver! {
    fn cuInit(_flags: c_uint) {
        if setting("STANDIN_HANGS").is_some() {
            std::thread::sleep(std::time::Duration::from_secs(3600));
        }
        if let Some(code) = setting("STANDIN_INIT") {
            return Err(code as u32);
        }
        begin("cuInit")?.started.store(1, Ordering::SeqCst);
        Ok(())
    }

    fn cuDriverGetVersion(version: *mut c_int) {
        begin("cuDriverGetVersion")?;
        give!(version, setting("STANDIN_VERSION").unwrap_or(12080) as c_int)
    }

    fn cuDeviceGetCount(count: *mut c_int) {
        give!(count, begin("cuDeviceGetCount")?.devices.len() as c_int)
    }

    fn cuDeviceGet(device: *mut c_int, ordinal: c_int) {
        let state = begin("cuDeviceGet")?;
        give!(device, state.device(ordinal)? as c_int)
    }

    fn cuDeviceGetName(name: *mut c_char, bytes: c_int, device: c_int) {
        let device = begin("cuDeviceGetName")?.device(device)?;
        let text = format!("stand-in device {device}\0");
        if name.is_null() || (bytes as usize) < text.len() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: there is room for it, says the caller.
        unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), name.cast(), text.len()) };
        Ok(())
    }

    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: c_int) {
        let device = begin("cuDeviceGetUuid")?.device(device)?;
        give!(uuid, [0x5A + device as u8; 16])
    }

    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: c_int) {
        begin("cuDeviceTotalMem")?.device(device)?;
        give!(bytes, setting("STANDIN_MEMORY").unwrap_or(1 << 34) as usize)
    }

    fn cuDeviceGetAttribute(value: *mut c_int, which: c_uint, device: c_int) {
        begin("cuDeviceGetAttribute")?.device(device)?;
        give!(value, match which {
            16 => 132,
            75 => 9,
            76 => 0,
            41 => 1,
            _ => return Err(INVALID_VALUE),
        })
    }

    fn cuDevicePrimaryCtxRetain(context: *mut Ptr, device: c_int) {
        let state = begin("cuDevicePrimaryCtxRetain")?;
        let device = state.device(device)?;
        state.devices[device].retained.fetch_add(1, Ordering::SeqCst);
        give!(context, context_of(device))
    }

    fn cuDevicePrimaryCtxRelease_v2(device: c_int) {
        let state = begin("cuDevicePrimaryCtxRelease")?;
        let retained = &state.devices[state.device(device)?].retained;
        let less = retained.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |n| n.checked_sub(1));
        less.map(|_| ()).map_err(|_| crate::state::INVALID_CONTEXT)
    }

    fn cuCtxPushCurrent_v2(context: Ptr) {
        begin("cuCtxPushCurrent")?;
        push_current(device_of(context)?);
        Ok(())
    }

    fn cuCtxPopCurrent_v2(context: *mut Ptr) {
        // Not one that fails: the caller could do nothing about it.
        let device = pop_current().ok_or(crate::state::INVALID_CONTEXT)?;
        give!(context, context_of(device))
    }

    fn cuStreamCreateWithPriority(stream: *mut Ptr, _flags: c_uint, _priority: c_int) {
        let (state, device) = begin_on("cuStreamCreate")?;
        let number = state.number();
        let started = Stream::start(device).map_err(|_| NO_MEMORY)?;
        lock(&state.streams).insert(number, started);
        give!(stream, number as Ptr)
    }

    fn cuStreamDestroy_v2(stream: Ptr) {
        let (state, _) = begin_on("cuStreamDestroy")?;
        let found = lock(&state.streams).remove(&(stream as u64));
        found.ok_or(INVALID_HANDLE)?.close();
        Ok(())
    }

    fn cuStreamQuery(stream: Ptr) {
        let (_, stream) = stream_of("cuStreamQuery", stream)?;
        let idle = stream.is_idle();
        begin_on("the end of cuStreamQuery")?;
        if idle { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuStreamWaitEvent(stream: Ptr, event: Ptr, _flags: c_uint) {
        let (state, stream) = stream_of("cuStreamWaitEvent", stream)?;
        let event = lock(&state.events).get(&(event as u64)).map(Arc::clone);
        let event = event.ok_or(INVALID_HANDLE)?;
        let recorded = event.recorded();
        stream.push(Step::Wait(event, recorded));
        Ok(())
    }

    fn cuEventCreate(event: *mut Ptr, flags: c_uint) {
        let (state, _) = begin_on("cuEventCreate")?;
        let number = state.number();
        let made = match flags & INTERPROCESS {
            0 => Event::default(),
            _ => Event::shared(Mapping::new(SHARED)?),
        };
        lock(&state.events).insert(number, Arc::new(made));
        give!(event, number as Ptr)
    }

    fn cuEventDestroy_v2(event: Ptr) {
        let (state, _) = begin_on("cuEventDestroy")?;
        let found = lock(&state.events).remove(&(event as u64));
        found.map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuEventRecord(event: Ptr, stream: Ptr) {
        let (state, stream) = stream_of("cuEventRecord", stream)?;
        let event = lock(&state.events).get(&(event as u64)).map(Arc::clone);
        let event = event.ok_or(INVALID_HANDLE)?;
        if event.is_anothers() {
            return Err(NOT_SUPPORTED);
        }
        let recorded = event.record();
        stream.push(Step::Record(event, recorded));
        Ok(())
    }

    fn cuEventQuery(event: Ptr) {
        let (state, _) = begin_on("cuEventQuery")?;
        let event = lock(&state.events).get(&(event as u64)).map(Arc::clone);
        let event = event.ok_or(INVALID_HANDLE)?;
        let recorded = event.recorded();
        if event.is_done(recorded) { Ok(()) } else { Err(NOT_READY) }
    }

    fn cuMemAlloc_v2(at: *mut u64, bytes: usize) {
        let (state, _) = begin_on("cuMemAlloc")?;
        give!(at, state.allocate(bytes as u64)?)
    }

    fn cuMemFree_v2(at: u64) {
        begin_on("cuMemFree")?.0.free(at, false)
    }

    fn cuMemGetAddressRange_v2(base: *mut u64, bytes: *mut usize, at: u64) {
        let (state, _) = begin_on("cuMemGetAddressRange")?;
        let memory = lock(&state.memory);
        let found = memory.range(..=at).next_back();
        let (start, mapping) = found.ok_or(INVALID_VALUE)?;
        if at - start >= mapping.bytes {
            return Err(INVALID_VALUE);
        }
        give!(base, *start)?;
        give!(bytes, mapping.bytes as usize)
    }

    fn cuMemHostAlloc(at: *mut Ptr, bytes: usize, _flags: c_uint) {
        let (state, _) = begin_on("cuMemHostAlloc")?;
        give!(at, state.allocate(bytes as u64)? as Ptr)
    }

    fn cuMemFreeHost(at: Ptr) {
        begin_on("cuMemFreeHost")?.0.free(at as u64, false)
    }
}

/// The stream of a call.
pub(crate) fn stream_of(
    call: &str,
    stream: Ptr,
) -> Result<(&'static crate::state::State, Arc<Stream>), u32> {
    let (state, _) = begin_on(call)?;
    let found = lock(&state.streams).get(&(stream as u64)).map(Arc::clone);
    Ok((state, found.ok_or(INVALID_HANDLE)?))
}
