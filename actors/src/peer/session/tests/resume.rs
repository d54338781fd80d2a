use super::*;

#[test]
fn what_the_peer_has_is_dropped_and_the_rest_is_sent_again_in_order() {
    let (mut a, _) = pair();
    for n in 1..=4 {
        a.queue(abort(A, B, n)).unwrap();
    }
    frames(&mut a, 3);
    a.reset();
    a.resume(1).unwrap();
    assert_eq!(a.unacknowledged(), 3);
    let out = frames(&mut a, 9);
    assert_eq!(seqs(&out), [2, 3, 4]);
    assert_eq!(out[0].body, Some(abort(A, B, 2)));
}

#[test]
fn nothing_goes_out_and_nothing_comes_in_between_reset_and_resume() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    b.queue(abort(B, A, 1)).unwrap();
    let late = frames(&mut b, 9).remove(0);
    a.reset();
    assert!(!a.has_output());
    assert_eq!(frames(&mut a, 9), []);
    assert_eq!(a.receive(late), Ok(Received::Nothing));
    assert_eq!(a.received(), 0);
    a.resume(0).unwrap();
    assert!(a.has_output());
}

#[test]
fn a_reset_in_the_middle_of_sending_again_starts_over() {
    let (mut a, _) = pair();
    for n in 1..=3 {
        a.queue(abort(A, B, n)).unwrap();
    }
    frames(&mut a, 9);
    a.reset();
    a.resume(0).unwrap();
    assert_eq!(seqs(&frames(&mut a, 1)), [1]);
    a.reset();
    a.resume(0).unwrap();
    assert_eq!(seqs(&frames(&mut a, 9)), [1, 2, 3]);
}

#[test]
fn an_acknowledgement_of_what_is_still_to_be_sent_again_spares_it() {
    let (mut a, _) = pair();
    for n in 1..=3 {
        a.queue(abort(A, B, n)).unwrap();
    }
    frames(&mut a, 9);
    a.reset();
    a.resume(0).unwrap();
    a.receive(Frame {
        seq: 0,
        ack: 2,
        body: None,
    })
    .unwrap();
    assert_eq!(seqs(&frames(&mut a, 9)), [3]);
}

#[test]
fn a_peer_whose_number_cannot_be_is_refused_and_nothing_changes() {
    let (mut a, mut b) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    exchange(&mut a, &mut b);
    exchange(&mut b, &mut a);
    a.reset();
    let before = a.clone();
    let forgotten = ResumeRefused::Forgotten {
        peer_received: 0,
        acked: 1,
    };
    assert_eq!(a.resume(0), Err(forgotten));
    assert_eq!(
        a.resume(2),
        Err(ResumeRefused::NeverSent {
            peer_received: 2,
            sent: 1
        })
    );
    assert_eq!(a, before);
    a.resume(1).unwrap();
}

#[test]
fn unsent_progress_survives_a_lost_transport() {
    let (mut a, mut b) = pair();
    a.progress(tag(B, A, 1), 5, 4);
    a.reset();
    a.resume(0).unwrap();
    assert_eq!(exchange(&mut a, &mut b).len(), 1);
}

#[test]
fn a_session_says_between_whom_it_is_and_whether_it_has_a_transport() {
    let (mut a, b) = pair();
    assert_eq!((a.me(), a.peer()), (A, B));
    assert_eq!((b.me(), b.peer()), (B, A));
    assert!(a.is_up());
    a.reset();
    assert!(!a.is_up());
    a.resume(0).unwrap();
    assert!(a.is_up());
}

#[test]
fn what_is_to_be_sent_again_is_output_by_itself() {
    let (mut a, _) = pair();
    a.queue(abort(A, B, 1)).unwrap();
    frames(&mut a, 9);
    assert!(!a.has_output());
    a.reset();
    a.resume(0).unwrap();
    assert!(a.has_output());
    frames(&mut a, 9);
    assert!(!a.has_output());
}
