//! How a call ended: what UCX's headers have as macros and inline functions.
//!
//! ```text
//! ucs_status_t      0 done        1 in progress (or, of a wait: not yet)      < 0 an error
//! ucs_status_ptr_t  null: done    an address: a request in progress           its last 100: an error
//! ```
//!
//! Numbers of errors differ between versions and transports for one and the same event: tell errors from
//! the rest, show them as text ([`Ucx::describe`](crate::Ucx::describe)), and match on none.

use crate::raw::{UCS_ERR_LAST, UCS_INPROGRESS, ucs_status_ptr_t, ucs_status_t};
use std::ffi::c_void;
use std::ptr::NonNull;

/// How a call that may go on after it has returned (`…_nbx`) came back. Each has to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Started {
    /// It is over, and its callback is not called. For a put that says nothing about the other side.
    Done,
    /// It goes on: the callback is called once, on the thread that progresses the worker, and the request
    /// is the caller's until it is freed by `ucp_request_free`.
    InProgress(NonNull<c_void>),
    /// It did not begin; the callback is not called. There is no request to free.
    Failed(ucs_status_t),
}

impl Started {
    /// What a pointer says, as `UCS_PTR_IS_ERR` and `UCS_PTR_IS_PTR` do.
    pub fn of(pointer: ucs_status_ptr_t) -> Self {
        match NonNull::new(pointer) {
            None => Started::Done,
            Some(pointer) => match error_in(pointer.as_ptr()) {
                Some(error) => Started::Failed(error),
                None => Started::InProgress(pointer),
            },
        }
    }

    /// The same as a number, as `UCS_PTR_STATUS` has it.
    pub fn status(self) -> ucs_status_t {
        match self {
            Started::Done => crate::raw::UCS_OK,
            Started::InProgress(_) => UCS_INPROGRESS,
            Started::Failed(error) => error,
        }
    }
}

/// The error that a pointer is, if it is one: the last hundred addresses are numbers from -100 to -1.
fn error_in(pointer: ucs_status_ptr_t) -> Option<ucs_status_t> {
    let number = pointer.addr().cast_signed();
    let is_error = number < 0 && number >= isize::from(UCS_ERR_LAST);
    // It fits, since it is between these.
    is_error.then_some(number as ucs_status_t)
}

/// Whether a status is an error, as `UCS_STATUS_IS_ERR` has it.
pub const fn is_error(status: ucs_status_t) -> bool {
    status < 0
}

/// Whether a request is over, well or not, by what `ucp_request_check_status` said of it
/// (`ucp_request_is_completed`, which the headers call outdated).
pub const fn is_over(status: ucs_status_t) -> bool {
    status != UCS_INPROGRESS
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::without_provenance_mut as address;

    #[test]
    fn a_pointer_is_done_in_progress_or_one_of_a_hundred_errors() {
        assert_eq!(Started::of(address(0)), Started::Done);
        for number in [1, 0x7fff_dead_b000, usize::MAX - 100] {
            let started = Started::of(address(number));
            assert!(matches!(started, Started::InProgress(p) if p.as_ptr().addr() == number));
            assert_eq!(started.status(), UCS_INPROGRESS);
            assert!(!is_over(started.status()) && !is_error(started.status()));
        }
        for error in UCS_ERR_LAST..0 {
            let started = Started::of(address(isize::from(error).cast_unsigned()));
            assert_eq!(started, Started::Failed(error));
            assert_eq!(started.status(), error);
            assert!(is_over(error) && is_error(error));
        }
        assert!(is_over(Started::Done.status()) && !is_error(Started::Done.status()));
    }
}
