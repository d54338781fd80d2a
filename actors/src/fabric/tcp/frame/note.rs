//! What goes on a data connection about bytes that stay where they are: references to them, and the
//! question whether they may. Pure.

use super::{ANSWER, ASK, FrameError, Words, le_u32};

/// Bytes of a reference.
pub(crate) const REFERENCE: usize = 16;
/// Bytes of a note's body.
pub(crate) const NOTE: usize = 192;
/// Longest name of a pool in a note; those of an offer are no longer.
const NAME: usize = 64;

/// Where the bytes of a handed frame are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reference {
    /// A ring that the receiver was asked about.
    pub(crate) ring: u32,
    /// Where in it they begin.
    pub(crate) offset: u64,
}

/// A ring of device memory, as another process of the host can open it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RingName {
    /// Its number, which no other ring of the process has.
    pub(crate) number: u32,
    /// Which kind of device has made the handle.
    pub(crate) kind: u8,
    /// Which device.
    pub(crate) uuid: [u8; 16],
    /// Its bytes.
    pub(crate) bytes: u64,
    /// How it is opened.
    pub(crate) handle: [u8; 64],
}

/// May frames for a pool of the receiver be handed out of this ring?
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ask {
    pub(crate) ring: RingName,
    /// The pool's name.
    pub(crate) pool: String,
}

/// They may, or why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) ring: u32,
    pub(crate) pool: String,
    pub(crate) no: Option<String>,
}

/// A note.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Ask(Ask),
    Answer(Answer),
}

/// The header of a note. Nothing of it is used before the body's sum was checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct NoteHead {
    pub(super) ask: bool,
    pub(super) flags: u8,
    pub(super) ring: u32,
    pub(super) bytes: u64,
    pub(super) uuid: [u8; 16],
    pub(super) sum: u32,
}

#[cfg(any(test, feature = "fuzzing"))]
impl NoteHead {
    /// With the sum over this body.
    pub(crate) fn sealed(self, body: &[u8; NOTE]) -> NoteHead {
        let sum = crc32c::crc32c(body);
        NoteHead { sum, ..self }
    }
}

impl Reference {
    /// As frame `seq` has it.
    pub(crate) fn encode(self, seq: u64) -> [u8; REFERENCE] {
        let mut out = [0; REFERENCE];
        out[..4].copy_from_slice(&self.ring.to_le_bytes());
        out[4..12].copy_from_slice(&self.offset.to_le_bytes());
        let sum = sum_with(&out[..12], seq);
        out[12..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Reads the reference of frame `seq`.
    ///
    /// # Errors
    /// The position in the stream is lost.
    pub(crate) fn decode(bytes: &[u8; REFERENCE], seq: u64) -> Result<Reference, FrameError> {
        if sum_with(&bytes[..12], seq) != le_u32(&bytes[12..]) {
            return Err(FrameError::NoteCrc);
        }
        let mut offset = [0; 8];
        offset.copy_from_slice(&bytes[4..12]);
        Ok(Reference {
            ring: le_u32(&bytes[..4]),
            offset: u64::from_le_bytes(offset),
        })
    }
}

fn sum_with(bytes: &[u8], seq: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(bytes), &(seq as u32).to_le_bytes())
}

impl Note {
    /// Header and body.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut body = [0; NOTE];
        let (kind, flags, ring, bytes, uuid) = match self {
            Note::Ask(Ask { ring, pool }) => {
                body[..64].copy_from_slice(&ring.handle);
                put(&mut body[64..64 + NAME], pool);
                (ASK, ring.kind, ring.number, ring.bytes, ring.uuid)
            }
            Note::Answer(Answer { ring, pool, no }) => {
                put(&mut body[..NAME], pool);
                // What is longer is cut off.
                put(&mut body[NAME..], no.as_deref().unwrap_or_default());
                (ANSWER, u8::from(no.is_none()), *ring, 0, [0; 16])
            }
        };
        let mut w = Words::new(kind, flags, 0);
        w.u32(ring);
        w.u64(bytes);
        w.put(&uuid);
        w.u32(crc32c::crc32c(&body));
        let mut out = w.seal().to_vec();
        out.extend_from_slice(&body);
        out
    }

    /// Reads the body behind a header.
    ///
    /// # Errors
    /// The position in the stream is lost.
    pub(crate) fn decode(head: NoteHead, body: &[u8; NOTE]) -> Result<Note, FrameError> {
        if crc32c::crc32c(body) != head.sum {
            return Err(FrameError::NoteCrc);
        }
        if head.ask {
            let mut handle = [0; 64];
            handle.copy_from_slice(&body[..64]);
            let ring = RingName {
                number: head.ring,
                kind: head.flags,
                uuid: head.uuid,
                bytes: head.bytes,
                handle,
            };
            let pool = text(&body[64..64 + NAME])?;
            return Ok(Note::Ask(Ask { ring, pool }));
        }
        let no = match head.flags {
            0 => Some(text(&body[NAME..])?),
            1 => None,
            _ => return Err(FrameError::Unknown),
        };
        Ok(Note::Answer(Answer {
            ring: head.ring,
            pool: text(&body[..NAME])?,
            no,
        }))
    }

    /// Whether a pool of this name can be asked about.
    pub(crate) fn holds_name(pool: &str) -> bool {
        pool.len() <= NAME && !pool.contains('\0')
    }
}

/// As much of a text as there is room for.
fn put(into: &mut [u8], text: &str) {
    let end = text.floor_char_boundary(into.len());
    into[..end].copy_from_slice(&text.as_bytes()[..end]);
}

/// What is before the padding.
fn text(bytes: &[u8]) -> Result<String, FrameError> {
    let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
    let text = std::str::from_utf8(&bytes[..end]);
    text.map(str::to_owned).map_err(|_| FrameError::Unknown)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{HEADER, Header};
    use super::*;

    fn read(bytes: &[u8]) -> Result<Note, FrameError> {
        let head = match Header::decode(bytes[..HEADER].try_into().unwrap())? {
            Header::Note(head) => head,
            other => panic!("{other:?}"),
        };
        Note::decode(head, bytes[HEADER..].try_into().unwrap())
    }

    fn notes() -> [Note; 3] {
        let ring = RingName {
            number: 7,
            kind: 1,
            uuid: [3; 16],
            bytes: 8 << 20,
            handle: [0xA7; 64],
        };
        let pool = "kv".to_owned();
        let no = Some(WHY_NOT.repeat(9));
        [
            Note::Ask(Ask {
                ring,
                pool: "p".repeat(64),
            }),
            Note::Answer(Answer {
                ring: 7,
                pool: pool.clone(),
                no: None,
            }),
            Note::Answer(Answer { ring: 7, pool, no }),
        ]
    }

    /// A letter of it lies across the place where it is cut.
    const WHY_NOT: &str = "keine Möglichkeit, ";

    #[test]
    fn notes_and_references_are_read_as_they_were_written() {
        let [ask, yes, no] = notes();
        for note in [&ask, &yes] {
            assert_eq!(read(&note.encode()).as_ref(), Ok(note));
        }
        let Ok(Note::Answer(cut)) = read(&no.encode()) else {
            panic!("no answer");
        };
        let cut = cut.no.unwrap();
        assert!(WHY_NOT.repeat(9).starts_with(&cut) && cut.len() > NOTE - NAME - 4);
        let reference = Reference {
            ring: 7,
            offset: u64::MAX,
        };
        assert_eq!(Reference::decode(&reference.encode(9), 9), Ok(reference));
        assert!(Reference::decode(&reference.encode(9), 10).is_err());
    }

    #[test]
    fn a_flipped_bit_in_a_note_or_reference_is_noticed() {
        for note in notes() {
            let bytes = note.encode();
            for bit in 0..bytes.len() * 8 {
                let mut bytes = bytes.clone();
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert!(read(&bytes).is_err(), "bit {bit}");
            }
        }
        let reference = Reference { ring: 1, offset: 2 };
        for bit in 0..REFERENCE * 8 {
            let mut bytes = reference.encode(5);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Reference::decode(&bytes, 5).is_err(), "bit {bit}");
        }
    }
}
