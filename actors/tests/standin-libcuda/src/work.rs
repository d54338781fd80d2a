//! The driver's functions: what is queued, code, and other processes and devices.

use crate::exports::stream_of;
use crate::kernels;
use crate::memory::{event_handle, open_event};
use crate::state::{
    INVALID_HANDLE, INVALID_VALUE, NOT_FOUND, PEER_ALREADY, begin, begin_on, device_of, lock,
};
use crate::stream::{HostCall, Step};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering;

type Ptr = *mut c_void;

/// Attributes of a batch, which are looked at only for their place.
#[repr(C)]
pub struct CUmemcpyAttributes {
    order: c_uint,
    source: [c_int; 2],
    target: [c_int; 2],
    flags: c_uint,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct IpcHandle([u8; 64]);

driver! {
    fn cuMemcpyAsync(to: u64, from: u64, bytes: usize, stream: Ptr) {
        let (state, stream) = stream_of("cuMemcpyAsync", stream)?;
        state.singles.fetch_add(1, Ordering::SeqCst);
        stream.push(Step::Copy(vec![(to, from, bytes as u64)]));
        Ok(())
    }

    fn cuMemcpyBatchAsync(
        to: *mut u64,
        from: *mut u64,
        bytes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        begins: *mut usize,
        attributes_count: usize,
        failed: *mut usize,
        stream: Ptr,
    ) {
        give!(failed, usize::MAX)?;
        // SAFETY: passed on to the caller.
        unsafe { batch(to, from, bytes, count, (attributes, begins, attributes_count), stream) }
    }

    fn cuMemcpyBatchAsync_v2(
        to: *mut u64,
        from: *mut u64,
        bytes: *mut usize,
        count: usize,
        attributes: *mut CUmemcpyAttributes,
        begins: *mut usize,
        attributes_count: usize,
        stream: Ptr,
    ) {
        // SAFETY: passed on to the caller.
        unsafe { batch(to, from, bytes, count, (attributes, begins, attributes_count), stream) }
    }

    fn cuLaunchHostFunc(stream: Ptr, function: unsafe extern "C" fn(Ptr), data: Ptr) {
        let (_, stream) = stream_of("cuLaunchHostFunc", stream)?;
        stream.push(Step::Call(HostCall { function, data }));
        Ok(())
    }

    fn cuModuleLoadData(module: *mut Ptr, image: *const c_void) {
        let (state, _) = begin_on("cuModuleLoadData")?;
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a text: images of this library have a zero byte at their end.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        let text = text.to_string_lossy();
        if !text.contains(".entry ") {
            return Err(200);
        }
        let names = text.split(".entry ").skip(1);
        let names = names.map(|rest| rest.split('(').next().unwrap_or_default().to_owned());
        let number = state.number();
        lock(&state.modules).insert(number, names.collect());
        give!(module, number as Ptr)
    }

    fn cuModuleUnload(module: Ptr) {
        let (state, _) = begin_on("cuModuleUnload")?;
        let found = lock(&state.modules).remove(&(module as u64));
        found.map(|_| ()).ok_or(INVALID_HANDLE)
    }

    fn cuModuleGetFunction(function: *mut Ptr, module: Ptr, name: *const c_char) {
        let (state, _) = begin_on("cuModuleGetFunction")?;
        // SAFETY: a text, says the caller.
        let name = unsafe { CStr::from_ptr(name) };
        let name = name.to_string_lossy().into_owned();
        let modules = lock(&state.modules);
        let names = modules.get(&(module as u64)).ok_or(INVALID_HANDLE)?;
        if !names.contains(&name) {
            return Err(NOT_FOUND);
        }
        let number = state.number();
        lock(&state.kernels).insert(number, (module as u64, name));
        give!(function, number as Ptr)
    }

    fn cuLaunchKernel(
        function: Ptr,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        _shared: c_uint,
        stream: Ptr,
        parameters: *mut Ptr,
        _extra: *mut Ptr,
    ) {
        let (state, stream) = stream_of("cuLaunchKernel", stream)?;
        if [grid_x, grid_y, grid_z, block_x, block_y, block_z].contains(&0) {
            return Err(INVALID_VALUE);
        }
        let name = lock(&state.kernels).get(&(function as u64)).cloned();
        let (module, name) = name.ok_or(INVALID_HANDLE)?;
        let mut args = Vec::new();
        for (nth, width) in kernels::widths(&name).ok_or(NOT_FOUND)?.iter().enumerate() {
            // SAFETY: one pointer for each parameter, says the caller.
            let at = unsafe { parameters.add(nth) };
            // SAFETY: the same.
            let at = unsafe { at.read() };
            if *width == 4 {
                // SAFETY: it points to as many bytes as the parameter has.
                args.push(u64::from(unsafe { at.cast::<u32>().read() }));
            }
            for word in 0..width / 8 {
                // SAFETY: within the bytes of the parameter.
                let word = unsafe { at.cast::<u64>().add(word) };
                // SAFETY: the same.
                args.push(unsafe { word.read() });
            }
        }
        stream.push(Step::Launch(module, name, args));
        Ok(())
    }

    fn cuIpcGetMemHandle(handle: *mut IpcHandle, at: u64) {
        let (state, _) = begin_on("cuIpcGetMemHandle")?;
        give!(handle, IpcHandle(state.handle(at)?))
    }

    fn cuIpcOpenMemHandle_v2(at: *mut u64, handle: IpcHandle, _flags: c_uint) {
        let (state, _) = begin_on("cuIpcOpenMemHandle")?;
        give!(at, state.open(&handle.0)?)
    }

    fn cuIpcCloseMemHandle(at: u64) {
        begin_on("cuIpcCloseMemHandle")?.0.free(at, true)
    }

    fn cuIpcGetEventHandle(handle: *mut IpcHandle, event: Ptr) {
        let (state, _) = begin_on("cuIpcGetEventHandle")?;
        let event = lock(&state.events).get(&(event as u64)).map(Arc::clone);
        let event = event.ok_or(INVALID_HANDLE)?;
        give!(handle, IpcHandle(event_handle(&event)?))
    }

    fn cuIpcOpenEventHandle(event: *mut Ptr, handle: IpcHandle) {
        let (state, _) = begin_on("cuIpcOpenEventHandle")?;
        let opened = Arc::new(open_event(&handle.0)?);
        let number = state.number();
        lock(&state.events).insert(number, opened);
        give!(event, number as Ptr)
    }

    fn cuDeviceCanAccessPeer(can: *mut c_int, device: c_int, peer: c_int) {
        let state = begin("cuDeviceCanAccessPeer")?;
        give!(can, c_int::from(state.device(device)? != state.device(peer)?))
    }

    fn cuCtxEnablePeerAccess(context: Ptr, _flags: c_uint) {
        let (state, device) = begin_on("cuCtxEnablePeerAccess")?;
        let peer = device_of(context)?;
        let mut peers = lock(&state.devices[device].peers);
        if peers.contains(&peer) {
            return Err(PEER_ALREADY);
        }
        peers.push(peer);
        Ok(())
    }
}

/// # Safety
///
/// Arrays of `count`.
unsafe fn batch(
    to: *mut u64,
    from: *mut u64,
    bytes: *mut usize,
    count: usize,
    (attributes, begins, attributes_count): (*mut CUmemcpyAttributes, *mut usize, usize),
    stream: Ptr,
) -> Result<(), u32> {
    let (state, stream) = stream_of("cuMemcpyBatchAsync", stream)?;
    if attributes_count != 1 || attributes.is_null() || begins.is_null() || count == 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: one attribute, says the caller.
    let order = unsafe { (*attributes).order };
    // SAFETY: one place, says the caller.
    let begin = unsafe { begins.read() };
    // In the order of the stream: the sources are written by what is queued before.
    if order != 1 || begin != 0 {
        return Err(INVALID_VALUE);
    }
    // SAFETY: arrays of so many, says the caller.
    let to = unsafe { std::slice::from_raw_parts(to, count) };
    // SAFETY: the same.
    let from = unsafe { std::slice::from_raw_parts(from, count) };
    // SAFETY: the same.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, count) };
    if bytes.contains(&0) {
        return Err(INVALID_VALUE);
    }
    state.batches.fetch_add(1, Ordering::SeqCst);
    let ends = to.iter().zip(from).zip(bytes);
    stream.push(Step::Copy(
        ends.map(|((to, from), bytes)| (*to, *from, *bytes as u64))
            .collect(),
    ));
    Ok(())
}
