//! What copies do, on each kind of plane: they enter, land, are refused, fail, are sent again.
//!
//! ```text
//!   Local, Shm   Enter ─▶ inside the gate ─▶ Land
//!   Tcp          Enter ─▶ frame on the wire ─▶ Arrive ─▶ inside the gate ─▶ Place
//!   Ucx          Enter ─▶ with the device ─▶ Land: any time; or its flush ends in an error, and it
//!                                            lands or does not, until its path is fenced
//! ```

use super::node::Witness;
use super::plane::{Gate, Job, Plane, TcpFrame};
use super::request::held;
use super::size::{Kind, Plant};
use super::truth::Broken;
use super::world::{Action, World};
use kvroom_actors::ids::RoomKey;
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::JobEnd;
use kvroom_actors::supervisor::io::Input;

impl World {
    /// What copies do by themselves.
    pub(crate) fn moves(&self, all: &mut Vec<Action>) {
        for (at, job) in self.plane.jobs.iter().enumerate() {
            let runs = self.is_running(job.owner);
            if !job.inside && runs {
                all.push(Action::Enter(at));
            } else if job.inside && self.can_land(job, runs) {
                all.push(Action::Land(at));
            }
            if job.inside && runs && self.can_let_go(job) {
                all.push(Action::LetGo(at));
            }
        }
        for (at, frame) in self.plane.frames.iter().enumerate() {
            let gate = &self.plane.gates[&frame.claim];
            if frame.inside && self.is_running((gate.node, gate.inc)) {
                all.push(Action::Place(at));
            } else if !frame.inside && self.is_running((gate.node, self.lives[gate.node])) {
                all.push(Action::Arrive(at));
            }
        }
    }

    /// What may go wrong with copies.
    pub(crate) fn mishaps(&self, all: &mut Vec<Action>) {
        for (at, job) in self.plane.jobs.iter().enumerate().filter(|(_, j)| j.inside) {
            if self.size.failures && self.size.plane != Kind::Ucx {
                all.push(Action::Fail(at));
            }
            if self.budget.resends > 0 && job.copy == 1 && self.is_running(job.owner) {
                all.push(Action::Resend(at));
            }
            let sound = !job.errored && !job.told && !job.fenced;
            if self.budget.flush_errors > 0 && sound && self.is_running(job.owner) {
                all.push(Action::FlushError(at));
            }
        }
    }

    fn can_land(&self, job: &Job, runs: bool) -> bool {
        match self.size.plane {
            Kind::Local | Kind::Shm => runs,
            Kind::Tcp => false,
            // The device goes on without its process.
            Kind::Ucx => !job.fenced && !job.landed,
        }
    }

    /// Whether a copy that is under way may end without landing, by what its sender can know.
    fn can_let_go(&self, job: &Job) -> bool {
        let gate = &self.plane.gates[&job.claim];
        let unreachable = self.is_dead((gate.node, gate.inc)) || self.lives[gate.node] != gate.inc;
        match self.size.plane {
            Kind::Local | Kind::Shm => false,
            // What is on the wire goes on; the source is needed no more.
            Kind::Tcp => job.cancelled || unreachable,
            Kind::Ucx if job.told => false,
            Kind::Ucx => {
                let forced = self.size.plant == Some(Plant::ForcedCloseIsAFence) && job.cancelled;
                let gone = unreachable && !self.size.survives;
                job.fenced || gone || forced || (job.errored && self.size.fence)
            }
        }
    }

    pub(crate) fn enter(&mut self, at: usize) {
        let job = self.plane.jobs[at].clone();
        if job.cancelled {
            return self.over(at, JobEnd::Cancelled);
        }
        match self.size.plane {
            Kind::Tcp => {
                self.read_source(&job);
                self.plane.jobs[at].copy = 1;
                self.plane.jobs[at].inside = true;
                self.send(&job, 1);
            }
            Kind::Ucx if self.plane.fenced.contains(&job.claim) => {
                self.hurt(job.key);
                self.over(at, JobEnd::Errored("fenced".into()));
            }
            Kind::Ucx => {
                self.plane.jobs[at].inside = true;
                self.too_early(at);
            }
            Kind::Local | Kind::Shm => {
                let gate = match self.size.plane {
                    Kind::Shm => self.plane.by_number(job.claim),
                    _ => job.claim,
                };
                if !self.plane.enter(gate) {
                    return self.over(at, JobEnd::Refused);
                }
                self.plane.jobs[at].inside = true;
                self.plane.jobs[at].entered = (gate != job.claim).then_some(gate);
                self.too_early(at);
            }
        }
    }

    /// Planted: the end of a copy is told when it begins.
    fn too_early(&mut self, at: usize) {
        if self.size.plant != Some(Plant::LandedBeforeTheFlush) {
            return;
        }
        let mut job = self.plane.jobs[at].clone();
        job.told = true;
        if self.size.plane != Kind::Ucx {
            self.leave(job.claim);
        }
        let checksum = Plane::pages(&job.spec).len() as u64;
        self.over(at, JobEnd::Landed { checksum });
        self.plane.jobs.push(job);
    }

    pub(crate) fn land(&mut self, at: usize) {
        let job = self.plane.jobs[at].clone();
        self.read_source(&job);
        let cells = self.plane.cells(job.claim, &job.spec);
        self.write(job.claim, cells, job.key);
        if !job.told && self.size.plane != Kind::Ucx {
            self.leave(job.entered.unwrap_or(job.claim));
        }
        if job.errored && !self.is_dead(job.owner) {
            // Its sender knows nothing of it, and waits for a fence.
            self.plane.jobs[at].landed = true;
            return;
        }
        let checksum = Plane::pages(&job.spec).len() as u64;
        self.over(at, JobEnd::Landed { checksum });
    }

    /// See [`World::can_let_go`].
    pub(crate) fn let_go(&mut self, at: usize) {
        let job = self.plane.jobs[at].clone();
        let forced = self.size.plant == Some(Plant::ForcedCloseIsAFence);
        let lands = forced && self.size.plane == Kind::Ucx && !job.fenced && !job.landed;
        let end = if job.cancelled && self.size.plane == Kind::Tcp {
            JobEnd::Cancelled
        } else {
            JobEnd::Errored("the path is gone".into())
        };
        self.hurt(job.key);
        self.over(at, end);
        if lands {
            self.plane.jobs.push(Job { told: true, ..job });
        }
    }

    pub(crate) fn fail(&mut self, at: usize) {
        let job = self.plane.jobs[at].clone();
        self.hurt(job.key);
        if self.size.plane != Kind::Tcp {
            self.leave(job.entered.unwrap_or(job.claim));
        }
        self.over(at, JobEnd::Errored("cable".into()));
    }

    pub(crate) fn resend(&mut self, at: usize) {
        let job = self.plane.jobs[at].clone();
        self.budget.resends -= 1;
        self.read_source(&job);
        self.plane.jobs[at].copy += 1;
        self.send(&job, job.copy + 1);
    }

    pub(crate) fn flush_error(&mut self, at: usize) {
        self.budget.flush_errors -= 1;
        let job = self.plane.jobs[at].clone();
        self.hurt(job.key);
        let checksum = Plane::pages(&job.spec).len() as u64;
        match self.size.plant {
            Some(Plant::FailedFlushIsAFlush) => self.over(at, JobEnd::Landed { checksum }),
            Some(Plant::RouteChanged) => {
                let cells = self.plane.cells(job.claim, &job.spec);
                self.write(job.claim, cells, job.key);
                self.over(at, JobEnd::Landed { checksum });
                self.plane.jobs.push(Job { told: true, ..job });
            }
            _ => self.plane.jobs[at].errored = true,
        }
    }

    /// A frame reaches the receiver's lane.
    pub(crate) fn arrive(&mut self, at: usize) {
        let frame = self.plane.frames[at].clone();
        let gate = &self.plane.gates[&frame.claim];
        let here = self.lives[gate.node] == gate.inc;
        if here && self.plane.enter(frame.claim) {
            self.plane.frames[at].inside = true;
        } else {
            self.plane.frames.remove(at);
            self.acknowledge(&frame, JobEnd::Refused);
        }
    }

    /// The receiver's lane has written a frame.
    pub(crate) fn place(&mut self, at: usize) {
        let frame = self.plane.frames.remove(at);
        let checksum = frame.cells.len() as u64;
        self.write(frame.claim, frame.cells.clone(), frame.key);
        self.leave(frame.claim);
        self.acknowledge(&frame, JobEnd::Landed { checksum });
    }

    fn send(&mut self, job: &Job, copy: u32) {
        let gate = &self.plane.gates[&job.claim];
        if self.is_dead((gate.node, gate.inc)) {
            return;
        }
        let cells = self.plane.cells(job.claim, &job.spec);
        self.plane.frames.push(TcpFrame {
            owner: job.owner,
            life: job.life,
            key: job.key,
            no: job.no,
            copy,
            claim: job.claim,
            cells,
            inside: false,
        });
    }

    /// The sender hears of the copy that it sent last; of an earlier one its connection is gone.
    fn acknowledge(&mut self, frame: &TcpFrame, end: JobEnd) {
        let name = (frame.owner, frame.life, frame.no, frame.copy);
        let of = |j: &Job| (j.owner, j.life, j.no, j.copy) == name;
        if let Some(at) = self.plane.jobs.iter().position(of) {
            self.over(at, end);
        }
    }

    fn read_source(&mut self, job: &Job) {
        // The memory of a process that is over is nobody else's.
        let is_lent = job.source.is_some_and(|s| self.truth.lent.contains_key(&s));
        let is_mine = self.lives[job.owner.0] == job.owner.1 && !self.is_dead(job.owner);
        if !is_lent && is_mine {
            self.truth.broken.insert(Broken::S2TornSource);
        }
    }

    /// What really happens to memory.
    fn write(&mut self, claim: ClaimTag, cells: Vec<u32>, key: RoomKey) {
        let gate = &self.plane.gates[&claim];
        if gate.pool == self.pools[gate.node] {
            let place = (gate.node, gate.pool, gate.place);
            self.truth.write(place, gate.life, cells, key);
        }
    }

    pub(crate) fn leave(&mut self, claim: ClaimTag) {
        if self.plane.leave(claim) {
            self.gate_empty(claim, Witness::GateClosed);
        }
    }

    /// A claim's end is proven: to the room that has it, or to a pool's next life.
    pub(crate) fn gate_empty(&mut self, claim: ClaimTag, witness: Witness) {
        let Some(gate) = self.plane.gates.get_mut(&claim) else {
            return;
        };
        gate.met = true;
        let Gate {
            node,
            inc,
            life,
            leg,
            ..
        } = *gate;
        if inc == self.lives[node] {
            self.tell(node, Input::GateClosed { life, leg, witness });
        } else {
            self.settle(node);
        }
    }

    pub(crate) fn over(&mut self, at: usize, end: JobEnd) {
        let job = self.plane.jobs.remove(at);
        let (node, inc) = job.owner;
        if job.told || self.lives[node] != inc || self.is_dead(job.owner) {
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
        self.tell(node, input);
    }
}
