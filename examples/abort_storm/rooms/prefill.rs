//! The sending half, in this process. A lease is dropped before the world is told, so that the
//! pages can be spoiled.

use super::base::{Base, lock, on_blocking_pool};
use super::decode::end;
use super::{Half, PrefillHalf, Status};
use crate::engine::{Chunk, Feed, Listener, Ready, RoomNo, Sessions};
use crate::storms::{DEADLINE, RoomSpec, Side};
use kvroom::recording::Recording;
use kvroom::{Incarnation, Outcome, PushedChunk, ReserveError, RoomId, SendRoom};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

struct Sending {
    room: SendRoom,
    spec: RoomSpec,
}

type AllSending = Arc<Mutex<HashMap<RoomNo, Arc<Sending>>>>;

/// See the module.
pub(crate) struct PrefillNode {
    base: Base,
    sending: AllSending,
}

impl PrefillNode {
    /// With a node that was started.
    pub(crate) fn new(base: Base) -> PrefillNode {
        PrefillNode {
            base,
            sending: AllSending::default(),
        }
    }

    fn sending(&self, no: RoomNo) -> Option<Arc<Sending>> {
        lock(&self.sending).get(&no).cloned()
    }
}

/// Waits for a sender's outcome, and for what it held and no chunk's task waits for.
async fn watch(no: RoomNo, sending: Arc<Sending>, all: AllSending, listener: Arc<dyn Listener>) {
    let end = end(sending.room.outcome().await);
    listener.ended(no, Side::Prefill, end, Instant::now());
    let released = sending.room.released().await;
    let at = Instant::now();
    let pages: Vec<u32> = released
        .leases
        .iter()
        .flat_map(|lease| lease.pages().to_vec())
        .collect();
    drop(released);
    lock(&all).remove(&no);
    if !pages.is_empty() {
        on_blocking_pool(move || listener.source_back(no, &pages, at)).await;
    }
}

/// Waits for one chunk's pages.
async fn watch_chunk(
    no: RoomNo,
    pushed: PushedChunk,
    sending: Arc<Sending>,
    listener: Arc<dyn Listener>,
    page_total: u64,
) {
    let Some(lease) = pushed.released().await else {
        return;
    };
    let at = Instant::now();
    let pages = lease.pages().to_vec();
    drop(lease);
    if !matches!(sending.room.try_outcome(), Some(Outcome::Aborted(_))) {
        listener.landed(no, pages.len() as u64 * page_total);
    }
    drop(sending);
    on_blocking_pool(move || listener.source_back(no, &pages, at)).await;
}

impl Half for PrefillNode {
    fn abort(&self, no: RoomNo) {
        if let Some(sending) = self.sending(no) {
            sending.room.abort("the prefill engine gave up");
        }
    }

    fn status(&self) -> Status {
        self.base.status()
    }

    fn meet(&self, patience: Duration) -> Result<(), String> {
        self.base.meet(patience)
    }

    fn expect(&self, other: Incarnation) {
        self.base.expect(other);
    }

    fn brace(&self) -> usize {
        self.base.brace()
    }

    fn sessions(&self) -> Sessions {
        self.base.sessions()
    }

    fn recording(&self) -> Option<Recording> {
        Some(self.base.recording())
    }

    fn stop(&self) {
        self.base.stop();
    }
}

impl PrefillHalf for PrefillNode {
    fn send(&self, no: RoomNo, spec: &RoomSpec) -> Result<(), String> {
        let base = &self.base;
        let room = base
            .node
            .send(RoomId(spec.id))
            .attempt(spec.attempt)
            .tag(&spec.tag())
            .deadline(DEADLINE)
            .blocking_start()
            .map_err(|error| error.to_string())?;
        base.remember(room.key(), no);
        let sending = Arc::new(Sending {
            room,
            spec: spec.clone(),
        });
        lock(&self.sending).insert(no, Arc::clone(&sending));
        let (all, listener) = (Arc::clone(&self.sending), Arc::clone(&base.listener));
        base.runtime.spawn(watch(no, sending, all, listener));
        Ok(())
    }
}

impl Feed for PrefillNode {
    fn ready(&self, no: RoomNo) -> Ready {
        let Some(sending) = self.sending(no) else {
            return Ready::Ended;
        };
        match sending.room.try_reserve() {
            Ok(_slot) => Ready::Yes,
            Err(ReserveError::Full { .. }) => Ready::NotYet,
            Err(ReserveError::Ended(_)) => Ready::Ended,
        }
    }

    fn push(&self, no: RoomNo, chunk: Chunk) -> Result<(), String> {
        let base = &self.base;
        let sending = self.sending(no).ok_or("the room has ended")?;
        let (turn, page_tokens) = (sending.spec.turn, u64::from(base.shape.page_tokens));
        let first = u64::from(turn.skip_pages + chunk.first) * page_tokens;
        let end = (first + chunk.pages.len() as u64 * page_tokens).min(turn.tokens);
        let lease = base
            .store
            .pool
            .lease_read(&chunk.pages)
            .map_err(|error| error.to_string())?;
        let slot = sending
            .room
            .blocking_reserve()
            .map_err(|error| error.to_string())?;
        let pushed = slot
            .push(kvroom::Chunk::tokens(first..end).pages(lease))
            .map_err(|error| error.to_string())?;
        if chunk.last
            && let Err(error) = sending.room.finish(turn.tokens, None)
        {
            // The room ended meanwhile; its outcome says so.
            tracing::debug!(%error, "finish");
        }
        let (listener, page_total) = (Arc::clone(&base.listener), base.shape.page_total());
        base.runtime
            .spawn(watch_chunk(no, pushed, sending, listener, page_total));
        Ok(())
    }
}
