//! The memory of a pool, and the handle that engines lease its pages from.
//!
//! ```text
//!   Pool (Clone) ─┐
//!   leases        ├─▶ Arc<PoolMemory> { bytes, layout, holders of pages } ──last one──▶ on_free, unmap
//!   target sections, source views ─┘
//! ```
//!
//! Rules:
//! - The memory goes when nobody is left who could touch it, and not before. Forgetting a handle or
//!   a lease keeps it for ever.
//! - References into it are made from leases only (`lease`). Everything else goes through raw
//!   pointers: lanes copy with them, and [`Pool::observe`] reads with them.
//! - Nothing here trusts an offset: it is checked against the length before it becomes a pointer.
#![allow(unsafe_code)] // Owns raw memory.

use super::held::{Held, Mode};
use super::lease::{ReadLease, WriteLease};
use super::lease_table::{Holder, LeaseError, LeaseTable};
use super::shared::{Attachment, Backing, SharedError, SharedMemory};
use kvroom_kernels::layout::cube::{CubeError, CubeLayout, DimOrder};
use kvroom_kernels::layout::{Order, PoolLayout};
use std::alloc::Layout;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

/// Alignment of owned pools in bytes: a page of the system.
const ALIGN: usize = 4096;

/// Why a pool could not be made, or asked something.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// The layout cannot be used.
    #[error("layout of pool \"{pool}\": {what}")]
    BadLayout {
        /// The pool's name.
        pool: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// The system gave no memory.
    #[error("no memory for pool \"{pool}\": {bytes} bytes were asked for")]
    OutOfMemory {
        /// The pool's name.
        pool: String,
        /// Bytes asked for.
        bytes: usize,
    },
    /// The memory given is smaller than the layout.
    #[error("memory of pool \"{pool}\" is {given} bytes, its layout needs {needed}")]
    TooSmall {
        /// The pool's name.
        pool: String,
        /// Bytes given.
        given: usize,
        /// Bytes that the layout covers.
        needed: usize,
    },
    /// There is no such shared memory, or the file cannot be a pool.
    #[error("pool \"{pool}\": {why}")]
    Shared {
        /// The pool's name.
        pool: String,
        /// Why.
        why: SharedError,
    },
    /// This process is a child of fork of the one that has the pool.
    #[error("pool \"{pool}\" cannot be used here: its memory is not mapped in a child of fork")]
    Forked {
        /// The pool's name.
        pool: String,
    },
    /// A content that no pool can have.
    #[error("the content that was given to pool \"{pool}\": {error}")]
    BadContent {
        /// The pool's name.
        pool: String,
        /// What is wrong with it.
        error: Box<CubeError>,
    },
    /// A content whose pages are not together in a layer, as with heads before pages: such a pool has no
    /// cells that could be lent by pages.
    #[error(
        "the content that was given to pool \"{pool}\" is in the order {order}: a page of a layer is not \
         together in memory, so it cannot be lent page by page; put page and layer before head and token"
    )]
    NoCells {
        /// The pool's name.
        pool: String,
        /// The order.
        order: DimOrder,
    },
    /// A content that says something else of the pool's cells than its layout.
    #[error("the content that was given to pool \"{pool}\" does not give its layout: {what}")]
    ContentDiffers {
        /// The pool's name.
        pool: String,
        /// In what.
        what: String,
    },
    /// The pool has a content already.
    #[error("pool \"{pool}\" has a content already")]
    ContentAlreadySet {
        /// The pool's name.
        pool: String,
    },
    /// The pool has a release callback already.
    #[error("pool \"{pool}\" has a release callback already")]
    CallbackAlreadySet {
        /// The pool's name.
        pool: String,
    },
    /// There is no such cell.
    #[error("pool \"{pool}\" has no layer {layer}, page {page}")]
    NoSuchCell {
        /// The pool's name.
        pool: String,
        /// The layer asked for.
        layer: u32,
        /// The page asked for.
        page: u32,
    },
}

/// Pages that came back to the pool by themselves: their lease was dropped, by whoever had it last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReleasedPages {
    /// The pages, in the lease's order.
    pub pages: Arc<[u32]>,
    /// How they were held.
    pub mode: Mode,
}

type OnFree = Box<dyn FnOnce() + Send>;
type OnRelease = Box<dyn Fn(ReleasedPages) + Send + Sync>;

/// The memory behind all handles, leases, sections and views of one pool.
pub struct PoolMemory {
    memory: Bytes,
    /// What keeps it mapped, if others may map it too.
    shared: Option<Arc<SharedMemory>>,
    backing: Backing,
    /// Other processes read and write its pages: no slice of them is ever made here.
    foreign: bool,
    /// Of a pool that outlives this process.
    attachment: OnceLock<Arc<Attachment>>,
    layout: Arc<PoolLayout>,
    /// What its bytes mean, if that was said.
    content: OnceLock<Arc<CubeLayout>>,
    holders: LeaseTable,
    retired: AtomicBool,
    on_release: OnceLock<OnRelease>,
    on_free: Mutex<Option<OnFree>>,
}

/// Address and length of a pool's memory; says nothing about who may touch it.
#[derive(Clone, Copy)]
struct Bytes {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: an address can be sent anywhere; every access is justified where it is made.
unsafe impl Send for Bytes {}
// SAFETY: as above; sharing an address gives no access.
unsafe impl Sync for Bytes {}

impl PoolMemory {
    /// The pool's shape.
    pub fn layout(&self) -> &Arc<PoolLayout> {
        &self.layout
    }

    /// Bytes that the layout covers.
    pub fn bytes(&self) -> u64 {
        self.memory.len as u64
    }

    /// What the pool's bytes mean, if that was said.
    pub fn content(&self) -> Option<&Arc<CubeLayout>> {
        self.content.get()
    }

    pub(super) fn backing(&self) -> Backing {
        self.backing
    }

    pub(super) fn shared(&self) -> Option<&Arc<SharedMemory>> {
        self.shared.as_ref()
    }

    pub(super) fn attachment(&self) -> Option<&Arc<Attachment>> {
        self.attachment.get()
    }

    /// The pool outlives this process: pages that former lives may still write are nobody's yet.
    pub(super) fn attach(&self, attachment: Arc<Attachment>) {
        for waiting in attachment.quarantined() {
            self.holders.quarantine(waiting.page);
        }
        let first = self.attachment.set(attachment);
        debug_assert!(first.is_ok(), "attached twice");
    }

    /// Whether the memory is there: in a child of fork shared memory is not.
    pub(super) fn is_mapped(&self) -> bool {
        self.shared.as_ref().is_none_or(|shared| shared.is_mapped())
    }

    /// Whether other processes read and write its pages.
    pub(super) fn is_foreign(&self) -> bool {
        self.foreign
    }

    pub(super) fn holders(&self) -> &LeaseTable {
        &self.holders
    }

    /// Where `bytes` bytes at `offset` are, if they lie within the pool.
    pub(super) fn at(&self, offset: u64, bytes: u64) -> Option<(NonNull<u8>, usize)> {
        if offset.checked_add(bytes)? > self.bytes() {
            return None;
        }
        // Both fit a usize, since their sum is at most the length.
        let (offset, bytes) = (offset as usize, bytes as usize);
        // SAFETY: `offset` is at most the length of this one allocation.
        let start = unsafe { self.memory.start.add(offset) };
        Some((start, bytes))
    }

    /// Where a cell is; `None` if there is no such layer or page.
    pub(super) fn cell(&self, layer: u32, page: u32) -> Option<(NonNull<u8>, usize)> {
        let l = &*self.layout;
        if layer >= l.layers || page >= l.pages {
            return None;
        }
        let (layer, page) = (u64::from(layer), u64::from(page));
        let cell = match l.order {
            Order::LayersFirst => layer * u64::from(l.pages) + page,
            Order::PagesFirst => page * u64::from(l.layers) + layer,
        };
        self.at(cell.checked_mul(l.page_bytes)?, l.page_bytes)
    }

    /// Copies out the bytes at `offset` as they are at this moment, whoever writes them; `None` if they
    /// are not all within the pool.
    pub(super) fn look(&self, offset: u64, into: &mut [u8]) -> Option<()> {
        let (start, n) = self.at(offset, into.len() as u64)?;
        let words = if start.addr().get().is_multiple_of(size_of::<u64>()) {
            n / size_of::<u64>()
        } else {
            0
        };
        let (whole, rest) = into.split_at_mut(words * size_of::<u64>());
        for (i, word) in whole.chunks_exact_mut(size_of::<u64>()).enumerate() {
            // SAFETY: the word at `i` lies within the range, and so within the memory.
            let from = unsafe { start.cast::<u64>().add(i) };
            // SAFETY: readable as long as the pool lives, and aligned (checked above). As for bytes
            // below, a lane may write it at the same time.
            word.copy_from_slice(&unsafe { from.read_volatile() }.to_ne_bytes());
        }
        for (i, byte) in (words * size_of::<u64>()..).zip(rest) {
            // SAFETY: `i` is less than the length of the range, which lies within the memory.
            let from = unsafe { start.add(i) };
            // SAFETY: readable as long as the pool lives. A lane may write it at the same time: it
            // is memory shared with devices and other processes by design, so it is read with a
            // volatile access, of which the compiler assumes nothing, and no reference is made.
            *byte = unsafe { from.read_volatile() };
        }
        Some(())
    }

    /// See [`pages_of`].
    pub(super) fn pages_of(&self, range: Range<u64>) -> impl Iterator<Item = u32> + use<> {
        pages_of(&self.layout, range)
    }

    /// Tells the pool's user that pages came back by themselves.
    pub(super) fn tell_released(&self, pages: &Arc<[u32]>, mode: Mode) {
        if let Some(tell) = self.on_release.get() {
            let released = ReleasedPages {
                pages: Arc::clone(pages),
                mode,
            };
            if catch_unwind(AssertUnwindSafe(|| tell(released))).is_err() {
                tracing::error!(pool = %self.layout.name, "the release callback panicked");
            }
        }
    }
}

/// The pages that a range of bytes of a pool touches, in the order of memory; in a pool of layers first,
/// a long range may name a page again for its next layer. The range must not be empty.
pub(super) fn pages_of(l: &PoolLayout, range: Range<u64>) -> impl Iterator<Item = u32> + use<> {
    let (first, last) = (range.start / l.page_bytes, (range.end - 1) / l.page_bytes);
    let (per_page, pages) = match l.order {
        Order::LayersFirst => (1, u64::from(l.pages)),
        Order::PagesFirst => (u64::from(l.layers), u64::from(l.pages)),
    };
    (first / per_page..=last / per_page).map(move |i| (i % pages) as u32)
}

impl Drop for PoolMemory {
    fn drop(&mut self) {
        let on_free = match self.on_free.get_mut() {
            Ok(f) => f.take(),
            Err(poisoned) => poisoned.into_inner().take(),
        };
        if let Some(on_free) = on_free
            && catch_unwind(AssertUnwindSafe(on_free)).is_err()
        {
            tracing::error!(pool = %self.layout.name, "the callback that frees the pool panicked");
        }
    }
}

impl fmt::Debug for PoolMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("layout", &self.layout)
            .field("leased_pages", &self.holders.held())
            .field("retired", &self.retired.load(Ordering::SeqCst))
            .finish_non_exhaustive()
    }
}

/// A pool of pages. Clones are handles of the same pool.
///
/// ```
/// # use kvroom_actors::memory::Pool;
/// # use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
/// let pool = Pool::owned(PoolLayout {
///     name: "kv".into(), kind: PoolKind::Kv, order: Order::LayersFirst,
///     layers: 2, pages: 8, page_bytes: 4096, page_tokens: 16,
/// })?;
/// let mut lease = pool.lease_write(&[3, 5])?;
/// lease.page_mut(0, 1).fill(7);                  // layer 0 of page 5
/// assert!(pool.lease_read(&[5]).is_err());       // somebody writes it
/// let lease = lease.into_read();
/// assert_eq!(lease.page(0, 1)[0], 7);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Pool(Arc<PoolMemory>);

impl Pool {
    /// A pool of zeroed memory of its own, aligned to 4096 bytes. Pages of it that were never
    /// touched take no resident memory.
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`], or [`PoolError::OutOfMemory`] with the size asked for.
    pub fn owned(layout: PoolLayout) -> Result<Pool, PoolError> {
        let bytes = bytes_of(&layout)?;
        // Aligned by hand: for more than its usual alignment, the allocator would write the zeros.
        let Ok(shape) = Layout::from_size_align(bytes.saturating_add(ALIGN - 1), 1) else {
            return Err(bad(&layout, "is larger than the address space"));
        };
        // SAFETY: the size is not zero, since no factor of it is.
        let start = unsafe { std::alloc::alloc_zeroed(shape) };
        let Some(start) = NonNull::new(start) else {
            return Err(PoolError::OutOfMemory {
                pool: layout.name,
                bytes,
            });
        };
        let skip = start.addr().get().next_multiple_of(ALIGN) - start.addr().get();
        let all = Bytes {
            start,
            len: shape.size(),
        };
        // SAFETY: `skip` is less than `ALIGN`, and that much more than `bytes` was allocated.
        let start = unsafe { start.add(skip) };
        let on_free: OnFree = Box::new(move || {
            let all = all;
            // SAFETY: allocated above with this shape, and freed by no one else.
            unsafe { std::alloc::dealloc(all.start.as_ptr(), shape) }
        });
        let memory = Bytes { start, len: bytes };
        Ok(Pool::new(
            layout,
            memory,
            None,
            Backing::Private,
            Some(on_free),
        ))
    }

    /// A pool in memory that the caller provides.
    ///
    /// `on_free` runs once, on any thread, when the last handle, lease, gate and job that could
    /// touch the memory is gone: release on proof. A panic in it is caught and logged. If this
    /// returns an error, `on_free` is dropped without having run.
    ///
    /// # Safety
    ///
    /// From now until `on_free` is called:
    /// - `ptr` points to `bytes` initialised bytes of one allocation or mapping, which stays mapped,
    ///   readable and writable;
    /// - nobody outside this pool writes a page except its write lease's holder, and nobody reads
    ///   one except the holder of a lease of it. (An engine that reads or writes through its own
    ///   mapping does so while it holds the lease, and orders it with taking and giving back.)
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`], or [`PoolError::TooSmall`].
    pub unsafe fn from_raw(
        layout: PoolLayout,
        ptr: NonNull<u8>,
        bytes: usize,
        on_free: impl FnOnce() + Send + 'static,
    ) -> Result<Pool, PoolError> {
        let needed = bytes_of(&layout)?;
        if bytes < needed {
            return Err(PoolError::TooSmall {
                pool: layout.name,
                given: bytes,
                needed,
            });
        }
        let memory = Bytes {
            start: ptr,
            len: needed,
        };
        let on_free: OnFree = Box::new(on_free);
        Ok(Pool::new(
            layout,
            memory,
            None,
            Backing::Private,
            Some(on_free),
        ))
    }

    /// A pool in shared memory, which is as large as `bytes_of` says at least.
    pub(super) fn in_shared(
        layout: PoolLayout,
        shared: SharedMemory,
        backing: Backing,
        foreign: bool,
    ) -> Result<Pool, PoolError> {
        let len = bytes_of(&layout)?;
        if shared.len() < len {
            return Err(PoolError::TooSmall {
                pool: layout.name,
                given: shared.len(),
                needed: len,
            });
        }
        let memory = Bytes {
            start: shared.start(),
            len,
        };
        Ok(Pool::new(
            layout,
            memory,
            Some((Arc::new(shared), foreign)),
            backing,
            None,
        ))
    }

    fn new(
        layout: PoolLayout,
        memory: Bytes,
        shared: Option<(Arc<SharedMemory>, bool)>,
        backing: Backing,
        on_free: Option<OnFree>,
    ) -> Pool {
        let foreign = shared.as_ref().is_some_and(|(_, foreign)| *foreign);
        let shared = shared.map(|(memory, _)| memory);
        Pool(Arc::new(PoolMemory {
            memory,
            shared,
            backing,
            foreign,
            attachment: OnceLock::new(),
            holders: LeaseTable::new(layout.pages),
            layout: Arc::new(layout),
            content: OnceLock::new(),
            retired: AtomicBool::new(false),
            on_release: OnceLock::new(),
            on_free: Mutex::new(on_free),
        }))
    }

    /// Says what the pool's bytes mean: which layers and heads of the model its node holds, and in which
    /// order. Then rooms can move parts of cells between nodes that hold different parts of the model.
    /// To be said before the pool is given to a node, which announces it.
    ///
    /// # Errors
    ///
    /// [`PoolError::BadContent`], [`PoolError::NoCells`], [`PoolError::ContentDiffers`]: it is none that
    /// this pool can have. [`PoolError::ContentAlreadySet`]: the first one stays.
    pub fn with_content(self, content: CubeLayout) -> Result<Pool, PoolError> {
        let layout = self.layout();
        let pool = || layout.name.clone();
        if let Err(error) = content.validate() {
            let (pool, error) = (pool(), Box::new(error));
            return Err(PoolError::BadContent { pool, error });
        }
        let Some(cells) = content.pool_layout() else {
            let (pool, order) = (pool(), content.order);
            return Err(PoolError::NoCells { pool, order });
        };
        if cells != **layout {
            let what = format!("it gives {cells:?}, the pool has {:?}", **layout);
            let pool = pool();
            return Err(PoolError::ContentDiffers { pool, what });
        }
        match self.0.content.set(Arc::new(content)) {
            Ok(()) => Ok(self),
            Err(_) => {
                let pool = pool();
                Err(PoolError::ContentAlreadySet { pool })
            }
        }
    }

    /// What the pool's bytes mean, if that was said.
    pub fn content(&self) -> Option<&Arc<CubeLayout>> {
        self.0.content()
    }

    /// Has `tell` called whenever a lease of this pool was dropped rather than given back with
    /// `release`: this is how pages come back that nobody waits for. The pages are free by then.
    ///
    /// It is called on the thread that drops, so it must be quick and must not block; a panic in it
    /// is caught and logged. If it keeps a handle of the pool, the pool is never freed.
    ///
    /// # Errors
    ///
    /// [`PoolError::CallbackAlreadySet`]; the first one stays.
    pub fn with_release_callback(
        self,
        tell: impl Fn(ReleasedPages) + Send + Sync + 'static,
    ) -> Result<Pool, PoolError> {
        match self.0.on_release.set(Box::new(tell)) {
            Ok(()) => Ok(self),
            Err(_) => Err(PoolError::CallbackAlreadySet {
                pool: self.0.layout.name.clone(),
            }),
        }
    }

    /// The pool's shape.
    pub fn layout(&self) -> &Arc<PoolLayout> {
        self.0.layout()
    }

    /// Leases pages for reading; others may read them too. An index may be given twice.
    ///
    /// # Errors
    ///
    /// [`LeaseError`]: which index at which position is held by whom. Nothing is taken then.
    pub fn lease_read(&self, pages: &[u32]) -> Result<ReadLease, LeaseError> {
        self.lease(pages, Mode::Read).map(ReadLease::new)
    }

    /// Leases pages for writing, and nobody else has any of them.
    ///
    /// # Errors
    ///
    /// [`LeaseError`]: which index at which position is held by whom. Nothing is taken then.
    pub fn lease_write(&self, pages: &[u32]) -> Result<WriteLease, LeaseError> {
        self.lease(pages, Mode::Write).map(WriteLease::new)
    }

    fn lease(&self, pages: &[u32], mode: Mode) -> Result<Held, LeaseError> {
        if !self.0.is_mapped() {
            return Err(LeaseError::Forked {
                pool: self.0.layout.name.clone(),
            });
        }
        let acquire = || match mode {
            Mode::Read => self.0.holders.acquire_read(pages),
            Mode::Write => self.0.holders.acquire_write(pages),
        };
        if let Err(refused) = acquire() {
            let quarantined = matches!(
                refused,
                LeaseError::Held {
                    holder: Holder::FormerLife,
                    ..
                }
            );
            if !quarantined || self.look_again() == 0 {
                return Err(refused);
            }
            acquire()?;
        }
        let held = Held::new(self.clone(), pages.into(), mode);
        // Asked after the pages were counted as held: `retire` then sees them, or this sees it.
        if self.is_retired() {
            held.keep_quiet();
            return Err(LeaseError::Retired {
                pool: self.0.layout.name.clone(),
            });
        }
        Ok(held)
    }

    /// Gives no new leases from now on. Those that exist go on until they come back.
    pub fn retire(&self) {
        self.0.retired.store(true, Ordering::SeqCst);
    }

    /// Whether [`Pool::retire`] was called.
    pub fn is_retired(&self) -> bool {
        self.0.retired.load(Ordering::SeqCst)
    }

    /// Pages that are leased now; a page that n leases read counts n times. A lease that is still
    /// reachable from a gate or a job counts, even if its handle is gone.
    pub fn leased_pages(&self) -> usize {
        usize::try_from(self.0.holders.held()).unwrap_or(usize::MAX)
    }

    /// Copies the bytes of a cell as they are at this moment, whoever holds the page; for oracles
    /// and debuggers. As many bytes as both have; returns how many.
    ///
    /// If somebody writes the cell meanwhile, old and new bytes may be mixed; words of 8 bytes that
    /// are aligned are read whole. Each is read once, with volatile loads, and the copy itself is never looked at here.
    ///
    /// # Errors
    ///
    /// [`PoolError::NoSuchCell`]; [`PoolError::Forked`] of a shared pool in a child of fork.
    pub fn observe(&self, layer: u32, page: u32, into: &mut [u8]) -> Result<usize, PoolError> {
        if !self.0.is_mapped() {
            let pool = self.0.layout.name.clone();
            return Err(PoolError::Forked { pool });
        }
        let layout = &self.0.layout;
        let n = into
            .len()
            .min(usize::try_from(layout.page_bytes).unwrap_or(usize::MAX));
        let seen = layout
            .cell_offset(layer, page)
            .and_then(|offset| self.0.look(offset, &mut into[..n]));
        match seen {
            Some(()) => Ok(n),
            None => {
                let pool = layout.name.clone();
                Err(PoolError::NoSuchCell { pool, layer, page })
            }
        }
    }

    /// Whether other processes read and write its pages ([`Pool::of_others`]): then leases of it give
    /// no slices.
    pub fn is_of_others(&self) -> bool {
        self.0.is_foreign()
    }

    /// Whether both are handles of the same pool.
    pub fn same_pool(&self, other: &Pool) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(super) fn memory(&self) -> &Arc<PoolMemory> {
        &self.0
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

fn bad(layout: &PoolLayout, what: &'static str) -> PoolError {
    PoolError::BadLayout {
        pool: layout.name.clone(),
        what,
    }
}

/// How many bytes the layout covers: more than 0, at most `isize::MAX`.
pub(super) fn bytes_of(layout: &PoolLayout) -> Result<usize, PoolError> {
    let l = layout;
    let wrong = match () {
        () if l.name.is_empty() || l.name.len() > 64 => Some("the name must have 1 to 64 bytes"),
        () if l.layers == 0 => Some("it must have at least 1 layer"),
        () if l.pages == 0 => Some("it must have at least 1 page"),
        () if l.page_bytes == 0 => Some("a page must have at least 1 byte"),
        () if l.page_tokens == 0 => Some("a page must hold at least 1 token"),
        () => None,
    };
    if let Some(what) = wrong {
        return Err(bad(l, what));
    }
    (u64::from(l.layers) * u64::from(l.pages))
        .checked_mul(l.page_bytes)
        .and_then(|bytes| isize::try_from(bytes).ok())
        .map(isize::unsigned_abs)
        .ok_or_else(|| bad(l, "is larger than the address space"))
}
