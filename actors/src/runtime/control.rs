//! The node's own task: peers come and go through it, pools change through it, it stops the rest.

use super::hub::{Door, Knock, LocalHub};
use super::shared::{NamedPool, NodeShared, Pools};
use crate::fabric::PeerRoute;
use crate::ids::{Incarnation, PeerRef, PoolId};
use crate::memory::{GateTable, Pool};
use crate::peer::actor::{Attach, GiveUp, PeerActor, PeerState, PoolsChanged};
use crate::peer::hello::{self, Capabilities, Hello, Offer, Protocols};
use crate::peer::message::Body;
use crate::peer::pipe::{PipeEnd, pipe};
use crate::peer::wire::{self, Greeting, GreetingReader};
use crate::reason::{Code, Reason};
use crate::supervisor::actor::Shard;
use actix::{Actor, Addr, ArbiterHandle};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};

/// How long a greeting may take.
const GREETING: Duration = Duration::from_secs(5);

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
}

/// Why there is no session.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// The address cannot be read.
    #[error("{0:?} is no address: use local://NAME")]
    BadAddress(String),
    /// The node is in no hub.
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
    /// One side refused the other.
    #[error("node {name:?}: {why}")]
    Refused {
        /// The other node.
        name: String,
        /// Why, in the words of whoever refused.
        why: String,
    },
    /// The other node did not answer the greeting.
    #[error("node {name:?} did not answer within {after:?}")]
    Silent {
        /// The other node.
        name: String,
        /// How long it was waited for.
        after: Duration,
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
    Stop,
}

pub(crate) struct Known {
    pub(crate) info: PeerInfo,
    pub(crate) addr: Addr<PeerActor>,
    /// Of that life; another life has others.
    gates: Arc<GateTable>,
}

pub(crate) struct State {
    pub(crate) node: Arc<NodeShared>,
    pub(crate) hub: Option<LocalHub>,
    pub(crate) shards: Vec<(Addr<Shard>, ArbiterHandle)>,
    pub(crate) peers: BTreeMap<String, Known>,
    /// Names that this node is connecting to.
    connecting: Vec<String>,
    /// Names that are connecting to this node.
    answering: Vec<String>,
    next_peer: u32,
    pools: watch::Sender<Arc<Pools>>,
    next_pool: u16,
    pub(crate) stopping: bool,
}

/// The state, on the one thread that has it; never borrowed across an await.
pub(crate) type Shared = Rc<RefCell<State>>;

impl State {
    pub(crate) fn new(
        node: Arc<NodeShared>,
        hub: Option<LocalHub>,
        shards: Vec<(Addr<Shard>, ArbiterHandle)>,
        pools: watch::Sender<Arc<Pools>>,
    ) -> Shared {
        let next_pool = pools.borrow().pools.len() as u16;
        Rc::new(RefCell::new(State {
            node,
            hub,
            shards,
            peers: BTreeMap::new(),
            connecting: Vec::new(),
            answering: Vec::new(),
            next_peer: 0,
            pools,
            next_pool,
            stopping: false,
        }))
    }

    fn greeting(&self) -> Greetings {
        let pools = self.pools.borrow();
        let mut nonce = [0; 32];
        for part in nonce.as_chunks_mut().0 {
            *part = crate::runtime::thread::random().to_le_bytes();
        }
        let hello = Hello {
            protocols: Protocols::MINE,
            node: self.node.name.clone(),
            incarnation: self.node.incarnation,
            nonce,
            capabilities: Capabilities::QUIESCENCE.and(Capabilities::CHECKSUM),
            keyed: false,
        };
        let offer = Offer {
            pools: pools
                .pools
                .iter()
                .map(|p| (p.id, (**p.pool.layout()).clone()))
                .collect(),
            credit: self.node.limits.claims_per_peer,
            resume: None,
            received: 0,
            token: 0,
        };
        Greetings { hello, offer }
    }

    /// What has become of this node's pools since this greeting was written.
    fn pools_since(&self, greeting: &Offer) -> Vec<Body> {
        let pools = self.pools.borrow();
        let said = |id: PoolId| greeting.pools.iter().any(|(said, _)| *said == id);
        let there = |id: PoolId| pools.pools.iter().any(|p| p.id == id);
        let added = pools.pools.iter().filter(|p| !said(p.id));
        let added = added.map(|p| Body::PoolAdded {
            pool: p.id,
            layout: (**p.pool.layout()).clone(),
        });
        let retired = greeting.pools.iter().filter(|(id, _)| !there(*id));
        let retired = retired.map(|(pool, _)| Body::PoolRetired { pool: *pool });
        added.chain(retired).collect()
    }

    /// The peer of this greeting; a new life of it is a new peer.
    fn peer(&mut self, theirs: &Hello, gates: &Arc<GateTable>) -> (PeerInfo, Addr<PeerActor>) {
        if let Some(known) = self.peers.get(&theirs.node) {
            if known.info.incarnation == theirs.incarnation {
                return (known.info.clone(), known.addr.clone());
            }
            known.addr.do_send(GiveUp {
                reason: Reason::new(
                    Code::PeerRestarted,
                    format!("node {:?} came back as a newer incarnation", theirs.node),
                ),
                bye: None,
                for_good: true,
            });
        }
        let peer = PeerRef(self.next_peer);
        self.next_peer += 1;
        let (state_tx, state) = watch::channel(PeerState::Down("not yet connected".into()));
        let info = PeerInfo {
            peer,
            name: theirs.node.clone(),
            incarnation: theirs.incarnation,
            state,
        };
        let shards: Vec<_> = self.shards.iter().map(|(addr, _)| addr.clone()).collect();
        let arbiter = &self.shards[peer.0 as usize % self.shards.len()].1;
        let (node, name, incarnation) = (self.node.clone(), info.name.clone(), info.incarnation);
        let addr = PeerActor::start_in_arbiter(arbiter, move |_| {
            PeerActor::new(peer, node, name, incarnation, shards, state_tx)
        });
        let known = Known {
            info: info.clone(),
            addr: addr.clone(),
            gates: Arc::clone(gates),
        };
        // An older life's actor is let go of; it stops when the shards have let go of it too.
        self.peers.insert(theirs.node.clone(), known);
        (info, addr)
    }
}

/// Serves until told to stop, or until every handle of the node is gone.
pub(crate) async fn serve(
    state: &Shared,
    mut messages: mpsc::Receiver<ControlMsg>,
    mut knocks: mpsc::Receiver<Knock>,
) {
    loop {
        tokio::select! {
            biased;
            message = messages.recv() => match message {
                Some(ControlMsg::Stop) | None => return,
                Some(message) => handle(state, message),
            },
            Some(knock) = knocks.recv() => {
                let state = Rc::clone(state);
                actix::spawn(async move { answer(state, knock).await });
            }
        }
    }
}

fn handle(state: &Shared, message: ControlMsg) {
    match message {
        ControlMsg::Connect { address, reply } => {
            let state = Rc::clone(state);
            actix::spawn(async move {
                let _ = reply.send(connect(state, &address).await);
            });
        }
        ControlMsg::Disconnect {
            peer,
            reason,
            reply,
        } => {
            let state = state.borrow();
            if let Some(known) = state.peers.values().find(|k| k.info.peer == peer) {
                let given_up = known.addr.send(GiveUp {
                    reason,
                    bye: None,
                    for_good: false,
                });
                // Whoever connects after this gets a new session and not the one that is going.
                actix::spawn(async move {
                    let _ = given_up.await;
                    let _ = reply.send(());
                });
            }
        }
        ControlMsg::AddPool { pool, reply } => {
            let _ = reply.send(add_pool(&mut state.borrow_mut(), pool));
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
    let mut next = (*pools).clone();
    next.pools.push(NamedPool { id, pool });
    state.pools.send_replace(Arc::new(next));
    tell_peers(state, Body::PoolAdded { pool: id, layout });
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

async fn connect(state: Shared, address: &str) -> Result<PeerInfo, ConnectError> {
    let Some(name) = address.strip_prefix("local://").filter(|n| !n.is_empty()) else {
        return Err(ConnectError::BadAddress(address.to_owned()));
    };
    let until = tokio::time::Instant::now() + GREETING;
    loop {
        if let Some(info) = try_connect(&state, name).await? {
            return Ok(info);
        }
        if tokio::time::Instant::now() >= until {
            return Err(ConnectError::Silent {
                name: name.to_owned(),
                after: GREETING,
            });
        }
        tokio::time::sleep(AGAIN).await;
    }
}

/// How soon a connection is tried again that met another one between the same two nodes.
const AGAIN: Duration = Duration::from_millis(2);

/// The session there is, or a new one. None while another connection to the same node is being
/// made, or the other node has not noticed yet that the last one is gone.
async fn try_connect(state: &Shared, name: &str) -> Result<Option<PeerInfo>, ConnectError> {
    let (door, mine, gates) = {
        let mut state = state.borrow_mut();
        if state.stopping {
            return Err(ConnectError::Stopped);
        }
        // A node that came back may be there before the old life's goodbye was read.
        let there = state.hub.as_ref().and_then(|hub| hub.door(name));
        if let Some(known) = state.peers.get(name)
            && *known.info.state.borrow() == PeerState::Up
            && there.is_none_or(|door| Arc::ptr_eq(&door.gates, &known.gates))
        {
            return Ok(Some(known.info.clone()));
        }
        let is_it = |n: &String| n == name;
        if state.connecting.iter().any(is_it) || state.answering.iter().any(is_it) {
            return Ok(None);
        }
        let hub = state.hub.as_ref().ok_or(ConnectError::NoHub)?;
        let door = hub.door(name).ok_or_else(|| ConnectError::Unknown {
            name: name.to_owned(),
            there: hub.names().join(", "),
        })?;
        state.connecting.push(name.to_owned());
        (door, state.greeting(), Arc::clone(&state.node.gates))
    };
    let result = dial(state, name, door, mine, gates).await;
    state.borrow_mut().connecting.retain(|n| n != name);
    match result {
        Err(ConnectError::Refused { why, .. }) if why == CROSSED => Ok(None),
        other => other.map(Some),
    }
}

/// What the side says that has, or makes, another connection to the same node.
const CROSSED: &str = "both nodes connected at once";

async fn dial(
    state: &Shared,
    name: &str,
    door: Door,
    mine: Greetings,
    gates: Arc<GateTable>,
) -> Result<PeerInfo, ConnectError> {
    let (mut near, far) = pipe();
    let silent = || ConnectError::Silent {
        name: name.to_owned(),
        after: GREETING,
    };
    door.knock
        .send(Knock { pipe: far, gates })
        .await
        .map_err(|_| ConnectError::Unknown {
            name: name.to_owned(),
            there: "(it has just left)".into(),
        })?;
    let theirs = greet(&mut near, &mine, name).await?.ok_or_else(silent)?;
    finish(state, near, mine, theirs, door.gates, name).await
}

/// What one side says of itself.
struct Greetings {
    hello: Hello,
    offer: Offer,
}

/// The other side of a connection.
async fn answer(state: Shared, knock: Knock) {
    let mine = state.borrow().greeting();
    let Knock {
        pipe: mut near,
        gates,
    } = knock;
    let Ok(Some(theirs)) = greet(&mut near, &mine, "(unknown)").await else {
        return;
    };
    let name = theirs.hello.node.clone();
    let crossed = {
        let mut state = state.borrow_mut();
        let up = state.peers.get(&name).is_some_and(|k| {
            k.info.incarnation == theirs.hello.incarnation
                && *k.info.state.borrow() == PeerState::Up
        });
        let ours_stays =
            state.connecting.contains(&name) && mine.hello.incarnation < theirs.hello.incarnation;
        let crossed = up || ours_stays || state.answering.contains(&name);
        if !crossed {
            state.answering.push(name.clone());
        }
        crossed
    };
    if crossed {
        let _ = near.tx.send(CROSSED.as_bytes().to_vec()).await;
        return;
    }
    if let Err(error) = finish(&state, near, mine, theirs, gates, &name).await {
        tracing::warn!(%error, "a connection was refused");
    }
    state.borrow_mut().answering.retain(|n| *n != name);
}

/// Exchanges greetings; none if the other side stays silent.
async fn greet(
    pipe: &mut PipeEnd,
    mine: &Greetings,
    name: &str,
) -> Result<Option<Greetings>, ConnectError> {
    let refused = |why: String| ConnectError::Refused {
        name: name.to_owned(),
        why,
    };
    let mut bytes = Vec::new();
    let (hello, offer) = (mine.hello.clone(), mine.offer.clone());
    wire::encode_first_greeting(&Greeting::Hello(hello), &mut bytes)
        .and_then(|()| wire::encode_greeting(&Greeting::Offer(offer), &mut bytes))
        .map_err(|e| refused(e.to_string()))?;
    if pipe.tx.send(bytes).await.is_err() {
        return Ok(None);
    }
    let Ok(Some(bytes)) = tokio::time::timeout(GREETING, pipe.rx.recv()).await else {
        return Ok(None);
    };
    let (mut reader, mut bytes) = (GreetingReader::default(), bytes.as_slice());
    let first = reader.first(&mut bytes);
    let first = first.map_err(|e| refused(e.to_string()))?;
    let second = reader.next(&mut bytes, wire::OFFER_BYTES);
    let second = second.map_err(|e| refused(e.to_string()))?;
    match (first, second) {
        (Some((Greeting::Hello(hello), _)), Some(Greeting::Offer(offer))) => {
            Ok(Some(Greetings { hello, offer }))
        }
        _ => Ok(None),
    }
}

/// Agrees, or says why not; then the peer's actor takes the pipe over.
async fn finish(
    state: &Shared,
    mut pipe: PipeEnd,
    mine: Greetings,
    theirs: Greetings,
    gates: Arc<GateTable>,
    name: &str,
) -> Result<PeerInfo, ConnectError> {
    let refused = |why: String| ConnectError::Refused {
        name: name.to_owned(),
        why,
    };
    let known = state
        .borrow()
        .peers
        .get(&theirs.hello.node)
        .map(|k| k.info.incarnation);
    let verdict = hello::accept(
        (&mine.hello, &mine.offer),
        (&theirs.hello, &theirs.offer),
        known,
    );
    let word = match &verdict {
        Ok(_) => b"ok".to_vec(),
        Err(refusal) => refusal.to_string().into_bytes(),
    };
    let _ = pipe.tx.send(word).await;
    if let Err(refusal) = verdict {
        return Err(refused(refusal.to_string()));
    }
    match tokio::time::timeout(GREETING, pipe.rx.recv()).await {
        Ok(Some(word)) if word == b"ok" => {}
        Ok(Some(word)) => return Err(refused(String::from_utf8_lossy(&word).into_owned())),
        _ => {
            return Err(ConnectError::Silent {
                name: name.to_owned(),
                after: GREETING,
            });
        }
    }
    let (info, addr, changes) = {
        let mut state = state.borrow_mut();
        if state.stopping {
            return Err(ConnectError::Stopped);
        }
        let (info, addr) = state.peer(&theirs.hello, &gates);
        (info, addr, state.pools_since(&mine.offer))
    };
    let our_window = mine.offer.credit;
    let attach = Attach {
        pipe,
        theirs: theirs.offer,
        our_window,
        route: PeerRoute::Local(gates),
    };
    let attached = addr.send(attach);
    // Behind the transport, and before anybody is told that it is there.
    addr.do_send(PoolsChanged(changes));
    attached.await.map_err(|_| ConnectError::Stopped)?;
    Ok(info)
}
