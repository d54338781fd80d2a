//! The supervisor actor: a shard's core, and everything it needs to do what the core says.
//!
//! It alone holds the `Addr`s of its rooms, and everything that reaches a room goes through its
//! mailbox, in order. Handles, tickets and doorbells of other threads put their messages into the
//! shard's inbox; one task carries them over in batches and waits until each batch is done.

use super::attached::{Attached, AttachedRole, Gate, Lent, RealInput, RealOutput, Refusal};
use super::core::{CoreLimits, Life, ShardCore};
use super::custody::Held;
use super::io::{Counter, Input, Output, Which};
use super::post::Small;
use super::timers::{Clock, Running, Timers, Wakeup};
use crate::copy::actor::{Lane, LaneWork};
use crate::copy::job::{Job, Place};
use crate::copy::sum::{SumJob, SumReply, SumSection};
use crate::fabric::local::LocalRoute;
use crate::fabric::shm::{ShmClaim, Way};
use crate::fabric::tcp::{NewJob, TcpRoute};
use crate::fabric::{Fabric, PeerRoute};
use crate::handle::{Back, ChunkBack};
use crate::ids::{ChunkNo, ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, RoomKey, Tick};
use crate::limits::Deadlines;
use crate::memory::Pool;
use crate::memory::{
    Doorbell, GateLanded, JobBack, JobId, Lease, OpenGate, Proof, Target, Ticket, TicketSink,
    Withdrawn, Witness,
};
use crate::peer::actor::{Command, Commands, FromPeer, OpenRequest, PeerActor};
use crate::peer::message::{Body, Claim, ClaimTag, Part, Section, Trace};
use crate::reason::Reason;
use crate::record::{GateIs, Scribe};
use crate::room::actor::{Ear, Listen, RoomActor, Said, Tell, Traced};
use crate::room::event::{Event, JobEnd, JobSpec, Timer};
use crate::room::{Outcome, Quiescence, StateName};
use crate::runtime::later::later;
use crate::runtime::meter::Meter;
use crate::runtime::pulse::Beat;
use crate::runtime::queue;
use crate::runtime::shared::NodeShared;
use actix::{Actor, Addr, AsyncContext, Context, Handler, Message, MessageResult};
use kvroom_kernels::coverage::Rect;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;

/// What reaches a shard from other threads.
///
/// The channel itself has no bound of its own: every sender is something that was admitted (a
/// handle of a room, a ticket of a job, a gate), so that what is in it is bounded by
/// `Limits::rooms`, `Limits::jobs_per_lane` and `Limits::gates`, and nothing on a way out is refused.
pub enum Inbound {
    /// For the core.
    Core(RealInput),
    /// A ticket came back.
    Job(JobBack),
    /// A doorbell rang.
    Bell(LifeId, LegNo),
    /// Something to be asked of the shard, on its own thread.
    Ask(Question),
    /// Several of these, in order, with one wake-up.
    Many(Vec<Inbound>),
    /// Clocks have run out; behind everything that was here before.
    Fire,
}

/// Runs on a shard's own thread.
pub type Question = Box<dyn FnOnce(&mut Shard, &mut ShardContext) + Send>;

/// What a shard runs in.
pub type ShardContext = Context<Shard>;

/// The way into a shard from any thread.
#[derive(Clone, Debug)]
pub struct Inbox {
    tx: mpsc::UnboundedSender<Inbound>,
    beat: Arc<Beat>,
}

impl Inbox {
    /// A new inbox and its reading end.
    pub(crate) fn new(beat: Arc<Beat>) -> (Inbox, mpsc::UnboundedReceiver<Inbound>) {
        let (tx, rx) = mpsc::unbounded_channel();
        (Inbox { tx, beat }, rx)
    }

    /// Whether both lead to the same shard.
    pub fn is(&self, other: &Inbox) -> bool {
        self.tx.same_channel(&other.tx)
    }

    /// Whether the shard has stopped.
    pub(crate) fn is_closed(&self) -> bool {
        self.tx.is_closed()
    }

    /// Puts a message in. Hands it back if the shard has stopped.
    pub fn put(&self, message: Inbound) -> Result<(), Box<Inbound>> {
        self.tx.send(message).map_err(|e| Box::new(e.0))?;
        self.beat.post();
        Ok(())
    }
}

impl std::fmt::Debug for Inbound {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Inbound::Core(_) => "Core",
            Inbound::Job(_) => "Job",
            Inbound::Bell(..) => "Bell",
            Inbound::Ask(_) => "Ask",
            Inbound::Fire => "Fire",
            Inbound::Many(_) => "Many",
        })
    }
}

/// A shard.
pub struct Shard {
    node: Arc<NodeShared>,
    /// Which of the node's shards it is.
    nth: usize,
    core: ShardCore<Lent, Witness, Box<Attached>>,
    actors: usize,
    /// Where its rooms speak.
    ear: Option<Rc<Ear>>,
    /// Room for what they said, between turns.
    heard: Vec<Said>,
    /// What a room is to be told, the events of one turn together.
    telling: Option<(LifeId, Tell)>,
    /// A handful, looked up for all that is said and copied.
    peers: BTreeMap<PeerRef, PeerLink>,
    lanes: Vec<Addr<Lane>>,
    next_lane: usize,
    inbox: Inbox,
    sink: Arc<Sink>,
    /// Jobs that it copies itself.
    small: Small,
    timers: Timers,
    running: Running,
    wakeup: Wakeup,
    /// The last alarm that was set.
    alarm: Option<AbortHandle>,
    /// Messages for peers, sent at the end of each turn.
    outgoing: Vec<(PeerRef, Vec<Command>)>,
    /// What handling an output told the core in turn.
    follow_up: VecDeque<RealInput>,
    scratch: Vec<RealOutput>,
    when_empty: Vec<oneshot::Sender<()>>,
    /// Where to write for claims of peers that share memory; from a claim's arrival to its end.
    places: HashMap<(PeerRef, ClaimNo), Arc<ShmClaim>>,
    /// Trace contexts that came with claims; from a claim's arrival to its end.
    traces: HashMap<(PeerRef, ClaimNo), Trace>,
    /// Lives that passed their drain deadline, by when they did.
    quarantined: BTreeMap<(Tick, LifeId), Quarantined>,
    /// Lives that have no outcome though the clock of it ran out, by when it did on running time.
    late: BTreeSet<(Tick, LifeId)>,
    /// Gates that were closed with somebody inside.
    stuck_gates: Vec<(LifeId, LegNo)>,
    looking: bool,
    beat: Arc<Beat>,
    pub(super) scribe: Scribe,
}

/// How a job's bytes go.
pub(super) enum Road {
    /// A lane of this node, or the shard itself, copies them.
    Copy(Way),
    /// Over sockets.
    Tcp(TcpRoute),
}

/// What a life counts for while it is quarantined.
#[derive(Default)]
struct Quarantined {
    pages: u64,
    /// Of its peers.
    meters: Vec<Arc<Meter>>,
}

struct PeerLink {
    addr: Addr<PeerActor>,
    meter: Arc<Meter>,
    /// `None` while there is no session over shared memory: what it maps is not kept for a peer that
    /// may never come back.
    route: Option<PeerRoute>,
}

/// Where this shard's tickets come back to.
struct Sink(Inbox);

impl TicketSink for Sink {
    fn returned(&self, back: JobBack) {
        // A shard that has stopped has leaked what was lent; the witness has nobody to go to.
        let _ = self.0.put(Inbound::Job(back));
    }

    fn moved(&self, id: JobId, bytes: u64) {
        let JobId { life, leg, .. } = id;
        let _ = self.0.put(Inbound::Core(Input::Moved { life, leg, bytes }));
    }
}

/// Rings a shard for one claim.
struct Bell {
    inbox: Inbox,
    life: LifeId,
    leg: LegNo,
}

impl Doorbell for Bell {
    fn ring(&self, _: ClaimNo) {
        let _ = self.inbox.put(Inbound::Bell(self.life, self.leg));
    }
}

/// Commands for a peer in one message: small enough that the allocator has them at hand.
const COMMANDS: usize = 8;

/// Outputs that a shard keeps room for between turns.
const KEPT_OUTPUTS: usize = 1_024;

/// How often a gate that is closed and not empty is looked at, should its bell not ring.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// An outcome that is this much past its deadline is counted as overdue.
const TOO_LATE: Duration = Duration::from_secs(1);

/// A batch of the inbox. The answer is the emptied batch, to be filled again.
#[derive(Message)]
#[rtype(result = "Vec<Inbound>")]
pub(crate) struct FromInbox(pub(crate) Vec<Inbound>);

/// What a peer said. The answer is the emptied list, to be filled again.
#[derive(Message)]
#[rtype(result = "Vec<FromPeer>")]
pub(crate) struct PeerSays {
    pub(crate) peer: PeerRef,
    pub(crate) items: Vec<FromPeer>,
}

/// Answers of a session to what this shard asked of it.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct SessionAnswers(pub(crate) Vec<SessionSays>);

/// One of them.
pub(crate) enum SessionSays {
    Opened {
        life: LifeId,
        leg: LegNo,
        tag: ClaimTag,
        gate: OpenGate,
    },
    NotOpened {
        life: LifeId,
        leg: LegNo,
        reason: Reason,
        witness: Withdrawn,
    },
}

#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct ShardPeer {
    pub(crate) peer: PeerRef,
    pub(crate) addr: Addr<PeerActor>,
    pub(crate) route: PeerRoute,
    pub(crate) meter: Arc<Meter>,
}

#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct PeerGone {
    pub(crate) peer: PeerRef,
    /// This life of the peer never comes back.
    pub(crate) for_good: bool,
    pub(crate) reason: Reason,
}

#[derive(Message)]
#[rtype(result = "()")]
struct Alarm {
    due: Tick,
}

#[derive(Message)]
#[rtype(result = "()")]
struct LookAgain;

impl Shard {
    /// The `nth` shard of its node.
    pub(crate) fn new(
        node: Arc<NodeShared>,
        nth: usize,
        lanes: Vec<Addr<Lane>>,
        inbox: Inbox,
        scribe: Scribe,
    ) -> Self {
        Shard {
            core: ShardCore::new(CoreLimits::from(&node.limits)),
            node,
            nth,
            actors: 0,
            ear: None,
            heard: Vec::new(),
            telling: None,
            peers: BTreeMap::new(),
            lanes,
            next_lane: 0,
            sink: Arc::new(Sink(inbox.clone())),
            beat: Arc::clone(&inbox.beat),
            inbox,
            small: Small::default(),
            timers: Timers::default(),
            running: Running::default(),
            wakeup: Wakeup::default(),
            alarm: None,
            outgoing: Vec::new(),
            follow_up: VecDeque::new(),
            scratch: Vec::new(),
            when_empty: Vec::new(),
            places: HashMap::new(),
            traces: HashMap::new(),
            quarantined: BTreeMap::new(),
            late: BTreeSet::new(),
            stuck_gates: Vec::new(),
            looking: false,
            scribe,
        }
    }

    /// What holds its node's lanes up, or makes them do wrong.
    #[cfg(feature = "plant")]
    pub(crate) fn watched(mut self, watched: crate::copy::plant::Watched) -> Self {
        self.small = self.small.watched(watched);
        self
    }

    /// The node's limits.
    pub(super) fn limits(&self) -> &crate::limits::Limits {
        &self.node.limits
    }

    /// The core, for questions.
    pub fn core(&self) -> &ShardCore<Lent, Witness, Box<Attached>> {
        &self.core
    }

    pub(crate) fn now(&self) -> Tick {
        self.node.now()
    }

    pub(super) fn deadlines(&self) -> &Deadlines {
        &self.node.deadlines
    }

    /// Clocks that are armed.
    pub fn armed_clocks(&self) -> usize {
        self.timers.len()
    }

    /// Room actors that are alive.
    pub fn actors(&self) -> usize {
        self.actors
    }

    /// Answers the question whether it is there.
    pub(crate) fn is_there(&self) {
        let now = self.running.now();
        let limit = Tick(now.0.saturating_sub(TOO_LATE.as_nanos() as u64));
        self.beat.overdue(self.timers.outcomes_before(limit));
        self.beat.answer();
    }

    /// Lives that passed their drain deadline, those first that did first.
    pub(super) fn quarantined_lives(&self) -> impl ExactSizeIterator<Item = LifeId> {
        self.quarantined.keys().map(|(_, life)| *life)
    }

    /// Lives that have no outcome so long after their deadline, up to 1,000 of those whose clock was
    /// looked at and of those whose clock was not. On running time: a deadline that moved is not over.
    pub(super) fn late_lives(&self, grace: Duration) -> impl Iterator<Item = LifeId> {
        let grace = u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX);
        let limit = Tick(self.running.now().0.saturating_sub(grace));
        let rang = self.late.range(..(limit, LifeId(0))).take(1_000);
        rang.map(|(_, life)| *life)
            .chain(self.timers.outcomes_of(limit))
    }

    /// Asks the core to shut down; told when nothing is held any more.
    pub(crate) fn shut_down(&mut self, told: oneshot::Sender<()>, ctx: &mut Context<Self>) {
        self.when_empty.push(told);
        self.input(Input::Shutdown, ctx);
        self.settle(ctx);
    }

    /// Ends the rooms that are live now, and counts them: a room that starts later is not meant.
    /// `asked` is when the caller asked for it.
    pub fn abort_where(
        &mut self,
        which: Which,
        reason: Reason,
        asked: Tick,
        ctx: &mut Context<Self>,
    ) -> usize {
        let told = (self.core.live(&which))
            .map(|(_, life)| life.attached().shared.abort_asked(asked))
            .count();
        self.input(Input::AbortWhere { which, reason }, ctx);
        told
    }

    /// Ends the rooms that are live now and hold pages of this pool, and counts them.
    pub fn abort_holders(&mut self, pool: &Pool, reason: Reason, ctx: &mut Context<Self>) -> usize {
        let holds = |life: &Life<Lent, Witness, Box<Attached>>| {
            let mut leases = life.custody().leases();
            leases.any(|(_, lent)| lent.lease.pool().same_pool(pool))
        };
        let lives = self.core.lives().filter(|(_, life)| holds(life));
        let lives = lives.map(|(life, _)| life).collect();
        self.abort_where(Which::Lives(lives), reason, self.now(), ctx)
    }

    fn inbound(&mut self, message: Inbound, ctx: &mut Context<Self>) {
        match message {
            Inbound::Core(input) => self.input(input, ctx),
            Inbound::Job(back) => {
                let over = self.job_over(back);
                self.input(over, ctx);
            }
            Inbound::Bell(life, leg) => {
                self.finish_gate(life, leg);
                self.follow_up(ctx);
            }
            Inbound::Ask(ask) => ask(self, ctx),
            Inbound::Many(messages) => {
                for message in messages {
                    self.inbound(message, ctx);
                }
            }
            Inbound::Fire => self.fire(ctx),
        }
    }

    fn input(&mut self, input: RealInput, ctx: &mut Context<Self>) {
        let mut out = std::mem::take(&mut self.scratch);
        let mut next = Some(input);
        while let Some(input) = next {
            let about = match &input {
                Input::RoomSaid { life, .. } | Input::Timer { life, .. } => Some(*life),
                _ => None,
            };
            let begun = self.begun(&input);
            self.core.handle(input, &mut out);
            self.record_start(begun, &out);
            for output in out.drain(..) {
                if let (Output::Count(Counter::Quarantined), Some(life)) = (&output, about) {
                    self.quarantine(life);
                }
                self.output(output, ctx);
            }
            next = self.follow_up.pop_front();
        }
        // One input can have a hundred thousand outputs; their room is given back.
        if out.capacity() > KEPT_OUTPUTS {
            out.shrink_to(KEPT_OUTPUTS);
        }
        self.scratch = out;
    }

    /// What other handlers than `input` left to be told.
    fn follow_up(&mut self, ctx: &mut Context<Self>) {
        if let Some(input) = self.follow_up.pop_front() {
            self.input(input, ctx);
        }
    }

    fn tell_room(&mut self, life: LifeId, event: Event<Witness>) {
        match &mut self.telling {
            Some((told, tell)) if *told == life => tell.rest.push(event),
            _ => {
                self.tell_rooms();
                let tell = Tell {
                    first: event,
                    rest: Vec::new(),
                };
                self.telling = Some((life, tell));
            }
        }
    }

    fn tell_rooms(&mut self) {
        if let Some((life, tell)) = self.telling.take()
            && let Some(l) = self.core.life(life)
            && let Some(room) = &l.attached().actor
        {
            // Within this thread; a room answers each event once.
            room.do_send(tell);
        }
    }

    /// The end of a turn: what is for rooms and peers goes out, the next alarm is set.
    fn settle(&mut self, ctx: &mut Context<Self>) {
        self.tell_rooms();
        for (peer, commands) in self.outgoing.drain(..) {
            if commands.is_empty() {
                continue;
            }
            if let Some(link) = self.peers.get(&peer) {
                // From inside, and bounded by the rooms that were admitted.
                link.addr.do_send(Commands(commands));
            }
        }
        self.set_alarm(ctx);
        if !self.stuck_gates.is_empty() && !self.looking {
            self.looking = true;
            later(ctx, LookAgain, LOOK_AGAIN);
        }
        self.beat.end();
    }

    fn to_lane(&self, at: usize, work: LaneWork) {
        let beats = &self.node.beats.lanes;
        if let (Some(lane), Some(beat)) = (self.lanes.get(at), beats.get(at)) {
            beat.post();
            lane.do_send(work);
        }
    }

    fn command(&mut self, peer: PeerRef, command: Command) {
        let at = match self.outgoing.iter().position(|(p, _)| *p == peer) {
            Some(at) => at,
            None => {
                self.outgoing.push((peer, Vec::with_capacity(COMMANDS)));
                self.outgoing.len() - 1
            }
        };
        let commands = &mut self.outgoing[at].1;
        commands.push(command);
        if commands.len() == COMMANDS
            && let Some(link) = self.peers.get(&peer)
        {
            let full = std::mem::replace(commands, Vec::with_capacity(COMMANDS));
            link.addr.do_send(Commands(full));
        }
    }

    fn output(&mut self, output: RealOutput, ctx: &mut Context<Self>) {
        match output {
            Output::Spawn { life, room } => {
                let Some((key, trace, apart)) = self.core.life(life).map(|l| {
                    let attached = l.attached();
                    (l.key(), attached.trace.as_deref().copied(), attached.apart)
                }) else {
                    return;
                };
                if !apart {
                    self.node.stats.rooms.started(room.role());
                    self.node.stats.add(&self.node.stats.started);
                }
                let scribe = &self.scribe;
                let ear = (self.ear).get_or_insert_with(|| Ear::new(ctx.address(), scribe.clone()));
                let actor = RoomActor::new(life, key, trace, room, Rc::clone(ear)).start();
                self.actors += 1;
                if let Some(attached) = self.core.attached(life) {
                    attached.actor = Some(actor);
                    attached.key = Some(key);
                    if let Some(reply) = attached.reply.take() {
                        let _ = reply.send(Ok(()));
                    }
                }
            }
            Output::StartRefused {
                why,
                mut attached,
                leases,
            } => {
                let leases = leases.into_iter().map(|(_, l)| l.lease).collect();
                if let Some(reply) = attached.reply.take() {
                    let _ = reply.send(Err(Box::new(Refusal { why, leases })));
                }
            }
            Output::ToRoom { life, event } => {
                if !self.traces.is_empty()
                    && let Event::Bind { leg, .. } = &event
                {
                    self.trace(life, *leg);
                }
                self.record_bind(life, &event);
                self.tell_room(life, event);
            }
            Output::OpenClaim { life, leg, peer } => self.open_claim(life, leg, peer),
            Output::WithdrawClaim { life, leg, peer } => {
                self.command(peer, Command::Withdraw(life, leg));
            }
            Output::CloseGate { life, leg } => self.close_gate(life, leg),
            Output::ToPeer { peer, body } => self.command(peer, Command::Say(body)),
            Output::ClaimEnded { peer, number } => {
                self.places.remove(&(peer, number));
                if !self.traces.is_empty() {
                    self.traces.remove(&(peer, number));
                }
                self.command(peer, Command::ClaimEnded(number));
            }
            Output::Post {
                life,
                leg,
                job,
                spec,
            } => self.post(life, leg, job, spec),
            Output::CancelJobs { life } => self.cancel_jobs(life),
            Output::Sum { life } => self.sum(life),
            Output::ReleaseChunk { lease, .. } => give_back_chunk(lease, None),
            Output::Bounce { lease, reason } => give_back_chunk(lease, Some(reason)),
            Output::SetTimer { life, timer } => self.set_timer(life, timer),
            Output::ClearTimer { life, timer } => {
                if let Some(attached) = self.core.attached(life) {
                    self.timers.clear(life, &mut attached.armed, timer);
                }
            }
            Output::SetEarlyTimer {
                peer,
                tag,
                within_ms,
            } => {
                let receiver_waits = Duration::from_millis(u64::from(within_ms));
                let wait = self.node.deadlines.early_claim.min(receiver_waits);
                let at = self.running.now().after(wait);
                self.timers.set_early(peer, tag, at);
            }
            Output::ClearEarlyTimer { peer, tag } => self.timers.clear_early(peer, tag),
            Output::Publish { life, outcome } => self.publish(life, outcome),
            Output::Return {
                life,
                leases,
                proof,
                outcome,
                attached,
            } => {
                // In one turn a life can end and leave the tables: then it is published here.
                if let Some(outcome) = outcome
                    && attached.shared.outcome().is_none()
                {
                    self.count_end(&attached, &outcome);
                    self.ended(&attached, &outcome);
                    attached.shared.publish(outcome);
                }
                self.give_back(life, leases, proof, *attached);
            }
            Output::Count(counter) => self.count(counter),
            Output::Empty => {
                for told in self.when_empty.drain(..) {
                    let _ = told.send(());
                }
            }
        }
    }

    fn count(&self, counter: Counter) {
        let stats = &self.node.stats;
        stats.add(match counter {
            Counter::StaleMessage => &stats.stale_messages,
            Counter::StaleEvent => &stats.stale_events,
            Counter::RepeatedChunk => &stats.repeated_chunks,
            Counter::ClaimRefused => &stats.claims_refused,
            Counter::Quarantined => &stats.quarantined,
            Counter::Panicked => &stats.panicked,
            Counter::StrayWitness => &stats.stray_witnesses,
        });
    }

    fn publish(&mut self, life: LifeId, outcome: Outcome) {
        if let Some(attached) = self.core.attached(life)
            && let Some(since) = attached.late.take()
        {
            self.late.remove(&(since, life));
        }
        // One that has left the tables already is counted and told when its leases go back.
        if let Some(l) = self.core.life(life) {
            self.count_end(l.attached(), &outcome);
            let trace = l.attached().trace.as_deref();
            tracing::debug!(room = %l.key(), role = %l.role(), trace = trace.map(tracing::field::display), %outcome, "room ended");
            if l.attached().shared.outcome().is_none() {
                self.ended(l.attached(), &outcome);
            }
            l.attached().shared.publish(outcome);
        }
    }

    fn count_end(&self, attached: &Attached, outcome: &Outcome) {
        let stats = &self.node.stats;
        if !attached.apart {
            stats.add(match outcome {
                Outcome::Done => &stats.done,
                Outcome::Aborted(_) => &stats.aborted,
            });
        }
    }

    /// Counts an end that is about to be told.
    fn ended(&self, attached: &Attached, outcome: &Outcome) {
        let (now, shared) = (self.now(), &attached.shared);
        let asked = shared.abort_began();
        let rooms = &self.node.stats.rooms;
        if !attached.apart {
            rooms.ended(attached.role(), outcome, attached.since, asked, now);
        }
        if matches!(outcome, Outcome::Aborted(_)) {
            // Nobody here asked for it: then it begins when it is known.
            shared.abort_asked(now);
        }
    }

    /// A life passed its drain deadline.
    fn quarantine(&mut self, life: LifeId) {
        let now = self.now();
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let pages = l.pages();
        l.attached_mut().quarantined = Some(now);
        let open = l.legs().iter().filter(|leg| !leg.closed);
        let meters: Vec<_> = (open.filter_map(|leg| self.peers.get(&leg.peer)))
            .map(|link| Arc::clone(&link.meter))
            .collect();
        meters.iter().for_each(|meter| meter.quarantined(pages));
        let stats = &self.node.stats;
        stats.quarantined_now.fetch_add(1, Ordering::Relaxed);
        stats.quarantined_pages.fetch_add(pages, Ordering::Relaxed);
        self.quarantined
            .insert((now, life), Quarantined { pages, meters });
        self.tell_oldest();
    }

    fn tell_oldest(&self) {
        if let Some(oldest) = self.node.stats.oldest.get(self.nth) {
            oldest.set(
                self.quarantined
                    .first_key_value()
                    .map(|((since, _), _)| *since),
            );
        }
    }

    /// A leg is bound to a claim that came with a trace context: the room is of that trace.
    fn trace(&mut self, life: LifeId, leg: LegNo) {
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let claim = l.legs().get(usize::from(leg.0)).and_then(|record| {
            let number = record.claim?.id.number;
            self.traces.get(&(record.peer, number))
        });
        if let Some(trace) = claim {
            let attached = l.attached_mut();
            attached.trace.get_or_insert_with(|| Box::new(*trace));
            if let Some(room) = &attached.actor {
                // In front of the event: within this thread, in order.
                room.do_send(Traced(*trace));
            }
        }
    }

    fn set_timer(&mut self, life: LifeId, timer: Timer) {
        let Some(attached) = self.core.attached(life) else {
            return;
        };
        let own = attached.deadline;
        let deadlines = &self.node.deadlines;
        let after = match timer {
            Timer::Outcome => match own.or(deadlines.outcome) {
                Some(after) => after,
                None => return,
            },
            Timer::Stall => deadlines.stall,
            Timer::Drain => deadlines.drain,
            Timer::Explain => deadlines.drain.min(deadlines.stall),
        };
        let at = self.running.now().after(after);
        self.timers.set(life, &mut attached.armed, timer, at);
    }

    /// A turn begins, because something happened.
    fn wake(&mut self) {
        crate::runtime::spin::stay_awake();
        self.count_turn();
    }

    /// A turn begins, for whatever reason: a clock alone keeps no thread awake.
    fn count_turn(&mut self) {
        let armed = self.timers.len() > 0;
        let now = self.node.now();
        self.scribe.turn_at(now);
        self.beat.begin_at(Duration::from_nanos(now.0));
        #[cfg(feature = "plant")]
        crate::copy::plant::wedge(self.beat.part());
        if let Some(gap) = self.running.turn(now, armed) {
            tracing::warn!(
                ?gap,
                "this process did not run for a while; its deadlines move"
            );
        }
    }

    fn set_alarm(&mut self, ctx: &mut Context<Self>) {
        let now = self.running.now();
        if let Some(due) = self.wakeup.set(self.timers.next(), now) {
            let alarm = later(ctx, Alarm { due }, due.since(now));
            if let Some(old) = self.alarm.replace(alarm) {
                old.abort();
            }
        }
    }

    fn wake_for_clocks(&mut self) {
        let fires = self.wakeup.rings(self.timers.next(), self.running.now());
        // It can be put there for as long as the shard lives: the queue has no bound.
        if fires && self.inbox.put(Inbound::Fire).is_err() {
            self.wakeup.fired();
        }
    }

    /// The alarm rings now, in the middle of whatever the shard does. For tests: when it rings by
    /// itself, a scheduler decides what it overtakes.
    #[cfg(feature = "plant")]
    pub fn ring_the_alarm(&mut self) {
        self.count_turn();
        self.wake_for_clocks();
    }

    fn fire(&mut self, ctx: &mut Context<Self>) {
        self.wakeup.fired();
        let now = self.running.now();
        while let Some(clock) = self.timers.pop(now) {
            if let Clock::Room(life, Timer::Outcome) = clock
                && let Some(l) = self.core.life_mut(life)
                && l.outcome().is_none()
            {
                l.attached_mut().late = Some(now);
                self.late.insert((now, life));
            }
            let input = match clock {
                Clock::Room(life, timer) => Input::Timer { life, timer },
                Clock::Early(peer, tag) => Input::EarlyTimer { peer, tag },
            };
            self.input(input, ctx);
        }
    }

    fn open_claim(&mut self, life: LifeId, leg: LegNo, peer: PeerRef) {
        let inbox = self.inbox.clone();
        let known = self.peers.contains_key(&peer);
        let (me, limits) = (self.node.incarnation, &self.node.deadlines);
        let default_deadline = limits.outcome;
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let key = l.key();
        let deadline = l.attached().deadline.or(default_deadline);
        let mut sections = Vec::new();
        let mut targets = Vec::new();
        let mut aux_target = None;
        for (held, lent) in l.leases_mut() {
            let Lease::Write(lease) = &mut lent.lease else {
                continue;
            };
            match held {
                Held::Section(_) => {
                    targets.push(lease.target_section());
                    sections.push(lease.pages().to_vec());
                }
                Held::Aux => aux_target = Some(lease.target_section()),
                Held::Chunk(_) => {}
            }
        }
        let AttachedRole::Receiver { draft: kept, .. } = &mut l.attached_mut().role else {
            return;
        };
        let Some(draft) = kept.as_deref() else {
            return;
        };
        let tag = ClaimTag {
            id: ClaimId {
                receiver: me,
                sender: Incarnation::default(),
                number: ClaimNo(0),
            },
            room: key,
        };
        let claim = Box::new(Claim {
            tag,
            receivers: draft.receivers,
            rank: draft.rank,
            part: draft
                .parts
                .get(usize::from(leg.0))
                .copied()
                .unwrap_or(Part::Whole),
            sections: draft
                .pools
                .iter()
                .zip(sections)
                .map(|(pool, pages)| Section { pool: *pool, pages })
                .collect(),
            skip: draft.skip,
            total: draft.total,
            aux: draft.aux.filter(|_| leg.0 == 0),
            gate: 0,
            deadline_ms: deadline.map_or(u32::MAX, |d| {
                u32::try_from(d.as_millis()).unwrap_or(u32::MAX)
            }),
            checksum: draft.checksum,
            trace: draft.trace,
        });
        if usize::from(leg.0) + 1 == draft.parts.len() {
            *kept = None;
        }
        let aux_target = aux_target.filter(|_| leg.0 == 0);
        let layers = match claim.part {
            Part::Whole => 0..u32::MAX,
            Part::Layers { first, end } => first..end,
        };
        let bell = Arc::new(Bell { inbox, life, leg });
        let target = Target::new(targets, aux_target, bell).only_for(peer, layers);
        let request = OpenRequest {
            life,
            leg,
            claim,
            target,
        };
        if known {
            self.command(peer, Command::Open(Box::new(request)));
        } else {
            let reason = Reason::new(crate::reason::Code::PeerLost, "the peer is not connected");
            let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
            drop(request);
            self.follow_up.push_back(Input::ClaimNotOpened {
                life,
                leg,
                reason,
                witness,
            });
        }
    }

    fn close_gate(&mut self, life: LifeId, leg: LegNo) {
        let Some((key, gate)) = self.key_and_gate(life, leg) else {
            return;
        };
        match std::mem::replace(gate, Gate::None) {
            Gate::Open(open) => {
                let claim = open.number();
                *gate = Gate::Closing(open.close());
                self.finish_gate(life, leg);
                if let Some(Gate::Closing(_)) = self.gate(life, leg) {
                    self.record_gate(key, life, leg, claim, GateIs::Occupied);
                }
            }
            other => *gate = other,
        }
    }

    /// Tries to finish a closing gate; its witness goes to the core.
    fn finish_gate(&mut self, life: LifeId, leg: LegNo) {
        let Some((key, gate)) = self.key_and_gate(life, leg) else {
            return;
        };
        let Gate::Closing(closing) = std::mem::replace(gate, Gate::Closed) else {
            return;
        };
        let claim = closing.number();
        match closing.try_finish() {
            Ok(witness) => {
                self.record_gate(key, life, leg, claim, GateIs::Closed);
                let landed = witness.landed();
                self.gate_over(life, leg, landed, Witness::GateClosed(witness));
            }
            // Whoever is inside may be dead.
            Err(closing) => match closing.try_finish_dead() {
                Ok(witness) => {
                    self.record_gate(key, life, leg, claim, GateIs::WriterDead);
                    let landed = witness.landed();
                    self.gate_over(life, leg, landed, Witness::WriterDead(witness));
                }
                Err(closing) => {
                    if let Some(gate) = self.gate(life, leg) {
                        *gate = Gate::Closing(closing);
                    }
                    self.stuck_gates.push((life, leg));
                }
            },
        }
    }

    fn gate_over(&mut self, life: LifeId, leg: LegNo, landed: GateLanded, witness: Witness) {
        if let Some(attached) = self.core.attached(life)
            && let AttachedRole::Receiver { landed: all, .. } = &mut attached.role
        {
            let bytes = all.add(landed);
            attached.moved_on(leg).written += bytes;
            self.count_landed(life, leg, bytes);
        }
        self.follow_up
            .push_back(Input::GateClosed { life, leg, witness });
    }

    /// What a peer wrote by itself is known when its gate is closed; what this node's lanes read from
    /// sockets they have counted.
    fn count_landed(&self, life: LifeId, leg: LegNo, bytes: u64) {
        let leg = (self.core.life(life)).and_then(|l| l.legs().get(usize::from(leg.0)));
        if let Some(link) = leg.and_then(|leg| self.peers.get(&leg.peer)) {
            // Only memory that is shared is let go of before the peer is.
            let fabric = link.route.as_ref().map_or(Fabric::Shm, PeerRoute::fabric);
            if fabric != Fabric::Tcp {
                link.meter.received(fabric, bytes);
            }
        }
    }

    fn gate(&mut self, life: LifeId, leg: LegNo) -> Option<&mut Gate> {
        self.key_and_gate(life, leg).map(|(_, gate)| gate)
    }

    /// With the room's key, if it was admitted.
    fn key_and_gate(&mut self, life: LifeId, leg: LegNo) -> Option<(Option<RoomKey>, &mut Gate)> {
        let attached = self.core.attached(life)?;
        let gate = match &mut attached.role {
            AttachedRole::Receiver { gates, .. } => gates.get_mut(usize::from(leg.0))?,
            AttachedRole::Sender { .. } => return None,
        };
        Some((attached.key, gate))
    }

    fn post(&mut self, life: LifeId, leg: LegNo, job: u32, spec: JobSpec) {
        let all = self.lanes.len().max(1);
        let next = self.next_lane % all;
        self.next_lane = self.next_lane.wrapping_add(1);
        let held = match &spec {
            JobSpec::Pages { chunk, .. } => Held::Chunk(*chunk),
            JobSpec::Aux => Held::Aux,
        };
        let id = JobId {
            life,
            leg,
            job: job_code(job, held),
        };
        let built = self.build(id, held, &spec);
        let only = built.as_ref().and_then(|(_, job, _)| job.lane);
        let lane = only.map_or(next, usize::from);
        self.record_job(id, job, lane, built.as_ref());
        match (built, self.lanes.get(next)) {
            (Some((Road::Copy(way), job, true)), _) => {
                let meter = job.meter;
                let job = Job::over(job.ticket, way, job.layout, job.place, job.checksum);
                let job = job.metered(meter);
                if let Some(back) = self.small.copy(job, &self.node.stats) {
                    let over = self.job_over(back);
                    self.follow_up.push_back(over);
                }
            }
            // Bounded by `Limits::jobs_per_lane`: a slot is taken before a chunk is pushed, and no lane
            // gets more than one part of it.
            (Some((Road::Copy(way), job, _)), Some(_)) => {
                let (class, meter) = (job.class, job.meter);
                let job = Job::over(job.ticket, way, job.layout, job.place, job.checksum);
                let job = job.metered(meter);
                let most = if only.is_some() { 1 } else { all };
                for (i, part) in job.split(most).into_iter().enumerate() {
                    let at = (lane + i) % all;
                    let part = match self.node.stats.lanes.get(at) {
                        Some(queue) => part.queued(queue::Place::take(queue)),
                        None => part,
                    };
                    self.to_lane(at, LaneWork::Copy(class, Box::new(part)));
                }
            }
            (Some((Road::Tcp(route), job, _)), _) => route.post(job),
            _ => {
                // Nothing was posted; the debt that was recorded for it is paid by a ticket that
                // never went anywhere.
                let end = JobEnd::Errored("the job could not be built".into());
                self.job_failed_to_start(id, held, end);
            }
        }
    }

    /// The job, its way, and whether it is copied here and now.
    fn build(&mut self, id: JobId, held: Held, spec: &JobSpec) -> Option<(Road, NewJob, bool)> {
        let l = self.core.life_mut(id.life)?;
        let record = l.legs().get(usize::from(id.leg.0))?;
        let (peer, gate, checksum) = (record.peer, record.gate, record.checksum);
        let number = record.claim?.id.number;
        let class = l.attached().class;
        let AttachedRole::Sender { cancel, lane, .. } = &l.attached().role else {
            return None;
        };
        let (cancel, lane) = (cancel.clone(), *lane);
        let Lease::Read(lease) = &l.custody().lease(held)?.lease else {
            return None;
        };
        let (view, pages) = (lease.source_view(), lease.arc_pages());
        let layout = Arc::clone(lease.pool().layout());
        let place = match spec {
            JobSpec::Pages {
                section,
                layers,
                from,
                to,
                pages: n,
                ..
            } => Place {
                section: *section,
                layers: layers.clone(),
                pages,
                from: *from as usize..(*from + *n) as usize,
                to: *to as usize..(*to + *n) as usize,
            },
            JobSpec::Aux => Place {
                section: Rect::AUX,
                layers: 0..layout.layers,
                pages,
                from: 0..1,
                to: 0..1,
            },
        };
        let link = self.peers.get(&peer)?;
        let meter = Some(Arc::clone(&link.meter));
        let road = match link.route.as_ref()? {
            PeerRoute::Local(gates) => {
                Road::Copy(Way::Local(LocalRoute::new(Arc::clone(gates), gate, number)))
            }
            PeerRoute::Shm(_) => {
                Road::Copy(Way::Shm(Arc::clone(self.places.get(&(peer, number))?)))
            }
            PeerRoute::Tcp(route) => Road::Tcp(route.clone()),
        };
        let cells = place.from.len() as u64 * place.layers.len() as u64;
        let bytes = cells.saturating_mul(layout.page_bytes);
        l.attached_mut().moved_on(id.leg).posted += bytes;
        let copies = matches!(road, Road::Copy(_)) && lane.is_none();
        let here = copies && self.small.takes(bytes, checksum);
        let sink = if here {
            self.small.sink()
        } else {
            if let AttachedRole::Sender { posted, .. } = &mut l.attached_mut().role {
                *posted = true;
            }
            Arc::clone(&self.sink) as Arc<dyn TicketSink>
        };
        let job = NewJob {
            ticket: Ticket::new(id, view, cancel, sink),
            class,
            layout,
            place,
            claim: number,
            gate,
            checksum,
            meter,
            queued: None,
            lane,
        };
        Some((road, job, here))
    }

    fn job_failed_to_start(&mut self, id: JobId, held: Held, end: JobEnd) {
        let (code, _) = job_parts(id.job);
        let witness = Witness::NeverSubmitted(Withdrawn::unnumbered());
        let input = Input::JobOver {
            life: id.life,
            leg: id.leg,
            job: code,
            carried: held,
            rest: 0,
            end,
            witness,
        };
        self.follow_up.push_back(input);
    }

    fn job_over(&mut self, back: JobBack) -> RealInput {
        let JobBack {
            id,
            facts,
            finished,
            witness,
        } = back;
        let (job, held) = job_parts(id.job);
        let end = if let Some(text) = facts.errored {
            JobEnd::Errored(text)
        } else if facts.refused_pieces > 0 {
            self.node.stats.add(&self.node.stats.refused_jobs);
            JobEnd::Refused
        } else if finished {
            JobEnd::Landed {
                checksum: facts.checksum,
            }
        } else {
            JobEnd::Cancelled
        };
        if let Some(attached) = self.core.attached(id.life) {
            attached.moved_on(id.leg).written += facts.landed_bytes;
        }
        let rest = facts.landed_bytes - facts.told_bytes.min(facts.landed_bytes);
        Input::JobOver {
            life: id.life,
            leg: id.leg,
            job,
            carried: held,
            rest,
            end,
            witness: Witness::Job(witness),
        }
    }

    fn cancel_jobs(&mut self, life: LifeId) {
        let Some(l) = self.core.life(life) else {
            return;
        };
        let mut routes: Vec<TcpRoute> = Vec::new();
        for leg in l.legs() {
            let route = self.peers.get(&leg.peer).and_then(|p| p.route.as_ref());
            if let Some(PeerRoute::Tcp(route)) = route {
                routes.push(route.clone());
            }
        }
        if let AttachedRole::Sender { cancel, posted, .. } = &l.attached().role {
            cancel.cancel();
            if *posted {
                for lane in 0..self.lanes.len() {
                    self.to_lane(lane, LaneWork::Cancel(life));
                }
                for route in routes {
                    route.cancel(life);
                }
            }
        }
    }

    /// What a peer of another process says that it wrote counts as far as this node's own lanes
    /// have marked it.
    fn with_own_account(&self, peer: PeerRef, body: Body) -> Body {
        let route = self.peers.get(&peer).and_then(|p| p.route.as_ref());
        let Some(PeerRoute::Tcp(_)) = route else {
            return body;
        };
        match body {
            Body::Complete {
                tag,
                total,
                coverage,
                checksum,
            } => {
                let marked = self
                    .core
                    .offered(peer, tag.id.number)
                    .and_then(|(life, leg)| match &self.core.life(life)?.attached().role {
                        AttachedRole::Receiver { gates, .. } => gates.get(usize::from(leg.0)),
                        AttachedRole::Sender { .. } => None,
                    })
                    .and_then(|gate| match gate {
                        Gate::Open(open) => Some(open.target()),
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

    fn sum(&mut self, life: LifeId) {
        let Some(l) = self.core.life_mut(life) else {
            return;
        };
        let mut sections = Vec::new();
        for (held, lent) in l.leases_mut() {
            let Lease::Write(lease) = &mut lent.lease else {
                continue;
            };
            let section = match held {
                Held::Section(i) => i,
                Held::Aux => Rect::AUX,
                Held::Chunk(_) => continue,
            };
            let (view, pages) = (lease.sum_view(), lease.arc_pages());
            sections.push(SumSection {
                section,
                view,
                pages,
            });
        }
        let inbox = self.inbox.clone();
        let reply = SumReply::new(move |sum| {
            // A sum that was lost with its lane cannot agree with anything.
            let sum = sum.unwrap_or(0x6e6f_2073_756d_2121);
            let _ = inbox.put(Inbound::Core(Input::Summed { life, sum }));
        });
        let lane = life.0 as usize % self.lanes.len().max(1);
        self.to_lane(lane, LaneWork::Sum(SumJob::new(sections, reply)));
    }

    fn give_back(
        &mut self,
        life: LifeId,
        leases: Vec<(Held, Lent)>,
        proof: Quiescence<Witness>,
        mut attached: Attached,
    ) {
        self.actors -= usize::from(attached.actor.is_some());
        self.timers.clear_all(life, &mut attached.armed);
        self.gone(life, &attached);
        let landed = match attached.role {
            AttachedRole::Receiver { landed, .. } => landed,
            AttachedRole::Sender { .. } => crate::handle::Landed::default(),
        };
        let mut kept = Vec::new();
        for (held, lent) in leases {
            match &lent.chunk {
                // Somebody waits for this one by itself.
                Some(chunk) if chunk.is_awaited() => give_back_chunk(lent, None),
                _ => kept.push((held, lent.lease)),
            }
        }
        let proofs: Vec<Proof> = proof.witnesses().iter().map(Witness::proof).collect();
        self.record_end(life, attached.key, &proofs);
        attached.shared.give_back(Back {
            leases: kept,
            proofs,
            landed,
        });
    }
}

impl Shard {
    /// Counts a life that is over.
    fn gone(&mut self, life: LifeId, attached: &Attached) {
        let stats = &self.node.stats;
        if !attached.apart {
            stats.rooms.gone(attached.role(), attached.state);
        }
        if let Some(began) = attached.shared.abort_began()
            && !attached.apart
            && matches!(attached.shared.outcome(), Some(Outcome::Aborted(_)))
        {
            stats.rooms.reusable(began, self.now());
        }
        if let Some(since) = attached.late {
            self.late.remove(&(since, life));
        }
        if let Some(since) = attached.quarantined
            && let Some(was) = self.quarantined.remove(&(since, life))
        {
            let pages = was.pages;
            was.meters.iter().for_each(|meter| meter.released(pages));
            stats.quarantined_now.fetch_sub(1, Ordering::Relaxed);
            stats.quarantined_pages.fetch_sub(pages, Ordering::Relaxed);
            self.tell_oldest();
        }
    }

    /// A room is in this state now.
    fn stepped(&mut self, life: LifeId, state: StateName) {
        if let Some(l) = self.core.life_mut(life)
            && l.state() != state
        {
            let (role, before) = (l.role(), l.state());
            let attached = l.attached_mut();
            attached.state = state;
            attached.shared.set_state(state);
            if !attached.apart {
                self.node.stats.rooms.moved(role, before, state);
            }
        }
    }
}

fn give_back_chunk(lent: Lent, bounced: Option<Reason>) {
    let Lent { lease, chunk, slot } = lent;
    drop(slot);
    if let (Some(chunk), Lease::Read(lease)) = (chunk, lease) {
        chunk.keep(ChunkBack { lease, bounced });
    }
}

/// A job's number and what it carries, in the one word that its ticket keeps.
fn job_code(job: u32, held: Held) -> u64 {
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

impl Actor for Shard {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        ctx.set_mailbox_capacity(1 << 16);
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        // What is still held when the arbiter stops is held for a reason: a writer that was not
        // proven to be out. It is leaked, never unmapped.
        let mut core = std::mem::replace(
            &mut self.core,
            ShardCore::new(CoreLimits::from(&self.node.limits)),
        );
        if !core.is_empty() {
            let lives: Vec<LifeId> = core.lives().map(|(life, _)| life).collect();
            for life in lives {
                // Whoever waits for the room or for a chunk hears that nothing will come.
                if let Some(l) = core.life(life) {
                    l.attached().shared.lost();
                }
                let leases = core.life_mut(life).into_iter().flat_map(|l| l.leases_mut());
                leases.for_each(|(_, lent)| drop(lent.chunk.take()));
            }
            std::mem::forget(core);
        }
    }
}

impl Handler<FromInbox> for Shard {
    type Result = MessageResult<FromInbox>;

    fn handle(&mut self, FromInbox(mut batch): FromInbox, ctx: &mut Context<Self>) -> Self::Result {
        self.wake();
        self.small.refill();
        self.beat.take(batch.len());
        for message in batch.drain(..) {
            self.inbound(message, ctx);
        }
        self.settle(ctx);
        MessageResult(batch)
    }
}

impl Handler<Listen> for Shard {
    type Result = ();

    /// Goes on with what a turn began, on the same thread: the clocks are as they were then.
    fn handle(&mut self, _: Listen, ctx: &mut Context<Self>) {
        crate::runtime::drive::happened();
        let Some(ear) = &self.ear else { return };
        let mut heard = ear.hear(std::mem::take(&mut self.heard));
        for Said { life, told } in heard.drain(..) {
            let input = match told {
                Some((state, effects)) => {
                    self.stepped(life, state);
                    Input::RoomSaid {
                        life,
                        state,
                        effects,
                    }
                }
                None => {
                    self.stepped(life, StateName::Draining);
                    Input::RoomPanicked { life }
                }
            };
            self.input(input, ctx);
        }
        heard.shrink_to(KEPT_OUTPUTS);
        self.heard = heard;
        self.settle(ctx);
    }
}

impl Handler<PeerSays> for Shard {
    type Result = MessageResult<PeerSays>;

    fn handle(&mut self, says: PeerSays, ctx: &mut Context<Self>) -> Self::Result {
        self.wake();
        self.small.refill();
        let PeerSays { peer, mut items } = says;
        for item in items.drain(..) {
            let input = match item {
                FromPeer::Claim {
                    offer,
                    terms,
                    shm,
                    trace,
                } => {
                    if let Some(shm) = shm {
                        self.places.insert((peer, offer.tag.id.number), shm);
                    }
                    if let Some(trace) = trace {
                        self.traces.insert((peer, offer.tag.id.number), trace);
                    }
                    Input::Claim { peer, offer, terms }
                }
                FromPeer::Body(body) => Input::Message {
                    peer,
                    body: self.with_own_account(peer, body),
                },
            };
            self.input(input, ctx);
        }
        self.settle(ctx);
        MessageResult(items)
    }
}

impl Handler<SessionAnswers> for Shard {
    type Result = ();

    fn handle(&mut self, SessionAnswers(answers): SessionAnswers, ctx: &mut Context<Self>) {
        self.wake();
        for says in answers {
            match says {
                SessionSays::Opened {
                    life,
                    leg,
                    tag,
                    gate,
                } => {
                    self.record_gate(Some(tag.room), life, leg, tag.id.number, GateIs::Open);
                    match self.gate(life, leg) {
                        Some(slot) => *slot = Gate::Open(gate),
                        // Its life is kept until this message, so this cannot be; a dropped gate closes.
                        None => drop(gate),
                    }
                    self.input(Input::ClaimOpened { life, leg, tag }, ctx);
                }
                SessionSays::NotOpened {
                    life,
                    leg,
                    reason,
                    witness,
                } => {
                    let witness = Witness::NeverSubmitted(witness);
                    self.input(
                        Input::ClaimNotOpened {
                            life,
                            leg,
                            reason,
                            witness,
                        },
                        ctx,
                    );
                }
            }
        }
        self.settle(ctx);
    }
}

impl Handler<ShardPeer> for Shard {
    type Result = ();

    fn handle(&mut self, up: ShardPeer, ctx: &mut Context<Self>) {
        let back = self.peers.contains_key(&up.peer);
        self.peers.insert(
            up.peer,
            PeerLink {
                addr: up.addr,
                meter: up.meter,
                route: Some(up.route),
            },
        );
        if back {
            self.input(Input::PeerBack { peer: up.peer }, ctx);
        }
        self.settle(ctx);
    }
}

impl Handler<PeerGone> for Shard {
    type Result = ();

    fn handle(&mut self, gone: PeerGone, ctx: &mut Context<Self>) {
        self.wake();
        self.input(
            Input::PeerLost {
                peer: gone.peer,
                reason: gone.reason,
            },
            ctx,
        );
        // Claims that waited for their room went without a word.
        let core = &self.core;
        self.places
            .retain(|(peer, number), _| *peer != gone.peer || core.serves(*peer, *number));
        self.traces
            .retain(|(peer, number), _| *peer != gone.peer || core.serves(*peer, *number));
        if gone.for_good {
            self.peers.remove(&gone.peer);
        } else if let Some(link) = self.peers.get_mut(&gone.peer)
            && matches!(link.route, Some(PeerRoute::Shm(_)))
        {
            link.route = None;
        }
        self.settle(ctx);
    }
}

impl Handler<Alarm> for Shard {
    type Result = ();

    fn handle(&mut self, alarm: Alarm, ctx: &mut Context<Self>) {
        self.count_turn();
        if self.wakeup.is_set_for(alarm.due) {
            self.wake_for_clocks();
            self.settle(ctx);
        } else {
            self.beat.end();
        }
    }
}

impl Handler<LookAgain> for Shard {
    type Result = ();

    fn handle(&mut self, _: LookAgain, ctx: &mut Context<Self>) {
        self.wake();
        self.looking = false;
        for (life, leg) in std::mem::take(&mut self.stuck_gates) {
            self.finish_gate(life, leg);
            self.follow_up(ctx);
        }
        self.settle(ctx);
    }
}
