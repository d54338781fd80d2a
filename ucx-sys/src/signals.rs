//! Handlers of signals, as they were before UCX was opened.
//!
//! Up to 1.19 UCX takes the signals of faults over from whoever had them as soon as it is loaded: then a
//! host's own report of a crash, or what a runtime makes of a fault on purpose (a stack's guard page), is
//! lost. A library that is loaded into a process that serves must leave them as they are.
#![allow(unsafe_code)] // Asks for handlers, and sets them again.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};

/// Those that UCX takes over by default (`UCX_ERROR_SIGNALS`).
const FAULTS: [c_int; 4] = [libc::SIGILL, libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE];

/// Sets what was there again when it is dropped.
pub(crate) struct Kept([Option<libc::sigaction>; FAULTS.len()]);

impl Kept {
    /// What is there now.
    pub(crate) fn now() -> Kept {
        Kept(FAULTS.map(|signal| {
            let mut action = MaybeUninit::<libc::sigaction>::zeroed();
            // SAFETY: nothing is set; what is there is written to a structure of this frame.
            let asked = unsafe { libc::sigaction(signal, null(), action.as_mut_ptr()) };
            // SAFETY: written by the call.
            (asked == 0).then(|| unsafe { action.assume_init() })
        }))
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (signal, action) in FAULTS.into_iter().zip(&self.0) {
            if let Some(action) = action {
                // SAFETY: a handler that this process had a moment ago for this very signal.
                unsafe { libc::sigaction(signal, action, null_mut()) };
            }
        }
    }
}
