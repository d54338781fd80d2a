//! The owner of one peer's session: gives claims their numbers, opens their gates, moves frames.
//!
//! ```text
//!   shards ── Commands ──▶ PeerActor ──▶ Session ──▶ frames ──▶ pipe ──▶ the other node
//!   shards ◀── PeerSays ── PeerActor ◀── Session ◀── frames ◀── pipe ◀──
//! ```
//!
//! One actor for each incarnation of a peer; sessions and transports come and go under it. A claim
//! gets its number, its gate and its place in the queue in one step, here and nowhere else; without
//! a credit of the peer it waits. The reader of a transport waits until the shards have taken what
//! it read, so that a peer cannot fill their mailboxes; it never waits for this side's writes.

use super::hello;
use super::message::{Body, Claim, ClaimTag};
use super::pipe::PipeEnd;
use super::session::{Admit, Received, Session, SessionLimits};
use super::terms::{LocalPool, terms_of};
use super::wire::{self, Bounds, FrameReader};
use crate::fabric::PeerRoute;
use crate::ids::{ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, PoolId, RoomId};
use crate::limits::Limits;
use crate::memory::{Target, Withdrawn};
use crate::reason::{Code, Reason};
use crate::room::event::LegTerms;
use crate::runtime::shared::{NodeShared, Pools};
use crate::supervisor::actor::{PeerGone, PeerSays, SessionAnswers, SessionSays, Shard, ShardPeer};
use crate::supervisor::early::Offer;
use actix::{
    Actor, ActorFutureExt, Addr, AsyncContext, Context, Handler, Message, ResponseActFuture,
    WrapFuture,
};
use kvroom_kernels::layout::PoolLayout;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use tokio::sync::mpsc;

/// Frames in one batch of the pipe.
const BATCH: usize = 128;

/// A claim that a shard wants opened.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    /// All but its number and its gate's slot.
    pub(crate) claim: Box<Claim>,
    pub(crate) target: Target,
}

/// What shards want of a peer.
#[derive(Debug)]
pub(crate) enum Command {
    Open(Box<OpenRequest>),
    Withdraw(LifeId, LegNo),
    Say(Body),
    ClaimEnded(ClaimNo),
}

#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Commands(pub(crate) Vec<Command>);

/// A new transport, greeted.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Attach {
    pub(crate) pipe: PipeEnd,
    pub(crate) theirs: hello::Offer,
    pub(crate) our_window: u32,
    pub(crate) route: PeerRoute,
}

/// The session ends: because this node says so, or the other one did.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct GiveUp {
    pub(crate) reason: Reason,
    /// Say goodbye first: whether every room had drained.
    pub(crate) bye: Option<bool>,
    /// This life of the peer never comes back.
    pub(crate) for_good: bool,
}

/// This node's pools changed.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct PoolsChanged(pub(crate) Vec<Body>);

#[derive(Message)]
#[rtype(result = "()")]
struct Incoming {
    transport: u64,
    bytes: Vec<u8>,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Closed {
    transport: u64,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Flush;

/// A message of a peer on its way to a shard.
#[derive(Debug)]
pub(crate) enum FromPeer {
    Claim {
        offer: Offer,
        terms: Result<Arc<LegTerms>, Reason>,
    },
    Body(Body),
}

/// See the module.
pub(crate) struct PeerActor {
    me: PeerRef,
    node: Arc<NodeShared>,
    name: String,
    incarnation: Incarnation,
    shards: Vec<Addr<Shard>>,
    link: Option<Link>,
    transports: u64,
    /// Claims that wait for a credit, in order.
    waiting: BTreeMap<u64, Box<OpenRequest>>,
    waiting_at: HashMap<(LifeId, LegNo), u64>,
    /// The highest claim number that the peer named in earlier sessions.
    floor: ClaimNo,
    /// This life of the peer never comes back.
    for_good: bool,
    next_waiting: u64,
    flushing: bool,
    /// Answers of this turn, for each shard.
    says: Vec<Vec<SessionSays>>,
    /// Emptied lists, to be filled again.
    spare: Vec<Vec<FromPeer>>,
    /// Told when a session is up or gone.
    watch: tokio::sync::watch::Sender<PeerState>,
}

/// Whether a peer can be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerState {
    /// A session is up.
    Up,
    /// The connection is lost, and the session is kept: rooms go on when the same two incarnations
    /// meet again in time.
    Resuming(String),
    /// There is no session; the text says why.
    Down(String),
}

struct Link {
    session: Session,
    tx: mpsc::Sender<Vec<u8>>,
    /// Emptied buffers, on their way back to the other side, and back from it.
    give: mpsc::Sender<Vec<u8>>,
    spare: mpsc::Receiver<Vec<u8>>,
    reader: FrameReader,
    pools: BTreeMap<PoolId, PoolLayout>,
    /// Waits for room in the pipe.
    blocked: bool,
}

impl PeerActor {
    pub(crate) fn new(
        me: PeerRef,
        node: Arc<NodeShared>,
        name: String,
        incarnation: Incarnation,
        shards: Vec<Addr<Shard>>,
        watch: tokio::sync::watch::Sender<PeerState>,
    ) -> Self {
        PeerActor {
            says: shards.iter().map(|_| Vec::new()).collect(),
            me,
            node,
            name,
            incarnation,
            shards,
            link: None,
            transports: 0,
            waiting: BTreeMap::new(),
            waiting_at: HashMap::new(),
            floor: ClaimNo(0),
            for_good: false,
            next_waiting: 0,
            flushing: false,
            spare: Vec::new(),
            watch,
        }
    }

    /// Keeps an answer for a shard until the end of this turn.
    fn say(&mut self, room: RoomId, says: SessionSays) {
        let shard = NodeShared::shard_of(room, self.shards.len());
        self.says[shard].push(says);
    }

    /// The end of a turn: before a frame of it can be answered, the shards know what it is about.
    fn tell_says(&mut self) {
        for (shard, says) in self.shards.iter().zip(&mut self.says) {
            if !says.is_empty() {
                // From inside, one for each claim of an admitted room.
                shard.do_send(SessionAnswers(std::mem::take(says)));
            }
        }
    }

    fn command(&mut self, command: Command) {
        match command {
            Command::Open(request) => match &self.link {
                Some(link) if self.waiting.is_empty() && link.session.credit_available() > 0 => {
                    self.open(*request);
                }
                Some(_) => {
                    let at = self.next_waiting;
                    self.next_waiting += 1;
                    self.waiting_at.insert((request.life, request.leg), at);
                    self.waiting.insert(at, request);
                    self.open_waiting();
                }
                None => {
                    let reason = Reason::new(
                        Code::PeerLost,
                        format!("no session with node {:?}: connect again", self.name),
                    );
                    self.not_opened(*request, reason);
                }
            },
            Command::Withdraw(life, leg) => {
                if let Some(at) = self.waiting_at.remove(&(life, leg))
                    && let Some(request) = self.waiting.remove(&at)
                {
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

    /// Opens waiting claims while the peer's credit lasts.
    fn open_waiting(&mut self) {
        while let Some(link) = &self.link
            && link.session.credit_available() > 0
            && let Some((_, request)) = self.waiting.pop_first()
        {
            self.waiting_at.remove(&(request.life, request.leg));
            self.open(*request);
        }
    }

    /// The number, the gate and the place in the queue: one step.
    fn open(&mut self, request: OpenRequest) {
        if let Some(reason) = self.too_long(&request.claim) {
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
        } = request;
        let room = claim.tag.room.id;
        let number = self.node.new_claim();
        let opened = match self.node.gates.open(number, target) {
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
                        // Nobody was told of the gate; dropped, it closes and lets its target go.
                        drop(gate);
                        Err(Reason::new(Code::SessionLost, refused.to_string()))
                    }
                }
            }
            Err(error) => Err(Reason::new(
                Code::LimitReached,
                format!("{error}: raise Limits::gates or start fewer rooms at once"),
            )),
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

    fn not_opened(&mut self, request: OpenRequest, reason: Reason) {
        let OpenRequest {
            life,
            leg,
            claim,
            target,
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

    fn wants_flush(&mut self, ctx: &mut Context<Self>) {
        let Some(link) = &self.link else { return };
        if !self.flushing && !link.blocked && link.session.has_output() {
            self.flushing = true;
            ctx.notify(Flush);
        }
    }

    /// Moves frames into the pipe while it has room.
    fn flush(&mut self, ctx: &mut Context<Self>) {
        let limit = self.node.limits.frame_bytes;
        while let Some(link) = &mut self.link
            && (link.session.has_output() || link.session.owes_ack())
        {
            match link.tx.clone().try_reserve() {
                Ok(permit) => {
                    let mut bytes = link.spare.try_recv().unwrap_or_default();
                    let mut broken = None;
                    link.session.transmit_with(BATCH, |frame| {
                        if let Err(error) = wire::encode_frame_ref(frame, &mut bytes, limit) {
                            broken = Some(error);
                        }
                    });
                    permit.send(bytes);
                    if let Some(error) = broken {
                        let text = format!("a frame cannot be sent: {error}");
                        return self.give_up(Reason::new(Code::LimitReached, text));
                    }
                }
                Err(mpsc::error::TrySendError::Full(())) => {
                    link.blocked = true;
                    let (tx, me) = (link.tx.clone(), ctx.address());
                    actix::spawn(async move {
                        // Only waits for room; a pipe that is gone is told of by its reader.
                        drop(tx.reserve().await);
                        me.do_send(Flush);
                    });
                    return;
                }
                Err(mpsc::error::TrySendError::Closed(())) => return,
            }
        }
    }

    /// Takes in one batch; gives what is for the shards, and the session's end if it is in there.
    fn take(&mut self, bytes: &[u8], node: &NodeShared) -> (Batches, Option<Reason>) {
        let pools = node.pools.borrow().clone();
        let mut out = Batches::new();
        out.resize_with(self.shards.len(), || self.spare.pop().unwrap_or_default());
        let mut rest = bytes;
        while let Some(link) = &mut self.link {
            let frame = match link.reader.read(&mut rest) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(error) => return (out, Some(violation(error.to_string()))),
            };
            let end = match link.session.receive(frame) {
                Ok(Received::Deliver(body)) => self.deliver(body, &pools, &mut out).err(),
                Ok(Received::Credit(_)) => {
                    self.open_waiting();
                    None
                }
                Ok(Received::Duplicate | Received::Nothing) => None,
                Ok(Received::OutOfOrder { expected }) => Some(violation(format!(
                    "frame {expected} is missing on the pipe"
                ))),
                Err(error) => Some(violation(error.to_string())),
            };
            if end.is_some() {
                return (out, end);
            }
        }
        (out, None)
    }

    fn deliver(&mut self, body: Body, pools: &Pools, out: &mut Batches) -> Result<(), Reason> {
        let shards = self.shards.len();
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut put = |tag: ClaimTag, item: FromPeer| {
            out[NodeShared::shard_of(tag.room.id, shards)].push(item);
        };
        match body {
            Body::Claim(claim) => {
                match link.session.admit_claim(claim.tag.id.number) {
                    Admit::Fresh => {}
                    // Dead for ever; its abort was answered.
                    Admit::Stale => {
                        link.session.claim_ended();
                        self.node.stats.add(&self.node.stats.stale_messages);
                        return Ok(());
                    }
                }
                let terms = terms_of(
                    &claim,
                    |id| link.pools.get(&id),
                    |name| {
                        pools.named(name).map(|p| LocalPool {
                            id: p.id,
                            layout: p.pool.layout(),
                        })
                    },
                );
                let pages = claim.sections.iter().map(|s| s.pages.len() as u64).sum();
                let terms = over_limits(&claim, pages, &self.node.limits).map_or(terms, Err);
                let (tag, gate, checksum) = (claim.tag, claim.gate, claim.checksum);
                let deadline_ms = claim.deadline_ms;
                tracing::debug!(room = %tag.room, peer = self.name, trace = ?claim.trace, "claim arrived");
                let offer = Offer {
                    tag,
                    gate,
                    pages,
                    checksum,
                    deadline_ms,
                };
                put(
                    tag,
                    FromPeer::Claim {
                        offer,
                        terms: terms.map(Arc::new),
                    },
                );
            }
            Body::PoolAdded { pool, layout } => {
                link.pools.insert(pool, layout);
            }
            Body::PoolRetired { pool } => {
                link.pools.remove(&pool);
            }
            Body::Bye { drained } => {
                let text = format!("node {:?} said goodbye (drained: {drained})", self.name);
                return Err(Reason::new(Code::PeerLost, text).from_peer());
            }
            Body::Superseded => {
                let text = format!("node {:?} knows a newer life of this node", self.name);
                return Err(Reason::new(Code::PeerRestarted, text).from_peer());
            }
            Body::Abort { tag, reason } => {
                link.session.note_abort(tag.id.number);
                put(tag, FromPeer::Body(Body::Abort { tag, reason }));
            }
            body => {
                if let Some(tag) = body.tag() {
                    put(tag, FromPeer::Body(body));
                }
            }
        }
        Ok(())
    }

    fn tell_shards(&mut self, reason: &Reason) {
        self.tell_says();
        for shard in &self.shards {
            shard.do_send(PeerGone {
                peer: self.me,
                for_good: self.for_good,
                reason: reason.clone(),
            });
        }
    }

    /// The session is over: its rooms end on this side, whatever waits is told so.
    fn give_up(&mut self, reason: Reason) {
        let Some(link) = self.link.take() else { return };
        tracing::info!(peer = self.name, %reason, "session ended");
        // Claims whose frame was never handed over are aborted by their rooms like the others: their
        // gates are open and prove more than the receipt.
        self.floor = self.floor.max(link.session.mark());
        drop(link.session.give_up());
        self.waiting_at.clear();
        for request in std::mem::take(&mut self.waiting).into_values() {
            self.not_opened(*request, reason.clone());
        }
        self.tell_shards(&reason);
        self.watch.send_replace(PeerState::Down(reason.to_string()));
    }
}

type Batches = Vec<Vec<FromPeer>>;

/// Why a claim is too large for this node. Nodes may have different limits: it costs that claim, and
/// not the session.
fn over_limits(claim: &Claim, pages: u64, limits: &Limits) -> Option<Reason> {
    let over = |limit, value: u64, given: u64| {
        let text =
            format!("limit {limit} = {value} of the sender is reached: the claim has {given}");
        Some(Reason::new(Code::LimitReached, text))
    };
    if claim.receivers > limits.receivers {
        return over("receivers", limits.receivers.into(), claim.receivers.into());
    }
    if pages > limits.pages_per_claim as u64 {
        return over("pages_per_claim", limits.pages_per_claim as u64, pages);
    }
    None
}

fn violation(text: String) -> Reason {
    Reason::new(Code::ProtocolViolation, text).from_peer()
}

impl Actor for PeerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Bounded from inside: shards send for admitted rooms only, the reader waits.
        ctx.set_mailbox_capacity(1 << 16);
    }
}

impl Handler<Attach> for PeerActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, attach: Attach, ctx: &mut Context<Self>) -> Self::Result {
        let Attach {
            pipe,
            theirs,
            our_window,
            route,
        } = attach;
        self.give_up(Reason::new(
            Code::SessionLost,
            "a new session takes the place of this one",
        ));
        let limits = SessionLimits {
            unacknowledged: self.node.limits.frames_unacknowledged,
            progress: self.node.limits.rooms,
            our_window,
            their_window: theirs.credit,
        };
        self.transports += 1;
        let transport = self.transports;
        let mut session = Session::new(self.node.incarnation, self.incarnation, limits);
        // What earlier sessions named is dead for ever.
        session.note_abort(self.floor);
        self.link = Some(Link {
            session,
            tx: pipe.tx,
            give: pipe.give,
            spare: pipe.spare,
            reader: FrameReader::new(Bounds {
                // A claim that is over this node's other limits is well formed: it is refused by
                // itself, in `deliver`.
                pages_per_claim: usize::MAX,
                receivers: u16::MAX,
                ..Bounds::from(&self.node.limits)
            }),
            pools: theirs.pools.into_iter().collect(),
            blocked: false,
        });
        let (mut rx, me) = (pipe.rx, ctx.address());
        let ready: Vec<_> = self
            .shards
            .iter()
            .map(|s| {
                s.send(ShardPeer {
                    peer: self.me,
                    addr: me.clone(),
                    route: route.clone(),
                })
            })
            .collect();
        let ready = async move {
            // Every shard knows the peer before it can hear from it.
            for shard in ready {
                let _ = shard.await;
            }
        };
        Box::pin(ready.into_actor(self).map(move |(), actor, _| {
            if actor.link.is_none() || actor.transports != transport {
                // Given up meanwhile: nobody would ever take the word back that it is up.
                return;
            }
            actor.watch.send_replace(PeerState::Up);
            actix::spawn(async move {
                while let Some(bytes) = rx.recv().await {
                    if me.send(Incoming { transport, bytes }).await.is_err() {
                        return;
                    }
                }
                me.do_send(Closed { transport });
            });
        }))
    }
}

impl Handler<Commands> for PeerActor {
    type Result = ();

    fn handle(&mut self, Commands(commands): Commands, ctx: &mut Context<Self>) {
        for command in commands {
            self.command(command);
        }
        self.tell_says();
        self.wants_flush(ctx);
    }
}

impl Handler<Incoming> for PeerActor {
    type Result = ResponseActFuture<Self, ()>;

    fn handle(&mut self, incoming: Incoming, _: &mut Context<Self>) -> Self::Result {
        let Incoming {
            transport,
            mut bytes,
        } = incoming;
        if transport != self.transports {
            return Box::pin(std::future::ready(()).into_actor(self));
        }
        let node = Arc::clone(&self.node);
        let (batches, end) = self.take(&bytes, &node);
        self.tell_says();
        bytes.clear();
        if let Some(link) = &self.link {
            let _ = link.give.try_send(bytes);
        }
        let peer = self.me;
        let mut sent = Vec::with_capacity(batches.len());
        for (i, items) in batches.into_iter().enumerate() {
            if items.is_empty() {
                self.spare.push(items);
            } else {
                sent.push(self.shards[i].send(PeerSays { peer, items }));
            }
        }
        // What came before the end is heard before it.
        if let Some(reason) = end {
            self.give_up(reason);
        }
        let taken = async move {
            let mut emptied = Vec::with_capacity(sent.len());
            for shard in sent {
                emptied.extend(shard.await.ok());
            }
            emptied
        };
        Box::pin(taken.into_actor(self).map(|emptied, me, ctx| {
            me.spare.extend(emptied);
            me.spare.truncate(me.shards.len());
            // What the shards answered takes the acknowledgement along; without an answer it goes
            // by itself.
            if let Some(link) = &me.link
                && !me.flushing
                && !link.blocked
                && (link.session.has_output() || link.session.owes_ack())
            {
                me.flushing = true;
                ctx.notify(Flush);
            }
        }))
    }
}

impl Handler<Flush> for PeerActor {
    type Result = ();

    fn handle(&mut self, _: Flush, ctx: &mut Context<Self>) {
        self.flushing = false;
        if let Some(link) = &mut self.link {
            link.blocked = false;
        }
        self.flush(ctx);
    }
}

impl Handler<Closed> for PeerActor {
    type Result = ();

    fn handle(&mut self, closed: Closed, _: &mut Context<Self>) {
        if closed.transport == self.transports {
            let text = format!("the connection to node {:?} is gone", self.name);
            // A node that goes says goodbye; this one gave up the session and lives on.
            self.give_up(Reason::new(Code::SessionLost, text).from_peer());
        }
    }
}

impl Handler<PoolsChanged> for PeerActor {
    type Result = ();

    fn handle(&mut self, PoolsChanged(bodies): PoolsChanged, ctx: &mut Context<Self>) {
        for body in bodies {
            self.command(Command::Say(body));
        }
        self.wants_flush(ctx);
    }
}

impl Handler<GiveUp> for PeerActor {
    type Result = ();

    fn handle(&mut self, give_up: GiveUp, ctx: &mut Context<Self>) {
        if let Some(drained) = give_up.bye {
            if let Some(link) = &mut self.link {
                // Refused only if the peer reads nothing; then it hears of the closed pipe.
                let _ = link.session.queue(Body::Bye { drained });
            }
            self.flush(ctx);
        }
        self.for_good = give_up.for_good;
        if self.link.is_some() {
            self.give_up(give_up.reason);
        } else if give_up.for_good {
            self.tell_shards(&give_up.reason);
        }
        // The actor itself stops when the last shard has let go of it, and not before it has
        // answered all that they asked of it.
    }
}
