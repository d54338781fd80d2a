use super::*;
use crate::memory::gate::{Gate, Left, MAX_INSIDE, OpenRefused};
use crate::memory::slots::Slots;

#[test]
fn a_closed_gate_lets_nobody_in() {
    let (pool, table, bell) = (pool(), GateTable::new(4), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let gate = table.open(ClaimNo(1), target(&mut lease, &bell)).unwrap();
    let slot = gate.slot();
    drop(table.enter(slot, ClaimNo(1)).unwrap());
    let closing = gate.close();
    assert_eq!(table.enter(slot, ClaimNo(1)).unwrap_err(), Refused::Closed);
    let witness = closing.try_finish().unwrap();
    assert_eq!(witness.number(), ClaimNo(1));
    assert_eq!(witness.landed(), Landed::default());
    assert_eq!(bell.heard(), [], "nobody was inside after the close");
}

#[test]
fn a_writer_inside_holds_the_witness_back_and_rings_when_it_leaves() {
    let (pool, table, bell) = (pool(), GateTable::new(4), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let gate = table.open(ClaimNo(9), target(&mut lease, &bell)).unwrap();
    let inside = [(); 2].map(|()| table.enter(gate.slot(), ClaimNo(9)).unwrap());
    let [first, second] = inside;
    let closing = gate.close().try_finish().unwrap_err();
    drop(first);
    let closing = closing.try_finish().unwrap_err();
    assert_eq!(bell.heard(), []);
    drop(second);
    assert_eq!(bell.heard(), [ClaimNo(9)]);
    assert!(closing.try_finish().is_ok());
}

#[test]
fn a_lease_gives_no_slices_until_its_gate_is_finished() {
    let (pool, table, bell) = (pool(), GateTable::new(4), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let gate = table.open(ClaimNo(1), target(&mut lease, &bell)).unwrap();
    let look = |lease: &WriteLease| {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| lease.page(0, 0)[0])).is_ok()
    };
    assert!(!look(&lease));
    let closing = gate.close();
    assert!(!look(&lease));
    let _witness = closing.try_finish().unwrap();
    assert!(look(&lease));
    lease.page_mut(0, 0).fill(1);
}

#[test]
fn pages_stay_held_while_a_gate_can_reach_them_even_if_their_lease_is_lost() {
    let (pool, table, bell) = (pool(), GateTable::new(4), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let gate = table.open(ClaimNo(1), target(&mut lease, &bell)).unwrap();
    let inside = table.enter(gate.slot(), ClaimNo(1)).unwrap();
    drop((lease, gate));
    assert!(pool.lease_read(&[1]).is_err(), "somebody is inside");
    drop(inside);
    assert!(pool.lease_read(&[1]).is_ok());
    assert_eq!(bell.heard(), [], "nobody waited for it");
}

#[test]
fn a_gate_that_was_dropped_frees_its_slot_only_when_the_last_writer_left() {
    let (pool, table, bell) = (pool(), GateTable::new(1), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    for (claim, close_first) in [(1, false), (2, true)] {
        let gate = table
            .open(ClaimNo(claim), target(&mut lease, &bell))
            .unwrap();
        let slot = gate.slot();
        let inside = table.enter(slot, ClaimNo(claim)).unwrap();
        if close_first {
            drop(gate.close())
        } else {
            drop(gate)
        }
        assert_eq!(
            table.enter(slot, ClaimNo(claim)).unwrap_err(),
            Refused::Closed
        );
        let full = table
            .open(ClaimNo(7), target(&mut lease, &bell))
            .unwrap_err();
        assert_eq!(full.why, NotOpened::Exhausted(GatesExhausted { limit: 1 }));
        assert!(full.to_string().contains("`gates`"), "{full}");
        drop(full);
        drop(inside);
    }
    assert!(table.open(ClaimNo(7), target(&mut lease, &bell)).is_ok());
}

#[test]
fn a_stale_stamp_is_refused_after_its_slot_is_used_again() {
    let (pool, table, bell) = (pool(), GateTable::new(1), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let gate = table.open(ClaimNo(1), target(&mut lease, &bell)).unwrap();
    let slot = gate.slot();
    let _witness = gate.close().try_finish().unwrap();
    assert_eq!(table.enter(slot, ClaimNo(1)).unwrap_err(), Refused::Closed);
    let gate = table.open(ClaimNo(2), target(&mut lease, &bell)).unwrap();
    assert_eq!(gate.slot(), slot);
    assert_eq!(table.enter(slot, ClaimNo(1)).unwrap_err(), Refused::Stale);
    assert_eq!(table.enter(slot, ClaimNo(0)).unwrap_err(), Refused::Stale);
    assert_eq!(
        table.enter(slot + 1, ClaimNo(2)).unwrap_err(),
        Refused::NoSuchSlot
    );
    let of_other = 2 | 1 << 48;
    assert_eq!(
        table.enter(slot, ClaimNo(of_other)).unwrap_err(),
        Refused::Stale
    );
}

#[test]
fn a_vacant_slot_lets_nobody_in_whatever_the_number() {
    let table = GateTable::new(2);
    for number in [0, 1, u64::MAX, 1 << 63] {
        assert_eq!(table.enter(0, ClaimNo(number)).unwrap_err(), Refused::Stale);
    }
}

#[test]
fn numbers_that_are_not_new_or_do_not_fit_open_nothing_and_lose_nothing() {
    let (pool, table, bell) = (pool(), GateTable::new(1), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    drop(table.open(ClaimNo(5), target(&mut lease, &bell)).unwrap());
    let cases = [
        (ClaimNo(5), NotOpened::NumberReused(ClaimNo(5))),
        (ClaimNo(0), NotOpened::BadNumber(ClaimNo(0))),
        (ClaimNo(1 << 48), NotOpened::BadNumber(ClaimNo(1 << 48))),
    ];
    for (number, why) in cases {
        let refused = table.open(number, target(&mut lease, &bell)).unwrap_err();
        assert_eq!(refused.why, why);
        assert_eq!(refused.target.section(0).unwrap().pages(), [1]);
    }
    assert!(
        table.open(ClaimNo::MAX, target(&mut lease, &bell)).is_ok(),
        "the slot leaked"
    );
}

#[test]
fn a_full_gate_refuses_and_the_count_does_not_reach_the_number() {
    let gate = Gate::vacant();
    gate.open(ClaimNo::MAX.0).unwrap();
    for _ in 0..MAX_INSIDE {
        gate.enter(ClaimNo::MAX.0).unwrap();
    }
    assert_eq!(gate.enter(ClaimNo::MAX.0), Err(Refused::Full));
    assert_eq!(gate.close(ClaimNo::MAX.0), Ok(MAX_INSIDE));
    for _ in 1..MAX_INSIDE {
        assert_eq!(
            gate.leave(ClaimNo::MAX.0, || panic!("not the last")),
            Left::Going
        );
    }
    assert_eq!(gate.open(1), Err(OpenRefused::NotVacant));
    assert!(!gate.is_closed_and_empty(ClaimNo::MAX.0));
    assert_eq!(gate.leave(ClaimNo::MAX.0, || ()), Left::LastAfterClose);
    assert!(gate.is_closed_and_empty(ClaimNo::MAX.0));
}

#[test]
fn leaving_a_gate_whose_word_somebody_else_wrote_is_told_and_changes_nothing() {
    let gate = Gate::vacant();
    gate.open(8).unwrap();
    gate.enter(8).unwrap();
    for number in [7, 0, ClaimNo::MAX.0] {
        let left = gate.leave(number, || panic!("not the last"));
        assert_eq!(left, Left::Overwritten);
    }
    assert_eq!(gate.close(8), Ok(1));
    assert_eq!(gate.leave(8, || ()), Left::LastAfterClose);
    assert_eq!(gate.leave(8, || ()), Left::Overwritten, "nobody is inside");
    assert!(gate.is_closed_and_empty(8));
}

#[test]
fn closing_with_another_claims_number_changes_nothing() {
    let gate = Gate::vacant();
    assert_eq!(gate.close(0), Err(Refused::Stale));
    gate.open(3).unwrap();
    assert_eq!(gate.close(4), Err(Refused::Stale));
    assert_eq!(gate.orphan(4), Err(Refused::Stale));
    assert_eq!(gate.enter(3), Ok(()));
}

#[test]
fn a_writer_that_is_forgotten_inside_holds_the_claim_for_ever() {
    let (pool, table, bell) = (pool(), GateTable::new(1), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let gate = table.open(ClaimNo(1), target(&mut lease, &bell)).unwrap();
    std::mem::forget(table.enter(gate.slot(), ClaimNo(1)).unwrap());
    let closing = gate.close().try_finish().unwrap_err();
    drop(lease);
    drop(closing);
    assert!(pool.lease_read(&[1]).is_err());
}

#[test]
fn a_doorbell_that_panics_harms_nobody() {
    struct Broken;
    impl Doorbell for Broken {
        fn ring(&self, _: ClaimNo) {
            panic!("on purpose");
        }
    }
    let (pool, table) = (pool(), GateTable::new(1));
    let mut lease = pool.lease_write(&[1]).unwrap();
    let target = Target::new(vec![lease.target_section()], None, Arc::new(Broken));
    let gate = table.open(ClaimNo(1), target).unwrap();
    let inside = table.enter(gate.slot(), ClaimNo(1)).unwrap();
    let closing = gate.close();
    drop(inside);
    assert!(closing.try_finish().is_ok());
}

#[test]
fn an_idle_claim_costs_less_than_200_bytes_and_an_unused_slot_none() {
    let arc_counts = 16;
    let section = size_of::<TargetSection>();
    let hold = size_of::<crate::memory::held::Held>() + arc_counts;
    assert!(size_of::<Target>() + section + hold < 200);
    // The most there can be: 400 MB of slots, of which none is touched.
    let table = GateTable::new(usize::MAX);
    assert_eq!(
        table.enter(u32::MAX, ClaimNo(1)).unwrap_err(),
        Refused::NoSuchSlot
    );
    assert_eq!(
        table.enter((1 << 24) - 2, ClaimNo(1)).unwrap_err(),
        Refused::Stale
    );
}

#[test]
fn each_gate_says_where_it_is_whose_it_is_and_what_is_written_through_it() {
    let (pool, table, bell) = (pool(), GateTable::new(3), Arc::default());
    let mut leases = [1, 2, 3].map(|page| pool.lease_write(&[page]).unwrap());
    let mut number = 10;
    let gates = leases.each_mut().map(|lease| {
        number += 1;
        table.open(ClaimNo(number), target(lease, &bell)).unwrap()
    });
    let names = gates.each_ref().map(|g| (g.slot(), g.number().0));
    assert_eq!(names, [(0, 11), (1, 12), (2, 13)]);
    let pages = |target: &Target| target.section(0).unwrap().pages().to_vec();
    let written = gates.each_ref().map(|g| pages(g.target()));
    assert_eq!(written, [[1], [2], [3]]);

    let mut fourth = pool.lease_write(&[4]).unwrap();
    let full = table.open(ClaimNo(14), target(&mut fourth, &bell));
    let limit = GatesExhausted { limit: 3 };
    assert_eq!(full.unwrap_err().why, NotOpened::Exhausted(limit));

    let inside = table.enter(2, ClaimNo(13)).unwrap();
    assert_eq!((inside.number().0, pages(inside.target())), (13, vec![3]));
    drop(inside);
    let closing = gates.map(OpenGate::close);
    let names = closing.each_ref().map(|g| (g.slot(), g.number().0));
    assert_eq!(names, [(0, 11), (1, 12), (2, 13)]);
    let witnesses = closing.map(|g| g.try_finish().unwrap().number().0);
    assert_eq!(witnesses, [11, 12, 13]);
}

#[test]
fn closing_a_slot_tells_how_many_writers_are_inside() {
    let (pool, bell) = (pool(), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let slots = Arc::new(Slots::new(1));
    for writers in 0..3 {
        let number = u64::from(writers) + 1;
        let owner = Slots::open(&slots, number, Box::new(target(&mut lease, &bell)));
        let owner = owner.ok().unwrap();
        let enter = |_| slots.enter(owner.index(), number).unwrap();
        let inside: Vec<_> = (0..writers).map(enter).collect();
        assert_eq!(owner.close(), writers);
        drop(inside);
    }
}
