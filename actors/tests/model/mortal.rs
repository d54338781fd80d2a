//! Processes die, are stopped and go on, and another one takes their name; pools outlive them; paths
//! are fenced, and writers that died inside a gate are given up.
//!
//! ```text
//!   running ──Stop──▶ stopped ──Cont──▶ running        its node's next life may be up meanwhile
//!      └──Crash──▶ dead ──Restart──▶ next life: attaches the pool, closes the old gates
//! ```

use super::end::{End, incarnation, process};
use super::network::{RECEIVER, SENDER, Side, Step};
use super::node::{Node, Witness};
use super::plane::{Gate, Process};
use super::size::{Kind, Mortal, Plant};
use super::world::{Action, World};
use kvroom_actors::ids::LifeId;
use kvroom_actors::peer::message::ClaimTag;

/// What a process that does not run is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Down {
    Stopped,
    Dead,
}

impl World {
    pub(crate) fn is_running(&self, process: Process) -> bool {
        !self.down.contains_key(&process)
    }

    pub(crate) fn is_dead(&self, process: Process) -> bool {
        self.down.get(&process) == Some(&Down::Dead)
    }

    /// Whether the node's present process runs.
    pub(crate) fn runs(&self, node: usize) -> bool {
        self.down.is_empty() || self.is_running((node, self.lives[node]))
    }

    /// What happens by itself around processes that are or were down.
    pub(crate) fn recoveries(&self, all: &mut Vec<Action>) {
        let stopped = self.down.iter().filter(|(_, d)| **d == Down::Stopped);
        all.extend(stopped.map(|((node, life), _)| Action::Cont(*node, *life)));
        let gates = self.plane.gates.iter();
        let left = gates.filter(|(tag, gate)| self.can_discount(**tag, gate));
        all.extend(left.map(|(tag, _)| Action::Discount(*tag)));
        if self.size.plane == Kind::Ucx && self.size.fence {
            let gates = self.plane.gates.iter();
            let stuck = gates.filter(|(tag, gate)| self.can_fence(**tag, gate));
            all.extend(stuck.map(|(tag, _)| Action::Fence(*tag)));
        }
    }

    pub(crate) fn accidents(&self, all: &mut Vec<Action>) {
        for node in 0..self.nodes.len() {
            let mortal = match self.size.mortal {
                Mortal::Nobody => false,
                Mortal::Senders => node < self.size.senders,
                Mortal::Receivers => node >= self.size.senders,
                Mortal::All => true,
            };
            if mortal && self.budget.crashes > 0 && !self.is_dead((node, self.lives[node])) {
                all.push(Action::Crash(node));
            }
            if mortal && self.budget.stops > 0 && self.runs(node) {
                all.push(Action::Stop(node));
            }
        }
    }

    /// Nodes whose next life may begin.
    pub(crate) fn births(&self, all: &mut Vec<Action>) {
        let nodes = 0..self.nodes.len();
        // A receiver that is only stopped still holds its pools: no other process gets them.
        let born = |n: &usize| {
            let last = (*n, self.lives[*n]);
            self.is_dead(last) || (!self.runs(*n) && *n < self.size.senders)
        };
        all.extend(nodes.filter(born).map(Action::Restart));
    }

    pub(crate) fn crash(&mut self, node: usize) {
        self.budget.crashes -= 1;
        let dead = (node, self.lives[node]);
        self.down.insert(dead, Down::Dead);
        let kind = self.size.plane;
        // The device keeps what it was given; a lane that was inside stays counted there.
        self.plane
            .jobs
            .retain(|j| j.owner != dead || (kind == Kind::Ucx && j.inside && !j.landed));
        self.ends_of(node, true);
        self.nodes[node] = Node::new().into();
        self.sums.retain(|(n, _)| *n != node);
        if node >= self.size.senders {
            let plane = &mut *self.plane;
            let gates = &plane.gates;
            plane.frames.retain(|f| gates[&f.claim].node != node);
            if kind == Kind::Tcp {
                // The lanes that entered them were threads of this process.
                for gate in self.plane.gates.values_mut().filter(|g| g.node == node) {
                    (gate.closed, gate.inside) = (true, 0);
                }
            }
            self.pools[node] += u32::from(!self.size.survives);
        }
        let survives = self.size.survives && node >= self.size.senders;
        self.pages[node].die(survives);
        self.truth.die(node, survives);
    }

    pub(crate) fn stop(&mut self, node: usize) {
        self.budget.stops -= 1;
        self.down.insert((node, self.lives[node]), Down::Stopped);
    }

    /// The node's next life. If the last one is only stopped, its lanes may go on later.
    pub(crate) fn restart(&mut self, node: usize) {
        if !self.is_dead((node, self.lives[node])) {
            self.ends_of(node, false);
            self.nodes[node] = Node::new().into();
            self.pages[node].die(false);
            self.truth.die(node, false);
        }
        self.lives[node] += 1;
        for i in 0..self.links.len() {
            for side in [SENDER, RECEIVER] {
                if self.node_at(i, side) == node {
                    self.renew(i, side);
                }
            }
        }
        self.attach_pool(node);
    }

    fn ends_of(&mut self, node: usize, is_dead: bool) {
        for i in 0..self.links.len() {
            for side in [SENDER, RECEIVER] {
                if self.node_at(i, side) == node {
                    let end = self.fresh_end(i, side);
                    self.links[i].replace(side, end, is_dead);
                }
            }
        }
    }

    /// The new life's own name at this end.
    fn renew(&mut self, i: usize, side: Side) {
        let (generation, last) = {
            let end = &self.links[i].ends[side];
            (end.generation, end.last())
        };
        let mut end = self.fresh_end(i, side);
        end.generation = generation;
        if self.size.plant != Some(Plant::NumbersBeginAgain) {
            end.go_on_from(last);
        }
        self.links[i].ends[side] = end;
    }

    fn fresh_end(&self, i: usize, side: Side) -> End {
        let (me, peer) = (self.node_at(i, side), self.node_at(i, 1 - side));
        let rank = (side == RECEIVER).then(|| me - self.size.senders);
        End::new((me, self.lives[me]), (peer, self.lives[peer]), rank)
    }

    /// Every gate of former lives is closed; pages whose writers are out are free.
    fn attach_pool(&mut self, node: usize) {
        let (life, pool) = (self.lives[node], self.pools[node]);
        let careless = self.size.plant == Some(Plant::AttachedWithoutClosing);
        let gates = self.plane.gates.values_mut();
        for gate in gates.filter(|g| g.node == node && g.pool == pool && g.inc < life) {
            // Its pages are free, but for who is inside; whoever knows the gate may still enter it.
            gate.closed = !careless;
        }
        self.settle(node);
    }

    /// Pages that a former life left, and whose writers are all out, are free.
    pub(crate) fn settle(&mut self, node: usize) {
        let careless = self.size.plant == Some(Plant::AttachedWithoutClosing);
        let (kind, plane) = (self.size.plane, &self.plane);
        let pool = self.pools[node];
        let busy = |place: u32, life: LifeId| {
            let mut claims = plane.gates.iter();
            claims.any(|(tag, g)| {
                let mine = (g.node, g.pool, g.place, g.life) == (node, pool, place, life);
                let is_out = match careless {
                    true => g.inside == 0,
                    false => plane.is_out(kind, *tag),
                };
                mine && !is_out
            })
        };
        for place in self.pages[node].settle(busy) {
            self.truth.freed((node, pool, place));
        }
    }

    /// A writer is inside, and its process will never leave.
    fn can_discount(&self, tag: ClaimTag, gate: &Gate) -> bool {
        let writer = process(tag.id.sender);
        let plant = self.size.plant;
        let kind = self.size.plane;
        let newer = || {
            let mut ends = self.links.iter().map(|l| &l.ends[RECEIVER]);
            let of = ends.find(|e| e.me() == incarnation((gate.node, self.lives[gate.node])));
            of.is_some_and(|e| process(e.peer).0 == writer.0 && process(e.peer).1 > writer.1)
        };
        let hello = plant == Some(Plant::DiscountedOnHello) && newer();
        let gone = self.is_dead(writer) || hello;
        let inside = kind == Kind::Shm && gate.closed && gate.inside > 0;
        let puts = kind == Kind::Ucx && plant == Some(Plant::DeathEndsPuts) && !gate.met;
        (inside || puts) && gone && self.runs(gate.node)
    }

    pub(crate) fn discount(&mut self, tag: ClaimTag) {
        if let Some(gate) = self.plane.gates.get_mut(&tag) {
            gate.inside = 0;
        }
        self.gate_empty(tag, Witness::WriterDead);
    }

    /// A receiver destroys the path of a claim that drains and is not answered: its peer's life is
    /// over, or not connected, or silent past the deadline.
    fn can_fence(&self, tag: ClaimTag, gate: &Gate) -> bool {
        if gate.met || !self.runs(gate.node) || self.plane.fenced.contains(&tag) {
            return false;
        }
        if gate.inc < self.lives[gate.node] {
            let mut taken = self.pages[gate.node].taken();
            let is_here = gate.pool == self.pools[gate.node];
            return is_here && taken.any(|of| of == (gate.place, gate.life));
        }
        let Some(life) = self.nodes[gate.node].core.life(gate.life) else {
            return false;
        };
        let link = self.link_of(gate.node, process(tag.id.sender).0);
        let end = &self.links[link].ends[RECEIVER];
        let silent = end.session.is_none() || end.peer != tag.id.sender;
        life.outcome().is_some() && (silent || life.is_quarantined())
    }

    /// The route goes, and with it every claim that was ever sent on it: those of other rooms too.
    pub(crate) fn fence(&mut self, tag: ClaimTag) {
        let gates = self.plane.gates.iter();
        let node = self.plane.gates[&tag].node;
        let route = gates.filter(|(t, g)| g.node == node && t.id.sender == tag.id.sender && !g.met);
        let route: Vec<ClaimTag> = route.map(|(t, _)| *t).collect();
        for job in &mut self.plane.jobs {
            job.fenced |= route.contains(&job.claim);
        }
        let down = &self.down;
        self.plane
            .jobs
            .retain(|j| !j.fenced || !(j.told || down.get(&j.owner) == Some(&Down::Dead)));
        if self.size.plant != Some(Plant::FenceNotSticky) {
            self.plane.fenced.extend(route.iter().copied());
        }
        let link = self.link_of(node, process(tag.id.sender).0);
        let end = &self.links[link].ends[RECEIVER];
        if end.session.is_some() && end.peer == tag.id.sender {
            self.truth.shaken = true;
            self.link(link, RECEIVER, Step::GiveUp);
        }
        for tag in route {
            self.gate_empty(tag, Witness::PathFenced);
        }
    }
}
