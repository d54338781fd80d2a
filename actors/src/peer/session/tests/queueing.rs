use super::*;
use crate::ids::PoolId;

const RETIRED: Body = Body::PoolRetired { pool: PoolId(1) };

#[test]
fn housekeeping_is_refused_at_the_limit_and_bodies_of_claims_are_not() {
    let (mut a, mut b) = pair();
    for _ in 0..LIMITS.unacknowledged {
        a.queue(RETIRED).unwrap();
    }
    exchange(&mut a, &mut b);
    let refused = a.queue(RETIRED).unwrap_err();
    assert_eq!(*refused.item, RETIRED);
    assert_eq!(
        refused.why,
        WhyRefused::Full {
            limit: LIMITS.unacknowledged
        }
    );
    assert!(refused.to_string().contains("frames_unacknowledged"));
    a.queue(abort(A, B, 1)).unwrap();
    a.queue(Body::Bye { drained: false }).unwrap();
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    a.queue(RETIRED).unwrap();
}

#[test]
fn bodies_that_have_their_own_call_are_handed_back() {
    let (mut a, _) = pair();
    let before = a.clone();
    for body in [
        Body::Claim(claim(A, B, 1)),
        Body::Credit { claims: 1 },
        Body::Ping { nonce: 1 },
        Body::Pong { nonce: 1 },
        Body::Progress {
            tag: tag(B, A, 1),
            posted: 0,
            written: 0,
        },
    ] {
        let refused = a.queue(body.clone()).unwrap_err();
        assert_eq!(*refused.item, body);
        assert!(matches!(refused.why, WhyRefused::WrongCall { .. }));
    }
    assert_eq!(a, before);
}

#[test]
fn frames_go_in_order_and_no_more_than_asked_for() {
    let (mut a, _) = pair();
    for n in 1..=5 {
        a.queue(abort(A, B, n)).unwrap();
    }
    assert_eq!(frames(&mut a, 0), []);
    assert_eq!(seqs(&frames(&mut a, 2)), [1, 2]);
    assert!(a.has_output());
    assert_eq!(seqs(&frames(&mut a, 9)), [3, 4, 5]);
    assert!(!a.has_output());
}

#[test]
fn borrowed_frames_are_the_same_frames() {
    let (mut a, _) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    a.ping(1);
    a.progress(tag(B, A, 1), 1, 1);
    let owned = frames(&mut a.clone(), 9);
    let mut borrowed = Vec::new();
    assert_eq!(a.transmit_with(9, |f| borrowed.push(f.to_frame())), 3);
    assert_eq!(owned, borrowed);
}

#[test]
fn a_last_word_goes_out_in_place_of_what_waits_and_leaves_no_gap() {
    let (mut a, mut b) = pair();
    for n in 1..=6 {
        a.queue(abort(A, B, n)).unwrap();
    }
    let sent = frames(&mut a, 3);
    assert_eq!(seqs(&sent), [1, 2, 3]);
    b.receive(sent[0].clone()).unwrap();
    // Two were lost with their transport, three were never sent.
    a.reset();
    b.reset();
    a.resume(1).unwrap();
    b.resume(0).unwrap();
    a.last_word(Body::Bye { drained: true });
    let heard = exchange(&mut a, &mut b);
    let deliver = |body| Received::Deliver(body);
    assert_eq!(
        heard,
        [
            deliver(abort(A, B, 2)),
            deliver(abort(A, B, 3)),
            deliver(Body::Bye { drained: true })
        ]
    );
    assert!(!a.has_output());
}
