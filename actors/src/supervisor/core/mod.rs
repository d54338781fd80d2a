//! A shard's logic: which rooms there are, whose claims are whose, and what is lent to whom.
//!
//! ```text
//!   callers ─┐                        ┌─▶ ToRoom ─▶ room actor ─┐
//!   peers  ──┼─▶ Input ─▶ ShardCore ──┤                         │
//!   lanes  ──┤      ▲                 └─▶ Output: sessions, gates, lanes, clocks, callers
//!   clocks ──┘      └──────────── RoomSaid{effects} ◀───────────┘
//! ```
//!
//! Pure: told the time of nothing, it answers with data. It alone has the tables (lives, keys,
//! claims, waiting claims) and each life's [`Custody`]. A room's actor can be lost at any time; its
//! custody cannot, and this core drains a life without a room just as well.
//!
//! Rules:
//! - A claim binds by equal key only. A claim for a spent key is answered with that room's end.
//! - An abort for a claim that is not live here is answered `Quiesced` at once: the session's
//!   high-water mark makes sure that the claim can never become live.
//! - A life leaves the tables of keys when its outcome is published, so that the next attempt can
//!   start; it leaves the table of claims when its custody is proven over, and not before.

mod crash;
mod effects;
mod messages;
mod start;
#[cfg(test)]
mod tests;

use super::custody::{Custody, Held};
use super::early::{Early, Offer};
use super::io::{ClaimKey, Counter, Input, Output, Which};
use super::spent::{EarlyAborts, KeyUse, SpentKeys};
use crate::ids::{ClaimNo, LegNo, LifeId, PeerRef, RoomKey};
use crate::limits::Limits;
use crate::peer::message::ClaimTag;
use crate::reason::{Code, Reason};
use crate::room::event::{Effect, Event};
use crate::room::{Outcome, Role, StateName};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Limits that the core keeps by itself.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CoreLimits {
    /// See [`Limits::early_claims_per_peer`].
    pub early_claims_per_peer: usize,
    /// See [`Limits::quarantined_pages_per_peer`].
    pub quarantined_pages_per_peer: u64,
    /// See [`Limits::spent_keys`].
    pub spent_keys: usize,
}

impl From<&Limits> for CoreLimits {
    fn from(limits: &Limits) -> Self {
        CoreLimits {
            early_claims_per_peer: limits.early_claims_per_peer,
            quarantined_pages_per_peer: limits.quarantined_pages_per_peer,
            spent_keys: limits.spent_keys,
        }
    }
}

/// One shard. `L` is what is lent, `W` a witness, `A` what the runtime keeps with a life.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ShardCore<L, W, A> {
    limits: CoreLimits,
    lives: BTreeMap<LifeId, Box<Life<L, W, A>>>,
    keys: BTreeMap<KeyUse, LifeId>,
    claims: BTreeMap<ClaimKey, (LifeId, LegNo)>,
    early: Early,
    spent: SpentKeys,
    aborted_early: EarlyAborts,
    quarantined: BTreeMap<PeerRef, u64>,
    shutting_down: bool,
    told_empty: bool,
}

/// One life, from admission to the return of its last lease.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Life<L, W, A> {
    key: RoomKey,
    role: Role,
    tag: Option<Arc<str>>,
    pages: u64,
    state: StateName,
    custody: Custody<L, W>,
    legs: Vec<LegRecord>,
    /// Boxed: nearly every life of the table has none.
    outcome: Option<Box<Outcome>>,
    quarantined: bool,
    /// The actor panicked; this core ends the life by itself.
    crashed: bool,
    /// Its destination is being read for a checksum, on a proof that the room holds.
    summing: bool,
    attached: A,
}

/// What the supervisor knows of a leg.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LegRecord {
    /// The other node.
    pub peer: PeerRef,
    /// The claim; none while a receiver's claim has no number.
    pub claim: Option<ClaimTag>,
    /// The gate's slot at the receiver; only at a sender.
    pub gate: u32,
    /// Whether the claim wants a checksum; only at a sender.
    pub checksum: bool,
    /// Nothing is said on it any more.
    pub closed: bool,
    /// Its end was said, by this node or by the other: it is not said a second time.
    pub ended: bool,
    /// Its session was lost, and no `Abort` or `Failed` of the peer came since, which clear this: its
    /// room says nothing on it.
    pub lost: bool,
}

impl<L, W, A> ShardCore<L, W, A> {
    /// An empty shard.
    pub fn new(limits: CoreLimits) -> Self {
        ShardCore {
            lives: BTreeMap::new(),
            keys: BTreeMap::new(),
            claims: BTreeMap::new(),
            early: Early::default(),
            spent: SpentKeys::new(limits.spent_keys),
            aborted_early: EarlyAborts::new(limits.spent_keys.min(65_536)),
            quarantined: BTreeMap::new(),
            shutting_down: false,
            told_empty: false,
            limits,
        }
    }

    /// Tells the shard one thing. What is to be done about it is appended to `out`.
    pub fn handle(&mut self, input: Input<L, W, A>, out: &mut Vec<Output<L, W, A>>) {
        match input {
            Input::Start(start) => self.start(*start, out),
            Input::Push { life, chunk, lease } => match self.open_life(life) {
                Ok(l) => {
                    l.custody.hold(Held::Chunk(chunk.no), lease);
                    out.push(Output::ToRoom {
                        life,
                        event: Event::Push(chunk),
                    });
                }
                Err(reason) => out.push(Output::Bounce { lease, reason }),
            },
            Input::Finish { life, total, aux } => match self.open_life(life) {
                Ok(l) => {
                    let event = Event::Finish {
                        total,
                        aux: aux.is_some(),
                    };
                    if let Some(lease) = aux {
                        l.custody.hold(Held::Aux, lease);
                    }
                    out.push(Output::ToRoom { life, event });
                }
                Err(reason) => {
                    if let Some(lease) = aux {
                        out.push(Output::Bounce { lease, reason });
                    }
                }
            },
            Input::Abort { life, reason } => self.tell_room(life, Event::Abort(reason), out),
            Input::AbortWhere { which, reason } => self.abort_where(&which, &reason, out),
            Input::Summed { life, sum } => {
                if let Some(l) = self.lives.get_mut(&life) {
                    l.summing = false;
                }
                self.tell_room(life, Event::Summed(sum), out);
                self.prove(life, out);
            }
            Input::Claim { peer, offer, terms } => self.claim(peer, offer, terms, out),
            Input::Message { peer, body } => self.message(peer, body, out),
            Input::ClaimOpened { life, leg, tag } => self.claim_opened(life, leg, tag, out),
            Input::ClaimNotOpened {
                life,
                leg,
                reason,
                witness,
            } => {
                self.tell_room(life, Event::ClaimNotOpened { leg, reason }, out);
                self.meet(life, leg, None, witness, out);
            }
            Input::GateClosed { life, leg, witness } => self.meet(life, leg, None, witness, out),
            Input::Moved { life, leg, bytes } => {
                self.tell_room(life, Event::Moved { leg, bytes }, out);
            }
            Input::JobOver {
                life,
                leg,
                job,
                carried,
                rest,
                end,
                witness,
            } => {
                self.pay(life, leg, Some(carried), witness, out);
                self.tell_room(
                    life,
                    Event::JobOver {
                        leg,
                        job,
                        rest,
                        end,
                    },
                    out,
                );
                self.prove(life, out);
            }
            Input::RoomSaid {
                life,
                state,
                effects,
            } => self.room_said(life, state, effects, out),
            Input::RoomPanicked { life } => self.room_panicked(life, out),
            Input::Timer { life, timer } => self.timer(life, timer, out),
            Input::EarlyTimer { peer, tag } => {
                let reason = Reason::new(
                    Code::EarlyClaimExpired,
                    "no send for this room was opened in time",
                );
                if let Some(w) = self.early.take_claim(peer, tag.room, tag.id.number) {
                    self.refuse_offer(peer, &w.offer, reason, out);
                }
            }
            Input::PeerLost { peer, reason } => self.peer_lost(peer, &reason, out),
            Input::PeerBack { peer } => self.peer_back(peer, out),
            Input::Shutdown => {
                self.shutting_down = true;
                let reason = Reason::new(Code::NodeShutdown, "the node is shutting down");
                self.abort_where(&Which::All, &reason, out);
                self.tell_if_empty(out);
            }
            #[cfg(any(test, feature = "plant"))]
            Input::Explode { life } => self.tell_room(life, Event::Explode, out),
        }
    }

    /// What the runtime attached to a life.
    pub fn attached(&mut self, life: LifeId) -> Option<&mut A> {
        self.lives.get_mut(&life).map(|l| &mut l.attached)
    }

    /// One life.
    pub fn life(&self, life: LifeId) -> Option<&Life<L, W, A>> {
        self.lives.get(&life).map(|l| &**l)
    }

    /// One life, for the runtime to lend on what custody holds.
    pub(crate) fn life_mut(&mut self, life: LifeId) -> Option<&mut Life<L, W, A>> {
        self.lives.get_mut(&life).map(|l| &mut **l)
    }

    /// The life that has this key in this role, if one is alive or drains.
    pub fn life_of(&self, key: RoomKey, role: Role) -> Option<&Life<L, W, A>> {
        self.life(*self.keys.get(&KeyUse::new(key, role))?)
    }

    /// All lives.
    pub fn lives(&self) -> impl Iterator<Item = (LifeId, &Life<L, W, A>)> {
        self.lives.iter().map(|(id, l)| (*id, &**l))
    }

    /// Claims that wait for a local `send`, oldest first.
    pub fn early(&self) -> &Early {
        &self.early
    }

    /// The life and leg of a claim that this node offered to a peer.
    pub fn offered(&self, peer: PeerRef, number: ClaimNo) -> Option<(LifeId, LegNo)> {
        let role = Role::Receiver;
        let key = ClaimKey { peer, role, number };
        self.claims.get(&key).copied()
    }

    /// Whether a peer's claim is served here, or waits to be.
    pub fn serves(&self, peer: PeerRef, number: ClaimNo) -> bool {
        let role = Role::Sender;
        let key = ClaimKey { peer, role, number };
        self.claims.contains_key(&key) || self.early.has(peer, number)
    }

    /// How many claims are live in either role.
    pub fn claims(&self) -> usize {
        self.claims.len()
    }

    /// How many outcomes are remembered.
    pub fn remembered(&self) -> usize {
        self.spent.len()
    }

    /// Whether nothing is alive, draining or waiting here.
    pub fn is_empty(&self) -> bool {
        self.lives.is_empty() && self.early.is_empty()
    }

    /// A life that still takes work from its caller, or its reason.
    fn open_life(&mut self, life: LifeId) -> Result<&mut Life<L, W, A>, Reason> {
        match self.lives.get_mut(&life) {
            Some(l) => match l.outcome.as_deref() {
                None => Ok(l),
                Some(Outcome::Aborted(reason)) => Err(reason.clone()),
                Some(Outcome::Done) => Err(Reason::new(Code::KeySpent, "the room is done")),
            },
            None => Err(Reason::new(Code::KeySpent, "the room is over")),
        }
    }

    fn tell_room(&mut self, life: LifeId, event: Event<W>, out: &mut Vec<Output<L, W, A>>) {
        if self.lives.get(&life).is_some_and(|l| !l.crashed) {
            out.push(Output::ToRoom { life, event });
        }
    }

    /// A witness pays, and the life may be over by it.
    fn meet(
        &mut self,
        life: LifeId,
        leg: LegNo,
        carried: Option<Held>,
        witness: W,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        self.pay(life, leg, carried, witness, out);
        self.prove(life, out);
    }

    fn pay(
        &mut self,
        life: LifeId,
        leg: LegNo,
        carried: Option<Held>,
        witness: W,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        let paid = match self.lives.get_mut(&life) {
            Some(l) => l.custody.meet(leg, carried, witness).is_ok(),
            None => false,
        };
        if !paid {
            out.push(Output::Count(Counter::StrayWitness));
        }
    }

    /// If everything owed is paid: the proof goes to the room, or, without a room, ends the life.
    fn prove(&mut self, life: LifeId, out: &mut Vec<Output<L, W, A>>) {
        let Some(l) = self.lives.get_mut(&life) else {
            return;
        };
        if l.summing && !crate::switched!(ReleaseWhileSumming) {
            return;
        }
        let Some(proof) = l.custody.quiet() else {
            return;
        };
        if l.crashed {
            self.say_quiesced(life, out);
            self.give_back(life, proof, out);
        } else {
            out.push(Output::ToRoom {
                life,
                event: Event::Quiet(proof),
            });
        }
    }

    /// The lives that `which` names and that have no outcome yet.
    pub(crate) fn live<'a>(
        &'a self,
        which: &'a Which,
    ) -> impl Iterator<Item = (LifeId, &'a Life<L, W, A>)> {
        self.lives().filter(move |(life, l)| {
            l.outcome.is_none()
                && match which {
                    Which::All => true,
                    Which::Room(id) => l.key.id == *id,
                    Which::Tag(tag) => l.tag.as_deref() == Some(&**tag),
                    Which::AllBut(tag) => l.tag.as_deref() != Some(&**tag),
                    Which::Peer(peer) => l.legs.iter().any(|leg| leg.peer == *peer && !leg.closed),
                    Which::Lives(lives) => lives.has(life),
                }
        })
    }

    fn abort_where(&mut self, which: &Which, reason: &Reason, out: &mut Vec<Output<L, W, A>>) {
        out.extend(self.live(which).map(|(life, _)| Output::ToRoom {
            life,
            event: Event::Abort(reason.clone()),
        }));
        let waiting: Vec<(PeerRef, Offer)> = self
            .early
            .iter()
            .filter(|w| match which {
                Which::All | Which::AllBut(_) => true,
                Which::Room(id) => w.offer.tag.room.id == *id,
                Which::Tag(_) | Which::Lives(_) => false,
                Which::Peer(peer) => w.peer == *peer,
            })
            .map(|w| (w.peer, w.offer.clone()))
            .collect();
        for (peer, offer) in waiting {
            self.early
                .take_claim(peer, offer.tag.room, offer.tag.id.number);
            let tag = offer.tag;
            out.push(Output::ClearEarlyTimer { peer, tag });
            self.aborted_early.insert(offer.tag.room, reason.clone());
            self.refuse_offer(peer, &offer, reason.clone(), out);
        }
    }

    /// Whether `which` names this life, for counting before an abort.
    pub fn matching(&self, which: &Which) -> usize {
        self.live(which).count()
    }

    fn tell_if_empty(&mut self, out: &mut Vec<Output<L, W, A>>) {
        if self.shutting_down && !self.told_empty && self.is_empty() {
            self.told_empty = true;
            out.push(Output::Empty);
        }
    }

    fn room_said(
        &mut self,
        life: LifeId,
        state: StateName,
        effects: Vec<Effect<W>>,
        out: &mut Vec<Output<L, W, A>>,
    ) {
        match self.lives.get_mut(&life) {
            Some(l) if !l.crashed => l.state = state,
            _ => return,
        }
        for effect in effects {
            self.effect(life, effect, out);
        }
    }
}

impl<L, W, A> Life<L, W, A> {
    /// Its key.
    pub fn key(&self) -> RoomKey {
        self.key
    }

    /// Its role.
    pub fn role(&self) -> Role {
        self.role
    }

    /// Its tag.
    pub fn tag(&self) -> Option<&str> {
        self.tag.as_deref()
    }

    /// Pages it holds.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Its room's state, as last told.
    pub fn state(&self) -> StateName {
        self.state
    }

    /// Its legs.
    pub fn legs(&self) -> &[LegRecord] {
        &self.legs
    }

    /// Its outcome, once published.
    pub fn outcome(&self) -> Option<&Outcome> {
        self.outcome.as_deref()
    }

    /// Whether it passed its drain deadline.
    pub fn is_quarantined(&self) -> bool {
        self.quarantined
    }

    /// Its leases and debts.
    pub fn custody(&self) -> &Custody<L, W> {
        &self.custody
    }

    pub(crate) fn leases_mut(&mut self) -> impl Iterator<Item = (Held, &mut L)> {
        self.custody.leases_mut()
    }

    pub(crate) fn attached_mut(&mut self) -> &mut A {
        &mut self.attached
    }

    /// What the runtime attached.
    pub fn attached(&self) -> &A {
        &self.attached
    }
}
