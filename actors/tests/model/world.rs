//! What can happen next in the world, and what it does.

use super::network::{Msg, Session};
use super::node::{Lease, Node, Out, Witness};
use super::plane::{AUX, Gate, Job, Plane};
use super::truth::{Broken, Story, Truth};
use kvroom_actors::ids::{ChunkNo, LegNo, LifeId, PeerRef, PoolId, RoomKey};
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::room::event::{LegTerms, SectionShape};
use kvroom_actors::room::receiver::{LegPlan, Terms};
use kvroom_actors::room::{Chunk, JobEnd, JobSpec, Outcome, Role, Timer};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::early::Offer;
use kvroom_actors::supervisor::io::{Input, Output, Start, StartRole};
use kvroom_kernels::coverage::{Coverage, Rect};
use std::collections::BTreeSet;
use std::sync::Arc;

/// The request of this world: its length and page size in tokens.
const TOTAL: u64 = 7;
const PAGE: u32 = 2;
const PAGES: u32 = 4;

/// How much can go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Size {
    /// Receivers, each a node of its own: 1 or 2.
    pub(crate) receivers: usize,
    /// Attempts that callers may make on each node.
    pub(crate) attempts: u32,
    /// Whether a checksum is asked for.
    pub(crate) checksum: bool,
    /// Page ranges that prefill pushes, in this order.
    pub(crate) chunks: &'static [(u32, u32)],
    /// Pushes in all, repeats among them.
    pub(crate) pushes: u32,
    /// Sessions that may be lost.
    pub(crate) losses: u32,
    /// Rooms that may panic.
    pub(crate) panics: u32,
    /// Aborts by callers.
    pub(crate) aborts: u32,
    /// Whether rooms and cores answer at once, or have mailboxes that fall behind.
    pub(crate) at_once: bool,
    /// Whether copies may fail by themselves.
    pub(crate) failures: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Start(usize),
    Push(LifeId, usize),
    Finish(LifeId),
    Abort(usize, LifeId),
    Core(usize),
    Room(usize),
    Number(usize),
    ToSender(usize),
    ToReceiver(usize),
    Enter(usize),
    Land(usize),
    Fail(usize),
    Sum(usize, LifeId),
    Clock(usize, LifeId, Timer),
    EarlyClock(ClaimTag),
    Panic(usize, LifeId),
    Lose(usize),
    Back(usize),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) size: Size,
    /// Node 0 is the sender; node `i` is the receiver of rank `i - 1`.
    pub(crate) nodes: Vec<Node>,
    /// `sessions[i]` joins the sender and node `i + 1`.
    pub(crate) sessions: Vec<Session>,
    pub(crate) plane: Plane,
    pub(crate) truth: Truth,
    started: Vec<u32>,
    pushed: Vec<(LifeId, u32)>,
    finished: BTreeSet<LifeId>,
    sums: BTreeSet<(usize, LifeId)>,
    failed: BTreeSet<ClaimTag>,
    budget: Size,
}

impl World {
    pub(crate) fn new(size: Size) -> Self {
        World {
            size,
            nodes: (0..=size.receivers).map(|_| Node::new()).collect(),
            sessions: (1..=size.receivers).map(Session::new).collect(),
            plane: Plane::default(),
            truth: Truth::default(),
            started: vec![0; size.receivers + 1],
            pushed: Vec::new(),
            finished: BTreeSet::new(),
            sums: BTreeSet::new(),
            failed: BTreeSet::new(),
            budget: size,
        }
    }

    /// What happens if nobody interferes: messages, copies, inner steps.
    pub(crate) fn fair(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if !node.inbox.is_empty() {
                all.push(Action::Core(i));
            }
            if !node.mail.is_empty() {
                all.push(Action::Room(i));
            }
        }
        for (i, s) in self.sessions.iter().enumerate() {
            if !s.pending.is_empty() {
                all.push(Action::Number(i));
            }
            if !s.to_sender.is_empty() {
                all.push(Action::ToSender(i));
            }
            if !s.to_receiver.is_empty() {
                all.push(Action::ToReceiver(i));
            }
        }
        for (at, job) in self.plane.jobs.iter().enumerate() {
            all.push(if job.inside {
                Action::Land(at)
            } else {
                Action::Enter(at)
            });
        }
        all.extend(self.sums.iter().map(|(n, l)| Action::Sum(*n, *l)));
        all
    }

    /// What callers may do.
    pub(crate) fn calls(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for node in 0..self.nodes.len() {
            // The next attempt may start as soon as the first one's outcome is delivered.
            let busy = self
                .truth
                .stories
                .iter()
                .any(|((n, _), s)| *n == node && s.outcome.is_none());
            if self.started[node] < self.size.attempts && !busy {
                all.push(Action::Start(node));
            }
        }
        for ((_, life), story) in &self.truth.stories {
            if story.role == Role::Sender && !self.finished.contains(life) {
                let next = self.next_chunk(*life);
                if self.budget.pushes > 0 {
                    all.extend(
                        (0..=next.min(self.size.chunks.len() - 1)).map(|c| Action::Push(*life, c)),
                    );
                }
                if next == self.size.chunks.len() {
                    all.push(Action::Finish(*life));
                }
            }
        }
        all
    }

    /// Rooms that their callers may abort.
    pub(crate) fn aborts(&self) -> Vec<Action> {
        let live = self.truth.stories.iter();
        let live = live.filter(|(_, s)| s.outcome.is_none() && self.budget.aborts > 0);
        live.map(|((node, life), _)| Action::Abort(*node, *life))
            .collect()
    }

    /// From now on callers only finish what they began, and nothing fails.
    pub(crate) fn calm(&mut self) {
        self.size.attempts = 0;
        self.size.failures = false;
        self.size.pushes += 1_000;
        self.budget.pushes += 1_000;
        self.budget.losses = 0;
        self.budget.panics = 0;
    }

    /// Clocks that may run out.
    pub(crate) fn clocks(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            all.extend(node.clocks.iter().map(|(l, t)| Action::Clock(i, *l, *t)));
            all.extend(node.early_clocks.iter().map(|t| Action::EarlyClock(*t)));
        }
        all
    }

    /// What may go wrong, and the way back.
    pub(crate) fn faults(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, s) in self.sessions.iter().enumerate() {
            if !s.is_up() {
                all.push(Action::Back(i));
            } else if self.budget.losses > 0 {
                all.push(Action::Lose(i));
            }
        }
        if self.budget.panics > 0 {
            for (i, node) in self.nodes.iter().enumerate() {
                all.extend(node.rooms.keys().map(|l| Action::Panic(i, *l)));
            }
        }
        if self.size.failures {
            for (at, job) in self.plane.jobs.iter().enumerate() {
                if job.inside {
                    all.push(Action::Fail(at));
                }
            }
        }
        all
    }

    pub(crate) fn apply(&mut self, action: &Action) {
        match action {
            Action::Start(node) => self.start(*node),
            Action::Push(life, chunk) => self.push(*life, *chunk),
            Action::Finish(life) => {
                self.finished.insert(*life);
                let aux = Some(self.truth.lend());
                self.tell(
                    0,
                    Input::Finish {
                        life: *life,
                        total: TOTAL,
                        aux,
                    },
                );
            }
            Action::Abort(node, life) => {
                self.budget.aborts -= 1;
                let reason = Reason::from(Code::Requested);
                self.tell(
                    *node,
                    Input::Abort {
                        life: *life,
                        reason,
                    },
                );
            }
            Action::Core(node) => self.core(*node),
            Action::Room(node) => self.nodes[*node].step_room(),
            Action::Number(i) => self.number(*i),
            Action::ToSender(i) => self.deliver_to_sender(*i),
            Action::ToReceiver(i) => {
                if let Some(Msg::Body(body)) = self.sessions[*i].to_receiver.pop_front() {
                    self.tell(
                        i + 1,
                        Input::Message {
                            peer: PeerRef(0),
                            body,
                        },
                    );
                }
            }
            Action::Enter(at) => self.enter(*at),
            Action::Land(at) => self.land(*at),
            Action::Fail(at) => {
                let claim = self.plane.jobs[*at].claim;
                self.leave(claim);
                self.over(*at, JobEnd::Errored("cable".into()));
            }
            Action::Sum(node, life) => {
                self.sums.remove(&(*node, *life));
                if self.truth.is_returned(*node, *life) {
                    self.truth.broken.insert(Broken::S2TornSource);
                }
                let sum = self.written(*node, *life).len() as u64;
                self.tell(*node, Input::Summed { life: *life, sum });
            }
            Action::Clock(node, life, timer) => {
                self.nodes[*node].clocks.remove(&(*life, *timer));
                self.tell(
                    *node,
                    Input::Timer {
                        life: *life,
                        timer: *timer,
                    },
                );
            }
            Action::EarlyClock(tag) => {
                self.nodes[0].early_clocks.remove(tag);
                let peer = PeerRef(tag.id.receiver.started_ns as u32);
                self.tell(0, Input::EarlyTimer { peer, tag: *tag });
            }
            Action::Panic(node, life) => {
                self.budget.panics -= 1;
                self.nodes[*node].panic(*life);
            }
            Action::Lose(i) => self.lose(*i),
            Action::Back(i) => {
                self.sessions[*i].back();
                self.tell(
                    0,
                    Input::PeerBack {
                        peer: PeerRef(*i as u32 + 1),
                    },
                );
                self.tell(i + 1, Input::PeerBack { peer: PeerRef(0) });
            }
        }
        if self.size.at_once {
            while let Some(i) = self.nodes.iter().position(|n| !n.is_idle()) {
                if self.nodes[i].inbox.is_empty() {
                    self.nodes[i].step_room();
                } else {
                    self.core(i);
                }
            }
        }
    }

    /// Whether only callers and faults could still change anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        self.fair().is_empty() && self.clocks().is_empty()
    }

    /// Whether nothing is held, armed or under way anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.iter().all(|n| {
            n.core.is_empty() && n.core.claims() == 0 && n.rooms.is_empty() && n.clocks.is_empty()
        }) && self.plane.jobs.is_empty()
            && self.sums.is_empty()
            && self.truth.lent.is_empty()
            && self
                .truth
                .stories
                .values()
                .all(|s| s.outcome.is_some() && s.returned)
    }

    fn tell(&mut self, node: usize, input: super::node::In) {
        self.nodes[node].inbox.push_back(input);
    }

    fn next_chunk(&self, life: LifeId) -> usize {
        let pushed = self.pushed.iter().find(|(l, _)| *l == life);
        pushed.map_or(0, |(_, n)| *n as usize)
    }

    fn start(&mut self, node: usize) {
        let attempt = self.started[node];
        self.started[node] += 1;
        let life = LifeId((node as u64) * 100 + u64::from(attempt));
        let key = RoomKey::new(42, attempt);
        let role = if node == 0 {
            Role::Sender
        } else {
            Role::Receiver
        };
        let story = Story {
            key,
            role,
            outcome: None,
            returned: false,
        };
        self.truth.stories.insert((node, life), story);
        let role = if node == 0 {
            StartRole::Sender {
                receivers: self.size.receivers as u16,
            }
        } else {
            let terms = Terms {
                legs: vec![LegPlan {
                    wanted: wanted(node - 1),
                }],
                total: TOTAL,
                checksum: self.size.checksum,
            };
            let leases = vec![(Held::Section(0), self.truth.lend())];
            StartRole::Receiver {
                terms,
                peers: vec![PeerRef(0)],
                leases,
            }
        };
        let start = Start {
            life,
            key,
            tag: None,
            pages: 4,
            attached: (),
            role,
        };
        self.tell(node, Input::Start(Box::new(start)));
    }

    fn push(&mut self, life: LifeId, which: usize) {
        self.budget.pushes -= 1;
        let no = ChunkNo(self.size.pushes - self.budget.pushes);
        let (from, to) = self.size.chunks[which];
        if which == self.next_chunk(life) {
            self.pushed.retain(|(l, _)| *l != life);
            self.pushed.push((life, which as u32 + 1));
        }
        let per = u64::from(PAGE);
        let chunk = Chunk {
            no,
            pool: PoolId(0),
            tokens: u64::from(from) * per..(u64::from(to) * per).min(TOTAL),
            layers: 0..1,
            pages: (from..to).collect(),
            page_tokens: PAGE,
            pool_layers: 1,
        };
        let lease = self.truth.lend();
        self.tell(0, Input::Push { life, chunk, lease });
    }

    fn core(&mut self, node: usize) {
        for output in self.nodes[node].step_core() {
            self.output(node, output);
        }
    }

    fn output(&mut self, node: usize, output: Out) {
        match output {
            Output::OpenClaim { life, leg, .. } => self.open_claim(node, life, leg),
            Output::WithdrawClaim { life, leg, .. } => self.withdraw(node, life, leg),
            Output::CloseGate { life, leg } => {
                if let Some(claim) = self.plane.close(node, life, leg) {
                    self.gate_empty(claim);
                }
            }
            Output::ToPeer { peer, body } => self.send(node, peer, body),
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

    fn open_claim(&mut self, node: usize, life: LifeId, leg: LegNo) {
        let key = self.nodes[node].core.life(life).unwrap().key();
        let session = &mut self.sessions[node - 1];
        if session.is_up() {
            session
                .pending
                .push_back(super::network::Pending { life, leg, key });
        } else {
            self.not_opened(node, life, leg, Code::SessionLost);
        }
    }

    fn withdraw(&mut self, node: usize, life: LifeId, leg: LegNo) {
        if self.sessions[node - 1].withdraw(life, leg) {
            self.not_opened(node, life, leg, Code::Requested);
        }
    }

    fn not_opened(&mut self, node: usize, life: LifeId, leg: LegNo, code: Code) {
        let input = Input::ClaimNotOpened {
            life,
            leg,
            reason: code.into(),
            witness: Witness::NeverSubmitted,
        };
        self.tell(node, input);
    }

    fn number(&mut self, i: usize) {
        let Some((pending, tag)) = self.sessions[i].number() else {
            return;
        };
        let (life, leg) = (pending.life, pending.leg);
        let gate = Gate {
            node: i + 1,
            life,
            leg,
            closed: false,
            inside: 0,
        };
        self.plane.gates.insert(tag, gate);
        self.tell(i + 1, Input::ClaimOpened { life, leg, tag });
        let terms = Arc::new(terms(self.size, i));
        self.sessions[i].send_to_sender(Msg::Claim { tag, terms });
    }

    fn deliver_to_sender(&mut self, i: usize) {
        let peer = PeerRef(i as u32 + 1);
        let input = match self.sessions[i].to_sender.pop_front() {
            Some(Msg::Claim { tag, terms }) => Input::Claim {
                peer,
                offer: Offer {
                    tag,
                    gate: 0,
                    pages: 4,
                    checksum: false,
                    deadline_ms: u32::MAX,
                },
                terms: Ok(terms),
            },
            Some(Msg::Body(body)) => Input::Message { peer, body },
            None => return,
        };
        self.tell(0, input);
    }

    fn send(&mut self, node: usize, peer: PeerRef, body: Body) {
        if let Body::Failed { tag, .. } = &body
            && !self.failed.insert(*tag)
        {
            self.truth.broken.insert(Broken::ToldTwice);
        }
        if node == 0 {
            self.sessions[peer.0 as usize - 1].send_to_receiver(Msg::Body(body));
        } else {
            self.sessions[node - 1].send_to_sender(Msg::Body(body));
        }
    }

    fn post(&mut self, life: LifeId, leg: LegNo, no: u32, spec: JobSpec) {
        let l = self.nodes[0].core.life(life).unwrap();
        let claim = l.legs()[usize::from(leg.0)].claim.unwrap();
        let held = held(&spec);
        let source = l
            .custody()
            .leases()
            .find(|(h, _)| *h == held)
            .map(|(_, l)| *l);
        self.plane.jobs.push(Job {
            life,
            leg,
            no,
            spec,
            claim,
            source,
            inside: false,
            cancelled: false,
        });
    }

    fn enter(&mut self, at: usize) {
        if self.plane.jobs[at].cancelled {
            self.over(at, JobEnd::Cancelled);
        } else if !self.plane.enter(at) {
            self.over(at, JobEnd::Refused);
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
        self.leave(job.claim);
        self.over(at, JobEnd::Landed { checksum });
    }

    fn leave(&mut self, claim: ClaimTag) {
        if self.plane.leave(claim) {
            self.gate_empty(claim);
        }
    }

    fn gate_empty(&mut self, claim: ClaimTag) {
        let gate = &self.plane.gates[&claim];
        let (node, life, leg) = (gate.node, gate.life, gate.leg);
        let witness = Witness::GateClosed;
        self.tell(node, Input::GateClosed { life, leg, witness });
    }

    fn over(&mut self, at: usize, end: JobEnd) {
        let job = self.plane.jobs.remove(at);
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

    fn lose(&mut self, i: usize) {
        self.budget.losses -= 1;
        for p in self.sessions[i].lose() {
            self.not_opened(i + 1, p.life, p.leg, Code::SessionLost);
        }
        let reason = Reason::from(Code::SessionLost);
        let peer = PeerRef(i as u32 + 1);
        self.tell(
            0,
            Input::PeerLost {
                peer,
                reason: reason.clone(),
            },
        );
        self.tell(
            i + 1,
            Input::PeerLost {
                peer: PeerRef(0),
                reason,
            },
        );
    }

    fn publish(&mut self, node: usize, life: LifeId, outcome: Outcome) {
        if outcome == Outcome::Done && node > 0 {
            let mut want: BTreeSet<u32> = (0..PAGES - skip(node - 1)).collect();
            want.insert(AUX);
            if self.written(node, life) != want {
                self.truth.broken.insert(Broken::S3DoneIsNotAll);
            }
        }
        if outcome == Outcome::Done && node == 0 {
            let key = self.truth.stories[&(0, life)].key;
            let done =
                self.truth.stories.iter().filter(|((n, _), s)| {
                    *n > 0 && s.key == key && s.outcome == Some(Outcome::Done)
                });
            if done.count() != self.size.receivers {
                self.truth.broken.insert(Broken::SenderDoneAlone);
            }
        }
        self.truth.publish(node, life, outcome);
    }

    fn written(&self, node: usize, life: LifeId) -> BTreeSet<u32> {
        let claims = self.plane.gates.iter();
        let of = claims.filter(|(_, g)| (g.node, g.life) == (node, life));
        let cells = of.filter_map(|(tag, _)| self.plane.landed.get(tag));
        cells.flatten().copied().collect()
    }

    fn check_source(&mut self, lease: Lease) {
        if self.plane.jobs.iter().any(|j| j.source == Some(lease)) {
            self.truth.broken.insert(Broken::S6NoProof);
        }
    }

    fn check_proof(&mut self, node: usize, life: LifeId) {
        let gates = self.plane.gates.values();
        let open = gates
            .filter(|g| (g.node, g.life) == (node, life))
            .any(|g| !g.closed || g.inside > 0);
        let asked = node > 0
            && self.sessions[node - 1]
                .pending
                .iter()
                .any(|p| p.life == life);
        let jobs = node == 0 && self.plane.jobs.iter().any(|j| j.life == life);
        let read = self.sums.contains(&(node, life));
        if open || asked || jobs || read {
            self.truth.broken.insert(Broken::S6NoProof);
        }
    }
}

fn held(spec: &JobSpec) -> Held {
    match spec {
        JobSpec::Pages { chunk, .. } => Held::Chunk(*chunk),
        JobSpec::Aux => Held::Aux,
    }
}

/// The receiver of rank 1 has the first page already.
fn skip(rank: usize) -> u32 {
    u32::from(rank == 1)
}

fn wanted(rank: usize) -> Coverage {
    let mut wanted = Coverage::new();
    wanted.insert(0, 0..1, 0..PAGES - skip(rank)).unwrap();
    wanted.insert(Rect::AUX, 0..1, 0..1).unwrap();
    wanted
}

fn terms(size: Size, rank: usize) -> LegTerms {
    LegTerms {
        receivers: size.receivers as u16,
        rank: rank as u16,
        skip: u64::from(skip(rank) * PAGE),
        total: TOTAL,
        sections: Box::new([SectionShape {
            pool: PoolId(0),
            layer: 0,
            layer_end: 1,
            page_tokens: PAGE,
            page_bytes: 64,
            pages: PAGES - skip(rank),
        }]),
        aux: true,
        checksum: size.checksum,
    }
}
