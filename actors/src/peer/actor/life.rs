//! How sessions and transports begin and end.

use super::deliver::Incoming;
use super::{Link, PeerActor, PeerState};
use crate::fabric::PeerRoute;
use crate::fabric::tcp::TcpRoute;
use crate::ids::PoolId;
use crate::memory::GateTable;
use crate::peer::hello::{SessionId, Start};
use crate::peer::message::Body;
use crate::peer::session::{ResumeRefused, Session, SessionLimits};
use crate::peer::transport::{Connection, Source, Transport};
use crate::peer::wire::{self, Bounds, FrameReader};
use crate::reason::{Code, Reason};
use crate::supervisor::actor::{PeerGone, ShardPeer};
use actix::{
    ActorFutureExt, AsyncContext, Context, Handler, Message, MessageResult, ResponseActFuture,
    WrapFuture,
};
use kvroom_kernels::layout::PoolLayout;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::clock::Tick;

/// How long the last word of a session may take to be written and read.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Bytes that are written behind each other as last words; what is beyond is not said.
const LAST_BYTES: usize = 4 << 20;

/// A new transport, greeted. Whether it is taken is decided here, in one step.
#[derive(Message)]
#[rtype(result = "Attached")]
pub(crate) struct Attach {
    pub(crate) connection: Connection,
    /// What was read behind the greeting.
    pub(crate) read: Vec<u8>,
    /// The session's name, and how it begins.
    pub(crate) session: SessionId,
    pub(crate) start: Start,
    /// The session that this node's greeting named.
    pub(crate) offered: Option<SessionId>,
    /// The word that tells the other side that this transport is taken, if this side decides.
    pub(crate) go: Option<Vec<u8>>,
    /// This node made the connection.
    pub(crate) dialed: bool,
    pub(crate) pools: Vec<(PoolId, PoolLayout)>,
    pub(crate) our_window: u32,
    pub(crate) their_window: u32,
    pub(crate) route: RouteWish,
}

/// How bytes shall go in a new session.
pub(crate) enum RouteWish {
    Local(Arc<GateTable>),
    Tcp(Box<dyn FnOnce() -> TcpRoute + Send>),
}

/// What became of a transport.
#[derive(Debug)]
pub(crate) enum Attached {
    /// A new session is up.
    Fresh(PeerRoute),
    /// The session goes on.
    Resumed,
    /// There is, or was meanwhile, another one: to be said to the other side, which tries again.
    Crossed(Connection),
    /// The transport is lost, or the session is that it was to go on with.
    Lost(String),
}

/// The session ends: because this node says so.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct GiveUp {
    pub(crate) reason: Reason,
    /// The whole node goes: whether every room had drained.
    pub(crate) bye: Option<bool>,
    /// This life of the peer never comes back.
    pub(crate) for_good: bool,
}

/// Asks for what a greeting must say.
#[derive(Message)]
#[rtype(result = "Standing")]
pub(crate) struct WhereStands;

/// The session that there is.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Standing {
    pub(crate) session: Option<SessionId>,
    /// Highest number received in it.
    pub(crate) received: u64,
    /// It has a transport.
    pub(crate) up: bool,
}

/// The reader's last word.
#[derive(Message)]
#[rtype(result = "()")]
struct Closed {
    transport: u64,
    why: String,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Ticked;

impl PeerActor {
    /// Whether another transport than the present one is to be taken.
    fn crosses(&self, attach: &Attach) -> bool {
        let current = self.link.as_ref().map(|l| l.id);
        let up = self.is_up();
        match attach.start {
            // Its peer says that it lost the last one; who dialed has lost it too, or found another.
            Start::Resume { .. } => current != Some(attach.session) || (up && attach.dialed),
            Start::Fresh { .. } => up || current != attach.offered,
        }
    }

    fn is_up(&self) -> bool {
        self.link.as_ref().is_some_and(|l| l.transport.is_some())
    }

    fn fresh(&mut self, attach: Attach) -> (PeerRoute, Connection, Option<Vec<u8>>, Vec<u8>) {
        self.give_up(
            Reason::new(
                Code::SessionLost,
                "a new session takes the place of this one",
            ),
            None,
        );
        let limits = SessionLimits {
            unacknowledged: self.node.limits.frames_unacknowledged,
            progress: self.node.limits.rooms,
            our_window: attach.our_window,
            their_window: attach.their_window,
        };
        let mut session = Session::new(self.node.incarnation, self.incarnation, limits);
        // What earlier sessions named is dead for ever.
        session.note_abort(self.floor);
        let route = match attach.route {
            RouteWish::Local(gates) => PeerRoute::Local(gates),
            RouteWish::Tcp(start) => PeerRoute::Tcp(start()),
        };
        self.parted.store(false, Ordering::Release);
        self.node.stats.add(&self.node.stats.sessions_opened);
        self.link = Some(Link {
            session,
            id: attach.session,
            pools: attach.pools.into_iter().collect(),
            route: route.clone(),
            reader: self.reader(),
            transport: None,
            reading: None,
            blocked: None,
        });
        (route, attach.connection, attach.go, attach.read)
    }

    fn reader(&self) -> FrameReader {
        FrameReader::new(Bounds {
            // A claim that is over this node's other limits is well formed: it is refused by
            // itself, in `deliver`.
            pages_per_claim: usize::MAX,
            receivers: u16::MAX,
            ..Bounds::from(&self.node.limits)
        })
    }

    /// A transport under the session, and its first word on the way.
    fn begin(
        &mut self,
        connection: Connection,
        go: Option<Vec<u8>>,
        ctx: &mut Context<Self>,
    ) -> Result<Source, String> {
        let (mut transport, source) = connection.open().map_err(|e| e.to_string())?;
        let reader = self.reader();
        let Some(link) = &mut self.link else {
            return Err("the session is gone".into());
        };
        if let Some(go) = go {
            transport.first(go);
        }
        link.stop_tasks();
        link.reader = reader;
        link.transport = Some(transport);
        self.transports += 1;
        self.clock.heard();
        self.arm(ctx);
        self.flush(ctx);
        Ok(source)
    }

    /// From here on the session hears.
    fn read(&mut self, mut source: Source, read: Vec<u8>, ctx: &mut Context<Self>) {
        let (transport, me) = (self.transports, ctx.address());
        let reading = actix::spawn(async move {
            if !read.is_empty() {
                let len = read.len();
                let first = Incoming {
                    transport,
                    bytes: read,
                    len,
                };
                if me.send(first).await.is_err() {
                    return;
                }
            }
            loop {
                match source.next().await {
                    Ok((bytes, len)) => {
                        let incoming = Incoming {
                            transport,
                            bytes,
                            len,
                        };
                        if me.send(incoming).await.is_err() {
                            return;
                        }
                    }
                    Err(why) => {
                        me.do_send(Closed { transport, why });
                        return;
                    }
                }
            }
        });
        match &mut self.link {
            Some(link) => link.reading = Some(reading),
            None => reading.abort(),
        }
    }

    /// The connection is gone. Over a socket the session is kept for a while; a pipe that closes was
    /// closed by the other node.
    pub(super) fn transport_lost(&mut self, why: &str, ctx: &mut Context<Self>) {
        let Some(link) = &mut self.link else { return };
        let Some(transport) = link.transport.take() else {
            return;
        };
        self.transports += 1;
        link.stop_tasks();
        if !transport.is_socket() {
            let text = format!("the connection to node {:?} is gone", self.name);
            // A node that goes says goodbye; this one gave up the session and lives on.
            self.give_up(Reason::new(Code::SessionLost, text).from_peer(), None);
            return;
        }
        link.session.reset();
        self.clock.heard();
        self.arm(ctx);
        self.node.stats.add(&self.node.stats.transports_lost);
        let text = format!("the connection to node {:?} is lost: {why}", self.name);
        tracing::warn!(
            node = self.node.name,
            peer = self.name,
            why,
            "connection lost; the session waits to be resumed"
        );
        self.watch.send_replace(PeerState::Resuming(text));
    }

    fn tell_shards(&mut self, reason: &Reason) {
        self.tell_says();
        for shard in &self.shards {
            shard.do_send(PeerGone {
                peer: self.me,
                for_good: self.for_good,
                reason: reason.clone(),
            });
        }
    }

    /// The session ends for a reason that came up while it ran; the other side is told unless it
    /// said so itself.
    pub(super) fn end_of(&mut self, reason: Reason) {
        let word = match reason.code {
            Code::ProtocolViolation | Code::LimitReached => Some(Body::GaveUp {
                reason: reason.clone(),
            }),
            _ => None,
        };
        if word.is_some() {
            tracing::warn!(node = self.node.name, peer = self.name, %reason, "session ends");
        }
        if let Some(last) = self.give_up(reason, word) {
            actix::spawn(last);
        }
    }

    /// The session is over: its rooms end on this side, whatever waits is told so. Gives the last
    /// word on its way, to be waited for or not.
    fn give_up(
        &mut self,
        reason: Reason,
        word: Option<Body>,
    ) -> Option<impl Future<Output = ()> + 'static> {
        let mut link = self.link.take()?;
        self.transports += 1;
        tracing::info!(node = self.node.name, peer = self.name, %reason, "session ended");
        // Claims whose frame was never handed over are aborted by their rooms like the others: their
        // gates are open and prove more than the receipt.
        self.floor = self.floor.max(link.session.mark());
        link.stop_tasks();
        let last = link.transport.take().map(|transport| {
            let limit = self.node.limits.frame_bytes;
            say_last(transport, &mut link.session, word, limit)
        });
        if let PeerRoute::Tcp(route) = &link.route {
            let route = route.clone();
            actix::spawn(async move { route.close().await });
        }
        drop(link);
        self.waiting_at.clear();
        for request in std::mem::take(&mut self.waiting).into_values() {
            self.not_opened(*request, reason.clone());
        }
        self.tell_shards(&reason);
        self.watch.send_replace(PeerState::Down(reason.to_string()));
        last
    }

    /// A tick is on its way while there is something that it is for.
    fn arm(&mut self, ctx: &mut Context<Self>) {
        let wanted = self
            .link
            .as_ref()
            .is_some_and(|l| l.transport.as_ref().is_none_or(Transport::is_socket));
        if wanted && !self.clock.armed {
            self.clock.armed = true;
            ctx.notify_later(Ticked, self.clock.tick);
        }
    }
}

/// Encodes what is left of a session with a last word behind it, and writes it in the time there is.
fn say_last(
    mut transport: Transport,
    session: &mut Session,
    word: Option<Body>,
    limit: usize,
) -> impl Future<Output = ()> + 'static + use<> {
    if let Some(word) = word {
        // Never refused for room.
        let _ = session.queue(word);
        transport.send_last(LAST_BYTES, |frames, bytes| {
            let n = session.transmit_with(frames, |frame| {
                let _ = wire::encode_frame_ref(frame, bytes, limit);
            });
            n > 0 && session.has_output()
        });
    }
    async move {
        let _ = tokio::time::timeout(LAST_WORD, transport.linger()).await;
    }
}

impl Handler<WhereStands> for PeerActor {
    type Result = MessageResult<WhereStands>;

    fn handle(&mut self, _: WhereStands, _: &mut Context<Self>) -> Self::Result {
        let standing = self.link.as_ref().map(|link| Standing {
            session: Some(link.id),
            received: link.session.received(),
            up: link.transport.is_some(),
        });
        MessageResult(standing.unwrap_or_default())
    }
}

impl Handler<Attach> for PeerActor {
    type Result = ResponseActFuture<Self, Attached>;

    fn handle(&mut self, mut attach: Attach, ctx: &mut Context<Self>) -> Self::Result {
        let answer = |answer, me: &Self| -> Self::Result {
            Box::pin(std::future::ready(answer).into_actor(me))
        };
        if self.for_good {
            let why = "a newer life of the peer is known".into();
            return answer(Attached::Lost(why), self);
        }
        if attach.go.is_some() && self.crosses(&attach) {
            return answer(Attached::Crossed(attach.connection), self);
        }
        if let Start::Resume { received } = attach.start {
            let resumed = self.resume(&attach, received);
            if let Err(why) = resumed {
                return answer(Attached::Lost(why), self);
            }
            let read = std::mem::take(&mut attach.read);
            return match self.begin(attach.connection, attach.go, ctx) {
                Ok(source) => {
                    self.node.stats.add(&self.node.stats.sessions_resumed);
                    tracing::info!(node = self.node.name, peer = self.name, "session resumed");
                    self.watch.send_replace(PeerState::Up);
                    self.read(source, read, ctx);
                    answer(Attached::Resumed, self)
                }
                Err(why) => {
                    self.transport_lost(&why, ctx);
                    answer(Attached::Lost(why), self)
                }
            };
        }
        let (route, connection, go, read) = self.fresh(attach);
        let source = match self.begin(connection, go, ctx) {
            Ok(source) => source,
            Err(why) => {
                self.give_up(Reason::new(Code::SessionLost, why.clone()), None);
                return answer(Attached::Lost(why), self);
            }
        };
        let transport = self.transports;
        let (me, known) = (ctx.address(), route.clone());
        let ready: Vec<_> = self
            .shards
            .iter()
            .map(|s| {
                s.send(ShardPeer {
                    peer: self.me,
                    addr: me.clone(),
                    route: route.clone(),
                })
            })
            .collect();
        let ready = async move {
            // Every shard knows the peer before it can hear from it.
            for shard in ready {
                let _ = shard.await;
            }
        };
        Box::pin(ready.into_actor(self).map(move |(), actor, ctx| {
            if !actor.is_up() || actor.transports != transport {
                // Given up meanwhile: nobody would ever take the word back that it is up.
                return Attached::Lost("it was lost at once".into());
            }
            actor.watch.send_replace(PeerState::Up);
            actor.read(source, read, ctx);
            Attached::Fresh(known)
        }))
    }
}

impl PeerActor {
    /// The session goes on over a transport that is about to come.
    fn resume(&mut self, attach: &Attach, received: u64) -> Result<(), String> {
        let Some(link) = self.link.as_mut().filter(|l| l.id == attach.session) else {
            return Err("the session that it was to go on with is gone".into());
        };
        if link.transport.take().is_some() {
            self.transports += 1;
            link.stop_tasks();
        }
        link.session.reset();
        match link.session.resume(received) {
            Ok(()) => Ok(()),
            // The greeting was written before what it acknowledged after: it is known to have that.
            Err(ResumeRefused::Forgotten { acked, .. }) => {
                link.session.resume(acked).map_err(|e| e.to_string())
            }
            Err(error) => {
                let reason = super::deliver::violation(error.to_string());
                self.end_of(reason);
                Err(error.to_string())
            }
        }
    }
}

impl Handler<Closed> for PeerActor {
    type Result = ();

    fn handle(&mut self, closed: Closed, ctx: &mut Context<Self>) {
        if closed.transport == self.transports {
            self.transport_lost(&closed.why, ctx);
        }
    }
}

impl Handler<Ticked> for PeerActor {
    type Result = ();

    fn handle(&mut self, _: Ticked, ctx: &mut Context<Self>) {
        self.clock.armed = false;
        let Some(link) = &mut self.link else { return };
        if link.transport.is_none() {
            if self.clock.wait() {
                let text = format!(
                    "node {:?} did not come back within {:?} (Deadlines::resume)",
                    self.name, self.node.deadlines.resume
                );
                self.give_up(Reason::new(Code::SessionLost, text), None);
            }
        } else {
            match self.clock.listen() {
                Tick::Nothing => {}
                Tick::Ask => {
                    link.session.ping(self.transports);
                    self.wants_flush(ctx);
                }
                Tick::Dead => {
                    let liveness = self.node.deadlines.liveness;
                    let why = format!("nothing came for {liveness:?} (Deadlines::liveness)");
                    self.transport_lost(&why, ctx);
                }
            }
        }
        self.arm(ctx);
    }
}

impl Handler<GiveUp> for PeerActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, give_up: GiveUp, _: &mut Context<Self>) -> Self::Result {
        let GiveUp {
            reason,
            bye,
            for_good,
        } = give_up;
        self.for_good = for_good;
        let word = match bye {
            Some(drained) => Body::Bye { drained },
            None => Body::GaveUp {
                reason: reason.clone(),
            },
        };
        let last = if self.link.is_some() {
            self.give_up(reason, Some(word))
        } else {
            if for_good {
                self.tell_shards(&reason);
            }
            None
        };
        // The actor itself stops when the last shard has let go of it, and not before it has
        // answered all that they asked of it.
        match last {
            Some(last) if bye.is_some() => Box::pin(last.into_actor(self)),
            Some(last) => {
                actix::spawn(last);
                Box::pin(std::future::ready(()).into_actor(self))
            }
            None => Box::pin(std::future::ready(()).into_actor(self)),
        }
    }
}
