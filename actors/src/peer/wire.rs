//! Frames and greetings as bytes: the only module that knows the codec.
//!
//! ```text
//!   ┌────────────┬─────────┬──────────────────────────────────────────┐
//!   │ length u32 │ crc u32 │ frame: seq u64, ack u64, body            │   all little-endian,
//!   └────────────┴─────────┴──────────────────────────────────────────┘   integers of fixed size
//!   ┌────────────┬─────────┬───────────┬──────────────────────────────┐
//!   │ length u32 │ crc u32 │ "KVRM" u32│ greeting                     │   first on every transport
//!   └────────────┴─────────┴───────────┴──────────────────────────────┘
//! ```
//!
//! The length counts what follows the crc, in its word's low 25 bits; the seven above are a check of
//! it ([`length_word`]). The crc is the CRC32C of that word and of what follows the crc.
//!
//! Rules:
//! - a length over the limit is refused before anything is allocated for it;
//! - what does not match its crc is not decoded: the transport changed it, and nobody is accused;
//! - a length is believed only if its check is right. Else one that had grown on its way would make
//!   the reader wait for bytes that never come, while every ping looks like life;
//! - a decode must consume exactly the length, and what it yields must pass [`check`];
//! - a length inside a frame can make a decode allocate a bounded amount ahead of the bytes that are
//!   there: a text up to the frame's size class, a list up to 1 MiB, a list of pages nothing;
//! - an error ends the transport: after it the position in the stream is unknown.

use crate::limits::Limits;
use crate::peer::message::{Frame, FrameRef};
use bincode::config::{self, Config};
use bincode::enc::write::Writer;
use bincode::error::{DecodeError, EncodeError};
use serde::Serialize;
use serde::de::DeserializeOwned;

pub mod bounds;
mod greeting;
mod reader;
#[cfg(test)]
mod tests;

pub use bounds::{check, claim_bytes};
pub use greeting::{
    DataHello, First, Greeting, GreetingReader, MAX_REFUSAL, OFFER_BYTES, STRANGER_BYTES, Verdict,
    decode_first_greeting, decode_greeting, encode_first_greeting, encode_greeting,
};
pub use reader::FrameReader;

/// No frame is longer than this, whatever [`Limits::frame_bytes`] says: 16 MiB.
pub const MAX: usize = 16 << 20;

/// Bytes of the length and the crc in front of every frame.
pub const PREFIX: usize = 8;

/// What a frame from a peer may hold; from this node's [`Limits`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Bytes of one frame; never more than [`MAX`] in effect.
    pub frame_bytes: usize,
    /// Pages of one claim, all sections together.
    pub pages_per_claim: usize,
    /// Receivers of one room.
    pub receivers: u16,
}

impl From<&Limits> for Bounds {
    fn from(limits: &Limits) -> Self {
        Bounds {
            frame_bytes: limits.frame_bytes.min(MAX),
            pages_per_claim: limits.pages_per_claim,
            receivers: limits.receivers,
        }
    }
}

/// Who is at fault for a [`WireError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// This node tried to send what it may not.
    Local,
    /// The peer sent what it may not, or is no kvroom node.
    Peer,
    /// What lies between them.
    Transport,
}

/// Bytes that are no frame, or a frame that may not become bytes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// This node's frame is over the limit; nothing was written.
    #[error("a frame to the peer is over frame_bytes = {limit}: send less in one message")]
    TooLongToSend {
        /// The limit in bytes.
        limit: usize,
    },
    /// This node's frame could not be encoded; nothing was written.
    #[error("a frame to the peer could not be encoded: {why}")]
    Unencodable {
        /// What the codec said.
        why: String,
    },
    /// The peer announced a frame over the limit.
    #[error(
        "peer announced {len} bytes, at most {limit} (frame_bytes, or a greeting's limit) may come"
    )]
    TooLong {
        /// Announced length in bytes.
        len: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// The transport changed the bytes.
    #[error("a frame of {len} bytes came with another checksum than its own: close the transport")]
    Corrupt {
        /// Length of the payload in bytes, as it came.
        len: usize,
    },
    /// The transport changed a length.
    #[error("a frame began with {word:#010x}, which is no length: close the transport")]
    CorruptLength {
        /// The word, as it came.
        word: u32,
    },
    /// The bytes are no frame.
    #[error("peer sent {len} bytes that are no frame of this protocol: {why}")]
    Malformed {
        /// Length of the payload in bytes.
        len: usize,
        /// What the codec said.
        why: String,
    },
    /// The frame ended before its length did.
    #[error("peer sent a frame of {len} bytes of which only {used} have a meaning")]
    Trailing {
        /// Bytes that were decoded.
        used: usize,
        /// Length of the payload in bytes.
        len: usize,
    },
    /// The frame decodes and says something that no frame may say.
    #[error("peer sent a {name} with {what}")]
    OutOfBounds {
        /// The message.
        name: &'static str,
        /// Which value, and its bound.
        what: String,
    },
    /// The other end does not speak this protocol at all.
    #[error("the other end is no kvroom node: it began with {found:#010x}")]
    NotKvroom {
        /// The first word of the payload.
        found: u32,
    },
    /// The reader met an error before; the transport must be closed.
    #[error("the stream is out of step after an earlier error: close the transport")]
    Broken,
}

impl WireError {
    /// Who is at fault.
    pub fn fault(&self) -> Fault {
        match self {
            WireError::TooLongToSend { .. } | WireError::Unencodable { .. } => Fault::Local,
            WireError::Corrupt { .. } | WireError::CorruptLength { .. } => Fault::Transport,
            _ => Fault::Peer,
        }
    }

    /// Whether only the transport is at fault: the session can go on over another one. Anything
    /// else ends the session.
    pub fn loses_transport_only(&self) -> bool {
        self.fault() == Fault::Transport
    }
}

/// Appends `frame` with its prefix to `out`. `limit` is in bytes, without the prefix.
///
/// # Errors
/// The frame is over `limit` (or [`MAX`]); `out` is then as it was.
pub fn encode_frame(frame: &Frame, out: &mut Vec<u8>, limit: usize) -> Result<(), WireError> {
    encode_frame_ref(frame.as_ref(), out, limit)
}

/// As [`encode_frame`], for a frame whose body stays with the session.
///
/// # Errors
/// The frame is over `limit` (or [`MAX`]); `out` is then as it was.
pub fn encode_frame_ref(
    frame: FrameRef<'_>,
    out: &mut Vec<u8>,
    limit: usize,
) -> Result<(), WireError> {
    let hint = frame.body.map_or(0, bounds::encoded_hint);
    encode(&frame, hint, out, limit)
}

/// Decodes the payload of one frame (without its prefix, whose crc is the reader's) and checks it.
///
/// # Errors
/// All are the peer's fault: too long, malformed, trailing bytes, out of bounds.
pub fn decode_frame(payload: &[u8], bounds: &Bounds) -> Result<Frame, WireError> {
    let frame: Frame = decode(payload, bounds.frame_bytes)?;
    if let Some(body) = &frame.body {
        check(body, bounds)?;
    }
    Ok(frame)
}

/// Decodes a value that no check has seen.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn decode_unchecked<T: DeserializeOwned>(payload: &[u8]) -> Result<T, WireError> {
    decode(payload, MAX)
}

fn codec() -> impl Config {
    limited::<MAX>()
}

fn limited<const N: usize>() -> impl Config {
    config::standard()
        .with_little_endian()
        .with_fixed_int_encoding()
        .with_limit::<N>()
}

/// The first word of a frame of `len` bytes, which are at most [`MAX`]: seven bits of the length's
/// own CRC32C stand above it.
pub fn length_word(len: u32) -> u32 {
    len | crc32c::crc32c(&len.to_le_bytes()) & !LENGTH_BITS
}

/// The bits of a [`length_word`] that are the length.
const LENGTH_BITS: u32 = 2 * MAX as u32 - 1;

/// The crc of a frame that begins with this word.
fn sum(word: u32, payload: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&word.to_le_bytes()), payload)
}

/// Encodes straight into `out`, behind a placeholder for the prefix.
fn encode<T: Serialize>(
    value: &T,
    hint: usize,
    out: &mut Vec<u8>,
    limit: usize,
) -> Result<(), WireError> {
    let limit = limit.min(MAX);
    let start = out.len();
    out.reserve(PREFIX + 256 + hint.min(limit));
    out.extend_from_slice(&[0; PREFIX]);
    let body = out.len();
    let mut writer = Tail {
        end: body + limit,
        out,
    };
    match bincode::serde::encode_into_writer(value, &mut writer, codec()) {
        Ok(()) => {
            let word = length_word((out.len() - body) as u32); // at most MAX, which fits
            let crc = sum(word, &out[body..]);
            out[start..start + 4].copy_from_slice(&word.to_le_bytes());
            out[start + 4..body].copy_from_slice(&crc.to_le_bytes());
            Ok(())
        }
        Err(why) => {
            out.truncate(start);
            Err(match why {
                EncodeError::UnexpectedEnd => WireError::TooLongToSend { limit },
                why => WireError::Unencodable {
                    why: why.to_string(),
                },
            })
        }
    }
}

/// Appends to a vector up to a length.
struct Tail<'a> {
    out: &'a mut Vec<u8>,
    end: usize,
}

impl Writer for Tail<'_> {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> Result<(), EncodeError> {
        if bytes.len() > self.end - self.out.len() {
            return Err(EncodeError::UnexpectedEnd);
        }
        self.out.extend_from_slice(bytes);
        Ok(())
    }
}

/// Decodes all of `payload`. The codec's limit is a constant, so there is one per size class: a
/// short frame that announces a long text may not make it allocate a long text.
fn decode<T: DeserializeOwned>(payload: &[u8], limit: usize) -> Result<T, WireError> {
    const SMALL: usize = 4 << 10;
    const MEDIUM: usize = 256 << 10;
    let len = payload.len();
    let limit = limit.min(MAX);
    if len > limit {
        return Err(WireError::TooLong { len, limit });
    }
    let decoded: Result<(T, usize), DecodeError> = if len <= SMALL {
        bincode::serde::decode_from_slice(payload, limited::<SMALL>())
    } else if len <= MEDIUM {
        bincode::serde::decode_from_slice(payload, limited::<MEDIUM>())
    } else {
        bincode::serde::decode_from_slice(payload, codec())
    };
    match decoded {
        Ok((value, used)) if used == len => Ok(value),
        Ok((_, used)) => Err(WireError::Trailing { used, len }),
        Err(why) => Err(WireError::Malformed {
            len,
            why: why.to_string(),
        }),
    }
}
