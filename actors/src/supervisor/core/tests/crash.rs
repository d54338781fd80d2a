//! A room whose actor is gone is ended from its custody record.

use super::*;
use crate::room::{Effect, StateName, Timer};

#[test]
fn a_senders_panic_ends_its_room_and_the_leases_wait_for_every_job() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.claim(P, 1, key(0), 1, 0);
    s.push(1);
    let out = s.panic(1);
    assert_eq!(outcomes(&out), [(1, Some(Code::ActorPanicked))]);
    assert_eq!((said(&out, P), returned(&out)), (vec!["Failed"], None));
    assert!(out.contains(&Output::CancelJobs { life: LifeId(1) }));
    let out = s.job_over(1, LEG, 0, JobEnd::Cancelled);
    assert_eq!(
        (said(&out, P), returned(&out)),
        (vec!["Quiesced"], Some(vec!["source"]))
    );
    assert!(s.core.is_empty() && s.core.claims() == 0);
}

#[test]
fn a_receivers_panic_closes_its_gates_and_the_leases_wait_for_them() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P, Q], false);
    s.open(1, LEG, tag(P, 1, key(0)));
    let out = s.panic(1);
    assert_eq!((said(&out, P), said(&out, Q).len()), (vec!["Abort"], 0));
    for leg in [LEG, OTHER] {
        assert!(out.contains(&Output::CloseGate {
            life: LifeId(1),
            leg
        }));
    }
    // The other claim had been numbered before its withdrawal came.
    let out = s.open(1, OTHER, tag(Q, 1, key(0)));
    assert_eq!(said(&out, Q), ["Abort"]);
    assert!(out.contains(&Output::CloseGate {
        life: LifeId(1),
        leg: OTHER
    }));
    assert_eq!(returned(&s.gate_closed(1, LEG)), None);
    assert_eq!(returned(&s.gate_closed(1, OTHER)), Some(vec!["dest"]));
}

#[test]
fn a_panic_of_a_draining_room_says_no_end_a_second_time() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.claim(P, 1, key(0), 1, 0);
    s.push(1);
    s.abort(1);
    let out = s.panic(1);
    assert_eq!((outcomes(&out).len(), said(&out, P).len()), (0, 0));
    assert_eq!(
        said(&s.job_over(1, LEG, 0, JobEnd::Cancelled), P),
        ["Quiesced"]
    );
}

#[test]
fn a_proof_that_died_in_the_mailbox_is_made_again() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    s.open(1, LEG, tag(P, 1, key(0)));
    s.abort(1);
    s.stopped = true;
    assert_eq!(returned(&s.gate_closed(1, LEG)), None);
    assert_eq!(returned(&s.panic(1)), Some(vec!["dest"]));
}

#[test]
fn a_panic_while_the_pages_are_read_for_their_sum_waits_for_the_reader() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], true);
    let tag = tag(P, 1, key(0));
    s.open(1, LEG, tag);
    s.say(P, Body::Bound { tag });
    let coverage = cells(0..4, true);
    let checksum = Some(4);
    s.say(
        P,
        Body::Complete {
            tag,
            total: TOTAL,
            coverage,
            checksum,
        },
    );
    let out = s.gate_closed(1, LEG);
    assert!(out.contains(&Output::Sum { life: LifeId(1) }));
    let out = s.panic(1);
    assert_eq!(
        (outcomes(&out), returned(&out)),
        (vec![(1, Some(Code::ActorPanicked))], None)
    );
    let out = s.tell(Input::Summed {
        life: LifeId(1),
        sum: 4,
    });
    assert_eq!(returned(&out), Some(vec!["dest"]));
}

#[test]
fn messages_for_a_room_that_panicked_change_nothing() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    let tag = tag(P, 1, key(0));
    s.open(1, LEG, tag);
    s.panic(1);
    for body in [Body::Bound { tag }, failed(tag, Code::Requested)] {
        assert_eq!(s.say(P, body), []);
    }
    assert_eq!(s.panic(1), []);
}

#[test]
fn a_room_that_panicked_is_quarantined_by_its_drain_clock() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    s.open(1, LEG, tag(P, 1, key(0)));
    s.panic(1);
    let life = LifeId(1);
    let out = s.tell(Input::Timer {
        life,
        timer: Timer::Drain,
    });
    assert_eq!(out, [Output::Count(Counter::Quarantined)]);
    assert!(s.core.life(life).unwrap().is_quarantined());
    assert!(returned(&s.gate_closed(1, LEG)).is_some());
}

#[test]
fn a_room_that_explodes_takes_no_other_with_it() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.send(2, key(1), 1);
    s.panic(1);
    assert_eq!(said(&s.claim(P, 1, key(1), 1, 0), P), ["Bound"]);
}

#[test]
fn what_a_room_had_said_before_its_panic_is_not_done_after_it() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.claim(P, 1, key(0), 1, 0);
    s.push(1);
    s.panic(1);
    let life = LifeId(1);
    let said = Input::RoomSaid {
        life,
        state: StateName::Done,
        effects: vec![Effect::CancelJobs, Effect::Publish(Outcome::Done)],
    };
    assert_eq!(s.tell(said), []);
    let state = s.core.life(life).unwrap().state();
    assert_eq!(state, StateName::Draining);
}
