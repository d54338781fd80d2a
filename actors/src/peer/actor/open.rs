//! Claims on their way out: a number, a gate and a place in the queue in one step, or a reason.

use super::{Command, OpenRequest, PeerActor, PeerState};
use crate::fabric::PeerRoute;
use crate::ids::{ClaimId, PoolId};
use crate::memory::{NotOpened, Withdrawn, open_far, open_shared};
use crate::peer::message::{Body, Claim, ClaimTag};
use crate::peer::wire;
use crate::reason::{Code, Reason, Side};
use crate::runtime::later::later;
use crate::supervisor::actor::SessionSays;
use actix::{Context, Handler, Message};
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Claims that wait for a session may have waited long enough.
#[derive(Message)]
#[rtype(result = "()")]
struct Impatient;

impl Handler<Impatient> for PeerActor {
    type Result = ();

    fn handle(&mut self, _: Impatient, ctx: &mut Context<Self>) {
        self.waking = false;
        if self.link.is_some() {
            // Those that wait still do so for a credit.
            return;
        }
        let (name, resume) = (&self.name, self.node.deadlines.resume);
        let text =
            format!("no new session with node {name:?} within {resume:?} (Deadlines::resume)");
        let reason = Reason::new(Code::PeerLost, text);
        let now = Instant::now();
        let due = |request: &OpenRequest| request.until.is_some_and(|until| until <= now);
        let late = self.waiting.iter().filter(|(_, request)| due(request));
        let late: Vec<u64> = late.map(|(at, _)| *at).collect();
        for at in late {
            if let Some(request) = self.waiting.remove(&at) {
                self.waiting_at.remove(&(request.life, request.leg));
                self.waits_no_more();
                self.not_opened(*request, reason.clone());
            }
        }
        self.tell_says();
        self.wake_later(ctx);
    }
}

/// A room's end, or a claim's refusal, that is about what came from the other side.
fn accusation(body: &Body) -> Option<(ClaimTag, &Reason)> {
    let (Body::Failed { tag, reason }
    | Body::Abort { tag, reason }
    | Body::Rejected { tag, reason }) = body
    else {
        return None;
    };
    let accuses = matches!(
        reason.code,
        Code::BadClaim
            | Code::CoverageIncomplete
            | Code::CoverageOverlap
            | Code::ChecksumMismatch
            | Code::ProtocolViolation
    );
    (accuses && reason.side == Side::Local).then_some((*tag, reason))
}

impl PeerActor {
    pub(super) fn command(&mut self, command: Command, ctx: &mut Context<Self>) {
        match command {
            Command::Open(request) => match &self.link {
                Some(link) if self.waiting.is_empty() && link.session.credit_available() > 0 => {
                    self.open(*request);
                }
                Some(_) => {
                    self.waits(request);
                    self.open_waiting();
                }
                None if request.patient && !self.for_good => {
                    let mut request = request;
                    // A duration that no clock can hold is for ever.
                    request.until = Instant::now().checked_add(self.node.deadlines.resume);
                    self.waits(request);
                    self.wake_later(ctx);
                }
                None => {
                    let why = match &*self.watch.borrow() {
                        PeerState::Up => String::new(),
                        PeerState::Resuming(why) | PeerState::Down(why) => format!(" ({why})"),
                    };
                    let name = &self.name;
                    let text = format!("no session with node {name:?}: connect again{why}");
                    let reason = Reason::new(Code::PeerLost, text);
                    self.not_opened(*request, reason);
                }
            },
            Command::Withdraw(life, leg) => {
                if let Some(at) = self.waiting_at.remove(&(life, leg))
                    && let Some(request) = self.waiting.remove(&at)
                {
                    self.waits_no_more();
                    self.not_opened(*request, Reason::new(Code::Requested, "withdrawn"));
                }
            }
            Command::Say(body) => {
                let Some(link) = &mut self.link else { return };
                match body {
                    Body::Progress {
                        tag,
                        posted,
                        written,
                    } => {
                        link.session.progress(tag, posted, written);
                    }
                    body => {
                        if let Some((tag, reason)) = accusation(&body) {
                            let (node, peer) = (&self.node.name, &self.name);
                            tracing::warn!(node, peer, room = %tag.room, %reason, "what the peer said of a room cannot be");
                        }
                        if let Err(refused) = link.session.queue(body) {
                            tracing::error!(peer = self.name, %refused, "a message was not sent");
                        }
                    }
                }
            }
            Command::ClaimEnded(number) => {
                // A claim of an earlier session has no credit in this one.
                if let Some(link) = &mut self.link
                    && number > self.floor
                {
                    link.session.claim_ended();
                }
            }
        }
    }

    fn waits(&mut self, request: Box<OpenRequest>) {
        let at = self.next_waiting;
        self.next_waiting += 1;
        self.waiting_at.insert((request.life, request.leg), at);
        self.waiting.insert(at, request);
        self.node.stats.add(&self.node.stats.claims_waited);
        self.node.stats.add(&self.node.stats.claims_waiting);
    }

    /// Claims that wait for a session do not do so for ever.
    fn wake_later(&mut self, ctx: &mut Context<Self>) {
        let first = self.waiting.values().filter_map(|request| request.until);
        if let (Some(until), false) = (first.min(), self.waking) {
            self.waking = true;
            let after = until.saturating_duration_since(Instant::now());
            later(ctx, Impatient, after);
        }
    }

    /// Nothing will come that waiting claims could wait for.
    pub(super) fn waits_for_nothing(&mut self, reason: &Reason) {
        self.waiting_at.clear();
        for request in std::mem::take(&mut self.waiting).into_values() {
            self.waits_no_more();
            self.not_opened(*request, reason.clone());
        }
    }

    /// Opens waiting claims while the peer's credit lasts.
    pub(super) fn open_waiting(&mut self) {
        while let Some(link) = &self.link
            && link.session.credit_available() > 0
            && let Some((_, request)) = self.waiting.pop_first()
        {
            self.waiting_at.remove(&(request.life, request.leg));
            self.waits_no_more();
            self.open(*request);
        }
    }

    pub(super) fn waits_no_more(&self) {
        let waiting = &self.node.stats.claims_waiting;
        waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// The number, the gate and the place in the queue: one step.
    fn open(&mut self, request: OpenRequest) {
        if let Some(reason) = self
            .too_long(&request.claim)
            .or_else(|| self.private(&request))
        {
            return self.not_opened(request, reason);
        }
        let Some(link) = &mut self.link else {
            let reason = Reason::from(Code::SessionLost);
            return self.not_opened(request, reason);
        };
        let OpenRequest {
            life,
            leg,
            mut claim,
            target,
            ..
        } = request;
        let room = claim.tag.room.id;
        let number = self.node.new_claim();
        let opened = match &link.route {
            PeerRoute::Shm(route) => open_shared(&route.ours, number, target),
            PeerRoute::Ucx(route) if !route.gated_here() => {
                Ok(open_far(number, target, route.path()))
            }
            PeerRoute::Local(_) | PeerRoute::Tcp(_) | PeerRoute::Ucx(_) => {
                self.node.gates.open(number, target)
            }
        };
        let opened = match opened {
            Ok(gate) => {
                claim.tag.id = ClaimId {
                    receiver: self.node.incarnation,
                    sender: self.incarnation,
                    number,
                };
                claim.gate = gate.slot();
                let tag = claim.tag;
                match link.session.open_claim(number, claim) {
                    Ok(()) => Ok((tag, gate)),
                    Err(refused) => {
                        // Nobody was told of the gate: it closes and lets its target go.
                        gate.withdraw();
                        Err(Reason::new(Code::SessionLost, refused.to_string()))
                    }
                }
            }
            Err(error) => {
                let advice = match error.why {
                    NotOpened::Exhausted(_) => ": raise Limits::gates or start fewer rooms at once",
                    _ => "",
                };
                Err(Reason::new(Code::LimitReached, format!("{error}{advice}")))
            }
        };
        let says = match opened {
            Ok((tag, gate)) => SessionSays::Opened {
                life,
                leg,
                tag,
                gate,
            },
            Err(reason) => SessionSays::NotOpened {
                life,
                leg,
                reason,
                witness: Withdrawn::new(number),
            },
        };
        self.say(room, says);
    }

    /// A claim that fits no frame ends its own room. In the session's queue it would end all of them.
    fn too_long(&self, claim: &Claim) -> Option<Reason> {
        let limit = self.node.limits.frame_bytes.min(wire::MAX);
        let bytes = wire::claim_bytes(claim);
        (bytes > limit).then(|| {
            let pages: usize = claim.sections.iter().map(|s| s.pages.len()).sum();
            Reason::new(
                Code::LimitReached,
                format!(
                    "a claim of {pages} pages takes up to {bytes} bytes, limit frame_bytes = {limit}: \
                     raise Limits::frame_bytes, or receive fewer pages in one room"
                ),
            )
        })
    }

    /// A peer that writes into memory itself has to be able to map it.
    fn private(&self, request: &OpenRequest) -> Option<Reason> {
        let route = self.link.as_ref().map(|link| &link.route);
        match route {
            Some(PeerRoute::Shm(_)) => {}
            Some(PeerRoute::Ucx(_)) => return self.not_offered(request),
            _ => return None,
        }
        let pool = request.target.private_pool()?;
        let (name, peer) = (&pool.layout().name, &self.name);
        let why = if pool.device().is_some() {
            format!(
                "pool {name:?} is on a device, and node {peer:?} of this host writes shared memory by itself, \
                 since the session is older than the pool: disconnect from it and connect again, then sockets \
                 are used; or add the pool before that, or turn NodeBuilder::shm off"
            )
        } else {
            format!(
                "pool {name:?} is private memory, and node {peer:?} of this host writes by itself: make \
                 the pool with Pool::shared, or turn NodeBuilder::shm off"
            )
        };
        Some(Reason::new(Code::LayoutMismatch, why))
    }

    /// What a peer writes through UCX must be registered there.
    fn not_offered(&self, request: &OpenRequest) -> Option<Reason> {
        let link = self.link.as_ref()?;
        let aux = request.claim.aux.as_ref().map(|aux| aux.pool);
        let mut pools = request.claim.sections.iter().map(|s| s.pool).chain(aux);
        let named = self.node.pools.borrow();
        let of = |id: PoolId| named.pools.iter().find(|p| p.id == id);
        let messages = matches!(&link.route, PeerRoute::Ucx(route) if route.gated_here());
        let pool = pools.find(|id| match messages {
            true => of(*id).is_some_and(|p| p.pool.device().is_some()),
            false => !link.offered.contains(id),
        })?;
        let named = of(pool);
        let name = named.map_or_else(String::new, |p| p.pool.layout().name.clone());
        let peer = &self.name;
        let why = format!(
            "pool {name:?} is not reached through UCX, by which bytes of node {peer:?} come: it is on a device, or \
             was added a moment ago; the log says more"
        );
        Some(Reason::new(Code::LayoutMismatch, why))
    }

    pub(super) fn not_opened(&mut self, request: OpenRequest, reason: Reason) {
        let OpenRequest {
            life,
            leg,
            claim,
            target,
            ..
        } = request;
        // The lease is whole again before anybody is told that it may go back.
        drop(target);
        let witness = Withdrawn::unnumbered();
        let says = SessionSays::NotOpened {
            life,
            leg,
            reason,
            witness,
        };
        self.say(claim.tag.room.id, says);
    }
}
