//! Ends: who is told what, how often, and when the leases come back.

use super::*;
use crate::supervisor::io::Which;

/// A sender room of two receivers, P and Q, with one chunk under way to both.
fn sending() -> Shard {
    let mut s = Shard::new();
    s.send(1, key(0), 2);
    s.claim(P, 1, key(0), 2, 0);
    s.claim(Q, 1, key(0), 2, 1);
    s.push(1);
    s
}

/// The session with one of the receivers is given up.
fn lose_p(s: &mut Shard) {
    let reason = Code::SessionLost.into();
    s.tell(Input::PeerLost { peer: P, reason });
}

/// Its last job is over and its room has not been told when the abort comes: one answer to each receiver.
fn is_answered_with_its_proof_in_hand(s: &mut Shard) {
    s.stopped = true;
    s.job_over(1, OTHER, 1, JobEnd::Cancelled);
    let mut out = s.say(P, abort_body(tag(P, 1, key(0))));
    out.extend(s.resume());
    assert_eq!(
        (said(&out, P), said(&out, Q)),
        (vec!["Quiesced"], vec!["Quiesced"])
    );
}

fn receiving() -> Shard {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P, Q], false);
    s.open(1, LEG, tag(P, 1, key(0)));
    s.open(1, OTHER, tag(Q, 1, key(0)));
    s
}

#[test]
fn a_whole_transfer_is_done_and_gives_everything_back() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.claim(P, 1, key(0), 1, 0);
    s.push(1);
    s.finish(1);
    let out = s.landed(1, LEG, 0);
    let back = |o: &Out| {
        matches!(
            o,
            Output::ReleaseChunk {
                lease: "source",
                ..
            }
        )
    };
    assert!(
        out.iter().any(back),
        "the chunk's lease does not wait for the end"
    );
    assert!(said(&s.landed(1, LEG, 1), P).contains(&"Complete"));
    let out = s.say(
        P,
        Body::Accepted {
            tag: tag(P, 1, key(0)),
        },
    );
    assert_eq!(
        (outcomes(&out), returned(&out)),
        (vec![(1, None)], Some(vec!["aux"]))
    );
    assert_eq!(ended_claims(&out), 1);
    assert!(s.core.is_empty() && s.core.claims() == 0);
}

#[test]
fn failed_is_said_at_once_and_quiesced_once_when_the_last_job_is_out() {
    let mut s = sending();
    let out = s.abort(1);
    assert_eq!(
        (said(&out, P), said(&out, Q)),
        (vec!["Failed"], vec!["Failed"])
    );
    s.abort(1);
    let out = s.job_over(1, LEG, 0, JobEnd::Cancelled);
    assert_eq!((said(&out, P).len(), returned(&out)), (0, None));
    let out = s.tell(Input::JobOver {
        life: LifeId(1),
        leg: OTHER,
        job: 1,
        carried: Held::Chunk(ChunkNo(0)),
        rest: 0,
        end: JobEnd::Refused,
        witness: 1,
    });
    assert_eq!(
        (said(&out, P), said(&out, Q)),
        (vec!["Quiesced"], vec!["Quiesced"])
    );
    assert_eq!(
        (returned(&out), ended_claims(&out)),
        (Some(vec!["source"]), 2)
    );
}

#[test]
fn two_receivers_that_abort_the_same_room_get_one_answer_each() {
    let mut s = sending();
    let first = s.say(P, abort_body(tag(P, 1, key(0))));
    let second = s.say(Q, abort_body(tag(Q, 1, key(0))));
    assert_eq!(
        (said(&first, P).len(), said(&first, Q)),
        (0, vec!["Failed"])
    );
    assert_eq!(second, []);
    s.job_over(1, LEG, 0, JobEnd::Cancelled);
    let out = s.job_over(1, OTHER, 1, JobEnd::Cancelled);
    assert_eq!(
        (said(&out, P), said(&out, Q)),
        (vec!["Quiesced"], vec!["Quiesced"])
    );
}

#[test]
fn a_receivers_lease_waits_for_every_gate() {
    let mut s = receiving();
    let out = s.abort(1);
    assert_eq!(
        (said(&out, P), said(&out, Q)),
        (vec!["Abort"], vec!["Abort"])
    );
    assert_eq!(returned(&s.gate_closed(1, LEG)), None);
    assert_eq!(returned(&s.gate_closed(1, OTHER)), Some(vec!["dest"]));
    assert!(s.core.is_empty() && s.core.claims() == 0);
}

#[test]
fn a_witness_that_nobody_waits_for_is_counted_and_pays_nothing() {
    let mut s = receiving();
    s.abort(1);
    s.gate_closed(1, LEG);
    let out = s.gate_closed(1, LEG);
    assert_eq!(
        (counted(&out, Counter::StrayWitness), returned(&out)),
        (1, None)
    );
    assert_eq!(counted(&s.gate_closed(99, LEG), Counter::StrayWitness), 1);
    assert!(returned(&s.gate_closed(1, OTHER)).is_some());
}

#[test]
fn a_claim_without_a_number_is_paid_by_the_sessions_receipt() {
    let mut s = Shard::new();
    s.receive(1, key(0), &[P], false);
    let out = s.abort(1);
    let withdraw = Output::WithdrawClaim {
        life: LifeId(1),
        leg: LEG,
        peer: P,
    };
    assert!(out.contains(&withdraw) && returned(&out).is_none());
    let out = s.tell(Input::ClaimNotOpened {
        life: LifeId(1),
        leg: LEG,
        reason: Code::Requested.into(),
        witness: 3,
    });
    assert_eq!(returned(&out), Some(vec!["dest"]));
}

#[test]
fn a_lost_peer_ends_its_rooms_and_no_other() {
    let mut s = receiving();
    s.receive(2, key(7), &[Q], false);
    let reason = Reason::from(Code::PeerLost);
    let out = s.tell(Input::PeerLost { peer: P, reason });
    assert_eq!(outcomes(&out), [(1, Some(Code::PeerLost))]);
    assert_eq!(said(&out, Q), ["Abort"]);
    assert_eq!(returned(&out), None, "its silence is no proof");
}

#[test]
fn a_lost_peers_early_claims_are_forgotten() {
    let mut s = Shard::new();
    s.claim(P, 1, key(0), 1, 0);
    s.claim(Q, 1, key(1), 1, 0);
    s.tell(Input::PeerLost {
        peer: P,
        reason: Code::PeerLost.into(),
    });
    assert_eq!(s.core.early().len(), 1);
    assert_eq!(said(&s.send(1, key(0), 1), P).len(), 0);
}

#[test]
fn a_peer_that_is_back_is_asked_again_for_every_draining_claim_of_its_own() {
    let mut s = receiving();
    s.receive(2, key(7), &[P], false);
    s.open(2, LEG, tag(P, 2, key(7)));
    s.receive(3, key(8), &[P], false);
    s.open(3, LEG, tag(P, 3, key(8)));
    s.abort(1);
    s.abort(2);
    let out = s.tell(Input::PeerBack { peer: P });
    assert_eq!(
        (said(&out, P), said(&out, Q).len()),
        (vec!["Abort", "Abort"], 0)
    );
    s.gate_closed(2, LEG);
    let out = s.tell(Input::PeerBack { peer: P });
    assert_eq!(
        said(&out, P),
        ["Abort"],
        "what is proven is not asked for again"
    );
}

#[test]
fn an_abort_that_is_repeated_in_a_new_session_is_answered_when_the_sender_is_out() {
    let mut s = sending();
    lose_p(&mut s);
    s.say(P, abort_body(tag(P, 1, key(0))));
    s.job_over(1, LEG, 0, JobEnd::Cancelled);
    let out = s.job_over(1, OTHER, 1, JobEnd::Cancelled);
    assert_eq!(
        (said(&out, P), said(&out, Q)),
        (vec!["Quiesced"], vec!["Quiesced"])
    );
}

#[test]
fn an_abort_that_meets_the_room_of_a_lost_leg_with_its_proof_in_hand_is_answered() {
    let mut s = sending();
    lose_p(&mut s);
    s.job_over(1, LEG, 0, JobEnd::Cancelled);
    is_answered_with_its_proof_in_hand(&mut s);
    assert!(s.core.is_empty() && s.core.claims() == 0);
}

#[test]
fn a_chunk_or_aux_row_for_a_room_that_ended_comes_back_with_its_reason() {
    let mut s = sending();
    s.abort(1);
    let reason = Reason::from(Code::Requested);
    let bounce = |lease| {
        [Output::Bounce {
            lease,
            reason: reason.clone(),
        }]
    };
    assert_eq!(s.push(1), bounce("source"));
    assert_eq!(s.finish(1), bounce("aux"));
    assert!(matches!(
        s.push(77).as_slice(),
        [Output::Bounce {
            lease: "source",
            ..
        }]
    ));
}

#[test]
fn a_chunk_that_was_under_way_to_a_room_as_it_ended_comes_back() {
    let mut s = Shard::new();
    s.send(1, key(0), 1);
    s.stopped = true;
    s.abort(1);
    assert_eq!(s.push(1), []);
    let out = s.resume();
    assert!(matches!(&out[..], [.., Output::Return { .. }]), "{out:?}");
    let bounced = |o: &Out| {
        matches!(
            o,
            Output::Bounce {
                lease: "source",
                ..
            }
        )
    };
    assert!(out.iter().any(bounced));
}

#[test]
fn rooms_are_aborted_by_room_by_tag_by_peer_or_all() {
    let build = || {
        let mut s = receiving();
        s.send(2, RoomKey::new(5, 0), 1);
        let role = StartRole::Sender { receivers: 1 };
        let Input::Start(mut tagged) = start(3, RoomKey::new(6, 0), role) else {
            panic!("a start");
        };
        tagged.tag = Some("agent".into());
        s.tell(Input::Start(tagged));
        s
    };
    let cases: [(Which, &[u64]); 5] = [
        (Which::Room(key(0).id), &[1]),
        (Which::Tag("agent".into()), &[3]),
        (Which::Tag("nobody".into()), &[]),
        (Which::Peer(Q), &[1]),
        (Which::All, &[1, 2, 3]),
    ];
    for (which, hit) in cases {
        let mut s = build();
        assert_eq!(s.core.matching(&which), hit.len(), "{which:?}");
        let abort = || Input::AbortWhere {
            which: which.clone(),
            reason: Code::Requested.into(),
        };
        let lives: Vec<u64> = outcomes(&s.tell(abort()))
            .into_iter()
            .map(|(l, _)| l)
            .collect();
        assert_eq!(lives, hit, "{which:?}");
        assert_eq!(outcomes(&s.tell(abort())), [], "twice");
        assert_eq!(
            outcomes(&s.send(9, RoomKey::new(99, 0), 1)),
            [],
            "new rooms are not touched"
        );
    }
}

#[test]
fn aborting_everything_refuses_the_claims_that_wait() {
    let mut s = Shard::new();
    s.claim(P, 1, key(0), 1, 0);
    let reason = Reason::from(Code::Requested);
    let out = s.tell(Input::AbortWhere {
        which: Which::All,
        reason,
    });
    assert_eq!(
        (said(&out, P), told(&out)),
        (vec!["Failed", "Quiesced"], Some(Code::Requested))
    );
    assert!(s.core.is_empty());
}

#[test]
fn shutdown_says_empty_once_when_nothing_is_held() {
    let empty = |out: &[Out]| out.iter().filter(|o| **o == Output::Empty).count();
    let mut s = receiving();
    s.send(2, key(3), 1);
    s.claim(P, 9, key(4), 1, 0);
    let out = s.tell(Input::Shutdown);
    assert_eq!((outcomes(&out).len(), empty(&out)), (2, 0));
    assert!(matches!(
        s.send(3, key(5), 1).as_slice(),
        [Output::StartRefused { .. }]
    ));
    assert_eq!(told(&s.claim(Q, 9, key(6), 1, 0)), Some(Code::NodeShutdown));
    assert_eq!(empty(&s.gate_closed(1, LEG)), 0);
    assert_eq!(empty(&s.gate_closed(1, OTHER)), 1);
    assert_eq!(empty(&s.tell(Input::Shutdown)), 0);
    assert_eq!(empty(&Shard::new().tell(Input::Shutdown)), 1);
}

#[test]
fn an_abort_that_meets_a_room_with_its_proof_in_hand_is_answered_once() {
    let mut s = sending();
    s.abort(1);
    s.job_over(1, LEG, 0, JobEnd::Cancelled);
    is_answered_with_its_proof_in_hand(&mut s);
}

#[test]
fn an_abort_on_a_lost_leg_is_not_answered_while_a_job_of_its_room_is_out() {
    let mut s = sending();
    lose_p(&mut s);
    s.job_over(1, LEG, 0, JobEnd::Cancelled);
    let out = s.say(P, abort_body(tag(P, 1, key(0))));
    assert_eq!(said(&out, P), Vec::<&str>::new());
    let out = s.job_over(1, OTHER, 1, JobEnd::Cancelled);
    assert_eq!(said(&out, P), ["Quiesced"]);
}

#[test]
fn a_sender_that_says_it_is_out_and_nothing_else_ends_its_receivers_room() {
    let mut s = receiving();
    let (tag, landed) = (tag(P, 1, key(0)), Default::default());
    let out = s.say(P, Body::Quiesced { tag, landed });
    assert_eq!(outcomes(&out), [(1, Some(Code::SessionLost))]);
    assert_eq!((said(&out, P).len(), said(&out, Q)), (0, vec!["Abort"]));
}

#[test]
fn an_answer_to_an_abort_whose_room_is_over_is_expected_and_not_counted() {
    let mut s = receiving();
    s.abort(1);
    s.gate_closed(1, LEG);
    s.gate_closed(1, OTHER);
    let (tag, landed) = (tag(P, 1, key(0)), Default::default());
    assert_eq!(s.say(P, Body::Quiesced { tag, landed }), []);
}

#[test]
fn the_end_of_a_receivers_room_gives_no_credit_back() {
    let mut s = receiving();
    let mut out = s.abort(1);
    out.extend(s.gate_closed(1, LEG));
    out.extend(s.gate_closed(1, OTHER));
    assert_eq!(
        (returned(&out), ended_claims(&out)),
        (Some(vec!["dest"]), 0)
    );
}

#[test]
fn a_receiver_that_rejects_what_came_ends_its_senders_room_with_its_reason() {
    let mut s = Shard::new();
    let (tag, reason) = (tag(P, 1, key(0)), Code::ChecksumMismatch.into());
    s.send(1, key(0), 1);
    s.claim(P, 1, key(0), 1, 0);
    s.push(1);
    s.finish(1);
    s.landed(1, LEG, 0);
    s.landed(1, LEG, 1);
    let out = s.say(P, Body::Rejected { tag, reason });
    assert_eq!(outcomes(&out), [(1, Some(Code::ChecksumMismatch))]);
    assert_eq!(returned(&out), Some(vec!["aux"]));
}

#[test]
fn the_loss_of_a_peer_whose_claim_was_refused_is_not_told_to_the_room() {
    let mut s = Shard::new();
    s.send(1, key(0), 2);
    s.claim(P, 1, key(0), 2, 0);
    s.claim(Q, 1, key(0), 9, 0);
    let reason = Code::PeerLost.into();
    assert_eq!(s.tell(Input::PeerLost { peer: Q, reason }), []);
}
