//! What the fuzz targets of `fuzz/` do with their input. Never in a build of the library or the
//! program: only tests and the feature `fuzzing` have it.
//!
//! ```text
//!   input ─▶ Feed ─▶ steps of a target ─▶ the shipped decoder or core
//!                                           └── a panic or a broken rule is a find
//! ```
//!
//! Rules: a target is a function of its input alone; it asserts what has to hold whatever the input
//! is; it does a bounded number of steps. `cargo test` feeds every target with the inputs that are
//! kept in `fuzz/`.

#[cfg(test)]
mod tests;

pub use crate::fabric::tcp::fuzzing::{data_frame, data_stream};
pub use crate::memory::fuzzing::{companion, gate_table, ring};
pub use crate::peer::fuzzing::{control_frame, coverage, greeting, handshake, session};

use crate::runtime::address::Address;

/// Addresses: as the text says, and never a panic. One that was read is read again from its own
/// spelling.
pub fn address(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let address = match Address::parse(text) {
        Ok(address) => address,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return;
        }
    };
    let again = Address::parse(&address.to_string());
    assert_eq!(again, Ok(address), "{text:?}");
}

/// Input that is taken from the front; zeroes when it is used up.
#[derive(Debug)]
pub struct Feed<'a>(&'a [u8]);

impl<'a> Feed<'a> {
    /// All of the input.
    pub fn new(data: &'a [u8]) -> Self {
        Feed(data)
    }

    /// Whether it is used up.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The next `n` bytes, or as many as are left.
    pub fn bytes(&mut self, n: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(n.min(self.0.len()));
        self.0 = later;
        now
    }

    /// A length of one byte, then as many bytes.
    pub fn short(&mut self) -> &'a [u8] {
        let n = usize::from(self.byte());
        self.bytes(n)
    }

    /// A length of two bytes, then as many bytes.
    pub fn long(&mut self) -> &'a [u8] {
        let n = usize::from(self.u16());
        self.bytes(n)
    }

    /// One byte.
    pub fn byte(&mut self) -> u8 {
        u8::from_le_bytes(self.array())
    }

    /// One bit, of a byte of its own.
    pub fn flag(&mut self) -> bool {
        self.byte() & 1 == 1
    }

    /// Two bytes.
    pub fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.array())
    }

    /// Four bytes.
    pub fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    /// Eight bytes.
    pub fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0; N];
        let now = self.bytes(N);
        out[..now.len()].copy_from_slice(now);
        out
    }
}
