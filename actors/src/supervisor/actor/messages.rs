//! What a shard's actor is sent, and what it does with each message: a turn.

use super::{Inbound, KEPT_OUTPUTS, PeerLink, Shard};
use crate::fabric::PeerRoute;
use crate::ids::{LegNo, LifeId, PeerRef};
use crate::memory::{OpenGate, Withdrawn, Witness};
use crate::peer::actor::{FromPeer, PeerActor};
use crate::peer::message::ClaimTag;
use crate::reason::Reason;
use crate::record::GateIs;
use crate::room::StateName;
use crate::room::actor::{Listen, Said};
use crate::runtime::meter::Meter;
use crate::supervisor::attached::Gate;
use crate::supervisor::io::Input;
use actix::{Addr, Context, Handler, Message, MessageResult};
use std::sync::Arc;

/// A batch of the inbox. The answer is the emptied batch, to be filled again.
#[derive(Message)]
#[rtype(result = "Vec<Inbound>")]
pub(crate) struct FromInbox(pub(crate) Vec<Inbound>);

/// What a peer said. The answer is the emptied list, to be filled again.
#[derive(Message)]
#[rtype(result = "Vec<FromPeer>")]
pub(crate) struct PeerSays {
    pub(crate) peer: PeerRef,
    pub(crate) items: Vec<FromPeer>,
}

/// Answers of a session to what this shard asked of it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SessionAnswers(pub(crate) Vec<SessionSays>);

/// One of them.
pub(crate) enum SessionSays {
    Opened {
        life: LifeId,
        leg: LegNo,
        tag: ClaimTag,
        gate: OpenGate,
    },
    NotOpened {
        life: LifeId,
        leg: LegNo,
        reason: Reason,
        witness: Withdrawn,
    },
}

#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ShardPeer {
    pub(crate) peer: PeerRef,
    pub(crate) addr: Addr<PeerActor>,
    pub(crate) route: PeerRoute,
    pub(crate) meter: Arc<Meter>,
}

#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct PeerGone {
    pub(crate) peer: PeerRef,
    /// This life of the peer never comes back.
    pub(crate) for_good: bool,
    pub(crate) reason: Reason,
}

#[derive(Message)]
#[rtype(result = "()")]
pub(super) struct LookAgain;

impl Handler<FromInbox> for Shard {
    type Result = MessageResult<FromInbox>;

    fn handle(&mut self, FromInbox(mut batch): FromInbox, ctx: &mut Context<Self>) -> Self::Result {
        self.wake();
        self.small.refill();
        self.beat.take(batch.len());
        for message in batch.drain(..) {
            self.inbound(message, ctx);
        }
        self.settle(ctx);
        MessageResult(batch)
    }
}

impl Handler<Listen> for Shard {
    type Result = ();

    /// Goes on with what a turn began, on the same thread: the clocks are as they were then.
    fn handle(&mut self, _: Listen, ctx: &mut Context<Self>) {
        crate::runtime::drive::happened();
        let Some(ear) = &self.ear else { return };
        let mut heard = ear.hear(std::mem::take(&mut self.heard));
        for Said { life, told } in heard.drain(..) {
            let input = match told {
                Some((state, effects)) => {
                    self.stepped(life, state);
                    Input::RoomSaid {
                        life,
                        state,
                        effects,
                    }
                }
                None => {
                    self.stepped(life, StateName::Draining);
                    Input::RoomPanicked { life }
                }
            };
            self.input(input, ctx);
        }
        heard.shrink_to(KEPT_OUTPUTS);
        self.heard = heard;
        self.settle(ctx);
    }
}

impl Handler<PeerSays> for Shard {
    type Result = MessageResult<PeerSays>;

    fn handle(&mut self, says: PeerSays, ctx: &mut Context<Self>) -> Self::Result {
        self.wake();
        self.small.refill();
        let PeerSays { peer, mut items } = says;
        for item in items.drain(..) {
            let input = match item {
                FromPeer::Claim {
                    offer,
                    terms,
                    slices,
                    reach,
                    trace,
                } => {
                    if let Some(reach) = reach {
                        self.places.insert((peer, offer.tag.id.number), reach);
                    }
                    if let Some(slices) = slices {
                        self.slices.insert((peer, offer.tag.id.number), slices);
                    }
                    if let Some(trace) = trace {
                        self.traces.insert((peer, offer.tag.id.number), trace);
                    }
                    Input::Claim { peer, offer, terms }
                }
                FromPeer::Body(body) => {
                    self.hear_out(peer, &body);
                    Input::Message {
                        peer,
                        body: self.with_own_account(peer, body),
                    }
                }
            };
            self.input(input, ctx);
            for (life, leg) in std::mem::take(&mut self.heard_out) {
                self.finish_gate(life, leg);
                self.follow_up(ctx);
            }
        }
        self.settle(ctx);
        MessageResult(items)
    }
}

impl Handler<SessionAnswers> for Shard {
    type Result = ();

    fn handle(&mut self, SessionAnswers(answers): SessionAnswers, ctx: &mut Context<Self>) {
        self.wake();
        for says in answers {
            match says {
                SessionSays::Opened {
                    life,
                    leg,
                    tag,
                    gate,
                } => {
                    self.record_gate(Some(tag.room), life, leg, tag.id.number, GateIs::Open);
                    match self.gate(life, leg) {
                        Some(slot) => *slot = Gate::Open(gate),
                        // Its life is kept until this message, so this cannot be; a dropped gate closes.
                        None => drop(gate),
                    }
                    self.input(Input::ClaimOpened { life, leg, tag }, ctx);
                }
                SessionSays::NotOpened {
                    life,
                    leg,
                    reason,
                    witness,
                } => {
                    let witness = Witness::NeverSubmitted(witness);
                    self.input(
                        Input::ClaimNotOpened {
                            life,
                            leg,
                            reason,
                            witness,
                        },
                        ctx,
                    );
                }
            }
        }
        self.settle(ctx);
    }
}

impl Handler<ShardPeer> for Shard {
    type Result = ();

    fn handle(&mut self, up: ShardPeer, ctx: &mut Context<Self>) {
        let back = self.peers.contains_key(&up.peer);
        self.peers.insert(
            up.peer,
            PeerLink {
                addr: up.addr,
                meter: up.meter,
                route: Some(up.route),
            },
        );
        if back {
            self.input(Input::PeerBack { peer: up.peer }, ctx);
        }
        self.settle(ctx);
    }
}

impl Handler<PeerGone> for Shard {
    type Result = ();

    fn handle(&mut self, gone: PeerGone, ctx: &mut Context<Self>) {
        self.wake();
        self.input(
            Input::PeerLost {
                peer: gone.peer,
                reason: gone.reason,
            },
            ctx,
        );
        // Claims that waited for their room went without a word.
        let core = &self.core;
        self.places
            .retain(|(peer, number), _| *peer != gone.peer || core.serves(*peer, *number));
        self.slices
            .retain(|(peer, number), _| *peer != gone.peer || core.serves(*peer, *number));
        self.traces
            .retain(|(peer, number), _| *peer != gone.peer || core.serves(*peer, *number));
        if gone.for_good {
            self.peers.remove(&gone.peer);
        } else if let Some(link) = self.peers.get_mut(&gone.peer)
            && matches!(link.route, Some(PeerRoute::Shm(_) | PeerRoute::Ucx(_)))
        {
            link.route = None;
        }
        self.settle(ctx);
    }
}

impl Handler<LookAgain> for Shard {
    type Result = ();

    fn handle(&mut self, _: LookAgain, ctx: &mut Context<Self>) {
        self.wake();
        self.looking = false;
        for (life, leg) in std::mem::take(&mut self.stuck_gates) {
            self.finish_gate(life, leg);
            self.follow_up(ctx);
        }
        self.settle(ctx);
    }
}
