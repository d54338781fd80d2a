//! Nodes and peers.

use super::batch::Batch;
use super::block::block_on;
use super::error::StartError;
use super::receive::{ReceiveBuilder, ReceiveRoom};
use super::record::LONGEST;
use super::send::{SendBuilder, SendRoom};
use super::stats::{AbortedRooms, EarlyClaim, NodeStats, RoomInfo, ShutdownReport, Which};
use kvroom_actors::fabric::Fabric;
use kvroom_actors::ids::{Incarnation, PeerRef, RoomId, RoomKey};
use kvroom_actors::limits::{Deadlines, Limits};
use kvroom_actors::memory::{CopyMode, Pool};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::record::Recorder;
use kvroom_actors::room::Role;
use kvroom_actors::runtime::PeerState;
use kvroom_actors::runtime::UcxOptions;
use kvroom_actors::runtime::shared::NodeShared;
use kvroom_actors::runtime::{
    ClusterKey, ConnectError, Driver, LocalHub, Net, NodeConfig, NodeError, PeerInfo, Pinning,
    PoolChangeError, Runtime,
};
use kvroom_actors::supervisor::actor::{Inbound, Inbox, Shard, ShardContext};
use kvroom_actors::supervisor::info;
use kvroom_actors::supervisor::io;
use kvroom_kernels::layout::cube::CubeLayout;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;

/// A node: one process's end of every transfer. Clones are the same node, and the handle of a room
/// keeps it. When all of these are gone it stops in the background, and rooms that were detached
/// end. [`Node::shutdown`] waits.
#[derive(Clone, Debug)]
pub struct Node {
    runtime: Arc<Runtime>,
}

/// A node to be started.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing by itself"]
pub struct NodeBuilder {
    config: NodeConfig,
}

/// One life of another node, with a session to it.
#[derive(Clone, Debug)]
pub struct Peer {
    info: PeerInfo,
    /// Whose peer it is: each node numbers its own.
    of: Incarnation,
}

impl Peer {
    /// The other node's name.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Which life of it.
    pub fn incarnation(&self) -> Incarnation {
        self.info.incarnation
    }

    /// Whether there is a session now; if not, why.
    ///
    /// # Errors
    /// The reason, in words. `connect` again to get a new session.
    pub fn is_up(&self) -> Result<(), String> {
        match &*self.info.state.borrow() {
            PeerState::Up => Ok(()),
            PeerState::Resuming(why) | PeerState::Down(why) => Err(why.clone()),
        }
    }

    /// Whether there is a session now, and whether one that lost its connection may still go on.
    pub fn state(&self) -> PeerState {
        self.info.state.borrow().clone()
    }

    /// How bytes go between the two nodes, in the session that there is or was last; none before the
    /// first one. Of nodes on one host it is [`Fabric::Shm`] if all pools of one of them are shared
    /// ([`Pool::shared`]) and their processes may share memory. Whoever receives over it needs shared
    /// pools; who only sends does not.
    pub fn fabric(&self) -> Option<Fabric> {
        *self.info.fabric.borrow()
    }

    /// What its pools hold of the model, in the order in which it was given them; of those of which that
    /// was said ([`Pool::with_content`]). Nothing before the first session.
    pub fn contents(&self) -> Arc<[Arc<CubeLayout>]> {
        Arc::clone(&self.info.contents.borrow())
    }

    /// Waits until there is a session. False if this life of the peer is over for good.
    pub async fn wait_up(&self) -> bool {
        let mut state = self.info.state.clone();
        state.wait_for(|s| *s == PeerState::Up).await.is_ok()
    }

    /// The number by which the node's rooms know it.
    pub fn id(&self) -> PeerRef {
        self.info.peer
    }

    pub(super) fn is_of(&self, node: &Node) -> bool {
        self.of == node.incarnation()
    }
}

impl NodeBuilder {
    /// A pool of the node. Pools of two nodes are paired by their names.
    pub fn pool(mut self, pool: Pool) -> Self {
        self.config.pools.push(pool);
        self
    }

    /// Where other nodes of this process find it, and it them.
    pub fn hub(mut self, hub: &LocalHub) -> Self {
        self.config.hub = Some(hub.clone());
        self
    }

    /// Listens here for other nodes: `tcp://HOST:PORT` (port 0 for any free one) or `unix:///PATH`.
    /// May be called more than once.
    pub fn listen(mut self, address: &str) -> Self {
        self.config.net.listen.push(address.to_owned());
        self
    }

    /// The secret that all nodes of the cluster share. Without one, whoever can reach an address of
    /// this node is a peer.
    pub fn cluster_key(mut self, key: ClusterKey) -> Self {
        self.config.net.key = Some(key);
        self
    }

    /// Everything about connections to other processes; overwrites `listen` and `cluster_key`.
    pub fn net(mut self, net: Net) -> Self {
        self.config.net = net;
        self
    }

    /// Whether memory is shared with peers on this host; true if not said. Which those are is found
    /// out by itself. A peer with which memory is shared maps each shared pool as a whole and is
    /// trusted with all of it.
    pub fn shm(mut self, shm: bool) -> Self {
        self.config.net.shm = shm;
        self
    }

    /// Shares memory with processes of this group, too, besides those of the same user.
    pub fn shm_group(mut self, gid: u32) -> Self {
        self.config.net.shm_group = Some(gid);
        self
    }

    /// When bytes go through UCX, and how; never, if not said.
    pub fn ucx(mut self, ucx: UcxOptions) -> Self {
        self.config.net.ucx = ucx;
        self
    }

    /// Shards; one on up to four cores, a quarter of the cores beyond, if not said.
    pub fn shards(mut self, shards: usize) -> Self {
        self.config.shards = Some(shards);
        self
    }

    /// How long each shard's thread looks for more after something happened before it sleeps; zero is
    /// not at all. If not said: 50 µs as long as there is a session with a peer over shared memory, and
    /// not at all otherwise. Tens of microseconds make small rooms a good deal faster, at the price of a
    /// core that is busy for that long after each. More than 10 ms counts as 10 ms.
    pub fn spin(mut self, spin: Duration) -> Self {
        self.config.spin = Some(spin);
        self
    }

    /// Copy lanes, each with a thread of its own; 1 if not said.
    pub fn lanes(mut self, lanes: usize) -> Self {
        self.config.lanes = lanes;
        self
    }

    /// Where its threads run; wherever the scheduler puts them, if not said. A processor that there is
    /// not, or that this process may not use, is an error of the start.
    pub fn pin(mut self, pinning: Pinning) -> Self {
        self.config.pin = pinning;
        self
    }

    /// How bytes are copied between pools of one host, in the whole process: what was said last
    /// counts for all of its nodes. If nobody says anything, what was measured to be faster.
    pub fn copy(mut self, mode: CopyMode) -> Self {
        self.config.copy = Some(mode);
        self
    }

    /// Limits.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.config.limits = limits;
        self
    }

    /// Deadlines.
    pub fn deadlines(mut self, deadlines: Deadlines) -> Self {
        self.config.deadlines = deadlines;
        self
    }

    /// How many entries the flight recorder keeps for each shard, and as many for all else; 16,384 if
    /// not said, which is at least 2 MiB a shard once it is full, and up to 6 if all of them have reasons. With 0 nothing is recorded.
    pub fn recorder(mut self, entries: usize) -> Self {
        self.config.recorder = entries;
        self
    }

    /// Changes what has no method of its own here.
    #[doc(hidden)]
    pub fn configure(mut self, change: impl FnOnce(&mut NodeConfig)) -> Self {
        change(&mut self.config);
        self
    }

    /// Starts the node's threads.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub async fn start(self) -> Result<Node, NodeError> {
        // Takes a few milliseconds: kept off the caller's runtime threads.
        let (tx, rx) = oneshot::channel();
        let config = self.config;
        std::thread::Builder::new()
            .name("kvroom-start".into())
            .spawn(move || {
                let _ = tx.send(Runtime::start(config));
            })?;
        let runtime = rx.await.map_err(|_| NodeError::Died)??;
        Ok(Node {
            runtime: Arc::new(runtime),
        })
    }

    /// As [`NodeBuilder::blocking_start`], for a node with one shard that runs on the calling thread,
    /// in the turns that its [`Driver`] is given: an engine that polls drives it from its own loop, and a
    /// small room costs no hop to another thread. `shards` and `spin` do not count.
    ///
    /// Between two turns nothing happens on the shard: no room goes on, no session answers, and no
    /// clock runs out; deadlines move by gaps of more than a second and a half. Other nodes have
    /// clocks of their own, and give up a node that was silent for their [`Deadlines::liveness`].
    ///
    /// Handles work on any thread as always. On the driving thread the `blocking_` variants drive the
    /// node while they wait (and panic from inside a turn, where they would wait for themselves), and
    /// [`Driver::run`] does for any other future.
    ///
    /// ```
    /// # use kvroom::{Node, NodeError};
    /// # fn main() -> Result<(), NodeError> {
    /// let (node, mut driver) = Node::builder("decode-0").start_driven()?;
    /// for _step in 0..3 {
    ///     // The engine's own work, and then:
    ///     while driver.drive() {}
    /// }
    /// driver.run(node.shutdown());
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// See [`NodeError`]; inside a tokio runtime [`NodeError::InsideRuntime`].
    pub fn start_driven(self) -> Result<(Node, Driver), NodeError> {
        let (runtime, driver) = Runtime::start_driven(self.config)?;
        let runtime = Arc::new(runtime);
        Ok((Node { runtime }, driver))
    }

    /// As [`NodeBuilder::start`], on a plain thread.
    ///
    /// # Errors
    /// See [`NodeError`].
    pub fn blocking_start(self) -> Result<Node, NodeError> {
        Ok(Node {
            runtime: Arc::new(Runtime::start(self.config)?),
        })
    }
}

impl Node {
    /// A node named so; 1 to 64 bytes.
    pub fn builder(name: &str) -> NodeBuilder {
        NodeBuilder {
            config: NodeConfig::new(name),
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.shared().name
    }

    /// Which life of it this is.
    pub fn incarnation(&self) -> Incarnation {
        self.shared().incarnation
    }

    /// For how long it has been running.
    pub fn uptime(&self) -> Duration {
        self.shared().now().since(Default::default())
    }

    /// Where this node listens, with the ports that it was given.
    pub fn addresses(&self) -> &[String] {
        self.runtime.addresses()
    }

    /// The newest life of a node by its name, if this one has met it.
    pub async fn peer(&self, name: &str) -> Option<Peer> {
        self.peers().await.into_iter().find(|p| p.name() == name)
    }

    /// Opens a session with another node, or gives the one there is: `tcp://HOST:PORT`,
    /// `unix:///PATH`, or `local://NAME` in the same hub. A session over a socket is connected to
    /// again by itself when its connection is lost, until `disconnect`.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(&self, address: &str) -> Result<Peer, ConnectError> {
        Ok(Peer {
            info: self.runtime.connect(address).await?,
            of: self.incarnation(),
        })
    }

    /// As [`Node::connect`], on a plain thread.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub fn blocking_connect(&self, address: &str) -> Result<Peer, ConnectError> {
        block_on(self.connect(address))
    }

    /// Gives up the session with a peer. Rooms on both sides end; their memory follows by proof.
    /// Does nothing with a handle that another node gave.
    pub async fn disconnect(&self, peer: &Peer) {
        if peer.is_of(self) {
            self.runtime.disconnect(peer.id()).await;
        }
    }

    /// The nodes that this one has met, each in its newest life.
    pub async fn peers(&self) -> Vec<Peer> {
        self.runtime
            .peers()
            .await
            .into_iter()
            .map(|info| Peer {
                info,
                of: self.incarnation(),
            })
            .collect()
    }

    /// A decode room: receives into pages of this node.
    pub fn receive(&self, id: RoomId) -> ReceiveBuilder {
        ReceiveBuilder::new(self.clone(), id)
    }

    /// A prefill room: sends pages of this node.
    pub fn send(&self, id: RoomId) -> SendBuilder {
        SendBuilder::new(self.clone(), id)
    }

    /// Starts many decode rooms with one wait. Answers are in the order of the batch; builders of
    /// other nodes start there. A batch does not wait for room: what is over [`Limits::rooms`] is
    /// refused with `LimitReached`, its leases handed back.
    pub async fn start_receives(
        &self,
        batch: Vec<ReceiveBuilder>,
    ) -> Vec<Result<ReceiveRoom, StartError>> {
        let mut launched = Vec::with_capacity(batch.len());
        let mut together = Batch::default();
        for builder in batch {
            launched.push(builder.launch(Some(&mut together)).await);
        }
        together.flush();
        let mut started = Vec::with_capacity(launched.len());
        // Answers come in the order of the batch: who waits for the last one waits once.
        for room in launched.into_iter().rev() {
            started.push(match room {
                Ok(room) => room.wait().await,
                Err(error) => Err(error),
            });
        }
        started.reverse();
        started
    }

    /// Starts many prefill rooms with one wait. Answers are in the order of the batch. A batch does
    /// not wait for room: what is over [`Limits::rooms`] is refused with `LimitReached`.
    pub async fn start_sends(&self, batch: Vec<SendBuilder>) -> Vec<Result<SendRoom, StartError>> {
        let mut launched = Vec::with_capacity(batch.len());
        let mut together = Batch::default();
        for builder in batch {
            launched.push(builder.launch(Some(&mut together)).await);
        }
        together.flush();
        let mut started = Vec::with_capacity(launched.len());
        for room in launched.into_iter().rev() {
            started.push(match room {
                Ok(room) => room.wait().await,
                Err(kind) => Err(StartError {
                    kind,
                    leases: Vec::new(),
                    aux: None,
                }),
            });
        }
        started.reverse();
        started
    }

    /// Ends many rooms, of those that are alive now. Gives how many were told; claims that wait for a
    /// `send` are refused too, except by tag, and a later `send` with such a claim's key ends at once
    /// with the same reason. Any other room that is started when this has returned is not touched.
    pub async fn abort_where(&self, which: Which, reason: impl Into<String>) -> usize {
        let mut told = 0;
        for (_, answer) in self.tell_to_abort(which, reason.into()) {
            told += answer.await.unwrap_or(0);
        }
        told
    }

    /// As [`Node::abort_where`], and waits no longer than this: a shard that stands still ends its rooms
    /// when it goes on, and is named. To be awaited in a tokio runtime that has a clock; all shards are told
    /// before the first wait.
    pub async fn abort_where_within(
        &self,
        which: Which,
        reason: impl Into<String>,
        within: Duration,
    ) -> AbortedRooms {
        let until = tokio::time::Instant::now() + within.min(LONGEST);
        let mut told = AbortedRooms::default();
        for (shard, answer) in self.tell_to_abort(which, reason.into()) {
            match tokio::time::timeout_at(until, answer).await {
                Ok(rooms) => told.rooms += rooms.unwrap_or(0),
                Err(_) => told.silent.push(shard),
            }
        }
        told
    }

    /// Tells all shards, and gives the answers to come of those that have not stopped.
    fn tell_to_abort(
        &self,
        which: Which,
        reason: String,
    ) -> Vec<(usize, oneshot::Receiver<usize>)> {
        let which = match which {
            Which::Pool(pool) => return self.tell_holders(&pool, reason),
            Which::All => io::Which::All,
            Which::Room(id) => io::Which::Room(id),
            Which::Tag(tag) => io::Which::Tag(tag.into()),
            Which::AllBut(tag) => io::Which::AllBut(tag.into()),
            Which::Peer(peer) if peer.is_of(self) => io::Which::Peer(peer.id()),
            // Another node's number for it means somebody else here.
            Which::Peer(_) => return Vec::new(),
        };
        let reason = Reason::new(Code::Requested, reason);
        let asked = self.shared().now();
        // All shards are told before any answers. One that has stopped has ended its rooms.
        let all = self.runtime.inboxes().iter().enumerate();
        all.filter_map(|(shard, inbox)| {
            let (which, reason) = (which.clone(), reason.clone());
            let answer = ask_with(inbox, move |shard, ctx| {
                shard.abort_where(which, reason, asked, ctx)
            });
            Some((shard, answer?))
        })
        .collect()
    }

    fn tell_holders(&self, pool: &Pool, why: String) -> Vec<(usize, oneshot::Receiver<usize>)> {
        let reason = Reason::new(Code::PoolRetired, why);
        let all = self.runtime.inboxes().iter().enumerate();
        all.filter_map(|(shard, inbox)| {
            let (pool, reason) = (pool.clone(), reason.clone());
            let answer = ask_with(inbox, move |shard, ctx| {
                shard.abort_holders(&pool, reason, ctx)
            });
            Some((shard, answer?))
        })
        .collect()
    }

    /// Claims that wait for a `send` of this node, oldest first: a full prefill serves these first.
    pub async fn early_claims(&self) -> Vec<EarlyClaim> {
        let mut claims = Vec::new();
        for inbox in self.runtime.inboxes() {
            let found = ask(inbox, |shard| shard.early_claims()).await;
            claims.extend(found.unwrap_or_default());
        }
        // Asked last: whoever claims is a peer by then.
        let names = self.peer_names().await;
        let named = claims.into_iter().map(|c| EarlyClaim {
            key: c.key,
            peer: name_of(&names, c.peer),
            pages: c.pages,
        });
        named.collect()
    }

    /// All rooms, those that drain among them, with the reason why their memory is still held.
    pub async fn rooms(&self) -> Vec<RoomInfo> {
        let mut rooms = Vec::new();
        for inbox in self.runtime.inboxes() {
            let found = ask(inbox, |shard| shard.rooms()).await;
            rooms.extend(found.unwrap_or_default());
        }
        let names = self.peer_names().await;
        let named = rooms.into_iter().map(|room| room_info(room, &names));
        named.collect()
    }

    /// Those of these rooms that are alive or drain, in no order. Asks only the shards that have them,
    /// whatever the number of other rooms.
    pub async fn rooms_of(&self, rooms: &[(RoomKey, Role)]) -> Vec<RoomInfo> {
        let mut shards: Vec<(&Inbox, Vec<(RoomKey, Role)>)> = Vec::new();
        for &(key, role) in rooms {
            let inbox = self.inbox(key.id);
            match shards.iter_mut().find(|(known, _)| known.is(inbox)) {
                Some((_, keys)) => keys.push((key, role)),
                None => shards.push((inbox, vec![(key, role)])),
            }
        }
        let mut found = Vec::with_capacity(rooms.len());
        for (inbox, keys) in shards {
            found.extend(
                ask(inbox, move |shard| shard.rooms_of(&keys))
                    .await
                    .unwrap_or_default(),
            );
        }
        let names = self.peer_names().await;
        found
            .into_iter()
            .map(|room| room_info(room, &names))
            .collect()
    }

    /// Counters and gauges.
    pub async fn stats(&self) -> NodeStats {
        let counts = self.shared().stats.read();
        let mut stats = NodeStats {
            started: counts.started,
            done: counts.done,
            aborted: counts.aborted,
            bytes_copied: counts.copied_bytes,
            refused_jobs: counts.refused_jobs,
            stale_messages: counts.stale_messages,
            stale_events: counts.stale_events,
            repeated_chunks: counts.repeated_chunks,
            claims_refused: counts.claims_refused,
            rooms_quarantined: counts.quarantined,
            panicked: counts.panicked,
            stray_witnesses: counts.stray_witnesses,
            overwritten_words: counts.overwritten_words,
            sessions_opened: counts.sessions_opened,
            sessions_resumed: counts.sessions_resumed,
            transports_lost: counts.transports_lost,
            greetings_refused: counts.greetings_refused,
            greetings_put_out: counts.greetings_put_out,
            ..NodeStats::default()
        };
        for inbox in self.runtime.inboxes() {
            let held = ask(inbox, |shard| shard.held()).await.unwrap_or_default();
            stats.rooms_live += held.live;
            stats.rooms_draining += held.draining;
            stats.draining_pages += held.draining_pages;
            stats.quarantined_pages += held.quarantined_pages;
            stats.early_claims += held.early_claims;
            stats.claims += held.claims;
            stats.remembered_keys += held.remembered;
            stats.actors += held.actors;
            stats.clocks += held.clocks;
        }
        stats
    }

    /// What happened lately, kept in bounded rings. Reading asks no thread of the node, and works when
    /// one of them is blocked.
    pub fn recorder(&self) -> &Recorder {
        &self.shared().recorder
    }

    /// Adds a pool while the node runs, and announces it to all peers.
    ///
    /// # Errors
    /// See [`PoolChangeError`].
    pub async fn add_pool(&self, pool: Pool) -> Result<(), PoolChangeError> {
        self.runtime.add_pool(pool).await.map(|_| ())
    }

    /// Takes a pool out of use: no new leases and no new claims. What is lent comes back as always,
    /// and the memory goes when the last handle, lease and gate of it is gone.
    ///
    /// # Errors
    /// See [`PoolChangeError`].
    pub async fn retire_pool(&self, name: &str) -> Result<Pool, PoolChangeError> {
        self.runtime.retire_pool(name).await
    }

    /// Ends all rooms with `NodeShutdown`, waits until they have drained (bounded by
    /// [`Deadlines::shutdown`]), and stops the node's threads. What cannot be proven quiet by then
    /// is leaked, never unmapped, and listed.
    ///
    /// It is the node's own task that does this: if that stands still ([`Part::Node`](crate::health::Part::Node)),
    /// there is no answer, and a host that has to end puts a time-out around it.
    pub async fn shutdown(&self) -> ShutdownReport {
        let names = self.peer_names().await;
        let report = self.runtime.stop().await;
        let leaked = report
            .leaked
            .into_iter()
            .map(|room| room_info(room, &names))
            .collect();
        ShutdownReport {
            drained: report.drained,
            leaked,
        }
    }

    /// As [`Node::shutdown`], on a plain thread.
    pub fn blocking_shutdown(&self) -> ShutdownReport {
        block_on(self.shutdown())
    }

    pub(super) fn shared(&self) -> &Arc<NodeShared> {
        self.runtime.shared()
    }

    pub(super) fn inbox(&self, room: RoomId) -> &Inbox {
        self.runtime.inbox(room)
    }

    /// The runtime inside, for tests.
    #[doc(hidden)]
    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// Its pools, those that were retired not among them.
    pub fn pools(&self) -> Vec<Pool> {
        let pools = self.shared().pools.borrow();
        pools.pools.iter().map(|p| p.pool.clone()).collect()
    }

    pub(super) async fn peer_names(&self) -> HashMap<PeerRef, String> {
        self.runtime
            .peers()
            .await
            .into_iter()
            .map(|info| (info.peer, info.name))
            .collect()
    }
}

pub(super) async fn ask<T: Send + 'static>(
    inbox: &Inbox,
    question: impl FnOnce(&mut Shard) -> T + Send + 'static,
) -> Option<T> {
    ask_with(inbox, |shard, _| question(shard))?.await.ok()
}

/// None if the shard has stopped.
pub(super) fn ask_with<T: Send + 'static>(
    inbox: &Inbox,
    question: impl FnOnce(&mut Shard, &mut ShardContext) -> T + Send + 'static,
) -> Option<oneshot::Receiver<T>> {
    let (reply, answer) = oneshot::channel();
    let ask = Inbound::Ask(Box::new(move |shard, ctx| {
        let _ = reply.send(question(shard, ctx));
    }));
    inbox.put(ask).ok()?;
    Some(answer)
}

pub(super) fn name_of(names: &HashMap<PeerRef, String>, peer: PeerRef) -> String {
    names
        .get(&peer)
        .cloned()
        .unwrap_or_else(|| format!("(a former life, peer {})", peer.0))
}

pub(super) fn room_info(room: info::RoomInfo, names: &HashMap<PeerRef, String>) -> RoomInfo {
    RoomInfo {
        key: room.key,
        role: room.role,
        state: room.state,
        outcome: room.outcome,
        peers: room.peers.into_iter().map(|p| name_of(names, p)).collect(),
        legs: room.legs,
        moved: room.moved,
        tag: room.tag,
        pages: room.pages,
        age: room.age,
        quarantined: room.quarantined,
        held_because: room.held_because,
        trace: room.trace,
        retry_of: room.retry_of,
    }
}
