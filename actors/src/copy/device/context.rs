//! A device's context, as everything that is made from it shares it.

use super::backend::{Address, Backend, Handle, Identity, IpcBytes, Kind, Priority, Result};
use super::error::{DeviceError, Sticky};
use super::flight::Parked;
use super::kernel::{Code, Module};
use super::memory::{DeviceMemory, IpcMemory, Pinned};
use super::ready::Ready;
use super::stream::Stream;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// Events that are kept for the next use.
const SPARE_EVENTS: usize = 256;

/// How long the end of a context may take, if nothing else is said.
const CLOSING: Duration = Duration::from_secs(2);

/// One context of one device. Clones are the same context; it ends with the last thing made from it.
///
/// Whoever owns it calls [`reap`](Self::reap) now and then, and [`close`](Self::close) at the end: work
/// that was let go of keeps its things, and the context with them, until somebody looks.
#[derive(Clone)]
pub struct Context {
    pub(super) inner: Arc<Inner>,
}

/// What is there, and what was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceStats {
    /// Bytes of device memory that are allocated here.
    pub device_bytes: u64,
    /// Bytes of pinned host memory that are allocated here.
    pub pinned_bytes: u64,
    /// Bytes of other processes' memory that are mapped.
    pub opened_bytes: u64,
    /// Bytes of device memory, among those that are allocated here, that other processes could open; they are
    /// never freed.
    pub exported_bytes: u64,
    /// Operations that are queued and held by somebody.
    pub in_flight: u64,
    /// Operations that were let go of before they were over; what they own waits for [`Context::reap`].
    pub parked: u64,
    /// Operations that can never be seen to end, since the device was lost; what they own is leaked.
    pub leaked: u64,
    /// Things that the driver did not take back; they are leaked.
    pub unfreed: u64,
}

pub(super) struct Inner {
    pub(super) backend: Box<dyn Backend>,
    lost: OnceLock<Sticky>,
    spare_events: Mutex<Vec<Handle>>,
    parked: Mutex<Vec<Box<dyn Parked>>>,
    pub(super) counts: Counts,
}

#[derive(Default)]
pub(super) struct Counts {
    pub(super) device_bytes: AtomicU64,
    pub(super) pinned_bytes: AtomicU64,
    pub(super) opened_bytes: AtomicU64,
    exported_bytes: AtomicU64,
    pub(super) in_flight: AtomicU64,
    pub(super) leaked: AtomicU64,
    pub(super) unfreed: AtomicU64,
}

/// What was not over when a context was closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closed {
    /// Operations that were let go of and did not end in time; what they own stays leaked.
    pub parked: usize,
    /// Of them, those on a lost device.
    pub lost: usize,
}

impl Context {
    pub(super) fn new(backend: Box<dyn Backend>) -> Self {
        Context {
            inner: Arc::new(Inner {
                backend,
                lost: OnceLock::new(),
                spare_events: Mutex::new(Vec::new()),
                parked: Mutex::new(Vec::new()),
                counts: Counts::default(),
            }),
        }
    }

    /// Which device it is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        self.inner.backend.identity()
    }

    /// Whether both are the same context.
    #[must_use]
    pub fn same(&self, other: &Context) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Why the device is lost, once that was noticed.
    #[must_use]
    pub fn lost(&self) -> Option<&Sticky> {
        self.inner.lost.get()
    }

    /// What is there now.
    #[must_use]
    pub fn stats(&self) -> DeviceStats {
        let counts = &self.inner.counts;
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        DeviceStats {
            device_bytes: of(&counts.device_bytes),
            pinned_bytes: of(&counts.pinned_bytes),
            opened_bytes: of(&counts.opened_bytes),
            exported_bytes: of(&counts.exported_bytes),
            in_flight: of(&counts.in_flight),
            parked: lock(&self.inner.parked).len() as u64,
            leaked: of(&counts.leaked),
            unfreed: of(&counts.unfreed),
        }
    }

    /// A new queue of work.
    ///
    /// # Errors
    ///
    /// A limit of streams, or what the driver says.
    pub fn stream(&self, priority: Priority) -> Result<Stream> {
        Stream::new(&self.inner, priority)
    }

    /// So many bytes of the device's memory (at least 1), not zeroed.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], or what the driver says.
    pub fn device_memory(&self, bytes: u64) -> Result<DeviceMemory> {
        DeviceMemory::new(&self.inner, bytes)
    }

    /// So many bytes of host memory (at least 1) that the device reaches, not zeroed.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfMemory`], or what the driver says.
    pub fn pinned(&self, bytes: u64) -> Result<Pinned> {
        Pinned::new(&self.inner, bytes)
    }

    /// Opens memory of another process of this host, which stays mapped until it is dropped. The
    /// other process must not free it before that; nothing here can notice if it does.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`] if its range is not within its allocation, or what the driver
    /// says: most do not open a handle of the process that made it.
    pub fn import(&self, memory: &IpcMemory) -> Result<DeviceMemory> {
        DeviceMemory::import(&self.inner, memory)
    }

    pub(super) fn count_exported(&self, bytes: u64) {
        let counts = &self.inner.counts;
        counts.exported_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// An event that somebody records and others wait for. With `between_processes` it can be
    /// exported.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn ready_event(&self, between_processes: bool) -> Result<Ready> {
        Ready::new(&self.inner, between_processes)
    }

    /// Opens an event of another process of this host.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn open_event(&self, bytes: &IpcBytes) -> Result<Ready> {
        Ready::open(&self.inner, bytes)
    }

    /// Puts code on the device.
    ///
    /// # Errors
    ///
    /// [`DeviceError::Compile`], [`DeviceError::NoCompiler`], or what the driver says.
    pub fn load(&self, code: &Code) -> Result<Module> {
        self.inner.usable()?;
        let module = self.inner.note(self.inner.backend.load(code))?;
        Ok(Module::new(Arc::clone(&self.inner), module))
    }

    /// Whether work of this context can be let reach the other's memory.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn can_reach(&self, other: &Context) -> Result<bool> {
        let key = other.inner.backend.peer_key();
        if key.kind != self.identity().kind {
            return Ok(false);
        }
        self.inner.note(self.inner.backend.peer_possible(key))
    }

    /// Lets work of this context reach the other's memory, in this direction.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotSupported`] if the two devices cannot, or what the driver says.
    pub fn reach(&self, other: &Context) -> Result<()> {
        if !self.can_reach(other)? {
            return Err(DeviceError::NotSupported {
                call: "cuCtxEnablePeerAccess",
                code: 217,
                name: "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED",
            });
        }
        let key = other.inner.backend.peer_key();
        self.inner.note(self.inner.backend.peer_enable(key))
    }

    /// Frees what belonged to operations that were let go of and are over now; how many are left.
    /// For whoever owns the context, now and then.
    pub fn reap(&self) -> usize {
        let waiting = std::mem::take(&mut *lock(&self.inner.parked));
        // Outside of the lock: what is freed may let go of more operations.
        let left: Vec<_> = waiting.into_iter().filter_map(Parked::step).collect();
        let mut parked = lock(&self.inner.parked);
        parked.extend(left);
        parked.len()
    }

    /// Waits until what was let go of is over, within a bound.
    pub fn close(self, bound: Duration) -> Closed {
        let until = Instant::now() + bound;
        loop {
            let parked = self.reap();
            if parked == 0 || self.lost().is_some() || Instant::now() >= until {
                let lost = if self.lost().is_some() { parked } else { 0 };
                return Closed { parked, lost };
            }
            std::thread::sleep(Duration::from_micros(200));
        }
    }
}

impl fmt::Debug for Context {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.identity();
        f.debug_struct("Context")
            .field("kind", &id.kind)
            .field("ordinal", &id.ordinal)
            .field("lost", &self.lost())
            .finish_non_exhaustive()
    }
}

impl Inner {
    pub(super) fn kind(&self) -> Kind {
        self.backend.identity().kind
    }

    /// The device is not known to be lost.
    pub(super) fn usable(&self) -> Result<()> {
        match self.lost.get() {
            Some(sticky) => Err(DeviceError::Lost(sticky.clone())),
            None => Ok(()),
        }
    }

    /// Remembers an error that stays. All later ones are told as the first.
    pub(super) fn note<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(DeviceError::Lost(sticky)) => {
                Err(DeviceError::Lost(self.lost.get_or_init(|| sticky).clone()))
            }
            other => other,
        }
    }

    /// Something was given back to the driver, or was not.
    pub(super) fn freed(&self, result: Result<()>) {
        if let Err(error) = self.note(result) {
            self.counts.unfreed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, "a device did not take something back");
        }
    }

    /// An event that nobody waits for.
    pub(super) fn event(&self) -> Result<Handle> {
        match lock(&self.spare_events).pop() {
            Some(event) => Ok(event),
            None => self.note(self.backend.event_create(false)),
        }
    }

    /// An event that has fired, or was never recorded.
    pub(super) fn give_event(&self, event: Handle) {
        let mut spare = lock(&self.spare_events);
        if spare.len() < SPARE_EVENTS && self.lost.get().is_none() {
            spare.push(event);
        } else {
            drop(spare);
            self.freed(self.backend.event_destroy(event));
        }
    }

    pub(super) fn park(&self, operation: Box<dyn Parked>) {
        lock(&self.parked).push(operation);
    }

    pub(super) fn is_within(offset: u64, bytes: u64, of: u64) -> Result<()> {
        match offset.checked_add(bytes) {
            Some(end) if end <= of => Ok(()),
            _ => Err(DeviceError::OutOfRange { offset, bytes, of }),
        }
    }

    /// Frees what was allocated, and counts.
    pub(super) fn free(
        &self,
        count: &AtomicU64,
        bytes: u64,
        at: Address,
        free: impl FnOnce(&dyn Backend, Address) -> Result<()>,
    ) {
        self.freed(free(&*self.backend, at));
        count.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let events = std::mem::take(&mut *lock(&self.spare_events));
        for event in events {
            self.freed(self.backend.event_destroy(event));
        }
        let left = self.backend.close(CLOSING);
        if left > 0 {
            tracing::warn!(left, "threads of a device did not end in time and are left");
        }
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
