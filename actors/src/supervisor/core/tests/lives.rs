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

#[test]
fn an_abort_by_peer_refuses_the_claims_of_it_that_wait_and_no_others() {
    let mut s = Shard::new();
    s.claim(P, 1, key(0), 1, 0);
    s.claim(Q, 1, key(1), 1, 0);
    let out = abort_where(&mut s, Which::Peer(P));
    assert_eq!(said(&out, P), ["Failed", "Quiesced"]);
    assert_eq!(said(&out, Q), Vec::<&str>::new());
    let waiting: Vec<_> = s.core.early().iter().map(|w| w.peer).collect();
    assert_eq!(waiting, [Q]);
}

#[test]
fn a_life_holds_its_own_pages_and_those_of_the_claims_that_it_serves() {
    let mut s = Shard::new();
    s.send(1, key(0), 2);
    let pages = |s: &Shard| s.core.life(LifeId(1)).unwrap().pages();
    assert_eq!(pages(&s), 10);
    s.claim(P, 1, key(0), 2, 0);
    assert_eq!(pages(&s), 15);
    s.claim(Q, 1, key(0), 2, 1);
    assert_eq!(pages(&s), 20);
}

#[test]
fn what_the_runtime_attached_to_a_life_and_what_is_lent_to_it_can_be_changed() {
    let mut core: ShardCore<L, W, u8> = ShardCore::new(CoreLimits {
        early_claims_per_peer: 1,
        quarantined_pages_per_peer: 1,
        spent_keys: 1,
    });
    let wanted = cells(0..4, true);
    let role = StartRole::Receiver {
        terms: receiver::Terms {
            legs: vec![receiver::LegPlan { wanted }],
            total: TOTAL,
            checksum: false,
        },
        peers: vec![P],
        leases: vec![(Held::Section(0), "dest")],
    };
    let start = Start {
        life: LifeId(1),
        key: key(0),
        tag: None,
        pages: 10,
        attached: 7,
        role,
    };
    core.handle(Input::Start(Box::new(start)), &mut Vec::new());

    *core.attached(LifeId(1)).unwrap() += 1;
    assert_eq!(core.attached(LifeId(2)), None);
    let life = core.life_mut(LifeId(1)).unwrap();
    *life.attached_mut() += 1;
    assert_eq!(life.attached(), &9);
    for (_, lease) in life.leases_mut() {
        *lease = "lent on";
    }
    let custody = core.life(LifeId(1)).unwrap().custody();
    assert_eq!(custody.lease(Held::Section(0)), Some(&"lent on"));
    assert!(core.life_mut(LifeId(2)).is_none());
}

#[test]
fn a_life_says_its_outcome_from_when_it_is_published() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    s.open(1, LEG, tag(P, 1, key(0)));
    let outcome = |s: &Shard| s.core.life(LifeId(1)).unwrap().outcome().cloned();
    assert_eq!(outcome(&s), None);
    s.abort(1);
    let requested = Outcome::Aborted(Code::Requested.into());
    assert_eq!(outcome(&s), Some(requested));
}
