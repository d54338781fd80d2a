//! What came in: bytes to frames, frames through the session, bodies to the shards.
//!
//! A wire error or a frame that is well formed and wrong is the peer's fault and ends the session;
//! bytes that were damaged on the way, or are missing, lose the transport only.

use super::{Announced, FromPeer, Link, PeerActor};
use crate::limits::Limits;
use crate::peer::message::{Body, Claim, ClaimTag};
use crate::peer::session::{Admit, Received};
use crate::peer::terms::{LocalPool, Served, TheirPool, terms_of};
use crate::reason::{Code, Reason};
use crate::runtime::shared::{NodeShared, Pools};
use crate::runtime::spin;
use crate::supervisor::actor::PeerSays;
use crate::supervisor::early::Offer;
use actix::{ActorFutureExt, Context, Handler, Message, ResponseActFuture, WrapFuture};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes of a transport. The answer comes when the shards have taken what was in them.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct Incoming {
    pub(super) transport: u64,
    pub(super) bytes: Vec<u8>,
    /// How many of `bytes` came.
    pub(super) len: usize,
}

/// Why nothing more is taken from these bytes.
enum Stop {
    /// The session is over.
    Session(Reason),
    /// The transport is lost, and the session can go on over another.
    Transport(String),
}

/// Frames that a room may have waiting for one peer, generously: a claim and all that is said of it.
const FRAMES_PER_ROOM: usize = 16;

pub(super) type Batches = Vec<Vec<FromPeer>>;

/// Why a claim is too large for this node. Nodes may have different limits: it costs that claim, and
/// not the session.
fn over_limits(claim: &Claim, pages: u64, limits: &Limits) -> Option<Reason> {
    let over = |limit, value: u64, given: u64| {
        let text =
            format!("limit {limit} = {value} of the sender is reached: the claim has {given}");
        Some(Reason::new(Code::LimitReached, text))
    };
    if claim.receivers > limits.receivers {
        return over("receivers", limits.receivers.into(), claim.receivers.into());
    }
    if pages > limits.pages_per_claim as u64 {
        return over("pages_per_claim", limits.pages_per_claim as u64, pages);
    }
    None
}

pub(super) fn violation(text: String) -> Reason {
    Reason::new(Code::ProtocolViolation, text).from_peer()
}

impl PeerActor {
    /// Takes in one batch; gives what is for the shards, and what ended it.
    fn take(&mut self, bytes: &[u8]) -> (Batches, Option<Stop>) {
        let pools = self.node.pools.borrow().clone();
        let mut out = Batches::new();
        out.resize_with(self.shards.len(), || self.spare.pop().unwrap_or_default());
        let mut rest = bytes;
        while let Some(link) = &mut self.link {
            let frame = match link.reader.read(&mut rest) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) if error.loses_transport_only() && link.can_resume() => {
                    return (out, Some(Stop::Transport(error.to_string())));
                }
                Err(error) => return (out, Some(Stop::Session(violation(error.to_string())))),
            };
            let came = self.scribe.came(self.me, frame.as_ref());
            let received = link.session.receive(frame);
            if let Ok(Received::Deliver(_) | Received::Credit(_)) = &received
                && let Some(came) = came
            {
                self.scribe.received(came);
            }
            let end = match received {
                Ok(Received::Deliver(body)) => {
                    let end = self.deliver(body, &pools, &mut out).err();
                    end.map(Stop::Session)
                }
                Ok(Received::Credit(_)) => {
                    self.open_waiting();
                    None
                }
                Ok(Received::Duplicate) => {
                    self.node.stats.add(&self.node.stats.duplicate_frames);
                    None
                }
                Ok(Received::Nothing) => None,
                Ok(Received::OutOfOrder { expected }) => {
                    let text = format!("frame {expected} is missing");
                    Some(if link.can_resume() {
                        Stop::Transport(text)
                    } else {
                        Stop::Session(violation(text))
                    })
                }
                Err(error) => Some(Stop::Session(violation(error.to_string()))),
            };
            if end.is_some() {
                return (out, end);
            }
        }
        let end = self.over_answers().map(Stop::Session);
        (out, end)
    }

    /// Whether this node holds more answers for the peer than its claims can be worth. Bodies about a
    /// claim are never refused for room, and an abort of a claim that does not exist is answered like
    /// any other: a peer that says them and does not read, or reads and does not acknowledge, would
    /// have this node keep the answers without end.
    fn over_answers(&self) -> Option<Reason> {
        let limits = &self.node.limits;
        let most = limits
            .frames_unacknowledged
            .saturating_add(limits.rooms.saturating_mul(FRAMES_PER_ROOM));
        let waiting = self.link.as_ref()?.session.unacknowledged();
        (waiting > most).then(|| {
            let text = format!(
                "{waiting} frames wait for node {:?}, more than limits frames_unacknowledged = {} \
                 and {FRAMES_PER_ROOM} for each of rooms = {} allow: it sends, and does not read \
                 or acknowledge what it is answered",
                self.name, limits.frames_unacknowledged, limits.rooms
            );
            Reason::new(Code::LimitReached, text).from_peer()
        })
    }

    /// One body: for the shard that it concerns, or for the session itself. Gives the session's end,
    /// if that is what it says.
    fn deliver(&mut self, body: Body, pools: &Pools, out: &mut Batches) -> Result<(), Reason> {
        let shards = self.shards.len();
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut put = |tag: ClaimTag, item: FromPeer| {
            out[NodeShared::shard_of(tag.room.id, shards)].push(item);
        };
        match body {
            Body::Claim(claim) => {
                match link.session.admit_claim(claim.tag.id.number) {
                    Admit::Fresh => {}
                    // Dead for ever; its abort was answered.
                    Admit::Stale => {
                        link.session.claim_ended();
                        self.node.stats.add(&self.node.stats.stale_messages);
                        return Ok(());
                    }
                }
                let served = terms_of(
                    &claim,
                    |id| {
                        link.pools.get(&id).map(|p| TheirPool {
                            layout: &p.layout,
                            content: p.content.as_ref(),
                        })
                    },
                    |name| {
                        pools.named(name).map(|p| LocalPool {
                            id: p.id,
                            layout: p.pool.layout(),
                            content: p.pool.content(),
                        })
                    },
                );
                let pages = claim.sections.iter().map(|s| s.pages.len() as u64).sum();
                let served = over_limits(&claim, pages, &self.node.limits).map_or(served, Err);
                let (served, reach) = link.reach(&claim, served);
                let (terms, slices) = match served {
                    Ok(Served { terms, slices }) => (Ok(Arc::new(terms)), slices),
                    Err(reason) => (Err(reason), None),
                };
                let (tag, gate, checksum) = (claim.tag, claim.gate, claim.checksum);
                let deadline_ms = claim.deadline_ms;
                let trace = claim.trace;
                tracing::debug!(room = %tag.room, peer = self.name, trace = trace.map(tracing::field::display), "claim arrived");
                let offer = Offer {
                    tag,
                    gate,
                    pages,
                    checksum,
                    deadline_ms,
                };
                put(
                    tag,
                    FromPeer::Claim {
                        offer,
                        terms,
                        slices,
                        reach,
                        trace,
                    },
                );
            }
            Body::PoolAdded {
                pool,
                layout,
                content,
                far,
            } => {
                link.map_pool(pool, &layout);
                if let Some(key) = far {
                    link.learn(pool, &layout, *key);
                }
                let content = content.map(|content| Arc::new(*content));
                link.pools.insert(pool, Announced { layout, content });
                self.tell_contents();
            }
            Body::PoolRetired { pool } => {
                // Claims that are there keep the mapping.
                link.remote.remove(&pool);
                link.far.remove(&pool);
                link.pools.remove(&pool);
                self.tell_contents();
            }
            Body::Bye { drained } => {
                let text = format!("node {:?} said goodbye (drained: {drained})", self.name);
                return Err(Reason::new(Code::PeerLost, text).from_peer());
            }
            Body::GaveUp { reason } => {
                if reason.code == Code::SessionLost {
                    // On purpose: only somebody who connects brings it back.
                    self.parted.store(true, Ordering::Release);
                }
                return Err(reason.from_peer());
            }
            Body::Superseded => {
                let text = format!("node {:?} knows a newer life of this node", self.name);
                return Err(Reason::new(Code::PeerRestarted, text).from_peer());
            }
            Body::Abort { tag, reason } => {
                link.session.note_abort(tag.id.number);
                put(tag, FromPeer::Body(Body::Abort { tag, reason }));
            }
            body => {
                if let Some(tag) = body.tag() {
                    put(tag, FromPeer::Body(body));
                }
            }
        }
        Ok(())
    }
}

impl Link {
    fn can_resume(&self) -> bool {
        self.transport.as_ref().is_some_and(|t| t.is_socket())
    }
}

impl Handler<Incoming> for PeerActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, incoming: Incoming, _: &mut Context<Self>) -> Self::Result {
        let Incoming {
            transport,
            bytes,
            len,
        } = incoming;
        if transport != self.transports {
            return Box::pin(std::future::ready(()).into_actor(self));
        }
        self.clock.heard();
        self.scribe.turn();
        let (batches, end) = self.take(bytes.get(..len).unwrap_or_default());
        self.tell_says();
        if let Some(link) = &mut self.link {
            link.taking = true;
            if let Some(transport) = &mut link.transport {
                transport.emptied(bytes);
            }
        }
        if batches.iter().any(|items| !items.is_empty()) {
            // Not for acknowledgements and heartbeats.
            spin::stay_awake();
        }
        let peer = self.me;
        let mut sent = Vec::with_capacity(batches.len());
        for (i, items) in batches.into_iter().enumerate() {
            if items.is_empty() {
                self.spare.push(items);
            } else {
                sent.push(self.shards[i].send(PeerSays { peer, items }));
            }
        }
        let taken = async move {
            let mut emptied = Vec::with_capacity(sent.len());
            for shard in sent {
                emptied.extend(shard.await.ok());
            }
            emptied
        };
        Box::pin(taken.into_actor(self).map(move |emptied, me, ctx| {
            me.spare.extend(emptied);
            me.spare.truncate(me.shards.len());
            if transport == me.transports {
                if let Some(link) = &mut me.link {
                    link.taking = false;
                }
                // What came before the end has been heard before it.
                match end {
                    Some(Stop::Session(reason)) => me.end_of(reason),
                    Some(Stop::Transport(why)) => me.transport_lost(&why, ctx),
                    None => {}
                }
            }
            me.wants_flush(ctx);
            me.wants_ack(ctx);
        }))
    }
}
