//! Streams that are cut anywhere, and streams that are damaged anywhere.

use super::*;
use proptest::prelude::*;

/// An end, started; keyed or not.
fn pair(d: u64, a: u64, keyed: bool) -> (End, End) {
    let key = || keyed.then(|| key(1));
    (End::dialer(d, key()), End::acceptor(a, key()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn both_agree_however_their_streams_are_cut_and_whoever_is_slow(
        keyed: bool,
        d_lower: bool,
        turns in prop::collection::vec((any::<bool>(), 1..80usize), 1..40),
        say in prop_oneof![Just(Say::Go), Just(Say::Crossed), Just(Say::Refuse)],
        fits: bool,
    ) {
        let (d, a) = if d_lower { (1, 2) } else { (2, 1) };
        let (mut d, mut a) = pair(d, a, keyed);
        (d.say, a.say) = (say, say);
        if !fits {
            a.offer.pools[0].1.layers += 1;
        }
        let (mut to_a, mut to_d) = (Vec::new(), Vec::new());
        let mut idle = 0;
        for (forwards, n) in turns.iter().cycle() {
            to_a.extend(d.sent());
            to_d.extend(a.sent());
            let (pipe, end) = if *forwards { (&mut to_a, &mut a) } else { (&mut to_d, &mut d) };
            let now: Vec<u8> = pipe.drain(..(*n).min(pipe.len())).collect();
            end.hear(&now);
            idle = if now.is_empty() { idle + 1 } else { 0 };
            if idle > 2 * turns.len() {
                break; // One direction that never has its turn in `turns`, or both are done.
            }
        }
        // Whatever was left is carried over at once.
        a.hear(&to_a);
        d.hear(&to_d);
        run(&mut d, &mut a);
        if fits {
            prop_assert_eq!(&d.end, &a.end);
            let ((here, d_decides), (there, a_decides)) = (d.accepted.unwrap(), a.accepted.unwrap());
            prop_assert_eq!(here, there);
            prop_assert_eq!((d_decides, a_decides), (d_lower, !d_lower));
        } else {
            // Each sees by itself that it does not fit.
            let misfit = |end: &End| matches!(end.refusal(), Refusal::Layout { .. });
            prop_assert!(misfit(&d) && misfit(&a));
            prop_assert!(d.accepted.is_none() && a.accepted.is_none());
        }
    }

    #[test]
    fn a_stranger_sees_a_hello_whatever_it_says(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let mut a = End::acceptor(2, Some(key(1)));
        a.hear(&bytes);
        prop_assert!(a.sent().is_empty());

        // The same behind a good Hello.
        let (mut d, mut a) = pair(1, 2, true);
        a.hear(&d.sent());
        let said = a.sent();
        a.hear(&bytes);
        prop_assert!(a.sent().is_empty());
        prop_assert_eq!(messages(&said).len(), 1);
        prop_assert!(a.accepted.is_none());
    }
}

/// Every bit of everything that either side says: with it flipped, nobody is accepted who sent
/// another thing than was heard.
#[test]
fn a_flipped_bit_in_any_message_is_never_accepted() {
    for keyed in [false, true] {
        for d_lower in [false, true] {
            let (d, a) = if d_lower { (1, 2) } else { (2, 1) };
            let (mut whole_d, mut whole_a) = pair(d, a, keyed);
            run(&mut whole_d, &mut whole_a);
            let said = |end: &End, decides: bool| {
                let frames = if decides { b"frames".len() } else { 0 };
                end.written[..end.written.len() - frames].to_vec()
            };
            let from_d = said(&whole_d, d_lower);
            let from_a = said(&whole_a, !d_lower);
            for bit in 0..8 * from_d.len() {
                flip(End::acceptor(a, keyed.then(|| key(1))), &from_d, bit);
            }
            for bit in 0..8 * from_a.len() {
                flip(End::dialer(d, keyed.then(|| key(1))), &from_a, bit);
            }
        }
    }
}

/// `end` hears `stream` with a bit flipped: it fails in that message, or goes on waiting within it.
fn flip(mut end: End, stream: &[u8], bit: usize) {
    let mut damaged = stream.to_vec();
    damaged[bit / 8] ^= 1 << (bit % 8);
    // Where the damaged message begins: what came before was whole.
    let mut begin = 0;
    for message in messages(stream) {
        if begin + message.len() > bit / 8 {
            break;
        }
        begin += message.len();
    }
    end.hear(&stream[..begin]);
    assert_eq!(end.end, None);
    let (accepted, waits_for) = (end.accepted, end.handshake.waits_for());
    end.hear(&damaged[begin..]);
    assert_eq!(end.accepted, accepted, "bit {bit}");
    match &end.end {
        None => assert_eq!(end.handshake.waits_for(), waits_for, "bit {bit}"),
        Some(Err(HandshakeError::Wire(_))) => {}
        other => panic!("bit {bit}: {other:?}"),
    }
}
