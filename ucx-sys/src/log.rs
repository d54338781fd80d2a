//! What UCX says, to whoever wants to hear it: by itself it writes to standard output, in the middle of what
//! the program writes there.
//!
//! ```text
//!   any thread ── UCX ─▶ heard ── text of at most so many bytes ─▶ the ear
//! ```
//!
//! Not heard is what it says while the library is opened, before there is an ear, and what it is asked to
//! print (`UCX_PROTO_INFO`, `ucp_context_print_info`). Where it is not known how C hands a `va_list` on
//! nothing is heard, and UCX goes on as by itself.
#![allow(unsafe_code)] // Gives UCX a handler.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::mem::{forget, transmute};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::{Mutex, OnceLock, PoisonError};

/// How bad it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// A call fails, or the process ends.
    Error,
    /// Something is wrong, and UCX goes on.
    Warn,
    /// UCX says what it does.
    Info,
    /// Also what it makes do with.
    Debug,
    /// Each call, message and turn.
    Trace,
}

/// Told what UCX says, on the thread that says it, which may be in the middle of anything: must not block,
/// and must not call UCX.
pub type Ear = fn(Level, &str);

/// The most bytes of a text that are heard.
const MOST: usize = 1024;

static EAR: OnceLock<Ear> = OnceLock::new();

/// Where the handler was given; never taken back. UCX keeps 32 at most.
static GIVEN: Mutex<Vec<usize>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread is in the ear. What is said by what the ear does is not heard.
    static HEARS: Cell<bool> = const { Cell::new(false) };
}

/// UCX's handler, with the `va_list` as what all callees get on these machines: a pointer to the caller's.
type Handler = unsafe extern "C" fn(
    *const c_char,
    c_uint,
    *const c_char,
    c_uint,
    *const c_void,
    *const c_char,
    *mut c_void,
) -> c_uint;

/// `UCS_LOG_FUNC_RC_STOP`.
const STOP: c_uint = 0;

/// Whether a `va_list` is handed on as a pointer: an array on x86-64, a structure by reference on AArch64.
const KNOWN: bool = cfg!(all(
    target_os = "linux",
    any(target_arch = "x86_64", target_arch = "aarch64")
));

/// UCX's function that takes a handler.
#[derive(Clone, Copy)]
pub(crate) struct Push(unsafe extern "C" fn(Handler));

impl Push {
    /// What was found of it; nothing where nothing can be heard.
    ///
    /// # Safety
    /// It is `ucs_log_push_handler` of a library that is never closed.
    pub(crate) unsafe fn of(found: Option<NonNull<c_void>>) -> Option<Push> {
        let found = found.filter(|_| KNOWN)?;
        // SAFETY: the caller's promise; it has had this type from 1.13 on, and a pointer to a function is as
        // large as others.
        Some(Push(unsafe {
            transmute::<*mut c_void, unsafe extern "C" fn(Handler)>(found.as_ptr())
        }))
    }

    /// Lets the ear hear what this library says. The first ear counts.
    pub(crate) fn listen(&self, ear: Ear) {
        EAR.get_or_init(|| ear);
        let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.0 as usize;
        if given.contains(&at) {
            return;
        }
        given.push(at);
        // SAFETY: a handler of the type that UCX calls, which is there as long as the process runs.
        unsafe { (self.0)(heard) };
    }
}

unsafe extern "C" {
    /// The C library's, with its `va_list` as [`Handler`] has it.
    fn vsnprintf(to: *mut c_char, most: usize, format: *const c_char, list: *mut c_void) -> c_int;
}

/// UCX says something.
unsafe extern "C" fn heard(
    _: *const c_char,
    _: c_uint,
    _: *const c_char,
    level: c_uint,
    _: *const c_void,
    format: *const c_char,
    list: *mut c_void,
) -> c_uint {
    if format.is_null() {
        return STOP;
    }
    // At a thread's end its locals are gone.
    let free = HEARS.try_with(|hears| !hears.replace(true));
    if !free.unwrap_or(false) {
        return STOP;
    }
    let mut text = [0; MOST];
    // SAFETY: a buffer of this frame and its size; a format and what it is about, as UCX was given them,
    // which are not used by anybody after this call.
    let length = unsafe { vsnprintf(text.as_mut_ptr(), MOST, format, list) };
    if length >= 0 {
        // SAFETY: written above, with a zero byte at its end.
        let text = unsafe { CStr::from_ptr(text.as_ptr()) };
        // Nothing unwinds into UCX, also if what says so panics.
        let _ = catch_unwind(AssertUnwindSafe(|| {
            if let Some(ear) = EAR.get() {
                ear(level_of(level), text.to_string_lossy().trim_end());
            }
        }))
        .map_err(forget);
    }
    let _ = HEARS.try_with(|hears| hears.set(false));
    STOP
}

/// Of UCX's number: fatal, error, warn, diag, info, debug, and more of it; beyond these what is printed.
fn level_of(level: c_uint) -> Level {
    match level {
        0 | 1 => Level::Error,
        2 => Level::Warn,
        4 | 13.. => Level::Info,
        3 | 5 => Level::Debug,
        _ => Level::Trace,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_those_of_ucx() {
        let all: Vec<Level> = (0..=13).map(level_of).collect();
        let (error, warn, info, debug) = (Level::Error, Level::Warn, Level::Info, Level::Debug);
        assert_eq!(all[..6], [error, error, warn, debug, info, debug]);
        assert!(all[6..13].iter().all(|level| *level == Level::Trace));
        assert_eq!(all[13], info);
    }
}
