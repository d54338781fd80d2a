use super::*;

fn open(from: &mut Session, to: &mut Session, numbers: std::ops::RangeInclusive<u64>) {
    for n in numbers {
        from.open_claim(ClaimNo(n), claim(A, B, n)).unwrap();
    }
    exchange(from, to);
}

#[test]
fn a_claim_beyond_the_credit_is_a_violation_that_names_the_limit() {
    let (_, mut b) = pair();
    for n in 1..=4 {
        let body = Some(Body::Claim(claim(A, B, n)));
        b.receive(Frame {
            seq: n,
            ack: 0,
            body,
        })
        .unwrap();
    }
    let body = Some(Body::Claim(claim(A, B, 5)));
    let got = b
        .receive(Frame {
            seq: 5,
            ack: 0,
            body,
        })
        .unwrap_err();
    assert_eq!(got, Violation::NoCredit { window: 4 });
    assert!(got.to_string().contains("claims_per_peer"));
}

#[test]
fn credits_of_ended_claims_go_back_in_one_frame() {
    let limits = SessionLimits {
        our_window: 16,
        their_window: 16,
        ..LIMITS
    };
    let (mut a, mut b) = (Session::new(A, B, limits), Session::new(B, A, limits));
    open(&mut a, &mut b, 1..=5);
    for _ in 0..3 {
        b.claim_ended();
        assert!(!b.has_output(), "less than a quarter of the window");
    }
    b.claim_ended();
    b.claim_ended();
    let got = exchange(&mut b, &mut a);
    assert_eq!(
        got,
        [Received::Credit(4)],
        "the fifth waits for the next batch"
    );
    assert_eq!(a.credit_available(), 15);
    assert_eq!(b.window(), 16);
}

#[test]
fn a_peer_without_credit_gets_what_there_is() {
    let limits = SessionLimits {
        our_window: 16,
        their_window: 16,
        ..LIMITS
    };
    let (mut a, mut b) = (Session::new(A, B, limits), Session::new(B, A, limits));
    open(&mut a, &mut b, 1..=16);
    b.claim_ended();
    assert_eq!(exchange(&mut b, &mut a), [Received::Credit(1)]);

    let (mut a, mut b) = (Session::new(A, B, limits), Session::new(B, A, limits));
    open(&mut a, &mut b, 1..=15);
    b.claim_ended();
    assert!(!b.has_output());
    open(&mut a, &mut b, 16..=16);
    assert_eq!(
        exchange(&mut b, &mut a),
        [Received::Credit(1)],
        "ended before the last came"
    );
}

#[test]
fn a_grant_counts_only_once_it_was_transmitted() {
    let (mut a, mut b) = pair();
    open(&mut a, &mut b, 1..=4);
    b.grant(2);
    b.grant(1);
    let fifth = Frame {
        seq: 5,
        ack: 0,
        body: Some(Body::Claim(claim(A, B, 5))),
    };
    assert!(b.clone().receive(fifth.clone()).is_err());
    assert_eq!(exchange(&mut b, &mut a), [Received::Credit(3)]);
    assert!(b.receive(fifth).is_ok());
    assert_eq!(b.window(), 7);
}

#[test]
fn credits_overtake_what_is_queued_and_keep_the_numbers_gapless() {
    let (mut a, mut b) = pair();
    b.queue(abort(B, A, 1)).unwrap();
    b.grant(1);
    let out = frames(&mut b, 9);
    assert_eq!(seqs(&out), [1, 2]);
    assert_eq!(out[0].body, Some(Body::Credit { claims: 1 }));
    for frame in out {
        a.receive(frame).unwrap();
    }
    assert_eq!(a.credit_available(), 5);
}

#[test]
fn ends_without_a_claim_make_no_credit() {
    let (_, mut b) = pair();
    b.claim_ended();
    assert!(!b.has_output());
    assert_eq!(b.window(), 4);
}

#[test]
fn credit_beyond_counting_is_a_violation_and_a_window_stops_at_its_end() {
    let (mut a, mut b) = pair();
    let body = Some(Body::Credit { claims: u32::MAX });
    let got = a.receive(Frame {
        seq: 1,
        ack: 0,
        body,
    });
    assert_eq!(got, Err(Violation::CreditOverflow { claims: u32::MAX }));
    b.grant(u32::MAX);
    assert_eq!(b.window(), u32::MAX);
}

#[test]
fn a_batch_of_credits_is_output_by_itself_until_it_is_sent() {
    let (mut a, mut b) = pair();
    open(&mut a, &mut b, 1..=1);
    assert!(!b.has_output());
    b.claim_ended();
    assert!(b.has_output(), "a quarter of the window");
    exchange(&mut b, &mut a);
    assert!(!b.has_output());
}
