//! The supervisor actor: a shard's core, and everything it needs to do what the core says.
//!
//! It alone holds the `Addr`s of its rooms, and everything that reaches a room goes through its
//! mailbox, in order. Handles, tickets and doorbells of other threads put their messages into the
//! shard's inbox; one task carries them over in batches and waits until each batch is done.
//!
//! ```text
//!   inbox ──▶ messages ──▶ core ──▶ outputs ─┬▶ gates   claims, gates, and what they prove
//!   sessions ─▶   │                          ├▶ jobs    copies and sums
//!   clocks ──────▶┘                          └▶ ends    outcomes, quarantine, leases that go back
//! ```

mod clocks;
mod ends;
mod gates;
mod inbox;
mod jobs;
mod messages;

pub use inbox::{Inbound, Inbox, Question, ShardContext};
pub(super) use jobs::Road;
pub(crate) use messages::{FromInbox, PeerGone, PeerSays, SessionAnswers, SessionSays, ShardPeer};

use super::attached::{Attached, Lent, RealInput, RealOutput, Refusal};
use super::core::{CoreLimits, Life, ShardCore};
use super::io::{Counter, Input, Output, Which};
use super::post::Small;
use super::timers::{Running, Timers, Wakeup};
use crate::copy::actor::{Lane, LaneWork};
use crate::fabric::PeerRoute;
use crate::fabric::Reach;
use crate::ids::{ClaimNo, LegNo, LifeId, PeerRef, Tick};
use crate::limits::Deadlines;
use crate::memory::Pool;
use crate::memory::Witness;
use crate::peer::actor::{Command, Commands, PeerActor};
use crate::peer::message::Trace;
use crate::peer::terms::Slices;
use crate::reason::Reason;
use crate::record::Scribe;
use crate::room::actor::{Ear, RoomActor, Said, Tell};
use crate::room::event::Event;
use crate::runtime::later::later;
use crate::runtime::meter::Meter;
use crate::runtime::pulse::Beat;
use crate::runtime::shared::NodeShared;
use actix::{Actor, Addr, AsyncContext, Context};
use ends::{Quarantined, give_back_chunk};
use inbox::{Bell, Sink};
use messages::LookAgain;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::task::AbortHandle;

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
    places: HashMap<(PeerRef, ClaimNo), Reach>,
    /// Which parts of cells the claims of peers are for, where it is not whole ones.
    slices: HashMap<(PeerRef, ClaimNo), Slices>,
    /// Trace contexts that came with claims; from a claim's arrival to its end.
    traces: HashMap<(PeerRef, ClaimNo), Trace>,
    /// Lives that passed their drain deadline, by when they did.
    quarantined: BTreeMap<(Tick, LifeId), Quarantined>,
    /// Lives that have no outcome though the clock of it ran out, by when it did on running time.
    late: BTreeSet<(Tick, LifeId)>,
    /// Gates that were closed with somebody inside.
    stuck_gates: Vec<(LifeId, LegNo)>,
    /// Gates whose writers have just said that they are out.
    heard_out: Vec<(LifeId, LegNo)>,
    looking: bool,
    beat: Arc<Beat>,
    pub(super) scribe: Scribe,
}

struct PeerLink {
    addr: Addr<PeerActor>,
    meter: Arc<Meter>,
    /// `None` while there is no session over shared memory: what it maps is not kept for a peer that
    /// may never come back.
    route: Option<PeerRoute>,
}

/// Commands for a peer in one message: small enough that the allocator has them at hand.
const COMMANDS: usize = 8;

/// Outputs that a shard keeps room for between turns.
const KEPT_OUTPUTS: usize = 1_024;

/// How often a gate that is closed and not empty is looked at, should its bell not ring.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// An outcome that is this much past its deadline is counted as overdue.
const TOO_LATE: Duration = Duration::from_secs(1);

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
            slices: HashMap::new(),
            traces: HashMap::new(),
            quarantined: BTreeMap::new(),
            late: BTreeSet::new(),
            stuck_gates: Vec::new(),
            heard_out: Vec::new(),
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
                let Some((key, trace, apart, again)) = self.core.life(life).map(|l| {
                    let attached = l.attached();
                    let trace = attached.trace.as_deref().copied();
                    (l.key(), trace, attached.apart, attached.retry_of.is_some())
                }) else {
                    return;
                };
                if !apart {
                    self.node.stats.rooms.started(room.role());
                    if again {
                        self.node.stats.rooms.again(room.role());
                    }
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
                if !self.slices.is_empty() {
                    self.slices.remove(&(peer, number));
                }
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
