//! Pools that other processes of this host may map.
//!
//! ```text
//!   Pool::shared ────▶ sealed memfd ──descriptor──▶ peers map it
//!   Pool::from_file ─▶ a caller's file, and PATH.kvroom beside it ──the next runtime──▶ from_file
//! ```
//!
//! Rules:
//! - Whoever gets the descriptor may write all of the pool: give it to peers that are trusted with it.
//! - All of the memory is allocated when the pool is made; an owned pool's is when it is touched.
//! - It is not mapped in a child of fork: there leases are refused.
//! - One piece of memory is one pool: it is locked itself, so that neither a second name of its file nor a
//!   second descriptor makes another pool of it, in this process or in any.
//! - A pool in a file outlives the runtime: the next one finds which pages were lent to whom, and
//!   keeps those that may still be written from everybody.
#![allow(unsafe_code)] // An unsafe constructor: what a caller's file needs is the caller's promise.

use super::pool::{Pool, PoolError, bytes_of};
use super::shared::{
    Attachment, Backing, FileOptions, ProcessId, Quarantined, SharedError, SharedMemory,
    SharedOptions, name_of, open_pool,
};
use super::shared_table::{Lending, TableMemory};
use super::target::Target;
use crate::ids::ClaimNo;
use kvroom_kernels::layout::PoolLayout;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

/// Memory that other processes read and write.
#[derive(Debug)]
#[non_exhaustive]
pub enum OthersMemory<'a> {
    /// A file, in `/dev/shm` or anywhere where a mapping is shared.
    File {
        /// Where.
        path: &'a Path,
        /// Whether to make it, and how.
        options: &'a FileOptions,
    },
    /// A descriptor of a memfd that is sealed against shrinking.
    Sealed {
        /// The descriptor.
        memory: OwnedFd,
        /// What is known of the pool's lives is kept in `BESIDE.kvroom` and `BESIDE.kvroom.gates-N`, as it
        /// is beside a file. The same for the same memory each time.
        beside: &'a Path,
    },
}

impl Pool {
    /// A pool of zeroed memory that nodes on the same host may map, in huge pages if the system gives
    /// them. All of it is allocated now.
    ///
    /// ```
    /// # use kvroom_actors::memory::{Backing, Pool};
    /// # use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
    /// let pool = Pool::shared(PoolLayout {
    ///     name: "kv".into(), kind: PoolKind::Kv, order: Order::LayersFirst,
    ///     layers: 2, pages: 8, page_bytes: 4096, page_tokens: 16,
    /// })?;
    /// assert!(matches!(pool.backing(), Backing::Memfd { .. }));
    /// pool.lease_write(&[3])?.page_mut(0, 0).fill(7);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`]; [`PoolError::Shared`], with the size if there is not as much memory.
    pub fn shared(layout: PoolLayout) -> Result<Pool, PoolError> {
        Pool::shared_with(layout, &SharedOptions::default())
    }

    /// As [`Pool::shared`], made in a certain way.
    ///
    /// # Errors
    ///
    /// As there, and if there is no such NUMA node.
    pub fn shared_with(layout: PoolLayout, options: &SharedOptions) -> Result<Pool, PoolError> {
        let bytes = bytes_of(&layout)?;
        match SharedMemory::create(&layout.name, bytes, options) {
            Ok(memory) => {
                let huge = memory.is_huge();
                Pool::in_shared(layout, memory, Backing::Memfd { huge }, false)
            }
            Err(why) => Err(PoolError::Shared {
                pool: layout.name,
                why,
            }),
        }
    }

    /// A pool in a file that the caller has, in `/dev/shm` or anywhere where a mapping is shared. Its
    /// contents stay as they are. It has the layout's size at least, or is empty with
    /// [`FileOptions::create`], which also makes one that is not there; memory or blocks that it lacks
    /// (it is sparse) are allocated now. The file, `PATH.kvroom` and `PATH.kvroom.gates-N` are not
    /// removed when the pool goes: remove all of them when the memory is of no use any more.
    ///
    /// The pool outlives this process. Beside the file, `PATH.kvroom` and `PATH.kvroom.gates-N` tell the
    /// next runtime that attaches which pages were lent for writing, and through which gates. It closes
    /// those, and pages whose writers may still be inside are quarantined: no lease of them is given
    /// until they have left, or are proven dead (see [`Pool::quarantined`]). One runtime at a time has
    /// the pool.
    ///
    /// # Safety
    ///
    /// As long as the pool, a lease or a job of it lives, in this process or in a peer's:
    /// - nobody makes the file shorter, or punches holes into it: an access would be a SIGBUS. It cannot
    ///   be sealed against that;
    /// - nobody but the pool's leases and gates writes into its pages, and nobody reads them without a
    ///   lease (as for [`Pool::from_raw`]);
    /// - nobody changes or removes the files beside it.
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`]; [`PoolError::Shared`]: the file is too small, not a file, a symbolic link,
    /// on a filesystem that is full, or a pool of another runtime that is alive.
    pub unsafe fn from_file(
        layout: PoolLayout,
        path: &Path,
        options: &FileOptions,
    ) -> Result<Pool, PoolError> {
        Pool::attached(layout, path, false, |bytes| {
            let memory = open_pool(path, bytes, options)?;
            memory.hold(path)?;
            Ok((memory, Backing::File))
        })
    }

    /// A pool in memory that other processes read and write: engines that are not written in Rust, which
    /// map the file themselves. As [`Pool::from_file`], and safe: no slice of its pages is ever made
    /// (leases of it have none to give), so nothing here goes wrong when such a process writes a page
    /// out of turn. What is copied then is whatever the page held.
    ///
    /// What this process still owes to the others' good behaviour:
    /// - who cuts the file short ends this process by a signal (SIGBUS). Memory that is sealed against
    ///   that ([`OthersMemory::Sealed`]) cannot be cut;
    /// - who writes a page that it did not lend or lease, or changes the files beside the pool, gets
    ///   other bytes than it expects, there and in its peers.
    ///
    /// # Errors
    ///
    /// [`PoolError::BadLayout`]; [`PoolError::Shared`]: as for [`Pool::from_file`], so also if the memory
    /// is a pool already by another name or descriptor, or serves a node as something else; or it is not
    /// sealed against shrinking.
    pub fn of_others(layout: PoolLayout, memory: OthersMemory<'_>) -> Result<Pool, PoolError> {
        match memory {
            OthersMemory::File { path, options } => Pool::attached(layout, path, true, |bytes| {
                let memory = open_pool(path, bytes, options)?;
                memory.hold(path)?;
                Ok((memory, Backing::File))
            }),
            OthersMemory::Sealed { memory, beside } => {
                Pool::attached(layout, beside, true, |bytes| {
                    let name = name_of(memory.as_fd());
                    let memory = SharedMemory::receive(memory, bytes)?;
                    memory.hold(Path::new(&name))?;
                    // Whoever made it may have left it sparse: what it lacks is charged here and now.
                    memory.allocate(&name)?;
                    let huge = memory.is_huge();
                    Ok((memory, Backing::Memfd { huge }))
                })
            }
        }
    }

    fn attached(
        layout: PoolLayout,
        beside: &Path,
        foreign: bool,
        open: impl FnOnce(usize) -> Result<(SharedMemory, Backing), SharedError>,
    ) -> Result<Pool, PoolError> {
        let bytes = bytes_of(&layout)?;
        let opened = open(bytes).and_then(|memory| {
            let identity = memory.0.identity(beside)?;
            let attachment = Attachment::new(beside, &layout, identity)?;
            Ok((memory, attachment))
        });
        match opened {
            Ok(((memory, backing), attachment)) => {
                let pool = Pool::in_shared(layout, memory, backing, foreign)?;
                pool.memory().attach(attachment);
                Ok(pool)
            }
            Err(why) => Err(PoolError::Shared {
                pool: layout.name,
                why,
            }),
        }
    }

    /// Lets go of the memory and the files beside a pool that is over, so that its memory can be a pool again at once,
    /// here or in another process, while sessions that could write into it go on. True if that is done;
    /// false as long as it is not retired or pages of it are leased. Needed for pools that outlive this
    /// process only; true for others.
    pub fn let_go(&self) -> bool {
        // Retired first: then no lease begins any more, and none that is not counted exists.
        if !self.is_retired() || self.leased_pages() > 0 {
            return false;
        }
        if let Some(attachment) = self.memory().attachment() {
            attachment.part();
        }
        if let Some(memory) = self.shared_memory() {
            memory.release();
        }
        true
    }

    /// Pages that writers of a former life of the pool may still write, in rising order. Leases of them
    /// are refused until they have left or are proven dead.
    pub fn quarantined(&self) -> Vec<Quarantined> {
        self.memory()
            .attachment()
            .map_or_else(Vec::new, |a| a.quarantined())
    }

    /// How many pages [`Pool::quarantined`] lists, without making the list: one load.
    pub fn quarantined_pages(&self) -> usize {
        self.memory().attachment().map_or(0, |a| a.waiting())
    }

    /// Frees the pages of [`Pool::quarantined`] that nobody can write any more; how many those were. A
    /// refused lease does this too.
    pub fn look_again(&self) -> usize {
        let memory = self.memory();
        memory
            .attachment()
            .map_or(0, |a| a.look_again(memory.holders()))
    }

    /// What the pool's memory is.
    pub fn backing(&self) -> Backing {
        self.memory().backing()
    }

    /// Whether its memory is in this process: that of a shared pool is not in a child of fork.
    pub fn is_here(&self) -> bool {
        self.memory().is_mapped()
    }

    /// What peers on this host map, if they may.
    pub(crate) fn shared_memory(&self) -> Option<&Arc<SharedMemory>> {
        self.memory().shared()
    }

    /// What is known of the pool's lives, if it outlives this process.
    pub(crate) fn attachment(&self) -> Option<&Arc<Attachment>> {
        self.memory().attachment()
    }
}

/// Memory for the gates of a peer's process: in a file beside each of the pools that outlive this
/// process, so that the next life finds it from each; `None` if none of them does.
pub(crate) fn gate_table<'p>(
    pools: impl IntoIterator<Item = &'p Pool>,
    writer: &ProcessId,
    bytes: usize,
) -> Option<Result<SharedMemory, SharedError>> {
    let mut made: Option<SharedMemory> = None;
    for attachment in pools.into_iter().filter_map(Pool::attachment) {
        match &made {
            None => match attachment.gate_table(writer, bytes) {
                Ok(table) => made = Some(table),
                Err(why) => return Some(Err(why)),
            },
            // On another filesystem it has no second name: then it is recorded by its writer alone,
            // when a page is lent.
            Some(table) => drop(attachment.link_table(table, writer)),
        }
    }
    made.map(Ok)
}

/// Notes in pools that outlive this process which claim has which pages lent through one table.
pub(crate) struct NoteOwners {
    table: TableMemory,
    writer: ProcessId,
}

impl NoteOwners {
    /// For claims whose gates are in this table.
    pub(crate) fn new(table: TableMemory) -> Self {
        NoteOwners {
            writer: table.writer(),
            table,
        }
    }
}

impl Lending for NoteOwners {
    fn lent(&self, number: u64, target: &Target) -> Result<(), SharedError> {
        let attachments = || {
            let sections = target.sections();
            sections.filter_map(|s| Some((s, s.memory().attachment()?)))
        };
        for (_, attachment) in attachments() {
            attachment.knows(self.table.memory(), &self.writer)?;
        }
        for (section, attachment) in attachments() {
            attachment.note_owner(section.pages(), ClaimNo(number));
        }
        Ok(())
    }

    fn back(&self, number: u64, target: &Target) {
        for section in target.sections() {
            if let Some(attachment) = section.memory().attachment() {
                attachment.clear_owner(section.pages(), ClaimNo(number));
            }
        }
    }
}
