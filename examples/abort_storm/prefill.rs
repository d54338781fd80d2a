//! The prefill engine of a storm: one thread that works in steps, as a real one does. A step
//! computes a chunk for every request it has, and hands all of them over at its end.

use crate::engine::{Chunk, Feed, Listener, Ready, RoomNo};
use crate::storms::Pace;
use crate::world::World;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Instant;

/// Requests that the prefill engine works on.
pub(crate) struct Prefill {
    pace: Pace,
    started: Mutex<Vec<RoomNo>>,
    stopping: AtomicBool,
}

struct Request {
    room: RoomNo,
    next: u32,
}

impl Prefill {
    /// With nothing to do.
    pub(crate) fn new(pace: Pace) -> Self {
        Prefill {
            pace,
            started: Mutex::default(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Starts to compute a room whose sender was started.
    pub(crate) fn begin(&self, room: RoomNo) {
        self.started
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(room);
    }

    /// Ends [`run`](Prefill::run) after its present step.
    pub(crate) fn stop(&self) {
        self.stopping.store(true, Ordering::Relaxed);
    }

    /// Works until it is stopped. `listener`: who hears what became of pages, `world` or before it.
    pub(crate) fn run(&self, world: &World, engine: &dyn Feed, listener: &dyn Listener) {
        let mut requests: Vec<Request> = Vec::new();
        while !self.stopping.load(Ordering::Relaxed) {
            let began = Instant::now();
            {
                let mut started = self.started.lock().unwrap_or_else(PoisonError::into_inner);
                requests.extend(started.drain(..).map(|room| Request { room, next: 0 }));
            }
            self.step(&mut requests, world, engine, listener);
            thread::sleep(self.pace.step.saturating_sub(began.elapsed()));
        }
    }

    fn step(
        &self,
        requests: &mut Vec<Request>,
        world: &World,
        engine: &dyn Feed,
        listener: &dyn Listener,
    ) {
        let mut computed = Vec::new();
        requests.retain_mut(|request| match engine.ready(request.room) {
            Ready::Ended => false,
            Ready::NotYet => true,
            Ready::Yes => {
                let Some(room) = world.rooms.get(request.room) else {
                    return false;
                };
                let left = room.spec.turn.pages.saturating_sub(request.next);
                let count = left.min(self.pace.chunk_pages);
                // Without free pages this request waits for the next step.
                if let Some(pages) = world.take_source(request.room, request.next, count) {
                    let last = count == left;
                    computed.push((
                        request.room,
                        Chunk {
                            first: request.next,
                            pages,
                            last,
                        },
                    ));
                    request.next += count;
                    return !last;
                }
                true
            }
        });
        for (no, chunk) in computed {
            let pages = chunk.pages.clone();
            if engine.push(no, chunk).is_err() {
                listener.source_back(no, &pages, Instant::now());
            } else {
                listener.pushed(no, pages.len() as u64 * world.shape.page_total());
            }
        }
    }
}
