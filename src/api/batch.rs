//! Starting many rooms with one message to each shard.

use super::node::Node;
use kvroom_actors::ids::RoomId;
use kvroom_actors::supervisor::actor::{Inbound, Inbox};
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

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

/// Room for one room. Before it waits for others to end, what was batched is handed over.
pub(super) async fn admit(node: &Node, batch: Option<&mut Batch>) -> Option<OwnedSemaphorePermit> {
    let rooms = &node.shared().rooms;
    if let Ok(permit) = Arc::clone(rooms).try_acquire_owned() {
        return Some(permit);
    }
    if let Some(batch) = batch {
        batch.flush();
    }
    Arc::clone(rooms).acquire_owned().await.ok()
}
