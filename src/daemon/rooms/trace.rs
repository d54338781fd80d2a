//! W3C `traceparent`.

/// The trace and the span that a `traceparent` of version 00 names; of a later version, its beginning.
pub(crate) fn parse(text: &str) -> Result<(u128, u64), &'static str> {
    const FORM: &str = "traceparent must be VERSION-TRACE-SPAN-FLAGS in lower-case hexadecimal, for example \
                        00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let parts: Vec<&str> = text.split('-').collect();
    let [version, trace, span, flags] = parts[..] else {
        return Err(FORM);
    };
    let hex = |part: &str, len| {
        part.len() == len && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
    };
    if !(hex(version, 2) && hex(trace, 32) && hex(span, 16) && hex(flags, 2)) || version == "ff" {
        return Err(FORM);
    }
    let trace = u128::from_str_radix(trace, 16).map_err(|_| FORM)?;
    let span = u64::from_str_radix(span, 16).map_err(|_| FORM)?;
    if trace == 0 || span == 0 {
        return Err("traceparent: trace and span are not all zeros");
    }
    Ok((trace, span))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_traceparent_is_read_and_anything_else_refused() {
        let good = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        assert_eq!(
            parse(good),
            Ok((
                0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736,
                0x00f0_67aa_0ba9_02b7
            ))
        );
        for bad in [
            "",
            "00",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4BF92F3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-x",
            "00-4bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }
}
