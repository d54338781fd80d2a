//! The file beside a pool's file, `PATH.kvroom`, which outlives the runtime that wrote it.
//!
//! ```text
//!   words   0 magic  1 version  2..6 fingerprint of the layout  6 pages
//!           7 generation  8 next claim  9 next table  10..15 the attached runtime  15 the memory
//!   16 ..   gate tables: { used, number, bytes, the writer's process }, 8 words each
//!   OWNERS  one word for each page: the claim that has it lent for writing, or 0
//! ```
//!
//! Rules:
//! - One runtime at a time has it. Who attaches holds the lock `ATTACHING` meanwhile, and then, for
//!   all of its life, the lock of its generation, which is a byte far behind the end. The kernel drops
//!   it with the process, in whatever namespace that ran. A child of fork may have inherited it: then
//!   the process named in the header decides.
//! - Each word is written whole. What is made of several words counts once its last word is written
//!   (magic, `used`), and what is taken back is taken back in the other order: a process may be
//!   killed between any two of them.
//! - A number is written here before anybody is told of it (claim numbers, owners, tables).
//! - After another boot nobody of the earlier one is alive, and all of it is void but the numbers.

use super::error::SharedError;
use super::process::{Life, ProcessId};
use super::{SharedMemory, SharedOptions, file, sys};
use crate::ids::ClaimNo;
use kvroom_kernels::layout::PoolLayout;
use sha2::{Digest, Sha256};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const MAGIC: u64 = u64::from_le_bytes(*b"kvroomPF");
const VERSION: u64 = 1;
/// Gate tables that one pool may have at once, those of former lives among them.
pub(super) const MAX_TABLES: usize = 128;
const TABLES: usize = 16;
const TABLE_WORDS: usize = 8;
/// Where the owners begin, in bytes.
const OWNERS: usize = 12_288;
const PAGE: usize = 4096;
const _: () = assert!((TABLES + MAX_TABLES * TABLE_WORDS) * 8 <= OWNERS);

/// Bytes that are locked, which are none of the file's.
const ATTACHING: u64 = 1 << 61;
const GENERATIONS: u64 = 1 << 60;
/// More than any count of lives, claims or tables comes to.
const MANY: u64 = 1 << 59;

#[derive(Clone, Copy)]
enum Word {
    Magic = 0,
    Version = 1,
    Fingerprint = 2,
    Pages = 6,
    Generation = 7,
    NextClaim = 8,
    NextTable = 9,
    Attached = 10,
    Memory = 15,
}

/// A gate table that is recorded, by its place in the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TableEntry {
    pub(super) place: usize,
    pub(super) number: u64,
    pub(super) bytes: u64,
    pub(super) writer: ProcessId,
}

/// The companion file, with this runtime attached.
pub(super) struct Companion {
    pool: PathBuf,
    path: PathBuf,
    memory: SharedMemory,
    pages: u32,
    /// The generation that this runtime is.
    life: u64,
    /// It tells of another layout.
    was_other: bool,
}

impl Companion {
    /// Attaches this runtime to the pool in file `pool`.
    ///
    /// # Errors
    ///
    /// [`SharedError::Attached`] if another one is.
    pub(super) fn attach(pool: &Path, layout: &PoolLayout) -> Result<Companion, SharedError> {
        let pool = &wherever(pool)?;
        let path = beside(pool, "");
        let what = path.display().to_string();
        let file = file::open(&path, true)?;
        let fail = |call| {
            let what = what.clone();
            move |e| SharedError::of(&what, 0, call, e)
        };
        let owner = file.metadata().map_err(fail("fstat"))?.uid();
        // Who could plant one could name processes and numbers that are not.
        if owner != sys::user() && owner != 0 {
            return Err(wrong(&path, format!("belongs to user {owner}: remove it")));
        }
        if !sys::lock_byte(file_fd(&file), ATTACHING, true).map_err(fail("lock"))? {
            return Err(SharedError::Attached {
                path: pool.to_owned(),
                pid: 0,
            });
        }
        let found = file::length(&file, &what)?;
        if found == 0 {
            file::allocate(&file, &what, bytes_of(layout.pages) as u64)?;
        } else if found < OWNERS as u64 {
            return Err(wrong(&path, "is no companion of a pool: remove it".into()));
        }
        let found = file::length(&file, &what)? as usize;
        file::allocate(&file, &what, found as u64)?;
        let memory = SharedMemory::of_file(file.into(), found, &what, &SharedOptions::default())?;
        let mut companion = Companion {
            pool: pool.to_owned(),
            path,
            memory,
            pages: layout.pages,
            life: 0,
            was_other: false,
        };
        companion.check(layout)?;
        companion.begin_life()?;
        Ok(companion)
    }

    /// Whether what it tells is of another layout than this pool has now.
    pub(super) fn was_other(&self) -> bool {
        self.was_other
    }

    /// Lets others attach from now on; they find this runtime.
    pub(super) fn attached(&self) -> Result<(), SharedError> {
        // It is nobody's pool itself.
        self.memory.hold(&self.path)?;
        self.lock(ATTACHING, false).map(drop)
    }

    /// Takes the layout's size and name, when nothing of the other one's pages is lent any more.
    pub(super) fn take_layout(&mut self, layout: &PoolLayout) -> Result<(), SharedError> {
        let what = self.path.display().to_string();
        // A killed process leaves a file without magic, of which only the numbers count.
        self.word(Word::Magic).store(0, Ordering::Release);
        for page in 0..self.pages {
            if let Some(owner) = self.owner(page) {
                owner.store(0, Ordering::Relaxed);
            }
        }
        let bytes = bytes_of(layout.pages);
        let fd = self
            .memory
            .fd()
            .try_clone_to_owned()
            .map_err(|e| SharedError::of(&what, 0, "dup", e))?;
        let file = std::fs::File::from(fd);
        if bytes > self.memory.len() {
            file::allocate(&file, &what, bytes as u64)?;
        }
        let bytes = bytes.max(self.memory.len());
        self.memory = SharedMemory::of_file(file.into(), bytes, &what, &SharedOptions::default())?;
        self.pages = layout.pages;
        self.was_other = false;
        self.name(layout);
        Ok(())
    }

    /// Notes which memory it is about, whatever name that has later; `memory` from
    /// [`identity`](super::former::identity).
    pub(super) fn is_about(&self, memory: u64) {
        self.word(Word::Memory).store(memory, Ordering::Release);
    }

    /// Whether no memory was noted yet.
    pub(super) fn is_of_none(&self) -> bool {
        self.word(Word::Memory).load(Ordering::Acquire) == 0
    }

    /// Whether the header `words` of another companion is about this memory, and who, of those that it
    /// names as writers, is not proven dead: its number, or 0.
    pub(super) fn writer_of(words: &[u64], memory: u64) -> Option<u32> {
        let word = |at: usize| words.get(at).copied().unwrap_or(0);
        if word(Word::Magic as usize) != MAGIC
            || word(Word::Version as usize) != VERSION
            || word(Word::Memory as usize) != memory
        {
            return None;
        }
        let tables = (0..MAX_TABLES).map(|place| TABLES + place * TABLE_WORDS);
        let used = tables.filter(|at| word(*at) != 0);
        let mut writers =
            used.map(|at| ProcessId::from_words(std::array::from_fn(|i| word(at + 3 + i))));
        let alive = writers.find(|writer| !matches!(writer.look(), Life::Dead))?;
        Some(if alive.is_of_this_boot() {
            alive.pid
        } else {
            0
        })
    }

    /// Bytes of a header.
    pub(super) const HEADER: usize = OWNERS;

    /// Whether it is there: not in a child of fork.
    pub(super) fn is_mapped(&self) -> bool {
        self.memory.is_mapped()
    }

    pub(super) fn pages(&self) -> u32 {
        self.pages
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Which claim a page is lent to.
    pub(super) fn owner(&self, page: u32) -> Option<&AtomicU64> {
        if page >= self.pages {
            return None;
        }
        self.memory.word(OWNERS + page as usize * 8)
    }

    /// The first claim number that no life of this pool has used.
    pub(super) fn next_claim(&self) -> u64 {
        self.word(Word::NextClaim).load(Ordering::Acquire).max(1)
    }

    /// Numbers below `below` may be used by this life.
    pub(super) fn reserve_claims(&self, below: u64) {
        self.word(Word::NextClaim)
            .fetch_max(below, Ordering::AcqRel);
    }

    /// All tables that are recorded.
    pub(super) fn tables(&self) -> Vec<TableEntry> {
        (0..MAX_TABLES)
            .filter_map(|place| self.table(place))
            .collect()
    }

    /// Records a table that is about to be made. Only one thread does this at a time.
    pub(super) fn add_table(
        &self,
        bytes: u64,
        writer: &ProcessId,
    ) -> Result<TableEntry, SharedError> {
        let Some(place) =
            (0..MAX_TABLES).find(|place| self.table_word(*place, 0).load(Ordering::Acquire) == 0)
        else {
            return Err(wrong(
                &self.path,
                format!(
                    "{MAX_TABLES} peers have gate tables beside this pool already; end some of them"
                ),
            ));
        };
        let number = self.word(Word::NextTable).fetch_add(1, Ordering::AcqRel) + 1;
        self.table_word(place, 1).store(number, Ordering::Relaxed);
        self.table_word(place, 2).store(bytes, Ordering::Relaxed);
        for (i, word) in writer.to_words().into_iter().enumerate() {
            self.table_word(place, 3 + i).store(word, Ordering::Relaxed);
        }
        self.table_word(place, 0).store(1, Ordering::Release);
        Ok(TableEntry {
            place,
            number,
            bytes,
            writer: *writer,
        })
    }

    /// Forgets a table whose gates are closed and empty for good, and removes its file.
    pub(super) fn remove_table(&self, entry: &TableEntry) {
        let _ = std::fs::remove_file(self.table_path(entry.number));
        let used = self.table_word(entry.place, 0);
        if self.table_word(entry.place, 1).load(Ordering::Relaxed) == entry.number {
            used.store(0, Ordering::Release);
        }
    }

    /// Where a table is.
    pub(super) fn table_path(&self, number: u64) -> PathBuf {
        beside(&self.pool, &format!(".gates-{number}"))
    }

    fn table(&self, place: usize) -> Option<TableEntry> {
        if self.table_word(place, 0).load(Ordering::Acquire) == 0 {
            return None;
        }
        let word = |i| self.table_word(place, i).load(Ordering::Relaxed);
        Some(TableEntry {
            place,
            number: word(1),
            bytes: word(2),
            writer: ProcessId::from_words(std::array::from_fn(|i| word(3 + i))),
        })
    }

    /// Whether the file is one of this layout; makes it one if it is new.
    fn check(&mut self, layout: &PoolLayout) -> Result<(), SharedError> {
        let magic = self.word(Word::Magic).load(Ordering::Acquire);
        if magic == 0 {
            // New, or its maker was killed before anybody could use it.
            self.check_counts()?;
            return self.make(layout);
        }
        let version = self.word(Word::Version).load(Ordering::Relaxed);
        if magic != MAGIC || version != VERSION {
            let what = format!(
                "is of another version ({version}) or no companion of a pool: end what used the pool, and remove it"
            );
            return Err(wrong(&self.path, what));
        }
        self.check_counts()?;
        let pages = self.word(Word::Pages).load(Ordering::Relaxed);
        let fits = |p: &u32| bytes_of(*p) <= self.memory.len();
        let Some(pages) = u32::try_from(pages).ok().filter(fits) else {
            return Err(wrong(
                &self.path,
                "is shorter than it says: remove it".into(),
            ));
        };
        self.pages = pages;
        let is = |(i, word): (usize, u64)| {
            self.at(Word::Fingerprint as usize + i)
                .load(Ordering::Relaxed)
                == word
        };
        self.was_other = !fingerprint(layout).into_iter().enumerate().all(is);
        Ok(())
    }

    /// Whether its counts can go on from where they are.
    fn check_counts(&self) -> Result<(), SharedError> {
        for (what, word, most) in [
            ("lives", Word::Generation, MANY),
            ("claims", Word::NextClaim, ClaimNo::MAX.0),
            ("gate tables", Word::NextTable, MANY),
        ] {
            let count = self.word(word).load(Ordering::Relaxed);
            if count > most {
                let why = format!("counts {count} {what}, which cannot be: remove it");
                return Err(wrong(&self.path, why));
            }
        }
        Ok(())
    }

    fn make(&mut self, layout: &PoolLayout) -> Result<(), SharedError> {
        if bytes_of(layout.pages) > self.memory.len() {
            return self.take_layout(layout);
        }
        for page in 0..self.pages {
            if let Some(owner) = self.owner(page) {
                owner.store(0, Ordering::Relaxed);
            }
        }
        self.name(layout);
        Ok(())
    }

    fn name(&self, layout: &PoolLayout) {
        for (i, word) in fingerprint(layout).into_iter().enumerate() {
            self.at(Word::Fingerprint as usize + i)
                .store(word, Ordering::Relaxed);
        }
        self.word(Word::Pages)
            .store(u64::from(layout.pages), Ordering::Relaxed);
        self.word(Word::Version).store(VERSION, Ordering::Relaxed);
        self.word(Word::Magic).store(MAGIC, Ordering::Release);
    }

    /// Takes the lock of a new generation, if the last one is provably over.
    fn begin_life(&mut self) -> Result<(), SharedError> {
        let last = self.word(Word::Generation).load(Ordering::Relaxed);
        let before = self.attached_process();
        if last > 0 && !self.lock(GENERATIONS + last, true)? {
            // Somebody holds it: that runtime, or a child that it forked and that outlived it. Whoever
            // does is of this boot, so if the header names another one, it does not say who that is.
            let named = before.is_of_this_boot();
            if !named || !matches!(before.look(), Life::Dead) {
                return Err(SharedError::Attached {
                    path: self.pool.clone(),
                    pid: if named { before.pid } else { 0 },
                });
            }
        } else if last > 0 {
            self.lock(GENERATIONS + last, false)?;
        }
        let me = ProcessId::own().map_err(|e| {
            let why = format!(
                "a later runtime could not find out whether this process is dead ({e}): run it where /proc \
                 is this process's own, with nothing mounted over it"
            );
            wrong(&self.path, why)
        })?;
        let mine = last + 1;
        self.lock(GENERATIONS + mine, true)?;
        for (i, word) in me.to_words().into_iter().enumerate() {
            self.at(Word::Attached as usize + i)
                .store(word, Ordering::Relaxed);
        }
        self.word(Word::Generation).store(mine, Ordering::Release);
        self.life = mine;
        Ok(())
    }

    fn attached_process(&self) -> ProcessId {
        ProcessId::from_words(std::array::from_fn(|i| {
            self.at(Word::Attached as usize + i).load(Ordering::Relaxed)
        }))
    }

    fn lock(&self, at: u64, locked: bool) -> Result<bool, SharedError> {
        sys::lock_byte(self.memory.fd(), at, locked)
            .map_err(|e| SharedError::of(&self.path.display().to_string(), 0, "lock", e))
    }

    fn word(&self, word: Word) -> &AtomicU64 {
        self.at(word as usize)
    }

    fn table_word(&self, place: usize, word: usize) -> &AtomicU64 {
        self.at(TABLES + place * TABLE_WORDS + word)
    }

    fn at(&self, word: usize) -> &AtomicU64 {
        match self.memory.word(word * 8) {
            Some(word) => word,
            None => unreachable!("a companion has at least its header"),
        }
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        // Said, and not left to closing: children of fork have this open file too.
        if self.life > 0 && self.memory.is_mapped() {
            let _ = self.lock(GENERATIONS + self.life, false);
        }
    }
}

/// Bytes of a companion of so many pages.
fn bytes_of(pages: u32) -> usize {
    (OWNERS + pages as usize * 8).next_multiple_of(PAGE)
}

pub(super) fn beside(pool: &Path, what: &str) -> PathBuf {
    let mut name = pool.as_os_str().to_owned();
    name.push(".kvroom");
    name.push(what);
    name.into()
}

/// The same file, also when this process has another working directory. A link at its end stays: what
/// lies beside the pool has the name that it was opened by.
pub(super) fn wherever(pool: &Path) -> Result<PathBuf, SharedError> {
    let Some(name) = pool.file_name() else {
        return Ok(pool.to_owned());
    };
    let dir = pool.parent().filter(|dir| !dir.as_os_str().is_empty());
    let dir = dir
        .unwrap_or(Path::new("."))
        .canonicalize()
        .map_err(|e| SharedError::of(&pool.display().to_string(), 0, "realpath", e))?;
    Ok(dir.join(name))
}

fn wrong(path: &Path, why: String) -> SharedError {
    SharedError::Companion {
        path: path.to_owned(),
        why,
    }
}

fn file_fd(file: &std::fs::File) -> std::os::fd::BorrowedFd<'_> {
    std::os::fd::AsFd::as_fd(file)
}

/// What two layouts that are not equal do not share.
fn fingerprint(l: &PoolLayout) -> [u64; 4] {
    let text = format!(
        "{} {:?} {:?} {} {} {} {}",
        l.name, l.kind, l.order, l.layers, l.pages, l.page_bytes, l.page_tokens
    );
    let digest = Sha256::digest(text.as_bytes());
    std::array::from_fn(|i| {
        let mut word = [0; 8];
        word.copy_from_slice(&digest[i * 8..i * 8 + 8]);
        u64::from_le_bytes(word)
    })
}
