//! A pool that outlives its runtimes: what the last one left, and what this one leaves.
//!
//! ```text
//!   attach ─▶ close every slot of every old table ─▶ page's owner: where is its slot?
//!               slot empty, or its writer dead ──────────────▶ the page is free
//!               somebody is inside, and not provably dead ───▶ quarantined with that slot
//!               no such slot ────────────────────────────────▶ quarantined until all old tables are quiet
//!   look_again ─▶ the same questions, until nothing waits; then the table's file goes
//! ```
//!
//! Why this is safe: a peer writes into the pool only inside a gate, gates are in tables, and a table
//! is recorded here before a peer hears of it. A table is *quiet* once all its slots are closed and
//! empty, or its one writer is dead: nobody writes through it ever again. Closed slots of an old table
//! are opened by nobody: its owner is dead, and this runtime only closes.
//! A table that cannot be read is quiet only when its writer is dead.

use super::companion::{Companion, TableEntry};
use super::error::SharedError;
use super::file;
use super::former;
use super::process::{Life, PidFd, ProcessId};
use super::{SharedMemory, SharedOptions};
use crate::ids::ClaimNo;
use crate::memory::gate::shut;
use crate::memory::lease_table::LeaseTable;
use crate::memory::shared_table::TableMemory;
use kvroom_kernels::layout::PoolLayout;
use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// A page that a claim of a former life may still write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quarantined {
    /// The page.
    pub page: u32,
    /// The claim that it was lent to.
    pub claim: ClaimNo,
    /// The process whose end, or whose leaving, frees it; `None` if that is not known: then all
    /// processes that had gates in this pool have to leave or end.
    pub writer: Option<u32>,
}

/// This runtime's hold on a pool in a file.
pub(crate) struct Attachment {
    companion: Companion,
    /// Where tables of this runtime say that they are recorded here; none once it is let go of, for good.
    noted: Mutex<Option<Vec<Weak<Noted>>>>,
    past: Mutex<Past>,
    /// Pages that wait.
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Past {
    tables: Vec<OldTable>,
    /// Pages with their claims, whose slots were not found.
    unfound: Vec<(u32, u64)>,
}

/// Where a table of this runtime is recorded.
#[derive(Default)]
pub(super) struct Beside(Arc<Noted>);

#[derive(Default)]
struct Noted(Mutex<Vec<(Arc<Attachment>, TableEntry)>>);

impl Beside {
    fn list(&self) -> MutexGuard<'_, Vec<(Arc<Attachment>, TableEntry)>> {
        self.0.list()
    }

    fn add(&self, to: &Arc<Attachment>, entry: TableEntry) -> Result<(), SharedError> {
        let mut noted = to.noted();
        let Some(tables) = &mut *noted else {
            to.companion.remove_table(&entry);
            return Err(to.let_go_of());
        };
        tables.retain(|n| n.strong_count() > 0);
        tables.push(Arc::downgrade(&self.0));
        // With the guard: whoever lets go of the pool finds it in both lists, or in none.
        self.list().push((Arc::clone(to), entry));
        Ok(())
    }

    fn has(&self, pool: &Arc<Attachment>) -> bool {
        self.list().iter().any(|(a, _)| Arc::ptr_eq(a, pool))
    }

    pub(super) fn take(&mut self) -> Vec<(Arc<Attachment>, TableEntry)> {
        std::mem::take(&mut *self.list())
    }
}

impl Noted {
    fn list(&self) -> MutexGuard<'_, Vec<(Arc<Attachment>, TableEntry)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes out what is recorded in this pool.
    fn of(&self, pool: &Attachment) -> Vec<(Arc<Attachment>, TableEntry)> {
        let mut list = self.list();
        let (its, others) = std::mem::take(&mut *list)
            .into_iter()
            .partition(|(a, _)| std::ptr::eq(&raw const **a, pool));
        *list = others;
        its
    }
}

/// This runtime uses a table no more: closes it, and removes it from where it is recorded if nobody is
/// inside. If somebody is, it is looked at again as tables of former lives are.
pub(super) fn leave(recorded: Vec<(Arc<Attachment>, TableEntry)>, table: &SharedMemory) {
    let mut quiet = true;
    let slots = table.len() / TableMemory::SLOT;
    // The first is the header.
    for word in (1..slots).filter_map(|slot| table.word(slot * TableMemory::SLOT)) {
        let (_, inside) = shut(word);
        quiet &= inside == 0;
    }
    for (attachment, entry) in recorded {
        if quiet {
            attachment.companion.remove_table(&entry);
        } else {
            let old = OldTable::open(&attachment.companion, entry);
            attachment.past().tables.push(old);
        }
    }
}

/// A table whose owner is gone.
struct OldTable {
    entry: TableEntry,
    /// `None` if it cannot be read.
    memory: Option<TableMemory>,
    writer: WriterLife,
    /// Pages with their claims and slots.
    pages: Vec<(u32, u64, u32)>,
}

enum WriterLife {
    Dead,
    Alive(PidFd),
    Unknown(ProcessId),
}

impl Attachment {
    /// Attaches to the pool in the file at `pool`, and settles what its former lives left. `memory` is
    /// the pool's, by its [`identity`](former::identity).
    ///
    /// # Errors
    ///
    /// [`SharedError::Attached`]; [`SharedError::Companion`], and then nothing was changed but that
    /// old gates may be closed.
    pub(crate) fn new(
        pool: &Path,
        layout: &PoolLayout,
        memory: u64,
    ) -> Result<Arc<Attachment>, SharedError> {
        former::refuse_other_names(pool, memory)?;
        let mut companion = Companion::attach(pool, layout)?;
        let mut past = Past::of(&companion);
        past.settle(&companion, |_| {});
        if companion.was_other() {
            if let Some(writers) = past.writers() {
                return Err(SharedError::Companion {
                    path: companion.path().to_owned(),
                    why: format!(
                        "the pool had another layout, and {writers} may still write into it: end those first"
                    ),
                });
            }
            companion.take_layout(layout)?;
        }
        // Another file came to the name: as long as somebody may still write the one before, this tells of that.
        if companion.is_of_none() || past.writers().is_none() {
            companion.is_about(memory);
        }
        companion.attached()?;
        let waiting = past.pages().count();
        Ok(Arc::new(Attachment {
            companion,
            noted: Mutex::new(Some(Vec::new())),
            past: Mutex::new(past),
            waiting: AtomicUsize::new(waiting),
        }))
    }

    /// The pages that nobody may have yet.
    pub(crate) fn quarantined(&self) -> Vec<Quarantined> {
        if self.waiting.load(Ordering::Acquire) == 0 || !self.companion.is_mapped() {
            return Vec::new();
        }
        let past = self.past();
        let mut pages: Vec<_> = past.pages().collect();
        pages.sort_unstable_by_key(|q| q.page);
        pages
    }

    /// How many those are. One load.
    pub(crate) fn waiting(&self) -> usize {
        if !self.companion.is_mapped() {
            return 0;
        }
        self.waiting.load(Ordering::Acquire)
    }

    /// Frees the pages of former lives that nobody can write any more; how many that were.
    pub(crate) fn look_again(&self, holders: &LeaseTable) -> usize {
        if !self.companion.is_mapped() {
            return 0;
        }
        let mut past = self.past();
        let mut freed = 0;
        past.settle(&self.companion, |page| {
            holders.end_quarantine(page);
            freed += 1;
        });
        self.waiting.fetch_sub(freed, Ordering::AcqRel);
        freed
    }

    /// Notes that pages are lent to a claim, before its gate opens.
    pub(crate) fn note_owner(&self, pages: &[u32], claim: ClaimNo) {
        if !self.companion.is_mapped() {
            return;
        }
        for owner in pages.iter().filter_map(|p| self.companion.owner(*p)) {
            // Release: with the store that opens the gate, which comes after it.
            owner.store(claim.0, Ordering::Release);
        }
    }

    /// Notes that they are not any more: the gate is closed and empty, or its writer dead.
    pub(crate) fn clear_owner(&self, pages: &[u32], claim: ClaimNo) {
        if !self.companion.is_mapped() {
            return;
        }
        for owner in pages.iter().filter_map(|p| self.companion.owner(*p)) {
            let _ = owner.compare_exchange(claim.0, 0, Ordering::AcqRel, Ordering::Relaxed);
        }
    }

    /// The first claim number that no life of this pool has used.
    pub(crate) fn first_claim(&self) -> u64 {
        self.companion.next_claim()
    }

    /// Lets this life use claim numbers below `below`.
    pub(crate) fn reserve_claims(&self, below: u64) {
        if self.companion.is_mapped() {
            self.companion.reserve_claims(below);
        }
    }

    /// Memory for a gate table that outlives this runtime, in a file beside the pool. It goes, with
    /// its file, when the result does and nobody is inside; or later.
    pub(crate) fn gate_table(
        self: &Arc<Self>,
        writer: &ProcessId,
        bytes: usize,
    ) -> Result<SharedMemory, SharedError> {
        let entry = self.record(writer, bytes)?;
        let path = self.companion.table_path(entry.number);
        let made = file::create_new(&path, bytes as u64).and_then(|file| {
            let what = path.display().to_string();
            SharedMemory::of_file(file.into(), bytes, &what, &SharedOptions::default())
        });
        match made {
            Ok(memory) => {
                memory.hold_new();
                memory.beside().add(self, entry)?;
                Ok(memory)
            }
            Err(why) => {
                self.companion.remove_table(&entry);
                Err(why)
            }
        }
    }

    /// Records a table that lies beside another pool, so that it is found from here too.
    pub(crate) fn link_table(
        self: &Arc<Self>,
        table: &SharedMemory,
        writer: &ProcessId,
    ) -> Result<(), SharedError> {
        let entry = self.record(writer, table.len())?;
        let path = self.companion.table_path(entry.number);
        match file::link(table.fd(), &path) {
            Ok(()) => table.beside().add(self, entry),
            Err(why) => {
                self.companion.remove_table(&entry);
                Err(why)
            }
        }
    }

    /// Whether pages of this pool may be lent through gates of this table: it is recorded here, or is
    /// now, without its file. In the latter case the next life sees who may be writing and not where,
    /// and waits for its death.
    ///
    /// # Errors
    ///
    /// [`SharedError::Companion`]: they may not be lent.
    pub(crate) fn knows(
        self: &Arc<Self>,
        table: &SharedMemory,
        writer: &ProcessId,
    ) -> Result<(), SharedError> {
        if !self.companion.is_mapped() {
            return Err(SharedError::Companion {
                path: self.companion.path().to_owned(),
                why:
                    "is not mapped in a child of fork: lend pages in the process that made the pool"
                        .into(),
            });
        }
        if !table.beside().has(self) {
            let entry = self.record(writer, 0)?;
            table.beside().add(self, entry)?;
        }
        Ok(())
    }

    /// Forgets all tables of this runtime, and is let go of by them. Only for a pool of which no page is
    /// lent and none ever will be again: then nobody writes into it through any of them.
    pub(crate) fn part(&self) {
        if !self.companion.is_mapped() {
            return;
        }
        // From here on no table is added.
        let noted = self.noted().take();
        for table in noted.iter().flatten().filter_map(Weak::upgrade) {
            for (_, entry) in table.of(self) {
                self.companion.remove_table(&entry);
            }
        }
    }

    fn let_go_of(&self) -> SharedError {
        SharedError::Companion {
            path: self.companion.path().to_owned(),
            why: "the pool was let go of: nothing of it is lent any more".into(),
        }
    }

    fn noted(&self) -> MutexGuard<'_, Option<Vec<Weak<Noted>>>> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn record(&self, writer: &ProcessId, bytes: usize) -> Result<TableEntry, SharedError> {
        // One at a time.
        let _past = self.past();
        if self.noted().is_none() {
            return Err(self.let_go_of());
        }
        self.companion.add_table(bytes as u64, writer)
    }

    fn past(&self) -> MutexGuard<'_, Past> {
        // Lists of what waits, whole after each step.
        self.past.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Attachment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Attachment")
            .field("companion", &self.companion.path())
            .field("waiting", &self.waiting)
            .finish_non_exhaustive()
    }
}

impl Past {
    /// Closes all tables that are recorded, and finds the pages that wait for them.
    fn of(companion: &Companion) -> Past {
        let entries = companion.tables();
        let mut past = Past {
            tables: entries
                .into_iter()
                .map(|e| OldTable::open(companion, e))
                .collect(),
            unfound: Vec::new(),
        };
        // Numbers are used once, so each has one slot at most.
        let mut slots = HashMap::new();
        for (i, table) in past.tables.iter().enumerate() {
            for (slot, number) in table.close_all() {
                slots.insert(number, (i, slot));
            }
        }
        for page in 0..companion.pages() {
            let owner = companion
                .owner(page)
                .map_or(0, |o| o.load(Ordering::Acquire));
            match slots.get(&owner) {
                _ if owner == 0 => {}
                Some((table, slot)) => past.tables[*table].pages.push((page, owner, *slot)),
                None => past.unfound.push((page, owner)),
            }
        }
        past
    }

    /// Frees what can be freed, and tells of each page.
    fn settle(&mut self, companion: &Companion, mut freed: impl FnMut(u32)) {
        let mut free = |page: u32, claim: u64| {
            if let Some(owner) = companion.owner(page) {
                let _ = owner.compare_exchange(claim, 0, Ordering::AcqRel, Ordering::Relaxed);
            }
            freed(page);
        };
        self.tables.retain_mut(|table| {
            let quiet = table.is_quiet();
            let (over, rest) = std::mem::take(&mut table.pages)
                .into_iter()
                .partition(|(_, claim, slot)| quiet || table.is_empty(*slot, *claim));
            table.pages = rest;
            for (page, claim, _) in over {
                free(page, claim);
            }
            if quiet {
                companion.remove_table(&table.entry);
            }
            !quiet
        });
        if self.tables.is_empty() {
            for (page, claim) in self.unfound.drain(..) {
                free(page, claim);
            }
        }
    }

    fn pages(&self) -> impl Iterator<Item = Quarantined> {
        let of_tables = self.tables.iter().flat_map(|table| {
            table.pages.iter().map(|(page, claim, _)| Quarantined {
                page: *page,
                claim: ClaimNo(*claim),
                writer: Some(table.entry.writer.pid),
            })
        });
        let unfound = self.unfound.iter().map(|(page, claim)| Quarantined {
            page: *page,
            claim: ClaimNo(*claim),
            writer: None,
        });
        of_tables.chain(unfound)
    }

    /// Who may still write, in words.
    fn writers(&self) -> Option<String> {
        let pids: Vec<_> = self
            .tables
            .iter()
            .map(|t| t.entry.writer.pid.to_string())
            .collect();
        (!pids.is_empty()).then(|| format!("process {}", pids.join(", ")))
    }
}

impl OldTable {
    fn open(companion: &Companion, entry: TableEntry) -> OldTable {
        let path = companion.table_path(entry.number);
        if entry.bytes == 0 {
            // It was never here: see `Attachment::knows`.
            return OldTable::unread(entry);
        }
        let opened = file::open(&path, false)
            .and_then(|file| SharedMemory::receive_file(file.into(), entry.bytes as usize));
        let memory = match opened {
            Ok(memory) => TableMemory::open(memory)
                .inspect_err(
                    |why| tracing::warn!(path = %path.display(), %why, "an old gate table"),
                )
                .ok(),
            Err(why) => {
                tracing::warn!(%why, "an old gate table cannot be read");
                None
            }
        };
        OldTable {
            memory,
            ..OldTable::unread(entry)
        }
    }

    fn unread(entry: TableEntry) -> OldTable {
        let writer = match entry.writer.look() {
            Life::Dead => WriterLife::Dead,
            Life::Alive(fd) => WriterLife::Alive(fd),
            Life::Unknown => WriterLife::Unknown(entry.writer),
        };
        OldTable {
            entry,
            memory: None,
            writer,
            pages: Vec::new(),
        }
    }

    /// Closes all slots for good; those that were ever used, with the last number of each.
    fn close_all(&self) -> Vec<(u32, u64)> {
        let Some(table) = &self.memory else {
            return Vec::new();
        };
        let slots = (0..table.slots()).filter_map(|slot| Some((slot, table.shut(slot)?.0)));
        slots.filter(|(_, number)| *number != 0).collect()
    }

    /// Whether nobody writes through it ever again.
    fn is_quiet(&mut self) -> bool {
        if self.is_dead() {
            return true;
        }
        let Some(table) = &self.memory else {
            return false;
        };
        (0..table.slots()).all(|slot| table.shut(slot).is_some_and(|(_, inside)| inside == 0))
    }

    /// Whether claim `number` has nobody inside. Its slot is closed.
    fn is_empty(&self, slot: u32, number: u64) -> bool {
        let found = self.memory.as_ref().and_then(|table| table.shut(slot));
        found == Some((number, 0))
    }

    fn is_dead(&mut self) -> bool {
        let dead = match &self.writer {
            WriterLife::Dead => true,
            WriterLife::Alive(fd) => fd.is_dead(),
            WriterLife::Unknown(id) => matches!(id.look(), Life::Dead),
        };
        if dead {
            self.writer = WriterLife::Dead;
        }
        dead
    }
}
