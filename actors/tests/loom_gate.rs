//! The gate, the slots behind it and their free list, in every order that loom finds.
//!
//! The files under test are the library's own; only their atomics and cells are loom's here. Loom's
//! cells fail the test on any access that is not ordered by what the files do.
#![allow(unsafe_code)] // Looks into loom's cells, as the slots do.

#[allow(dead_code, unreachable_pub)]
#[path = "../src/memory/free_list.rs"]
mod free_list;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/memory/gate.rs"]
mod gate;
#[allow(dead_code, unreachable_pub)]
#[path = "../src/memory/slots.rs"]
mod slots;

mod sync {
    pub(crate) use loom::cell::UnsafeCell;
    pub(crate) use loom::sync::Arc;
    pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering};

    /// # Safety
    ///
    /// None needed here; the library's twin makes zero bytes.
    pub(crate) unsafe fn zeroed_slice<S>(n: usize, new: fn() -> S) -> Box<[S]> {
        (0..n).map(|_| new()).collect()
    }
}

use free_list::FreeList;
use gate::{Gate, Left, Refused};
use loom::cell::UnsafeCell;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use slots::{NotOpened, Occupant, Slots};
use std::sync::Arc as StdArc;
use std::sync::atomic::{AtomicUsize, Ordering as StdOrdering};
use sync::Arc;

fn check(f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(3);
    model.check(f);
}

/// Bytes that only writers inside the gate touch. Loom watches each access.
struct Page(UnsafeCell<u64>);

// SAFETY: that accesses to it are ordered is what the tests find out.
unsafe impl Sync for Page {}
// SAFETY: as above.
unsafe impl Send for Page {}

impl Page {
    fn new() -> Self {
        Page(UnsafeCell::new(0))
    }

    fn write(&self, value: u64) {
        // SAFETY: loom fails the test if this is not ordered with every other access.
        self.0.with_mut(|p| unsafe { *p = value });
    }

    fn read(&self) -> u64 {
        // SAFETY: as above.
        self.0.with(|p| unsafe { *p })
    }
}

/// What a slot holds in these tests: a page for each writer, a bell, and a count of drops.
struct Contents {
    pages: [Page; 2],
    bell: Arc<AtomicU32>,
    drops: StdArc<AtomicUsize>,
}

impl Contents {
    fn new(bell: &Arc<AtomicU32>, drops: &StdArc<AtomicUsize>) -> Box<Self> {
        let pages = [Page::new(), Page::new()];
        Box::new(Contents {
            pages,
            bell: Arc::clone(bell),
            drops: StdArc::clone(drops),
        })
    }
}

impl Drop for Contents {
    fn drop(&mut self) {
        // Whoever drops it is ordered behind every writer.
        self.pages.iter().for_each(|p| p.write(0));
        self.drops.fetch_add(1, StdOrdering::Relaxed);
    }
}

impl Occupant for Contents {
    type Bell = Arc<AtomicU32>;

    fn bell(&self) -> Self::Bell {
        Arc::clone(&self.bell)
    }

    fn ring(bell: Self::Bell, _: u64) {
        bell.fetch_add(1, Ordering::Release);
    }
}

type Table = Arc<Slots<Contents>>;

/// A writer of claim `number`: writes its page if it is let in.
fn write(table: &Table, number: u64, page: usize) -> bool {
    match table.enter(0, number) {
        Ok(inside) => {
            inside.contents().pages[page].write(number);
            true
        }
        Err(_) => false,
    }
}

#[test]
fn close_and_the_last_leave_agree_on_who_found_the_gate_empty() {
    check(|| {
        let gate = Arc::new(Gate::vacant());
        gate.open(7).unwrap();
        let writers: Vec<_> = (0..2)
            .map(|_| {
                let gate = Arc::clone(&gate);
                thread::spawn(move || {
                    gate.enter(7).is_ok() && gate.leave(7, || ()) == Left::LastAfterClose
                })
            })
            .collect();
        let closer_saw_empty = gate.close(7) == Ok(0);
        let last_leaves = writers
            .into_iter()
            .map(|w| w.join().unwrap())
            .filter(|b| *b)
            .count();
        assert_eq!(usize::from(closer_saw_empty) + last_leaves, 1);
        assert!(gate.is_closed_and_empty(7));
    });
}

#[test]
fn nobody_is_inside_a_finished_gate_and_its_writes_are_seen() {
    check(|| {
        let (bell, drops) = (Arc::new(AtomicU32::new(0)), StdArc::default());
        let table: Table = Arc::new(Slots::new(1));
        let mut owner = Slots::open(&table, 1, Contents::new(&bell, &drops))
            .ok()
            .unwrap();
        let writers: Vec<_> = (0..2)
            .map(|page| {
                let table = Arc::clone(&table);
                thread::spawn(move || write(&table, 1, page))
            })
            .collect();
        owner.close();
        let contents = loop {
            match owner.try_finish() {
                Ok(contents) => break contents,
                Err(again) => owner = again,
            }
            thread::yield_now();
        };
        // Ordered behind both writers, though neither was joined.
        let seen = [contents.pages[0].read(), contents.pages[1].read()];
        for (writer, seen) in writers.into_iter().zip(seen) {
            assert_eq!(
                writer.join().unwrap(),
                seen == 1,
                "a write was lost, or came late"
            );
        }
    });
}

#[test]
fn a_writer_that_stays_pins_the_slot_until_it_is_dropped_on_whatever_thread() {
    check(|| {
        let (bell, drops) = (Arc::new(AtomicU32::new(0)), StdArc::default());
        let table: Table = Arc::new(Slots::new(1));
        let mut owner = Slots::open(&table, 1, Contents::new(&bell, &drops))
            .ok()
            .unwrap();
        let staying = Slots::stay(&table, 0, 1).ok().unwrap();
        // Queued by one thread, written and let go of by another, as by a device.
        let device = thread::spawn(move || {
            staying.contents().pages[0].write(1);
            drop(staying);
        });
        owner.close();
        assert!(Slots::stay(&table, 0, 1).is_err(), "the gate is closed");
        let contents = loop {
            match owner.try_finish() {
                Ok(contents) => break contents,
                Err(again) => owner = again,
            }
            thread::yield_now();
        };
        assert_eq!(contents.pages[0].read(), 1, "finished under a writer");
        device.join().unwrap();
    });
}

#[test]
fn a_writer_sees_what_was_put_into_the_slot_before_it_opened() {
    check(|| {
        let (bell, drops) = (Arc::new(AtomicU32::new(0)), StdArc::default());
        let table: Table = Arc::new(Slots::new(1));
        let early = {
            let table = Arc::clone(&table);
            thread::spawn(move || {
                table
                    .enter(0, 1)
                    .map_or(0, |inside| inside.contents().pages[0].read())
            })
        };
        let contents = Contents::new(&bell, &drops);
        contents.pages[0].write(42);
        let owner = Slots::open(&table, 1, contents).ok().unwrap();
        assert!([0, 42].contains(&early.join().unwrap()));
        drop(owner);
    });
}

#[test]
fn the_owner_finishes_at_once_or_hears_the_bell() {
    check(|| {
        let (bell, drops) = (Arc::new(AtomicU32::new(0)), StdArc::default());
        let table: Table = Arc::new(Slots::new(1));
        let owner = Slots::open(&table, 1, Contents::new(&bell, &drops))
            .ok()
            .unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || write(&table, 1, 0))
        };
        owner.close();
        if let Err(owner) = owner.try_finish() {
            while bell.load(Ordering::Acquire) == 0 {
                thread::yield_now();
            }
            assert!(
                owner.try_finish().is_ok(),
                "the bell rang and somebody is inside"
            );
        }
        writer.join().unwrap();
    });
}

#[test]
fn the_bell_may_outlive_the_slot_it_hung_in() {
    check(|| {
        let (bell, drops) = (Arc::new(AtomicU32::new(0)), StdArc::default());
        let table: Table = Arc::new(Slots::new(1));
        let mut owner = Slots::open(&table, 1, Contents::new(&bell, &drops))
            .ok()
            .unwrap();
        let writer = {
            let table = Arc::clone(&table);
            thread::spawn(move || write(&table, 1, 0))
        };
        owner.close();
        // Polls as a tick does, so the slot may be gone when the writer comes to ring.
        loop {
            match owner.try_finish() {
                Ok(contents) => break drop(contents),
                Err(again) => owner = again,
            }
            thread::yield_now();
        }
        writer.join().unwrap();
        assert_eq!(drops.load(StdOrdering::Relaxed), 1);
    });
}

#[test]
fn a_slot_given_up_is_recycled_once_and_never_under_a_writer() {
    check(|| {
        let (bell, drops) = (
            Arc::new(AtomicU32::new(0)),
            StdArc::<AtomicUsize>::default(),
        );
        let table: Table = Arc::new(Slots::new(1));
        let owner = Slots::open(&table, 1, Contents::new(&bell, &drops))
            .ok()
            .unwrap();
        let writers: Vec<_> = (0..2)
            .map(|page| {
                let table = Arc::clone(&table);
                thread::spawn(move || write(&table, 1, page))
            })
            .collect();
        // The owner's last look is ordered before whoever takes the contents away.
        assert_eq!(StdArc::strong_count(&owner.contents().drops), 2);
        drop(owner);
        // The next claim gets the only slot as soon as it is empty, and not before.
        match Slots::open(&table, 2, Contents::new(&bell, &drops)) {
            Ok(next) => {
                assert_eq!(drops.load(StdOrdering::Relaxed), 1);
                next.contents().pages[0].write(2);
                next.contents().pages[1].write(2);
                drop(next);
            }
            Err((why, contents)) => {
                assert_eq!(why, NotOpened::Exhausted);
                drop(contents);
            }
        }
        writers.into_iter().for_each(|w| assert!(w.join().is_ok()));
        assert_eq!(drops.load(StdOrdering::Relaxed), 2);
        assert!(
            Slots::open(&table, 3, Contents::new(&bell, &drops)).is_ok(),
            "the slot leaked"
        );
    });
}

#[test]
fn a_stale_stamp_is_refused_whenever_the_slot_is_used_again() {
    check(|| {
        let (bell, drops) = (Arc::new(AtomicU32::new(0)), StdArc::default());
        let table: Table = Arc::new(Slots::new(1));
        let first = Slots::open(&table, 1, Contents::new(&bell, &drops))
            .ok()
            .unwrap();
        let stale = {
            let table = Arc::clone(&table);
            thread::spawn(move || write(&table, 1, 0))
        };
        first.close();
        if let Ok(contents) = first.try_finish() {
            let before = contents.pages[0].read();
            let second = Slots::open(&table, 2, Contents::new(&bell, &drops))
                .ok()
                .unwrap();
            let wrote = stale.join().unwrap();
            assert_eq!(
                second.contents().pages[0].read(),
                0,
                "claim 1 wrote to claim 2's page"
            );
            assert_eq!(wrote, before == 1);
            assert_eq!(table.enter(0, 1).err(), Some(Refused::Stale));
        } else {
            stale.join().unwrap();
        }
    });
}

#[test]
fn a_free_slot_has_one_taker() {
    check(|| {
        struct Two {
            list: FreeList,
            links: [AtomicU32; 2],
            pages: [Page; 2],
        }
        let two = Arc::new(Two {
            list: FreeList::new(2),
            links: [AtomicU32::new(0), AtomicU32::new(0)],
            pages: [Page::new(), Page::new()],
        });
        let (a, b) = (
            two.list.take(|i| &two.links[i as usize]),
            two.list.take(|_| unreachable!()),
        );
        two.list.give(a.unwrap(), &two.links[0]);
        two.list.give(b.unwrap(), &two.links[1]);
        let threads: Vec<_> = (1..=2)
            .map(|me| {
                let two = Arc::clone(&two);
                thread::spawn(move || {
                    // Two takes and two gives each: enough for A-B-A on the head.
                    let take = || two.list.take(|i| &two.links[i as usize]);
                    let first = take();
                    let second = take();
                    for index in [first, second].into_iter().flatten() {
                        two.pages[index as usize].write(me);
                        assert_eq!(two.pages[index as usize].read(), me);
                        two.list.give(index, &two.links[index as usize]);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        let take = || two.list.take(|i| &two.links[i as usize]);
        let mut left = [take(), take()];
        left.sort();
        assert_eq!(
            (left, take()),
            ([Some(0), Some(1)], None),
            "a slot was lost or doubled"
        );
    });
}
