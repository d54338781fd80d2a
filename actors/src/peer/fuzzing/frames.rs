//! Frames and messages of a greeting: decode, bounds, and the same bytes again.

use super::{BOUNDS, framed};
use crate::fuzzing::Feed;
use crate::peer::message::{Body, Frame};
use crate::peer::wire::{
    self, Bounds, Fault, FrameReader, Greeting, GreetingReader, OFFER_BYTES, Verdict, WireError,
    decode_first_greeting, decode_frame, decode_greeting, encode_first_greeting, encode_frame,
    encode_greeting,
};
use kvroom_kernels::coverage::Coverage;

/// The payload of one control frame. What decodes is within its bounds and is encoded to the very
/// same bytes; a reader finds the same however the stream is cut; whatever else it is, the peer is
/// at fault.
pub fn control_frame(data: &[u8]) {
    control_frame_by(data, decode_frame);
}

/// What decodes the payload of a frame.
pub(crate) type Decoder = fn(&[u8], &Bounds) -> Result<Frame, WireError>;

/// The same, of a decoder that may be wrong.
pub(crate) fn control_frame_by(data: &[u8], decode: Decoder) {
    let once = decode(data, &BOUNDS);
    let stream = framed(data);
    let cut = usize::from(data.last().copied().unwrap_or(0)) % (stream.len() + 1);
    let mut reader = FrameReader::new(BOUNDS);
    let found = read(&mut reader, [&stream[..cut], &stream[cut..]]);
    assert_eq!(found, once.clone().map(Some));
    match &once {
        Ok(frame) => accepted(frame, &stream),
        Err(error) => {
            refused(error);
            let after = read(&mut reader, [&stream, &[]]);
            assert_eq!(after, Err(WireError::Broken));
        }
    }
    // The same bytes without a right length and sum.
    let mut reader = FrameReader::new(BOUNDS);
    let mut rest = data;
    while let Ok(Some(_)) = reader.read(&mut rest) {}
    assert!(reader.buffered() <= 2 * data.len().max(8));
}

fn read(reader: &mut FrameReader, pieces: [&[u8]; 2]) -> Result<Option<Frame>, WireError> {
    let mut found = None;
    for mut piece in pieces {
        while let Some(frame) = reader.read(&mut piece)? {
            assert!(found.is_none(), "one frame was sent");
            found = Some(frame);
        }
        assert!(piece.is_empty(), "bytes were left");
    }
    assert!(!reader.is_mid_frame());
    Ok(found)
}

fn accepted(frame: &Frame, stream: &[u8]) {
    let mut again = Vec::new();
    encode_frame(frame, &mut again, BOUNDS.frame_bytes).unwrap();
    assert_eq!(again, stream, "one value, two spellings");
    let short = stream.len() - wire::PREFIX - 1;
    let refused = encode_frame(frame, &mut again, short);
    assert_eq!(refused, Err(WireError::TooLongToSend { limit: short }));
    assert_eq!(again.len(), stream.len(), "a refused frame leaves bytes");
    let Some(body) = &frame.body else { return };
    assert_eq!(wire::check(body, &BOUNDS), Ok(()));
    assert!(!body.name().is_empty());
    match body {
        Body::Claim(claim) => {
            assert!(claim.rank < claim.receivers && claim.skip <= claim.total);
            assert!(stream.len() - wire::PREFIX <= wire::claim_bytes(claim));
        }
        Body::Complete { coverage: set, .. } | Body::Quiesced { landed: set, .. } => {
            assert_eq!(set.validate(), Ok(()));
        }
        _ => {}
    }
}

fn refused(error: &WireError) {
    assert_eq!(error.fault(), Fault::Peer, "{error}");
    assert!(!error.loses_transport_only() && !error.to_string().is_empty());
}

/// The payload of one message of a handshake, as the first of a side and as a later one.
pub fn greeting(data: &[u8]) {
    let stream = framed(data);
    let first = decode_first_greeting(data);
    let mut rest = &stream[..];
    let found = GreetingReader::default().first(&mut rest);
    match (&first, found) {
        (Ok(message), Ok(Some(found))) => {
            assert_eq!((message, data), (&found.greeting, &*found.payload));
            let mut again = Vec::new();
            encode_first_greeting(message, &mut again).unwrap();
            assert_eq!(again, stream);
        }
        (Err(error), Err(found)) => {
            refused(error);
            assert_eq!(found.fault(), Fault::Peer, "{found}");
        }
        (first, found) => panic!("{first:?} and {found:?}"),
    }
    let later = decode_greeting(data, OFFER_BYTES);
    let mut rest = &stream[..];
    let found = GreetingReader::default().next(&mut rest, OFFER_BYTES);
    assert_eq!(found, later.clone().map(Some));
    match later {
        Ok(message) => {
            let mut again = Vec::new();
            encode_greeting(&message, &mut again).unwrap();
            assert_eq!(again, stream, "one value, two spellings");
            assert!(!message.name().is_empty());
            within(&message);
        }
        Err(error) => refused(&error),
    }
}

/// The bounds of what decodes, by other words than the decoder's own.
fn within(message: &Greeting) {
    let text = match message {
        Greeting::Hello(hello) => {
            assert!(hello.protocols.oldest <= hello.protocols.newest);
            &hello.node
        }
        Greeting::Offer(offer) => {
            assert!(offer.pools.len() <= 64);
            for (n, (id, layout)) in offer.pools.iter().enumerate() {
                assert!((1..=64).contains(&layout.name.len()));
                assert!(layout.layers > 0 && layout.pages > 0 && layout.page_bytes > 0);
                let mut before = offer.pools[..n].iter();
                assert!(!before.any(|(other, l)| other == id || l.name == layout.name));
            }
            match offer.host.as_ref().and_then(|host| host.socket.as_ref()) {
                Some(socket) => socket,
                None => return,
            }
        }
        Greeting::Link(link) => {
            let pools: std::collections::BTreeSet<_> =
                link.pools.iter().map(|p| p.pool.0).collect();
            assert!(link.pools.len() <= 64 && pools.len() == link.pools.len());
            return;
        }
        Greeting::Verdict(Verdict::Refused { text, .. }) => {
            assert!(text.len() <= 512);
            return;
        }
        Greeting::Wired(why) => {
            assert!(why.as_ref().is_none_or(|why| why.len() <= 512));
            return;
        }
        Greeting::Verdict(_) | Greeting::Mac(_) | Greeting::Data(_) => return,
    };
    assert!((1..=100).contains(&text.len()), "{} bytes", text.len());
}

/// Two sets of cells as a peer may send them, before anybody has validated them: answers may be
/// wrong, and nothing panics. One that is valid is equal to one that grew of its rectangles.
pub fn coverage(data: &[u8]) {
    let mut feed = Feed::new(data);
    let (a, b) = (feed.long(), feed.long());
    let (Ok(a), Ok(b)) = (
        wire::decode_unchecked::<Coverage>(a),
        wire::decode_unchecked::<Coverage>(b),
    ) else {
        return;
    };
    let (section, layer, page) = (feed.u16(), feed.u32(), feed.u32());
    for (set, other) in [(&a, &b), (&b, &a)] {
        let _ = (set.cells(), set.is_empty(), set.is_exactly(other));
        let _ = (set.first_missing(other), set.first_extra(other));
        let _ = set.contains(section, layer, page);
        let mut more = set.clone();
        let _ = more.insert(
            section,
            layer..layer.saturating_add(3),
            page..page.saturating_add(3),
        );
        let _ = more.absorb(other);
    }
    if a.validate().is_err() {
        return;
    }
    assert!(a.is_exactly(&a) && a.first_missing(&a).is_none() && a.first_extra(&a).is_none());
    let mut grown = Coverage::new();
    for rect in a.rects().iter().rev() {
        grown
            .insert(
                rect.section,
                rect.layer..rect.layer_end,
                rect.page..rect.page_end,
            )
            .unwrap();
    }
    assert_eq!(grown, a);
    if b.validate().is_ok() {
        let mut both = a.clone();
        if both.absorb(&b).is_ok() {
            assert_eq!(both.validate(), Ok(()));
            assert_eq!(both.cells(), a.cells().saturating_add(b.cells()));
        } else {
            assert_eq!(both, a, "a refused set was added in part");
        }
    }
}
