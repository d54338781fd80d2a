//! What the tests of the embedding API share: nodes and pools, stamped pages, ways to hold a copy or
//! a whole node up, and the check that nothing was left behind.
//!
//! No wait here is unbounded, and none is there to be right: each polls for what it waits for, and
//! fails with what it saw instead.
#![allow(dead_code)] // Each test file uses a part of it.
#![allow(clippy::unwrap_used)]

use kvroom::actors::copy::plant::{Brake, Plant};
use kvroom::actors::supervisor::actor::Inbound;
use kvroom::device::emulated::{Config, Machine, Own};
use kvroom::device::{Device, DeviceOptions};
use kvroom::{
    Chunk, Code, Deadlines, Fabric, Limits, LocalHub, Net, Node, Order, Outcome, Peer, Pool,
    PoolKind, PoolLayout, PushedChunk, ReadLease, ReceiveRoom, RoomId, SendRoom, UcxOptions,
    UcxUse, WriteLease,
};
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

pub(crate) mod devices;
pub(crate) mod fake_peer;
pub(crate) mod named;
pub(crate) mod namespace;
pub(crate) mod near_fake;
pub(crate) mod process;
pub(crate) mod proxy;

use proxy::Proxy;

/// Tokens in a page of [`kv`].
pub(crate) const TOKENS: u64 = 16;
/// Layers of [`kv`].
pub(crate) const LAYERS: u32 = 2;
/// Bytes of a page that is one piece of a bulk copy by itself.
pub(crate) const PIECE: u64 = 128 << 10;
/// How long anything is waited for before a test fails.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Shape of a pool of key and value pages.
pub(crate) fn kv(pages: u32, page_bytes: u64) -> PoolLayout {
    PoolLayout {
        name: "kv".into(),
        kind: PoolKind::Kv,
        order: Order::LayersFirst,
        layers: LAYERS,
        pages,
        page_bytes,
        page_tokens: TOKENS as u32,
    }
}

/// Shape of a pool of aux rows.
pub(crate) fn aux(rows: u32) -> PoolLayout {
    PoolLayout {
        name: "aux".into(),
        kind: PoolKind::Aux,
        layers: 1,
        ..kv(rows, 512)
    }
}

/// What is between two nodes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Over {
    #[default]
    Local,
    Tcp,
    Unix,
    /// A Unix socket and shared pools: what nodes of one host find out by themselves.
    Shm,
    /// Local, with pages on emulated devices, one for each pool.
    Device,
    /// TCP, with pages on emulated devices.
    DeviceTcp,
    /// UCX over its own `tcp`; tests of it begin with [`ucx_is_here`].
    Ucx,
}

impl Over {
    /// A pool of the kind that is needed.
    pub(crate) fn pool(self, layout: PoolLayout) -> Pool {
        match self {
            Over::Shm => Pool::shared(layout).unwrap(),
            Over::Local | Over::Tcp | Over::Unix | Over::Ucx => Pool::owned(layout).unwrap(),
            Over::Device | Over::DeviceTcp => Pool::on_device(layout, &device()).unwrap(),
        }
    }
}

/// How tests use UCX: over its `tcp` on the loopback, or over `KVROOM_TEST_UCX_TLS`.
pub(crate) fn ucx_options() -> UcxOptions {
    let transports = std::env::var("KVROOM_TEST_UCX_TLS");
    UcxOptions {
        when: UcxUse::Always,
        library: std::env::var_os("KVROOM_UCX_LIBRARY").map(PathBuf::from),
        transports: Some(transports.unwrap_or_else(|_| "tcp".to_owned())),
        ..UcxOptions::default()
    }
}

/// Whether there is a UCX that can be used. Says aloud what is skipped if not, which is a failure under
/// `KVROOM_REQUIRE_ALL`.
pub(crate) fn ucx_is_here(test: &str) -> bool {
    static HERE: OnceLock<Result<(), String>> = OnceLock::new();
    let here = HERE.get_or_init(|| {
        let builder = Node::builder("ucx-is-here").ucx(ucx_options());
        match builder.blocking_start() {
            Ok(node) => {
                node.blocking_shutdown();
                Ok(())
            }
            Err(error) => Err(error.to_string()),
        }
    });
    let Err(why) = here else {
        return true;
    };
    let required = std::env::var_os("KVROOM_REQUIRE_ALL").is_some_and(|value| value == "1");
    assert!(!required, "KVROOM_REQUIRE_ALL=1: {test}: {why}");
    eprintln!("SKIPPED: {test}: {why}");
    false
}

/// An emulated device, each time another one of the same machine, with small slots.
fn device() -> Device {
    static MACHINE: OnceLock<Machine> = OnceLock::new();
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let machine = MACHINE.get_or_init(|| {
        Machine::new(Config {
            devices: 64,
            streams: 1024,
            kernels: Own::all(),
            ..Config::default()
        })
    });
    let n = COUNT.fetch_add(1, Ordering::Relaxed) % 64;
    let context = machine.context(n as u32).unwrap();
    let options = DeviceOptions {
        slots: 4,
        slot_bytes: 256 << 10,
        streams: 1,
        between_processes: false,
        ..DeviceOptions::default()
    };
    Device::start(context, options).unwrap()
}

/// Makes five tests of each of these functions, one for each of these [`Over`]: `local::name`, `tcp::name`,
/// `unix::name`, `shm::name` and `ucx::name`.
#[allow(unused_macros)]
macro_rules! over_each {
    ($($name:ident),* $(,)?) => {
        over_each!(@ local Local $($name)*);
        over_each!(@ tcp Tcp $($name)*);
        over_each!(@ unix Unix $($name)*);
        over_each!(@ shm Shm $($name)*);
        over_each!(@ ucx Ucx $($name)*);
    };
    (@ ucx $over:ident $($name:ident)*) => {
        mod ucx {
            $(#[tokio::test]
            async fn $name() {
                let here = || super::common::ucx_is_here(stringify!($name));
                if tokio::task::spawn_blocking(here).await.unwrap() {
                    super::$name(super::Over::$over).await;
                }
            })*
        }
    };
    (@ $module:ident $over:ident $($name:ident)*) => {
        mod $module {
            $(#[tokio::test]
            async fn $name() {
                super::$name(super::Over::$over).await;
            })*
        }
    };
}
#[allow(unused_imports)]
pub(crate) use over_each;

/// Makes two tests of each of these functions, where the sender's lane copies from page to page:
/// `copies::local::name` and `copies::shm::name`.
#[allow(unused_macros)]
macro_rules! over_copies {
    ($($name:ident),* $(,)?) => {
        mod copies {
            use super::*;
            over_each!(@ local Local $($name)*);
            over_each!(@ shm Shm $($name)*);
        }
    };
}
#[allow(unused_imports)]
pub(crate) use over_copies;

/// Makes six tests of each of these functions: `fabrics::local::name`, `shm`, `tcp`, `ucx`, and with pages on
/// devices `device` and `device_tcp`.
#[allow(unused_macros)]
macro_rules! over_fabrics {
    ($($name:ident),* $(,)?) => {
        mod fabrics {
            use super::*;
            over_each!(@ local Local $($name)*);
            over_each!(@ shm Shm $($name)*);
            over_each!(@ tcp Tcp $($name)*);
            over_each!(@ ucx Ucx $($name)*);
            over_each!(@ device Device $($name)*);
            over_each!(@ device_tcp DeviceTcp $($name)*);
        }
    };
}
#[allow(unused_imports)]
pub(crate) use over_fabrics;

/// A path for a Unix socket that nothing else has.
pub(crate) fn socket_path() -> PathBuf {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    std::env::temp_dir().join(format!("kvroom-test-{}-{n}.sock", std::process::id()))
}

/// Everything about a pair of nodes that a test may want otherwise.
pub(crate) struct Setup {
    /// What is between them.
    pub(crate) over: Over,
    /// A [`Proxy`] between them, too; not with `Over::Local`.
    pub(crate) proxied: bool,
    /// Without its addresses.
    pub(crate) net: Net,
    pub(crate) layout: PoolLayout,
    pub(crate) lanes: usize,
    pub(crate) shards: usize,
    pub(crate) limits: Limits,
    pub(crate) deadlines: Deadlines,
    pub(crate) plant: Option<Plant>,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            over: Over::Local,
            proxied: false,
            net: Net::default(),
            layout: kv(16, 4096),
            lanes: 1,
            shards: 1,
            limits: Limits::default(),
            deadlines: Deadlines::default(),
            plant: None,
        }
    }
}

impl Setup {
    /// The defaults, over this.
    pub(crate) fn over(over: Over) -> Setup {
        Setup {
            over,
            ..Setup::default()
        }
    }
}

/// A node with a pool.
pub(crate) struct Side {
    pub(crate) node: Node,
    pub(crate) pool: Pool,
    /// Where the others find it.
    pub(crate) address: String,
}

impl Side {
    pub(crate) async fn start(hub: &LocalHub, name: &str, setup: &Setup, brake: &Brake) -> Side {
        let pool = setup.over.pool(setup.layout.clone());
        let (plant, brake) = (setup.plant, brake.clone());
        let mut net = setup.net.clone();
        match setup.over {
            Over::Local | Over::Device => {}
            Over::Tcp | Over::DeviceTcp => net.listen.push("tcp://127.0.0.1:0".into()),
            Over::Ucx => {
                net.listen.push("tcp://127.0.0.1:0".into());
                if net.ucx.when == UcxUse::Off {
                    net.ucx = ucx_options();
                }
            }
            Over::Unix | Over::Shm => net
                .listen
                .push(format!("unix://{}", socket_path().display())),
        }
        let mut builder = Node::builder(name).net(net);
        if matches!(setup.over, Over::Local | Over::Device) {
            builder = builder.hub(hub);
        }
        let node = builder
            .pool(pool.clone())
            .lanes(setup.lanes)
            .shards(setup.shards)
            .limits(setup.limits.clone())
            .deadlines(setup.deadlines.clone())
            .configure(move |config| {
                config.plant = plant;
                config.brake = Some(brake);
            })
            .start()
            .await
            .unwrap();
        let address = match node.addresses().first() {
            Some(address) => address.clone(),
            None => format!("local://{name}"),
        };
        Side {
            node,
            pool,
            address,
        }
    }

    /// Pages with a stamp, ready to be pushed; the first of them is page `place` of the request.
    pub(crate) fn stamped(&self, pages: &[u32], stamp: u64, place: u64) -> ReadLease {
        let mut lease = self.pool.lease_write(pages).unwrap();
        fill(&mut lease, stamp, place);
        lease.into_read()
    }

    pub(crate) async fn quiet(&self) {
        assert_quiet(&self.node).await;
        all_free(&self.pool).await;
    }
}

/// A prefill node and a decode node that is connected to it.
pub(crate) struct Duo {
    pub(crate) hub: LocalHub,
    pub(crate) prefill: Side,
    pub(crate) decode: Side,
    /// The prefill node, as the decode node knows it.
    pub(crate) peer: Peer,
    /// Holds whichever lane writes inside the decode node's gates.
    pub(crate) brake: Brake,
    /// The decode node dials through it: its way up is towards prefill, data comes down.
    pub(crate) proxy: Option<Proxy>,
}

impl Duo {
    pub(crate) async fn new() -> Duo {
        Duo::with(Setup::default()).await
    }

    /// With the defaults, over this.
    pub(crate) async fn over(over: Over) -> Duo {
        Duo::with(Setup::over(over)).await
    }

    /// Over TCP, with a proxy in between.
    pub(crate) async fn proxied() -> Duo {
        Duo::with(Setup {
            over: Over::Tcp,
            proxied: true,
            ..Setup::default()
        })
        .await
    }

    /// What is in between.
    #[track_caller]
    pub(crate) fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().unwrap()
    }

    /// Pages of [`PIECE`] bytes: a copy of n pages is n times [`LAYERS`] pieces.
    pub(crate) async fn of_pieces() -> Duo {
        Duo::of_pieces_over(Over::Local).await
    }

    /// The same, over this.
    pub(crate) async fn of_pieces_over(over: Over) -> Duo {
        Duo::with(Setup {
            layout: kv(16, PIECE),
            ..Setup::over(over)
        })
        .await
    }

    pub(crate) async fn with(setup: Setup) -> Duo {
        let (hub, brake) = (LocalHub::new(), Brake::default());
        // Within a host the sender's lane writes, else the receiver's.
        let (of_prefill, of_decode) = match setup.over {
            Over::Local | Over::Shm | Over::Ucx => (brake.clone(), Brake::default()),
            _ => (Brake::default(), brake.clone()),
        };
        let prefill = Side::start(&hub, "p", &setup, &of_prefill).await;
        let without = Setup {
            plant: None,
            ..setup
        };
        let decode = Side::start(&hub, "d", &without, &of_decode).await;
        let proxy = match (without.proxied, without.over) {
            (false, _) => None,
            (true, Over::Local | Over::Device) => panic!("no proxy fits between nodes of a hub"),
            (true, Over::Shm) => panic!("no proxy passes descriptors on"),
            (true, Over::Tcp | Over::DeviceTcp | Over::Ucx) => Some(Proxy::tcp(&prefill.address)),
            (true, Over::Unix) => Some(Proxy::unix(&prefill.address, socket_path())),
        };
        let address = proxy.as_ref().map_or(&*prefill.address, Proxy::address);
        let peer = within(decode.node.connect(address)).await.unwrap();
        let fabric = match without.over {
            Over::Local | Over::Device => Fabric::Local,
            Over::Tcp | Over::Unix | Over::DeviceTcp => Fabric::Tcp,
            Over::Shm => Fabric::Shm,
            Over::Ucx => Fabric::Ucx,
        };
        assert_eq!(peer.fabric(), Some(fabric));
        Duo {
            hub,
            prefill,
            decode,
            peer,
            brake,
            proxy,
        }
    }

    /// A decode room on these pages.
    pub(crate) async fn receive(&self, id: u64, attempt: u32, pages: &[u32]) -> ReceiveRoom {
        let lease = self.decode.pool.lease_write(pages).unwrap();
        self.receive_into(id, attempt, lease).await
    }

    pub(crate) async fn receive_into(
        &self,
        id: u64,
        attempt: u32,
        lease: WriteLease,
    ) -> ReceiveRoom {
        let room = self.decode.node.receive(RoomId(id)).attempt(attempt);
        within(room.from(&self.peer).into(lease).start())
            .await
            .unwrap()
    }

    /// A prefill room.
    pub(crate) async fn send(&self, id: u64, attempt: u32) -> SendRoom {
        let room = self.prefill.node.send(RoomId(id)).attempt(attempt);
        within(room.start()).await.unwrap()
    }

    /// Moves two pages from `from` to `to` and says whether all went well.
    pub(crate) async fn moves(&self, id: u64, attempt: u32, from: &[u32], to: &[u32]) {
        let stamp = id << 8 | u64::from(attempt);
        let receiver = self.receive(id, attempt, to).await;
        let sender = self.send(id, attempt).await;
        let lease = self.prefill.stamped(from, stamp, 0);
        let total = from.len() as u64 * TOKENS;
        push(&sender, 0..total, lease).await;
        sender.finish(total, None).unwrap();
        assert_eq!(within(receiver.outcome()).await, Outcome::Done);
        assert_eq!(within(sender.outcome()).await, Outcome::Done);
        let back = within(receiver.released()).await;
        verify(&back.leases[0], stamp, 0);
        drop(within(sender.released()).await);
    }

    /// Nothing is left on either side; both stop.
    pub(crate) async fn end(self) {
        self.brake.release();
        for side in [&self.decode, &self.prefill] {
            side.quiet().await;
            let report = within(side.node.shutdown()).await;
            assert!(report.drained, "{report:?}");
        }
    }
}

/// Pushes a chunk when there is room for it.
pub(crate) async fn push(
    room: &SendRoom,
    tokens: std::ops::Range<u64>,
    lease: ReadLease,
) -> PushedChunk {
    let slot = within(room.reserve()).await.unwrap();
    slot.push(Chunk::tokens(tokens).pages(lease)).unwrap()
}

/// Fails if it takes too long.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(PATIENCE, future).await {
        Ok(value) => value,
        Err(_) => panic!("nothing came in {PATIENCE:?}"),
    }
}

/// Polls until it is so.
pub(crate) async fn until(what: &str, mut so: impl FnMut() -> bool) {
    let start = Instant::now();
    while !so() {
        assert!(start.elapsed() < PATIENCE, "in vain: {what}");
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Polls a node's counters until they are so.
pub(crate) async fn until_stats(
    what: &str,
    node: &Node,
    mut so: impl FnMut(&kvroom::NodeStats) -> bool,
) -> kvroom::NodeStats {
    let start = Instant::now();
    loop {
        let stats = node.stats().await;
        if so(&stats) {
            return stats;
        }
        assert!(start.elapsed() < PATIENCE, "in vain: {what}; {stats:?}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// Polls a node's counters of network connections until they are so.
pub(crate) async fn until_counts(
    what: &str,
    node: &Node,
    so: impl Fn(&kvroom::actors::runtime::stats::Counts) -> bool,
) {
    let read = || node.runtime().shared().stats.read();
    until(what, || so(&read())).await;
}

/// Everything that is on its way between these nodes has had the time to arrive several times over:
/// each question goes through a shard's queue.
pub(crate) async fn settle(nodes: &[&Node]) {
    for _ in 0..20 {
        for node in nodes {
            within(node.stats()).await;
            within(node.rooms()).await;
        }
        tokio::task::yield_now().await;
    }
}

/// The node holds nothing any more, and no proof ever came that nobody waited for.
pub(crate) async fn assert_quiet(node: &Node) {
    let start = Instant::now();
    loop {
        let stats = within(node.stats()).await;
        let held = [
            stats.rooms_live,
            stats.rooms_draining,
            stats.early_claims,
            stats.claims,
            stats.actors,
            stats.clocks,
        ];
        if held.iter().all(|n| *n == 0) {
            assert_eq!(stats.stray_witnesses, 0, "{stats:?}");
            assert_eq!(stats.overwritten_words, 0, "{stats:?}");
            assert_eq!(stats.quarantined_pages, 0, "{stats:?}");
            return;
        }
        if start.elapsed() > PATIENCE {
            let rooms = node.rooms().await;
            panic!("node {} is not quiet: {stats:?}\n{rooms:#?}", node.name());
        }
        tokio::task::yield_now().await;
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

/// All pages come back to this pool.
pub(crate) async fn all_free(pool: &Pool) {
    until("all pages are back", || pool.leased_pages() == 0).await;
}

/// A word of a stamped page.
pub(crate) fn word(stamp: u64, layer: u32, place: u64, i: usize) -> u64 {
    let mut z = stamp.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        ^ (u64::from(layer) << 48)
        ^ (place << 24)
        ^ i as u64;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

/// Fills all layers; `place` is the first page's number in the request.
pub(crate) fn fill(lease: &mut WriteLease, stamp: u64, place: u64) {
    for layer in 0..lease.pool().layout().layers {
        for index in 0..lease.pages().len() {
            let bytes = lease.page_mut(layer, index);
            for (i, part) in bytes.chunks_mut(8).enumerate() {
                let word = word(stamp, layer, place + index as u64, i).to_le_bytes();
                let n = part.len();
                part.copy_from_slice(&word[..n]);
            }
        }
    }
}

/// Whether a page holds what [`fill`] put there.
pub(crate) fn holds(bytes: &[u8], stamp: u64, layer: u32, place: u64) -> bool {
    bytes
        .chunks(8)
        .enumerate()
        .all(|(i, part)| *part == word(stamp, layer, place, i).to_le_bytes()[..part.len()])
}

/// Every byte of every page is as [`fill`] left it.
pub(crate) fn verify(lease: &WriteLease, stamp: u64, place: u64) {
    for layer in 0..lease.pool().layout().layers {
        for index in 0..lease.pages().len() {
            assert!(
                holds(lease.page(layer, index), stamp, layer, place + index as u64),
                "layer {layer} of page {index} of the lease is not as stamped"
            );
        }
    }
}

/// The code of an aborted room.
#[track_caller]
pub(crate) fn code(outcome: &Outcome) -> Code {
    match outcome {
        Outcome::Aborted(reason) => reason.code,
        Outcome::Done => panic!("the room is done"),
    }
}

/// The reason's text of an aborted room.
#[track_caller]
pub(crate) fn text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Aborted(reason) => reason.to_string(),
        Outcome::Done => panic!("the room is done"),
    }
}

/// A text names all of these.
#[track_caller]
pub(crate) fn names(text: &impl ToString, words: &[&str]) {
    let text = text.to_string();
    for word in words {
        assert!(text.contains(word), "{text:?} does not name {word:?}");
    }
}

/// Stops a node's shard (all of it, the sessions on its thread too) until it is dropped: to others
/// the node is silent.
pub(crate) struct Silence {
    _go_on: mpsc::Sender<()>,
}

impl Silence {
    pub(crate) async fn of(node: &Node) -> Silence {
        Silence::of_shard(node, RoomId(0)).await
    }

    /// Of the shard that has this room; others go on.
    pub(crate) async fn of_shard(node: &Node, room: RoomId) -> Silence {
        let (go_on, wait) = mpsc::channel::<()>();
        let (tell, mut stopped) = tokio::sync::oneshot::channel();
        let ask = Inbound::Ask(Box::new(move |_, _| {
            let _ = tell.send(());
            let _ = wait.recv();
        }));
        node.runtime().inbox(room).put(ask).unwrap();
        within(async { (&mut stopped).await.unwrap() }).await;
        Silence { _go_on: go_on }
    }
}

/// Polls a future once and drops it.
pub(crate) async fn poll_once<T>(future: impl Future<Output = T>) -> Option<T> {
    tokio::select! {
        biased;
        value = future => Some(value),
        () = std::future::ready(()) => None,
    }
}
