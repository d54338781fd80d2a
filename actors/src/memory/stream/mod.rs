//! Copies that go past the caches, where that is faster than `memcpy`.
//!
//! ```text
//!   Copier::copy ── shorter than `from` ──▶ plain copy, at once
//!        │
//!        └─ waits for the next run ──▶ both at once, a line of each in turn ─┐
//!                     └─ none comes ──▶ alone: its two halves in turn ───────┴▶ Unfenced
//!                                                                               │ Drop
//!                                                                               ▼
//!                                                                             sfence
//! ```
//!
//! Rules:
//! - A streaming store is not ordered by anything but a fence: whoever made one holds an [`Unfenced`],
//!   and drops it before it leaves a gate or publishes anything. One fence for a whole piece.
//! - Heads and tails that do not fill a line of 64 bytes are copied plainly.
//! - From which size on this is done was measured in this process, once ([`choice`]).
//!
//! What was measured on a Zen 3 with cold pages of 4 KiB, 16 KiB, 64 KiB and 1 MiB, into a shared
//! mapping, in GB/s: `memcpy` 5.5, 7.8, 9.4, 9.1; one stream 7.3, 10.6, 14.7, 16.2; the same with the
//! next page prefetched 8.1, 10.7, 12.8, 14.1; two streams in turn 9.8, 13.7, 17.2, 18.0. Three and
//! more fall below `memcpy`; prefetching for two costs more than it gives; `rep movsb` is `memcpy`.
//! Two streams whose destinations lie less than 768 bytes behind a source, modulo 4 KiB, fall to 1 to
//! 9 GB/s, `memcpy` to 2 to 8; one stream that prefetches what it reads does not.
#![allow(unsafe_code)] // Copies between raw ranges, with instructions that Rust has no words for.

pub(super) mod choice;
mod measure;
#[cfg(test)]
mod tests;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "x86_64")]
pub(super) use x86::Wide;

pub use measure::{CopyMeasurement, CopySample};

use choice::Path;
use std::cell::Cell;
use std::ptr::NonNull;

/// Bytes of a cache line, and the alignment that every streaming store has here.
const LINE: usize = 64;
/// A run of at least this many bytes that is alone is copied in two halves at a time.
const HALVES_FROM: usize = 16 << 10;
/// Bytes of both halves together.
const HALVES: usize = 64 << 10;
/// Both halves begin at the same place of a page, so that what is true of one run is of two.
const PAGE: usize = 4 << 10;
/// A destination that is less than this behind a source, modulo a page, stops the loads of that one:
/// the processor takes them for loads of what was just stored.
const TOO_NEAR: usize = 1 << 10;
/// A longer run does not wait for another one.
const PAIR_UP_TO: usize = 64 << 10;

/// No wide stores are known for this processor.
#[cfg(not(target_arch = "x86_64"))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wide {}

#[cfg(not(target_arch = "x86_64"))]
impl Wide {
    pub(super) fn detect() -> Option<Wide> {
        None
    }

    pub(super) fn all() -> Vec<Wide> {
        Vec::new()
    }

    pub(super) fn name(self) -> &'static str {
        match self {}
    }
}

/// What a copy's stores need before anybody else may look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "streaming stores are seen by others in order only after a fence"]
pub(super) enum Stores {
    /// Nothing more than what orders any store.
    Ordered,
    /// A [`fence`].
    Streaming,
}

/// Orders the streaming stores that this thread made before.
pub(super) fn fence() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: an instruction that every x86-64 has; it changes nothing but the order of stores.
    unsafe {
        std::arch::asm!("sfence", options(nostack, preserves_flags));
    }
    #[cfg(test)]
    tests::FENCES.with(|count| count.set(count.get() + 1));
}

/// How many fences this thread has made.
#[cfg(test)]
pub(super) fn fences() -> usize {
    tests::FENCES.with(std::cell::Cell::get)
}

/// Whether streaming stores were made that nobody has fenced yet; dropping it does.
///
/// A guard keeps it *before* what leaves its gate: fields are dropped in the order in which they are
/// declared.
#[derive(Debug, Default)]
pub(super) struct Unfenced {
    streamed: Cell<bool>,
}

impl Unfenced {
    /// Takes over what a copy left to do.
    pub(super) fn note(&self, stores: Stores) {
        if stores == Stores::Streaming {
            self.streamed.set(true);
        }
    }
}

impl Drop for Unfenced {
    fn drop(&mut self) {
        if self.streamed.get() {
            fence();
        }
    }
}

/// Bytes to copy.
#[derive(Clone, Copy, Debug)]
struct Run {
    from: NonNull<u8>,
    to: NonNull<u8>,
    bytes: usize,
}

/// Copies runs, two at a time where that is faster. The last one may wait until
/// [`flush`](Copier::flush): a copier that is dropped without it has not copied that one.
#[derive(Debug)]
pub(super) struct Copier<'u> {
    path: Path,
    waiting: Option<Run>,
    unfenced: &'u Unfenced,
}

impl<'u> Copier<'u> {
    /// Copies as this process has chosen to.
    pub(super) fn new(unfenced: &'u Unfenced) -> Self {
        Copier::with(choice::path(), unfenced)
    }

    fn with(path: Path, unfenced: &'u Unfenced) -> Self {
        Copier {
            path,
            waiting: None,
            unfenced,
        }
    }

    /// Copies `bytes` bytes, now or with the next run, at the latest in [`flush`](Copier::flush).
    ///
    /// # Safety
    ///
    /// As for `std::ptr::copy_nonoverlapping`, until `flush` has returned or the copier is gone. What
    /// is copied together may be copied in any order, so no run may write what another one reads.
    pub(super) unsafe fn copy(&mut self, from: NonNull<u8>, to: NonNull<u8>, bytes: usize) {
        let run = Run { from, to, bytes };
        if !self.path.streams(bytes) {
            // SAFETY: passed on to the caller.
            unsafe { run.plain() };
            return;
        }
        if bytes > PAIR_UP_TO {
            // SAFETY: passed on to the caller.
            self.unfenced.note(unsafe { run.alone(self.path, None) });
            return;
        }
        let Some(first) = self.waiting.take() else {
            self.waiting = Some(run);
            return;
        };
        let stores = if self.path.pairs {
            // SAFETY: passed on to the caller, of this call and of the one before.
            unsafe { pair(self.path, first, run) }
        } else {
            self.waiting = Some(run);
            // SAFETY: passed on to the caller of the call before.
            unsafe { first.alone(self.path, Some(run.from)) }
        };
        self.unfenced.note(stores);
    }

    /// Copies the run that still waits.
    pub(super) fn flush(&mut self) {
        if let Some(run) = self.waiting.take() {
            // SAFETY: the caller of `copy` promised it until this has returned.
            self.unfenced.note(unsafe { run.alone(self.path, None) });
        }
    }
}

/// Copies one run as this process has chosen to; `next` is where the next one will be read, if that
/// is known.
///
/// # Safety
///
/// As for `std::ptr::copy_nonoverlapping`; `next` may be any address.
#[allow(dead_code)] // For a writer that has one run at a time.
pub(super) unsafe fn copy(
    from: NonNull<u8>,
    to: NonNull<u8>,
    bytes: usize,
    next: Option<NonNull<u8>>,
) -> Stores {
    let (path, run) = (choice::path(), Run { from, to, bytes });
    if path.streams(bytes) {
        // SAFETY: passed on to the caller.
        unsafe { run.alone(path, next) }
    } else {
        // SAFETY: passed on to the caller.
        unsafe { run.plain() };
        Stores::Ordered
    }
}

impl Run {
    /// # Safety
    /// As for `std::ptr::copy_nonoverlapping`.
    unsafe fn plain(self) {
        let (from, to) = (self.from.as_ptr(), self.to.as_ptr());
        // SAFETY: passed on to the caller.
        unsafe { std::ptr::copy_nonoverlapping(from, to, self.bytes) }
    }

    /// # Safety
    /// As for `std::ptr::copy_nonoverlapping`.
    #[cfg(not(target_arch = "x86_64"))]
    unsafe fn alone(self, _: Path, _: Option<NonNull<u8>>) -> Stores {
        // SAFETY: passed on to the caller.
        unsafe { self.plain() };
        Stores::Ordered
    }

    /// The first `bytes` bytes (at most all), and the rest.
    #[cfg(target_arch = "x86_64")]
    fn split(self, bytes: usize) -> (Run, Run) {
        let bytes = bytes.min(self.bytes);
        // SAFETY: within or one past the source range.
        let from = unsafe { self.from.add(bytes) };
        // SAFETY: within or one past the destination range.
        let to = unsafe { self.to.add(bytes) };
        let rest = Run {
            from,
            to,
            bytes: self.bytes - bytes,
        };
        (Run { bytes, ..self }, rest)
    }

    /// Copies what lies before the destination's first whole line; gives the rest.
    ///
    /// # Safety
    /// As for `std::ptr::copy_nonoverlapping`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn aligned(self) -> Run {
        let off = self.to.addr().get() % LINE;
        let (head, rest) = self.split((LINE - off) % LINE);
        // SAFETY: passed on to the caller.
        unsafe { head.plain() };
        rest
    }

    /// # Safety
    /// As for `std::ptr::copy_nonoverlapping`.
    #[cfg(target_arch = "x86_64")]
    unsafe fn alone(self, path: Path, next: Option<NonNull<u8>>) -> Stores {
        let Some(wide) = path.wide else {
            // SAFETY: passed on to the caller.
            unsafe { self.plain() };
            return Stores::Ordered;
        };
        // SAFETY: passed on to the caller.
        let mut rest = unsafe { self.aligned() };
        let halves = path.pairs && !too_near(rest.from, rest.to);
        while halves && rest.bytes >= HALVES_FROM {
            let half = rest.bytes.min(HALVES) / 2 / PAGE * PAGE;
            let (first, others) = rest.split(half);
            let (second, others) = others.split(half);
            // SAFETY: both are parts of the caller's ranges, begin at a line of the destination and
            // have `half` bytes, which is a positive multiple of a line.
            unsafe { wide.two([first.from, second.from], [first.to, second.to], half) };
            rest = others;
        }
        let (lines, tail) = rest.split(rest.bytes / LINE * LINE);
        if lines.bytes > 0 {
            let next = next.unwrap_or(lines.from);
            // SAFETY: a part of the caller's ranges, which begins at a line of the destination and is
            // a positive number of lines.
            unsafe { wide.one(lines.from, lines.to, lines.bytes, next) };
        }
        // SAFETY: a part of the caller's ranges.
        unsafe { tail.plain() };
        Stores::Streaming
    }
}

/// Whether stores at `to` get into the way of loads from `from`.
#[cfg(target_arch = "x86_64")]
fn too_near(from: NonNull<u8>, to: NonNull<u8>) -> bool {
    let behind = to.addr().get().wrapping_sub(from.addr().get()) % PAGE;
    (1..TOO_NEAR).contains(&behind)
}

/// Copies two runs, a line of each in turn as far as both go.
///
/// # Safety
/// As for `std::ptr::copy_nonoverlapping`, of each; and neither writes what the other reads.
#[cfg(target_arch = "x86_64")]
unsafe fn pair(path: Path, a: Run, b: Run) -> Stores {
    let Some(wide) = path.wide else {
        // SAFETY: passed on to the caller.
        unsafe { a.plain() };
        // SAFETY: passed on to the caller.
        unsafe { b.plain() };
        return Stores::Ordered;
    };
    let ends = [(a, a), (a, b), (b, a), (b, b)];
    if ends.iter().any(|(x, y)| too_near(x.from, y.to)) {
        // SAFETY: passed on to the caller. What it must fence is said below.
        let _ = unsafe { a.alone(path, Some(b.from)) };
        // SAFETY: passed on to the caller.
        return unsafe { b.alone(path, None) };
    }
    // SAFETY: passed on to the caller.
    let a = unsafe { a.aligned() };
    // SAFETY: passed on to the caller.
    let b = unsafe { b.aligned() };
    let both = a.bytes.min(b.bytes) / LINE * LINE;
    let ((a, rest_a), (b, rest_b)) = (a.split(both), b.split(both));
    if both > 0 {
        // SAFETY: parts of the caller's ranges, which begin at a line of the destination and have
        // `both` bytes, a positive multiple of a line.
        unsafe { wide.two([a.from, b.from], [a.to, b.to], both) };
    }
    for rest in [rest_a, rest_b] {
        // SAFETY: a part of the caller's ranges. Whether that streams makes no difference any more.
        let _ = unsafe { rest.alone(path, None) };
    }
    Stores::Streaming
}

/// # Safety
/// As for `std::ptr::copy_nonoverlapping`, of each.
#[cfg(not(target_arch = "x86_64"))]
unsafe fn pair(_: Path, a: Run, b: Run) -> Stores {
    // SAFETY: passed on to the caller.
    unsafe { a.plain() };
    // SAFETY: passed on to the caller.
    unsafe { b.plain() };
    Stores::Ordered
}
