//! Two contexts of this process, each with its thread, over what UCX has on one host.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::copy::job::Place;
use crate::ids::{ClaimNo, LegNo};
use crate::memory::{
    CancelFlag, Doorbell, JobBack, JobId, OpenGate, ReadLease, Target, TicketSink, WriteLease,
    open_far,
};
use kvroom_kernels::layout::{Order, PoolKind};
use std::io::Write;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

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

/// UCX, if this machine has it; said aloud if not, and an error where all has to be tested.
fn start(options: &UcxOptions) -> Option<Ucx> {
    match Ucx::start(options, &Arc::default()) {
        Ok(ucx) => Some(ucx),
        Err(error) => {
            let text = format!("SKIPPED: {error}\n");
            let all = std::env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|v| v == "1");
            assert!(!all, "KVROOM_REQUIRE_ALL=1: {text}");
            // Not by a macro: what those print is kept from who runs the tests.
            let _ = std::io::stderr().write_all(text.as_bytes());
            None
        }
    }
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
        };
        pair.back
            .guard(WRITER, &pair.gates, &pair.stats, &pair.meter);
        let none = GateTable::new(1);
        pair.route.guard(WRITER, &none, &pair.stats, &pair.meter);
        Some(pair)
    }

    /// Lends pages to the sender.
    fn open(&self, number: u64, sections: &[(&Pool, &[u32])]) -> Opened {
        let mut leases = Vec::new();
        let mut targets = Vec::new();
        for (pool, pages) in sections {
            let mut lease = pool.lease_write(pages).unwrap();
            targets.push(lease.target_section());
            leases.push(lease);
        }
        let target = Target::new(targets, None, Arc::new(Nothing)).only_for(WRITER, 0..u32::MAX);
        let (number, far) = (ClaimNo(number), self.back.gated_here());
        let gate = match far {
            true => self.gates.open(number, target).unwrap(),
            false => open_far(number, target, self.back.path()),
        };
        let far = |(pool, pages): &(&Pool, &[u32])| FarSection {
            pool: Arc::new(FarPool {
                layout: Arc::clone(pool.layout()),
                key: wait(self.to.register(pool)).unwrap(),
            }),
            pages: (*pages).into(),
        };
        let claim = (!self.back.gated_here()).then(|| {
            Arc::new(UcxClaim {
                number,
                sections: sections.iter().map(far).collect(),
                aux: None,
            })
        });
        Opened {
            gate,
            claim,
            leases,
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
        });
        Posted { cancel, backs }
    }
}

fn offer(ucx: &Ucx, end: &UcxEnd) -> UcxOffer {
    UcxOffer {
        version: ucx.version(),
        rdma: ucx.has_rdma(),
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
    leases: Vec<WriteLease>,
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
        self.backs.try_recv().is_err()
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

fn has(pool: &Pool, layer: u32, page: u32, i: usize) -> bool {
    let mut bytes = vec![0; pool.layout().page_bytes as usize];
    pool.observe(layer, page, &mut bytes).unwrap();
    let same = |(at, byte): (usize, &u8)| *byte == value(layer, i, at);
    bytes.iter().enumerate().all(same)
}

#[test]
fn bytes_arrive_in_the_pages_that_a_claim_names_and_nowhere_else() {
    for (transports, mode) in HERE {
        let Some(pair) = Pair::new(&options(transports), mode) else {
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
            let open = pair.open(7, &[(&pool, &pages)]);
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
