//! Cuts a byte stream into frames, however the stream was cut into slices.
//!
//! A frame that lies whole in the caller's slice is decoded from there. Only a frame that is split
//! over slices is gathered in the reader's own buffer, which holds at most one frame, grows with
//! the bytes that really came, and is given back when it was large.

use super::{Bounds, PREFIX, WireError, decode_frame, decode_hello};
use crate::peer::hello::Hello;
use crate::peer::message::Frame;

/// A larger buffer than this is not kept for the next frame, so that an idle session is small.
const KEEP: usize = 4 << 10;

/// Yields the frames of one direction of one transport.
#[derive(Debug)]
pub struct FrameReader {
    bounds: Bounds,
    /// The beginning of a frame, its length included.
    partial: Vec<u8>,
    broken: bool,
}

impl FrameReader {
    /// A reader at the beginning of a stream.
    pub fn new(bounds: Bounds) -> Self {
        FrameReader {
            bounds,
            partial: Vec::new(),
            broken: false,
        }
    }

    /// Takes bytes off the front of `bytes` up to the end of the next frame. Call it until it
    /// gives `None`: then all bytes have been taken.
    ///
    /// # Errors
    /// The peer's fault; every later call gives [`WireError::Broken`]. Close the transport.
    pub fn read(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, WireError> {
        self.next(bytes, decode_frame)
    }

    /// As [`FrameReader::read`], where the next frame is a greeting.
    ///
    /// # Errors
    /// As for [`FrameReader::read`].
    pub fn read_hello(&mut self, bytes: &mut &[u8]) -> Result<Option<Hello>, WireError> {
        self.next(bytes, decode_hello)
    }

    /// Whether the stream ends within a frame, if it ends here.
    pub fn is_mid_frame(&self) -> bool {
        !self.partial.is_empty()
    }

    /// Bytes that the reader holds on to.
    pub fn buffered(&self) -> usize {
        self.partial.capacity()
    }

    fn next<T>(
        &mut self,
        bytes: &mut &[u8],
        decode: impl FnOnce(&[u8], &Bounds) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.broken {
            return Err(WireError::Broken);
        }
        let result = self.cut(bytes, decode);
        if result.is_err() {
            self.broken = true;
            self.partial = Vec::new();
        }
        result
    }

    fn cut<T>(
        &mut self,
        bytes: &mut &[u8],
        decode: impl FnOnce(&[u8], &Bounds) -> Result<T, WireError>,
    ) -> Result<Option<T>, WireError> {
        if self.partial.is_empty() {
            let whole = match self.length(bytes)? {
                Some(len) => bytes.get(PREFIX..PREFIX + len),
                None => None,
            };
            if let Some(payload) = whole {
                let value = decode(payload, &self.bounds)?;
                *bytes = &bytes[PREFIX + payload.len()..];
                return Ok(Some(value));
            }
        }
        self.take(bytes, PREFIX);
        let Some(len) = self.length(&self.partial)? else {
            return Ok(None);
        };
        self.take(bytes, PREFIX + len);
        if self.partial.len() < PREFIX + len {
            return Ok(None);
        }
        let value = decode(&self.partial[PREFIX..], &self.bounds)?;
        self.partial.clear();
        if self.partial.capacity() > KEEP {
            self.partial = Vec::new();
        }
        Ok(Some(value))
    }

    /// The length that `bytes` begins with, if it is all there.
    fn length(&self, bytes: &[u8]) -> Result<Option<usize>, WireError> {
        let Some(prefix) = bytes.first_chunk::<PREFIX>() else {
            return Ok(None);
        };
        let len = u32::from_le_bytes(*prefix) as usize;
        let limit = self.bounds.frame_bytes.min(super::MAX);
        if len > limit {
            return Err(WireError::TooLong { len, limit });
        }
        Ok(Some(len))
    }

    /// Moves bytes to the buffer until that holds `want`.
    fn take(&mut self, bytes: &mut &[u8], want: usize) {
        let n = want.saturating_sub(self.partial.len()).min(bytes.len());
        let (now, later) = bytes.split_at(n);
        self.partial.extend_from_slice(now);
        *bytes = later;
    }
}
