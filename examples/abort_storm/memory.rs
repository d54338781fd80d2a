//! The pages of a storm: who may take which, what is written into them when they change hands.
//!
//! Each side's pages are in one process, and this is where they are looked after; the other
//! process, if there are two, has something behind the same trait that asks.

use crate::engine::RoomNo;
use crate::oracle::{self, Findings, Oracle, PageStore, Shape};
use crate::stamp::{Stamp, Stamps};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The receiving side's pages, wherever they are.
pub(crate) trait Destination: Send + Sync {
    /// Takes free pages for a room and has the oracle poison them. `None`: not so many are free.
    fn take(&self, room: RoomNo, count: u32) -> Option<Vec<u32>>;
    /// A room's pages came back.
    fn back(&self, room: RoomNo, pages: &[u32], done: bool);
    /// The oracle is told which source pages have the room's pages from `first` on.
    fn placed(&self, room: RoomNo, first: u32, pages: &[u32]);
    /// The oracle is told that the room's sender was aborted.
    fn voided(&self, room: RoomNo);
    /// Has the oracle look at `count` pages from `first` on.
    fn scan(&self, first: u32, count: u32);
    /// What the oracle has found.
    fn findings(&self) -> Findings;
    /// How many pages of which rooms have not come back.
    fn out(&self) -> BTreeMap<RoomNo, u64>;
}

/// The sending side's pages, wherever they are.
pub(crate) trait Source: Send + Sync {
    /// Takes free pages for those of the room from `first` on, and writes what prefill computed
    /// into them. `None`: not so many are free.
    fn take(&self, room: RoomNo, first: u32, count: u32) -> Option<Vec<u32>>;
    /// Pages came back: they are spoiled at once.
    fn back(&self, pages: &[u32]);
    /// How many pages of which rooms have not come back.
    fn out(&self) -> BTreeMap<RoomNo, u64>;
}

/// The receiving side's pages in this process, with their oracle.
pub(crate) struct DestinationPages {
    oracle: Oracle,
    store: Arc<dyn PageStore>,
    free: Mutex<Vec<u32>>,
}

impl DestinationPages {
    /// All free.
    pub(crate) fn new(shape: Shape, stamps: Arc<Stamps>, store: Arc<dyn PageStore>) -> Self {
        DestinationPages {
            oracle: Oracle::new(shape, stamps, &*store),
            store,
            free: Mutex::new((0..shape.destination_pages).rev().collect()),
        }
    }
}

impl Destination for DestinationPages {
    fn take(&self, room: RoomNo, count: u32) -> Option<Vec<u32>> {
        let pages = take(&mut lock(&self.free), count)?;
        self.oracle.destination_taken(room, &pages, &*self.store);
        Some(pages)
    }

    fn back(&self, room: RoomNo, pages: &[u32], done: bool) {
        self.oracle
            .destination_back(room, pages, done, &*self.store);
        put_back(&self.free, pages, &*self.store);
    }

    fn placed(&self, room: RoomNo, first: u32, pages: &[u32]) {
        self.oracle.placed(room, first, pages);
    }

    fn voided(&self, room: RoomNo) {
        self.oracle.voided(room);
    }

    fn scan(&self, first: u32, count: u32) {
        self.oracle.scan(first, count, &*self.store);
    }

    fn findings(&self) -> Findings {
        self.oracle.findings()
    }

    fn out(&self) -> BTreeMap<RoomNo, u64> {
        self.oracle.out()
    }
}

struct SourceBook {
    owners: Vec<Option<RoomNo>>,
    spoils: u32,
    buffer: Vec<u8>,
}

/// The sending side's pages in this process.
pub(crate) struct SourcePages {
    shape: Shape,
    stamps: Arc<Stamps>,
    store: Arc<dyn PageStore>,
    free: Mutex<Vec<u32>>,
    book: Mutex<SourceBook>,
}

impl SourcePages {
    /// All free, and spoiled.
    pub(crate) fn new(shape: Shape, stamps: Arc<Stamps>, store: Arc<dyn PageStore>) -> Self {
        let pages = SourcePages {
            shape,
            stamps,
            store,
            free: Mutex::new((0..shape.source_pages).rev().collect()),
            book: Mutex::new(SourceBook {
                owners: vec![None; shape.source_pages as usize],
                spoils: 0,
                buffer: vec![0; shape.page_bytes],
            }),
        };
        for page in 0..shape.source_pages {
            pages.spoil(page);
        }
        pages
    }

    /// Writes what prefill computed for the pages of `room` from `first` on.
    pub(crate) fn lend(&self, room: RoomNo, first: u32, pages: &[u32]) {
        for (index, &page) in (first..).zip(pages) {
            self.write(page, Some(room), self.stamps.source(room, index));
        }
    }

    fn spoil(&self, page: u32) {
        let count = {
            let mut book = lock(&self.book);
            book.spoils = book.spoils.wrapping_add(1);
            book.spoils
        };
        self.write(page, None, self.stamps.spoiled(page, count));
    }

    fn write(&self, page: u32, owner: Option<RoomNo>, stamp: Stamp) {
        let mut book = lock(&self.book);
        if let Some(record) = book.owners.get_mut(page as usize) {
            *record = owner;
        }
        oracle::write(self.shape, &*self.store, page, stamp, &mut book.buffer);
    }
}

impl Source for SourcePages {
    fn take(&self, room: RoomNo, first: u32, count: u32) -> Option<Vec<u32>> {
        let pages = take(&mut lock(&self.free), count)?;
        self.lend(room, first, &pages);
        Some(pages)
    }

    fn back(&self, pages: &[u32]) {
        for &page in pages {
            self.spoil(page);
        }
        put_back(&self.free, pages, &*self.store);
    }

    fn out(&self) -> BTreeMap<RoomNo, u64> {
        let mut out = BTreeMap::new();
        for room in lock(&self.book).owners.iter().copied().flatten() {
            *out.entry(room).or_default() += 1;
        }
        out
    }
}

fn take(free: &mut Vec<u32>, count: u32) -> Option<Vec<u32>> {
    let rest = free.len().checked_sub(count as usize)?;
    Some(free.split_off(rest))
}

/// A page that the engine said is back and still has in its table is not used again; at the end it
/// is what the engine lends out and nobody has.
fn put_back(free: &Mutex<Vec<u32>>, pages: &[u32], store: &dyn PageStore) {
    let back: Vec<u32> = pages
        .iter()
        .copied()
        .filter(|&page| store.is_free(page))
        .collect();
    lock(free).extend(back);
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
