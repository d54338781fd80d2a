//! The queue that a shard writes its entries into, in every order that loom finds.
//!
//! The file under test is the library's own; its atomics are loom's here. An entry is two equal words: one
//! that is made of two entries is noticed. That such are found is shown with files whose cursors are not
//! released or not acquired.
#![allow(clippy::unwrap_used)] // Tests and their helpers.
#![allow(clippy::duplicate_mod)] // The file as it is, and broken.

/// As it is.
#[path = "."]
mod whole {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/record/tail.rs"]
    pub(crate) mod tail;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU64, Ordering};
    }
}

/// The same file, whose cursors are not released.
#[path = "."]
mod without_release {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/record/tail.rs"]
    pub(crate) mod tail;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::AtomicU64;

        pub(crate) struct Ordering;

        #[allow(non_upper_case_globals)]
        impl Ordering {
            pub(crate) const Acquire: super::super::Real = super::super::Real::Acquire;
            pub(crate) const Release: super::super::Real = super::super::Real::Relaxed;
            pub(crate) const Relaxed: super::super::Real = super::super::Real::Relaxed;
        }
    }
}

/// The same file, whose cursors are not acquired.
#[path = "."]
mod without_acquire {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/record/tail.rs"]
    pub(crate) mod tail;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::AtomicU64;

        pub(crate) struct Ordering;

        #[allow(non_upper_case_globals)]
        impl Ordering {
            pub(crate) const Acquire: super::super::Real = super::super::Real::Relaxed;
            pub(crate) const Release: super::super::Real = super::super::Real::Release;
            pub(crate) const Relaxed: super::super::Real = super::super::Real::Relaxed;
        }
    }
}

use loom::sync::atomic::Ordering as Real;
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::panic::{AssertUnwindSafe, catch_unwind};

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// One shard, a reader, and the book between them, over one version of the file under test.
macro_rules! recorder {
    ($name:ident, $version:ident) => {
        mod $name {
            use super::$version::tail::Tail;
            use super::*;

            struct Shared {
                tail: Tail<2, 2>,
                book: Mutex<Vec<u64>>,
            }

            /// As the recorder does: what waits is taken with the book's lock held.
            fn fill(shared: &Shared, book: &mut Vec<u64>) {
                let waiting = shared.tail.waiting();
                assert!(waiting <= 2, "more than there are places");
                for ahead in 0..waiting {
                    let mut entry = [0; 2];
                    shared.tail.peek(ahead, &mut entry);
                    let [a, b] = entry;
                    assert_eq!(a, shared.tail.first(ahead));
                    assert_eq!(a, b, "an entry made of two");
                    book.push(a);
                }
                shared.tail.taken(waiting);
            }

            /// A shard writes so many, and a reader looks so often.
            pub(super) fn run(entries: u64, looks: u64) {
                let shared = Arc::new(Shared {
                    tail: Tail::new(),
                    book: Mutex::new(Vec::new()),
                });
                let of_reader = Arc::clone(&shared);
                let reader = thread::spawn(move || {
                    for _ in 0..looks {
                        let mut book = of_reader.book.lock().unwrap();
                        fill(&of_reader, &mut book);
                    }
                });
                for entry in 1..=entries {
                    if !shared.tail.put(&[entry, entry]) {
                        let mut book = shared.book.lock().unwrap();
                        fill(&shared, &mut book);
                        assert!(shared.tail.put(&[entry, entry]), "no place after all");
                    }
                }
                reader.join().unwrap();
                let mut book = shared.book.lock().unwrap();
                fill(&shared, &mut book);
                assert_eq!(*book, (1..=entries).collect::<Vec<_>>());
            }
        }
    };
}

recorder!(as_it_is, whole);
recorder!(unreleased, without_release);
recorder!(unacquired, without_acquire);

#[test]
fn every_entry_is_taken_once_whole_and_in_order_by_a_reader_or_the_shard_itself() {
    check(|| as_it_is::run(4, 2));
}

#[test]
fn a_reader_that_looks_often_sees_each_entry_once() {
    check(|| as_it_is::run(3, 3));
}

#[test]
fn a_torn_entry_is_found_when_the_cursors_are_not_released_or_not_acquired() {
    let unreleased = catch_unwind(AssertUnwindSafe(|| check(|| unreleased::run(4, 2))));
    assert!(unreleased.is_err(), "nothing found without the release");
    let unacquired = catch_unwind(AssertUnwindSafe(|| check(|| unacquired::run(4, 2))));
    assert!(unacquired.is_err(), "nothing found without the acquire");
}
