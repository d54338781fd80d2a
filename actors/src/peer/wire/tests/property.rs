use super::arbitrary::frame;
use super::*;
use proptest::prelude::*;

proptest! {
    #[test]
    fn what_is_encoded_is_decoded(frame in frame()) {
        let out = bytes(&frame);
        let word = u32::from_le_bytes(*out.first_chunk().unwrap());
        prop_assert_eq!(word, length_word((out.len() - PREFIX) as u32));
        prop_assert_eq!(&framed(&out[PREFIX..]), &out);
        prop_assert_eq!(decode_frame(&out[PREFIX..], &BOUNDS), Ok(frame));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = decode_frame(&bytes, &BOUNDS);
        let _ = decode_first_greeting(&bytes);
        let _ = decode_greeting(&bytes, OFFER_BYTES);
        let mut reader = FrameReader::new(BOUNDS);
        let mut rest = &bytes[..];
        while let Ok(Some(_)) = reader.read(&mut rest) {}
        prop_assert!(reader.buffered() <= 2 * bytes.len().max(8));
    }

    #[test]
    fn a_damaged_frame_never_panics(
        frame in frame(), at in any::<prop::sample::Index>(), value: u8, cut: bool
    ) {
        let mut out = bytes(&frame).split_off(PREFIX);
        let i = at.index(out.len());
        if cut {
            out.truncate(i);
            prop_assert!(decode_frame(&out, &BOUNDS).is_err());
        } else {
            out[i] = value;
            if let Ok(Frame { body: Some(body), .. }) = decode_frame(&out, &BOUNDS) {
                prop_assert_eq!(check(&body, &BOUNDS), Ok(()));
            }
        }
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_frame_is_noticed(
        frame in frame(), at in any::<prop::sample::Index>(), bit in 0..8u8
    ) {
        let mut stream = bytes(&frame);
        let i = at.index(stream.len());
        stream[i] ^= 1 << bit;
        let mut reader = FrameReader::new(BOUNDS);
        let error = reader.read(&mut &stream[..]).unwrap_err();
        prop_assert!(error.loses_transport_only(), "{error}");
        prop_assert_eq!(i < 4, matches!(error, WireError::CorruptLength { .. }));
    }

    #[test]
    fn frames_are_found_however_the_stream_is_cut(
        frames in prop::collection::vec(frame(), 1..6),
        cuts in prop::collection::vec(1..200usize, 1..20),
    ) {
        let mut stream = Vec::new();
        for frame in &frames {
            encode_frame(frame, &mut stream, MAX).unwrap();
        }
        let (mut reader, mut got, mut rest) = (FrameReader::new(BOUNDS), Vec::new(), &stream[..]);
        for n in cuts.iter().cycle() {
            let (mut now, later) = rest.split_at((*n).min(rest.len()));
            while let Some(frame) = reader.read(&mut now).unwrap() {
                got.push(frame);
            }
            prop_assert!(now.is_empty());
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        prop_assert_eq!(got, frames);
        prop_assert!(!reader.is_mid_frame());
    }
}
