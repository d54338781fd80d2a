//! Control connections: pipes with room for so many frames, broken, resumed, given up, begun again.
//!
//! ```text
//!   end 0 (prefill) ══ transport t: two bounded pipes, each frame with its time of arrival ══ end 1 (decode)
//!
//!   lost:    one side lets go; the other reads what came before, then the end of it, or is silent
//!   dial:    end 1, with a growing wait; one way there, one way back; both greet
//!   resume:  both say what they received; else a new session
//! ```
//!
//! What is blocked (a partition) waits, as on a network that sends again; clocks notice the silence.

use super::end::{Came, End};
use super::fact::Fact;
use super::node::deadlines;
use super::plan::{Fabric, MS, US};
use super::plant::Plant;
use super::world::{Ev, World};
use crate::clock::Tick;
use kvroom_actors::ids::{Incarnation, PeerRef};
use kvroom_actors::peer::message::{Body, Frame};
use kvroom_actors::reason::{Code, Reason};
use std::collections::{BTreeMap, VecDeque};

/// Frames that a pipe holds.
pub(crate) const PIPE: usize = 24;
/// Messages in a shard's inbox from which its readers wait.
pub(crate) const INBOX: usize = 16;
const ACK_LATER: u64 = 10 * MS;

pub(crate) const SENDER: usize = 0;
pub(crate) const RECEIVER: usize = 1;

enum Item {
    Frame(Frame),
    Closed,
}

/// What is under way to each side, with its time of arrival.
#[derive(Default)]
pub(crate) struct Transport {
    to: [VecDeque<(u64, Item)>; 2],
    closed: [bool; 2],
}

pub(crate) struct Link {
    pub(crate) ends: [End; 2],
    pub(crate) transports: BTreeMap<u64, Transport>,
    /// Nothing arrives at this side.
    pub(crate) blocked: [bool; 2],
    pub(crate) slow: u64,
    /// What would have arrived, of the data.
    pub(crate) held: Vec<Ev>,
    /// The present data connections.
    pub(crate) conn: u64,
    /// Copies that will fail.
    pub(crate) fails: u32,
    dialing: bool,
    backoff: u64,
}

/// What a greeting says of who dials.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Greeting {
    incarnation: Incarnation,
    session: Option<u64>,
    received: u64,
}

/// What the other side made of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Answer {
    pub(crate) transport: u64,
    incarnation: Incarnation,
    /// Whether the session goes on; else it is a new one.
    resumes: bool,
    session: u64,
    received: u64,
}

impl Link {
    pub(crate) fn new(backoff: u64) -> Self {
        let deadlines = deadlines();
        Link {
            ends: [End::new(&deadlines), End::new(&deadlines)],
            transports: BTreeMap::new(),
            blocked: [false; 2],
            slow: 1,
            held: Vec::new(),
            conn: 0,
            fails: 0,
            dialing: false,
            backoff,
        }
    }

    pub(crate) fn under_way(&self, side: usize) -> usize {
        let transport = self.ends[side].transport;
        let transport = transport.and_then(|t| self.transports.get(&t));
        transport.map_or(0, |t| t.to[1 - side].len())
    }
}

impl World {
    pub(crate) fn node_at(&self, link: usize, side: usize) -> usize {
        match side {
            SENDER => self.plan.links[link].sender,
            _ => self.plan.links[link].receiver,
        }
    }

    fn end_and_node(&mut self, link: usize, side: usize) -> (&mut End, &mut super::node::Node) {
        let n = self.node_at(link, side);
        (&mut self.links[link].ends[side], &mut self.nodes[n])
    }

    /// Where a peer of this node is.
    pub(crate) fn link_of(&self, n: usize, peer: PeerRef) -> Option<(usize, usize)> {
        let sides = (0..self.links.len()).flat_map(|link| [(link, SENDER), (link, RECEIVER)]);
        sides
            .filter(|(link, side)| self.node_at(*link, *side) == n)
            .find(|(link, side)| self.links[*link].ends[*side].peer_ref() == Some(peer))
    }

    pub(crate) fn wake_owner(&mut self, link: usize, side: usize) {
        let n = self.node_at(link, side);
        let (epoch, up) = (self.nodes[n].epoch, self.nodes[n].up);
        if up && !std::mem::replace(&mut self.links[link].ends[side].owner_due, true) {
            let wait = self.roll(10, link * 2 + side, 1..10) * US;
            self.after(wait, Ev::Owner(link, side, epoch));
        }
    }

    /// The owner of a session takes its commands, and fills the pipe.
    pub(crate) fn owner(&mut self, link: usize, side: usize) {
        let (end, node) = self.end_and_node(link, side);
        end.owner_due = false;
        while let Some(command) = end.commands.pop_front() {
            end.command(node, command);
        }
        self.after_owner(link, side);
    }

    fn after_owner(&mut self, link: usize, side: usize) {
        let n = self.node_at(link, side);
        for fact in std::mem::take(&mut self.nodes[n].facts) {
            self.fact(fact);
        }
        let at = self.nodes[n].life();
        if let Some((counted, open)) = self.links[link].ends[side].miscounts() {
            self.fact(Fact::Miscounted { at, counted, open });
        }
        self.flush(link, side);
        let epoch = self.nodes[n].epoch;
        let end = &mut self.links[link].ends[side];
        if end.session.as_ref().is_some_and(|s| s.owes_ack()) && !end.ack_due {
            end.ack_due = true;
            self.after(ACK_LATER, Ev::Ack(link, side, epoch));
        }
        self.wake(n);
    }

    pub(crate) fn acknowledge(&mut self, link: usize, side: usize) {
        self.links[link].ends[side].ack_due = false;
        let owes = |s: &kvroom_actors::peer::session::Session| s.owes_ack();
        if self.links[link].ends[side]
            .session
            .as_ref()
            .is_some_and(owes)
        {
            self.flush(link, side);
        }
    }

    fn flush(&mut self, link: usize, side: usize) {
        let Some(id) = self.links[link].ends[side].transport else {
            return;
        };
        let room = PIPE.saturating_sub(self.links[link].under_way(side));
        let mut frames = Vec::new();
        if let Some(session) = &mut self.links[link].ends[side].session {
            session.transmit(room, &mut frames);
        }
        for frame in frames {
            self.put(link, side, id, Item::Frame(frame));
        }
    }

    /// Puts something into the pipe; it arrives behind what is there.
    fn put(&mut self, link: usize, side: usize, id: u64, item: Item) {
        let mut wait = self.latency(link, 11 + side as u64);
        let to = 1 - side;
        let mut twice = None;
        if let Item::Frame(frame) = &item {
            match self.meddle() {
                Meddle::Nothing => {}
                Meddle::Lose => {
                    // A frame is lost only with its connection.
                    return self.reset(link);
                }
                Meddle::Twice => twice = Some(frame.clone()),
                Meddle::Delay => wait += 50 * MS,
            }
        }
        let Some(transport) = self.links[link].transports.get_mut(&id) else {
            return;
        };
        if transport.closed[to] {
            return;
        }
        let last = transport.to[to].back().map_or(0, |(at, _)| *at);
        let at = last.max(self.now + wait);
        transport.to[to].push_back((at, item));
        self.at(at, Ev::Arrive(link, to, id));
        if let Some(frame) = twice {
            self.put_again(link, to, id, at, frame);
        }
    }

    fn put_again(&mut self, link: usize, to: usize, id: u64, at: u64, frame: Frame) {
        if let Some(transport) = self.links[link].transports.get_mut(&id) {
            transport.to[to].push_back((at, Item::Frame(frame)));
            self.at(at, Ev::Arrive(link, to, id));
        }
    }

    /// The next frame of a transport is there.
    pub(crate) fn arrive(&mut self, link: usize, side: usize, id: u64) {
        let n = self.node_at(link, side);
        let busy = self.nodes[n].inbox.len() >= INBOX
            && self.nodes[n].plant != Some(Plant::ReaderDoesNotWait);
        let l = &mut self.links[link];
        if l.blocked[side] || l.ends[side].transport != Some(id) {
            return;
        }
        if busy {
            // The reader waits until the shard has taken what it read.
            return self.after(100 * US, Ev::Arrive(link, side, id));
        }
        let Some(transport) = l.transports.get_mut(&id) else {
            return;
        };
        if transport.to[side]
            .front()
            .is_none_or(|(at, _)| *at > self.now)
        {
            return;
        }
        let full = transport.to[side].len() >= PIPE;
        let Some((_, item)) = transport.to[side].pop_front() else {
            return;
        };
        match item {
            Item::Closed => self.transport_lost(link, side),
            Item::Frame(frame) => {
                let theirs = self.nodes[self.node_at(link, 1 - side)].layouts.clone();
                let (end, node) = self.end_and_node(link, side);
                match end.receive(node, &theirs, frame) {
                    Came::Fine => self.after_owner(link, side),
                    Came::TransportLost => self.transport_lost(link, side),
                    Came::Over(reason) => {
                        let word = (reason.code == Code::ProtocolViolation).then(|| {
                            let reason = reason.clone();
                            Body::GaveUp { reason }
                        });
                        if word.is_some() {
                            let (at, why) = (self.nodes[n].life(), reason.text.clone());
                            self.fact(Fact::Accused { at, why });
                        }
                        self.give_up(link, side, reason, word);
                    }
                }
            }
        }
        if full {
            // There is room again.
            self.wake_owner(link, 1 - side);
        }
    }

    /// This side lets go of its connection: the other one reads what is there, and then its end.
    fn let_go(&mut self, link: usize, side: usize) {
        let Some(id) = self.links[link].ends[side].transport.take() else {
            return;
        };
        self.put(link, side, id, Item::Closed);
        if let Some(transport) = self.links[link].transports.get_mut(&id) {
            transport.closed[side] = true;
            transport.to[side].clear();
            if transport.closed == [true; 2] {
                self.links[link].transports.remove(&id);
            }
        }
    }

    fn transport_lost(&mut self, link: usize, side: usize) {
        if self.links[link].ends[side].transport.is_none() {
            return;
        }
        self.let_go(link, side);
        if self.plan.links[link].fabric == Fabric::Local {
            let reason = Reason::from(Code::SessionLost).from_peer();
            return self.give_up(link, side, reason, None);
        }
        let end = &mut self.links[link].ends[side];
        if let Some(session) = &mut end.session {
            session.reset();
        }
        end.clock.heard();
        self.arm_tick(link, side);
        if side == RECEIVER {
            self.dial_later(link);
        }
    }

    /// As a fault: both sides find their connection broken.
    pub(crate) fn reset(&mut self, link: usize) {
        let n = self.node_at(link, RECEIVER);
        if self.nodes[n].up {
            self.transport_lost(link, RECEIVER);
        }
    }

    pub(crate) fn give_up(&mut self, link: usize, side: usize, reason: Reason, word: Option<Body>) {
        self.end_session(link, side, &reason, false, word);
        if side == RECEIVER {
            self.dial_later(link);
        }
    }

    fn end_session(
        &mut self,
        link: usize,
        side: usize,
        reason: &Reason,
        for_good: bool,
        word: Option<Body>,
    ) {
        let had = self.links[link].ends[side].session.is_some();
        let (end, node) = self.end_and_node(link, side);
        let last = end.give_up(node, reason, for_good, word);
        let n = self.node_at(link, side);
        if had && let Some(id) = self.links[link].ends[side].transport {
            for frame in last {
                self.put(link, side, id, Item::Frame(frame));
            }
        }
        self.let_go(link, side);
        if had && side == SENDER && self.plan.links[link].fabric == Fabric::Tcp {
            self.close_route(link);
        }
        self.wake(n);
    }

    fn arm_tick(&mut self, link: usize, side: usize) {
        let n = self.node_at(link, side);
        let epoch = self.nodes[n].epoch;
        let end = &mut self.links[link].ends[side];
        let socket = self.plan.links[link].fabric != Fabric::Local;
        if socket && end.session.is_some() && !end.tick_due {
            end.tick_due = true;
            let wait = end.clock.tick.as_nanos() as u64;
            self.after(wait, Ev::Tick(link, side, epoch));
        }
    }

    pub(crate) fn tick(&mut self, link: usize, side: usize) {
        let n = self.node_at(link, side);
        let taking = self.nodes[n].inbox.len() >= INBOX;
        let end = &mut self.links[link].ends[side];
        end.tick_due = false;
        let Some(session) = &mut end.session else {
            return;
        };
        if end.transport.is_none() {
            if end.clock.wait() {
                self.give_up(link, side, Code::SessionLost.into(), None);
            }
        } else if !taking {
            match end.clock.listen() {
                Tick::Nothing => {}
                Tick::Ask => {
                    session.ping(self.now);
                    self.wake_owner(link, side);
                }
                Tick::Dead => self.transport_lost(link, side),
            }
        }
        self.arm_tick(link, side);
    }

    fn dial_later(&mut self, link: usize) {
        let backoff = self.links[link].backoff;
        self.links[link].backoff = (backoff * 2).min(500 * MS);
        let epoch = self.nodes[self.node_at(link, RECEIVER)].epoch;
        self.after(backoff, Ev::Dial(link, epoch));
    }

    /// The decode side connects.
    pub(crate) fn dial(&mut self, link: usize) {
        let n = self.node_at(link, RECEIVER);
        let end = &self.links[link].ends[RECEIVER];
        if end.transport.is_some() || self.links[link].dialing {
            return;
        }
        let other = &self.nodes[self.node_at(link, SENDER)];
        if !other.up || self.links[link].blocked != [false; 2] {
            return self.dial_later(link);
        }
        let greeting = Greeting {
            incarnation: self.nodes[n].incarnation,
            session: end.session.as_ref().map(|_| end.id),
            received: end.session.as_ref().map_or(0, |s| s.received()),
        };
        self.links[link].dialing = true;
        let epoch = self.nodes[n].epoch;
        let wait = self.latency(link, 13);
        self.after(wait, Ev::Greet(link, epoch, greeting));
    }

    /// The prefill side is greeted, and answers.
    pub(crate) fn greet(&mut self, link: usize, epoch: u32, greeting: Greeting) {
        let (n, dialer) = (self.node_at(link, SENDER), self.node_at(link, RECEIVER));
        if self.nodes[dialer].epoch != epoch {
            return;
        }
        if !self.nodes[n].up || self.links[link].blocked != [false; 2] {
            self.links[link].dialing = false;
            return self.dial_later(link);
        }
        self.meet(link, SENDER, greeting.incarnation);
        let end = &self.links[link].ends[SENDER];
        let resumes = end.session.is_some() && greeting.session == Some(end.id);
        let transport = self.next_transport;
        self.next_transport += 1;
        if resumes {
            self.let_go(link, SENDER);
            self.open_transport(link, SENDER, transport);
            self.resume(link, SENDER, greeting.received);
        } else {
            let reason = Reason::from(Code::SessionLost);
            self.end_session(link, SENDER, &reason, false, None);
            self.open_transport(link, SENDER, transport);
            self.attach(link, SENDER, transport);
        }
        let end = &self.links[link].ends[SENDER];
        let answer = Answer {
            transport,
            incarnation: self.nodes[n].incarnation,
            resumes,
            session: end.id,
            received: end.session.as_ref().map_or(0, |s| s.received()),
        };
        let wait = self.latency(link, 14);
        self.after(wait, Ev::Greeted(link, epoch, answer));
    }

    /// The decode side hears the answer.
    pub(crate) fn greeted(&mut self, link: usize, answer: Answer) {
        self.links[link].dialing = false;
        self.meet(link, RECEIVER, answer.incarnation);
        let end = &self.links[link].ends[RECEIVER];
        let same = end.session.is_some() && end.id == answer.session;
        let there = self.links[link].transports.contains_key(&answer.transport);
        if answer.resumes && !same || !there {
            // The session is gone here, or the other side is gone by now.
            self.links[link].ends[RECEIVER].transport = Some(answer.transport);
            self.let_go(link, RECEIVER);
            return self.dial_later(link);
        }
        self.links[link].backoff = self.plan.links[link].backoff;
        if answer.resumes {
            self.links[link].ends[RECEIVER].transport = Some(answer.transport);
            self.resume(link, RECEIVER, answer.received);
        } else {
            let reason = Reason::from(Code::SessionLost);
            self.end_session(link, RECEIVER, &reason, false, None);
            self.links[link].ends[RECEIVER].transport = Some(answer.transport);
            self.attach(link, RECEIVER, answer.session);
        }
        // What the other side said meanwhile.
        let waits = self.links[link].transports[&answer.transport].to[RECEIVER].len();
        for _ in 0..waits {
            self.after(0, Ev::Arrive(link, RECEIVER, answer.transport));
        }
    }

    fn open_transport(&mut self, link: usize, side: usize, transport: u64) {
        self.links[link]
            .transports
            .insert(transport, Transport::default());
        self.links[link].ends[side].transport = Some(transport);
    }

    /// The peer is this life of it: another one than before ends all that was with that.
    fn meet(&mut self, link: usize, side: usize, incarnation: Incarnation) {
        let known = self.links[link].ends[side].peer.map(|(_, life)| life);
        if known == Some(incarnation) {
            return;
        }
        if known.is_some() {
            let reason = Reason::from(Code::PeerRestarted);
            self.end_session(link, side, &reason, true, None);
            let (end, node) = self.end_and_node(link, side);
            end.forget_peer(node);
        }
        let (end, node) = self.end_and_node(link, side);
        end.peer = Some((PeerRef(node.next_peer), incarnation));
        node.next_peer += 1;
    }

    fn attach(&mut self, link: usize, side: usize, id: u64) {
        let credit = self.plan.links[link].credit;
        let windows = match side {
            SENDER => (credit, 0),
            _ => (0, credit),
        };
        let (end, node) = self.end_and_node(link, side);
        end.attach(id, node, windows);
        let n = self.node_at(link, side);
        // Before anything of the session is handled, the shard knows the peer.
        self.wake(n);
        self.arm_tick(link, side);
        self.wake_owner(link, side);
    }

    fn resume(&mut self, link: usize, side: usize, received: u64) {
        let further = u64::from(self.planted(Plant::ResumedTooFar, 1));
        let end = &mut self.links[link].ends[side];
        let Some(session) = &mut end.session else {
            return;
        };
        session.reset();
        let resumed = session.resume(received + further).is_ok() || {
            further > 0 && session.resume(received).is_ok()
        };
        end.clock.heard();
        if !resumed {
            let n = self.node_at(link, side);
            let (at, why) = (self.nodes[n].life(), "resume refused".into());
            self.fact(Fact::Accused { at, why });
            return self.give_up(link, side, Code::ProtocolViolation.into(), None);
        }
        self.arm_tick(link, side);
        self.wake_owner(link, side);
    }

    /// A way is free again.
    pub(crate) fn unblock(&mut self, link: usize) {
        self.links[link].blocked = [false; 2];
        for ev in std::mem::take(&mut self.links[link].held) {
            self.after(0, ev);
        }
        for side in [SENDER, RECEIVER] {
            if let Some(id) = self.links[link].ends[side].transport
                && let Some(transport) = self.links[link].transports.get(&id)
            {
                for _ in 0..transport.to[side].len() {
                    self.after(0, Ev::Arrive(link, side, id));
                }
            }
        }
    }

    /// A node died: its ends are forgotten, and the kernel closes its connections.
    pub(crate) fn forget_ends(&mut self, n: usize) {
        for link in 0..self.links.len() {
            for side in [SENDER, RECEIVER] {
                if self.node_at(link, side) != n {
                    continue;
                }
                self.let_go(link, side);
                self.links[link].ends[side] = End::new(&deadlines());
                if side == RECEIVER {
                    self.links[link].dialing = false;
                }
                self.links[link].backoff = self.plan.links[link].backoff;
            }
        }
    }
}

/// What a sweep does to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meddle {
    Nothing,
    /// It is lost, and its connection with it.
    Lose,
    Twice,
    Delay,
}
