//! Ends that are reached by way of staging only: here, a stand-in for a device in plain memory.

use super::super::frame::Header;
use super::super::staged::{Delivery, NoSlots, StagedSink, StagedSlot, StagedSource, Wake};
use super::*;
use crate::memory::TargetSection;
use crate::slice::TargetSlice;
use kvroom_kernels::layout::cube::{CubeKind, CubeLayout, DimOrder, Dtype, Plane, Share, Span};
use kvroom_kernels::plan::cube::Part;
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::atomic::AtomicUsize;

/// Memory of a device, and slots before it. Nothing gets from a slot into memory before the test says so.
struct Device {
    memory: Mutex<Vec<u8>>,
    free: AtomicUsize,
    /// How often a slot was asked for.
    asked: AtomicUsize,
    waiting: Mutex<Vec<Wake>>,
    came: Mutex<Vec<(HostSlot, Delivery)>>,
    me: std::sync::Weak<Device>,
}

struct HostSlot {
    bytes: Vec<u8>,
    home: Arc<Device>,
}

impl Device {
    fn new(bytes: u64, slots: usize) -> Arc<Device> {
        Arc::new_cyclic(|me| Device {
            memory: Mutex::new(vec![0; bytes as usize]),
            free: AtomicUsize::new(slots),
            asked: AtomicUsize::new(0),
            waiting: Mutex::default(),
            came: Mutex::default(),
            me: me.clone(),
        })
    }

    fn waits(&self) -> usize {
        self.came.lock().unwrap().len()
    }

    /// What came as number `at` of those that wait goes where it belongs.
    fn scatter(&self, at: usize) {
        let (slot, delivery) = self.came.lock().unwrap().remove(at);
        assert_eq!(delivery.length() as usize, slot.bytes.len());
        assert_eq!((delivery.claim(), delivery.section()), (ClaimNo(7), 0));
        let (layers, places) = delivery.cells();
        let cells = (layers.len() * places.len()) as u64;
        assert!(delivery.position() + u64::from(delivery.length()) <= cells * CELL);
        let (mut rest, mut memory) = (&slot.bytes[..], self.memory.lock().unwrap());
        let scattered = delivery.for_each_range(|range| {
            let (now, later) = rest.split_at(range.bytes as usize);
            memory[range.offset as usize..][..now.len()].copy_from_slice(now);
            rest = later;
        });
        scattered.unwrap();
        assert!(rest.is_empty());
        drop(memory);
        drop(slot);
        delivery.landed();
    }
}

impl Drop for HostSlot {
    fn drop(&mut self) {
        self.home.free.fetch_add(1, Ordering::Relaxed);
        let waiting = std::mem::take(&mut *self.home.waiting.lock().unwrap());
        waiting.iter().for_each(|wake| wake());
    }
}

impl StagedSink for Device {
    fn takes(&self, section: &TargetSection) -> bool {
        section.memory().layout().name == "kv"
    }

    fn slot(
        &self,
        _: &TargetSection,
        bytes: usize,
        wake: &Wake,
    ) -> Result<Option<Box<dyn StagedSlot>>, NoSlots> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        if self.free.load(Ordering::Relaxed) == 0 {
            self.waiting.lock().unwrap().push(Arc::clone(wake));
            return Ok(None);
        }
        self.free.fetch_sub(1, Ordering::Relaxed);
        Ok(Some(Box::new(HostSlot {
            bytes: vec![0; bytes],
            home: self.me.upgrade().unwrap(),
        })))
    }
}

impl StagedSlot for HostSlot {
    fn write(&mut self, range: Range<u64>, see: &mut dyn FnMut(&mut [u8])) -> bool {
        let range = range.start as usize..range.end as usize;
        self.bytes.get_mut(range).map(see).is_some()
    }

    fn deliver(self: Box<Self>, to: Delivery) {
        let home = Arc::clone(&self.home);
        home.came.lock().unwrap().push((*self, to));
    }
}

/// Bytes that were gathered; told when they are let go of.
struct Gathered {
    bytes: Vec<u8>,
    checksum: Option<u64>,
    _gone: mpsc::UnboundedSender<()>,
}

impl StagedSource for Gathered {
    fn read(&self, range: Range<u64>, see: &mut dyn FnMut(&[u8])) -> bool {
        let range = range.start as usize..range.end as usize;
        self.bytes.get(range).map(see).is_some()
    }

    fn checksum(&self) -> Option<u64> {
        self.checksum
    }
}

const CELL: u64 = 100_000;

/// A receiver whose pages of the pool "kv" are on a device.
fn receiver(slots: usize) -> (Side, Arc<Device>) {
    receiver_within(slots, Deadlines::default())
}

fn receiver_within(slots: usize, deadlines: Deadlines) -> (Side, Arc<Device>) {
    let mut side = Side::new(CELL, Net::default());
    side.node = node(Net::default(), Limits::default(), deadlines);
    let device = Device::new(side.pool.layout().bytes(), slots);
    let arbiter = Arbiter::current();
    let told = Arc::clone(&side.events);
    side.route = TcpRoute::start_with(
        WRITER,
        "other",
        &side.node,
        &arbiter,
        std::slice::from_ref(&arbiter),
        Arc::new(move |event| told.lock().unwrap().push(event)),
        (Some(Arc::clone(&device) as Arc<dyn StagedSink>), Ok(())),
    );
    (side, device)
}

fn sender(net: Net) -> Side {
    // A frame has one cell.
    let limits = Limits {
        data_frame_bytes: CELL as usize,
        ..Limits::default()
    };
    let mut layout = (**Side::new(CELL, Net::default()).pool.layout()).clone();
    layout.name = "kv".into();
    Side::of(layout, net, limits)
}

fn join(prefill: &Side, decode: &Side) {
    let (x, y) = UnixStream::pair().unwrap();
    prefill.attach(x, Class::Bulk);
    decode.attach(y, Class::Bulk);
}

/// Turns in which everybody who has something to do does it.
async fn idle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

fn is_there(decode: &Side, device: &Device, pages: &[u32]) -> bool {
    let (layout, memory) = (decode.pool.layout(), device.memory.lock().unwrap());
    (0..LAYERS).all(|layer| {
        pages.iter().enumerate().all(|(i, page)| {
            let at = layout.cell_offset(layer, *page).unwrap() as usize;
            let cell = &memory[at..at + CELL as usize];
            let same = |(at, byte): (usize, &u8)| *byte == value(layer, i, at);
            cell.iter().enumerate().all(same)
        })
    })
}

#[test]
fn a_frame_counts_when_it_is_out_of_its_slot_and_not_before() {
    for payload_crc in [false, true] {
        run(async move {
            let net = Net {
                payload_crc,
                ..Net::default()
            };
            let ((decode, device), prefill) = (receiver(2), sender(net));
            join(&prefill, &decode);
            let source = prefill.source(&[1, 4, 2]);
            let (gate, _lease) = decode.open(7, &[6, 0, 3], WRITER);
            let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
            for left in (1..=9).rev() {
                // As many as there are slots, and no more.
                until(|| device.waits() == left.min(2)).await;
                assert_eq!(gate.target().marked().cells(), 9 - left as u64);
                assert_eq!(gate.landed().bytes, (9 - left as u64) * CELL);
                device.scatter(0);
            }
            let back = posted.backs.recv().await.unwrap();
            assert!(back.finished, "{:?}", back.facts);
            assert_eq!(gate.target().marked(), all(3));
            assert!(is_there(&decode, &device, &[6, 0, 3]));
            let _closed = gate.close().try_finish().unwrap();
            let received = decode.node.stats.received_bytes.load(Ordering::Relaxed);
            assert_eq!(received, 9 * CELL);
        });
    }
}

#[test]
fn a_connection_without_a_slot_is_not_read_and_holds_up_nobody_else() {
    run(async {
        let ((decode, device), prefill) = (receiver(1), sender(Net::default()));
        join(&prefill, &decode);
        let source = prefill.source(&[1, 4]);
        let (gate, _lease) = decode.open(7, &[6, 0], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        until(|| device.asked.load(Ordering::Relaxed) == 2).await;
        idle().await;
        // Nobody asks again and again.
        assert_eq!(device.asked.load(Ordering::Relaxed), 2);
        // The other connection of the same route goes on, to pages that the CPU reaches.
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Interactive);
        decode.attach(y, Class::Interactive);
        let mut layout = (**decode.pool.layout()).clone();
        layout.name = "host".into();
        let host = Side::of(layout, Net::default(), Limits::default());
        let mut lease = host.pool.lease_write(&[5]).unwrap();
        let target = Target::new(vec![lease.target_section()], None, Arc::new(Nothing));
        let target = target.only_for(WRITER, 0..u32::MAX);
        let near = decode.node.gates.open(ClaimNo(8), target).unwrap();
        let other = prefill.source(&[7]);
        let mut by_cpu = post(&prefill, &other, &near, Class::Interactive, false);
        assert!(by_cpu.backs.recv().await.unwrap().finished);
        assert_eq!(near.target().marked(), all(1));
        assert_eq!((device.waits(), gate.landed().bytes), (1, 0));
        // With every slot that is free again there is one more.
        for landed in 1..=6 {
            until(|| device.waits() == 1).await;
            device.scatter(0);
            assert_eq!(gate.landed().bytes, landed * CELL);
        }
        assert!(posted.backs.recv().await.unwrap().finished);
        assert!(is_there(&decode, &device, &[6, 0]));
        // Six frames; all but the first of them waited at most once each.
        assert!(device.asked.load(Ordering::Relaxed) <= 11);
    });
}

/// A frame with one cell of layer `layer`.
fn frame(seq: u64, gate: &OpenGate, layer: u32) -> Vec<u8> {
    let data = Data {
        seq,
        claim: gate.number(),
        gate: gate.slot(),
        section: 0,
        layers: layer..layer + 1,
        places: 0..1,
        position: 0,
        length: CELL as u32,
        crc: false,
        sliced: false,
        handed: false,
    };
    let trailer = Trailer {
        valid: true,
        crc: 0,
    };
    let payload = vec![layer as u8 + 1; CELL as usize];
    [&data.encode()[..], &payload, &trailer.encode(seq)].concat()
}

/// The next acknowledgement that comes.
async fn next_ack(stream: &mut UnixStream) -> Ack {
    loop {
        if let Header::Ack(ack) = next_header(stream).await {
            return ack;
        }
    }
}

async fn next_header(stream: &mut UnixStream) -> Header {
    let mut header = [0; HEADER];
    let mut have = 0;
    loop {
        match stream.read(&mut header[have..]) {
            Ok(0) => panic!("the connection was closed"),
            Ok(n) => have += n,
            Err(_) => tokio::task::yield_now().await,
        }
        if have == HEADER {
            return Header::decode(&header).unwrap();
        }
    }
}

#[test]
fn deliveries_are_acknowledged_in_the_order_in_which_they_end() {
    run(async {
        let (decode, device) = receiver(3);
        let (mut x, y) = UnixStream::pair().unwrap();
        decode.attach(y, Class::Bulk);
        let (gate, _lease) = decode.open(7, &[6], WRITER);
        let frames: Vec<u8> = (0..3)
            .flat_map(|i| frame(1 + u64::from(i), &gate, i))
            .collect();
        let mut all = x.try_clone().unwrap();
        let sent = std::thread::spawn(move || all.write_all(&frames));
        until(|| device.waits() == 3).await;
        sent.join().unwrap().unwrap();
        x.set_nonblocking(true).unwrap();
        for (at, seq) in [(1, 2), (1, 3), (0, 1)] {
            device.scatter(at);
            let ack = next_ack(&mut x).await;
            let fate = Fate::Landed;
            assert_eq!(
                ack,
                Ack {
                    first: seq,
                    last: seq,
                    fate
                }
            );
        }
    });
}

#[test]
fn a_connection_that_waits_for_a_slot_is_not_taken_for_one_that_leads_nowhere() {
    run(async {
        let deadlines = Deadlines {
            liveness: Duration::from_millis(20),
            ..Deadlines::default()
        };
        let (decode, device) = receiver_within(1, deadlines);
        let (mut x, y) = UnixStream::pair().unwrap();
        decode.attach(y, Class::Bulk);
        let (gate, _lease) = decode.open(7, &[6], WRITER);
        let frames = [frame(1, &gate, 0), frame(2, &gate, 1)].concat();
        let mut all = x.try_clone().unwrap();
        let sent = std::thread::spawn(move || all.write_all(&frames));
        until(|| device.asked.load(Ordering::Relaxed) == 2).await;
        x.set_nonblocking(true).unwrap();
        // It says that it is there with each tick; a connection is given up after four.
        for _ in 0..8 {
            assert_eq!(next_header(&mut x).await, Header::Alive);
        }
        assert!(decode.events.lock().unwrap().is_empty());
        device.scatter(0);
        until(|| device.waits() == 1).await;
        device.scatter(0);
        sent.join().unwrap().unwrap();
        assert_eq!(gate.landed().bytes, 2 * CELL);
    });
}

#[test]
fn slices_go_from_their_slot_to_where_the_claim_has_them() {
    run(async {
        let (decode, device) = receiver(1);
        let (mut x, y) = UnixStream::pair().unwrap();
        decode.attach(y, Class::Bulk);
        let mut lease = decode.pool.lease_write(&[6, 2]).unwrap();
        let plane = Plane {
            heads: Share::whole(4),
            channels: 25,
            dtype: Dtype::new("u8", 8),
        };
        let dst = Arc::new(CubeLayout {
            name: "kv".into(),
            kind: CubeKind::Kv,
            layers: Share::whole(LAYERS),
            planes: vec![plane],
            page_tokens: 1000,
            granule: 1,
            pages: PAGES,
            page_gap: 0,
            order: DimOrder::NHD,
        });
        let part = Part {
            layers: Span::new(1, 3),
            heads: vec![Span::new(1, 3)],
        };
        let tokens = 0..1500;
        let slice = Arc::new(TargetSlice { dst, part, tokens });
        let section = lease.target_section().only(slice);
        let target = Target::new(vec![section], None, Arc::new(Nothing));
        let target = target.only_for(WRITER, 0..u32::MAX);
        let gate = decode.node.gates.open(ClaimNo(7), target).unwrap();
        let data = Data {
            seq: 1,
            claim: ClaimNo(7),
            gate: gate.slot(),
            section: 0,
            layers: 1..2,
            places: 0..2,
            position: 0,
            length: 1500 * 50,
            crc: false,
            sliced: true,
            handed: false,
        };
        let payload: Vec<u8> = (0..data.length).map(|i| 1 + (i % 251) as u8).collect();
        let trailer = Trailer {
            valid: true,
            crc: 0,
        };
        let bytes = [&data.encode()[..], &payload, &trailer.encode(1)].concat();
        let sent = std::thread::spawn(move || x.write_all(&bytes).map(|()| x));
        until(|| device.waits() == 1).await;
        let _x = sent.join().unwrap().unwrap();
        device.scatter(0);
        let mut wanted = vec![0; device.memory.lock().unwrap().len()];
        for (token, heads) in payload.chunks(50).enumerate() {
            let (page, within) = ([6, 2][token / 1000], token % 1000);
            let cell = decode.pool.layout().cell_offset(1, page).unwrap() as usize;
            wanted[cell + within * 100 + 25..][..50].copy_from_slice(heads);
        }
        assert!(*device.memory.lock().unwrap() == wanted);
        let mut cells = Coverage::new();
        cells.insert(0, 1..2, 0..2).unwrap();
        assert_eq!(gate.target().marked(), cells);
    });
}

#[test]
fn a_sender_takes_acknowledgements_in_any_order_and_each_once() {
    run(async {
        let prefill = sender(Net::default());
        let (x, mut y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        let (decode, _device) = receiver(1);
        let (gate, _lease) = decode.open(7, &[6], WRITER);
        let source = prefill.source(&[1]);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        // Three frames, of which nothing is done.
        y.set_nonblocking(true).unwrap();
        let mut left = 3 * frame(1, &gate, 0).len();
        let mut buffer = vec![0; 64 << 10];
        while left > 0 {
            match y.read(&mut buffer) {
                Ok(n) => left -= n,
                Err(_) => tokio::task::yield_now().await,
            }
        }
        let mut tell = |first, last| {
            let fate = Fate::Landed;
            y.write_all(&Ack { first, last, fate }.encode()).unwrap();
        };
        tell(3, 3);
        tell(1, 2);
        let back = posted.backs.recv().await.unwrap();
        assert!(back.finished && back.facts.landed_bytes == 3 * CELL);
        assert_eq!(prefill.violations(), 0);
        tell(2, 2);
        until(|| prefill.violations() == 1).await;
    });
}

#[test]
fn a_closed_gate_waits_for_a_delivery_and_lets_no_other_begin() {
    run(async {
        let ((decode, device), prefill) = (receiver(1), sender(Net::default()));
        join(&prefill, &decode);
        let source = prefill.source(&[1, 4]);
        let (gate, _lease) = decode.open(7, &[6, 0], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        until(|| device.asked.load(Ordering::Relaxed) == 2).await;
        let closing = gate.close();
        let Err(closing) = closing.try_finish() else {
            panic!("a device still writes");
        };
        idle().await;
        let Err(closing) = closing.try_finish() else {
            panic!("a device still writes");
        };
        device.scatter(0);
        let closed = closing.try_finish().unwrap();
        // It has landed, whatever became of its claim.
        assert_eq!(closed.landed().bytes, CELL);
        let back = posted.backs.recv().await.unwrap();
        assert!(!back.finished && back.facts.refused_pieces > 0);
        assert_eq!(back.facts.landed_bytes, CELL);
        assert_eq!(
            (device.waits(), device.free.load(Ordering::Relaxed)),
            (0, 1)
        );
        assert_eq!(decode.violations(), 0);
    });
}

#[test]
fn a_delivery_that_fails_or_is_lost_ends_the_job_and_leaves_the_gate() {
    for lose in [false, true] {
        run(async move {
            let ((decode, device), prefill) = (receiver(1), sender(Net::default()));
            join(&prefill, &decode);
            let source = prefill.source(&[1]);
            let (gate, _lease) = decode.open(7, &[6], WRITER);
            let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
            until(|| device.waits() == 1).await;
            let (slot, delivery) = device.came.lock().unwrap().remove(0);
            if lose {
                drop(delivery);
            } else {
                delivery.failed("the device is lost");
            }
            drop(slot);
            let back = posted.backs.recv().await.unwrap();
            assert!(!back.finished && back.facts.refused_pieces == 1);
            assert!(gate.target().marked().is_empty());
            // What was read meanwhile may be in a slot, too.
            until(|| prefill.node.jobs.available_permits() == 1).await;
            idle().await;
            device.came.lock().unwrap().clear();
            let closed = gate.close().try_finish().unwrap();
            assert_eq!(closed.landed().bytes, 0);
        });
    }
}

#[test]
fn what_a_connection_brought_that_was_lost_meanwhile_is_delivered_and_sent_again() {
    run(async {
        let ((decode, device), prefill) = (receiver(2), sender(Net::default()));
        join(&prefill, &decode);
        let source = prefill.source(&[1, 4]);
        let (gate, _lease) = decode.open(7, &[6, 0], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        until(|| device.waits() == 2).await;
        // The old connection is gone with both in delivery, and what it had read of a third.
        join(&prefill, &decode);
        device.scatter(0);
        assert_eq!(gate.landed().bytes, CELL);
        let mut pieces = 1;
        while posted.backs.is_empty() {
            if device.waits() > 0 {
                device.scatter(0);
                pieces += 1;
            }
            tokio::task::yield_now().await;
        }
        let back = posted.backs.recv().await.unwrap();
        assert!(back.finished, "{:?}", back.facts);
        assert_eq!(back.facts.landed_bytes, 6 * CELL);
        assert_eq!(pieces, 8, "two of six came twice");
        assert_eq!(gate.target().marked(), all(2));
        assert!(is_there(&decode, &device, &[6, 0]));
        assert_eq!(decode.violations() + prefill.violations(), 0);
        assert_eq!(device.free.load(Ordering::Relaxed), 2);
    });
}

/// Posts a job whose bytes are in staging, from pages that have others.
fn post_gathered(
    prefill: &Side,
    gate: &OpenGate,
    gathered: Vec<u8>,
    checksum: Option<u64>,
) -> (Posted, mpsc::UnboundedReceiver<()>) {
    let lease = prefill.pool.lease_read(&[0, 1, 2]).unwrap();
    let (tx, backs) = mpsc::unbounded_channel();
    let (gone, is_gone) = mpsc::unbounded_channel();
    let cancel = CancelFlag::new();
    let moved: Arc<AtomicU64> = Arc::default();
    let sink = Arc::new(Backs(tx, Arc::clone(&moved)));
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(0),
        job: 1,
    };
    let job = NewJob {
        ticket: Ticket::new(id, lease.source_view(), cancel.clone(), sink),
        class: Class::Bulk,
        layout: Arc::clone(prefill.pool.layout()),
        place: Place {
            section: 0,
            layers: 0..LAYERS,
            pages: lease.arc_pages(),
            from: 0..3,
            to: 0..3,
            slice: None,
        },
        claim: gate.number(),
        gate: gate.slot(),
        checksum: checksum.is_some(),
        meter: None,
        queued: None,
        lane: None,
    };
    let source = Gathered {
        bytes: gathered,
        checksum,
        _gone: gone,
    };
    prefill.route.post_staged(job, Box::new(source));
    let posted = Posted {
        cancel,
        moved,
        backs,
    };
    (posted, is_gone)
}

/// What `Side::source` has in three pages.
fn gathered() -> Vec<u8> {
    let cells = (0..LAYERS).flat_map(|layer| (0..3).map(move |page| (layer, page)));
    cells
        .flat_map(|(layer, page)| (0..CELL as usize).map(move |at| value(layer, page, at)))
        .collect()
}

#[test]
fn a_job_goes_out_of_staging_as_it_goes_out_of_pages() {
    for payload_crc in [false, true] {
        run(async move {
            let net = Net {
                payload_crc,
                ..Net::default()
            };
            let (prefill, decode) = (sender(net), Side::new(CELL, Net::default()));
            join(&prefill, &decode);
            let (gate, lease) = decode.open(7, &[6, 0, 3], WRITER);
            let (mut posted, mut is_gone) = post_gathered(&prefill, &gate, gathered(), Some(77));
            let back = posted.backs.recv().await.unwrap();
            assert!(back.finished, "{:?}", back.facts);
            assert_eq!(
                (back.facts.checksum, back.facts.landed_bytes),
                (77, 9 * CELL)
            );
            assert!(is_gone.recv().await.is_none(), "the staging was let go of");
            assert_eq!(gate.target().marked(), all(3));
            let _closed = gate.close().try_finish().unwrap();
            for layer in 0..LAYERS {
                for i in 0..3 {
                    let same = |(at, byte): (usize, &u8)| *byte == value(layer, i, at);
                    assert!(lease.page(layer, i).iter().enumerate().all(same));
                }
            }
            assert_eq!(decode.violations(), 0);
        });
    }
}

#[test]
fn a_cancelled_job_gives_its_staging_back_while_the_other_side_reads_nothing() {
    run(async {
        let prefill = Side::of(
            (**sender(Net::default()).pool.layout()).clone(),
            Net::default(),
            Limits::default(),
        );
        let decode = Side::new(CELL, Net::default());
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        let (gate, _lease) = decode.open(7, &[6, 0, 3], WRITER);
        let (mut posted, mut is_gone) = post_gathered(&prefill, &gate, gathered(), None);
        let sent = Arc::clone(&prefill.node.stats);
        until(|| sent.copied_bytes.load(Ordering::Relaxed) > 0).await;
        posted.cancel.cancel();
        prefill.route.cancel(LifeId(1));
        assert!(!posted.backs.recv().await.unwrap().finished);
        assert!(is_gone.recv().await.is_none(), "the staging was let go of");
        decode.attach(y, Class::Bulk);
        let stats = Arc::clone(&decode.node.stats);
        until(|| stats.void_frames.load(Ordering::Relaxed) == 1).await;
        assert!(gate.target().marked().is_empty());
    });
}

#[test]
fn staging_that_has_less_than_its_job_is_an_error_of_the_job() {
    run(async {
        let (prefill, decode) = (sender(Net::default()), Side::new(CELL, Net::default()));
        join(&prefill, &decode);
        let (gate, _lease) = decode.open(7, &[6, 0, 3], WRITER);
        let mut short = gathered();
        short.pop();
        let (mut posted, _) = post_gathered(&prefill, &gate, short, None);
        let back = posted.backs.recv().await.unwrap();
        assert!(!back.finished);
        let why = back.facts.errored.unwrap();
        assert!(why.contains("not in its staging"), "{why}");
        assert_eq!(decode.violations() + prefill.violations(), 0);
    });
}
