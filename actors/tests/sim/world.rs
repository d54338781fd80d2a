//! A world: nodes, links, callers, and the one queue of what happens next.
//!
//! ```text
//!   queue: (virtual time, order) ─▶ Ev ─▶ a node, a link, a lane, a caller ─▶ more of them
//!                                              └─▶ Fact ─▶ oracle (which alone may judge)
//! ```
//!
//! What belongs to a stopped process waits until it goes on; what belongs to a dead one is dropped.

use super::caller::{Call, Caller, LifeInfo};
use super::chance::{Fnv, roll};
use super::control::{Answer, Greeting, Link, Meddle};
use super::copy::Flight;
use super::fact::{Fact, LeaseNo, Load, PoolNo};
use super::node::{Node, layouts};
use super::oracle::Oracle;
use super::plan::{MS, Plan, SEC, US};
use super::plant::Plant;
use crate::memory::{GateTable, Inside, Pool};
use kvroom_actors::ids::{Incarnation, LifeId, Tick};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_kernels::coverage::Rect;
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{Hash, Hasher};
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What happens next.
#[derive(Clone, Debug)]
pub(crate) enum Ev {
    Turn(usize, u32),
    Rooms(usize, u32),
    Alarm(usize, u32, Tick),
    Look(usize, u32),
    Summed(usize, u32, LifeId),
    Lane(usize, u32),
    Land(usize, u32),
    Owner(usize, usize, u32),
    Ack(usize, usize, u32),
    Tick(usize, usize, u32),
    Arrive(usize, usize, u64),
    Dial(usize, u32),
    Greet(usize, u32, Greeting),
    Greeted(usize, u32, Answer),
    Data(u64),
    DataRead(u64),
    DataAck(u64),
    /// The caller of this request, in this attempt.
    Call(usize, u32, Call),
    Fault(usize),
    FaultEnds(usize),
    Calm,
    Check,
    /// Only a planted bug does this.
    LateWrite(Pool, u32, u32),
}

/// What a sweep does at one step of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inject {
    Abort(super::plan::Who),
    Kill {
        process: usize,
        pool_survives: bool,
    },
    Stop {
        process: usize,
    },
    Reset,
    DataReset,
    /// The session is given up, here by prefill.
    GiveUp,
    /// The youngest room of a node.
    Panic {
        node: usize,
    },
}

/// How a world is run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) plant: Option<Plant>,
    /// What happens to which control frame.
    pub(crate) meddle: Option<(u64, Meddle)>,
    /// What happens after which steps.
    pub(crate) inject: [Option<(u64, Inject)>; 2],
    /// Whether the trace is kept as text.
    pub(crate) trace: bool,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Of all facts, with their times.
    pub(crate) hash: u64,
    pub(crate) violation: Option<String>,
    pub(crate) trace: Vec<String>,
    pub(crate) steps: u64,
    pub(crate) frames: u64,
    /// Of these, in the first moments.
    pub(crate) early_steps: u64,
    pub(crate) early_frames: u64,
    pub(crate) ended: u64,
    pub(crate) done: u64,
    pub(crate) rooms: u64,
    /// The most that a node held.
    pub(crate) peak: Load,
}

pub(crate) struct World {
    pub(crate) plan: Plan,
    pub(crate) options: Options,
    pub(crate) now: u64,
    order: u64,
    queue: BTreeMap<(u64, u64), Ev>,
    draws: BTreeMap<(u64, usize), u64>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) links: Vec<Link>,
    pub(crate) callers: Vec<Caller>,
    pub(crate) lives: BTreeMap<(usize, LifeId), LifeInfo>,
    /// Gates and pools of every life of every node: whoever maps them still has them.
    pub(crate) tables: BTreeMap<Incarnation, &'static GateTable>,
    pools: BTreeMap<Incarnation, [PoolNo; 2]>,
    pub(crate) flights: BTreeMap<u64, Flight>,
    pub(crate) next_flight: u64,
    pub(crate) next_transport: u64,
    pub(crate) next_lease: LeaseNo,
    /// Writers that died inside a gate.
    pub(crate) dead: Vec<(ClaimTag, Inside<'static>)>,
    pub(crate) stopped: BTreeSet<usize>,
    deferred: Vec<(usize, Ev)>,
    oracle: Oracle,
    hash: Fnv,
    trace: Vec<String>,
    steps: u64,
    frames: u64,
    early: (u64, u64),
    peak: Load,
    pub(crate) over: bool,
    pub(crate) calm: bool,
}

/// A world is over at the latest so long after the storm.
const LAST: u64 = 75 * SEC;
/// What is on its way over the slowest link arrives within this, before fresh rooms begin.
const SLOWEST: u64 = 1_500 * MS;
/// The first moments.
const EARLY: u64 = 40 * MS;
/// Or after so many steps: something goes round in circles.
const MOST_STEPS: u64 = 600_000;

impl World {
    pub(crate) fn new(plan: Plan, options: Options) -> Self {
        let nodes: Vec<Node> = plan
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| {
                let layouts = layouts(node.pages, plan.layers, plan.seed);
                Node::new(i, node, layouts, options.plant)
            })
            .collect();
        let mut world = World {
            links: plan.links.iter().map(|l| Link::new(l.backoff)).collect(),
            callers: plan.requests.iter().map(|_| Caller::default()).collect(),
            tables: nodes.iter().map(|n| (n.incarnation, n.gates)).collect(),
            pools: nodes.iter().map(|n| (n.incarnation, n.pool_no)).collect(),
            nodes,
            options,
            now: 0,
            order: 0,
            queue: BTreeMap::new(),
            draws: BTreeMap::new(),
            lives: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_flight: 0,
            next_transport: 1,
            next_lease: 1,
            dead: Vec::new(),
            stopped: BTreeSet::new(),
            deferred: Vec::new(),
            oracle: Oracle::new(),
            hash: Fnv::default(),
            trace: Vec::new(),
            steps: 0,
            frames: 0,
            early: (0, 0),
            peak: Load::default(),
            over: false,
            calm: false,
            plan,
        };
        world.begin();
        world
    }

    fn begin(&mut self) {
        for link in 0..self.links.len() {
            self.after(0, Ev::Dial(link, 1));
        }
        for i in 0..self.plan.requests.len() {
            self.at(self.plan.requests[i].at, Ev::Call(i, 0, Call::Begin));
        }
        for (i, fault) in self.plan.faults.clone().into_iter().enumerate() {
            self.at(fault.at, Ev::Fault(i));
            self.at(fault.at + fault.lasts, Ev::FaultEnds(i));
        }
        self.at(self.plan.calm, Ev::Calm);
    }

    /// Runs to the end, or to the first violation. A panic is one.
    pub(crate) fn run(self) -> Report {
        // What a panic has broken is not touched any more, not even to be dropped.
        let mut world = ManuallyDrop::new(self);
        let went = catch_unwind(AssertUnwindSafe(|| world.go()));
        let panicked = went.err().map(|payload| {
            let text = payload.downcast_ref::<&str>().copied();
            let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
            format!("panic: {}", text.unwrap_or("of no text"))
        });
        let (ended, done) = world.oracle.counts();
        let violation = world.oracle.violation().map(str::to_owned);
        let report = Report {
            hash: world.hash.finish(),
            trace: std::mem::take(&mut world.trace),
            steps: world.steps,
            frames: world.frames,
            early_steps: world.early.0,
            early_frames: world.early.1,
            ended,
            done,
            rooms: world.plan.requests.len() as u64,
            peak: world.peak,
            violation: violation.or(panicked.clone()),
        };
        if panicked.is_none() {
            drop(ManuallyDrop::into_inner(world));
        }
        report
    }

    fn go(&mut self) {
        let end = self.plan.calm + LAST;
        while !self.is_over()
            && let Some(((at, _), ev)) = self.queue.pop_first()
        {
            self.now = at;
            self.step(ev);
            self.collect();
            self.steps += 1;
            if self.now < EARLY {
                self.early = (self.steps, self.frames);
            }
            for (step, inject) in self.options.inject.into_iter().flatten() {
                if step == self.steps {
                    self.inject(inject);
                    self.collect();
                }
            }
            if self.now >= end || self.steps >= MOST_STEPS {
                self.over = true;
            }
        }
        if self.oracle.violation().is_none() {
            self.last_words();
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over || self.oracle.violation().is_some()
    }

    pub(crate) fn at(&mut self, at: u64, ev: Ev) {
        self.order += 1;
        self.queue.insert((at, self.order), ev);
    }

    pub(crate) fn after(&mut self, wait: u64, ev: Ev) {
        self.at(self.now + wait, ev);
    }

    /// The next number of one thing: the same in every run of the seed, whatever else is dropped.
    pub(crate) fn roll(&mut self, kind: u64, who: usize, range: Range<u64>) -> u64 {
        let draws = self.draws.entry((kind, who)).or_default();
        *draws += 1;
        let number = roll(&[self.plan.seed, kind, who as u64, *draws]);
        range.start + number % (range.end - range.start).max(1)
    }

    /// One way over a link: mostly its latency, sometimes much more.
    pub(crate) fn latency(&mut self, link: usize, kind: u64) -> u64 {
        let (base, slow) = (self.plan.links[link].latency, self.links[link].slow);
        let tenths = match self.roll(kind, link, 0..40) {
            0 => self.roll(kind, link, 50..400),
            _ => self.roll(kind, link, 8..16),
        };
        ((base * tenths / 10).max(US) * slow).min(SLOWEST)
    }

    /// How many times as long a copy over this link takes.
    pub(crate) fn times(&self, link: usize) -> u64 {
        self.links[link].slow
    }

    /// Whether this bug is planted, and is to show now: once in so many times.
    pub(crate) fn planted(&mut self, plant: Plant, of: u64) -> bool {
        self.options.plant == Some(plant) && self.roll(99, plant as usize, 0..of) == 0
    }

    /// What a sweep does to the next control frame.
    pub(crate) fn meddle(&mut self) -> Meddle {
        self.frames += 1;
        match self.options.meddle {
            Some((frame, meddle)) if frame == self.frames => meddle,
            _ => Meddle::Nothing,
        }
    }

    pub(crate) fn copy_fails(&mut self, link: usize) -> bool {
        let fails = &mut self.links[link].fails;
        let now = *fails > 0;
        *fails -= u32::from(now);
        now
    }

    pub(crate) fn pool_of(&self, claim: ClaimTag, section: u16) -> PoolNo {
        let at = usize::from(section == Rect::AUX);
        self.pools.get(&claim.id.receiver).map_or(0, |p| p[at])
    }

    /// A node has begun another life.
    pub(crate) fn remember_life(&mut self, n: usize) {
        let node = &self.nodes[n];
        self.tables.insert(node.incarnation, node.gates);
        self.pools.insert(node.incarnation, node.pool_no);
    }

    pub(crate) fn fact(&mut self, fact: Fact) {
        if !matches!(fact, Fact::Load { .. }) {
            (self.now, &fact).hash(&mut self.hash);
            if self.options.trace {
                self.trace
                    .push(format!("{:>11} us  {fact:?}", self.now / US));
            }
        }
        self.oracle.see(self.now, &fact);
    }

    pub(crate) fn note(&mut self, what: String) {
        self.fact(Fact::Note(what));
    }

    pub(crate) fn measure(&mut self, n: usize) {
        let node = &self.nodes[n];
        let (mut frames, mut pipe) = (0, 0);
        for (i, link) in self.links.iter().enumerate() {
            for (side, end) in link.ends.iter().enumerate() {
                if self.node_at(i, side) == n {
                    frames = frames.max(end.session.as_ref().map_or(0, |s| s.unacknowledged()));
                    pipe = pipe.max(link.under_way(side));
                }
            }
        }
        let mut early = BTreeMap::<_, usize>::new();
        for waiting in node.core.early().iter() {
            *early.entry(waiting.peer).or_default() += 1;
        }
        let load = Load {
            inbox: node.inbox.len(),
            from_peers: node.inbox.iter().filter(|i| i.is_from_peer()).count(),
            early: early.values().sum(),
            early_of_one: early.values().copied().max().unwrap_or(0),
            lives: node.core.lives().count(),
            claims: node.core.claims(),
            frames,
            pipe,
            remembered: node.core.remembered(),
        };
        let at = node.life();
        self.peak = self.peak.most(load);
        self.fact(Fact::Load { at, load });
    }

    /// The process that an event waits for, and whether its life is gone.
    fn owner_of(&self, ev: &Ev) -> (Option<usize>, bool) {
        let of = |n: usize, epoch: Option<u32>| {
            let node = &self.nodes[n];
            let gone = !node.up || epoch.is_some_and(|e| e != node.epoch);
            (Some(self.plan.nodes[n].process), gone)
        };
        match ev {
            Ev::Turn(n, e)
            | Ev::Rooms(n, e)
            | Ev::Alarm(n, e, _)
            | Ev::Look(n, e)
            | Ev::Summed(n, e, _)
            | Ev::Lane(n, e)
            | Ev::Land(n, e) => of(*n, Some(*e)),
            Ev::Owner(link, side, e) | Ev::Ack(link, side, e) | Ev::Tick(link, side, e) => {
                of(self.node_at(*link, *side), Some(*e))
            }
            Ev::Arrive(link, side, _) => of(self.node_at(*link, *side), None),
            Ev::Dial(link, e) | Ev::Greeted(link, e, _) => of(self.node_at(*link, 1), Some(*e)),
            // Who is greeted may be gone: then the dialer finds out.
            Ev::Greet(link, ..) => (of(self.node_at(*link, 0), None).0, false),
            Ev::Data(id) | Ev::DataRead(id) => match self.flights.get(id) {
                Some(flight) => of(flight.to.node, Some(flight.to.epoch)),
                None => (None, true),
            },
            Ev::DataAck(id) => match self.flights.get(id) {
                Some(flight) => of(self.node_at(flight.link, 0), None),
                None => (None, true),
            },
            Ev::Call(i, _, call) => {
                let n = self.caller_node(*i, call);
                (n.map(|n| self.plan.nodes[n].process), false)
            }
            Ev::Fault(_) | Ev::FaultEnds(_) | Ev::Calm | Ev::Check | Ev::LateWrite(..) => {
                (None, false)
            }
        }
    }

    fn step(&mut self, ev: Ev) {
        let (process, gone) = self.owner_of(&ev);
        if gone {
            return;
        }
        if let Some(process) = process
            && self.stopped.contains(&process)
        {
            return self.deferred.push((process, ev));
        }
        match ev {
            Ev::Turn(n, _) => self.turn(n),
            Ev::Rooms(n, _) => self.rooms(n),
            Ev::Alarm(n, _, due) => self.alarm(n, due),
            Ev::Look(n, _) => self.look(n),
            Ev::Summed(n, _, life) => self.end_sum(n, life),
            Ev::Lane(n, _) => self.lane(n),
            Ev::Land(n, _) => self.landed(n),
            Ev::Owner(link, side, _) => self.owner(link, side),
            Ev::Ack(link, side, _) => self.acknowledge(link, side),
            Ev::Tick(link, side, _) => self.tick(link, side),
            Ev::Arrive(link, side, id) => self.arrive(link, side, id),
            Ev::Dial(link, _) => self.dial(link),
            Ev::Greet(link, epoch, greeting) => self.greet(link, epoch, greeting),
            Ev::Greeted(link, _, answer) => self.greeted(link, answer),
            Ev::Data(id) => self.data_arrives(id),
            Ev::DataRead(id) => self.data_read(id),
            Ev::DataAck(id) => self.data_acked(id),
            Ev::Call(i, attempt, call) => self.call(i, attempt, call),
            Ev::Fault(i) => self.fault(i),
            Ev::FaultEnds(i) => self.fault_ends(i),
            Ev::Calm => self.calm_down(),
            Ev::Check => self.check(),
            Ev::LateWrite(pool, page, layers) => write_late(&pool, page, layers),
        }
    }

    /// A process goes on: what waited for it happens now.
    pub(crate) fn go_on(&mut self, process: usize) {
        if !self.stopped.remove(&process) {
            return;
        }
        let (now, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.deferred)
            .into_iter()
            .partition(|(p, _)| *p == process);
        self.deferred = later;
        for (_, ev) in now {
            self.after(0, ev);
        }
    }

    /// A stopped process was killed.
    pub(crate) fn forget_deferred(&mut self, process: usize) {
        self.stopped.remove(&process);
        // What arrives there is not its own: it is dropped, or finds the next life.
        let (gone, later): (Vec<_>, Vec<_>) = std::mem::take(&mut self.deferred)
            .into_iter()
            .partition(|(p, _)| *p == process);
        self.deferred = later;
        for (_, ev) in gone {
            if matches!(ev, Ev::Call(..) | Ev::Greet(..)) {
                self.after(0, ev);
            }
        }
    }
}

/// What a lane that forgot its gate does; only into a page that nobody has.
fn write_late(pool: &Pool, page: u32, layers: u32) {
    if let Ok(mut lease) = pool.lease_write(&[page]) {
        for layer in 0..layers {
            lease.page_mut(layer, 0)[5] ^= 0x55;
        }
        lease.release();
    }
}
