//! What a core wants done, done; and what an onlooker checks while it is.
//!
//! ```text
//!   Output ─▶ commands to sessions · gates and lanes · leases and outcomes of callers (truth)
//! ```

use super::end::{Command, Pending};
use super::network::RECEIVER;
use super::node::{Lease, Out, Witness};
use super::plane::Job;
use super::request::{cells, held};
use super::size::{Kind, Plant};
use super::truth::Broken;
use super::world::{World, node_of};
use kvroom_actors::ids::{LegNo, LifeId, PeerRef};
use kvroom_actors::peer::message::Body;
use kvroom_actors::room::{JobSpec, Outcome};
use kvroom_actors::supervisor::io::Output;

impl World {
    pub(crate) fn output(&mut self, node: usize, output: Out) {
        match output {
            Output::OpenClaim { life, leg, peer } => {
                let key = self.nodes[node].core.life(life).unwrap().key();
                self.command(node, peer, Command::Open(Pending { life, leg, key }));
            }
            Output::WithdrawClaim { life, leg, peer } => {
                self.command(node, peer, Command::Withdraw(life, leg));
            }
            Output::ClaimEnded { peer, number } => {
                self.command(node, peer, Command::ClaimEnded(number));
            }
            Output::ToPeer { peer, body } => self.say(node, peer, body),
            Output::CloseGate { life, leg } => {
                let early = self.size.plant == Some(Plant::GateYieldsEarly);
                if let Some(claim) = self.plane.close((node, life, leg), early)
                    && self.size.plane != Kind::Ucx
                {
                    self.gate_empty(claim, Witness::GateClosed);
                }
            }
            Output::Post {
                life,
                leg,
                job,
                spec,
            } => self.post(life, leg, job, spec),
            Output::CancelJobs { life } => {
                for job in self.plane.jobs.iter_mut().filter(|j| j.life == life) {
                    job.cancelled = true;
                }
            }
            Output::Sum { life } => {
                self.sums.insert((node, life));
            }
            Output::ReleaseChunk { lease, .. } | Output::Bounce { lease, .. } => {
                self.check_source(lease);
                self.truth.take_back(lease);
            }
            Output::Publish { life, outcome } => self.publish(node, life, outcome),
            Output::Return { life, leases, .. } => {
                self.check_proof(node, life);
                self.pages[node].give_back(life);
                for (_, lease) in leases {
                    self.check_source(lease);
                    self.truth.take_back(lease);
                }
                self.truth.returned(node, life);
            }
            Output::StartRefused { .. } => panic!("no start of this world is refused"),
            _ => {}
        }
    }

    pub(crate) fn say(&mut self, node: usize, peer: PeerRef, body: Body) {
        match &body {
            Body::Failed { tag, .. } if !self.failed.insert(*tag) => {
                self.truth.broken.insert(Broken::ToldTwice);
            }
            Body::Quiesced { tag, .. } if self.plane.jobs.iter().any(|j| j.claim == *tag) => {
                self.truth.broken.insert(Broken::QuiescedWhileOut);
            }
            _ => {}
        }
        self.command(node, peer, Command::Say(body));
    }

    fn post(&mut self, life: LifeId, leg: LegNo, no: u32, spec: JobSpec) {
        let node = node_of(life);
        let l = self.nodes[node].core.life(life).unwrap();
        let claim = l.legs()[usize::from(leg.0)].claim.unwrap();
        let held = held(&spec);
        let source = l
            .custody()
            .leases()
            .find(|(h, _)| *h == held)
            .map(|(_, l)| *l);
        self.plane.jobs.push(Job {
            owner: (node, self.lives[node]),
            life,
            key: l.key(),
            leg,
            no,
            spec,
            claim,
            source,
            inside: false,
            cancelled: false,
            told: false,
            errored: false,
            landed: false,
            fenced: false,
            copy: 0,
            entered: None,
        });
    }

    fn publish(&mut self, node: usize, life: LifeId, outcome: Outcome) {
        let senders = self.size.senders;
        let key = self.truth.stories[&(node, life)].key;
        if outcome == Outcome::Done && node >= senders {
            let bytes = self.truth.bytes(node, life);
            if !bytes.keys().eq(&cells(&self.size, node - senders)) {
                self.truth.broken.insert(Broken::S3DoneIsNotAll);
            }
            if bytes.values().any(|whose| *whose != key) {
                self.truth.broken.insert(Broken::S7WrongBytes);
            }
        }
        if outcome == Outcome::Done && node < senders {
            let done = self.truth.stories.iter().filter(|((n, _), s)| {
                *n >= senders && s.key == key && s.outcome == Some(Outcome::Done)
            });
            if done.count() != self.size.receivers {
                self.truth.broken.insert(Broken::SenderDoneAlone);
            }
        }
        if self.size.plant == Some(Plant::FreedAtTheOutcome) {
            self.pages[node].give_back(life);
        }
        self.truth.publish(node, life, outcome);
    }

    fn check_source(&mut self, lease: Lease) {
        if self.plane.jobs.iter().any(|j| j.source == Some(lease)) {
            self.truth.broken.insert(Broken::S6NoProof);
        }
    }

    fn check_proof(&mut self, node: usize, life: LifeId) {
        let is_receiver = node >= self.size.senders;
        let mut gates = self.plane.gates.iter();
        let open = gates.any(|(tag, gate)| {
            let mine = (gate.node, gate.life) == (node, life);
            let busy = match self.size.plane {
                // What was posted since a fence is refused.
                Kind::Ucx => {
                    let can_land = |j: &Job| j.claim == *tag && !j.fenced && !j.landed;
                    !self.plane.fenced.contains(tag) && self.plane.jobs.iter().any(can_land)
                }
                _ => !gate.closed || gate.inside > 0,
            };
            mine && busy
        });
        let asked = is_receiver
            && self.links.iter().enumerate().any(|(i, link)| {
                let end = &link.ends[RECEIVER];
                let unread = |c: &Command| matches!(c, Command::Open(p) if p.life == life);
                let waits = end.waiting.iter().any(|p| p.life == life);
                self.node_at(i, RECEIVER) == node && (waits || end.commands.iter().any(unread))
            });
        let jobs = !is_receiver && self.plane.jobs.iter().any(|j| j.life == life);
        let read = self.sums.contains(&(node, life));
        if open || asked || jobs || read {
            self.truth.broken.insert(Broken::S6NoProof);
        }
    }
}
