//! Stopping against traffic, in every order that loom finds.
//!
//! ```text
//!   caller ─ permit, Start ─▶ inbox ─▶ shard (the shipped core, its rooms; claims and gates answer later)
//!   control: close the semaphores ─ Shutdown ─▶ inbox … Empty ─ close the inbox
//!
//!   peer: byte into the ring (the shipped cursors), the bell if it is asked for ─▶ driver
//!   control: over ─▶ driver: looks, arms, looks again, parks
//! ```
//!
//! Channels, semaphores and parking are tokio's; `loom_office` stands in for them. Claims:
//! - whoever starts a room while the node stops gets its lease back, once, whatever was first;
//! - a node that says it has drained holds nothing, and nobody uses it afterwards;
//! - a driver that parks hears the bell and hears the end.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

mod loom_office;

/// The cursors of a ring, over loom's atomics.
#[path = "."]
mod ring {
    #[allow(dead_code, unreachable_pub)]
    #[path = "../src/memory/ring_cursor.rs"]
    pub(crate) mod ring_cursor;

    pub(crate) mod sync {
        pub(crate) use loom::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
    }
}

use kvroom_actors::ids::{ClaimId, ClaimNo, Incarnation, LegNo, LifeId, PeerRef, RoomKey};
use kvroom_actors::peer::message::ClaimTag;
use kvroom_actors::room::receiver::{LegPlan, Terms};
use kvroom_actors::room::{Event, Room};
use kvroom_actors::supervisor::core::{CoreLimits, ShardCore};
use kvroom_actors::supervisor::custody::Held;
use kvroom_actors::supervisor::io::{Input, Output, Start, StartRole};
use kvroom_kernels::coverage::Coverage;
use loom::sync::atomic::{AtomicBool, Ordering};
use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use loom_office::{Office, Stuck};
use ring::ring_cursor::{Consumer, Producer, Words};
use std::collections::{BTreeMap, VecDeque};

fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

// A node that stops while a room starts.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stopping {
    /// As it is.
    InOrder,
    /// What still is in the inbox when that is closed tells nobody.
    ForgetsTheInbox,
    /// The shard is taken away at once.
    WithoutWaiting,
    /// The inbox stays open when its reader is gone.
    LeavesTheInboxOpen,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Page;
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Out;
type Core = ShardCore<Page, Out, ()>;

enum Mail {
    Core(Box<Input<Page, Out, ()>>),
    Stop,
}

struct Node {
    /// Permits for rooms; none once they are closed.
    permits: Option<usize>,
    inbox: VecDeque<Mail>,
    open: bool,
    /// Leases that are back with the caller.
    back: usize,
    drained: bool,
}

fn room(life: LifeId) -> Input<Page, Out, ()> {
    let mut wanted = Coverage::new();
    wanted.insert(0, 0..1, 0..1).unwrap();
    Input::Start(Box::new(Start {
        life,
        key: RoomKey::new(42, 0),
        tag: None,
        pages: 1,
        attached: (),
        role: StartRole::Receiver {
            terms: Terms {
                legs: vec![LegPlan { wanted }],
                total: 1,
                checksum: false,
            },
            peers: vec![PeerRef(0)],
            leases: vec![(Held::Section(0), Page)],
        },
    }))
}

/// Starts one room, and waits for its lease.
fn caller(node: &Office<Node>) -> Result<(), Stuck> {
    let admitted = node.until(|n| match &mut n.permits {
        None => Some(false),
        Some(0) => None,
        Some(left) => {
            *left -= 1;
            Some(true)
        }
    })?;
    node.now(|n| {
        let start = Mail::Core(Box::new(room(LifeId(1))));
        if admitted && n.open {
            n.inbox.push_back(start);
        } else {
            // Refused here: what came with it is handed back.
            n.back += 1;
        }
    });
    node.until(|n| (n.back > 0).then_some(()))
}

/// What the owner of sessions, on the same thread, and gates answer: through the inbox, later.
fn answers(life: LifeId, leg: LegNo, opens: bool) -> Mail {
    let side = |nonce| Incarnation {
        started_ns: 1,
        nonce,
    };
    let (receiver, sender, number) = (side(1), side(2), ClaimNo(1));
    let id = ClaimId {
        receiver,
        sender,
        number,
    };
    let room = RoomKey::new(42, 0);
    Mail::Core(Box::new(if opens {
        let tag = ClaimTag { id, room };
        Input::ClaimOpened { life, leg, tag }
    } else {
        let witness = Out;
        Input::GateClosed { life, leg, witness }
    }))
}

#[derive(Default)]
struct Turn {
    later: VecDeque<Mail>,
    back: usize,
    empty: bool,
}

/// The shard: its core, and its rooms in the same turn.
struct Shard {
    core: Core,
    rooms: BTreeMap<LifeId, Room<Out>>,
}

impl Shard {
    /// What it leads to in the same turn, and for later; the leases that go back; whether it is empty.
    fn handle(&mut self, input: Input<Page, Out, ()>) -> Turn {
        let mut inputs = VecDeque::from([input]);
        let mut turn = Turn::default();
        while let Some(input) = inputs.pop_front() {
            let mut out = Vec::new();
            self.core.handle(input, &mut out);
            for output in out {
                match output {
                    Output::Spawn { life, room } => drop(self.rooms.insert(life, room)),
                    Output::ToRoom { life, event } => inputs.extend(self.tell(life, event)),
                    Output::OpenClaim { life, leg, .. } => {
                        turn.later.push_back(answers(life, leg, true));
                    }
                    Output::CloseGate { life, leg } => {
                        turn.later.push_back(answers(life, leg, false));
                    }
                    Output::StartRefused { leases, .. } | Output::Return { leases, .. } => {
                        turn.back += leases.len();
                    }
                    Output::Empty => turn.empty = true,
                    _ => {}
                }
            }
        }
        turn
    }

    fn tell(&mut self, life: LifeId, event: Event<Out>) -> Option<Input<Page, Out, ()>> {
        let room = self.rooms.remove(&life)?;
        let mut effects = Vec::new();
        let room = room.handle(event, &mut effects);
        let state = room.state();
        if !room.is_over() {
            self.rooms.insert(life, room);
        }
        Some(Input::RoomSaid {
            life,
            state,
            effects,
        })
    }
}

fn shard(node: &Office<Node>, rule: Stopping) -> Result<(), Stuck> {
    let mut shard = Shard {
        core: Core::new(CoreLimits {
            early_claims_per_peer: 1,
            quarantined_pages_per_peer: 1,
            spent_keys: 1,
        }),
        rooms: BTreeMap::new(),
    };
    let mut turn: Option<Turn> = None;
    loop {
        // What a turn led to is seen with the next look at the inbox.
        let mail = node.until(|n| {
            let Some(mut turn) = turn.take() else {
                return n.inbox.pop_front().map(Some);
            };
            n.inbox.append(&mut turn.later);
            n.back += turn.back;
            n.drained |= turn.empty;
            Some(n.inbox.pop_front())
        })?;
        match mail {
            Some(Mail::Core(input)) => turn = Some(shard.handle(*input)),
            Some(Mail::Stop) => break,
            None => {}
        }
    }
    // Its reader goes: the inbox closes, and what is in it hands back what it holds when it is dropped.
    node.now(|n| {
        n.open = rule == Stopping::LeavesTheInboxOpen;
        let left = n.inbox.drain(..);
        let starts = left.filter(|m| matches!(m, Mail::Core(i) if matches!(**i, Input::Start(_))));
        let starts = starts.count();
        if rule != Stopping::ForgetsTheInbox {
            n.back += starts;
        }
    });
    let held: usize = shard
        .core
        .lives()
        .map(|(_, l)| l.custody().leases().count())
        .sum();
    assert_eq!(
        held, 0,
        "the node has stopped, said that it drained, and holds memory"
    );
    Ok(())
}

/// Semaphores, rooms, shard: in this order.
fn control(node: &Office<Node>, rule: Stopping) -> Result<(), Stuck> {
    node.now(|n| {
        n.permits = None;
        n.inbox.push_back(Mail::Core(Box::new(Input::Shutdown)));
    });
    node.until(|n| {
        let waits = rule != Stopping::WithoutWaiting && !n.drained;
        (!waits).then(|| n.inbox.push_back(Mail::Stop))
    })
}

/// What one thread does to the node.
type Part = fn(&Office<Node>, Stopping) -> Result<(), Stuck>;

fn stop_while_a_room_starts(rule: Stopping) {
    let node = Office::new(
        Node {
            permits: Some(1),
            inbox: VecDeque::new(),
            open: true,
            back: 0,
            drained: false,
        },
        3,
    );
    let parts: [Part; 2] = [|n, _| caller(n), control];
    let threads: Vec<_> = parts
        .into_iter()
        .map(|part| {
            let node = Arc::clone(&node);
            thread::spawn(move || {
                let _ = part(&node, rule);
                node.leave();
            })
        })
        .collect();
    let _ = shard(&node, rule);
    node.leave();
    threads.into_iter().for_each(|t| t.join().unwrap());
    assert!(!node.is_stuck(), "somebody waits for a node that is gone");
    node.now(|n| assert_eq!(n.back, 1, "the lease came back as often"));
}

#[test]
fn a_room_that_starts_while_its_node_stops_gives_its_lease_back_once() {
    check(2, || stop_while_a_room_starts(Stopping::InOrder));
}

#[test]
#[should_panic(expected = "somebody waits for a node that is gone")]
fn planted_an_inbox_that_is_dropped_in_silence_leaves_its_caller_waiting() {
    check(2, || stop_while_a_room_starts(Stopping::ForgetsTheInbox));
}

#[test]
#[should_panic(expected = "somebody waits for a node that is gone")]
fn planted_an_inbox_that_outlives_its_shard_takes_a_start_that_nobody_reads() {
    check(2, || stop_while_a_room_starts(Stopping::LeavesTheInboxOpen));
}

#[test]
#[should_panic(expected = "holds memory")]
fn planted_a_shard_that_is_not_waited_for_holds_a_lease_at_the_end() {
    check(2, || stop_while_a_room_starts(Stopping::WithoutWaiting));
}

// A driver that parks.

#[derive(Clone, Copy, PartialEq, Eq)]
enum Parking {
    /// As it is.
    ArmsAndLooksAgain,
    /// It parks on what it saw before it armed the ring.
    WithoutASecondLook,
    /// An unpark that comes before the park is forgotten.
    WithoutAToken,
}

/// A parked thread, as `std::thread::park` and a reactor have it: an unpark before the park counts.
struct Seat {
    token: Mutex<u32>,
    changed: Condvar,
}

impl Seat {
    fn unpark(&self) {
        *self.token.lock().unwrap() += 1;
        self.changed.notify_one();
    }

    /// Sleeps unless it was unparked since `seen`.
    fn park(&self, seen: &mut u32) {
        let mut token = self.token.lock().unwrap();
        while *token == *seen {
            token = self.changed.wait(token).unwrap();
        }
        *seen = *token;
    }

    fn count(&self) -> u32 {
        *self.token.lock().unwrap()
    }
}

struct Driven {
    words: Words,
    over: AtomicBool,
    seat: Seat,
}

impl Driven {
    fn new() -> Arc<Self> {
        Arc::new(Driven {
            words: Words::new(),
            over: AtomicBool::new(false),
            seat: Seat {
                token: Mutex::new(0),
                changed: Condvar::new(),
            },
        })
    }

    /// A peer that publishes one byte, and rings if it is asked to.
    fn publish(&self) {
        if Producer::new(4).publish(&self.words, 1) {
            self.seat.unpark();
        }
    }

    /// The node has stopped.
    fn stop(&self) {
        self.over.store(true, Ordering::Release);
        self.seat.unpark();
    }
}

/// Waits until the byte was read and the node is over.
fn drive(at: &Driven) {
    let mut consumer = Consumer::new(4);
    let (mut read, mut seen) = (0, 0);
    loop {
        let over = at.over.load(Ordering::Acquire);
        let there = consumer.available(&at.words).unwrap();
        if there > 0 {
            let _ = consumer.consume(&at.words, there);
            read += there;
            continue;
        }
        if over && read == 1 {
            return;
        }
        consumer.announce(&at.words);
        if !consumer.look(&at.words) {
            at.seat.park(&mut seen);
        }
        consumer.awake(&at.words);
    }
}

/// One turn of a driver, up to where it would park, against one other thread: whether it would sleep for
/// ever. (A sleeper that nobody wakes ends the process in loom, so it is only asked.)
fn falls_asleep(rule: Parking, other: fn(&Driven)) {
    let at = Driven::new();
    let others = {
        let at = Arc::clone(&at);
        thread::spawn(move || other(&at))
    };
    let mut consumer = Consumer::new(4);
    let over = at.over.load(Ordering::Acquire);
    let there = consumer.available(&at.words).unwrap() > 0;
    consumer.announce(&at.words);
    let again = rule != Parking::WithoutASecondLook && consumer.look(&at.words);
    let seen = match rule {
        Parking::WithoutAToken => at.seat.count(),
        _ => 0,
    };
    let sleeps = !over && !there && !again;
    others.join().unwrap();
    let woken = at.seat.count() > seen;
    assert!(!sleeps || woken, "a lost wake-up");
}

#[test]
fn a_driver_that_parks_hears_the_bell_and_the_end() {
    check(3, || {
        let at = Driven::new();
        let others: [fn(&Driven); 2] = [Driven::publish, Driven::stop];
        let others: Vec<_> = others
            .into_iter()
            .map(|other| {
                let at = Arc::clone(&at);
                thread::spawn(move || other(&at))
            })
            .collect();
        drive(&at);
        others.into_iter().for_each(|t| t.join().unwrap());
    });
}

#[test]
fn a_driver_that_falls_asleep_is_woken() {
    check(3, || {
        falls_asleep(Parking::ArmsAndLooksAgain, Driven::publish)
    });
    check(3, || falls_asleep(Parking::ArmsAndLooksAgain, Driven::stop));
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn planted_a_driver_that_does_not_look_again_sleeps_on_a_byte() {
    check(3, || {
        falls_asleep(Parking::WithoutASecondLook, Driven::publish)
    });
}

#[test]
#[should_panic(expected = "a lost wake-up")]
fn planted_an_unpark_that_is_not_remembered_is_lost() {
    check(3, || falls_asleep(Parking::WithoutAToken, Driven::stop));
}
