//! Which calls of an emulated device fail, and how.

use super::super::context::lock;
use std::sync::Mutex;

/// A call that is to fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Calls of this name only, as the driver calls it (`cuMemAlloc`); of all if there is none.
    pub call: Option<&'static str>,
    /// The how manieth of them from now on, from 0.
    pub nth: u64,
    /// What happens.
    pub what: Injected,
}

/// How a call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Injected {
    /// It returns this code of the driver and does nothing. A sticky one loses the device.
    Returns(u32),
    /// It succeeds, and what it queued fails later with this code, which loses the device.
    Later(u32),
}

/// The faults of a device.
#[derive(Default)]
pub(in super::super) struct Faults {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    waiting: Vec<Fault>,
    happened: Vec<&'static str>,
}

impl Faults {
    pub(super) fn add(&self, fault: Fault) {
        lock(&self.state).waiting.push(fault);
    }

    pub(super) fn happened(&self) -> Vec<&'static str> {
        lock(&self.state).happened.clone()
    }

    pub(super) fn take(&self) -> Vec<&'static str> {
        std::mem::take(&mut *lock(&self.state)).happened
    }

    /// What happens to this call.
    pub(super) fn of(&self, call: &'static str) -> Option<Injected> {
        let state = &mut *lock(&self.state);
        let mut hit = None;
        state.waiting.retain_mut(|fault| {
            if fault.call.is_some_and(|name| name != call) {
                return true;
            }
            if fault.nth > 0 || hit.is_some() {
                fault.nth = fault.nth.saturating_sub(1);
                return true;
            }
            hit = Some(fault.what);
            false
        });
        if hit.is_some() {
            state.happened.push(call);
        }
        hit
    }
}
