//! The owner of one peer's session: gives claims their numbers, opens their gates, moves frames.
//!
//! ```text
//!   shards ── Commands ──▶ PeerActor ──▶ Session ──▶ frames ──▶ transport ──▶ the other node
//!   shards ◀── PeerSays ── PeerActor ◀── Session ◀── frames ◀── transport ◀──
//!
//!   Down ──Attach──▶ Up ──transport lost──▶ Resuming ──Attach, same session──▶ Up
//!     ▲               └── Bye, GaveUp, violation, GiveUp ──▶ Down
//!     └── Deadlines::resume ─────────────────────┘
//! ```
//!
//! One actor for each incarnation of a peer; sessions and transports come and go under it. A claim
//! gets its number, its gate and its place in the queue in one step, here and nowhere else (`open`);
//! without a credit of the peer it waits. The reader of a transport waits until the shards have taken
//! what it read (`deliver`), so that a peer cannot fill their mailboxes; it never waits for this
//! side's writes (`flush`). `attach` is how sessions and transports begin,
//! `life` how they end, `clock` when.

use super::message::{Body, Claim, Trace};
use super::session::Session;
use super::transport::Transport;
use super::wire::FrameReader;
use crate::fabric::ucx::FarPool;
use crate::fabric::{Fabric, PeerRoute, Reach};
use crate::ids::{ClaimNo, Incarnation, LegNo, LifeId, PeerRef, PoolId, RoomId};
use crate::memory::Target;
use crate::peer::hello::SessionId;
use crate::peer::terms::Slices;
use crate::reason::Reason;
use crate::record::{PeerIs, Scribe};
use crate::room::event::LegTerms;
use crate::runtime::control::Contents;
use crate::runtime::link::RemotePools;
use crate::runtime::meter::Meter;
use crate::runtime::pulse::Beat;
use crate::runtime::shared::NodeShared;
use crate::runtime::spin;
use crate::supervisor::actor::{SessionAnswers, SessionSays, Shard};
use crate::supervisor::early::Offer;
use actix::{Actor, Addr, Context, Handler, Message};
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::layout::cube::CubeLayout;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

mod attach;
mod clock;
mod deliver;
mod flush;
mod life;
mod near;
mod open;

pub(crate) use attach::{Attach, Attached, RouteWish, UcxWish};
use clock::Clock;
pub(crate) use life::{GiveUp, Standing, WhereStands};

/// A claim that a shard wants opened.
#[derive(Debug)]
pub(crate) struct OpenRequest {
    pub(crate) life: LifeId,
    pub(crate) leg: LegNo,
    /// All but its number and its gate's slot.
    pub(crate) claim: Box<Claim>,
    pub(crate) target: Target,
    /// It waits for a session, if there is none now.
    pub(crate) patient: bool,
    /// How long it does, once it does.
    pub(crate) until: Option<Instant>,
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

/// This node's pools changed.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct PoolsChanged(pub(crate) Vec<Body>);

/// Asks whether the owner of the session is there; its beat is told.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct IsThere(pub(crate) Arc<Beat>);

/// A message of a peer on its way to a shard.
#[derive(Debug)]
pub(crate) enum FromPeer {
    Claim {
        offer: Offer,
        terms: Result<Arc<LegTerms>, Reason>,
        /// Which parts of cells are carried, if not all of them.
        slices: Option<Slices>,
        /// Where to write, if this node does that itself.
        reach: Option<Reach>,
        /// Of the request that it is for.
        trace: Option<Trace>,
    },
    Body(Body),
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

/// Who hears of a peer's state, of its fabric, and of what its pools hold.
pub(crate) type Told = (
    tokio::sync::watch::Sender<PeerState>,
    tokio::sync::watch::Sender<Option<Fabric>>,
    tokio::sync::watch::Sender<Contents>,
);

/// A pool of the peer, as it was announced.
struct Announced {
    layout: PoolLayout,
    content: Option<Arc<CubeLayout>>,
}

/// See the module.
pub(crate) struct PeerActor {
    me: PeerRef,
    node: Arc<NodeShared>,
    name: String,
    incarnation: Incarnation,
    shards: Vec<Addr<Shard>>,
    link: Option<Link>,
    /// Counts transports, lost ones twice: what comes from another one than the present is dropped.
    transports: u64,
    /// Claims that wait for a credit, or for a session, in order.
    waiting: BTreeMap<u64, Box<OpenRequest>>,
    waiting_at: HashMap<(LifeId, LegNo), u64>,
    /// The highest claim number that the peer named in earlier sessions.
    floor: ClaimNo,
    /// This life of the peer never comes back.
    for_good: bool,
    /// When a path of a session with it failed last, and not the session.
    path_failed: Option<Instant>,
    next_waiting: u64,
    /// A clock runs for claims that wait for a session.
    waking: bool,
    flushing: bool,
    /// An acknowledgement is on its way.
    acknowledging: bool,
    clock: Clock,
    /// Answers of this turn, for each shard.
    says: Vec<Vec<SessionSays>>,
    /// Emptied lists, to be filled again.
    spare: Vec<Vec<FromPeer>>,
    /// Told when a session is up or gone.
    watch: tokio::sync::watch::Sender<PeerState>,
    /// Counts what concerns it.
    meter: Arc<Meter>,
    /// Told how bytes go in a new session.
    fabric: tokio::sync::watch::Sender<Option<Fabric>>,
    /// Told what the peer's pools hold of the model.
    contents: tokio::sync::watch::Sender<Contents>,
    /// The peer ended the last session on purpose: this node does not connect to it by itself.
    parted: Arc<AtomicBool>,
    scribe: Scribe,
}

/// A session, and what it goes over now.
struct Link {
    session: Session,
    id: SessionId,
    pools: BTreeMap<PoolId, Announced>,
    route: PeerRoute,
    /// Pools of a peer that shares memory, mapped here.
    remote: RemotePools,
    /// Pools of a peer that are written through UCX.
    far: BTreeMap<PoolId, Arc<FarPool>>,
    /// Pools of this node that the peer was told how to write through UCX.
    offered: BTreeSet<PoolId>,
    /// Pools of this node whose descriptors could not be sent yet.
    unshared: Vec<PoolId>,
    /// Tasks that watch a peer which shares memory.
    watching: Vec<tokio::task::JoinHandle<()>>,
    reader: FrameReader,
    /// None while it waits to be resumed.
    transport: Option<Transport>,
    /// The shards have not taken yet what the transport's reader read last.
    taking: bool,
    /// The task that reads.
    reading: Option<tokio::task::JoinHandle<()>>,
    /// The task that waits for room in the transport.
    blocked: Option<tokio::task::JoinHandle<()>>,
}

impl Drop for Link {
    fn drop(&mut self) {
        self.stop_tasks();
        for task in self.watching.drain(..) {
            task.abort();
        }
    }
}

impl Link {
    /// They hold the transport: without them it closes with its owner.
    fn stop_tasks(&mut self) {
        for task in [self.reading.take(), self.blocked.take()]
            .into_iter()
            .flatten()
        {
            task.abort();
        }
    }
}

impl PeerActor {
    pub(crate) fn new(
        me: PeerRef,
        node: Arc<NodeShared>,
        name: String,
        incarnation: Incarnation,
        shards: Vec<Addr<Shard>>,
        (watch, fabric, contents): Told,
        parted: Arc<AtomicBool>,
    ) -> Self {
        PeerActor {
            says: shards.iter().map(|_| Vec::new()).collect(),
            scribe: node.recorder.shard(me.0 as usize % shards.len().max(1)),
            clock: Clock::new(&node.deadlines),
            me,
            meter: node.stats.meters.of(&name),
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
            path_failed: None,
            next_waiting: 0,
            waking: false,
            flushing: false,
            acknowledging: false,
            spare: Vec::new(),
            watch,
            fabric,
            contents,
            parted,
        }
    }

    /// Whoever wants to know hears how the session is now.
    fn is_now(&self, state: PeerState) {
        let (is, why) = match &state {
            PeerState::Up => (PeerIs::Up, ""),
            PeerState::Resuming(why) => (PeerIs::Resuming, why.as_str()),
            PeerState::Down(why) => (PeerIs::Down, why.as_str()),
        };
        self.scribe.peer(self.me, self.incarnation, is, why);
        let now = state.clone();
        let before = self.watch.send_replace(state);
        self.meter.state(&before, &now);
    }

    /// Whoever wants to know hears what the peer's pools hold.
    fn tell_contents(&self) {
        let pools = self.link.iter().flat_map(|link| link.pools.values());
        let contents = pools.filter_map(|pool| pool.content.clone()).collect();
        self.contents.send_replace(contents);
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
}

impl Actor for PeerActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Bounded from inside: shards send for admitted rooms only, the reader waits.
        ctx.set_mailbox_capacity(1 << 16);
    }
}

impl Handler<Commands> for PeerActor {
    type Result = ();

    fn handle(&mut self, Commands(commands): Commands, ctx: &mut Context<Self>) {
        // The shard that said so may be another thread's; an answer will come here.
        spin::stay_awake();
        for command in commands {
            self.command(command, ctx);
        }
        self.tell_says();
        self.wants_flush(ctx);
    }
}

impl Handler<IsThere> for PeerActor {
    type Result = ();

    fn handle(&mut self, IsThere(beat): IsThere, _: &mut Context<Self>) {
        beat.answer();
    }
}

impl Handler<PoolsChanged> for PeerActor {
    type Result = ();

    fn handle(&mut self, PoolsChanged(bodies): PoolsChanged, ctx: &mut Context<Self>) {
        for mut body in bodies {
            self.keep_key(&mut body);
            self.share_pool(&body);
            self.command(Command::Say(body), ctx);
        }
        self.wants_flush(ctx);
    }
}
