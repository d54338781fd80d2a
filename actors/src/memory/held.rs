//! A hold on pages, shared by a lease and everything that was made from it.
//!
//! ```text
//!   WriteLease ─┐                       ReadLease ─┐
//!   TargetSection ├─▶ Arc<Held> ─last─▶ pages free   ├─▶ Arc<Held> ─last─▶ pages free
//!   TargetSection ┘                     SourceView ┘
//! ```
//!
//! Rules: the pages are free only when the last of them is gone. "Am I the only one?" is therefore
//! the whole question whether a lane could still reach them; `Arc` answers it, with the ordering.

use super::pool::{Pool, PoolMemory};
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering, fence};

/// How pages are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Alone.
    Write,
}

pub(super) struct Held {
    pool: Pool,
    pages: Arc<[u32]>,
    mode: Mode,
    quiet: AtomicBool,
}

impl Held {
    /// A hold of what was just acquired from the pool's table, in that mode.
    pub(super) fn new(pool: Pool, pages: Arc<[u32]>, mode: Mode) -> Self {
        Held {
            pool,
            pages,
            mode,
            quiet: AtomicBool::new(false),
        }
    }

    pub(super) fn pool(&self) -> &Pool {
        &self.pool
    }

    pub(super) fn memory(&self) -> &PoolMemory {
        self.pool.memory()
    }

    pub(super) fn pages(&self) -> &Arc<[u32]> {
        &self.pages
    }

    pub(super) fn mode(&self) -> Mode {
        self.mode
    }

    /// The release callback is not called when this ends.
    pub(super) fn keep_quiet(&self) {
        self.quiet.store(true, Ordering::Relaxed);
    }

    /// Turns the hold into one for reading. It must be one for writing.
    pub(super) fn downgrade(&mut self) {
        if self.mode == Mode::Write {
            self.memory().holders().downgrade(&self.pages);
            self.mode = Mode::Read;
        }
    }

    /// Turns the hold into one for writing, if nobody else reads any of its pages.
    pub(super) fn upgrade(&mut self) -> bool {
        if self.mode == Mode::Read && self.memory().holders().upgrade(&self.pages).is_ok() {
            self.mode = Mode::Write;
        }
        self.mode == Mode::Write
    }

    /// Whether every byte of the range lies in a page of this hold; else the first page that does
    /// not. The range lies within the pool.
    ///
    /// `cursor` remembers where in the list the last page was found: runs follow the list, so the
    /// search is one step as a rule, and one pass over the list at worst.
    pub(super) fn covers(&self, offset: u64, bytes: u64, cursor: &Cell<usize>) -> Result<(), u32> {
        if bytes == 0 {
            return Ok(());
        }
        covers(
            &self.pages,
            self.memory().pages_of(offset..offset + bytes),
            cursor,
        )
    }
}

/// Whether each of `wanted` is in a list of pages; else the first that is not. See [`Held::covers`].
pub(super) fn covers(
    pages: &[u32],
    wanted: impl Iterator<Item = u32>,
    cursor: &Cell<usize>,
) -> Result<(), u32> {
    for page in wanted {
        let (before, from_here) = pages.split_at(cursor.get().min(pages.len()));
        let found = match from_here.iter().position(|p| *p == page) {
            Some(i) => Some(before.len() + i),
            None => before.iter().position(|p| *p == page),
        };
        cursor.set(found.ok_or(page)?);
    }
    Ok(())
}

/// Whether nothing else was made from this hold, or all of it is gone; then everything it did with
/// the pages happens before the return.
pub(super) fn is_alone(held: &Arc<Held>) -> bool {
    if Arc::strong_count(held) != 1 {
        return false;
    }
    // Dropping an Arc decrements with release; the count just read comes from the last of those.
    fence(Ordering::Acquire);
    true
}

impl Drop for Held {
    fn drop(&mut self) {
        let holders = self.memory().holders();
        match self.mode {
            Mode::Read => holders.release_read(&self.pages),
            Mode::Write => holders.release_write(&self.pages),
        }
        if !*self.quiet.get_mut() {
            self.memory().tell_released(&self.pages, self.mode);
        }
    }
}
