//! One node's side of a peer: the shipped session core, and the rules of the actor that owns it.
//!
//! ```text
//!   shard ── Command ──▶ End ── Session ──▶ frames
//!   shard ◀── Told ───── End ── Session ◀── frames
//! ```
//!
//! Follows `peer::actor::PeerActor` line by line where it decides something:
//! - number, gate and queue in one step, with a credit; without one the claim waits in order;
//! - a session that ends raises the floor to its mark, and answers the claims that wait;
//! - a new session starts with that floor as its mark; a claim at or below it has no credit here.

use super::plane::Process;
use super::size::{Plant, Size};
use kvroom_actors::ids::{ClaimId, ClaimNo, Incarnation, LegNo, LifeId, RoomKey};
use kvroom_actors::peer::message::{Body, Claim, ClaimTag, Frame};
use kvroom_actors::peer::session::{Admit, Received, Session, SessionLimits};
use kvroom_actors::reason::Code;
use std::collections::{BTreeSet, VecDeque};

/// A claim without a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Pending {
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    pub(crate) key: RoomKey,
}

/// What a shard wants of a peer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Command {
    Open(Pending),
    Withdraw(LifeId, LegNo),
    Say(Body),
    ClaimEnded(ClaimNo),
}

/// What the owner of a session tells its shard.
#[derive(Clone, Debug)]
pub(crate) enum Told {
    Opened(Pending, ClaimTag),
    NotOpened(Pending, Code),
    Claim(Box<Claim>),
    Body(Body),
    Lost,
    /// One of two correct nodes accuses the other: never.
    Accused,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct End {
    me: Incarnation,
    /// The life of the peer that this end last heard of.
    pub(crate) peer: Incarnation,
    /// What this node is in claims of this session: a receiver's rank; none at the sender.
    rank: Option<usize>,
    pub(crate) session: Option<Session>,
    /// The session's transport is gone, and not yet replaced.
    pub(crate) reset: bool,
    /// Sessions begun so far.
    pub(crate) generation: u32,
    pub(crate) commands: VecDeque<Command>,
    pub(crate) waiting: VecDeque<Pending>,
    floor: ClaimNo,
    last: u64,
    /// In truth: claims that came in this session and have not ended.
    open: BTreeSet<ClaimNo>,
}

/// What a process calls itself.
pub(crate) fn incarnation((node, inc): Process) -> Incarnation {
    Incarnation {
        started_ns: node as u64,
        nonce: u64::from(inc),
    }
}

/// Which process calls itself so.
pub(crate) fn process(incarnation: Incarnation) -> Process {
    (incarnation.started_ns as usize, incarnation.nonce as u32)
}

impl End {
    pub(crate) fn new(me: Process, peer: Process, rank: Option<usize>) -> Self {
        End {
            me: incarnation(me),
            peer: incarnation(peer),
            rank,
            session: None,
            reset: false,
            generation: 0,
            commands: VecDeque::new(),
            waiting: VecDeque::new(),
            floor: ClaimNo(0),
            last: 0,
            open: BTreeSet::new(),
        }
    }

    /// A new transport, greeted: the session that it belongs to takes the place of any other.
    pub(crate) fn attach(&mut self, size: &Size, peer: Incarnation, told: &mut Vec<Told>) {
        self.give_up(size, told);
        self.generation += 1;
        if peer != self.peer {
            // What is left of it was meant for the life before; numbers of the new one are its own.
            self.forget(told);
            self.peer = peer;
            self.floor = ClaimNo(0);
        }
        let (our_window, their_window) = match self.rank {
            None => (size.credit, 0),
            Some(_) => (0, size.credit),
        };
        let limits = SessionLimits {
            unacknowledged: 64,
            progress: size.progress,
            our_window,
            their_window,
        };
        let mut session = Session::new(self.me, self.peer, limits);
        session.note_abort(self.floor);
        self.session = Some(session);
        self.reset = false;
    }

    pub(crate) fn give_up(&mut self, size: &Size, told: &mut Vec<Told>) {
        let Some(session) = self.session.take() else {
            return;
        };
        self.floor = self.floor.max(session.mark());
        drop(session.give_up());
        self.open.clear();
        let waiting = std::mem::take(&mut self.waiting);
        if size.plant != Some(Plant::WaitingForgotten) {
            told.extend(
                waiting
                    .into_iter()
                    .map(|p| Told::NotOpened(p, Code::SessionLost)),
            );
        }
        told.push(Told::Lost);
    }

    /// Commands for a life of the peer that is gone.
    fn forget(&mut self, told: &mut Vec<Told>) {
        for command in std::mem::take(&mut self.commands) {
            if let Command::Open(pending) = command {
                told.push(Told::NotOpened(pending, Code::PeerLost));
            }
        }
    }

    /// The next process at this end goes on with these numbers.
    pub(crate) fn go_on_from(&mut self, last: u64) {
        self.last = last;
    }

    /// The last number that was given.
    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn me(&self) -> Incarnation {
        self.me
    }

    pub(crate) fn command(&mut self, size: &Size, command: Command, told: &mut Vec<Told>) {
        match command {
            Command::Open(pending) if self.session.is_some() => {
                self.waiting.push_back(pending);
                self.open_waiting(size, told);
            }
            Command::Open(pending) => told.push(Told::NotOpened(pending, Code::PeerLost)),
            Command::Withdraw(life, leg) => {
                let at = |p: &Pending| (p.life, p.leg) == (life, leg);
                if let Some(i) = self.waiting.iter().position(at)
                    && let Some(pending) = self.waiting.remove(i)
                {
                    told.push(Told::NotOpened(pending, Code::Requested));
                }
            }
            Command::Say(body) => {
                let Some(session) = &mut self.session else {
                    return;
                };
                match body {
                    Body::Progress {
                        tag,
                        posted,
                        written,
                    } => session.progress(tag, posted, written),
                    Body::Abort { mut tag, reason }
                        if size.plant == Some(Plant::AbortToTheNewLife) =>
                    {
                        tag.id.sender = self.peer;
                        session.queue(Body::Abort { tag, reason }).unwrap();
                    }
                    body => session.queue(body).unwrap(),
                }
            }
            Command::ClaimEnded(number) => {
                let careless = size.plant == Some(Plant::CreditAcrossSessions);
                if let Some(session) = &mut self.session
                    && (number > self.floor || careless)
                {
                    session.claim_ended();
                    self.open.remove(&number);
                }
            }
        }
    }

    fn open_waiting(&mut self, size: &Size, told: &mut Vec<Told>) {
        while let Some(session) = &mut self.session
            && session.credit_available() > 0
            && let Some(pending) = self.waiting.pop_front()
        {
            self.last += 1;
            let number = ClaimNo(self.last);
            let id = ClaimId {
                receiver: self.me,
                sender: self.peer,
                number,
            };
            let room = pending.key;
            let tag = ClaimTag { id, room };
            let claim = super::request::claim(size, self.rank.unwrap(), tag);
            session.open_claim(number, claim).unwrap();
            told.push(Told::Opened(pending, tag));
        }
    }

    /// One frame of the present transport.
    pub(crate) fn receive(&mut self, size: &Size, frame: Frame, told: &mut Vec<Told>) {
        let Some(session) = &mut self.session else {
            return;
        };
        match session.receive(frame) {
            Ok(Received::Deliver(body)) => self.deliver(body, told),
            Ok(Received::Credit(_)) => self.open_waiting(size, told),
            Ok(Received::Duplicate | Received::Nothing) => {}
            Ok(Received::OutOfOrder { .. }) | Err(_) => told.push(Told::Accused),
        }
    }

    fn deliver(&mut self, body: Body, told: &mut Vec<Told>) {
        let Some(session) = &mut self.session else {
            return;
        };
        match body {
            Body::Claim(claim) => match session.admit_claim(claim.tag.id.number) {
                Admit::Fresh => {
                    self.open.insert(claim.tag.id.number);
                    told.push(Told::Claim(claim));
                }
                Admit::Stale => session.claim_ended(),
            },
            Body::Abort { tag, reason } => {
                session.note_abort(tag.id.number);
                told.push(Told::Body(Body::Abort { tag, reason }));
            }
            body => told.push(Told::Body(body)),
        }
    }

    pub(crate) fn has_output(&self, acks: bool) -> bool {
        let due = |s: &Session| s.has_output() || (acks && s.owes_ack());
        !self.reset && self.session.as_ref().is_some_and(due)
    }

    /// Whether each claim that came and has not ended is counted as one, and no other.
    pub(crate) fn counts_right(&self) -> bool {
        let counted = self.session.as_ref().map(|s| s.peer_claims() as usize);
        counted.is_none_or(|n| n == self.open.len())
    }

    /// Claims that came in this session and have not ended.
    pub(crate) fn open(&self) -> &BTreeSet<ClaimNo> {
        &self.open
    }

    /// Whether the session waits for nothing: all is received, and all credit is where it began but
    /// that of so many open claims.
    pub(crate) fn is_quiet(&self, size: &Size, is_heard: bool, open: u32) -> bool {
        let quiet = |s: &Session| {
            let credit = match self.rank {
                None => s.peer_claims() == open,
                Some(_) => s.peer_claims() == 0 && s.credit_available() + open == size.credit,
            };
            (!size.acks || s.unacknowledged() == 0) && credit
        };
        self.commands.is_empty()
            && self.waiting.is_empty()
            && (!is_heard || self.session.as_ref().is_none_or(quiet))
    }
}
