use super::*;

#[test]
fn a_stream_may_be_cut_at_every_byte() {
    let frame = claim_frame(|_| {});
    let mut stream = bytes(&frame);
    stream.extend(bytes(&frame));
    for cut in 0..=stream.len() {
        let mut reader = FrameReader::new(BOUNDS);
        let (mut first, mut second) = stream.split_at(cut);
        let mut got = Vec::new();
        for part in [&mut first, &mut second] {
            while let Some(frame) = reader.read(part).unwrap() {
                got.push(frame);
            }
        }
        assert_eq!(got, [frame.clone(), frame.clone()], "cut at {cut}");
    }
}

#[test]
fn a_length_over_the_limit_is_refused_before_anything_is_kept() {
    let mut reader = FrameReader::new(BOUNDS);
    let announced = length_word(LENGTH_BITS).to_le_bytes();
    let (mut first, mut second) = announced.split_at(2);
    assert_eq!(reader.read(&mut first), Ok(None));
    let limit = BOUNDS.frame_bytes;
    let error = reader.read(&mut second).unwrap_err();
    assert_eq!(
        error,
        WireError::TooLong {
            len: LENGTH_BITS as usize,
            limit
        }
    );
    assert_eq!(error.fault(), Fault::Peer);
    assert_eq!(reader.buffered(), 0);
    assert_eq!(
        reader.read(&mut &bytes(&claim_frame(|_| {}))[..]),
        Err(WireError::Broken)
    );
}

#[test]
fn a_length_that_differs_in_one_bit_is_no_length() {
    for len in [0, 1, 25, 4096, MAX as u32] {
        let word = length_word(len);
        for bit in 0..32 {
            let word = word ^ 1 << bit;
            let mut reader = FrameReader::new(BOUNDS);
            let error = reader.read(&mut &word.to_le_bytes()[..]).unwrap_err();
            assert_eq!(error, WireError::CorruptLength { word });
            assert!(error.loses_transport_only());
        }
    }
}

#[test]
fn a_large_buffer_is_given_back_and_grows_only_with_what_came() {
    let frame = claim_frame(|c| c.sections[0].pages = vec![1; 4000]);
    let stream = bytes(&frame);
    let mut reader = FrameReader::new(BOUNDS);
    assert_eq!(reader.read(&mut &stream[..100]), Ok(None));
    assert!(reader.buffered() <= 256);
    assert_eq!(reader.read(&mut &stream[100..]), Ok(Some(frame)));
    assert_eq!(reader.buffered(), 0);
}

#[test]
fn a_text_or_list_length_that_lies_is_refused() {
    let id = some_claim().tag;
    let reason = Reason::new(Code::Requested, "x".repeat(50));
    let frame = Frame {
        seq: 1,
        ack: 0,
        body: Some(Body::Abort { tag: id, reason }),
    };
    let text = bytes(&frame).split_off(PREFIX);
    let list = bytes(&claim_frame(|_| {})).split_off(PREFIX);
    for (payload, len) in [(text, 50u64), (list, 32u64)] {
        let at = payload
            .windows(8)
            .position(|w| w == len.to_le_bytes())
            .unwrap();
        for lie in [len + 1, 1 << 20, 1 << 40, u64::MAX] {
            let mut payload = payload.clone();
            payload[at..at + 8].copy_from_slice(&lie.to_le_bytes());
            let error = decode_frame(&payload, &BOUNDS).unwrap_err();
            assert!(matches!(error, WireError::Malformed { .. }), "{error}");
        }
    }
}

#[test]
fn bytes_after_the_frame_are_refused() {
    let mut payload = bytes(&claim_frame(|_| {})).split_off(PREFIX);
    let used = payload.len();
    payload.push(0);
    let error = decode_frame(&payload, &BOUNDS).unwrap_err();
    assert_eq!(
        error,
        WireError::Trailing {
            used,
            len: used + 1
        }
    );
}

#[test]
fn a_frame_over_the_limit_is_not_sent_and_leaves_the_buffer_as_it_was() {
    let frame = claim_frame(|c| c.sections[0].pages = vec![1; 4000]);
    let len = bytes(&frame).len() - PREFIX;
    let mut out = vec![1, 2, 3];
    let error = encode_frame(&frame, &mut out, len - 1).unwrap_err();
    assert_eq!(error, WireError::TooLongToSend { limit: len - 1 });
    assert_eq!(
        (error.fault(), out.as_slice()),
        (Fault::Local, &[1, 2, 3][..])
    );
    encode_frame(&frame, &mut out, len).unwrap();
    assert_eq!(out.len(), 3 + PREFIX + len);
}

#[test]
fn only_a_frame_that_the_transport_changed_is_blamed_on_the_transport() {
    let payload = bytes(&claim_frame(|_| {})).split_off(PREFIX);
    let mut changed = framed(&payload);
    let last = changed.len() - 1;
    changed[last] ^= 1;
    let error = FrameReader::new(BOUNDS)
        .read(&mut &changed[..])
        .unwrap_err();
    let len = payload.len();
    assert_eq!(error, WireError::Corrupt { len });
    assert_eq!(error.fault(), Fault::Transport);
    assert!(error.loses_transport_only());

    // The same bytes, summed as they are: whoever sent them meant them.
    let meant = framed(&changed[PREFIX..][..len - 1]);
    let error = FrameReader::new(BOUNDS).read(&mut &meant[..]).unwrap_err();
    assert_eq!(error.fault(), Fault::Peer);
    assert!(!error.loses_transport_only());
}
