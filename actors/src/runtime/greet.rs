//! Greetings: one state machine over a socket or a pipe, and what its end means for the peers.
//!
//! ```text
//!   dial ──┐                                        ┌─▶ peer's actor: Attach (it decides, or hears Go)
//!          ├─▶ Handshake ─▶ Known ─▶ offer ─▶ Accepted
//!   accept ┘        └─▶ Data: a data connection of a session that there is, named by its token
//! ```
//!
//! The lower incarnation decides, in its peer's actor, in one step: this transport is taken and `Go`
//! goes out in front of its first frame, or it is `Crossed`. A dialer never offers while it has a
//! session that is up, so that a greeting which names the session of the other side says that its
//! transport is lost.

use super::address::Address;
use super::control::{PeerInfo, Shared};
use super::hub::Door;
use super::link::{self, Linked, MOST_FDS, Ours, RemotePools};
use super::peers::Data;
use super::shared::{NamedPool, NodeShared, Pools};
use super::wired;
use crate::copy::device_lane::Device;
use crate::copy::schedule::Class;
use crate::fabric::PeerRoute;
use crate::fabric::shm::ShmRoute;
use crate::fabric::stream::Stream;
use crate::fabric::tcp::{DataConnection, tune};
use crate::fabric::ucx::{UcxEnd, UcxRoute};
use crate::ids::Incarnation;
use crate::memory::GateTable;
use crate::peer::actor::{
    Attach, Attached, PoolsChanged, RouteWish, Standing, UcxWish, WhereStands,
};
use crate::peer::handshake::{Handshake, HandshakeError, Step};
use crate::peer::hello::{
    Accepted, Capabilities, Hello, Link, Offer, RefusalCode, SessionId, Start, same_host,
    share_memory,
};
use crate::peer::pipe::PipeEnd;
use crate::peer::transport::{Connection, RingConnection};
use crate::peer::wire::{
    DataHello, Greeting, GreetingReader, OFFER_BYTES, Verdict, encode_greeting,
};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::Interest;
use tokio::time::Instant;
use tokio::time::error::Elapsed;

/// How soon something is looked at again that another greeting is about to change.
pub(crate) const AGAIN: Duration = Duration::from_millis(2);
/// Bytes read at once while greeting: more than a whole greeting without pools.
const READ: usize = 2 << 10;
/// Data connections for large pieces that a session can have: what [`Net::connections`] may say.
///
/// [`Net::connections`]: super::net::Net::connections
const MOST_CONNECTIONS: u16 = 64;

/// A connection that is not greeted yet, on the node's own thread.
#[derive(Debug)]
pub(crate) enum Conn {
    Pipe(PipeEnd),
    Socket(Stream),
}

/// Which end of it this node is.
pub(crate) enum Role {
    /// It made the connection: to here, and whether somebody asked for it.
    Dialer {
        to: To,
        by_itself: bool,
        /// Stay with this connection, though the node be on this host.
        far: bool,
    },
    /// The other node made it. The number is its place among the greetings.
    Acceptor {
        number: Option<u64>,
        from: Option<Arc<GateTable>>,
    },
}

/// Where a connection was made to.
pub(crate) enum To {
    Door(Door),
    /// The address, and as whoever asked for it wrote it.
    Address(Address, String),
}

/// What has come and was not read yet.
#[derive(Default)]
struct Got {
    bytes: Vec<u8>,
    /// Descriptors; kept only from a peer that has proven to be one.
    fds: Vec<OwnedFd>,
    keep_fds: bool,
    /// What comes behind the greeting is for the ring's socket: nothing of it may be read here.
    not_beyond: bool,
}

/// What a greeting led to.
#[derive(Debug)]
pub(crate) enum Greeted {
    /// A session.
    Up(PeerInfo),
    /// The session that there was already, under another address.
    There(PeerInfo),
    /// Another connection to the same node is, or is about to be, its session.
    Crossed,
    /// A data connection, which has been handed over.
    Data,
    /// The node is on this host, and is reached by this Unix socket.
    Nearer(String),
}

/// Why a greeting failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum GreetError {
    #[error("the connection broke: {0}")]
    Lost(String),
    #[error(transparent)]
    Handshake(#[from] HandshakeError),
    /// One of both does not want the other.
    #[error("{text}")]
    Refused { code: RefusalCode, text: String },
    #[error("this node is shutting down")]
    Stopped,
    /// One of both has disconnected on purpose, and nobody has asked for this connection.
    #[error("the session was given up on purpose: connect again if that is wanted")]
    Parted,
    #[error("a data connection names no session of this node")]
    Token,
    /// A peer on this host shares other things than it says.
    #[error(
        "memory cannot be shared with the peer: {0}; with NodeBuilder::shm(false) on one side sockets are used"
    )]
    Link(String),
}

impl GreetError {
    /// Whether it may be otherwise in a moment, though nobody changes anything.
    pub(crate) fn is_passing(&self) -> bool {
        match self {
            GreetError::Lost(_) => true,
            GreetError::Handshake(error) => error.fault().is_none(),
            GreetError::Refused { code, .. } => *code == RefusalCode::Busy,
            GreetError::Stopped | GreetError::Parted | GreetError::Token | GreetError::Link(_) => {
                false
            }
        }
    }

    /// What the other side is told.
    fn refusal(&self) -> (RefusalCode, String) {
        match self {
            GreetError::Refused { code, text } => (*code, text.clone()),
            GreetError::Stopped => (RefusalCode::Stopping, "that node is shutting down".into()),
            other => (RefusalCode::Other, other.to_string()),
        }
    }
}

/// What is said of a connection that the other side has closed.
const CLOSED: &str = "the other side closed it";

impl Conn {
    pub(crate) async fn send(&mut self, mut bytes: &[u8]) -> Result<(), GreetError> {
        match self {
            Conn::Pipe(pipe) => {
                let closed = |_| GreetError::Lost(CLOSED.into());
                pipe.tx.send(bytes.to_vec()).await.map_err(closed)
            }
            Conn::Socket(stream) => {
                while !bytes.is_empty() {
                    match stream.try_write(bytes) {
                        Ok(n) => bytes = &bytes[n..],
                        Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                            stream.ready(Interest::WRITABLE).await.map_err(lost)?;
                        }
                        Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                        Err(e) => return Err(lost(e)),
                    }
                }
                Ok(())
            }
        }
    }

    /// Appends what comes next.
    async fn receive(&mut self, into: &mut Got) -> Result<(), GreetError> {
        let closed = || GreetError::Lost(CLOSED.into());
        match self {
            Conn::Pipe(pipe) => {
                into.bytes.extend(pipe.rx.recv().await.ok_or_else(closed)?);
                Ok(())
            }
            Conn::Socket(stream) => loop {
                stream.ready(Interest::READABLE).await.map_err(lost)?;
                let mut buffer = [0; READ];
                // One word of a few bytes is left to come.
                let most = if into.not_beyond { 1 } else { READ };
                let buffer = &mut buffer[..most];
                let read = match stream {
                    Stream::Unix(_) => stream.try_io(Interest::READABLE, || {
                        crate::memory::recv_with_fds(stream.as_fd(), buffer, MOST_FDS)
                    }),
                    Stream::Tcp(_) => stream.try_read(buffer).map(|n| (n, Vec::new())),
                };
                match read {
                    Ok((0, _)) => return Err(closed()),
                    Ok((n, fds)) => {
                        into.bytes.extend_from_slice(&buffer[..n]);
                        if into.keep_fds && into.fds.len() + fds.len() <= MOST_FDS {
                            into.fds.extend(fds);
                        }
                        return Ok(());
                    }
                    Err(e) => match e.kind() {
                        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                        _ => return Err(lost(e)),
                    },
                }
            },
        }
    }

    fn detach(self) -> Result<Connection, GreetError> {
        match self {
            Conn::Pipe(pipe) => Ok(Connection::Pipe(pipe)),
            Conn::Socket(stream) => stream.detach().map(Connection::Socket).map_err(lost),
        }
    }

    /// Apart, with the ring that was agreed on.
    fn detach_with(
        self,
        linked: Option<Linked>,
    ) -> Result<(Connection, Option<ShmRoute>, RemotePools), GreetError> {
        let connection = self.detach()?;
        match (connection, linked) {
            (Connection::Socket(socket), Some(linked)) => {
                let connection = Connection::Ring(Box::new(RingConnection {
                    socket,
                    ring: linked.ring,
                    bell: linked.bell,
                    theirs: linked.theirs,
                }));
                Ok((connection, linked.route, linked.pools))
            }
            (connection, _) => Ok((connection, None, RemotePools::new())),
        }
    }

    fn attach(connection: Connection) -> io::Result<Conn> {
        match connection {
            Connection::Pipe(pipe) => Ok(Conn::Pipe(pipe)),
            Connection::Socket(socket) => socket.attach().map(Conn::Socket),
            // What was said over its ring is not said any more.
            Connection::Ring(ring) => ring.socket.attach().map(Conn::Socket),
        }
    }
}

fn lost(error: io::Error) -> GreetError {
    GreetError::Lost(error.to_string())
}

/// What this node's offer was, to be compared with what is there when the greeting ends.
struct Mine {
    offer: Offer,
    /// Its end of what may come of UCX.
    end: Option<UcxEnd>,
    theirs: Hello,
    /// Kept while a data connection may come that names it.
    _token: Pending,
}

/// A token that was offered and belongs to no session yet.
struct Pending {
    state: Shared,
    token: u128,
}

impl Drop for Pending {
    fn drop(&mut self) {
        self.state.borrow_mut().pending.remove(&self.token);
    }
}

/// Greets to the end. Bounded by whoever polls it.
pub(crate) async fn greet(
    state: &Shared,
    mut conn: Conn,
    role: Role,
) -> Result<Greeted, GreetError> {
    let (hello, key) = {
        let state = state.borrow();
        let hello = state.hello(&role);
        (
            hello.map_err(|e| GreetError::Lost(e.to_string()))?,
            state.node.net.key.clone(),
        )
    };
    let mut handshake = match &role {
        Role::Dialer { .. } => Handshake::dialer(hello, key),
        Role::Acceptor { .. } => Handshake::acceptor(hello, key),
    };
    let mut out = Vec::new();
    handshake.start(&mut out)?;
    let mut got = Got::default();
    let mut mine: Option<Mine> = None;
    let mut agreed: Option<(Offer, Accepted)> = None;
    let (mut linked, mut far): (Option<Linked>, Option<UcxRoute>) = (None, None);
    loop {
        let mut rest = got.bytes.as_slice();
        let step = if out.is_empty() {
            handshake.take(&mut rest, &mut out)
        } else {
            Ok(Step::More)
        };
        let taken = got.bytes.len() - rest.len();
        got.bytes.drain(..taken);
        if !out.is_empty() {
            let sent = conn.send(&out).await;
            out.clear();
            // What speaks against the other side says more than that it has gone.
            if step.is_ok() {
                sent?;
            }
        }
        match step? {
            Step::More => match conn.receive(&mut got).await {
                Err(GreetError::Lost(why)) if why == CLOSED => {
                    return Err(handshake.closed().into());
                }
                received => received?,
            },
            Step::Known(theirs) => match offer(state, &role, &theirs).await {
                Ok(Ok((offer, end, known))) => {
                    got.keep_fds = true;
                    handshake.offer(offer.clone(), known, &mut out)?;
                    state.borrow_mut().pending.insert(offer.token);
                    mine = Some(Mine {
                        _token: Pending {
                            state: Rc::clone(state),
                            token: offer.token,
                        },
                        offer,
                        end,
                        theirs,
                    });
                    conn.send(&out).await?;
                    out.clear();
                }
                Ok(Err(there)) => return Ok(there),
                Err(error) => {
                    let (code, text) = error.refusal();
                    handshake.refuse(code, &text, &mut out)?;
                    let _ = conn.send(&out).await;
                    return Err(error);
                }
            },
            Step::Accepted {
                offer,
                accepted,
                decider,
                ..
            } => {
                if let Some(ours) = &mut mine
                    && matches!(accepted.start, Start::Fresh { .. })
                {
                    far = wire(state, &mut conn, &mut got, ours, &offer).await?;
                }
                if far.is_some() {
                    // What one of both asked for, or what they do not share memory for.
                } else if let Some(ours) = &mine
                    && share_memory(&ours.offer, &offer)
                {
                    if let Some(socket) = nearer(&role, &conn, &offer) {
                        return Ok(Greeted::Nearer(socket));
                    }
                    let both = (&ours.offer, &*offer);
                    linked = share(state, &mut conn, &mut got, both, &accepted, decider).await?;
                    got.not_beyond = linked.is_some();
                } else if let Some(ours) = &mine
                    && same_host(&ours.offer, &offer)
                {
                    // What is on devices goes straight from process to process only if the kernel says who
                    // is at the other end.
                    if accepted.capabilities.has(Capabilities::HANDED)
                        && hands_over(&state.borrow().pools.borrow())
                        && let Some(socket) = nearer(&role, &conn, &offer)
                    {
                        return Ok(Greeted::Nearer(socket));
                    }
                    tracing::info!(
                        node = state.borrow().node.name,
                        peer = ours.theirs.node,
                        "both nodes are on one host, and neither has shared pools only: bytes go over sockets"
                    );
                }
                agreed = Some((*offer, accepted));
                if decider {
                    let agreed = mine.zip(agreed);
                    let ways = (linked, far);
                    break attach(state, conn, got.bytes, role, agreed, ways, true).await;
                }
            }
            Step::Go => {
                let agreed = mine.zip(agreed);
                let ways = (linked, far);
                break attach(state, conn, got.bytes, role, agreed, ways, false).await;
            }
            Step::Crossed => return Ok(Greeted::Crossed),
            Step::Refused { code, text } => return Err(GreetError::Refused { code, text }),
            Step::Data(data) => break accept_data(state, conn, got.bytes, data).await,
        }
    }
}

/// Whether a pool is on a device that hands pages to other processes.
fn hands_over(pools: &Pools) -> bool {
    let devices = pools.pools.iter().filter_map(|named| named.pool.device());
    devices.into_iter().any(Device::is_between_processes)
}

/// Whether what is on a device can be handed to this peer; why not.
fn near(
    node: &NodeShared,
    conn: &Conn,
    (mine, theirs): (&Offer, &Offer),
    accepted: &Accepted,
) -> Result<(), String> {
    if !same_host(mine, theirs) {
        return Err("the two nodes are not known to be on one host".into());
    }
    if !accepted.capabilities.has(Capabilities::HANDED) {
        return Err("the other node does not know of handed frames".into());
    }
    match conn {
        Conn::Socket(stream) => link::may_share(node, stream).map(|_| ()),
        Conn::Pipe(_) => Err("the other node is in this process".into()),
    }
}

/// The Unix socket of a node on this host, if it was connected to by TCP and may be so otherwise.
fn nearer(role: &Role, conn: &Conn, offer: &Offer) -> Option<String> {
    let Role::Dialer {
        to: To::Address(_, _),
        far: false,
        ..
    } = role
    else {
        return None;
    };
    match conn {
        Conn::Socket(Stream::Tcp(_)) => offer.host.as_ref()?.socket.clone(),
        _ => None,
    }
}

/// Passes what both sides share, if both will. Both get to know of each other whether they do.
async fn share(
    state: &Shared,
    conn: &mut Conn,
    got: &mut Got,
    (mine, offer): (&Offer, &Offer),
    accepted: &Accepted,
    decider: bool,
) -> Result<Option<Linked>, GreetError> {
    let Conn::Socket(stream) = conn else {
        return Ok(None);
    };
    if matches!(stream, Stream::Tcp(_)) {
        return Ok(None);
    }
    let fresh = matches!(accepted.start, Start::Fresh { .. });
    let (node, pools) = {
        let state = state.borrow();
        // Those that were offered: what came since is announced, with its descriptor, in the session.
        let mut pools = (**state.pools.borrow()).clone();
        let offered = |p: &NamedPool| mine.pools.iter().any(|(id, _)| *id == p.id);
        pools.pools.retain(offered);
        (Arc::clone(&state.node), Arc::new(pools))
    };
    let on_device = fresh && link::on_device(&pools).is_some();
    let ours = link::may_share(&node, stream).and_then(|peer| {
        let ours = Ours::make(&node, &peer, fresh, decider, pools)?;
        Ok((peer, ours))
    });
    let mut out = Vec::new();
    let encode = |link, out: &mut Vec<u8>| {
        encode_greeting(&Greeting::Link(link), out).map_err(HandshakeError::from)
    };
    match &ours {
        Ok((_, ours)) => {
            let (said, fds) = ours.message();
            encode(said, &mut out)?;
            link::send(stream, &out, &fds).await?;
        }
        Err(_) => {
            let none = Link {
                willing: false,
                table: None,
                ring: false,
                pools: Vec::new(),
            };
            encode(none, &mut out)?;
            link::send(stream, &out, &[]).await?;
        }
    }
    let theirs = match next(conn, got).await? {
        Greeting::Link(theirs) => theirs,
        other => {
            let text = format!("{} came in place of Link", other.name());
            return Err(GreetError::Link(text));
        }
    };
    let (name, fds) = (&node.name, std::mem::take(&mut got.fds));
    got.keep_fds = false;
    match ours {
        Ok((peer, ours)) if theirs.willing => ours
            .join(&peer, &theirs, offer, fds)
            .map(Some)
            .map_err(GreetError::Link),
        Ok(_) => {
            tracing::info!(
                node = name,
                "a peer on this host does not share memory; sockets are used"
            );
            Ok(None)
        }
        Err(why) if on_device => {
            tracing::info!(
                node = name,
                why,
                "no memory is shared with a peer on this host; sockets are used"
            );
            Ok(None)
        }
        Err(why) => {
            tracing::warn!(
                node = name,
                why,
                "no memory is shared with a peer on this host; sockets are used"
            );
            Ok(None)
        }
    }
}

/// What the other side says between the offers and the last word.
async fn next(conn: &mut Conn, got: &mut Got) -> Result<Greeting, GreetError> {
    let mut reader = GreetingReader::default();
    loop {
        let mut rest = got.bytes.as_slice();
        let read = reader.next(&mut rest, OFFER_BYTES);
        let taken = got.bytes.len() - rest.len();
        got.bytes.drain(..taken);
        match read.map_err(HandshakeError::from)? {
            Some(Greeting::Verdict(Verdict::Refused { code, text })) => {
                return Err(GreetError::Refused { code, text });
            }
            Some(said) => return Ok(said),
            None => conn.receive(got).await?,
        }
    }
}

/// Tries UCX, if both offers say so. Both get to know of each other what came of it.
async fn wire(
    state: &Shared,
    conn: &mut Conn,
    got: &mut Got,
    ours: &mut Mine,
    theirs: &Offer,
) -> Result<Option<UcxRoute>, GreetError> {
    let end = ours.end.take();
    let Some(tried) = wired::attempt(&ours.offer, theirs, end).await else {
        return Ok(None);
    };
    let mut out = Vec::new();
    encode_greeting(&Greeting::Wired(tried.said()), &mut out).map_err(HandshakeError::from)?;
    conn.send(&out).await?;
    let why = match next(conn, got).await? {
        Greeting::Wired(why) => why,
        other => {
            let text = format!("{} came in place of Wired", other.name());
            return Err(GreetError::Lost(text));
        }
    };
    let node = Arc::clone(&state.borrow().node);
    tried.with(why, &node.name, &ours.theirs.node)
}

/// What this node offers to a peer that has proven to be one; or what there is instead, if it dialed
/// a node that it has a session with by now.
async fn offer(
    state: &Shared,
    role: &Role,
    theirs: &Hello,
) -> Result<Result<(Offer, Option<UcxEnd>, Option<Incarnation>), Greeted>, GreetError> {
    let (known, addr) = {
        let mut state = state.borrow_mut();
        if state.stopping {
            return Err(GreetError::Stopped);
        }
        if let Role::Acceptor {
            number: Some(number),
            ..
        } = role
            && state.greetings.known(*number)
        {
            let stats = &state.node.stats;
            stats.add(&stats.greetings_put_out);
        }
        match state.peers.get(&theirs.node) {
            Some(known) if known.info.incarnation == theirs.incarnation => {
                let dialed = matches!(role, Role::Dialer { .. });
                if dialed && known.is_up() {
                    return Ok(Err(Greeted::There(known.info.clone())));
                }
                let by_itself = theirs.capabilities.has(Capabilities::BY_ITSELF);
                if !dialed && by_itself && known.sent_away {
                    return Err(GreetError::Refused {
                        code: RefusalCode::Parted,
                        text: format!(
                            "node {:?} has disconnected on purpose: connect again if that is wanted",
                            state.node.name
                        ),
                    });
                }
                (Some(known.info.incarnation), Some(known.addr.clone()))
            }
            Some(known) => (Some(known.info.incarnation), None),
            None => (None, None),
        }
    };
    let standing = match addr {
        Some(addr) => addr.send(WhereStands).await.unwrap_or_default(),
        None => Standing::default(),
    };
    if standing.up && matches!(role, Role::Dialer { .. }) {
        return Ok(Err(Greeted::Crossed));
    }
    let mut token = [0; 16];
    getrandom::fill(&mut token).map_err(|e| GreetError::Lost(e.to_string()))?;
    let local = match role {
        Role::Acceptor { from, .. } => from.is_some(),
        Role::Dialer { to, .. } => matches!(to, To::Door(_)),
    };
    let far = match local {
        true => None,
        false => wired::offer(state, theirs, standing.path_failed).await,
    };
    let (ucx, end) = far.unzip();
    let state = state.borrow();
    let host = match local {
        true => None,
        false => link::host(&state.node, state.near.as_deref()),
    };
    let pools = state.pools.borrow();
    let offer = Offer {
        host,
        pools: pools
            .pools
            .iter()
            .map(|p| (p.id, (**p.pool.layout()).clone()))
            .collect(),
        contents: (pools.pools.iter())
            .filter_map(|p| Some((p.id, (**p.pool.content()?).clone())))
            .collect(),
        credit: state.node.limits.claims_per_peer,
        resume: standing.session,
        received: standing.received,
        token: u128::from_le_bytes(token),
        ucx,
    };
    Ok(Ok((offer, end, known)))
}

/// What came of a connection that another node made.
pub(crate) fn log_accepted(
    state: &Shared,
    from: Option<SocketAddr>,
    greeted: Result<Result<Greeted, GreetError>, Elapsed>,
) {
    let mut state = state.borrow_mut();
    let node = &Arc::clone(&state.node).name;
    let from = from.map(tracing::field::display);
    match greeted {
        Ok(Ok(_)) => {}
        // Whoever connects and goes, or says nothing, is nobody's concern.
        Ok(Err(GreetError::Lost(_) | GreetError::Stopped)) | Err(_) => {
            tracing::debug!(
                node,
                from,
                ?greeted,
                "a connection was not greeted to the end"
            );
        }
        Ok(Err(error)) if error.is_passing() => {
            tracing::debug!(node, from, %error, "a connection was not greeted to the end");
        }
        Ok(Err(error)) => {
            state.count_refused();
            match state.refusals.add(Instant::now()) {
                Some(count) => {
                    tracing::warn!(node, from, %error, count, "a connection was refused");
                }
                None => tracing::debug!(node, from, %error, "a connection was refused"),
            }
        }
    }
}

/// Both accept. The peer's actor takes the connection over, or has another one.
async fn attach(
    state: &Shared,
    conn: Conn,
    read: Vec<u8>,
    role: Role,
    agreed: Option<(Mine, (Offer, Accepted))>,
    (linked, far): (Option<Linked>, Option<UcxRoute>),
    decider: bool,
) -> Result<Greeted, GreetError> {
    let Some((mine, (offer, accepted))) = agreed else {
        return Err(GreetError::Lost("a greeting without offers".into()));
    };
    let node = Arc::clone(&state.borrow().node);
    let near = near(&node, &conn, (&mine.offer, &offer), &accepted);
    let (connection, shm, remote) = conn.detach_with(linked)?;
    let mut go = Vec::new();
    if decider {
        encode_greeting(&Greeting::Verdict(Verdict::Go), &mut go).map_err(HandshakeError::from)?;
    }
    let dialed = matches!(role, Role::Dialer { .. });
    let is_fresh = matches!(accepted.start, Start::Fresh { .. });
    let (info, addr, changes, route) = {
        let mut state = state.borrow_mut();
        if state.stopping {
            return Err(GreetError::Stopped);
        }
        let (info, addr) = match state.peer(&mine.theirs) {
            Ok(known) => {
                if let Role::Dialer { by_itself, .. } = &role
                    && *by_itself
                    && known.parted()
                {
                    return Err(GreetError::Parted);
                }
                let by_itself = mine.theirs.capabilities.has(Capabilities::BY_ITSELF);
                if !dialed && by_itself && known.sent_away {
                    // Since it was offered a session: it hears why when it comes again.
                    return Err(GreetError::Parted);
                }
                if is_fresh {
                    // A disconnect after this is one of this session.
                    known.sent_away = false;
                }
                (known.info.clone(), known.addr.clone())
            }
            Err(outdated) => {
                return Err(GreetError::Refused {
                    code: RefusalCode::Superseded,
                    text: outdated.to_string(),
                });
            }
        };
        let route = match (&role, &connection) {
            (
                Role::Dialer {
                    to: To::Door(d), ..
                },
                _,
            ) => RouteWish::Local(Arc::clone(&d.gates)),
            (Role::Acceptor { from: Some(g), .. }, _) => RouteWish::Local(Arc::clone(g)),
            _ => match (&shm, far) {
                (_, Some(route)) => RouteWish::Ucx(UcxWish {
                    route,
                    theirs: offer.ucx.map(|ucx| ucx.pools).unwrap_or_default(),
                    ours: (mine.offer.ucx.iter())
                        .flat_map(|ucx| ucx.pools.iter().map(|(id, _)| *id))
                        .collect(),
                }),
                (Some(route), None) => RouteWish::Shm(route.clone()),
                (None, None) => RouteWish::Tcp(state.route_maker(&info, accepted.session, near)),
            },
        };
        let changes = state.pools_since(&mine.offer.pools);
        (info, addr, changes, route)
    };
    let attached = addr.send(Attach {
        connection,
        read,
        session: accepted.session,
        start: accepted.start,
        offered: mine.offer.resume,
        go: decider.then_some(go),
        dialed,
        pools: offer.pools,
        contents: offer.contents,
        our_window: mine.offer.credit,
        their_window: offer.credit,
        route,
        remote,
    });
    if is_fresh {
        // Behind the transport, and before anybody is told that it is there.
        addr.do_send(PoolsChanged(changes));
    }
    let attaching = Attaching {
        info: info.clone(),
        session: accepted.session,
        role,
        mine,
        token: offer.token,
    };
    // The actor may take the transport whatever becomes of this greeting: what follows from that
    // happens though the greeting be put out or run out of time.
    let (me, answer) = (Rc::clone(state), async move { attached.await.ok() });
    let settled = actix::spawn(async move { attaching.settle(&me, answer.await) });
    match settled.await {
        Ok(Some(Attached::Fresh(_) | Attached::Resumed)) => Ok(Greeted::Up(info)),
        Ok(Some(Attached::Crossed(connection))) => {
            let mut crossed = Vec::new();
            encode_greeting(&Greeting::Verdict(Verdict::Crossed), &mut crossed)
                .map_err(HandshakeError::from)?;
            let mut conn = Conn::attach(connection).map_err(lost)?;
            conn.send(&crossed).await?;
            Ok(Greeted::Crossed)
        }
        Ok(Some(Attached::Lost(why))) => Err(GreetError::Lost(why)),
        Ok(None) | Err(_) => Err(GreetError::Stopped),
    }
}

/// A transport that is on its way to its peer's actor.
struct Attaching {
    info: PeerInfo,
    session: SessionId,
    role: Role,
    mine: Mine,
    /// What the peer wants data connections to be named by.
    token: u128,
}

impl Attaching {
    /// Notes what the actor has said, in one step.
    fn settle(self, state: &Shared, attached: Option<Attached>) -> Option<Attached> {
        let (peer, session) = (self.info.peer, self.session);
        let route = match &attached {
            Some(Attached::Fresh(route)) => route.clone(),
            Some(Attached::Resumed) => {
                // Those that are there may be as dead as the lost transport was, and silent.
                super::dial::open_data(state, peer, session);
                self.keep(state);
                return attached;
            }
            _ => return attached,
        };
        {
            let mut state = state.borrow_mut();
            let state = &mut *state;
            if let Some(known) = state.peers.get_mut(&self.info.name)
                && known.info.peer == peer
            {
                let old = known.data.take();
                if let PeerRoute::Tcp(route) = route {
                    let dial = match &self.role {
                        Role::Dialer {
                            to: To::Address(address, _),
                            ..
                        } => Some((address.clone(), self.token)),
                        _ => None,
                    };
                    known.data = Some(Data {
                        session,
                        route,
                        token: self.mine.offer.token,
                        dial,
                        made: BTreeMap::new(),
                        taken: BTreeMap::new(),
                    });
                    state.tokens.insert(self.mine.offer.token, (peer, session));
                }
                if let Some(old) = old {
                    state.tokens.remove(&old.token);
                }
            }
        }
        super::dial::open_data(state, peer, session);
        self.keep(state);
        attached
    }

    /// An address that somebody asked for is connected to again from now on.
    fn keep(self, state: &Shared) {
        if let Role::Dialer {
            to: To::Address(address, text),
            by_itself: false,
            ..
        } = self.role
        {
            super::dial::keep(state, address, &text, &self.info);
        }
    }
}

/// A data connection that the peer made.
async fn accept_data(
    state: &Shared,
    conn: Conn,
    read: Vec<u8>,
    data: DataHello,
) -> Result<Greeted, GreetError> {
    let most = match data.class {
        Class::Interactive => 1,
        Class::Bulk => MOST_CONNECTIONS,
    };
    if data.index >= most {
        return Err(GreetError::Token);
    }
    if !data.is_proven(state.borrow().node.net.key.as_ref()) {
        return Err(GreetError::Token);
    }
    // The peer may hear of the session before this side has noted it.
    let route = loop {
        let (found, pending) = {
            let mut state = state.borrow_mut();
            (state.route_of(&data), state.pending.contains(&data.token))
        };
        match found {
            Some(route) => break route,
            None if pending => tokio::time::sleep(AGAIN).await,
            None => return Err(GreetError::Token),
        }
    };
    if let Conn::Socket(stream) = &conn {
        tune(stream, data.class, &state.borrow().node.net);
    }
    let Connection::Socket(stream) = conn.detach()? else {
        return Err(GreetError::Lost("a data connection over a pipe".into()));
    };
    route.attach(DataConnection {
        stream,
        read,
        class: data.class,
        index: data.index,
    });
    Ok(Greeted::Data)
}
