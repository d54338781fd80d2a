//! What a test asks of the library, and makes it do. Not of CUDA.

use crate::put;
use crate::state::{INVALID_VALUE, depth, lock, state};
use std::ffi::{CStr, c_char};
use std::sync::atomic::Ordering;

/// What there is, as `standin_stats` tells it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub struct Stats {
    pub blocks: u64,
    pub streams: u64,
    pub events: u64,
    pub modules: u64,
    /// Retained primary contexts of all devices.
    pub retained: u64,
    /// Contexts on the stack of the thread that asks.
    pub depth: u64,
    pub compiles: u64,
    pub batches: u64,
    pub singles: u64,
}

/// Makes a call fail with `code`: the `nth` from now of this name, or of any if it is null.
///
/// # Safety
///
/// `name` is null or a text that ends with a zero byte.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_fail(name: *const c_char, nth: u64, code: u32) {
    let name = (!name.is_null()).then(|| {
        // SAFETY: a text, says the caller.
        let name = unsafe { CStr::from_ptr(name) };
        name.to_string_lossy().into_owned()
    });
    lock(&state().faults).waiting.push((name, nth, code));
}

/// Forgets what was to fail; how many calls have failed that way.
#[unsafe(no_mangle)]
pub extern "C" fn standin_failed() -> u64 {
    let faults = &mut *lock(&state().faults);
    faults.waiting.clear();
    std::mem::take(&mut faults.happened).len() as u64
}

/// Loses a device, as work of anybody in the process could.
#[unsafe(no_mangle)]
pub extern "C" fn standin_lose(device: u32, code: u32) {
    state().lose(device as usize, code);
}

/// Makes lost devices work again, without anything that was made before.
#[unsafe(no_mangle)]
pub extern "C" fn standin_heal() {
    state().heal();
}

/// What there is now.
///
/// # Safety
///
/// `stats` is null or may be written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn standin_stats(stats: *mut Stats) -> u32 {
    let state = state();
    let retained = state.devices.iter();
    let now = Stats {
        blocks: lock(&state.memory).len() as u64,
        streams: lock(&state.streams).len() as u64,
        events: lock(&state.events).len() as u64,
        modules: lock(&state.modules).len() as u64,
        retained: retained.map(|d| d.retained.load(Ordering::SeqCst)).sum(),
        depth: depth() as u64,
        compiles: state.compiles.load(Ordering::SeqCst),
        batches: state.batches.load(Ordering::SeqCst),
        singles: state.singles.load(Ordering::SeqCst),
    };
    // SAFETY: passed on to the caller.
    match unsafe { put(stats, now) } {
        Ok(()) => 0,
        Err(_) => INVALID_VALUE,
    }
}
