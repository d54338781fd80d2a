//! The receiving half, in this process. A lease is dropped before the world is told, so that the
//! oracle can write the pages.

use super::base::{Base, lock, on_blocking_pool};
use super::{DecodeHalf, Half, Status};
use crate::engine::{End, Listener, RoomNo, Sessions};
use crate::storms::{DEADLINE, RoomSpec, Side};
use kvroom::recording::Recording;
use kvroom::{Incarnation, Outcome, ReceiveRoom, RoomId, Which};
use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

type Receiving = Arc<Mutex<HashMap<RoomNo, Arc<ReceiveRoom>>>>;

/// See the module.
pub(crate) struct DecodeNode {
    base: Base,
    receiving: Receiving,
}

impl DecodeNode {
    /// With a node that was started.
    pub(crate) fn new(base: Base) -> DecodeNode {
        DecodeNode {
            base,
            receiving: Receiving::default(),
        }
    }
}

/// Waits for a receiver's outcome and for its pages.
async fn watch(
    no: RoomNo,
    room: Arc<ReceiveRoom>,
    receiving: Receiving,
    listener: Arc<dyn Listener>,
    slow_take: Duration,
) {
    let end = end(room.outcome().await);
    listener.ended(no, Side::Decode, end, Instant::now());
    if !slow_take.is_zero() {
        tokio::time::sleep(slow_take).await;
    }
    let released = room.released().await;
    let at = Instant::now();
    let pages: Vec<u32> = released
        .leases
        .iter()
        .flat_map(|lease| lease.pages().to_vec())
        .collect();
    let landed = released.landed.bytes;
    drop(released);
    lock(&receiving).remove(&no);
    on_blocking_pool(move || listener.destination_back(no, &pages, Some(landed), at)).await;
}

pub(super) fn end(outcome: Outcome) -> End {
    match outcome {
        Outcome::Done => End::Done,
        Outcome::Aborted(reason) => End::Aborted(reason.to_string()),
    }
}

impl Half for DecodeNode {
    fn abort(&self, no: RoomNo) {
        let room = lock(&self.receiving).get(&no).cloned();
        if let Some(room) = room {
            room.abort("the agent was killed");
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

impl DecodeHalf for DecodeNode {
    fn receive(&self, no: RoomNo, spec: &RoomSpec, pages: &[u32]) -> Result<(), String> {
        let base = &self.base;
        let lease = base
            .store
            .pool
            .lease_write(pages)
            .map_err(|error| error.to_string())?;
        let skip = u64::from(spec.turn.skip_pages) * u64::from(base.shape.page_tokens);
        let room = base
            .node
            .receive(RoomId(spec.id))
            .attempt(spec.attempt)
            .from(&base.peer()?)
            .into(lease)
            .skip(skip)
            .total(spec.turn.tokens)
            .tag(&spec.tag())
            .deadline(DEADLINE)
            .blocking_start()
            .map_err(|error| error.to_string())?;
        let room = Arc::new(room);
        base.remember(room.key(), no);
        lock(&self.receiving).insert(no, Arc::clone(&room));
        let (receiving, listener) = (Arc::clone(&self.receiving), Arc::clone(&base.listener));
        base.runtime
            .spawn(watch(no, room, receiving, listener, base.slow_take));
        Ok(())
    }

    fn abort_tag(&self, tag: &str) {
        let which = Which::Tag(tag.to_owned());
        let base = &self.base;
        base.runtime
            .block_on(base.node.abort_where(which, "the agent was killed"));
    }
}
