//! Starting many rooms with one message to each shard.

use super::error::StartErrorKind;
use super::node::Node;
use kvroom_actors::ids::RoomId;
use kvroom_actors::supervisor::actor::{Inbound, Inbox};
use std::sync::Arc;
use tokio::sync::{OwnedSemaphorePermit, TryAcquireError};

/// Messages that wait to be handed over together.
#[derive(Debug, Default)]
pub(super) struct Batch {
    shards: Vec<(Inbox, Vec<Inbound>)>,
}

impl Batch {
    /// Adds the message that starts `room`.
    pub(super) fn push(&mut self, node: &Node, room: RoomId, message: Inbound) {
        let inbox = node.inbox(room);
        match self.shards.iter_mut().find(|(known, _)| known.is(inbox)) {
            Some((_, messages)) => messages.push(message),
            None => self.shards.push((inbox.clone(), vec![message])),
        }
    }

    /// Hands over what waits. If the node has stopped, whoever waits for an answer hears that.
    pub(super) fn flush(&mut self) {
        for (inbox, messages) in self.shards.drain(..) {
            let _ = inbox.put(Inbound::Many(messages));
        }
    }
}

/// Room for one room. A room by itself waits for it; a batch does not: what it would wait for may be
/// held by its own rooms, whose handles the caller does not have yet.
pub(super) async fn admit(
    node: &Node,
    batched: bool,
) -> Result<OwnedSemaphorePermit, StartErrorKind> {
    if !node.shared().origin.is_here() {
        return Err(StartErrorKind::Forked);
    }
    let (rooms, stats) = (&node.shared().rooms, &node.shared().stats);
    match Arc::clone(rooms).try_acquire_owned() {
        Ok(permit) => Ok(permit),
        Err(TryAcquireError::Closed) => Err(StartErrorKind::NodeStopped),
        Err(TryAcquireError::NoPermits) if batched => {
            stats.add(&stats.start_full);
            Err(StartErrorKind::LimitReached {
                limit: "rooms",
                value: node.shared().limits.rooms as u64,
                advice: "start the rest of the batch again when rooms have ended".into(),
            })
        }
        Err(TryAcquireError::NoPermits) => {
            stats.add(&stats.start_waited);
            let permit = Arc::clone(rooms).acquire_owned().await;
            permit.map_err(|_| StartErrorKind::NodeStopped)
        }
    }
}
