//! Quarantine is counted, and limits what one silent peer can hold.

use super::*;
use crate::room::Timer;
use crate::supervisor::io::StartRefused;

fn quarantine(s: &mut Shard, life: u64, key: RoomKey, peer: PeerRef) -> Vec<Out> {
    s.receive(life, key, &[peer], false);
    s.open(life, LEG, tag(peer, life, key));
    s.abort(life);
    let life = LifeId(life);
    s.tell(Input::Timer {
        life,
        timer: Timer::Drain,
    })
}

fn is_refused(out: &[Out]) -> bool {
    let limit = |o: &Out| {
        matches!(o, Output::StartRefused { why: StartRefused::LimitReached { limit, .. }, leases, .. }
            if *limit == "quarantined_pages_per_peer" && leases.len() == 1)
    };
    out.iter().any(limit)
}

#[test]
fn a_room_past_its_drain_deadline_is_counted_once_and_keeps_its_lease() {
    let mut s = Shard::new();
    let out = quarantine(&mut s, 1, key(0), P);
    assert_eq!(
        (counted(&out, Counter::Quarantined), returned(&out)),
        (1, None)
    );
    let life = LifeId(1);
    let out = s.tell(Input::Timer {
        life,
        timer: Timer::Drain,
    });
    assert_eq!(counted(&out, Counter::Quarantined), 0);
}

#[test]
fn a_peer_that_holds_too_much_is_refused_new_rooms_until_it_is_out() {
    let mut s = Shard::with(|l| l.quarantined_pages_per_peer = 20);
    quarantine(&mut s, 1, key(0), P);
    assert!(
        !is_refused(&s.receive(5, key(5), &[P], false)),
        "10 of 20 pages"
    );
    quarantine(&mut s, 2, key(1), P);
    assert!(
        is_refused(&s.receive(6, key(6), &[P], false)),
        "20 of 20 pages"
    );
    assert!(
        is_refused(&s.receive(6, key(6), &[Q, P], false)),
        "one such peer is enough"
    );
    assert!(
        !is_refused(&s.receive(7, key(7), &[Q], false)),
        "another peer is not touched"
    );
    s.gate_closed(1, LEG);
    assert!(
        !is_refused(&s.receive(8, key(8), &[P], false)),
        "10 of 20 pages again"
    );
}

#[test]
fn a_claim_that_was_refused_does_not_count_against_its_peer() {
    let mut s = Shard::with(|l| l.quarantined_pages_per_peer = 10);
    s.send(1, key(0), 2);
    s.claim(P, 1, key(0), 2, 0);
    s.claim(Q, 1, key(0), 9, 0);
    s.push(1);
    s.abort(1);
    s.tell(Input::Timer {
        life: LifeId(1),
        timer: Timer::Drain,
    });
    assert!(is_refused(&s.receive(5, key(5), &[P], false)));
    assert!(!is_refused(&s.receive(6, key(6), &[Q], false)));
}

#[test]
fn a_peer_that_proves_one_room_over_still_holds_what_the_other_has() {
    let mut s = Shard::with(|l| l.quarantined_pages_per_peer = 10);
    for life in 1..3 {
        s.receive(life, key(life as u32), &[P], false);
        s.open(life, LEG, tag(P, life, key(life as u32)));
    }
    for life in 1..3 {
        s.abort(life);
        let (life, timer) = (LifeId(life), Timer::Drain);
        s.tell(Input::Timer { life, timer });
    }
    s.gate_closed(1, LEG);
    assert!(is_refused(&s.receive(5, key(5), &[P], false)), "10 pages");
    s.gate_closed(2, LEG);
    assert!(!is_refused(&s.receive(5, key(5), &[P], false)), "none");
}
