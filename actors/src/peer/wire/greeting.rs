//! The messages of a handshake as bytes.
//!
//! They go in frames like all else. The first one of each side begins with the magic word, so that
//! what is no kvroom node is recognised. Until the peer is proven no message may be longer than
//! [`STRANGER_BYTES`].

use super::reader::Cutter;
use super::{WireError, bounds, decode, encode, length_word};
use crate::copy::schedule::Class;
use crate::peer::auth::{self, ClusterKey, Mac};
use crate::peer::hello::{Hello, Link, Offer, RefusalCode, SessionId};
use serde::{Deserialize, Serialize};

/// Longest message of a greeting before the peer is proven, and of a verdict: 1 KiB.
pub const STRANGER_BYTES: usize = 1 << 10;
/// Longest offer: 160 KiB, which hold [`crate::peer::hello::MAX_POOLS`] pools with long names, and what
/// is in them.
pub const OFFER_BYTES: usize = 160 << 10;
/// Longest text of a refusal in bytes.
pub const MAX_REFUSAL: usize = 512;

/// "KVRM".
const MAGIC: u32 = u32::from_le_bytes(*b"KVRM");

/// One message of a handshake.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Greeting {
    /// Who it is. First.
    Hello(Hello),
    /// It is a data connection of a session that there is. First.
    Data(DataHello),
    /// It has the cluster key.
    Mac(Mac),
    /// What it has.
    Offer(Offer),
    /// How it ends.
    Verdict(Verdict),
    /// What it shares with a peer on the same host; descriptors come with it. Between the offers and
    /// the last word, and only if both offers say so.
    Link(Link),
    /// Whether it wrote the other side's probe through UCX; else why not, in at most [`MAX_REFUSAL`] bytes.
    /// Between the offers and the last word, and only if both offers say so.
    Wired(Option<String>),
}

impl Greeting {
    /// What it is, for messages to people.
    pub fn name(&self) -> &'static str {
        match self {
            Greeting::Hello(_) => "Hello",
            Greeting::Data(_) => "DataHello",
            Greeting::Mac(_) => "Mac",
            Greeting::Offer(_) => "Offer",
            Greeting::Link(_) => "Link",
            Greeting::Wired(_) => "Wired",
            Greeting::Verdict(Verdict::Accept { .. }) => "Accept",
            Greeting::Verdict(Verdict::Refused { .. }) => "Refused",
            Greeting::Verdict(Verdict::Go) => "Go",
            Greeting::Verdict(Verdict::Crossed) => "Crossed",
        }
    }
}

/// All that is said on a data connection before its frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DataHello {
    /// The [`Offer::token`] of whoever accepts this connection.
    pub token: u128,
    /// For small pieces or for large ones.
    pub class: Class,
    /// Counted from 0 within the class.
    pub index: u16,
    /// Rises with each connection for the same class and index of one session: a number is taken once.
    pub attempt: u64,
    /// Over all of these, with the cluster key; zeroes without one.
    pub mac: Mac,
}

impl DataHello {
    /// With the proof that whoever says it has the key, if there is one.
    pub fn new(
        token: u128,
        (class, index): (Class, u16),
        attempt: u64,
        key: Option<&ClusterKey>,
    ) -> Self {
        let mut hello = DataHello {
            token,
            class,
            index,
            attempt,
            mac: [0; 32],
        };
        if let Some(key) = key {
            hello.mac = auth::sign_data(key, &hello.said());
        }
        hello
    }

    /// Whether whoever said it has the key, if one is demanded.
    #[must_use]
    pub fn is_proven(&self, key: Option<&ClusterKey>) -> bool {
        key.is_none_or(|key| auth::verify_data(key, &self.said(), &self.mac))
    }

    fn said(&self) -> [u8; 27] {
        let mut said = [0; 27];
        said[..16].copy_from_slice(&self.token.to_le_bytes());
        said[16] = match self.class {
            Class::Interactive => 0,
            Class::Bulk => 1,
        };
        said[17..19].copy_from_slice(&self.index.to_le_bytes());
        said[19..].copy_from_slice(&self.attempt.to_le_bytes());
        said
    }
}

/// How a handshake ends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Verdict {
    /// The higher incarnation would go on with this session.
    Accept {
        /// Which it took the offers to mean.
        session: SessionId,
    },
    /// Either side will not.
    Refused {
        /// What kind it is.
        code: RefusalCode,
        /// In the words of whoever refuses; at most [`MAX_REFUSAL`] bytes.
        text: String,
    },
    /// The lower incarnation has attached this transport.
    Go,
    /// The lower incarnation has another transport of the same session.
    Crossed,
}

/// Appends the first message of a side, a [`Greeting::Hello`] or [`Greeting::Data`], to `out`.
///
/// # Errors
/// It is longer or otherwise than it may be; `out` is then as it was.
pub fn encode_first_greeting(greeting: &Greeting, out: &mut Vec<u8>) -> Result<(), WireError> {
    check(greeting)?;
    encode(&(MAGIC, greeting), 0, out, STRANGER_BYTES)
}

/// Appends a later message to `out`.
///
/// # Errors
/// As [`encode_first_greeting`].
pub fn encode_greeting(greeting: &Greeting, out: &mut Vec<u8>) -> Result<(), WireError> {
    check(greeting)?;
    encode(greeting, 0, out, limit(greeting))
}

/// Decodes the payload of the first message of a side and checks it.
///
/// # Errors
/// As [`super::decode_frame`], and [`WireError::NotKvroom`] if the other end speaks something else.
pub fn decode_first_greeting(payload: &[u8]) -> Result<Greeting, WireError> {
    if let Some(first) = payload.first_chunk::<4>() {
        let found = u32::from_le_bytes(*first);
        if found != MAGIC {
            return Err(WireError::NotKvroom { found });
        }
    }
    let (_, greeting): (u32, Greeting) = decode(payload, STRANGER_BYTES)?;
    check(&greeting)?;
    Ok(greeting)
}

/// Decodes the payload of a later message, of at most `limit` bytes, and checks it.
///
/// # Errors
/// As [`super::decode_frame`].
pub fn decode_greeting(payload: &[u8], limit: usize) -> Result<Greeting, WireError> {
    let greeting = decode(payload, limit)?;
    check(&greeting)?;
    Ok(greeting)
}

/// The first message of a side, and the bytes that it was.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    /// A [`Greeting::Hello`] or a [`Greeting::Data`], unless the peer is out of order.
    pub greeting: Greeting,
    /// Its payload, as it came.
    pub payload: Box<[u8]>,
}

/// Yields the messages of one direction of a handshake, and takes nothing of what follows them.
#[derive(Debug, Default)]
pub struct GreetingReader {
    cutter: Cutter,
}

impl GreetingReader {
    /// The first message, when it is all there. Until then all of `bytes` is taken.
    ///
    /// # Errors
    /// The peer's fault, or the transport's; every later call gives [`WireError::Broken`].
    pub fn first(&mut self, bytes: &mut &[u8]) -> Result<Option<First>, WireError> {
        let result = self.cutter.next(bytes, STRANGER_BYTES, |payload| {
            Ok(First {
                greeting: decode_first_greeting(payload)?,
                payload: payload.into(),
            })
        });
        result.map_err(|error| match error {
            // Nothing that may come first is that long. What there is is somebody's first word.
            WireError::TooLong { len, .. } => WireError::NotKvroom {
                found: length_word(len as u32),
            },
            WireError::CorruptLength { word } => WireError::NotKvroom { found: word },
            error => error,
        })
    }

    /// A later message of at most `limit` bytes, when it is all there. Until then all of `bytes` is
    /// taken.
    ///
    /// # Errors
    /// As [`GreetingReader::first`].
    pub fn next(&mut self, bytes: &mut &[u8], limit: usize) -> Result<Option<Greeting>, WireError> {
        self.cutter
            .next(bytes, limit, |payload| decode_greeting(payload, limit))
    }
}

fn limit(greeting: &Greeting) -> usize {
    match greeting {
        Greeting::Offer(_) | Greeting::Link(_) => OFFER_BYTES,
        _ => STRANGER_BYTES,
    }
}

fn check(greeting: &Greeting) -> Result<(), WireError> {
    let checked = match greeting {
        Greeting::Hello(hello) => bounds::check_hello(hello),
        Greeting::Offer(offer) => bounds::check_offer(offer),
        Greeting::Link(link) => bounds::check_link(link),
        Greeting::Verdict(Verdict::Refused { text, .. }) if text.len() > MAX_REFUSAL => Err(
            format!("{} bytes of text (at most {MAX_REFUSAL})", text.len()),
        ),
        Greeting::Wired(Some(why)) if why.len() > MAX_REFUSAL => Err(format!(
            "{} bytes of text (at most {MAX_REFUSAL})",
            why.len()
        )),
        Greeting::Verdict(_) | Greeting::Data(_) | Greeting::Mac(_) | Greeting::Wired(_) => Ok(()),
    };
    checked.map_err(|what| WireError::OutOfBounds {
        name: greeting.name(),
        what,
    })
}
