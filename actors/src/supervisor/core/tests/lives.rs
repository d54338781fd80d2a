//! Lives: what they say of themselves, and which of them an abort means.

use super::*;
use crate::room::Timer;
use crate::supervisor::io::Which;

fn abort_where(s: &mut Shard, which: Which) -> Vec<Out> {
    let reason = Code::Requested.into();
    s.tell(Input::AbortWhere { which, reason })
}

#[test]
fn a_life_says_its_tag_its_legs_and_whether_it_passed_its_drain_deadline() {
    let mut s = Shard::new();
    let (life, theirs) = (LifeId(1), tag(Q, 1, key(0)));
    s.receive(1, key(0), &[P, Q], false);
    s.open(1, OTHER, theirs);
    let role = StartRole::Sender { receivers: 1 };
    let Input::Start(mut tagged) = start(2, key(1), role) else {
        panic!("a start");
    };
    tagged.tag = Some("agent".into());
    s.tell(Input::Start(tagged));

    let (receiver, sender) = (s.core.life(life).unwrap(), s.core.life(LifeId(2)).unwrap());
    assert_eq!((receiver.tag(), sender.tag()), (None, Some("agent")));
    let legs: Vec<_> = receiver.legs().iter().map(|l| (l.peer, l.claim)).collect();
    assert_eq!(legs, [(P, None), (Q, Some(theirs))]);
    assert!(sender.legs().is_empty());

    s.abort(1);
    assert!(!s.core.life(life).unwrap().is_quarantined());
    let timer = Timer::Drain;
    s.tell(Input::Timer { life, timer });
    assert!(s.core.life(life).unwrap().is_quarantined());
}

#[test]
fn an_abort_by_peer_means_only_rooms_that_still_have_to_do_with_it() {
    let mut s = Shard::new();
    s.send(1, key(0), 2);
    s.claim(P, 1, key(0), 2, 0);
    // This claim is refused: it disagrees about how many receivers there are.
    s.claim(Q, 1, key(0), 9, 0);
    assert_eq!(s.core.matching(&Which::Peer(Q)), 0);
    assert_eq!(outcomes(&abort_where(&mut s, Which::Peer(Q))), []);
    let out = abort_where(&mut s, Which::Peer(P));
    assert_eq!(outcomes(&out), [(1, Some(Code::Requested))]);
}

#[test]
fn aborting_a_room_refuses_the_claims_that_wait_for_it_and_no_others() {
    let mut s = Shard::new();
    let other = RoomKey::new(5, 0);
    s.claim(P, 1, key(0), 1, 0);
    s.claim(P, 2, other, 1, 0);
    let out = abort_where(&mut s, Which::Room(key(0).id));
    assert_eq!(said(&out, P), ["Failed", "Quiesced"]);
    let waiting = s.core.early().iter().map(|w| w.offer.tag.room);
    assert_eq!(waiting.collect::<Vec<_>>(), [other]);
}

#[test]
fn a_receiver_whose_sender_tells_of_bytes_that_do_not_land_has_stalled() {
    let mut s = Shard::new();
    let (life, timer) = (LifeId(1), Timer::Stall);
    let tag = tag(P, 1, key(0));
    s.receive(1, key(0), &[P], false);
    s.open(1, LEG, tag);
    s.say(P, Body::Bound { tag });
    let progress = |posted, written| Body::Progress {
        tag,
        posted,
        written,
    };
    assert_eq!(
        s.say(P, progress(20, 10)),
        [Output::SetTimer { life, timer }]
    );
    assert_eq!(
        s.say(P, progress(20, 20)),
        [Output::ClearTimer { life, timer }]
    );
    s.say(P, progress(30, 20));
    let out = s.tell(Input::Timer { life, timer });
    assert_eq!(outcomes(&out), [(1, Some(Code::Stalled))]);
}
