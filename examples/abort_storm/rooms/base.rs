//! What both halves have: a node, its pool, and somebody who looks at them.

use super::{PoolStore, Status, name};
use crate::engine::{Held, Listener, RoomNo, Sessions};
use crate::options::{DeviceKind, FabricKind, Plant};
use crate::oracle::Shape;
use crate::storms::Side;
use kvroom::actors::copy::plant;
use kvroom::recording::Recording;
use kvroom::{Deadlines, Incarnation, LocalHub, Node, Peer, PeerState, RoomKey, UcxOptions};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// Entries of each ring, if a whole storm is to be recorded.
const RECORDED: usize = 1 << 19;
/// After this, memory of an ended room counts as quarantined.
const DRAIN: Duration = Duration::from_secs(2);
/// How long the health check waits for a node.
const HEALTH: Duration = Duration::from_secs(1);
/// How often the most quarantined pages are looked at.
const SAMPLE: Duration = Duration::from_millis(5);
/// How often sessions are.
const LOOK: Duration = Duration::from_millis(1);
/// How long a lane is waited for to be inside a gate, and how long it stays there: whoever strikes has
/// to do it meanwhile.
const BRACE: Duration = Duration::from_secs(1);
/// Silence after which a peer counts as lost, in storms that kill or stop it.
pub(crate) const SHORT_LIVENESS: Duration = Duration::from_millis(500);
/// How long a session is kept after that.
pub(crate) const SHORT_RESUME: Duration = Duration::from_secs(1);

/// How nodes are joined, and how long they wait for each other.
#[derive(Clone, Debug)]
pub(crate) struct Wiring {
    /// The fabric.
    pub(crate) fabric: FabricKind,
    /// How UCX is used.
    pub(crate) ucx: UcxOptions,
    /// Where pages are.
    pub(crate) device: DeviceKind,
    /// Whether peers are given up soon.
    pub(crate) short: bool,
    /// What a lane does wrong.
    pub(crate) plant: Option<Plant>,
    /// How long decode looks at an outcome before it takes its lease back.
    pub(crate) slow_take: Duration,
    /// Whether a whole storm is to be recorded, and not only its end.
    pub(crate) record: bool,
}

impl Wiring {
    fn deadlines(&self) -> Deadlines {
        let all = Deadlines {
            drain: DRAIN,
            ..Deadlines::default()
        };
        if !self.short {
            return all;
        }
        Deadlines {
            // Silence is counted in ticks of a fraction of this: many short ones would stretch it.
            ping: SHORT_LIVENESS / 2,
            liveness: SHORT_LIVENESS,
            resume: SHORT_RESUME,
            backoff_most: Duration::from_millis(500),
            ..all
        }
    }

    /// The node whose lanes can do it: over tcp those of the receiver write, else the sender's.
    fn plant(&self, side: Side) -> Option<plant::Plant> {
        let (wrong, by) = match (self.plant?, self.fabric) {
            (Plant::LateWrite, FabricKind::Tcp) => (plant::Plant::LateWrite, Side::Decode),
            (Plant::LateWrite, FabricKind::Local | FabricKind::Shm | FabricKind::Ucx) => {
                (plant::Plant::LateWrite, Side::Prefill)
            }
            (Plant::TornRead, _) => (plant::Plant::TornRead, Side::Prefill),
            (Plant::Leak, _) => (plant::Plant::Leak, Side::Prefill),
        };
        (by == side).then_some(wrong)
    }
}

/// Where a node can be found.
pub(crate) enum Place {
    /// In a hub of this process.
    Hub(LocalHub),
    /// At an address.
    Listen(String),
    /// Nowhere: it connects.
    Nowhere,
}

/// See the module.
pub(crate) struct Base {
    pub(super) runtime: Arc<Runtime>,
    pub(super) node: Node,
    pub(super) store: Arc<PoolStore>,
    pub(super) shape: Shape,
    pub(super) listener: Arc<dyn Listener>,
    pub(super) slow_take: Duration,
    fabric: FabricKind,
    brake: plant::Brake,
    other: &'static str,
    expected: Mutex<Option<Incarnation>>,
    peer: Mutex<Option<Peer>>,
    keys: Mutex<HashMap<RoomKey, RoomNo>>,
    seen: Arc<Seen>,
}

#[derive(Default)]
struct Seen {
    peak: AtomicU64,
    resumed: AtomicU64,
    lost: AtomicU64,
}

impl Base {
    /// Starts the node of a side.
    pub(crate) fn start(
        wiring: &Wiring,
        side: Side,
        place: Place,
        runtime: Arc<Runtime>,
        shape: Shape,
        store: Arc<PoolStore>,
        listener: &Arc<dyn Listener>,
    ) -> Result<Base, String> {
        let wrong = wiring.plant(side);
        let brake = plant::Brake::default();
        let of_lanes = brake.clone();
        let builder = Node::builder(name(side))
            .pool(store.pool.clone())
            .deadlines(wiring.deadlines())
            .ucx(wiring.ucx.clone())
            .configure(|config| {
                config.plant = wrong;
                config.brake = Some(of_lanes);
            });
        let builder = match wiring.record {
            true => builder.recorder(RECORDED),
            false => builder,
        };
        let builder = match &place {
            Place::Hub(hub) => builder.hub(hub),
            Place::Listen(address) => builder.listen(address),
            Place::Nowhere => builder,
        };
        let node = builder
            .blocking_start()
            .map_err(|error| error.to_string())?;
        let seen = Arc::new(Seen::default());
        runtime.spawn(sample_pages(node.clone(), Arc::clone(&seen)));
        runtime.spawn(sample_peers(node.clone(), Arc::clone(&seen)));
        Ok(Base {
            runtime,
            node,
            store,
            shape,
            listener: Arc::clone(listener),
            slow_take: wiring.slow_take,
            fabric: wiring.fabric,
            brake,
            other: name(side.other()),
            expected: Mutex::default(),
            peer: Mutex::default(),
            keys: Mutex::default(),
            seen,
        })
    }

    /// Where it listens.
    pub(crate) fn address(&self) -> Result<String, String> {
        let address = self.node.addresses().first().cloned();
        address.ok_or_else(|| "the node listens nowhere".into())
    }

    /// Which life of the node this is.
    pub(crate) fn incarnation(&self) -> Incarnation {
        self.node.incarnation()
    }

    /// Connects to the other node.
    pub(crate) fn connect(&self, address: &str) -> Result<(), String> {
        let connected = self.node.blocking_connect(address);
        connected.map(|_| ()).map_err(|error| error.to_string())
    }

    /// The other node, as it was met last.
    pub(super) fn peer(&self) -> Result<Peer, String> {
        let peer = lock(&self.peer).clone();
        peer.ok_or_else(|| format!("{} was never met", self.other))
    }

    pub(super) fn remember(&self, key: RoomKey, no: RoomNo) {
        lock(&self.keys).insert(key, no);
    }

    pub(super) fn expect(&self, other: Incarnation) {
        *lock(&self.expected) = Some(other);
    }

    pub(super) fn meet(&self, patience: Duration) -> Result<(), String> {
        let expected = *lock(&self.expected);
        let began = Instant::now();
        let met = self.runtime.block_on(async {
            let mut why = "it was never met".to_owned();
            while began.elapsed() < patience {
                if let Some(peer) = self.node.peer(self.other).await {
                    let right = expected.is_none_or(|life| life == peer.incarnation());
                    match peer.state() {
                        PeerState::Up if right => return self.joined_right(peer),
                        PeerState::Up => why = "it is an earlier life of it".into(),
                        PeerState::Resuming(text) | PeerState::Down(text) => why = text,
                    }
                }
                tokio::time::sleep(SAMPLE).await;
            }
            Err(format!("{} is not there: {why}", self.other))
        })?;
        *lock(&self.peer) = Some(met);
        Ok(())
    }

    /// A peer that was met, if it is joined by what was asked for: a storm over sockets shows nothing
    /// of shared memory.
    fn joined_right(&self, peer: Peer) -> Result<Peer, String> {
        let (wanted, other) = (self.fabric.name(), self.other);
        match peer.fabric().map(|fabric| fabric.to_string()) {
            Some(fabric) if fabric == wanted => Ok(peer),
            fabric => Err(format!("{other} is joined by {fabric:?}, not by {wanted}")),
        }
    }

    /// Has a lane enter a gate and stay there for [`BRACE`]; gives how many are inside.
    pub(super) fn brace(&self) -> usize {
        self.brake.hold_after(0);
        let began = Instant::now();
        while self.brake.held() == 0 && began.elapsed() < BRACE {
            std::thread::sleep(LOOK);
        }
        let (held, brake) = (self.brake.held(), self.brake.clone());
        self.runtime.spawn(async move {
            if held > 0 {
                tokio::time::sleep(BRACE).await;
            }
            brake.release();
        });
        held
    }

    pub(super) fn sessions(&self) -> Sessions {
        Sessions {
            resumed: self.seen.resumed.load(Ordering::Relaxed),
            lost: self.seen.lost.load(Ordering::Relaxed),
        }
    }

    pub(super) fn status(&self) -> Status {
        let stats = self
            .runtime
            .block_on(async { tokio::time::timeout(HEALTH, self.node.stats()).await });
        let Ok(stats) = stats else {
            let remarks = vec![format!("{} does not answer", self.node.name())];
            return Status {
                remarks,
                lent: self.store.pool.leased_pages() as u64,
                ..Status::default()
            };
        };
        let rooms = self.runtime.block_on(self.node.rooms());
        let keys = lock(&self.keys);
        let reasoned = rooms
            .iter()
            .filter(|room| room.quarantined && room.held_because.is_some());
        let peak = self.seen.peak.load(Ordering::Relaxed);
        let held = Held {
            quarantined_pages: stats.quarantined_pages,
            quarantine_peak_pages: peak.max(stats.quarantined_pages),
            rooms: reasoned
                .filter_map(|room| keys.get(&room.key).copied())
                .collect(),
        };
        let line = |room: kvroom::RoomInfo| {
            let why = room.held_because?;
            Some(format!(
                "room {} still holds {} pages: {why}",
                room.key, room.pages
            ))
        };
        Status {
            held,
            lent: self.store.pool.leased_pages() as u64,
            healthy: true,
            remarks: rooms.into_iter().filter_map(line).collect(),
        }
    }

    pub(super) fn recording(&self) -> Recording {
        Recording::of(&self.node, "abort_storm")
    }

    pub(super) fn stop(&self) {
        let report = self.runtime.block_on(self.node.shutdown());
        if !report.drained {
            tracing::warn!(
                rooms = report.leaked.len(),
                "a node stopped with rooms undrained"
            );
        }
    }
}

/// Remembers the most pages that were quarantined.
async fn sample_pages(node: Node, seen: Arc<Seen>) {
    loop {
        let pages = node.stats().await.quarantined_pages;
        seen.peak.fetch_max(pages, Ordering::Relaxed);
        tokio::time::sleep(SAMPLE).await;
    }
}

/// Counts what became of sessions. A state that lasts for less than a look is not seen: then a
/// session that was given up and begun anew counts as resumed.
async fn sample_peers(node: Node, seen: Arc<Seen>) {
    let mut states: HashMap<Incarnation, PeerState> = HashMap::new();
    loop {
        let peers = node.peers().await;
        let now: HashMap<Incarnation, PeerState> = peers
            .iter()
            .map(|peer| (peer.incarnation(), peer.state()))
            .collect();
        for (life, before) in &states {
            match (before, now.get(life)) {
                (PeerState::Resuming(_), Some(PeerState::Up)) => {
                    seen.resumed.fetch_add(1, Ordering::Relaxed);
                }
                (PeerState::Up | PeerState::Resuming(_), None | Some(PeerState::Down(_))) => {
                    seen.lost.fetch_add(1, Ordering::Relaxed);
                }
                _ => {}
            }
        }
        states = now;
        tokio::time::sleep(LOOK).await;
    }
}

/// What the oracle does with pages is kept off the threads that wait for outcomes.
pub(super) async fn on_blocking_pool(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = tokio::task::spawn_blocking(work).await {
        tracing::error!(%error, "the oracle was interrupted");
    }
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
