#![allow(unsafe_code)] // Makes pools of given memory.

use super::*;
use crate::memory::copy::End;
use kvroom_kernels::coverage::Rect;

struct Ends {
    from: Pool,
    to: Pool,
    table: Arc<GateTable>,
    backs: Arc<Backs>,
    bell: Arc<Rings>,
}

fn ends() -> Ends {
    Ends {
        from: pool(),
        to: pool(),
        table: GateTable::new(4),
        backs: Arc::default(),
        bell: Arc::default(),
    }
}

/// Pages 1, 2 and 5 of a source, each cell filled with what says where it is.
fn source(pool: &Pool) -> ReadLease {
    let mut lease = pool.lease_write(&[1, 2, 5]).unwrap();
    for layer in 0..3 {
        for i in 0..3 {
            let page = lease.pages()[i] as u8;
            lease.page_mut(layer, i).fill(layer as u8 * 16 + page);
        }
    }
    lease.into_read()
}

/// Rings, and how many fences this thread had made by then.
#[derive(Default)]
struct FencesAtRing(std::sync::Mutex<Option<usize>>);

impl Doorbell for FencesAtRing {
    fn ring(&self, _: ClaimNo) {
        *self.0.lock().unwrap() = Some(crate::memory::stream::fences());
    }
}

#[test]
fn streaming_stores_are_fenced_before_the_gate_is_left() {
    if crate::memory::copy_facts().from.is_none() {
        eprintln!("SKIPPED: this processor has no streaming stores that are used here");
        return;
    }
    let cell = 64 << 10;
    let large = || {
        let layout = PoolLayout {
            layers: 1,
            pages: 4,
            page_bytes: cell,
            ..layout(Order::LayersFirst)
        };
        Pool::owned(layout).unwrap()
    };
    let (from, to) = (large(), large());
    let mut write_from = from.lease_write(&[0, 1, 2]).unwrap();
    for i in 0..3 {
        write_from.page_mut(0, i).fill(i as u8 + 1);
    }
    let read = write_from.into_read();
    let mut write = to.lease_write(&[3, 1, 0]).unwrap();
    let bell = Arc::new(FencesAtRing::default());
    let sections = vec![write.target_section()];
    let doorbell: Arc<dyn Doorbell> = Arc::clone(&bell) as _;
    let table = GateTable::new(1);
    let gate = table
        .open(ClaimNo(1), Target::new(sections, None, doorbell))
        .unwrap();
    let backs: Arc<Backs> = Arc::default();
    let ticket = ticket(&read, &backs);
    let before = crate::memory::stream::fences();
    let inside = table.enter(gate.slot(), ClaimNo(1)).unwrap();
    let mut copying = inside.copier(0, &ticket).unwrap();
    for (i, page) in [3, 1, 0].into_iter().enumerate() {
        assert_eq!(copying.copy(page * cell, i as u64 * cell, cell), Ok(()));
    }
    assert_eq!(
        copying.copy(2 * cell, 0, cell),
        Err(CopyError::NotLent {
            end: End::Destination,
            page: 2,
        })
    );
    assert_eq!(copying.finish(), 3 * cell);
    assert_eq!(crate::memory::stream::fences(), before, "one fence for all");
    let closing = gate.close();
    drop(inside);
    assert_eq!(*bell.0.lock().unwrap(), Some(before + 1));
    let landed = closing.try_finish().unwrap().landed();
    assert_eq!((landed.pieces, landed.bytes), (3, 3 * cell));
    for (i, page) in [3, 1, 0].into_iter().enumerate() {
        let mut seen = vec![0; 64 << 10];
        assert_eq!(to.observe(0, page, &mut seen), Ok(64 << 10));
        assert!(seen.iter().all(|b| *b == i as u8 + 1), "page {i}");
    }
}

#[test]
fn a_copy_lands_where_the_plan_says_and_is_counted() {
    let e = ends();
    let (read, mut write) = (source(&e.from), e.to.lease_write(&[3, 4]).unwrap());
    let gate = e
        .table
        .open(ClaimNo(1), target(&mut write, &e.bell))
        .unwrap();
    let ticket = ticket(&read, &e.backs);
    let inside = e.table.enter(gate.slot(), ClaimNo(1)).unwrap();
    // Two neighbouring pages of layer 1, then half a cell of layer 2.
    assert_eq!(inside.copy_from(0, at(1, 3), &ticket, at(1, 1), 32), Ok(()));
    assert_eq!(
        inside.copy_from(0, at(2, 3) + 8, &ticket, at(2, 5) + 8, 8),
        Ok(())
    );
    drop(inside);
    assert_eq!(
        gate.landed(),
        Landed {
            pieces: 2,
            bytes: 40
        }
    );
    ticket.finish();
    let closing = gate.close();
    assert_eq!((closing.landed().pieces, closing.landed().bytes), (2, 40));
    let witness = closing.try_finish().unwrap();
    assert_eq!(
        witness.landed(),
        Landed {
            pieces: 2,
            bytes: 40
        }
    );
    assert_eq!(write.page(1, 0), [0x11; 16]);
    assert_eq!(write.page(1, 1), [0x12; 16]);
    assert_eq!(write.page(2, 0), [[0; 8], [0x25; 8]].concat());
    assert_eq!(write.page(0, 0), [0; 16]);
}

#[test]
fn a_copy_that_leaves_what_was_lent_moves_no_byte() {
    let e = ends();
    let (read, mut write) = (source(&e.from), e.to.lease_write(&[3, 4]).unwrap());
    let gate = e
        .table
        .open(ClaimNo(1), target(&mut write, &e.bell))
        .unwrap();
    let ticket = ticket(&read, &e.backs);
    let inside = e.table.enter(gate.slot(), ClaimNo(1)).unwrap();
    let not_lent = |end, page| Err(CopyError::NotLent { end, page });
    let out = |end, offset, bytes| {
        Err(CopyError::OutOfPool {
            end,
            offset,
            bytes,
            pool_bytes: 384,
        })
    };
    let cases = [
        // Page 5 of the destination is not lent; nor is page 2, one byte before page 3.
        ((at(0, 4), at(0, 1), 32), not_lent(End::Destination, 5)),
        ((at(0, 3) - 1, at(0, 1), 2), not_lent(End::Destination, 2)),
        // Page 3 of the source is not lent.
        ((at(0, 3), at(0, 2), 32), not_lent(End::Source, 3)),
        ((384, at(0, 1), 1), out(End::Destination, 384, 1)),
        ((at(0, 3), 380, 8), out(End::Source, 380, 8)),
        (
            (u64::MAX, at(0, 1), 16),
            out(End::Destination, u64::MAX, 16),
        ),
        (
            (at(0, 3), at(0, 1), u64::MAX),
            out(End::Destination, at(0, 3), u64::MAX),
        ),
    ];
    for ((to, from, bytes), refused) in cases {
        assert_eq!(inside.copy_from(0, to, &ticket, from, bytes), refused);
    }
    let none = |section| Err(CopyError::NoSuchSection { section });
    assert_eq!(
        inside.copy_from(1, at(0, 3), &ticket, at(0, 1), 16),
        none(1)
    );
    assert_eq!(
        inside.copy_from(Rect::AUX, at(0, 3), &ticket, at(0, 1), 16),
        none(Rect::AUX)
    );
    assert_eq!(inside.target().landed(), Landed::default());
    assert!((0..3).all(|layer| (0..8).all(|page| seen(&e.to, layer, page) == [0; 16])));
}

#[test]
fn a_range_over_layers_needs_every_page_of_the_pool_between() {
    let e = ends();
    let all: Vec<u32> = (0..8).rev().collect();
    let read = e.from.lease_read(&all).unwrap();
    let mut write = e.to.lease_write(&all).unwrap();
    let gate = e
        .table
        .open(ClaimNo(1), target(&mut write, &e.bell))
        .unwrap();
    let ticket = ticket(&read, &e.backs);
    let inside = e.table.enter(gate.slot(), ClaimNo(1)).unwrap();
    assert_eq!(inside.copy_from(0, 0, &ticket, 0, 384), Ok(()));
    assert_eq!(inside.copy_from(0, 0, &ticket, 0, 0), Ok(()));
}

#[test]
fn a_page_of_a_pool_with_pages_first_is_one_range() {
    let pool = Pool::owned(layout(Order::PagesFirst)).unwrap();
    let read = pool.lease_read(&[2]).unwrap();
    let view = read.source_view();
    assert_eq!(view.with_bytes(2 * 48, 48, <[u8]>::len), Ok(48));
    let outside = Err(CopyError::NotLent {
        end: End::Source,
        page: 3,
    });
    assert_eq!(view.with_bytes(2 * 48 + 40, 9, <[u8]>::len), outside);
}

#[test]
fn a_source_is_searched_from_where_its_last_page_was_found() {
    let e = ends();
    let read = source(&e.from);
    let ticket = ticket(&read, &e.backs);
    for (place, page) in [1, 2, 5].into_iter().enumerate() {
        assert_eq!(ticket.with_source(at(1, page), 16, <[u8]>::len), Ok(16));
        assert_eq!(ticket.source_cursor.get(), place);
    }
    let not_lent = Err(CopyError::NotLent {
        end: End::Source,
        page: 3,
    });
    assert_eq!(ticket.with_source(at(1, 3), 16, <[u8]>::len), not_lent);
    assert_eq!(ticket.with_source(at(0, 1), 16, <[u8]>::len), Ok(16));
}

#[test]
fn one_pool_can_be_both_ends_and_two_pools_can_not_overlap() {
    let e = ends();
    let read = source(&e.from);
    let mut write = e.from.lease_write(&[3]).unwrap();
    let gate = e
        .table
        .open(ClaimNo(1), target(&mut write, &e.bell))
        .unwrap();
    let ticket_in = ticket(&read, &e.backs);
    let inside = e.table.enter(gate.slot(), ClaimNo(1)).unwrap();
    assert_eq!(
        inside.copy_from(0, at(0, 3), &ticket_in, at(0, 2), 16),
        Ok(())
    );
    assert_eq!(seen(&e.from, 0, 3), [2; 16]);

    // Two pools of the same memory break the contract of `from_raw`; the copy still sees it.
    let (start, bytes) = e.from.memory().at(0, 384).unwrap();
    // SAFETY: the memory lives to the end of this test, and no slice of it is made.
    let twin = unsafe { Pool::from_raw(layout(Order::LayersFirst), start, bytes, || ()) }.unwrap();
    let twin_read = twin.lease_read(&[3]).unwrap();
    let ticket_of_twin = ticket(&twin_read, &e.backs);
    assert_eq!(
        inside.copy_from(0, at(0, 3) + 8, &ticket_of_twin, at(0, 3), 8),
        Ok(()),
        "neighbours do not overlap"
    );
    assert_eq!(
        inside.copy_from(0, at(0, 3) + 7, &ticket_of_twin, at(0, 3), 8),
        Err(CopyError::Overlap)
    );
}

#[test]
fn the_aux_row_is_written_through_its_own_section() {
    let e = ends();
    let read = source(&e.from);
    let mut aux = e.to.lease_write(&[6]).unwrap();
    let target = Target::new(vec![], Some(aux.target_section()), e.bell.clone());
    let gate = e.table.open(ClaimNo(1), target).unwrap();
    let ticket = ticket(&read, &e.backs);
    let inside = e.table.enter(gate.slot(), ClaimNo(1)).unwrap();
    assert_eq!(
        inside.copy_from(Rect::AUX, at(0, 6), &ticket, at(0, 5), 16),
        Ok(())
    );
    assert_eq!(seen(&e.to, 0, 6), [5; 16]);
}

#[test]
fn a_ticket_posts_itself_once_however_it_ends() {
    let e = ends();
    let read = source(&e.from);
    let mut done = ticket(&read, &e.backs);
    done.landed(100);
    done.refused();
    done.errored("first");
    done.errored("second");
    done.finish();
    drop(ticket(&read, &e.backs));
    let in_panic = ticket(&read, &e.backs);
    let lane = std::thread::spawn(move || {
        let _in_panic = in_panic;
        panic!("on purpose");
    });
    assert!(lane.join().is_err());
    let backs = std::mem::take(&mut *e.backs.0.lock().unwrap());
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(2),
        job: 3,
    };
    assert_eq!(
        backs.iter().map(|b| b.finished).collect::<Vec<_>>(),
        [true, false, false]
    );
    assert!(backs.iter().all(|b| b.id == id && b.witness.id() == id));
    let facts = Facts {
        landed_bytes: 100,
        landed_pieces: 1,
        refused_pieces: 1,
        errored: Some("first".into()),
        checksum: 0,
        told_bytes: 0,
    };
    assert_eq!(backs[0].facts, facts);
}

#[test]
fn a_ticket_that_was_split_posts_once_when_the_last_part_ends_and_for_all_of_them() {
    let e = ends();
    let read = source(&e.from);
    let mut parts = ticket(&read, &e.backs).split(3).unwrap();
    assert_eq!(parts.len(), 3);
    drop(read);
    let busy = || e.from.lease_write(&[1]).is_err();
    for (i, part) in parts.iter_mut().enumerate() {
        part.landed(100 << i);
        part.tell_moved(10);
    }
    parts.pop().unwrap().finish_with(u64::MAX);
    parts.pop().unwrap().finish_with(3);
    assert!(e.backs.0.lock().unwrap().is_empty(), "one part is at work");
    assert!(busy(), "and reads the source");
    parts.pop().unwrap().finish_with(5);
    assert!(!busy());
    let backs = std::mem::take(&mut *e.backs.0.lock().unwrap());
    assert_eq!(backs.len(), 1);
    assert!(backs[0].finished);
    let facts = Facts {
        landed_bytes: 700,
        landed_pieces: 3,
        checksum: 7,
        told_bytes: 30,
        ..Facts::default()
    };
    assert_eq!(backs[0].facts, facts);
}

#[test]
fn a_part_that_did_not_finish_counts_for_the_whole_ticket() {
    type Spoil = fn(Ticket);
    let ways: [(Spoil, u64, Option<&str>); 3] = [
        (drop, 0, None),
        (|mut t| t.refused(), 1, None),
        (|mut t| t.errored("broke"), 0, Some("broke")),
    ];
    for at in 0..2 {
        for (spoil, refused, errored) in ways {
            let e = ends();
            let read = source(&e.from);
            let parts = ticket(&read, &e.backs).split(2).unwrap();
            for (i, part) in parts.into_iter().enumerate() {
                if i == at { spoil(part) } else { part.finish() }
            }
            let backs = std::mem::take(&mut *e.backs.0.lock().unwrap());
            assert_eq!(backs.len(), 1);
            assert!(!backs[0].finished);
            assert_eq!(backs[0].facts.refused_pieces, refused);
            assert_eq!(backs[0].facts.errored.as_deref(), errored);
        }
    }
}

#[test]
fn a_ticket_is_split_only_whole_and_before_its_job_begins() {
    let e = ends();
    let read = source(&e.from);
    let mut begun = ticket(&read, &e.backs);
    begun.landed(1);
    assert!(begun.split(2).is_err());
    let mut parts = ticket(&read, &e.backs).split(2).unwrap();
    assert!(parts.pop().unwrap().split(2).is_err());
    // One part alone, and none, are the ticket itself.
    for count in [0, 1] {
        let mut one = ticket(&read, &e.backs).split(count).unwrap();
        e.backs.0.lock().unwrap().clear();
        one.pop().unwrap().finish();
        assert!(one.is_empty());
        assert!(e.backs.0.lock().unwrap()[0].finished);
    }
}

#[test]
fn the_source_is_free_before_the_witness_is_posted() {
    struct Upgrades(Mutex<Option<ReadLease>>);
    impl TicketSink for Upgrades {
        fn returned(&self, _: JobBack) {
            let lease = self.0.lock().unwrap().take().unwrap();
            lease
                .into_write()
                .expect("the ticket still holds its source");
        }
    }
    let pool = pool();
    let read = source(&pool);
    let view = read.source_view();
    let read = read.into_write().expect_err("a view of it is left");
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(0),
        job: 0,
    };
    let sink = Arc::new(Upgrades(Mutex::new(Some(read))));
    drop(Ticket::new(id, view, CancelFlag::new(), sink.clone()));
    assert!(sink.0.lock().unwrap().is_none());
    assert_eq!(pool.leased_pages(), 0);
}

#[test]
fn a_forgotten_ticket_makes_no_witness_and_keeps_its_source() {
    let e = ends();
    let read = source(&e.from);
    std::mem::forget(ticket(&read, &e.backs));
    assert!(e.backs.0.lock().unwrap().is_empty());
    let read = read.into_write().unwrap_err();
    drop(read);
    assert!(e.from.lease_write(&[1]).is_err());
    assert_eq!(e.from.leased_pages(), 3);
}

#[test]
fn a_sink_that_panics_harms_nobody() {
    struct Broken;
    impl TicketSink for Broken {
        fn returned(&self, _: JobBack) {
            panic!("on purpose");
        }
    }
    let pool = pool();
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(0),
        job: 0,
    };
    let view = source(&pool).source_view();
    drop(Ticket::new(id, view, CancelFlag::new(), Arc::new(Broken)));
    assert_eq!(pool.leased_pages(), 0);
}

#[test]
fn cancelling_is_seen_by_every_ticket_with_the_flag() {
    let pool = pool();
    let read = source(&pool);
    let flag = CancelFlag::new();
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(0),
        job: 0,
    };
    let backs: Arc<Backs> = Arc::default();
    let ticket = Ticket::new(id, read.source_view(), flag.clone(), backs);
    assert!(!ticket.is_cancelled());
    flag.cancel();
    assert!(ticket.is_cancelled());
}

#[test]
fn each_witness_names_its_proof() {
    let e = ends();
    let mut write = e.to.lease_write(&[3]).unwrap();
    let gate = e
        .table
        .open(ClaimNo(8), target(&mut write, &e.bell))
        .unwrap();
    let closed = gate.close().try_finish().unwrap();
    drop(ticket(&source(&e.from), &e.backs));
    let over = e.backs.0.lock().unwrap().pop().unwrap().witness;
    let withdrawn = Withdrawn::new(ClaimNo(4));
    assert_eq!(withdrawn.claim(), ClaimNo(4));
    let proofs = [
        Witness::NeverSubmitted(withdrawn),
        Witness::Job(over),
        Witness::GateClosed(closed),
    ]
    .map(|w| w.proof().to_string());
    assert_eq!(proofs, ["NeverSubmitted", "Completed", "GateClosed"]);
}
