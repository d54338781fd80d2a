use super::*;

#[test]
fn a_claim_takes_a_credit_and_is_queued_in_one_step() {
    let (mut a, mut b) = pair();
    a.open_claim(ClaimNo(3), claim(A, B, 3)).unwrap();
    assert_eq!((a.credit_available(), a.unacknowledged()), (3, 1));
    assert_eq!(
        exchange(&mut a, &mut b),
        [Received::Deliver(Body::Claim(claim(A, B, 3)))]
    );
}

#[test]
fn a_refused_claim_comes_back_and_leaves_the_session_as_it_was() {
    let (mut a, _) = pair();
    for n in 1..=4 {
        a.open_claim(ClaimNo(n), claim(A, B, n)).unwrap();
    }
    let cases = [
        (5, claim(A, B, 5), WhyNotOpened::NoCredit),
        (
            4,
            claim(A, B, 4),
            WhyNotOpened::NotRising {
                number: ClaimNo(4),
                opened: 4,
            },
        ),
        (5, claim(A, B, 6), WhyNotOpened::OtherName),
        (5, claim(B, A, 5), WhyNotOpened::OtherName),
    ];
    for (number, c, why) in cases {
        let before = a.clone();
        let refused = a.open_claim(ClaimNo(number), c.clone()).unwrap_err();
        assert_eq!((refused.claim, refused.why), (c, why));
        assert_eq!(a, before);
    }
    let mut fresh = pair().0;
    let over = ClaimNo::MAX.0 + 1;
    assert!(fresh.open_claim(ClaimNo(over), claim(A, B, over)).is_err());
    assert!(fresh.open_claim(ClaimNo(0), claim(A, B, 0)).is_err());
}

#[test]
fn a_claim_is_withdrawn_while_unsent_and_its_credit_comes_back() {
    let (mut a, mut b) = pair();
    a.open_claim(ClaimNo(1), claim(A, B, 1)).unwrap();
    a.queue(Body::Bye { drained: true }).unwrap();
    a.open_claim(ClaimNo(2), claim(A, B, 2)).unwrap();
    a.queue(abort(A, B, 9)).unwrap();
    let receipt = a.withdraw_claim(ClaimNo(1)).unwrap();
    assert_eq!(receipt.claim(), tag(A, B, 1).id);
    assert_eq!(a.credit_available(), 3);
    assert!(a.withdraw_claim(ClaimNo(1)).is_none());
    let out = frames(&mut a, 9);
    assert_eq!(seqs(&out), [1, 2, 3], "no gap");
    for frame in out {
        assert!(matches!(b.receive(frame).unwrap(), Received::Deliver(_)));
    }
    let again = a.open_claim(ClaimNo(1), claim(A, B, 1)).unwrap_err();
    assert!(
        matches!(again.why, WhyNotOpened::NotRising { .. }),
        "its number is spent"
    );
}

#[test]
fn a_claim_that_a_transport_has_seen_is_not_withdrawn() {
    let (mut a, mut b) = pair();
    a.open_claim(ClaimNo(1), claim(A, B, 1)).unwrap();
    a.open_claim(ClaimNo(2), claim(A, B, 2)).unwrap();
    frames(&mut a, 1);
    a.reset();
    assert!(
        a.withdraw_claim(ClaimNo(1)).is_none(),
        "lost with its transport, perhaps"
    );
    assert!(a.withdraw_claim(ClaimNo(2)).is_some());
    a.resume(0).unwrap();
    assert_eq!(exchange(&mut a, &mut b).len(), 1);
    exchange(&mut b, &mut a);
    assert!(a.withdraw_claim(ClaimNo(1)).is_none());
}

#[test]
fn a_number_at_or_below_the_mark_is_stale() {
    let (_, mut b) = pair();
    assert_eq!(b.admit_claim(ClaimNo(5)), Admit::Fresh);
    assert_eq!(b.admit_claim(ClaimNo(5)), Admit::Stale);
    assert_eq!(b.admit_claim(ClaimNo(4)), Admit::Stale);
    assert_eq!(b.admit_claim(ClaimNo(6)), Admit::Fresh);
}

#[test]
fn a_claim_that_comes_after_its_abort_is_dead_on_arrival() {
    let (_, mut b) = pair();
    b.note_abort(ClaimNo(7));
    b.note_abort(ClaimNo(3));
    assert_eq!(b.mark(), ClaimNo(7));
    assert_eq!(b.admit_claim(ClaimNo(7)), Admit::Stale);
    assert_eq!(b.admit_claim(ClaimNo(8)), Admit::Fresh);
}

#[test]
fn giving_up_tells_what_no_transport_has_seen_from_what_may_have_arrived() {
    let (mut a, _) = pair();
    a.open_claim(ClaimNo(1), claim(A, B, 1)).unwrap();
    a.open_claim(ClaimNo(2), claim(A, B, 2)).unwrap();
    a.queue(abort(A, B, 1)).unwrap();
    frames(&mut a, 1);
    let left = a.give_up();
    assert_eq!(left.unacknowledged, [Body::Claim(claim(A, B, 1))]);
    assert_eq!(left.unsent, [abort(A, B, 1)]);
    assert_eq!(left.unsent_claims.len(), 1);
    assert_eq!(left.unsent_claims[0].claim, claim(A, B, 2));
    assert_eq!(left.unsent_claims[0].receipt.claim(), tag(A, B, 2).id);
}

#[test]
fn the_largest_number_is_one_of_a_claim() {
    let (mut a, _) = pair();
    let most = ClaimNo::MAX;
    a.open_claim(most, claim(A, B, most.0)).unwrap();
}
