//! Fuzz targets of data connections; see `crate::fuzzing`.
#![allow(clippy::unwrap_used)] // As in tests: what fails here is a find.

use super::frame::{Ack, Data, Fate, HEADER, Header, NOTE, Note, TRAILER, Trailer};
use super::receive::{Border, Came, Receiving};
use crate::fabric::stream::{Detached, Stream};
use crate::fuzzing::Feed;
use crate::ids::{ClaimNo, PeerRef};
use crate::limits::MAX_DATA_FRAME;
use crate::memory::{Doorbell, GateTable, OpenGate, Pool, Target, WriteLease};
use crate::slice::{SliceCells, TargetSlice};
use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share, Span};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use kvroom_kernels::plan::cube::{PageList, Part};
use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::runtime::Runtime;

/// A header and a trailer. What decodes is decoded again from its own encoding, and what passes the
/// checks has pieces that are each within one cell of the claim, one behind the other, to its end.
pub fn data_frame(data: &[u8]) {
    let mut feed = Feed::new(data);
    let sealed = feed.flag();
    let mut header = [0; HEADER];
    copy(feed.bytes(HEADER), &mut header);
    if sealed {
        seal(&mut header);
    }
    match Header::decode(&header) {
        Ok(Header::Data(frame)) => {
            assert_eq!(
                Header::decode(&frame.encode()),
                Ok(Header::Data(frame.clone()))
            );
            if frame.sliced {
                slices(&frame, &mut feed);
            } else {
                pieces(&frame, &mut feed);
            }
        }
        Ok(Header::Ack(ack)) => {
            assert_eq!(Header::decode(&ack.encode()), Ok(Header::Ack(ack)));
        }
        Ok(Header::Note(mut head)) => {
            let mut body = [0; NOTE];
            copy(feed.bytes(NOTE), &mut body);
            if sealed {
                head = head.sealed(&body);
            }
            match Note::decode(head, &body) {
                Ok(note) => {
                    let again = note.encode();
                    let header = again.first_chunk().map(Header::decode);
                    let Some(Ok(Header::Note(head))) = header else {
                        panic!("a note has another header");
                    };
                    let body = again[HEADER..].try_into().unwrap();
                    assert_eq!(Note::decode(head, body), Ok(note));
                }
                Err(error) => assert!(!error.to_string().is_empty()),
            }
        }
        Ok(Header::Alive) => assert_eq!(Header::decode(&Header::alive()), Ok(Header::Alive)),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    let mut trailer = [0; TRAILER];
    copy(feed.bytes(TRAILER), &mut trailer);
    if sealed {
        seal(&mut trailer);
    }
    let seq = feed.u64();
    if let Ok(read) = Trailer::decode(&trailer, seq) {
        assert_eq!(Trailer::decode(&read.encode(seq), seq), Ok(read));
    }
}

fn copy(from: &[u8], to: &mut [u8]) {
    to[..from.len()].copy_from_slice(from);
}

/// Puts the sum over the rest into the last four bytes.
fn seal(bytes: &mut [u8]) {
    let end = bytes.len() - 4;
    let sum = crc32c::crc32c(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&sum);
}

fn pieces(frame: &Data, feed: &mut Feed<'_>) {
    let layers = u32::from(feed.byte())..feed.u32();
    let (places, cell) = (feed.u32(), feed.u64().max(1));
    // A claim's cells are cells of a pool, which has been checked to be in memory.
    let bytes = u128::from(layers.end) * u128::from(places) * u128::from(cell);
    if bytes > isize::MAX as u128 {
        return;
    }
    // In this order: the second one relies on the first.
    let checked = frame.check();
    if let Err(what) = checked.and_then(|()| frame.check_against(layers.clone(), places, cell)) {
        assert!(!what.is_empty());
        return;
    }
    assert!((1..=MAX_DATA_FRAME).contains(&(frame.length as usize)));
    assert!(frame.layers.start >= layers.start && frame.layers.end <= layers.end);
    assert!(frame.places.end <= places);
    let from = feed.u32() % frame.length;
    let mut at = frame.position + u64::from(from);
    let width = u64::from(frame.places.end - frame.places.start);
    let mut whole = true;
    for (n, piece) in frame.pieces(cell, from).enumerate() {
        if n == 1000 {
            whole = false;
            break;
        }
        assert!(frame.layers.contains(&piece.layer) && layers.contains(&piece.layer));
        assert!(frame.places.contains(&piece.place) && piece.place < places);
        assert!(piece.bytes > 0 && piece.offset < cell && piece.bytes <= cell - piece.offset);
        let index = u64::from(piece.layer - frame.layers.start) * width
            + u64::from(piece.place - frame.places.start);
        assert_eq!((index, piece.offset), (at / cell, at % cell));
        at += piece.bytes;
    }
    assert!(!whole || at == frame.position + u64::from(frame.length));
}

/// A frame that passes the checks brings bytes that each cell of the slice has, and as many as it says.
fn slices(frame: &Data, feed: &mut Feed<'_>) {
    let (places, first) = (usize::from(feed.byte() % 9), feed.u32());
    let layout = cube(u32::from(feed.u16()) + 1, 1 + u32::from(feed.byte()));
    let start = u64::from(feed.byte());
    let tokens = start..start + u64::from(feed.u16());
    let (layer, layers) = (u32::from(feed.byte()), u32::from(feed.byte()));
    let part = Part {
        layers: Span::new(layer, layer + layers),
        heads: vec![Span::new(feed.byte().into(), feed.byte().into())],
    };
    let pages = PageList::whole(vec![0; places]);
    let Ok(cells) = SliceCells::new(&layout, &part, tokens, pages, first) else {
        return;
    };
    let checked = frame.check();
    if let Err(what) = checked.and_then(|()| frame.check_slice(&cells)) {
        assert!(!what.is_empty());
        return;
    }
    let mut bytes = 0;
    for piece in frame.slices(&cells) {
        assert!(cells.layers().contains(&piece.layer) && cells.places().contains(&piece.place));
        let cell = cells.cell(piece.place);
        assert!(piece.bytes > 0 && piece.offset < cell && piece.bytes <= cell - piece.offset);
        bytes += piece.bytes;
    }
    assert_eq!(bytes, u64::from(frame.length));
}

/// Cells of four heads of `channels` bytes.
fn cube(channels: u32, page_tokens: u32) -> CubeLayout {
    CubeLayout {
        name: "kv".into(),
        kind: CubeKind::Kv,
        layers: Share::whole(LAYERS),
        planes: vec![Plane {
            heads: Share::whole(4),
            channels,
            dtype: Dtype::new("u8", 8),
        }],
        page_tokens,
        granule: 1,
        pages: PAGES,
        page_gap: 0,
        order: DimOrder::NHD,
    }
}

const LAYERS: u32 = 3;
const PAGES: u32 = 8;
const WRITER: PeerRef = PeerRef(5);
/// The pages of the claims; all others are nobody's.
const LENT: [(u64, &[u32]); 3] = [(7, &[6, 0, 3]), (8, &[1]), (9, &[4, 7])];
/// The last claim takes heads 1 and 2 of four, of three tokens; a page has two.
const SLICED: usize = 2;
const TOKENS: u64 = 3;

thread_local! {
    static REACTOR: Runtime = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
        .unwrap();
}

/// Steps of an input of [`data_stream`].
pub(crate) mod step {
    /// A whole frame that is right, but for what the input says of it.
    pub(crate) const FRAME: u8 = 0;
    /// A header with fields from the input.
    pub(crate) const HEADER: u8 = 1;
    /// The other side tells what became of frames.
    pub(crate) const ACK: u8 = 2;
    /// The other side is there.
    pub(crate) const ALIVE: u8 = 3;
    /// Bytes.
    pub(crate) const RAW: u8 = 4;
    /// A claim's gate closes.
    pub(crate) const CLOSE: u8 = 5;
    /// A whole frame of slices that is right, but for what the input says of it.
    pub(crate) const SLICES: u8 = 6;
    /// How many there are.
    pub(crate) const STEPS: u8 = 7;
}

/// Everything that comes over a data connection, into pages behind gates. Pages that are nobody's
/// never change, those of a claim no more once its gate is closed; what is said to have landed is in
/// its cells; a frame has one fate; the reader neither panics nor goes round in circles.
pub fn data_stream(data: &[u8]) {
    REACTOR.with(|reactor| reactor.block_on(stream(data)));
}

async fn stream(data: &[u8]) {
    let mut feed = Feed::new(data);
    let cell = [16, 200, 4096][usize::from(feed.byte() % 3)];
    let mut node = Node::new(cell);
    let (mut far, near) = UnixStream::pair().unwrap();
    near.set_nonblocking(true).unwrap();
    let near = Detached::Unix(near).attach().unwrap();
    let ahead = feed.short().to_vec();
    let mut reader = Receiving::new(ahead);
    let mut sent = Sent::default();
    while !feed.is_empty() {
        let (bytes, frame) = match feed.byte() % step::STEPS {
            step::FRAME => node.frame(&mut sent.seq, &mut feed),
            step::HEADER => (header(&mut sent.seq, &mut feed), None),
            step::ACK => {
                let ack = Ack {
                    first: feed.u64(),
                    last: feed.u64(),
                    fate: Fate::Refused,
                };
                (ack.encode().to_vec(), None)
            }
            step::ALIVE => (Header::alive().to_vec(), None),
            step::RAW => (feed.short().to_vec(), None),
            step::SLICES => node.slices(&mut sent.seq, &mut feed),
            step::CLOSE.. => {
                node.close(usize::from(feed.byte()) % LENT.len());
                continue;
            }
        };
        sent.frames.extend(frame);
        let cut = usize::from(feed.byte()) % (bytes.len() + 1);
        for piece in [&bytes[..cut], &bytes[cut..]] {
            if piece.is_empty() {
                continue;
            }
            far.write_all(piece).unwrap();
            if !node.read(&mut reader, &near, &mut sent).await {
                return;
            }
        }
    }
}

#[derive(Default)]
struct Sent {
    /// Of the last header.
    seq: u64,
    /// Frames that were sent whole, with what is to be in their cells.
    frames: Vec<(Data, Vec<u8>)>,
    /// Of the last frame whose fate was told.
    told: u64,
}

struct Node {
    pool: Pool,
    gates: Arc<GateTable>,
    lent: Vec<Lent>,
    cell: u64,
}

struct Lent {
    slot: u32,
    gate: Option<OpenGate>,
    _lease: WriteLease,
    pages: &'static [u32],
    /// What is in its pages since its gate is closed.
    then: Option<Vec<u8>>,
}

struct Nobody;

impl Doorbell for Nobody {
    fn ring(&self, _: ClaimNo) {}
}

impl Node {
    fn new(cell: u64) -> Node {
        let pool = Pool::owned(PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: LAYERS,
            pages: PAGES,
            page_bytes: cell,
            page_tokens: 1,
        });
        let pool = pool.unwrap();
        let gates = GateTable::new(4);
        let lend = |(number, pages): (u64, &'static [u32])| {
            let mut lease = pool.lease_write(pages).unwrap();
            let mut section = lease.target_section();
            if number == LENT[SLICED].0 {
                let slice = TargetSlice {
                    dst: Arc::new(cube((cell / 8) as u32, 2)),
                    part: Part {
                        layers: Span::new(0, LAYERS - 1),
                        heads: vec![Span::new(1, 3)],
                    },
                    tokens: 0..TOKENS,
                };
                section = section.only(Arc::new(slice));
                assert!(matches!(section.cells(), Some(Ok(_))));
            }
            let target = Target::new(vec![section], None, Arc::new(Nobody));
            let target = target.only_for(WRITER, 0..LAYERS - 1);
            let gate = gates.open(ClaimNo(number), target).unwrap();
            Lent {
                slot: gate.slot(),
                gate: Some(gate),
                _lease: lease,
                pages,
                then: None,
            }
        };
        let lent = LENT.into_iter().map(lend).collect();
        Node {
            pool,
            gates,
            lent,
            cell,
        }
    }

    /// Most of these frames are right.
    fn frame(&self, seq: &mut u64, feed: &mut Feed<'_>) -> (Vec<u8>, Option<(Data, Vec<u8>)>) {
        *seq += 1;
        let which = usize::from(feed.byte() & 1);
        let lent = &self.lent[which];
        let (layer, place) = (u32::from(feed.byte() & 1), feed.byte());
        let layer_end = 1 + u32::from(feed.byte() & 1).max(layer);
        let places = lent.pages.len() as u32;
        let place = u32::from(place) % places;
        let place_end = place + 1 + u32::from(feed.byte()) % (places - place);
        let size = u64::from(layer_end - layer) * u64::from(place_end - place) * self.cell;
        // At the beginning of a cell, to its end or that of a later one.
        let first = u64::from(feed.byte()) % (size / self.cell);
        let count = 1 + u64::from(feed.byte()) % (size / self.cell - first);
        let how = feed.byte();
        let data = Data {
            seq: *seq,
            claim: ClaimNo(LENT[which].0),
            gate: lent.slot,
            section: 0,
            layers: layer..layer_end,
            places: place..place_end,
            position: first * self.cell,
            length: (count * self.cell) as u32,
            crc: how & 1 != 0,
            sliced: false,
            handed: false,
        };
        self.finish(data, how, feed)
    }

    /// Of the claim that takes slices.
    fn slices(&self, seq: &mut u64, feed: &mut Feed<'_>) -> (Vec<u8>, Option<(Data, Vec<u8>)>) {
        *seq += 1;
        let (layer, place) = (u32::from(feed.byte() & 1), u32::from(feed.byte() & 1));
        let layer_end = 1 + u32::from(feed.byte() & 1).max(layer);
        let place_end = 1 + u32::from(feed.byte() & 1).max(place);
        let row = self.cell / 4;
        let tokens: u64 = (place..place_end)
            .map(|place| tokens_of(place).count() as u64)
            .sum();
        let how = feed.byte();
        let data = Data {
            seq: *seq,
            claim: ClaimNo(LENT[SLICED].0),
            gate: self.lent[SLICED].slot,
            section: 0,
            layers: layer..layer_end,
            places: place..place_end,
            position: 0,
            length: (u64::from(layer_end - layer) * tokens * row) as u32,
            crc: how & 1 != 0,
            sliced: true,
            handed: false,
        };
        self.finish(data, how, feed)
    }

    fn finish(
        &self,
        data: Data,
        how: u8,
        feed: &mut Feed<'_>,
    ) -> (Vec<u8>, Option<(Data, Vec<u8>)>) {
        let fill = feed.byte();
        let payload: Vec<u8> = (0..data.length)
            .map(|i| fill.wrapping_add(i as u8))
            .collect();
        let seq = data.seq;
        let valid = how & 2 == 0;
        let sum = if how & 4 == 0 {
            crc32c::crc32c(&payload)
        } else {
            feed.u32()
        };
        let trailer = Trailer { valid, crc: sum };
        let bytes = [
            &data.encode()[..],
            &payload,
            &trailer.encode(if how & 8 == 0 { seq } else { feed.u64() }),
        ];
        (bytes.concat(), Some((data, payload)))
    }

    fn close(&mut self, which: usize) {
        let lent = &mut self.lent[which];
        let Some(gate) = lent.gate.take() else { return };
        let closed = gate.close().try_finish();
        assert!(closed.is_ok(), "the reader stays in a gate");
        let then = seen(&self.pool, lent.pages);
        self.lent[which].then = Some(then);
    }

    /// Reads all that is there. Whether the connection goes on.
    async fn read(&self, reader: &mut Receiving, near: &Stream, sent: &mut Sent) -> bool {
        near.ready(Interest::READABLE).await.unwrap();
        let border = Border {
            gates: &self.gates,
            peer: WRITER,
            staging: None,
        };
        // Each step takes bytes or ends a header, a payload or a trailer.
        for _ in 0..20_000 {
            let came = reader.step(near, &border);
            match came {
                Ok(Came::Empty) => {
                    self.untouched();
                    return true;
                }
                Ok(Came::Frame { seq, fate, bytes }) => {
                    assert_eq!(seq, sent.told + 1, "a fate was told twice, or not");
                    sent.told = seq;
                    if let Some((data, payload)) = sent.frames.iter().find(|(d, _)| d.seq == seq) {
                        assert!(bytes <= data.length);
                        if fate == Fate::Landed {
                            self.landed(data, payload);
                        }
                    }
                }
                Ok(Came::Ack(_) | Came::Note(_) | Came::Bytes(_)) => {}
                Ok(Came::Handed | Came::NoSlot) => panic!("there are no slots"),
                Err(error) => {
                    assert!(!error.to_string().is_empty());
                    self.untouched();
                    return false;
                }
            }
        }
        panic!("the reader goes round in circles");
    }

    fn landed(&self, data: &Data, payload: &[u8]) {
        let claim = LENT.iter().position(|(number, _)| *number == data.claim.0);
        let lent = &self.lent[claim.unwrap()];
        assert!(lent.gate.is_some(), "it landed behind a closed gate");
        if data.sliced {
            return self.landed_slices(data, payload);
        }
        let width = u64::from(data.places.end - data.places.start);
        for (i, cell) in payload.chunks(self.cell as usize).enumerate() {
            let index = data.position / self.cell + i as u64;
            let layer = data.layers.start + (index / width) as u32;
            let place = data.places.start + (index % width) as u32;
            let mut into = vec![0; cell.len()];
            let page = lent.pages[place as usize];
            self.pool.observe(layer, page, &mut into).unwrap();
            assert_eq!(into, cell, "layer {layer}, place {place}");
        }
    }

    fn landed_slices(&self, data: &Data, mut payload: &[u8]) {
        let row = (self.cell / 8) as usize;
        let mut page = vec![0; self.cell as usize];
        for layer in data.layers.clone() {
            for place in data.places.clone() {
                let number = LENT[SLICED].1[place as usize];
                self.pool.observe(layer, number, &mut page).unwrap();
                for token in tokens_of(place) {
                    let (now, later) = payload.split_at(2 * row);
                    let at = (4 * token + 1) * row;
                    assert_eq!(&page[at..at + 2 * row], now, "layer {layer}, place {place}");
                    payload = later;
                }
            }
        }
        assert!(payload.is_empty());
    }

    /// Heads and tokens that the slice does not have.
    fn untouched_around_slices(&self) {
        let row = (self.cell / 8) as usize;
        let mut page = vec![0; self.cell as usize];
        for (place, number) in (0..).zip(LENT[SLICED].1) {
            for layer in 0..LAYERS {
                self.pool.observe(layer, *number, &mut page).unwrap();
                for token in tokens_of(place) {
                    page[(4 * token + 1) * row..(4 * token + 3) * row].fill(0);
                }
                assert!(page.iter().all(|b| *b == 0), "outside of a slice");
            }
        }
    }

    /// Pages that are nobody's, and those of closed gates.
    fn untouched(&self) {
        self.untouched_around_slices();
        let nobodys = [2, 5];
        let bytes = seen(&self.pool, &nobodys);
        assert!(bytes.iter().all(|b| *b == 0), "a page that is nobody's");
        for lent in &self.lent {
            let now = lent.then.as_ref().map(|_| seen(&self.pool, lent.pages));
            assert_eq!(now, lent.then, "a page behind a closed gate");
            // Layers that the claim's writer may not write.
            let mut page = vec![0; self.cell as usize];
            for page_no in lent.pages {
                self.pool.observe(LAYERS - 1, *page_no, &mut page).unwrap();
                assert!(page.iter().all(|b| *b == 0), "a layer that was not offered");
            }
        }
    }
}

/// Tokens of the request in a page of the claim that takes slices, counted in the page.
fn tokens_of(place: u32) -> std::ops::Range<usize> {
    let before = 2 * u64::from(place);
    0..TOKENS.saturating_sub(before).min(2) as usize
}

fn header(seq: &mut u64, feed: &mut Feed<'_>) -> Vec<u8> {
    *seq += 1;
    let how = feed.byte();
    let data = Data {
        seq: if how & 1 == 0 { *seq } else { feed.u64() },
        claim: ClaimNo(if how & 2 == 0 { 7 } else { feed.u64() }),
        gate: if how & 4 == 0 { 0 } else { feed.u32() },
        section: if how & 8 == 0 { 0 } else { feed.u16() },
        layers: u32::from(feed.byte())..u32::from(feed.byte()),
        places: u32::from(feed.byte())..u32::from(feed.byte()),
        position: if how & 16 == 0 { 0 } else { feed.u64() },
        length: if how & 32 == 0 {
            u32::from(feed.u16())
        } else {
            feed.u32()
        },
        crc: how & 64 != 0,
        sliced: how & 128 != 0,
        handed: false,
    };
    let payload = feed.long();
    [&data.encode()[..], payload].concat()
}

fn seen(pool: &Pool, pages: &[u32]) -> Vec<u8> {
    let cell = pool.layout().page_bytes as usize;
    let mut all = Vec::new();
    for layer in 0..LAYERS {
        for page in pages {
            let at = all.len();
            all.resize(at + cell, 0);
            pool.observe(layer, *page, &mut all[at..]).unwrap();
        }
    }
    all
}
