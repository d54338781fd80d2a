//! The name of a device that is the same in every process, and bytes as hexadecimal digits.

use std::fmt;

/// A device's UUID, as `nvidia-smi -L` and CUDA show it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

impl Uuid {
    /// Reads `GPU-5a5a5a5a-…`, `MIG-…`, or the digits alone, with or without dashes.
    pub(crate) fn read(text: &str) -> Option<Uuid> {
        let digits = text.strip_prefix("GPU-").or(text.strip_prefix("MIG-"));
        let digits = digits.unwrap_or(text);
        if digits.len() > 36 {
            return None;
        }
        bytes_of(&digits.replace('-', "")).map(Uuid)
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("GPU")?;
        for (at, byte) in self.0.iter().enumerate() {
            let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) {
                "-"
            } else {
                ""
            };
            write!(f, "{dash}{byte:02x}")?;
        }
        Ok(())
    }
}

/// Bytes as hexadecimal digits, two each.
pub(crate) fn digits_of(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// So many bytes, two digits each.
pub(crate) fn bytes_of<const N: usize>(digits: &str) -> Option<[u8; N]> {
    let digits = digits.as_bytes();
    if digits.len() != 2 * N {
        return None;
    }
    let mut bytes = [0; N];
    for (byte, two) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
        let digit = |c: u8| char::from(c).to_digit(16);
        let (high, low) = (digit(two[0])?, digit(two[1])?);
        *byte = u8::try_from(high << 4 | low).ok()?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_as_it_is_shown_and_nothing_else_is_one() {
        let uuid = Uuid(std::array::from_fn(|i| 0x10 * i as u8 + 3));
        let text = uuid.to_string();
        assert_eq!(text, "GPU-03132333-4353-6373-8393-a3b3c3d3e3f3");
        let digits = text.trim_start_matches("GPU-");
        for same in [&*text, digits, &digits.replace('-', "").to_uppercase()] {
            assert_eq!(Uuid::read(same), Some(uuid), "{same}");
        }
        assert_eq!(Uuid::read(&text.replace("GPU", "MIG")), Some(uuid));
        let long = "0".repeat(1 << 20);
        for none in ["", "GPU-", "0", "GPU-0", "é", &text[..39], &long] {
            assert_eq!(Uuid::read(none), None, "{none:.40}");
        }
        let sign = format!("+{}", &digits.replace('-', "")[1..]);
        assert_eq!(Uuid::read(&sign), None, "a sign is no digit");
    }
}
