//! Asking the shards for what is stuck, one question to each at a time.
//!
//! ```text
//!   stuck_rooms ─▶ the question before was answered? ─▶ ask ─▶ answer, in time
//!                     └─ not yet: wait for that one ──────────▶ or the shard is silent
//! ```
//!
//! Rules: a shard that stands still is not buried under questions. The answer to an old one is dropped.

use super::thread::Runtime;
use crate::supervisor::actor::Inbound;
use crate::supervisor::info::StuckRooms;
use std::time::Duration;
use tokio::sync::{Mutex, oneshot};
use tokio::time::{Instant, timeout_at};

/// For each shard, the question that it has not answered.
#[derive(Debug)]
pub(crate) struct Asked(Vec<Mutex<Option<oneshot::Receiver<StuckRooms>>>>);

impl Asked {
    pub(crate) fn new(shards: usize) -> Asked {
        Asked((0..shards).map(|_| Mutex::default()).collect())
    }
}

/// A shard did not answer in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Silent;

impl Runtime {
    /// What is stuck on one shard; nothing on one that has stopped.
    ///
    /// # Errors
    ///
    /// [`Silent`] if that is not known by `until`.
    pub async fn stuck_rooms(
        &self,
        shard: usize,
        grace: Duration,
        until: Instant,
    ) -> Result<StuckRooms, Silent> {
        let (Some(inbox), Some(asked)) = (self.inboxes().get(shard), self.asked().0.get(shard))
        else {
            return Ok(StuckRooms::default());
        };
        let answer = async {
            let mut asked = asked.lock().await;
            if let Some(before) = &mut *asked {
                let _ = before.await;
                *asked = None;
            }
            let (reply, answer) = oneshot::channel();
            let question = Inbound::Ask(Box::new(move |shard, _| {
                let _ = reply.send(shard.stuck_rooms(grace));
            }));
            if inbox.put(question).is_err() {
                return StuckRooms::default();
            }
            let rooms = asked.insert(answer).await;
            *asked = None;
            rooms.unwrap_or_default()
        };
        timeout_at(until, answer).await.map_err(|_| Silent)
    }
}
