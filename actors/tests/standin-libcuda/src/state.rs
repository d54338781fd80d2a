//! What the library knows: devices, handles, and which calls are to fail.

use crate::event::Event;
use crate::memory::Mapping;
use crate::orders;
use crate::stream::Stream;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

pub(crate) const INVALID_VALUE: u32 = 1;
pub(crate) const NO_MEMORY: u32 = 2;
pub(crate) const NOT_INITIALIZED: u32 = 3;
pub(crate) const INVALID_DEVICE: u32 = 101;
pub(crate) const INVALID_CONTEXT: u32 = 201;
pub(crate) const INVALID_HANDLE: u32 = 400;
pub(crate) const NOT_FOUND: u32 = 500;
pub(crate) const NOT_READY: u32 = 600;
pub(crate) const ILLEGAL_ADDRESS: u32 = 700;
pub(crate) const LAUNCH_FAILED: u32 = 719;
pub(crate) const PEER_ALREADY: u32 = 704;
pub(crate) const NOT_SUPPORTED: u32 = 801;

/// Codes after which a context is of no use.
const STICKY: [u32; 6] = [214, 700, 702, 710, 716, 719];

/// Addresses of contexts, which nobody follows.
const CONTEXTS: usize = 0xC0DE_0000;

#[derive(Default)]
pub(crate) struct Device {
    /// The code that all its calls return; 0 for none.
    lost: AtomicU32,
    pub(crate) retained: AtomicU64,
    pub(crate) peers: Mutex<Vec<usize>>,
}

impl Device {
    pub(crate) fn lost(&self) -> Option<u32> {
        Some(self.lost.load(Ordering::SeqCst)).filter(|code| *code != 0)
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) started: AtomicU64,
    pub(crate) devices: Vec<Device>,
    pub(crate) memory: Mutex<BTreeMap<u64, Arc<Mapping>>>,
    pub(crate) streams: Mutex<HashMap<u64, Arc<Stream>>>,
    pub(crate) events: Mutex<HashMap<u64, Arc<Event>>>,
    /// The names of the kernels of each module.
    pub(crate) modules: Mutex<HashMap<u64, Vec<String>>>,
    /// The module and the name of each kernel.
    pub(crate) kernels: Mutex<HashMap<u64, (u64, String)>>,
    pub(crate) pulse: Mutex<()>,
    pub(crate) bell: Condvar,
    pub(crate) faults: Mutex<Faults>,
    /// Steps that are queued or under way, of all streams.
    pub(crate) steps: AtomicU64,
    pub(crate) compiles: AtomicU64,
    pub(crate) batches: AtomicU64,
    pub(crate) singles: AtomicU64,
    next: AtomicU64,
}

/// Which calls fail.
#[derive(Default)]
pub(crate) struct Faults {
    /// The call's name, or any; after how many more; with what code.
    pub(crate) waiting: Vec<(Option<String>, u64, u32)>,
    pub(crate) happened: Vec<String>,
}

pub(crate) fn state() -> &'static State {
    static STATE: OnceLock<State> = OnceLock::new();
    STATE.get_or_init(|| State {
        devices: (0..setting("STANDIN_DEVICES").unwrap_or(2))
            .map(|_| Device::default())
            .collect(),
        ..State::default()
    })
}

/// A number in the environment.
pub(crate) fn setting(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

thread_local! {
    static CURRENT: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

impl State {
    /// A handle that no other thing has.
    pub(crate) fn number(&self) -> u64 {
        0x1000 + self.next.fetch_add(16, Ordering::Relaxed)
    }

    pub(crate) fn ring(&self) {
        drop(lock(&self.pulse));
        self.bell.notify_all();
    }

    pub(crate) fn lose(&self, device: usize, code: u32) {
        if let Some(device) = self.devices.get(device) {
            // The first stays.
            let _ = device
                .lost
                .compare_exchange(0, code, Ordering::SeqCst, Ordering::SeqCst);
        }
        self.ring();
    }

    /// As after a restart of the process, for tests that lose a device many times.
    pub(crate) fn heal(&self) {
        // Work of before must not meet memory of after.
        while self.steps.load(Ordering::SeqCst) > 0 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
        for device in &self.devices {
            device.lost.store(0, Ordering::SeqCst);
        }
        lock(&self.memory).clear();
        lock(&self.events).clear();
        for (_, stream) in lock(&self.streams).drain() {
            stream.close();
        }
    }

    pub(crate) fn device(&self, ordinal: i32) -> Result<usize, u32> {
        let ordinal = usize::try_from(ordinal).map_err(|_| INVALID_DEVICE)?;
        match ordinal < self.devices.len() {
            true => Ok(ordinal),
            false => Err(INVALID_DEVICE),
        }
    }
}

/// A call that needs no context: it may be one that fails.
pub(crate) fn begin(call: &str) -> Result<&'static State, u32> {
    let state = state();
    if let Some(code) = orders::follow(state, call) {
        return Err(code);
    }
    let faults = &mut *lock(&state.faults);
    let mut hit = None;
    faults.waiting.retain_mut(|(name, nth, code)| {
        if name.as_ref().is_some_and(|name| name != call) {
            return true;
        }
        if *nth > 0 || hit.is_some() {
            *nth = nth.saturating_sub(1);
            return true;
        }
        hit = Some(*code);
        false
    });
    if let Some(code) = hit {
        faults.happened.push(call.to_owned());
        if STICKY.contains(&code) {
            let device = CURRENT.with_borrow(|stack| stack.last().copied());
            state.lose(device.unwrap_or(0), code);
        }
        return Err(code);
    }
    if call != "cuInit" && call != "cuDriverGetVersion" && state.started.load(Ordering::SeqCst) == 0
    {
        return Err(NOT_INITIALIZED);
    }
    Ok(state)
}

/// A call that needs a context: the device of the current one, unless that is lost.
pub(crate) fn begin_on(call: &str) -> Result<(&'static State, usize), u32> {
    let state = begin(call)?;
    let device = CURRENT.with_borrow(|stack| stack.last().copied());
    let device = device.ok_or(INVALID_CONTEXT)?;
    match state.devices[device].lost() {
        Some(code) => Err(code),
        None => Ok((state, device)),
    }
}

pub(crate) fn context_of(device: usize) -> *mut c_void {
    (CONTEXTS + device * 64) as *mut c_void
}

/// The device of a context that is retained.
pub(crate) fn device_of(context: *mut c_void) -> Result<usize, u32> {
    let state = state();
    let mut devices = state.devices.iter().enumerate();
    let found = devices.find(|(device, of)| {
        context_of(*device) == context && of.retained.load(Ordering::SeqCst) > 0
    });
    found.map(|(device, _)| device).ok_or(INVALID_CONTEXT)
}

pub(crate) fn push_current(device: usize) {
    CURRENT.with_borrow_mut(|stack| stack.push(device));
}

pub(crate) fn pop_current() -> Option<usize> {
    CURRENT.with_borrow_mut(Vec::pop)
}

/// How many contexts are on this thread's stack.
pub(crate) fn depth() -> usize {
    CURRENT.with_borrow(Vec::len)
}
