//! Handed frames between two routes: a stand-in for devices, whose rings are plain memory.

use super::super::frame::{Answer, Ask, Header, NOTE, Note, Reference, RingName, TRAILER};
use super::super::handed::{Handing, Hands, MOST_RINGS, Nowhere, Question};
use super::super::send::{Sending, Wrote};
use super::super::staged::{
    Delivery, FarRing, NoSlots, StagedSink, StagedSlot, StagedSource, TellOpened, Wake,
};
use super::*;
use crate::fabric::stream::Detached;
use crate::ids::PoolId;
use crate::memory::TargetSection;
use crate::runtime::shared::NamedPool;
use std::io::{Read, Write};
use std::ops::Range;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize};

const CELL: u64 = 1000;
/// Bytes of the sender's ring.
const RING: usize = 64 << 10;

/// The sender's ring, as both see it.
type Bytes = Arc<Mutex<Vec<u8>>>;

/// The device of the receiver. Nothing gets into its memory before the test says so.
struct Device {
    memory: Mutex<Vec<u8>>,
    ring: Bytes,
    came: Mutex<Vec<(Far, Delivery)>>,
    opens: AtomicUsize,
    closes: AtomicUsize,
    /// Who was to hear what came of opening, while the test holds that up.
    held: Mutex<Vec<TellOpened>>,
    holds: AtomicBool,
    refuses: bool,
    /// Its pool is where it was.
    serves: AtomicBool,
    /// Its pool is on no device by now.
    on_host: AtomicBool,
    me: std::sync::Weak<Device>,
}

struct Ring {
    home: Arc<Device>,
}

impl Drop for Ring {
    fn drop(&mut self) {
        self.home.closes.fetch_add(1, Ordering::Relaxed);
    }
}

struct Far {
    home: Arc<Device>,
    range: Range<u64>,
}

impl Device {
    fn opened(&self, tell: TellOpened) {
        let home = self.me.upgrade().unwrap();
        tell(match self.refuses {
            true => Err("the driver does not open it".into()),
            false => Ok(Arc::new(Ring { home })),
        });
    }

    fn waits(&self) -> usize {
        self.came.lock().unwrap().len()
    }

    /// What came as number `at` of those that wait is read where it is now, and goes where it belongs.
    fn scatter(&self, at: usize) {
        let (far, delivery) = self.came.lock().unwrap().remove(at);
        let (ring, mut memory) = (self.ring.lock().unwrap(), self.memory.lock().unwrap());
        let mut rest = &ring[far.range.start as usize..far.range.end as usize];
        let scattered = delivery.for_each_range(|range| {
            let (now, later) = rest.split_at(range.bytes as usize);
            memory[range.offset as usize..][..now.len()].copy_from_slice(now);
            rest = later;
        });
        scattered.unwrap();
        assert!(rest.is_empty());
        drop((ring, memory, far));
        delivery.landed();
    }
}

impl StagedSink for Device {
    fn takes(&self, section: &TargetSection) -> bool {
        section.memory().layout().name == "kv" && !self.on_host.load(Ordering::Relaxed)
    }

    fn slot(
        &self,
        _: &TargetSection,
        _: usize,
        _: &Wake,
    ) -> Result<Option<Box<dyn StagedSlot>>, NoSlots> {
        panic!("bytes come over a socket");
    }

    fn open(&self, pool: &Pool, ring: &RingName, tell: TellOpened) {
        assert_eq!((pool.layout().name.as_str(), ring), ("kv", &name()));
        self.opens.fetch_add(1, Ordering::Relaxed);
        if self.holds.load(Ordering::Relaxed) {
            return self.held.lock().unwrap().push(tell);
        }
        self.opened(tell);
    }
}

impl FarRing for Ring {
    fn bytes(&self) -> u64 {
        RING as u64
    }

    fn serves(&self, _: &TargetSection) -> bool {
        self.home.serves.load(Ordering::Relaxed)
    }

    fn slot(self: Arc<Self>, range: Range<u64>) -> Box<dyn StagedSlot> {
        let home = Arc::clone(&self.home);
        Box::new(Far { home, range })
    }
}

impl StagedSlot for Far {
    fn write(&mut self, _: Range<u64>, _: &mut dyn FnMut(&mut [u8])) -> bool {
        false
    }

    fn deliver(self: Box<Self>, to: Delivery) {
        let home = Arc::clone(&self.home);
        home.came.lock().unwrap().push((*self, to));
    }
}

fn name() -> RingName {
    RingName {
        number: 3,
        kind: 2,
        uuid: [9; 16],
        bytes: RING as u64,
        handle: [7; 64],
    }
}

/// A node with this pool, and its route to the other one.
fn side(layout: PoolLayout, sink: Option<Arc<dyn StagedSink>>, near: Result<(), String>) -> Side {
    let mut side = Side::of(layout, Net::default(), Limits::default());
    let limits = Limits {
        data_frame_bytes: UNIT_FRAME,
        ..Limits::default()
    };
    let mut shared = node(Net::default(), limits, Deadlines::default());
    let named = NamedPool {
        id: PoolId(0),
        pool: side.pool.clone(),
    };
    let pools = Arc::new(Pools { pools: vec![named] });
    Arc::get_mut(&mut shared).unwrap().pools = watch::channel(pools).1;
    let (arbiter, told) = (Arbiter::current(), Arc::clone(&side.events));
    side.route = TcpRoute::start_with(
        WRITER,
        "other",
        &shared,
        &arbiter,
        std::slice::from_ref(&arbiter),
        Arc::new(move |event| told.lock().unwrap().push(event)),
        (sink, near),
    );
    side.node = shared;
    side
}

/// A job fits into one frame.
const UNIT_FRAME: usize = 1 << 20;

fn layout() -> PoolLayout {
    (**Side::new(CELL, Net::default()).pool.layout()).clone()
}

fn sender() -> Side {
    side(layout(), None, Ok(()))
}

fn receiver() -> (Side, Arc<Device>) {
    receiver_that(false)
}

fn receiver_that(refuses: bool) -> (Side, Arc<Device>) {
    let bytes = layout().bytes() as usize;
    let device = Arc::new_cyclic(|me| Device {
        memory: Mutex::new(vec![0; bytes]),
        ring: Arc::new(Mutex::new(vec![0; RING])),
        came: Mutex::default(),
        opens: AtomicUsize::new(0),
        closes: AtomicUsize::new(0),
        held: Mutex::default(),
        holds: AtomicBool::new(false),
        refuses,
        serves: AtomicBool::new(true),
        on_host: AtomicBool::new(false),
        me: me.clone(),
    });
    let sink = Arc::clone(&device) as Arc<dyn StagedSink>;
    (side(layout(), Some(sink), Ok(())), device)
}

fn join(prefill: &Side, decode: &Side) {
    let (x, y) = UnixStream::pair().unwrap();
    // By which both parts for small pieces talk; large ones go there, too, here.
    prefill.attach(x, Class::Interactive);
    decode.attach(y, Class::Interactive);
}

async fn idle() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Joined, and agreed.
async fn pair() -> (Side, Side, Arc<Device>) {
    let (prefill, (decode, device)) = (sender(), receiver());
    join(&prefill, &decode);
    until(|| prefill.route.way(&name(), "kv") == Hands::Yes).await;
    (prefill, decode, device)
}

/// Bytes in the ring, which are told when they are let go of.
struct Handed {
    offset: u64,
    _gone: mpsc::UnboundedSender<()>,
}

impl StagedSource for Handed {
    fn read(&self, _: Range<u64>, _: &mut dyn FnMut(&[u8])) -> bool {
        panic!("bytes of a handed job are read");
    }

    fn checksum(&self) -> Option<u64> {
        None
    }

    fn handed(&self) -> Option<Reference> {
        Some(Reference {
            ring: name().number,
            offset: self.offset,
        })
    }
}

/// Gathers one page of all layers, filled with `fill`, at `offset` of the ring.
fn gather(device: &Device, offset: u64, fill: u8) {
    let mut ring = device.ring.lock().unwrap();
    ring[offset as usize..][..(u64::from(LAYERS) * CELL) as usize].fill(fill);
}

/// A job of one page out of the ring.
fn job(side: &Side, gate: &OpenGate, offset: u64) -> (NewJob, Handed, Posted, Gone) {
    let lease = side.pool.lease_read(&[0]).unwrap();
    let (tx, backs) = mpsc::unbounded_channel();
    let (gone, is_gone) = mpsc::unbounded_channel();
    let cancel = CancelFlag::new();
    let moved: Arc<AtomicU64> = Arc::default();
    let id = JobId {
        life: LifeId(gate.number().0),
        leg: LegNo(0),
        job: 1,
    };
    let sink = Arc::new(Backs(tx, Arc::clone(&moved)));
    let job = NewJob {
        ticket: Ticket::new(id, lease.source_view(), cancel.clone(), sink),
        class: Class::Interactive,
        layout: Arc::clone(side.pool.layout()),
        place: Place {
            section: 0,
            layers: 0..LAYERS,
            pages: lease.arc_pages(),
            from: 0..1,
            to: 0..1,
            slice: None,
        },
        claim: gate.number(),
        gate: gate.slot(),
        checksum: false,
        meter: None,
        queued: None,
        lane: None,
    };
    let posted = Posted {
        cancel,
        moved,
        backs,
    };
    (
        job,
        Handed {
            offset,
            _gone: gone,
        },
        posted,
        is_gone,
    )
}

type Gone = mpsc::UnboundedReceiver<()>;

fn hand(side: &Side, gate: &OpenGate, offset: u64) -> (Posted, Gone) {
    let (job, source, posted, gone) = job(side, gate, offset);
    side.route.post_staged(job, Box::new(source));
    (posted, gone)
}

/// What the pages of the receiver's pool have.
fn cells(decode: &Side, device: &Device, page: u32) -> Vec<u8> {
    let (layout, memory) = (decode.pool.layout(), device.memory.lock().unwrap());
    let cell = |layer| {
        let at = layout.cell_offset(layer, page).unwrap() as usize;
        memory[at..at + CELL as usize].to_vec()
    };
    (0..LAYERS).flat_map(cell).collect()
}

fn all_are(bytes: &[u8], fill: u8) -> bool {
    bytes.iter().all(|byte| *byte == fill)
}

#[test]
fn a_handed_frame_has_no_bytes_and_counts_when_these_have_landed() {
    run(async {
        let (prefill, decode, device) = pair().await;
        let (gate, _lease) = decode.open(7, &[6], WRITER);
        gather(&device, 512, 0xB7);
        let (mut posted, mut gone) = hand(&prefill, &gate, 512);
        until(|| device.waits() == 1).await;
        idle().await;
        assert!(
            posted.backs.is_empty() && gone.is_empty(),
            "it has not landed"
        );
        assert!(gate.target().marked().is_empty());
        device.scatter(0);
        let back = posted.backs.recv().await.unwrap();
        assert!(back.finished, "{:?}", back.facts);
        assert_eq!(back.facts.landed_bytes, u64::from(LAYERS) * CELL);
        assert!(gone.recv().await.is_none(), "its slot is free");
        assert_eq!(gate.target().marked(), all(1));
        assert!(all_are(&cells(&decode, &device, 6), 0xB7));
        assert_eq!(device.opens.load(Ordering::Relaxed), 1);
        let _closed = gate.close().try_finish().unwrap();
        assert_eq!(decode.violations() + prefill.violations(), 0);
    });
}

#[test]
fn what_was_handed_over_a_connection_that_is_lost_fails_and_is_never_handed_again() {
    run(async {
        let (prefill, decode, device) = pair().await;
        let (first, _lease) = decode.open(7, &[6], WRITER);
        gather(&device, 0, 1);
        let (mut posted, mut gone) = hand(&prefill, &first, 0);
        until(|| device.waits() == 1).await;
        // The connection goes with the frame in delivery.
        join(&prefill, &decode);
        let back = posted.backs.recv().await.unwrap();
        assert!(!back.finished && back.facts.landed_bytes == 0);
        let why = back.facts.errored.unwrap();
        assert!(
            why.contains("nothing that was handed is sent twice"),
            "{why}"
        );
        assert!(gone.recv().await.is_none(), "its slot is free");
        idle().await;
        assert_eq!(device.waits(), 1, "it was handed again");
        // The slot has other bytes, for another claim, which is whole before the first delivery reads.
        let (second, _other) = decode.open(8, &[2], WRITER);
        gather(&device, 0, 2);
        let (mut posted, _gone) = hand(&prefill, &second, 0);
        until(|| device.waits() == 2).await;
        device.scatter(1);
        assert!(posted.backs.recv().await.unwrap().finished);
        // So long the pages of the first are not given back.
        let Err(closing) = first.close().try_finish() else {
            panic!("a delivery is inside");
        };
        device.scatter(0);
        let _closed = closing.try_finish().unwrap();
        assert!(all_are(&cells(&decode, &device, 2), 2));
        assert_eq!(second.target().marked(), all(1));
        assert_eq!(decode.violations() + prefill.violations(), 0);
    });
}

#[test]
fn a_frame_whose_job_ends_before_its_trailer_went_out_is_void_and_not_delivered() {
    run(async {
        let (decode, device) = receiver();
        let prefill = sender();
        let (gate, _lease) = decode.open(7, &[6], WRITER);
        for ends in [false, true] {
            let (new, source, _posted, _gone) = job(&prefill, &gate, 0);
            let job = super::super::job::Job::new(new, Some(Box::new(source)));
            let (mut far, near) = UnixStream::pair().unwrap();
            near.set_nonblocking(true).unwrap();
            let near = Detached::Unix(near).attach().unwrap();
            let mut sending = Sending::default();
            let (stretch, _) = job.take(u64::MAX, UNIT_FRAME);
            sending.begin(Rc::clone(&job), stretch.unwrap(), true);
            if ends {
                job.end();
            }
            near.ready(tokio::io::Interest::WRITABLE).await.unwrap();
            assert!(matches!(sending.write(&near), Ok(Wrote::Some(96))));
            let mut bytes = [0; HEADER + 16 + TRAILER];
            far.read_exact(&mut bytes).unwrap();
            let trailer = Trailer::decode(bytes[HEADER + 16..].try_into().unwrap(), 1).unwrap();
            assert_eq!(trailer.valid, !ends);
            if ends {
                // As the other side takes it.
                let (mut x, y) = UnixStream::pair().unwrap();
                decode.attach(y, Class::Interactive);
                ask(&mut x, "kv").await.unwrap();
                x.set_nonblocking(false).unwrap();
                x.write_all(&bytes).unwrap();
                let stats = Arc::clone(&decode.node.stats);
                until(|| stats.void_frames.load(Ordering::Relaxed) == 1).await;
                assert_eq!((device.waits(), decode.violations()), (0, 0));
            }
        }
    });
}

/// Asks as a peer would; why not.
async fn ask(stream: &mut UnixStream, pool: &str) -> Result<(), String> {
    let (ring, pool) = (name(), pool.to_owned());
    stream
        .write_all(&Note::Ask(Ask { ring, pool }).encode())
        .unwrap();
    let Note::Answer(answer) = next_note(stream).await else {
        panic!("a question");
    };
    assert_eq!(answer.ring, name().number);
    answer.no.map_or(Ok(()), Err)
}

async fn next_note(stream: &mut UnixStream) -> Note {
    loop {
        let header: [u8; HEADER] = read(stream).await;
        if let Header::Note(head) = Header::decode(&header).unwrap() {
            let body: [u8; NOTE] = read(stream).await;
            return Note::decode(head, &body).unwrap();
        }
    }
}

async fn read<const N: usize>(stream: &mut UnixStream) -> [u8; N] {
    stream.set_nonblocking(true).unwrap();
    let (mut bytes, mut have) = ([0; N], 0);
    while have < N {
        match stream.read(&mut bytes[have..]) {
            Ok(0) => panic!("the connection was closed"),
            Ok(n) => have += n,
            Err(_) => tokio::task::yield_now().await,
        }
    }
    bytes
}

/// A frame of a page of `layers`.
fn frame(gate: &OpenGate, reference: Reference) -> (Data, [u8; 16]) {
    let data = Data {
        seq: 1,
        claim: gate.number(),
        gate: gate.slot(),
        section: 0,
        layers: 0..LAYERS,
        places: 0..1,
        position: 0,
        length: LAYERS * CELL as u32,
        crc: false,
        sliced: false,
        handed: true,
    };
    (data, reference.encode(1))
}

#[test]
fn a_reference_that_leads_nowhere_ends_the_session_and_moves_no_byte() {
    let number = name().number;
    let at = |ring, offset| Reference { ring, offset };
    let end = RING as u64 - u64::from(LAYERS) * CELL;
    type Bend = fn(&mut Data);
    let all: [(Reference, Bend, &str, bool); 9] = [
        (at(number, 0), |_| {}, "kv", true),
        (at(number, end), |_| {}, "kv", true),
        (at(number, end + 1), |_| {}, "kv", false),
        (at(number, u64::MAX), |_| {}, "kv", false),
        (at(number, u64::MAX - 1), |_| {}, "kv", false),
        (at(number + 1, 0), |_| {}, "kv", false),
        (at(number, 0), |data| data.crc = true, "kv", false),
        (at(number, 0), |data| data.length = u32::MAX, "kv", false),
        // Pages that the CPU reaches.
        (at(number, 0), |_| {}, "host", false),
    ];
    for (case, (reference, bend, pool, is_right)) in all.into_iter().enumerate() {
        run(async move {
            let (decode, device) = receiver();
            let (mut x, y) = UnixStream::pair().unwrap();
            decode.attach(y, Class::Interactive);
            ask(&mut x, "kv").await.unwrap();
            let other = Side::of(
                PoolLayout {
                    name: pool.into(),
                    ..layout()
                },
                Net::default(),
                Limits::default(),
            );
            let mut lease = other.pool.lease_write(&[6]).unwrap();
            let target = Target::new(vec![lease.target_section()], None, Arc::new(Nothing));
            let target = target.only_for(WRITER, 0..u32::MAX);
            let gate = decode.node.gates.open(ClaimNo(7), target).unwrap();
            let (mut data, reference) = frame(&gate, reference);
            bend(&mut data);
            let trailer = Trailer {
                valid: true,
                crc: 0,
            };
            let bytes = [&data.encode()[..], &reference, &trailer.encode(1)].concat();
            x.write_all(&bytes).unwrap();
            if is_right {
                until(|| device.waits() == 1).await;
                assert_eq!(decode.violations(), 0, "case {case}");
            } else {
                until(|| decode.violations() == 1).await;
                assert_eq!(device.waits(), 0, "case {case}");
            }
            device.came.lock().unwrap().clear();
            assert!(gate.target().marked().is_empty());
        });
    }
}

#[test]
fn a_reference_or_note_that_was_damaged_loses_the_connection_and_is_nobodys_lie() {
    for damaged in [HEADER + 3, HEADER + 100] {
        run(async move {
            let (decode, device) = receiver();
            let (mut x, y) = UnixStream::pair().unwrap();
            decode.attach(y, Class::Interactive);
            let (gate, _lease) = decode.open(7, &[6], WRITER);
            let mut bytes = if damaged == HEADER + 3 {
                ask(&mut x, "kv").await.unwrap();
                let (data, reference) = frame(&gate, Reference { ring: 3, offset: 0 });
                [&data.encode()[..], &reference].concat()
            } else {
                let (ring, pool) = (name(), "kv".into());
                Note::Ask(Ask { ring, pool }).encode()
            };
            bytes[damaged] ^= 1;
            x.write_all(&bytes).unwrap();
            let events = Arc::clone(&decode.events);
            until(|| matches!(events.lock().unwrap().as_slice(), [RouteEvent::Lost { .. }])).await;
            assert_eq!((device.waits(), decode.violations()), (0, 0));
        });
    }
}

#[test]
fn a_closed_gate_refuses_a_handed_frame_and_waits_for_one_in_delivery() {
    run(async {
        let (prefill, decode, device) = pair().await;
        let (gate, _lease) = decode.open(7, &[6], WRITER);
        gather(&device, 0, 5);
        let (mut first, _) = hand(&prefill, &gate, 0);
        until(|| device.waits() == 1).await;
        let number = gate.number();
        let slot = gate.slot();
        let Err(closing) = gate.close().try_finish() else {
            panic!("a delivery is inside");
        };
        let (again, _other) = decode.open(8, &[1], WRITER);
        let (mut new, source, mut second, _) = job(&prefill, &again, 0);
        (new.claim, new.gate) = (number, slot);
        prefill.route.post_staged(new, Box::new(source));
        let back = second.backs.recv().await.unwrap();
        assert!(!back.finished && back.facts.refused_pieces == 1);
        assert_eq!(device.waits(), 1, "nothing more is delivered");
        device.scatter(0);
        assert!(first.backs.recv().await.unwrap().finished);
        let _closed = closing.try_finish().unwrap();
        assert_eq!(decode.violations() + prefill.violations(), 0);
    });
}

#[test]
fn what_the_receiver_does_not_open_is_told_with_why_and_goes_as_bytes() {
    run(async {
        let (prefill, (decode, device)) = (sender(), receiver_that(true));
        join(&prefill, &decode);
        until(|| prefill.route.way(&name(), "kv") == Hands::No).await;
        assert_eq!(device.opens.load(Ordering::Relaxed), 1);
        // And of a peer that is elsewhere nothing is asked.
        let far = side(layout(), None, Err("on another host".into()));
        assert_eq!(far.route.way(&name(), "kv"), Hands::No);
        let long = "p".repeat(65);
        assert_eq!(prefill.route.way(&name(), &long), Hands::No);
        idle().await;
        let (mut x, y) = UnixStream::pair().unwrap();
        decode.attach(y, Class::Interactive);
        let why = ask(&mut x, "kv").await.unwrap_err();
        assert!(why.contains("the driver does not open it"), "{why}");
        let why = ask(&mut x, "index").await.unwrap_err();
        assert!(why.contains("no pool \"index\" on a device"), "{why}");
        let (mut x, y) = UnixStream::pair().unwrap();
        far.attach(y, Class::Interactive);
        let why = ask(&mut x, "kv").await.unwrap_err();
        assert!(why.contains("on another host"), "{why}");
        assert_eq!(device.opens.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn no_more_rings_are_opened_for_a_peer_than_the_limit_which_is_named() {
    run(async {
        let (decode, _device) = receiver();
        let (mut x, y) = UnixStream::pair().unwrap();
        decode.attach(y, Class::Interactive);
        ask(&mut x, "kv").await.unwrap();
        for i in 1..MOST_RINGS {
            let why = ask(&mut x, &format!("no pool {i}")).await.unwrap_err();
            assert!(why.contains("on a device"), "{why}");
        }
        let why = ask(&mut x, "one more").await.unwrap_err();
        assert!(why.contains("64 rings") && why.contains("limit"), "{why}");
        ask(&mut x, "kv").await.unwrap();
        let prefill = sender();
        for i in 0..MOST_RINGS {
            let way = prefill.route.way(&name(), &format!("pool {i}"));
            assert_eq!(way, Hands::Soon);
        }
        assert_eq!(prefill.route.way(&name(), "one more"), Hands::No);
    });
}

#[test]
fn a_question_is_asked_again_when_its_connection_is_lost_and_nothing_is_opened_twice() {
    run(async {
        let (prefill, (decode, device)) = (sender(), receiver());
        device.holds.store(true, Ordering::Relaxed);
        assert_eq!(prefill.route.way(&name(), "kv"), Hands::Soon);
        for _ in 0..3 {
            join(&prefill, &decode);
            until(|| device.opens.load(Ordering::Relaxed) == 1).await;
            idle().await;
        }
        assert!(prefill.route.way(&name(), "kv") != Hands::Yes);
        let tell = device.held.lock().unwrap().pop().unwrap();
        device.opened(tell);
        until(|| prefill.route.way(&name(), "kv") == Hands::Yes).await;
        join(&prefill, &decode);
        idle().await;
        assert_eq!(device.opens.load(Ordering::Relaxed), 1);
        // What was opened is let go of with the session.
        assert_eq!(device.closes.load(Ordering::Relaxed), 0);
        decode.route.close().await;
        assert_eq!(device.closes.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_answer_that_nobody_asked_for_breaks_the_protocol() {
    run(async {
        let prefill = sender();
        let (mut x, y) = UnixStream::pair().unwrap();
        prefill.attach(y, Class::Interactive);
        let answer = Answer {
            ring: 3,
            pool: "kv".into(),
            no: None,
        };
        x.write_all(&Note::Answer(answer).encode()).unwrap();
        until(|| prefill.violations() == 1).await;
        assert_eq!(prefill.route.way(&name(), "other"), Hands::Soon);
    });
}

#[test]
fn a_pool_that_is_elsewhere_by_now_costs_its_rooms_and_goes_as_bytes_from_then_on() {
    for on_host in [false, true] {
        run(async move {
            let (prefill, decode, device) = pair().await;
            device.serves.store(false, Ordering::Relaxed);
            device.on_host.store(on_host, Ordering::Relaxed);
            // All but the first are on their way when the receiver says that it is elsewhere.
            let claims = [(7, 6), (8, 5), (9, 4)];
            let opened = claims.map(|(number, page)| decode.open(number, &[page], WRITER));
            let posted = opened.each_ref().map(|(gate, _)| hand(&prefill, gate, 0));
            for (mut posted, _) in posted {
                let back = posted.backs.recv().await.unwrap();
                assert!(!back.finished && back.facts.refused_pieces == 1);
            }
            until(|| prefill.route.way(&name(), "kv") == Hands::No).await;
            assert_eq!(device.waits(), 0);
            assert_eq!(device.closes.load(Ordering::Relaxed), 1);
            for (gate, _) in &opened {
                assert!(gate.target().marked().is_empty());
            }
            assert_eq!(decode.violations() + prefill.violations(), 0);
        });
    }
}

#[test]
fn what_comes_by_one_part_of_a_route_when_another_has_closed_it_is_no_violation() {
    run(async {
        let (decode, device) = receiver();
        let mut lease = decode.pool.lease_write(&[6]).unwrap();
        let section = lease.target_section();
        let handing = Handing::new("other", Ok(()));
        let Question::Open = handing.question(&Ask {
            ring: name(),
            pool: "kv".into(),
        }) else {
            panic!("it is not opened");
        };
        let home = Arc::clone(&device);
        handing.opened(name().number, "kv".into(), Ok(Arc::new(Ring { home })));
        assert_eq!(handing.way(&name(), "kv"), Hands::Soon);
        let at = Reference {
            ring: name().number,
            offset: 0,
        };
        assert!(handing.slot((&section, true), at, 1).is_ok());
        handing.close();
        let slot = handing.slot((&section, true), at, 1);
        assert!(matches!(slot, Err(Nowhere::Over)));
        let (ring, pool) = (name().number, "kv".into());
        let answered = handing.answered(Answer {
            ring,
            pool,
            no: None,
        });
        assert_eq!(answered, Ok(()));
        assert_eq!(handing.way(&name(), "kv"), Hands::No);
    });
}

#[test]
fn so_many_handed_frames_are_on_their_way_at_a_time_and_who_waits_is_woken_once() {
    let handing = Arc::new(Handing::new("p", Ok(())));
    let woken = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&woken);
    let wake: Wake = Arc::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    });
    let mut all: Vec<_> = (0..64).map(|_| handing.lands(&wake).unwrap()).collect();
    assert!(handing.lands(&wake).is_none());
    assert!(handing.lands(&wake).is_none());
    assert_eq!(woken.load(Ordering::Relaxed), 0);
    all.pop();
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    all.push(handing.lands(&wake).unwrap());
    assert!(handing.lands(&wake).is_none());
    drop(all);
    assert_eq!(woken.load(Ordering::Relaxed), 2);
    assert!(handing.lands(&wake).is_some());
}
