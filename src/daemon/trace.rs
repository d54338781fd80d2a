//! W3C `traceparent`: the trace that a request is of, and who asked.
//!
//! ```text
//!   00 - 4bf92f3577b34da6a3ce929d0e0e4736 - 00f067aa0ba902b7 - 01
//!   version   trace id                      parent id          flags
//! ```
//!
//! Read strictly, as the recommendation asks: a header that is wrong in any place is no header. A later
//! version is read as far as this one goes. What travels with a claim are the two ids; the flags say
//! what a tracing library should do, and there is none here.

use kvroom::Trace;

/// Digits of each field, with the dashes between them.
const LENGTH: usize = 55;

/// The trace id and the parent's span id of a `traceparent`.
///
/// # Errors
/// It is none; in words.
pub(crate) fn parse(text: &str) -> Result<(u128, u64), &'static str> {
    let bytes = text.as_bytes();
    let (Some(head), dashes) = (bytes.get(..LENGTH), [2, 35, 52]) else {
        return Err(FORM);
    };
    let is_hex = |b: u8| matches!(b, b'0'..=b'9' | b'a'..=b'f');
    let well_formed = (0..).zip(head).all(|(at, b)| match dashes.contains(&at) {
        true => *b == b'-',
        false => is_hex(*b),
    });
    // What a later version adds stands behind another dash.
    let ends_well = match &bytes[LENGTH..] {
        [] => true,
        [b'-', ..] => &head[..2] != b"00",
        _ => false,
    };
    if !well_formed || !ends_well {
        return Err(FORM);
    }
    if &head[..2] == b"ff" {
        return Err("traceparent: there is no version ff");
    }
    let field = |from, to| u128::from_str_radix(&text[from..to], 16).map_err(|_| FORM);
    let (trace, parent) = (field(3, 35)?, field(36, 52)?);
    if trace == 0 || parent == 0 {
        return Err("traceparent: neither id is all zeroes");
    }
    Ok((trace, parent as u64))
}

const FORM: &str = "traceparent must be VERSION-TRACE-PARENT-FLAGS, 2, 32, 16 and 2 lower-case hexadecimal \
                    digits: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

/// The `traceparent` of a room whose ids came with a claim: without flags, which are not carried.
pub(crate) fn show(trace: &Trace) -> String {
    format!("00-{trace}-00")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    const GOOD: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    const IDS: (u128, u64) = (
        0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
        0x00f0_67aa_0ba9_02b7,
    );

    #[test]
    fn the_two_ids_of_a_traceparent_are_read() {
        assert_eq!(parse(GOOD), Ok(IDS));
    }

    #[test]
    fn a_later_version_is_read_as_far_as_this_one_goes() {
        assert_eq!(parse(&GOOD.replacen("00", "01", 1)), Ok(IDS));
        let longer = format!("{}-more", GOOD.replacen("00", "cc", 1));
        assert_eq!(parse(&longer), Ok(IDS));
        let glued = format!("{}more", GOOD.replacen("00", "cc", 1));
        assert!(parse(&glued).is_err());
        assert!(
            parse(&format!("{GOOD}-more")).is_err(),
            "version 00 has four fields"
        );
        assert!(parse(&format!("{GOOD}-")).is_err());
    }

    #[test]
    fn what_is_wrong_in_any_place_is_no_traceparent() {
        for (what, bad) in [
            ("nothing", String::new()),
            ("a field is missing", GOOD[..52].to_owned()),
            ("upper case", GOOD.to_uppercase()),
            ("version ff", GOOD.replacen("00", "ff", 1)),
            (
                "no trace id",
                format!("00-{}-00f067aa0ba902b7-01", "0".repeat(32)),
            ),
            (
                "no parent id",
                GOOD.replace("00f067aa0ba902b7", &"0".repeat(16)),
            ),
            ("a space in front", format!(" {GOOD}")),
            ("a space behind", format!("{GOOD} ")),
            ("two bytes of one character", GOOD.replacen("4b", "é", 1)),
            ("a sign", GOOD.replacen("4b", "+b", 1)),
        ] {
            assert!(parse(&bad).is_err(), "{what}: {bad:?}");
        }
        for at in 0..LENGTH {
            let mut bad = GOOD.as_bytes().to_vec();
            bad[at] = b'x';
            assert!(
                parse(std::str::from_utf8(&bad).unwrap()).is_err(),
                "x at {at}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_shown_is_read_as_the_same(trace_id in 1u128.., span_id in 1u64..) {
            let shown = show(&Trace { trace_id, span_id });
            prop_assert_eq!(parse(&shown), Ok((trace_id, span_id)));
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,80}") {
            let _ = parse(&text);
        }
    }
}
