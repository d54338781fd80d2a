//! What travels on a data connection, as bytes. Pure.
//!
//! ```text
//!   data:  header (64) ── payload (length) ── trailer (16)
//!   ack:   header (64)
//!   alive: header (64)      now and then, so that a connection that leads nowhere is found out
//!   handed: header (64) ── reference (16) ── trailer (16)      bytes that stay where they are (`handed`)
//!   ask, answer: header (64) ── body (192)                     whether frames may be handed
//!
//!   header   magic u32 · kind u8 · flags u8 · section u16 · first u64 · last u64 · claim u64
//!            · gate u32 · layer u32 · layer_end u32 · place u32 · place_end u32 · length u32
//!            · position u64 … as far as its kind uses them, then CRC32C u32 over all before
//!   trailer  word u32 (valid or void) · payload CRC u32 · sequence low u32 · CRC32C u32
//!   reference  ring u32 · offset u64 · CRC32C u32 over these and the sequence low u32
//!   ask      header: flags (kind of device) · ring u32 · bytes u64 · uuid 16 · body CRC u32
//!            body: handle 64 · pool's name 64, padded · zeroes
//!   answer   header: flags (1 for yes) · ring u32 · bytes u64 (0) · uuid (0) · body CRC u32
//!            body: pool's name 64, padded · why not 128, padded
//! ```
//!
//! Integers are little-endian. The payload of a data frame is a stretch of a rectangle of cells:
//! layers x places of the claim's list, layer by layer, and `position` is where in that it begins.
//!
//! A sliced frame (a flag says so) carries a part of its cells' bytes: what the claim's section says
//! that its sender covers, in the order in which the destination has it. It is either all that there
//! is of a rectangle of cells, from `position` 0 on, or a stretch of one cell. Heads and tokens are not
//! in it: the receiver knows which ones, so that a frame cannot reach others.
//!
//! Rules: nothing of a header is used before its CRC was checked, and nothing of a payload counts
//! before its trailer said that it is valid. Stretches stand on multiples of [`UNIT`] within a cell,
//! or within what is carried of it.

mod note;

pub(crate) use note::{Answer, Ask, NOTE, Note, NoteHead, REFERENCE, Reference, RingName};

use crate::ids::ClaimNo;
use crate::limits::{MAX_DATA_FRAME, UNIT};
use crate::slice::SliceCells;
use std::ops::Range;

/// Bytes of a header.
pub(crate) const HEADER: usize = 64;
/// Bytes of a trailer.
pub(crate) const TRAILER: usize = 16;

const MAGIC: u32 = u32::from_le_bytes(*b"KVRF");
const VALID: u32 = u32::from_le_bytes(*b"good");
const VOID: u32 = u32::from_le_bytes(*b"void");
const DATA: u8 = 1;
const ACK: u8 = 2;
const ALIVE: u8 = 3;
const HAS_CRC: u8 = 1;
const SLICED: u8 = 2;
const HANDED: u8 = 4;
const ASK: u8 = 4;
const ANSWER: u8 = 5;

/// A stretch of cells of one claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Data {
    /// Counted on this connection and in this direction from 1.
    pub(crate) seq: u64,
    pub(crate) claim: ClaimNo,
    /// The slot of its gate.
    pub(crate) gate: u32,
    pub(crate) section: u16,
    pub(crate) layers: Range<u32>,
    /// Places in the claim's list.
    pub(crate) places: Range<u32>,
    /// Where in layers x places the payload begins, in bytes.
    pub(crate) position: u64,
    /// Bytes of payload.
    pub(crate) length: u32,
    /// Whether the trailer carries a sum over the payload.
    pub(crate) crc: bool,
    /// Whether it carries only a part of each cell.
    pub(crate) sliced: bool,
    /// Whether a reference goes in place of the payload.
    pub(crate) handed: bool,
}

/// What became of frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// Placed, valid, marked.
    Landed,
    /// The gate was closed, or the claim is not live: read and thrown away.
    Refused,
    /// The sender itself said that it is void.
    Void,
    /// The payload's sum is wrong.
    Corrupt,
}

/// The fate of all frames from `first` to `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ack {
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) fate: Fate,
}

/// A header that was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Header {
    Data(Data),
    Ack(Ack),
    /// The other side is there.
    Alive,
    /// About handed frames; the body follows.
    Note(NoteHead),
}

/// A trailer that was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) valid: bool,
    pub(crate) crc: u32,
}

/// Why the position in a stream is lost. The connection ends; what it had not acknowledged goes out
/// again on another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("a header's CRC is wrong: the connection corrupts what it carries")]
    HeaderCrc,
    #[error("a trailer's CRC is wrong: the connection corrupts what it carries")]
    TrailerCrc,
    #[error("a reference's or a note's CRC is wrong: the connection corrupts what it carries")]
    NoteCrc,
    #[error("a header of an unknown kind: the peer does not speak this protocol")]
    Unknown,
}

impl Data {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let flag = |on, flag| if on { flag } else { 0 };
        let flags = flag(self.crc, HAS_CRC) | flag(self.sliced, SLICED);
        let flags = flags | flag(self.handed, HANDED);
        let mut w = Words::new(DATA, flags, self.section);
        w.u64(self.seq);
        w.u64(self.claim.0);
        w.u64(self.position);
        w.u32(self.gate);
        w.u32(self.layers.start);
        w.u32(self.layers.end);
        w.u32(self.places.start);
        w.u32(self.places.end);
        w.u32(self.length);
        w.seal()
    }

    /// What does not even depend on the claim.
    ///
    /// # Errors
    /// What is wrong, in words; the peer's fault.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.length == 0 || self.length as usize > MAX_DATA_FRAME {
            return Err(format!(
                "a data frame of {} bytes (1 to {MAX_DATA_FRAME})",
                self.length
            ));
        }
        if self.layers.is_empty() || self.places.is_empty() {
            return Err("a data frame without cells".into());
        }
        if self.handed && self.crc {
            return Err("a handed frame with a sum over bytes that it does not carry".into());
        }
        Ok(())
    }

    /// The frame's cells against a section of the claim: `layers` that its sender may write, places
    /// in the claim's list, bytes of a cell.
    ///
    /// # Errors
    /// What is wrong, in words; the peer's fault.
    pub(crate) fn check_against(
        &self,
        layers: Range<u32>,
        places: u32,
        cell: u64,
    ) -> Result<(), String> {
        if self.layers.start < layers.start || self.layers.end > layers.end {
            return Err(format!(
                "layers {:?} of section {}, the claim offers {layers:?}",
                self.layers, self.section
            ));
        }
        if self.places.end > places {
            return Err(format!(
                "places {:?} of section {}, the claim lists {places}",
                self.places, self.section
            ));
        }
        let cells = u64::from(self.layers.end - self.layers.start)
            * u64::from(self.places.end - self.places.start);
        let end = u128::from(self.position) + u128::from(self.length);
        if end > u128::from(cells) * u128::from(cell) {
            return Err(format!(
                "bytes {}..{end} of {cells} cells of {cell} bytes",
                self.position
            ));
        }
        let stands = |at: u64| at.is_multiple_of(cell) || (at % cell).is_multiple_of(UNIT);
        if !stands(self.position) || !stands(self.position + u64::from(self.length)) {
            return Err(format!(
                "bytes {}..{end}, which cut a unit of {UNIT} bytes",
                self.position
            ));
        }
        Ok(())
    }

    /// A sliced frame's cells against those that its sender covers of a section of the claim.
    ///
    /// # Errors
    /// What is wrong, in words; the peer's fault.
    pub(crate) fn check_slice(&self, cells: &SliceCells) -> Result<(), String> {
        let size = cells
            .rect(&self.layers, &self.places)
            .map_err(|what| format!("{what} of section {}", self.section))?;
        let end = u128::from(self.position) + u128::from(self.length);
        if (self.position, end) == (0, u128::from(size)) {
            return Ok(());
        }
        let count = self.layers.len() as u64 * self.places.len() as u64;
        let stands = |at: u128| at == u128::from(size) || at.is_multiple_of(u128::from(UNIT));
        if count > 1 || end > u128::from(size) || !stands(self.position.into()) || !stands(end) {
            return Err(format!(
                "bytes {}..{end} of {count} cells, which have {size} bytes of the slice",
                self.position
            ));
        }
        Ok(())
    }

    /// The frame's cells, each with the bytes that it brings of it: from where on, and how many. It was
    /// found to be of these cells.
    pub(crate) fn slices<'c>(
        &self,
        cells: &'c SliceCells,
    ) -> impl Iterator<Item = Piece> + use<'c> {
        let (places, position) = (self.places.clone(), self.position);
        let one = self.layers.len() == 1 && self.places.len() == 1;
        let length = one.then_some(u64::from(self.length));
        self.layers.clone().flat_map(move |layer| {
            places.clone().map(move |place| Piece {
                layer,
                place,
                offset: position,
                bytes: length.unwrap_or_else(|| cells.cell(place)),
            })
        })
    }

    /// The frame's pieces from byte `from` of its payload on, each within one cell.
    pub(crate) fn pieces(&self, cell: u64, from: u32) -> impl Iterator<Item = Piece> + use<> {
        let places = u64::from(self.places.end - self.places.start).max(1);
        let (layer, place) = (self.layers.start, self.places.start);
        let end = self.position + u64::from(self.length);
        let mut at = self.position + u64::from(from);
        std::iter::from_fn(move || {
            if at >= end || cell == 0 {
                return None;
            }
            let (index, offset) = (at / cell, at % cell);
            let bytes = (cell - offset).min(end - at);
            at += bytes;
            Some(Piece {
                layer: layer + (index / places) as u32,
                place: place + (index % places) as u32,
                offset,
                bytes,
            })
        })
    }
}

/// Bytes of one cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub(crate) layer: u32,
    /// In the claim's list.
    pub(crate) place: u32,
    /// Within the cell.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

impl Ack {
    pub(crate) fn encode(&self) -> [u8; HEADER] {
        let fate = match self.fate {
            Fate::Landed => 0,
            Fate::Refused => 1,
            Fate::Void => 2,
            Fate::Corrupt => 3,
        };
        let mut w = Words::new(ACK, fate, 0);
        w.u64(self.first);
        w.u64(self.last);
        w.seal()
    }
}

impl Header {
    /// The header that says that this side is there.
    pub(crate) fn alive() -> [u8; HEADER] {
        Words::new(ALIVE, 0, 0).seal()
    }

    /// Reads a header.
    ///
    /// # Errors
    /// The position in the stream is lost.
    pub(crate) fn decode(bytes: &[u8; HEADER]) -> Result<Header, FrameError> {
        let mut r = Reader(bytes);
        let (magic, kind, flags, section) = (r.u32(), r.u8(), r.u8(), r.u16());
        if crc32c::crc32c(&bytes[..HEADER - 4]) != le_u32(&bytes[HEADER - 4..]) {
            return Err(FrameError::HeaderCrc);
        }
        match (magic, kind) {
            (MAGIC, DATA) => {
                let (seq, claim, position) = (r.u64(), ClaimNo(r.u64()), r.u64());
                let gate = r.u32();
                let (layers, places) = (r.u32()..r.u32(), r.u32()..r.u32());
                Ok(Header::Data(Data {
                    seq,
                    claim,
                    gate,
                    section,
                    layers,
                    places,
                    position,
                    length: r.u32(),
                    crc: flags & HAS_CRC != 0,
                    sliced: flags & SLICED != 0,
                    handed: flags & HANDED != 0,
                }))
            }
            (MAGIC, ACK) => Ok(Header::Ack(Ack {
                first: r.u64(),
                last: r.u64(),
                fate: match flags {
                    0 => Fate::Landed,
                    1 => Fate::Refused,
                    2 => Fate::Void,
                    3 => Fate::Corrupt,
                    _ => return Err(FrameError::Unknown),
                },
            })),
            (MAGIC, ALIVE) => Ok(Header::Alive),
            (MAGIC, ASK | ANSWER) => Ok(Header::Note(NoteHead {
                ask: kind == ASK,
                flags,
                ring: r.u32(),
                bytes: r.u64(),
                uuid: r.take(),
                sum: r.u32(),
            })),
            _ => Err(FrameError::Unknown),
        }
    }
}

impl Trailer {
    pub(crate) fn encode(self, seq: u64) -> [u8; TRAILER] {
        let mut out = [0; TRAILER];
        out[..4].copy_from_slice(&if self.valid { VALID } else { VOID }.to_le_bytes());
        out[4..8].copy_from_slice(&self.crc.to_le_bytes());
        out[8..12].copy_from_slice(&(seq as u32).to_le_bytes());
        let crc = crc32c::crc32c(&out[..12]);
        out[12..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the trailer of frame `seq`.
    ///
    /// # Errors
    /// The position in the stream is lost.
    pub(crate) fn decode(bytes: &[u8; TRAILER], seq: u64) -> Result<Trailer, FrameError> {
        let word = le_u32(&bytes[..4]);
        if crc32c::crc32c(&bytes[..12]) != le_u32(&bytes[12..])
            || le_u32(&bytes[8..12]) != seq as u32
            || (word != VALID && word != VOID)
        {
            return Err(FrameError::TrailerCrc);
        }
        Ok(Trailer {
            valid: word == VALID,
            crc: le_u32(&bytes[4..8]),
        })
    }
}

fn le_u32(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |b| u32::from_le_bytes(*b))
}

/// A header that is being written.
struct Words {
    out: [u8; HEADER],
    at: usize,
}

impl Words {
    fn new(kind: u8, flags: u8, section: u16) -> Self {
        let mut w = Words {
            out: [0; HEADER],
            at: 0,
        };
        w.put(&MAGIC.to_le_bytes());
        w.put(&[kind, flags]);
        w.put(&section.to_le_bytes());
        w
    }

    fn u64(&mut self, value: u64) {
        self.put(&value.to_le_bytes());
    }

    fn u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    fn put(&mut self, bytes: &[u8]) {
        self.out[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn seal(mut self) -> [u8; HEADER] {
        let crc = crc32c::crc32c(&self.out[..HEADER - 4]);
        self.out[HEADER - 4..].copy_from_slice(&crc.to_le_bytes());
        self.out
    }
}

/// A header that is being read; its fields take less than it has.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        match self.0.split_first_chunk() {
            Some((first, rest)) => {
                self.0 = rest;
                *first
            }
            None => [0; N],
        }
    }

    fn u8(&mut self) -> u8 {
        u8::from_le_bytes(self.take())
    }

    fn u16(&mut self) -> u16 {
        u16::from_le_bytes(self.take())
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn data() -> Data {
        Data {
            seq: 7,
            claim: ClaimNo(99),
            gate: 3,
            section: 1,
            layers: 2..4,
            places: 5..8,
            position: 200_000,
            length: 100_000,
            crc: true,
            sliced: false,
            handed: false,
        }
    }

    #[test]
    fn headers_and_trailers_are_read_as_they_were_written() {
        for (crc, sliced) in [(false, false), (true, false), (false, true), (true, true)] {
            let header = Data {
                crc,
                sliced,
                ..data()
            };
            assert_eq!(Header::decode(&header.encode()), Ok(Header::Data(header)));
        }
        for fate in [Fate::Landed, Fate::Refused, Fate::Void, Fate::Corrupt] {
            let ack = Ack {
                first: 3,
                last: u64::MAX,
                fate,
            };
            assert_eq!(Header::decode(&ack.encode()), Ok(Header::Ack(ack)));
        }
        let handed = Data {
            crc: false,
            handed: true,
            ..data()
        };
        assert_eq!(Header::decode(&handed.encode()), Ok(Header::Data(handed)));
        assert_eq!(Header::decode(&Header::alive()), Ok(Header::Alive));
        for valid in [true, false] {
            let trailer = Trailer { valid, crc: 77 };
            assert_eq!(Trailer::decode(&trailer.encode(9), 9), Ok(trailer));
        }
        let other = Trailer {
            valid: true,
            crc: 0,
        };
        assert!(Trailer::decode(&other.encode(9), 10).is_err());
    }

    #[test]
    fn a_frame_of_whole_cells_has_the_bytes_that_it_always_had() {
        let fields = [
            &b"KVRF\x01\x01\x01\x00"[..],
            &7u64.to_le_bytes(),
            &99u64.to_le_bytes(),
            &200_000u64.to_le_bytes(),
            &[3, 2, 4, 5, 8, 100_000u32].map(u32::to_le_bytes).concat(),
            &[0; 4],
        ]
        .concat();
        let sum = crc32c::crc32c(&fields).to_le_bytes();
        assert_eq!(data().encode()[..], [&fields[..], &sum].concat());
    }

    proptest! {
        #[test]
        fn a_flipped_bit_in_a_header_or_trailer_is_noticed(bit in 0..(HEADER + TRAILER) * 8) {
            let mut header = data().encode();
            let mut trailer = Trailer { valid: true, crc: 5 }.encode(1);
            if bit < HEADER * 8 {
                header[bit / 8] ^= 1 << (bit % 8);
                prop_assert!(Header::decode(&header).is_err());
            } else {
                trailer[bit / 8 - HEADER] ^= 1 << (bit % 8);
                prop_assert!(Trailer::decode(&trailer, 1).is_err());
            }
        }

        #[test]
        fn pieces_cover_the_payload_once_and_in_order(
            cell in 1u64..300_000, layers in 1u32..4, places in 1u32..5,
            position in 0u64..500_000, length in 1u32..500_000, from in 0u32..500_000,
        ) {
            let frame = Data { layers: 2..2 + layers, places: 7..7 + places, position, length, ..data() };
            let size = cell * u64::from(layers * places);
            prop_assume!(position + u64::from(length) <= size && from <= length);
            let mut at = position + u64::from(from);
            for piece in frame.pieces(cell, from) {
                let index = u64::from((piece.layer - 2) * places + piece.place - 7);
                prop_assert_eq!(index * cell + piece.offset, at);
                prop_assert!(piece.bytes > 0 && piece.offset + piece.bytes <= cell);
                at += piece.bytes;
            }
            prop_assert_eq!(at, position + u64::from(length));
        }
    }

    #[test]
    fn what_reaches_outside_the_claim_is_refused() {
        let good = Data {
            layers: 0..2,
            places: 0..3,
            position: 0,
            length: 6 * 4096,
            ..data()
        };
        let check = |d: &Data| d.check_against(0..2, 3, 4096);
        assert_eq!(check(&good), Ok(()));
        for bad in [
            Data {
                layers: 0..3,
                ..good.clone()
            },
            Data {
                places: 1..4,
                ..good.clone()
            },
            Data {
                position: 4096,
                ..good.clone()
            },
            Data {
                position: u64::MAX,
                ..good.clone()
            },
            Data {
                length: 100,
                ..good.clone()
            },
            Data {
                position: 100,
                length: 4096 - 100,
                ..good.clone()
            },
        ] {
            assert!(check(&bad).is_err(), "{bad:?}");
        }
        assert!(good.check_against(1..2, 3, 4096).is_err());
        assert_eq!(good.check(), Ok(()));
        let check = |length, places| {
            let bad = Data {
                length,
                places,
                ..good.clone()
            };
            bad.check()
        };
        assert!(check(0, 0..3).is_err());
        assert!(check(MAX_DATA_FRAME as u32 + 1, 0..3).is_err());
        assert!(check(4096, 2..2).is_err());
    }

    /// Two layers of three cells, of 100,000, 200,000 and 150,000 bytes: a token has 50,000.
    fn cells() -> SliceCells {
        use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder};
        use kvroom_kernels::layout::cube::{Dtype, Plane, Share, Span};
        use kvroom_kernels::plan::cube::{PageList, Part};
        let layout = CubeLayout {
            name: "kv".into(),
            kind: CubeKind::Kv,
            layers: Share::part(8, 2, 4),
            planes: vec![Plane {
                heads: Share::part(8, 0, 4),
                channels: 25_000,
                dtype: Dtype::new("u8", 8),
            }],
            page_tokens: 4,
            granule: 1,
            pages: 3,
            page_gap: 0,
            order: DimOrder::NHD,
        };
        let part = Part {
            layers: Span::new(3, 5),
            heads: vec![Span::new(1, 3)],
        };
        SliceCells::new(&layout, &part, 2..11, PageList::whole([2, 0, 1]), 0).unwrap()
    }

    fn sliced(layers: Range<u32>, places: Range<u32>, position: u64, length: u32) -> Data {
        Data {
            layers,
            places,
            position,
            length,
            sliced: true,
            ..data()
        }
    }

    #[test]
    fn a_sliced_frame_is_a_whole_rectangle_or_a_stretch_of_one_cell_in_units() {
        let cells = cells();
        for good in [
            sliced(1..3, 0..3, 0, 900_000),
            sliced(2..3, 1..3, 0, 350_000),
            sliced(1..2, 0..1, 0, 100_000),
            sliced(1..2, 1..2, 0, 65_536),
            sliced(1..2, 1..2, 65_536, 65_536),
            sliced(1..2, 1..2, 131_072, 68_928),
        ] {
            assert_eq!(good.check_slice(&cells), Ok(()), "{good:?}");
            let brought: Vec<Piece> = good.slices(&cells).collect();
            let bytes: u64 = brought.iter().map(|p| p.bytes).sum();
            assert_eq!(bytes, u64::from(good.length));
            for p in brought {
                assert!(p.offset + p.bytes <= cells.cell(p.place), "{p:?}");
            }
        }
        for bad in [
            // Outside of the slice.
            sliced(0..2, 0..1, 0, 200_000),
            sliced(2..4, 0..1, 0, 200_000),
            sliced(1..2, 2..4, 0, 350_000),
            sliced(1..2, 3..4, 0, 200_000),
            sliced(1..2, 2..2, 0, 65_536),
            // More or fewer heads or tokens than it has.
            sliced(1..2, 0..1, 0, 200_000),
            sliced(1..2, 2..3, 0, 200_000),
            sliced(1..3, 0..3, 0, 899_999),
            // A part of more than one cell.
            sliced(1..3, 0..1, 0, 131_072),
            sliced(1..2, 0..2, 65_536, 65_536),
            // Within a unit, or out of the cell.
            sliced(1..2, 1..2, 0, 50_000),
            sliced(1..2, 1..2, 50_000, 150_000),
            sliced(1..2, 1..2, 131_072, 131_072),
            sliced(1..2, 1..2, 196_608, 65_536),
            sliced(1..2, 1..2, u64::MAX, 65_536),
        ] {
            assert!(bad.check_slice(&cells).is_err(), "{bad:?}");
        }
    }
}
