//! The node's own task: peers come and go through it, pools change through it, it stops the rest.

use super::address::AddressError;
use super::dial;
use super::former;
use super::greet::{self, Conn, Role};
use super::hub::{Knock, LocalHub};
use super::listen::{Accepting, Greetings, Refusals};
use super::peers::Known;
use super::pulse::Entrance;
use super::shared::{NamedPool, NodeShared, Pools};
use super::wired::{self, register};
use crate::copy::device_lane::DeviceSink;
use crate::fabric::Fabric;
use crate::fabric::stream::Stream;
use crate::fabric::tcp::tune_control;
use crate::fabric::tcp::{RouteEvent, TcpRoute};
use crate::ids::{Incarnation, PeerRef, PoolId};
use crate::memory::Pool;
use crate::peer::actor::{GiveUp, IsThere, PeerState, PoolsChanged};
use crate::peer::hello::{self, Capabilities, FarKey, Hello, Protocols, SessionId};
use crate::peer::message::Body;
use crate::peer::wire::DataHello;
use crate::reason::Reason;
use crate::supervisor::actor::Shard;
use actix::{Addr, ArbiterHandle};
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::layout::cube::CubeLayout;
use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::AbortHandle;

/// What the bytes of a node's pools mean, in the order of the pools' ids.
pub type Contents = Arc<[Arc<CubeLayout>]>;

/// A peer, as the node knows it.
#[derive(Clone, Debug)]
pub struct PeerInfo {
    /// Its number here.
    pub peer: PeerRef,
    /// Its name.
    pub name: String,
    /// Its life.
    pub incarnation: Incarnation,
    /// Whether it can be used now.
    pub state: watch::Receiver<PeerState>,
    /// How bytes go in the session that there is, or was last.
    pub fabric: watch::Receiver<Option<Fabric>>,
    /// What its pools hold of the model, in the order of their ids; of those of which it was said.
    pub contents: watch::Receiver<Contents>,
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be read.
    #[error(transparent)]
    BadAddress(#[from] AddressError),
    /// This process is a child of fork of the node's.
    #[error(
        "the node is of the process that this one was forked from: start a node in this process"
    )]
    Forked,
    /// This node is in no hub.
    #[error("this node is in no hub: give the builder one, with hub(&hub)")]
    NoHub,
    /// Nobody of that name is in the hub.
    #[error("no node named {name:?} is in the hub; there are: {there}")]
    Unknown {
        /// The name.
        name: String,
        /// The names in the hub.
        there: String,
    },
    /// Nobody answers at the address.
    #[error("nobody can be reached at {address}: {cause}")]
    Unreachable {
        /// The address.
        address: String,
        /// What the system said.
        cause: String,
    },
    /// One side refused the other, or does not speak its language.
    #[error("node {name:?}: {why}")]
    Refused {
        /// The other node's name, or its address.
        name: String,
        /// Why, in the words of whoever refused.
        why: String,
    },
    /// The other node did not end the greeting in time.
    #[error("node {name:?} did not answer within {after:?}: {last}")]
    Silent {
        /// The other node's name, or its address.
        name: String,
        /// How long it was waited for.
        after: Duration,
        /// What happened last.
        last: String,
    },
    /// This node is going down.
    #[error("this node is shutting down")]
    Stopped,
}

/// Why the node's pools are as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PoolChangeError {
    /// Two pools of one name.
    #[error("this node has a pool {0:?} already: retire it first, or name the new one otherwise")]
    NameTaken(String),
    /// No pool of that name.
    #[error("this node has no pool {0:?}")]
    Unknown(String),
    /// Too many.
    #[error("a node has at most {0} pools in its life")]
    TooMany(usize),
    /// This node is going down.
    #[error("this node is shutting down")]
    Stopped,
}

pub(crate) enum ControlMsg {
    Connect {
        address: String,
        reply: oneshot::Sender<Result<PeerInfo, ConnectError>>,
    },
    Disconnect {
        peer: PeerRef,
        reason: Reason,
        reply: oneshot::Sender<()>,
    },
    AddPool {
        pool: Pool,
        reply: oneshot::Sender<Result<PoolId, PoolChangeError>>,
    },
    RetirePool {
        name: String,
        reply: oneshot::Sender<Result<Pool, PoolChangeError>>,
    },
    Peers {
        reply: oneshot::Sender<Vec<PeerInfo>>,
    },
    /// Whether it is there; the owners of sessions are asked too, and who they are is told.
    Ask,
    Stop,
}

/// What a route says of a session's data connections.
pub(crate) type DataEvent = (PeerRef, SessionId, RouteEvent);

pub(crate) struct State {
    pub(crate) node: Arc<NodeShared>,
    pub(crate) hub: Option<LocalHub>,
    pub(crate) shards: Vec<(Addr<Shard>, ArbiterHandle)>,
    lanes: Vec<ArbiterHandle>,
    pub(crate) peers: BTreeMap<String, Known>,
    /// Addresses and names that this node is connecting to.
    pub(crate) connecting: BTreeSet<String>,
    /// Those that are connected to again when they are lost: what stops that when it is dropped, and
    /// the peer that is there.
    pub(crate) kept: BTreeMap<String, Kept>,
    pub(crate) greetings: Greetings,
    /// Greetings that were refused, for the log.
    pub(crate) refusals: Refusals,
    /// Tokens that were offered in greetings which are not over.
    pub(crate) pending: BTreeSet<u128>,
    /// Tokens of sessions.
    pub(crate) tokens: BTreeMap<u128, (PeerRef, SessionId)>,
    listeners: Vec<AbortHandle>,
    events: mpsc::UnboundedSender<DataEvent>,
    pub(crate) next_peer: u32,
    pub(crate) pools: watch::Sender<Arc<Pools>>,
    next_pool: u16,
    pub(crate) stopping: bool,
    /// The socket by which nodes on this host find this one.
    pub(crate) near: Option<String>,
}

/// An address that this node keeps a session with.
pub(crate) struct Kept {
    pub(crate) _stop: oneshot::Sender<()>,
    /// Who was there last.
    pub(crate) name: String,
    pub(crate) number: u64,
}

/// The state, on the one thread that has it; never borrowed across an await.
pub(crate) type Shared = Rc<RefCell<State>>;

/// What a [`State`] is made of.
pub(crate) struct Parts {
    pub(crate) node: Arc<NodeShared>,
    pub(crate) hub: Option<LocalHub>,
    pub(crate) shards: Vec<(Addr<Shard>, ArbiterHandle)>,
    pub(crate) lanes: Vec<ArbiterHandle>,
    pub(crate) pools: watch::Sender<Arc<Pools>>,
    /// Bounded by the data connections that there are.
    pub(crate) events: mpsc::UnboundedSender<DataEvent>,
    pub(crate) near: Option<String>,
}

impl State {
    pub(crate) fn new(parts: Parts) -> Shared {
        let next_pool = parts.pools.borrow().pools.len() as u16;
        Rc::new(RefCell::new(State {
            greetings: Greetings::new(parts.node.limits.greetings),
            node: parts.node,
            hub: parts.hub,
            shards: parts.shards,
            lanes: parts.lanes,
            peers: BTreeMap::new(),
            connecting: BTreeSet::new(),
            kept: BTreeMap::new(),
            refusals: Refusals::default(),
            pending: BTreeSet::new(),
            tokens: BTreeMap::new(),
            listeners: Vec::new(),
            events: parts.events,
            next_peer: 0,
            pools: parts.pools,
            next_pool,
            stopping: false,
            near: parts.near,
        }))
    }

    pub(crate) fn hello(&self, role: &Role) -> Result<Hello, getrandom::Error> {
        let mut nonce = [0; 32];
        getrandom::fill(&mut nonce)?;
        let mut capabilities = Capabilities::QUIESCENCE
            .and(Capabilities::CHECKSUM)
            .and(Capabilities::HANDED);
        // Not within the process: there its own copies are the shortest way.
        capabilities = capabilities.and(wired::capability(&self.node));
        if let Role::Dialer {
            by_itself: true, ..
        } = role
        {
            capabilities = capabilities.and(Capabilities::BY_ITSELF);
        }
        Ok(Hello {
            protocols: Protocols::MINE,
            node: self.node.name.clone(),
            incarnation: self.node.incarnation,
            nonce,
            capabilities,
            keyed: self.node.net.key.is_some(),
        })
    }

    /// How a pool is written through UCX, if it is registered there.
    fn far_key(&self, pool: &Pool) -> Option<Box<FarKey>> {
        let ucx = self.node.ucx.as_ref()?.as_ref().ok()?;
        ucx.key_of(pool).map(Box::new)
    }

    /// What has become of this node's pools since these were announced.
    pub(crate) fn pools_since(&self, announced: &[(PoolId, PoolLayout)]) -> Vec<Body> {
        let pools = self.pools.borrow();
        let said = |id: PoolId| announced.iter().any(|(said, _)| *said == id);
        let there = |id: PoolId| pools.pools.iter().any(|p| p.id == id);
        let added = pools.pools.iter().filter(|p| !said(p.id));
        let added = added.map(|p| Body::PoolAdded {
            pool: p.id,
            layout: (**p.pool.layout()).clone(),
            content: p.pool.content().map(|c| Box::new((**c).clone())),
            far: self.far_key(&p.pool),
        });
        let retired = announced.iter().filter(|(id, _)| !there(*id));
        let retired = retired.map(|(pool, _)| Body::PoolRetired { pool: *pool });
        added.chain(retired).collect()
    }

    /// Makes the route of a session, on whatever thread it is called; with why nothing of a device can be
    /// handed to this peer.
    pub(crate) fn route_maker(
        &self,
        info: &PeerInfo,
        session: SessionId,
        near: Result<(), String>,
    ) -> Box<dyn FnOnce() -> TcpRoute + Send> {
        let (peer, name, node) = (info.peer, info.name.clone(), Arc::clone(&self.node));
        let home = self.shards[peer.0 as usize % self.shards.len()].1.clone();
        let (lanes, events) = (self.lanes.clone(), self.events.clone());
        Box::new(move || {
            let tell = Arc::new(move |event| {
                // Nobody is left to care at the end of the node.
                let _ = events.send((peer, session, event));
            });
            // What comes for pages on a device goes there by its own lane.
            let sink = Some(Arc::new(DeviceSink) as _);
            TcpRoute::start_with(peer, &name, &node, &home, &lanes, tell, (sink, near))
        })
    }

    /// The route that this greeting of a data connection opens, once: what was heard before, and is
    /// said again by somebody else, opens nothing.
    pub(crate) fn route_of(&mut self, hello: &DataHello) -> Option<TcpRoute> {
        let (peer, session) = *self.tokens.get(&hello.token)?;
        let data = self.data_of_mut(peer, session)?;
        let last = data.taken.entry((hello.class, hello.index)).or_default();
        if hello.attempt <= *last {
            return None;
        }
        *last = hello.attempt;
        Some(data.route.clone())
    }

    /// The data connections of a session, if it has not ended.
    pub(crate) fn data_of(&self, peer: PeerRef, session: SessionId) -> Option<&super::peers::Data> {
        let known = self.known(peer)?;
        let data = known.data.as_ref().filter(|d| d.session == session)?;
        let over = matches!(*known.info.state.borrow(), PeerState::Down(_));
        (!over).then_some(data)
    }

    /// The same, to be changed.
    pub(crate) fn data_of_mut(
        &mut self,
        peer: PeerRef,
        session: SessionId,
    ) -> Option<&mut super::peers::Data> {
        self.data_of(peer, session)?;
        let known = self.peers.values_mut().find(|k| k.info.peer == peer)?;
        known.data.as_mut()
    }

    pub(crate) fn count_refused(&self) {
        self.node.stats.add(&self.node.stats.greetings_refused);
    }

    pub(crate) fn known(&self, peer: PeerRef) -> Option<&Known> {
        self.peers.values().find(|k| k.info.peer == peer)
    }

    /// No new peers: listeners and whoever is being greeted are closed, nobody is connected to again.
    pub(crate) fn close_doors(&mut self) {
        self.stopping = true;
        for listener in self.listeners.drain(..) {
            listener.abort();
        }
        self.greetings.clear();
        self.kept.clear();
    }
}

/// What reaches the node's own task.
pub(crate) struct Mail {
    pub(crate) messages: mpsc::Receiver<ControlMsg>,
    pub(crate) knocks: mpsc::Receiver<Knock>,
    pub(crate) events: mpsc::UnboundedReceiver<DataEvent>,
}

/// Accepts from a listener until the node stops.
pub(crate) fn listen(
    state: &Shared,
    listener: Accepting,
    address: String,
    door: Option<Arc<Entrance>>,
) {
    let me = Rc::clone(state);
    let node = Arc::clone(&state.borrow().node);
    let task = actix::spawn(async move {
        let each = |stream| {
            if let Stream::Tcp(tcp) = &stream {
                tune_control(tcp, &node.net);
            }
            accepted(&me, stream);
        };
        let door = door.as_deref();
        listener.run(&node.name, &address, door, each).await;
    });
    state.borrow_mut().listeners.push(task.abort_handle());
}

fn accepted(state: &Shared, stream: Stream) {
    let number = state.borrow_mut().greetings.number();
    let me = Rc::clone(state);
    let within = state.borrow().node.deadlines.connect;
    let from = match &stream {
        Stream::Tcp(tcp) => tcp.peer_addr().ok(),
        Stream::Unix(_) => None,
    };
    let task = actix::spawn(async move {
        let role = Role::Acceptor {
            number: Some(number),
            from: None,
        };
        let greeted = greet::greet(&me, Conn::Socket(stream), role);
        greet::log_accepted(&me, from, tokio::time::timeout(within, greeted).await);
        me.borrow_mut().greetings.over(number);
    });
    let mut state = state.borrow_mut();
    if state.greetings.add(number, task.abort_handle()) {
        state.node.stats.add(&state.node.stats.greetings_put_out);
    }
}

/// Serves until told to stop, or until every handle of the node is gone.
pub(crate) async fn serve(state: &Shared, mut mail: Mail) {
    former::watch(state);
    let node = Arc::clone(&state.borrow().node);
    let beat = &node.beats.node;
    loop {
        beat.end();
        tokio::select! {
            biased;
            message = mail.messages.recv() => match message {
                Some(ControlMsg::Stop) | None => return,
                Some(message) => {
                    beat.begin();
                    #[cfg(feature = "plant")]
                    crate::copy::plant::wedge(beat.part());
                    handle(state, message);
                }
            },
            Some(knock) = mail.knocks.recv() => {
                beat.begin();
                let me = Rc::clone(state);
                actix::spawn(async move {
                    let within = me.borrow().node.deadlines.connect;
                    let role = Role::Acceptor {
                        number: None,
                        from: Some(knock.gates),
                    };
                    let greeted = greet::greet(&me, Conn::Pipe(knock.pipe), role);
                    greet::log_accepted(&me, None, tokio::time::timeout(within, greeted).await);
                });
            }
            Some(event) = mail.events.recv() => {
                beat.begin();
                dial::data_event(state, event);
            }
        }
    }
}

fn handle(state: &Shared, message: ControlMsg) {
    match message {
        ControlMsg::Connect { address, reply } => {
            let state = Rc::clone(state);
            actix::spawn(async move {
                let _ = reply.send(dial::connect(&state, &address).await);
            });
        }
        ControlMsg::Disconnect {
            peer,
            reason,
            reply,
        } => {
            let mut state = state.borrow_mut();
            let Some(known) = state.peers.values_mut().find(|k| k.info.peer == peer) else {
                return;
            };
            known.sent_away = true;
            let given_up = known.addr.send(GiveUp {
                reason,
                bye: None,
                for_good: false,
            });
            let name = known.info.name.clone();
            state.kept.retain(|_, kept| kept.name != name);
            // Whoever connects after this gets a new session and not the one that is going.
            actix::spawn(async move {
                let _ = given_up.await;
                let _ = reply.send(());
            });
        }
        ControlMsg::AddPool { pool, reply } => {
            let node = Arc::clone(&state.borrow().node);
            if let Some(Ok(ucx)) = node.ucx.clone() {
                let (state, pool) = (Rc::clone(state), pool);
                // Peers are told with it how it is written.
                actix::spawn(async move {
                    register(&node, &ucx, &pool).await;
                    let added = add_pool(&mut state.borrow_mut(), pool);
                    former::watch(&state);
                    let _ = reply.send(added);
                });
                return;
            }
            let added = add_pool(&mut state.borrow_mut(), pool);
            former::watch(state);
            let _ = reply.send(added);
        }
        ControlMsg::RetirePool { name, reply } => {
            let _ = reply.send(retire_pool(&mut state.borrow_mut(), &name));
        }
        ControlMsg::Peers { reply } => {
            let infos = state
                .borrow()
                .peers
                .values()
                .map(|k| k.info.clone())
                .collect();
            let _ = reply.send(infos);
        }
        ControlMsg::Ask => {
            let state = state.borrow();
            let up = state.peers.values().filter(|k| k.is_up());
            let asked = up.map(|known| {
                let beat = Arc::clone(&known.beat);
                if beat.ask() {
                    known.addr.do_send(IsThere(Arc::clone(&beat)));
                }
                beat
            });
            let beats = &state.node.beats;
            beats.set_sessions(asked.collect());
            // Last: who sees the answer sees which sessions there are.
            beats.node.answer();
        }
        ControlMsg::Stop => {}
    }
}

fn add_pool(state: &mut State, pool: Pool) -> Result<PoolId, PoolChangeError> {
    let pools = state.pools.borrow().clone();
    let name = pool.layout().name.clone();
    if pools.named(&name).is_some() {
        return Err(PoolChangeError::NameTaken(name));
    }
    if pools.pools.len() >= hello::MAX_POOLS || state.next_pool == u16::MAX {
        return Err(PoolChangeError::TooMany(hello::MAX_POOLS));
    }
    let id = PoolId(state.next_pool);
    state.next_pool += 1;
    let layout = (**pool.layout()).clone();
    let content = pool.content().map(|c| Box::new((**c).clone()));
    let far = state.far_key(&pool);
    state.node.claims.add_pool(&pool);
    let mut next = (*pools).clone();
    next.pools.push(NamedPool { id, pool });
    state.pools.send_replace(Arc::new(next));
    let added = Body::PoolAdded {
        pool: id,
        layout,
        content,
        far,
    };
    tell_peers(state, added);
    Ok(id)
}

fn retire_pool(state: &mut State, name: &str) -> Result<Pool, PoolChangeError> {
    let pools = state.pools.borrow().clone();
    let Some(at) = pools
        .pools
        .iter()
        .position(|p| p.pool.layout().name == name)
    else {
        return Err(PoolChangeError::Unknown(name.to_owned()));
    };
    let mut next = (*pools).clone();
    let NamedPool { id, pool } = next.pools.remove(at);
    pool.retire();
    state.pools.send_replace(Arc::new(next));
    tell_peers(state, Body::PoolRetired { pool: id });
    Ok(pool)
}

fn tell_peers(state: &State, body: Body) {
    for known in state.peers.values() {
        known.addr.do_send(PoolsChanged(vec![body.clone()]));
    }
}
