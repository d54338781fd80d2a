//! The system thread: starts everything, serves, stops everything in order.

use super::affinity::{self, PinError, Pinning};
use super::config::NodeConfig;
use super::control::{
    ConnectError, ControlMsg, Mail, Parts, PeerInfo, PoolChangeError, Shared, State, listen, serve,
};
use super::drive::{Seat, Seated};
use super::hub::{Door, Knock};
use super::listen::{ListenError, Listener, bind, bind_near};
use super::net::UcxBound;
use super::pulse::{Beat, Beats, Entrance};
use super::shared::{NamedPool, NodeShared, Pools};
use super::stats::Stats;
use super::stuck::Asked;
use crate::copy::actor::{AreYouThere, Drain, Lane};
use crate::fabric::ucx::{Ucx, UcxError, UcxUse};
use crate::ids::{Incarnation, PeerRef, PoolId, RoomId};
use crate::memory::{ClaimNumbers, GateTable, Origin, Pool};
use crate::peer::actor::GiveUp;
use crate::peer::hello;
use crate::reason::{Code, Reason};
use crate::record::{Part, Recorder};
use crate::supervisor::actor::{FromInbox, Inbound, Inbox, Shard};
use crate::supervisor::info::RoomInfo;
use actix::{Actor, Addr, Arbiter, ArbiterHandle, System};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::{Semaphore, mpsc, oneshot, watch};

/// Messages that may wait for the node's own task.
const CONTROL_DEPTH: usize = 1_024;
/// Messages carried into a shard at once.
const INBOX_BATCH: usize = 256;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The name is empty or too long.
    #[error("a node's name has 1 to {max} bytes, {name:?} has {len}", max = hello::MAX_NAME, len = .name.len())]
    BadName {
        /// The name.
        name: String,
    },
    /// A living node of the hub has the name.
    #[error("a node named {0:?} is in the hub already")]
    NameTaken(String),
    /// Two pools of one name.
    #[error("two pools are named {0:?}; peers pair pools by name")]
    PoolNameTaken(String),
    /// Too many pools.
    #[error("a node has at most {max} pools, {given} were given", max = hello::MAX_POOLS)]
    TooManyPools {
        /// How many.
        given: usize,
    },
    /// A pool was made in the process that this one is a child of.
    #[error(
        "pool {0:?} is of the process that this one was forked from, and its memory is not here: make it in the child"
    )]
    PoolOfParent(String),
    /// It cannot listen where it should.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// Data connections to each peer.
    #[error("Net::connections is {0}; it must be 1 to 64")]
    Connections(u16),
    /// An option of UCX is beyond its bounds.
    #[error(transparent)]
    UcxBound(#[from] UcxBound),
    /// UCX is to be used in any case, and cannot be.
    #[error("Net::ucx says that UCX is to be used: {0}")]
    Ucx(UcxError),
    /// A number that must be positive is zero.
    #[error("{0} is 0; it must be at least 1")]
    Zero(&'static str),
    /// A thread cannot run where it was to.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// A thread could not be started.
    #[error("the node's thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// A driven node was to be started inside a tokio runtime.
    #[error(
        "a driven node needs a thread of its own: start it on a plain thread, not inside a tokio runtime"
    )]
    InsideRuntime,
    /// A driven node was to be started on a thread that has an actix system.
    #[error(
        "a driven node brings its own actix system, and this thread has one: use another thread"
    )]
    InsideSystem,
    /// The thread ended before it was ready.
    #[error("the node's thread ended while it was starting; the log has its message")]
    Died,
}

/// What was left when a node stopped.
#[derive(Clone, Debug, Default)]
pub struct StopReport {
    /// Every room drained before the deadline. False too if a shard has died or did not answer.
    pub drained: bool,
    /// Rooms whose memory could not be proven quiet: leaked, never unmapped. Those of a shard that
    /// did not answer are not among them.
    pub leaked: Vec<RoomInfo>,
}

/// A running node. Dropping the last handle stops it in the background; [`Runtime::stop`] waits.
#[derive(Debug)]
pub struct Runtime {
    shared: Arc<NodeShared>,
    inboxes: Vec<Inbox>,
    /// Each lane's ear: it holds one question. No address of an actor leaves the node's threads.
    lanes: Vec<mpsc::Sender<AreYouThere>>,
    control: mpsc::Sender<ControlMsg>,
    addresses: Vec<String>,
    stopped: watch::Receiver<Option<StopReport>>,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    asked: Asked,
}

struct Ready {
    inboxes: Vec<Inbox>,
    lanes: Vec<mpsc::Sender<AreYouThere>>,
    seated: Option<Seated>,
}

impl Runtime {
    /// Starts a node. Blocks for the few milliseconds that its threads take to start.
    ///
    /// # Errors
    /// See [`NodeError`]; nothing was started.
    pub fn start(config: NodeConfig) -> Result<Runtime, NodeError> {
        Ok(Runtime::begin(config, None)?.0)
    }

    /// As [`Runtime::start`]; with a seat on another's thread for the one shard.
    pub(super) fn begin(
        mut config: NodeConfig,
        seat: Option<Seat>,
    ) -> Result<(Runtime, Option<Seated>), NodeError> {
        check(&config)?;
        if let Some(mode) = config.copy {
            crate::memory::set_copy_mode(mode);
        }
        crate::memory::measure_in_background();
        let mut listeners: Vec<Listener> = config
            .net
            .listen
            .iter()
            .map(|address| bind(address))
            .collect::<Result<_, _>>()?;
        let addresses: Vec<String> = listeners.iter().map(|l| l.address.clone()).collect();
        let started = Instant::now();
        let doors = addresses.iter();
        let doors = doors.map(|a| Entrance::new(a.clone(), started)).collect();
        let near = near(&config, &mut listeners);
        let claims = ClaimNumbers::new(&config.pools);
        // Taken out of what lives as long as the node: the memory of one that is retired goes before.
        let pools = Pools {
            pools: (0..)
                .zip(std::mem::take(&mut config.pools))
                .map(|(i, pool)| NamedPool {
                    id: PoolId(i),
                    pool,
                })
                .collect(),
        };
        let (pools_tx, pools_rx) = watch::channel(Arc::new(pools));
        let started_ns = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |d| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
        let jobs = config.limits.jobs_per_lane.saturating_mul(config.lanes);
        let jobs = jobs.min(Semaphore::MAX_PERMITS);
        let stats = Arc::new(Stats::new(config.shard_count(), config.lanes));
        let mut beats = Beats::new(started, config.shard_count(), config.lanes);
        let beat = Beat::new(super::pulse::Part::Ucx, started, &beats.answered);
        let ucx = start_ucx(&config, &beat)?;
        // Without a thread nothing of it can stand still.
        beats.ucx = matches!(ucx, Some(Ok(_))).then_some(beat);
        let shared = Arc::new(NodeShared {
            name: config.name.clone(),
            incarnation: Incarnation {
                started_ns,
                nonce: random(),
            },
            gates: GateTable::new(config.limits.gates),
            stats,
            recorder: Recorder::new(config.shard_count(), config.recorder, started),
            rooms: Arc::new(Semaphore::new(
                config.limits.rooms.min(Semaphore::MAX_PERMITS),
            )),
            jobs: Arc::new(Semaphore::new(jobs)),
            job_slots: jobs,
            pools: pools_rx,
            origin: Origin::here(),
            beats,
            doors,
            started,
            claims,
            next_life: AtomicU64::new(1),
            ucx,
            limits: config.limits.clone(),
            deadlines: config.deadlines.clone(),
            net: config.net.clone(),
        });
        let (control, messages) = mpsc::channel(CONTROL_DEPTH);
        let (knock, knocks) = mpsc::channel(64);
        if let Some(hub) = &config.hub {
            let door = Door {
                knock,
                gates: Arc::clone(&shared.gates),
                incarnation: shared.incarnation,
            };
            if !hub.enter(&config.name, door) {
                return Err(NodeError::NameTaken(config.name));
            }
        }
        let (ready_tx, ready_rx) = std::sync::mpsc::channel();
        let (stopped_tx, stopped) = watch::channel(None);
        let node = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name(format!("kvroom-{}", clip(&config.name)))
            .spawn(move || {
                let start = Start {
                    config,
                    node,
                    pools: pools_tx,
                    messages,
                    knocks,
                    listeners,
                    near,
                    seat,
                };
                let stopped = run(start, &ready_tx);
                stopped_tx.send_replace(Some(stopped));
            })?;
        let Ready {
            inboxes,
            lanes,
            seated,
        } = ready_rx.recv().map_err(|_| NodeError::Died)??;
        let asked = Asked::new(inboxes.len());
        let runtime = Runtime {
            shared,
            inboxes,
            lanes,
            control,
            addresses,
            stopped,
            thread: Mutex::new(Some(thread)),
            asked,
        };
        Ok((runtime, seated))
    }

    pub(super) fn control(&self) -> &mpsc::Sender<ControlMsg> {
        &self.control
    }

    /// What the node's threads share.
    pub fn shared(&self) -> &Arc<NodeShared> {
        &self.shared
    }

    /// Where it listens, with the ports that it was given.
    pub fn addresses(&self) -> &[String] {
        &self.addresses
    }

    /// The shard of a room.
    pub fn inbox(&self, room: RoomId) -> &Inbox {
        &self.inboxes[NodeShared::shard_of(room, self.inboxes.len())]
    }

    /// What shards were asked by [`Runtime::stuck_rooms`] and have not answered.
    pub(super) fn asked(&self) -> &Asked {
        &self.asked
    }

    /// All shards.
    pub fn inboxes(&self) -> &[Inbox] {
        &self.inboxes
    }

    /// Opens a session with a node, or gives the one there is.
    ///
    /// # Errors
    /// See [`ConnectError`].
    pub async fn connect(&self, address: &str) -> Result<PeerInfo, ConnectError> {
        if !self.shared.origin.is_here() {
            return Err(ConnectError::Forked);
        }
        let (reply, answer) = oneshot::channel();
        let message = ControlMsg::Connect {
            address: address.to_owned(),
            reply,
        };
        self.control
            .send(message)
            .await
            .map_err(|_| ConnectError::Stopped)?;
        answer.await.map_err(|_| ConnectError::Stopped)?
    }

    /// Gives up the session with a peer: rooms on both sides end with `SessionLost`.
    pub async fn disconnect(&self, peer: PeerRef) {
        let reason = Reason::new(Code::SessionLost, "the session was given up on purpose");
        let (reply, done) = oneshot::channel();
        let message = ControlMsg::Disconnect {
            peer,
            reason,
            reply,
        };
        if self.control.send(message).await.is_ok() {
            let _ = done.await;
        }
    }

    /// The peers that this node has met, each in its newest life.
    pub async fn peers(&self) -> Vec<PeerInfo> {
        let (reply, answer) = oneshot::channel();
        if self
            .control
            .send(ControlMsg::Peers { reply })
            .await
            .is_err()
        {
            return Vec::new();
        }
        answer.await.unwrap_or_default()
    }

    /// Adds a pool and announces it to all peers.
    ///
    /// # Errors
    /// See [`PoolChangeError`].
    pub async fn add_pool(&self, pool: Pool) -> Result<PoolId, PoolChangeError> {
        let (reply, answer) = oneshot::channel();
        let message = ControlMsg::AddPool { pool, reply };
        self.control
            .send(message)
            .await
            .map_err(|_| PoolChangeError::Stopped)?;
        answer.await.map_err(|_| PoolChangeError::Stopped)?
    }

    /// Takes a pool out of use: no new leases, no new claims. What is lent comes back as always.
    ///
    /// # Errors
    /// See [`PoolChangeError`].
    pub async fn retire_pool(&self, name: &str) -> Result<Pool, PoolChangeError> {
        let (reply, answer) = oneshot::channel();
        let message = ControlMsg::RetirePool {
            name: name.to_owned(),
            reply,
        };
        self.control
            .send(message)
            .await
            .map_err(|_| PoolChangeError::Stopped)?;
        answer.await.map_err(|_| PoolChangeError::Stopped)?
    }

    /// Asks every part whether it is there, but those that have not answered the last time. Waits for
    /// nobody: the answers are in the parts' beats. The node's own task asks the sessions, and says which
    /// there are ([`Beats::sessions`]). Nothing in a child of fork.
    pub fn ask(&self) {
        use mpsc::error::TrySendError;
        if !self.shared.origin.is_here() {
            return;
        }
        let beats = &self.shared.beats;
        for (beat, inbox) in beats.shards.iter().zip(&self.inboxes) {
            let question = Inbound::Ask(Box::new(|shard, _| shard.is_there()));
            // One that died with a question unanswered is asked no more.
            if inbox.is_closed() || (beat.ask() && inbox.put(question).is_err()) {
                beat.gone();
            }
        }
        for (beat, lane) in beats.lanes.iter().zip(&self.lanes) {
            if lane.is_closed() {
                beat.gone();
            } else if beat.ask() {
                beat.post();
                match lane.try_send(AreYouThere) {
                    // What waits there is answered as well.
                    Ok(()) | Err(TrySendError::Full(_)) => {}
                    Err(TrySendError::Closed(_)) => beat.gone(),
                }
            }
        }
        if let (Some(beat), Some(Ok(ucx))) = (&beats.ucx, &self.shared.ucx)
            && beat.ask()
        {
            ucx.ask_whether_it_is_there();
        }
        if self.control.is_closed() {
            beats.node.gone();
            // None outlives it.
            beats.set_sessions(Arc::new([]));
        } else if beats.node.ask() {
            // What waits there is seen as well; that it stopped meanwhile, the next time.
            if self.control.try_send(ControlMsg::Ask).is_err() {
                beats.node.withdraw();
            }
        }
    }

    /// Messages that wait for the node's own task.
    pub fn control_depth(&self) -> usize {
        self.control.max_capacity() - self.control.capacity()
    }

    /// Ends all rooms, waits until they have drained (bounded by `Deadlines::shutdown`), and stops
    /// the node's threads. Every call gives the same report, those that came while the first one
    /// waited among them.
    pub async fn stop(&self) -> StopReport {
        // Refused only if it was told before.
        let _ = self.control.send(ControlMsg::Stop).await;
        let mut stopped = self.stopped.clone();
        let report = match stopped.wait_for(Option::is_some).await {
            Ok(report) => report.clone().unwrap_or_default(),
            Err(_) => StopReport::default(),
        };
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some(thread) = thread {
            // It has said its last word; what is left is the end of the thread itself.
            let (done_tx, done) = oneshot::channel();
            std::thread::spawn(move || {
                let _ = thread.join();
                let _ = done_tx.send(());
            });
            let _ = done.await;
        }
        report
    }
}

fn check(config: &NodeConfig) -> Result<(), NodeError> {
    if config.name.is_empty() || config.name.len() > hello::MAX_NAME {
        return Err(NodeError::BadName {
            name: config.name.clone(),
        });
    }
    if config.pools.len() > hello::MAX_POOLS {
        return Err(NodeError::TooManyPools {
            given: config.pools.len(),
        });
    }
    for (i, pool) in config.pools.iter().enumerate() {
        let name = &pool.layout().name;
        if config.pools[..i].iter().any(|p| p.layout().name == *name) {
            return Err(NodeError::PoolNameTaken(name.clone()));
        }
        if !pool.is_here() {
            return Err(NodeError::PoolOfParent(name.clone()));
        }
    }
    if !(1..=64).contains(&config.net.connections) {
        return Err(NodeError::Connections(config.net.connections));
    }
    config.net.check_ucx()?;
    let limits = &config.limits;
    for (value, field) in [
        (config.lanes, "lanes"),
        (config.shards.unwrap_or(1), "shards"),
        (limits.rooms, "Limits::rooms"),
        (limits.gates, "Limits::gates"),
        (limits.chunks_in_flight, "Limits::chunks_in_flight"),
        (limits.jobs_per_lane, "Limits::jobs_per_lane"),
        (limits.frame_bytes, "Limits::frame_bytes"),
        (limits.greetings, "Limits::greetings"),
        (limits.claims_per_peer as usize, "Limits::claims_per_peer"),
    ] {
        if value == 0 {
            return Err(NodeError::Zero(field));
        }
    }
    config.pin.check()?;
    Ok(())
}

/// More than can ever come to one lane: every chunk that was given a slot, and the aux row of every
/// leg. So a lane refuses nothing that was admitted.
fn lane_capacity(node: &NodeShared, lanes: usize) -> usize {
    let limits = &node.limits;
    let chunks = limits.jobs_per_lane.saturating_mul(lanes);
    let aux = limits.rooms.saturating_mul(usize::from(limits.receivers));
    chunks.saturating_add(aux)
}

fn clip(name: &str) -> String {
    name.chars().take(8).collect()
}

/// 64 bits that differ from process to process and from call to call. Not for secrets.
pub(crate) fn random() -> u64 {
    let mut hasher = std::collections::hash_map::RandomState::new().build_hasher();
    hasher.write_u128(Instant::now().elapsed().as_nanos());
    hasher.finish()
}

/// What a node's thread begins with.
struct Start {
    config: NodeConfig,
    node: Arc<NodeShared>,
    pools: watch::Sender<Arc<Pools>>,
    messages: mpsc::Receiver<ControlMsg>,
    knocks: mpsc::Receiver<Knock>,
    listeners: Vec<Listener>,
    near: Option<String>,
    /// Where its one shard goes, if not on a thread of the node's.
    seat: Option<Seat>,
}

/// A socket for nodes of this host that know another address of this one.
fn near(config: &NodeConfig, listeners: &mut Vec<Listener>) -> Option<String> {
    let tcp = listeners.iter().any(|l| l.address.starts_with("tcp://"));
    // Whoever can reach it could have reached that one.
    if !config.net.shm || !tcp {
        return None;
    }
    let name = format!("kvroom-{:016x}{:016x}", random(), random());
    match bind_near(&name) {
        Ok(listener) => {
            listeners.push(listener);
            Some(name)
        }
        Err(error) => {
            tracing::warn!(node = config.name, %error, "no abstract Unix socket: nodes of this host \
                that connect over tcp stay there");
            None
        }
    }
}

fn run(start: Start, ready: &std::sync::mpsc::Sender<Result<Ready, NodeError>>) -> StopReport {
    let Start {
        config,
        node,
        pools,
        messages,
        knocks,
        listeners,
        near,
        seat,
    } = start;
    let system = System::new();
    let hub = config.hub.clone();
    let report = system.block_on(async {
        let mut threads = Threads::default();
        let beats = node.beats.shards.iter();
        let inboxes: Vec<_> = beats.map(|beat| Inbox::new(Arc::clone(beat))).collect();
        let handles: Vec<Inbox> = inboxes.iter().map(|(inbox, _)| inbox.clone()).collect();
        for beat in &node.beats.lanes {
            threads.start_lane(&node, &config, beat);
        }
        let mut seated = None;
        for (inbox, rx) in inboxes {
            match &seat {
                Some(seat) => seated = Some(threads.seat_shard(&node, inbox, rx, &config, seat)),
                None => threads.start_shard(&node, inbox, rx, &config),
            }
        }
        let shards = threads.shards.iter().cloned();
        let lanes = threads.lanes.iter().map(|(_, arbiter)| arbiter.handle());
        let (events_tx, events) = mpsc::unbounded_channel();
        let state = State::new(Parts {
            node: Arc::clone(&node),
            hub: hub.clone(),
            shards: shards.collect(),
            lanes: lanes.collect(),
            pools,
            events: events_tx,
            near,
        });
        let mut listening = Ok(Ready {
            inboxes: handles.clone(),
            lanes: std::mem::take(&mut threads.ears),
            seated,
        });
        if let Err(error) = threads.pin(&config.pin) {
            listening = Err(error.into());
        }
        for listener in listeners {
            let address = listener.address.clone();
            match listener.attach() {
                Ok(accepting) => {
                    let mut doors = node.doors.iter();
                    let door = doors.find(|d| d.address == address).cloned();
                    listen(&state, accepting, address, door);
                }
                Err(error) => listening = Err(NodeError::Thread(error)),
            }
        }
        let failed = listening.is_err();
        if ready.send(listening).is_ok() && !failed {
            let mail = Mail {
                messages,
                knocks,
                events,
            };
            node.recorder.part(Part::Node).note("the node serves");
            serve(&state, mail).await;
        }
        state.borrow_mut().close_doors();
        if let Some(hub) = &hub {
            hub.leave(&node.name, &node.gates);
        }
        let report = threads.stop(&node, &handles, &state).await;
        if !report.drained {
            for room in &report.leaked {
                tracing::error!(
                    node = node.name,
                    room = %room.key,
                    because = room.held_because.as_deref().unwrap_or("unknown"),
                    "memory of a room was not proven quiet at shutdown; it is leaked"
                );
            }
        }
        report
    });
    System::current().stop();
    report
}

#[derive(Default)]
struct Threads {
    shards: Vec<(Addr<Shard>, ArbiterHandle)>,
    /// Those of the shards that are not driven.
    arbiters: Vec<Arbiter>,
    /// Dropped when the node is over: then a driver lets go of its shard.
    driven: Vec<oneshot::Sender<()>>,
    lanes: Vec<(Addr<Lane>, Arbiter)>,
    /// By which each of them is asked whether it is there.
    ears: Vec<mpsc::Sender<AreYouThere>>,
    /// Rings that the shards' threads read.
    rings: super::spin::Rings,
}

impl Threads {
    /// Before any of them has work. Waits until each has done it. The thread of a driven shard is its
    /// engine's to bind.
    fn pin(&self, pinning: &Pinning) -> Result<(), PinError> {
        let shards = self.arbiters.iter().enumerate();
        let lanes = self.lanes.iter().map(|(_, arbiter)| arbiter).enumerate();
        let shards = shards.map(|(i, arbiter)| (arbiter, affinity::nth(&pinning.shards, i)));
        let lanes = lanes.map(|(i, arbiter)| (arbiter, affinity::nth(&pinning.lanes, i)));
        for (arbiter, cpu) in shards.chain(lanes) {
            let Some(cpu) = cpu else { continue };
            let (done, answer) = std::sync::mpsc::channel();
            arbiter.spawn_fn(move || {
                let _ = done.send(affinity::pin_this_thread(cpu));
            });
            answer.recv().map_err(|_| PinError::Refused {
                cpu,
                error: std::io::Error::other("the thread has ended"),
            })??;
        }
        Ok(())
    }

    fn start_lane(&mut self, node: &Arc<NodeShared>, config: &NodeConfig, beat: &Arc<Beat>) {
        let arbiter = Arbiter::new();
        let beat = Arc::clone(beat);
        let (stats, nth) = (Arc::clone(&node.stats), self.lanes.len());
        let jobs = lane_capacity(node, config.lanes);
        let lane = u16::try_from(self.lanes.len()).unwrap_or(u16::MAX);
        let recorder = node.recorder.clone();
        #[cfg(feature = "plant")]
        let (plant, brake) = (config.plant, config.brake.clone());
        #[cfg(not(feature = "plant"))]
        let _ = config;
        let addr = Lane::start_in_arbiter(&arbiter.handle(), move |_| {
            super::pulse::set_here(Arc::clone(&beat));
            #[cfg(feature = "plant")]
            crate::copy::plant::put_wedge(beat.part());
            let scribe = recorder.part(Part::Lane(lane));
            let lane = Lane::new(jobs, stats, nth, beat, scribe);
            #[cfg(feature = "plant")]
            crate::copy::plant::put_brake(brake);
            #[cfg(feature = "plant")]
            crate::copy::plant::put_plant(plant);
            #[cfg(feature = "plant")]
            let lane = lane.with_plant(plant);
            lane
        });
        let (ear, mut questions) = mpsc::channel(1);
        let lane_itself = addr.clone();
        arbiter.spawn(async move {
            while let Some(question) = questions.recv().await {
                // Over with the lane: then nobody hears at this ear any more.
                if lane_itself.send(question).await.is_err() {
                    return;
                }
            }
        });
        self.ears.push(ear);
        self.lanes.push((addr, arbiter));
    }

    fn start_shard(
        &mut self,
        node: &Arc<NodeShared>,
        inbox: Inbox,
        mut rx: mpsc::UnboundedReceiver<Inbound>,
        config: &NodeConfig,
    ) {
        let arbiter = Arbiter::new();
        let addr = self.put_shard(node, inbox, config, arbiter.handle());
        let shard = addr.clone();
        arbiter.spawn(super::spin::run(config.spin, self.rings.clone()));
        arbiter.spawn(async move {
            let mut batch = Vec::with_capacity(INBOX_BATCH);
            while rx.recv_many(&mut batch, INBOX_BATCH).await > 0 {
                let full = std::mem::take(&mut batch);
                match shard.send(FromInbox(full)).await {
                    Ok(emptied) => batch = emptied,
                    Err(_) => return,
                }
            }
        });
        self.arbiters.push(arbiter);
    }

    /// Starts a shard on the thread of whoever drives it.
    fn seat_shard(
        &mut self,
        node: &Arc<NodeShared>,
        inbox: Inbox,
        rx: mpsc::UnboundedReceiver<Inbound>,
        config: &NodeConfig,
        seat: &Seat,
    ) -> Seated {
        let shard = self.put_shard(node, inbox, config, seat.arbiter.clone());
        let (driven, over) = oneshot::channel();
        self.driven.push(driven);
        Seated {
            shard,
            inbox: rx,
            over,
        }
    }

    fn put_shard(
        &mut self,
        node: &Arc<NodeShared>,
        inbox: Inbox,
        config: &NodeConfig,
        arbiter: ArbiterHandle,
    ) -> Addr<Shard> {
        let lanes = self.lanes.iter().map(|(a, _)| a.clone()).collect();
        let (node, nth) = (Arc::clone(node), self.shards.len());
        #[cfg(feature = "plant")]
        let watched = crate::copy::plant::Watched::new(config.brake.clone(), config.plant);
        #[cfg(not(feature = "plant"))]
        let _ = config;
        let addr = Shard::start_in_arbiter(&arbiter, move |_| {
            let scribe = node.recorder.shard(nth);
            let shard = Shard::new(node, nth, lanes, inbox, scribe);
            #[cfg(feature = "plant")]
            let shard = shard.watched(watched);
            shard
        });
        self.shards.push((addr.clone(), arbiter));
        addr
    }

    /// Rooms, lanes, routes, sessions, shards: in this order.
    async fn stop(self, node: &NodeShared, inboxes: &[Inbox], state: &Shared) -> StopReport {
        node.recorder.part(Part::Node).note("the node stops");
        // Whoever waits for room hears that there will be none.
        node.rooms.close();
        node.jobs.close();
        // A deadline beyond a century is none; an instant cannot hold every duration.
        let patience = node
            .deadlines
            .shutdown
            .min(Duration::from_secs(100 * 365 * 86_400));
        let deadline = tokio::time::Instant::now() + patience;
        let mut empty = Vec::new();
        let mut drained = true;
        for inbox in inboxes {
            let (told, done) = oneshot::channel();
            let ask = Inbound::Ask(Box::new(move |shard, ctx| shard.shut_down(told, ctx)));
            match inbox.put(ask) {
                Ok(()) => empty.push(done),
                // It died, with whatever it held.
                Err(_) => drained = false,
            }
        }
        for done in empty {
            drained &= matches!(tokio::time::timeout_at(deadline, done).await, Ok(Ok(())));
        }
        // One grace for all lanes and routes, one for goodbyes, one for all shards' lists, one for the threads:
        // shutdown stays bounded with any number of peers.
        let last_word = tokio::time::Instant::now() + GRACE;
        for (lane, _) in &self.lanes {
            let _ = tokio::time::timeout_at(last_word, lane.send(Drain)).await;
        }
        let (peers, routes): (Vec<_>, Vec<_>) = {
            let state = state.borrow();
            let known = state.peers.values();
            known
                .map(|k| (k.addr.clone(), k.data.as_ref().map(|d| d.route.clone())))
                .unzip()
        };
        // All at once: they share the time.
        let routes: Vec<_> = (routes.into_iter().flatten())
            .map(|route| actix::spawn(async move { route.close().await }))
            .collect();
        for closed in routes {
            let _ = tokio::time::timeout_at(last_word, closed).await;
        }
        let goodbyes: Vec<_> = peers
            .into_iter()
            .map(|peer| {
                peer.send(GiveUp {
                    reason: Reason::new(Code::NodeShutdown, "this node is shutting down"),
                    bye: Some(drained),
                    for_good: true,
                })
            })
            .collect();
        let said = tokio::time::Instant::now() + GRACE;
        for goodbye in goodbyes {
            let _ = tokio::time::timeout_at(said, goodbye).await;
        }
        let listed_by = tokio::time::Instant::now() + GRACE;
        let mut leaked = Vec::new();
        let mut all_answered = true;
        for (shard, inbox) in inboxes.iter().enumerate() {
            let (reply, answer) = oneshot::channel();
            let ask = Inbound::Ask(Box::new(move |shard, _| {
                let _ = reply.send(shard.rooms());
            }));
            let asked = inbox.put(ask).is_ok();
            match tokio::time::timeout_at(listed_by, answer).await {
                Ok(Ok(rooms)) if asked => leaked.extend(rooms),
                _ => {
                    all_answered = false;
                    tracing::error!(
                        node = node.name,
                        shard,
                        "a shard does not answer at shutdown; what it holds is leaked, and not listed"
                    );
                }
            }
        }
        // What drained when the lanes let go counts as drained; silence proves nothing.
        drained |= all_answered && leaked.is_empty();
        // A lane that is stuck in a copy must not hold up the end: threads are joined beside, for
        // as long as the grace lasts.
        let arbiters: Vec<Arbiter> = self
            .lanes
            .into_iter()
            .map(|(_, a)| a)
            .chain(self.arbiters)
            .collect();
        drop(self.driven);
        let (joined_tx, joined) = oneshot::channel();
        for arbiter in &arbiters {
            arbiter.stop();
        }
        std::thread::spawn(move || {
            for arbiter in arbiters {
                let _ = arbiter.join();
            }
            let _ = joined_tx.send(());
        });
        let _ = tokio::time::timeout(GRACE, joined).await;
        if let Some(Ok(ucx)) = &node.ucx
            && tokio::time::timeout(GRACE, ucx.quit()).await.is_err()
        {
            tracing::debug!(
                node = node.name,
                "the thread of UCX is still at work at the end of the node"
            );
        }
        StopReport { drained, leaked }
    }
}

/// How long the last words of one kind may take together once rooms have drained or the deadline
/// has passed.
const GRACE: Duration = Duration::from_secs(1);

/// UCX, if it is to be used.
fn start_ucx(
    config: &NodeConfig,
    beat: &Arc<Beat>,
) -> Result<Option<Result<Ucx, UcxError>>, NodeError> {
    let options = &config.net.ucx;
    if options.when == UcxUse::Off {
        return Ok(None);
    }
    match Ucx::start(options, beat) {
        Err(error) if options.when == UcxUse::Always => Err(NodeError::Ucx(error)),
        Err(error) => {
            tracing::warn!(node = config.name, %error, "UCX is not used");
            Ok(Some(Err(error)))
        }
        Ok(ucx) => {
            let (major, minor, patch) = ucx.version();
            let rdma = ucx.has_rdma();
            tracing::info!(
                node = config.name,
                version = format!("{major}.{minor}.{patch}"),
                rdma,
                "UCX is there"
            );
            Ok(Some(Ok(ucx)))
        }
    }
}
