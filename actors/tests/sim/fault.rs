//! Faults begin and end; then there is calm, and in the end nothing may be left.

use super::caller::{Call, Side};
use super::control::{RECEIVER, SENDER};
use super::fact::Fact;
use super::plan::{Fabric, FaultKind, MS};
use super::world::{Ev, Inject, World};
use kvroom_actors::ids::RoomId;
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::supervisor::io::{Input, Which};

impl World {
    pub(crate) fn fault(&mut self, i: usize) {
        let kind = self.plan.faults[i].kind;
        self.note(format!("fault {i}: {kind:?}"));
        match kind {
            FaultKind::Partition { link, at } => {
                self.links[link].blocked[0] |= at[0];
                self.links[link].blocked[1] |= at[1];
            }
            FaultKind::Slow { link, times } => self.links[link].slow = times,
            FaultKind::Reset { link } => self.reset(link),
            FaultKind::DataReset { link } => self.data_reset(link),
            FaultKind::GiveUp { link, side } => {
                let n = self.node_at(link, side);
                let stopped = self.stopped.contains(&self.plan.nodes[n].process);
                if self.nodes[n].up && !stopped {
                    let reason = Reason::from(Code::SessionLost);
                    let word = Body::GaveUp {
                        reason: reason.clone(),
                    };
                    self.give_up(link, side, reason, Some(word));
                }
            }
            FaultKind::Stop { process } => self.stop(process),
            FaultKind::Kill {
                process,
                pool_survives,
            } => self.kill(process, pool_survives),
            FaultKind::ClockStep { node, by } => self.nodes[node].skew += by,
            FaultKind::Panic { node, which } => {
                if self.runs(node) {
                    self.panic_room(node, which);
                }
            }
            FaultKind::CopyFails { link, copies } => self.links[link].fails = copies,
            FaultKind::SlowShard { node, times } => self.nodes[node].slow = times,
            FaultKind::AbortAll { node } => self.abort(node, Which::All),
            FaultKind::AbortPeer { link, side } => {
                if let Some(peer) = self.links[link].ends[side].peer_ref() {
                    self.abort(self.node_at(link, side), Which::Peer(peer));
                }
            }
            FaultKind::AbortTag { node, tag } => {
                self.abort(node, Which::Tag(format!("agent-{tag}").into()));
            }
            FaultKind::AbortRoom { node, room } => self.abort(node, Which::Room(RoomId(room))),
        }
    }

    fn abort(&mut self, n: usize, which: Which) {
        if self.runs(n) {
            let reason = Reason::from(Code::Requested);
            self.tell(n, Input::AbortWhere { which, reason });
        }
    }

    fn runs(&self, n: usize) -> bool {
        self.nodes[n].up && !self.stopped.contains(&self.plan.nodes[n].process)
    }

    pub(crate) fn fault_ends(&mut self, i: usize) {
        match self.plan.faults[i].kind {
            FaultKind::Partition { link, .. } => self.unblock(link),
            FaultKind::Slow { link, .. } => self.links[link].slow = 1,
            FaultKind::Stop { process } => self.go_on(process),
            FaultKind::Kill { process, .. } => self.restart(process),
            FaultKind::CopyFails { link, .. } => self.links[link].fails = 0,
            FaultKind::SlowShard { node, .. } => self.nodes[node].slow = 1,
            _ => return,
        }
        self.note(format!("fault {i} ends"));
    }

    fn stop(&mut self, process: usize) {
        let members = self.members(process);
        if members.iter().any(|n| self.nodes[*n].up) {
            self.stopped.insert(process);
        }
    }

    fn members(&self, process: usize) -> Vec<usize> {
        let all = 0..self.nodes.len();
        all.filter(|n| self.plan.nodes[*n].process == process)
            .collect()
    }

    fn kill(&mut self, process: usize, pool_survives: bool) {
        let members = self.members(process);
        if !members.iter().all(|n| self.nodes[*n].up) {
            return;
        }
        for n in &members {
            let life = self.nodes[*n].life();
            self.fact(Fact::Died {
                at: life,
                pool_survives,
            });
            self.forget_callers(*n);
            // A lane that was in the gate of another process stays in it for ever.
            if let Some(busy) = self.nodes[*n].lane.busy.take()
                && busy.fabric() == Fabric::Shm
            {
                let dead = busy.into_dead();
                self.dead.push(dead);
            }
            // Its readers are gone, and with them what they were writing.
            for flight in self.flights.values_mut().filter(|f| f.to == life) {
                flight.inside = None;
            }
            // What it sent is under way; what it may read it reads no more.
            for flight in self.flights.values().filter(|f| f.from == life) {
                flight.forget_source();
            }
            self.nodes[*n].die(pool_survives);
        }
        self.forget_deferred(process);
        for n in members {
            self.forget_ends(n);
        }
    }

    fn restart(&mut self, process: usize) {
        for n in self.members(process) {
            if self.nodes[n].up {
                continue;
            }
            let (plan, now) = (self.plan.nodes[n].clone(), self.now);
            self.nodes[n].restart(&plan, now);
            self.remember_life(n);
            let epoch = self.nodes[n].epoch;
            for link in 0..self.links.len() {
                if self.node_at(link, RECEIVER) == n {
                    self.after(MS, Ev::Dial(link, epoch));
                }
            }
        }
    }

    /// The kernel says that whoever is inside this claim's gate is dead: then nobody holds it.
    pub(crate) fn bury(&mut self, _: usize, claim: ClaimTag) -> bool {
        let Some(at) = self.dead.iter().position(|(of, _)| *of == claim) else {
            return false;
        };
        drop(self.dead.remove(at));
        self.fact(Fact::Left { claim });
        true
    }

    pub(crate) fn calm_down(&mut self) {
        self.fact(Fact::Calm);
        self.calm = true;
        for link in 0..self.links.len() {
            self.unblock(link);
            self.links[link].slow = 1;
            self.links[link].fails = 0;
        }
        for n in 0..self.nodes.len() {
            let process = self.plan.nodes[n].process;
            self.nodes[n].slow = 1;
            self.go_on(process);
            self.restart(process);
        }
        self.after(self.plan.settle + 300 * MS, Ev::Check);
    }

    /// Whether everything has ended; if not, it is looked at again later.
    pub(crate) fn check(&mut self) {
        let quiet = |side: &Side| matches!(side, Side::Over { .. });
        let callers = self.callers.iter().all(|c| c.sides.values().all(quiet));
        let nodes = (0..self.nodes.len()).all(|n| self.left_of(n).is_empty());
        if callers && nodes {
            self.over = true;
        } else {
            self.after(250 * MS, Ev::Check);
        }
    }

    /// What a node still holds.
    fn left_of(&self, n: usize) -> String {
        let node = &self.nodes[n];
        let mut left = Vec::new();
        if !node.core.is_empty() || node.core.claims() > 0 {
            let lives: Vec<String> = node
                .core
                .lives()
                .map(|(life, l)| {
                    format!(
                        "{life:?} {} {} {} owes {:?}",
                        l.key(),
                        l.role(),
                        l.state(),
                        l.custody().owing().collect::<Vec<_>>()
                    )
                })
                .collect();
            left.push(format!("{} claims, lives {lives:?}", node.core.claims()));
        }
        let pages: usize = node.pools.iter().map(|p| p.leased_pages()).sum();
        for (what, count) in [
            ("pages leased", pages),
            ("rooms", node.rooms.len()),
            ("clocks", node.timers.len()),
            (
                "messages",
                node.inbox.len() + node.said.len() + node.mail.len(),
            ),
            ("jobs", node.lane.scheduler.len() + node.lane.tcp.len()),
            ("sums", node.sums.len()),
        ] {
            if count > 0 {
                left.push(format!("{count} {what}"));
            }
        }
        for (i, link) in self.links.iter().enumerate() {
            for side in [SENDER, RECEIVER] {
                if self.node_at(i, side) != n {
                    continue;
                }
                let end = &link.ends[side];
                if !end.waiting.is_empty() || !end.commands.is_empty() {
                    left.push(format!("claims wait on link {i}"));
                }
                let Some(session) = &end.session else {
                    left.push(format!("no session on link {i}"));
                    continue;
                };
                if session.peer_claims() > 0 {
                    left.push(format!("{} credits on link {i}", session.peer_claims()));
                }
            }
        }
        left.join(", ")
    }

    /// What is said of a world that is over.
    pub(crate) fn last_words(&mut self) {
        for n in 0..self.nodes.len() {
            for pool in 0..2 {
                let pages: Vec<u32> = (0..self.nodes[n].layouts[pool].pages).collect();
                self.check_canaries(n, pool, &pages);
            }
            let (at, what) = (self.nodes[n].life(), self.left_of(n));
            self.fact(Fact::Left0ver { at, what });
        }
        for i in 0..self.callers.len() {
            if self.plan.requests[i].probe {
                let over = |side: &Side| *side == Side::Over { done: true };
                let sides = &self.callers[i].sides;
                let done = !sides.is_empty() && sides.values().all(over);
                let room = self.plan.requests[i].room;
                self.fact(Fact::Probe { room, done });
            }
        }
    }

    /// What a sweep does at its step: to the first request, and to the first link.
    pub(crate) fn inject(&mut self, inject: Inject) {
        self.note(format!("{inject:?}"));
        let back = 3_000 * MS;
        match inject {
            Inject::Abort(who) => {
                let attempt = self.callers[0].attempt;
                self.after(0, Ev::Call(0, attempt, Call::Abort(who)));
            }
            Inject::Kill {
                process,
                pool_survives,
            } => {
                self.kill(process, pool_survives);
                self.plan.faults[0].kind = FaultKind::Kill {
                    process,
                    pool_survives,
                };
                self.after(back, Ev::FaultEnds(0));
            }
            Inject::Stop { process } => {
                self.stop(process);
                self.plan.faults[0].kind = FaultKind::Stop { process };
                self.after(back, Ev::FaultEnds(0));
            }
            Inject::GiveUp => {
                let reason = Reason::from(Code::SessionLost);
                self.give_up(0, SENDER, reason, None);
            }
            Inject::Panic { node } => self.panic_room(node, 0),
            Inject::Reset => self.reset(0),
            Inject::DataReset => self.data_reset(0),
        }
    }
}
