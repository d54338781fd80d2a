//! Bytes in messages: the sender gathers frames, the receiver's own worker writes its pages.
//!
//! ```text
//!   sender    job ─▶ part of a window ─▶ frames: header, payload ─▶ active messages ─┐
//!     ▲                                                                              ▼
//!     └── landed, refused ◀── acknowledgement ◀── marked ◀── the claim's gate ◀── Inlet, receiver
//! ```
//!
//! Frames, gates and acknowledgements are those of `tcp`. Rules:
//! - A source is read within [`Messages::step`] and nowhere else: what UCX sends is a copy. So a job that
//!   ends has let go of its source, whatever is under way.
//! - The gate is entered for one frame, within the callback that brings it, and not held across a wait.
//! - A frame that this side does not understand ends the route: the peer is of another mind.

use super::mailbox::Border;
use super::options::UcxOptions;
use super::route::MOST_JOBS;
use super::transports::TCP_SEGMENT;
use super::window::{Limits, Room, Windows};
use super::worker::{Flight, Worker};
use super::{UcxJob, endpoint_of};
use crate::fabric::Fabric;
use crate::fabric::tcp::frame::{Ack, Data, Fate, HEADER, Header};
use crate::fabric::tcp::{FrameJob, NewJob, Next, Stretch, place_whole};
use crate::ids::LifeId;
use crate::runtime::meter::time_some;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

/// What comes to a worker, as its callback sees it.
pub(super) struct Inlet {
    border: Arc<OnceLock<Border>>,
    /// The peer has said that it is there.
    pub(super) heard: Cell<bool>,
    /// To be told to the peer.
    fates: RefCell<VecDeque<Ack>>,
    /// Told by the peer.
    acks: RefCell<VecDeque<Ack>>,
    wrong: RefCell<Option<String>>,
}

/// The jobs of a route that sends messages. See the module.
pub(super) struct Messages {
    inlet: Rc<Inlet>,
    flush: std::time::Duration,
    windows: Windows,
    jobs: BTreeMap<u32, Rc<FrameJob>>,
    next_job: u32,
    parts: BTreeMap<u64, Part>,
    next_part: u64,
    sent: BTreeMap<u64, Sent>,
    seq: u64,
    flights: Vec<Rc<Flight>>,
    buffers: Vec<Vec<u8>>,
    sums: VecDeque<u32>,
}

/// Frames that were posted together.
struct Part {
    room: Room,
    /// That are not acknowledged.
    left: u32,
    until: Instant,
}

/// A frame that is not acknowledged.
struct Sent {
    job: u32,
    stretch: Stretch,
    part: u64,
    /// When it was posted, if it is timed.
    since: Option<Instant>,
}

/// Payload bytes of a frame, at most. Over `tcp` each costs calls of the system on both sides.
const FRAME: usize = 256 << 10;

// UCX's own header and footer are far smaller than this.
const _: () = assert!(FRAME + HEADER + 1024 <= TCP_SEGMENT);

/// Parts that are posted before UCX has its turn.
const PARTS_AT_ONCE: usize = 4;

/// Bytes of a source that are summed in one turn.
const SUM_STRETCH: u64 = 256 << 10;

/// Buffers that are kept for the next frames.
const KEPT: usize = 16;

/// Acknowledgements that wait for the peer to take them, before nothing more is posted.
const MOST_FATES: usize = 1 << 16;

impl Inlet {
    pub(super) fn new(border: Arc<OnceLock<Border>>) -> Rc<Inlet> {
        Rc::new(Inlet {
            border,
            heard: Cell::new(false),
            fates: RefCell::default(),
            acks: RefCell::default(),
            wrong: RefCell::default(),
        })
    }

    /// What this node knows of the peer, once there is a session.
    pub(super) fn border(&self) -> Option<&Border> {
        self.border.get()
    }

    /// A message came. Called from within UCX.
    pub(super) fn came(&self, bytes: &[u8]) {
        let Some((header, payload)) = bytes.split_first_chunk::<HEADER>() else {
            return self.break_off("a message without a header");
        };
        match Header::decode(header) {
            Ok(Header::Alive) => self.heard.set(true),
            Ok(Header::Ack(ack)) => self.acks.borrow_mut().push_back(ack),
            Ok(Header::Data(Data { handed: true, .. }) | Header::Note(_)) => {
                self.break_off("device memory is not handed over through UCX");
            }
            Ok(Header::Data(data)) => match self.place(&data, payload) {
                Ok(fate) => self.tell(data.seq, fate),
                Err(why) => self.break_off(&why),
            },
            Err(error) => self.break_off(&error.to_string()),
        }
    }

    fn place(&self, data: &Data, payload: &[u8]) -> Result<Fate, String> {
        let Some(border) = self.border.get() else {
            return Err("a frame before there was a session".into());
        };
        let fate = place_whole(data, payload, &border.gates, border.peer)?;
        let (stats, bytes) = (&border.stats, u64::from(data.length));
        if fate == Fate::Landed {
            stats.received_bytes.fetch_add(bytes, Ordering::Relaxed);
            border.meter.received(Fabric::Ucx, bytes);
        } else {
            stats.late_bytes.fetch_add(bytes, Ordering::Relaxed);
            stats.late_frames.fetch_add(1, Ordering::Relaxed);
        }
        Ok(fate)
    }

    fn tell(&self, seq: u64, fate: Fate) {
        let mut fates = self.fates.borrow_mut();
        if let Some(last) = fates.back_mut()
            && last.fate == fate
            && last.last.checked_add(1) == Some(seq)
        {
            last.last = seq;
        } else if fates.len() < MOST_FATES {
            fates.push_back(Ack {
                first: seq,
                last: seq,
                fate,
            });
        } else {
            self.break_off("it does not read its acknowledgements");
        }
    }

    /// The route cannot go on.
    pub(super) fn break_off(&self, why: &str) {
        self.wrong
            .borrow_mut()
            .get_or_insert_with(|| format!("the peer broke the protocol: {why}"));
    }

    /// Why the route cannot go on, if so.
    pub(super) fn wrong(&self) -> Option<String> {
        self.wrong.borrow().clone()
    }
}

impl Messages {
    pub(super) fn new(inlet: &Rc<Inlet>, options: &UcxOptions) -> Messages {
        Messages {
            inlet: Rc::clone(inlet),
            flush: options.flush,
            windows: Windows::new(Limits {
                bytes: options.window_bytes,
                puts: options.window_puts,
                jobs: MOST_JOBS,
            }),
            jobs: BTreeMap::new(),
            next_job: 0,
            parts: BTreeMap::new(),
            next_part: 0,
            sent: BTreeMap::new(),
            seq: 0,
            flights: Vec::new(),
            buffers: Vec::new(),
            sums: VecDeque::new(),
        }
    }

    pub(super) fn post(&mut self, job: UcxJob) {
        let job = FrameJob::new(
            NewJob {
                ticket: job.ticket,
                class: job.class,
                layout: job.layout,
                place: job.place,
                claim: job.number,
                gate: job.gate,
                checksum: job.checksum,
                meter: None,
                queued: job.queued,
                lane: None,
            },
            None,
        );
        if job.is_cancelled() || job.bytes() == 0 {
            return job.end();
        }
        let number = self.number();
        let room = room_of(&job);
        if self.windows.push(room, number) {
            self.jobs.insert(number, job);
        } else {
            job.errored(
                "limit MOST_JOBS is reached: the route has no place for another job".into(),
            );
            job.end();
        }
    }

    /// A number that no job has.
    fn number(&mut self) -> u32 {
        // There are far fewer jobs than numbers.
        while self.jobs.contains_key(&self.next_job) {
            self.next_job = self.next_job.wrapping_add(1);
        }
        let number = self.next_job;
        self.next_job = number.wrapping_add(1);
        number
    }

    pub(super) fn cancel(&mut self, life: LifeId) {
        let of = |(number, job): (&u32, &Rc<FrameJob>)| {
            (job.life == life && job.is_cancelled()).then_some(*number)
        };
        let cancelled: Vec<u32> = self.jobs.iter().filter_map(of).collect();
        for number in cancelled {
            self.end(number);
        }
    }

    /// A job is over: its source is free.
    fn end(&mut self, number: u32) {
        if let Some(job) = self.jobs.remove(&number) {
            self.windows.take(room_of(&job), number);
            job.end();
        }
    }

    /// All jobs go back: none reads its source any more.
    pub(super) fn hand_back(&mut self, why: Option<&str>) {
        let numbers: Vec<u32> = self.jobs.keys().copied().collect();
        for number in numbers {
            if let (Some(why), Some(job)) = (why, self.jobs.get(&number)) {
                job.errored(why.to_owned());
            }
            self.end(number);
        }
        self.sums.clear();
    }

    /// Whether nothing is under way.
    pub(super) fn is_idle(&self) -> bool {
        self.jobs.is_empty()
    }

    pub(super) fn due(&self) -> Option<Instant> {
        // Parts are posted in order, and each has as long.
        self.parts.first_key_value().map(|(_, part)| part.until)
    }

    /// Why the route is to be given up.
    pub(super) fn failed(&self, worker: &Worker, now: Instant) -> Option<String> {
        if let Some(why) = self.inlet.wrong() {
            return Some(why);
        }
        let error = self.flights.iter().find_map(|f| worker.error_of(f));
        if let Some(error) = error {
            return Some(format!("a message was not sent: {error}"));
        }
        let late = self.due().is_some_and(|until| now >= until);
        late.then(|| {
            super::UcxError::Late {
                what: "an acknowledgement",
                within: self.flush,
                limit: "ucx.flush",
            }
            .to_string()
        })
    }

    /// Takes what came, and posts what windows have room for; whether there was anything.
    pub(super) fn step(&mut self, worker: &Worker, now: Instant, posts: bool) -> bool {
        let mut worked = self.recycle();
        worked |= self.acknowledged();
        worked |= self.tell(worker);
        if posts {
            for _ in 0..PARTS_AT_ONCE {
                let Some(part) = self.windows.next() else {
                    break;
                };
                self.post_part(worker, part.room, (part.bytes, part.puts), now);
                worked = true;
            }
        }
        worked | self.sum()
    }

    /// Buffers of what UCX has sent.
    fn recycle(&mut self) -> bool {
        let before = self.flights.len();
        let (buffers, kept) = (&mut self.buffers, KEPT);
        self.flights.retain(|flight| {
            if !flight.is_over() || flight.is_bad() {
                return true;
            }
            if buffers.len() < kept {
                buffers.push(flight.take_bytes());
            }
            false
        });
        before != self.flights.len()
    }

    fn acknowledged(&mut self) -> bool {
        let acks = std::mem::take(&mut *self.inlet.acks.borrow_mut());
        let any = !acks.is_empty();
        for ack in acks {
            if ack.first > ack.last {
                self.inlet.break_off("an acknowledgement of nothing");
                continue;
            }
            let told = self.sent.range(ack.first..=ack.last);
            let told: Vec<u64> = told.map(|(seq, _)| *seq).collect();
            if told.len() as u64 != ack.last - ack.first + 1 {
                self.inlet
                    .break_off("it acknowledges frames that do not wait for that");
                continue;
            }
            for seq in told {
                if let Some(sent) = self.sent.remove(&seq) {
                    self.fate(&sent, ack.fate);
                }
            }
        }
        any
    }

    fn fate(&mut self, sent: &Sent, fate: Fate) {
        let next = match (self.jobs.get(&sent.job), fate) {
            (None, _) => Next::Wait,
            (Some(job), Fate::Landed) => {
                if let Some(border) = self.inlet.border.get() {
                    border.meter.sent(Fabric::Ucx, sent.stretch.length.into());
                    if let Some(since) = sent.since {
                        border.meter.piece(Fabric::Ucx, since.elapsed());
                    }
                }
                job.landed(sent.stretch)
            }
            (Some(job), Fate::Refused) => job.refused(),
            (Some(job), Fate::Void | Fate::Corrupt) => {
                job.errored("the receiver calls a frame void or corrupt".into());
                Next::Over
            }
        };
        match next {
            Next::Wait | Next::Queue => {}
            Next::Sum => self.sums.push_back(sent.job),
            Next::Over => self.end(sent.job),
        }
        self.frame_over(sent.part);
    }

    /// One frame of a part is over.
    fn frame_over(&mut self, number: u64) {
        let Some(part) = self.parts.get_mut(&number) else {
            return;
        };
        part.left -= 1;
        if part.left == 0 {
            let room = part.room;
            self.parts.remove(&number);
            self.windows.flushed(room);
        }
    }

    /// Tells the peer what became of its frames.
    fn tell(&mut self, worker: &Worker) -> bool {
        let mut any = false;
        loop {
            let Some(ack) = self.inlet.fates.borrow_mut().pop_front() else {
                return any;
            };
            let mut bytes = self.buffers.pop().unwrap_or_default();
            bytes.clear();
            bytes.extend_from_slice(&ack.encode());
            self.send(worker, 0, bytes);
            any = true;
        }
    }

    fn send(&mut self, worker: &Worker, endpoint: usize, bytes: Vec<u8>) {
        // What went wrong is in the flight, which `failed` looks at.
        self.flights.push(worker.send(endpoint, bytes));
    }

    fn post_part(
        &mut self,
        worker: &Worker,
        room: Room,
        (mut bytes, mut puts): (u64, u32),
        now: Instant,
    ) {
        let number = self.next_part;
        self.next_part += 1;
        let mut frames = 0;
        while bytes > 0 && puts > 0 {
            let Some(at) = self.windows.front(room) else {
                break;
            };
            let Some(job) = self.jobs.get(&at).cloned() else {
                self.windows.take(room, at);
                continue;
            };
            if job.is_cancelled() {
                self.end(at);
                continue;
            }
            let (stretch, last) = job.take(bytes, FRAME);
            if last {
                self.windows.take(room, at);
            }
            let Some(stretch) = stretch else {
                continue;
            };
            self.seq += 1;
            let data = job.header(self.seq, stretch, false);
            let mut message = self.buffers.pop().unwrap_or_default();
            message.clear();
            message.extend_from_slice(&data.encode());
            if !job.gather(&data, &mut message) {
                // Its ticket has the error.
                self.end(at);
                continue;
            }
            let sent = Sent {
                job: at,
                stretch,
                part: number,
                since: time_some(),
            };
            if let Some(border) = self.inlet.border.get() {
                let copied = &border.stats.copied_bytes;
                copied.fetch_add(stretch.length.into(), Ordering::Relaxed);
            }
            self.sent.insert(self.seq, sent);
            frames += 1;
            bytes = bytes.saturating_sub(u64::from(stretch.length));
            puts -= 1;
            self.send(worker, endpoint_of(room.class), message);
        }
        if frames > 0 {
            let part = Part {
                room,
                left: frames,
                until: now + self.flush,
            };
            self.parts.insert(number, part);
        }
        self.windows.posted(room, frames > 0);
    }

    /// Sums some of a source; whether there was one.
    fn sum(&mut self) -> bool {
        let Some(number) = self.sums.front().copied() else {
            return false;
        };
        let summed = match self.jobs.get(&number) {
            Some(job) => job.is_cancelled() || job.sum(SUM_STRETCH),
            None => true,
        };
        if summed {
            self.sums.pop_front();
            self.end(number);
        }
        true
    }
}

fn room_of(job: &FrameJob) -> Room {
    Room {
        life: job.life.0,
        class: job.class,
    }
}
