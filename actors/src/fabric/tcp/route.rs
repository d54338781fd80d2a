//! One thread's part of a route: the jobs that wait there, and the connections that take them.
//!
//! ```text
//!   Post ──▶ Scheduler ──▶ a connection with room ──▶ socket
//!                ▲                │
//!                └── again ◀──────┴── lost before it was acknowledged
//! ```
//!
//! Everything here is on one arbiter: the actor's handlers and one task for each connection, which
//! waits for its socket. Neither holds the state across a wait.

use super::frame::{Ack, Ask, Fate, Note};
use super::handed::{Handing, Question};
use super::job::{Job, NewJob, Next, Queued};
use super::receive::{Border, Came, ReadError, Receiving};
use super::send::{Sending, Unacked, Wrote};
use super::staged::{FarRing, StagedSink, StagedSource, Staging, Tell, Wake};
use super::{DataConnection, RouteEvent, RouteEvents};
use crate::copy::schedule::{Class, Config, Scheduler, Turn};
use crate::fabric::Fabric;
use crate::fabric::stream::Stream;
use crate::ids::{LifeId, PeerRef};
use crate::limits::{MAX_DATA_FRAME, UNIT};
use crate::reason::{Code, Reason};
use crate::runtime::meter::Meter;
use crate::runtime::pulse::turn_here;
use crate::runtime::shared::NodeShared;
use actix::{Actor, AsyncContext, Context, Handler, Message, WeakAddr};
use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{Interest, Ready};
use tokio::sync::Notify;

/// Bytes that one connection reads or writes before others have their turn.
const STRETCH: usize = 4 << 20;

/// Ticks within `Deadlines::liveness`.
const SILENT_TICKS: u32 = 4;

/// Bytes of a source that are summed in one turn.
const SUM_STRETCH: u64 = 256 << 10;

/// What reaches this part of a route.
#[derive(Message)]
#[rtype(result = "()")]
pub(super) enum RouteWork {
    /// With its bytes, if these are in staging.
    Post(Box<NewJob>, Option<Box<dyn StagedSource>>),
    /// This life's jobs were cancelled.
    Cancel(LifeId),
    Attach(DataConnection),
    /// What became of a frame that went on from its slot.
    Delivered {
        /// The number of the connection that it came by.
        connection: u64,
        seq: u64,
        fate: Fate,
        bytes: u32,
    },
    /// A slot may be free.
    Slots,
    /// A ring of the peer was opened for this pool, or was not.
    Opened(u32, String, Result<Arc<dyn FarRing>, String>),
    /// There is something to say about handed frames.
    Say,
    /// All is over: jobs go back, connections close. Answered when that is done.
    Close,
}

#[derive(Message)]
#[rtype(result = "()")]
struct SumMore;

/// See the module.
pub(super) struct RouteActor {
    part: Rc<RefCell<Part>>,
}

/// The state, shared with the connections' tasks of the same thread.
struct Part {
    peer: PeerRef,
    meter: Arc<Meter>,
    name: String,
    node: Arc<NodeShared>,
    events: RouteEvents,
    sink: Option<Arc<dyn StagedSink>>,
    handing: Arc<Handing>,
    /// Its connections are those by which notes go out.
    speaks: bool,
    /// Connections so far, by which each has a number.
    attached: u64,
    scheduler: Scheduler<Queued>,
    jobs: HashMap<LifeId, Vec<Rc<Job>>>,
    sums: VecDeque<Rc<Job>>,
    connections: Vec<Rc<Connection>>,
    closed: bool,
    /// Something is to be sent again, over whichever connection has room.
    queued_again: bool,
    /// The actor, to be told from a connection's task.
    me: Option<WeakAddr<RouteActor>>,
}

struct Connection {
    number: u64,
    stream: Stream,
    class: Class,
    index: u16,
    sending: RefCell<Sending>,
    receiving: RefCell<Receiving>,
    staging: Option<Staging>,
    /// Is not read before a slot is free.
    no_slot: Cell<bool>,
    /// Is to have a turn whatever its socket says.
    due: Cell<bool>,
    /// Waits for the socket to take more.
    full: Cell<bool>,
    gone: Cell<bool>,
    /// Ticks since anything came.
    silent: Cell<u32>,
    /// Something changed that its task must see.
    changed: Notify,
}

impl RouteActor {
    /// A part without connections. `jobs` is more than can ever wait here. One part of a route `speaks`
    /// about handed frames; all of them hear.
    pub(super) fn new(
        peer: PeerRef,
        name: String,
        node: Arc<NodeShared>,
        events: RouteEvents,
        jobs: usize,
        sink: Option<Arc<dyn StagedSink>>,
        (handing, speaks): (Arc<Handing>, bool),
    ) -> Self {
        let piece = frame_bytes(&node) as u64;
        let config = Config {
            bulk_piece: piece,
            capacity: jobs,
            ..Config::default()
        };
        RouteActor {
            part: Rc::new(RefCell::new(Part {
                peer,
                meter: node.stats.meters.of(&name),
                name,
                node,
                events,
                sink,
                handing,
                speaks,
                attached: 0,
                scheduler: Scheduler::new(&config),
                jobs: HashMap::new(),
                sums: VecDeque::new(),
                connections: Vec::new(),
                closed: false,
                queued_again: false,
                me: None,
            })),
        }
    }
}

impl Actor for RouteActor {
    type Context = Context<Self>;

    fn started(&mut self, ctx: &mut Self::Context) {
        // Bounded by the jobs that were admitted, as a lane's.
        ctx.set_mailbox_capacity(1 << 16);
        let mut part = self.part.borrow_mut();
        let me = ctx.address().downgrade();
        if part.speaks {
            let me = me.clone();
            part.handing.speaks_by(Arc::new(move || {
                if let Some(me) = me.upgrade() {
                    me.do_send(RouteWork::Say);
                }
            }));
        }
        part.me = Some(me);
        // Counted in ticks that ran: time in which this process stood still costs one at most.
        let tick = part.node.deadlines.liveness / SILENT_TICKS;
        let tick = tick.clamp(Duration::from_millis(5), Duration::from_secs(60));
        ctx.run_interval(tick, |me, _| me.part.borrow_mut().tick());
    }

    fn stopped(&mut self, _: &mut Self::Context) {
        self.part.borrow_mut().close();
    }
}

impl Handler<RouteWork> for RouteActor {
    type Result = ();

    fn handle(&mut self, work: RouteWork, _: &mut Context<Self>) {
        let _turn = turn_here();
        let mut part = self.part.borrow_mut();
        match work {
            RouteWork::Post(job, staged) => part.post(*job, staged),
            RouteWork::Cancel(life) => part.cancel(life),
            RouteWork::Attach(connection) => {
                if let Some(connection) = part.attach(connection) {
                    actix::spawn(serve(Rc::clone(&self.part), connection));
                }
            }
            RouteWork::Delivered {
                connection,
                seq,
                fate,
                bytes,
            } => part.delivered(connection, seq, fate, bytes),
            RouteWork::Slots => part.slots(),
            RouteWork::Opened(ring, pool, came) => part.handing.opened(ring, pool, came),
            // It is said with what is written next.
            RouteWork::Say => {}
            RouteWork::Close => part.close(),
        }
        part.write_all();
    }
}

impl Handler<SumMore> for RouteActor {
    type Result = ();

    fn handle(&mut self, _: SumMore, ctx: &mut Context<Self>) {
        let _turn = turn_here();
        let mut part = self.part.borrow_mut();
        part.sum_some();
        if !part.sums.is_empty() {
            ctx.notify(SumMore);
        }
    }
}

/// Payload bytes of a frame of this node.
fn frame_bytes(node: &NodeShared) -> usize {
    node.limits
        .data_frame_bytes
        .clamp(UNIT as usize, MAX_DATA_FRAME)
}

/// After a large read or write: whoever waits for this core (a shard with an abort, say) goes first.
/// Without anybody it costs less than a microsecond.
fn step_aside(bytes: usize) {
    if bytes >= 64 << 10 {
        std::thread::yield_now();
    }
}

/// Drives one connection until it is gone.
async fn serve(part: Rc<RefCell<Part>>, connection: Rc<Connection>) {
    let both = Ready::READABLE | Ready::WRITABLE;
    // Something may have been read with its greeting.
    let mut again = part.borrow_mut().turn(&connection, Ok(both));
    while !connection.gone.get() {
        // The socket may never be ready again: what is left can be in this side's buffers.
        while again {
            tokio::task::yield_now().await;
            again = part.borrow_mut().turn(&connection, Ok(both));
        }
        again = connection.due.take();
        if again {
            continue;
        }
        let interest = match (connection.no_slot.get(), connection.full.get()) {
            (false, false) => Interest::READABLE,
            (false, true) => Interest::READABLE | Interest::WRITABLE,
            (true, true) => Interest::WRITABLE,
            (true, false) => {
                connection.changed.notified().await;
                continue;
            }
        };
        let ready = tokio::select! {
            ready = connection.stream.ready(interest) => ready,
            () = connection.changed.notified() => continue,
        };
        again = part.borrow_mut().turn(&connection, ready);
    }
}

impl Part {
    /// One turn of a connection whose socket is ready; true if it stopped for others.
    fn turn(&mut self, connection: &Rc<Connection>, ready: io::Result<Ready>) -> bool {
        let _turn = turn_here();
        if connection.gone.get() {
            return false;
        }
        let ready = match ready {
            Ok(ready) => ready,
            Err(error) => {
                self.lost(connection, &error.to_string());
                return false;
            }
        };
        let mut again = false;
        let readable = ready.is_readable() || ready.is_read_closed();
        if readable && !connection.no_slot.get() {
            again |= self.read(connection);
        }
        if !connection.gone.get() {
            again |= self.write(connection);
        }
        if std::mem::take(&mut self.queued_again) {
            // Others may have nothing to do.
            self.write_all();
        }
        again
    }

    fn post(&mut self, new: NewJob, staged: Option<Box<dyn StagedSource>>) {
        if self.closed {
            // Its ticket says that it never went anywhere.
            return drop(new);
        }
        #[cfg(feature = "plant")]
        crate::copy::plant::job_comes(&new.ticket);
        let job = Job::new(new, staged);
        if job.is_cancelled() {
            return job.end();
        }
        if job.bytes() == 0 {
            // No cells: nothing to wait for.
            return job.end();
        }
        self.jobs.entry(job.life).or_default().push(Rc::clone(&job));
        self.queue(job);
    }

    fn queue(&mut self, job: Rc<Job>) {
        if !job.enter_queue() {
            return;
        }
        let (flow, class) = (job.life.0, job.class);
        if let Err(full) = self.scheduler.push(flow, class, Queued(job)) {
            // Cannot happen while slots are given out by the node; if it does, the room ends.
            let Queued(job) = full.job;
            job.errored("the route's queue is full: limit jobs_per_lane".into());
            self.end(&job);
        }
    }

    fn cancel(&mut self, life: LifeId) {
        for job in self.jobs.get(&life).cloned().unwrap_or_default() {
            if job.is_cancelled() {
                self.end(&job);
            }
        }
        self.scheduler.cancel(life.0);
        while let Some(Queued(job)) = self.scheduler.take_cancelled() {
            job.left_queue();
            self.end(&job);
        }
    }

    /// The job's source goes back, its ticket says why. What is half written goes on with zeroes.
    fn end(&mut self, job: &Rc<Job>) {
        if let Some(jobs) = self.jobs.get_mut(&job.life) {
            jobs.retain(|j| !Rc::ptr_eq(j, job));
            if jobs.is_empty() {
                self.jobs.remove(&job.life);
            }
        }
        job.end();
    }

    fn attach(&mut self, new: DataConnection) -> Option<Rc<Connection>> {
        let DataConnection {
            stream,
            read,
            class,
            index,
        } = new;
        if self.closed {
            return None;
        }
        let stream = match stream.attach() {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!(peer = self.name, %error, "a data connection was not taken over");
                (self.events)(RouteEvent::Lost { class, index });
                return None;
            }
        };
        // Whoever opened it again knows that the old one is gone.
        let old = self
            .connections
            .iter()
            .find(|c| c.class == class && c.index == index)
            .cloned();
        if let Some(old) = old {
            self.drop_connection(&old);
        }
        self.attached += 1;
        let number = self.attached;
        let connection = Rc::new(Connection {
            number,
            staging: self.staging(number),
            no_slot: Cell::new(false),
            due: Cell::new(false),
            stream,
            class,
            index,
            sending: RefCell::default(),
            receiving: RefCell::new(Receiving::new(read)),
            full: Cell::new(false),
            gone: Cell::new(false),
            silent: Cell::new(0),
            changed: Notify::new(),
        });
        self.connections.push(Rc::clone(&connection));
        if self.speaks {
            self.handing.repeats();
        }
        Some(connection)
    }

    /// What a connection needs of the sink, if there is one.
    fn staging(&self, connection: u64) -> Option<Staging> {
        let sink = Arc::clone(self.sink.as_ref()?);
        let me = self.me.clone()?;
        let to_me = move |work| {
            // A part that has stopped reads nothing, and has nobody to tell.
            if let Some(me) = me.upgrade() {
                me.do_send(work);
            }
        };
        let also = to_me.clone();
        let wake: Wake = Arc::new(move || also(RouteWork::Slots));
        let tell: Tell = Arc::new(move |seq, fate, bytes| {
            to_me(RouteWork::Delivered {
                connection,
                seq,
                fate,
                bytes,
            });
        });
        let handing = Arc::clone(&self.handing);
        Some(Staging {
            sink,
            wake,
            tell,
            handing,
        })
    }

    fn note(&self, note: Note) -> Result<(), String> {
        match note {
            Note::Answer(answer) => self.handing.answered(answer),
            Note::Ask(ask) => {
                self.asked(ask);
                Ok(())
            }
        }
    }

    /// The peer asks whether it may hand frames over.
    fn asked(&self, ask: Ask) {
        if let Question::Known = self.handing.question(&ask) {
            return;
        }
        let Ask { ring, pool } = ask;
        let pools = self.node.pools.borrow();
        let there = pools.named(&pool).map(|named| named.pool.clone());
        drop(pools);
        let (Some(sink), Some(there), Some(me)) = (&self.sink, there, self.me.clone()) else {
            let why = format!("the receiver has no pool {pool:?} on a device");
            return self.handing.opened(ring.number, pool, Err(why));
        };
        let number = ring.number;
        sink.open(
            &there,
            &ring,
            Box::new(move |came| {
                // Not from here: what was opened for nobody is closed by whoever opened it.
                if let Some(me) = me.upgrade() {
                    me.do_send(RouteWork::Opened(number, pool, came));
                }
            }),
        );
    }

    /// Connections that waited for a slot try again.
    fn slots(&mut self) {
        for connection in &self.connections {
            if connection.no_slot.take() {
                connection.due.set(true);
                connection.changed.notify_one();
            }
        }
    }

    /// A frame that went on from its slot is over.
    fn delivered(&mut self, connection: u64, seq: u64, fate: Fate, bytes: u32) {
        self.count(fate, bytes);
        let by = |c: &&Rc<Connection>| c.number == connection;
        // One that is lost tells nobody: its sender sends the frame again.
        if let Some(connection) = self.connections.iter().find(by).cloned() {
            let read_by_peer = connection.sending.borrow_mut().acknowledge(seq, fate);
            if !read_by_peer {
                self.violation(&connection, "it does not read its acknowledgements".into());
            }
        }
    }

    fn close(&mut self) {
        self.closed = true;
        self.handing.close();
        for connection in std::mem::take(&mut self.connections) {
            connection.gone.set(true);
            connection.changed.notify_one();
        }
        for Queued(job) in self.scheduler.drain() {
            job.left_queue();
        }
        self.sums.clear();
        for job in std::mem::take(&mut self.jobs).into_values().flatten() {
            job.end();
        }
    }

    fn lost(&mut self, connection: &Rc<Connection>, why: &str) {
        if connection.gone.get() {
            return;
        }
        tracing::info!(peer = self.name, class = ?connection.class, index = connection.index, why, "data connection lost");
        self.drop_connection(connection);
        (self.events)(RouteEvent::Lost {
            class: connection.class,
            index: connection.index,
        });
        self.write_all();
    }

    /// Takes a connection out; what it had not acknowledged goes out again on another one.
    fn drop_connection(&mut self, connection: &Rc<Connection>) {
        connection.gone.set(true);
        connection.changed.notify_one();
        self.connections.retain(|c| !Rc::ptr_eq(c, connection));
        let unacked = connection.sending.borrow_mut().take_unacked();
        for Unacked {
            job, stretch, void, ..
        } in unacked
        {
            if void {
                // It is over, or its source could not be read.
                self.end(&job);
            } else if job.is_live() {
                match job.lost(stretch) {
                    Next::Over => self.end(&job),
                    _ => self.queue(job),
                }
            }
        }
    }

    /// Both sides say now and then that they are there. A connection on which nothing comes leads
    /// nowhere, and is closed: whoever opened it opens it again.
    fn tick(&mut self) {
        for connection in self.connections.clone() {
            if connection.no_slot.get() {
                // It is this side that is silent: nothing is read. It looks again all the same: the claim
                // that its frame is for may have ended, and then it needs no slot.
                connection.sending.borrow_mut().say_alive();
                connection.no_slot.set(false);
                connection.due.set(true);
                connection.changed.notify_one();
                continue;
            }
            let silent = connection.silent.get() + 1;
            connection.silent.set(silent);
            if silent > SILENT_TICKS {
                let within = self.node.deadlines.liveness;
                let why = format!("nothing came for {within:?} (Deadlines::liveness)");
                self.lost(&connection, &why);
            } else {
                connection.sending.borrow_mut().say_alive();
            }
        }
        self.write_all();
    }

    fn write_all(&mut self) {
        for at in 0..self.connections.len() {
            let Some(connection) = self.connections.get(at).cloned() else {
                return;
            };
            if !connection.full.get() && self.write(&connection) {
                // Its task goes on when others had their turn.
                connection.full.set(true);
                connection.changed.notify_one();
            }
        }
    }

    /// Writes until the socket is full or nothing is left; true if it stopped for others.
    fn write(&mut self, connection: &Rc<Connection>) -> bool {
        let was_full = connection.full.replace(false);
        let mut wrote = 0;
        let error = loop {
            if self.speaks
                && connection.sending.borrow().takes_note()
                && let Some(note) = self.handing.next_note()
            {
                connection.sending.borrow_mut().say(note);
            }
            if connection.sending.borrow().is_between_frames()
                && let Some((job, stretch)) = self.next_stretch()
            {
                let crc = self.node.net.payload_crc;
                connection.sending.borrow_mut().begin(job, stretch, crc);
            }
            let once = connection.sending.borrow_mut().write(&connection.stream);
            match once {
                Ok(Wrote::Some(n)) => {
                    wrote += n;
                    step_aside(n);
                }
                Ok(Wrote::Nothing) => return false,
                Ok(Wrote::Full) => {
                    connection.full.set(true);
                    if !was_full {
                        connection.changed.notify_one();
                    }
                    return false;
                }
                Err(error) => break error,
            }
            if wrote >= STRETCH {
                return true;
            }
        };
        self.lost(connection, &error.to_string());
        false
    }

    fn next_stretch(&mut self) -> Option<(Rc<Job>, super::job::Stretch)> {
        let limit = frame_bytes(&self.node);
        loop {
            let job = match self.scheduler.next()? {
                Turn::Cancelled(Queued(job)) => {
                    job.left_queue();
                    job
                }
                Turn::Piece(mut turn) => {
                    let budget = turn.budget();
                    let job = Rc::clone(&turn.job().0);
                    let (stretch, last) = job.take(budget, limit);
                    let bytes = stretch.map_or(0, |s| u64::from(s.length));
                    if let Some(Queued(job)) = turn.report(bytes, last) {
                        job.left_queue();
                    }
                    if let Some(stretch) = stretch {
                        let sent = &self.node.stats.copied_bytes;
                        sent.fetch_add(bytes, Ordering::Relaxed);
                        return Some((job, stretch));
                    }
                    continue;
                }
            };
            self.end(&job);
        }
    }

    /// Reads what is there; true if it stopped for others.
    fn read(&mut self, connection: &Rc<Connection>) -> bool {
        let node = Arc::clone(&self.node);
        let border = Border {
            gates: &node.gates,
            peer: self.peer,
            staging: connection.staging.as_ref(),
        };
        let mut read = 0;
        while read < STRETCH && !connection.gone.get() {
            let came = connection
                .receiving
                .borrow_mut()
                .step(&connection.stream, &border);
            match came {
                Ok(Came::Bytes(n)) => {
                    read += n;
                    connection.silent.set(0);
                    step_aside(n);
                }
                Ok(Came::Empty) => return false,
                Ok(Came::Handed) => connection.silent.set(0),
                Ok(Came::NoSlot) => {
                    connection.no_slot.set(true);
                    return false;
                }
                Ok(Came::Ack(ack)) => {
                    if let Err(what) = self.acknowledged(connection, ack) {
                        self.violation(connection, what);
                    }
                }
                Ok(Came::Note(note)) => {
                    if let Err(what) = self.note(note) {
                        self.violation(connection, what);
                    }
                }
                Ok(Came::Frame { seq, fate, bytes }) => {
                    self.count(fate, bytes);
                    let read_by_peer = connection.sending.borrow_mut().acknowledge(seq, fate);
                    if !read_by_peer {
                        self.violation(connection, "it does not read its acknowledgements".into());
                    }
                }
                Err(ReadError::Connection(why)) => self.lost(connection, &why),
                Err(ReadError::Violation(what)) => self.violation(connection, what),
            }
        }
        !connection.gone.get()
    }

    fn count(&self, fate: Fate, bytes: u32) {
        let stats = &self.node.stats;
        let counter = match fate {
            Fate::Landed => &stats.received_bytes,
            Fate::Refused => {
                stats
                    .late_bytes
                    .fetch_add(u64::from(bytes), Ordering::Relaxed);
                &stats.late_frames
            }
            Fate::Void => &stats.void_frames,
            Fate::Corrupt => &stats.corrupt_frames,
        };
        let by = if fate == Fate::Landed {
            self.meter.received(Fabric::Tcp, bytes.into());
            u64::from(bytes)
        } else {
            1
        };
        counter.fetch_add(by, Ordering::Relaxed);
    }

    fn acknowledged(&mut self, connection: &Rc<Connection>, ack: Ack) -> Result<(), String> {
        let mut next = ack.first;
        while next <= ack.last {
            let Some(unacked) = connection.sending.borrow_mut().take_acked(next) else {
                return Err(format!(
                    "it acknowledged frame {next}, which does not wait for that"
                ));
            };
            next += 1;
            let (job, stretch) = (unacked.job, unacked.stretch);
            let then = match ack.fate {
                Fate::Landed => {
                    self.meter.sent(Fabric::Tcp, stretch.length.into());
                    if let Some(since) = unacked.since {
                        self.meter.piece(Fabric::Tcp, since.elapsed());
                    }
                    job.landed(stretch)
                }
                Fate::Refused => job.refused(),
                // As this side's trailer said: its job is over, or cannot go on.
                Fate::Void if unacked.void => Next::Over,
                Fate::Void => return Err("it calls a frame void that was valid".into()),
                Fate::Corrupt if job.is_handed() => {
                    return Err("it found a wrong sum in a frame that has none".into());
                }
                Fate::Corrupt => job.corrupted(stretch),
            };
            match then {
                Next::Wait => {}
                Next::Queue => {
                    self.queue(job);
                    self.queued_again = true;
                }
                Next::Sum => {
                    self.sums.push_back(job);
                    if self.sums.len() == 1
                        && let Some(me) = self.me.as_ref().and_then(WeakAddr::upgrade)
                    {
                        me.do_send(SumMore);
                    }
                }
                Next::Over => self.end(&job),
            }
        }
        Ok(())
    }

    fn violation(&mut self, connection: &Rc<Connection>, what: String) {
        tracing::warn!(
            peer = self.name,
            what,
            "a peer broke the protocol of data connections"
        );
        self.drop_connection(connection);
        let text = format!("data connection of node {:?}: {what}", self.name);
        let reason = Reason::new(Code::ProtocolViolation, text).from_peer();
        (self.events)(RouteEvent::Violation(reason));
    }

    fn sum_some(&mut self) {
        if let Some(job) = self.sums.pop_front() {
            if job.sum(SUM_STRETCH) {
                self.end(&job);
            } else {
                self.sums.push_back(job);
            }
        }
    }
}
