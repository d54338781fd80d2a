//! Which job a lane copies a piece of next: fair between rooms, quick for small ones. Pure.
//!
//! ```text
//!   push ─▶ Interactive:  flow ─▶ flow ─▶ flow     deficit round robin, 64 KiB pieces ─┐
//!           Bulk:         flow ─▶ flow             deficit round robin, 128 KiB pieces ┴▶ next
//!                          └ jobs, first in first out
//! ```
//!
//! Rules:
//! - Jobs of one flow (a room) in one class come in the order in which they were pushed.
//! - Flows of a class share it by bytes: of two that both have work all the time, neither gets more
//!   than one round and one piece ahead of the other, however large its jobs are.
//! - Interactive goes first, and never waits behind more than one bulk piece; while both wait, one
//!   piece in [`Config::bulk_every`] is bulk.
//! - A cancelled job is handed out whole, before any piece is copied, as soon as it is known: when
//!   [`Scheduler::cancel`] names its flow, when it is next in its flow, or when the sweep (a few jobs
//!   each turn) comes past it.
//! - Every job that went in comes out exactly once: finished, cancelled, or by
//!   [`Scheduler::drain`].
//! - Each call takes constant time, amortised, but for `cancel`, which walks one flow.

mod flows;
mod list;

use flows::Flows;
use list::{Linked, Links, NIL};
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::fmt;

/// How urgent a room's copies are.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
pub enum Class {
    /// Someone waits for it: goes first, in small pieces.
    Interactive,
    /// Large and patient.
    #[default]
    Bulk,
}

/// What the scheduler must know of a job.
pub trait Work {
    /// Bytes still to copy.
    fn remaining(&self) -> u64;
    /// Whether the job is to be given back instead of copied. Once true it stays true.
    fn is_cancelled(&self) -> bool;
}

/// Sizes and shares. Zeroes are taken as the smallest value that works.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most bytes of an interactive piece; at least 1.
    pub interactive_piece: u64,
    /// Most bytes of a bulk piece; at least 1.
    pub bulk_piece: u64,
    /// While both classes wait, one piece of this many is bulk; at least 2.
    pub bulk_every: u32,
    /// Most jobs held at once; at least 1.
    pub capacity: usize,
}

impl Default for Config {
    fn default() -> Self {
        let capacity = crate::limits::Limits::default().jobs_per_lane;
        Config {
            interactive_piece: 64 << 10,
            bulk_piece: 128 << 10,
            bulk_every: 16,
            capacity,
        }
    }
}

/// The lane holds as many jobs as it may; the job is handed back. Push again after one has left, or
/// raise `jobs_per_lane`.
#[derive(thiserror::Error)]
#[error("the lane holds {capacity} jobs, which is its limit (jobs_per_lane)")]
pub struct QueueFull<J> {
    /// The job that was not taken.
    pub job: J,
    /// The limit.
    pub capacity: usize,
}

impl<J> fmt::Debug for QueueFull<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueFull")
            .field("capacity", &self.capacity)
            .finish_non_exhaustive()
    }
}

/// What a lane does next.
#[derive(Debug)]
#[must_use]
pub enum Turn<'a, J: Work> {
    /// Give this job's memory back: it was cancelled. Costs its flow nothing.
    Cancelled(J),
    /// Copy a piece of a job.
    Piece(PieceTurn<'a, J>),
}

/// The right to copy one piece of a job. Dropped without a report (a panic), the piece counts as
/// used up and nothing as copied, so that the job cannot hold up others.
#[derive(Debug)]
#[must_use]
pub struct PieceTurn<'a, J: Work> {
    scheduler: &'a mut Scheduler<J>,
    class: Class,
    at: u32,
    budget: u64,
    reported: bool,
}

/// The jobs of one lane.
#[derive(Debug)]
pub struct Scheduler<J> {
    /// All jobs that wait, densely, in no order; the flows' lists go through them.
    jobs: Vec<Entry<J>>,
    interactive: Lot,
    bulk: Lot,
    /// Known to be cancelled, to be handed out first.
    cancelled: VecDeque<J>,
    /// Interactive pieces since a bulk one, while bulk waits.
    passed_over: u32,
    /// Where the sweep goes on.
    sweep: usize,
    bulk_every: u32,
    capacity: usize,
}

#[derive(Debug)]
struct Entry<J> {
    job: J,
    class: Class,
    flow: u32,
    links: Links,
}

impl<J> Linked for Entry<J> {
    fn links(&mut self) -> &mut Links {
        &mut self.links
    }
}

/// One class.
#[derive(Debug)]
struct Lot {
    flows: Flows,
    piece: u64,
}

/// How many waiting jobs each turn looks at for a cancelled one.
const SWEPT_EACH_TURN: usize = 4;

impl<J: Work> Scheduler<J> {
    /// An empty scheduler. Allocates nothing until the first push.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let lot = |piece: u64| {
            let piece = piece.clamp(1, 1 << 62);
            Lot {
                flows: Flows::new(piece as i64),
                piece,
            }
        };
        Scheduler {
            jobs: Vec::new(),
            interactive: lot(config.interactive_piece),
            bulk: lot(config.bulk_piece),
            cancelled: VecDeque::new(),
            passed_over: 0,
            sweep: 0,
            bulk_every: config.bulk_every.max(2),
            capacity: config.capacity.clamp(1, NIL as usize - 1),
        }
    }

    /// Adds a job at the end of its flow. A job that is cancelled already is handed out next.
    ///
    /// # Errors
    /// [`QueueFull`] hands the job back when the limit is reached.
    pub fn push(&mut self, flow: u64, class: Class, job: J) -> Result<(), QueueFull<J>> {
        if self.len() >= self.capacity {
            return Err(QueueFull {
                job,
                capacity: self.capacity,
            });
        }
        if job.is_cancelled() {
            self.cancelled.push_back(job);
            return Ok(());
        }
        let at = self.jobs.len() as u32;
        let flows = &mut lot(&mut self.interactive, &mut self.bulk, class).flows;
        let flow = flows.find_or_add(flow);
        self.jobs.push(Entry {
            job,
            class,
            flow,
            links: Links::NONE,
        });
        flows.jobs(flow).push_back(&mut self.jobs, at);
        Ok(())
    }

    /// What to do next; none when no job waits. Cancelled jobs come before any piece.
    // Not an iterator: a turn borrows the scheduler until it is reported.
    #[allow(clippy::should_implement_trait)]
    pub fn next(&mut self) -> Option<Turn<'_, J>> {
        self.sweep_some(SWEPT_EACH_TURN);
        if let Some(job) = self.take_cancelled() {
            return Some(Turn::Cancelled(job));
        }
        let class = self.pick()?;
        let lot = lot(&mut self.interactive, &mut self.bulk, class);
        let front = lot.flows.front();
        let at = lot.flows.jobs(front).head();
        let job = &self.jobs[at as usize].job;
        if job.is_cancelled() {
            return Some(Turn::Cancelled(self.remove(at)));
        }
        let budget = lot.piece.min(job.remaining());
        match class {
            Class::Interactive if self.bulk.flows.is_empty() => self.passed_over = 0,
            Class::Interactive => self.passed_over += 1,
            Class::Bulk => self.passed_over = 0,
        }
        Some(Turn::Piece(PieceTurn {
            scheduler: self,
            class,
            at,
            budget,
            reported: false,
        }))
    }

    /// A cancelled job that is known, without copying anything; none when none is known.
    pub fn take_cancelled(&mut self) -> Option<J> {
        let job = self.cancelled.pop_front();
        if self.cancelled.is_empty() {
            self.cancelled.shrink_to(KEPT);
        }
        job
    }

    /// Some jobs of this flow were cancelled: they are handed out before anything else is copied.
    /// Returns how many there were. Takes time in proportion to the flow's jobs.
    pub fn cancel(&mut self, flow: u64) -> usize {
        let mut found = 0;
        for class in [Class::Interactive, Class::Bulk] {
            let flows = &mut lot(&mut self.interactive, &mut self.bulk, class).flows;
            let Some(flow) = flows.find(flow) else {
                continue;
            };
            let mut at = flows.jobs(flow).head();
            while at != NIL {
                let entry = &self.jobs[at as usize];
                let mut next = entry.links.next();
                if entry.job.is_cancelled() {
                    // The last entry takes the place of the one that leaves.
                    if next as usize == self.jobs.len() - 1 {
                        next = at;
                    }
                    let job = self.remove(at);
                    self.cancelled.push_back(job);
                    found += 1;
                }
                at = next;
            }
        }
        found
    }

    /// Looks at up to `jobs` waiting jobs, going on where the last sweep ended, and makes those that
    /// are cancelled be handed out next. Every turn sweeps a few; a lane that idles may sweep more.
    pub fn sweep_some(&mut self, jobs: usize) {
        for _ in 0..jobs.min(self.jobs.len()) {
            if self.sweep >= self.jobs.len() {
                self.sweep = 0;
            }
            match self.jobs.get(self.sweep) {
                Some(entry) if entry.job.is_cancelled() => {
                    let job = self.remove(self.sweep as u32);
                    self.cancelled.push_back(job);
                }
                _ => self.sweep += 1,
            }
        }
    }

    /// Takes every job out, cancelled ones first, those of a flow in their order.
    pub fn drain(&mut self) -> Vec<J> {
        let mut out: Vec<J> = std::mem::take(&mut self.cancelled).into();
        out.reserve(self.jobs.len());
        for class in [Class::Interactive, Class::Bulk] {
            loop {
                let flows = &mut lot(&mut self.interactive, &mut self.bulk, class).flows;
                if flows.is_empty() {
                    break;
                }
                let front = flows.front();
                let at = flows.jobs(front).head();
                out.push(self.remove(at));
            }
        }
        out
    }

    /// How many jobs it holds, cancelled ones included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.jobs.len() + self.cancelled.len()
    }

    /// Whether it holds no job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many flows of a class have jobs that wait.
    #[must_use]
    pub fn flows(&self, class: Class) -> usize {
        match class {
            Class::Interactive => self.interactive.flows.len(),
            Class::Bulk => self.bulk.flows.len(),
        }
    }

    fn pick(&self) -> Option<Class> {
        match (
            self.interactive.flows.is_empty(),
            self.bulk.flows.is_empty(),
        ) {
            (true, true) => None,
            (false, true) => Some(Class::Interactive),
            (true, false) => Some(Class::Bulk),
            (false, false) if self.passed_over + 1 >= self.bulk_every => Some(Class::Bulk),
            (false, false) => Some(Class::Interactive),
        }
    }

    /// Takes one job out, from wherever it is.
    fn remove(&mut self, at: u32) -> J {
        let Entry { class, flow, .. } = self.jobs[at as usize];
        let flows = &mut lot(&mut self.interactive, &mut self.bulk, class).flows;
        flows.jobs(flow).unlink(&mut self.jobs, at);
        flows.remove_if_empty(flow);
        let gone = self.jobs.swap_remove(at as usize);
        if let Some(moved) = self.jobs.get(at as usize) {
            let (class, flow) = (moved.class, moved.flow);
            let flows = &mut lot(&mut self.interactive, &mut self.bulk, class).flows;
            flows.jobs(flow).moved(&mut self.jobs, at);
        }
        if self.jobs.is_empty() {
            self.jobs.shrink_to(KEPT);
        }
        gone.job
    }
}

/// How much of an emptied table is kept for the next jobs.
const KEPT: usize = 1024;

/// The lot of a class, borrowed apart from the rest of the scheduler.
fn lot<'a>(interactive: &'a mut Lot, bulk: &'a mut Lot, class: Class) -> &'a mut Lot {
    match class {
        Class::Interactive => interactive,
        Class::Bulk => bulk,
    }
}

impl<J: Work> PieceTurn<'_, J> {
    /// The job.
    pub fn job(&mut self) -> &mut J {
        &mut self.scheduler.jobs[self.at as usize].job
    }

    /// Most bytes to copy in this turn; 0 only if the job has none left.
    #[must_use]
    pub fn budget(&self) -> u64 {
        self.budget
    }

    /// The job's class.
    #[must_use]
    pub fn class(&self) -> Class {
        self.class
    }

    /// The flow that the job was pushed to.
    #[must_use]
    pub fn flow(&self) -> u64 {
        let flow = self.scheduler.jobs[self.at as usize].flow;
        match self.class {
            Class::Interactive => self.scheduler.interactive.flows.id(flow),
            Class::Bulk => self.scheduler.bulk.flows.id(flow),
        }
    }

    /// Says how many bytes were copied, at most the budget, and whether the job is over (done or
    /// failed); then it is returned. A turn that copied nothing and did not end the job costs the
    /// whole piece, so that a job that cannot go on does not hold up others.
    #[must_use = "a finished job holds its leases"]
    pub fn report(mut self, copied: u64, finished: bool) -> Option<J> {
        self.reported = true;
        let flow = self.scheduler.jobs[self.at as usize].flow;
        let lot = lot(
            &mut self.scheduler.interactive,
            &mut self.scheduler.bulk,
            self.class,
        );
        let cost = if copied == 0 && !finished {
            lot.piece
        } else {
            copied.min(self.budget)
        };
        lot.flows.charge(flow, cost);
        finished.then(|| self.scheduler.remove(self.at))
    }
}

impl<J: Work> Drop for PieceTurn<'_, J> {
    fn drop(&mut self) {
        if self.reported {
            return;
        }
        let flow = self.scheduler.jobs[self.at as usize].flow;
        let lot = lot(
            &mut self.scheduler.interactive,
            &mut self.scheduler.bulk,
            self.class,
        );
        lot.flows.charge(flow, lot.piece);
    }
}

#[cfg(test)]
mod tests;
