use super::*;

fn progress(n: u64, posted: u64) -> Body {
    Body::Progress {
        tag: tag(B, A, n),
        posted,
        written: 0,
    }
}

#[test]
fn progress_is_overwritten_in_place_and_sent_once() {
    let (mut a, mut b) = pair();
    a.progress(tag(B, A, 1), 1, 0);
    a.progress(tag(B, A, 1), 2, 0);
    assert!(a.has_output());
    assert_eq!(
        exchange(&mut a, &mut b),
        [Received::Deliver(progress(1, 2))]
    );
    assert!(!a.has_output() && !b.owes_ack());
}

#[test]
fn progress_of_more_claims_than_the_limit_is_dropped() {
    let (mut a, _) = pair();
    for n in 1..=9 {
        a.progress(tag(B, A, n), n, 0);
    }
    a.progress(tag(B, A, 4), 40, 0);
    let out = frames(&mut a, 99);
    let bodies: Vec<_> = out.into_iter().filter_map(|f| f.body).collect();
    assert_eq!(
        bodies,
        [
            progress(1, 1),
            progress(2, 2),
            progress(3, 3),
            progress(4, 40)
        ]
    );
}

#[test]
fn progress_takes_turns() {
    let (mut a, _) = pair();
    let mut seen = Vec::new();
    for _ in 0..4 {
        for n in 1..=4 {
            a.progress(tag(B, A, n), 0, 0);
        }
        seen.extend(
            frames(&mut a, 1)
                .iter()
                .filter_map(|f| Some(f.body.as_ref()?.tag()?.id.number.0)),
        );
    }
    assert_eq!(seen, [1, 2, 3, 4]);
}

#[test]
fn progress_gets_a_share_of_a_busy_session() {
    let (mut a, _) = pair();
    for n in 1..=20 {
        a.queue(abort(A, B, n)).unwrap();
    }
    a.progress(tag(B, A, 1), 1, 0);
    let out = frames(&mut a, 8);
    assert_eq!(seqs(&out), [1, 2, 3, 4, 5, 6, 7, 0]);
}

#[test]
fn progress_does_not_outlive_the_end_of_its_claim() {
    let (mut a, _) = pair();
    a.progress(tag(B, A, 1), 1, 0);
    let reason = Reason::from(Code::Requested);
    a.queue(Body::Failed {
        tag: tag(B, A, 1),
        reason,
    })
    .unwrap();
    assert_eq!(seqs(&frames(&mut a, 9)), [1]);
}

#[test]
fn a_ping_is_answered_with_its_nonce_ahead_of_everything() {
    let (mut a, mut b) = pair();
    a.ping(6);
    a.ping(7);
    b.queue(abort(B, A, 1)).unwrap();
    assert_eq!(exchange(&mut a, &mut b), [Received::Nothing]);
    let got = exchange(&mut b, &mut a);
    assert_eq!(got[0], Received::Deliver(Body::Pong { nonce: 7 }));
    assert_eq!(got.len(), 2);
}

#[test]
fn questions_end_with_their_transport() {
    let (mut a, mut b) = pair();
    a.ping(7);
    exchange(&mut a, &mut b);
    a.ping(8);
    for s in [&mut a, &mut b] {
        s.reset();
        s.resume(0).unwrap();
        assert_eq!(frames(s, 9), []);
    }
}

#[test]
fn progress_takes_no_more_of_a_busy_session_than_there_is_and_at_most_a_quarter() {
    for (waiting, share) in [(0, 0), (1, 1), (2, 2), (4, 2)] {
        let (mut a, _) = pair();
        for n in 1..=20 {
            a.queue(abort(A, B, n)).unwrap();
        }
        for n in 1..=waiting {
            a.progress(tag(B, A, n), 1, 0);
        }
        let out = seqs(&frames(&mut a, 8));
        let unnumbered = out.iter().filter(|seq| **seq == 0).count();
        assert_eq!((out.len(), unnumbered), (8, share), "{waiting} wait");
    }
}

#[test]
fn a_question_and_its_answer_are_output_by_themselves() {
    let (mut a, mut b) = pair();
    a.ping(1);
    assert!(a.has_output() && !b.has_output());
    exchange(&mut a, &mut b);
    assert!(!a.has_output() && b.has_output());
    exchange(&mut b, &mut a);
    assert!(!b.has_output());
}
