//! One context of an emulated device: what it has, and what each call does first and last.

use super::super::backend::{Address, Handle, Result};
use super::super::context::lock;
use super::super::error::{DeviceError, classify};
use super::faults::Injected;
use super::kernels::HostKernel;
use super::memory::{Home, Place};
use super::stream::{Step, Stream};
use super::{DeviceState, Event, Shared};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A stream with its thread.
pub(super) type Thread = (Arc<Stream>, JoinHandle<()>);

/// A kernel, with its module and whether that is loaded.
pub(super) type Loaded = (Handle, Arc<AtomicBool>, Arc<dyn HostKernel>);

/// One context of an emulated device.
pub(super) struct Device {
    pub(super) machine: Arc<Shared>,
    pub(super) state: Arc<DeviceState>,
    pub(super) streams: Mutex<BTreeMap<Handle, Arc<Stream>>>,
    pub(super) modules: Mutex<BTreeMap<Handle, Arc<AtomicBool>>>,
    pub(super) kernels: Mutex<BTreeMap<Handle, Loaded>>,
    pub(super) threads: Mutex<Vec<Thread>>,
}

/// What is to happen after a call that went well.
#[derive(Clone, Copy)]
pub(super) struct Later(pub(super) Option<u32>);

impl Device {
    pub(super) fn new(machine: Arc<Shared>, state: Arc<DeviceState>) -> Self {
        Device {
            machine,
            state,
            streams: Mutex::default(),
            modules: Mutex::default(),
            kernels: Mutex::default(),
            threads: Mutex::default(),
        }
    }

    pub(super) fn ordinal(&self) -> u32 {
        self.state.identity.ordinal
    }

    /// What every call does first: nothing works on a lost device, and faults happen.
    pub(super) fn begin(&self, call: &'static str) -> Result<Later> {
        self.begin_with(call, 0)
    }

    pub(super) fn begin_with(&self, call: &'static str, bytes: u64) -> Result<Later> {
        if let Some(code) = self.state.lost.get() {
            return Err(classify(self.ordinal(), call, *code, bytes));
        }
        match self.state.faults.of(call) {
            None => Ok(Later(None)),
            Some(Injected::Later(code)) => Ok(Later(Some(code))),
            Some(Injected::Returns(code)) => {
                let error = classify(self.ordinal(), call, code, bytes);
                if error.is_sticky() {
                    self.machine.lose(&self.state, code);
                }
                Err(error)
            }
        }
    }

    pub(super) fn end<T>(&self, value: T, later: Later) -> Result<T> {
        if let Later(Some(code)) = later {
            self.machine.lose(&self.state, code);
        }
        Ok(value)
    }

    pub(super) fn error(&self, call: &'static str, code: u32) -> DeviceError {
        classify(self.ordinal(), call, code, 0)
    }

    pub(super) fn find(&self, call: &'static str, stream: Handle) -> Result<Arc<Stream>> {
        let streams = lock(&self.streams);
        let found = streams.get(&stream).map(Arc::clone);
        found.ok_or_else(|| self.error(call, 400))
    }

    pub(super) fn event(&self, call: &'static str, event: Handle) -> Result<Arc<Event>> {
        let events = lock(&self.machine.events);
        let found = events.get(&event).map(Arc::clone);
        found.ok_or_else(|| self.error(call, 400))
    }

    pub(super) fn push(&self, call: &'static str, stream: Handle, step: Step) -> Result<()> {
        let later = self.begin(call)?;
        let stream = self.find(call, stream)?;
        stream.push(step);
        if let Later(Some(code)) = later {
            stream.push(Step::Fail(code));
        }
        Ok(())
    }

    pub(super) fn allocate(
        &self,
        call: &'static str,
        home: Home,
        bytes: u64,
        limit: u64,
    ) -> Result<Address> {
        let later = self.begin_with(call, bytes)?;
        let at = self.machine.memory.allocate(home, bytes, limit);
        let at = at.ok_or_else(|| classify(self.ordinal(), call, 2, bytes))?;
        self.end(at, later)
    }

    pub(super) fn free(&self, call: &'static str, at: Address) -> Result<()> {
        let later = self.begin(call)?;
        if self.machine.memory.free(at) {
            self.end((), later)
        } else {
            Err(self.error(call, 1))
        }
    }

    /// Pinned memory that was given out and not freed.
    pub(super) fn place(&self, at: Address, bytes: u64) -> Option<Place> {
        self.machine.memory.find(at, bytes).ok()
    }

    /// Joins threads that have ended; the others stay.
    pub(super) fn join_ended(&self) {
        let mut threads = lock(&self.threads);
        let all = std::mem::take(&mut *threads);
        for (stream, thread) in all {
            if thread.is_finished() {
                // A panic of the thread itself is a bug; it has been printed.
                let _ = thread.join();
            } else {
                threads.push((stream, thread));
            }
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Device")
            .field("ordinal", &self.ordinal())
            .finish_non_exhaustive()
    }
}
