//! Gates whose writer writes by itself: nothing here sees whether it is at it.

use super::*;
use crate::ids::{ClaimId, Incarnation};
use kvroom_kernels::coverage::Coverage;

fn out(number: u64) -> PeerOut {
    PeerOut::heard(ClaimId {
        receiver: Incarnation::default(),
        sender: Incarnation::default(),
        number: ClaimNo(number),
    })
}

fn open(lease: &mut WriteLease, path: &Arc<FarPath>, number: u64) -> OpenGate {
    let bell = Arc::<Rings>::default();
    open_far(ClaimNo(number), target(lease, &bell), path)
}

/// Two pages of all three layers.
fn cells() -> Coverage {
    let mut cells = Coverage::new();
    assert!(cells.insert(0, 0..3, 0..2).is_ok());
    cells
}

#[test]
fn a_far_gate_that_is_closed_is_not_over_before_its_writer_says_so() {
    let (pool, path) = (pool(), Arc::default());
    let mut lease = pool.lease_write(&[1, 2]).unwrap();
    let closing = open(&mut lease, &path, 5).close();
    // Empty as far as this process can see, which says nothing.
    let closing = closing.try_finish().unwrap_err();
    let closing = closing.try_finish_dead().unwrap_err();
    let mut closing = closing.try_finish_far().unwrap_err();
    closing.hear(&out(5), &cells());
    let Ok(FarOver::Drained(witness)) = closing.try_finish_far() else {
        panic!("its writer is out");
    };
    assert_eq!(witness.number(), ClaimNo(5));
    assert_eq!(witness.landed().bytes, 2 * 3 * 16);
    // The lease is whole again.
    lease.page_mut(0, 0).fill(1);
    assert_eq!(Witness::PeerDrained(witness).proof(), Proof::PeerDrained);
}

#[test]
fn what_the_writer_of_another_claim_says_ends_no_far_gate() {
    let (pool, path) = (pool(), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let mut gate = open(&mut lease, &path, 5);
    gate.hear(&out(4), &cells());
    let mut closing = gate.close();
    closing.hear(&out(6), &cells());
    let closing = closing.try_finish_far().unwrap_err();
    assert_eq!(closing.landed(), Landed::default());
    // And it keeps its pages.
    drop(closing);
    drop(lease);
    assert!(pool.lease_read(&[1]).is_err());
}

#[test]
fn a_writer_that_was_out_before_the_gate_was_closed_is_out_when_it_is() {
    let (pool, path) = (pool(), Arc::default());
    let mut lease = pool.lease_write(&[1, 2]).unwrap();
    let mut gate = open(&mut lease, &path, 5);
    gate.hear(&out(5), &cells());
    gate.hear(&out(5), &cells());
    let Ok(FarOver::Drained(witness)) = gate.close().try_finish_far() else {
        panic!("its writer is out");
    };
    assert_eq!(witness.landed().bytes, 96, "what is said twice counts once");
}

#[test]
fn the_end_of_a_path_that_stops_writes_ends_every_gate_of_it_and_of_no_other() {
    let (pool, path, other) = (pool(), Arc::<FarPath>::default(), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    let mut kept = pool.lease_write(&[2]).unwrap();
    let closing = open(&mut lease, &path, 5).close();
    let stays = open(&mut kept, &other, 6).close();
    let closing = closing.try_finish_far().unwrap_err();
    path.fence();
    let Ok(FarOver::Fenced(witness)) = closing.try_finish_far() else {
        panic!("its path is fenced");
    };
    assert_eq!(witness.number(), ClaimNo(5));
    assert_eq!(Witness::PathFenced(witness).proof(), Proof::PathFenced);
    assert!(stays.try_finish_far().is_err());
}

#[test]
fn a_far_gate_that_is_lost_keeps_its_pages_for_ever() {
    let (pool, path) = (pool(), Arc::<FarPath>::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    drop(open(&mut lease, &path, 5));
    drop(lease);
    let mut lease = pool.lease_write(&[2]).unwrap();
    drop(open(&mut lease, &path, 6).close());
    drop(lease);
    path.fence();
    assert!(pool.lease_read(&[1]).is_err());
    assert!(pool.lease_read(&[2]).is_err());
}

#[test]
fn a_far_gate_that_nobody_heard_of_lets_its_pages_go() {
    let (pool, path) = (pool(), Arc::default());
    let mut lease = pool.lease_write(&[1]).unwrap();
    open(&mut lease, &path, 5).withdraw();
    lease.page_mut(0, 0).fill(1);
    drop(lease);
    assert!(pool.lease_read(&[1]).is_ok());
}

#[test]
fn an_address_is_made_of_pages_that_the_claim_names_and_of_no_others() {
    let layout = layout(Order::LayersFirst);
    let cursor = std::cell::Cell::new(0);
    let named = |offset, bytes| named_pages(&layout, &[6, 2], offset, bytes, &cursor);
    assert_eq!(named(at(1, 6), 16), Ok(()));
    assert_eq!(named(at(2, 2), 16), Ok(()));
    assert_eq!(named(at(2, 2) + 15, 1), Ok(()));
    let end = End::Destination;
    let page = |page| Err(CopyError::NotLent { end, page });
    assert_eq!(named(at(1, 6), 17), page(7));
    assert_eq!(named(at(0, 0), 1), page(0));
    let whole = 3 * 8 * 16;
    for (offset, bytes) in [(whole - 1, 2), (u64::MAX, 2), (0, u64::MAX)] {
        let outside = CopyError::OutOfPool {
            end,
            offset,
            bytes,
            pool_bytes: whole,
        };
        assert_eq!(named(offset, bytes), Err(outside));
    }
}
