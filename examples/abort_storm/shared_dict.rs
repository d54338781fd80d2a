//! The old design: two dictionaries that every thread reaches, and workers that assert.
//!
//! ```text
//!   decode                       prefill
//!   receive ─ info ──▶ bootstrap thread ──▶ transfer_infos[room], request_status[room]
//!   abort ─── ABORT ──▶ bootstrap thread ──▶ request_status[room] = Failed
//!                      scheduler ── chunk ──▶ transfer_queues[shard] ──▶ worker: status Failed?
//!                      scheduler: Failed ──▶ pop room from both          skip. Else ASSERT that
//!                                            dictionaries, free source   room is in infos; copy
//! ```
//!
//! It follows the public engine this project learned from: queues are sharded by the decode node a
//! room goes to (one here, so one queue is used), one thread serves each queue, a status that is not in the dictionary reads as
//! "waiting for input", an abort frees the decode side's pages at once, and the room id is the only
//! key. The window is between the scheduler's enqueue and the worker's use: an abort marks the room
//! failed, the scheduler sees that and pops it, and a chunk that was queued before meets a status
//! that says nothing and infos that are gone. The worker's assertion ends its thread; its queue is
//! never served again; the health check, which says that the process lives, stays at 200.
//!
//! Where versions differ the milder one is modelled: a failed status stays failed until it is
//! popped, a worker looks at it before it asserts, and a malformed peer is never the cause.
//!
//! The pages of a storm are some three hundred times smaller than those of a large model. So that
//! a chunk keeps its worker busy for as long as it would there, which decides how wide the window
//! is, a page takes [`WIRE`] to cross: at 100 Gbit/s a chunk of 128 tokens keeps it for 3.4 ms. Real
//! chunks are of thousands of tokens, so the window is no wider than there. It has to be wider than a busy machine of
//! two cores may hold a thread off (at 400 Gbit/s and 0.8 ms it was not: with three busy loops beside
//! it, the incident passed in a fifth of the runs). Nothing else is slowed down, and nothing waits for
//! a race.

use crate::engine::{Chunk, End, Engine, Feed, Held, Listener, Ready, RoomNo};
use crate::oracle::Shape;
use crate::pages::Pages;
use crate::storms::{RoomSpec, Side};
use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Queues, each with a worker of its own.
const QUEUES: u64 = 4;
/// Port of the decode node; it says which queue its rooms go to.
const DECODE_PORT: u64 = 17_001;
/// What 32 tokens at 320 KiB (80 layers, 8 heads of 128, K and V, 16 bits) take at 100 Gbit/s.
const WIRE: Duration = Duration::from_micros(840);
/// How often a scheduler looks at the rooms it has in flight.
const SCHEDULER_STEP: Duration = Duration::from_micros(100);

/// A prefill side's status of one room.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Poll {
    Failed,
    Bootstrapping,
    WaitingForInput,
    Transferring,
    Success,
}

/// What decode told prefill about a room: where to write.
#[derive(Clone)]
struct TransferInfo {
    pages: Vec<u32>,
    port: u64,
}

/// What the bootstrap thread is sent.
enum Message {
    Info(u64, TransferInfo),
    Abort(u64),
}

/// What decode's scheduler is told.
enum Event {
    Success(u64),
    Abort(RoomNo),
}

/// Pages that are free from `at` on. Telling the oracle takes time that the old design does not
/// need, so threads of their own do it, and no scheduler is late because of it.
struct Freed {
    no: RoomNo,
    side: Side,
    pages: Vec<u32>,
    at: Instant,
}

struct QueuedChunk {
    room: u64,
    owner: RoomNo,
    chunk: Chunk,
}

#[derive(Default)]
struct Queue {
    chunks: Mutex<VecDeque<QueuedChunk>>,
    added: Condvar,
}

/// A sender that prefill's scheduler has in flight.
struct Inflight {
    no: RoomNo,
    room: u64,
    source_pages: Vec<u32>,
}

/// A receiver as decode knows it.
struct Receiving {
    room: u64,
    tag: String,
    pages: Vec<u32>,
}

/// Why a worker's thread ended.
#[derive(Debug, thiserror::Error)]
#[error("assertion failed: room {room} in transfer_infos")]
struct AssertionError {
    room: u64,
}

struct Shared {
    shape: Shape,
    source: Arc<Pages>,
    destination: Arc<Pages>,
    listener: Arc<dyn Listener>,
    slow_take: Duration,
    transfer_infos: Mutex<HashMap<u64, TransferInfo>>,
    request_status: Mutex<HashMap<u64, Poll>>,
    transfer_queues: Vec<Queue>,
    inflight: Mutex<Vec<Inflight>>,
    receiving: Mutex<HashMap<RoomNo, Receiving>>,
    sending: Mutex<HashMap<RoomNo, u64>>,
    /// Which receiver has the room id now.
    current: Mutex<HashMap<u64, RoomNo>>,
    dead: Mutex<Vec<(usize, AssertionError)>>,
    stopping: AtomicBool,
    to_decode: Sender<Event>,
    to_bootstrap: Sender<Message>,
    freed_by_decode: Sender<Freed>,
    freed_by_prefill: Sender<Freed>,
}

/// See the module.
pub(crate) struct SharedDict {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl SharedDict {
    /// Starts the engine's threads.
    pub(crate) fn start(
        shape: Shape,
        source: Arc<Pages>,
        destination: Arc<Pages>,
        listener: Arc<dyn Listener>,
        slow_take: Duration,
    ) -> std::io::Result<SharedDict> {
        let (to_decode, decode_events) = mpsc::channel();
        let (to_bootstrap, messages) = mpsc::channel();
        let (freed_by_decode, decode_pages) = mpsc::channel();
        let (freed_by_prefill, prefill_pages) = mpsc::channel();
        let shared = Arc::new(Shared {
            shape,
            source,
            destination,
            listener,
            slow_take,
            transfer_infos: Mutex::default(),
            request_status: Mutex::default(),
            transfer_queues: (0..QUEUES).map(|_| Queue::default()).collect(),
            inflight: Mutex::default(),
            receiving: Mutex::default(),
            sending: Mutex::default(),
            current: Mutex::default(),
            dead: Mutex::default(),
            stopping: AtomicBool::new(false),
            to_decode,
            to_bootstrap,
            freed_by_decode,
            freed_by_prefill,
        });
        let engine = SharedDict {
            shared,
            threads: Mutex::default(),
        };
        engine.spawn("bootstrap", move |shared| {
            shared.bootstrap_thread(&messages)
        })?;
        engine.spawn("decode-scheduler", move |shared| {
            shared.decode_thread(&decode_events)
        })?;
        engine.spawn("decode-pages", move |shared| {
            shared.pages_thread(&decode_pages)
        })?;
        engine.spawn("prefill-pages", move |shared| {
            shared.pages_thread(&prefill_pages)
        })?;
        engine.spawn("prefill-scheduler", |shared| shared.prefill_thread())?;
        for shard in 0..engine.shared.transfer_queues.len() {
            engine.spawn(&format!("transfer-{shard}"), move |shared| {
                if let Err(error) = shared.transfer_worker(shard) {
                    tracing::error!(shard, %error, "a transfer worker died");
                    lock(&shared.dead).push((shard, error));
                }
            })?;
        }
        Ok(engine)
    }

    fn spawn(
        &self,
        name: &str,
        body: impl FnOnce(&Shared) + Send + 'static,
    ) -> std::io::Result<()> {
        let shared = Arc::clone(&self.shared);
        let thread = thread::Builder::new()
            .name(name.into())
            .spawn(move || body(&shared))?;
        lock(&self.threads).push(thread);
        Ok(())
    }
}

impl Shared {
    fn check_status(&self, room: u64) -> Poll {
        lock(&self.request_status)
            .get(&room)
            .copied()
            .unwrap_or(Poll::WaitingForInput)
    }

    /// A status only rises, but for a failure, which stays until the room is popped.
    fn update_status(&self, room: u64, to: Poll) {
        let mut statuses = lock(&self.request_status);
        let status = statuses.entry(room).or_insert(to);
        if to == Poll::Failed {
            *status = Poll::Failed;
        } else if *status != Poll::Failed {
            *status = to.max(*status);
        }
    }

    /// Serves one queue until the engine stops, or until it dies.
    fn transfer_worker(&self, shard: usize) -> Result<(), AssertionError> {
        while let Some(QueuedChunk { room, owner, chunk }) = self.next_chunk(shard) {
            if self.check_status(room) == Poll::Failed {
                continue;
            }
            let Some(info) = lock(&self.transfer_infos).get(&room).cloned() else {
                return Err(AssertionError { room });
            };
            self.update_status(room, Poll::Transferring);
            self.copy(owner, &chunk, &info);
            if chunk.last {
                self.update_status(room, Poll::Success);
                lock(&self.transfer_infos).remove(&room);
                let _ = self.to_decode.send(Event::Success(room));
            }
        }
        Ok(())
    }

    fn copy(&self, owner: RoomNo, chunk: &Chunk, info: &TransferInfo) {
        let to = info.pages.iter().skip(chunk.first as usize);
        let mut crossed = Instant::now();
        for (&from, &to) in chunk.pages.iter().zip(to) {
            crossed += WIRE;
            thread::sleep(crossed.saturating_duration_since(Instant::now()));
            for layer in 0..self.shape.layers {
                self.source.copy_to(layer, from, &self.destination, to);
            }
            self.listener.landed(owner, self.shape.page_total());
        }
    }

    fn next_chunk(&self, shard: usize) -> Option<QueuedChunk> {
        let queue = self.transfer_queues.get(shard)?;
        let mut chunks = lock(&queue.chunks);
        loop {
            if self.stopping.load(Ordering::Relaxed) {
                return None;
            }
            if let Some(chunk) = chunks.pop_front() {
                return Some(chunk);
            }
            chunks = queue
                .added
                .wait(chunks)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Prefill's control port: what decode sends.
    fn bootstrap_thread(&self, messages: &Receiver<Message>) {
        while !self.stopping.load(Ordering::Relaxed) {
            match messages.recv_timeout(SCHEDULER_STEP * 100) {
                Ok(Message::Info(room, info)) => {
                    lock(&self.transfer_infos).insert(room, info);
                    self.update_status(room, Poll::WaitingForInput);
                }
                Ok(Message::Abort(room)) => {
                    let known = lock(&self.request_status).get(&room).copied();
                    if known.is_some_and(|status| status != Poll::Success) {
                        self.update_status(room, Poll::Failed);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Prefill's scheduler: polls what is in flight, and cleans up what has ended.
    fn prefill_thread(&self) {
        while !self.stopping.load(Ordering::Relaxed) {
            let polled: Vec<(Inflight, End)> = {
                let mut inflight = lock(&self.inflight);
                let statuses = lock(&self.request_status);
                let over = |sender: &mut Inflight| {
                    matches!(
                        statuses.get(&sender.room),
                        Some(Poll::Failed | Poll::Success)
                    )
                };
                let over: Vec<Inflight> = inflight.extract_if(.., over).collect();
                let end = |sender: &Inflight| match statuses.get(&sender.room) {
                    Some(Poll::Success) => End::Done,
                    _ => End::Aborted("aborted by request".into()),
                };
                over.into_iter()
                    .map(|sender| (end(&sender), sender))
                    .map(|(e, s)| (s, e))
                    .collect()
            };
            for (sender, end) in polled {
                self.clear(&sender);
                let at = Instant::now();
                self.listener.ended(sender.no, Side::Prefill, end, at);
                let Inflight {
                    no,
                    source_pages: pages,
                    ..
                } = sender;
                let _ = self.freed_by_prefill.send(Freed {
                    no,
                    side: Side::Prefill,
                    pages,
                    at,
                });
            }
            thread::sleep(SCHEDULER_STEP);
        }
    }

    /// The cleanup that pops.
    fn clear(&self, sender: &Inflight) {
        lock(&self.request_status).remove(&sender.room);
        lock(&self.transfer_infos).remove(&sender.room);
        lock(&self.sending).remove(&sender.no);
    }

    /// Decode's scheduler: an outcome, and then the pages go straight back.
    fn decode_thread(&self, events: &Receiver<Event>) {
        while !self.stopping.load(Ordering::Relaxed) {
            let (no, end) = match events.recv_timeout(SCHEDULER_STEP * 100) {
                Ok(Event::Success(room)) => match lock(&self.current).get(&room) {
                    Some(&no) => (no, End::Done),
                    None => continue,
                },
                Ok(Event::Abort(no)) => (no, End::Aborted("aborted by request".into())),
                Err(RecvTimeoutError::Timeout) => continue,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if let Some(receiver) = lock(&self.receiving).remove(&no) {
                let now = Instant::now();
                self.listener.ended(no, Side::Decode, end, now);
                let (pages, at) = (receiver.pages, now + self.slow_take);
                let _ = self.freed_by_decode.send(Freed {
                    no,
                    side: Side::Decode,
                    pages,
                    at,
                });
            }
        }
    }

    fn pages_thread(&self, freed: &Receiver<Freed>) {
        while !self.stopping.load(Ordering::Relaxed) {
            let Ok(Freed {
                no,
                side,
                pages,
                at,
            }) = freed.recv_timeout(SCHEDULER_STEP * 100)
            else {
                continue;
            };
            thread::sleep(at.saturating_duration_since(Instant::now()));
            match side {
                Side::Decode => self.listener.destination_back(no, &pages, None, at),
                Side::Prefill => self.listener.source_back(no, &pages, at),
            }
        }
    }

    fn abort_receive(&self, no: RoomNo, room: u64) {
        let _ = self.to_bootstrap.send(Message::Abort(room));
        let _ = self.to_decode.send(Event::Abort(no));
    }
}

impl Feed for SharedDict {
    fn ready(&self, no: RoomNo) -> Ready {
        let Some(room) = lock(&self.shared.sending).get(&no).copied() else {
            return Ready::Ended;
        };
        match lock(&self.shared.request_status).get(&room) {
            Some(Poll::Bootstrapping) => Ready::NotYet,
            Some(Poll::WaitingForInput | Poll::Transferring) => Ready::Yes,
            Some(Poll::Failed | Poll::Success) | None => Ready::Ended,
        }
    }

    fn push(&self, no: RoomNo, chunk: Chunk) -> Result<(), String> {
        let shared = &self.shared;
        let room = lock(&shared.sending)
            .get(&no)
            .copied()
            .ok_or("the room has ended")?;
        {
            // Taken before the check, so that the cleanup finds every page that was handed over.
            let mut inflight = lock(&shared.inflight);
            let sender = inflight.iter_mut().find(|sender| sender.no == no);
            let sender = sender.ok_or("the room has ended")?;
            if shared.check_status(room) == Poll::Failed {
                return Err("the room has failed".into());
            }
            sender.source_pages.extend(&chunk.pages);
        }
        let port = lock(&shared.transfer_infos)
            .get(&room)
            .map(|info| info.port);
        let shard = (port.unwrap_or(DECODE_PORT) % QUEUES) as usize;
        if let Some(queue) = shared.transfer_queues.get(shard) {
            lock(&queue.chunks).push_back(QueuedChunk {
                room,
                owner: no,
                chunk,
            });
            queue.added.notify_one();
        }
        Ok(())
    }
}

impl Engine for SharedDict {
    fn receive(&self, no: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String> {
        let shared = &self.shared;
        let receiving = Receiving {
            room: spec.id,
            tag: spec.tag(),
            pages: pages.to_vec(),
        };
        lock(&shared.receiving).insert(no, receiving);
        lock(&shared.current).insert(spec.id, no);
        let info = TransferInfo {
            pages: pages.to_vec(),
            port: DECODE_PORT,
        };
        let sent = shared.to_bootstrap.send(Message::Info(spec.id, info));
        sent.map_err(|_| "the prefill side has stopped".to_owned())
    }

    fn send(&self, no: RoomNo, spec: &RoomSpec) -> Result<(), String> {
        let shared = &self.shared;
        shared.update_status(spec.id, Poll::Bootstrapping);
        lock(&shared.sending).insert(no, spec.id);
        lock(&shared.inflight).push(Inflight {
            no,
            room: spec.id,
            source_pages: Vec::new(),
        });
        Ok(())
    }

    fn abort(&self, no: RoomNo, side: Side) {
        match side {
            Side::Decode => {
                let room = lock(&self.shared.receiving).get(&no).map(|r| r.room);
                if let Some(room) = room {
                    self.shared.abort_receive(no, room);
                }
            }
            Side::Prefill => {
                let room = lock(&self.shared.sending).get(&no).copied();
                if let Some(room) = room {
                    self.shared.update_status(room, Poll::Failed);
                }
            }
        }
    }

    fn abort_tag(&self, tag: &str) {
        let tagged: Vec<(RoomNo, u64)> = lock(&self.shared.receiving)
            .iter()
            .filter(|(_, receiving)| receiving.tag == tag)
            .map(|(no, receiving)| (*no, receiving.room))
            .collect();
        for (no, room) in tagged {
            self.shared.abort_receive(no, room);
        }
    }

    fn health(&self) -> u16 {
        // The process lives. That is all the old health check knew.
        200
    }

    fn held(&self) -> Held {
        Held::default()
    }

    fn lent_pages(&self) -> Option<u64> {
        None
    }

    fn remarks(&self) -> Vec<String> {
        let queue = |shard: usize| self.shared.transfer_queues.get(shard);
        let left = |shard| queue(shard).map_or(0, |queue| lock(&queue.chunks).len());
        let line = |(shard, error): &(usize, AssertionError)| {
            format!(
                "worker {shard} died ({error}); {} chunks wait behind it",
                left(*shard)
            )
        };
        lock(&self.shared.dead).iter().map(line).collect()
    }

    fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Relaxed);
        for queue in &self.shared.transfer_queues {
            let _chunks = lock(&queue.chunks);
            queue.added.notify_all();
        }
        for thread in std::mem::take(&mut *lock(&self.threads)) {
            let _ = thread.join();
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
#[path = "shared_dict_tests.rs"]
mod tests;
