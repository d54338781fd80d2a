//! The incoming half of a data connection: straight into pages, through the claim's gate.
//!
//! ```text
//!   Header ──data──▶ Payload ──▶ Trailer ──▶ Header       each read goes on into what follows
//!     ├──ack                └── gate closed: the rest is read and thrown away
//!     ├──handed──▶ Reference ──▶ Trailer
//!     └──ask, answer──▶ Note
//! ```
//!
//! Rules: the gate is entered anew for each read and never held across a wait. A header is checked
//! (CRC, limits, claim, writer, every index) before a byte is placed. What a frame placed counts only
//! after its trailer said valid, and again only through the open gate.

use super::frame::{
    Ack, Data, Fate, FrameError, HEADER, Header, NOTE, Note, NoteHead, Piece, REFERENCE, Reference,
    TRAILER, Trailer,
};
use super::handed::{Landing, Nowhere};
use super::sliced::span;
use super::staged::{Delivery, StagedSlot, Staging};
use super::window::Window;
use crate::fabric::stream::Stream;
use crate::ids::PeerRef;
use crate::memory::{GateTable, Inside, MAX_RANGES, PoolRange, SocketError, TargetSection};
use crate::slice::{SliceCells, TargetSlice};
use kvroom_kernels::coverage::Rect;
use kvroom_kernels::plan::End;
use kvroom_kernels::plan::cube::{CubePlan, PageList};
use std::cell::{Cell, RefCell};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::sync::Arc;

/// What one reader needs to know of its node and peer.
pub(super) struct Border<'a> {
    pub(super) gates: &'a GateTable,
    pub(super) peer: PeerRef,
    /// For sections that the CPU does not reach.
    pub(super) staging: Option<&'a Staging>,
}

/// Something that the route must do.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Tell the other side what became of its frame; so many of its bytes were late.
    Frame { seq: u64, fate: Fate, bytes: u32 },
    /// The other side tells what became of ours.
    Ack(Ack),
    /// The other side asks or answers about handed frames.
    Note(Note),
    /// So many bytes moved; more may be there.
    Bytes(usize),
    /// Nothing is there now.
    Empty,
    /// A whole frame went on from its slot; what becomes of it is told later.
    Handed,
    /// Nothing can be read before a slot is free, of which this side is told.
    NoSlot,
}

/// Why a connection cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    /// Only this connection: what it carried may go over another one.
    #[error("{0}")]
    Connection(String),
    /// The peer broke the protocol.
    #[error("{0}")]
    Violation(String),
}

impl From<FrameError> for ReadError {
    fn from(error: FrameError) -> Self {
        ReadError::Connection(error.to_string())
    }
}

/// See the module.
pub(super) struct Receiving {
    state: State,
    /// A trailer and the header behind it, or a header; as far as they were read.
    small: [u8; TRAILER + HEADER],
    have: usize,
    last_seq: u64,
    ranges: Vec<PoolRange>,
    /// Bytes that were read and not looked at: before this connection was handed over, or with a
    /// header.
    ahead: Vec<u8>,
    ahead_at: usize,
}

enum State {
    Header,
    Payload(Payload),
    /// Of a handed frame.
    Reference(Payload),
    Trailer(Payload),
    /// With as much of the body as has come.
    Note(NoteHead, Box<[u8; NOTE]>, usize),
}

struct Payload {
    data: Data,
    /// Where the rest of a sliced payload goes.
    window: Option<Box<Window>>,
    into: Into,
    done: u32,
    /// Whether its bytes are placed. Once false, it stays so.
    live: bool,
    /// Bytes that were thrown away.
    late: u32,
    crc: u32,
    cursor: Cell<usize>,
    /// Of a handed frame: its place among those that are on their way into pages.
    landing: Option<Landing>,
}

/// Where a payload is read to.
enum Into {
    Pages,
    /// A slot, which is not there yet.
    Waiting,
    Slot(Box<dyn StagedSlot>),
}

impl Receiving {
    pub(super) fn new(ahead: Vec<u8>) -> Self {
        Receiving {
            state: State::Header,
            small: [0; TRAILER + HEADER],
            have: 0,
            last_seq: 0,
            ranges: Vec::new(),
            ahead,
            ahead_at: 0,
        }
    }

    /// Takes one step: at most one read from the socket.
    pub(super) fn step(&mut self, stream: &Stream, border: &Border<'_>) -> Result<Came, ReadError> {
        match &self.state {
            State::Header => {
                if self.have < HEADER {
                    return self.read_small(stream, HEADER);
                }
                self.header(border)
            }
            State::Payload(_) => self.payload(stream, border),
            State::Reference(_) => {
                if self.have < REFERENCE {
                    return self.read_small(stream, REFERENCE);
                }
                self.reference(border)
            }
            State::Note(..) => self.note(stream),
            State::Trailer(_) => {
                if self.have < TRAILER {
                    return self.read_small(stream, TRAILER + HEADER);
                }
                self.trailer(border)
            }
        }
    }

    fn read_small(&mut self, stream: &Stream, upto: usize) -> Result<Came, ReadError> {
        if self.ahead_at < self.ahead.len() {
            let into = &mut self.small[self.have..upto];
            let n = into.len().min(self.ahead.len() - self.ahead_at);
            into[..n].copy_from_slice(&self.ahead[self.ahead_at..self.ahead_at + n]);
            self.ahead_at += n;
            self.have += n;
            return Ok(Came::Bytes(n));
        }
        self.read_ahead(stream)
    }

    fn read_ahead(&mut self, stream: &Stream) -> Result<Came, ReadError> {
        // More than is needed: what is there is often several acknowledgements, or one and nothing
        // else, and then it is known that nothing else is there.
        self.ahead.resize(AHEAD, 0);
        self.ahead_at = 0;
        let into = &mut self.ahead[..];
        let came = read(stream, AHEAD, || stream_read(stream, into));
        let n = match &came {
            Ok(Came::Bytes(n)) => *n,
            _ => 0,
        };
        self.ahead.truncate(n);
        came
    }

    fn header(&mut self, border: &Border<'_>) -> Result<Came, ReadError> {
        let Some(bytes) = self.small.first_chunk::<HEADER>() else {
            return Ok(Came::Empty);
        };
        let header = Header::decode(bytes)?;
        self.have = 0;
        let data = match header {
            Header::Ack(ack) => return Ok(Came::Ack(ack)),
            Header::Alive => return Ok(Came::Bytes(0)),
            Header::Note(head) => {
                self.state = State::Note(head, Box::new([0; NOTE]), 0);
                return Ok(Came::Bytes(0));
            }
            Header::Data(data) => data,
        };
        if data.seq != self.last_seq + 1 {
            return Err(ReadError::Violation(format!(
                "data frame {} follows {}",
                data.seq, self.last_seq
            )));
        }
        self.last_seq = data.seq;
        data.check().map_err(ReadError::Violation)?;
        let (live, window, staged) = match border.gates.enter(data.gate, data.claim) {
            Ok(inside) => {
                let window = check(&data, &inside, border.peer)?;
                #[cfg(feature = "plant")]
                plant(&data, &inside);
                let section = inside.target().section(data.section);
                let staged = border.staging.zip(section);
                (true, window, staged.is_some_and(|(s, to)| s.sink.takes(to)))
            }
            Err(_) => (false, None, false),
        };
        if data.handed && live && border.staging.is_none() {
            return Err(ReadError::Violation(format!(
                "{}: a handed frame, and this node takes none",
                data.claim
            )));
        }
        let next = if data.handed {
            State::Reference
        } else {
            State::Payload
        };
        self.state = next(Payload {
            // One that is handed has no bytes: without a slot nothing of it counts.
            into: match staged || data.handed {
                true => Into::Waiting,
                false => Into::Pages,
            },
            data,
            window: window.filter(|_| !staged),
            done: 0,
            live,
            late: 0,
            crc: 0,
            cursor: Cell::new(0),
            landing: None,
        });
        Ok(Came::Bytes(0))
    }

    fn payload(&mut self, stream: &Stream, border: &Border<'_>) -> Result<Came, ReadError> {
        let State::Payload(payload) = &mut self.state else {
            return Ok(Came::Empty);
        };
        let left = payload.data.length - payload.done;
        let inside = match payload.live {
            true => border
                .gates
                .enter(payload.data.gate, payload.data.claim)
                .ok(),
            false => None,
        };
        payload.live = inside.is_some();
        if !payload.live {
            // What was to be in a slot is thrown away like the rest.
            if !matches!(payload.into, Into::Pages) {
                payload.late = payload.done;
                payload.into = Into::Pages;
            }
        } else if let (Into::Waiting, Some(staging), Some(inside)) =
            (&payload.into, border.staging, &inside)
        {
            let data = &payload.data;
            let (_, section) = cells(inside, data.section)?;
            let sink = &staging.sink;
            match sink.slot(section, data.length as usize, &staging.wake) {
                Ok(Some(slot)) => payload.into = Into::Slot(slot),
                Ok(None) => return Ok(Came::NoSlot),
                Err(none) => {
                    let target = inside.target();
                    target.device_failed(data.claim, none.lost, &none.why);
                    payload.live = false;
                    payload.into = Into::Pages;
                    return Ok(Came::Bytes(0));
                }
            }
        }
        let ahead = &self.ahead[self.ahead_at..];
        let placed = !ahead.is_empty();
        let came = if placed {
            let n = ahead.len().min(left as usize);
            payload.place(&ahead[..n], inside.as_ref())?;
            self.ahead_at += n;
            Came::Bytes(n)
        } else if let Into::Slot(slot) = &mut payload.into {
            let (data, crc) = (&payload.data, &mut payload.crc);
            let mut came = None;
            rest(&mut **slot, data, payload.done, &mut |into| {
                let read = read(stream, into.len(), || stream_read(stream, into));
                if let Ok(Came::Bytes(n)) = &read
                    && data.crc
                {
                    *crc = crc32c::crc32c_append(*crc, &into[..*n]);
                }
                came = Some(read);
            })?;
            came.unwrap_or(Ok(Came::Empty))?
        } else if let Some(inside) = &inside {
            #[cfg(feature = "plant")]
            crate::copy::plant::inside_a_gate();
            let Payload {
                data,
                window,
                done,
                crc,
                cursor,
                ..
            } = payload;
            let section = data.section;
            let ranges = match window {
                Some(window) => window.ranges(),
                None => {
                    let (cell, pool) = cells(inside, section)?;
                    self.ranges.clear();
                    let pieces = data.pieces(cell, *done).take(MAX_RANGES + 1);
                    self.ranges.extend(pieces.map(|p| range(&p, pool)));
                    &self.ranges
                }
            };
            let most: u64 = ranges.iter().take(MAX_RANGES).map(|r| r.bytes).sum();
            let around = if ranges.len() <= MAX_RANGES {
                self.small.len()
            } else {
                0
            };
            let mut wrong = None;
            let small = &mut self.small;
            let came = read(stream, most as usize + around, || {
                match inside.read_from(stream.as_fd(), section, ranges, small, cursor) {
                    Ok(n) => Ok(n),
                    Err(SocketError::Socket(e)) => Err(e),
                    Err(SocketError::Range(e)) => {
                        wrong = Some(e);
                        Err(io::ErrorKind::WouldBlock.into())
                    }
                }
            });
            if let Some(error) = wrong {
                // Checked before: a bug of this side, which costs the claim and not the process.
                return Err(ReadError::Violation(error.to_string()));
            }
            let came = came?;
            if let Came::Bytes(n) = came
                && data.crc
            {
                let n = n.min(left as usize) as u64;
                *crc = sum(inside, section, ranges, n, cursor, *crc)?;
            }
            came
        } else {
            let most = (left as usize).min(DISCARD);
            let came = DISCARDED.with_borrow_mut(|buffer| {
                buffer.resize(DISCARD, 0);
                let into = &mut buffer[..most];
                read(stream, most, || stream_read(stream, into))
            })?;
            if let Came::Bytes(n) = came {
                payload.late += n as u32;
            }
            came
        };
        drop(inside);
        if let Came::Bytes(n) = came {
            let of_payload = n.min(left as usize);
            payload.done += of_payload as u32;
            if let Some(window) = &mut payload.window
                && !placed
            {
                window.advance(of_payload as u64);
            }
            if n > of_payload {
                self.have = n - of_payload;
            }
            if payload.done == payload.data.length
                && let State::Payload(payload) = std::mem::replace(&mut self.state, State::Header)
            {
                self.state = State::Trailer(payload);
            }
        }
        Ok(came)
    }

    /// Where the bytes of a handed frame are: checked before anything is done with it, and used only once
    /// the trailer says that the frame is valid.
    fn reference(&mut self, border: &Border<'_>) -> Result<Came, ReadError> {
        let State::Reference(payload) = &self.state else {
            return Ok(Came::Empty);
        };
        let (gate, claim) = (payload.data.gate, payload.data.claim);
        let live = payload.live && border.gates.enter(gate, claim).is_ok();
        let landing = match border.staging.filter(|_| live) {
            None => None,
            Some(staging) => match staging.handing.lands(&staging.wake) {
                None => return Ok(Came::NoSlot),
                landing => landing,
            },
        };
        let State::Reference(mut payload) = std::mem::replace(&mut self.state, State::Header)
        else {
            return Ok(Came::Empty);
        };
        payload.landing = landing;
        let Some(bytes) = self.small.first_chunk::<REFERENCE>() else {
            return Ok(Came::Empty);
        };
        let reference = Reference::decode(bytes, payload.data.seq)?;
        self.have = 0;
        let Payload {
            data, into, live, ..
        } = &mut payload;
        let inside = match *live {
            true => border.gates.enter(data.gate, data.claim).ok(),
            false => None,
        };
        *live = inside.is_some();
        if let Some((inside, staging)) = inside.as_ref().zip(border.staging) {
            let (_, section) = cells(inside, data.section)?;
            // The pool may be on the host by now, where it was on a device when it was asked about.
            let section = (section, staging.sink.takes(section));
            match staging.handing.slot(section, reference, data.length) {
                Ok(slot) => *into = Into::Slot(slot),
                Err(Nowhere::Wrong(what)) => {
                    return Err(ReadError::Violation(format!("{}: {what}", data.claim)));
                }
                Err(Nowhere::Moved(why)) => {
                    inside.target().device_failed(data.claim, false, &why);
                    *live = false;
                }
                Err(Nowhere::Over) => *live = false,
            }
        }
        drop(inside);
        payload.done = payload.data.length;
        self.state = State::Trailer(payload);
        Ok(Came::Bytes(0))
    }

    fn note(&mut self, stream: &Stream) -> Result<Came, ReadError> {
        let State::Note(head, body, have) = &mut self.state else {
            return Ok(Came::Empty);
        };
        let ahead = &self.ahead[self.ahead_at..];
        if *have < NOTE {
            let n = ahead.len().min(NOTE - *have);
            if n == 0 {
                return self.read_ahead(stream);
            }
            body[*have..*have + n].copy_from_slice(&ahead[..n]);
            *have += n;
            self.ahead_at += n;
            return Ok(Came::Bytes(n));
        }
        let note = Note::decode(*head, body)?;
        self.state = State::Header;
        Ok(Came::Note(note))
    }

    fn trailer(&mut self, border: &Border<'_>) -> Result<Came, ReadError> {
        let State::Trailer(mut payload) = std::mem::replace(&mut self.state, State::Header) else {
            return Ok(Came::Empty);
        };
        let into = std::mem::replace(&mut payload.into, Into::Pages);
        let Payload { data, live, .. } = &payload;
        let Some(bytes) = self.small.first_chunk::<TRAILER>() else {
            return Ok(Came::Empty);
        };
        let trailer = Trailer::decode(bytes, data.seq)?;
        self.small.copy_within(TRAILER..self.have, 0);
        self.have -= TRAILER;
        let fate = if !trailer.valid {
            Fate::Void
        } else if !live {
            Fate::Refused
        } else if data.crc && trailer.crc != payload.crc {
            Fate::Corrupt
        } else if let Into::Slot(slot) = into {
            let stay = border.gates.stay(data.gate, data.claim).ok();
            if let Some((stay, staging)) = stay.zip(border.staging) {
                let tell = Arc::clone(&staging.tell);
                let delivery = Delivery::new(stay, payload.data, tell);
                slot.deliver(delivery.counted(payload.landing));
                return Ok(Came::Handed);
            }
            Fate::Refused
        } else if data.handed {
            // Nothing has read it.
            Fate::Refused
        } else {
            match border.gates.enter(data.gate, data.claim) {
                Ok(inside) => {
                    mark(data, cells(&inside, data.section)?.1);
                    inside.target().count(u64::from(data.length));
                    Fate::Landed
                }
                Err(_) => Fate::Refused,
            }
        };
        Ok(Came::Frame {
            seq: data.seq,
            fate,
            bytes: if fate == Fate::Landed {
                data.length
            } else {
                payload.late
            },
        })
    }
}

impl Payload {
    /// Bytes that were read ahead.
    fn place(&mut self, mut bytes: &[u8], inside: Option<&Inside<'_>>) -> Result<(), ReadError> {
        let Some(inside) = inside else {
            self.late += bytes.len() as u32;
            return Ok(());
        };
        if let Into::Slot(slot) = &mut self.into {
            rest(&mut **slot, &self.data, self.done, &mut |into| {
                into[..bytes.len()].copy_from_slice(bytes);
            })?;
            if self.data.crc {
                self.crc = crc32c::crc32c_append(self.crc, bytes);
            }
            return Ok(());
        }
        let section = self.data.section;
        let mut put = |range: PoolRange, now: &[u8]| -> Result<(), ReadError> {
            inside
                .place(section, range, now, &self.cursor)
                .map_err(|e| ReadError::Violation(e.to_string()))?;
            if self.data.crc {
                self.crc = crc32c::crc32c_append(self.crc, now);
            }
            Ok(())
        };
        if let Some(window) = &mut self.window {
            while !bytes.is_empty()
                && let Some(range) = window.ranges().first().copied()
            {
                let (now, later) = bytes.split_at((range.bytes as usize).min(bytes.len()));
                put(range, now)?;
                window.advance(now.len() as u64);
                bytes = later;
            }
            return Ok(());
        }
        let (cell, pool) = cells(inside, section)?;
        for piece in self.data.pieces(cell, self.done) {
            if bytes.is_empty() {
                break;
            }
            let (now, later) = bytes.split_at((piece.bytes as usize).min(bytes.len()));
            put(range(&piece, pool), now)?;
            bytes = later;
        }
        Ok(())
    }
}

/// Goes on with a sum over the first `n` bytes of ranges, which were just read.
fn sum(
    inside: &Inside<'_>,
    section: u16,
    ranges: &[PoolRange],
    n: u64,
    cursor: &Cell<usize>,
    mut crc: u32,
) -> Result<u32, ReadError> {
    let mut left = n;
    for range in ranges {
        if left == 0 {
            break;
        }
        let mut range = *range;
        range.bytes = range.bytes.min(left);
        left -= range.bytes;
        crc = inside
            .sum_written(section, range, cursor, crc)
            .map_err(|e| ReadError::Violation(e.to_string()))?;
    }
    Ok(crc)
}

/// Shows what of a frame's slot is to be read from byte `done` of the payload on.
fn rest(
    slot: &mut dyn StagedSlot,
    data: &Data,
    done: u32,
    see: &mut dyn FnMut(&mut [u8]),
) -> Result<(), ReadError> {
    let range = u64::from(done)..u64::from(data.length);
    match slot.write(range, see) {
        true => Ok(()),
        // Of this side; which costs the claim and not the process.
        false => Err(ReadError::Violation(
            "a staging slot is smaller than its frame; a bug of kvroom".into(),
        )),
    }
}

/// Notes that all of a frame has landed.
pub(super) fn mark(data: &Data, section: &TargetSection) {
    let mark = |p: Piece| section.mark(p.layer, p.place, p.offset, p.bytes);
    match section.cells() {
        Some(Ok(cells)) => data.slices(cells).for_each(mark),
        // Its header was refused.
        Some(Err(_)) => {}
        None => data
            .pieces(section.memory().layout().page_bytes, 0)
            .for_each(mark),
    }
}

/// Where all of a frame goes, which was found to be of this section.
pub(super) fn ranges_of(
    data: &Data,
    section: &TargetSection,
    f: &mut dyn FnMut(PoolRange),
) -> Result<(), String> {
    let Some((slice, cells)) = section.slice().zip(section.cells()) else {
        let cell = section.memory().layout().page_bytes;
        data.pieces(cell, 0).for_each(|p| f(range(&p, section)));
        return Ok(());
    };
    let cells = cells.map_err(|e| e.to_string())?;
    let mut window = window(data, slice, cells, section.arc_pages())?;
    loop {
        let ranges = window.ranges();
        let bytes = ranges.iter().map(|r| r.bytes).sum();
        if bytes == 0 {
            return Ok(());
        }
        ranges.iter().for_each(|r| f(*r));
        window.advance(bytes);
    }
}

/// Places a frame that came in one piece, over another fabric, through its claim's gate, and marks it; and
/// says what became of it.
///
/// # Errors
/// The peer broke the protocol; in words.
pub(in crate::fabric) fn place_whole(
    data: &Data,
    bytes: &[u8],
    gates: &GateTable,
    peer: PeerRef,
) -> Result<Fate, String> {
    data.check()?;
    if bytes.len() != data.length as usize {
        let (brought, says) = (bytes.len(), data.length);
        return Err(format!("a frame of {brought} bytes that says {says}"));
    }
    let Ok(inside) = gates.enter(data.gate, data.claim) else {
        return Ok(Fate::Refused);
    };
    check(data, &inside, peer).map_err(|error| error.to_string())?;
    #[cfg(feature = "plant")]
    {
        plant(data, &inside);
        crate::copy::plant::inside_a_gate();
    }
    let (_, section) = cells(&inside, data.section).map_err(|error| error.to_string())?;
    let cell = section.memory().layout().page_bytes;
    let first = data.pieces(cell, 0).next().map_or(0, |p| p.place as usize);
    // Else each frame would look through the claim's list from its beginning.
    let (mut left, cursor) = (bytes, Cell::new(first));
    let mut wrote = Ok(());
    ranges_of(data, section, &mut |range| {
        let (now, later) = left.split_at((range.bytes as usize).min(left.len()));
        left = later;
        if wrote.is_ok() {
            wrote = inside.write(data.section, range.offset, now, &cursor);
        }
    })?;
    // Checked before: a bug of this side, or pages that the CPU does not reach.
    wrote.map_err(|error| error.to_string())?;
    mark(data, section);
    inside.target().count(u64::from(data.length));
    Ok(Fate::Landed)
}

/// Bytes that are read to find a header or a trailer.
const AHEAD: usize = 2 << 10;

/// Late bytes that are read at once.
const DISCARD: usize = 256 << 10;

thread_local! {
    /// Where late bytes go; one for all connections of the thread.
    static DISCARDED: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// The border check of a frame's header; and where the payload goes if it is sliced.
fn check(
    data: &Data,
    inside: &Inside<'_>,
    peer: PeerRef,
) -> Result<Option<Box<Window>>, ReadError> {
    let target = inside.target();
    let wrong = |what: String| ReadError::Violation(format!("{}: {what}", data.claim));
    if target.writer() != Some(peer) {
        return Err(wrong("a data frame for a claim of another peer".into()));
    }
    let (cell, section) = cells(inside, data.section)?;
    let sliced = section.slice().zip(section.cells());
    if sliced.is_some() != data.sliced {
        let what = if data.sliced { "slices" } else { "whole cells" };
        return Err(wrong(format!(
            "{what} of section {}, of which the claim takes the other",
            data.section
        )));
    }
    if let Some((slice, cells)) = sliced {
        // An error is one of this side, which costs the claim and not the process.
        let cells = cells.map_err(|e| wrong(e.to_string()))?;
        data.check_slice(cells).map_err(wrong)?;
        let window = window(data, slice, cells, section.arc_pages());
        return window.map_err(wrong).map(|w| Some(Box::new(w)));
    }
    let all = 0..section.memory().layout().layers;
    let layers: Range<u32> = if data.section == Rect::AUX {
        all
    } else {
        target.layers().start..target.layers().end.min(all.end)
    };
    let places = section.pages().len() as u32;
    data.check_against(layers, places, cell).map_err(wrong)?;
    Ok(None)
}

/// Where a sliced frame goes, which was found to be of these cells: by this side's own slice of its own
/// pages, so that no frame can name another byte.
pub(super) fn window(
    data: &Data,
    slice: &TargetSlice,
    cells: &SliceCells,
    list: Arc<[u32]>,
) -> Result<Window, String> {
    let pages = PageList {
        list,
        range: data.places.start as usize..data.places.end as usize,
    };
    let (dst, tokens) = (&slice.dst, cells.tokens(data.places.clone()));
    let part = slice.part.of_layers(span(dst.layers.first, &data.layers));
    let plan = CubePlan::new(dst, dst, pages.clone(), pages, tokens, &part);
    let plan = plan.map_err(|e| e.to_string())?;
    let length = u64::from(data.length);
    Ok(Window::new(plan, End::Destination, data.position, length))
}

#[cfg(feature = "plant")]
fn plant(data: &Data, inside: &Inside<'_>) {
    let Some(section) = inside.target().section(data.section) else {
        return;
    };
    if let Some(page) = section.pages().get(data.places.start as usize) {
        let pool = || Some(crate::memory::plant::pool_of(section));
        crate::copy::plant::frame_begins(pool, data.layers.start, *page);
    }
}

/// Bytes of a cell of the section, and the section.
fn cells<'i>(inside: &'i Inside<'_>, section: u16) -> Result<(u64, &'i TargetSection), ReadError> {
    match inside.target().section(section) {
        Some(s) => Ok((s.memory().layout().page_bytes, s)),
        None => Err(ReadError::Violation(format!(
            "{}: a data frame for section {section}, which the claim does not have",
            inside.number()
        ))),
    }
}

fn range(piece: &Piece, section: &TargetSection) -> PoolRange {
    let page = section.pages().get(piece.place as usize).copied();
    let cell = page.and_then(|page| section.memory().layout().cell_offset(piece.layer, page));
    PoolRange {
        // Out of every pool: refused before a byte moves.
        offset: cell.map_or(u64::MAX, |cell| cell + piece.offset),
        bytes: piece.bytes,
    }
}

/// Reads once.
fn read(
    stream: &Stream,
    asked: usize,
    once: impl FnOnce() -> io::Result<usize>,
) -> Result<Came, ReadError> {
    match stream.try_read_with(asked, once) {
        Ok(0) => Err(ReadError::Connection("the other side closed it".into())),
        Ok(n) => Ok(Came::Bytes(n)),
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(Came::Empty),
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(Came::Bytes(0)),
        Err(e) => Err(ReadError::Connection(e.to_string())),
    }
}

/// The bare read.
fn stream_read(stream: &Stream, into: &mut [u8]) -> io::Result<usize> {
    crate::memory::read_plain(stream.as_fd(), into)
}
