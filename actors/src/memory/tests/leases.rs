#![allow(unsafe_code)] // Makes pools of given memory.

use super::*;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn a_pool_starts_zeroed_and_aligned() {
    let pool = pool();
    assert!((0..3).all(|layer| (0..8).all(|page| seen(&pool, layer, page) == [0; 16])));
    let (start, _) = pool.memory().at(0, 1).unwrap();
    assert_eq!(start.addr().get() % 4096, 0);
}

#[test]
#[cfg(target_os = "linux")]
fn a_large_pool_is_not_resident_until_it_is_used() {
    let resident = || {
        let pages = std::fs::read_to_string("/proc/self/statm").unwrap();
        pages.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let large = PoolLayout {
        page_bytes: 64 << 20,
        ..layout(Order::LayersFirst)
    };
    let before = resident();
    let pool = Pool::owned(large).unwrap();
    let mut last = [1; 16];
    assert_eq!(pool.observe(2, 7, &mut last), Ok(16));
    assert_eq!(last, [0; 16]);
    let grown = resident().saturating_sub(before);
    assert!(grown < 512 << 20, "{grown} bytes of 1.5 GiB are resident");
}

#[test]
fn a_layout_that_cannot_be_is_refused_with_what_is_wrong() {
    let cases = [
        (
            PoolLayout {
                name: String::new(),
                ..layout(Order::PagesFirst)
            },
            "name",
        ),
        (
            PoolLayout {
                name: "x".repeat(65),
                ..layout(Order::PagesFirst)
            },
            "name",
        ),
        (
            PoolLayout {
                layers: 0,
                ..layout(Order::PagesFirst)
            },
            "layer",
        ),
        (
            PoolLayout {
                pages: 0,
                ..layout(Order::PagesFirst)
            },
            "at least 1 page",
        ),
        (
            PoolLayout {
                page_bytes: 0,
                ..layout(Order::PagesFirst)
            },
            "byte",
        ),
        (
            PoolLayout {
                page_tokens: 0,
                ..layout(Order::PagesFirst)
            },
            "token",
        ),
        (
            PoolLayout {
                page_bytes: u64::MAX,
                ..layout(Order::PagesFirst)
            },
            "address space",
        ),
        (
            PoolLayout {
                page_bytes: 1 << 59,
                ..layout(Order::PagesFirst)
            },
            "address space",
        ),
    ];
    for (layout, what) in cases {
        let error = Pool::owned(layout).unwrap_err().to_string();
        assert!(error.contains(what), "{error}");
    }
}

#[test]
fn every_cell_has_its_own_bytes_in_both_orders() {
    for order in [Order::LayersFirst, Order::PagesFirst] {
        let pool = Pool::owned(layout(order)).unwrap();
        let mut lease = pool.lease_write(&[7, 6, 5, 4, 3, 2, 1, 0]).unwrap();
        for layer in 0..3 {
            for i in 0..8 {
                lease
                    .page_mut(layer, i)
                    .fill((layer * 8) as u8 + i as u8 + 1);
            }
        }
        for layer in 0..3 {
            for i in 0..8 {
                let expected = [(layer * 8) as u8 + i as u8 + 1; 16];
                assert_eq!(lease.page(layer, i), expected);
                assert_eq!(seen(&pool, layer, 7 - i as u32), expected);
            }
        }
        // Where exactly: layer 1 of page 6 (position 1).
        let offset = if order == Order::LayersFirst {
            (8 + 6) * 16
        } else {
            (6 * 3 + 1) * 16
        };
        let (start, _) = pool.memory().at(offset, 16).unwrap();
        assert_eq!(lease.page(1, 1).as_ptr(), start.as_ptr());
    }
}

#[test]
fn a_conflict_names_the_page_the_position_and_the_holder() {
    let pool = pool();
    let writer = pool.lease_write(&[5]).unwrap();
    let readers = (
        pool.lease_read(&[2]).unwrap(),
        pool.lease_read(&[2]).unwrap(),
    );
    let held = |page, position, holder| LeaseError::Held {
        page,
        position,
        holder,
    };
    assert_eq!(
        pool.lease_read(&[1, 5]).unwrap_err(),
        held(5, 1, Holder::Writer)
    );
    assert_eq!(
        pool.lease_write(&[2]).unwrap_err(),
        held(2, 0, Holder::Readers(2))
    );
    assert_eq!(
        pool.lease_write(&[0, 1, 0]).unwrap_err(),
        LeaseError::Twice {
            page: 0,
            position: 2,
            first: 0
        }
    );
    assert_eq!(
        pool.lease_write(&[0, 8]).unwrap_err(),
        LeaseError::OutOfRange {
            page: 8,
            position: 1,
            pages: 8
        }
    );
    assert_eq!(pool.leased_pages(), 3);
    drop((writer, readers));
    assert_eq!(pool.leased_pages(), 0);
    drop(pool.lease_write(&[0, 1, 2, 3, 4, 5, 6, 7]).unwrap());
}

#[test]
fn a_lease_changes_its_mode_only_when_it_is_alone() {
    let pool = pool();
    let lease = pool.lease_write(&[1, 2]).unwrap().into_read();
    let other = pool.lease_read(&[2]).unwrap();
    let lease = lease.into_write().unwrap_err();
    assert!(
        pool.lease_write(&[1]).is_err(),
        "a refused upgrade left a page free"
    );
    drop(
        pool.lease_read(&[1])
            .expect("a refused upgrade left a page written"),
    );
    drop(other);
    let mut lease = lease.into_write().unwrap();
    lease.page_mut(0, 0).fill(1);
    assert!(pool.lease_read(&[1]).is_err());
    drop(lease);
    assert_eq!(pool.leased_pages(), 0);
}

#[test]
fn a_forgotten_lease_keeps_its_pages() {
    let pool = pool();
    std::mem::forget(pool.lease_write(&[4]).unwrap());
    assert!(pool.lease_read(&[4]).is_err());
    assert_eq!(pool.leased_pages(), 1);
}

#[test]
#[should_panic(expected = "position 2 is outside a lease of 2 pages")]
fn a_position_outside_the_lease_is_refused() {
    pool().lease_read(&[0, 1]).unwrap().page(0, 2);
}

#[test]
#[should_panic(expected = "layer 3 is outside pool \"kv\" of 3 layers")]
fn a_layer_outside_the_pool_is_refused() {
    pool().lease_write(&[0, 1]).unwrap().page_mut(3, 0);
}

#[test]
fn a_retired_pool_gives_no_new_leases_and_takes_old_ones_back() {
    let pool = pool();
    let lease = pool.lease_write(&[3]).unwrap();
    pool.retire();
    assert!(pool.is_retired());
    assert_eq!(
        pool.lease_read(&[1]).unwrap_err(),
        LeaseError::Retired { pool: "kv".into() }
    );
    assert_eq!(pool.leased_pages(), 1);
    drop(lease);
    assert_eq!(pool.leased_pages(), 0);
}

#[test]
fn the_release_callback_hears_of_dropped_leases_and_not_of_released_ones() {
    let heard: Arc<Mutex<Vec<ReleasedPages>>> = Arc::default();
    let pool = pool().with_release_callback({
        let heard = heard.clone();
        move |released| heard.lock().unwrap().push(released)
    });
    let pool = pool.unwrap();
    pool.lease_write(&[1]).unwrap().release();
    pool.lease_read(&[1]).unwrap().release();
    assert_eq!(*heard.lock().unwrap(), []);
    drop(pool.lease_write(&[2, 1]).unwrap());
    drop(pool.lease_write(&[3]).unwrap().into_read());
    let expected =
        [(vec![2, 1], Mode::Write), (vec![3], Mode::Read)].map(|(pages, mode)| ReleasedPages {
            pages: pages.into(),
            mode,
        });
    assert_eq!(*heard.lock().unwrap(), expected);
    assert!(matches!(
        pool.with_release_callback(|_| ()),
        Err(PoolError::CallbackAlreadySet { .. })
    ));
}

#[test]
fn a_panic_in_a_release_callback_harms_nobody() {
    let pool = pool()
        .with_release_callback(|_| panic!("on purpose"))
        .unwrap();
    drop(pool.lease_write(&[1]).unwrap());
    drop(pool.lease_write(&[1]).unwrap());
    assert_eq!(pool.leased_pages(), 0);
}

/// A pool in memory of this test, and how often that was freed.
fn borrowed(bytes: usize) -> (Result<Pool, PoolError>, Arc<AtomicUsize>) {
    let freed = Arc::new(AtomicUsize::new(0));
    let memory: Box<[u8]> = vec![9; bytes].into();
    let start = NonNull::new(Box::into_raw(memory).cast::<u8>()).unwrap();
    let on_free = {
        let freed = freed.clone();
        move || {
            freed.fetch_add(1, Ordering::SeqCst);
            panic!("on purpose; the memory itself is left to the test's end")
        }
    };
    // SAFETY: the memory was leaked just above, so it stays, and nobody else knows of it.
    let pool = unsafe { Pool::from_raw(layout(Order::PagesFirst), start, bytes, on_free) };
    (pool, freed)
}

#[test]
fn memory_that_was_given_is_freed_once_when_the_last_lease_is_gone() {
    let (pool, freed) = borrowed(3 * 8 * 16);
    let pool = pool.unwrap();
    assert_eq!(seen(&pool, 2, 7), [9; 16]);
    let lease = pool.lease_read(&[0]).unwrap();
    let view = lease.source_view();
    drop(pool.clone());
    drop(pool);
    drop(lease);
    assert_eq!(freed.load(Ordering::SeqCst), 0, "a view of it is left");
    drop(view);
    assert_eq!(freed.load(Ordering::SeqCst), 1);
}

#[test]
fn memory_smaller_than_its_layout_is_refused_and_not_freed() {
    let (pool, freed) = borrowed(3 * 8 * 16 - 1);
    let too_small = PoolError::TooSmall {
        pool: "kv".into(),
        given: 383,
        needed: 384,
    };
    assert_eq!(pool.unwrap_err(), too_small);
    assert_eq!(freed.load(Ordering::SeqCst), 0);
}

#[test]
fn observing_takes_what_fits_and_names_a_cell_that_is_not_there() {
    let pool = pool();
    pool.lease_write(&[1]).unwrap().page_mut(0, 0).fill(3);
    let mut few = [0; 5];
    assert_eq!(pool.observe(0, 1, &mut few), Ok(5));
    assert_eq!(few, [3; 5]);
    let mut many = [1; 20];
    assert_eq!(pool.observe(0, 1, &mut many), Ok(16));
    assert_eq!((&many[..16], &many[16..]), (&[3; 16][..], &[1; 4][..]));
    for (layer, page) in [(3, 0), (0, 8)] {
        let none = PoolError::NoSuchCell {
            pool: "kv".into(),
            layer,
            page,
        };
        assert_eq!(pool.observe(layer, page, &mut few), Err(none));
    }
}
