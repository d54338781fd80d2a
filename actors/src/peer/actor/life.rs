//! How sessions and transports end, and when.

use super::clock::Tick;
use super::{PeerActor, PeerState};
use crate::fabric::PeerRoute;
use crate::fabric::ucx::UcxRoute;
use crate::peer::hello::SessionId;
use crate::peer::message::{Body, FrameRef};
use crate::peer::session::Session;
use crate::peer::transport::Transport;
use crate::peer::wire;
use crate::reason::{Code, Reason};
use crate::runtime::later::later;
use crate::supervisor::actor::PeerGone;
use actix::{Context, Handler, Message, MessageResult, ResponseActFuture, WrapFuture};
use std::time::Duration;

/// How long the last word of a session may take to be written and read.
const LAST_WORD: Duration = Duration::from_secs(1);
/// Bytes that are written in front of a last word; what no connection has seen beyond them is not said.
const LAST_BYTES: usize = 4 << 20;

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
    /// How long ago a path of a session with this peer failed.
    pub(crate) path_failed: Option<Duration>,
}

/// The reader's last word.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Closed {
    pub(super) transport: u64,
    pub(super) why: String,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Ticked;

impl PeerActor {
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
        if !self.gave_up_the_dead() {
            self.wait_for_another(why, ctx);
        }
    }

    /// The session has no transport any more, and is kept until another one comes, or too long.
    pub(super) fn wait_for_another(&mut self, why: &str, ctx: &mut Context<Self>) {
        let Some(link) = &mut self.link else { return };
        if link.transport.is_some() || !link.session.is_up() {
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
        self.is_now(PeerState::Resuming(text));
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
    pub(super) fn give_up(
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
        let path = match &link.route {
            PeerRoute::Ucx(route) => Some(Behind(route.clone())),
            PeerRoute::Local(_) | PeerRoute::Tcp(_) | PeerRoute::Shm(_) => None,
        };
        let last = link.transport.take().map(|transport| {
            let limit = self.node.limits.frame_bytes;
            let (scribe, me) = (self.scribe.clone(), self.me);
            let word = say_last(transport, &mut link.session, word, limit, move |frame| {
                scribe.sent(me, frame);
            });
            async move {
                word.await;
                drop(path);
            }
        });
        if let PeerRoute::Tcp(route) = &link.route {
            let route = route.clone();
            actix::spawn(async move { route.close().await });
        }
        drop(link);
        self.waits_for_nothing(&reason);
        self.tell_shards(&reason);
        self.is_now(PeerState::Down(reason.to_string()));
        last
    }

    /// A tick is on its way while there is something that it is for.
    pub(super) fn arm(&mut self, ctx: &mut Context<Self>) {
        let wanted = self
            .link
            .as_ref()
            .is_some_and(|l| l.transport.as_ref().is_none_or(Transport::is_socket));
        if wanted && !self.clock.armed {
            self.clock.armed = true;
            later(ctx, Ticked, self.clock.tick);
        }
    }
}

/// Takes a path down when it is dropped, which is behind the last word of its session, if one is said and waited
/// for: a peer that sees its path end before it has read that takes it for a failure.
struct Behind(UcxRoute);

impl Drop for Behind {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Encodes what is left of a session with a last word behind it, and writes it in the time there is.
/// The word itself is always said, in place of what there is too much of.
fn say_last<F: Fn(FrameRef<'_>) + 'static>(
    mut transport: Transport,
    session: &mut Session,
    word: Option<Body>,
    limit: usize,
    said: F,
) -> impl Future<Output = ()> + 'static + use<F> {
    if let Some(word) = word {
        let mut send = |session: &mut Session, most| {
            transport.send_last(most, |frames, bytes| {
                let n = session.transmit_with(frames, |frame| {
                    said(frame);
                    let _ = wire::encode_frame_ref(frame, bytes, limit);
                });
                n > 0 && session.has_output()
            });
        };
        send(session, LAST_BYTES);
        // Behind it only what has its number already, without which the word would be out of order.
        session.last_word(word);
        send(session, usize::MAX);
    }
    async move {
        let _ = tokio::time::timeout(LAST_WORD, transport.linger()).await;
    }
}

impl Handler<WhereStands> for PeerActor {
    type Result = MessageResult<WhereStands>;

    fn handle(&mut self, _: WhereStands, _: &mut Context<Self>) -> Self::Result {
        let link = self.link.as_ref();
        MessageResult(Standing {
            session: link.map(|link| link.id),
            received: link.map_or(0, |link| link.session.received()),
            up: link.is_some_and(|link| link.transport.is_some()),
            path_failed: self.path_failed.map(|at| at.elapsed()),
        })
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
        } else if !link.taking {
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
        // Once known, a newer life stays known.
        self.for_good |= for_good;
        let word = match bye {
            Some(drained) => Body::Bye { drained },
            None => Body::GaveUp {
                reason: reason.clone(),
            },
        };
        let last = if self.link.is_some() {
            self.give_up(reason, Some(word))
        } else {
            // Those that wait for a session.
            self.waits_for_nothing(&reason);
            match for_good {
                true => self.tell_shards(&reason),
                false => self.tell_says(),
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
