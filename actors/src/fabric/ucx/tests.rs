//! Two contexts of this process, each with its thread, over what UCX has on one host.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::copy::job::Place;
use crate::ids::{ClaimNo, LegNo};
use crate::memory::{
    CancelFlag, Doorbell, JobBack, JobId, OpenGate, ReadLease, Target, TicketSink, WriteLease,
    open_far,
};
use crate::runtime::pulse::{Beat, Part};
use kvroom_kernels::coverage::Rect;
use kvroom_kernels::layout::{Order, PoolKind};
use std::cell::Cell;
use std::io::Write;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

mod ends;
mod failures;
mod watched;

/// What a test does to the thread.
pub(super) type Poke = Box<dyn FnOnce(&mut super::thread::Thread) + Send>;

/// What CI has on one host, and how bytes go over it.
const HERE: [(&str, UcxMode); 3] = [
    ("tcp", UcxMode::Messages),
    ("posix,sysv", UcxMode::Messages),
    ("posix,sysv", UcxMode::OneSided),
];

/// How long a test waits for what has to come.
const PATIENCE: Duration = Duration::from_secs(30);

fn options(transports: &str) -> UcxOptions {
    UcxOptions {
        when: UcxUse::Always,
        library: std::env::var_os("KVROOM_UCX_LIBRARY").map(Into::into),
        transports: Some(transports.into()),
        wire_up: Duration::from_secs(20),
        ..UcxOptions::default()
    }
}

/// The same, with puts if these are used.
fn options_for(transports: &str, mode: UcxMode) -> UcxOptions {
    let one_sided = match mode {
        UcxMode::OneSided => OneSided::Always,
        UcxMode::Messages => OneSided::Rdma,
    };
    UcxOptions {
        one_sided,
        ..options(transports)
    }
}

/// UCX, if this machine has it; said aloud if not, and an error where all has to be tested.
fn start(options: &UcxOptions) -> Option<Ucx> {
    start_with(options, &beat())
}

fn start_with(options: &UcxOptions, beat: &Arc<Beat>) -> Option<Ucx> {
    match Ucx::start(options, beat) {
        Ok(ucx) => Some(ucx),
        Err(error) => {
            skipped(&error.to_string());
            None
        }
    }
}

/// Says aloud that something is not tested, which is a failure where all has to be.
fn skipped(why: &str) {
    let text = format!("SKIPPED: {why}\n");
    let all = std::env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|v| v == "1");
    assert!(!all, "KVROOM_REQUIRE_ALL=1: {text}");
    // Not by a macro: what those print is kept from who runs the tests.
    let _ = std::io::stderr().write_all(text.as_bytes());
}

/// Of a thread, to nobody.
pub(super) fn beat() -> Arc<Beat> {
    Beat::new(Part::Ucx, Instant::now(), &Arc::default())
}

fn wait<T>(what: impl Future<Output = T>) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    runtime.block_on(async {
        tokio::time::timeout(PATIENCE, what)
            .await
            .expect("it hangs")
    })
}

struct Backs(Sender<JobBack>);

impl TicketSink for Backs {
    fn returned(&self, back: JobBack) {
        let _ = self.0.send(back);
    }
}

fn layout(order: Order, layers: u32, pages: u32, page_bytes: u64) -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order,
        layers,
        pages,
        page_bytes,
        page_tokens: 1,
    }
}

/// A node that sends, one that receives, and the routes between them.
struct Pair {
    from: Ucx,
    to: Ucx,
    route: UcxRoute,
    back: UcxRoute,
    gates: Arc<GateTable>,
    stats: Arc<Stats>,
    meter: Arc<Meter>,
    claims: Cell<u64>,
}

impl Pair {
    fn new(options: &UcxOptions, mode: UcxMode) -> Option<Pair> {
        let (from, to) = (start(options)?, start(options)?);
        let (route, back) = wait(async {
            let (a, b) = (from.end().await.unwrap(), to.end().await.unwrap());
            let (of_a, of_b) = (offer(&from, &a), offer(&to, &b));
            let (a, b) = tokio::join!(a.connect(&of_b, mode), b.connect(&of_a, mode));
            (a.unwrap(), b.unwrap())
        });
        let pair = Pair {
            from,
            to,
            route,
            back,
            gates: GateTable::new(64),
            stats: Arc::default(),
            meter: Arc::default(),
            claims: Cell::new(0),
        };
        pair.back
            .guard(WRITER, &pair.gates, &pair.stats, &pair.meter, silent());
        let none = GateTable::new(1);
        pair.route
            .guard(WRITER, &none, &pair.stats, &pair.meter, silent());
        Some(pair)
    }

    /// Lends pages to the sender, and perhaps an aux row.
    fn open(&self, sections: &[(&Pool, &[u32])], aux: Option<(&Pool, u32)>) -> Opened {
        let mut leases = Vec::new();
        let mut lend = |pool: &Pool, pages: &[u32]| {
            let mut lease = pool.lease_write(pages).unwrap();
            let target = lease.target_section();
            leases.push(lease);
            target
        };
        let targets = sections
            .iter()
            .map(|(pool, pages)| lend(pool, pages))
            .collect();
        let row = aux.map(|(pool, row)| lend(pool, &[row]));
        let target = Target::new(targets, row, Arc::new(Nothing)).only_for(WRITER, 0..u32::MAX);
        let number = ClaimNo(self.claims.get() + 1);
        self.claims.set(number.0);
        let gate = match self.back.gated_here() {
            true => self.gates.open(number, target).unwrap(),
            false => open_far(number, target, self.back.path()),
        };
        let far = |pool: &Pool, pages: &[u32]| FarSection {
            pool: Arc::new(FarPool {
                layout: Arc::clone(pool.layout()),
                key: wait(self.to.register(pool)).unwrap(),
            }),
            pages: pages.into(),
        };
        let claim = (!self.back.gated_here()).then(|| {
            Arc::new(UcxClaim {
                number,
                sections: sections
                    .iter()
                    .map(|(pool, pages)| far(pool, pages))
                    .collect(),
                aux: aux.map(|(pool, row)| far(pool, &[row])),
            })
        });
        Opened {
            gate,
            claim,
            _leases: leases,
        }
    }

    /// Sends all pages of a lease to as many places of a section.
    fn post(
        &self,
        lease: &ReadLease,
        to: &Opened,
        life: u64,
        class: Class,
        section: u16,
    ) -> Posted {
        self.post_queued(lease, to, life, class, section, None)
    }

    /// The same, in one room, with a place in a queue.
    fn post_in(&self, lease: &ReadLease, to: &Opened, queued: Option<queue::Place>) -> Posted {
        self.post_queued(lease, to, 1, Class::Bulk, 0, queued)
    }

    fn post_queued(
        &self,
        lease: &ReadLease,
        to: &Opened,
        life: u64,
        class: Class,
        section: u16,
        queued: Option<queue::Place>,
    ) -> Posted {
        let (tx, backs) = channel();
        let cancel = CancelFlag::new();
        let id = JobId {
            life: LifeId(life),
            leg: LegNo(0),
            job: 1,
        };
        let (n, layout) = (lease.pages().len(), Arc::clone(lease.pool().layout()));
        self.route.post(UcxJob {
            ticket: Ticket::new(id, lease.source_view(), cancel.clone(), Arc::new(Backs(tx))),
            class,
            claim: to.claim.clone(),
            number: to.gate.number(),
            gate: to.gate.slot(),
            place: Place {
                section,
                layers: 0..layout.layers,
                pages: lease.arc_pages(),
                from: 0..n,
                to: 0..n,
                slice: None,
            },
            layout,
            checksum: true,
            meter: None,
            queued,
        });
        Posted { cancel, backs }
    }
}

fn offer(ucx: &Ucx, end: &UcxEnd) -> UcxOffer {
    UcxOffer {
        version: ucx.version(),
        rdma: ucx.has_rdma(),
        wanted: true,
        always: true,
        one_sided: true,
        worker: end.address().to_vec(),
        probe: end.probe(),
        pools: Vec::new(),
    }
}

/// A pool whose first pages are lent, full of what tells each byte from others.
fn source(layout: PoolLayout, pages: &[u32]) -> ReadLease {
    let layers = layout.layers;
    let mut lease = Pool::owned(layout).unwrap().lease_write(pages).unwrap();
    for layer in 0..layers {
        for i in 0..pages.len() {
            for (at, byte) in lease.page_mut(layer, i).iter_mut().enumerate() {
                *byte = value(layer, i, at);
            }
        }
    }
    lease.into_read()
}

fn value(layer: u32, page: usize, at: usize) -> u8 {
    (layer as usize * 37 + page * 11 + at / 5 + at) as u8 | 1
}

/// A claim of the receiver's.
struct Opened {
    gate: OpenGate,
    claim: Option<Arc<UcxClaim>>,
    _leases: Vec<WriteLease>,
}

struct Nothing;

impl Doorbell for Nothing {
    fn ring(&self, _: ClaimNo) {}
}

const WRITER: PeerRef = PeerRef(5);

struct Posted {
    cancel: CancelFlag,
    backs: Receiver<JobBack>,
}

impl Posted {
    fn back(&self) -> JobBack {
        self.backs
            .recv_timeout(PATIENCE)
            .expect("no ticket came back")
    }

    fn is_out(&self) -> bool {
        matches!(self.backs.try_recv(), Err(TryRecvError::Empty))
    }

    /// It does not come back for a while. Only a ticket that does is noticed.
    fn stays_out(&self) {
        let came = self.backs.recv_timeout(Duration::from_millis(150));
        assert_eq!(
            came.err(),
            Some(RecvTimeoutError::Timeout),
            "its ticket came back"
        );
    }
}

/// The cells of a pool that are not zero.
fn written(pool: &Pool) -> Vec<(u32, u32)> {
    let layout = pool.layout();
    let mut bytes = vec![0; layout.page_bytes as usize];
    let mut cells = Vec::new();
    for layer in 0..layout.layers {
        for page in 0..layout.pages {
            pool.observe(layer, page, &mut bytes).unwrap();
            if bytes.iter().any(|byte| *byte != 0) {
                cells.push((layer, page));
            }
        }
    }
    cells
}

/// Asks the thread for something.
fn poke<T: Send + 'static>(
    ucx: &Ucx,
    does: impl FnOnce(&mut super::thread::Thread) -> T + Send + 'static,
) -> T {
    let (tx, rx) = channel();
    let poke: Poke = Box::new(move |thread| {
        let _ = tx.send(does(thread));
    });
    assert!(ucx.0.mailbox.put(Command::Test(poke)).is_ok());
    rx.recv_timeout(PATIENCE).unwrap()
}

/// Keeps an end from letting UCX work, as if its process stood still.
fn hold(ucx: &Ucx, route: &UcxRoute, held: bool) {
    let number = route.handle.number;
    poke(ucx, move |thread| {
        thread.at(number, |route| route.held = held)
    });
}

fn until(what: &str, is: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is() {
        assert!(begun.elapsed() < PATIENCE, "{what} never comes");
        std::thread::yield_now();
    }
}

/// A large room's pages and a claim of as many.
fn large(pair: &Pair, page_bytes: u64, pages: u32) -> (ReadLease, Pool, Opened) {
    let layout = || layout(Order::PagesFirst, 1, pages, page_bytes);
    let all: Vec<u32> = (0..pages).collect();
    let lease = source(layout(), &all);
    let pool = Pool::owned(layout()).unwrap();
    let open = pair.open(&[(&pool, &all)], None);
    (lease, pool, open)
}

fn has(pool: &Pool, layer: u32, page: u32, i: usize) -> bool {
    let mut bytes = vec![0; pool.layout().page_bytes as usize];
    pool.observe(layer, page, &mut bytes).unwrap();
    let same = |(at, byte): (usize, &u8)| *byte == value(layer, i, at);
    bytes.iter().enumerate().all(same)
}

#[test]
fn bytes_arrive_in_the_pages_that_a_claim_names_and_nowhere_else() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        for (order, page_bytes, class) in [
            (Order::LayersFirst, 64, Class::Interactive),
            (Order::LayersFirst, 16 << 10, Class::Bulk),
            (Order::PagesFirst, 4 << 10, Class::Bulk),
            (Order::PagesFirst, 3 << 20, Class::Interactive),
        ] {
            let layout = || layout(order, 3, 8, page_bytes);
            let lease = source(layout(), &[1, 4, 2]);
            let pool = Pool::owned(layout()).unwrap();
            let pages = [6, 0, 3];
            let open = pair.open(&[(&pool, &pages)], None);
            let posted = pair.post(&lease, &open, 7, class, 0);
            let back = posted.back();
            assert!(back.finished, "{transports}: {:?}", back.facts);
            assert_eq!(back.facts.landed_bytes, 9 * page_bytes);
            assert!(back.facts.checksum != 0);
            let mut expected: Vec<(u32, u32)> = (0..3)
                .flat_map(|layer| [0, 3, 6].map(|page| (layer, page)))
                .collect();
            expected.sort_unstable();
            assert_eq!(written(&pool), expected, "{transports}");
            for layer in 0..3 {
                for (i, page) in pages.into_iter().enumerate() {
                    assert!(
                        has(&pool, layer, page, i),
                        "{transports}: layer {layer}, place {i}"
                    );
                }
            }
        }
        drop(pair);
    }
}

#[test]
fn sections_and_the_aux_row_have_places_of_their_own() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        let (first, second) = (
            Pool::owned(layout(Order::LayersFirst, 2, 4, 4096)).unwrap(),
            Pool::owned(layout(Order::PagesFirst, 3, 4, 256)).unwrap(),
        );
        let rows = Pool::owned(PoolLayout {
            kind: PoolKind::Aux,
            ..layout(Order::PagesFirst, 1, 4, 512)
        })
        .unwrap();
        let open = pair.open(&[(&first, &[0, 2]), (&second, &[3, 1])], Some((&rows, 2)));
        let lease = source(layout(Order::PagesFirst, 3, 4, 256), &[0, 3]);
        let back = pair.post(&lease, &open, 1, Class::Bulk, 1).back();
        assert!(back.finished, "{:?}", back.facts);
        let row = source(
            PoolLayout {
                kind: PoolKind::Aux,
                ..layout(Order::PagesFirst, 1, 4, 512)
            },
            &[1],
        );
        let back = pair.post(&row, &open, 1, Class::Bulk, Rect::AUX).back();
        assert!(back.finished, "{:?}", back.facts);
        assert_eq!(written(&first), []);
        assert_eq!(written(&second).len(), 6);
        assert!(has(&second, 2, 3, 0) && has(&second, 0, 1, 1));
        assert_eq!(written(&rows), [(0, 2)]);
        assert!(has(&rows, 0, 2, 0));
        // One that is not there is an error of the job.
        let back = pair.post(&lease, &open, 1, Class::Bulk, 2).back();
        assert!(!back.finished);
        if mode == UcxMode::OneSided {
            assert!(back.facts.errored.unwrap().contains("no section 2"));
        }
    }
}

#[test]
fn a_ticket_comes_back_only_when_its_bytes_are_there() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        let (lease, pool, open) = large(&pair, 4096, 8);
        hold(&pair.to, &pair.back, true);
        let posted = pair.post(&lease, &open, 1, Class::Interactive, 0);
        posted.stays_out();
        assert_eq!(written(&pool), []);
        hold(&pair.to, &pair.back, false);
        let back = posted.back();
        assert!(back.finished, "{transports}: {:?}", back.facts);
        assert_eq!(written(&pool).len(), 8);
    }
}

#[test]
fn a_cancelled_job_costs_a_window() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        let (lease, pool, open) = large(&pair, 16 << 10, 1024);
        hold(&pair.to, &pair.back, true);
        let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
        let waiting = pair.post(&lease, &open, 1, Class::Bulk, 0);
        posted.stays_out();
        posted.cancel.cancel();
        waiting.cancel.cancel();
        pair.route.cancel(LifeId(1));
        // What was not begun is back at once, and what reads its source no more.
        assert!(!waiting.back().finished);
        if mode == UcxMode::OneSided {
            posted.stays_out();
        } else {
            assert_eq!(posted.back().facts.landed_bytes, 0);
        }
        hold(&pair.to, &pair.back, false);
        if mode == UcxMode::OneSided {
            let back = posted.back();
            assert!(
                !back.finished && back.facts.errored.is_none(),
                "{:?}",
                back.facts
            );
            assert_eq!(back.facts.landed_bytes, 1 << 20, "{transports}");
        }
        // Whatever comes after it, comes after all of it.
        let (small, there, to) = large(&pair, 512, 1);
        assert!(pair.post(&small, &to, 2, Class::Bulk, 0).back().finished);
        assert_eq!(written(&there).len(), 1);
        assert_eq!(
            written(&pool).len(),
            64,
            "{transports}: a window and no more"
        );
    }
}

#[test]
fn a_small_room_does_not_wait_for_a_large_one() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        let (lease, _, open) = large(&pair, 64 << 10, 512);
        let (small, _, to) = large(&pair, 4096, 2);
        hold(&pair.to, &pair.back, true);
        let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
        let quick = pair.post(&small, &to, 2, Class::Interactive, 0);
        hold(&pair.to, &pair.back, false);
        assert!(quick.back().finished);
        assert!(posted.is_out(), "{transports}: it waited for 32 MiB");
        assert!(posted.back().finished);
    }
}

#[test]
fn a_closed_gate_refuses_what_is_under_way() {
    for (transports, mode) in HERE {
        if mode == UcxMode::OneSided {
            continue; // There the gate is with the sender.
        }
        let Some(pair) = Pair::new(&options_for(transports, mode), mode) else {
            continue;
        };
        let (lease, pool, open) = large(&pair, 16 << 10, 64);
        hold(&pair.to, &pair.back, true);
        let posted = pair.post(&lease, &open, 1, Class::Bulk, 0);
        posted.stays_out();
        assert!(open.gate.close().try_finish().is_ok());
        hold(&pair.to, &pair.back, false);
        let back = posted.back();
        assert!(
            !back.finished && back.facts.refused_pieces > 0,
            "{:?}",
            back.facts
        );
        assert_eq!(written(&pool), []);
        assert!(pair.stats.read().late_bytes > 0);
    }
}

fn silent() -> TellOver {
    Box::new(|_| {})
}
