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
    let rooms = Arc::clone(&node.shared().rooms);
    if !batched {
        let permit = rooms.acquire_owned().await;
        return permit.map_err(|_| StartErrorKind::NodeStopped);
    }
    rooms.try_acquire_owned().map_err(|error| match error {
        TryAcquireError::Closed => StartErrorKind::NodeStopped,
        TryAcquireError::NoPermits => StartErrorKind::LimitReached {
            limit: "rooms",
            value: node.shared().limits.rooms as u64,
            advice: "start the rest of the batch again when rooms have ended".into(),
        },
    })
}
