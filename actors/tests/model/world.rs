//! Two nodes or three, their links, and everything around them: what can happen next.
//!
//! ```text
//!   fair     messages, copies, inner steps: what happens if nobody interferes
//!   calls    callers start, push, finish        aborts   callers abort
//!   clocks   armed clocks run out               faults   resets, lost sessions, panics
//!   healing  somebody connects again
//! ```

use super::end::Command;
use super::end::process;
use super::mortal::Down;
use super::network::{Link, RECEIVER, SENDER, Side, Step};
use super::node::{In, Node, Witness};
use super::pages::Pages;
use super::plane::{Plane, Process};
use super::shared::Shared;
use super::size::{Budget, Plant, Size};
use super::truth::Truth;
use kvroom_actors::ids::{Incarnation, LifeId, PeerRef, RoomKey};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::reason::Code;
use kvroom_actors::room::{Role, Timer};
use kvroom_actors::supervisor::io::Input;
use std::collections::{BTreeMap, BTreeSet};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Start(usize),
    Push(LifeId, usize),
    Finish(LifeId),
    Abort(usize, LifeId),
    Core(usize),
    Room(usize),
    Link(usize, Side, Step),
    Enter(usize),
    Land(usize),
    Fail(usize),
    LetGo(usize),
    Resend(usize),
    FlushError(usize),
    Arrive(usize),
    Place(usize),
    Discount(ClaimTag),
    Fence(ClaimTag),
    Crash(usize),
    Stop(usize),
    Cont(usize, u32),
    Restart(usize),
    Sum(usize, LifeId),
    Clock(usize, LifeId, Timer),
    EarlyClock(ClaimTag),
    Panic(usize, LifeId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) size: Size,
    /// The senders, then the receivers by rank.
    pub(crate) nodes: Vec<Shared<Node>>,
    /// Each sender with each receiver, the first sender's first.
    pub(crate) links: Vec<Shared<Link>>,
    /// Which life of each node is the last one.
    pub(crate) lives: Vec<u32>,
    /// Which life of each node's pools is the last one.
    pub(crate) pools: Vec<u32>,
    /// Which pages of it each node has leased, by its own account.
    pub(crate) pages: Vec<Pages>,
    /// Processes that do not run.
    pub(crate) down: BTreeMap<Process, Down>,
    pub(crate) plane: Shared<Plane>,
    pub(crate) truth: Shared<Truth>,
    pub(crate) started: Vec<u32>,
    pub(crate) pushed: Vec<(LifeId, u32)>,
    pub(crate) finished: BTreeSet<LifeId>,
    pub(crate) sums: BTreeSet<(usize, LifeId)>,
    pub(crate) failed: BTreeSet<ClaimTag>,
    pub(crate) budget: Budget,
}

/// The node of a life: its number says it.
pub(crate) fn node_of(life: LifeId) -> usize {
    (life.0 / 100) as usize
}

impl World {
    pub(crate) fn new(size: Size) -> Self {
        let nodes = size.senders + size.receivers;
        let pairs = (0..size.senders).flat_map(|s| (0..size.receivers).map(move |r| (s, r)));
        let link = |(s, r)| Link::new((s, 0), (size.senders + r, 0), r, &size);
        World {
            size,
            nodes: (0..nodes).map(|_| Node::new().into()).collect(),
            links: pairs.map(|pair| link(pair).into()).collect(),
            lives: vec![0; nodes],
            pools: vec![0; nodes],
            pages: vec![Pages::default(); nodes],
            down: BTreeMap::new(),
            plane: Plane::default().into(),
            truth: Truth::default().into(),
            started: vec![0; nodes],
            pushed: Vec::new(),
            finished: BTreeSet::new(),
            sums: BTreeSet::new(),
            failed: BTreeSet::new(),
            budget: size.into(),
        }
    }

    /// What happens if nobody interferes: messages, copies, inner steps.
    pub(crate) fn fair(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, node) in self.nodes.iter().enumerate() {
            if !node.inbox.is_empty() && self.runs(i) {
                all.push(Action::Core(i));
            }
            if !node.mail.is_empty() && self.runs(i) {
                all.push(Action::Room(i));
            }
        }
        for (i, link) in self.links.iter().enumerate() {
            for side in [SENDER, RECEIVER] {
                let steps = self.link_steps(i, link, side);
                all.extend(steps.map(|step| Action::Link(i, side, step)));
            }
        }
        self.moves(&mut all);
        self.recoveries(&mut all);
        all.extend(self.sums.iter().map(|(n, l)| Action::Sum(*n, *l)));
        all
    }

    /// What a link does by itself at a side whose process runs.
    fn link_steps(&self, i: usize, link: &Link, side: Side) -> impl Iterator<Item = Step> + use<> {
        let (here, there) = (self.node_at(i, side), self.node_at(i, 1 - side));
        let (here, both) = (self.runs(here), self.runs(here) && self.runs(there));
        let steps = link.fair(side, &self.size);
        steps.filter(move |step| here && (*step != Step::Resume || both))
    }

    /// What callers may do.
    pub(crate) fn calls(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for node in 0..self.nodes.len() {
            // The next attempt may start as soon as the first one's outcome is delivered.
            let key = self.next_key(node);
            let live = |s: &super::truth::Story| s.outcome.is_none() && !s.died;
            let mut stories = self.truth.stories.iter();
            let busy = stories.any(|((n, _), s)| *n == node && s.key.id == key.id && live(s));
            if key.attempt < self.size.attempts && !busy && self.runs(node) {
                all.push(Action::Start(node));
            }
        }
        for ((node, life), story) in &self.truth.stories {
            let open = story.role == Role::Sender && !self.finished.contains(life);
            if open && !story.died && self.runs(*node) {
                let next = self.next_chunk(*life);
                if self.budget.pushes > 0 {
                    all.extend(
                        (0..=next.min(self.size.chunks.len() - 1)).map(|c| Action::Push(*life, c)),
                    );
                }
                let hasty = self.size.plant == Some(Plant::FinishedTooEarly);
                if next == self.size.chunks.len() || hasty {
                    all.push(Action::Finish(*life));
                }
            }
        }
        all
    }

    /// Rooms that their callers may abort.
    pub(crate) fn aborts(&self) -> Vec<Action> {
        let live = self.truth.stories.iter();
        let live = live.filter(|((node, _), s)| {
            s.outcome.is_none() && !s.died && self.budget.aborts > 0 && self.runs(*node)
        });
        live.map(|((node, life), _)| Action::Abort(*node, *life))
            .collect()
    }

    /// Clocks that may run out.
    pub(crate) fn clocks(&self) -> Vec<Action> {
        let mut all = Vec::new();
        let armed = |n: &Shared<Node>| !n.clocks.is_empty() || !n.early_clocks.is_empty();
        if !self.nodes.iter().any(armed) || (!self.size.clocks && self.is_stirring()) {
            return all;
        }
        for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| self.runs(*i)) {
            all.extend(node.clocks.iter().map(|(l, t)| Action::Clock(i, *l, *t)));
            all.extend(node.early_clocks.iter().map(|t| Action::EarlyClock(*t)));
        }
        all
    }

    /// What may go wrong.
    pub(crate) fn faults(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, link) in self.links.iter().enumerate() {
            for side in [SENDER, RECEIVER] {
                let up = link.ends[side].session.is_some();
                if self.budget.losses > 0 && up && self.runs(self.node_at(i, side)) {
                    all.push(Action::Link(i, side, Step::GiveUp));
                }
                if self.budget.resets > 0 && link.can_reset() {
                    all.push(Action::Link(i, side, Step::Reset));
                }
            }
        }
        if self.budget.panics > 0 {
            for (i, node) in self.nodes.iter().enumerate().filter(|(i, _)| self.runs(*i)) {
                all.extend(node.rooms.keys().map(|l| Action::Panic(i, *l)));
            }
        }
        self.mishaps(&mut all);
        self.accidents(&mut all);
        all
    }

    /// Where a new session may begin.
    pub(crate) fn healing(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, link) in self.links.iter().enumerate() {
            let sides = [SENDER, RECEIVER].into_iter();
            let up = self.runs(self.node_at(i, SENDER)) && self.runs(self.node_at(i, RECEIVER));
            let down = sides.filter(|side| up && link.can_connect(*side));
            all.extend(down.map(|side| Action::Link(i, side, Step::Attach)));
        }
        self.births(&mut all);
        all
    }

    /// From now on callers only finish what they began, and nothing fails.
    pub(crate) fn calm(&mut self) {
        self.size.attempts = 0;
        self.size.failures = false;
        self.size.pushes += 1_000;
        self.budget.pushes += 1_000;
        self.budget.losses = 0;
        self.budget.resets = 0;
        self.budget.panics = 0;
        self.budget.crashes = 0;
        self.budget.stops = 0;
        self.budget.resends = 0;
        self.budget.flush_errors = 0;
    }

    /// Whether only callers, faults and new sessions could still change anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_stirring() && self.clocks().is_empty()
    }

    /// Whether anything is left of [`World::fair`].
    fn is_stirring(&self) -> bool {
        let sides = [SENDER, RECEIVER];
        let on = |i, l: &Link, side| self.link_steps(i, l, side).next().is_some();
        let mut links = self.links.iter().enumerate();
        let busy = |n: &Shared<Node>| !n.inbox.is_empty() || !n.mail.is_empty();
        let mut nodes = self.nodes.iter().enumerate();
        let mut moves = Vec::new();
        !self.sums.is_empty()
            || nodes.any(|(i, n)| busy(n) && self.runs(i))
            || links.any(|(i, l)| sides.iter().any(|s| on(i, l, *s)))
            || {
                self.moves(&mut moves);
                self.recoveries(&mut moves);
                !moves.is_empty()
            }
    }

    /// What is held, armed or under way.
    pub(crate) fn leftovers(&self) -> Vec<&'static str> {
        let nodes = || self.nodes.iter();
        let stories = || self.truth.stories.values().filter(|s| !s.died);
        // In this order, what is most often left comes first.
        let all = [
            ("lives", nodes().all(|n| n.core.is_empty())),
            ("claims", nodes().all(|n| n.core.claims() == 0)),
            ("rooms", nodes().all(|n| n.rooms.is_empty())),
            ("clocks", nodes().all(|n| n.clocks.is_empty())),
            ("links", self.links.iter().all(|l| l.is_quiet(&self.size))),
            (
                "copies",
                self.plane.jobs.is_empty() && self.plane.frames.is_empty(),
            ),
            ("sums", self.sums.is_empty()),
            ("sources", self.truth.lent.is_empty()),
            (
                "pages",
                (0..self.nodes.len()).all(|node| !self.runs(node) || self.has_all_pages(node)),
            ),
            ("outcomes", stories().all(|s| s.outcome.is_some())),
            ("leases", stories().all(|s| s.returned)),
        ];
        let left = all.into_iter().filter(|(_, is_gone)| !is_gone);
        left.map(|(what, _)| what).collect()
    }

    /// Whether all pages of a node are free, in truth and by its own account.
    fn has_all_pages(&self, node: usize) -> bool {
        let mut held = self.truth.places.keys();
        held.all(|(n, ..)| *n != node) && self.pages[node].taken().next().is_none()
    }

    /// Whether nothing is held, armed or under way anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.leftovers().is_empty()
    }

    pub(crate) fn is_empty_at_rest(&self) -> bool {
        self.is_empty() && self.is_at_rest()
    }

    pub(crate) fn tell(&mut self, node: usize, input: In) {
        self.nodes[node].inbox.push_back(input);
    }

    pub(crate) fn next_chunk(&self, life: LifeId) -> usize {
        let pushed = self.pushed.iter().find(|(l, _)| *l == life);
        pushed.map_or(0, |(_, n)| *n as usize)
    }

    /// The node at one side of a link.
    pub(crate) fn node_at(&self, link: usize, side: Side) -> usize {
        if side == SENDER {
            link / self.size.receivers
        } else {
            self.size.senders + link % self.size.receivers
        }
    }

    /// The link between a receiver and a sender.
    pub(crate) fn link_of(&self, receiver: usize, sender: usize) -> usize {
        sender * self.size.receivers + receiver - self.size.senders
    }

    /// What a node calls this life of another one.
    pub(crate) fn peer_ref(&self, incarnation: Incarnation) -> PeerRef {
        let (node, life) = process(incarnation);
        let by_name = self.size.plant == Some(Plant::AbortToTheNewLife);
        PeerRef(node as u32 + if by_name { 0 } else { 16 * life })
    }

    /// What the node at one side of a link calls the other one's life that it knows.
    pub(crate) fn peer_at(&self, link: usize, side: Side) -> PeerRef {
        self.peer_ref(self.links[link].ends[side].peer)
    }

    /// The key of the room that this node starts next: all rooms of an attempt, then the next one.
    pub(crate) fn next_key(&self, node: usize) -> RoomKey {
        let (started, rooms) = (self.started[node], self.size.rooms);
        RoomKey::new(42 + u64::from(started % rooms), started / rooms)
    }

    /// A shard's word to a session's owner. That of a peer's former life is gone.
    pub(crate) fn command(&mut self, node: usize, peer: PeerRef, command: Command) {
        let other = (peer.0 % 16) as usize;
        let (link, side) = if node < self.size.senders {
            (self.link_of(other, node), SENDER)
        } else {
            (self.link_of(node, other), RECEIVER)
        };
        if self.peer_at(link, side) == peer {
            self.links[link].ends[side].commands.push_back(command);
        } else if let Command::Open(pending) = command {
            let input = Input::ClaimNotOpened {
                life: pending.life,
                leg: pending.leg,
                reason: Code::PeerLost.into(),
                witness: Witness::NeverSubmitted,
            };
            self.tell(node, input);
        }
    }

    /// Something was done to this request.
    pub(crate) fn hurt(&mut self, key: RoomKey) {
        self.truth.hurt.insert(key);
    }
}
