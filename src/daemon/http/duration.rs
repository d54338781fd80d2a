//! Durations in queries: a whole number with its unit.

use std::time::Duration;

/// Reads for example `30s` or `250ms`.
pub(crate) fn parse(text: &str) -> Result<Duration, &'static str> {
    const FORM: &str = "it must be a whole number with its unit, ms or s, for example 30s or 250ms";
    let unit = text.find(|c: char| !c.is_ascii_digit()).ok_or(FORM)?;
    let (digits, unit) = text.split_at(unit);
    if digits.len() > 9 {
        return Err(FORM);
    }
    let number: u64 = digits.parse().map_err(|_| FORM)?;
    match unit {
        "ms" => Ok(Duration::from_millis(number)),
        "s" => Ok(Duration::from_secs(number)),
        _ => Err(FORM),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_with_its_unit_is_a_duration_and_nothing_else_is() {
        assert_eq!(parse("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        for text in [
            "",
            "30",
            "s",
            "-1s",
            "1.5s",
            "1m",
            "30 s",
            "9999999999s",
            "30S",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
