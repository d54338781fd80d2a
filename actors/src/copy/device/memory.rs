//! Memory of a device, and host memory that it reaches.
//!
//! What is allocated here is freed when its owner is dropped, and the owner cannot be dropped while
//! queued work uses it: work only takes addresses ([`Source`], [`Target`]) that are borrowed from what
//! it owns until it is over ([`super::stream`]).

use super::backend::{Address, IpcBytes, Kind, Result};
use super::context::Inner;
use super::error::DeviceError;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Memory of a device: allocated here, opened from another process, or an engine's.
pub struct DeviceMemory {
    context: Arc<Inner>,
    /// What the driver gave.
    base: Address,
    offset: u64,
    bytes: u64,
    of: Of,
}

enum Of {
    Allocated,
    /// So many bytes are mapped.
    Opened(u64),
    /// Told when it is not used any more.
    #[cfg_attr(not(feature = "cuda"), allow(dead_code))]
    Engine(Option<Box<dyn FnOnce() + Send + Sync>>),
}

/// A range of one process's device memory, for another process of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IpcMemory {
    /// CUDA's handle of the allocation that the range is in.
    pub handle: IpcBytes,
    /// Where in it the range begins.
    pub offset: u64,
    /// Its bytes.
    pub bytes: u64,
}

/// Host memory that devices read and write at the speed of the bus. The host looks at it only while
/// no work owns it.
pub struct Pinned {
    context: Arc<Inner>,
    at: Address,
    bytes: u64,
}

/// Where queued work reads. It lives as long as what the work owns.
#[derive(Clone, Copy, Debug)]
pub struct Source<'q> {
    kind: Kind,
    at: Address,
    bytes: u64,
    lives: PhantomData<fn(&'q ()) -> &'q ()>,
}

/// Where queued work writes, and may read.
#[derive(Clone, Copy, Debug)]
pub struct Target<'q>(Source<'q>);

impl DeviceMemory {
    pub(super) fn new(context: &Arc<Inner>, bytes: u64) -> Result<Self> {
        context.usable()?;
        let bytes = bytes.max(1);
        let base = context.note(context.backend.device_alloc(bytes))?;
        let counts = &context.counts;
        counts.device_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(DeviceMemory {
            context: Arc::clone(context),
            base,
            offset: 0,
            bytes,
            of: Of::Allocated,
        })
    }

    pub(super) fn import(context: &Arc<Inner>, memory: &IpcMemory) -> Result<Self> {
        context.usable()?;
        let (base, mapped) = context.note(context.backend.ipc_open(&memory.handle))?;
        let counts = &context.counts;
        counts.opened_bytes.fetch_add(mapped, Ordering::Relaxed);
        let opened = DeviceMemory {
            context: Arc::clone(context),
            base,
            offset: memory.offset,
            bytes: memory.bytes,
            of: Of::Opened(mapped),
        };
        // After it is owned, so that it is closed if the range is not in it.
        Inner::is_within(memory.offset, memory.bytes, mapped)?;
        Ok(opened)
    }

    /// Memory that somebody else owns, who is told when it is not used any more.
    #[cfg(feature = "cuda")]
    pub(super) fn of_engine(
        context: &Arc<Inner>,
        at: Address,
        bytes: u64,
        over: Box<dyn FnOnce() + Send + Sync>,
    ) -> Self {
        DeviceMemory {
            context: Arc::clone(context),
            base: at,
            offset: 0,
            bytes,
            of: Of::Engine(Some(over)),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Whether it is memory of this very context.
    #[must_use]
    pub fn is_of(&self, context: &super::context::Context) -> bool {
        Arc::ptr_eq(&self.context, &context.inner)
    }

    /// A range of it for queued work. Who queues sees to it that what runs at the same time does not
    /// meet in it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn range(&self, range: Range<u64>) -> Result<Target<'_>> {
        let at = self.base + self.offset;
        let range = source(self.context.kind(), at, self.bytes, range)?;
        Ok(Target(range))
    }

    /// What another process of this host needs to open it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::NotSupported`] where there is no IPC, or what the driver says.
    pub fn export(&self) -> Result<IpcMemory> {
        self.context.usable()?;
        let at = self.base + self.offset;
        let (handle, offset) = self.context.note(self.context.backend.ipc_export(at))?;
        Ok(IpcMemory {
            handle,
            offset,
            bytes: self.bytes,
        })
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let counts = &self.context.counts;
        match &mut self.of {
            Of::Allocated => {
                self.context
                    .free(&counts.device_bytes, self.bytes, self.base, |b, at| {
                        b.device_free(at)
                    });
            }
            Of::Opened(mapped) => {
                self.context
                    .free(&counts.opened_bytes, *mapped, self.base, |b, at| {
                        b.ipc_close(at)
                    });
            }
            Of::Engine(over) => {
                if let Some(over) = over.take() {
                    over();
                }
            }
        }
    }
}

impl fmt::Debug for DeviceMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DeviceMemory")
            .field("device", &self.context.backend.identity().ordinal)
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl Pinned {
    pub(super) fn new(context: &Arc<Inner>, bytes: u64) -> Result<Self> {
        context.usable()?;
        let bytes = bytes.max(1);
        let at = context.note(context.backend.pinned_alloc(bytes))?;
        let counts = &context.counts;
        counts.pinned_bytes.fetch_add(bytes, Ordering::Relaxed);
        Ok(Pinned {
            context: Arc::clone(context),
            at,
            bytes,
        })
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Shows a range to the host.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn read<R>(&self, range: Range<u64>, see: impl FnOnce(&[u8]) -> R) -> Result<R> {
        let range = source(self.context.kind(), self.at, self.bytes, range)?;
        let mut see = Some(see);
        let mut seen = None;
        self.context
            .backend
            .pinned_read(range.at, range.bytes, &mut |bytes| {
                seen = see.take().map(|see| see(bytes));
            });
        seen.ok_or_else(not_shown)
    }

    /// Lets the host change a range.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn write<R>(&mut self, range: Range<u64>, see: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let range = source(self.context.kind(), self.at, self.bytes, range)?;
        let mut see = Some(see);
        let mut seen = None;
        self.context
            .backend
            .pinned_write(range.at, range.bytes, &mut |bytes| {
                seen = see.take().map(|see| see(bytes));
            });
        seen.ok_or_else(not_shown)
    }

    /// A range that queued work reads.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn source(&self, range: Range<u64>) -> Result<Source<'_>> {
        source(self.context.kind(), self.at, self.bytes, range)
    }

    /// A range that queued work writes. It may read it later, too: a [`Target`] is a [`Source`].
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn target(&mut self, range: Range<u64>) -> Result<Target<'_>> {
        let range = source(self.context.kind(), self.at, self.bytes, range)?;
        Ok(Target(range))
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let counts = &self.context.counts;
        self.context
            .free(&counts.pinned_bytes, self.bytes, self.at, |b, at| {
                b.pinned_free(at)
            });
    }
}

impl fmt::Debug for Pinned {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pinned")
            .field("bytes", &self.bytes)
            .finish_non_exhaustive()
    }
}

impl<'q> Source<'q> {
    /// Where a kernel finds it.
    #[must_use]
    pub fn address(self) -> u64 {
        self.at
    }

    pub(super) fn kind(self) -> Kind {
        self.kind
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.bytes
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn part(self, range: Range<u64>) -> Result<Source<'q>> {
        source(self.kind, self.at, self.bytes, range)
    }
}

impl<'q> Target<'q> {
    /// Where a kernel finds it. What is given to one must be a range that the same closure has, or
    /// nothing keeps the memory while the kernel runs.
    #[must_use]
    pub fn address(self) -> u64 {
        self.0.at
    }

    pub(super) fn kind(self) -> Kind {
        self.0.kind
    }

    /// Its bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        self.0.bytes
    }

    /// A part of it.
    ///
    /// # Errors
    ///
    /// [`DeviceError::OutOfRange`].
    pub fn part(self, range: Range<u64>) -> Result<Target<'q>> {
        Ok(Target(self.0.part(range)?))
    }
}

impl<'q> From<Target<'q>> for Source<'q> {
    fn from(target: Target<'q>) -> Self {
        target.0
    }
}

fn source<'q>(kind: Kind, at: Address, of: u64, range: Range<u64>) -> Result<Source<'q>> {
    // A range that ends before it begins is outside, too.
    let bytes = range.end.wrapping_sub(range.start);
    Inner::is_within(range.start, bytes, of)?;
    Ok(Source {
        kind,
        at: at + range.start,
        bytes,
        lives: PhantomData,
    })
}

fn not_shown() -> DeviceError {
    DeviceError::BadArgument {
        call: "pinned memory",
        why: "it is not there any more".to_owned(),
    }
}
