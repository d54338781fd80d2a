//! What peers say: routed by claim, and answered here when no room can.

#[cfg(all(feature = "switches", debug_assertions))]
use super::Life;
use super::ShardCore;
use crate::ids::{LegNo, LifeId, PeerRef, RoomKey};
use crate::peer::message::{Body, ClaimTag};
use crate::reason::{Code, Reason};
use crate::room::event::{Event, LegTerms};
use crate::room::{Outcome, Role};
use crate::supervisor::early::{Offer, Waiting};
use crate::supervisor::io::{ClaimKey, Counter, Output};
use crate::supervisor::spent::{KeyUse, Spent};
use kvroom_kernels::coverage::Coverage;
use std::sync::Arc;

impl<L, W, A> ShardCore<L, W, A> {
    pub(super) fn claim(
        &mut self,
        peer: PeerRef,
        offer: Offer,
        terms: Result<Arc<LegTerms>, Reason>,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let key = offer.tag.room;
        let terms = match terms {
            Ok(terms) => terms,
            Err(reason) => return self.refuse_offer(peer, &offer, reason, out),
        };
        if let Some(life) = self.sender_of(key) {
            return self.bind(life, peer, offer, terms, out);
        }
        if let Some(reason) = self.end_of(key) {
            return self.refuse_offer(peer, &offer, reason, out);
        }
        if self.shutting_down {
            let reason = Reason::new(Code::NodeShutdown, "the node is shutting down");
            return self.refuse_offer(peer, &offer, reason, out);
        }
        crate::switched!(EarlyClaimDropped => {
            return;
        });
        let (tag, within_ms) = (offer.tag, offer.deadline_ms);
        match self.early.wait(
            Waiting { peer, offer, terms },
            self.limits.early_claims_per_peer,
        ) {
            Ok(()) => out.push(Output::SetEarlyTimer {
                peer,
                tag,
                within_ms,
            }),
            Err(w) => {
                let reason = Reason::new(
                    Code::TooManyEarlyClaims,
                    format!(
                        "limit early_claims_per_peer = {} is reached: open sends faster, or claim \
                         later",
                        self.limits.early_claims_per_peer
                    ),
                );
                self.refuse_offer(peer, &w.offer, reason, out);
            }
        }
    }

    /// The live sender room of this key: of the same id and the same attempt.
    fn sender_of(&self, key: RoomKey) -> Option<LifeId> {
        crate::switched!(UnequalAttemptsBind => {
            let mut lives = self.lives.iter().filter(|(_, l)| l.outcome.is_none());
            let is = |l: &Life<L, W, A>| l.role == Role::Sender && l.key.id == key.id;
            return lives.find(|(_, l)| is(l)).map(|(life, _)| *life);
        });
        self.keys.get(&KeyUse::new(key, Role::Sender)).copied()
    }

    /// How the sender room of this key ended, if it did or an abort came before it.
    fn end_of(&self, key: RoomKey) -> Option<Reason> {
        crate::switched!(TombstoneByRoomId => {
            if let Some(attempt) = key.attempt.checked_sub(1)
                && let Some(reason) = self.end_of(RoomKey { attempt, ..key })
            {
                return Some(reason);
            }
        });
        if let Some(spent) = self.spent.get(&KeyUse::new(key, Role::Sender)) {
            return Some(match spent {
                Spent::Done => Reason::new(Code::KeySpent, format!("room {key} ended Done")),
                Spent::Aborted(code) => {
                    Reason::new(*code, format!("room {key} had ended before the claim came"))
                }
            });
        }
        self.early_abort_of(key)
    }

    /// Why this room was aborted, if that was before its `send`.
    pub(super) fn early_abort_of(&self, key: RoomKey) -> Option<Reason> {
        crate::switched!(TombstoneByRoomId => {
            if let Some(attempt) = key.attempt.checked_sub(1)
                && let Some(reason) = self.early_abort_of(RoomKey { attempt, ..key })
            {
                return Some(reason);
            }
        });
        self.aborted_early.get(&key).cloned()
    }

    pub(super) fn message(&mut self, peer: PeerRef, body: Body, out: &mut Vec<Output<L, W, A>>) {
        let Some(tag) = body.tag() else { return };
        let role = match &body {
            Body::Abort { .. } | Body::Accepted { .. } | Body::Rejected { .. } => Role::Sender,
            _ => Role::Receiver,
        };
        let key = ClaimKey {
            peer,
            role,
            number: tag.id.number,
        };
        let Some((life, leg)) = self.leg_of(key, tag) else {
            return self.message_for_nobody(peer, tag, body, out);
        };
        if matches!(body, Body::Failed { .. } | Body::Abort { .. })
            && let Some(l) = self.lives.get_mut(&life)
            && let Some(record) = l.legs.get_mut(usize::from(leg.0))
        {
            record.ended = true;
            // The room has its proof, and does not speak to a leg that it lost: nobody else answers.
            if std::mem::take(&mut record.lost) && l.custody.is_proven() && l.role == Role::Sender {
                let landed = Coverage::new();
                let body = Body::Quiesced { tag, landed };
                out.push(Output::ToPeer { peer, body });
            }
        }
        let event = match body {
            Body::Bound { .. } => Event::Bound(leg),
            Body::Progress {
                posted, written, ..
            } => Event::Progress {
                leg,
                posted,
                written,
            },
            Body::Complete {
                total,
                coverage,
                checksum,
                ..
            } => Event::Complete {
                leg,
                total,
                coverage,
                checksum,
            },
            Body::Accepted { .. } => Event::Accepted(leg),
            Body::Rejected { reason, .. } => Event::Rejected {
                leg,
                reason: reason.from_peer(),
            },
            Body::Failed { reason, .. } | Body::Abort { reason, .. } => Event::PeerEnded {
                leg,
                reason: reason.from_peer(),
            },
            Body::Quiesced { .. } => Event::PeerOut(leg),
            _ => return,
        };
        self.tell_room(life, event, out);
    }

    /// The leg of a claim that is live here, in the role that the message is for.
    fn leg_of(&self, key: ClaimKey, tag: ClaimTag) -> Option<(LifeId, LegNo)> {
        crate::switched!(MessageByRoomId => {
            let lives = self.lives.iter().rev();
            let mut lives = lives.filter(|(_, l)| l.role == key.role && l.key.id == tag.room.id);
            return lives.find_map(|(life, l)| {
                let leg = l.legs.iter().position(|leg| leg.peer == key.peer)?;
                Some((*life, LegNo(leg as u16)))
            });
        });
        let at = self.claims.get(&key).copied();
        crate::switched!(PanickedClaimUnknown => {
            if at.is_some_and(|(life, _)| self.lives.get(&life).is_some_and(|l| l.crashed)) {
                return None;
            }
        });
        at.filter(|(life, leg)| self.is_claim(*life, *leg, tag))
    }

    /// The number is right; is it the very claim?
    fn is_claim(&self, life: LifeId, leg: LegNo, tag: ClaimTag) -> bool {
        crate::switched!(MessageByNumberAlone => {
            return true;
        });
        self.lives
            .get(&life)
            .and_then(|l| l.legs.get(usize::from(leg.0)))
            .is_some_and(|l| l.claim == Some(tag))
    }

    fn message_for_nobody(
        &mut self,
        peer: PeerRef,
        tag: ClaimTag,
        body: Body,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        match body {
            Body::Abort { reason, .. } => {
                if let Some(w) = self.early.take_claim(peer, tag.room, tag.id.number) {
                    out.push(Output::ClearEarlyTimer { peer, tag });
                    self.remember_abort(tag, reason);
                    let body = Body::Quiesced {
                        tag,
                        landed: Coverage::new(),
                    };
                    out.push(Output::ToPeer { peer: w.peer, body });
                    let number = tag.id.number;
                    out.push(Output::ClaimEnded { peer, number });
                } else {
                    // Dead for ever: it ended, or its abort overtook it.
                    if !self.keys.contains_key(&KeyUse::new(tag.room, Role::Sender)) {
                        self.remember_abort(tag, reason);
                    }
                    let body = Body::Quiesced {
                        tag,
                        landed: Coverage::new(),
                    };
                    out.push(Output::ToPeer { peer, body });
                }
            }
            // The answer to an abort whose gate was closed before it came.
            Body::Quiesced { .. } => {}
            _ => out.push(Output::Count(Counter::StaleMessage)),
        }
    }

    fn remember_abort(&mut self, tag: ClaimTag, reason: Reason) {
        crate::switched!(EarlyAbortForgotten => {
            return;
        });
        if self
            .spent
            .get(&KeyUse::new(tag.room, Role::Sender))
            .is_none()
        {
            self.aborted_early.insert(tag.room, reason.from_peer());
        }
    }

    pub(super) fn claim_opened(
        &mut self,
        life: LifeId,
        leg: LegNo,
        tag: ClaimTag,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let Some(l) = self.lives.get_mut(&life) else {
            return;
        };
        let crashed = l.crashed;
        let Some(record) = l.legs.get_mut(usize::from(leg.0)) else {
            return;
        };
        record.claim = Some(tag);
        let peer = record.peer;
        crate::switched!(CustodyAfterAddress => {
            let _ = l.custody.owe(leg, None);
        });
        let key = ClaimKey {
            peer,
            role: Role::Receiver,
            number: tag.id.number,
        };
        self.claims.insert(key, (life, leg));
        if crashed {
            let reason = Reason::from(Code::ActorPanicked);
            out.push(Output::CloseGate { life, leg });
            out.push(Output::ToPeer {
                peer,
                body: Body::Abort { tag, reason },
            });
        } else {
            out.push(Output::ToRoom {
                life,
                event: Event::ClaimOpened(leg),
            });
        }
    }

    pub(super) fn peer_lost(
        &mut self,
        peer: PeerRef,
        reason: &Reason,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        crate::switched!(ReleaseOnPeerLost => {
            for l in self.lives.values_mut() {
                let legs = l.legs.iter().enumerate().filter(|(_, leg)| leg.peer == peer);
                legs.for_each(|(i, _)| l.custody.forgive(Some(LegNo(i as u16))));
            }
            let lives: Vec<LifeId> = self.lives.keys().copied().collect();
            lives.into_iter().for_each(|life| self.prove(life, out));
        });
        for (life, l) in &mut self.lives {
            if l.crashed {
                continue;
            }
            for (i, leg) in l
                .legs
                .iter_mut()
                .enumerate()
                .filter(|(_, leg)| leg.peer == peer)
            {
                if leg.closed || crate::switched!(LostSessionKeepsRooms) {
                    continue;
                }
                leg.lost = true;
                let leg = LegNo(i as u16);
                let event = Event::LegLost {
                    leg,
                    reason: reason.clone(),
                };
                out.push(Output::ToRoom { life: *life, event });
            }
        }
        // Their claims were of that session; nobody can be told.
        for w in self.early.take_peer(peer) {
            let tag = w.offer.tag;
            out.push(Output::ClearEarlyTimer { peer, tag });
        }
    }

    /// A new session with the same incarnation: aborts that may have been lost are said again.
    pub(super) fn peer_back(&mut self, peer: PeerRef, out: &mut Vec<Output<L, W, A>>) {
        crate::switched!(AbortNotSentAgain => {
            return;
        });
        for l in self.lives.values() {
            let Some(Outcome::Aborted(reason)) = l.outcome.as_deref() else {
                continue;
            };
            if l.role != Role::Receiver {
                continue;
            }
            for (leg, _) in l.custody.owing() {
                let Some(record) = l.legs.get(usize::from(leg.0)) else {
                    continue;
                };
                if let Some(tag) = record.claim.filter(|_| record.peer == peer) {
                    let reason = reason.clone();
                    out.push(Output::ToPeer {
                        peer,
                        body: Body::Abort { tag, reason },
                    });
                }
            }
        }
    }
}
