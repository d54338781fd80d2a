//! Connecting: on demand, again by itself when a session over a socket is lost, and data connections.
//!
//! ```text
//!   connect(address) ─▶ the session that is there
//!                   └─▶ dial, greet ─▶ Up ─▶ kept: lost ─▶ wait ─▶ dial ─▶ Up …
//!                         └ Crossed: look again in a moment    └ twice as long each time, ± 25 %
//! ```
//!
//! Rules:
//! - an address that was connected to is kept until `disconnect`, or until the node stops: whoever is
//!   there next under it, a newer life too, gets a session;
//! - after a `disconnect`, on either side, neither node connects by itself. The one that said it
//!   refuses what the other one makes by itself, should that not have heard of it. A `connect` on
//!   either side ends this;
//! - the way to a peer is the one of the connection that its session began with, and stays it while
//!   that session lives: who connects to another address of the same node gets the session there is;
//! - data connections are made by whoever made the connection that the session began with.

use super::address::Address;
use super::control::{ConnectError, DataEvent, Kept, PeerInfo, Shared};
use super::greet::{AGAIN, Conn, GreetError, Greeted, Role, To, greet};
use super::hub::Knock;
use super::peers::grown;
use crate::copy::schedule::Class;
use crate::fabric::stream::Stream;
use crate::fabric::tcp::{DataConnection, RouteEvent, tune, tune_control};
use crate::ids::PeerRef;
use crate::peer::actor::{GiveUp, PeerState};
use crate::peer::hello::{RefusalCode, SessionId};
use crate::peer::pipe::pipe;
use crate::peer::wire::{DataHello, Greeting, encode_first_greeting};
use crate::reason::{Code, Reason};
use crate::runtime::net::Net;
use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;

/// What is said of connections that gave way to another one which then did not come up.
const CROSSED: &str = "another connection between both was to be their session, and is not there";
/// Crossings in a row after which the other connection is looked for less often.
const CROSSINGS: u32 = 8;

/// The session there is, or a new one.
pub(crate) async fn connect(state: &Shared, text: &str) -> Result<PeerInfo, ConnectError> {
    let address = Address::parse(text)?;
    let within = state.borrow().node.deadlines.connect;
    let mut last = "nothing was heard from it".to_owned();
    let dialing = dial(state, &address, text, false, &mut last);
    let info = match tokio::time::timeout(within, dialing).await {
        Ok(dialed) => dialed?,
        Err(_) => {
            return Err(ConnectError::Silent {
                name: named(&address, text),
                after: within,
                last,
            });
        }
    };
    if !matches!(address, Address::Local(_)) {
        keep(state, address, text, &info);
    }
    Ok(info)
}

/// A node's name, if the address says it.
fn named(address: &Address, text: &str) -> String {
    match address {
        Address::Local(name) => name.clone(),
        _ => text.to_owned(),
    }
}

/// Tries until there is a session, or a reason why there is none. Bounded by whoever polls it.
async fn dial(
    state: &Shared,
    address: &Address,
    text: &str,
    by_itself: bool,
    last: &mut String,
) -> Result<PeerInfo, ConnectError> {
    let (first, most) = {
        let d = &state.borrow().node.deadlines;
        (d.backoff_first, d.backoff_most)
    };
    let (mut wait, mut crossed) = (Duration::ZERO, 0);
    // The Unix socket of a node on this host, and whether it could not be reached.
    let (mut near, mut far) = (None::<String>, false);
    loop {
        if let Some(info) = there(state, address, text)? {
            return Ok(info);
        }
        let Some(_connecting) = Connecting::begin(state, text) else {
            tokio::time::sleep(AGAIN).await;
            continue;
        };
        let (conn, role) = match near.take() {
            None => open(state, address, text, by_itself, far).await?,
            Some(socket) => match abstract_socket(&socket) {
                Ok(stream) => {
                    let to = To::Address(address.clone(), text.to_owned());
                    let far = true;
                    let role = Role::Dialer { to, by_itself, far };
                    (Conn::Socket(stream), role)
                }
                Err(error) => {
                    let node = &state.borrow().node.name;
                    tracing::info!(node, address = text, %error,
                        "a node on this host cannot be reached by its Unix socket (another network \
                         namespace?): no memory is shared with it, bytes go over tcp");
                    far = true;
                    continue;
                }
            },
        };
        match greet(state, conn, role).await {
            Ok(Greeted::Nearer(socket)) => {
                near = Some(socket);
                continue;
            }
            Ok(Greeted::Up(info) | Greeted::There(info)) => return Ok(info),
            Ok(Greeted::Crossed | Greeted::Data) => {
                CROSSED.clone_into(last);
                crossed += 1;
            }
            Err(GreetError::Stopped) => return Err(ConnectError::Stopped),
            Err(error) if error.is_passing() && !by_itself => {
                *last = error.to_string();
                crossed = 0;
            }
            Err(error) => {
                state.borrow().count_refused();
                if let GreetError::Refused {
                    code: RefusalCode::Parted,
                    ..
                } = error
                {
                    sent_away(state, text);
                }
                return Err(ConnectError::Refused {
                    name: named(address, text),
                    why: error.to_string(),
                });
            }
        }
        drop(_connecting);
        if (1..=CROSSINGS).contains(&crossed) {
            tokio::time::sleep(AGAIN).await;
        } else {
            wait = grown(wait, first, most);
            tokio::time::sleep(jittered(wait)).await;
        }
    }
}

/// One connection at a time to each address.
struct Connecting {
    state: Shared,
    text: String,
}

impl Connecting {
    fn begin(state: &Shared, text: &str) -> Option<Connecting> {
        let begun = state.borrow_mut().connecting.insert(text.to_owned());
        begun.then(|| Connecting {
            state: Rc::clone(state),
            text: text.to_owned(),
        })
    }
}

impl Drop for Connecting {
    fn drop(&mut self) {
        self.state.borrow_mut().connecting.remove(&self.text);
    }
}

/// The session that there is with whoever is at this address.
fn there(state: &Shared, address: &Address, text: &str) -> Result<Option<PeerInfo>, ConnectError> {
    let state = state.borrow();
    if state.stopping {
        return Err(ConnectError::Stopped);
    }
    let name = match address {
        Address::Local(name) => name,
        _ => match state.kept.get(text) {
            Some(kept) => &kept.name,
            None => return Ok(None),
        },
    };
    let Some(known) = state.peers.get(name).filter(|k| k.is_up()) else {
        return Ok(None);
    };
    if let Address::Local(name) = address {
        // A node that came back may be there before the old life's goodbye was read.
        let door = state.hub.as_ref().and_then(|hub| hub.door(name));
        if door.is_some_and(|door| door.incarnation != known.info.incarnation) {
            return Ok(None);
        }
    }
    Ok(Some(known.info.clone()))
}

/// The other side has disconnected, and this one had not heard of it.
fn sent_away(state: &Shared, text: &str) {
    let state = state.borrow();
    let name = state.kept.get(text).map(|kept| &kept.name);
    if let Some(known) = name.and_then(|name| state.peers.get(name)) {
        known.left.store(true, Ordering::Release);
        let text = format!("node {:?} gave the session up on purpose", known.info.name);
        known.addr.do_send(GiveUp {
            reason: Reason::new(Code::SessionLost, text).from_peer(),
            bye: None,
            for_good: false,
        });
    }
}

async fn open(
    state: &Shared,
    address: &Address,
    text: &str,
    by_itself: bool,
    far: bool,
) -> Result<(Conn, Role), ConnectError> {
    if let Address::Local(name) = address {
        let (door, gates) = {
            let state = state.borrow();
            let hub = state.hub.as_ref().ok_or(ConnectError::NoHub)?;
            let door = hub.door(name).ok_or_else(|| ConnectError::Unknown {
                name: name.clone(),
                there: hub.names().join(", "),
            })?;
            (door, Arc::clone(&state.node.gates))
        };
        let (near_end, far_end) = pipe();
        let gone = |_| ConnectError::Unknown {
            name: name.clone(),
            there: "(it has just left)".into(),
        };
        let knock = Knock {
            pipe: far_end,
            gates,
        };
        door.knock.send(knock).await.map_err(gone)?;
        let role = Role::Dialer {
            to: To::Door(door),
            by_itself,
            far,
        };
        return Ok((Conn::Pipe(near_end), role));
    }
    let node = Arc::clone(&state.borrow().node);
    let stream = socket(address, &node.net)
        .await
        .map_err(|error| ConnectError::Unreachable {
            address: text.to_owned(),
            cause: error.to_string(),
        })?;
    let role = Role::Dialer {
        to: To::Address(address.clone(), text.to_owned()),
        by_itself,
        far,
    };
    Ok((Conn::Socket(stream), role))
}

/// A Unix socket in the abstract namespace: answers at once, or is not there.
fn abstract_socket(name: &str) -> io::Result<Stream> {
    use socket2::{Domain, SockAddr, Socket, Type};
    use std::os::unix::ffi::OsStrExt;
    let mut path = vec![0];
    path.extend_from_slice(name.as_bytes());
    let address = SockAddr::unix(std::ffi::OsStr::from_bytes(&path))?;
    let socket = Socket::new(Domain::UNIX, Type::STREAM, None)?;
    // A node that accepts nobody must not hold this one up: a full backlog is `WouldBlock`.
    socket.set_nonblocking(true)?;
    socket.connect(&address)?;
    tokio::net::UnixStream::from_std(socket.into()).map(Stream::Unix)
}

async fn socket(address: &Address, net: &Net) -> io::Result<Stream> {
    match address {
        Address::Tcp { host, port } => {
            let stream = tcp(host, *port).await?;
            tune_control(&stream, net);
            Ok(Stream::Tcp(stream))
        }
        Address::Unix(path) => tokio::net::UnixStream::connect(path)
            .await
            .map(Stream::Unix),
        Address::Local(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

/// The first address of a host that answers.
async fn tcp(host: &str, port: u16) -> io::Result<tokio::net::TcpStream> {
    let mut last = io::Error::other("the host has no address");
    for at in resolve(host, port).await? {
        match tokio::net::TcpStream::connect(at).await {
            Ok(stream) => return Ok(stream),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Looks a name up on a thread that nobody waits for: it may hang for longer than a node takes to
/// stop, and the runtime's own threads for such work are waited for at its end.
async fn resolve(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    if let Ok(ip) = host.parse::<IpAddr>() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let lookup = Lookup::begin()?;
    let (tell, found) = oneshot::channel();
    let host = host.to_owned();
    std::thread::Builder::new()
        .name("kvroom-lookup".into())
        .spawn(move || {
            let looked_up = (host.as_str(), port).to_socket_addrs();
            drop(lookup);
            let _ = tell.send(looked_up.map(Vec::from_iter));
        })?;
    found.await.map_err(io::Error::other)?
}

/// Names that are being looked up in this process.
static LOOKUPS: AtomicUsize = AtomicUsize::new(0);
/// How many may be: each is a thread.
const MOST_LOOKUPS: usize = 256;

struct Lookup;

impl Lookup {
    fn begin() -> io::Result<Lookup> {
        let one_more = |n| (n < MOST_LOOKUPS).then_some(n + 1);
        match LOOKUPS.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more) {
            Ok(_) => Ok(Lookup),
            Err(n) => Err(io::Error::other(format!(
                "{n} names are being looked up already: does the resolver of this host answer?"
            ))),
        }
    }
}

impl Drop for Lookup {
    fn drop(&mut self) {
        LOOKUPS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// From here on this address is connected to again whenever its session is gone.
pub(crate) fn keep(state: &Shared, address: Address, text: &str, info: &PeerInfo) {
    let mut borrowed = state.borrow_mut();
    if borrowed.stopping {
        return;
    }
    if let Some(kept) = borrowed.kept.get_mut(text)
        && !kept._stop.is_closed()
    {
        kept.name.clone_from(&info.name);
        return;
    }
    let (stop, stopped) = oneshot::channel();
    let number = borrowed.greetings.number();
    let kept = Kept {
        _stop: stop,
        name: info.name.clone(),
        number,
    };
    borrowed.kept.insert(text.to_owned(), kept);
    drop(borrowed);
    let (state, text, info) = (Rc::clone(state), text.to_owned(), info.clone());
    actix::spawn(async move {
        tokio::select! {
            biased;
            // An error: the sender is gone, and with it the wish.
            _ = stopped => {}
            () = kept_up(&state, &address, &text, info) => {
                let mut state = state.borrow_mut();
                if state.kept.get(&text).is_some_and(|k| k.number == number) {
                    state.kept.remove(&text);
                }
            }
        }
    });
}

/// Ends when nobody wants the session any more.
async fn kept_up(state: &Shared, address: &Address, text: &str, mut info: PeerInfo) {
    loop {
        // An error: this life of it is over, and another may come.
        let _ = info.state.wait_for(|s| *s != PeerState::Up).await;
        let (mut wait, most, within, node) = {
            let state = state.borrow();
            let d = &state.node.deadlines;
            (
                d.backoff_first,
                d.backoff_most,
                d.connect,
                Arc::clone(&state.node),
            )
        };
        info = loop {
            if parted(state, &info) {
                return;
            }
            if let Some(up) = waited(state, &info, jittered(wait)).await {
                break up;
            }
            let mut last = String::new();
            let dialing = dial(state, address, text, true, &mut last);
            match tokio::time::timeout(within, dialing).await {
                Ok(Ok(up)) => break up,
                Ok(Err(ConnectError::Stopped)) => return,
                Ok(Err(error)) => {
                    tracing::debug!(node = node.name, address = text, %error, "not connected again yet");
                }
                Err(_) => {
                    tracing::debug!(node = node.name, address = text, last, "silent");
                }
            }
            wait = grown(wait, Duration::ZERO, most);
        };
        if let Some(kept) = state.borrow_mut().kept.get_mut(text) {
            kept.name.clone_from(&info.name);
        }
    }
}

/// Waits this long, or until the peer has come back by itself: then it is given, in the life that it
/// has now.
async fn waited(state: &Shared, info: &PeerInfo, wait: Duration) -> Option<PeerInfo> {
    let until = Instant::now() + wait;
    let newest = |state: &Shared| {
        let state = state.borrow();
        state.peers.get(&info.name).map(|k| k.info.clone())
    };
    let mut watched = newest(state).unwrap_or_else(|| info.clone()).state;
    let up = watched.wait_for(|s| *s == PeerState::Up);
    match tokio::time::timeout_at(until, up).await {
        Ok(Ok(_)) => {}
        // A life that is over says nothing more.
        Ok(Err(_)) => tokio::time::sleep_until(until).await,
        Err(_) => {}
    }
    newest(state).filter(|i| *i.state.borrow() == PeerState::Up)
}

fn parted(state: &Shared, info: &PeerInfo) -> bool {
    let state = state.borrow();
    state.stopping || state.peers.get(&info.name).is_some_and(|k| k.parted())
}

/// Within a quarter of it, so that nodes that lost each other together do not meet for ever.
fn jittered(wait: Duration) -> Duration {
    let quarter = wait / 4;
    let parts = super::thread::random() % 1_024;
    let more = quarter.saturating_mul(2).mul_f64(parts as f64 / 1_024.0);
    (wait - quarter).saturating_add(more)
}

/// All data connections of a session that has just begun, or goes on over another transport, if they
/// are this node's to open.
pub(crate) fn open_data(state: &Shared, peer: PeerRef, session: SessionId) {
    let connections = state.borrow().node.net.connections;
    open_one(state, peer, session, (Class::Interactive, 0), false);
    for index in 0..connections {
        open_one(state, peer, session, (Class::Bulk, index), false);
    }
}

/// What a route had to say.
pub(crate) fn data_event(state: &Shared, (peer, session, event): DataEvent) {
    match event {
        RouteEvent::Lost { class, index } => open_one(state, peer, session, (class, index), true),
        RouteEvent::Violation(reason) => {
            let state = state.borrow();
            if state.data_of(peer, session).is_some()
                && let Some(known) = state.known(peer)
            {
                tracing::warn!(
                    node = state.node.name,
                    peer = known.info.name,
                    %reason,
                    "the peer broke the protocol on a data connection"
                );
                known.addr.do_send(GiveUp {
                    reason,
                    bye: None,
                    for_good: false,
                });
            }
        }
    }
}

/// Opens a data connection, as often as it takes while the session lives, if it is this node's to open
/// and nobody is at it. One that was lost soon after it was made is waited for first.
fn open_one(
    state: &Shared,
    peer: PeerRef,
    session: SessionId,
    (class, index): (Class, u16),
    is_lost: bool,
) {
    let (first, most, within) = {
        let d = &state.borrow().node.deadlines;
        (d.backoff_first, d.backoff_most, d.connect)
    };
    let wait = match state.borrow_mut().data_of_mut(peer, session) {
        Some(data) if data.dial.is_some() => data.make(class, index, is_lost, (first, most)),
        _ => None,
    };
    let Some(mut wait) = wait else { return };
    let state = Rc::clone(state);
    actix::spawn(async move {
        if !wait.is_zero() {
            if wait < most {
                tracing::info!(
                    ?class,
                    index,
                    ?wait,
                    "a data connection was lost soon after it was made; it is made again after a wait"
                );
            }
            tokio::time::sleep(jittered(wait)).await;
        }
        loop {
            let Some((route, address, hello)) = ({
                let mut state = state.borrow_mut();
                let (node, stopping) = (Arc::clone(&state.node), state.stopping);
                let data = state.data_of_mut(peer, session).filter(|_| !stopping);
                data.and_then(|d| {
                    let (address, token) = d.dial.clone()?;
                    let attempt = d.attempt(class, index);
                    let key = node.net.key.as_ref();
                    let hello = DataHello::new(token, (class, index), attempt, key);
                    Some((d.route.clone(), address, hello))
                })
            }) else {
                return;
            };
            let made = tokio::time::timeout(within, data_socket(&state, &address, hello)).await;
            let error = match made {
                Ok(Ok(stream)) => {
                    if let Some(data) = state.borrow_mut().data_of_mut(peer, session) {
                        data.made(class, index);
                    }
                    return route.attach(DataConnection {
                        stream,
                        read: Vec::new(),
                        class,
                        index,
                    });
                }
                Ok(Err(error)) => error.to_string(),
                Err(_) => "silent".to_owned(),
            };
            let next = grown(wait, first, most);
            if next > wait {
                tracing::info!(%address, error, wait = ?next, "no data connection yet");
            }
            wait = next;
            tokio::time::sleep(jittered(wait)).await;
        }
    });
}

async fn data_socket(
    state: &Shared,
    address: &Address,
    hello: DataHello,
) -> io::Result<crate::fabric::stream::Detached> {
    let node = Arc::clone(&state.borrow().node);
    let stream = socket(address, &node.net).await?;
    tune(&stream, hello.class, &node.net);
    let mut bytes = Vec::new();
    encode_first_greeting(&Greeting::Data(hello), &mut bytes).map_err(io::Error::other)?;
    let mut conn = Conn::Socket(stream);
    conn.send(&bytes).await.map_err(io::Error::other)?;
    match conn {
        Conn::Socket(stream) => stream.detach(),
        Conn::Pipe(_) => Err(io::ErrorKind::InvalidInput.into()),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[tokio::test]
    async fn names_are_looked_up_and_addresses_are_taken_as_they_are() {
        for literal in ["127.0.0.1", "::1"] {
            let found = resolve(literal, 7).await.unwrap();
            assert_eq!(found, [SocketAddr::new(literal.parse().unwrap(), 7)]);
        }
        let found = resolve("localhost", 7).await.unwrap();
        assert!(
            !found.is_empty()
                && found
                    .iter()
                    .all(|at| at.ip().is_loopback() && at.port() == 7)
        );
        // The list of such names that never exist: RFC 6761.
        assert!(resolve("nobody.invalid", 7).await.is_err());
    }
}
