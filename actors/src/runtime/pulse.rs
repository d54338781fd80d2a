//! Signs of life of a node's parts: written by their own threads, read by whoever asks.
//!
//! ```text
//!   whoever posts ── posted + 1 ──▶ ┌──────┐ ◀── turn begins, turn ends, taken, held ── the part's thread
//!   whoever asks  ── asked since ─▶ │ Beat │ ◀── answered ──────────────────────────── the part's thread
//!                                   └──┬───┘
//!                      Pulse ◀── read ─┘   (no thread is asked, none is waited for)
//! ```
//!
//! Rules: all relaxed, nothing is ordered by a beat and nothing is decided by one but what people are
//! told. What is posted and what the part writes lie on cache lines of their own. A question is a
//! message like any other, and there is one of them to a part at a time: a part that stands still is
//! not buried under questions.

use std::cell::RefCell;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;

/// A part of a node that can stand still by itself.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Part {
    /// The node's own task: listeners, greetings, peers, pools.
    Node,
    /// A shard, counted from 0.
    Shard(usize),
    /// A copy lane, counted from 0.
    Lane(usize),
    /// The thread that calls UCX.
    Ucx,
    /// The owner of the session with the peer of this name. It is on the thread of a shard.
    Session(String),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Node => f.write_str("node"),
            Part::Shard(n) => write!(f, "shard {n}"),
            Part::Lane(n) => write!(f, "lane {n}"),
            Part::Ucx => f.write_str("ucx thread"),
            Part::Session(peer) => write!(f, "session {peer}"),
        }
    }
}

/// On a cache line of its own.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Apart<T>(T);

/// What the part's own thread writes.
#[derive(Debug, Default)]
struct Own {
    turns: AtomicU64,
    taken: AtomicU64,
    held: AtomicU64,
    /// Twice the microsecond at which the last turn began, and one more while it runs.
    turn: AtomicU64,
    overdue: AtomicU64,
}

/// The question that was put last.
#[derive(Debug, Default)]
struct Asked {
    /// The microsecond after which it was put; 0 for none.
    since: AtomicU64,
    /// How long the last answer took, in microseconds, and one more; 0 before the first.
    took: AtomicU64,
    gone: AtomicBool,
}

/// See the module.
#[derive(Debug)]
pub struct Beat {
    part: Part,
    /// Its node's clock.
    started: Instant,
    posted: Apart<AtomicU64>,
    own: Apart<Own>,
    asked: Apart<Asked>,
    /// Told of every answer.
    answered: Arc<Notify>,
}

/// One part, as its beat says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartPulse {
    /// Which.
    pub part: Part,
    /// Turns that it has begun.
    pub turns: u64,
    /// Whether it is in a turn now.
    pub running: bool,
    /// Since its last turn began; since the node's start before the first one.
    pub since: Duration,
    /// Messages that it has not taken, and jobs that it holds.
    pub waiting: u64,
    /// A question to it waits for so long.
    pub asked: Option<Duration>,
    /// How long its last answer took.
    pub took: Option<Duration>,
    /// Outcomes of rooms that are more than a second past their deadline, as of its last answer;
    /// counted up to 1,000.
    pub overdue: u64,
    /// It has died, or has stopped with its node.
    pub gone: bool,
}

fn micros(d: Duration) -> u64 {
    u64::try_from(d.as_micros()).unwrap_or(u64::MAX / 4)
}

impl Beat {
    /// Of a part that has not begun.
    pub(crate) fn new(part: Part, started: Instant, answered: &Arc<Notify>) -> Arc<Beat> {
        Arc::new(Beat {
            part,
            started,
            posted: Apart::default(),
            own: Apart::default(),
            asked: Apart::default(),
            answered: Arc::clone(answered),
        })
    }

    /// Which part.
    pub fn part(&self) -> &Part {
        &self.part
    }

    fn now(&self) -> u64 {
        micros(self.started.elapsed())
    }

    /// A message is on its way to the part.
    pub(crate) fn post(&self) {
        self.posted.0.fetch_add(1, Ordering::Relaxed);
    }

    /// The part has taken so many. On its thread.
    pub(crate) fn take(&self, messages: usize) {
        bump(&self.own.0.taken, messages as u64);
    }

    /// The part holds so many jobs. On its thread.
    pub(crate) fn hold(&self, jobs: usize) {
        self.own.0.held.store(jobs as u64, Ordering::Relaxed);
    }

    /// A turn begins. On the part's thread.
    pub(crate) fn begin(&self) {
        self.begin_at(self.started.elapsed());
    }

    /// A turn begins at this moment, which is not before the node's start. On the part's thread.
    pub(crate) fn begin_then(&self, now: Instant) {
        self.begin_at(now.saturating_duration_since(self.started));
    }

    /// A turn begins, so long after the node's start. On the part's thread.
    pub(crate) fn begin_at(&self, now: Duration) {
        let own = &self.own.0;
        bump(&own.turns, 1);
        own.turn.store(micros(now) << 1 | 1, Ordering::Relaxed);
    }

    /// The turn is over. On the part's thread.
    pub(crate) fn end(&self) {
        let turn = &self.own.0.turn;
        turn.store(turn.load(Ordering::Relaxed) & !1, Ordering::Relaxed);
    }

    /// Outcomes that are past their deadline. On the part's thread.
    pub(crate) fn overdue(&self, outcomes: usize) {
        self.own.0.overdue.store(outcomes as u64, Ordering::Relaxed);
    }

    /// A question is put, unless one waits already.
    pub(crate) fn ask(&self) -> bool {
        let now = self.now().max(1);
        let since = &self.asked.0.since;
        let put = since.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        put.is_ok()
    }

    /// The question is answered. On the part's thread.
    pub(crate) fn answer(&self) {
        let asked = &self.asked.0;
        let since = asked.since.load(Ordering::Relaxed);
        if since > 0 {
            let took = self.now().saturating_sub(since);
            asked.took.store(took + 1, Ordering::Relaxed);
            asked.since.store(0, Ordering::Relaxed);
            self.answered.notify_waiters();
        }
    }

    /// The question could not be put after all.
    pub(crate) fn withdraw(&self) {
        self.asked.0.since.store(0, Ordering::Relaxed);
    }

    /// Nobody is there to answer any more.
    pub(crate) fn gone(&self) {
        self.asked.0.gone.store(true, Ordering::Relaxed);
        self.answered.notify_waiters();
    }

    /// What it says now.
    pub fn read(&self) -> PartPulse {
        let own = &self.own.0;
        let (turn, now) = (own.turn.load(Ordering::Relaxed), self.now());
        let posted = self.posted.0.load(Ordering::Relaxed);
        let taken = own.taken.load(Ordering::Relaxed);
        let held = own.held.load(Ordering::Relaxed);
        let asked = self.asked.0.since.load(Ordering::Relaxed);
        let took = self.asked.0.took.load(Ordering::Relaxed);
        let since = |then: u64| Duration::from_micros(now.saturating_sub(then));
        PartPulse {
            part: self.part.clone(),
            turns: own.turns.load(Ordering::Relaxed),
            running: turn & 1 == 1,
            since: since(turn >> 1),
            waiting: posted.saturating_sub(taken).saturating_add(held),
            asked: (asked > 0).then(|| since(asked)),
            took: took.checked_sub(1).map(Duration::from_micros),
            overdue: own.overdue.load(Ordering::Relaxed),
            gone: self.asked.0.gone.load(Ordering::Relaxed),
        }
    }
}

/// Of a counter that one thread writes.
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(
        counter.load(Ordering::Relaxed).wrapping_add(by),
        Ordering::Relaxed,
    );
}

/// The beats of a node, all but those of its sessions.
#[derive(Debug)]
pub struct Beats {
    /// The node's own task.
    pub node: Arc<Beat>,
    /// Its shards.
    pub shards: Vec<Arc<Beat>>,
    /// Its lanes.
    pub lanes: Vec<Arc<Beat>>,
    /// The thread that calls UCX, if there is one.
    pub ucx: Option<Arc<Beat>>,
    /// Told of every answer of any part, sessions among them.
    pub answered: Arc<Notify>,
    /// Of the sessions that there were when the node's own task answered last. Locked for as long as a
    /// pointer is copied.
    sessions: Mutex<Arc<[Arc<Beat>]>>,
}

impl Beats {
    /// Of a node with so many shards and lanes.
    pub(crate) fn new(started: Instant, shards: usize, lanes: usize) -> Beats {
        let answered = Arc::new(Notify::new());
        let beat = |part| Beat::new(part, started, &answered);
        Beats {
            node: beat(Part::Node),
            shards: (0..shards).map(|n| beat(Part::Shard(n))).collect(),
            lanes: (0..lanes).map(|n| beat(Part::Lane(n))).collect(),
            ucx: None,
            answered,
            sessions: Mutex::new(Arc::new([])),
        }
    }

    /// Those of the sessions, as the node's own task said when it answered last.
    pub fn sessions(&self) -> Arc<[Arc<Beat>]> {
        Arc::clone(&self.sessions.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn set_sessions(&self, sessions: Arc<[Arc<Beat>]>) {
        *self.sessions.lock().unwrap_or_else(PoisonError::into_inner) = sessions;
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = &Arc<Beat>> {
        let parts = std::iter::once(&self.node).chain(&self.shards);
        parts.chain(&self.lanes).chain(&self.ucx)
    }
}

thread_local! {
    /// The beat of this thread's lane.
    static HERE: RefCell<Option<Arc<Beat>>> = const { RefCell::new(None) };
}

/// This thread is this lane's.
pub(crate) fn set_here(beat: Arc<Beat>) {
    HERE.with(|here| here.replace(Some(beat)));
}

/// A turn of something else than the lane on the lane's thread; over when it is dropped. Nothing on
/// other threads.
pub(crate) fn turn_here() -> TurnHere {
    TurnHere(HERE.with(|here| {
        let beat = here.borrow().clone()?;
        beat.begin();
        Some(beat)
    }))
}

/// See [`turn_here`].
pub(crate) struct TurnHere(Option<Arc<Beat>>);

impl Drop for TurnHere {
    fn drop(&mut self) {
        if let Some(beat) = &self.0 {
            beat.end();
        }
    }
}

/// A listener that has not failed for so many microseconds can accept, as far as anybody knows.
const LATELY: u64 = 1_000_000;

/// A listener, as its task says.
#[derive(Debug)]
pub struct Entrance {
    /// Where it listens.
    pub address: String,
    started: Instant,
    /// The microsecond after which it could not accept any more; 0 while it can.
    since: AtomicU64,
    /// The microsecond after which that happened last. It is tried many times a second as long as
    /// somebody waits to be accepted.
    last: AtomicU64,
    /// The system's error.
    error: AtomicU64,
}

/// What a listener's task says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EntranceState {
    /// Where it listens.
    pub address: String,
    /// Since when it cannot accept, and the system's number for why.
    pub failing: Option<(Duration, i32)>,
}

impl Entrance {
    /// Of a listener that can accept.
    pub(crate) fn new(address: String, started: Instant) -> Arc<Entrance> {
        Arc::new(Entrance {
            address,
            started,
            since: AtomicU64::new(0),
            last: AtomicU64::new(0),
            error: AtomicU64::new(0),
        })
    }

    /// It accepted somebody, or nobody was there.
    pub(crate) fn works(&self) {
        self.since.store(0, Ordering::Relaxed);
    }

    /// It could not accept.
    pub(crate) fn fails(&self, error: &std::io::Error) {
        let errno = error.raw_os_error().unwrap_or(0);
        self.error
            .store(u64::from(errno.unsigned_abs()), Ordering::Relaxed);
        let now = micros(self.started.elapsed()).max(1);
        self.last.store(now, Ordering::Relaxed);
        if self.since.load(Ordering::Relaxed) == 0 {
            self.since.store(now, Ordering::Relaxed);
        }
    }

    /// What it says now.
    pub fn read(&self) -> EntranceState {
        let since = self.since.load(Ordering::Relaxed);
        let now = micros(self.started.elapsed());
        let last = self.last.load(Ordering::Relaxed);
        // Who was refused may have gone, and nobody has come since.
        let lately = now.saturating_sub(last) < LATELY;
        let failing = (since > 0 && lately).then(|| {
            let error = i32::try_from(self.error.load(Ordering::Relaxed)).unwrap_or(0);
            (Duration::from_micros(now.saturating_sub(since)), error)
        });
        EntranceState {
            address: self.address.clone(),
            failing,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn beats() -> Beats {
        Beats::new(Instant::now(), 1, 2)
    }

    #[test]
    fn what_was_posted_waits_until_it_is_taken_and_what_is_held_waits_too() {
        let lane = Arc::clone(&beats().lanes[1]);
        assert_eq!(lane.part().to_string(), "lane 1");
        for _ in 0..3 {
            lane.post();
        }
        assert_eq!(lane.read().waiting, 3);
        lane.take(2);
        lane.hold(5);
        assert_eq!(lane.read().waiting, 6);
        // The end of a driven shard hands it a message that nobody posted.
        lane.take(2);
        lane.hold(0);
        assert_eq!(lane.read().waiting, 0);
    }

    #[test]
    fn a_turn_runs_from_its_beginning_to_its_end_and_is_counted() {
        let shard = Arc::clone(&beats().shards[0]);
        assert_eq!((shard.read().turns, shard.read().running), (0, false));
        shard.begin();
        assert_eq!((shard.read().turns, shard.read().running), (1, true));
        shard.end();
        assert_eq!((shard.read().turns, shard.read().running), (1, false));
    }

    #[test]
    fn a_part_is_asked_again_only_when_it_has_answered() {
        let beats = beats();
        let node = &beats.node;
        assert_eq!((node.read().asked, node.read().took), (None, None));
        assert!(node.ask());
        assert!(!node.ask());
        assert!(node.read().asked.is_some());
        node.answer();
        assert!(node.read().asked.is_none());
        assert!(node.read().took.is_some());
        assert!(node.ask());
    }

    #[test]
    fn a_thread_without_a_lane_has_no_turns() {
        drop(turn_here());
        let beats = beats();
        set_here(Arc::clone(&beats.lanes[0]));
        let turn = turn_here();
        assert!(beats.lanes[0].read().running);
        drop(turn);
        assert!(!beats.lanes[0].read().running);
        assert_eq!(beats.lanes[0].read().turns, 1);
    }

    #[test]
    fn a_door_says_since_when_it_fails_and_forgets_it_when_it_works() {
        let door = Entrance::new("tcp://127.0.0.1:1".into(), Instant::now());
        assert_eq!(door.read().failing, None);
        door.fails(&std::io::Error::from_raw_os_error(24));
        assert!(matches!(door.read().failing, Some((_, 24))));
        door.works();
        assert_eq!(door.read().failing, None);
    }
}
