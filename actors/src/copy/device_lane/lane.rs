//! The thread: takes mail, looks at what is queued, queues more.

use super::hands::{Hands, Holds, When};
use super::job::{Fate, Flying, Job, Kept, Settled};
use super::net::Landing;
use super::{Counts, Mail};
use crate::copy::device::{Held, InFlight, Polled};
use crate::copy::schedule::{Class, Config, QueueFull, Scheduler, Turn};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Duration;

/// Streams for jobs whose data is not there yet, and so how many of these have work queued at a time.
pub(super) const LATE: usize = 2;

/// Pieces that such a job has queued at most, so that what waits takes few slots.
const LATE_PIECES: usize = 1;

/// Between two looks at what is queued, if nobody says that it is over.
const LOOK: Duration = Duration::from_micros(500);

/// Between two looks at what was let go of, with nothing to do.
const IDLE: Duration = Duration::from_millis(100);

/// How long the end of the lane may take.
const CLOSING: Duration = Duration::from_secs(2);

/// Messages between two looks at what is queued.
const MAIL_AT_ONCE: usize = 64;

/// See the module.
pub(super) struct Lane {
    mail: Receiver<Mail>,
    hands: Hands,
    scheduler: Scheduler<Job>,
    /// Those for a network, whose slots are free when a peer has answered.
    network: Scheduler<Job>,
    flying: Vec<Flying>,
    /// Frames on their way into pages, and whether part of that could not be queued.
    landings: Vec<(InFlight<Landing>, bool)>,
    /// Jobs whose data is not there yet.
    late: Vec<(Class, Job)>,
    /// Whose piece was queued last in each late stream: while it is, the stream may stand still.
    late_users: [Option<Rc<Fate>>; LATE],
    /// Jobs that have nothing more to queue.
    settling: Vec<Job>,
    counts: Arc<Counts>,
    over: Arc<AtomicBool>,
}

impl Lane {
    pub(super) fn new(
        mail: Receiver<Mail>,
        hands: Hands,
        jobs: usize,
        counts: Arc<Counts>,
        over: Arc<AtomicBool>,
    ) -> Self {
        let config = Config {
            bulk_piece: hands.slot_bytes(),
            interactive_piece: hands.slot_bytes().min(256 << 10),
            capacity: jobs,
            ..Config::default()
        };
        Lane {
            mail,
            hands,
            scheduler: Scheduler::new(&config),
            network: Scheduler::new(&config),
            landings: Vec::new(),
            flying: Vec::new(),
            late: Vec::new(),
            late_users: [None, None],
            settling: Vec::new(),
            counts,
            over,
        }
    }

    pub(super) fn run(mut self) {
        let mut idle = false;
        loop {
            let wait = match (idle, self.holds_nothing()) {
                (false, _) => Duration::ZERO,
                (true, false) => LOOK,
                (true, true) => IDLE,
            };
            idle = !self.take_mail(wait);
            self.hands.waker().hear();
            idle &= !self.look();
            idle &= !self.look_at_landings();
            idle &= !self.queue_late();
            idle &= !self.queue_some(false);
            idle &= !self.queue_some(true);
            idle &= !self.settle();
            self.count();
            if idle && self.holds_nothing() {
                self.hands.context().reap();
                if self.over.load(Ordering::SeqCst) {
                    break;
                }
            }
        }
        let context = self.hands.context().clone();
        drop(self);
        let closed = context.close(CLOSING);
        if closed.parked > 0 {
            tracing::warn!(
                parked = closed.parked,
                lost = closed.lost,
                "work of a device is not over; what it owns is never freed"
            );
        }
    }

    fn holds_nothing(&self) -> bool {
        self.flying.is_empty()
            && self.landings.is_empty()
            && self.scheduler.is_empty()
            && self.network.is_empty()
            && self.late.is_empty()
            && self.settling.is_empty()
    }

    /// Whether anything came.
    fn take_mail(&mut self, wait: Duration) -> bool {
        let mut came = false;
        let mut next = self.mail.recv_timeout(wait).ok();
        for _ in 0..MAIL_AT_ONCE {
            let Some(mail) = next.take() else { break };
            came = true;
            self.take(mail);
            next = self.mail.try_recv().ok();
        }
        if let Some(mail) = next {
            self.take(mail);
        }
        came
    }

    fn take(&mut self, mail: Mail) {
        match mail {
            Mail::Wake => {}
            Mail::Land(landing) => self.land(*landing),
            Mail::Ring(device, bytes) => device.make_ring(bytes),
            Mail::Cancel(life) => {
                self.scheduler.cancel(life.0);
                self.network.cancel(life.0);
            }
            Mail::Job(class, new) => {
                let job = Job::new(*new);
                match job.when(0) {
                    When::After(..) => self.late.push((class, job)),
                    When::Now | When::Fired(_) => self.push(class, job),
                }
            }
        }
    }

    fn push(&mut self, class: Class, job: Job) {
        let flow = job.new.ticket.id().life.0;
        let scheduler = match job.new.is_for_network() {
            true => &mut self.network,
            false => &mut self.scheduler,
        };
        if let Err(QueueFull { job, capacity }) = scheduler.push(flow, class, job) {
            job.new.refuse(&format!(
                "the device's lane holds {capacity} jobs, which is its limit (DeviceOptions::jobs)"
            ));
        }
    }

    /// Looks at what is queued; whether any of it is over.
    fn look(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while i < self.flying.len() {
            let (flight, rest) = self.flying.swap_remove(i).into_parts();
            match (flight.poll(), rest) {
                (Polled::Pending(flight), rest) => {
                    self.flying.push(rest.with(flight));
                    let last = self.flying.len() - 1;
                    self.flying.swap(i, last);
                    i += 1;
                }
                (Polled::Landed(holds), rest) => {
                    any = true;
                    self.landed(&rest, holds);
                }
                (Polled::Lost(lost), rest) => {
                    any = true;
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    rest.lost(lost.holds(), lost.why());
                }
            }
        }
        any
    }

    fn landed(&self, rest: &Kept, holds: Holds) {
        // A panic costs the piece's job, and not the lane: its part of the ticket is dropped unfinished.
        let landed = catch_unwind(AssertUnwindSafe(|| rest.landed(holds)));
        match landed {
            Ok(0) => {}
            Ok(bytes) => {
                self.counts.pieces.fetch_add(1, Ordering::Relaxed);
                self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                let launched = u64::from(rest.launched);
                self.counts.launched.fetch_add(launched, Ordering::Relaxed);
            }
            Err(_) => rest.broke(),
        }
    }

    /// Queues a frame from its slot into its pages.
    fn land(&mut self, mut landing: Landing) {
        let ranges = &mut landing.ranges;
        let found = landing.delivery.for_each_range(|range| ranges.push(range));
        if let Err(why) = found {
            return landing.delivery.broke(false, &why);
        }
        match self.hands.queue_landing(landing) {
            Ok(flight) => self.landings.push((flight, false)),
            Err(refused) => {
                let (lost, why) = (refused.error.is_sticky(), refused.error.to_string());
                match refused.holds {
                    Held::Back(landing) => landing.delivery.broke(lost, &why),
                    Held::InFlight(flight) => self.landings.push((flight, true)),
                }
            }
        }
    }

    /// Looks at frames on their way; whether any is over.
    fn look_at_landings(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while i < self.landings.len() {
            let (flight, doomed) = self.landings.swap_remove(i);
            match flight.poll() {
                Polled::Pending(flight) => {
                    self.landings.push((flight, doomed));
                    let last = self.landings.len() - 1;
                    self.landings.swap(i, last);
                    i += 1;
                }
                Polled::Landed(landing) => {
                    any = true;
                    let Landing { delivery, slot, .. } = landing;
                    let bytes = u64::from(delivery.length());
                    if doomed {
                        delivery.broke(false, "the device did not take all of it");
                    } else {
                        self.counts.pieces.fetch_add(1, Ordering::Relaxed);
                        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                        delivery.landed();
                    }
                    drop(slot);
                }
                Polled::Lost(lost) => {
                    any = true;
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    let landing = lost.holds();
                    landing.delivery.lost(&lost.why().to_string());
                    // Its slot never comes back: who waits for one is to hear of it.
                    landing.slot.never();
                }
            }
        }
        any
    }

    /// Queues the first piece of jobs whose data is not there yet, behind its event, each in a stream that
    /// no other waits in; and lets those go on whose data has come. Whether any of that happened.
    fn queue_late(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while i < self.late.len() {
            let job = &self.late[i].1;
            let (over, queued) = (job.is_over(), job.queued());
            let free = self.late_users.iter().position(|user| match user {
                Some(fate) => fate.queued.get() == 0,
                None => true,
            });
            match job.when(free.unwrap_or(0)) {
                when @ When::After(..) if !over => {
                    if let Some(free) = free
                        && queued < LATE_PIECES
                        && self.flying.len() < self.hands.window()
                    {
                        self.late_users[free] = Some(Rc::clone(&job.fate));
                        any |= self.step_late(i, &when);
                    }
                    i += 1;
                }
                _ => {
                    any = true;
                    let (class, job) = self.late.remove(i);
                    if over {
                        self.settling.push(job);
                    } else {
                        self.push(class, job);
                    }
                }
            }
        }
        any
    }

    fn step_late(&mut self, i: usize, when: &When) -> bool {
        if self.late[i].1.new.is_for_network() && !self.hands.has_outgoing() {
            return false;
        }
        let job = &mut self.late[i].1;
        let budget = self.hands.slot_bytes();
        let hands = &mut self.hands;
        let stepped = catch_unwind(AssertUnwindSafe(|| job.step(budget, when, hands)));
        match stepped {
            Ok((stepped, flying)) => {
                self.flying.extend(flying);
                if stepped.over {
                    job.no_more();
                }
            }
            Err(_) => job.broke(),
        }
        true
    }

    /// Queues pieces as long as there is room; whether there was any.
    fn queue_some(&mut self, network: bool) -> bool {
        let mut any = false;
        while self.flying.len() < self.hands.window()
            && (!network || self.hands.has_outgoing() || self.hands.context().lost().is_some())
        {
            let scheduler = match network {
                true => &mut self.network,
                false => &mut self.scheduler,
            };
            match scheduler.next() {
                None => break,
                Some(Turn::Cancelled(job)) => {
                    any = true;
                    self.settling.push(job);
                }
                Some(Turn::Piece(mut turn)) => {
                    any = true;
                    let budget = turn.budget();
                    let job = turn.job();
                    let when = job.when(0);
                    let hands = &mut self.hands;
                    let step = || job.step(budget, &when, hands);
                    let (bytes, over) = match catch_unwind(AssertUnwindSafe(step)) {
                        Ok((stepped, flying)) => {
                            self.flying.extend(flying);
                            (stepped.bytes, stepped.over)
                        }
                        Err(_) => {
                            turn.job().broke();
                            (0, true)
                        }
                    };
                    if let Some(job) = turn.report(bytes, over) {
                        self.settling.push(job);
                    }
                }
            }
        }
        any
    }

    /// Lets go of jobs whose pieces have all landed; whether there was any.
    fn settle(&mut self) -> bool {
        let mut any = false;
        let mut i = 0;
        while i < self.settling.len() {
            let job = &mut self.settling[i];
            let settled = catch_unwind(AssertUnwindSafe(|| job.settle()));
            match settled {
                Ok(Settled::Waits) => i += 1,
                Ok(Settled::Some) => {
                    any = true;
                    i += 1;
                }
                Ok(Settled::Over) => {
                    any = true;
                    self.settling.swap_remove(i).end();
                }
                Err(_) => {
                    any = true;
                    job.broke();
                }
            }
        }
        any
    }

    fn count(&self) {
        let counts = &self.counts;
        let of = |n: usize| n as u64;
        counts.waiting.store(of(self.late.len()), Ordering::Relaxed);
        counts.queued.store(
            of(self.flying.len() + self.landings.len()),
            Ordering::Relaxed,
        );
    }
}
