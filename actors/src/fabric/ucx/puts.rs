//! Jobs of a route on which this side puts bytes into the peer's memory by itself.
//!
//! ```text
//!   post ─▶ Windows ─▶ part: puts of a room's jobs, a flush ─▶ flushed: landed, and the next part
//!                                                       └ late, or an error: the route is over
//! ```
//!
//! Rule: a job goes back when nothing of it is under way, or when [`Puts::let_go`] says that nothing of
//! the whole route is.

use super::UcxJob;
use super::endpoint_of;
use super::error::UcxError;
use super::job::{Job, Next};
use super::options::UcxOptions;
use super::route::MOST_JOBS;
use super::window::{Limits, Room, Windows};
use super::worker::{Flight, Worker};
use crate::ids::LifeId;
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::{Duration, Instant};

/// See the module.
pub(super) struct Puts {
    flush: Duration,
    jobs: Jobs,
    windows: Windows,
    parts: Vec<Part>,
    sums: VecDeque<u32>,
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

impl Puts {
    pub(super) fn new(options: &UcxOptions) -> Puts {
        Puts {
            flush: options.flush,
            jobs: Jobs::default(),
            windows: Windows::new(Limits {
                bytes: options.window_bytes,
                puts: options.window_puts,
                jobs: MOST_JOBS,
            }),
            parts: Vec::new(),
            sums: VecDeque::new(),
        }
    }

    pub(super) fn post(&mut self, job: UcxJob) {
        let job = match Job::new(job) {
            Ok(job) => job,
            Err(mut ticket) => {
                ticket.errored("the claim names no place in the peer's memory; a bug of kvroom");
                return;
            }
        };
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

    /// Nothing more is posted: jobs of which nothing is under way go back.
    pub(super) fn hand_back(&mut self, why: Option<&str>) {
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

    /// Nothing of the route reads a source any more: all jobs go back.
    pub(super) fn let_go(&mut self, why: &str) {
        self.parts.clear();
        self.sums.clear();
        for number in self.jobs.numbers() {
            if let Some(mut job) = self.jobs.remove(number) {
                if job.out > 0 {
                    job.fail(why);
                }
                job.end();
            }
        }
    }

    /// How many jobs are here.
    pub(super) fn len(&self) -> usize {
        self.jobs.len()
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.parts.is_empty() && self.sums.is_empty() && self.jobs.len() == 0
    }

    pub(super) fn due(&self) -> Option<Instant> {
        self.parts.iter().map(|part| part.until).min()
    }

    /// Why the route is to be given up.
    pub(super) fn failed(&self, worker: &Worker, now: Instant) -> Option<String> {
        let error = self.parts.iter().find_map(|p| worker.error_of(&p.flight));
        if let Some(error) = error {
            return Some(format!("a put failed: {error}"));
        }
        let late = self.due().is_some_and(|until| now >= until);
        late.then(|| {
            UcxError::Late {
                what: "a flush",
                within: self.flush,
                limit: "ucx.flush",
            }
            .to_string()
        })
    }

    /// Takes what is flushed, and posts what windows have room for; whether there was anything. Only while
    /// no endpoint has failed: then a flush that ends well says nothing.
    pub(super) fn step(&mut self, worker: &mut Worker, now: Instant, posts: bool) -> bool {
        let mut worked = self.landed();
        if posts {
            for _ in 0..PARTS_AT_ONCE {
                let Some(part) = self.windows.next() else {
                    break;
                };
                worked = true;
                self.post_part(worker, part.room, (part.bytes, part.puts), now);
            }
        }
        worked | self.sum()
    }

    /// Parts that are flushed; whether there were any. One that failed fails the route.
    fn landed(&mut self) -> bool {
        let mut worked = false;
        let mut at = 0;
        while at < self.parts.len() {
            let flight = &self.parts[at].flight;
            if !flight.is_over() || flight.is_bad() {
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

    fn post_part(
        &mut self,
        worker: &mut Worker,
        room: Room,
        (mut bytes, mut puts): (u64, u32),
        now: Instant,
    ) {
        let endpoint = endpoint_of(room.class);
        let flight = worker.flight();
        // In the list before anything is posted: whoever goes on must know what is under way.
        self.parts.push(Part {
            room,
            flight: Rc::clone(&flight),
            jobs: Vec::new(),
            until: now + self.flush,
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
        // Also of nothing: then the flight is over at once. An error is in it.
        let carries = !part.jobs.is_empty();
        worker.flush(endpoint, &flight);
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
}
