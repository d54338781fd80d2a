//! Two nodes or three, their links, and everything around them: what can happen next.
//!
//! ```text
//!   fair     messages, copies, inner steps: what happens if nobody interferes
//!   calls    callers start, push, finish        aborts   callers abort
//!   clocks   armed clocks run out               faults   resets, lost sessions, panics
//!   healing  somebody connects again
//! ```

use super::end::Command;
use super::network::{Link, RECEIVER, SENDER, Side, Step};
use super::node::{In, Node};
use super::plane::Plane;
use super::size::{Budget, Size};
use super::truth::Truth;
use kvroom_actors::ids::{LifeId, PeerRef};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::{Role, Timer};
use std::collections::BTreeSet;

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
    Sum(usize, LifeId),
    Clock(usize, LifeId, Timer),
    EarlyClock(ClaimTag),
    Panic(usize, LifeId),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) size: Size,
    /// Node 0 is the sender; node `i` is the receiver of rank `i - 1`.
    pub(crate) nodes: Vec<Node>,
    /// `links[i]` joins the sender and node `i + 1`.
    pub(crate) links: Vec<Link>,
    pub(crate) plane: Plane,
    pub(crate) truth: Truth,
    pub(crate) started: Vec<u32>,
    pub(crate) pushed: Vec<(LifeId, u32)>,
    pub(crate) finished: BTreeSet<LifeId>,
    pub(crate) sums: BTreeSet<(usize, LifeId)>,
    pub(crate) failed: BTreeSet<ClaimTag>,
    pub(crate) budget: Budget,
}

/// The node at one side of a link.
pub(crate) fn node_at(link: usize, side: Side) -> usize {
    if side == SENDER { 0 } else { link + 1 }
}

/// What that node calls the other one.
pub(crate) fn peer_at(link: usize, side: Side) -> PeerRef {
    PeerRef(node_at(link, 1 - side) as u32)
}

impl World {
    pub(crate) fn new(size: Size) -> Self {
        World {
            size,
            nodes: (0..=size.receivers).map(|_| Node::new()).collect(),
            links: (1..=size.receivers).map(|i| Link::new(i, &size)).collect(),
            plane: Plane::default(),
            truth: Truth::default(),
            started: vec![0; size.receivers + 1],
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
            if !node.inbox.is_empty() {
                all.push(Action::Core(i));
            }
            if !node.mail.is_empty() {
                all.push(Action::Room(i));
            }
        }
        for (i, link) in self.links.iter().enumerate() {
            for side in [SENDER, RECEIVER] {
                let steps = link.fair(side, &self.size);
                all.extend(steps.map(|step| Action::Link(i, side, step)));
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

    /// Clocks that may run out.
    pub(crate) fn clocks(&self) -> Vec<Action> {
        let mut all = Vec::new();
        if !self.size.clocks && self.is_stirring() {
            return all;
        }
        for (i, node) in self.nodes.iter().enumerate() {
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
                if self.budget.losses > 0 && link.ends[side].session.is_some() {
                    all.push(Action::Link(i, side, Step::GiveUp));
                }
                if self.budget.resets > 0 && link.can_reset() {
                    all.push(Action::Link(i, side, Step::Reset));
                }
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

    /// Where a new session may begin.
    pub(crate) fn healing(&self) -> Vec<Action> {
        let mut all = Vec::new();
        for (i, link) in self.links.iter().enumerate() {
            let sides = [SENDER, RECEIVER].into_iter();
            let down = sides.filter(|side| link.can_connect(*side));
            all.extend(down.map(|side| Action::Link(i, side, Step::Attach)));
        }
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
    }

    /// Whether only callers, faults and new sessions could still change anything.
    pub(crate) fn is_at_rest(&self) -> bool {
        !self.is_stirring() && self.clocks().is_empty()
    }

    /// Whether anything is left of [`World::fair`].
    fn is_stirring(&self) -> bool {
        let sides = [SENDER, RECEIVER];
        let on = |l: &Link, side| l.fair(side, &self.size).next().is_some();
        let busy = |n: &Node| !n.inbox.is_empty() || !n.mail.is_empty();
        !self.plane.jobs.is_empty()
            || !self.sums.is_empty()
            || self.nodes.iter().any(busy)
            || self.links.iter().any(|l| sides.iter().any(|s| on(l, *s)))
    }

    /// Whether nothing is held, armed or under way anywhere.
    pub(crate) fn is_empty(&self) -> bool {
        self.nodes.iter().all(|n| {
            n.core.is_empty() && n.core.claims() == 0 && n.rooms.is_empty() && n.clocks.is_empty()
        }) && self.links.iter().all(|l| l.is_quiet(&self.size))
            && self.plane.jobs.is_empty()
            && self.sums.is_empty()
            && self.truth.lent.is_empty()
            && self
                .truth
                .stories
                .values()
                .all(|s| s.outcome.is_some() && s.returned)
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

    /// A shard's word to a session's owner.
    pub(crate) fn command(&mut self, node: usize, peer: PeerRef, command: Command) {
        let (link, side) = match node {
            0 => (peer.0 as usize - 1, SENDER),
            node => (node - 1, RECEIVER),
        };
        self.links[link].ends[side].commands.push_back(command);
    }
}
