//! One node's side of a link: the shipped session core and clock, and the rules of their owner.
//!
//! ```text
//!   shard ── Command ──▶ End ── Session ──▶ frames
//!   shard ◀── Inbound ── End ── Session ◀── frames
//! ```
//!
//! Follows `peer::actor` where that decides something; there is no line of its own in what a session
//! says or takes.

use super::fact::Fact;
use super::node::{FRAMES, Inbound, Node};
use super::plant::Plant;
use crate::clock::Clock;
use crate::memory::{Target, Withdrawn, Witness};
use kvroom_actors::ids::{ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, PoolId};
use kvroom_actors::limits::Deadlines;
use kvroom_actors::peer::message::{Body, Claim, Frame};
use kvroom_actors::peer::session::{Admit, Received, Session, SessionLimits};
use kvroom_actors::peer::terms::{LocalPool, TheirPool, terms_of};
use kvroom_actors::reason::{Code, Reason};
use kvroom_actors::supervisor::early::Offer;
use kvroom_kernels::layout::PoolLayout;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// A claim that a shard wants opened.
pub(crate) struct OpenRequest {
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    pub(crate) claim: Box<Claim>,
    pub(crate) target: Target,
}

/// What a shard wants of a peer.
pub(crate) enum Command {
    Open(Box<OpenRequest>),
    Withdraw(LifeId, LegNo),
    Say(Body),
    ClaimEnded(ClaimNo),
}

/// A peer's pools, as its greeting says: the same in every life.
pub(crate) type Layouts = Arc<[PoolLayout; 2]>;

pub(crate) struct End {
    pub(crate) session: Option<Session>,
    /// Of the session.
    pub(crate) id: u64,
    /// What it goes over now.
    pub(crate) transport: Option<u64>,
    pub(crate) peer: Option<(PeerRef, Incarnation)>,
    pub(crate) commands: VecDeque<Command>,
    pub(crate) waiting: VecDeque<OpenRequest>,
    pub(crate) clock: Clock,
    pub(crate) owner_due: bool,
    pub(crate) ack_due: bool,
    pub(crate) tick_due: bool,
    floor: ClaimNo,
    /// In truth: claims that came in this session and have not ended.
    open: BTreeSet<ClaimNo>,
}

/// What came of a frame.
pub(crate) enum Came {
    Fine,
    /// The session goes on over another transport.
    TransportLost,
    /// The session is over.
    Over(Reason),
}

impl End {
    pub(crate) fn new(deadlines: &Deadlines) -> Self {
        End {
            session: None,
            id: 0,
            transport: None,
            peer: None,
            commands: VecDeque::new(),
            waiting: VecDeque::new(),
            clock: Clock::new(deadlines),
            owner_due: false,
            ack_due: false,
            tick_due: false,
            floor: ClaimNo(0),
            open: BTreeSet::new(),
        }
    }

    pub(crate) fn peer_ref(&self) -> Option<PeerRef> {
        self.peer.map(|(peer, _)| peer)
    }

    /// A new session of the two incarnations.
    pub(crate) fn attach(&mut self, id: u64, node: &mut Node, (ours, theirs): (u32, u32)) {
        let Some((peer, incarnation)) = self.peer else {
            return;
        };
        let limits = SessionLimits {
            unacknowledged: FRAMES,
            progress: 64,
            our_window: ours,
            their_window: theirs,
        };
        let mut session = Session::new(node.incarnation, incarnation, limits);
        session.note_abort(self.floor);
        self.session = Some(session);
        self.id = id;
        self.clock.heard();
        node.inbox.push_back(Inbound::PeerUp(peer));
    }

    /// The session is over on this side. Gives what goes out last.
    pub(crate) fn give_up(
        &mut self,
        node: &mut Node,
        reason: &Reason,
        for_good: bool,
        word: Option<Body>,
    ) -> Vec<Frame> {
        let mut last = Vec::new();
        let Some(peer) = self.peer_ref() else {
            return last;
        };
        if let Some(mut session) = self.session.take() {
            self.floor = self.floor.max(session.mark());
            if let Some(word) = word {
                session.last_word(word);
                session.transmit(usize::MAX, &mut last);
            }
            drop(session.give_up());
            self.open.clear();
            let waiting = std::mem::take(&mut self.waiting);
            if node.plant != Some(Plant::WaitingForgotten) {
                for request in waiting {
                    not_opened(node, request, reason.clone());
                }
            }
            let reason = reason.clone();
            node.inbox.push_back(Inbound::PeerGone {
                peer,
                reason,
                for_good,
            });
        } else if for_good {
            let reason = reason.clone();
            node.inbox.push_back(Inbound::PeerGone {
                peer,
                reason,
                for_good,
            });
        }
        last
    }

    /// The peer's life is another one: what the old one was asked is answered.
    pub(crate) fn forget_peer(&mut self, node: &mut Node) {
        for command in std::mem::take(&mut self.commands) {
            if let Command::Open(request) = command {
                not_opened(node, *request, Code::PeerLost.into());
            }
        }
        self.floor = ClaimNo(0);
    }

    pub(crate) fn command(&mut self, node: &mut Node, command: Command) {
        match command {
            Command::Open(request) if self.session.is_some() => {
                self.waiting.push_back(*request);
                self.open_waiting(node);
            }
            Command::Open(request) => not_opened(node, *request, Code::PeerLost.into()),
            Command::Withdraw(life, leg) => {
                let at = |r: &OpenRequest| (r.life, r.leg) == (life, leg);
                if let Some(i) = self.waiting.iter().position(at)
                    && let Some(request) = self.waiting.remove(i)
                {
                    not_opened(node, request, Code::Requested.into());
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
                    body => session.queue(body).unwrap(),
                }
            }
            Command::ClaimEnded(number) => {
                let careless = node.plant == Some(Plant::CreditAcrossSessions);
                if let Some(session) = &mut self.session
                    && (number > self.floor || careless)
                {
                    session.claim_ended();
                    self.open.remove(&number);
                }
            }
        }
    }

    pub(crate) fn open_waiting(&mut self, node: &mut Node) {
        while let Some(session) = &self.session
            && session.credit_available() > 0
            && let Some(request) = self.waiting.pop_front()
        {
            self.open(node, request);
        }
    }

    /// The number, the gate and the place in the queue: one step.
    fn open(&mut self, node: &mut Node, request: OpenRequest) {
        let (Some(session), Some((_, sender))) = (&mut self.session, self.peer) else {
            return not_opened(node, request, Code::SessionLost.into());
        };
        let OpenRequest {
            life,
            leg,
            mut claim,
            target,
        } = request;
        node.claims += 1;
        let number = ClaimNo(node.claims);
        let why = match node.gates.open(number, target) {
            Ok(gate) => {
                claim.tag.id = ClaimId {
                    receiver: node.incarnation,
                    sender,
                    number,
                };
                claim.gate = gate.slot();
                let tag = claim.tag;
                match session.open_claim(number, claim) {
                    Ok(()) => {
                        node.facts.push(Fact::Opened {
                            at: node.life(),
                            life,
                            leg,
                            claim: tag,
                        });
                        return node.inbox.push_back(Inbound::Opened {
                            life,
                            leg,
                            tag,
                            gate,
                        });
                    }
                    Err(refused) => {
                        drop(gate);
                        Reason::new(Code::SessionLost, refused.to_string())
                    }
                }
            }
            Err(error) => Reason::new(Code::LimitReached, error.to_string()),
        };
        node.inbox.push_back(Inbound::NotOpened {
            life,
            leg,
            reason: why,
            witness: Witness::NeverSubmitted(Withdrawn::new(number)),
        });
    }

    /// One frame of the present transport.
    pub(crate) fn receive(&mut self, node: &mut Node, theirs: &Layouts, frame: Frame) -> Came {
        self.clock.heard();
        let Some(session) = &mut self.session else {
            return Came::Fine;
        };
        match session.receive(frame) {
            Ok(Received::Deliver(body)) => self.deliver(node, theirs, body),
            Ok(Received::Credit(_)) => {
                self.open_waiting(node);
                Came::Fine
            }
            Ok(Received::Duplicate | Received::Nothing) => Came::Fine,
            Ok(Received::OutOfOrder { .. }) => Came::TransportLost,
            Err(error) => Came::Over(Reason::new(Code::ProtocolViolation, error.to_string())),
        }
    }

    fn deliver(&mut self, node: &mut Node, theirs: &Layouts, body: Body) -> Came {
        let Some(peer) = self.peer_ref() else {
            return Came::Fine;
        };
        let Some(session) = &mut self.session else {
            return Came::Fine;
        };
        match body {
            Body::Claim(claim) => match session.admit_claim(claim.tag.id.number) {
                Admit::Fresh => {
                    self.open.insert(claim.tag.id.number);
                    let terms = terms_of(
                        &claim,
                        |id| {
                            let layout = theirs.get(usize::from(id.0))?;
                            Some(TheirPool {
                                layout,
                                content: None,
                            })
                        },
                        |name| {
                            let at = node.layouts.iter().position(|l| l.name == name)?;
                            Some(LocalPool {
                                id: PoolId(at as u16),
                                layout: &node.layouts[at],
                                content: None,
                            })
                        },
                    );
                    let pages = claim.sections.iter().map(|s| s.pages.len() as u64).sum();
                    let offer = Offer {
                        tag: claim.tag,
                        gate: claim.gate,
                        pages,
                        checksum: claim.checksum,
                        deadline_ms: claim.deadline_ms,
                    };
                    let terms = terms.map(|served| Arc::new(served.terms));
                    node.inbox.push_back(Inbound::Claim { peer, offer, terms });
                }
                Admit::Stale => session.claim_ended(),
            },
            Body::Bye { .. } => return Came::Over(Reason::from(Code::PeerLost).from_peer()),
            Body::GaveUp { reason } => return Came::Over(reason.from_peer()),
            Body::Superseded => {
                return Came::Over(Reason::from(Code::PeerRestarted).from_peer());
            }
            Body::Abort { tag, reason } => {
                session.note_abort(tag.id.number);
                let body = Body::Abort { tag, reason };
                node.inbox.push_back(Inbound::Body { peer, body });
            }
            body if body.tag().is_some() => {
                node.inbox.push_back(Inbound::Body { peer, body });
            }
            _ => {}
        }
        Came::Fine
    }

    /// How many claims the session counts as open, and how many are, if that is not the same.
    pub(crate) fn miscounts(&self) -> Option<(u32, usize)> {
        let counted = self.session.as_ref()?.peer_claims();
        (counted as usize != self.open.len()).then_some((counted, self.open.len()))
    }
}

fn not_opened(node: &mut Node, request: OpenRequest, reason: Reason) {
    let OpenRequest {
        life, leg, target, ..
    } = request;
    // The lease is whole again before anybody is told that it may go back.
    drop(target);
    node.inbox.push_back(Inbound::NotOpened {
        life,
        leg,
        reason,
        witness: Witness::NeverSubmitted(Withdrawn::unnumbered()),
    });
}
