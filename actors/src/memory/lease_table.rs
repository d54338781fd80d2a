//! Who holds which page of a pool: one atomic word per page.
//!
//! ```text
//!   0 free      1 .. u32::MAX-2 readers      u32::MAX-1 quarantined      u32::MAX a writer
//! ```
//!
//! Rules:
//! - Acquiring is all or nothing: at the first page that is refused, those taken before are given
//!   back. Meanwhile somebody else may be refused one of them: refused means try again or choose
//!   other pages, nobody waits here and so nobody deadlocks.
//! - Acquiring a page acquires, giving it back releases: the last owner's accesses happen before the
//!   next one's.
//! - Giving back what is not held changes nothing (and is a bug, which debug builds report): a page
//!   is never freed under somebody else.

use super::sync::{AtomicU32, AtomicU64, Ordering};
use std::fmt;

const FREE: u32 = 0;
const WRITER: u32 = u32::MAX;
const QUARANTINED: u32 = u32::MAX - 1;

/// Who holds a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Holder {
    /// That many read leases.
    Readers(u32),
    /// A write lease.
    Writer,
    /// A claim of a former life of the pool, whose writer may still be inside its gate.
    FormerLife,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Holder::Readers(1) => f.write_str("a read lease"),
            Holder::Readers(n) => write!(f, "{n} read leases"),
            Holder::Writer => f.write_str("a write lease"),
            Holder::FormerLife => f.write_str(
                "a writer that may still be in it, quarantined from a previous life of the pool",
            ),
        }
    }
}

/// Why pages were not leased. Nothing was taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LeaseError {
    /// The page is held in a way that excludes this lease.
    #[error(
        "page {page} (position {position} of the list) is held by {holder}; wait for it to come back or choose another page"
    )]
    Held {
        /// The page's index in the pool.
        page: u32,
        /// Where in the caller's list.
        position: usize,
        /// Who holds it.
        holder: Holder,
    },
    /// A write lease names the page twice.
    #[error("page {page} is named twice in one write lease, at positions {first} and {position}")]
    Twice {
        /// The page's index in the pool.
        page: u32,
        /// The second place in the caller's list.
        position: usize,
        /// The first place.
        first: usize,
    },
    /// The pool has no such page.
    #[error(
        "page {page} (position {position} of the list) does not exist: the pool has pages 0 to {last}",
        last = .pages.saturating_sub(1)
    )]
    OutOfRange {
        /// The index given.
        page: u32,
        /// Where in the caller's list.
        position: usize,
        /// Pages of the pool.
        pages: u32,
    },
    /// This process is a child of fork of the one that has the pool.
    #[error(
        "pool \"{pool}\" cannot be used here: shared memory is not mapped in a child of fork; start the child before the pool is made, or by exec"
    )]
    Forked {
        /// The pool's name.
        pool: String,
    },
    /// The pool gives no new leases.
    #[error("pool \"{pool}\" was retired and gives no new leases")]
    Retired {
        /// The pool's name.
        pool: String,
    },
}

/// The holders of all pages of one pool.
pub(crate) struct LeaseTable {
    pages: Box<[AtomicU32]>,
    held: AtomicU64,
}

impl LeaseTable {
    /// All of `pages` are free.
    pub(crate) fn new(pages: u32) -> Self {
        LeaseTable {
            pages: (0..pages).map(|_| AtomicU32::new(FREE)).collect(),
            held: AtomicU64::new(0),
        }
    }

    /// Pages held now; a page that n leases read counts n times. A lease being taken counts already.
    pub(crate) fn held(&self) -> u64 {
        self.held.load(Ordering::SeqCst)
    }

    /// Takes one reader's share of every page, or of none. A page may be named more than once.
    pub(crate) fn acquire_read(&self, pages: &[u32]) -> Result<(), LeaseError> {
        let readable = |n: u32| {
            if n < QUARANTINED - 1 {
                Some(n + 1)
            } else {
                None
            }
        };
        self.acquire(pages, readable, |taken| self.put_back_readers(taken))
    }

    /// Takes every page for writing, or none.
    pub(crate) fn acquire_write(&self, pages: &[u32]) -> Result<(), LeaseError> {
        let free = |n: u32| if n == FREE { Some(WRITER) } else { None };
        let refused = match self.acquire(pages, free, |taken| self.put_back(taken, WRITER, FREE)) {
            Ok(()) => return Ok(()),
            Err(refused) => refused,
        };
        if let LeaseError::Held { page, position, .. } = refused
            && let Some(first) = pages.iter().take(position).position(|p| *p == page)
        {
            return Err(LeaseError::Twice {
                page,
                position,
                first,
            });
        }
        Err(refused)
    }

    /// Gives back what `acquire_read` took.
    pub(crate) fn release_read(&self, pages: &[u32]) {
        self.put_back_readers(pages);
        self.uncount(pages);
    }

    /// Gives back what `acquire_write` took.
    pub(crate) fn release_write(&self, pages: &[u32]) {
        self.put_back(pages, WRITER, FREE);
        self.uncount(pages);
    }

    /// Keeps a free page from everybody until `end_quarantine`; such a page does not count as held.
    pub(crate) fn quarantine(&self, page: u32) {
        if let Some(word) = self.pages.get(page as usize) {
            // Relaxed: nothing was done with the page; who frees it releases.
            let was =
                word.compare_exchange(FREE, QUARANTINED, Ordering::Relaxed, Ordering::Relaxed);
            debug_assert!(was.is_ok(), "page {page} was not free");
        }
    }

    /// Frees a page that `quarantine` kept.
    pub(crate) fn end_quarantine(&self, page: u32) {
        self.put_back(&[page], QUARANTINED, FREE);
    }

    /// Turns a write lease of `pages` into a read lease.
    pub(crate) fn downgrade(&self, pages: &[u32]) {
        self.put_back(pages, WRITER, 1);
    }

    /// Turns a read lease of `pages` into a write lease, if it is the only reader of each; else
    /// says which page has others, and changes nothing.
    pub(crate) fn upgrade(&self, pages: &[u32]) -> Result<(), LeaseError> {
        let mine_alone = |n: u32| if n == 1 { Some(WRITER) } else { None };
        self.step(pages, mine_alone, |taken| self.put_back(taken, WRITER, 1))
    }

    fn acquire(
        &self,
        pages: &[u32],
        next: impl Fn(u32) -> Option<u32>,
        undo: impl Fn(&[u32]),
    ) -> Result<(), LeaseError> {
        // Counted first, so that the count never runs behind. SeqCst, with `held` and the pool's
        // `retired` flag: either the lease sees the flag, or who set it sees the lease counted.
        self.held.fetch_add(pages.len() as u64, Ordering::SeqCst);
        self.step(pages, next, undo)
            .inspect_err(|_| self.uncount(pages))
    }

    fn uncount(&self, pages: &[u32]) {
        self.held.fetch_sub(pages.len() as u64, Ordering::SeqCst);
    }

    fn step(
        &self,
        pages: &[u32],
        next: impl Fn(u32) -> Option<u32>,
        undo: impl Fn(&[u32]),
    ) -> Result<(), LeaseError> {
        for (position, &page) in pages.iter().enumerate() {
            let refused = match self.pages.get(page as usize) {
                None => {
                    let pages = self.pages.len() as u32;
                    LeaseError::OutOfRange {
                        page,
                        position,
                        pages,
                    }
                }
                // Acquire: the last holder's accesses happen before ours.
                Some(word) => {
                    match word.fetch_update(Ordering::Acquire, Ordering::Relaxed, &next) {
                        Ok(_) => continue,
                        Err(n) => {
                            let holder = match n {
                                WRITER => Holder::Writer,
                                QUARANTINED => Holder::FormerLife,
                                n => Holder::Readers(n),
                            };
                            LeaseError::Held {
                                page,
                                position,
                                holder,
                            }
                        }
                    }
                }
            };
            undo(&pages[..position]);
            return Err(refused);
        }
        Ok(())
    }

    /// What only billions of leases could make of a page, or a caller at fault.
    #[cfg(test)]
    pub(crate) fn forge(&self, page: u32, word: u32) {
        self.pages[page as usize].store(word, Ordering::Relaxed);
    }

    fn put_back(&self, pages: &[u32], from: u32, to: u32) {
        for &page in pages {
            let Some(word) = self.pages.get(page as usize) else {
                continue;
            };
            // Release: our accesses happen before the next holder's.
            let was = word.compare_exchange(from, to, Ordering::Release, Ordering::Relaxed);
            debug_assert!(was.is_ok(), "page {page} was given back and not held");
        }
    }

    fn put_back_readers(&self, pages: &[u32]) {
        for &page in pages {
            let Some(word) = self.pages.get(page as usize) else {
                continue;
            };
            let one_less = |n| {
                if n == FREE || n >= QUARANTINED {
                    None
                } else {
                    Some(n - 1)
                }
            };
            // Release, as above; all changes are read-modify-writes, so the next writer acquires
            // from every reader before it.
            let was = word.fetch_update(Ordering::Release, Ordering::Relaxed, one_less);
            debug_assert!(was.is_ok(), "page {page} was given back and not read");
        }
    }
}
