//! Two honest ends.

use super::*;
use crate::peer::hello::{Before, Start};

fn keys() -> [(Option<ClusterKey>, Option<ClusterKey>); 2] {
    [(None, None), (Some(key(1)), Some(key(1)))]
}

#[test]
fn both_come_to_the_same_end_and_the_lower_incarnation_decides() {
    for (left, right) in keys() {
        for (d, a) in [(1, 2), (2, 1)] {
            let mut d = End::dialer(d, left.clone());
            let mut a = End::acceptor(a, right.clone());
            let d_decides = d.handshake.mine.incarnation < a.handshake.mine.incarnation;
            run(&mut d, &mut a);
            assert_eq!((&d.end, &a.end), (&Some(Ok(Step::Go)), &Some(Ok(Step::Go))));
            let ((here, d_decided), (there, a_decided)) =
                (d.accepted.unwrap(), a.accepted.unwrap());
            assert_eq!(here, there);
            assert_eq!((d_decided, a_decided), (d_decides, !d_decides));
            // What the decider sends behind its Go is not the handshake's.
            let (decider, other) = if d_decides { (&d, &a) } else { (&a, &d) };
            assert_eq!(
                (&decider.inbox[..], &other.inbox[..]),
                (&b""[..], &b"frames"[..])
            );
        }
    }
}

#[test]
fn what_the_decider_says_is_what_the_other_hears() {
    for say in [Say::Crossed, Say::Refuse] {
        for (d, a) in [(1, 2), (2, 1)] {
            let (mut d, mut a) = (End::dialer(d, None), End::acceptor(a, None));
            (d.say, a.say) = (say, say);
            run(&mut d, &mut a);
            assert_eq!(d.end, a.end);
            let said = match say {
                Say::Crossed => Step::Crossed,
                _ => no_room(),
            };
            assert_eq!(d.end, Some(Ok(said)));
        }
    }
}

#[test]
fn the_same_session_is_resumed_with_what_the_other_has_received() {
    let session = Some(SessionId {
        lower: 5,
        higher: 6,
    });
    let (mut d, mut a) = (End::dialer(1, Some(key(1))), End::acceptor(2, Some(key(1))));
    (d.known, a.known) = (Some(life(2)), Some(life(1)));
    (d.offer.resume, d.offer.received) = (session, 30);
    (a.offer.resume, a.offer.received) = (session, 40);
    run(&mut d, &mut a);
    let (here, there) = (d.accepted.unwrap().0, a.accepted.unwrap().0);
    assert_eq!(Some(here.session), session);
    assert_eq!(Some(there.session), session);
    assert_eq!(here.start, Start::Resume { received: 40 });
    assert_eq!(there.start, Start::Resume { received: 30 });
}

#[test]
fn a_session_that_only_one_side_has_begins_afresh_on_both() {
    let (mut d, mut a) = (End::dialer(1, None), End::acceptor(2, None));
    (d.known, a.known) = (Some(life(2)), Some(life(1)));
    d.offer.resume = Some(SessionId {
        lower: 5,
        higher: 6,
    });
    run(&mut d, &mut a);
    let (here, there) = (d.accepted.unwrap().0, a.accepted.unwrap().0);
    assert_eq!(here, there);
    let before = Before::LostSession;
    assert_eq!(here.start, Start::Fresh { before });
}

#[test]
fn an_older_life_is_told_that_it_is_superseded() {
    for (d, a) in [(1, 2), (2, 1)] {
        let (mut d, mut a) = (End::dialer(d, Some(key(1))), End::acceptor(a, Some(key(1))));
        a.known = Some(life(9));
        run(&mut d, &mut a);
        assert!(matches!(a.refusal(), Refusal::Superseded { .. }));
        let Some(Ok(Step::Refused { code, text })) = &d.end else {
            panic!("{:?}", d.end)
        };
        assert_eq!(*code, RefusalCode::Superseded);
        assert_eq!(*text, a.refusal().to_string());
    }
}

#[test]
fn layouts_that_differ_are_refused_and_told_behind_the_macs_only() {
    let (mut d, mut a) = (End::dialer(1, Some(key(1))), End::acceptor(2, Some(key(1))));
    a.offer.pools[0].1.layers = 99;
    run(&mut d, &mut a);
    for (end, n) in [
        (&d, "layers 2 here, 99 there"),
        (&a, "layers 99 here, 2 there"),
    ] {
        assert!(end.refusal().to_string().contains(n), "{}", end.refusal());
        assert_eq!(end.accepted, None);
        let said = messages(&end.written);
        // Hello, Mac, Offer, Refused.
        assert_eq!(said.len(), 4);
        assert!(!contains(&said[..2].concat(), b"secret-pool"));
        assert!(contains(&said[2], b"secret-pool"));
        assert!(contains(&said[3], b"layers"));
    }
}

#[test]
fn a_node_may_refuse_a_peer_that_it_knows_instead_of_offering() {
    let (mut d, mut a) = (
        Handshake::dialer(hello("d", 1), None),
        End::acceptor(2, None),
    );
    let mut out = Vec::new();
    d.start(&mut out).unwrap();
    a.hear(&mem::take(&mut out));
    let sent = a.sent();
    let mut bytes = &sent[..];
    assert!(matches!(d.take(&mut bytes, &mut out), Ok(Step::Known(_))));
    let long = "ü".repeat(wire::MAX_REFUSAL);
    d.refuse(RefusalCode::Stopping, &long, &mut out).unwrap();
    a.hear(&out);
    let Some(Ok(Step::Refused { code, text })) = &a.end else {
        panic!("{:?}", a.end)
    };
    assert_eq!(
        (*code, text.len()),
        (RefusalCode::Stopping, wire::MAX_REFUSAL)
    );
    assert!(d.refuse(RefusalCode::Stopping, "again", &mut out).is_err());
}

#[test]
fn one_key_alone_is_refused_on_both_sides_and_says_where_it_lacks() {
    for keyed_dialer in [true, false] {
        let (left, right) = if keyed_dialer {
            (Some(key(1)), None)
        } else {
            (None, Some(key(1)))
        };
        let (mut d, mut a) = (End::dialer(1, left), End::acceptor(2, right));
        run(&mut d, &mut a);
        for (end, lacking) in [(&d, !keyed_dialer), (&a, keyed_dialer)] {
            let Refusal::OneKeyed { lacking_here, .. } = end.refusal() else {
                panic!("{:?}", end.refusal())
            };
            assert_eq!(*lacking_here, lacking);
            assert_eq!(
                messages(&end.written).len(),
                1,
                "more than a Hello was said"
            );
        }
    }
}

#[test]
fn another_protocol_and_a_connection_to_oneself_are_noticed_on_both_sides() {
    let mut other = hello("d", 1);
    other.protocols = Protocols {
        oldest: 7,
        newest: 9,
    };
    let (mut d, mut a) = (
        End::new(Handshake::dialer(other, None)),
        End::acceptor(2, None),
    );
    run(&mut d, &mut a);
    assert!(matches!(d.refusal(), Refusal::Protocol { .. }));
    assert!(matches!(a.refusal(), Refusal::Protocol { .. }));

    let (mut d, mut a) = (End::dialer(1, Some(key(1))), End::acceptor(1, Some(key(1))));
    run(&mut d, &mut a);
    assert!(matches!(d.refusal(), Refusal::SelfConnection { .. }));
    assert!(matches!(a.refusal(), Refusal::SelfConnection { .. }));
}

#[test]
fn a_data_connection_is_told_nothing_and_its_frames_are_left_to_the_caller() {
    let data = DataHello::new(77, (crate::copy::schedule::Class::Bulk, 3), 1, None);
    for key in [None, Some(key(1))] {
        let mut a = End::acceptor(2, key);
        let mut bytes = Vec::new();
        wire::encode_first_greeting(&Greeting::Data(data), &mut bytes).unwrap();
        bytes.extend_from_slice(b"frames");
        a.hear(&bytes);
        assert_eq!(a.end, Some(Ok(Step::Data(data))));
        assert_eq!(a.inbox, b"frames");
        assert!(a.sent().is_empty());
    }
}
