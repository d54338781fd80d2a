//! Admission: keys are used once, and a room that an abort overtook ends at once.

use super::{LegRecord, Life, ShardCore};
use crate::ids::{LegNo, LifeId, PeerRef};
use crate::peer::message::Body;
use crate::reason::{Code, Reason};
use crate::room::event::{Effect, Event, LegTerms};
use crate::room::{Role, Room, StateName, receiver, sender};
use crate::supervisor::custody::Custody;
use crate::supervisor::early::Offer;
use crate::supervisor::io::{ClaimKey, Counter, Output, Start, StartRefused, StartRole};
use crate::supervisor::spent::KeyUse;
use kvroom_kernels::coverage::Coverage;
use std::sync::Arc;

impl<L, W, A> ShardCore<L, W, A> {
    pub(super) fn start(&mut self, start: Start<L, A>, out: &mut Vec<Output<L, W, A>>) {
        let Start {
            life,
            key,
            tag,
            pages,
            attached,
            role,
        } = start;
        let name = match role {
            StartRole::Sender { .. } => Role::Sender,
            StartRole::Receiver { .. } => Role::Receiver,
        };
        if let Some(why) = self.refusal(key, name, &role) {
            let leases = match role {
                StartRole::Sender { .. } => Vec::new(),
                StartRole::Receiver { leases, .. } => leases,
            };
            out.push(Output::StartRefused {
                why,
                attached,
                leases,
            });
            return;
        }
        let mut effects = Vec::new();
        let mut custody = Custody::default();
        let (room, legs) = match role {
            StartRole::Sender { receivers } => (
                Room::Sender(sender::Sender::register(receivers, &mut effects)),
                Vec::new(),
            ),
            StartRole::Receiver {
                terms,
                peers,
                leases,
            } => {
                for (held, lease) in leases {
                    custody.hold(held, lease);
                }
                let legs = peers.into_iter().map(LegRecord::of).collect();
                let room = receiver::Receiver::register(terms, &mut effects);
                (Room::Receiver(room), legs)
            }
        };
        self.lives.insert(
            life,
            Box::new(Life {
                key,
                role: name,
                tag,
                pages,
                state: StateName::Registered,
                custody,
                legs,
                outcome: None,
                quarantined: false,
                crashed: false,
                summing: false,
                attached,
            }),
        );
        self.keys.insert(KeyUse::new(key, name), life);
        out.push(Output::Spawn { life, room });
        self.first_effects(life, effects, out);
        if name == Role::Sender {
            if let Some(reason) = self.early_abort_of(key) {
                out.push(Output::ToRoom {
                    life,
                    event: Event::Abort(reason),
                });
            }
            for w in self.early.take_room(key) {
                let tag = w.offer.tag;
                out.push(Output::ClearEarlyTimer { peer: w.peer, tag });
                self.bind(life, w.peer, w.offer, w.terms, out);
            }
        }
    }

    fn refusal(
        &self,
        key: crate::ids::RoomKey,
        role: Role,
        start: &StartRole<L>,
    ) -> Option<StartRefused> {
        if self.shutting_down {
            return Some(StartRefused::ShuttingDown);
        }
        if self.keys.contains_key(&KeyUse::new(key, role)) {
            return Some(StartRefused::RoomExists(key));
        }
        if let Some(outcome) = self.spent.get(&KeyUse::new(key, role)) {
            return Some(StartRefused::KeySpent {
                key,
                outcome: *outcome,
            });
        }
        let limit = self.limits.quarantined_pages_per_peer;
        if let StartRole::Receiver { peers, .. } = start
            && peers
                .iter()
                .any(|p| self.quarantined.get(p).is_some_and(|pages| *pages >= limit))
        {
            return Some(StartRefused::LimitReached {
                limit: "quarantined_pages_per_peer",
                value: limit,
                advice: "this peer holds too many pages that it has not proven to be out of; \
                         use another one until it answers",
            });
        }
        None
    }

    fn first_effects(
        &mut self,
        life: LifeId,
        effects: Vec<Effect<W>>,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        for effect in effects {
            self.effect(life, effect, out);
        }
    }

    /// A claim meets its sender room.
    pub(super) fn bind(
        &mut self,
        life: LifeId,
        peer: PeerRef,
        offer: Offer,
        terms: Arc<LegTerms>,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let Some(l) = self.lives.get_mut(&life) else {
            return;
        };
        if l.custody.is_sealed() {
            // Its proof is on the way to the room: an answer from there could come too late.
            let reason = Reason::new(Code::KeySpent, format!("room {} is ending", l.key));
            return self.refuse_offer(peer, &offer, reason, out);
        }
        let Ok(leg) = u16::try_from(l.legs.len()).map(LegNo) else {
            let reason = Reason::new(
                Code::LimitReached,
                format!("room {} was claimed 65536 times", l.key),
            );
            return self.refuse_offer(peer, &offer, reason, out);
        };
        let key = ClaimKey {
            peer,
            role: Role::Sender,
            number: offer.tag.id.number,
        };
        self.claims.insert(key, (life, leg));
        if l.legs.capacity() == 0 {
            // Most rooms have one leg.
            l.legs.reserve_exact(1);
        }
        l.legs.push(LegRecord {
            peer,
            claim: Some(offer.tag),
            gate: offer.gate,
            checksum: offer.checksum,
            closed: false,
            ended: false,
            lost: false,
        });
        l.pages += offer.pages;
        out.push(Output::ToRoom {
            life,
            event: Event::Bind { leg, terms },
        });
    }

    /// A claim gets nothing from this node.
    pub(super) fn refuse_offer(
        &mut self,
        peer: PeerRef,
        offer: &Offer,
        reason: Reason,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let tag = offer.tag;
        out.push(Output::Count(Counter::ClaimRefused));
        out.push(Output::ToPeer {
            peer,
            body: Body::Failed { tag, reason },
        });
        out.push(Output::ToPeer {
            peer,
            body: Body::Quiesced {
                tag,
                landed: Coverage::new(),
            },
        });
        let number = tag.id.number;
        out.push(Output::ClaimEnded { peer, number });
    }
}

impl LegRecord {
    fn of(peer: PeerRef) -> Self {
        LegRecord {
            peer,
            claim: None,
            gate: 0,
            checksum: false,
            closed: false,
            ended: false,
            lost: false,
        }
    }
}
