//! A job of one route: what of it is to be posted, what was, and its ticket.
//!
//! ```text
//!   Pieces ─ joined to runs ─ addresses at both ends ─▶ puts        of parts, each with a flush
//!   all posted and all flushed ─▶ the sum, in steps ─▶ the ticket is finished
//! ```
//!
//! Rules: a job is dropped, and with it its ticket, only when nothing that reads its source is under way.
//! Who drops it sees to that: [`Job::out`] is the number of parts that are.
#![allow(unsafe_code)] // Posts addresses of pages.

use super::UcxJob;
use super::claim::UcxClaim;
use super::window::Room;
use super::worker::{Flight, KeyNo, Worker};
use crate::copy::job::{Place, SourceSum};
use crate::copy::pieces::Pieces;
use crate::fabric::{Fabric, Fact};
use crate::memory::Ticket;
use crate::runtime::meter::Meter;
use crate::runtime::queue;
use kvroom_kernels::layout::PoolLayout;
use kvroom_kernels::plan::Piece;
use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

/// See the module.
pub(super) struct Job {
    pub(super) room: Room,
    /// Parts that carry some of it and are not flushed.
    pub(super) out: u32,
    ticket: Ticket,
    claim: Arc<UcxClaim>,
    layout: Arc<PoolLayout>,
    place: Place,
    meter: Option<Arc<Meter>>,
    /// Given up when it is dropped.
    queued: Option<queue::Place>,
    sum: Option<SourceSum>,
    plan: Option<Planned>,
    /// Nothing of it is posted any more.
    done: bool,
    /// All of it was posted.
    whole: bool,
    untold: u64,
}

struct Planned {
    pieces: Pieces,
    /// Taken from the plan, and not part of the run before it.
    next: Option<Piece>,
    key: KeyNo,
    cursor: Cell<usize>,
}

/// What was posted of a job for one part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Posted {
    pub(super) bytes: u64,
    pub(super) puts: u32,
    /// Nothing more of it will be.
    pub(super) done: bool,
}

/// What a job that has nothing under way and nothing to post does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// It is over: [`Job::end`].
    End,
    /// Its source is summed: [`Job::sum`].
    Sum,
}

/// Landed bytes between two reports of progress.
const TELL_EVERY: u64 = 8 << 20;

impl Job {
    /// A job whose claim says where its pages are; else its ticket.
    #[allow(clippy::result_large_err)] // It hands the ticket back.
    pub(super) fn new(job: UcxJob) -> Result<Job, Ticket> {
        let Some(claim) = job.claim else {
            return Err(job.ticket);
        };
        Ok(Job {
            room: Room {
                life: job.ticket.id().life.0,
                class: job.class,
            },
            out: 0,
            sum: job.checksum.then(SourceSum::new),
            ticket: job.ticket,
            claim,
            layout: job.layout,
            place: job.place,
            meter: job.meter,
            queued: job.queued,
            plan: None,
            done: false,
            whole: false,
            untold: 0,
        })
    }

    /// Whether its room wants no more of it.
    pub(super) fn is_cancelled(&self) -> bool {
        self.ticket.is_cancelled()
    }

    /// Posts as much as it may.
    pub(super) fn post(
        &mut self,
        worker: &mut Worker,
        endpoint: usize,
        flight: &Rc<Flight>,
        (bytes, puts): (u64, u32),
    ) -> Posted {
        let mut posted = Posted::default();
        if let Some(place) = &mut self.queued {
            place.begins();
        }
        match self.post_some(worker, endpoint, flight, (bytes, puts), &mut posted) {
            Ok(done) => posted.done = done,
            Err(why) => {
                self.ticket.errored(why);
                posted.done = true;
            }
        }
        self.done |= posted.done;
        posted
    }

    fn post_some(
        &mut self,
        worker: &mut Worker,
        endpoint: usize,
        flight: &Rc<Flight>,
        (bytes, puts): (u64, u32),
        posted: &mut Posted,
    ) -> Result<bool, String> {
        let Some(section) = self.claim.section(self.place.section) else {
            return Err(format!("the claim has no section {}", self.place.section));
        };
        let plan = match &mut self.plan {
            Some(plan) => plan,
            none => {
                let pieces = self.claim.plan(&self.layout, &self.place);
                let pieces = pieces.map_err(|fact| match fact {
                    Fact::Refused => "the claim's gate is closed".into(),
                    Fact::Errored(why) => why,
                })?;
                let key = worker.unpack(&section.pool.key);
                none.insert(Planned {
                    pieces,
                    next: None,
                    key: key.map_err(|error| error.to_string())?,
                    cursor: Cell::new(0),
                })
            }
        };
        while posted.bytes < bytes && posted.puts < puts {
            if self.ticket.is_cancelled() {
                return Ok(true);
            }
            let Some(run) = plan.run(bytes - posted.bytes) else {
                self.whole = true;
                return Ok(true);
            };
            let from = self.ticket.address(run.src, run.bytes);
            let from = from.map_err(|error| error.to_string())?;
            let to = section.address(run.dst, run.bytes, &plan.cursor);
            let to = to.map_err(|error| error.to_string())?;
            // SAFETY: these pages are held as long as the ticket lives, and the job keeps it while parts
            // are under way; by its rule it is dropped then only after the worker was destroyed.
            let put = unsafe { worker.put(endpoint, (from, run.bytes), (to, plan.key), flight) };
            put.map_err(|error| error.to_string())?;
            posted.bytes += run.bytes;
            posted.puts += 1;
        }
        let all = plan.next.is_none() && plan.pieces.remaining_bytes() == 0;
        self.whole |= all;
        Ok(all)
    }

    /// So many bytes of it are flushed.
    pub(super) fn landed(&mut self, bytes: u64) {
        self.ticket.landed(bytes);
        if let Some(meter) = &self.meter {
            meter.sent(Fabric::Ucx, bytes);
        }
        self.untold += bytes;
        if self.untold >= TELL_EVERY {
            self.ticket.tell_moved(std::mem::take(&mut self.untold));
        }
    }

    /// Nothing more of it is to be posted.
    pub(super) fn stop(&mut self) {
        self.done = true;
    }

    /// What it does next, if nothing of it is under way or to be posted.
    pub(super) fn next(&self) -> Option<Next> {
        if !self.done || self.out > 0 {
            return None;
        }
        let sums = self.sum.is_some() && self.is_well() && !self.ticket.is_cancelled();
        Some(if sums { Next::Sum } else { Next::End })
    }

    /// Sums about so many bytes of its source; true when that is done.
    pub(super) fn sum(&mut self, budget: u64) -> bool {
        match &mut self.sum {
            Some(sum) if !self.ticket.is_cancelled() => {
                let step = sum.step(&mut self.ticket, &self.layout, &self.place, budget);
                step.over
            }
            _ => true,
        }
    }

    fn is_well(&self) -> bool {
        self.whole && self.ticket.facts().errored.is_none()
    }

    /// It went wrong.
    pub(super) fn fail(&mut self, why: &str) {
        self.ticket.errored(why);
    }

    /// Gives its ticket back, which says what became of it.
    pub(super) fn end(self) {
        let well = self.is_well();
        let summed = match self.sum {
            None => Some(0),
            // A sum of a part says nothing.
            Some(_) if self.ticket.is_cancelled() => None,
            Some(sum) => Some(sum.value()),
        };
        match summed {
            Some(sum) if well => self.ticket.finish_with(sum),
            _ => drop(self.ticket),
        }
    }
}

impl Planned {
    /// The next bytes that are in one piece at both ends, at most so many; at least one.
    fn run(&mut self, most: u64) -> Option<Piece> {
        let mut run = self.next.take().or_else(|| self.pieces.next_piece(most))?;
        while run.bytes < most {
            let Some(next) = self.pieces.next_piece(most - run.bytes) else {
                break;
            };
            let goes_on = next.src == run.src + run.bytes && next.dst == run.dst + run.bytes;
            if !goes_on {
                self.next = Some(next);
                break;
            }
            run.bytes += next.bytes;
        }
        Some(run)
    }
}
