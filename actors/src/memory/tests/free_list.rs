//! The list of free slots on one thread, and a taker that lost its race. Orders of threads: `loom_gate`.

use crate::memory::free_list::FreeList;
use std::sync::atomic::{AtomicU32, Ordering};

fn links<const N: usize>() -> [AtomicU32; N] {
    std::array::from_fn(|_| AtomicU32::new(0))
}

#[test]
fn slots_given_back_come_out_newest_first_and_then_those_never_used() {
    let (list, links) = (FreeList::new(5), links::<5>());
    let take = || list.take(|i| &links[i as usize]);
    assert_eq!([take(), take(), take()], [Some(0), Some(1), Some(2)]);
    for index in [1, 0, 2] {
        list.give(index, &links[index as usize]);
    }
    assert_eq!([take(), take(), take()], [Some(2), Some(0), Some(1)]);
    assert_eq!([take(), take(), take()], [Some(3), Some(4), None]);
}

#[test]
fn a_taker_with_an_old_link_fails_though_the_same_slot_is_on_top_again() {
    let (list, links) = (FreeList::new(3), links::<3>());
    let take = || list.take(|i| &links[i as usize]);
    (0..3).for_each(|i| assert_eq!(take(), Some(i)));
    list.give(1, &links[1]);
    list.give(0, &links[0]);
    // This taker has read that 1 is below 0 when another one takes both, and gives back 0 alone.
    let old = AtomicU32::new(links[0].load(Ordering::Relaxed));
    let meanwhile = std::cell::Cell::new(true);
    let slow = list.take(|i| {
        if !meanwhile.take() {
            return &links[i as usize];
        }
        assert_eq!([take(), take()], [Some(0), Some(1)]);
        list.give(0, &links[0]);
        &old
    });
    assert_eq!((slow, take()), (Some(0), None), "slot 1 is out");
}
