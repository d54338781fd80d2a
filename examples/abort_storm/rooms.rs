//! This project under the storm: two nodes in one process, joined by a hub.
//!
//! ```text
//!   driver thread ── start, abort ──▶ decode node   ── outcome, leases ──▶ a task per room ──▶ World
//!   prefill thread ── push, finish ─▶ prefill node  ── outcome, leases ──▶ a task per room
//!                                                    ── chunk's lease ───▶ and per chunk
//! ```
//!
//! A lease is dropped before the world is told, so that the oracle can write the pages. What the
//! oracle does with pages runs on the blocking pool: no outcome waits behind it.

use crate::engine::{Chunk, End, Engine, Held, Listener, Ready, RoomNo};
use crate::options::Plant;
use crate::oracle::{PageStore, Shape};
use crate::storms::{DEADLINE, RoomSpec, Side};
use kvroom::actors::copy::plant;
use kvroom::{
    Deadlines, LocalHub, Node, NodeStats, Order, Outcome, Peer, Pool, PoolKind, PoolLayout,
    PushedChunk, ReceiveRoom, ReserveError, RoomId, RoomKey, SendRoom, Which,
};
use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;

/// After this, memory of an ended room counts as quarantined.
const DRAIN: Duration = Duration::from_secs(2);
/// How long the health check waits for both nodes.
const HEALTH: Duration = Duration::from_secs(1);
/// How often the most quarantined pages are looked for.
const SAMPLE: Duration = Duration::from_millis(5);

/// A pool as the oracle sees it.
pub(crate) struct PoolStore {
    pool: Pool,
}

impl PoolStore {
    /// An owned pool of `pages` pages.
    pub(crate) fn new(shape: Shape, pages: u32) -> Result<PoolStore, String> {
        let layout = PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order: Order::LayersFirst,
            layers: shape.layers,
            pages,
            page_bytes: shape.page_bytes as u64,
            page_tokens: shape.page_tokens,
        };
        let pool = Pool::owned(layout).map_err(|error| error.to_string())?;
        Ok(PoolStore { pool })
    }
}

impl PageStore for PoolStore {
    fn read(&self, layer: u32, page: u32, into: &mut [u8]) {
        if let Err(error) = self.pool.observe(layer, page, into) {
            tracing::error!(layer, page, %error, "the oracle cannot read a page");
        }
    }

    fn write(&self, layer: u32, page: u32, bytes: &[u8]) {
        match self.pool.lease_write(&[page]) {
            Ok(mut lease) => lease.page_mut(layer, 0).copy_from_slice(bytes),
            Err(error) => tracing::error!(layer, page, %error, "the oracle cannot write a page"),
        }
    }

    fn is_free(&self, page: u32) -> bool {
        self.pool.lease_write(&[page]).is_ok()
    }
}

struct Shared {
    shape: Shape,
    listener: Arc<dyn Listener>,
    slow_take: Duration,
    receiving: Mutex<HashMap<RoomNo, Arc<ReceiveRoom>>>,
    sending: Mutex<HashMap<RoomNo, Arc<Sending>>>,
    keys: Mutex<HashMap<RoomKey, RoomNo>>,
    peak: AtomicU64,
}

struct Sending {
    room: SendRoom,
    spec: RoomSpec,
}

/// See the module.
pub(crate) struct Rooms {
    runtime: Runtime,
    prefill: Node,
    decode: Node,
    peer: Peer,
    source: Arc<PoolStore>,
    destination: Arc<PoolStore>,
    shared: Arc<Shared>,
}

impl Rooms {
    /// Starts both nodes and joins them.
    pub(crate) fn start(
        shape: Shape,
        source: Arc<PoolStore>,
        destination: Arc<PoolStore>,
        listener: Arc<dyn Listener>,
        slow_take: Duration,
        plant: Option<Plant>,
    ) -> Result<Rooms, String> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_time()
            .build()
            .map_err(|error| error.to_string())?;
        let hub = LocalHub::new();
        let deadlines = || Deadlines {
            drain: DRAIN,
            ..Deadlines::default()
        };
        let wrong = plant.map(|plant| match plant {
            Plant::LateWrite => plant::Plant::LateWrite,
            Plant::TornRead => plant::Plant::TornRead,
            Plant::Leak => plant::Plant::Leak,
        });
        let prefill = Node::builder("prefill-0")
            .hub(&hub)
            .pool(source.pool.clone())
            .deadlines(deadlines())
            .configure(|config| config.plant = wrong)
            .blocking_start()
            .map_err(|error| error.to_string())?;
        let decode = Node::builder("decode-0")
            .hub(&hub)
            .pool(destination.pool.clone())
            .deadlines(deadlines())
            .blocking_start()
            .map_err(|error| error.to_string())?;
        let peer = decode
            .blocking_connect("local://prefill-0")
            .map_err(|error| error.to_string())?;
        let shared = Arc::new(Shared {
            shape,
            listener,
            slow_take,
            receiving: Mutex::default(),
            sending: Mutex::default(),
            keys: Mutex::default(),
            peak: AtomicU64::new(0),
        });
        let rooms = Rooms {
            runtime,
            prefill,
            decode,
            peer,
            source,
            destination,
            shared,
        };
        rooms.runtime.spawn(sample(
            [rooms.prefill.clone(), rooms.decode.clone()],
            Arc::clone(&rooms.shared),
        ));
        Ok(rooms)
    }

    fn receiving(&self, no: RoomNo) -> Option<Arc<ReceiveRoom>> {
        lock(&self.shared.receiving).get(&no).cloned()
    }

    fn sending(&self, no: RoomNo) -> Option<Arc<Sending>> {
        lock(&self.shared.sending).get(&no).cloned()
    }
}

/// Remembers the most pages that were quarantined.
async fn sample(nodes: [Node; 2], shared: Arc<Shared>) {
    loop {
        let mut pages = 0;
        for node in &nodes {
            pages += node.stats().await.quarantined_pages;
        }
        shared.peak.fetch_max(pages, Ordering::Relaxed);
        tokio::time::sleep(SAMPLE).await;
    }
}

/// Waits for a receiver's outcome and for its pages.
async fn watch_receiver(no: RoomNo, room: Arc<ReceiveRoom>, shared: Arc<Shared>) {
    let end = end(room.outcome().await);
    shared.listener.ended(no, Side::Decode, end, Instant::now());
    if !shared.slow_take.is_zero() {
        tokio::time::sleep(shared.slow_take).await;
    }
    let released = room.released().await;
    let at = Instant::now();
    let pages: Vec<u32> = released
        .leases
        .iter()
        .flat_map(|lease| lease.pages().to_vec())
        .collect();
    let landed = released.landed.bytes;
    drop(released);
    lock(&shared.receiving).remove(&no);
    on_blocking_pool(move || {
        shared
            .listener
            .destination_back(no, &pages, Some(landed), at)
    })
    .await;
}

/// Waits for a sender's outcome, and for what it held and no chunk's task waits for.
async fn watch_sender(no: RoomNo, sending: Arc<Sending>, shared: Arc<Shared>) {
    let end = end(sending.room.outcome().await);
    shared
        .listener
        .ended(no, Side::Prefill, end, Instant::now());
    let released = sending.room.released().await;
    let at = Instant::now();
    let pages: Vec<u32> = released
        .leases
        .iter()
        .flat_map(|lease| lease.pages().to_vec())
        .collect();
    drop(released);
    lock(&shared.sending).remove(&no);
    if !pages.is_empty() {
        on_blocking_pool(move || shared.listener.source_back(no, &pages, at)).await;
    }
}

/// Waits for one chunk's pages.
async fn watch_chunk(no: RoomNo, pushed: PushedChunk, sending: Arc<Sending>, shared: Arc<Shared>) {
    let Some(lease) = pushed.released().await else {
        return;
    };
    let at = Instant::now();
    let pages = lease.pages().to_vec();
    drop(lease);
    if !matches!(sending.room.try_outcome(), Some(Outcome::Aborted(_))) {
        shared
            .listener
            .landed(no, pages.len() as u64 * shared.shape.page_total());
    }
    drop(sending);
    on_blocking_pool(move || shared.listener.source_back(no, &pages, at)).await;
}

async fn on_blocking_pool(work: impl FnOnce() + Send + 'static) {
    if let Err(error) = tokio::task::spawn_blocking(work).await {
        tracing::error!(%error, "the oracle was interrupted");
    }
}

fn end(outcome: Outcome) -> End {
    match outcome {
        Outcome::Done => End::Done,
        Outcome::Aborted(reason) => End::Aborted(reason.to_string()),
    }
}

impl Engine for Rooms {
    fn destination(&self) -> &dyn PageStore {
        &*self.destination
    }

    fn receive(&self, no: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String> {
        let lease = self
            .destination
            .pool
            .lease_write(pages)
            .map_err(|error| error.to_string())?;
        let skip = u64::from(spec.turn.skip_pages) * u64::from(self.shared.shape.page_tokens);
        let room = self
            .decode
            .receive(RoomId(spec.id))
            .attempt(spec.attempt)
            .from(&self.peer)
            .into(lease)
            .skip(skip)
            .total(spec.turn.tokens)
            .tag(&spec.tag())
            .deadline(DEADLINE)
            .blocking_start()
            .map_err(|error| error.to_string())?;
        let room = Arc::new(room);
        lock(&self.shared.keys).insert(room.key(), no);
        lock(&self.shared.receiving).insert(no, Arc::clone(&room));
        self.runtime
            .spawn(watch_receiver(no, room, Arc::clone(&self.shared)));
        Ok(())
    }

    fn send(&self, no: RoomNo, spec: &RoomSpec) -> Result<(), String> {
        let room = self
            .prefill
            .send(RoomId(spec.id))
            .attempt(spec.attempt)
            .tag(&spec.tag())
            .deadline(DEADLINE)
            .blocking_start()
            .map_err(|error| error.to_string())?;
        let sending = Arc::new(Sending {
            room,
            spec: spec.clone(),
        });
        lock(&self.shared.sending).insert(no, Arc::clone(&sending));
        self.runtime
            .spawn(watch_sender(no, sending, Arc::clone(&self.shared)));
        Ok(())
    }

    fn ready(&self, no: RoomNo) -> Ready {
        let Some(sending) = self.sending(no) else {
            return Ready::Ended;
        };
        match sending.room.try_reserve() {
            Ok(_slot) => Ready::Yes,
            Err(ReserveError::Full { .. }) => Ready::NotYet,
            Err(ReserveError::Ended(_)) => Ready::Ended,
        }
    }

    fn push(&self, no: RoomNo, chunk: Chunk) -> Result<(), String> {
        let sending = self.sending(no).ok_or("the room has ended")?;
        let (turn, page_tokens) = (sending.spec.turn, u64::from(self.shared.shape.page_tokens));
        let first = u64::from(turn.skip_pages + chunk.first) * page_tokens;
        let end = (first + chunk.pages.len() as u64 * page_tokens).min(turn.tokens);
        let lease = self
            .source
            .pool
            .lease_read(&chunk.pages)
            .map_err(|error| error.to_string())?;
        let slot = sending
            .room
            .blocking_reserve()
            .map_err(|error| error.to_string())?;
        let pushed = slot
            .push(kvroom::Chunk::tokens(first..end).pages(lease))
            .map_err(|error| error.to_string())?;
        if chunk.last
            && let Err(error) = sending.room.finish(turn.tokens, None)
        {
            // The room ended meanwhile; its outcome says so.
            tracing::debug!(%error, "finish");
        }
        let shared = Arc::clone(&self.shared);
        self.runtime.spawn(watch_chunk(no, pushed, sending, shared));
        Ok(())
    }

    fn abort(&self, no: RoomNo, side: Side) {
        match side {
            Side::Decode => {
                if let Some(room) = self.receiving(no) {
                    room.abort("the agent was killed");
                }
            }
            Side::Prefill => {
                if let Some(sending) = self.sending(no) {
                    sending.room.abort("the prefill engine gave up");
                }
            }
        }
    }

    fn abort_tag(&self, tag: &str) {
        let which = Which::Tag(tag.to_owned());
        self.runtime
            .block_on(self.decode.abort_where(which, "the agent was killed"));
    }

    fn health(&self) -> u16 {
        let both = async {
            let _: (NodeStats, NodeStats) = (self.prefill.stats().await, self.decode.stats().await);
        };
        match self.runtime.block_on(timeout(both)) {
            true => 200,
            false => 503,
        }
    }

    fn held(&self) -> Held {
        let nodes = [&self.prefill, &self.decode];
        let found = self.runtime.block_on(async {
            let (mut pages, mut rooms) = (0, Vec::new());
            for node in nodes {
                pages += node.stats().await.quarantined_pages;
                rooms.extend(node.rooms().await);
            }
            (pages, rooms)
        });
        let (quarantined_pages, rooms) = found;
        let keys = lock(&self.shared.keys);
        let reasoned = rooms
            .iter()
            .filter(|room| room.quarantined && room.held_because.is_some());
        Held {
            quarantined_pages,
            quarantine_peak_pages: self
                .shared
                .peak
                .load(Ordering::Relaxed)
                .max(quarantined_pages),
            rooms: reasoned
                .filter_map(|room| keys.get(&room.key).copied())
                .collect(),
        }
    }

    fn lent_pages(&self) -> Option<u64> {
        Some((self.source.pool.leased_pages() + self.destination.pool.leased_pages()) as u64)
    }

    fn remarks(&self) -> Vec<String> {
        let nodes = [&self.prefill, &self.decode];
        let rooms = self.runtime.block_on(async {
            let mut rooms = Vec::new();
            for node in nodes {
                rooms.extend(node.rooms().await);
            }
            rooms
        });
        let line = |room: kvroom::RoomInfo| {
            let why = room.held_because?;
            Some(format!(
                "room {} still holds {} pages: {why}",
                room.key, room.pages
            ))
        };
        rooms.into_iter().filter_map(line).collect()
    }

    fn stop(&self) {
        for node in [&self.prefill, &self.decode] {
            let report = self.runtime.block_on(node.shutdown());
            if !report.drained {
                tracing::warn!(
                    rooms = report.leaked.len(),
                    "a node stopped with rooms undrained"
                );
            }
        }
    }
}

async fn timeout(work: impl Future<Output = ()>) -> bool {
    tokio::time::timeout(HEALTH, work).await.is_ok()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
