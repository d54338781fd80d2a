//! An honest end, and one that is not.

use super::*;

/// The dialer of a connection to `acceptor` after which all was well: all that it said.
fn overheard(mut acceptor: End) -> Vec<Vec<u8>> {
    let mut d = End::dialer(1, Some(key(1)));
    run(&mut d, &mut acceptor);
    assert_eq!(acceptor.end, Some(Ok(Step::Go)));
    messages(&d.written[..d.written.len() - b"frames".len()])
}

#[test]
fn another_key_gets_a_hello_and_nothing_else() {
    let (mut d, mut a) = (End::dialer(1, Some(key(1))), End::acceptor(2, Some(key(2))));
    run(&mut d, &mut a);
    assert_eq!(*a.refusal(), Refusal::BadMac { node: "d".into() });
    let said = messages(&a.written);
    let mut hello_only = Vec::new();
    let mut mine = hello("a", 2);
    mine.keyed = true;
    wire::encode_first_greeting(&Greeting::Hello(mine), &mut hello_only).unwrap();
    assert_eq!(said, [hello_only]);
    // The dialer is told nothing; that the connection is closed tells it.
    assert_eq!(d.end, None);
    let closed = d.handshake.closed();
    assert_eq!(closed, HandshakeError::MacNotTaken { node: "a".into() });
    assert_eq!(messages(&d.written).len(), 2, "Hello and Mac");
}

#[test]
fn an_acceptor_with_another_key_gets_nothing_but_hello_and_mac() {
    // It answers with a MAC although the dialer's is wrong for it.
    let mut d = End::dialer(1, Some(key(1)));
    let mut theirs = Vec::new();
    let mut mine = hello("a", 2);
    mine.keyed = true;
    wire::encode_first_greeting(&Greeting::Hello(mine), &mut theirs).unwrap();
    d.hear(&theirs);
    let sent = d.sent();
    let said = messages(&sent);
    let transcript = Transcript {
        dialer: said[0][wire::PREFIX..].into(),
        acceptor: theirs[wire::PREFIX..].into(),
    };
    let mut bytes = Vec::new();
    say(
        Greeting::Mac(transcript.sign(&key(2), Role::Acceptor)),
        &mut bytes,
    )
    .unwrap();
    d.hear(&bytes);
    assert_eq!(*d.refusal(), Refusal::BadMac { node: "a".into() });
    assert!(d.sent().is_empty());
    assert!(!contains(&d.written, b"secret-pool"));
}

#[test]
fn a_replayed_greeting_is_wrong_since_the_acceptors_nonce_is_new() {
    let replay = overheard(End::acceptor(2, Some(key(1))));
    let mut fresh = hello("a", 2);
    fresh.nonce = [42; 32];
    let mut a = End::new(Handshake::acceptor(fresh, Some(key(1))));
    a.hear(&replay.concat());
    assert_eq!(*a.refusal(), Refusal::BadMac { node: "d".into() });
    a.sent();
    assert_eq!(messages(&a.written).len(), 1);
    // The replay is good where the nonce is not new: it is the nonce that this test is about.
    let mut a = End::acceptor(2, Some(key(1)));
    a.hear(&replay.concat());
    assert!(a.accepted.is_some());
}

#[test]
fn a_reflected_mac_is_wrong() {
    let mut d = End::dialer(1, Some(key(1)));
    let mut bytes = Vec::new();
    let mut liar = hello("liar", 2);
    liar.keyed = true;
    wire::encode_first_greeting(&Greeting::Hello(liar), &mut bytes).unwrap();
    d.hear(&bytes);
    let sent = d.sent();
    d.hear(&messages(&sent)[1]);
    assert_eq!(
        *d.refusal(),
        Refusal::BadMac {
            node: "liar".into()
        }
    );
}

#[test]
fn a_reflected_greeting_is_a_connection_to_oneself() {
    let mut d = End::dialer(1, Some(key(1)));
    let sent = d.sent();
    d.hear(&sent);
    assert!(matches!(d.refusal(), Refusal::SelfConnection { .. }));
}

#[test]
fn garbage_and_long_and_short_messages_end_it_at_once() {
    let heard = |bytes: &[u8]| {
        let mut a = End::acceptor(2, Some(key(1)));
        a.hear(bytes);
        assert!(a.sent().is_empty(), "{bytes:?} was answered");
        a
    };
    let http = heard(b"GET / HTTP/1.1\r\n\r\n");
    assert!(http.error().to_string().contains("no kvroom node"));
    assert_eq!(http.error().fault(), Some(hello::Fault::Peer));
    for bytes in [&[0xff; 64][..], &[0x16, 3, 1, 2, 0, 1, 0, 1], &[0; 8]] {
        assert!(heard(bytes).end.is_some(), "{bytes:?}");
    }
    // Once greeted, a message over the stranger's limit is not waited for either.
    let hello = &overheard(End::acceptor(2, Some(key(1))))[0];
    let mut a = End::acceptor(2, Some(key(1)));
    a.hear(hello);
    a.hear(&wire::length_word(wire::STRANGER_BYTES as u32 + 1).to_le_bytes());
    assert!(matches!(
        a.error(),
        HandshakeError::Wire(WireError::TooLong { .. })
    ));
}

#[test]
fn a_greeting_that_ends_early_is_said_to_be_waited_for() {
    let greeting = overheard(End::acceptor(2, Some(key(1))));
    for n in 0..greeting.len() {
        let mut a = End::acceptor(2, Some(key(1)));
        let all = greeting[..=n].concat();
        a.hear(&all[..all.len() - 1]);
        assert_eq!(a.end, None);
        let expected = ["Hello", "Mac", "Offer", "Go"][n];
        assert!(a.handshake.closed().to_string().contains(expected));
        assert!(a.handshake.waits_for().contains(expected));
    }
}

/// Every message that there is.
fn all_messages() -> Vec<(Greeting, Vec<u8>)> {
    let session = SessionId {
        lower: 1,
        higher: 1,
    };
    let data = DataHello::new(1, (Default::default(), 0), 1, None);
    let verdicts = [Verdict::Accept { session }, Verdict::Go, Verdict::Crossed];
    let mut all = vec![
        Greeting::Hello(hello("x", 9)),
        Greeting::Data(data),
        Greeting::Mac([0; 32]),
        Greeting::Offer(offer()),
    ];
    all.extend(verdicts.map(Greeting::Verdict));
    let bytes = |greeting: &Greeting, first| {
        let mut out = Vec::new();
        if first {
            wire::encode_first_greeting(greeting, &mut out).unwrap();
        } else {
            wire::encode_greeting(greeting, &mut out).unwrap();
        }
        out
    };
    let later = all.iter().map(|g| (g.clone(), bytes(g, false)));
    let first = all.iter().filter_map(|g| {
        let small = !matches!(g, Greeting::Offer(_));
        small.then(|| (g.clone(), bytes(g, true)))
    });
    later.chain(first).collect()
}

#[test]
fn a_message_out_of_order_ends_it_and_says_what_belongs_there() {
    // What came in before, who hears it, and the only messages that may come now.
    let key = || Some(key(1));
    let said = overheard(End::acceptor(2, key()));
    let acceptor: [(usize, &[&str]); 4] = [
        (0, &["Hello", "DataHello"]),
        (1, &["Mac"]),
        (2, &["Offer"]),
        (3, &["Go", "Crossed"]),
    ];
    let mut wrong = 0;
    for (before, allowed) in acceptor {
        for (message, bytes) in all_messages() {
            let mut a = End::acceptor(2, key());
            a.hear(&said[..before].concat());
            assert_eq!(a.end, None);
            let waited_for = a.handshake.waits_for();
            let written = a.sent();
            a.hear(&bytes);
            if allowed.contains(&message.name()) {
                continue;
            }
            match a.error() {
                HandshakeError::OutOfOrder { got, expected } => {
                    assert_eq!((*got, *expected), (message.name(), waited_for));
                }
                // With the magic or without where the other belongs, or too long for a stranger.
                HandshakeError::Wire(_) => {}
                other => panic!("{message:?} after {before}: {other}"),
            }
            assert!(a.sent().is_empty(), "{message:?} was answered");
            assert!(before > 1 || !contains(&written, b"secret-pool"));
            // It is over.
            let again = a.handshake.take(&mut &said[0][..], &mut Vec::new());
            assert!(matches!(again, Err(HandshakeError::Misused { .. })));
            wrong += 1;
        }
    }
    assert!(wrong > 30, "only {wrong} were tried");

    // The decider waits for an Accept, of the session that it has computed.
    for (message, bytes) in all_messages() {
        let (mut d, mut a) = (End::dialer(1, None), End::acceptor(2, None));
        a.hear(&d.sent());
        let sent = a.sent();
        d.hear(&sent);
        assert_eq!(d.handshake.waits_for(), "the peer's Accept or Refused");
        d.hear(&bytes);
        match (d.error(), &message) {
            (HandshakeError::Disagreed { .. }, Greeting::Verdict(Verdict::Accept { .. })) => {}
            (HandshakeError::OutOfOrder { .. } | HandshakeError::Wire(_), _) => {}
            (other, _) => panic!("{message:?}: {other}"),
        }
        assert_eq!(d.accepted, None);
    }
}

#[test]
fn a_dialer_takes_no_data_connection() {
    let mut d = End::dialer(1, None);
    let data = all_messages()
        .into_iter()
        .rfind(|(g, _)| g.name() == "DataHello");
    d.hear(&data.unwrap().1);
    assert!(matches!(d.error(), HandshakeError::OutOfOrder { .. }));
}

#[test]
fn a_call_out_of_order_changes_nothing() {
    let mut d = End::dialer(1, None);
    let mut out = Vec::new();
    let misused = |result: Result<(), HandshakeError>| {
        assert_eq!(result.unwrap_err().fault(), Some(hello::Fault::Local));
    };
    misused(d.handshake.start(&mut out));
    misused(d.handshake.offer(offer(), None, &mut out));
    misused(d.handshake.go(&mut out));
    misused(d.handshake.crossed(&mut out));
    misused(d.handshake.refuse(RefusalCode::Other, "", &mut out));
    assert!(out.is_empty(), "a stranger was told something");
    let mut a = End::acceptor(2, None);
    run(&mut d, &mut a);
    assert_eq!((d.end, a.end), (Some(Ok(Step::Go)), Some(Ok(Step::Go))));
}
