//! Canary rooms: small rooms between this node and small nodes beside it, on pages of their own.
//!
//! ```text
//!   node NAME                              node NAME-canary-tcp-… (this process, one shard, one lane)
//!   lane 0 ── a page, with a pattern ────▶ receives, and looks at the bytes
//!   lane 1 ── a page ────────────────────▶ …
//!   receives ◀──────────────── a page ──── lane 0
//!      over: the hub (local), shared memory (shm), a socket (tcp), UCX if it is used with every peer
//!      (ucx), as the node is set up
//! ```
//!
//! Rules: each lane and fabric has one canary, which starts again when both ends of the last one have
//! their memory back: one that is stuck holds two pages and is not joined by another. Nothing is
//! started because somebody asked. A canary's room may take [`PATIENCE`] times as long as the canary
//! itself, so that it is not aborted on a node that is merely busy. Canaries are nobody's rooms: they
//! are kept apart from what is counted, and whoever lists rooms, pools and peers leaves them out by
//! [`is_canary_room`], [`NAME`] and [`is_canary`]. The names of small nodes end with a secret of the
//! process, so that nobody else's node is taken for one, and no answer says them.

use super::Watched;
use super::judge::{CanarySeen, LastSeen, PATIENCE};
use super::report::CanaryRuns;
use crate::daemon::config::HealthSettings;
use kvroom::health::{Part, PulseWatch};
use kvroom::metrics::RoomsIn;
use kvroom::{
    Chunk, Class, Code, Deadlines, Fabric, Limits, LocalHub, Net, Node, Order, Outcome, Peer, Pool,
    PoolKind, PoolLayout, Reason, ReceiveRoom, RoomId, RoomKey, SendBuilder, ShutdownReport,
    StartErrorKind, StateName, UcxOptions, UcxUse, WriteLease,
};
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// The pool that canaries use, on every node that has them, and the tag of their rooms.
pub(crate) const NAME: &str = "kvroom-canary";

/// Ids of canary rooms begin here.
const FIRST_ID: u64 = 0xffff_ca00_0000_0000;
/// The attempt of all of them, so that no room of anybody else has such a key by accident.
const ATTEMPT: u32 = 0xca00_0000;
/// So often in a row a canary may be aborted on request before that is held against the node.
const TOLD: u32 = 10;

/// The end of the name of each small node: who connects with a name says it by itself, and one that
/// has a canary's would be in its way.
static SECRET: LazyLock<String> =
    LazyLock::new(|| format!("{:016x}", RandomState::new().hash_one(std::process::id())));

/// How long is waited before a fabric whose small node did not come up is tried again: the first time, and at
/// most. It doubles, since a node that cannot have its threads or descriptors says so in the log each time.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// All canaries of a node.
pub(crate) struct Canaries {
    slots: Vec<Slot>,
    tasks: Vec<JoinHandle<()>>,
    /// The small nodes, as far as they are up.
    nodes: watch::Receiver<Vec<Node>>,
    started: Arc<AtomicU64>,
}

/// One canary, as whoever judges it sees it.
struct Slot {
    name: String,
    lane: Option<usize>,
    run: watch::Receiver<Run>,
}

/// What a canary does, and how the last run ended.
#[derive(Clone, Debug)]
struct Run {
    began: Option<Instant>,
    stage: &'static str,
    last: Last,
    /// In a row.
    told: u32,
    passed: u64,
    failed: u64,
    full: u64,
}

#[derive(Clone, Debug)]
enum Last {
    Never,
    Passed(Duration),
    Full(Instant),
    Failed(Instant, String),
}

/// Which way the bytes go, seen from the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Copied by this lane of the node.
    Out(u16),
    /// Received by the node.
    In,
}

/// One canary, as it runs.
struct Runner {
    way: Way,
    page: u32,
    main: Node,
    main_pool: Pool,
    settings: HealthSettings,
    next_id: Arc<AtomicU64>,
    started: Arc<AtomicU64>,
    run: watch::Sender<Run>,
}

/// A small node, and how the node is reached from it.
#[derive(Clone)]
struct Road {
    node: Node,
    pool: Pool,
    address: String,
    fabric: Fabric,
}

enum Failure {
    /// The node has as many rooms as it may.
    Full,
    /// Somebody asked for its end.
    Told,
    Broken(String),
}

impl From<String> for Failure {
    fn from(why: String) -> Failure {
        Failure::Broken(why)
    }
}

/// Where a small node connects to, and over what.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Plan {
    fabric: Fabric,
    address: String,
}

/// One for each fabric that the node is set up for.
fn plans(name: &str, addresses: &[String], shm: bool, ucx: bool) -> Vec<Plan> {
    let plan = |fabric, address: &str| Plan {
        fabric,
        address: address.to_owned(),
    };
    let mut plans = vec![plan(Fabric::Local, &format!("local://{name}"))];
    if shm && let Some(any) = addresses.first() {
        plans.push(plan(Fabric::Shm, any));
    }
    // Of nodes that may not share memory, a Unix socket carries what tcp does.
    let tcp = addresses.iter().find(|a| a.starts_with("tcp://"));
    if let Some(socket) = tcp.or(addresses.first()) {
        plans.push(plan(Fabric::Tcp, socket));
        // Between two nodes of one process there is no RDMA that would have to be used: only a node that uses
        // UCX with everybody does so with this one.
        if ucx {
            plans.push(plan(Fabric::Ucx, socket));
        }
    }
    plans
}

/// Whether a room is a canary's.
pub(crate) fn is_canary_room(key: RoomKey) -> bool {
    key.id.0 >= FIRST_ID && key.attempt == ATTEMPT
}

/// Whether a peer of the node `of` is one of the small nodes beside it.
pub(crate) fn is_canary(of: &str, peer: &str) -> bool {
    let fabrics = [Fabric::Local, Fabric::Shm, Fabric::Tcp, Fabric::Ucx];
    let is = |fabric: &Fabric| node_name(of, *fabric) == peer;
    peer.contains("-canary-") && fabrics.iter().any(is)
}

/// The name of a small node; names have 64 bytes at most.
fn node_name(of: &str, fabric: Fabric) -> String {
    let mut cut = of.len().min(32);
    while !of.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}-canary-{}-{}", &of[..cut], fabric, *SECRET)
}

impl Canaries {
    /// None, if there are to be none.
    pub(crate) fn none() -> Canaries {
        Canaries {
            slots: Vec::new(),
            tasks: Vec::new(),
            nodes: watch::channel(Vec::new()).1,
            started: Arc::default(),
        }
    }

    /// Gives the node its reserved pages, and starts all of them.
    ///
    /// # Errors
    /// There is no memory for the pages, or the node has a pool of this name; in words.
    pub(crate) async fn start(
        watched: &Watched,
        settings: &HealthSettings,
    ) -> Result<Canaries, String> {
        let node = &watched.node;
        let with_ucx = watched.ucx.when == UcxUse::Always;
        let plans = plans(node.name(), node.addresses(), watched.shm, with_ucx);
        let lanes = u16::try_from(node.lanes()).unwrap_or(u16::MAX);
        let each = u32::from(lanes) + 1;
        let layout = PoolLayout {
            name: NAME.into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 1,
            pages: each * plans.len() as u32,
            page_bytes: 4096,
            page_tokens: 16,
        };
        // Shared: a private pool would keep the node's real peers from sharing memory with it.
        let pool = |layout: &PoolLayout| {
            let pool = Pool::shared(layout.clone());
            pool.map_err(|e| format!("no pages for canaries: {e}"))
        };
        let main_pool = pool(&layout)?;
        let added = node.add_pool(main_pool.clone()).await;
        added.map_err(|e| format!("no pages for canaries: {e}"))?;
        let (nodes_tx, nodes) = watch::channel(Vec::new());
        let nodes_tx = Arc::new(nodes_tx);
        let (started, next_id) = (Arc::default(), Arc::new(AtomicU64::new(FIRST_ID)));
        let (mut slots, mut tasks, mut page) = (Vec::new(), Vec::new(), 0);
        for plan in plans {
            let mut runners = Vec::new();
            for way in (0..lanes).map(Way::Out).chain([Way::In]) {
                let (run, seen) = watch::channel(Run {
                    began: None,
                    stage: "",
                    last: Last::Never,
                    told: 0,
                    passed: 0,
                    failed: 0,
                    full: 0,
                });
                let fabric = plan.fabric;
                let (name, lane) = match way {
                    Way::Out(lane) => (format!("canary {fabric} lane {lane}"), Some(lane.into())),
                    Way::In => (format!("canary {fabric} in"), None),
                };
                slots.push(Slot {
                    name,
                    lane,
                    run: seen,
                });
                runners.push(Runner {
                    way,
                    page,
                    main: node.clone(),
                    main_pool: main_pool.clone(),
                    settings: settings.clone(),
                    next_id: Arc::clone(&next_id),
                    started: Arc::clone(&started),
                    run,
                });
                page += 1;
            }
            let small = SmallNode {
                name: node_name(node.name(), plan.fabric),
                plan,
                pool: pool(&layout)?,
                hub: watched.hub.clone(),
                key: watched.key.clone(),
                ucx: watched.ucx.clone(),
            };
            tasks.push(tokio::spawn(drive(small, runners, Arc::clone(&nodes_tx))));
        }
        Ok(Canaries {
            slots,
            tasks,
            nodes,
            started,
        })
    }

    /// Canary rooms that were ever started.
    pub(crate) fn started(&self) -> u64 {
        self.started.load(Ordering::Relaxed)
    }

    /// How often each ran, and how that ended.
    pub(crate) fn runs(&self) -> Vec<CanaryRuns> {
        let runs = self.slots.iter().map(|slot| {
            let run = slot.run.borrow();
            CanaryRuns {
                name: slot.name.trim_start_matches("canary ").to_owned(),
                passed: run.passed,
                failed: run.failed,
                full: run.full,
                took: match run.last {
                    Last::Passed(took) => Some(took),
                    _ => None,
                },
            }
        });
        runs.collect()
    }

    /// Each of them now. `watch` has looked at the node; `ended` is how long ago a room ended.
    pub(crate) fn seen(
        &self,
        watch: &PulseWatch,
        shards: usize,
        ended: Duration,
    ) -> Vec<CanarySeen> {
        let busy_shard = (0..shards).any(|n| watch.is_busy(&Part::Shard(n)));
        let seen = self.slots.iter().map(|slot| {
            let run = slot.run.borrow();
            let lane = slot.lane.map(Part::Lane);
            CanarySeen {
                name: slot.name.clone(),
                running: run.began.map(|began| (began.elapsed(), run.stage)),
                last: match &run.last {
                    Last::Never => LastSeen::Never,
                    Last::Passed(took) => LastSeen::Passed(*took),
                    Last::Full(since) => LastSeen::Full(since.elapsed(), ended),
                    Last::Failed(since, why) => LastSeen::Failed(since.elapsed(), why.clone()),
                },
                busy: busy_shard || lane.is_some_and(|lane| watch.is_busy(&lane)),
            }
        });
        seen.collect()
    }

    /// Ends all of them. What a stuck one holds drains with its node.
    pub(crate) async fn end(self) {
        for task in &self.tasks {
            task.abort();
        }
        for task in self.tasks {
            let _ = task.await;
        }
        let nodes = self.nodes.borrow().clone();
        let stopping: Vec<_> = nodes
            .into_iter()
            .map(|node| tokio::spawn(async move { node.shutdown().await }))
            .collect();
        for stopping in stopping {
            let _ = stopping.await;
        }
    }
}

/// How long the end of a daemon waits for canaries when nobody else's room is left.
const ALONE: Duration = Duration::from_secs(3);

/// While a node shuts down: completes when nothing but canaries has been left of its rooms for a while,
/// as when a lane stands still. Nobody else has any of their pages, so that they may be left behind.
pub(crate) async fn canaries_alone(node: &Node) -> ShutdownReport {
    let open = |r: &&RoomsIn| !matches!(r.state, StateName::Done | StateName::Aborted);
    let mut since = None;
    loop {
        tokio::time::sleep(ALONE / 60).await;
        // Counted without asking anybody, and canaries are not among them.
        let rooms: u64 = (node.metrics().rooms.iter().filter(open))
            .map(|r| r.count)
            .sum();
        let alone = *since.get_or_insert_with(Instant::now);
        if rooms > 0 {
            since = None;
        } else if alone.elapsed() > ALONE {
            tracing::warn!(
                node = node.name(),
                "no room but canaries is left, and the node has not ended: it is left behind"
            );
            return ShutdownReport {
                drained: true,
                leaked: Vec::new(),
            };
        }
    }
}

/// What a small node is made of.
struct SmallNode {
    name: String,
    plan: Plan,
    pool: Pool,
    hub: LocalHub,
    key: Option<kvroom::ClusterKey>,
    ucx: UcxOptions,
}

impl SmallNode {
    async fn start(&self) -> Result<Node, String> {
        let net = Net {
            key: self.key.clone(),
            shm: self.plan.fabric == Fabric::Shm,
            // The others do not offer it, so that their bytes go another way.
            ucx: match self.plan.fabric {
                Fabric::Ucx => self.ucx.clone(),
                _ => UcxOptions::default(),
            },
            ..Net::default()
        };
        let small = Node::builder(&self.name).net(net).hub(&self.hub);
        let small = small.pool(self.pool.clone()).shards(1).spin(Duration::ZERO);
        // It has a few rooms at a time, and its end must not hold up the daemon's.
        let small = small.limits(Limits {
            rooms: 1_024,
            gates: 1_024,
            spent_keys: 1_024,
            claims_per_peer: 1_024,
            early_claims_per_peer: 1_024,
            ..Limits::default()
        });
        let small = small.deadlines(Deadlines {
            shutdown: Duration::from_millis(500),
            ..Deadlines::default()
        });
        let started = small.start().await;
        started.map_err(|e| format!("its small node did not start: {e}"))
    }
}

/// Starts the small node of one fabric, as often as it takes, and runs its canaries.
async fn drive(small: SmallNode, runners: Vec<Runner>, nodes: Arc<watch::Sender<Vec<Node>>>) {
    let mut wait = AGAIN.0;
    let node = loop {
        match small.start().await {
            Ok(node) => break node,
            Err(why) => {
                for runner in &runners {
                    runner.ended(Err(Failure::Broken(why.clone())));
                }
                tokio::time::sleep(wait).await;
                wait = longer(wait);
            }
        }
    };
    nodes.send_modify(|nodes| nodes.push(node.clone()));
    let road = Road {
        node,
        pool: small.pool,
        address: small.plan.address,
        fabric: small.plan.fabric,
    };
    // In one task: they go when it is aborted.
    let mut all = tokio::task::JoinSet::new();
    for runner in runners {
        let road = road.clone();
        all.spawn(async move { runner.run_for_ever(&road).await });
    }
    while all.join_next().await.is_some() {}
}

fn longer(wait: Duration) -> Duration {
    (wait * 2).min(AGAIN.1)
}

impl Runner {
    async fn run_for_ever(self, road: &Road) {
        let mut each = tokio::time::interval(self.settings.canary_interval);
        each.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            each.tick().await;
            self.run.send_modify(|run| {
                run.began = Some(Instant::now());
                run.stage = "it is being connected";
            });
            self.ended(self.once(road).await);
        }
    }

    fn stage(&self, stage: &'static str) {
        self.run.send_modify(|run| run.stage = stage);
    }

    fn ended(&self, end: Result<(), Failure>) {
        self.run.send_modify(|run| {
            let now = Instant::now();
            let began = run.began.take().unwrap_or(now);
            match &end {
                Ok(()) => run.passed += 1,
                Err(Failure::Full) => run.full += 1,
                Err(Failure::Told) => {}
                Err(Failure::Broken(_)) => run.failed += 1,
            }
            run.told = match &end {
                Err(Failure::Told) => run.told.saturating_add(1),
                _ => 0,
            };
            let end = match end {
                Err(Failure::Told) if run.told < TOLD => return,
                // Whoever may look at health may not know it.
                Err(Failure::Broken(why)) => Err(Failure::Broken(why.replace(&*SECRET, "…"))),
                Err(Failure::Told) => {
                    let why = "it was aborted on request, again and again".to_owned();
                    Err(Failure::Broken(why))
                }
                end => end,
            };
            run.last = match (end, &run.last) {
                (Ok(()), _) => Last::Passed(began.elapsed()),
                (Err(Failure::Full), Last::Full(since)) => Last::Full(*since),
                (Err(Failure::Full), _) => Last::Full(now),
                (Err(Failure::Broken(why)), Last::Failed(since, _)) => Last::Failed(*since, why),
                (Err(Failure::Broken(why)), _) => Last::Failed(now, why),
                (Err(Failure::Told), last) => last.clone(),
            };
        });
    }

    /// One room, from its leases to the return of both.
    async fn once(&self, road: &Road) -> Result<(), Failure> {
        let connected = road.node.connect(&road.address).await;
        let main = connected.map_err(|e| format!("the node cannot be connected to: {e}"))?;
        // Who has a pool on a device shares no memory with anybody, and offers no pages to UCX: then its
        // peers' bytes go over sockets, and so do these.
        let on_device = || self.main.pools().iter().any(|p| p.device().is_some());
        let as_sockets =
            matches!(road.fabric, Fabric::Shm | Fabric::Ucx) && main.fabric() == Some(Fabric::Tcp);
        if main.fabric() != Some(road.fabric) && !(as_sockets && on_device()) {
            let is = main
                .fabric()
                .map_or("nothing".to_owned(), |f| f.to_string());
            let why = format!(
                "bytes go over {is} and not over {}: the log says why",
                road.fabric
            );
            return Err(why.into());
        }
        let id = self.id();
        self.started.fetch_add(1, Ordering::Relaxed);
        match self.way {
            Way::Out(lane) => {
                let (to, from) = (
                    lease(&road.pool, self.page)?,
                    lease(&self.main_pool, self.page)?,
                );
                let sender = self.main.send(id).attempt(ATTEMPT).lane(lane);
                self.room(id, (&road.node, &main, to), (sender, &self.main, from))
                    .await
            }
            Way::In => {
                self.stage("the node is asked for its peers");
                let small = self.main.peer(road.node.name()).await;
                let small = small
                    .ok_or_else(|| "the node does not know the small node any more".to_owned())?;
                let (to, from) = (
                    lease(&self.main_pool, self.page)?,
                    lease(&road.pool, self.page)?,
                );
                let sender = road.node.send(id).attempt(ATTEMPT).lane(0);
                self.room(id, (&self.main, &small, to), (sender, &road.node, from))
                    .await
            }
        }
    }

    /// An id that nobody has used, on the next shard in turn.
    fn id(&self) -> RoomId {
        let shards = self.main.shards().max(1);
        let mut id = RoomId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let wanted = id.0 as usize % shards;
        for _ in 0..64 * shards {
            if self.main.shard_of(id) == wanted {
                break;
            }
            id = RoomId(self.next_id.fetch_add(1, Ordering::Relaxed));
        }
        id
    }

    async fn room(
        &self,
        id: RoomId,
        (receiver, sender_peer, to): (&Node, &Peer, WriteLease),
        (sender, sender_node, mut from): (SendBuilder, &Node, WriteLease),
    ) -> Result<(), Failure> {
        let deadline = self.settings.canary_deadline.saturating_mul(PATIENCE);
        pattern(id, from.page_mut(0, 0));
        self.stage("its sender is being started");
        let sender = sender.deadline(deadline).class(Class::Interactive);
        let sender = sender.apart().tag(NAME);
        // In a batch: a node that is full refuses and does not make it wait. The sender first: then no
        // claim of a canary is ever among those that wait for one.
        let sending = started(sender_node.start_sends(vec![sender]).await.pop())?;
        self.stage("its receiver is being started");
        let room = receiver.receive(id).attempt(ATTEMPT);
        let room = room.from(sender_peer).into(to).deadline(deadline);
        let room = room.class(Class::Interactive).apart().tag(NAME);
        let receiving = started(receiver.start_receives(vec![room]).await.pop())?;
        self.stage("its page waits to be copied");
        let slot = match sending.reserve().await {
            Ok(slot) => slot,
            Err(e) => return Err(told_or(&sending, e.to_string())),
        };
        let chunk = Chunk::tokens(0..16).pages(from.into_read());
        if let Err(e) = slot.push(chunk) {
            return Err(told_or(&sending, e.to_string()));
        }
        if let Err(e) = sending.finish(16, None) {
            return Err(told_or(&sending, e.to_string()));
        }
        self.stage("its page is being copied");
        let outcome = receiving.outcome().await;
        let looked = self.back(id, receiving).await;
        let sent = sending.outcome().await;
        self.stage("its source is not proven to be free");
        drop(sending.released().await);
        match outcome {
            Outcome::Aborted(why) => Err(aborted("it was aborted", &why)),
            Outcome::Done => looked.and(match sent {
                Outcome::Done => Ok(()),
                Outcome::Aborted(why) => Err(aborted("its sender was aborted", &why)),
            }),
        }
    }

    /// Waits for the pages, and looks at what came.
    async fn back(&self, id: RoomId, room: ReceiveRoom) -> Result<(), Failure> {
        self.stage("its destination is not proven to be free");
        let released = room.released().await;
        let mut wanted = vec![0; 4096];
        pattern(id, &mut wanted);
        match released.leases.first() {
            Some(lease) if lease.page(0, 0) == wanted => Ok(()),
            Some(_) => Err(String::from("other bytes came than were sent").into()),
            None => Err(String::from("its page did not come back").into()),
        }
    }
}

/// A room that nobody but who asks for it can abort is told to end by somebody else.
fn aborted(what: &str, why: &Reason) -> Failure {
    if why.code == Code::Requested {
        Failure::Told
    } else {
        format!("{what}: {why}").into()
    }
}

/// Why a room took nothing more.
fn told_or(room: &kvroom::SendRoom, error: String) -> Failure {
    match room.try_outcome() {
        Some(Outcome::Aborted(why)) => aborted("its sender was aborted", &why),
        _ => error.into(),
    }
}

fn pattern(id: RoomId, page: &mut [u8]) {
    for (i, word) in page.chunks_exact_mut(8).enumerate() {
        word.copy_from_slice(&id.0.wrapping_mul(i as u64 | 1).to_le_bytes());
    }
}

fn lease(pool: &Pool, page: u32) -> Result<WriteLease, Failure> {
    let lease = pool.lease_write(&[page]);
    lease.map_err(|e| format!("its page is not free: {e}").into())
}

fn started<R>(room: Option<Result<R, kvroom::StartError>>) -> Result<R, Failure> {
    match room {
        Some(Ok(room)) => Ok(room),
        Some(Err(e)) if is_full(&e.kind) => Err(Failure::Full),
        Some(Err(e)) => Err(format!("its room was refused: {e}").into()),
        None => Err(String::from("its room was not started").into()),
    }
}

fn is_full(kind: &StartErrorKind) -> bool {
    matches!(kind, StartErrorKind::LimitReached { limit: "rooms", .. })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::config::DeviceSettings;
    use crate::daemon::devices::Devices;
    use crate::daemon::tasks::Tasks;
    use kvroom::device::{Device, DeviceOptions, emulated};

    #[test]
    fn there_is_a_canary_for_each_fabric_that_the_node_is_set_up_for() {
        let fabrics = |addresses: &[&str], shm, ucx| {
            let addresses: Vec<String> = addresses.iter().map(|a| (*a).to_owned()).collect();
            let plans = plans("n", &addresses, shm, ucx).into_iter();
            plans.map(|p| (p.fabric, p.address)).collect::<Vec<_>>()
        };
        let (tcp, unix) = ("tcp://127.0.0.1:1", "unix:///n.sock");
        let local = (Fabric::Local, "local://n".to_owned());
        for ucx in [false, true] {
            assert_eq!(fabrics(&[], true, ucx), std::slice::from_ref(&local));
        }
        assert_eq!(
            fabrics(&[unix, tcp], true, false),
            [
                local.clone(),
                (Fabric::Shm, unix.into()),
                (Fabric::Tcp, tcp.into())
            ]
        );
        assert_eq!(
            fabrics(&[unix], false, false),
            [local.clone(), (Fabric::Tcp, unix.into())]
        );
        assert_eq!(
            fabrics(&[unix, tcp], false, true),
            [local, (Fabric::Tcp, tcp.into()), (Fabric::Ucx, tcp.into())]
        );
    }

    #[test]
    fn the_name_of_a_small_node_fits_whatever_its_node_is_called() {
        for name in ["n".to_owned(), "n".repeat(64), "é".repeat(32)] {
            let small = node_name(&name, Fabric::Local);
            assert!(
                small.len() <= 64 && small.contains("-canary-local-"),
                "{small}"
            );
            assert!(is_canary(&name, &small));
            assert!(is_canary(&name, &node_name(&name, Fabric::Ucx)));
        }
    }

    #[test]
    fn a_small_node_and_a_room_of_a_canary_are_known_and_nobody_elses() {
        let one = node_name("decode-0", Fabric::Shm);
        assert!(is_canary("decode-0", &one));
        assert!(!is_canary("decode-1", &one));
        // What anybody could think of is somebody else's.
        for other in [
            "decode-0",
            "decode-0-canary-",
            "decode-0-canary-shm",
            "decode-0-canary-shm-0000000000000000",
            "canary",
        ] {
            assert!(!is_canary("decode-0", other), "{other}");
        }
        let key = |id, attempt| RoomKey {
            id: RoomId(id),
            attempt,
        };
        assert!(is_canary_room(key(FIRST_ID + 7, ATTEMPT)));
        assert!(!is_canary_room(key(FIRST_ID + 7, 0)));
        assert!(!is_canary_room(key(7, ATTEMPT)));
    }

    #[test]
    fn a_small_node_that_does_not_start_is_tried_less_and_less_but_each_minute() {
        let waits = std::iter::successors(Some(AGAIN.0), |wait| Some(longer(*wait)));
        let waits: Vec<u64> = waits.take(8).map(|wait| wait.as_secs()).collect();
        assert_eq!(waits, [1, 2, 4, 8, 16, 32, 60, 60]);
    }

    #[tokio::test]
    async fn canaries_of_a_node_with_a_pool_on_a_device_go_over_sockets_in_place_of_shared_memory()
    {
        let machine = emulated::Machine::new(emulated::Config {
            streams: 16,
            ..emulated::Config::default()
        });
        let device = machine.context(0).unwrap();
        let device = Device::start(device, DeviceOptions::default()).unwrap();
        let layout = PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: 1,
            pages: 1,
            page_bytes: 4096,
            page_tokens: 16,
        };
        let pool = Pool::on_device(layout, &device).unwrap();
        let hub = LocalHub::new();
        let node = Node::builder("on-a-device").hub(&hub).pool(pool);
        let node = node.listen("tcp://127.0.0.1:0").start().await.unwrap();
        let watched = Watched {
            node: node.clone(),
            hub,
            shm: true,
            ucx: UcxOptions::default(),
            key: None,
            tasks: Tasks::new(),
            devices: Devices::new(&DeviceSettings::default()),
        };
        let settings = HealthSettings {
            canary_interval: Duration::from_millis(50),
            canary_deadline: Duration::from_secs(30),
            ..HealthSettings::default()
        };
        let canaries = Canaries::start(&watched, &settings).await.unwrap();
        let ran = |run: &CanaryRuns| run.passed + run.failed > 0;
        let start = Instant::now();
        while !canaries.runs().iter().all(ran) {
            assert!(start.elapsed() < Duration::from_secs(30), "they do not run");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let runs = canaries.runs();
        assert!(
            runs.iter().any(|run| run.name.starts_with("shm")),
            "{runs:?}"
        );
        assert!(runs.iter().all(|run| run.failed == 0), "{runs:?}");
        canaries.end().await;
        node.shutdown().await;
    }

    #[test]
    fn two_rooms_have_two_patterns() {
        let (mut a, mut b) = ([0; 64], [0; 64]);
        pattern(RoomId(FIRST_ID), &mut a);
        pattern(RoomId(FIRST_ID + 1), &mut b);
        assert_ne!(a, b);
        assert_ne!(a[..8], a[24..32]);
    }
}
