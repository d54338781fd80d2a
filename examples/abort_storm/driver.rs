//! Runs a script against an engine, and judges.
//!
//! ```text
//!   director (this thread)   steps of the script, then the probe, then quiet
//!   prefill thread           computes chunks and pushes them
//!   scanner thread           re-reads destination pages all the time
//! ```

use crate::engine::{End, Engine, Listener, RoomNo, Sessions};
use crate::oracle::Findings;
use crate::prefill::Prefill;
use crate::report::Percentiles;
use crate::storms::{DEADLINE, Kill, Script, Side, Start, Step, Strike};
use crate::world::{Out, World};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long the probe may take.
const PROBE: Duration = Duration::from_secs(5);
/// How long memory of ended rooms may take before it counts as held.
const GRACE: Duration = Duration::from_secs(6);
/// How long nothing new must be found.
const QUIET: Duration = Duration::from_millis(300);
/// The longest the wait for quiet is.
const QUIET_AT_MOST: Duration = Duration::from_secs(10);
/// How often the director looks.
const LOOK: Duration = Duration::from_micros(100);
/// How long a queue is waited for while enough rooms are in flight.
const NO_QUEUE: Duration = Duration::from_millis(5);
/// Pages the scanner reads before it lets others run.
const SCAN_PAGES: u32 = 32;
/// How long it then does.
const SCAN_PAUSE: Duration = Duration::from_millis(4);

/// What a run gave, before it is put into words.
#[derive(Clone, Debug)]
pub(crate) struct Verdict {
    /// Rooms that were started, without the probe.
    pub(crate) rooms: usize,
    /// Receivers that were Done.
    pub(crate) done: usize,
    /// Receivers that were aborted.
    pub(crate) aborted: usize,
    /// Of these, with some bytes there and some missing.
    pub(crate) aborted_in_flight: usize,
    /// Bytes that landed.
    pub(crate) bytes: u64,
    /// The oracle's.
    pub(crate) findings: Findings,
    /// Pages that are neither free, nor a live room's, nor held with a reason.
    pub(crate) leaked_pages: u64,
    /// Held with a reason at the end, and at most.
    pub(crate) quarantined: (u64, u64),
    /// Without an outcome in time.
    pub(crate) stuck_rooms: usize,
    /// How long the probe took, if it was served.
    pub(crate) probe: Option<Duration>,
    /// What the health check said after the probe.
    pub(crate) health: u16,
    /// Over all aborts.
    pub(crate) abort_to_answer: Option<Percentiles>,
    /// Over all aborts.
    pub(crate) abort_to_reusable: Option<Percentiles>,
    /// Facts for people.
    pub(crate) remarks: Vec<String>,
    /// What was done to the other process.
    pub(crate) struck: Struck,
    /// What became of sessions.
    pub(crate) sessions: Sessions,
    /// The whole run.
    pub(crate) took: Duration,
}

/// What was done to the other process, and to whom it happened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Struck {
    /// Times that it was killed.
    pub(crate) kills: u64,
    /// Times that it was stopped.
    pub(crate) stops: u64,
    /// For how long, all together.
    pub(crate) stopped: Duration,
    /// Lanes of it that were inside a gate of this process when it was struck.
    pub(crate) inside: usize,
    /// Rooms that were in flight when it was struck.
    pub(crate) in_flight: usize,
    /// Rooms that nobody aborted and that were not done, although the session was to be resumed.
    pub(crate) not_resumed: usize,
}

/// Runs the script and stops the engine. `progress` is told how many rooms have ended, and of how
/// many.
pub(crate) fn run(
    script: &Script,
    world: &World,
    engine: &dyn Engine,
    progress: &(dyn Fn(usize, usize) + Sync),
) -> Verdict {
    let prefill = Prefill::new(script.pace);
    let far = engine.far();
    let director = Director {
        script,
        world,
        engine,
        prefill: &prefill,
        progress,
    };
    let scanning = AtomicBool::new(true);
    thread::scope(|scope| {
        // Each where its pages are.
        if far != Some(Side::Prefill) {
            scope.spawn(|| prefill.run(world, engine, world));
        }
        if far != Some(Side::Decode) {
            scope.spawn(|| scan(world, &scanning));
        }
        let verdict = director.run();
        prefill.stop();
        scanning.store(false, Ordering::Relaxed);
        engine.stop();
        verdict
    })
}

/// Has the oracle read the destination pages all the time.
pub(crate) fn scan(world: &World, scanning: &AtomicBool) {
    let mut first = 0u32;
    while scanning.load(Ordering::Relaxed) {
        world.destination.scan(first, SCAN_PAGES);
        first = first.wrapping_add(SCAN_PAGES) % world.shape.destination_pages.max(1);
        thread::sleep(SCAN_PAUSE);
    }
}

struct Director<'a> {
    script: &'a Script,
    world: &'a World,
    engine: &'a dyn Engine,
    prefill: &'a Prefill,
    progress: &'a (dyn Fn(usize, usize) + Sync),
}

impl Director<'_> {
    fn run(&self) -> Verdict {
        let began = Instant::now();
        let mut remarks = Vec::new();
        let mut struck = Struck::default();
        for step in &self.script.steps {
            self.step(step, began, &mut remarks, &mut struck);
        }
        let rooms: Vec<RoomNo> = (0..self.script.probe())
            .filter(|&no| self.started(no))
            .collect();
        self.await_outcomes(&rooms);
        let stuck_rooms = rooms.iter().filter(|&&no| !self.both_ended(no)).count();
        if self.script.resumes {
            struck.not_resumed = rooms.iter().filter(|&&no| self.spoiled(no)).count();
        }
        let probe = self.probe(&mut remarks);
        self.until(GRACE, || !self.memory_of_ended_rooms_is_out());
        self.await_quiet();
        let health = self.engine.health();
        let leaked_pages = self.leaked(&mut remarks);
        remarks.extend(self.engine.remarks());
        let held = self.engine.held();
        self.verdict(
            &rooms,
            Verdict {
                rooms: rooms.len(),
                done: 0,
                aborted: 0,
                aborted_in_flight: 0,
                bytes: 0,
                findings: self.world.destination.findings(),
                leaked_pages,
                quarantined: (held.quarantined_pages, held.quarantine_peak_pages),
                stuck_rooms,
                probe,
                health,
                abort_to_answer: None,
                abort_to_reusable: None,
                remarks,
                struck,
                sessions: self.engine.sessions(),
                took: began.elapsed(),
            },
        )
    }

    fn step(&self, step: &Step, began: Instant, remarks: &mut Vec<String>, struck: &mut Struck) {
        match step {
            Step::At(time) => thread::sleep(time.saturating_sub(began.elapsed())),
            Step::Start(starts) => self.start(starts, remarks),
            Step::StartSenders(rooms) => {
                for &room in rooms.iter().filter(|&&room| self.started(room)) {
                    self.start_sender(room, remarks);
                }
            }
            Step::AwaitInFlight {
                rooms,
                percent,
                queued,
                patience,
            } => {
                let wanted = (rooms.len() * percent).div_ceil(100).max(1);
                let mut since: Option<Instant> = None;
                self.until(*patience, || {
                    // What is done or dead cannot be in flight any more.
                    let live = rooms.iter().filter(|&&no| !self.answered(no)).count();
                    let flying = self.world.in_flight(rooms);
                    if live == 0 {
                        return true;
                    }
                    if flying < wanted.min(live) {
                        since = None;
                        return false;
                    }
                    let since = since.get_or_insert_with(Instant::now);
                    self.world.queued(rooms) >= *queued || since.elapsed() > NO_QUEUE
                });
            }
            Step::AwaitAnswered { rooms, patience } => {
                self.until(*patience, || {
                    rooms
                        .iter()
                        .all(|&no| self.answered(no) || !self.started(no))
                });
            }
            Step::Abort(kills) => self.abort(kills),
            Step::Strike { rooms, strike } => {
                struck.in_flight += self.world.in_flight(rooms);
                if let Err(why) = self.strike(*strike, struck) {
                    remarks.push(format!("the other process was not struck: {why}"));
                }
            }
            Step::AwaitPeer => {
                if let Err(why) = self.engine.await_peer() {
                    remarks.push(why);
                }
                self.world.mark("the other process goes on");
            }
        }
    }

    fn strike(&self, strike: Strike, struck: &mut Struck) -> Result<(), String> {
        let world = self.world;
        match strike {
            Strike::Kill => {
                // What it had found is lost with it.
                world.destination.findings();
                world.mark("the other process is killed");
                struck.inside += self.engine.kill_peer(&|| {
                    if let Some(far) = self.engine.far() {
                        world.side_lost(far, Instant::now());
                    }
                })?;
                struck.kills += 1;
                world.mark("the other process is back");
            }
            Strike::Stop(time) => {
                world.mark("the other process is stopped");
                struck.inside += self.engine.stop_peer(time)?;
                struck.stops += 1;
                struck.stopped += time;
            }
        }
        Ok(())
    }

    /// A room that was to be done and is not.
    fn spoiled(&self, no: RoomNo) -> bool {
        let Some(room) = self.world.rooms.get(no) else {
            return false;
        };
        let log = room.log();
        let aborted = log.decode.aborted.or(log.prefill.aborted).is_some();
        !aborted && !matches!(log.decode.end, Some((End::Done, _)))
    }

    /// All at once where there are pages for it: first takes the pages, then starts the rooms.
    fn start(&self, starts: &[Start], remarks: &mut Vec<String>) {
        let mut waiting = starts;
        while let Some(first) = waiting.first() {
            let mut ready = Vec::new();
            // Pages come as other rooms end.
            self.until(DEADLINE, || {
                ready.extend(self.world.take_destination(first.room).map(|p| (*first, p)));
                !ready.is_empty()
            });
            waiting = waiting.get(1..).unwrap_or_default();
            if ready.is_empty() {
                remarks.push(format!(
                    "{} was not started: no free pages",
                    self.named(first.room)
                ));
            }
            while let Some(next) = waiting.first() {
                let Some(pages) = self.world.take_destination(next.room) else {
                    break;
                };
                ready.push((*next, pages));
                waiting = waiting.get(1..).unwrap_or_default();
            }
            for (start, pages) in ready {
                if self.start_receiver(start.room, &pages, remarks) && start.prefill {
                    self.start_sender(start.room, remarks);
                }
            }
        }
    }

    fn start_receiver(&self, no: RoomNo, pages: &[u32], remarks: &mut Vec<String>) -> bool {
        let Some(room) = self.world.rooms.get(no) else {
            return false;
        };
        room.log().decode.started = Some(Instant::now());
        let Err(refusal) = self.engine.receive(no, &room.spec, pages) else {
            return true;
        };
        remarks.push(format!(
            "receiver of {} was refused: {refusal}",
            self.named(no)
        ));
        room.log().decode.end = Some((End::Aborted(refusal), Instant::now()));
        self.world
            .destination_back(no, pages, Some(0), Instant::now());
        false
    }

    fn named(&self, no: RoomNo) -> String {
        let spec = self
            .world
            .rooms
            .get(no)
            .map(|room| (room.spec.id, room.spec.attempt));
        spec.map_or("no room".into(), |(id, attempt)| {
            format!("room {id}#{attempt}")
        })
    }

    fn start_sender(&self, no: RoomNo, remarks: &mut Vec<String>) {
        let Some(room) = self.world.rooms.get(no) else {
            return;
        };
        room.log().prefill.started = Some(Instant::now());
        match self.engine.send(no, &room.spec) {
            // Where the sender is, the prefill engine is too.
            Ok(()) if self.engine.far() == Some(Side::Prefill) => {}
            Ok(()) => self.prefill.begin(no),
            Err(refusal) => {
                // An engine may say at once that the other side is gone; that is an outcome.
                tracing::debug!(room = room.spec.id, refusal, "sender refused");
                let mut log = room.log();
                log.prefill.end = Some((End::Aborted(refusal.clone()), Instant::now()));
                if log.decode.aborted.is_none() {
                    remarks.push(format!(
                        "sender of room {} was refused: {refusal}",
                        room.spec.id
                    ));
                }
            }
        }
    }

    fn abort(&self, kills: &[Kill]) {
        for kill in kills {
            let Some(room) = self.world.rooms.get(kill.room) else {
                continue;
            };
            if kill.by_tag && kill.side == Side::Decode {
                for other in &self.world.rooms {
                    if other.spec.session == room.spec.session {
                        called(other, kill.side);
                    }
                }
                self.engine.abort_tag(&room.spec.tag());
            } else {
                called(room, kill.side);
                self.engine.abort(kill.room, kill.side);
            }
        }
    }

    fn await_outcomes(&self, rooms: &[RoomNo]) {
        let last = rooms.iter().filter_map(|&no| {
            let mut log = self.world.rooms.get(no)?.log();
            log.side(Side::Decode)
                .started
                .max(log.side(Side::Prefill).started)
        });
        let Some(last) = last.max() else { return };
        let deadline = last + DEADLINE + Duration::from_secs(1);
        self.until(deadline.saturating_duration_since(Instant::now()), || {
            rooms.iter().all(|&no| self.both_ended(no))
        });
    }

    fn probe(&self, remarks: &mut Vec<String>) -> Option<Duration> {
        let no = self.script.probe();
        let began = Instant::now();
        if let Err(why) = self.engine.meet(PROBE) {
            remarks.push(format!("the probe was not started: {why}"));
            return None;
        }
        self.start(
            &[Start {
                room: no,
                prefill: true,
            }],
            remarks,
        );
        self.until(PROBE.saturating_sub(began.elapsed()), || self.answered(no));
        let room = self.world.rooms.get(no)?;
        match &room.log().decode.end {
            Some((End::Done, at)) => Some(at.saturating_duration_since(began)),
            Some((End::Aborted(why), _)) => {
                remarks.push(format!("the probe was aborted: {why}"));
                None
            }
            None => None,
        }
    }

    fn await_quiet(&self) {
        let world = self.world;
        let state = || (world.destination.findings(), world.out());
        let (began, mut since, mut before) = (Instant::now(), Instant::now(), state());
        while since.elapsed() < QUIET && began.elapsed() < QUIET_AT_MOST {
            world.destination.scan(0, world.shape.destination_pages);
            let now = state();
            if now != before {
                (since, before) = (Instant::now(), now);
            }
            thread::sleep(LOOK * 10);
        }
    }

    fn memory_of_ended_rooms_is_out(&self) -> bool {
        !self.ended_but_out().is_empty()
    }

    /// What is out although the side that has it has ended.
    fn ended_but_out(&self) -> BTreeMap<RoomNo, Out> {
        let mut out = self.world.out();
        out.retain(|&no, out| {
            let Some(room) = self.world.rooms.get(no) else {
                return true;
            };
            let log = room.log();
            if log.decode.end.is_none() {
                out.destination = 0;
            }
            if log.prefill.end.is_none() {
                out.source = 0;
            }
            *out != Out::default()
        });
        out
    }

    /// By the oracle's record, and by the engine's own table where it has one.
    fn leaked(&self, remarks: &mut Vec<String>) -> u64 {
        let held = self.engine.held();
        let mut leaked = 0;
        for (no, out) in self.ended_but_out() {
            if !held.rooms.contains(&no) {
                leaked += out.destination + out.source;
                let id = self.world.rooms.get(no).map_or(0, |room| room.spec.id);
                let (d, s) = (out.destination, out.source);
                remarks.push(format!(
                    "room {id} ended and {d} + {s} of its pages are out"
                ));
            }
        }
        let out = self.world.out();
        let known: u64 = out.values().map(|out| out.destination + out.source).sum();
        let lent = self.engine.lent_pages().unwrap_or(known);
        if lent > known {
            remarks.push(format!(
                "the engine lends out {lent} pages, {known} are accounted for"
            ));
        }
        leaked.max(lent.saturating_sub(known))
    }

    fn verdict(&self, rooms: &[RoomNo], mut verdict: Verdict) -> Verdict {
        let (mut answers, mut reusable) = (Vec::new(), Vec::new());
        for room in rooms.iter().filter_map(|&no| self.world.rooms.get(no)) {
            let log = room.log();
            let landed = log.landed.unwrap_or_else(|| room.landed());
            verdict.bytes += landed;
            match &log.decode.end {
                Some((End::Done, _)) => verdict.done += 1,
                Some((End::Aborted(_), _)) => {
                    verdict.aborted += 1;
                    let flying = landed > 0 && landed < self.world.wanted(room);
                    verdict.aborted_in_flight += usize::from(flying);
                }
                None => {}
            }
            for side in [&log.decode, &log.prefill] {
                answers.extend(side.abort_to_answer());
                reusable.extend(side.abort_to_reusable());
            }
        }
        verdict.abort_to_answer = Percentiles::of(answers);
        verdict.abort_to_reusable = Percentiles::of(reusable);
        verdict
    }

    fn started(&self, no: RoomNo) -> bool {
        self.world
            .rooms
            .get(no)
            .is_some_and(|room| room.log().decode.started.is_some())
    }

    fn answered(&self, no: RoomNo) -> bool {
        self.world
            .rooms
            .get(no)
            .is_some_and(|room| room.log().decode.end.is_some())
    }

    fn both_ended(&self, no: RoomNo) -> bool {
        let Some(room) = self.world.rooms.get(no) else {
            return true;
        };
        let log = room.log();
        let ended = log.decode.end.is_some();
        ended && (log.prefill.started.is_none() || log.prefill.end.is_some())
    }

    /// Looks until it is true or `patience` is over.
    fn until(&self, patience: Duration, mut reached: impl FnMut() -> bool) {
        let began = Instant::now();
        let mut shown = Instant::now();
        while !reached() && began.elapsed() < patience {
            if shown.elapsed() > Duration::from_millis(50) {
                shown = Instant::now();
                let ended = (0..self.world.rooms.len())
                    .filter(|&no| self.answered(no))
                    .count();
                (self.progress)(ended, self.world.rooms.len());
            }
            thread::sleep(LOOK);
        }
    }
}

fn called(room: &crate::world::Room, side: Side) {
    let mut log = room.log();
    let log = log.side(side);
    if log.started.is_some() && log.end.is_none() {
        log.aborted.get_or_insert_with(Instant::now);
    }
}
