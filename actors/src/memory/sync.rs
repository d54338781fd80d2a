//! The atomics and the cell that gates, slots, the lease table and rings are built on.
//!
//! Those files take them from `super::sync` and import nothing else of this crate, so that the
//! loom tests can include the very same files with loom's types in this module's place.
#![allow(unsafe_code)] // A cell that several threads share, and a zeroed allocation.

pub(crate) use std::sync::Arc;
pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};

/// `std::cell::UnsafeCell` with the interface of loom's, which watches every access.
#[repr(transparent)]
pub(crate) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(crate) fn new(value: T) -> Self {
        UnsafeCell(std::cell::UnsafeCell::new(value))
    }

    pub(crate) fn with<R>(&self, f: impl FnOnce(*const T) -> R) -> R {
        f(self.0.get())
    }

    pub(crate) fn with_mut<R>(&self, f: impl FnOnce(*mut T) -> R) -> R {
        f(self.0.get())
    }
}

/// `n` times what `_new` makes, as untouched zero pages: a million unused entries cost no resident
/// memory.
///
/// # Safety
///
/// The value that `_new` makes must be the one whose bytes are all zero.
pub(crate) unsafe fn zeroed_slice<S>(n: usize, _new: fn() -> S) -> Box<[S]> {
    let slice = Box::<[S]>::new_zeroed_slice(n);
    // SAFETY: the caller promises that all-zero bytes are a valid `S`.
    unsafe { slice.assume_init() }
}
