//! Claims: early ones, dead ones, refused ones, and aborts that overtake what they abort.

use super::*;

#[test]
fn a_claim_that_comes_before_the_send_waits_and_is_served_by_it() {
    let mut s = Shard::new();
    let out = s.claim(P, 1, key(0), 1, 0);
    assert_eq!(
        out,
        [Output::SetEarlyTimer {
            peer: P,
            tag: tag(P, 1, key(0)),
            within_ms: u32::MAX
        }]
    );
    assert_eq!(said(&s.send(1, key(0), 1), P), ["Bound"]);
    assert!(s.core.early().is_empty());
}

#[test]
fn a_claim_of_another_attempt_does_not_bind() {
    let mut s = Shard::new();
    s.send(1, key(1), 1);
    assert_eq!(said(&s.claim(P, 1, key(0), 1, 0), P), Vec::<&str>::new());
    assert_eq!(s.core.early().len(), 1);
}

#[test]
fn early_claims_are_bounded_per_peer_and_shown_oldest_first() {
    let mut s = Shard::with(|l| l.early_claims_per_peer = 2);
    s.claim(P, 1, key(5), 1, 0);
    s.claim(P, 2, key(3), 1, 0);
    let out = s.claim(P, 3, key(4), 1, 0);
    assert_eq!(said(&out, P), ["Failed", "Quiesced"]);
    assert_eq!(
        (told(&out), ended_claims(&out)),
        (Some(Code::TooManyEarlyClaims), 1)
    );
    s.claim(Q, 1, key(1), 1, 0);
    let order: Vec<u32> = s
        .core
        .early()
        .iter()
        .map(|w| w.offer.tag.room.attempt)
        .collect();
    assert_eq!(order, [5, 3, 1]);
    s.send(1, key(5), 1);
    assert_eq!(
        said(&s.claim(P, 4, key(4), 1, 0), P),
        Vec::<&str>::new(),
        "room again"
    );
}

#[test]
fn an_early_claim_expires_once() {
    let mut s = Shard::new();
    s.claim(P, 1, key(0), 1, 0);
    let timer = || Input::EarlyTimer {
        peer: P,
        tag: tag(P, 1, key(0)),
    };
    let out = s.tell(timer());
    assert_eq!(said(&out, P), ["Failed", "Quiesced"]);
    assert_eq!(
        (told(&out), ended_claims(&out)),
        (Some(Code::EarlyClaimExpired), 1)
    );
    assert_eq!(s.tell(timer()), []);
}

#[test]
fn the_clock_of_an_early_claim_that_was_served_means_nothing() {
    let mut s = Shard::new();
    s.claim(P, 1, key(0), 1, 0);
    s.send(1, key(0), 1);
    assert_eq!(
        s.tell(Input::EarlyTimer {
            peer: P,
            tag: tag(P, 1, key(0))
        }),
        []
    );
}

#[test]
fn a_room_whose_abort_came_before_it_ends_at_once_with_the_first_reason() {
    let mut s = Shard::new();
    s.claim(P, 1, key(0), 1, 0);
    let out = s.say(P, abort_body(tag(P, 1, key(0))));
    assert_eq!((said(&out, P), ended_claims(&out)), (vec!["Quiesced"], 1));
    let reason = Code::Stalled.into();
    s.say(
        P,
        Body::Abort {
            tag: tag(P, 1, key(0)),
            reason,
        },
    );
    let out = s.send(1, key(0), 1);
    assert_eq!(outcomes(&out), [(1, Some(Code::Requested))]);
    assert!(returned(&out).is_some() && s.core.is_empty());
    assert_eq!(
        outcomes(&s.send(2, key(1), 1)),
        [],
        "another attempt is not touched"
    );
}

#[test]
fn a_claim_that_comes_again_for_an_aborted_key_is_refused_with_the_reason() {
    let mut s = Shard::new();
    s.say(P, abort_body(tag(P, 1, key(0))));
    let out = s.claim(P, 2, key(0), 1, 0);
    assert_eq!(
        (said(&out, P), told(&out)),
        (vec!["Failed", "Quiesced"], Some(Code::Requested))
    );
    assert!(s.core.early().is_empty());
}

#[test]
fn an_abort_of_an_unknown_or_dead_claim_is_answered_quiesced() {
    let mut s = Shard::new();
    assert_eq!(
        said(&s.say(P, abort_body(tag(P, 9, key(3)))), P),
        ["Quiesced"]
    );
    s.send(1, key(0), 1);
    s.claim(P, 10, key(0), 1, 0);
    s.abort(1);
    assert_eq!(
        said(&s.say(P, abort_body(tag(P, 10, key(0)))), P),
        ["Quiesced"]
    );
}

#[test]
fn a_claim_for_a_spent_key_is_told_how_that_room_ended_and_leaves_nothing() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.abort(1);
    let out = s.claim(P, 1, key(0), 1, 0);
    assert_eq!(
        (said(&out, P), told(&out)),
        (vec!["Failed", "Quiesced"], Some(Code::Requested))
    );
    assert!(s.core.is_empty() && s.core.claims() == 0);
}

#[test]
fn a_claim_that_disagrees_is_refused_and_the_room_serves_on() {
    let mut s = Shard::new();
    s.send(1, key(0), 2);
    s.claim(P, 1, key(0), 2, 0);
    for (no, receivers, rank) in [(1, 3, 1), (2, 2, 0), (3, 2, 2)] {
        let out = s.claim(Q, no, key(0), receivers, rank);
        assert_eq!(said(&out, Q), ["Failed", "Quiesced"]);
        assert_eq!((told(&out), ended_claims(&out)), (Some(Code::BadClaim), 1));
    }
    assert_eq!(said(&s.claim(Q, 4, key(0), 2, 1), Q), ["Bound"]);
    assert_eq!(s.core.claims(), 2);
}

#[test]
fn a_claim_that_the_layouts_cannot_serve_is_refused() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    let out = s.tell(Input::Claim {
        peer: P,
        offer: Offer {
            tag: tag(P, 1, key(0)),
            gate: 0,
            pages: 1,
            checksum: false,
            deadline_ms: u32::MAX,
        },
        terms: Err(Code::LayoutMismatch.into()),
    });
    assert_eq!(told(&out), Some(Code::LayoutMismatch));
}

#[test]
fn a_claim_that_meets_a_room_on_its_way_to_done_is_answered() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.claim(P, 1, key(0), 1, 0);
    s.push(1);
    s.finish(1);
    s.landed(1, LEG, 0);
    s.landed(1, LEG, 1);
    // `Accepted` seals the room; its proof lies in its mailbox when the claim comes.
    let mut out = Vec::new();
    let body = Body::Accepted {
        tag: tag(P, 1, key(0)),
    };
    s.stopped = true;
    s.tell(Input::Message { peer: P, body });
    let (life, event) = s.mail.pop_front().unwrap();
    let room = s.rooms.remove(&life).unwrap();
    let mut effects = Vec::new();
    let room = room.handle(event, &mut effects);
    let state = room.state();
    s.rooms.insert(life, room);
    s.core_handles(
        Input::RoomSaid {
            life,
            state,
            effects,
        },
        &mut out,
    );
    let out = s.claim(Q, 1, key(0), 1, 0);
    assert_eq!(
        (said(&out, Q), ended_claims(&out)),
        (vec!["Failed", "Quiesced"], 1)
    );
    assert_eq!(outcomes(&s.resume()), [(1, None)]);
}

#[test]
fn a_claim_number_of_another_peer_or_room_is_not_taken() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    let right = tag(P, 1, key(0));
    s.open(1, LEG, right);
    let mut other_room = right;
    other_room.room = key(1);
    let mut other_life = right;
    other_life.id.receiver.nonce = 5;
    for (peer, tag) in [(Q, right), (P, other_room), (P, other_life)] {
        let out = s.say(peer, failed(tag, Code::Requested));
        assert_eq!(out, [Output::Count(Counter::StaleMessage)]);
    }
    assert_eq!(outcomes(&s.say(P, failed(right, Code::Requested))).len(), 1);
}

#[test]
fn numbers_of_the_two_directions_of_a_session_do_not_mix() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.receive(2, key(9), &[P], false);
    let (theirs, mine) = (tag(P, 1, key(0)), tag(P, 1, key(9)));
    s.claim(P, 1, key(0), 1, 0);
    s.open(2, LEG, mine);
    assert_eq!(
        outcomes(&s.say(P, abort_body(theirs))),
        [(1, Some(Code::Requested))]
    );
    assert_eq!(
        outcomes(&s.say(P, failed(mine, Code::Stalled))),
        [(2, Some(Code::Stalled))]
    );
}

#[test]
fn a_claim_is_served_from_when_it_waits_until_its_room_is_over() {
    let mut s = Shard::new();
    let served = |s: &Shard| s.core.serves(P, ClaimNo(1));
    assert!(!served(&s), "it has not come");
    s.claim(P, 1, key(0), 1, 0);
    assert!(served(&s), "it waits");
    s.send(1, key(0), 1);
    assert!(served(&s), "it is bound");
    assert!(!s.core.serves(Q, ClaimNo(1)) && !s.core.serves(P, ClaimNo(2)));
    s.abort(1);
    assert!(!served(&s), "its room is over");
}

#[test]
fn a_claim_that_this_node_offered_is_found_by_its_peer_and_number_until_its_room_is_over() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P, Q], false);
    s.open(1, OTHER, tag(Q, 5, key(0)));
    s.send(2, key(9), 1);
    s.claim(P, 6, key(9), 1, 0);
    let offered = |s: &Shard, peer, no| s.core.offered(peer, ClaimNo(no));
    assert_eq!(offered(&s, Q, 5), Some((LifeId(1), OTHER)));
    assert_eq!((offered(&s, P, 5), offered(&s, Q, 6)), (None, None));
    assert_eq!(offered(&s, P, 6), None, "that one was offered to this node");
    s.panic(1);
    s.gate_closed(1, OTHER);
    s.gate_closed(1, LEG);
    assert_eq!(offered(&s, Q, 5), None, "its room is over");
}
