//! The thread: takes mail, looks at what is queued, queues more.

use super::hands::{Hands, Holds, When};
use super::job::{Fate, Flying, Job, Kept, Settled};
use super::net::Landing;
use super::{Counts, Mail};
use crate::copy::device::{Held, InFlight, Polled};
use crate::copy::schedule::{Class, Config, QueueFull, Scheduler, Turn};
use crate::fabric::tcp::handed::Hands as HandsOver;
use crate::fabric::tcp::{RouteIdentity, TcpRoute};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

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

/// Waiting jobs that each turn looks at for a cancelled one.
const SWEPT: usize = 16;

/// Messages between two looks at what is queued.
const MAIL_AT_ONCE: usize = 64;

/// Jobs for one peer.
struct ToPeer {
    /// Handed to it where they lie, or sent as bytes: these have slots of their own.
    handed: bool,
    /// Not the route itself: that keeps its node, and with it pools on this device.
    route: RouteIdentity,
    scheduler: Scheduler<Job>,
    /// How many slots its parts have, queued or on their way.
    held: Arc<AtomicUsize>,
}

/// See the module.
pub(super) struct Lane {
    mail: Receiver<Mail>,
    hands: Hands,
    scheduler: Scheduler<Job>,
    /// Those for a network, by peer: a peer that does not answer keeps no other waiting.
    network: Vec<ToPeer>,
    /// Which of them is next.
    next_peer: usize,
    config: Config,
    jobs: usize,
    flying: Vec<Flying>,
    /// Frames on their way into pages, and whether part of that could not be queued.
    landings: Vec<(InFlight<Landing>, bool)>,
    /// Jobs for a process of this host that is being asked whether it takes them where they lie.
    asking: Vec<(Class, Job)>,
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
            network: Vec::new(),
            next_peer: 0,
            config,
            jobs,
            landings: Vec::new(),
            flying: Vec::new(),
            asking: Vec::new(),
            late: Vec::new(),
            late_users: [None, None],
            settling: Vec::new(),
            counts,
            over,
        }
    }

    pub(super) fn run(mut self) {
        let (mut idle, mut reaped) = (false, Instant::now());
        loop {
            // A panic costs what it was about, and not the lane: what is queued must be looked at.
            match catch_unwind(AssertUnwindSafe(|| self.turn(idle))) {
                Ok(now) => idle = now,
                Err(_) => {
                    tracing::error!("a turn of a device's copy actor panicked");
                    std::thread::sleep(LOOK);
                    idle = false;
                }
            }
            let rests = idle && self.holds_nothing();
            if rests || reaped.elapsed() > IDLE {
                self.hands.context().reap();
                reaped = Instant::now();
            }
            if rests && self.over.load(Ordering::SeqCst) {
                break;
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

    /// Whether there was nothing to do.
    fn turn(&mut self, idle: bool) -> bool {
        let wait = match (idle, self.holds_nothing()) {
            (false, _) => Duration::ZERO,
            (true, false) => LOOK,
            (true, true) => IDLE,
        };
        let mut idle = !self.take_mail(wait);
        self.hands.waker().hear();
        idle &= !self.look();
        idle &= !self.look_at_landings();
        idle &= !self.give_up_cancelled();
        idle &= !self.look_at_asking();
        idle &= !self.queue_late();
        idle &= !self.queue_pages();
        idle &= !self.queue_network();
        idle &= !self.settle();
        self.count();
        idle
    }

    /// Lets go of jobs that were cancelled, whether or not there is room for any other.
    fn give_up_cancelled(&mut self) -> bool {
        let before = self.settling.len();
        let peers = self.network.iter_mut().map(|peer| &mut peer.scheduler);
        for scheduler in peers.chain([&mut self.scheduler]) {
            scheduler.sweep_some(SWEPT);
            while let Some(job) = scheduler.take_cancelled() {
                self.settling.push(job);
            }
        }
        self.settling.len() > before
    }

    fn holds_nothing(&self) -> bool {
        self.flying.is_empty()
            && self.landings.is_empty()
            && self.scheduler.is_empty()
            && self.network.iter().all(|peer| peer.scheduler.is_empty())
            && self.late.is_empty()
            && self.asking.is_empty()
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
            Mail::Open(opening) => opening.opens(self.hands.context()),
            Mail::Shut(ring) => drop(ring),
            Mail::Cancel(life) => {
                self.scheduler.cancel(life.0);
                for peer in &mut self.network {
                    peer.scheduler.cancel(life.0);
                }
            }
            Mail::Job(class, new) => self.begin(class, Job::new(*new)),
        }
    }

    /// A job finds out by which way it goes, and when.
    fn begin(&mut self, class: Class, mut job: Job) {
        if let Some(route) = job.new.peer() {
            match self.hands.way_to(route, &job.new.layout.name) {
                HandsOver::No => {}
                HandsOver::Yes => job.handed = true,
                HandsOver::Soon if self.asking.len() >= self.jobs => {}
                HandsOver::Soon => return self.asking.push((class, job)),
            }
        }
        match job.when(0) {
            When::After(..) if self.late.len() >= self.jobs => {
                let jobs = self.jobs;
                job.new.refuse(&format!(
                    "{jobs} jobs of the device wait for their events, which is its limit \
                     (DeviceOptions::jobs)"
                ));
            }
            When::After(..) => self.late.push((class, job)),
            When::Now => self.push(class, job),
        }
    }

    /// Lets those go on whose way is known by now, which takes a moment at most; whether there was any.
    fn look_at_asking(&mut self) -> bool {
        let waiting = std::mem::take(&mut self.asking);
        let before = waiting.len();
        for (class, job) in waiting {
            match job.is_over() {
                true => self.settling.push(job),
                false => self.begin(class, job),
            }
        }
        self.asking.len() < before
    }

    fn push(&mut self, class: Class, mut job: Job) {
        let flow = job.new.ticket.id().life.0;
        let scheduler = match job.new.peer().map(TcpRoute::identity) {
            None => &mut self.scheduler,
            Some(route) => {
                let handed = job.handed;
                let same = |peer: &ToPeer| peer.handed == handed && peer.route.same(&route);
                let at = self.network.iter().position(same);
                let at = at.unwrap_or_else(|| {
                    // Peers that have gone leave nothing here.
                    let kept = |p: &ToPeer| p.route.is_there() || !p.scheduler.is_empty();
                    self.network.retain(kept);
                    self.network.push(ToPeer {
                        handed,
                        route,
                        scheduler: Scheduler::new(&self.config),
                        held: Arc::default(),
                    });
                    self.network.len() - 1
                });
                let peer = &mut self.network[at];
                job.share = Some(Arc::clone(&peer.held));
                &mut peer.scheduler
            }
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
        let handed = holds.ring.is_some();
        // A panic costs the piece's job, and not the lane: its part of the ticket is dropped unfinished.
        let landed = catch_unwind(AssertUnwindSafe(|| rest.landed(holds)));
        match landed {
            Ok(0) => {}
            Ok(bytes) => {
                self.counts.pieces.fetch_add(1, Ordering::Relaxed);
                self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                let counts = &self.counts;
                let way = match (rest.is_for_network(), handed) {
                    (false, _) => None,
                    (true, true) => Some(&counts.handed),
                    (true, false) => Some(&counts.sent),
                };
                if let Some(way) = way {
                    way.fetch_add(1, Ordering::Relaxed);
                }
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
                    let Landing { delivery, from, .. } = landing;
                    let bytes = u64::from(delivery.length());
                    if doomed {
                        delivery.broke(false, "the device did not take all of it");
                    } else {
                        self.counts.pieces.fetch_add(1, Ordering::Relaxed);
                        self.counts.bytes.fetch_add(bytes, Ordering::Relaxed);
                        let way = match from.is_far() {
                            true => &self.counts.taken,
                            false => &self.counts.received,
                        };
                        way.fetch_add(1, Ordering::Relaxed);
                        delivery.landed();
                    }
                    drop(from);
                }
                Polled::Lost(lost) => {
                    any = true;
                    self.counts.lost.fetch_add(1, Ordering::Relaxed);
                    let landing = lost.holds();
                    landing.delivery.lost(&lost.why().to_string());
                    // Its slot never comes back: who waits for one is to hear of it.
                    landing.from.never();
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
            let job = &mut self.late[i].1;
            let (over, queued) = (job.is_over(), job.queued());
            let across = job.goes_across(&mut self.hands);
            let free = self.late_users.iter().position(|user| match user {
                Some(fate) => fate.queued.get() == 0,
                None => true,
            });
            match job.when(free.unwrap_or(0)) {
                when @ When::After(..) if !over => {
                    if let Some(free) = free
                        && queued < LATE_PIECES
                        && !across
                        && self.hands.has_slot()
                    {
                        self.late_users[free] = Some(Rc::clone(&self.late[i].1.fate));
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
        let job = &self.late[i].1;
        if job.new.is_for_network() && !has_slot(&self.hands, job.handed) {
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

    /// Queues pieces of jobs into pages as long as there is room; whether there was any.
    fn queue_pages(&mut self) -> bool {
        let mut any = false;
        loop {
            let flying = self.flying.iter().filter(|f| !f.is_for_network()).count();
            // Without slots a job fails, which is right only if none will come back.
            let room = flying < self.hands.window() && (self.hands.has_slot() || flying == 0);
            let lost = self.hands.context().lost().is_some();
            if !(room || lost) {
                return any;
            }
            match queue_one(&mut self.scheduler, &mut self.hands, &mut self.flying) {
                None => return any,
                Some(job) => self.settling.extend(job),
            }
            any = true;
        }
    }

    /// The same of jobs for a network: each peer in turn, and none with more than half of the slots of a kind.
    fn queue_network(&mut self) -> bool {
        let most = (self.hands.window() / 2).max(1);
        let mut any = false;
        let mut passed = 0;
        while passed < self.network.len() {
            let lost = self.hands.context().lost().is_some();
            self.next_peer = (self.next_peer + 1) % self.network.len();
            let peer = &mut self.network[self.next_peer];
            passed += 1;
            if !(lost || has_slot(&self.hands, peer.handed)) {
                continue;
            }
            if !lost && peer.held.load(Ordering::Relaxed) >= most {
                continue;
            }
            match queue_one(&mut peer.scheduler, &mut self.hands, &mut self.flying) {
                None => {}
                Some(job) => {
                    self.settling.extend(job);
                    (any, passed) = (true, 0);
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

/// Whether a piece for a network finds a slot of its kind.
fn has_slot(hands: &Hands, handed: bool) -> bool {
    match handed {
        true => hands.has_ring_slot(),
        false => hands.has_outgoing(),
    }
}

/// What a turn of a scheduler leaves: a job that has nothing more to queue, perhaps. No turn, no such.
type Queued = Option<Option<Job>>;

/// Queues the piece that a scheduler says.
fn queue_one(
    scheduler: &mut Scheduler<Job>,
    hands: &mut Hands,
    flying: &mut Vec<Flying>,
) -> Queued {
    match scheduler.next() {
        None => None,
        Some(Turn::Cancelled(job)) => Some(Some(job)),
        Some(Turn::Piece(mut turn)) => {
            let budget = turn.budget();
            let job = turn.job();
            // Its event has fired, or it would not be here.
            let when = When::Now;
            let step = || job.step(budget, &when, hands);
            let (bytes, over) = match catch_unwind(AssertUnwindSafe(step)) {
                Ok((stepped, queued)) => {
                    flying.extend(queued);
                    (stepped.bytes, stepped.over)
                }
                Err(_) => {
                    turn.job().broke();
                    (0, true)
                }
            };
            Some(turn.report(bytes, over))
        }
    }
}
