//! One node: the shipped shard core with its rooms, clocks, gates and pools.
//!
//! ```text
//!   callers, sessions, lanes ──▶ inbox ─┐                       ┌▶ outputs (shard.rs)
//!                 rooms' answers ──▶ said ─┴▶ ShardCore::handle ─┤
//!                                     ▲                         └▶ mail ──▶ Room::handle
//!                                     └────────────────────────────────────────┘
//! ```

use super::chance::roll;
use super::copy::Lane;
use super::end::{Command, Layouts};
use super::fact::{Fact, LeaseNo, Life, PoolNo};
use super::plan::NodePlan;
use super::plant::Plant;
use crate::memory::{
    CancelFlag, Closing, Doorbell, GateTable, JobBack, Lease, OpenGate, Pool, SourceView,
    TicketSink, Witness,
};
use crate::timers::{Armed, Running, Timers, Wakeup};
use kvroom_actors::copy::schedule::Class;
use kvroom_actors::ids::{ClaimNo, Incarnation, LegNo, LifeId, PeerRef, Tick};
use kvroom_actors::limits::Deadlines;
use kvroom_actors::peer::message::{Body, ClaimTag};
use kvroom_actors::reason::Reason;
use kvroom_actors::room::event::LegTerms;
use kvroom_actors::room::{Event, Room};
use kvroom_actors::supervisor::core::{CoreLimits, ShardCore};
use kvroom_actors::supervisor::early::Offer;
use kvroom_actors::supervisor::io::{Input, Output};
use kvroom_kernels::layout::{Order, PoolKind, PoolLayout};
use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

pub(crate) type Core = ShardCore<Lent, Witness, Attached>;
pub(crate) type In = Input<Lent, Witness, Attached>;
pub(crate) type Out = Output<Lent, Witness, Attached>;

/// What custody keeps: a lease of the shipped pool.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) no: LeaseNo,
    pub(crate) lease: RefCell<Lease>,
}

/// What the shell keeps with a life.
#[derive(Debug)]
pub(crate) struct Attached {
    pub(crate) life: LifeId,
    pub(crate) role: Kept,
    pub(crate) armed: Armed,
    pub(crate) deadline: u64,
    pub(crate) class: Class,
}

#[derive(Debug)]
pub(crate) enum Kept {
    Sender { cancel: CancelFlag },
    Receiver { gate: Gate, draft: Draft },
}

/// A claim before it has a number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft {
    pub(crate) receivers: u16,
    pub(crate) rank: u16,
    pub(crate) skip: u64,
    pub(crate) total: u64,
    pub(crate) checksum: bool,
    pub(crate) aux: Option<u32>,
}

#[derive(Debug)]
pub(crate) enum Gate {
    None,
    Open(OpenGate),
    Closing(Closing),
    Closed,
}

/// What reaches a shard.
pub(crate) enum Inbound {
    Core(In),
    Job(JobBack),
    Bell(LifeId),
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
        witness: Witness,
    },
    Claim {
        peer: PeerRef,
        offer: Offer,
        terms: Result<Arc<LegTerms>, Reason>,
    },
    Body {
        peer: PeerRef,
        body: Body,
    },
    PeerUp(PeerRef),
    PeerGone {
        peer: PeerRef,
        reason: Reason,
        for_good: bool,
    },
    Fire,
}

impl Inbound {
    pub(crate) fn is_from_peer(&self) -> bool {
        matches!(self, Inbound::Claim { .. } | Inbound::Body { .. })
    }
}

/// Where tickets come back to, and gates ring.
#[derive(Default)]
pub(crate) struct Sink(Mutex<VecDeque<Back>>);

pub(crate) enum Back {
    Job(JobBack),
    Bell(LifeId),
}

impl Sink {
    pub(crate) fn take(&self) -> VecDeque<Back> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

impl TicketSink for Sink {
    fn returned(&self, back: JobBack) {
        self.0.lock().unwrap().push_back(Back::Job(back));
    }
}

/// Rings a shard for one claim.
pub(crate) struct Bell {
    pub(crate) sink: Arc<Sink>,
    pub(crate) life: LifeId,
}

impl Doorbell for Bell {
    fn ring(&self, _: ClaimNo) {
        let back = Back::Bell(self.life);
        self.sink.0.lock().unwrap().push_back(back);
    }
}

/// A sum over a destination, being taken.
pub(crate) type Sum = Vec<(u16, SourceView, Arc<[u32]>)>;

pub(crate) struct Node {
    pub(crate) id: usize,
    pub(crate) epoch: u32,
    pub(crate) up: bool,
    pub(crate) incarnation: Incarnation,
    pub(crate) core: Core,
    pub(crate) inbox: VecDeque<Inbound>,
    pub(crate) said: VecDeque<In>,
    pub(crate) follow: VecDeque<In>,
    pub(crate) rooms: BTreeMap<LifeId, Room<Witness>>,
    pub(crate) mail: VecDeque<(LifeId, Event<Witness>)>,
    pub(crate) outgoing: Vec<(PeerRef, Command)>,
    /// What its sessions did that an onlooker sees, in this step.
    pub(crate) facts: Vec<Fact>,
    pub(crate) timers: Timers,
    pub(crate) running: Running,
    pub(crate) wakeup: Wakeup,
    /// How far its clock is ahead.
    pub(crate) skew: u64,
    /// Of this life; a table is never let go of, since a writer may be inside for as long as it likes.
    pub(crate) gates: &'static GateTable,
    /// Numbers given to claims, in all lives.
    pub(crate) claims: u64,
    pub(crate) pools: [Pool; 2],
    pub(crate) pool_no: [PoolNo; 2],
    pub(crate) layouts: Layouts,
    /// What the caller left in each free page.
    pub(crate) canaries: [Vec<u64>; 2],
    pub(crate) next_page: [u32; 2],
    pub(crate) peers: BTreeMap<PeerRef, (usize, usize)>,
    pub(crate) next_peer: u32,
    pub(crate) next_life: u64,
    /// Outcomes delivered, in all lives.
    pub(crate) outcomes: u64,
    pub(crate) lane: Lane,
    pub(crate) sink: Arc<Sink>,
    pub(crate) sums: BTreeMap<LifeId, Sum>,
    pub(crate) stuck: Vec<(LifeId, LegNo)>,
    pub(crate) look_due: bool,
    pub(crate) turn_due: bool,
    pub(crate) mail_due: bool,
    /// How many times as long a turn takes.
    pub(crate) slow: u64,
    pub(crate) copies_small: bool,
    /// Leases and gates of a life whose pool survived it, until the next one attaches.
    pub(crate) limbo: Option<Limbo>,
    pub(crate) plant: Option<Plant>,
}

/// What a dead process left in a pool that survived it: gates, those that no shard had heard of yet
/// among them, and leases. Gates go first.
pub(crate) type Limbo = (VecDeque<Inbound>, Core);

/// Early claims that a node keeps of one peer.
pub(crate) const EARLY: usize = 2;
/// Outcomes that it remembers.
pub(crate) const SPENT: usize = 64;
/// Frames that a session keeps until they are acknowledged.
pub(crate) const FRAMES: usize = 256;
/// Rows of the aux pool.
const ROWS: u32 = 512;
/// Bytes of a cell.
pub(crate) const CELL: u64 = 64;

fn limits() -> CoreLimits {
    CoreLimits {
        early_claims_per_peer: EARLY,
        quarantined_pages_per_peer: 64,
        spent_keys: SPENT,
    }
}

pub(crate) fn layouts(pages: u32, layers: u32, seed: u64) -> Layouts {
    let order = match roll(&[seed, u64::from(pages)]) % 2 {
        0 => Order::LayersFirst,
        _ => Order::PagesFirst,
    };
    Arc::new([
        PoolLayout {
            name: "kv".into(),
            kind: PoolKind::Kv,
            order,
            layers,
            pages,
            page_bytes: CELL,
            page_tokens: 2,
        },
        PoolLayout {
            name: "aux".into(),
            kind: PoolKind::Aux,
            order: Order::LayersFirst,
            layers: 1,
            pages: ROWS,
            page_bytes: CELL,
            page_tokens: 1,
        },
    ])
}

fn gates(plan: &NodePlan) -> &'static GateTable {
    // A reference for ever, since guards of it are kept over virtual time.
    let table: &'static Arc<GateTable> = Box::leak(Box::new(GateTable::new(plan.pages as usize)));
    table
}

impl Node {
    pub(crate) fn new(id: usize, plan: &NodePlan, layouts: Layouts, plant: Option<Plant>) -> Self {
        let pools = [0, 1].map(|i: usize| Pool::owned(layouts[i].clone()).unwrap());
        Node {
            id,
            epoch: 1,
            up: true,
            incarnation: incarnation(id, 1, 0),
            core: Core::new(limits()),
            inbox: VecDeque::new(),
            said: VecDeque::new(),
            follow: VecDeque::new(),
            rooms: BTreeMap::new(),
            mail: VecDeque::new(),
            outgoing: Vec::new(),
            facts: Vec::new(),
            timers: Timers::default(),
            running: Running::default(),
            wakeup: Wakeup::default(),
            skew: 0,
            gates: gates(plan),
            claims: 0,
            canaries: [0, 1].map(|i: usize| vec![0; layouts[i].pages as usize]),
            pools,
            pool_no: [id as u32 * 1_000, id as u32 * 1_000 + 1],
            layouts,
            next_page: [0, 0],
            peers: BTreeMap::new(),
            next_peer: 1,
            next_life: 1,
            outcomes: 0,
            lane: Lane::default(),
            sink: Arc::default(),
            sums: BTreeMap::new(),
            stuck: Vec::new(),
            look_due: false,
            turn_due: false,
            mail_due: false,
            slow: 1,
            copies_small: plan.copies_small,
            limbo: None,
            plant,
        }
    }

    pub(crate) fn life(&self) -> Life {
        Life {
            node: self.id,
            epoch: self.epoch,
        }
    }

    /// kill -9. Gates and leases of a pool that survives are left as they are.
    pub(crate) fn die(&mut self, pool_survives: bool) {
        self.up = false;
        self.epoch += 1;
        let inbox = std::mem::take(&mut self.inbox);
        self.said.clear();
        self.follow.clear();
        self.rooms.clear();
        self.mail.clear();
        self.outgoing.clear();
        self.sums.clear();
        self.lane = Lane::default();
        self.sink.take();
        self.stuck.clear();
        self.peers.clear();
        let core = std::mem::replace(&mut self.core, Core::new(limits()));
        if pool_survives {
            self.limbo = Some((inbox, core));
        } else {
            drop((inbox, core));
            self.pools = [0, 1].map(|i: usize| Pool::owned(self.layouts[i].clone()).unwrap());
            self.canaries = [0, 1].map(|i: usize| vec![0; self.layouts[i].pages as usize]);
            self.pool_no = self.pool_no.map(|no| no + 2);
        }
        self.sink.take();
    }

    /// A new life. Attaching to the pool closes every gate of the former one.
    pub(crate) fn restart(&mut self, plan: &NodePlan, now: u64) {
        self.up = true;
        self.incarnation = incarnation(self.id, self.epoch, now);
        drop(self.limbo.take());
        self.sink = Arc::default();
        self.gates = gates(plan);
        self.timers = Timers::default();
        self.running = Running::default();
        self.wakeup = Wakeup::default();
        (self.look_due, self.turn_due, self.mail_due) = (false, false, false);
    }

    /// The moment on its own clock.
    pub(crate) fn clock(&self, now: u64) -> Tick {
        Tick(now + self.skew)
    }

    pub(crate) fn count_turn(&mut self, now: u64) {
        let armed = self.timers.len() > 0;
        let now = self.clock(now);
        self.running.turn(now, armed);
    }

    pub(crate) fn gate(&mut self, life: LifeId) -> Option<&mut Gate> {
        match &mut self.core.attached(life)?.role {
            Kept::Receiver { gate, .. } => Some(gate),
            Kept::Sender { .. } => None,
        }
    }
}

fn incarnation(id: usize, epoch: u32, now: u64) -> Incarnation {
    Incarnation {
        started_ns: now + 1,
        nonce: (id as u64) << 32 | u64::from(epoch),
    }
}

/// Deadlines of every node.
pub(crate) fn deadlines() -> Deadlines {
    use std::time::Duration;
    let ms = Duration::from_millis;
    Deadlines {
        outcome: Some(ms(20_000)),
        stall: ms(3_000),
        drain: ms(1_000),
        early_claim: ms(4_000),
        connect: ms(1_000),
        ping: ms(200),
        liveness: ms(1_000),
        resume: ms(2_000),
        backoff_first: ms(20),
        backoff_most: ms(500),
        shutdown: ms(10_000),
    }
}
