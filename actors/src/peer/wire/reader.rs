//! Cuts a byte stream into frames, however the stream was cut into slices.
//!
//! A frame that lies whole in the caller's slice is decoded from there. Only a frame that is split
//! over slices is gathered in the reader's own buffer, which holds at most one frame, grows with
//! the bytes that really came, and is given back when it was large.

use super::{Bounds, LENGTH_BITS, PREFIX, WireError, decode_frame, length_word, sum};
use crate::peer::message::Frame;

/// A larger buffer than this is not kept for the next frame, so that an idle session is small.
const KEEP: usize = 4 << 10;

/// Yields the frames of one direction of one transport.
#[derive(Debug)]
pub struct FrameReader {
    bounds: Bounds,
    cutter: Cutter,
}

impl FrameReader {
    /// A reader at the beginning of a stream.
    pub fn new(bounds: Bounds) -> Self {
        FrameReader {
            bounds,
            cutter: Cutter::default(),
        }
    }

    /// Takes bytes off the front of `bytes` up to the end of the next frame. Call it until it
    /// gives `None`: then all bytes have been taken.
    ///
    /// # Errors
    /// The peer's fault, or the transport's; every later call gives [`WireError::Broken`]. Close
    /// the transport.
    pub fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, WireError> {
        let bounds = &self.bounds;
        self.cutter.next(bytes, bounds.frame_bytes, |payload| {
            decode_frame(payload, bounds)
        })
    }

    /// Whether the stream ends within a frame, if it ends here.
    pub fn is_mid_frame(&self) -> bool {
        !self.cutter.partial.is_empty()
    }

    /// Bytes that the reader holds on to.
    pub fn buffered(&self) -> usize {
        self.cutter.partial.capacity()
    }
}

/// Finds where a frame ends, and sums it.
#[derive(Debug, Default)]
pub(super) struct Cutter {
    /// The beginning of a frame, its prefix included.
    partial: Vec<u8>,
    broken: bool,
}

impl Cutter {
    /// Takes the next frame, of at most `limit` bytes, off the front of `bytes` and decodes its
    /// payload.
    pub(super) fn next<T>(
        &mut self,
        bytes: &mut &[u8],
        limit: usize,
        decode: impl FnOnce(&[u8]) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.broken {
            return Err(WireError::Broken);
        }
        let result = self.cut(bytes, limit.min(super::MAX), decode);
        if result.is_err() {
            self.broken = true;
            self.partial = Vec::new();
        }
        result
    }

    fn cut<T>(
        &mut self,
        bytes: &mut &[u8],
        limit: usize,
        decode: impl FnOnce(&[u8]) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.partial.is_empty() {
            let whole = match length(bytes, limit)? {
                Some(len) => bytes.split_at_checked(PREFIX + len),
                None => None,
            };
            if let Some((frame, rest)) = whole {
                let value = decode(summed(frame)?)?;
                *bytes = rest;
                return Ok(Some(value));
            }
        }
        self.take(bytes, LENGTH);
        let Some(len) = length(&self.partial, limit)? else {
            return Ok(None);
        };
        self.take(bytes, PREFIX + len);
        if self.partial.len() < PREFIX + len {
            return Ok(None);
        }
        let value = decode(summed(&self.partial)?)?;
        self.partial.clear();
        if self.partial.capacity() > KEEP {
            self.partial = Vec::new();
        }
        Ok(Some(value))
    }

    /// Moves bytes to the buffer until that holds `want`.
    fn take(&mut self, bytes: &mut &[u8], want: usize) {
        let n = want.saturating_sub(self.partial.len()).min(bytes.len());
        let (now, later) = bytes.split_at(n);
        self.partial.extend_from_slice(now);
        *bytes = later;
    }
}

/// Bytes of the length in a prefix.
const LENGTH: usize = 4;

/// The length that `bytes` begins with, if it is all there.
fn length(bytes: &[u8], limit: usize) -> Result<Option<usize>, WireError> {
    let Some(first) = bytes.first_chunk::<LENGTH>() else {
        return Ok(None);
    };
    let word = u32::from_le_bytes(*first);
    let len = word & LENGTH_BITS;
    if word != length_word(len) {
        return Err(WireError::CorruptLength { word });
    }
    let len = len as usize;
    if len > limit {
        return Err(WireError::TooLong { len, limit });
    }
    Ok(Some(len))
}

/// The payload of a whole frame, if it is the one that was summed.
fn summed(frame: &[u8]) -> Result<&[u8], WireError> {
    let (prefix, payload) = frame.split_at(PREFIX);
    let len = payload.len();
    let crc = sum(length_word(len as u32), payload); // at most MAX, which fits
    if prefix[LENGTH..] != crc.to_le_bytes() {
        return Err(WireError::Corrupt { len });
    }
    Ok(payload)
}
