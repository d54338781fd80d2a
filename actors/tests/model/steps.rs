//! What each action does.
//!
//! ```text
//!   Action ─▶ apply ─▶ inputs of cores ─▶ (at once) cores, rooms, commands, flushes, until idle
//! ```

use super::end::Told;
use super::end::process;
use super::network::{RECEIVER, SENDER, Side, Step};
use super::node::Witness;
use super::plane::Gate;
use super::request::{TOTAL, chunk, leg_terms, receiver_terms};
use super::size::{Kind, Plant};
use super::truth::{Broken, Story};
use super::world::{Action, World, node_of};
use kvroom_actors::ids::{ChunkNo, LifeId, PeerRef};
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::Role;
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::early::Offer;
use kvroom_actors::supervisor::io::{Input, Start, StartRole};
use kvroom_kernels::coverage::Coverage;
use std::sync::Arc;

impl World {
    pub(crate) fn apply(&mut self, action: &Action) {
        match action.clone() {
            Action::Start(node) => self.start(node),
            Action::Push(life, chunk) => self.push(life, chunk),
            Action::Finish(life) => self.finish(life),
            Action::Abort(node, life) => {
                self.budget.aborts -= 1;
                self.hurt(self.truth.stories[&(node, life)].key);
                let reason = Reason::from(Code::Requested);
                self.tell(node, Input::Abort { life, reason });
            }
            Action::Core(node) => self.core(node),
            Action::Room(node) => self.nodes[node].step_room(),
            Action::Link(i, side, step) => {
                self.budget.losses -= u32::from(step == Step::GiveUp);
                self.truth.shaken |= step == Step::GiveUp;
                // The second side of a reset follows from the first.
                let reset = step == Step::Reset && self.links[i].can_reset();
                self.budget.resets -= u32::from(reset);
                self.link(i, side, step);
            }
            Action::Enter(at) => self.enter(at),
            Action::Land(at) => self.land(at),
            Action::Fail(at) => self.fail(at),
            Action::LetGo(at) => self.let_go(at),
            Action::Resend(at) => self.resend(at),
            Action::FlushError(at) => self.flush_error(at),
            Action::Arrive(at) => self.arrive(at),
            Action::Place(at) => self.place(at),
            Action::Discount(tag) => self.discount(tag),
            Action::Fence(tag) => self.fence(tag),
            Action::Crash(node) => self.crash(node),
            Action::Stop(node) => self.stop(node),
            Action::Cont(node, life) => {
                self.down.remove(&(node, life));
            }
            Action::Restart(node) => self.restart(node),
            Action::Sum(node, life) => {
                self.sums.remove(&(node, life));
                if self.truth.is_returned(node, life) {
                    self.truth.broken.insert(Broken::S2TornSource);
                }
                let sum = self.truth.bytes(node, life).len() as u64;
                self.tell(node, Input::Summed { life, sum });
            }
            Action::Clock(node, life, timer) => {
                self.nodes[node].clocks.remove(&(life, timer));
                self.hurt(self.truth.stories[&(node, life)].key);
                self.tell(node, Input::Timer { life, timer });
            }
            Action::EarlyClock(tag) => {
                let (node, _) = process(tag.id.sender);
                self.nodes[node].early_clocks.remove(&tag);
                self.hurt(tag.room);
                let peer = self.peer_ref(tag.id.receiver);
                self.tell(node, Input::EarlyTimer { peer, tag });
            }
            Action::Panic(node, life) => {
                self.budget.panics -= 1;
                self.hurt(self.truth.stories[&(node, life)].key);
                self.nodes[node].panic(life);
            }
        }
        while (self.size.at_once && self.step_node()) || (self.size.eager && self.step_owner()) {}
    }

    /// One step within a node that nobody else can see; false if there is none.
    fn step_node(&mut self) -> bool {
        for node in (0..self.nodes.len())
            .filter(|n| self.runs(*n))
            .collect::<Vec<_>>()
        {
            if !self.nodes[node].inbox.is_empty() {
                self.core(node);
                return true;
            }
            if !self.nodes[node].mail.is_empty() {
                self.nodes[node].step_room();
                return true;
            }
        }
        false
    }

    /// The same for an owner of a session.
    fn step_owner(&mut self) -> bool {
        for i in 0..self.links.len() {
            for side in [SENDER, RECEIVER] {
                if !self.runs(self.node_at(i, side)) {
                    continue;
                }
                let end = &self.links[i].ends[side];
                if !end.commands.is_empty() {
                    self.link(i, side, Step::Command);
                    return true;
                }
                if end.has_output(self.size.acks) {
                    self.link(i, side, Step::Flush);
                    return true;
                }
            }
        }
        false
    }

    fn core(&mut self, node: usize) {
        for output in self.nodes[node].step_core() {
            self.output(node, output);
        }
    }

    pub(crate) fn link(&mut self, i: usize, side: Side, step: Step) {
        let mut told = Vec::new();
        let peer = self.peer_at(i, side);
        self.links[i].step(side, step, &self.size, &mut told);
        if !self.links[i].ends[side].counts_right() {
            self.truth.broken.insert(Broken::CreditMiscounted);
        }
        for told in told {
            self.told(i, side, peer, told);
        }
        if step == Step::Attach {
            let peer = self.peer_at(i, side);
            self.tell(self.node_at(i, side), Input::PeerBack { peer });
        }
    }

    /// What a session's owner tells its shard.
    fn told(&mut self, i: usize, side: Side, peer: PeerRef, told: Told) {
        let node = self.node_at(i, side);
        let input = match told {
            Told::Opened(pending, tag) => {
                let (life, leg) = (pending.life, pending.leg);
                let gate = Gate {
                    node,
                    inc: self.lives[node],
                    pool: self.pools[node],
                    place: self.pages[node].of(life).unwrap_or(0),
                    life,
                    leg,
                    closed: false,
                    inside: 0,
                    met: false,
                };
                self.plane.gates.insert(tag, gate);
                Input::ClaimOpened { life, leg, tag }
            }
            Told::NotOpened(pending, code) => Input::ClaimNotOpened {
                life: pending.life,
                leg: pending.leg,
                reason: code.into(),
                witness: Witness::NeverSubmitted,
            },
            Told::Claim(claim) => Input::Claim {
                peer,
                offer: Offer {
                    tag: claim.tag,
                    gate: claim.gate,
                    pages: 4,
                    checksum: claim.checksum,
                    deadline_ms: u32::MAX,
                },
                terms: Ok(Arc::new(leg_terms(&claim))),
            },
            Told::Body(body) => {
                if let Body::Abort { tag, .. } = &body
                    && self.size.plant == Some(Plant::QuiescedWhileOut)
                {
                    let (tag, landed) = (*tag, Coverage::new());
                    self.say(node, peer, Body::Quiesced { tag, landed });
                }
                return self.hear(node, peer, body);
            }
            Told::Lost => {
                let reason = Reason::from(Code::SessionLost);
                Input::PeerLost { peer, reason }
            }
            Told::Accused => {
                self.truth.broken.insert(Broken::Accused);
                return;
            }
        };
        self.tell(node, input);
    }

    /// A message of a peer, and, where a fabric has no gate at the receiver, what it proves.
    fn hear(&mut self, node: usize, peer: PeerRef, body: Body) {
        let body = self.renamed(node, body);
        let proof = match &body {
            Body::Quiesced { tag, .. } => Some((*tag, Witness::PeerDrained)),
            Body::Complete { tag, .. } => Some((*tag, Witness::Completed)),
            _ => None,
        };
        self.tell(node, Input::Message { peer, body });
        if self.size.plane == Kind::Ucx
            && let Some((tag, witness)) = proof
            && self.plane.gates.get(&tag).is_some_and(|gate| !gate.met)
        {
            self.gate_empty(tag, witness);
        }
    }

    /// Planted: what a peer says of a claim number is taken for what its former life would say.
    fn renamed(&self, node: usize, body: Body) -> Body {
        match body {
            Body::Quiesced { tag, landed } if self.size.plant == Some(Plant::AbortToTheNewLife) => {
                let mut gates = self.plane.gates.iter().filter(|(_, g)| g.node == node);
                let same = |t: &ClaimTag| t.id.number == tag.id.number && t.room == tag.room;
                let tag = gates.find(|(t, _)| same(t)).map_or(tag, |(t, _)| *t);
                Body::Quiesced { tag, landed }
            }
            body => body,
        }
    }

    /// The first pages of the node's pool that its table of leases has free.
    fn lease(&mut self, node: usize, life: LifeId) {
        let place = self.pages[node].lease(life);
        self.truth.occupy((node, self.pools[node], place), life);
    }

    fn start(&mut self, node: usize) {
        let key = self.next_key(node);
        let life = LifeId((node as u64) * 100 + u64::from(self.started[node]));
        self.started[node] += 1;
        let is_sender = node < self.size.senders;
        let (name, role) = if is_sender {
            let receivers = self.size.receivers as u16;
            (Role::Sender, StartRole::Sender { receivers })
        } else {
            let role = StartRole::Receiver {
                terms: receiver_terms(&self.size, node - self.size.senders),
                peers: (0..self.size.senders)
                    .map(|sender| self.peer_at(self.link_of(node, sender), RECEIVER))
                    .collect(),
                leases: vec![(Held::Section(0), self.truth.lend(node))],
            };
            self.lease(node, life);
            (Role::Receiver, role)
        };
        let story = Story {
            key,
            role: name,
            outcome: None,
            returned: false,
            died: false,
        };
        self.truth.stories.insert((node, life), story);
        let start = Start {
            life,
            key,
            tag: None,
            pages: 4,
            attached: (),
            role,
        };
        self.tell(node, Input::Start(Box::new(start)));
        if is_sender && self.size.prepared {
            (0..self.size.chunks.len()).for_each(|which| self.push(life, which));
            self.finish(life);
        }
    }

    fn push(&mut self, life: LifeId, which: usize) {
        self.budget.pushes -= 1;
        let no = ChunkNo(self.size.pushes - self.budget.pushes);
        if which == self.next_chunk(life) {
            self.pushed.retain(|(l, _)| *l != life);
            self.pushed.push((life, which as u32 + 1));
        }
        let chunk = chunk(no, self.size.chunks[which]);
        let node = node_of(life);
        let lease = self.truth.lend(node);
        self.tell(node, Input::Push { life, chunk, lease });
    }

    fn finish(&mut self, life: LifeId) {
        self.finished.insert(life);
        let node = node_of(life);
        if self.next_chunk(life) < self.size.chunks.len() {
            // Its own caller does it harm.
            self.hurt(self.truth.stories[&(node, life)].key);
        }
        let (total, aux) = (TOTAL, Some(self.truth.lend(node)));
        self.tell(node, Input::Finish { life, total, aux });
    }
}
