//! Jobs that carry slices of cells, between ranks of unequal shape.
//!
//! What is in which byte is counted out here from the physical order of a layout: nothing of a map, a
//! plan or a stride of the code under test is used.

use super::super::frame::Header;
use super::super::receive::window;
use super::super::sliced::SlicedJob;
use super::super::window::Window;
use super::*;
use crate::fabric::tcp::job::Stretch;
use crate::limits::UNIT;
use crate::memory::{MAX_RANGES, TargetSection};
use crate::slice::{Slice, SliceCells, TargetSlice};
use kvroom_kernels::checksum::Checksum;
use kvroom_kernels::layout::cube::{
    CubeKind, CubeLayout, Dim, DimOrder, Dtype, Plane, Share, Span,
};
use kvroom_kernels::plan::cube::{PageList, Part};
use proptest::prelude::*;
use std::io::{Read, Write};
use std::ops::Range;

/// What was in the memory of a receiver before.
const GUARD: u8 = 0xA5;

/// A rank's layout, and the pages of the request.
#[derive(Clone, Debug)]
struct Rank {
    layout: CubeLayout,
    pages: Vec<u32>,
}

/// One row in its pool: plane, page, layer, head and granule, as the rank counts them.
type Row = [u32; 5];
const PLANE: usize = 0;
const PAGE: usize = 1;
const LAYER: usize = 2;
const HEAD: usize = 3;
const GRANULE: usize = 4;

impl Rank {
    /// Every row with its first byte and its length, in the order of the memory; and the pool's bytes.
    fn rows(&self) -> (Vec<(Row, usize, usize)>, usize) {
        let (mut rows, mut at) = (Vec::new(), 0);
        walk(&self.layout, 0, [0; 5], &mut rows, &mut at);
        (rows, at)
    }

    /// The pool as it is when these pages hold `part` of these tokens.
    fn image(&self, part: &Part, tokens: &Range<u64>) -> Vec<u8> {
        let (rows, bytes) = self.rows();
        let mut image = vec![GUARD; bytes];
        let layout = &self.layout;
        let per_page = u64::from(layout.page_tokens / layout.granule);
        let granule = u64::from(layout.granule);
        let granules = tokens.start / granule..tokens.end.div_ceil(granule);
        for (row, at, len) in rows {
            let Some(place) = self.pages.iter().position(|p| *p == row[PAGE]) else {
                continue;
            };
            let (first, held) = match layout.kind.is_row() {
                true => (0, 0..u64::MAX),
                false => (granules.start / per_page, granules.clone()),
            };
            let granule = (first + place as u64) * per_page + u64::from(row[GRANULE]);
            let plane = row[PLANE] as usize;
            let layer = layout.layers.first + row[LAYER];
            let head = layout.planes[plane].heads.first + row[HEAD];
            let heads = part.heads[plane];
            let within = |span: Span, i| (span.start..span.end).contains(&i);
            if held.contains(&granule) && within(part.layers, layer) && within(heads, head) {
                for (i, byte) in image[at..at + len].iter_mut().enumerate() {
                    *byte = number([layer, row[PLANE], head, granule as u32, i as u32]);
                }
            }
        }
        image
    }

    fn whole(&self) -> Part {
        Part::common(&self.layout, &self.layout)
    }
}

fn walk(
    layout: &CubeLayout,
    depth: usize,
    row: Row,
    rows: &mut Vec<(Row, usize, usize)>,
    at: &mut usize,
) {
    let plane = &layout.planes[row[PLANE] as usize];
    let Some(dim) = layout.order.0.get(depth) else {
        let bits = plane.channels * layout.granule * u32::from(plane.dtype.bits);
        rows.push((row, *at, (bits / 8) as usize));
        *at += (bits / 8) as usize;
        return;
    };
    let (index, count) = match dim {
        Dim::Plane => (PLANE, layout.planes.len() as u32),
        Dim::Page => (PAGE, layout.pages),
        Dim::Layer => (LAYER, layout.layers.held),
        Dim::Head => (HEAD, plane.heads.held),
        Dim::Token => (GRANULE, layout.page_tokens / layout.granule),
    };
    for i in 0..count {
        let mut row = row;
        row[index] = i;
        walk(layout, depth + 1, row, rows, at);
        if *dim == Dim::Page {
            *at += layout.page_gap as usize;
        }
    }
}

/// A byte of the model; never the guard.
fn number(indices: [u32; 5]) -> u8 {
    let mut sum = 7_u32;
    for i in indices {
        sum = (sum ^ i).wrapping_mul(0x0100_0193).rotate_left(9);
    }
    match (sum >> 16) as u8 {
        GUARD => 1,
        byte => byte,
    }
}

fn rank(
    (first, held): (u32, u32),
    page_tokens: u32,
    order: DimOrder,
    layers: (u32, u32),
    pages: &[u32],
) -> Rank {
    let plane = Plane {
        heads: Share::part(8, first, held),
        channels: 64,
        dtype: Dtype::bf16(),
    };
    Rank {
        layout: CubeLayout {
            name: "kv".into(),
            kind: CubeKind::Kv,
            layers: Share::part(6, layers.0, layers.1),
            planes: vec![plane.clone(), plane],
            page_tokens,
            granule: 1,
            pages: 16,
            page_gap: 0,
            order,
        },
        pages: pages.to_vec(),
    }
}

/// A sender and what of the receiver's pages it fills, with a claim of its own.
struct Leg {
    prefill: Side,
    source: ReadLease,
    rank: Rank,
    route: Option<TcpRoute>,
    gate: OpenGate,
    part: Part,
    tokens: Range<u64>,
    dst: Arc<CubeLayout>,
}

/// A receiver, and senders that are joined to it by a pair of sockets each.
struct World {
    decode: Side,
    lease: WriteLease,
    rank: Rank,
    tokens: Range<u64>,
    legs: Vec<Leg>,
}

const SECOND: PeerRef = PeerRef(6);

impl World {
    fn new(to: Rank, from: Vec<Rank>, tokens: Range<u64>, frame: usize, net: &Net) -> World {
        let limits = || Limits {
            data_frame_bytes: frame,
            ..Limits::default()
        };
        let decode = Side::of(to.layout.pool_layout().unwrap(), net.clone(), limits());
        let every: Vec<u32> = (0..to.layout.pages).collect();
        let mut lease = decode.pool.lease_write(&every).unwrap();
        for layer in 0..decode.pool.layout().layers {
            for i in 0..every.len() {
                lease.page_mut(layer, i).fill(GUARD);
            }
        }
        drop(lease);
        let mut lease = decode.pool.lease_write(&to.pages).unwrap();
        let dst = Arc::new(to.layout.clone());
        let mut legs = Vec::new();
        for (i, rank) in from.into_iter().enumerate() {
            let prefill = Side::of(rank.layout.pool_layout().unwrap(), net.clone(), limits());
            let part = Part::common(&rank.layout, &to.layout);
            let slice = TargetSlice {
                dst: Arc::clone(&dst),
                part: part.clone(),
                tokens: tokens.clone(),
            };
            let section: TargetSection = lease.target_section().only(Arc::new(slice));
            let target = Target::new(vec![section], None, Arc::new(Nothing));
            let writer = [WRITER, SECOND][i];
            let target = target.only_for(writer, 0..u32::MAX);
            let gate = decode.node.gates.open(ClaimNo(7 + i as u64), target);
            let source = filled(&prefill.pool, &rank, &tokens);
            legs.push(Leg {
                route: (i > 0).then(|| second_route(&decode)),
                prefill,
                source,
                rank,
                gate: gate.unwrap(),
                part,
                tokens: tokens.clone(),
                dst: Arc::clone(&dst),
            });
        }
        World {
            decode,
            lease,
            rank: to,
            tokens,
            legs,
        }
    }

    /// Joins a leg's sides.
    fn join(&self, leg: usize) {
        let (x, y) = UnixStream::pair().unwrap();
        self.legs[leg].prefill.attach(x, Class::Bulk);
        self.take(leg, y);
    }

    fn take(&self, leg: usize, stream: UnixStream) {
        match &self.legs[leg].route {
            None => self.decode.attach(stream, Class::Bulk),
            Some(route) => {
                stream.set_nonblocking(true).unwrap();
                route.attach(DataConnection {
                    stream: Detached::Unix(stream),
                    read: Vec::new(),
                    class: Class::Bulk,
                    index: 0,
                });
            }
        }
    }

    /// Nothing but what the legs carry was written, and all of that; every cell is marked.
    fn assert_landed(&self) {
        let mut wanted = vec![GUARD; self.decode.pool.layout().bytes() as usize];
        for leg in &self.legs {
            let image = self.rank.image(&leg.part, &self.tokens);
            for (wanted, byte) in wanted.iter_mut().zip(image) {
                if byte != GUARD {
                    *wanted = byte;
                }
            }
            let first = leg.dst.layers.first;
            let layers = leg.part.layers.start - first..leg.part.layers.end - first;
            let mut cells = Coverage::new();
            cells
                .insert(0, layers, 0..self.rank.pages.len() as u32)
                .unwrap();
            assert_eq!(leg.gate.target().marked(), cells);
            assert!(leg.gate.target().has_all(&cells));
        }
        let got = image_of(&self.decode.pool);
        let differs = got.iter().zip(&wanted).position(|(a, b)| a != b);
        assert_eq!(differs, None, "a byte is not as it must be");
    }
}

fn second_route(decode: &Side) -> TcpRoute {
    let arbiter = Arbiter::current();
    TcpRoute::start(
        SECOND,
        "second",
        &decode.node,
        &arbiter,
        std::slice::from_ref(&arbiter),
        Arc::new(|_| {}),
    )
}

/// Pages with the rank's part of the request in them.
fn filled(pool: &Pool, rank: &Rank, tokens: &Range<u64>) -> ReadLease {
    let image = rank.image(&rank.whole(), tokens);
    let layout = Arc::clone(pool.layout());
    let mut lease = pool.lease_write(&rank.pages).unwrap();
    for layer in 0..layout.layers {
        for (i, page) in rank.pages.iter().enumerate() {
            let at = layout.cell_offset(layer, *page).unwrap() as usize;
            let cell = &image[at..at + layout.page_bytes as usize];
            lease.page_mut(layer, i).copy_from_slice(cell);
        }
    }
    lease.into_read()
}

fn image_of(pool: &Pool) -> Vec<u8> {
    let layout = pool.layout();
    let mut image = vec![0; layout.bytes() as usize];
    for layer in 0..layout.layers {
        for page in 0..layout.pages {
            let at = layout.cell_offset(layer, page).unwrap() as usize;
            let cell = &mut image[at..at + layout.page_bytes as usize];
            pool.observe(layer, page, cell).unwrap();
        }
    }
    image
}

impl Leg {
    /// The part of the leg for these tokens, which are whole pages at both ends or end the request.
    fn place(&self, tokens: Range<u64>) -> Place {
        let (src, dst) = (Arc::new(self.rank.layout.clone()), Arc::clone(&self.dst));
        let pages = |layout: &CubeLayout| {
            let page = u64::from(layout.page_tokens);
            let first = self.tokens.start / page;
            (tokens.start / page - first) as usize..(tokens.end.div_ceil(page) - first) as usize
        };
        let first = self.dst.layers.first;
        Place {
            section: 0,
            layers: self.part.layers.start - first..self.part.layers.end - first,
            pages: self.source.arc_pages(),
            from: pages(&src),
            to: pages(&dst),
            slice: Some(Arc::new(Slice {
                src,
                dst,
                part: self.part.clone(),
                tokens,
            })),
        }
    }

    fn post(&self, tokens: Range<u64>) -> Posted {
        let place = self.place(tokens);
        post_place(
            &self.prefill,
            &self.source,
            &self.gate,
            Class::Bulk,
            place,
            false,
        )
    }

    fn bytes(&self, tokens: Range<u64>) -> u64 {
        let place = self.place(tokens);
        SlicedJob::new(&place, place.slice.as_ref().unwrap(), false)
            .unwrap()
            .bytes()
    }
}

const NHD: DimOrder = DimOrder::NHD;
const HND: DimOrder = DimOrder::HND;

#[test]
fn two_senders_write_their_heads_into_the_same_pages() {
    // Four ranks onto two: each sender has half of the receiver's heads.
    for (from_page, to_page, from, to) in [
        (16, 32, NHD, NHD),
        (32, 16, NHD, HND),
        (16, 32, HND, NHD),
        (32, 32, DimOrder::SPLIT_NHD, DimOrder::PAGES_HND),
    ] {
        run(async move {
            // Page-aligned at its beginning only.
            let tokens = 64..211;
            let pages = |page: u32| match page {
                16 => &[3, 9, 1, 0, 15, 7, 8, 2, 11, 4][..],
                _ => &[12, 3, 4, 0, 9][..],
            };
            let ranks =
                [0, 2].map(|head| rank((head, 2), from_page, from, (0, 3), pages(from_page)));
            let receiver = rank((0, 4), to_page, to, (0, 3), pages(to_page));
            let world = World::new(
                receiver,
                ranks.into(),
                tokens,
                UNIT as usize,
                &Net::default(),
            );
            let mut posted = Vec::new();
            for leg in [0, 1] {
                world.join(leg);
                let leg = &world.legs[leg];
                // Two chunks each; the second one first.
                posted.push((leg.bytes(128..211), leg.post(128..211)));
                posted.push((leg.bytes(64..128), leg.post(64..128)));
            }
            for (bytes, job) in &mut posted {
                let back = job.backs.recv().await.unwrap();
                assert!(back.finished, "{:?}", back.facts);
                assert_eq!(back.facts.landed_bytes, *bytes);
            }
            world.assert_landed();
            assert_eq!(world.decode.violations(), 0);
            let World { legs, lease, .. } = world;
            for leg in legs {
                let landed = leg.gate.landed().bytes;
                let _closed = leg.gate.close().try_finish().unwrap();
                assert_eq!(landed, leg_bytes(&leg.part, 64..211));
            }
            drop(lease);
        });
    }
}

/// A row of a head has 128 bytes, and there are two planes.
fn leg_bytes(part: &Part, tokens: Range<u64>) -> u64 {
    let heads: u32 = part.heads.iter().map(|h| h.len()).sum();
    u64::from(part.layers.len() * heads) * (tokens.end - tokens.start) * 128
}

#[test]
fn a_rank_that_holds_more_heads_and_stages_that_hold_fewer_layers_write_their_part() {
    for (from, to) in [(NHD, NHD), (NHD, HND), (HND, HND)] {
        run(async move {
            // Two ranks onto four, and two stages onto one: layers 0..2 and 2..6.
            let tokens = 0..100;
            let list = [5, 1, 2, 8, 0, 14, 3];
            let ranks = [(0, 2), (2, 4)].map(|layers| rank((0, 4), 16, from, layers, &list));
            let receiver = rank((2, 2), 32, to, (0, 6), &[7, 2, 10, 1]);
            let world = World::new(receiver, ranks.into(), tokens, 1 << 20, &Net::default());
            for leg in [0, 1] {
                world.join(leg);
                let mut posted = world.legs[leg].post(0..100);
                let back = posted.backs.recv().await.unwrap();
                assert!(back.finished, "{:?}", back.facts);
            }
            world.assert_landed();
        });
    }
}

/// A world in which what one cell has of the slice is more than a frame.
fn large_cells(net: &Net) -> World {
    large_cells_by(UNIT as usize, net)
}

fn large_cells_by(frame: usize, net: &Net) -> World {
    // 256 tokens x 2 planes x 2 heads x 128 bytes, and in the last page 88 of them.
    let list = [5, 1, 2, 8, 0, 14, 3];
    let sender = rank((0, 4), 128, NHD, (1, 3), &list);
    let receiver = rank((2, 2), 256, HND, (0, 6), &[7, 2, 10, 1]);
    World::new(receiver, vec![sender], 0..856, frame, net)
}

#[test]
fn a_cell_of_which_the_slice_is_more_than_a_frame_goes_in_stretches() {
    for payload_crc in [false, true] {
        run(async move {
            let net = Net {
                payload_crc,
                ..Net::default()
            };
            let world = large_cells(&net);
            world.join(0);
            let mut posted = world.legs[0].post(0..856);
            let back = posted.backs.recv().await.unwrap();
            assert!(back.finished, "{:?}", back.facts);
            // 3 layers of three cells of 2 frames each, and one with 88 tokens.
            assert_eq!(back.facts.landed_pieces, 3 * (3 * 2 + 1));
            world.assert_landed();
        });
    }
}

#[test]
fn what_a_lost_connection_had_not_acknowledged_of_slices_goes_over_another_one() {
    run(async {
        let world = large_cells(&Net::default());
        world.join(0);
        let mut posted = world.legs[0].post(0..856);
        let stats = Arc::clone(&world.decode.node.stats);
        until(|| stats.received_bytes.load(Ordering::Relaxed) > 0).await;
        assert!(posted.backs.try_recv().is_err(), "it is over already");
        // The old one ends on both sides, in the middle of whatever is in it.
        world.join(0);
        let back = posted.backs.recv().await.unwrap();
        assert!(back.finished, "{:?}", back.facts);
        world.assert_landed();
        assert_eq!(back.facts.landed_bytes, world.legs[0].bytes(0..856));
        assert_eq!(world.decode.violations(), 0);
    });
}

/// Carries bytes from one to the other, and flips a bit of the one at `flip`.
fn carry(mut from: UnixStream, mut to: UnixStream, mut flip: Option<usize>) {
    from.set_nonblocking(false).unwrap();
    to.set_nonblocking(false).unwrap();
    std::thread::spawn(move || {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer) {
            if let Some(at) = flip {
                if at < n {
                    buffer[at] ^= 4;
                }
                flip = at.checked_sub(n);
            }
            if to.write_all(&buffer[..n]).is_err() {
                return;
            }
        }
    });
}

#[test]
fn a_slice_that_arrives_corrupted_is_sent_again() {
    run(async {
        let net = Net {
            payload_crc: true,
            ..Net::default()
        };
        let world = large_cells(&net);
        let (x, near) = UnixStream::pair().unwrap();
        let (far, y) = UnixStream::pair().unwrap();
        carry(
            near.try_clone().unwrap(),
            far.try_clone().unwrap(),
            Some(HEADER + 777),
        );
        carry(far, near, None);
        world.legs[0].prefill.attach(x, Class::Bulk);
        world.take(0, y);
        let mut posted = world.legs[0].post(0..856);
        let back = posted.backs.recv().await.unwrap();
        assert!(back.finished, "{:?}", back.facts);
        let stats = &world.decode.node.stats;
        assert_eq!(stats.corrupt_frames.load(Ordering::Relaxed), 1);
        world.assert_landed();
    });
}

#[test]
fn a_closed_gate_refuses_the_rest_of_a_sliced_frame() {
    run(async {
        let world = large_cells(&Net::default());
        world.join(0);
        let mut posted = world.legs[0].post(0..856);
        let stats = Arc::clone(&world.decode.node.stats);
        until(|| stats.received_bytes.load(Ordering::Relaxed) > 0).await;
        let World {
            mut legs,
            decode,
            lease,
            ..
        } = world;
        let leg = legs.remove(0);
        let _closed = leg.gate.close().try_finish().unwrap();
        let then = image_of(&decode.pool);
        let back = posted.backs.recv().await.unwrap();
        assert!(!back.finished && back.facts.refused_pieces > 0);
        until(|| stats.late_frames.load(Ordering::Relaxed) > 0).await;
        assert!(image_of(&decode.pool) == then, "a byte came late");
        assert_eq!(decode.violations(), 0);
        drop(lease);
    });
}

#[test]
fn a_cancelled_job_of_slices_ends_its_frame_as_void() {
    run(async {
        // A frame has two layers, which is more than a socket takes.
        let world = large_cells_by(1 << 20, &Net::default());
        let leg = &world.legs[0];
        let (x, y) = UnixStream::pair().unwrap();
        leg.prefill.attach(x, Class::Bulk);
        let mut posted = leg.post(0..856);
        let sent = Arc::clone(&leg.prefill.node.stats);
        until(|| sent.copied_bytes.load(Ordering::Relaxed) > 0).await;
        posted.cancel.cancel();
        leg.prefill.route.cancel(LifeId(1));
        assert!(!posted.backs.recv().await.unwrap().finished);
        world.take(0, y);
        let stats = Arc::clone(&world.decode.node.stats);
        until(|| stats.void_frames.load(Ordering::Relaxed) == 1).await;
        let mut again = leg.post(0..856);
        assert!(again.backs.recv().await.unwrap().finished);
        world.assert_landed();
    });
}

#[test]
fn a_job_whose_pages_do_not_hold_its_tokens_is_an_error_and_sends_nothing() {
    run(async {
        let world = large_cells(&Net::default());
        world.join(0);
        let leg = &world.legs[0];
        let good = leg.place(0..856);
        for place in [
            Place {
                to: 0..3,
                ..good.clone()
            },
            Place {
                from: 0..6,
                ..good.clone()
            },
            Place {
                layers: 0..4,
                ..good.clone()
            },
        ] {
            let (side, lease) = (&leg.prefill, &leg.source);
            let mut posted = post_place(side, lease, &leg.gate, Class::Bulk, place, false);
            let back = posted.backs.recv().await.unwrap();
            assert!(!back.finished);
            let why = back.facts.errored.unwrap();
            assert!(why.contains("sliced job"), "{why}");
        }
        assert_eq!(
            leg.prefill.node.stats.copied_bytes.load(Ordering::Relaxed),
            0
        );
    });
}

#[test]
fn the_sum_over_a_job_of_slices_is_the_one_over_what_has_landed() {
    run(async {
        let world = large_cells(&Net::default());
        world.join(0);
        let leg = &world.legs[0];
        let (side, lease, place) = (&leg.prefill, &leg.source, leg.place(0..856));
        let mut posted = post_place(side, lease, &leg.gate, Class::Bulk, place, true);
        let back = posted.backs.recv().await.unwrap();
        assert!(back.finished, "{:?}", back.facts);
        let section = leg.gate.target().section(0).unwrap();
        let rows = section.slice().unwrap().rows(section.arc_pages()).unwrap();
        let landed = image_of(&world.decode.pool);
        let mut sum = Checksum::new();
        for row in rows {
            let bytes = &landed[row.offset as usize..(row.offset + row.bytes) as usize];
            sum.add_row(0, row.name, bytes);
        }
        assert_eq!(back.facts.checksum, sum.value());
    });
}

/// A frame as a peer that lies would write it; how often it was found out.
async fn lie(frame: Data) -> usize {
    let world = large_cells(&Net::default());
    let (x, y) = UnixStream::pair().unwrap();
    world.take(0, y);
    let frame = Data {
        gate: world.legs[0].gate.slot(),
        ..frame
    };
    let mut bytes = frame.encode().to_vec();
    bytes.extend(vec![9; (frame.length as usize).min(128 << 10)]);
    let trailer = Trailer {
        valid: true,
        crc: 0,
    };
    bytes.extend(trailer.encode(frame.seq));
    // All of it is read, or the connection is dropped.
    std::thread::spawn(move || (&x).write_all(&bytes));
    let stats = Arc::clone(&world.decode.node.stats);
    until(|| world.decode.violations() > 0 || stats.received_bytes.load(Ordering::Relaxed) > 0)
        .await;
    let slice = world.rank.image(&world.legs[0].part, &world.tokens);
    let now = image_of(&world.decode.pool);
    let wrote = now.iter().filter(|byte| **byte != GUARD).count();
    if world.decode.violations() > 0 {
        assert_eq!(wrote, 0, "a byte was placed");
        assert!(world.legs[0].gate.target().marked().is_empty());
    } else {
        assert_eq!(wrote, frame.length as usize);
        let outside = now.iter().zip(&slice);
        let outside = outside.filter(|(now, slice)| **slice == GUARD && **now != GUARD);
        assert_eq!(outside.count(), 0, "a byte outside of the slice");
    }
    world.decode.violations()
}

#[test]
fn a_frame_that_reaches_outside_of_its_slice_places_no_byte_and_is_found_out() {
    // Layers 1..4 of the receiver's six, places 0..4; a cell has 131072 bytes, the last one 45056.
    let good = Data {
        seq: 1,
        claim: ClaimNo(7),
        gate: 0,
        section: 0,
        layers: 1..2,
        places: 0..1,
        position: 0,
        length: 131_072,
        crc: false,
        sliced: true,
        handed: false,
    };
    let with = |layers, places, position, length| Data {
        layers,
        places,
        position,
        length,
        ..good.clone()
    };
    let lies = [
        // Layers and places that others write, or nobody.
        with(0..1, 0..1, 0, 131_072),
        with(3..5, 0..1, 0, 262_144),
        with(1..2, 4..5, 0, 131_072),
        with(1..2, 3..5, 0, 45_056),
        // All heads of a cell, and all tokens of the last page.
        with(1..2, 0..1, 0, 262_144),
        with(1..2, 3..4, 0, 131_072),
        // Within a row, behind the last one, and in more than one cell.
        with(1..2, 0..1, 0, 100),
        with(1..2, 0..1, 100, 65_436),
        with(1..2, 3..4, 0, 45_000),
        with(1..2, 3..4, 65_536, 65_536),
        with(1..2, 0..1, 65_536, 131_072),
        with(1..2, 0..2, 65_536, 131_072),
        with(1..3, 3..4, 0, 45_056),
        with(1..2, 0..1, u64::MAX, 131_072),
        // Whole cells.
        Data {
            sliced: false,
            handed: false,
            ..with(1..2, 0..1, 0, 131_072)
        },
    ];
    for frame in lies {
        let said = format!("{frame:?}");
        run(async move { assert_eq!(lie(frame).await, 1, "{said}") });
    }
    for frame in [
        good.clone(),
        with(1..2, 0..1, 65_536, 65_536),
        with(1..3, 3..4, 0, 90_112),
    ] {
        run(async move { assert_eq!(lie(frame).await, 0) });
    }
}

/// Numbers that look random and are the same for the same seed (SplitMix64).
struct Numbers(u64);

impl Numbers {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn among(&mut self, from: u32, to: u32) -> u32 {
        from + (self.next() % u64::from(to - from + 1)) as u32
    }

    fn order(&mut self) -> DimOrder {
        let mut dims = [Dim::Page, Dim::Layer, Dim::Plane, Dim::Head, Dim::Token];
        for i in (1..5).rev() {
            dims.swap(i, self.among(0, i as u32) as usize);
        }
        let at = |dim| dims.iter().position(|d| *d == dim).unwrap();
        let (page, token) = (at(Dim::Page), at(Dim::Token));
        if token < page {
            dims.swap(page, token);
        }
        DimOrder(dims)
    }

    fn distinct(&mut self, count: usize, of: u32) -> Vec<u32> {
        let mut all: Vec<u32> = (0..of).collect();
        for i in (1..all.len()).rev() {
            all.swap(i, self.among(0, i as u32) as usize);
        }
        all.truncate(count);
        all
    }

    /// Two ranks that have something in common, and the tokens of a request.
    fn ranks(&mut self) -> Option<(Rank, Rank, Range<u64>)> {
        let granule = self.among(1, 2);
        let unit = granule * self.among(1, 4);
        let kind = match self.among(0, 3) {
            0 => CubeKind::State,
            _ => CubeKind::Kv,
        };
        let planes = self.among(1, 3) as usize;
        let widths: Vec<u32> = (0..planes).map(|_| 4 * self.among(1, 3)).collect();
        let (even, row) = (self.among(0, 1) == 0, kind.is_row());
        let start = if row { 0 } else { u64::from(self.among(0, 6)) };
        let start = start * u64::from(granule);
        let tokens = start..start + u64::from(self.among(1, 40));
        let scale = self.among(0, 2);
        let mut one = |factor: u32| {
            let shares: Vec<Share> = (0..planes)
                .map(|_| {
                    let first = self.among(0, 3);
                    Share::part(6, first, self.among(1, 6 - first))
                })
                .collect();
            let plane = |(i, channels): (usize, &u32)| Plane {
                heads: shares[if even { 0 } else { i }],
                channels: *channels,
                dtype: Dtype::bf16(),
            };
            let layer = self.among(0, 2);
            let layout = CubeLayout {
                name: "kv".into(),
                kind: kind.clone(),
                layers: Share::part(5, layer, self.among(1, 5 - layer)),
                planes: widths.iter().enumerate().map(plane).collect(),
                page_tokens: unit * factor,
                granule,
                pages: 24,
                page_gap: u64::from(self.among(0, 1)) * 12,
                order: self.order(),
            };
            let count = match row {
                true => 3,
                false => layout.pages_of(tokens.clone()) as usize,
            };
            let pages = self.distinct(count, 24);
            (layout.validate().is_ok() && count <= 24).then_some(Rank { layout, pages })
        };
        let (small, large) = (1, if row { 1 } else { 1 << scale });
        let (from, to) = match scale {
            0 | 1 => (one(small)?, one(large)?),
            _ => (one(large)?, one(small)?),
        };
        Some((from, to, tokens))
    }
}

/// Moves `n` bytes, or fewer, from the ranges of one window to those of the other.
fn step(from: &mut Window, to: &mut Window, n: u64, src: &[u8], dst: &mut [u8]) -> u64 {
    let read: Vec<usize> = flat(from.ranges()).take(n as usize).collect();
    let write: Vec<usize> = flat(to.ranges()).take(read.len()).collect();
    for (read, write) in read.iter().zip(&write) {
        assert_eq!(dst[*write], GUARD, "it is written twice");
        dst[*write] = src[*read];
    }
    from.advance(write.len() as u64);
    to.advance(write.len() as u64);
    write.len() as u64
}

fn flat(ranges: &[crate::memory::PoolRange]) -> impl Iterator<Item = usize> {
    assert!(ranges.len() <= MAX_RANGES + 1);
    let one = |r: &crate::memory::PoolRange| r.offset as usize..(r.offset + r.bytes) as usize;
    ranges.iter().flat_map(one)
}

/// The bytes of a job cell by cell, each cell's in the destination's order.
fn gathered(to: &Rank, part: &Part, tokens: &Range<u64>, cells: &SliceCells) -> Vec<u8> {
    let (image, (rows, _)) = (to.image(part, tokens), to.rows());
    let mut lens: Vec<u32> = part.heads.iter().map(|h| h.len()).collect();
    lens.retain(|len| *len > 0);
    let order = to.layout.order;
    // The walk's one exception: it goes plane by plane.
    let by_plane = order.slower(Dim::Head, Dim::Plane) && lens.iter().any(|len| *len != lens[0]);
    let index = |row: &Row, dim: Dim| match dim {
        Dim::Plane => row[PLANE],
        Dim::Page => row[PAGE],
        Dim::Layer => row[LAYER],
        Dim::Token => row[GRANULE],
        // Of the part: where it has other heads of each plane, the first ones come first.
        Dim::Head => {
            let plane = row[PLANE] as usize;
            let held = to.layout.planes[plane].heads.first;
            held + row[HEAD] - part.heads[plane].start
        }
    };
    let mut bytes = Vec::new();
    for layer in cells.layers() {
        for page in &to.pages {
            let mut cell: Vec<_> = rows.iter().collect();
            cell.retain(|(row, at, _)| {
                (row[LAYER], row[PAGE]) == (layer, *page) && image[*at] != GUARD
            });
            cell.sort_by_key(|(row, _, _)| {
                let first = if by_plane { row[PLANE] } else { 0 };
                (first, order.0.map(|dim| index(row, dim)))
            });
            for (_, at, len) in cell {
                bytes.extend(&image[*at..at + len]);
            }
        }
    }
    bytes
}

/// Sends a request in frames of at most `budget` bytes, as far as cells and units allow it: from the
/// source's pages, or gathered.
fn carry_by_frames(seed: u64, budget: u64, staged: bool) -> Result<bool, TestCaseError> {
    let mut numbers = Numbers(seed);
    let Some((from, to, tokens)) = numbers.ranks() else {
        return Ok(false);
    };
    let part = Part::common(&from.layout, &to.layout);
    let slice = Slice {
        src: Arc::new(from.layout.clone()),
        dst: Arc::new(to.layout.clone()),
        part: part.clone(),
        tokens: tokens.clone(),
    };
    let first = to.layout.layers.first;
    let layers = part.layers.start.max(first) - first..part.layers.end.max(first) - first;
    let place = Place {
        section: 0,
        layers,
        pages: from.pages.clone().into(),
        from: 0..from.pages.len(),
        to: 0..to.pages.len(),
        slice: None,
    };
    let Ok(job) = SlicedJob::new(&place, &Arc::new(slice), staged) else {
        // Nothing in common.
        return Ok(false);
    };
    let target = TargetSlice {
        dst: Arc::new(to.layout.clone()),
        part: part.clone(),
        tokens: tokens.clone(),
    };
    let list: Arc<[u32]> = to.pages.clone().into();
    let pages = PageList::whole(Arc::clone(&list));
    let cells = SliceCells::new(&to.layout, &part, tokens.clone(), pages, 0).unwrap();
    let source = from.image(&from.whole(), &tokens);
    let stream = match staged {
        true => gathered(&to, &part, &tokens, &cells),
        false => Vec::new(),
    };
    let mut sink = vec![GUARD; to.rows().1];
    let mut position = 0;
    while position < job.bytes() {
        let length = job.stretch_from(position, budget, 1 << 20);
        prop_assert!(length > 0);
        let stretch = Stretch { position, length };
        let (layers, places, at) = job.cut(stretch);
        let data = Data {
            seq: 1,
            claim: ClaimNo(1),
            gate: 0,
            section: 0,
            layers,
            places,
            position: at,
            length,
            crc: false,
            sliced: true,
            handed: false,
        };
        let sent = Header::decode(&data.encode());
        prop_assert_eq!(sent, Ok(Header::Data(data.clone())));
        prop_assert_eq!(data.check_slice(&cells), Ok(()));
        let mut read = job.window(&data).unwrap();
        let mut write = window(&data, &target, &cells, Arc::clone(&list)).unwrap();
        let mut left = u64::from(length);
        while staged && left > 0 {
            let to: Vec<usize> = flat(write.ranges()).collect();
            let at = (position + u64::from(length) - left) as usize;
            for (to, byte) in to.iter().zip(&stream[at..]) {
                prop_assert_eq!(std::mem::replace(&mut sink[*to], *byte), GUARD);
            }
            write.advance(to.len() as u64);
            left -= to.len() as u64;
        }
        while left > 0 {
            let n = 1 + numbers.next() % (left * 2);
            let moved = step(&mut read, &mut write, n, &source, &mut sink);
            prop_assert!(moved > 0 && moved <= left);
            left -= moved;
        }
        prop_assert!((staged || read.ranges().is_empty()) && write.ranges().is_empty());
        position += u64::from(length);
    }
    prop_assert_eq!(position, job.bytes());
    let wanted = to.image(&part, &tokens);
    let differs = sink.iter().zip(&wanted).position(|(a, b)| a != b);
    let values = differs.map(|at| (sink[at], wanted[at]));
    prop_assert!(differs.is_none(), "byte {differs:?}: {values:?} of {to:?}");
    Ok(true)
}

proptest! {
    #[test]
    fn frames_between_any_two_layouts_carry_the_slice_and_nothing_else(
        seed in any::<u64>(), budget in 1u64..20_000,
    ) {
        let carried = carry_by_frames(seed, budget, false)?;
        prop_assume!(carried);
    }

    #[test]
    fn frames_of_a_staged_job_are_stretches_of_it_whatever_the_destinations_order(
        seed in any::<u64>(), budget in 1u64..20_000,
    ) {
        let carried = carry_by_frames(seed, budget, true)?;
        prop_assume!(carried);
    }
}
