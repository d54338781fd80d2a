//! How sessions and transports begin.
//!
//! A connection that was greeted is taken, or not, in one step: the side that decides has the word for
//! the other one with it, and it goes out in front of the first frame.

use super::deliver::Incoming;
use super::life::Closed;
use super::{Announced, Link, PeerActor, PeerState};
use crate::fabric::PeerRoute;
use crate::fabric::shm::ShmRoute;
use crate::fabric::tcp::TcpRoute;
use crate::fabric::ucx::{FarPool, UcxRoute};
use crate::ids::PoolId;
use crate::memory::GateTable;
use crate::peer::hello::{FarKey, SessionId, Start};
use crate::peer::session::{ResumeRefused, Session, SessionLimits};
use crate::peer::transport::{Connection, Source};
use crate::peer::wire::{Bounds, FrameReader};
use crate::reason::{Code, Reason};
use crate::runtime::link::RemotePools;
use crate::supervisor::actor::ShardPeer;
use actix::{
    ActorFutureExt, AsyncContext, Context, Handler, Message, ResponseActFuture, WrapFuture,
};
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::layout::cube::CubeLayout;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

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
    /// What is in them, of those of which it was said.
    pub(crate) contents: Vec<(PoolId, CubeLayout)>,
    pub(crate) our_window: u32,
    pub(crate) their_window: u32,
    pub(crate) route: RouteWish,
    /// The peer's pools, if it shares memory.
    pub(crate) remote: RemotePools,
}

/// How bytes shall go in a new session.
pub(crate) enum RouteWish {
    Local(Arc<GateTable>),
    Tcp(Box<dyn FnOnce() -> TcpRoute + Send>),
    Shm(ShmRoute),
    Ucx(UcxWish),
}

/// A route that was tried, and what of the peer's memory it reaches.
pub(crate) struct UcxWish {
    pub(crate) route: UcxRoute,
    pub(crate) theirs: Vec<(PoolId, FarKey)>,
    pub(crate) ours: BTreeSet<PoolId>,
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

    fn fresh(
        &mut self,
        attach: Attach,
        ctx: &mut Context<Self>,
    ) -> (PeerRoute, Connection, Option<Vec<u8>>, Vec<u8>) {
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
        let mut watching = Vec::new();
        let (mut far, mut offered) = (Vec::new(), BTreeSet::new());
        let route = match attach.route {
            RouteWish::Local(gates) => PeerRoute::Local(gates),
            RouteWish::Tcp(start) => PeerRoute::Tcp(start()),
            RouteWish::Shm(route) => {
                watching = super::near::watch(&route, attach.session, ctx);
                PeerRoute::Shm(route)
            }
            RouteWish::Ucx(wish) => {
                (far, offered) = (wish.theirs, wish.ours);
                let (me, session) = (ctx.address(), attach.session);
                let over = move |why: &str| {
                    let why = why.to_owned();
                    me.do_send(super::near::PathOver { session, why });
                };
                let (peer, node) = (self.me, &self.node);
                wish.route.begin(peer, node, &self.meter, Box::new(over));
                PeerRoute::Ucx(wish.route)
            }
        };
        self.fabric.send_replace(Some(route.fabric()));
        self.parted.store(false, Ordering::Release);
        self.node.stats.add(&self.node.stats.sessions_opened);
        let mut contents: BTreeMap<_, _> = attach.contents.into_iter().collect();
        let announced = |(id, layout)| {
            let content = contents.remove(&id).map(Arc::new);
            (id, Announced { layout, content })
        };
        let pools: BTreeMap<_, _> = attach.pools.into_iter().map(announced).collect();
        let far = far.into_iter().filter_map(|(id, key)| {
            let layout = Arc::new(pools.get(&id)?.layout.clone());
            Some((id, Arc::new(FarPool { layout, key })))
        });
        let far = far.collect();
        self.link = Some(Link {
            session,
            id: attach.session,
            pools,
            route: route.clone(),
            remote: attach.remote,
            far,
            offered,
            unshared: Vec::new(),
            watching,
            reader: self.reader(),
            transport: None,
            taking: false,
            reading: None,
            blocked: None,
        });
        self.tell_contents();
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
        link.taking = false;
        self.transports += 1;
        self.clock.heard();
        self.arm(ctx);
        self.share_pools();
        self.flush(ctx);
        if !self.is_up() {
            return Err("the new connection was lost at once".into());
        }
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
            if let Some(link) = &mut self.link {
                // Those that were added meanwhile, too.
                link.remote.append(&mut attach.remote);
            }
            return match self.begin(attach.connection, attach.go, ctx) {
                Ok(source) => {
                    self.node.stats.add(&self.node.stats.sessions_resumed);
                    tracing::info!(node = self.node.name, peer = self.name, "session resumed");
                    self.is_now(PeerState::Up);
                    self.read(source, read, ctx);
                    self.open_waiting();
                    self.tell_says();
                    self.wants_flush(ctx);
                    answer(Attached::Resumed, self)
                }
                Err(why) => {
                    self.wait_for_another(&why, ctx);
                    answer(Attached::Lost(why), self)
                }
            };
        }
        let (route, connection, go, read) = self.fresh(attach, ctx);
        let source = match self.begin(connection, go, ctx) {
            Ok(source) => source,
            Err(why) => {
                self.give_up(Reason::new(Code::SessionLost, why.clone()), None);
                return answer(Attached::Lost(why), self);
            }
        };
        let transport = self.transports;
        let (me, known) = (ctx.address(), route.clone());
        let id = self.link.as_ref().map(|l| l.id);
        let ready: Vec<_> = self
            .shards
            .iter()
            .map(|s| {
                s.send(ShardPeer {
                    peer: self.me,
                    addr: me.clone(),
                    route: route.clone(),
                    meter: Arc::clone(&self.meter),
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
            if actor.link.as_ref().is_none_or(|l| Some(l.id) != id) {
                // Given up meanwhile: nobody would ever take the word back that it is up.
                return Attached::Lost("it was given up at once".into());
            }
            if actor.transports != transport {
                // Lost meanwhile, or resumed already.
                return Attached::Fresh(known);
            }
            actor.is_now(PeerState::Up);
            actor.read(source, read, ctx);
            actor.open_waiting();
            actor.tell_says();
            actor.wants_flush(ctx);
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
