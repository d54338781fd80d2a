//! A lane: the actor that owns a scheduler and copies, on a thread of its own.
//!
//! It copies for a bounded number of bytes, then looks at its mailbox, so that a new interactive
//! job or a cancellation waits for no more than that.

use super::job::Job;
use super::schedule::{Class, Config, QueueFull, Scheduler, Turn};
use super::sum::SumJob;
use crate::ids::LifeId;
use crate::record::Scribe;
use crate::runtime::pulse::Beat;
use crate::runtime::stats::Stats;
use actix::{Actor, AsyncContext, Context, Handler, Message};
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes between two looks at the mailbox.
const STRETCH: u64 = 512 << 10;
/// Pieces between two looks at the mailbox.
const TURNS: usize = 64;

/// One copy lane.
pub(crate) struct Lane {
    scheduler: Scheduler<Job>,
    sums: VecDeque<SumJob>,
    awake: bool,
    stats: Arc<Stats>,
    /// Which of the node's lanes it is.
    nth: usize,
    beat: Arc<Beat>,
    scribe: Scribe,
    #[cfg(feature = "plant")]
    plant: Option<super::plant::Plant>,
    #[cfg(feature = "plant")]
    due: Vec<(std::time::Instant, super::plant::Due)>,
}

/// Work for a lane.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) enum LaneWork {
    Copy(Class, Box<Job>),
    Sum(SumJob),
    /// This life's jobs were cancelled: hand them back before anything else.
    Cancel(LifeId),
}

#[derive(Message)]
#[rtype(result = "()")]
struct Step;

/// Asks whether the lane is there; its beat is told.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct AreYouThere;

/// Hands back everything that waits. Answered when nothing is left.
#[derive(Message)]
#[rtype(result = "()")]
pub(crate) struct Drain;

impl Lane {
    /// The `nth` lane of a node, for so many jobs.
    pub(crate) fn new(
        jobs: usize,
        stats: Arc<Stats>,
        nth: usize,
        beat: Arc<Beat>,
        scribe: Scribe,
    ) -> Self {
        let config = Config {
            capacity: jobs,
            ..Config::default()
        };
        Lane {
            scheduler: Scheduler::new(&config),
            sums: VecDeque::new(),
            awake: false,
            stats,
            nth,
            beat,
            scribe,
            #[cfg(feature = "plant")]
            plant: None,
            #[cfg(feature = "plant")]
            due: Vec::new(),
        }
    }

    #[cfg(feature = "plant")]
    pub(crate) fn with_plant(mut self, plant: Option<super::plant::Plant>) -> Self {
        self.plant = plant;
        self
    }

    /// Before a step of a job, so that its gate may still be open.
    #[cfg(feature = "plant")]
    fn plan_wrong(job: &Job, plant: Option<super::plant::Plant>) -> Option<super::plant::Due> {
        use super::plant::Plant;
        match plant? {
            Plant::LateWrite => job.wrong(false),
            Plant::TornRead => job.wrong(true),
            Plant::Leak => {
                crate::memory::plant::keep_source(job.ticket());
                None
            }
        }
    }

    fn stretch(&mut self) {
        let mut copied = 0;
        for _ in 0..TURNS {
            if let Some(sum) = self.sums.front_mut() {
                if sum.step(STRETCH / 4)
                    && let Some(sum) = self.sums.pop_front()
                {
                    sum.end();
                }
                copied += STRETCH / 4;
            }
            match self.scheduler.next() {
                None => break,
                Some(Turn::Cancelled(job)) => job.end(),
                Some(Turn::Piece(mut turn)) => {
                    let budget = turn.budget();
                    let job = turn.job();
                    #[cfg(feature = "plant")]
                    if let Some(due) = Self::plan_wrong(job, self.plant) {
                        // Far fewer than one a piece, or nothing right would happen at all.
                        if self.due.len() < 4 {
                            let at = std::time::Instant::now() + super::plant::LATER;
                            self.due.push((at, due));
                        }
                    }
                    // A panic costs the job, not the lane that all rooms share.
                    let step =
                        catch_unwind(AssertUnwindSafe(|| job.step(budget))).unwrap_or_else(|_| {
                            self.scribe.note("a job of the lane panicked");
                            job.broke()
                        });
                    job.tell_news();
                    copied += step.bytes;
                    if step.bytes >= 64 << 10 {
                        // Whoever waits for this core (a shard with an abort, say) goes first.
                        std::thread::yield_now();
                    }
                    self.stats
                        .copied_bytes
                        .fetch_add(step.bytes, Ordering::Relaxed);
                    if let Some(job) = turn.report(step.bytes, step.over) {
                        job.end();
                    }
                }
            }
            if copied >= STRETCH {
                break;
            }
        }
        if let Some(queue) = self.stats.lanes.get(self.nth) {
            queue.bytes.fetch_add(copied, Ordering::Relaxed);
        }
    }

    fn hold(&self) {
        self.beat.hold(self.scheduler.len() + self.sums.len());
    }

    fn wake(&mut self, ctx: &mut Context<Self>) {
        if !self.awake {
            self.awake = true;
            ctx.notify(Step);
        }
    }
}

impl Actor for Lane {
    type Context = Context<Self>;

    fn started(&mut self, _: &mut Self::Context) {
        self.scribe.note("the lane starts");
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.scribe.note("the lane stops");
    }
}

impl Handler<LaneWork> for Lane {
    type Result = ();

    fn handle(&mut self, work: LaneWork, ctx: &mut Context<Self>) {
        match work {
            LaneWork::Copy(class, job) => {
                let flow = job.ticket().id().life.0;
                if let Err(QueueFull { job, .. }) = self.scheduler.push(flow, class, *job) {
                    // Cannot happen while slots are given out by the node; if it does, the room
                    // hears of it and ends.
                    job.refuse("the lane's queue is full: limit jobs_per_lane");
                }
            }
            LaneWork::Sum(sum) => self.sums.push_back(sum),
            LaneWork::Cancel(life) => {
                self.scheduler.cancel(life.0);
            }
        }
        self.beat.take(1);
        self.hold();
        self.wake(ctx);
    }
}

impl Handler<AreYouThere> for Lane {
    type Result = ();

    fn handle(&mut self, _: AreYouThere, _: &mut Context<Self>) {
        self.beat.begin();
        self.beat.take(1);
        self.beat.answer();
        self.beat.end();
    }
}

impl Handler<Step> for Lane {
    type Result = ();

    fn handle(&mut self, _: Step, ctx: &mut Context<Self>) {
        self.beat.begin();
        self.stretch();
        self.hold();
        self.beat.end();
        #[cfg(feature = "plant")]
        {
            let now = std::time::Instant::now();
            let (ripe, rest) = self.due.drain(..).partition(|(at, _)| *at <= now);
            self.due = rest;
            let ripe: Vec<(std::time::Instant, super::plant::Due)> = ripe;
            ripe.into_iter().for_each(|(_, due)| due.commit());
            if !self.due.is_empty() && self.scheduler.is_empty() {
                ctx.notify_later(Step, std::time::Duration::from_millis(5));
            }
        }
        if self.scheduler.is_empty() && self.sums.is_empty() {
            self.awake = false;
        } else {
            ctx.notify(Step);
        }
    }
}

impl Handler<Drain> for Lane {
    type Result = ();

    fn handle(&mut self, _: Drain, _: &mut Context<Self>) {
        for job in self.scheduler.drain() {
            job.end();
        }
        while let Some(sum) = self.sums.pop_front() {
            drop(sum);
        }
        self.hold();
    }
}
