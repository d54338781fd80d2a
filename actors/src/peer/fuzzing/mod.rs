//! Fuzz targets of what a peer says; see `crate::fuzzing`.
#![allow(clippy::unwrap_used)] // As in tests: what fails here is a find.

mod frames;
mod handshake;
mod session;
#[cfg(test)]
pub(crate) use frames::control_frame_by;
#[cfg(test)]
pub(crate) use handshake::step;

pub use frames::{control_frame, coverage, greeting};
pub use handshake::handshake;
pub use session::session;

use super::wire;
use super::wire::Bounds;

/// Small, so that an input soon passes them.
pub(crate) const BOUNDS: Bounds = Bounds {
    frame_bytes: 64 << 10,
    pages_per_claim: 4096,
    receivers: 256,
};

/// The bytes of a frame with this payload, whose length and sum are right.
pub(crate) fn framed(payload: &[u8]) -> Vec<u8> {
    let word = wire::length_word(payload.len() as u32).to_le_bytes();
    let sum = crc32c::crc32c_append(crc32c::crc32c(&word), payload).to_le_bytes();
    [&word, &sum, payload].concat()
}
