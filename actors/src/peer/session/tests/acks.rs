use super::*;

#[test]
fn an_acknowledged_frame_leaves_at_once() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    a.queue(abort(A, B, 2)).unwrap();
    exchange(&mut a, &mut b);
    assert_eq!(a.unacknowledged(), 2);
    exchange(&mut b, &mut a);
    assert_eq!(a.unacknowledged(), 0);
}

#[test]
fn a_bare_acknowledgement_goes_only_when_nothing_else_does() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    exchange(&mut a, &mut b);
    assert!(b.owes_ack() && !b.has_output());
    assert_eq!(
        frames(&mut b.clone(), 9),
        [Frame {
            seq: 0,
            ack: 1,
            body: None
        }]
    );
    b.queue(abort(B, A, 1)).unwrap();
    let out = frames(&mut b, 9);
    assert_eq!(out.len(), 1);
    assert_eq!((out[0].seq, out[0].ack), (1, 1));
    assert!(!b.owes_ack());
    assert_eq!(frames(&mut b, 9), []);
}

#[test]
fn thirty_two_unacknowledged_frames_are_output_by_themselves() {
    let (mut a, mut b) = pair();
    for n in 1..=u64::from(Session::ACK_EVERY) {
        assert!(!b.has_output());
        a.queue(abort(A, B, n)).unwrap();
        exchange(&mut a, &mut b);
    }
    assert!(b.has_output());
}

#[test]
fn an_acknowledgement_is_not_acknowledged() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    assert!(!a.owes_ack() && !b.owes_ack());
}

#[test]
fn an_acknowledgement_of_something_never_sent_is_a_violation() {
    let (mut a, _) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    let ack = |ack| Frame {
        seq: 0,
        ack,
        body: None,
    };
    assert_eq!(
        a.receive(ack(1)),
        Err(Violation::AckOfUnsent { ack: 1, sent: 0 })
    );
    frames(&mut a, 9);
    assert_eq!(a.receive(ack(1)), Ok(Received::Nothing));
    assert_eq!(
        a.receive(ack(2)),
        Err(Violation::AckOfUnsent { ack: 2, sent: 1 })
    );
}

#[test]
fn an_old_acknowledgement_changes_nothing() {
    let (mut a, _) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    a.queue(abort(A, B, 2)).unwrap();
    frames(&mut a, 9);
    a.receive(Frame {
        seq: 0,
        ack: 2,
        body: None,
    })
    .unwrap();
    let before = a.clone();
    a.receive(Frame {
        seq: 0,
        ack: 1,
        body: None,
    })
    .unwrap();
    assert_eq!(a, before);
}

#[test]
fn a_repeated_frame_is_delivered_once_and_acknowledged_again() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    let frame = frames(&mut a, 9).remove(0);
    assert_eq!(
        b.receive(frame.clone()),
        Ok(Received::Deliver(abort(A, B, 1)))
    );
    frames(&mut b, 9);
    assert_eq!(b.receive(frame), Ok(Received::Duplicate));
    assert!(b.owes_ack());
}

#[test]
fn a_frame_that_is_ahead_is_dropped_and_named() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    a.queue(abort(A, B, 2)).unwrap();
    let out = frames(&mut a, 9);
    assert_eq!(
        b.receive(out[1].clone()),
        Ok(Received::OutOfOrder { expected: 1 })
    );
    assert_eq!(b.received(), 0);
}

#[test]
fn a_body_with_the_wrong_kind_of_number_is_a_violation() {
    let (_, mut b) = pair();
    let bad = |seq, body| Frame { seq, ack: 0, body };
    let name = |e: Result<Received, Violation>| match e {
        Err(Violation::BadNumber { name, .. }) => name,
        other => panic!("{other:?}"),
    };
    assert_eq!(name(b.receive(bad(0, Some(abort(A, B, 1))))), "Abort");
    assert_eq!(
        name(b.receive(bad(1, Some(Body::Ping { nonce: 1 })))),
        "Ping"
    );
    assert_eq!(name(b.receive(bad(1, None))), "acknowledgement");
    assert_eq!(b.received(), 0);
}

#[test]
fn a_claim_of_other_incarnations_or_from_the_wrong_side_is_a_violation() {
    let c = Incarnation {
        started_ns: 3,
        nonce: 3,
    };
    for body in [
        abort(c, B, 1),
        abort(A, c, 1),
        abort(B, A, 1),
        Body::Claim(claim(B, A, 1)),
        Body::Quiesced {
            tag: tag(A, B, 1),
            landed: Default::default(),
        },
    ] {
        let (_, mut b) = pair();
        let name = body.name();
        let got = b.receive(Frame {
            seq: 1,
            ack: 0,
            body: Some(body),
        });
        assert_eq!(got, Err(Violation::ForeignClaim { name }));
    }
}

#[test]
fn an_idle_session_and_a_frame_are_small() {
    let (session, body) = (size_of::<Session>(), size_of::<Body>());
    assert!(session <= 384, "{session}");
    assert!(body <= 128, "{body}");
}
