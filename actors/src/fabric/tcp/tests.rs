//! Two routes over a pair of sockets: bytes, gates, cancellation, lost connections, liars.
#![allow(clippy::unwrap_used)]

use super::frame::{Ack, Data, Fate, HEADER, Trailer};
use super::*;
use crate::copy::job::Place;
use crate::ids::{ClaimNo, Incarnation, LegNo};
use crate::limits::{Deadlines, Limits};
use crate::memory::{
    CancelFlag, Doorbell, GateTable, JobBack, JobId, OpenGate, Pool, ReadLease, Target, Ticket,
    TicketSink, WriteLease,
};
use crate::record::Recorder;
use crate::runtime::net::Net;
use crate::runtime::shared::Pools;
use crate::runtime::stats::Stats;
use actix::{Arbiter, System};
use kvroom_kernels::coverage::Coverage;
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, mpsc, watch};

mod handed;
mod slices;
mod staged;

const LAYERS: u32 = 3;
const PAGES: u32 = 8;
const WRITER: PeerRef = PeerRef(5);

struct Nothing;

impl Doorbell for Nothing {
    fn ring(&self, _: ClaimNo) {}
}

struct Backs(mpsc::UnboundedSender<JobBack>, Arc<AtomicU64>);

impl TicketSink for Backs {
    fn returned(&self, back: JobBack) {
        let _ = self.0.send(back);
    }

    fn moved(&self, _: JobId, bytes: u64) {
        self.1.fetch_add(bytes, Ordering::Relaxed);
    }
}

fn node(net: Net, limits: Limits, deadlines: Deadlines) -> Arc<NodeShared> {
    Arc::new(NodeShared {
        beats: crate::runtime::pulse::Beats::new(std::time::Instant::now(), 1, 1),
        doors: Vec::new(),
        name: "node".into(),
        incarnation: Incarnation::default(),
        limits,
        deadlines,
        net,
        gates: GateTable::new(64),
        stats: Arc::new(Stats::default()),
        recorder: Recorder::new(1, 0, Instant::now()),
        rooms: Arc::new(Semaphore::new(1)),
        jobs: Arc::new(Semaphore::new(1)),
        job_slots: 1_000,
        pools: watch::channel(Arc::new(Pools::default())).1,
        started: Instant::now(),
        claims: crate::memory::ClaimNumbers::new([]),
        origin: crate::memory::Origin::here(),
        next_life: AtomicU64::new(1),
        ucx: None,
    })
}

/// One node's end, the route to the other one, and what the route told.
struct Side {
    node: Arc<NodeShared>,
    route: TcpRoute,
    events: Arc<Mutex<Vec<RouteEvent>>>,
    pool: Pool,
}

impl Side {
    fn new(page_bytes: u64, net: Net) -> Self {
        let layout = PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: LAYERS,
            pages: PAGES,
            page_bytes,
            page_tokens: 1,
        };
        Side::of(layout, net, Limits::default())
    }

    fn of(layout: PoolLayout, net: Net, limits: Limits) -> Self {
        let node = node(net, limits, Deadlines::default());
        let events: Arc<Mutex<Vec<RouteEvent>>> = Arc::default();
        let told = Arc::clone(&events);
        let arbiter = Arbiter::current();
        let route = TcpRoute::start(
            WRITER,
            "other",
            &node,
            &arbiter,
            std::slice::from_ref(&arbiter),
            Arc::new(move |event| told.lock().unwrap().push(event)),
        );
        Side {
            node,
            route,
            events,
            pool: Pool::owned(layout).unwrap(),
        }
    }

    fn attach(&self, stream: UnixStream, class: Class) {
        stream.set_nonblocking(true).unwrap();
        self.route.attach(DataConnection {
            stream: Detached::Unix(stream),
            read: Vec::new(),
            class,
            index: 0,
        });
    }

    fn violations(&self) -> usize {
        let events = self.events.lock().unwrap();
        let violation = |e: &&RouteEvent| matches!(e, RouteEvent::Violation(_));
        events.iter().filter(violation).count()
    }

    /// Lends pages to claim `number`.
    fn open(&self, number: u64, pages: &[u32], writer: PeerRef) -> (OpenGate, WriteLease) {
        let mut lease = self.pool.lease_write(pages).unwrap();
        let target = Target::new(vec![lease.target_section()], None, Arc::new(Nothing));
        let target = target.only_for(writer, 0..u32::MAX);
        let gate = self.node.gates.open(ClaimNo(number), target).unwrap();
        (gate, lease)
    }

    fn source(&self, pages: &[u32]) -> ReadLease {
        let mut lease = self.pool.lease_write(pages).unwrap();
        for layer in 0..LAYERS {
            for i in 0..pages.len() {
                let page = lease.page_mut(layer, i);
                for (at, byte) in page.iter_mut().enumerate() {
                    *byte = value(layer, i, at);
                }
            }
        }
        lease.into_read()
    }
}

fn value(layer: u32, page: usize, at: usize) -> u8 {
    (layer as usize * 31 + page * 7 + at / 3 + 1) as u8
}

struct Posted {
    cancel: CancelFlag,
    /// Bytes that the room was told of while the job ran.
    moved: Arc<AtomicU64>,
    backs: mpsc::UnboundedReceiver<JobBack>,
}

fn post(from: &Side, lease: &ReadLease, gate: &OpenGate, class: Class, checksum: bool) -> Posted {
    let n = lease.pages().len();
    let place = Place {
        section: 0,
        layers: 0..LAYERS,
        pages: lease.arc_pages(),
        from: 0..n,
        to: 0..n,
        slice: None,
    };
    post_place(from, lease, gate, class, place, checksum)
}

fn post_place(
    from: &Side,
    lease: &ReadLease,
    gate: &OpenGate,
    class: Class,
    place: Place,
    checksum: bool,
) -> Posted {
    let (tx, backs) = mpsc::unbounded_channel();
    let cancel = CancelFlag::new();
    let moved: Arc<AtomicU64> = Arc::default();
    let sink = Arc::new(Backs(tx, Arc::clone(&moved)));
    let id = JobId {
        life: LifeId(1),
        leg: LegNo(0),
        job: 1,
    };
    from.route.post(NewJob {
        ticket: Ticket::new(id, lease.source_view(), cancel.clone(), sink),
        class,
        layout: Arc::clone(from.pool.layout()),
        place,
        claim: gate.number(),
        gate: gate.slot(),
        checksum,
        meter: None,
        queued: None,
        lane: None,
    });
    Posted {
        cancel,
        moved,
        backs,
    }
}

fn run(test: impl Future<Output = ()>) {
    System::new().block_on(async {
        tokio::time::timeout(Duration::from_secs(30), test)
            .await
            .expect("the test hangs");
    });
}

async fn until(what: impl Fn() -> bool) {
    while !what() {
        tokio::task::yield_now().await;
    }
}

fn joined(page_bytes: u64, class: Class, net: Net) -> (Side, Side) {
    let (a, b) = (
        Side::new(page_bytes, net.clone()),
        Side::new(page_bytes, net),
    );
    let (x, y) = UnixStream::pair().unwrap();
    a.attach(x, class);
    b.attach(y, class);
    (a, b)
}

fn all(pages: u32) -> Coverage {
    let mut all = Coverage::new();
    all.insert(0, 0..LAYERS, 0..pages).unwrap();
    all
}

#[test]
fn every_byte_arrives_in_its_page_and_is_marked() {
    // Cells that are less than a unit, more than one, and of no round size.
    for (page_bytes, class) in [
        (16, Class::Interactive),
        (16 << 10, Class::Bulk),
        (200_003, Class::Bulk),
        (3 << 20, Class::Bulk),
    ] {
        for payload_crc in [false, true] {
            run(async move {
                let net = Net {
                    payload_crc,
                    ..Net::default()
                };
                let (prefill, decode) = joined(page_bytes, class, net);
                let source = prefill.source(&[1, 4, 2]);
                let (gate, lease) = decode.open(7, &[6, 0, 3], WRITER);
                let mut posted = post(&prefill, &source, &gate, class, true);
                let back = posted.backs.recv().await.unwrap();
                assert!(back.finished, "{:?}", back.facts);
                let size = 3 * u64::from(LAYERS) * page_bytes;
                assert_eq!(back.facts.landed_bytes, size);
                assert!(back.facts.checksum != 0);
                let told = posted.moved.load(Ordering::Relaxed);
                assert_eq!(told, back.facts.told_bytes);
                assert_eq!(told > 0, size > 16 << 20, "told of {told} of {size} bytes");
                assert_eq!(gate.target().marked(), all(3));
                let closed = gate.close().try_finish().unwrap();
                assert_eq!(closed.landed().bytes, size);
                for layer in 0..LAYERS {
                    for i in 0..3 {
                        let page = lease.page(layer, i);
                        let same = page
                            .iter()
                            .enumerate()
                            .all(|(at, b)| *b == value(layer, i, at));
                        assert!(same, "layer {layer}, place {i}");
                    }
                }
                assert_eq!(decode.violations() + prefill.violations(), 0);
            });
        }
    }
}

#[test]
fn a_closed_gate_refuses_what_is_under_way_and_nothing_is_written_after_it() {
    run(async {
        let (prefill, decode) = joined(4 << 20, Class::Bulk, Net::default());
        let source = prefill.source(&[0, 1, 2, 3, 4, 5, 6, 7]);
        let (gate, lease) = decode.open(7, &[0, 1, 2, 3, 4, 5, 6, 7], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        let read = Arc::clone(&decode.node.stats);
        until(|| read.received_bytes.load(Ordering::Relaxed) > 0).await;
        // On one thread, so nobody is inside.
        let closed = gate.close().try_finish().unwrap();
        assert!(closed.landed().bytes < 8 * u64::from(LAYERS) * (4 << 20));
        let mut lease = lease;
        for layer in 0..LAYERS {
            for i in 0..8 {
                lease.page_mut(layer, i).fill(0xAA);
            }
        }
        let back = posted.backs.recv().await.unwrap();
        assert!(!back.finished && back.facts.refused_pieces > 0);
        let late = Arc::clone(&decode.node.stats);
        until(|| late.late_bytes.load(Ordering::Relaxed) > 0).await;
        for layer in 0..LAYERS {
            for i in 0..8 {
                assert!(lease.page(layer, i).iter().all(|b| *b == 0xAA));
            }
        }
        assert_eq!(decode.violations(), 0);
    });
}

#[test]
fn a_cancelled_job_gives_its_source_back_while_the_other_side_reads_nothing() {
    run(async {
        let (prefill, decode) = (
            Side::new(4 << 20, Net::default()),
            Side::new(4 << 20, Net::default()),
        );
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        let source = prefill.source(&[0, 1]);
        let (gate, lease) = decode.open(7, &[0, 1], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        // The socket is full: a frame is half written.
        let sent = Arc::clone(&prefill.node.stats);
        until(|| sent.copied_bytes.load(Ordering::Relaxed) > 0).await;
        posted.cancel.cancel();
        prefill.route.cancel(LifeId(1));
        let back = posted.backs.recv().await.unwrap();
        assert!(!back.finished && back.facts.landed_bytes == 0);
        // The source is the engine's again, whatever the socket still does.
        let mut source = source.into_write().unwrap();
        source.page_mut(0, 0).fill(0xEE);
        drop(source);
        // Somebody reads on: the frame ends as void, and the connection goes on to serve.
        decode.attach(y, Class::Bulk);
        let stats = Arc::clone(&decode.node.stats);
        until(|| stats.void_frames.load(Ordering::Relaxed) == 1).await;
        assert!(gate.target().marked().is_empty());
        let again = prefill.source(&[2, 3]);
        let mut posted = post(&prefill, &again, &gate, Class::Bulk, false);
        assert!(posted.backs.recv().await.unwrap().finished);
        assert_eq!(gate.target().marked(), all(2));
        let _closed = gate.close().try_finish().unwrap();
        assert_eq!(lease.page(1, 1)[5], value(1, 1, 5));
    });
}

#[test]
fn what_a_lost_connection_had_not_acknowledged_goes_over_another_one() {
    run(async {
        let (prefill, decode) = (
            Side::new(4 << 20, Net::default()),
            Side::new(4 << 20, Net::default()),
        );
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        let source = prefill.source(&[0, 1]);
        let (gate, lease) = decode.open(7, &[0, 1], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        let sent = Arc::clone(&prefill.node.stats);
        until(|| sent.copied_bytes.load(Ordering::Relaxed) > 0).await;
        drop(y);
        let events = Arc::clone(&prefill.events);
        until(|| matches!(events.lock().unwrap().as_slice(), [RouteEvent::Lost { .. }])).await;
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        decode.attach(y, Class::Bulk);
        assert!(posted.backs.recv().await.unwrap().finished);
        assert_eq!(gate.target().marked(), all(2));
        let _closed = gate.close().try_finish().unwrap();
        assert_eq!(lease.page(2, 1)[77], value(2, 1, 77));
    });
}

#[test]
fn a_connection_that_is_opened_again_takes_the_place_of_the_old_one() {
    run(async {
        let (prefill, decode) = (
            Side::new(4 << 20, Net::default()),
            Side::new(4 << 20, Net::default()),
        );
        let (x, _nobody_reads) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        decode.attach(y, Class::Bulk);
        let source = prefill.source(&[0, 1]);
        let (gate, _lease) = decode.open(7, &[0, 1], WRITER);
        let mut posted = post(&prefill, &source, &gate, Class::Bulk, false);
        assert!(posted.backs.recv().await.unwrap().finished);
        assert_eq!(gate.target().marked(), all(2));
        // Replaced on purpose: nobody has to open it again.
        assert!(prefill.events.lock().unwrap().is_empty());
    });
}

#[test]
fn an_acknowledgement_of_a_frame_that_does_not_wait_for_one_is_a_lie() {
    run(async {
        let prefill = Side::new(1 << 20, Net::default());
        let decode = Side::new(1 << 20, Net::default());
        let (x, y) = UnixStream::pair().unwrap();
        prefill.attach(x, Class::Bulk);
        let source = prefill.source(&[0]);
        let (gate, _lease) = decode.open(7, &[0], WRITER);
        let _posted = post(&prefill, &source, &gate, Class::Bulk, false);
        let sent = Arc::clone(&prefill.node.stats);
        until(|| sent.copied_bytes.load(Ordering::Relaxed) > 0).await;
        let ack = Ack {
            first: 2,
            last: 2,
            fate: Fate::Landed,
        };
        std::io::Write::write_all(&mut &y, &ack.encode()).unwrap();
        until(|| prefill.violations() == 1).await;
    });
}

#[test]
fn closing_a_route_hands_every_job_back() {
    run(async {
        let (prefill, decode) = (
            Side::new(4 << 20, Net::default()),
            Side::new(4 << 20, Net::default()),
        );
        let source = prefill.source(&[0, 1]);
        let (gate, _lease) = decode.open(7, &[0, 1], WRITER);
        let mut waiting = post(&prefill, &source, &gate, Class::Bulk, false);
        prefill.route.close().await;
        assert!(!waiting.backs.try_recv().unwrap().finished);
        let mut late = post(&prefill, &source, &gate, Class::Bulk, false);
        assert!(!late.backs.recv().await.unwrap().finished);
    });
}

/// A frame as a peer that lies would write it.
async fn lie(frame: Data, opened_for: PeerRef) -> usize {
    let decode = Side::new(4096, Net::default());
    let (x, y) = UnixStream::pair().unwrap();
    decode.attach(y, Class::Bulk);
    let (gate, _lease) = decode.open(7, &[0, 1], opened_for);
    let frame = Data {
        gate: gate.slot(),
        ..frame
    };
    let length = frame.length.min(8192) as usize;
    let mut bytes = frame.encode().to_vec();
    bytes.extend(vec![9; length]);
    let trailer = Trailer {
        valid: true,
        crc: 0,
    };
    bytes.extend(trailer.encode(frame.seq));
    std::io::Write::write_all(&mut &x, &bytes).unwrap();
    let stats = Arc::clone(&decode.node.stats);
    until(|| {
        decode.violations() > 0
            || stats.received_bytes.load(Ordering::Relaxed) > 0
            || stats.late_frames.load(Ordering::Relaxed) > 0
    })
    .await;
    if decode.violations() > 0 {
        assert!(gate.target().marked().is_empty());
        assert_eq!(gate.landed().bytes, 0);
        let mut seen = vec![0; 4096];
        decode.pool.observe(0, 0, &mut seen).unwrap();
        assert!(seen.iter().all(|b| *b == 0), "a byte was placed");
    }
    decode.violations()
}

#[test]
fn a_peer_that_lies_places_no_byte_and_is_found_out() {
    let good = Data {
        seq: 1,
        claim: ClaimNo(7),
        gate: 0,
        section: 0,
        layers: 0..LAYERS,
        places: 0..2,
        position: 0,
        length: 8192,
        crc: false,
        sliced: false,
        handed: false,
    };
    let lies = [
        Data {
            section: 1,
            ..good.clone()
        },
        Data {
            layers: 0..LAYERS + 1,
            ..good.clone()
        },
        Data {
            places: 0..3,
            ..good.clone()
        },
        Data {
            places: 1..1,
            ..good.clone()
        },
        Data {
            position: 5 * 4096,
            ..good.clone()
        },
        Data {
            position: 1,
            ..good.clone()
        },
        Data {
            length: 0,
            ..good.clone()
        },
        Data {
            length: u32::MAX,
            ..good.clone()
        },
        Data {
            seq: 2,
            ..good.clone()
        },
        Data {
            position: u64::MAX,
            ..good.clone()
        },
        Data {
            sliced: true,
            handed: false,
            ..good.clone()
        },
    ];
    for frame in lies {
        let said = format!("{frame:?}");
        run(async move { assert_eq!(lie(frame, WRITER).await, 1, "{said}") });
    }
    let foreign = good.clone();
    run(async move { assert_eq!(lie(foreign, PeerRef(6)).await, 1) });
    // A claim that is not live is no lie: it may have ended a moment ago.
    let ended = Data {
        claim: ClaimNo(6),
        ..good.clone()
    };
    run(async move { assert_eq!(lie(ended, WRITER).await, 0) });
    run(async move { assert_eq!(lie(good, WRITER).await, 0) });
}

#[test]
fn a_connection_that_corrupts_a_header_is_dropped_and_is_nobodys_lie() {
    run(async {
        let decode = Side::new(4096, Net::default());
        let (x, y) = UnixStream::pair().unwrap();
        decode.attach(y, Class::Bulk);
        std::io::Write::write_all(&mut &x, &[0x5A; HEADER]).unwrap();
        let events = Arc::clone(&decode.events);
        until(|| matches!(events.lock().unwrap().as_slice(), [RouteEvent::Lost { .. }])).await;
    });
}
