//! One end on the thread of UCX: its worker, the way to the peer, and the jobs that go there.
//!
//! ```text
//!   Offered ── connect ─▶ Wiring ─ probe flushed ─▶ Up ─ close ─▶ Ending ─ all flushed ─▶ Forced
//!      │                     └ late, refused ───────┼── failed, or a flush is late ───────▶ │
//!      └── close ───────────────────────────────────┴──────────────────────────────────────▶│
//!                                                                                           ▼
//!          endpoints closed by force, or late with that ─▶ the fence table ─▶ Gone: worker destroyed
//!                                                                       └───▶ Retired: worker kept
//! ```
//!
//! Rules:
//! - A job's ticket goes back when nothing of it is under way; of one that was under way when the route
//!   failed, after the worker was destroyed, and only if the table accepts that for reads. Else it is parked
//!   for ever: its pages are never used again.
//! - The path is fenced after the worker was destroyed, and only if the table accepts that for writes.
//! - A worker that may not be destroyed goes on, so that what the peer has posted can end; when nobody waits
//!   for it any more it is destroyed all the same.

use super::UcxJob;
use super::context::Context;
use super::error::UcxError;
use super::events::Events;
use super::fence::Verdict;
use super::job::{Job, Next};
use super::mailbox::{Born, EndNo, Reply};
use super::options::UcxOptions;
use super::window::{Limits, Room, Windows};
use super::worker::{Flight, Worker};
use crate::copy::schedule::Class;
use crate::ids::LifeId;
use crate::memory::FarPath;
use crate::peer::hello::UcxOffer;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What all ends of the thread share.
pub(super) struct Common {
    pub(super) context: Rc<Context>,
    pub(super) events: Events,
    pub(super) options: UcxOptions,
    pub(super) verdict: Verdict,
}

/// See the module.
pub(super) struct Route {
    number: EndNo,
    common: Rc<Common>,
    worker: Option<Worker>,
    path: Arc<FarPath>,
    stage: Stage,
    jobs: Jobs,
    windows: Windows,
    parts: Vec<Part>,
    sums: VecDeque<u32>,
    /// A test holds it: it is not progressed.
    #[cfg(test)]
    pub(super) held: bool,
}

enum Stage {
    Offered,
    Wiring {
        probe: Rc<Flight>,
        until: Instant,
        reply: Option<Reply<()>>,
    },
    Up,
    Ending {
        until: Instant,
    },
    Forced {
        until: Instant,
        why: String,
    },
    Retired,
    Gone,
}

/// Puts that were posted together.
struct Part {
    room: Room,
    flight: Rc<Flight>,
    /// Of which jobs, and how many bytes of each.
    jobs: Vec<(u32, u64)>,
    until: Instant,
}

/// Jobs by number.
#[derive(Default)]
struct Jobs {
    all: Vec<Option<Job>>,
    free: Vec<u32>,
}

/// Parts that are posted before UCX has its turn.
const PARTS_AT_ONCE: usize = 8;

/// Bytes of a source that are summed in one turn.
const SUM_STRETCH: u64 = 256 << 10;

/// Most jobs of a route.
pub(super) const MOST_JOBS: usize = 1 << 16;

/// Endpoints of a route. Two let the puts of small rooms pass those of large ones.
const ENDPOINTS: usize = 2;

/// By which endpoint a class goes.
fn endpoint_of(class: Class) -> usize {
    match class {
        Class::Interactive => 0,
        Class::Bulk => ENDPOINTS - 1,
    }
}

impl Route {
    /// An end with a worker of its own.
    pub(super) fn new(number: EndNo, common: &Rc<Common>) -> Result<(Route, Born), UcxError> {
        let worker = Worker::new(&common.context)?;
        if let Err(error) = common.events.add(worker.event(), number) {
            return Err(UcxError::Call {
                call: "epoll_ctl",
                status: error.to_string(),
                advice: "; look at `ulimit -n` and fs.epoll.max_user_watches",
            });
        }
        let path = Arc::<FarPath>::default();
        let born = Born {
            number,
            address: worker.address().to_vec(),
            probe: common.context.probe().clone(),
            path: Arc::clone(&path),
        };
        let route = Route {
            number,
            common: Rc::clone(common),
            worker: Some(worker),
            path,
            stage: Stage::Offered,
            jobs: Jobs::default(),
            windows: Windows::new(Limits {
                bytes: common.options.window_bytes,
                puts: common.options.window_puts,
                jobs: MOST_JOBS,
            }),
            parts: Vec::new(),
            sums: VecDeque::new(),
            #[cfg(test)]
            held: false,
        };
        Ok((route, born))
    }

    /// Connects to the peer's worker, and writes its probe.
    pub(super) fn connect(&mut self, theirs: &UcxOffer, reply: Reply<()>, now: Instant) {
        let (Stage::Offered, Some(worker)) = (&self.stage, &mut self.worker) else {
            let _ = reply.send(Err(UcxError::Ended(": this end was closed before".into())));
            return;
        };
        match probe(worker, theirs) {
            Ok(probe) => {
                self.stage = Stage::Wiring {
                    probe,
                    until: now + self.common.options.wire_up,
                    reply: Some(reply),
                };
            }
            Err(error) => {
                let _ = reply.send(Err(error.clone()));
                self.fail(&error.to_string(), now);
            }
        }
    }

    /// A job for it. One that finds no way says so by its ticket.
    pub(super) fn post(&mut self, job: UcxJob) {
        let mut job = Job::new(job);
        if !matches!(self.stage, Stage::Up) {
            job.fail("the connection through UCX is over");
            return job.end();
        }
        if job.is_cancelled() {
            return job.end();
        }
        let room = job.room;
        let number = self.jobs.add(job);
        if !self.windows.push(room, number)
            && let Some(mut job) = self.jobs.remove(number)
        {
            job.fail("limit MOST_JOBS is reached: the route has no place for another job");
            job.end();
        }
    }

    /// Jobs of this life were cancelled: nothing more of them is posted.
    pub(super) fn cancel(&mut self, life: LifeId) {
        for (room, number) in self.windows.jobs_of(life.0) {
            if self.jobs.get(number).is_some_and(|job| job.is_cancelled()) {
                self.stop(room, number);
            }
        }
    }

    /// Nothing more of a job is posted.
    fn stop(&mut self, room: Room, number: u32) {
        self.windows.take(room, number);
        if let Some(job) = self.jobs.get(number) {
            job.stop();
        }
        self.turn(number);
    }

    /// What a job does next, if nothing of it is under way.
    fn turn(&mut self, number: u32) {
        match self.jobs.get(number).and_then(|job| job.next()) {
            Some(Next::Sum) => self.sums.push_back(number),
            Some(Next::End) => {
                if let Some(job) = self.jobs.remove(number) {
                    job.end();
                }
            }
            None => {}
        }
    }

    /// The session is over.
    pub(super) fn close(&mut self, now: Instant) {
        match self.stage {
            Stage::Up => {
                self.stage = Stage::Ending {
                    until: now + self.common.options.flush,
                };
                self.hand_back(None);
            }
            Stage::Offered | Stage::Wiring { .. } => self.force("the session is over", now),
            Stage::Ending { .. } | Stage::Forced { .. } | Stage::Retired | Stage::Gone => {}
        }
    }

    /// Jobs of which nothing is under way go back.
    fn hand_back(&mut self, why: Option<&str>) {
        for number in self.jobs.numbers() {
            let Some(job) = self.jobs.get(number) else {
                continue;
            };
            let room = job.room;
            if self.windows.take(room, number) {
                if let (Some(why), Some(job)) = (why, self.jobs.get(number)) {
                    job.fail(why);
                }
                self.stop(room, number);
            }
        }
    }

    /// The route failed.
    fn fail(&mut self, why: &str, now: Instant) {
        if let Stage::Wiring { reply, .. } = &mut self.stage
            && let Some(reply) = reply.take()
        {
            let _ = reply.send(Err(UcxError::Call {
                call: "the first put",
                status: why.to_owned(),
                advice: "; look at ucx.transports and ucx.devices on both sides",
            }));
        }
        self.force(why, now);
    }

    fn force(&mut self, why: &str, now: Instant) {
        self.stage = Stage::Forced {
            until: now + self.common.options.close,
            why: why.to_owned(),
        };
        self.hand_back(Some(why));
        if let Some(worker) = &mut self.worker {
            worker.close();
        }
    }

    /// Lets UCX work, and does what is due; whether anything happened.
    pub(super) fn step(&mut self, now: Instant) -> bool {
        #[cfg(test)]
        if self.held {
            return false;
        }
        let Some(worker) = &self.worker else {
            return false;
        };
        let mut worked = worker.progress();
        let failed = worker.failed();
        match &mut self.stage {
            Stage::Offered => {
                if let Some(why) = failed {
                    self.fail(&why, now);
                }
            }
            Stage::Wiring {
                probe,
                until,
                reply,
            } => {
                let error = failed.or_else(|| probe.error(self.common.context.library()));
                if let Some(why) = error {
                    self.fail(&why, now);
                    return true;
                }
                if probe.is_over() {
                    let reply = reply.take();
                    self.stage = Stage::Up;
                    // Nobody waits for it any more: then its handle is gone, too, and closes it.
                    if let Some(reply) = reply {
                        let _ = reply.send(Ok(()));
                    }
                    worked = true;
                } else if now >= *until {
                    let late = UcxError::Late {
                        what: "the first put to a peer",
                        within: self.common.options.wire_up,
                        limit: "ucx.wire_up",
                    };
                    if let Some(reply) = reply.take() {
                        let _ = reply.send(Err(late.clone()));
                    }
                    self.fail(&late.to_string(), now);
                    worked = true;
                }
            }
            Stage::Up => {
                worked |= self.landed();
                let late = self.late(now);
                if let Some(why) = failed.or(late) {
                    self.fail(&why, now);
                    return true;
                }
                worked |= self.post_parts(now);
                worked |= self.sum();
            }
            Stage::Ending { until } => {
                let until = *until;
                worked |= self.landed();
                worked |= self.sum();
                if let Some(why) = failed {
                    self.fail(&why, now);
                } else if self.parts.is_empty() && self.sums.is_empty() {
                    self.force("the session is over", now);
                } else if now >= until {
                    self.fail("the session is over, and its last puts were not flushed", now);
                }
            }
            Stage::Forced { until, .. } => {
                let out = worker.is_out();
                if out || now >= *until {
                    self.decide();
                    worked = true;
                }
            }
            Stage::Retired => {
                if Arc::strong_count(&self.path) == 1 && self.jobs.is_empty() {
                    self.destroy();
                    worked = true;
                }
            }
            Stage::Gone => {}
        }
        worked
    }

    /// Parts that are flushed; whether there were any. One that failed fails the route, by its endpoint or
    /// when it is late.
    fn landed(&mut self) -> bool {
        let mut worked = false;
        let mut at = 0;
        while at < self.parts.len() {
            let library = self.common.context.library();
            let flight = &self.parts[at].flight;
            if !flight.is_over() || flight.error(library).is_some() {
                at += 1;
                continue;
            }
            let part = self.parts.swap_remove(at);
            for (number, bytes) in part.jobs {
                if let Some(job) = self.jobs.get(number) {
                    job.out -= 1;
                    job.landed(bytes);
                }
                self.turn(number);
            }
            self.windows.flushed(part.room);
            worked = true;
        }
        worked
    }

    /// Why the route is to be given up, if a part says so.
    fn late(&self, now: Instant) -> Option<String> {
        let library = self.common.context.library();
        if let Some(error) = self.parts.iter().find_map(|part| part.flight.error(library)) {
            return Some(format!("a put failed: {error}"));
        }
        let late = self.parts.iter().any(|part| now >= part.until);
        let within = self.common.options.flush;
        late.then(|| {
            UcxError::Late {
                what: "a flush",
                within,
                limit: "ucx.flush",
            }
            .to_string()
        })
    }

    /// Posts what windows have room for; whether there was anything.
    fn post_parts(&mut self, now: Instant) -> bool {
        let mut worked = false;
        for _ in 0..PARTS_AT_ONCE {
            let Some(part) = self.windows.next() else {
                break;
            };
            worked = true;
            self.post_part(part.room, (part.bytes, part.puts), now);
        }
        worked
    }

    fn post_part(&mut self, room: Room, (mut bytes, mut puts): (u64, u32), now: Instant) {
        let Some(worker) = &mut self.worker else {
            return;
        };
        let endpoint = endpoint_of(room.class);
        let flight = worker.flight();
        // In the list before anything is posted: what carries on must know what is under way.
        self.parts.push(Part {
            room,
            flight: Rc::clone(&flight),
            jobs: Vec::new(),
            until: now + self.common.options.flush,
        });
        let Some(part) = self.parts.last_mut() else {
            return;
        };
        let mut over = Vec::new();
        while bytes > 0 && puts > 0 {
            let Some(number) = self.windows.front(room) else {
                break;
            };
            let Some(job) = self.jobs.get(number) else {
                self.windows.take(room, number);
                continue;
            };
            job.out += 1;
            part.jobs.push((number, 0));
            let posted = job.post(worker, endpoint, &flight, (bytes, puts));
            bytes -= posted.bytes;
            puts -= posted.puts;
            match part.jobs.last_mut() {
                Some((_, carried)) if posted.puts > 0 => *carried = posted.bytes,
                _ => {
                    part.jobs.pop();
                    job.out -= 1;
                }
            }
            if posted.done {
                self.windows.take(room, number);
                over.push(number);
            }
        }
        // Also for nothing: then the flight is over at once.
        let carries = !part.jobs.is_empty();
        if let Err(error) = worker.flush(endpoint, &flight) {
            tracing::debug!(%error, "a flush was refused");
        }
        if !carries {
            self.parts.pop();
        }
        self.windows.posted(room, carries);
        for number in over {
            self.turn(number);
        }
    }

    /// Sums some of a source; whether there was one.
    fn sum(&mut self) -> bool {
        let Some(number) = self.sums.front().copied() else {
            return false;
        };
        if self.jobs.get(number).is_none_or(|job| job.sum(SUM_STRETCH)) {
            self.sums.pop_front();
            if let Some(job) = self.jobs.remove(number) {
                job.end();
            }
        }
        true
    }

    /// The endpoints are closed, or do not want to be: what does that prove?
    fn decide(&mut self) {
        let verdict = &self.common.verdict;
        let awaited = Arc::strong_count(&self.path) > 1;
        let frees = !self.jobs.is_empty() && verdict.reads;
        if frees || verdict.writes && self.jobs.is_empty() || !awaited && self.jobs.is_empty() {
            return self.destroy();
        }
        tracing::warn!(
            jobs = self.jobs.len(),
            why = verdict.why,
            "a connection through UCX ended, and that proves nothing: what it may still read or write stays held"
        );
        self.stage = Stage::Retired;
    }

    /// Destroys the worker. Of what is left, jobs go back if the table accepts that for reads.
    fn destroy(&mut self) {
        let why = match &self.stage {
            Stage::Forced { why, .. } => why.clone(),
            _ => String::new(),
        };
        self.stage = Stage::Gone;
        let Some(worker) = self.worker.take() else {
            return;
        };
        if let Err(error) = self.common.events.remove(worker.event()) {
            tracing::debug!(%error, "a worker's descriptor was not waited for");
        }
        drop(worker);
        let parts = std::mem::take(&mut self.parts);
        for number in self.jobs.numbers() {
            let Some(mut job) = self.jobs.remove(number) else {
                continue;
            };
            if self.common.verdict.reads || job.out == 0 {
                if job.out > 0 {
                    job.fail(&why);
                }
                job.end();
            } else {
                // Never again: nobody can say when its source was read last.
                std::mem::forget(job);
            }
        }
        drop(parts);
        self.sums.clear();
        if self.common.verdict.writes {
            self.path.fence();
        }
    }

    pub(super) fn is_gone(&self) -> bool {
        matches!(self.stage, Stage::Gone)
    }

    pub(super) fn is_retired(&self) -> bool {
        matches!(self.stage, Stage::Retired)
    }

    /// When it has to have a turn, whatever UCX says.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.stage {
            Stage::Wiring { until, .. }
            | Stage::Ending { until }
            | Stage::Forced { until, .. } => Some(*until),
            Stage::Up => self.parts.iter().map(|part| part.until).min(),
            // Nobody tells when a gate has gone.
            Stage::Retired => Some(Instant::now() + RETIRED_LOOK),
            Stage::Offered | Stage::Gone => None,
        }
    }

    /// Whether it may sleep: its descriptor tells of what comes next.
    pub(super) fn arm(&self) -> bool {
        #[cfg(test)]
        if self.held {
            return true;
        }
        match self.worker.as_ref().map(Worker::arm) {
            None => true,
            Some(Ok(armed)) => armed,
            Some(Err(error)) => {
                tracing::warn!(end = self.number, %error, "a worker cannot sleep");
                true
            }
        }
    }
}

/// How often a retired worker is looked at.
const RETIRED_LOOK: Duration = Duration::from_millis(500);

/// Endpoints at the peer's worker, and a put to its probe through each.
fn probe(worker: &mut Worker, theirs: &UcxOffer) -> Result<Rc<Flight>, UcxError> {
    for _ in 0..ENDPOINTS {
        worker.connect(&theirs.worker)?;
    }
    let key = worker.unpack(&theirs.probe)?;
    let flight = worker.flight();
    for endpoint in 0..ENDPOINTS {
        worker.write_word(endpoint, (theirs.probe.base, key), &flight)?;
    }
    for endpoint in 0..ENDPOINTS {
        worker.flush(endpoint, &flight)?;
    }
    Ok(flight)
}

impl Jobs {
    fn add(&mut self, job: Job) -> u32 {
        match self.free.pop() {
            Some(number) => {
                self.all[number as usize] = Some(job);
                number
            }
            None => {
                self.all.push(Some(job));
                (self.all.len() - 1) as u32
            }
        }
    }

    fn get(&mut self, number: u32) -> Option<&mut Job> {
        self.all.get_mut(number as usize)?.as_mut()
    }

    fn remove(&mut self, number: u32) -> Option<Job> {
        let job = self.all.get_mut(number as usize)?.take()?;
        self.free.push(number);
        Some(job)
    }

    fn numbers(&self) -> Vec<u32> {
        let there = self.all.iter().enumerate().filter(|(_, job)| job.is_some());
        there.map(|(number, _)| number as u32).collect()
    }

    fn len(&self) -> usize {
        self.all.len() - self.free.len()
    }

    fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
