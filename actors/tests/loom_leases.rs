//! The lease table in every order that loom finds.
//!
//! The file under test is the library's own; only its atomics are loom's here.
#![allow(unsafe_code)] // Looks into loom's cells.

#[allow(dead_code, unreachable_pub)]
#[path = "../src/memory/lease_table.rs"]
mod lease_table;

mod sync {
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};
}

use lease_table::LeaseTable;
use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

struct Pool {
    table: LeaseTable,
    pages: [UnsafeCell<u64>; 2],
}

// SAFETY: that accesses to the pages are ordered is what the tests find out.
unsafe impl Sync for Pool {}
// SAFETY: as above.
unsafe impl Send for Pool {}

impl Pool {
    fn new() -> Arc<Pool> {
        let pages = [UnsafeCell::new(0), UnsafeCell::new(0)];
        Arc::new(Pool {
            table: LeaseTable::new(2),
            pages,
        })
    }

    fn write(&self, page: u32, value: u64) {
        // SAFETY: loom fails the test if this is not ordered with every other access.
        self.pages[page as usize].with_mut(|p| unsafe { *p = value });
    }

    fn read(&self, page: u32) -> u64 {
        // SAFETY: as above.
        self.pages[page as usize].with(|p| unsafe { *p })
    }

    fn assert_all_free(&self) {
        assert_eq!(self.table.held(), 0);
        assert!(
            self.table.acquire_write(&[0, 1]).is_ok(),
            "a lease left something behind"
        );
    }
}

#[test]
fn two_writers_of_overlapping_pages_never_both_win() {
    check(|| {
        let pool = Pool::new();
        let threads: Vec<_> = [[0, 1], [1, 0]]
            .into_iter()
            .enumerate()
            .map(|(me, pages)| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    let won = pool.table.acquire_write(&pages).is_ok();
                    if won {
                        pages.iter().for_each(|p| pool.write(*p, me as u64));
                        assert!(pages.iter().all(|p| pool.read(*p) == me as u64));
                        pool.table.release_write(&pages);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        pool.assert_all_free();
    });
}

#[test]
fn a_writer_is_ordered_behind_every_reader_and_the_other_way_round() {
    check(|| {
        let pool = Pool::new();
        let readers: Vec<_> = (0..2)
            .map(|_| {
                let pool = Arc::clone(&pool);
                thread::spawn(move || {
                    if pool.table.acquire_read(&[0]).is_ok() {
                        assert!([0, 9].contains(&pool.read(0)));
                        pool.table.release_read(&[0]);
                    }
                })
            })
            .collect();
        if pool.table.acquire_write(&[0]).is_ok() {
            pool.write(0, 9);
            pool.table.release_write(&[0]);
        }
        readers.into_iter().for_each(|t| t.join().unwrap());
        pool.assert_all_free();
    });
}

#[test]
fn a_refused_lease_leaves_nothing_behind_among_readers() {
    check(|| {
        let pool = Pool::new();
        pool.table.acquire_write(&[1]).unwrap();
        let refused = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                // Page 0 is taken, page 1 refuses (or has just been freed).
                if pool.table.acquire_read(&[0, 1]).is_ok() {
                    pool.table.release_read(&[0, 1]);
                }
            })
        };
        let reader = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                pool.table
                    .acquire_read(&[0])
                    .expect("only readers take page 0");
                pool.table.release_read(&[0]);
            })
        };
        pool.table.release_write(&[1]);
        refused.join().unwrap();
        reader.join().unwrap();
        pool.assert_all_free();
    });
}

#[test]
fn a_lease_changes_its_mode_only_when_nobody_else_reads() {
    check(|| {
        let pool = Pool::new();
        pool.table.acquire_write(&[0]).unwrap();
        pool.write(0, 1);
        let reader = {
            let pool = Arc::clone(&pool);
            thread::spawn(move || {
                if pool.table.acquire_read(&[0]).is_ok() {
                    assert!([1, 2].contains(&pool.read(0)));
                    pool.table.release_read(&[0]);
                }
            })
        };
        pool.table.downgrade(&[0]);
        assert_eq!(pool.read(0), 1);
        if pool.table.upgrade(&[0]).is_ok() {
            pool.write(0, 2);
            pool.table.release_write(&[0]);
        } else {
            pool.table.release_read(&[0]);
        }
        reader.join().unwrap();
        pool.assert_all_free();
    });
}
