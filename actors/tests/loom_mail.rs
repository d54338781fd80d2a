//! Back-pressure between callers, shards, lanes and the owners of sessions, in every order that loom finds.
//!
//! ```text
//!   caller ─ takes a slot, may wait ─▶ inbox ─▶ shard ─▶ lane's mailbox ─▶ lane (the shipped scheduler)
//!      ▲                                 ▲                                  │
//!      └─ the slot, with the lease ◀─────┴──── the ticket, never waits ◀────┘
//!
//!   owner (the shipped session) ══ pipe of one batch ══▶ owner;   the same way back
//! ```
//!
//! The mailboxes are tokio's and actix's. What is tested is what is agreed upon around them: who is
//! admitted waits for nothing on the way out, because its slot was taken before; a lane has room for
//! every slot; and the owner of a session reads before it waits for room to write. Broken in turn,
//! each lets a lane refuse, or lets all wait for each other, and loom finds it.
#![allow(clippy::unwrap_used)] // Tests and their helpers.

mod loom_office;

use kvroom_actors::copy::schedule::{Class, Config, Scheduler, Turn, Work};
use kvroom_actors::ids::{Incarnation, PoolId};
use kvroom_actors::peer::message::{Body, Frame};
use kvroom_actors::peer::session::{Received, Session, SessionLimits};
use loom::sync::Arc;
use loom::thread;
use loom_office::{Office, Stuck};
use std::collections::VecDeque;

fn check(preemptions: usize, f: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(f);
}

// Callers, a shard and a lane.

/// How slots and mailboxes are dealt with.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Admission {
    /// As it is.
    SlotFirst,
    /// Callers push without a slot.
    NoSlot,
    /// What comes back waits for room in the mailbox that is also for what is new.
    WayOutWaits,
}

/// Chunks that may be under way.
const SLOTS: usize = 1;
/// Chunks of the caller.
const CHUNKS: usize = 2;
/// As many fill both mailboxes, and the hands of both that empty them.
const FULL: usize = 4;

enum In {
    Chunk(u64),
    /// A ticket that came back, and whether the lane had taken its job.
    Over(u64, bool),
}

struct Hall {
    slots: usize,
    inbox: VecDeque<In>,
    lane: VecDeque<u64>,
    most: usize,
    /// Chunks whose lease is back.
    back: Vec<u64>,
    refused: usize,
    all_over: bool,
}

/// A chunk of one byte.
struct Piece(u64);

impl Work for Piece {
    fn remaining(&self) -> u64 {
        1
    }

    fn is_cancelled(&self) -> bool {
        false
    }
}

fn caller(hall: &Office<Hall>, chunks: usize, rule: Admission) -> Result<(), Stuck> {
    for chunk in 0..chunks as u64 {
        if rule != Admission::NoSlot {
            hall.until(|h| h.slots.checked_sub(1).map(|left| h.slots = left))?;
        }
        put(hall, In::Chunk(chunk), rule)?;
    }
    Ok(())
}

fn put(hall: &Office<Hall>, what: In, rule: Admission) -> Result<(), Stuck> {
    let mut what = Some(what);
    hall.until(|h| {
        if rule == Admission::WayOutWaits && !h.inbox.is_empty() {
            return None;
        }
        h.inbox.extend(what.take());
        h.most = h.most.max(h.inbox.len());
        Some(())
    })
}

fn shard(hall: &Office<Hall>, chunks: usize, rule: Admission) -> Result<(), Stuck> {
    for _ in 0..2 * chunks {
        match hall.until(|h| h.inbox.pop_front())? {
            In::Chunk(chunk) => hall.until(|h| {
                if rule == Admission::WayOutWaits && !h.lane.is_empty() {
                    return None;
                }
                h.lane.push_back(chunk);
                Some(())
            })?,
            In::Over(chunk, taken) => hall.now(|h| {
                h.back.push(chunk);
                h.slots += usize::from(rule != Admission::NoSlot);
                h.refused += usize::from(!taken);
            }),
        }
    }
    hall.now(|h| h.all_over = true);
    Ok(())
}

fn lane(hall: &Office<Hall>, rule: Admission) -> Result<(), Stuck> {
    let mut scheduler = Scheduler::new(&Config {
        capacity: SLOTS,
        ..Config::default()
    });
    loop {
        let idle = scheduler.is_empty();
        let mail = hall.until(|h| match h.lane.pop_front() {
            Some(chunk) => Some(Some(chunk)),
            None if !idle || h.all_over => Some(None),
            None => None,
        })?;
        if let Some(chunk) = mail {
            // Mail is read before the next piece.
            if let Err(full) = scheduler.push(0, Class::Bulk, Piece(chunk)) {
                put(hall, In::Over(full.job.0, false), rule)?;
            }
            continue;
        }
        let Some(turn) = scheduler.next() else {
            return Ok(());
        };
        if let Turn::Piece(turn) = turn
            && let Some(job) = turn.report(1, true)
        {
            put(hall, In::Over(job.0, true), rule)?;
        }
    }
}

fn caller_shard_and_lane(rule: Admission, slots: usize, chunks: usize) {
    let hall = Hall {
        slots,
        inbox: VecDeque::new(),
        lane: VecDeque::new(),
        most: 0,
        back: Vec::new(),
        refused: 0,
        all_over: false,
    };
    let hall = Office::new(hall, 3);
    let calling = {
        let hall = Arc::clone(&hall);
        thread::spawn(move || {
            let _ = caller(&hall, chunks, rule);
            hall.leave();
        })
    };
    let laning = {
        let hall = Arc::clone(&hall);
        thread::spawn(move || {
            let _ = lane(&hall, rule);
            hall.leave();
        })
    };
    let _ = shard(&hall, chunks, rule);
    hall.leave();
    calling.join().unwrap();
    laning.join().unwrap();
    assert!(!hall.is_stuck(), "all wait for each other");
    hall.now(|h| {
        h.back.sort_unstable();
        let all: Vec<_> = (0..chunks as u64).collect();
        assert_eq!(h.back, all, "a lease is lost, or came twice");
        assert_eq!(h.refused, 0, "the lane's queue was full");
        assert_eq!(h.slots, slots, "a slot is lost");
        assert!(h.most <= slots, "{} wait in the inbox", h.most);
    });
}

#[test]
fn who_has_a_slot_is_never_refused_and_never_waits_on_its_way_out() {
    check(1, || {
        caller_shard_and_lane(Admission::SlotFirst, SLOTS, CHUNKS)
    });
}

#[test]
#[should_panic(expected = "the lane's queue was full")]
fn planted_chunks_without_a_slot_find_the_lane_full() {
    check(2, || {
        caller_shard_and_lane(Admission::NoSlot, SLOTS, CHUNKS)
    });
}

#[test]
#[should_panic(expected = "all wait for each other")]
fn planted_a_way_out_that_waits_behind_what_is_new_stops_shard_and_lane() {
    check(1, || {
        caller_shard_and_lane(Admission::WayOutWaits, FULL, FULL)
    });
}

// Two owners of a session.

/// What an owner does first when there is something to write and no room.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Owner {
    /// As it is: what is there to be read, or room to write, whichever comes.
    ReadsMeanwhile,
    /// It waits for room.
    WritesFirst,
}

/// What each side has to say.
const WORDS: u16 = 2;

#[derive(Default)]
struct Pipes {
    /// Towards each side; one batch at most.
    to: [VecDeque<Vec<Frame>>; 2],
    heard: [u16; 2],
}

enum Next {
    Read(Vec<Frame>),
    Room,
}

fn incarnation(of: usize) -> Incarnation {
    Incarnation {
        started_ns: 1,
        nonce: of as u64,
    }
}

fn owner(pipes: &Office<Pipes>, me: usize, rule: Owner) -> Result<(), Stuck> {
    let limits = SessionLimits {
        unacknowledged: usize::from(WORDS),
        progress: 1,
        our_window: 1,
        their_window: 1,
    };
    let mut session = Session::new(incarnation(me), incarnation(1 - me), limits);
    for word in 0..WORDS {
        let pool = PoolId(word);
        session.queue(Body::PoolRetired { pool }).unwrap();
    }
    let mut heard = 0;
    loop {
        let writes = session.has_output() || session.owes_ack();
        if !writes && heard == WORDS && session.unacknowledged() == 0 {
            return Ok(());
        }
        let reads = !writes || rule == Owner::ReadsMeanwhile;
        let next = pipes.until(|p| {
            if reads && let Some(batch) = p.to[me].pop_front() {
                return Some(Next::Read(batch));
            }
            (writes && p.to[1 - me].is_empty()).then_some(Next::Room)
        })?;
        match next {
            Next::Read(batch) => {
                for frame in batch {
                    match session.receive(frame).unwrap() {
                        Received::Deliver(_) => heard += 1,
                        other => assert_eq!(other, Received::Nothing),
                    }
                }
                pipes.now(|p| p.heard[me] = heard);
            }
            Next::Room => {
                let mut batch = Vec::new();
                session.transmit(1, &mut batch);
                pipes.now(|p| p.to[1 - me].push_back(batch));
            }
        }
    }
}

fn two_owners(rule: Owner) {
    let pipes = Office::new(Pipes::default(), 2);
    let other = {
        let pipes = Arc::clone(&pipes);
        thread::spawn(move || {
            let _ = owner(&pipes, 1, rule);
            pipes.leave();
        })
    };
    let _ = owner(&pipes, 0, rule);
    pipes.leave();
    other.join().unwrap();
    assert!(!pipes.is_stuck(), "both owners wait for each other");
    pipes.now(|p| assert_eq!(p.heard, [WORDS; 2]));
}

#[test]
fn two_owners_with_full_pipes_do_not_wait_for_each_other() {
    check(3, || two_owners(Owner::ReadsMeanwhile));
}

#[test]
#[should_panic(expected = "both owners wait for each other")]
fn planted_owners_that_wait_for_room_before_they_read_stop_each_other() {
    check(3, || two_owners(Owner::WritesFirst));
}
