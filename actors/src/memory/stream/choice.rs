//! Which copy this process makes, from which size on.
//!
//! It is one choice for the whole process, since it is a property of the machine: a node that says
//! something ([`CopyMode`]) says it for all. Until something was measured, streaming is from
//! [`DEFAULT_FROM`] bytes on.

use super::Wide;
use super::measure::{self, CopyMeasurement};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// From which size on streaming stores are used before anything was measured.
pub(super) const DEFAULT_FROM: usize = 16 << 10;
/// No size.
const NEVER: usize = usize::MAX;

static MODE: Mutex<CopyMode> = Mutex::new(CopyMode::Measured);
static FROM: AtomicUsize = AtomicUsize::new(DEFAULT_FROM);
static PAIRS: AtomicBool = AtomicBool::new(true);
static MEASURED: OnceLock<CopyMeasurement> = OnceLock::new();
static STARTED: AtomicBool = AtomicBool::new(false);

/// How bytes are copied between pools of one host. One choice for the whole process: what was said
/// last counts, for all nodes of the process and for copies that are under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CopyMode {
    /// What was measured to be faster, once in the life of the process, in the background and for
    /// some 30 ms; until that is known, as `StreamingFrom(16384)`.
    #[default]
    Measured,
    /// The C library's `memcpy`. Nothing is measured.
    Memcpy,
    /// Streaming stores, which go past the caches, for runs of at least so many bytes. Without AVX2
    /// as `Memcpy`. Nothing is measured.
    StreamingFrom(u64),
}

/// How bytes are copied in this process.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CopyFacts {
    /// The widest streaming stores that this processor has: `AVX-512`, `AVX2`; `None` if there are
    /// none that are used, and all copies are plain.
    pub instructions: Option<&'static str>,
    /// What was asked for.
    pub mode: CopyMode,
    /// Bytes from which on a run is copied with them; `None` for never.
    pub from: Option<u64>,
    /// Whether two runs are copied together.
    pub pairs: bool,
    /// The measurement, if it was made.
    pub measured: Option<CopyMeasurement>,
}

/// One way to copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) wide: Option<Wide>,
    /// Bytes from which on it is used.
    pub(super) from: usize,
    /// Whether two streams are written in turn.
    pub(super) pairs: bool,
}

impl Path {
    pub(super) fn streams(self, bytes: usize) -> bool {
        self.wide.is_some() && bytes >= self.from
    }
}

/// What copies are made with now.
pub(super) fn path() -> Path {
    // Relaxed: a number on its own; whichever is read gives a right copy.
    Path {
        wide: wide(),
        from: FROM.load(Ordering::Relaxed),
        pairs: PAIRS.load(Ordering::Relaxed),
    }
}

fn wide() -> Option<Wide> {
    static WIDE: OnceLock<Option<Wide>> = OnceLock::new();
    *WIDE.get_or_init(Wide::detect)
}

/// Says how this process copies from now on.
pub fn set_copy_mode(mode: CopyMode) {
    let mut set = MODE.lock().unwrap_or_else(PoisonError::into_inner);
    *set = mode;
    apply(mode);
}

fn apply(mode: CopyMode) {
    let (from, pairs) = match mode {
        CopyMode::Measured => match MEASURED.get() {
            Some(measured) => (measured.from.map_or(NEVER, bytes), measured.pairs),
            None => (DEFAULT_FROM, true),
        },
        CopyMode::Memcpy => (NEVER, true),
        CopyMode::StreamingFrom(from) => (bytes(from), true),
    };
    FROM.store(from, Ordering::Relaxed);
    PAIRS.store(pairs, Ordering::Relaxed);
}

fn bytes(count: u64) -> usize {
    usize::try_from(count).unwrap_or(NEVER)
}

/// Measures, if the mode asks for it and nobody has, on a thread that ends with it.
pub(crate) fn measure_in_background() {
    let mode = *MODE.lock().unwrap_or_else(PoisonError::into_inner);
    if mode != CopyMode::Measured || wide().is_none() || STARTED.swap(true, Ordering::Relaxed) {
        return;
    }
    let thread = std::thread::Builder::new().name("kvroom-measure".to_owned());
    if let Err(error) = thread.spawn(measure_copies) {
        tracing::debug!(%error, "copies are not measured: no thread for it");
    }
}

/// Measures, if nobody has: for some 30 ms, with a core and 8 MiB. Blocks.
pub fn measure_copies() -> &'static CopyMeasurement {
    STARTED.store(true, Ordering::Relaxed);
    let mut fresh = false;
    let measured = MEASURED.get_or_init(|| {
        fresh = true;
        measure::measure(wide())
    });
    if fresh {
        let mode = MODE.lock().unwrap_or_else(PoisonError::into_inner);
        apply(*mode);
        tracing::debug!(
            instructions = wide().map_or("none", Wide::name),
            from = measured.from,
            pairs = measured.pairs,
            rounds = measured.rounds,
            took_ms = measured.took.as_secs_f64() * 1e3,
            samples = ?measured.samples,
            "copies were measured"
        );
    }
    measured
}

/// How this process copies now.
pub fn copy_facts() -> CopyFacts {
    let mode = *MODE.lock().unwrap_or_else(PoisonError::into_inner);
    let path = path();
    CopyFacts {
        instructions: wide().map(Wide::name),
        mode,
        from: (path.wide.is_some() && path.from != NEVER).then_some(path.from as u64),
        pairs: path.pairs,
        measured: MEASURED.get().cloned(),
    }
}
