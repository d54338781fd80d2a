//! What each action does.
//!
//! ```text
//!   Action ─▶ apply ─▶ inputs of cores ─▶ (at once) cores, rooms, commands, flushes, until idle
//! ```

use super::end::Told;
use super::network::{RECEIVER, SENDER, Side, Step};
use super::node::Witness;
use super::plane::{Gate, Plane};
use super::request::{TOTAL, chunk, held, leg_terms, receiver_terms};
use super::size::Plant;
use super::truth::{Broken, Story};
use super::world::{Action, World, node_at, peer_at};
use kvroom_actors::ids::{ChunkNo, LifeId, PeerRef, RoomKey};
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::{JobEnd, Role};
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
                let reason = Reason::from(Code::Requested);
                self.tell(node, Input::Abort { life, reason });
            }
            Action::Core(node) => self.core(node),
            Action::Room(node) => self.nodes[node].step_room(),
            Action::Link(i, side, step) => {
                self.budget.losses -= u32::from(step == Step::GiveUp);
                // The second side of a reset follows from the first.
                let reset = step == Step::Reset && self.links[i].can_reset();
                self.budget.resets -= u32::from(reset);
                self.link(i, side, step);
            }
            Action::Enter(at) => self.enter(at),
            Action::Land(at) => self.land(at),
            Action::Fail(at) => {
                let claim = self.plane.jobs[at].claim;
                self.leave(claim);
                self.over(at, JobEnd::Errored("cable".into()));
            }
            Action::Sum(node, life) => {
                self.sums.remove(&(node, life));
                if self.truth.is_returned(node, life) {
                    self.truth.broken.insert(Broken::S2TornSource);
                }
                let sum = self.written(node, life).len() as u64;
                self.tell(node, Input::Summed { life, sum });
            }
            Action::Clock(node, life, timer) => {
                self.nodes[node].clocks.remove(&(life, timer));
                self.tell(node, Input::Timer { life, timer });
            }
            Action::EarlyClock(tag) => {
                self.nodes[0].early_clocks.remove(&tag);
                let peer = PeerRef(tag.id.receiver.started_ns as u32);
                self.tell(0, Input::EarlyTimer { peer, tag });
            }
            Action::Panic(node, life) => {
                self.budget.panics -= 1;
                self.nodes[node].panic(life);
            }
        }
        while (self.size.at_once && self.step_node()) || (self.size.eager && self.step_owner()) {}
    }

    /// One step within a node that nobody else can see; false if there is none.
    fn step_node(&mut self) -> bool {
        for node in 0..self.nodes.len() {
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

    fn link(&mut self, i: usize, side: Side, step: Step) {
        let mut told = Vec::new();
        self.links[i].step(side, step, &self.size, &mut told);
        if !self.links[i].ends[side].counts_right() {
            self.truth.broken.insert(Broken::CreditMiscounted);
        }
        for told in told {
            self.told(i, side, told);
        }
        if step == Step::Attach {
            let peer = peer_at(i, side);
            self.tell(node_at(i, side), Input::PeerBack { peer });
        }
    }

    /// What a session's owner tells its shard.
    fn told(&mut self, i: usize, side: Side, told: Told) {
        let (node, peer) = (node_at(i, side), peer_at(i, side));
        let input = match told {
            Told::Opened(pending, tag) => {
                let (life, leg) = (pending.life, pending.leg);
                let gate = Gate {
                    node,
                    life,
                    leg,
                    closed: false,
                    inside: 0,
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
                Input::Message { peer, body }
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

    fn start(&mut self, node: usize) {
        let attempt = self.started[node];
        self.started[node] += 1;
        let life = LifeId((node as u64) * 100 + u64::from(attempt));
        let key = RoomKey::new(42, attempt);
        let (name, role) = if node == 0 {
            let receivers = self.size.receivers as u16;
            (Role::Sender, StartRole::Sender { receivers })
        } else {
            let role = StartRole::Receiver {
                terms: receiver_terms(&self.size, node - 1),
                peers: vec![PeerRef(0)],
                leases: vec![(Held::Section(0), self.truth.lend())],
            };
            (Role::Receiver, role)
        };
        let story = Story {
            key,
            role: name,
            outcome: None,
            returned: false,
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
        if node == 0 && self.size.prepared {
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
        let lease = self.truth.lend();
        self.tell(0, Input::Push { life, chunk, lease });
    }

    fn finish(&mut self, life: LifeId) {
        self.finished.insert(life);
        let (total, aux) = (TOTAL, Some(self.truth.lend()));
        self.tell(0, Input::Finish { life, total, aux });
    }

    fn enter(&mut self, at: usize) {
        if self.plane.jobs[at].cancelled {
            self.over(at, JobEnd::Cancelled);
        } else if !self.plane.enter(at) {
            self.over(at, JobEnd::Refused);
        } else if self.size.plant == Some(Plant::LandedBeforeTheFlush) {
            let mut job = self.plane.jobs[at].clone();
            (job.inside, job.told) = (true, true);
            self.leave(job.claim);
            let checksum = Plane::pages(&job.spec).len() as u64;
            self.over(at, JobEnd::Landed { checksum });
            self.plane.jobs.push(job);
        }
    }

    fn land(&mut self, at: usize) {
        let job = self.plane.jobs[at].clone();
        let gate = self.plane.gates[&job.claim].clone();
        if self.truth.is_returned(gate.node, gate.life) {
            self.truth.broken.insert(Broken::S1LateWrite);
        }
        if !job.source.is_some_and(|s| self.truth.lent.contains(&s)) {
            self.truth.broken.insert(Broken::S2TornSource);
        }
        let pages = Plane::pages(&job.spec);
        let checksum = pages.len() as u64;
        let landed = self.plane.landed.entry(job.claim).or_default();
        landed.extend(pages);
        if !job.told {
            self.leave(job.claim);
        }
        self.over(at, JobEnd::Landed { checksum });
    }

    fn leave(&mut self, claim: ClaimTag) {
        if self.plane.leave(claim) {
            self.gate_empty(claim);
        }
    }

    pub(crate) fn gate_empty(&mut self, claim: ClaimTag) {
        let gate = &self.plane.gates[&claim];
        let (node, life, leg) = (gate.node, gate.life, gate.leg);
        let witness = Witness::GateClosed;
        self.tell(node, Input::GateClosed { life, leg, witness });
    }

    fn over(&mut self, at: usize, end: JobEnd) {
        let job = self.plane.jobs.remove(at);
        if job.told {
            return;
        }
        let input = Input::JobOver {
            life: job.life,
            leg: job.leg,
            job: job.no,
            carried: held(&job.spec),
            rest: 0,
            end,
            witness: Witness::Ticket,
        };
        self.tell(0, input);
    }
}
