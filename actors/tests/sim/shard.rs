//! A shard's turn, and what its core wants done: the shell of `supervisor::actor`, in virtual time.

use super::end::{Command, OpenRequest};
use super::fact::Fact;
use super::node::{Attached, Bell, Gate, In, Inbound, Kept, Node, Out, Sum, deadlines};
use super::plan::{Fabric, MS, US};
use super::plant::Plant;
use super::world::{Ev, World};
use crate::memory::{JobBack, Lease, Target, Withdrawn, Witness};
use crate::timers::Clock;
use kvroom_actors::ids::{ChunkNo, ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, PoolId};
use kvroom_actors::peer::message::{AuxRow, Body, Claim, ClaimTag, Part, Section};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::{JobEnd, Timer};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::io::{Input, Output};
use kvroom_kernels::checksum::Checksum;
use kvroom_kernels::coverage::Rect;
use std::sync::Arc;
use std::time::Duration;

/// Messages that a shard takes in one turn.
const BATCH: usize = 16;
/// How often a gate that is closed and not empty is looked at.
const LOOK_AGAIN: u64 = 50 * MS;

impl World {
    /// What came in is handled soon.
    pub(crate) fn wake(&mut self, n: usize) {
        let node = &self.nodes[n];
        if node.up && !node.turn_due && !(node.inbox.is_empty() && node.said.is_empty()) {
            let (epoch, slow) = (node.epoch, node.slow);
            self.nodes[n].turn_due = true;
            let wait = self.roll(1, n, 2..30) * US * slow;
            self.after(wait, Ev::Turn(n, epoch));
        }
    }

    pub(crate) fn tell(&mut self, n: usize, input: In) {
        self.nodes[n].inbox.push_back(Inbound::Core(input));
        self.wake(n);
    }

    pub(crate) fn turn(&mut self, n: usize) {
        self.nodes[n].turn_due = false;
        self.nodes[n].count_turn(self.now);
        self.measure(n);
        let first = self.roll(2, n, 0..2) == 0;
        if first {
            self.listen(n);
        }
        for _ in 0..BATCH {
            let Some(inbound) = self.nodes[n].inbox.pop_front() else {
                break;
            };
            self.inbound(n, inbound);
            if self.is_over() {
                return;
            }
        }
        if !first {
            self.listen(n);
        }
        self.settle(n);
    }

    fn listen(&mut self, n: usize) {
        while let Some(said) = self.nodes[n].said.pop_front() {
            self.input(n, said);
        }
    }

    /// Rooms answer what they were told.
    pub(crate) fn rooms(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        node.mail_due = false;
        for (life, event) in std::mem::take(&mut node.mail) {
            let Some(room) = node.rooms.remove(&life) else {
                continue;
            };
            let before = room.state();
            let mut effects = Vec::new();
            let room = room.handle(event, &mut effects);
            let state = room.state();
            node.rooms.insert(life, room);
            if !effects.is_empty() || state != before {
                node.said.push_back(Input::RoomSaid {
                    life,
                    state,
                    effects,
                });
            }
        }
        self.wake(n);
    }

    /// A room's actor dies with its state and its mailbox.
    pub(crate) fn panic_room(&mut self, n: usize, which: u64) {
        let node = &mut self.nodes[n];
        let len = node.rooms.len().max(1) as u64;
        let Some(life) = node.rooms.keys().nth((which % len) as usize).copied() else {
            return;
        };
        node.rooms.remove(&life);
        node.mail.retain(|(l, _)| *l != life);
        node.said.push_back(Input::RoomPanicked { life });
        self.wake(n);
    }

    fn inbound(&mut self, n: usize, inbound: Inbound) {
        let at = self.nodes[n].life();
        match inbound {
            Inbound::Core(input) => return self.input(n, input),
            Inbound::Job(back) => {
                let over = job_over(back);
                return self.input(n, over);
            }
            Inbound::Bell(life) => self.finish_gate(n, life),
            Inbound::Opened {
                life,
                leg,
                tag,
                gate,
            } => {
                if let Some(slot) = self.nodes[n].gate(life) {
                    *slot = Gate::Open(gate);
                }
                return self.input(n, Input::ClaimOpened { life, leg, tag });
            }
            Inbound::NotOpened {
                life,
                leg,
                reason,
                witness,
            } => {
                self.fact(Fact::NotOpened { at, life, leg });
                let input = Input::ClaimNotOpened {
                    life,
                    leg,
                    reason,
                    witness,
                };
                return self.input(n, input);
            }
            Inbound::Claim { peer, offer, terms } => {
                return self.input(n, Input::Claim { peer, offer, terms });
            }
            Inbound::Body { peer, body } => {
                let body = self.with_own_account(n, peer, body);
                return self.input(n, Input::Message { peer, body });
            }
            Inbound::PeerUp(peer) => {
                let known = self.nodes[n].peers.contains_key(&peer);
                if let Some((link, side)) = self.link_of(n, peer) {
                    self.nodes[n].peers.insert(peer, (link, side));
                    let session = self.links[link].ends[side].id;
                    self.fact(Fact::Met { at, session });
                }
                if known {
                    return self.input(n, Input::PeerBack { peer });
                }
            }
            Inbound::PeerGone {
                peer,
                reason,
                for_good,
            } => {
                self.input(n, Input::PeerLost { peer, reason });
                if for_good {
                    self.nodes[n].peers.remove(&peer);
                }
                return;
            }
            Inbound::Fire => return self.fire(n),
        }
        if let Some(input) = self.nodes[n].follow.pop_front() {
            self.input(n, input);
        }
    }

    fn input(&mut self, n: usize, input: In) {
        let mut next = Some(input);
        let mut out = Vec::new();
        while let Some(input) = next {
            self.nodes[n].core.handle(input, &mut out);
            for output in out.drain(..) {
                self.output(n, output);
            }
            next = self.nodes[n].follow.pop_front();
        }
    }

    /// The end of a turn: commands go to the owners of sessions, clocks and looks are set.
    pub(crate) fn settle(&mut self, n: usize) {
        for (peer, command) in std::mem::take(&mut self.nodes[n].outgoing) {
            if let Some((link, side)) = self.nodes[n].peers.get(&peer).copied()
                && self.links[link].ends[side].peer_ref() == Some(peer)
            {
                self.links[link].ends[side].commands.push_back(command);
                self.wake_owner(link, side);
            } else if let Command::Open(request) = command {
                // Its actor answers what it was asked before it went.
                let OpenRequest {
                    life, leg, target, ..
                } = *request;
                drop(target);
                self.nodes[n].inbox.push_back(Inbound::NotOpened {
                    life,
                    leg,
                    reason: Code::PeerLost.into(),
                    witness: Witness::NeverSubmitted(Withdrawn::unnumbered()),
                });
            }
        }
        let node = &mut self.nodes[n];
        let epoch = node.epoch;
        if !node.mail.is_empty() && !node.mail_due {
            node.mail_due = true;
            let wait = self.roll(3, n, 1..10) * US;
            self.after(wait, Ev::Rooms(n, epoch));
        }
        self.set_alarm(n);
        let node = &mut self.nodes[n];
        if !node.stuck.is_empty() && !node.look_due {
            node.look_due = true;
            self.after(LOOK_AGAIN, Ev::Look(n, epoch));
        }
        self.wake(n);
    }

    fn output(&mut self, n: usize, output: Out) {
        match output {
            Output::Spawn { life, room } => {
                self.nodes[n].rooms.insert(life, room);
                self.admitted(n, life);
            }
            Output::StartRefused {
                why,
                attached,
                leases,
            } => self.start_refused(n, &why, &attached, leases),
            Output::ToRoom { life, event } => self.nodes[n].mail.push_back((life, event)),
            Output::OpenClaim { life, leg, peer } => self.open_claim(n, life, leg, peer),
            Output::WithdrawClaim { life, leg, peer } => {
                self.command(n, peer, Command::Withdraw(life, leg));
            }
            Output::CloseGate { life, .. } => self.close_gate(n, life),
            Output::ToPeer { peer, body } => self.say(n, peer, body),
            Output::ClaimEnded { peer, number } => {
                self.command(n, peer, Command::ClaimEnded(number));
            }
            Output::Post {
                life,
                leg,
                job,
                spec,
            } => self.post(n, life, leg, job, &spec),
            Output::CancelJobs { life } => self.cancel_jobs(n, life),
            Output::Sum { life } => self.begin_sum(n, life),
            Output::ReleaseChunk { lease, .. } => self.chunk_back(n, lease),
            Output::Bounce { lease, .. } => {
                self.fact(Fact::Bounced { lease: lease.no });
                self.chunk_back(n, lease);
            }
            Output::SetTimer { life, timer } => self.set_timer(n, life, timer),
            Output::ClearTimer { life, timer } => {
                let node = &mut self.nodes[n];
                if let Some(attached) = node.core.attached(life) {
                    node.timers.clear(life, &mut attached.armed, timer);
                }
            }
            Output::SetEarlyTimer {
                peer,
                tag,
                within_ms,
            } => {
                let within = Duration::from_millis(u64::from(within_ms));
                let wait = deadlines().early_claim.min(within);
                let node = &mut self.nodes[n];
                let at = node.running.now().after(wait);
                node.timers.set_early(peer, tag, at);
            }
            Output::ClearEarlyTimer { peer, tag } => self.nodes[n].timers.clear_early(peer, tag),
            Output::Publish { life, outcome } => {
                let at = self.nodes[n].life();
                let running = self.nodes[n].running.now().0;
                let fact = Fact::Published {
                    at,
                    life,
                    outcome: outcome.clone(),
                    running,
                };
                assert!(!self.planted(Plant::Panics, 1), "planted");
                if self.planted(Plant::OutcomeTwice, 5) {
                    self.fact(fact.clone());
                }
                self.fact(fact);
                self.published(n, life, &outcome);
            }
            Output::Return {
                life,
                leases,
                mut attached,
                outcome,
                ..
            } => {
                let node = &mut self.nodes[n];
                node.rooms.remove(&life);
                node.timers.clear_all(life, &mut attached.armed);
                self.returned(n, life, leases, outcome.as_ref());
            }
            Output::Count(_) | Output::Empty => {}
        }
    }

    fn say(&mut self, n: usize, peer: PeerRef, body: Body) {
        if let (Some(claim), Some((link, side))) =
            (body.tag(), self.nodes[n].peers.get(&peer).copied())
        {
            let fact = Fact::Said {
                at: self.nodes[n].life(),
                name: body.name(),
                claim,
                session: self.links[link].ends[side].id,
            };
            if body.name() == "Failed" && self.planted(Plant::FailedTwice, 3) {
                self.command(n, peer, Command::Say(body.clone()));
                self.fact(fact.clone());
            }
            if body.name() != "Progress" {
                self.fact(fact);
            }
        }
        self.command(n, peer, Command::Say(body));
    }

    fn command(&mut self, n: usize, peer: PeerRef, command: Command) {
        self.nodes[n].outgoing.push((peer, command));
    }

    fn set_timer(&mut self, n: usize, life: LifeId, timer: Timer) {
        let node = &mut self.nodes[n];
        let Some(attached) = node.core.attached(life) else {
            return;
        };
        let deadlines = deadlines();
        let after = match timer {
            Timer::Outcome => Duration::from_nanos(attached.deadline),
            Timer::Stall => deadlines.stall,
            Timer::Drain => deadlines.drain,
            Timer::Explain => deadlines.drain.min(deadlines.stall),
        };
        let at = node.running.now().after(after);
        node.timers.set(life, &mut attached.armed, timer, at);
    }

    fn set_alarm(&mut self, n: usize) {
        let node = &mut self.nodes[n];
        let now = node.running.now();
        let Some(due) = node.wakeup.set(node.timers.next(), now) else {
            return;
        };
        let epoch = node.epoch;
        // No sooner than a timer of the runtime can wake.
        let wait = (due.since(now).as_nanos() as u64).max(MS);
        self.after(wait, Ev::Alarm(n, epoch, due));
    }

    pub(crate) fn alarm(&mut self, n: usize, due: kvroom_actors::ids::Tick) {
        self.nodes[n].count_turn(self.now);
        let node = &mut self.nodes[n];
        if !node.wakeup.is_set_for(due) || node.plant == Some(Plant::DeadClocks) {
            return;
        }
        if node.wakeup.rings(node.timers.next(), node.running.now()) {
            node.inbox.push_back(Inbound::Fire);
        }
        self.settle(n);
    }

    fn fire(&mut self, n: usize) {
        self.nodes[n].wakeup.fired();
        let now = self.nodes[n].running.now();
        while let Some(clock) = self.nodes[n].timers.pop(now) {
            let input = match clock {
                Clock::Room(life, timer) => Input::Timer { life, timer },
                Clock::Early(peer, tag) => Input::EarlyTimer { peer, tag },
            };
            self.input(n, input);
        }
    }

    fn open_claim(&mut self, n: usize, life: LifeId, leg: LegNo, peer: PeerRef) {
        let at = self.nodes[n].life();
        self.fact(Fact::Asked { at, life, leg });
        let node = &mut self.nodes[n];
        let known = node.peers.contains_key(&peer);
        let Some(l) = node.core.life(life) else {
            return;
        };
        let Kept::Receiver { draft, .. } = &l.attached().role else {
            return;
        };
        let (draft, deadline, key) = (*draft, l.attached().deadline, l.key());
        let (mut sections, mut targets, mut aux) = (Vec::new(), Vec::new(), None);
        for (held, lent) in l.custody().leases() {
            if let Lease::Write(lease) = &mut *lent.lease.borrow_mut() {
                if held == Held::Aux {
                    aux = Some(lease.target_section());
                } else {
                    targets.push(lease.target_section());
                    sections.push(Section {
                        pool: PoolId(0),
                        pages: lease.pages().to_vec(),
                    });
                }
            }
        }
        let tag = ClaimTag {
            id: ClaimId {
                receiver: node.incarnation,
                sender: Incarnation::default(),
                number: ClaimNo(0),
            },
            room: key,
        };
        let claim = Box::new(Claim {
            tag,
            receivers: draft.receivers,
            rank: draft.rank,
            part: Part::Whole,
            sections,
            skip: draft.skip,
            total: draft.total,
            aux: draft.aux.map(|row| AuxRow {
                pool: PoolId(1),
                row,
            }),
            gate: 0,
            deadline_ms: (deadline / MS) as u32,
            checksum: draft.checksum,
            trace: None,
        });
        let sink = Arc::clone(&node.sink);
        let bell = Arc::new(Bell { sink, life });
        let target = Target::new(targets, aux, bell).only_for(peer, 0..u32::MAX);
        let request = OpenRequest {
            life,
            leg,
            claim,
            target,
        };
        if known {
            return self.command(n, peer, Command::Open(Box::new(request)));
        }
        drop(request);
        let reason = Reason::from(Code::PeerLost);
        let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
        node.follow.push_back(Input::ClaimNotOpened {
            life,
            leg,
            reason,
            witness,
        });
        self.fact(Fact::NotOpened { at, life, leg });
    }

    fn close_gate(&mut self, n: usize, life: LifeId) {
        let Some(gate) = self.nodes[n].gate(life) else {
            return;
        };
        match std::mem::replace(gate, Gate::None) {
            Gate::Open(open) => {
                *gate = Gate::Closing(open.close());
                self.finish_gate(n, life);
            }
            other => *gate = other,
        }
    }

    /// Tries to finish a closing gate; its witness goes to the core.
    fn finish_gate(&mut self, n: usize, life: LifeId) {
        let leg = LegNo(0);
        let claim = self.claim_of(n, life);
        let Some(gate) = self.nodes[n].gate(life) else {
            return;
        };
        let closing = match std::mem::replace(gate, Gate::Closed) {
            Gate::Closing(closing) => closing,
            other => {
                *gate = other;
                return;
            }
        };
        let (closing, dead) = match closing.try_finish() {
            Ok(witness) => (Ok(witness), false),
            // Whoever is inside may be dead, and the kernel says so: then nothing holds it any more.
            Err(closing) => match claim.is_some_and(|claim| self.bury(n, claim)) {
                true => (closing.try_finish(), true),
                false => (Err(closing), false),
            },
        };
        match closing {
            Ok(witness) => {
                if let Some(claim) = claim {
                    self.fact(Fact::GateClosed { claim, dead });
                }
                if self.planted(Plant::WitnessLost, 7) {
                    return;
                }
                let witness = Witness::GateClosed(witness);
                let input = Input::GateClosed { life, leg, witness };
                self.nodes[n].follow.push_back(input);
            }
            Err(closing) => {
                if self.planted(Plant::WitnessBeforeEmpty, 1)
                    && let Some(claim) = claim
                {
                    self.fact(Fact::GateClosed { claim, dead });
                    let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
                    let input = Input::GateClosed { life, leg, witness };
                    return self.nodes[n].follow.push_back(input);
                }
                let node = &mut self.nodes[n];
                if let Some(gate) = node.gate(life) {
                    *gate = Gate::Closing(closing);
                }
                node.stuck.push((life, leg));
            }
        }
    }

    pub(crate) fn look(&mut self, n: usize) {
        self.nodes[n].look_due = false;
        self.nodes[n].count_turn(self.now);
        for (life, _) in std::mem::take(&mut self.nodes[n].stuck) {
            self.finish_gate(n, life);
            if let Some(input) = self.nodes[n].follow.pop_front() {
                self.input(n, input);
            }
        }
        self.settle(n);
    }

    /// The claim of a receiver's life.
    fn claim_of(&self, n: usize, life: LifeId) -> Option<ClaimTag> {
        self.nodes[n].core.life(life)?.legs().first()?.claim
    }

    /// What a peer over a network says that it wrote counts as far as this node marked it.
    fn with_own_account(&self, n: usize, peer: PeerRef, body: Body) -> Body {
        let node = &self.nodes[n];
        let tcp = node
            .peers
            .get(&peer)
            .is_some_and(|(link, _)| self.plan.links[*link].fabric == Fabric::Tcp);
        match body {
            Body::Complete {
                tag,
                total,
                coverage,
                checksum,
            } if tcp => {
                let marked = node
                    .core
                    .offered(peer, tag.id.number)
                    .and_then(|(life, _)| match &node.core.life(life)?.attached().role {
                        Kept::Receiver {
                            gate: Gate::Open(open),
                            ..
                        } => Some(open.target()),
                        _ => None,
                    })
                    .filter(|target| !target.has_all(&coverage))
                    .map(Target::marked);
                Body::Complete {
                    tag,
                    total,
                    coverage: marked.unwrap_or(coverage),
                    checksum,
                }
            }
            body => body,
        }
    }

    fn begin_sum(&mut self, n: usize, life: LifeId) {
        let node = &mut self.nodes[n];
        let Some(l) = node.core.life(life) else {
            return;
        };
        let mut sum = Sum::new();
        for (held, lent) in l.custody().leases() {
            if let Lease::Write(lease) = &mut *lent.lease.borrow_mut() {
                let section = match held {
                    Held::Section(i) => i,
                    _ => Rect::AUX,
                };
                sum.push((section, lease.sum_view(), lease.arc_pages()));
            }
        }
        let (at, epoch) = (node.life(), node.epoch);
        node.sums.insert(life, sum);
        self.fact(Fact::Summing { at, life, on: true });
        let wait = self.roll(4, n, 1..400) * US;
        self.after(wait, Ev::Summed(n, epoch, life));
    }

    pub(crate) fn end_sum(&mut self, n: usize, life: LifeId) {
        let Some(sections) = self.nodes[n].sums.remove(&life) else {
            return;
        };
        let mut sum = Checksum::new();
        for (section, view, pages) in &sections {
            let layout = Arc::clone(view.memory().layout());
            for layer in 0..layout.layers {
                for (place, page) in pages.iter().enumerate() {
                    let offset = layout.cell_offset(layer, *page).unwrap();
                    let add = |bytes: &[u8]| {
                        sum.add_cell(u32::from(*section), layer, place as u32, bytes);
                    };
                    view.with_bytes(offset, layout.page_bytes, add).unwrap();
                }
            }
        }
        drop(sections);
        let at = self.nodes[n].life();
        self.fact(Fact::Summing {
            at,
            life,
            on: false,
        });
        let sum = sum.value();
        self.tell(n, Input::Summed { life, sum });
    }

    /// What came back from lanes and gates since the last look.
    pub(crate) fn collect(&mut self) {
        for n in 0..self.nodes.len() {
            let back = self.nodes[n].sink.take();
            if back.is_empty() {
                continue;
            }
            let at = self.nodes[n].life();
            for back in back {
                let inbound = match back {
                    super::node::Back::Job(back) => {
                        let (life, job) = (back.id.life, back.id.job);
                        self.fact(Fact::JobOver { at, life, job });
                        Inbound::Job(back)
                    }
                    super::node::Back::Bell(life) => Inbound::Bell(life),
                };
                self.nodes[n].inbox.push_back(inbound);
            }
            self.wake(n);
        }
    }
}

/// What a ticket says, as the core hears it.
pub(crate) fn job_over(back: JobBack) -> In {
    let JobBack {
        id,
        facts,
        finished,
        witness,
    } = back;
    let end = if let Some(text) = facts.errored {
        JobEnd::Errored(text)
    } else if facts.refused_pieces > 0 {
        JobEnd::Refused
    } else if finished {
        JobEnd::Landed {
            checksum: facts.checksum,
        }
    } else {
        JobEnd::Cancelled
    };
    let (job, carried) = job_parts(id.job);
    Input::JobOver {
        life: id.life,
        leg: id.leg,
        job,
        carried,
        rest: facts.landed_bytes - facts.told_bytes.min(facts.landed_bytes),
        end,
        witness: Witness::Job(witness),
    }
}

/// A job's number and what it carries, in one word.
pub(crate) fn job_code(job: u32, held: Held) -> u64 {
    let held = match held {
        Held::Chunk(ChunkNo(no)) => u64::from(no),
        Held::Aux | Held::Section(_) => u64::from(u32::MAX),
    };
    u64::from(job) | held << 32
}

fn job_parts(code: u64) -> (u32, Held) {
    let held = match (code >> 32) as u32 {
        u32::MAX => Held::Aux,
        no => Held::Chunk(ChunkNo(no)),
    };
    (code as u32, held)
}

/// What the shell keeps with a new life.
pub(crate) fn attached(
    role: Kept,
    deadline: u64,
    class: kvroom_actors::copy::schedule::Class,
) -> Attached {
    Attached {
        life: LifeId(0),
        role,
        armed: crate::timers::Armed::default(),
        deadline,
        class,
    }
}

impl Node {
    /// Where a life's jobs are cancelled.
    pub(crate) fn cancel(&self, life: LifeId) {
        if let Some(l) = self.core.life(life)
            && let Kept::Sender { cancel } = &l.attached().role
        {
            cancel.cancel();
        }
    }
}
